//! Discovery: which groups, versions and resources there are, in both forms that clients ask for.

use std::cmp::Reverse;

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use roadstead_api::kind::Info;
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::registry::Registry;

/// The media type of aggregated discovery; clients look at its parameters.
pub const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

const VERBS: [&str; 8] =
    ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];

/// Whether the client prefers everything in one answer.
pub fn wants_aggregated(accept: &str) -> bool {
    accept.contains("as=APIGroupDiscoveryList") && accept.contains("v=v2;")
        || accept.contains("as=APIGroupDiscoveryList;v=v2,")
}

/// `/version`.
pub fn version() -> Value {
    json!({
        "major": "1",
        "minor": "37",
        "gitVersion": concat!("v1.37.0+roadstead.", env!("CARGO_PKG_VERSION")),
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "none",
        "compiler": "rustc",
        "platform": "linux/amd64",
    })
}

/// `/api`, unaggregated.
pub fn core_versions() -> Value {
    json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []})
}

/// `/apis`, unaggregated.
pub fn groups(registry: &Registry) -> Value {
    let groups = named_groups(registry);
    let groups: Vec<_> = groups.iter().map(|(group, all)| group_value(group, all)).collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

/// `/apis/GROUP`.
pub fn group(registry: &Registry, name: &str) -> Option<Value> {
    let (group, versions) = named_groups(registry).into_iter().find(|(group, _)| *group == name)?;
    let mut value = group_value(group, &versions);
    value["kind"] = "APIGroup".into();
    value["apiVersion"] = "v1".into();
    Some(value)
}

fn group_value(group: &str, versions: &[&str]) -> Value {
    let versions = versions
        .iter()
        .map(|version| json!({"groupVersion": format!("{group}/{version}"), "version": version}));
    let versions: Vec<_> = versions.collect();
    json!({"name": group, "preferredVersion": versions[0], "versions": versions})
}

fn named_groups(registry: &Registry) -> Vec<(&str, Vec<&str>)> {
    by_group(registry).into_iter().filter(|(group, _)| !group.is_empty()).collect()
}

/// All groups, each with its versions, the preferred one first.
fn by_group(registry: &Registry) -> Vec<(&str, Vec<&str>)> {
    let mut all: Vec<(&str, Vec<&str>)> = Vec::new();
    for (group, version) in registry.groups() {
        match all.iter_mut().find(|(known, _)| *known == group) {
            Some((_, versions)) => versions.push(version),
            None => all.push((group, vec![version])),
        }
    }
    for (_, versions) in &mut all {
        versions.sort_by_key(|version| priority(version));
    }
    // Those of the same rank by name, as upstream sorts them.
    all.sort_by_key(|(group, _)| (rank(group), *group));
    all
}

/// Where upstream puts a group: kinds of the same name are looked for in this order. Groups that
/// users define come last.
fn rank(group: &str) -> usize {
    const ORDER: [&str; 17] = [
        "",
        "apps",
        "events.k8s.io",
        "authentication.k8s.io",
        "authorization.k8s.io",
        "autoscaling",
        "batch",
        "certificates.k8s.io",
        "networking.k8s.io",
        "policy",
        "rbac.authorization.k8s.io",
        "storage.k8s.io",
        "apiextensions.k8s.io",
        "scheduling.k8s.io",
        "coordination.k8s.io",
        "node.k8s.io",
        "discovery.k8s.io",
    ];
    ORDER.iter().position(|known| *known == group).unwrap_or(ORDER.len())
}

/// What clients compare to see whether objects are still kept in the same form.
fn storage_version_hash(info: &Info) -> String {
    let kind = format!("{}/{}/{}", info.stored_group, info.stored_version, info.kind);
    let hash = digest(&SHA256, kind.as_bytes());
    STANDARD.encode(&hash.as_ref()[..8])
}

/// Released versions come before betas, betas before alphas, higher numbers first, and whatever
/// else there is last: the order that upstream gives the versions of custom kinds.
pub fn priority(version: &str) -> (u8, Reverse<u64>, Reverse<u64>, String) {
    let last = (3, Reverse(0), Reverse(0), version.to_owned());
    let Some(rest) = version.strip_prefix('v') else { return last };
    let (class, major, minor) = match (rest.split_once("beta"), rest.split_once("alpha")) {
        (Some((major, minor)), _) => (1, major, minor),
        (_, Some((major, minor))) => (2, major, minor),
        _ => (0, rest, "0"),
    };
    match (major.parse(), minor.parse()) {
        (Ok(major), Ok(minor)) => (class, Reverse(major), Reverse(minor), String::new()),
        _ => last,
    }
}

/// `/`: what there is to ask for.
pub fn paths(registry: &Registry) -> Value {
    let mut paths: Vec<String> = [
        "/.well-known/openid-configuration",
        "/api",
        "/api/v1",
        "/apis",
        "/healthz",
        "/healthz/etcd",
        "/healthz/ping",
        "/livez",
        "/livez/etcd",
        "/livez/ping",
        "/metrics",
        "/openapi/v2",
        "/openapi/v3",
        "/openid/v1/jwks",
        "/readyz",
        "/readyz/etcd",
        "/readyz/ping",
        "/version",
    ]
    .map(str::to_owned)
    .into();
    for (group, versions) in named_groups(registry) {
        paths.push(format!("/apis/{group}"));
        paths.extend(versions.iter().map(|version| format!("/apis/{group}/{version}")));
    }
    paths.sort();
    json!({"paths": paths})
}

/// `/api/v1` and `/apis/GROUP/VERSION`, unaggregated.
pub fn resources(registry: &Registry, group: &str, version: &str) -> Option<Value> {
    let mut resources = Vec::new();
    for info in infos(registry, group, version) {
        resources.push(resource(info));
        for subresource in subresources(info) {
            let (g, v) = subresource.gv;
            resources.push(json!({
                "name": format!("{}/{}", info.plural, subresource.name), "singularName": "",
                "namespaced": info.namespaced, "kind": subresource.kind,
                "group": g, "version": v, "verbs": subresource.verbs,
            }));
        }
    }
    let known = !resources.is_empty();
    let gv = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    known.then(|| {
        json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": gv,
            "resources": resources})
    })
}

