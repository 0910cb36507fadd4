//! Pods with names and data of their own: a StatefulSet behind a headless Service.

use std::time::Duration;

use roadstead_testkit::kubectl::{Kubectl, eventually};
use roadstead_testkit::netns::{laboratory_of, run};

use crate::images::{LAYER, up_with_images};

const PATIENCE: Duration = Duration::from_secs(60);

fn rolled_out(kubectl: &Kubectl) {
    kubectl.run("rollout status statefulset/web --timeout=180s");
}

/// Every pod is found by its name, from another one.
fn names_resolve(kubectl: &Kubectl, count: usize) {
    for index in 0..count {
        let name = format!("web-{index}");
        let address = || kubectl.run(&format!("get pod {name} -o jsonpath='{{.status.podIP}}'"));
        let ask = format!("exec web-0 -- nslookup {name}.web.default.svc.cluster.local || true");
        let answer = || (address(), kubectl.run(&ask));
        let is_right = |(address, said): &(String, String)| {
            !address.is_empty() && said.lines().any(|line| line.ends_with(address.as_str()))
        };
        eventually(&format!("{name} resolves"), PATIENCE, answer, is_right);
    }
}

#[test]
fn stateful_pods_keep_their_names_and_data() {
    laboratory_of(LAYER, || {
        let roadstead = up_with_images(&["busybox"]);
        let kubectl = roadstead.kubectl();
        kubectl.apply("../../examples/stateful.yaml");
        rolled_out(&kubectl);
        let shown = kubectl.run("get pods -l app=web -o name");
        assert_eq!(shown.lines().collect::<Vec<_>>(), ["pod/web-0", "pod/web-1", "pod/web-2"]);
        let phases = kubectl
            .run("get pvc -o jsonpath='{range .items[*]}{.metadata.name}={.status.phase} {end}'");
        assert_eq!(phases.trim(), "data-web-0=Bound data-web-1=Bound data-web-2=Bound");
        names_resolve(&kubectl, 3);

        // What a pod wrote is there for the next one of its name.
        kubectl.run("exec web-1 -- sh -c 'echo mine > /data/note'");
        let uid = || kubectl.run("get pod web-1 -o jsonpath='{.metadata.uid}' || true");
        let first = uid();
        kubectl.run("delete pod web-1");
        let is_new = |found: &String| found.len() == first.len() && *found != first;
        eventually("web-1 is back", PATIENCE, uid, is_new);
        rolled_out(&kubectl);
        assert_eq!(kubectl.run("exec web-1 -- cat /data/note").trim(), "mine");
        names_resolve(&kubectl, 3);

        // An update goes through all pods, and back.
        kubectl.run("set env statefulset/web VERSION=2");
        rolled_out(&kubectl);
        let version = "exec web-0 -- sh -c 'echo \"[$VERSION]\"'";
        assert_eq!(kubectl.run(version).trim(), "[2]");
        names_resolve(&kubectl, 3);
        let history = kubectl.run("rollout history statefulset/web");
        assert!(history.lines().any(|line| line.starts_with('2')), "{history}");
        kubectl.run("rollout undo statefulset/web");
        rolled_out(&kubectl);
        assert_eq!(kubectl.run(version).trim(), "[]");
        assert_eq!(kubectl.run("exec web-1 -- cat /data/note").trim(), "mine");

        // More, and fewer: claims stay, and with them what is in them.
        kubectl.run("scale statefulset/web --replicas=4");
        rolled_out(&kubectl);
        names_resolve(&kubectl, 4);
        kubectl.run("scale statefulset/web --replicas=1");
        let pods = || kubectl.run("get pods -l app=web -o name");
        eventually("one is left", PATIENCE, pods, |pods| pods.trim() == "pod/web-0");
        let claims = kubectl.run("get pvc -o name");
        assert_eq!(claims.lines().count(), 4, "{claims}");

        // Whoever deletes the claims deletes the data.
        let storage = roadstead.directory().join("data/storage");
        let left = || run(&format!("ls {} | wc -l", storage.display()));
        assert_eq!(left(), "4");
        kubectl.run("delete -f ../../examples/stateful.yaml --timeout=60s");
        kubectl.run("delete pvc --all --timeout=60s");
        let volumes = || kubectl.run("get pv -o name");
        eventually("no volume is left", PATIENCE, volumes, |volumes| volumes.is_empty());
        eventually("nor its files", PATIENCE, left, |left| left == "0");
    });
}
