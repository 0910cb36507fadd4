//! `roadstead snapshot`, as an operator uses it.

use std::process::Command;

use crate::process::Roadstead;

/// Runs `roadstead snapshot …` with DIR replaced; what it said, and whether it succeeded.
fn snapshot(roadstead: &Roadstead, arguments: &str) -> (bool, String) {
    let directory = roadstead.directory().display().to_string();
    let arguments = arguments.replace("DIR", &directory);
    let output = Command::new(env!("CARGO_BIN_EXE_roadstead"))
        .arg("snapshot")
        .args(arguments.split(' '))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).replace(&directory, "DIR");
    (output.status.success(), said)
}

#[test]
fn a_snapshot_of_a_running_server_brings_everything_back() {
    if roadstead_testkit::netns::is_left_out("L5") {
        return;
    }
    let mut roadstead = Roadstead::durable_apiserver();
    let kubectl = roadstead.kubectl();
    let map = |name: &str| {
        format!("{{apiVersion: v1, kind: ConfigMap, metadata: {{name: {name}}}, data: {{a: b}}}}")
    };
    kubectl.apply(&map("before"));
    let before = kubectl.run("get configmap before -o yaml");
    let check = |roadstead: &Roadstead, arguments: &str, success: bool, want: &str| {
        let (ok, said) = snapshot(roadstead, arguments);
        assert!(ok == success && said.contains(want), "{arguments}: {said}");
    };
    let (data, save) = ("--data-dir DIR/data", "save DIR/saved --kubeconfig DIR/kubeconfig");
    let (ok, said) = snapshot(&roadstead, &format!("{save} {data}"));
    let count = said.strip_prefix("saved ").and_then(|rest| rest.split(' ').next()?.parse().ok());
    let count: usize = count.unwrap_or_else(|| panic!("{said}"));
    assert!(ok && said.contains("objects at revision "), "{said}");
    check(&roadstead, &format!("{save} {data}"), false, "File exists");
    check(&roadstead, "verify DIR/saved", true, &format!("DIR/saved is complete: {count} objects"));
    check(&roadstead, "verify DIR/kubeconfig", false, "this is not a snapshot");
    kubectl.apply(&map("after"));
    let restore = format!("restore DIR/saved {data}");
    check(&roadstead, &restore, false, "DIR/data is in use by roadstead (pid ");

    roadstead.stop();
    let held = format!("holds {} objects: use --force to replace it", count + 1);
    check(&roadstead, &restore, false, &held);
    check(&roadstead, &format!("{restore} --force"), true, &format!("restored {count} objects"));
    roadstead.start_again();
    assert_eq!(kubectl.run("get configmap before -o yaml"), before);
    assert!(kubectl.fails("get configmap after").contains("NotFound"));
    kubectl.apply(&map("later"));
    let revision = kubectl.run("get configmap later -o jsonpath='{.metadata.resourceVersion}'");
    assert!(revision.parse::<u64>().unwrap() > 1_000_000_000, "{revision}");
}
