//! A careless operator: the right command in the wrong place.

use std::fs;
use std::path::Path;
use std::time::Duration;

use roadstead_testkit::kubectl::eventually;
use roadstead_testkit::netns::{laboratory_of, run, try_run};

use crate::attacks;
use crate::process::Roadstead;

const BINARY: &str = env!("CARGO_BIN_EXE_roadstead");

/// Runs the binary, which must refuse; returns what it said.
#[track_caller]
fn refused(arguments: &str) -> String {
    let output = try_run(&format!("timeout 30 {BINARY} {arguments}"));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{arguments}: {said}");
    assert!(!said.contains("ready in"), "{said}");
    attacks::refused(1);
    said
}

/// What another's mistake must not change: links, the bridge they are on, rules and routes.
fn network() -> String {
    run(
        "ip -o link | sed 's/ qlen .*//; s/state [A-Z]*//; s/NO-CARRIER,//' && ip -4 -o address && ip route && nft list ruleset",
    )
}

fn web(roadstead: &Roadstead) -> String {
    let kubectl = roadstead.kubectl();
    kubectl.apply("../../examples/web.yaml");
    kubectl.run("rollout status deployment/web --timeout=60s");
    let address = kubectl.run("get service web -o jsonpath='{.spec.clusterIP}'");
    let curl = format!("curl -s -m 2 http://{address}/");
    eventually("web answers", Duration::from_secs(5), || try_run(&curl), |o| o.status.success());
    curl
}

fn display(path: &Path) -> String {
    path.display().to_string()
}

#[test]
fn cleanup_of_what_roadstead_did_not_make() {
    laboratory_of("L5", || {
        let place = tempfile::tempdir().unwrap();
        let thesis = place.path().join("thesis.txt");
        fs::write(&thesis, "ten years of work").unwrap();
        run("ip link add br0 type bridge && ip link set br0 up");
        run("ip link add vm1 type veth peer name vm1p && ip link set vm1 master br0");
        // Nor are these ours: a real kube-proxy runs here.
        run("nft add table ip kube-proxy && iptables-nft -t nat -N KUBE-SERVICES");
        let before = network();
        let said = refused(&format!("cleanup --data-dir {} --bridge br0", display(place.path())));
        assert!(said.contains("was not made by roadstead"), "{said}");
        assert_eq!(fs::read_to_string(&thesis).unwrap(), "ten years of work");
        assert_eq!(network(), before);

        // Nor does a server move in.
        let said = refused(&format!("up --data-dir {}", display(place.path())));
        assert!(said.contains("choose another --data-dir"), "{said}");
        assert_eq!((network(), fs::read_dir(place.path()).unwrap().count()), (before.clone(), 1));

        // A directory that would be ours to remove is no reason to touch somebody's bridge.
        let empty = place.path().join("empty");
        let flags = format!("--data-dir {} --bridge br0", display(&empty));
        let said = refused(&format!("up --ephemeral --listen 127.0.0.1:0 {flags}"));
        assert!(said.contains("br0"), "{said}");
        try_run(&format!("{BINARY} cleanup {flags}"));
        assert_eq!(network(), before);
    });
}

/// The agent alone is no less careful with what is somebody else's.
#[test]
fn a_node_in_a_directory_that_roadstead_did_not_make() {
    laboratory_of("L5", || {
        let place = tempfile::tempdir().unwrap();
        let thesis = place.path().join("node/pods/thesis.txt");
        fs::create_dir_all(thesis.parent().unwrap()).unwrap();
        fs::write(&thesis, "ten years of work").unwrap();
        let before = (network(), run(&format!("find {}", display(place.path()))));
        for (flags, words) in [
            ("--cleanup", "was not made by roadstead"),
            ("--kubeconfig /nowhere", "choose another --data-dir"),
        ] {
            let said = refused(&format!("node {flags} --data-dir {}", display(place.path())));
            assert!(said.contains(words), "{said}");
            assert_eq!((network(), run(&format!("find {}", display(place.path())))), before);
        }
        assert_eq!(fs::read_to_string(&thesis).unwrap(), "ten years of work");
    });
}

