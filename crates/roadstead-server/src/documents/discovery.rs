//! Discovery: which groups, versions and resources there are, in both forms that clients ask for.

use std::cmp::Reverse;

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use roadstead_api::kind::Info;
use serde_json::{Value, json};

use crate::kinds::{GroupVersionKind, Subresource};
use crate::registry::{Registry, Resource};

/// The media type of aggregated discovery; clients look at its parameters.
pub(crate) const AGGREGATED: &str =
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

const VERBS: [&str; 8] =
    ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];

/// Whether the client prefers everything in one answer.
pub(crate) fn wants_aggregated(accept: &str) -> bool {
    accept.contains("as=APIGroupDiscoveryList") && accept.contains("v=v2;")
        || accept.contains("as=APIGroupDiscoveryList;v=v2,")
}

/// `/version`.
pub(crate) fn version() -> Value {
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
pub(crate) fn core_versions() -> Value {
    json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []})
}

/// `/apis`, unaggregated.
pub(crate) fn groups(registry: &Registry) -> Value {
    let groups = named_groups(registry);
    let groups: Vec<_> = groups.iter().map(|(group, all)| group_value(group, all)).collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

/// `/apis/GROUP`.
pub(crate) fn group(registry: &Registry, name: &str) -> Option<Value> {
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
    const ORDER: [&str; 18] = [
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
        "flowcontrol.apiserver.k8s.io",
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
pub(crate) fn priority(version: &str) -> (u8, Reverse<u64>, Reverse<u64>, String) {
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
pub(crate) fn paths(registry: &Registry) -> Value {
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
pub(crate) fn resources(registry: &Registry, group: &str, version: &str) -> Option<Value> {
    let mut resources = Vec::new();
    for known in served(registry, group, version) {
        let info = known.info();
        resources.push(resource(known));
        for subresource in listed(known) {
            let GroupVersionKind { group, version, kind } = kind_of(info, subresource);
            resources.push(json!({
                "name": format!("{}/{}", info.plural, subresource.name), "singularName": "",
                "namespaced": info.namespaced, "kind": kind,
                "group": group, "version": version, "verbs": subresource.verbs,
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

fn resource(known: &Resource) -> Value {
    let info = known.info();
    let mut resource = json!({"name": info.plural, "singularName": info.singular,
        "namespaced": info.namespaced, "kind": info.kind, "verbs": verbs(known)});
    if !info.short_names.is_empty() {
        resource["shortNames"] = json!(info.short_names);
    }
    if !info.categories.is_empty() {
        resource["categories"] = json!(info.categories);
    }
    if !info.review && known.strategy.verbs().is_none() {
        resource["storageVersionHash"] = storage_version_hash(info).into();
    }
    resource
}

/// `/api` or `/apis`, aggregated.
pub(crate) fn aggregated(registry: &Registry, core: bool) -> Value {
    let groups = by_group(registry).into_iter().filter(|(group, _)| group.is_empty() == core);
    let items = groups.map(|(group, versions)| {
        let versions = versions.into_iter().map(|version| {
            let resources = served(registry, group, version).map(aggregated_resource);
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

fn aggregated_resource(resource: &Resource) -> Value {
    let info = resource.info();
    let scope = if info.namespaced { "Namespaced" } else { "Cluster" };
    let kind = |group: &str, version: &str, kind: &str| json!({"group": group, "version": version, "kind": kind});
    let subresources = listed(resource).map(|subresource| {
        let own = kind_of(info, subresource);
        json!({"subresource": subresource.name, "verbs": subresource.verbs,
            "responseKind": kind(own.group, own.version, own.kind)})
    });
    let mut value = json!({
        "resource": info.plural,
        "responseKind": kind(info.group, info.version, info.kind),
        "scope": scope,
        "singularResource": info.singular,
        "verbs": verbs(resource),
    });
    // What there is none of is left out, as upstream does.
    for (field, list) in [
        ("shortNames", json!(info.short_names)),
        ("categories", json!(info.categories)),
        ("subresources", subresources.collect::<Vec<_>>().into()),
    ] {
        if list.as_array().is_some_and(|list| !list.is_empty()) {
            value[field] = list;
        }
    }
    value
}

fn verbs(resource: &Resource) -> &'static [&'static str] {
    let usual: &[&str] = if resource.info().review { &["create"] } else { &VERBS };
    resource.strategy.verbs().unwrap_or(usual)
}

/// The subresources that clients are told of.
fn listed(resource: &Resource) -> impl Iterator<Item = &Subresource> {
    resource.subresources().iter().filter(|subresource| !subresource.verbs.is_empty())
}

fn kind_of(info: &Info, subresource: &Subresource) -> GroupVersionKind {
    subresource.kind.unwrap_or(GroupVersionKind::new(info.group, info.version, info.kind))
}

fn served<'a>(
    registry: &'a Registry,
    group: &'a str,
    version: &'a str,
) -> impl Iterator<Item = &'a Resource> + 'a {
    let resources = registry.iter().map(|resource| &**resource);
    resources.filter(move |resource| {
        let info = resource.info();
        info.group == group && info.version == version
    })
}

#[test]
fn groups_and_hashes_are_those_of_upstream() {
    use roadstead_store::kv::Store;
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
fn aggregated_discovery_leaves_out_what_there_is_none_of() {
    use roadstead_store::kv::Store;
    let registry = crate::registry::Catalog::new(Store::memory()).now();
    let shown = |plural: &str| {
        let value = aggregated_resource(registry.core(plural));
        let optional = ["shortNames", "categories", "subresources"];
        optional
            .into_iter()
            .filter(|field| value.get(field).is_some())
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(shown("pods"), "shortNames categories subresources");
    assert_eq!(shown("configmaps"), "shortNames");
    assert_eq!(shown("secrets"), "");
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
