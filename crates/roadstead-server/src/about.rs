//! A request in the words of metrics and audit logs.

use http::Request;

use crate::discovery;
use crate::registry::Registry;
use crate::request::{Path, Query, Target, verb};

/// What a request is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// `get`, `list`, `watch`, `create`, …; for other paths the lower-case method.
    pub verb: String,
    /// Empty for the core group.
    pub group: String,
    /// Such as `v1`.
    pub version: String,
    /// Empty if the path is not about objects.
    pub resource: String,
    /// Empty for the object itself.
    pub subresource: String,
    /// Empty outside of namespaces.
    pub namespace: String,
    /// Empty for lists.
    pub name: String,
    /// Path and query.
    pub uri: String,
}

impl About {
    /// Reads a request without its body.
    pub fn of<B>(request: &Request<B>) -> Self {
        let uri = request.uri();
        let path = uri.path_and_query().map_or_else(|| uri.path().to_owned(), ToString::to_string);
        let parsed = Path::read(uri.path());
        let Some(target) = parsed.as_ref().and_then(Target::parse) else {
            let verb = request.method().as_str().to_lowercase();
            return Self { verb, uri: path.clone(), ..Self::default() };
        };
        let watches = Query::parse(uri.query()).flag("watch");
        let verb = verb(request.method(), target.name, watches);
        Self {
            verb: verb.to_owned(),
            group: target.group.to_owned(),
            version: target.version.to_owned(),
            resource: target.plural.to_owned(),
            subresource: target.subresource.to_owned(),
            namespace: target.namespace.to_owned(),
            name: target.name.to_owned(),
            uri: path.clone(),
        }
    }

    /// Only what is about kinds that are served.
    pub fn known(&self, registry: &Registry) -> Self {
        let Some(resource) = registry.find(&self.group, &self.version, &self.resource) else {
            return Self { verb: self.verb.clone(), uri: self.uri.clone(), ..Self::default() };
        };
        let mut known = self.clone();
        if !discovery::has_subresource(resource.info(), &known.subresource) {
            known.subresource = String::new();
        }
        known
    }

    /// How much of the cluster it is about.
    pub fn scope(&self) -> &'static str {
        match (self.resource.is_empty(), self.namespace.is_empty(), self.name.is_empty()) {
            (true, ..) => "",
            (_, _, false) => "resource",
            (_, false, true) => "namespace",
            _ => "cluster",
        }
    }

    /// Whether it changes anything.
    pub fn is_mutating(&self) -> bool {
        !matches!(self.verb.as_str(), "get" | "list" | "watch" | "head" | "options")
    }
}
