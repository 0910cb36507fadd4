//! A request: taken apart once, passed through the filters (`chain`), handed to the function that
//! answers it (`handler`).

use std::borrow::Cow;

use http::request::Parts;
use http::{Method, Uri};

pub(crate) mod body;
pub mod chain;
pub(crate) mod handler;
pub(crate) mod path;
pub(crate) mod query;

use path::ResourcePath;
use query::Query;

/// What a request is about, in the words of roles, metrics and audit logs.
#[derive(Debug, Default)]
pub(crate) struct RequestInfo {
    /// `get`, `list`, `watch`, `create`, …; for other paths the lower-case method. A HEAD is a GET
    /// whose answer has no body. Methods that do nothing to objects have no word, as for upstream.
    pub(crate) verb: Cow<'static, str>,
    /// `None` if the path is not about objects.
    pub(crate) path: Option<ResourcePath>,
    pub(crate) query: Query,
    uri: Uri,
}

impl RequestInfo {
    /// Takes the head of a request apart.
    pub(crate) fn of(parts: &Parts) -> Self {
        let query = Query::parse(parts.uri.query());
        let path = ResourcePath::parse(parts.uri.path());
        let verb = match &path {
            Some(path) => verb(&parts.method, &path.name, query.flag("watch")).into(),
            None => parts.method.as_str().to_lowercase().into(),
        };
        Self { verb, path, query, uri: parts.uri.clone() }
    }

    /// Which objects it is about; everything is empty if it is about none.
    pub(crate) fn resource(&self) -> &ResourcePath {
        static NONE: ResourcePath = ResourcePath::none();
        self.path.as_ref().unwrap_or(&NONE)
    }

    /// Path and query, as they were sent.
    pub(crate) fn uri(&self) -> &str {
        self.uri.path_and_query().map_or(self.uri.path(), |both| both.as_str())
    }

    /// Whether it changes anything.
    pub(crate) fn is_mutating(&self) -> bool {
        !matches!(&*self.verb, "get" | "list" | "watch" | "head" | "options")
    }
}

/// What a method does to objects: to a collection if `name` is empty.
fn verb(method: &Method, name: &str, watches: bool) -> &'static str {
    match (method.as_str(), name) {
        ("GET" | "HEAD", _) if watches => "watch",
        ("GET" | "HEAD", "") => "list",
        ("GET" | "HEAD", _) => "get",
        ("POST", _) => "create",
        ("PUT", _) => "update",
        ("PATCH", _) => "patch",
        ("DELETE", "") => "deletecollection",
        ("DELETE", _) => "delete",
        _ => "",
    }
}

#[cfg(test)]
impl RequestInfo {
    /// A request with this verb about a path, or about `GROUP/RESOURCE[/SUBRESOURCE]`.
    pub(crate) fn sample(verb: &'static str, about: &str) -> Self {
        let words: Vec<_> = about.splitn(3, '/').collect();
        let path = match words[..] {
            [group, plural, ref rest @ ..] if !group.is_empty() => Some(ResourcePath {
                group: group.trim_matches('-').into(),
                plural: plural.into(),
                subresource: rest.first().copied().unwrap_or("").into(),
                ..ResourcePath::default()
            }),
            _ => None,
        };
        let uri = about.parse().unwrap_or_default();
        Self { verb: verb.into(), path, uri, ..Self::default() }
    }
}

#[test]
fn verbs() {
    // Method, name, whether it watches, verb.
    let cases = [
        ("GET", "", false, "list"),
        ("GET", "", true, "watch"),
        ("GET", "a", false, "get"),
        ("GET", "a", true, "watch"),
        ("HEAD", "", false, "list"),
        ("HEAD", "", true, "watch"),
        ("HEAD", "a", false, "get"),
        ("POST", "", false, "create"),
        ("POST", "a", false, "create"),
        ("PUT", "a", false, "update"),
        ("PATCH", "a", false, "patch"),
        ("DELETE", "a", false, "delete"),
        ("DELETE", "a", true, "delete"),
        ("DELETE", "", false, "deletecollection"),
        ("OPTIONS", "a", false, ""),
        ("TRACE", "a", false, ""),
        ("CONNECT", "a", false, ""),
        ("delete", "a", false, ""),
        ("PURGE", "", false, ""),
    ];
    for (method, name, watches, want) in cases {
        let bytes = Method::from_bytes(method.as_bytes()).unwrap();
        assert_eq!(verb(&bytes, name, watches), want, "{method} {name:?}");
    }
}