#[test]
fn cleanup_of_a_store_that_is_in_use() {
    laboratory_of("L5", || {
        let roadstead = Roadstead::durable_apiserver();
        let kubectl = roadstead.kubectl();
        kubectl.run("create configmap before");
        let data = roadstead.directory().join("data");
        let said = refused(&format!("cleanup --data-dir {}", display(&data)));
        let pid = format!("(pid {})", roadstead.pid());
        assert!(said.contains("is in use by roadstead") && said.contains(&pid), "{said}");
        kubectl.run("create configmap after");
        kubectl.run("get configmaps before after");
        assert!(data.join("store/roadstead.redb").exists());
    });
}

#[test]
fn a_running_cluster_beside_every_mistake() {
    laboratory_of("L5", || {
        let mut roadstead = Roadstead::up();
        let curl = web(&roadstead);
        let place = tempfile::tempdir().unwrap();
        let [own, other] = [roadstead.directory().join("data"), place.path().join("other")];
        let [own, other] = [display(&own), display(&other)];
        let before = network();
        let pid = format!("(pid {})", roadstead.pid());
        for (mistake, words) in [
            (format!("cleanup --data-dir {own}"), "is in use by"),
            (format!("cleanup --data-dir {other}"), "runs on this machine already"),
            (format!("up --data-dir {own}"), "is in use by"),
            (format!("up --data-dir {other} --listen 127.0.0.1:0"), "runs on this machine already"),
            (
                format!("up --ephemeral --data-dir {other} --listen 127.0.0.1:0"),
                "runs on this machine already",
            ),
            (format!("node --cleanup --data-dir {other}"), "runs on this machine already"),
            ("proxy --cleanup".into(), "keeps these rules on this machine"),
            ("netpol --cleanup".into(), "keeps these rules on this machine"),
        ] {
            let said = refused(&mistake);
            assert!(said.contains(words) && said.contains(&pid), "{mistake}: {said}");
            assert_eq!(network(), before, "{mistake}");
            run(&curl);
        }

        // Stopped, its pods go on, and they are still its own.
        roadstead.stop();
        for mistake in [
            format!("cleanup --data-dir {other}"),
            format!("up --ephemeral --data-dir {other} --listen 127.0.0.1:0"),
            format!("node --cleanup --data-dir {other}"),
            "proxy --cleanup".into(),
            "netpol --cleanup".into(),
        ] {
            let said = refused(&mistake);
            assert!(said.contains(&format!("roadstead cleanup --data-dir {own}")), "{said}");
            assert_eq!(network(), before, "{mistake}");
            run(&curl);
        }
        let said = refused(&format!("up --ephemeral --data-dir {own}"));
        assert!(said.contains("another --data-dir"), "{said}");
        run(&curl);

        // The right command says what it removes.
        let output = try_run(&format!("{BINARY} --log warn cleanup --data-dir {own}"));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        assert!(said.contains(&format!("removed: {own} (store, pki, node, images)")), "{said}");
        assert!(!Path::new(&own).exists());
        assert_eq!(run("nft list ruleset"), "");
    });
}

