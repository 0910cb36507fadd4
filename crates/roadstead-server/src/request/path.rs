//! The path of a request, taken apart.

use std::borrow::Cow;

use crate::request::query::unescaped;

/// The parts of a path below `/api/v1` or `/apis/GROUP/VERSION`, without escapes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ResourcePath {
    /// Empty for the core group.
    pub(crate) group: String,
    /// Such as `v1`.
    pub(crate) version: String,
    /// Empty for cluster-scoped objects and for lists over all namespaces.
    pub(crate) namespace: String,
    /// Such as `services`.
    pub(crate) plural: String,
    /// Empty for a list.
    pub(crate) name: String,
    /// Such as `status`; empty for the object itself.
    pub(crate) subresource: String,
    /// What follows `proxy`, with its slashes and escapes: what is proxied has a path of its own.
    pub(crate) rest: String,
    /// Whether the object is a namespace.
    pub(super) is_namespace: bool,
}

impl ResourcePath {
    pub(super) const fn none() -> Self {
        Self {
            group: String::new(),
            version: String::new(),
            namespace: String::new(),
            plural: String::new(),
            name: String::new(),
            subresource: String::new(),
            rest: String::new(),
            is_namespace: false,
        }
    }

    /// Takes a path apart; `None` if it is not about objects, or if an escape hides a slash or makes
    /// no text.
    pub(crate) fn parse(path: &str) -> Option<Self> {
        for (at, word) in path.match_indices("/proxy") {
            let (object, rest) = path.split_at(at + word.len());
            let proxied = Self::parse_object(object).is_some_and(|t| t.subresource == "proxy");
            if proxied && (rest.is_empty() || rest.starts_with('/')) {
                let path = Self::parse_object(&plain(object)?)?;
                return Some(Self { rest: rest.to_owned(), ..path });
            }
        }
        Self::parse_object(&plain(path)?)
    }

    fn parse_object(path: &str) -> Option<Self> {
        let path = path.strip_prefix('/').unwrap_or(path);
        let parts: Vec<_> = path.strip_suffix('/').unwrap_or(path).split('/').collect();
        // Nothing is called "": a subresource of nobody would be taken for a list.
        if parts.contains(&"") {
            return None;
        }
        let (group, version, rest) = match parts[..] {
            ["api", version, ref rest @ ..] => ("", version, rest),
            ["apis", group, version, ref rest @ ..] => (group, version, rest),
            _ => return None,
        };
        let (namespace, rest) = match *rest {
            // A namespace is an object too, and has subresources of its own.
            ["namespaces", _] | ["namespaces", _, "status" | "finalize"] => ("", rest),
            ["namespaces", namespace, ref rest @ ..] => (namespace, rest),
            _ => ("", rest),
        };
        let (plural, name, subresource) = match *rest {
            [plural] => (plural, "", ""),
            [plural, name] => (plural, name, ""),
            [plural, name, subresource] => (plural, name, subresource),
            _ => return None,
        };
        Some(Self {
            group: group.into(),
            version: version.into(),
            namespace: namespace.into(),
            plural: plural.into(),
            name: name.into(),
            subresource: subresource.into(),
            rest: String::new(),
            is_namespace: matches!(*rest, ["namespaces", _, ..]),
        })
    }

    /// Whose rights count: a namespace lies in itself.
    pub(crate) fn rights_namespace(&self) -> &str {
        if self.is_namespace { &self.name } else { &self.namespace }
    }

    /// How much of the cluster it is about.
    pub(crate) fn scope(&self) -> &'static str {
        if self.plural.is_empty() {
            return "";
        }
        match (self.namespace.is_empty(), self.name.is_empty()) {
            (_, false) => "resource",
            (false, true) => "namespace",
            (true, true) => "cluster",
        }
    }
}

/// Names such as `system:node` may come as `system%3Anode`; a slash would make two names of one.
fn plain(path: &str) -> Option<Cow<'_, str>> {
    if !path.contains('%') {
        return Some(path.into());
    }
    let slashes = |text: &str| text.matches('/').count();
    let plain = String::from_utf8(unescaped(path, b'+')).ok()?;
    (slashes(&plain) == slashes(path)).then(|| plain.into())
}

#[test]
fn paths_are_taken_apart() {
    let show = |path| {
        let t = ResourcePath::parse(path)?;
        Some([t.group, t.version, t.namespace, t.plural, t.name, t.subresource].join("|"))
    };
    let cases = [
        ("/api/v1/services", "|v1||services||"),
        ("/api/v1/namespaces/default/services/web", "|v1|default|services|web|"),
        ("/api/v1/namespaces/default/pods/a/status", "|v1|default|pods|a|status"),
        ("/api/v1/namespaces/default", "|v1||namespaces|default|"),
        ("/api/v1/namespaces/default/status", "|v1||namespaces|default|status"),
        ("/apis/apps/v1/namespaces/x/deployments/d/scale", "apps|v1|x|deployments|d|scale"),
        ("/api/v1/nodes/n/status", "|v1||nodes|n|status"),
        ("/api/v1/namespaces/x/services/web:80/proxy", "|v1|x|services|web:80|proxy"),
        ("/api/v1/namespaces/x/services/web/proxy/a/proxy/b", "|v1|x|services|web|proxy"),
        ("/api/v1/namespaces/proxy/services/web", "|v1|proxy|services|web|"),
        ("/api/v1/namespaces/default/pods/", "|v1|default|pods||"),
        ("/apis/rbac/v1/clusterroles/system%3anode", "rbac|v1||clusterroles|system:node|"),
        ("/api/v1/namespaces/x/services/web%3A80/proxy/%2f", "|v1|x|services|web:80|proxy"),
    ];
    for (path, want) in cases {
        assert_eq!(show(path).as_deref(), Some(want), "{path}");
    }
    let path = ResourcePath::parse("/api/v1/namespaces/x/services/web/proxy/a%2fb//").unwrap();
    assert_eq!(path.rest, "/a%2fb//");
    let nothing = ["/", "/api", "/apis/apps/v1", "/healthz"];
    let empty = ["//api/v1/pods", "/api/v1/namespaces/default/pods//exec", "/api/v1//pods"];
    let hidden = ["/api/v1/nodes/a%2Fstatus", "/api/v1/nodes/%ff", "/api/v1/%2fpods"];
    for path in nothing.into_iter().chain(empty).chain(hidden) {
        assert_eq!(show(path), None, "{path}");
    }
}