fn resource(info: &Info) -> Value {
    let mut resource = json!({"name": info.plural, "singularName": info.singular,
        "namespaced": info.namespaced, "kind": info.kind, "verbs": verbs(info)});
    if !info.short_names.is_empty() {
        resource["shortNames"] = json!(info.short_names);
    }
    if !info.categories.is_empty() {
        resource["categories"] = json!(info.categories);
    }
    if !info.review {
        resource["storageVersionHash"] = storage_version_hash(info).into();
    }
    resource
}

/// `/api` or `/apis`, aggregated.
pub fn aggregated(registry: &Registry, core: bool) -> Value {
    let groups = by_group(registry).into_iter().filter(|(group, _)| group.is_empty() == core);
    let items = groups.map(|(group, versions)| {
        let versions = versions.into_iter().map(|version| {
            let resources = infos(registry, group, version).map(aggregated_resource);
            let resources: Vec<_> = resources.collect();
            json!({"version": version, "resources": resources, "freshness": "Current"})
        });
        let versions: Vec<_> = versions.collect();
        match group {
            "" => json!({"metadata": {"creationTimestamp": null}, "versions": versions}),
            group => json!({"metadata": {"name": group, "creationTimestamp": null},
                "versions": versions}),
        }
    });
    let items: Vec<_> = items.collect();
    json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {}, "items": items})
}

fn aggregated_resource(info: &Info) -> Value {
    let scope = if info.namespaced { "Namespaced" } else { "Cluster" };
    let kind = |group: &str, version: &str, kind: &str| json!({"group": group, "version": version, "kind": kind});
    let subresources = subresources(info).into_iter().map(|subresource| {
        let (group, version) = subresource.gv;
        json!({"subresource": subresource.name, "verbs": subresource.verbs,
            "responseKind": kind(group, version, subresource.kind)})
    });
    json!({
        "resource": info.plural,
        "responseKind": kind(info.group, info.version, info.kind),
        "scope": scope,
        "singularResource": info.singular,
        "verbs": verbs(info),
        "shortNames": info.short_names,
        "categories": info.categories,
        "subresources": subresources.collect::<Vec<_>>(),
    })
}

fn verbs(info: &Info) -> &'static [&'static str] {
    if info.review { &["create"] } else { &VERBS }
}

fn proxy(kind: &'static str) -> Subresource {
    let verbs = &["create", "delete", "get", "patch", "update"];
    Subresource { name: "proxy", kind, gv: ("", "v1"), verbs }
}

