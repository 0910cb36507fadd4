//! What each part of `up` may do, and that it may do nothing else: every verb on every kind of object, on
//! those that are its own business and on others of the same kind.

use std::collections::BTreeMap;
use std::fmt::Write;

use roadstead_server::identity::user::User;

use crate::server::Server;

/// As whom they work: `roadstead_controllers::identities`, `roadstead::up::identities`.
const PARTS: [&str; 29] = [
    "system:kube-proxy",
    "system:kube-scheduler",
    "system:roadstead-up",
    "certificate-approver",
    "certificate-controller",
    "coredns",
    "cronjob-controller",
    "daemon-set-controller",
    "deployment-controller",
    "disruption-controller",
    "endpointslice-controller",
    "event-ttl-controller",
    "generic-garbage-collector",
    "horizontal-pod-autoscaler",
    "job-controller",
    "namespace-controller",
    "node-controller",
    "node-ipam-controller",
    "persistent-volume-binder",
    "pod-garbage-collector",
    "replicaset-controller",
    "replication-controller",
    "resourcequota-controller",
    "roadstead-monitoring",
    "roadstead-network-policy",
    "service-account-controller",
    "service-controller",
    "statefulset-controller",
    "token-cleaner",
];

/// Kinds and their subresources, by the address that they are below.
pub(crate) const CLUSTERED: [(&str, &str); 9] = [
    ("/api/v1", "namespaces namespaces/finalize namespaces/status nodes nodes/proxy nodes/status"),
    ("/api/v1", "persistentvolumes persistentvolumes/status"),
    ("/apis/rbac.authorization.k8s.io/v1", "clusterrolebindings clusterroles"),
    (
        "/apis/certificates.k8s.io/v1",
        "certificatesigningrequests certificatesigningrequests/approval certificatesigningrequests/status",
    ),
    ("/apis/networking.k8s.io/v1", "servicecidrs"),
    ("/apis/storage.k8s.io/v1", "csinodes storageclasses"),
    ("/apis/scheduling.k8s.io/v1", "priorityclasses"),
    ("/apis/apiextensions.k8s.io/v1", "customresourcedefinitions"),
    ("/apis/authentication.k8s.io/v1", "tokenreviews"),
];
pub(crate) const NAMESPACED: [(&str, &str); 13] = [
    ("/api/v1", "configmaps endpoints events limitranges persistentvolumeclaims"),
    (
        "/api/v1",
        "persistentvolumeclaims/status pods pods/attach pods/binding pods/eviction pods/exec",
    ),
    ("/api/v1", "pods/log pods/portforward pods/status replicationcontrollers"),
    ("/api/v1", "replicationcontrollers/status resourcequotas resourcequotas/status secrets"),
    ("/api/v1", "serviceaccounts serviceaccounts/token services services/proxy services/status"),
    (
        "/apis/apps/v1",
        "controllerrevisions daemonsets daemonsets/status deployments deployments/status replicasets \
         replicasets/status statefulsets statefulsets/status",
    ),
    ("/apis/autoscaling/v2", "horizontalpodautoscalers horizontalpodautoscalers/status"),
    ("/apis/batch/v1", "cronjobs cronjobs/status jobs jobs/status"),
    ("/apis/coordination.k8s.io/v1", "leases"),
    ("/apis/discovery.k8s.io/v1", "endpointslices"),
    ("/apis/networking.k8s.io/v1", "networkpolicies"),
    ("/apis/policy/v1", "poddisruptionbudgets poddisruptionbudgets/status"),
    ("/apis/rbac.authorization.k8s.io/v1", "rolebindings roles"),
];

/// Objects of all kinds that have a namespace: one of a user, and one of the system.
const PLACES: [(&str, &str); 2] = [("shop", "x"), ("kube-system", "x")];
/// Objects that somebody may do more to than to others of their kind.
const SPECIAL: [(&str, &str, &str); 9] = [
    ("configmaps", "kube-system", "coredns"),
    ("configmaps", "shop", "kube-root-ca.crt"),
    ("endpoints", "kube-system", "kube-dns"),
    ("endpointslices", "kube-system", "kube-dns"),
    ("leases", "kube-system", "kube-proxy-n1"),
    ("leases", "kube-system", "kube-scheduler"),
    ("leases", "kube-system", "roadstead-dns-n1"),
    ("serviceaccounts", "shop", "default"),
    ("services", "kube-system", "kube-dns"),
];

const VERBS: [&str; 8] =
    ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];

/// One thing to try.
pub(crate) struct Try {
    /// The kind, as rules name it.
    pub(crate) resource: String,
    /// Which object of it, or "" for all.
    object: String,
    pub(crate) verb: &'static str,
    pub(crate) request: String,
}

