//! The walls of the workspace: which crate may use which, what pure code may not call (`source`),
//! that one name means one thing (`glossary`), that the documents speak of what is really there
//! (`documents`), that everything has a test which the documents of our readers tell to type (`seeds`), and
//! what of others we ship (`packages`).

mod documents;
#[path = "../scenarios/seeds/documents.rs"]
mod documents_to_type;
mod glossary;
mod packages;
mod seeds;
mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Who may use whom among our own crates. `roadstead` and the testkit may use everything.
const ALLOWED: [(&str, &[&str]); 29] = [
    ("schema", &[]),
    ("typed", &[]),
    ("api", &["schema"]),
    ("patch", &["schema"]),
    ("plan", &["schema", "api", "typed"]),
    ("forwarding", &["api"]),
    ("policy", &["forwarding", "api"]),
    ("zone", &["api"]),
    ("dns-core", &["zone", "api"]),
    ("pod", &["api", "typed"]),
    ("streams", &[]),
    ("store", &["etcd"]),
    ("grpc", &[]),
    ("etcd", &["grpc"]),
    ("images", &[]),
    ("server", &["store", "patch", "plan", "api", "schema"]),
    ("watch", &["api", "typed"]),
    ("component", &[]),
    ("monitoring", &["api"]),
    ("lab", &[]),
    ("hollow", &[]),
    ("controllers", &["plan", "monitoring", "watch", "component", "api", "schema", "typed"]),
    ("netlink", &[]),
    ("podnet", &["plan", "netlink", "watch", "component"]),
    ("announce", &["forwarding", "netlink", "watch", "component", "api"]),
    ("proxy", &["forwarding", "netlink", "watch", "component", "api"]),
    ("netpol", &["policy", "forwarding", "netlink", "watch", "component", "api"]),
    ("dns", &["dns-core", "zone", "watch", "component", "api"]),
    (
        "node",
        &["netlink", "pod", "policy", "streams", "grpc", "images", "watch", "component", "api"],
    ),
];

const PURE: [&str; 13] = [
    "schema",
    "typed",
    "api",
    "patch",
    "plan",
    "forwarding",
    "policy",
    "zone",
    "dns-core",
    "monitoring",
    "lab",
    "pod",
    "streams",
];

/// What no pure crate may depend on, not even through others: IO, tasks, logs, chance.
const IMPURE: [&str; 8] =
    ["tokio", "kube", "kube-client", "hyper", "tracing", "rustix", "rand", "socket2"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn host() -> String {
    let output = Command::new("rustc").arg("-vV").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("host: "));
    line.expect("rustc names its host").to_owned()
}

fn metadata() -> Value {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--offline", "--locked"])
        // Only what is built here has been downloaded.
        .args(["--filter-platform", &host()])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// For each package, the packages that it is built with (dev-dependencies left out).
fn dependencies() -> BTreeMap<String, BTreeSet<String>> {
    let metadata = metadata();
    let packages = metadata["packages"].as_array().unwrap();
    let names: BTreeMap<_, _> = packages
        .iter()
        .map(|package| (package["id"].as_str().unwrap(), package["name"].as_str().unwrap()))
        .collect();
    let mut all = BTreeMap::new();
    for node in metadata["resolve"]["nodes"].as_array().unwrap() {
        let normal = node["deps"].as_array().unwrap().iter().filter(|dependency| {
            let mut kinds = dependency["dep_kinds"].as_array().unwrap().iter();
            kinds.any(|kind| kind["kind"].is_null())
        });
        let normal = normal.map(|dependency| names[dependency["pkg"].as_str().unwrap()].to_owned());
        all.insert(names[node["id"].as_str().unwrap()].to_owned(), normal.collect());
    }
    all
}

#[test]
fn crates_only_use_those_below_them() {
    let dependencies = dependencies();
    for (name, allowed) in ALLOWED {
        let uses = &dependencies[&format!("roadstead-{name}")];
        let ours = uses.iter().filter_map(|used| used.strip_prefix("roadstead-"));
        for used in ours {
            assert!(allowed.contains(&used), "roadstead-{name} must not use roadstead-{used}");
        }
    }
    let known: BTreeSet<_> = ALLOWED.iter().map(|(name, _)| format!("roadstead-{name}")).collect();
    let ours = dependencies.keys().filter(|name| name.starts_with("roadstead-"));
    for name in ours.filter(|name| *name != "roadstead-testkit") {
        assert!(known.contains(name), "{name} is new: say here what it may use");
    }
}

#[test]
fn pure_crates_stay_pure() {
    let dependencies = dependencies();
    for name in PURE {
        let mut seen = BTreeSet::new();
        let mut open = vec![format!("roadstead-{name}")];
        while let Some(package) = open.pop() {
            for used in &dependencies[&package] {
                assert!(
                    !IMPURE.contains(&used.as_str()),
                    "roadstead-{name} is pure, but {package} brings in {used}"
                );
                if seen.insert(used.clone()) {
                    open.push(used.clone());
                }
            }
        }
    }
}
