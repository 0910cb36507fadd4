//! What an object costs.

use std::collections::{BTreeMap, BTreeSet};

use roadstead_api::quantity::exact::{Amounts, Quantity, amounts};
use roadstead_schema::json::Pointer;
use serde_json::Value;

use crate::pod_amounts::{self, Side};

/// A kind by the names that a quota has for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectKind<'a> {
    /// Empty for the core group.
    pub group: &'a str,
    /// Such as `pods`.
    pub plural: &'a str,
}

const fn core(plural: &'static str) -> ObjectKind<'static> {
    ObjectKind { group: "", plural }
}

pub(super) const PODS: ObjectKind<'static> = core("pods");
const SERVICES: ObjectKind<'static> = core("services");
const CLAIMS: ObjectKind<'static> = core("persistentvolumeclaims");

/// Kinds whose objects cost more than their number.
pub(super) const CONTENTS: [ObjectKind<'static>; 3] = [PODS, SERVICES, CLAIMS];

/// Kinds that have been limited by their mere name since before all kinds could be counted.
pub(super) const BY_NAME: [&str; 4] =
    ["configmaps", "replicationcontrollers", "resourcequotas", "secrets"];

/// Limits on storage of one class end in this.
const OF_CLASS: &str = ".storageclass.storage.k8s.io/";

/// What limits the number of objects of a kind.
fn count_name(kind: &ObjectKind<'_>) -> String {
    match kind.group {
        "" => format!("count/{}", kind.plural),
        group => format!("count/{}.{group}", kind.plural),
    }
}

/// Whether what a limit counts can only be told by looking into objects of a kind.
pub(super) fn counts_by_content(kind: &ObjectKind<'_>, limit: &str) -> bool {
    let own = limit == kind.plural || limit == count_name(kind);
    let more = match *kind {
        PODS => {
            let limit =
                limit.strip_prefix("requests.").or(limit.strip_prefix("limits.")).unwrap_or(limit);
            limit != "storage"
                && !limit.starts_with("count/")
                && !BY_NAME.contains(&limit)
                && !limit.contains(OF_CLASS)
                && !limit.starts_with("services")
                && limit != CLAIMS.plural
        }
        SERVICES => limit.starts_with("services."),
        CLAIMS => limit == "requests.storage" || limit.contains(OF_CLASS),
        _ => false,
    };
    own || more
}

/// What an object costs, of everything that a quota could name.
pub(super) fn of(kind: &ObjectKind<'_>, object: &Value) -> Amounts {
    // Events come and go by themselves.
    if kind.plural == "events" {
        return Amounts::new();
    }
    let one = Quantity::count(1);
    let mut cost = Amounts::from([(count_name(kind), one)]);
    match *kind {
        PODS => cost.extend(pod(object)),
        SERVICES => cost.extend(service(object)),
        CLAIMS => cost.extend(claim(object)),
        ObjectKind { group: "", plural } if BY_NAME.contains(&plural) => {
            cost.insert(plural.to_owned(), one);
        }
        _ => {}
    }
    cost
}

/// A pod that has ended takes nothing but its place in the store.
fn pod(pod: &Value) -> Amounts {
    if matches!(pod.text("/status/phase"), "Succeeded" | "Failed") {
        return Amounts::new();
    }
    let spec = &pod["spec"];
    let mut cost = compute(
        &pod_amounts::of_pod(spec, Side::Requests),
        &pod_amounts::of_pod(spec, Side::Limits),
    );
    cost.insert(PODS.plural.to_owned(), Quantity::count(1));
    cost
}

/// Requests and limits by the names that they have in a quota.
fn compute(requests: &Amounts, limits: &Amounts) -> Amounts {
    let mut cost = Amounts::new();
    for (name, amount) in requests {
        let usual = matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage");
        if usual || name.starts_with("hugepages-") {
            cost.insert(name.clone(), *amount);
        }
        cost.insert(format!("requests.{name}"), *amount);
    }
    for (name, amount) in limits {
        if matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage") {
            cost.insert(format!("limits.{name}"), *amount);
        }
    }
    cost
}

fn service(service: &Value) -> Amounts {
    let ports = service.list("/spec/ports");
    let with_number = ports.iter().filter(|port| port.int("/nodePort") != 0).count();
    let given = service["spec"]["allocateLoadBalancerNodePorts"].as_bool().unwrap_or(true);
    let (balancers, node_ports) = match service.text("/spec/type") {
        "NodePort" => (0, ports.len()),
        "LoadBalancer" => (1, if given { ports.len() } else { with_number }),
        _ => (0, 0),
    };
    [("services", 1), ("services.loadbalancers", balancers), ("services.nodeports", node_ports)]
        .map(|(name, number)| (name.to_owned(), Quantity::count(number)))
        .into()
}

fn claim(claim: &Value) -> Amounts {
    let one = Quantity::count(1);
    let asked = amounts(&claim["spec"]["resources"]["requests"]);
    let storage = asked.get("storage").copied().unwrap_or_default();
    let mut cost =
        Amounts::from([(CLAIMS.plural.to_owned(), one), ("requests.storage".to_owned(), storage)]);
    let class = claim.text("/spec/storageClassName");
    if !class.is_empty() {
        cost.insert(format!("{class}{OF_CLASS}{}", CLAIMS.plural), one);
        cost.insert(format!("{class}{OF_CLASS}requests.storage"), storage);
    }
    cost
}

/// What a pod must say because a quota limits it, with the containers that do not.
pub(super) fn unspecified(kind: &ObjectKind<'_>, pod: &Value, hard: &Amounts) -> Option<String> {
    if *kind != PODS || pod["spec"]["resources"].as_object().is_some_and(|own| !own.is_empty()) {
        return None;
    }
    let limited = |name: &&String| {
        let bare = name.strip_prefix("requests.").or(name.strip_prefix("limits."));
        matches!(bare.unwrap_or(name), "cpu" | "memory")
    };
    let required: Vec<_> = hard.keys().filter(limited).collect();
    let mut missing: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for container in ["/spec/containers", "/spec/initContainers"].iter().flat_map(|at| pod.list(at))
    {
        let said = compute(
            &pod_amounts::of(container, Side::Requests),
            &pod_amounts::of(container, Side::Limits),
        );
        for name in required.iter().filter(|name| !said.contains_key(**name)) {
            missing.entry(name).or_default().insert(container.text("/name"));
        }
    }
    let shown = missing.iter().map(|(name, containers)| {
        let containers: Vec<_> = containers.iter().copied().collect();
        format!("{name} for: {}", containers.join(","))
    });
    let shown: Vec<_> = shown.collect();
    (!shown.is_empty()).then(|| shown.join("; "))
}
