//! The switch of modes, as S2 types it, while everything goes on.

use roadstead_testkit::kubectl::eventually;
use roadstead_testkit::netns::try_run;

use super::ledger::Story;
use super::typing::{PATIENCE, Reader};

/// From the mode in which everything began to the others.
pub(super) fn play(story: &mut Story, first: &str) {
    if first == "nftables" {
        switch(&story.reader, "iptables");
        story.row("A30", |reader| carries(reader, "iptables"));
        super::service::host_checks(story);
    } else {
        switch(&story.reader, "nftables");
        story.row("A30", |reader| carries(reader, "nftables"));
    }
    ipvs(story);
}

/// Waits until the only pod of the proxy is another one, and ready; returns its name.
pub(super) fn proxy_pod(reader: &Reader, before: &str) -> String {
    let path =
        "{range .items[*]}{.metadata.name} {.status.containerStatuses[0].ready}{\"\\n\"}{end}";
    let line =
        format!("kubectl get pods -n kube-system -l k8s-app=kube-proxy -o jsonpath='{path}'");
    let is_there = |said: &str| {
        let words: Vec<_> = said.split_whitespace().collect();
        matches!(words[..], [name, "true"] if name != before)
    };
    reader.until(&line, is_there).split(' ').next().unwrap().to_owned()
}

/// What the document tells to do. Its own ConfigMap says no mode: then one is added.
fn edits(reader: &Reader, mode: &str) {
    let kind = "^    kind: KubeProxyConfiguration$";
    reader.will_edit(&format!("/^    mode:/d; s/{kind}/&\\n    mode: \"{mode}\"/"));
    let said = reader.types("kubectl edit configmap kube-proxy -n kube-system").ok();
    assert_eq!(said, "configmap/kube-proxy edited");
}

fn begins_anew(reader: &Reader) {
    let before = proxy_pod(reader, "");
    let said = reader.types("kubectl delete pod -l k8s-app=kube-proxy -n kube-system").ok();
    assert!(said.contains(&format!("pod \"{before}\" deleted")), "{said}");
    proxy_pod(reader, &before);
}

fn switch(reader: &Reader, mode: &str) {
    edits(reader, mode);
    begins_anew(reader);
}

/// Whether the kernel does it this way, and no other.
fn carries(reader: &Reader, mode: &str) {
    let rules = || {
        let nftables = try_run("nft list table ip kube-proxy").status.success();
        let iptables = try_run("iptables-save -t nat | grep -q KUBE-SVC-").status.success();
        (nftables, iptables)
    };
    let wanted = (mode == "nftables", mode == "iptables");
    eventually(mode, PATIENCE, rules, |found| *found == wanted);
    curls(reader);
}

/// Every way to an answer that the documents have.
pub(super) fn curls(reader: &Reader) {
    for (service, port, want) in [
        ("my-nginx", 80, "Welcome to nginx!"),
        ("nginx-svc -n week", 80, "Welcome to nginx!"),
        ("svc-8091", 8091, "Hello Kubernetes bootcamp!"),
        ("svc-8092", 8092, "served by 10.244.2.5:8080"),
        ("svc-8093", 8093, "served by 10.244.1.25:8080"),
        ("web-service", 80, "Welcome to nginx!"),
        ("legacy-system", 3306, "served by 192.168.1.100:3306"),
        ("my-service", 80, "Hello Kubernetes bootcamp!"),
        ("external-service", 80, "served by 192.168.1.100:80"),
    ] {
        reader.is_answered(service, port, want);
    }
    // By the port of the node, too: it has no pods, so that nobody answers and nobody waits.
    let typed = reader.types("curl -s -S -m 2 http://127.0.0.1:30080/");
    assert_eq!(typed.code, 7, "{typed:?}");
}

fn ipvs(story: &mut Story) {
    story.row("A29", |reader| edits(reader, "ipvs"));
    story.row("A30", begins_anew);
    let has_ipvs = std::path::Path::new("/proc/net/ip_vs").exists();
    if has_ipvs {
        story.row("B7", |reader| {
            let address = reader.cluster_ip("nginx-svc -n week");
            let pods = reader.sliced("nginx-svc -n week");
            let listed = |said: &str| {
                let service = format!("TCP  {address}:80 rr");
                let mut lines = said.lines().skip_while(|line| !line.starts_with(&service)).skip(1);
                let targets = lines.by_ref().take_while(|line| line.trim_start().starts_with("->"));
                let masqueraded = targets.filter(|line| line.contains("Masq    1")).count();
                pods.len() == 3 && masqueraded == pods.len()
            };
            reader.until("ipvsadm -ln", listed);
        });
    } else {
        let who = "the kernel has no IPVS; scripts/lab runs `the_listing_of_the_tutorial` of \
            crates/roadstead-proxy/tests/ipvs.rs in one that has";
        story.elsewhere(('B', 7), who);
    }
    // Without IPVS the rules are those of iptables, and the log and an Event say so.
    story.row("D11", |reader| {
        if !has_ipvs {
            let log = "kubectl logs -n kube-system -l k8s-app=kube-proxy --tail=-1";
            reader.until(log, |said| said.contains("falling back to mode iptables"));
            let events = "kubectl get events -A --field-selector reason=ProxyModeFallback";
            reader.until(events, |said| said.contains("iptables"));
            carries(reader, "iptables");
        }
        curls(reader);
    });
}
