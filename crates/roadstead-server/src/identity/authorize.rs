//! Who may do what: the questions that requests put to the policy.

use std::borrow::Cow;

use roadstead_api::kind::Info;

use crate::error::ApiError;
use crate::identity::rbac::Rbac;
use crate::identity::rbac::rule::Attributes;
use crate::identity::user::User;
use crate::request::RequestInfo;
use crate::request::path::ResourcePath;

/// A user, and the policy that says what they may do. Refusals have the words of Kubernetes.
#[derive(Clone, Copy)]
pub(crate) struct Authorizer<'a> {
    rbac: &'a Rbac,
    user: &'a User,
}

impl<'a> Authorizer<'a> {
    pub(crate) fn new(rbac: &'a Rbac, user: &'a User) -> Self {
        Self { rbac, user }
    }

    /// Whether the user may ask for a path that is not about objects.
    pub(crate) fn path(&self, verb: &str, path: &str) -> Result<(), ApiError> {
        let first = path.trim_start_matches('/').split('/').next().unwrap_or("");
        if matches!(first, "healthz" | "livez" | "readyz" | "version") {
            return Ok(());
        }
        if self.user.is_anonymous() {
            return Err(ApiError::unauthorized());
        }
        let attributes = Attributes { verb, path, ..Attributes::default() };
        // A copy of the store has every secret in it: no role allows that, nor what else there may be.
        let secret = path.starts_with("/debug/") && path != "/debug/state";
        if self.user.is_master() || !secret && self.allows(&attributes) {
            return Ok(());
        }
        let name = &self.user.name;
        Err(ApiError::forbidden(format!("forbidden: User {name:?} cannot {verb} path {path:?}")))
    }

    /// Whether the user may do what a request asks for to these objects.
    pub(crate) fn request(
        &self,
        request: &RequestInfo,
        path: &ResourcePath,
        info: &Info,
    ) -> Result<(), ApiError> {
        if self.user.is_anonymous() && !is_public(&request.verb, path) {
            return Err(ApiError::unauthorized());
        }
        let fields = match &*request.verb {
            "list" | "watch" | "deletecollection" => request.query.fields()?,
            _ => Vec::new(),
        };
        // A selection by name is about one object, as a name in the path is.
        let mut names = fields.iter().filter(|field| field.label == "metadata.name" && field.equal);
        let name = match &*path.name {
            "" => names.next().map_or("", |field| &field.value),
            name => name,
        };
        let mut nodes = fields.iter().filter(|field| field.label == "spec.nodeName" && field.equal);
        // Volumes are bound to nodes by a label; the whole selection tells that from a field.
        let labels = request.query.get("labelSelector");
        let labelled = if labels.starts_with(NODE_LABEL) { labels } else { "" };
        let node = nodes.next().map_or(labelled, |field| &field.value);
        self.verb(&request.verb, path, info, Selected { name, node })
    }

    /// Whether the user may create the object that an update or a patch did not find.
    pub(crate) fn creation(&self, path: &ResourcePath, info: &Info) -> Result<(), ApiError> {
        self.verb("create", path, info, Selected { name: &path.name, node: "" })
    }

    /// Whether the user may delete an object that cannot be read: nobody can tell what waits for it.
    pub(crate) fn unsafe_deletion(&self, path: &ResourcePath, info: &Info) -> Result<(), ApiError> {
        let one = Selected { name: &path.name, node: "" };
        self.verb("unsafe-delete-ignore-read-errors", path, info, one)
    }

    fn verb(
        &self,
        verb: &str,
        path: &ResourcePath,
        info: &Info,
        Selected { name, node }: Selected<'_>,
    ) -> Result<(), ApiError> {
        let resource = match &*path.subresource {
            "" => info.plural.into(),
            subresource => Cow::from(format!("{}/{subresource}", info.plural)),
        };
        let (group, namespace) = (info.group, path.rights_namespace());
        self.check(&Attributes {
            verb,
            group,
            resource: &resource,
            namespace,
            name,
            node,
            path: "",
        })
    }

    /// Fails unless some role of the user allows it.
    pub(crate) fn check(&self, attributes: &Attributes<'_>) -> Result<(), ApiError> {
        if self.allows(attributes) { Ok(()) } else { Err(refusal(self.user, attributes)) }
    }

    /// Whether some role of the user allows it.
    pub(crate) fn allows(&self, attributes: &Attributes<'_>) -> bool {
        self.rbac.allows(self.user, attributes)
    }
}

/// Whether it is the one object that strangers may read, if a role says so: what a machine must know of the
/// cluster that it joins.
pub(crate) fn is_public(verb: &str, path: &ResourcePath) -> bool {
    let place = (&*path.group, &*path.plural, &*path.subresource, &*path.namespace, &*path.name);
    verb == "get" && place == ("", "configmaps", "", "kube-public", "cluster-info")
}

/// How a selection of the volumes of one node begins.
pub(crate) const NODE_LABEL: &str = "roadstead.dev/node=";

/// Which objects a request is about, as far as it says so.
struct Selected<'a> {
    /// Empty for many.
    name: &'a str,
    /// The node that they are bound to; empty for any.
    node: &'a str,
}

/// The words for what is not allowed.
fn refusal(user: &User, attributes: &Attributes<'_>) -> ApiError {
    let place = match attributes.namespace {
        "" => "at the cluster scope".to_owned(),
        namespace => format!("in the namespace {namespace:?}"),
    };
    let plural = attributes.resource.split('/').next().unwrap_or("");
    let resource = match attributes.group {
        "" => plural.to_owned(),
        group => format!("{plural}.{group}"),
    };
    let name =
        if attributes.name.is_empty() { String::new() } else { format!(" {:?}", attributes.name) };
    let mut error = ApiError::forbidden(format!(
        "{resource}{name} is forbidden: User {:?} cannot {} resource {:?} in API group {:?} {place}",
        user.name, attributes.verb, attributes.resource, attributes.group
    ));
    let details = [("name", attributes.name), ("group", attributes.group), ("kind", plural)];
    let details = details.into_iter().filter(|(_, value)| !value.is_empty());
    error.details = Some(details.collect());
    error
}
