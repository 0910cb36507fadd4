//! Discovery: which groups, versions and resources there are, in both forms that clients ask for.

use roadstead_api::kind::Info;
use serde_json::{Value, json};

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
    let groups: Vec<_> =
        groups.iter().map(|&(group, version)| group_value(group, version)).collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

/// `/apis/GROUP`.
pub fn group(registry: &Registry, name: &str) -> Option<Value> {
    let (group, version) = named_groups(registry).into_iter().find(|(group, _)| *group == name)?;
    let mut value = group_value(group, version);
    value["kind"] = "APIGroup".into();
    value["apiVersion"] = "v1".into();
    Some(value)
}

fn group_value(group: &str, version: &str) -> Value {
    let version = json!({"groupVersion": format!("{group}/{version}"), "version": version});
    json!({"name": group, "versions": [version], "preferredVersion": version})
}

fn named_groups(registry: &Registry) -> Vec<(&str, &str)> {
    registry.groups().into_iter().filter(|(group, _)| !group.is_empty()).collect()
}

/// `/api/v1` and `/apis/GROUP/VERSION`, unaggregated.
pub fn resources(registry: &Registry, group: &str, version: &str) -> Option<Value> {
    let mut resources = Vec::new();
    for info in infos(registry, group, version) {
        resources.push(json!({
            "name": info.plural, "singularName": info.singular, "namespaced": info.namespaced,
            "kind": info.kind, "verbs": verbs(info), "shortNames": info.short_names,
            "categories": info.categories,
        }));
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

/// `/api` or `/apis`, aggregated.
pub fn aggregated(registry: &Registry, core: bool) -> Value {
    let groups = registry.groups().into_iter().filter(|(group, _)| group.is_empty() == core);
    let items = groups.map(|(group, version)| {
        let resources: Vec<_> = infos(registry, group, version).map(aggregated_resource).collect();
        let versions =
            json!([{"version": version, "resources": resources, "freshness": "Current"}]);
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

struct Subresource {
    name: &'static str,
    kind: &'static str,
    gv: (&'static str, &'static str),
    verbs: &'static [&'static str],
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
        "pods" => {
            let verbs = &["create"];
            all.push(Subresource { name: "binding", kind: "Binding", gv, verbs });
            let gv = ("policy", "v1");
            all.push(Subresource { name: "eviction", kind: "Eviction", gv, verbs });
        }
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
