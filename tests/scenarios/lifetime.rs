//! How the binary starts and stops, and what it leaves behind.

use std::process::Command;
use std::time::Duration;

use roadstead_testkit::kubectl::eventually;
use roadstead_testkit::netns::{is_left_out, laboratory_of, run, try_run};

use crate::process::Roadstead;

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_port_already_taken_names_the_culprit() {
    if is_left_out("L5") {
        return;
    }
    let holder = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = holder.local_addr().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_roadstead"))
        .args(["apiserver", "--ephemeral", "--listen", &address.to_string()])
        .arg("--kubeconfig-out")
        .arg(directory.path().join("kubeconfig"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let culprit = format!("(pid {})", std::process::id());
    assert!(!output.status.success());
    assert!(said.contains("is already used by") && said.contains(&culprit), "{said}");
}

/// What roadstead can leave behind on a machine.
pub(crate) fn traces() -> [String; 5] {
    let parts = [
        "ip -br link | awk '{print $1}' | sort",
        "ls /run/netns",
        "nft list ruleset",
        "ip route",
        "ps -eo stat=,comm= | grep -v ^Z | grep -c roadstead || true",
    ];
    parts.map(|part| String::from_utf8_lossy(&try_run(part).stdout).into_owned())
}

#[test]
fn stopping_an_ephemeral_one_leaves_nothing_behind() {
    laboratory_of("L5", || {
        let before = traces();
        let mut roadstead = Roadstead::up_ephemeral();
        let kubectl = roadstead.kubectl();
        kubectl.apply("../../examples/web.yaml");
        kubectl.run("rollout status deployment/web --timeout=60s");
        assert_ne!(traces(), before);
        roadstead.stop();
        assert_eq!(traces(), before);
        let data = roadstead.directory.path().join("data");
        let left = run(&format!("ls -A {}/node 2>/dev/null || true", data.display()));
        assert_eq!(left, "", "no state of pods is left");
    });
}

#[test]
fn pods_and_objects_outlive_a_restart_until_cleanup() {
    laboratory_of("L5", || {
        let before = traces();
        let mut roadstead = Roadstead::up();
        let kubectl = roadstead.kubectl();
        kubectl.apply("../../examples/web.yaml");
        kubectl.run("rollout status deployment/web --timeout=60s");
        let fields = ["name", "uid", "resourceVersion"].map(|name| format!("{{.metadata.{name}}}"));
        let restarts = "{.status.containerStatuses[0].restartCount}";
        let format = format!("{} {restarts}", fields[..2].join(" "));
        let pods = format!(
            "get pods -l app=web -o jsonpath='{{range .items[*]}}{format}{{\"\\n\"}}{{end}}'"
        );
        let service = format!("get service web -o jsonpath='{}'", fields.join(" "));
        let known = (kubectl.run(&pods), kubectl.run(&service));
        let address = kubectl.run("get service web -o jsonpath='{.spec.clusterIP}'");
        let curl = format!("curl -s -m 2 http://{address}/");
        eventually("the proxy knows", 2 * SECOND, || try_run(&curl), |o| o.status.success());

        roadstead.stop();
        run(&curl);
        roadstead.start_again();
        assert_eq!((kubectl.run(&pods), kubectl.run(&service)), known);
        run(&curl);
        // It goes on where it was: what was scheduled, addressed and programmed follows changes.
        kubectl.run("scale deployment web --replicas=2");
        let count = "get pods -l app=web -o name | wc -l";
        eventually("one pod is gone", 20 * SECOND, || kubectl.run(count), |n| n.trim() == "2");
        let dns =
            kubectl.run("get service -n kube-system kube-dns -o jsonpath='{.spec.clusterIP}'");
        let name = format!("dig +short @{dns} web.default.svc.cluster.local");
        eventually("DNS answers", 5 * SECOND, || run(&name), |answer| *answer == address);

        roadstead.stop();
        let data = roadstead.directory.path().join("data");
        let binary = env!("CARGO_BIN_EXE_roadstead");
        run(&format!("{binary} cleanup --node-name node --data-dir {}", data.display()));
        assert_eq!(traces(), before);
        assert!(!data.exists(), "objects are gone, too");
    });
}