/// Whatever the proxy made of the machine, `cleanup` undoes it, and says so.
#[test]
fn cleanup_leaves_the_kernel_as_it_was() {
    laboratory_of("L5", || {
        let settings = "cat /proc/sys/net/ipv4/ip_forward /proc/sys/net/ipv4/conf/all/send_redirects \
             /proc/sys/net/ipv4/conf/all/route_localnet";
        run("echo 0 >/proc/sys/net/ipv4/ip_forward");
        run("ip link add br0 type bridge && iptables-nft -t mangle -P FORWARD ACCEPT");
        let before = (network(), run(settings));
        let mut roadstead = Roadstead::up_with("--proxy-mode iptables");
        let data = display(&roadstead.directory().join("data"));
        web(&roadstead);
        let kubectl = roadstead.kubectl();
        kubectl.run("wait pod -n kube-system --all --for=condition=Ready --timeout=30s");
        roadstead.stop();
        assert_eq!(run("cat /proc/sys/net/ipv4/ip_forward").trim(), "1", "pods go on");
        let output = try_run(&format!("{BINARY} --log warn cleanup --data-dir {data}"));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        for words in
            ["removed: 5 pods", "the bridge roadstead0", "net.ipv4.ip_forward = 0", "ip nat"]
        {
            assert!(said.contains(words), "{words}: {said}");
        }
        assert_eq!((network(), run(settings)), before);
    });
}

#[test]
fn the_bridge_of_a_running_cluster_is_deleted() {
    laboratory_of("L5", || {
        let mut roadstead = Roadstead::up_ephemeral();
        let curl = web(&roadstead);
        let answers = || try_run(&curl);
        let patience = Duration::from_secs(10);
        run("ip link del roadstead0");
        eventually("the network is back", patience, answers, |output| output.status.success());
        let links = "ip -br link show type veth | cut -d@ -f1";
        run(&format!("for link in $({links}); do ip link del $link; done"));
        eventually("the links are back", patience, answers, |output| output.status.success());
        assert!(roadstead.is_running());
    });
}

#[test]
fn ranges_that_overlap() {
    laboratory_of("L5", || {
        let place = tempfile::tempdir().unwrap();
        let flags = format!("--data-dir {}", display(&place.path().join("data")));
        let said = refused(&format!("up {flags} --service-cidr 10.244.0.0/16"));
        let words = "--service-cidr 10.244.0.0/16 and --cluster-cidr 10.244.0.0/16 overlap";
        assert!(said.contains(words), "{said}");
        for (more, words) in [
            ("--service-cidr 10.96.0.7/12", "did you mean 10.96.0.0/12"),
            ("--service-cidr 10.96.0.0/30", "is too small"),
            ("--load-balancer-pool 10.244.9.1", "load balancers need addresses of their own"),
        ] {
            let said = refused(&format!("up {flags} {more}"));
            assert!(said.contains(words), "{more}: {said}");
        }
        assert!(!place.path().join("data").exists(), "nothing is half done");
    });
}

#[test]
fn tokens_for_everybody() {
    let place = tempfile::tempdir().unwrap();
    let tokens = place.path().join("tokens.csv");
    let flags = format!("--ephemeral --listen 127.0.0.1:0 --token-auth-file {}", display(&tokens));
    for (text, words) in [
        ("good,jane,1\n,root,0,\"system:masters\"\n", "line 2: the token is empty"),
        ("sesame\n", "line 1: there are 1 fields"),
        ("a,jane,1\na,bob,2\n", "line 2: this token is in an earlier line already"),
    ] {
        fs::write(&tokens, text).unwrap();
        let said = refused(&format!("apiserver {flags}"));
        assert!(said.contains(words) && said.contains(&display(&tokens)), "{said}");
    }
}

#[test]
fn files_that_others_can_read() {
    let place = tempfile::tempdir().unwrap();
    let [log, left] = ["audit.log", "kubeconfig.new"].map(|name| place.path().join(name));
    for open_to_all in [&log, &left] {
        fs::write(open_to_all, "").unwrap();
        run(&format!("chmod 666 {}", display(open_to_all)));
    }
    let roadstead = Roadstead::start_in(place, &{
        let flags = "--ephemeral --listen 127.0.0.1:0";
        format!("apiserver {flags} --audit-log {}", display(&log))
    });
    roadstead.kubectl().run("create secret generic s --from-literal=p=hunter2");
    let directory = display(roadstead.directory());
    assert_eq!(
        run(&format!("stat -c %a {directory}/audit.log {directory}/kubeconfig")),
        "600\n600"
    );
    attacks::refused(2);
}
