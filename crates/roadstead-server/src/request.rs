//! What a request is about: the path and the query, taken apart.

use std::borrow::Cow;
use std::collections::HashMap;

use http::Method;
use roadstead_api::invalid::Causes;
use roadstead_api::selector::{FieldCondition, Selector, parse_fields};
use serde_json::json;

use crate::error::ApiError;

/// The parts of a path below `/api/v1` or `/apis/GROUP/VERSION`.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Target<'a> {
    /// Empty for the core group.
    pub group: &'a str,
    /// Such as `v1`.
    pub version: &'a str,
    /// Empty for cluster-scoped objects and for lists over all namespaces.
    pub namespace: &'a str,
    /// Such as `services`.
    pub plural: &'a str,
    /// Empty for a list.
    pub name: &'a str,
    /// Such as `status`; empty for the object itself.
    pub subresource: &'a str,
    /// What follows `proxy`, with its slashes; empty if nothing does.
    pub rest: &'a str,
}

/// A path without escapes.
pub struct Path<'a> {
    object: Cow<'a, str>,
    /// What is proxied has a path of its own, which stays as it is.
    rest: &'a str,
}

impl<'a> Path<'a> {
    /// Resolves the escapes of a path; `None` if one of them hides a slash or makes no text.
    pub fn read(path: &'a str) -> Option<Self> {
        for (at, word) in path.match_indices("/proxy") {
            let (object, rest) = path.split_at(at + word.len());
            let proxied = Target::parse_object(object).is_some_and(|t| t.subresource == "proxy");
            if proxied && (rest.is_empty() || rest.starts_with('/')) {
                return Some(Self { object: plain(object)?, rest });
            }
        }
        Some(Self { object: plain(path)?, rest: "" })
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

impl<'a> Target<'a> {
    /// Takes a path apart; `None` if it is not about objects.
    pub fn parse(path: &'a Path<'a>) -> Option<Self> {
        let target = Self::parse_object(&path.object)?;
        Some(Self { rest: path.rest, ..target })
    }

    fn parse_object(path: &'a str) -> Option<Self> {
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
        let target = Self { group, version, ..Self::default() };
        Some(match *rest {
            // A namespace is an object too, and has subresources of its own.
            ["namespaces", name, subresource @ ("status" | "finalize")] => {
                Self { plural: "namespaces", name, subresource, ..target }
            }
            ["namespaces", namespace, plural] => Self { namespace, plural, ..target },
            ["namespaces", namespace, plural, name] => Self { namespace, plural, name, ..target },
            ["namespaces", namespace, plural, name, subresource] => {
                Self { namespace, plural, name, subresource, ..target }
            }
            [plural] => Self { plural, ..target },
            [plural, name] => Self { plural, name, ..target },
            [plural, name, subresource] => Self { plural, name, subresource, ..target },
            _ => return None,
        })
    }
}

/// What a method does to objects, in the words of roles: to a collection if `name` is empty. A HEAD is
/// a GET whose answer has no body. Methods that do nothing have no word, as for upstream.
pub fn verb(method: &Method, name: &str, watches: bool) -> &'static str {
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

/// The query of a request.
#[derive(Debug, Default)]
pub struct Query(HashMap<String, String>);

impl Query {
    /// Takes a query apart. Of a repeated parameter the first value counts, but a dry run is all
    /// that is ever said of `dryRun`: anything else is refused later.
    pub fn parse(text: Option<&str>) -> Self {
        let mut values = HashMap::<String, String>::new();
        for (name, value) in pairs(text) {
            let odd = name == "dryRun" && value != "All";
            match values.get_mut(&name) {
                Some(known) if odd => *known = value,
                Some(_) => {}
                None => drop(values.insert(name, value)),
            }
        }
        Self(values)
    }

    /// Whether a parameter is there, with or without a value.
    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// The value of a parameter, or "".
    pub fn get(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    /// Whether a parameter is set to something true.
    pub fn flag(&self, name: &str) -> bool {
        matches!(self.get(name), "true" | "1" | "True" | "TRUE" | "t")
    }

    /// A number, 0 if it is absent.
    pub fn number(&self, name: &str) -> Result<u64, ApiError> {
        match self.get(name) {
            "" => Ok(0),
            text => text.parse().map_err(|_| {
                ApiError::bad_request(format!("invalid value {text:?} for parameter {name}"))
            }),
        }
    }

    /// Whether nothing may be written.
    pub fn dry_run(&self) -> bool {
        self.get("dryRun") == "All"
    }

    /// Checks the parameters that say how to write; `kind` is what upstream calls them together.
    pub fn check_options(&self, kind: &'static str) -> Result<(), ApiError> {
        let mut causes = Causes::default();
        if self.has("dryRun") && !self.dry_run() {
            causes.unsupported("dryRun", &json!([self.get("dryRun")]), &["All"]);
        }
        match self.get("fieldValidation") {
            "" | "Ignore" | "Warn" | "Strict" => {}
            other => {
                let known = ["", "Ignore", "Strict", "Warn"];
                causes.unsupported("fieldValidation", &json!(other), &known);
            }
        }
        match causes.0.is_empty() {
            true => Ok(()),
            false => Err(ApiError::invalid_options(kind, &causes.0)),
        }
    }

    /// The conditions on labels.
    pub fn labels(&self) -> Result<Selector, ApiError> {
        Selector::parse(self.get("labelSelector")).map_err(ApiError::bad_request)
    }

    /// The conditions on fields.
    pub fn fields(&self) -> Result<Vec<FieldCondition>, ApiError> {
        parse_fields(self.get("fieldSelector")).map_err(ApiError::bad_request)
    }
}

/// All values of a parameter that may be repeated.
pub fn repeated(text: Option<&str>, name: &str) -> Vec<String> {
    pairs(text).filter(|(own, _)| own == name).map(|(_, value)| value).collect()
}

fn pairs(text: Option<&str>) -> impl Iterator<Item = (String, String)> {
    let pairs = text.unwrap_or("").split('&').filter(|pair| !pair.is_empty());
    pairs.map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (unescape(name), unescape(value))
    })
}

/// Text of a query without percent escapes; a plus is a blank.
pub fn unescape(text: &str) -> String {
    String::from_utf8_lossy(&unescaped(text, b' ')).into_owned()
}

/// The bytes that percent escapes and pluses stand for.
fn unescaped(text: &str, plus: u8) -> Vec<u8> {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let escaped = || u8::from_str_radix(text.get(at + 1..at + 3)?, 16).ok();
        match bytes[at] {
            b'+' => out.push(plus),
            b'%' if escaped().is_some() => {
                out.extend(escaped());
                at += 2;
            }
            byte => out.push(byte),
        }
        at += 1;
    }
    out
}

#[test]
fn paths_are_taken_apart() {
    let show = |path| {
        let path = Path::read(path)?;
        let t = Target::parse(&path)?;
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
    let path = Path::read("/api/v1/namespaces/x/services/web/proxy/a%2fb//").unwrap();
    assert_eq!(Target::parse(&path).unwrap().rest, "/a%2fb//");
    let nothing = ["/", "/api", "/apis/apps/v1", "/healthz"];
    let empty = ["//api/v1/pods", "/api/v1/namespaces/default/pods//exec", "/api/v1//pods"];
    let hidden = ["/api/v1/nodes/a%2Fstatus", "/api/v1/nodes/%ff", "/api/v1/%2fpods"];
    for path in nothing.into_iter().chain(empty).chain(hidden) {
        assert_eq!(show(path), None, "{path}");
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

#[test]
fn queries_are_taken_apart() {
    let query = Query::parse(Some("labelSelector=app%3Dweb%2Ca+in+(b)&watch=1&limit=x&bad=%zz"));
    assert_eq!(query.get("labelSelector"), "app=web,a in (b)");
    assert!(query.flag("watch"));
    assert_eq!(query.get("bad"), "%zz");
    assert!(query.number("limit").is_err());
}