struct Subresource {
    name: &'static str,
    kind: &'static str,
    gv: (&'static str, &'static str),
    verbs: &'static [&'static str],
}

/// What upstream hands on to nodes and pods, and we do not.
const STREAMS: [&str; 4] = ["log", "exec", "attach", "portforward"];

/// Fails if we do not serve this below objects of a kind.
pub fn check_subresource(info: &Info, name: &str) -> Result<(), ApiError> {
    match has_subresource(info, name) {
        true if is_stream(info, name) => {
            let message = format!("{}/{name} is not served by this API server", info.plural);
            Err(ApiError::not_implemented(message))
        }
        true => Ok(()),
        false => Err(ApiError::no_such_path()),
    }
}

/// Whether objects of a kind have this below them, here or upstream.
pub fn has_subresource(info: &Info, name: &str) -> bool {
    name.is_empty()
        || is_stream(info, name)
        || subresources(info).iter().any(|subresource| subresource.name == name)
}

fn is_stream(info: &Info, name: &str) -> bool {
    is_core(info, "pods") && STREAMS.contains(&name)
}

/// Somebody may define a kind of the same name in another group.
fn is_core(info: &Info, plural: &str) -> bool {
    info.group.is_empty() && info.plural == plural
}

fn subresources(info: &Info) -> Vec<Subresource> {
    let gv = (info.group, info.version);
    let verbs: &[_] = &["get", "patch", "update"];
    let mut all = Vec::new();
    if info.status {
        all.push(Subresource { name: "status", kind: info.kind, gv, verbs });
    }
    if info.scale {
        let gv = ("autoscaling", "v1");
        all.push(Subresource { name: "scale", kind: "Scale", gv, verbs });
    }
    match info.plural {
        "certificatesigningrequests" if info.group == "certificates.k8s.io" => {
            all.push(Subresource { name: "approval", kind: info.kind, gv, verbs });
        }
        _ if !info.group.is_empty() => {}
        "pods" => {
            all.push(proxy("PodProxyOptions"));
            all.push(Subresource { name: "ephemeralcontainers", kind: "Pod", gv, verbs });
            let verbs = &["create"];
            all.push(Subresource { name: "binding", kind: "Binding", gv, verbs });
            let gv = ("policy", "v1");
            all.push(Subresource { name: "eviction", kind: "Eviction", gv, verbs });
        }
        "services" => all.push(proxy("ServiceProxyOptions")),
        "serviceaccounts" => {
            let gv = ("authentication.k8s.io", "v1");
            let verbs = &["create"];
            all.push(Subresource { name: "token", kind: "TokenRequest", gv, verbs });
        }
        "namespaces" => {
            let verbs = &["update"];
            all.push(Subresource { name: "finalize", kind: "Namespace", gv, verbs });
        }
        _ => {}
    }
    all
}

fn infos<'a>(
    registry: &'a Registry,
    group: &'a str,
    version: &'a str,
) -> impl Iterator<Item = &'a Info> + 'a {
    let infos = registry.iter().map(|resource| resource.info());
    infos.filter(move |info| info.group == group && info.version == version)
}

#[test]
fn groups_and_hashes_are_those_of_upstream() {
    use roadstead_store::store::Store;
    let registry = crate::registry::Catalog::new(Store::memory()).now();
    let groups = by_group(&registry).into_iter().map(|(group, _)| group);
    let known = ["", "apps", "events.k8s.io", "authentication.k8s.io", "authorization.k8s.io"];
    assert_eq!(groups.take(5).collect::<Vec<_>>(), known);
    let pods = registry.core("pods").info();
    assert_eq!(storage_version_hash(pods), "xPOwRZ+Yhw8=");
    let events = registry.find("events.k8s.io", "v1", "events").unwrap().info();
    assert_eq!(storage_version_hash(events), "r2yiGXH7wu8=", "kept in the form of the core group");
}

#[test]
fn versions_by_priority() {
    let mut versions = ["foo", "v1alpha1", "v11beta2", "v10", "v2", "v1beta1", "v1", "v11alpha2"];
    versions.sort_by_key(|version| priority(version));
    assert_eq!(
        versions,
        ["v10", "v2", "v1", "v11beta2", "v1beta1", "v11alpha2", "v1alpha1", "foo"]
    );
}