fn tries() -> Vec<Try> {
    let mut all = Vec::new();
    for (root, resources) in CLUSTERED {
        for resource in resources.split_whitespace() {
            add(&mut all, root, resource, "", "x");
        }
    }
    for (root, resources) in NAMESPACED {
        for resource in resources.split_whitespace() {
            for (namespace, name) in PLACES {
                add(&mut all, root, resource, namespace, name);
            }
            for (_, namespace, name) in SPECIAL.iter().filter(|special| special.0 == resource) {
                add(&mut all, root, resource, namespace, name);
            }
            for verb in ["list", "watch"].iter().filter(|_| !resource.contains('/')) {
                let watch = if *verb == "watch" { "?watch=1" } else { "" };
                let request = format!("GET {root}/{resource}{watch}");
                all.push(Try { resource: resource.into(), object: String::new(), verb, request });
            }
        }
    }
    all
}

/// Every verb on one object.
pub(crate) fn add(all: &mut Vec<Try>, root: &str, resource: &str, namespace: &str, name: &str) {
    let (plural, part) = resource.split_once('/').unwrap_or((resource, ""));
    let home = match namespace {
        "" => format!("{root}/{plural}"),
        namespace => format!("{root}/namespaces/{namespace}/{plural}"),
    };
    let one = match part {
        "" => format!("{home}/{name}"),
        part => format!("{home}/{name}/{part}"),
    };
    let object = match namespace {
        "" => name.to_owned(),
        namespace => format!("{namespace}/{name}"),
    };
    let only = format!("fieldSelector=metadata.name%3D{name}");
    for verb in VERBS {
        let request = match (verb, part) {
            ("create", "") => format!("POST {home}?dryRun=All"),
            ("create", _) => format!("POST {one}?dryRun=All"),
            ("delete", "") => format!("DELETE {one}?dryRun=All"),
            ("deletecollection", "") => format!("DELETE {home}?dryRun=All&{only}"),
            ("get", _) => format!("GET {one}"),
            ("list", "") => format!("GET {home}?{only}"),
            ("watch", "") => format!("GET {home}?watch=1&{only}"),
            ("patch", _) => format!("PATCH {one}?dryRun=All"),
            ("update", _) => format!("PUT {one}?dryRun=All"),
            // Parts of objects are not listed, nor deleted.
            _ => continue,
        };
        all.push(Try { resource: resource.into(), object: object.clone(), verb, request });
    }
}

fn user(part: &str) -> User {
    match part.contains(':') {
        true => User::part(part),
        false => User::part(&format!("system:serviceaccount:kube-system:{part}")),
    }
}

#[tokio::test]
async fn every_part_may_do_its_own_work_and_nothing_else() {
    let server = Server::new().await;
    let tries = tries();
    let (mut table, mut allowed, mut refused) = (String::new(), 0, 0);
    for part in PARTS {
        writeln!(table, "{part}").unwrap();
        let mut objects = BTreeMap::<&str, BTreeMap<&str, Vec<&str>>>::new();
        for one in &tries {
            let why = server.forbids(user(part), &one.request).await;
            if why.is_empty() {
                allowed += 1;
                let kind = objects.entry(&one.resource).or_default();
                kind.entry(&one.object).or_default().push(one.verb);
            } else {
                assert!(why.contains(" cannot "), "{part}: {}: {why}", one.request);
                refused += 1;
            }
        }
        for (resource, objects) in objects {
            for (verbs, objects) in by_verbs(&objects) {
                let which = match objects.len() == of(&tries, resource) {
                    true => String::new(),
                    false => format!(" {}", objects.join(" ")),
                };
                writeln!(table, "  {resource}: {verbs}{which}").unwrap();
            }
        }
    }
    eprintln!("{} parts: {allowed} requests allowed, {refused} refused", PARTS.len());
    insta::assert_snapshot!("parts", table);
}

/// How many objects of a kind are tried, all of them together not counted.
fn of(tries: &[Try], resource: &str) -> usize {
    let own = tries.iter().filter(|one| one.resource == resource && one.verb == "get");
    own.count()
}

/// Objects with the same verbs, together. What may be listed as a whole may be listed one by one.
fn by_verbs<'a>(objects: &BTreeMap<&'a str, Vec<&str>>) -> BTreeMap<String, Vec<&'a str>> {
    let mut all = BTreeMap::<String, Vec<&str>>::new();
    for (object, verbs) in objects.iter().filter(|(object, _)| !object.is_empty()) {
        all.entry(verbs.join(",")).or_default().push(object);
    }
    all
}
