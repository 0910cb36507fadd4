//! The end: what starts again is as it was, and what is deleted is gone.

use roadstead_testkit::kubectl::eventually;
use roadstead_testkit::netns::run;

use super::ledger::Story;
use super::typing::{PATIENCE, Reader, sorted};
use crate::images::SEE_A_ROOT;
use crate::process::Roadstead;

/// Endpoints that no Service has are removed when the controllers start; everything else goes on.
pub(super) fn starts_again(story: &mut Story, roadstead: &mut Roadstead) {
    story.row("C38", |reader| {
        let restarts = "{.status.containerStatuses[0].restartCount}";
        reader.field_becomes("pod web-pod", restarts, |count| count != "0");
        let address = reader.field("pod web-pod", "{.status.podIP}");
        let not_ready =
            reader.field("endpoints web-service", "{.subsets[0].notReadyAddresses[*].ip}");
        assert_eq!(not_ready, address);
    });
    roadstead.start_again();
    story.row("C10", |reader| {
        let line = "kubectl get endpoints custom-endpoints --ignore-not-found -o name";
        reader.until(line, str::is_empty);
        assert_eq!(reader.sliced("custom-endpoints"), Vec::<String>::new());
        super::modes::curls(reader);
    });
}

/// Deletes everything that the documents made; nothing of it is left.
pub(super) fn nothing_is_left(reader: &Reader) {
    let addresses = reader.field("services -A", "{.items[*].spec.clusterIP}");
    reader.types("kubectl delete deployments,services,endpoints,pods --all --wait=false").ok();
    reader.types("kubectl delete endpointslices svc-8093-endpointslice --ignore-not-found").ok();
    reader.types("kubectl delete endpointslices web-service-abc web-service-abc123").ok();
    reader.types("kubectl delete ns week sampleapp monitoring production --timeout=120s").ok();
    let own = |line: &str, wanted: &[&str]| {
        reader.until(line, |said| sorted(said.lines()) == wanted);
    };
    let names = "-o custom-columns=N:.metadata.name --no-headers";
    own(&format!("kubectl get services -A {names}"), &["kube-dns", "kubernetes"]);
    own(&format!("kubectl get endpointslices -A {names}"), &["kube-dns", "kubernetes"]);
    own(&format!("kubectl get endpoints -A {names}"), &["kube-dns", "kubernetes"]);
    own(&format!("kubectl get pods -n default {names}"), &[]);
    own(&format!("kubectl get replicasets -A {names}"), &[&replica_set(reader)]);
    // Addresses and ports are free for others.
    own(&format!("kubectl get ipaddresses {names}"), &["172.16.0.1", "172.16.0.10"]);
    let again = "apiVersion: v1\nkind: Service\nmetadata: {name: again}\nspec:\n  type: NodePort\n  \
        clusterIP: 172.16.73.164\n  ports: [{port: 80, nodePort: 30080}]\n";
    assert_eq!(reader.applies_text(again).ok(), "service/again created");
    reader.types("kubectl delete service again").ok();
    // No rule speaks of them, no link and no mount is theirs.
    let kept = ["172.16.0.1", "172.16.0.10", "None", "172.16.73.164"];
    let gone: Vec<_> = addresses.split(' ').filter(|address| !kept.contains(address)).collect();
    assert!(gone.len() > 10, "{addresses}");
    let rules = || run("nft list ruleset; iptables-save");
    let left = |rules: &String| {
        gone.iter().any(|address| {
            rules.contains(&format!("{address}/32")) || rules.contains(&format!("{address} ."))
        })
    };
    eventually("no rule", PATIENCE, rules, |rules| {
        !left(rules) && !rules.contains("172.16.73.164")
    });
    let links = "ip -o link show master roadstead0";
    eventually("no link of a pod", PATIENCE, || run(links), String::is_empty);
    eventually("no root of a container", PATIENCE, || run(SEE_A_ROOT), |count| count == "0");
}

fn replica_set(reader: &Reader) -> String {
    reader.field("replicasets -n kube-system", "{.items[*].metadata.name}")
}
