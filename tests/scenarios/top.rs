//! `kubectl top`: what pods and nodes use.

use std::time::Duration;

use roadstead_testkit::kubectl::eventually;
use roadstead_testkit::netns::laboratory_of;

use crate::process::Roadstead;

const PODS: &str = "
apiVersion: v1
kind: Pod
metadata: {name: quiet, labels: {app: quiet}}
spec:
  containers:
  - {name: one, image: roadstead/echo, command: [echo], env: [{name: PORT, value: '8080'}]}
  - {name: two, image: roadstead/echo, command: [sleep, infinity]}
---
apiVersion: v1
kind: Pod
metadata: {name: other, labels: {app: other}}
spec:
  containers:
  - {name: main, image: roadstead/echo}
";

/// The words of each line, without the heading.
fn rows(text: &str) -> Vec<Vec<&str>> {
    text.lines().skip(1).map(|line| line.split_whitespace().collect()).collect()
}

#[test]
fn kubectl_top_shows_what_is_used() {
    laboratory_of("L5", || {
        let roadstead = Roadstead::up();
        let kubectl = roadstead.kubectl();
        kubectl.apply(PODS);
        kubectl.run("wait --for=condition=Ready pod --all --timeout=30s");
        let top = || String::from_utf8(kubectl.try_run("top pods").stdout).unwrap();
        let both = |text: &String| rows(text).len() == 2;
        let text = eventually("pods are measured", Duration::from_secs(60), top, both);
        let found = rows(&text);
        assert_eq!((found[0][0], found[1][0]), ("other", "quiet"), "{text}");
        assert!(found.iter().all(|row| row[1].ends_with('m') && row[2].ends_with("Mi")), "{text}");

        let text = kubectl.run("top pods -l app=quiet");
        assert_eq!(rows(&text).iter().map(|row| row[0]).collect::<Vec<_>>(), ["quiet"], "{text}");
        let text = kubectl.run("top pod quiet --containers");
        let names: Vec<_> = rows(&text).iter().map(|row| row[1]).collect();
        assert_eq!(names, ["one", "two"], "{text}");
        assert!(kubectl.run("top pods -A").contains("default"));
        let nodes = kubectl.run("top nodes");
        let node = &rows(&nodes)[0];
        assert!(node[1].ends_with('m') && node[2].ends_with('%'), "{nodes}");
        assert_ne!((node[1], node[3]), ("0m", "0Mi"), "{nodes}");
        let table = kubectl.run("get podmetrics.metrics.k8s.io");
        assert!(table.contains("WINDOW") && table.contains("quiet"), "{table}");
        let gone = kubectl.fails("top pod nobody");
        assert!(gone.contains("podmetrics.metrics.k8s.io \"default/nobody\" not found"), "{gone}");

        // Whoever may look at pods may look at what they use.
        kubectl.run("create serviceaccount viewer");
        kubectl.run("create rolebinding viewer --clusterrole=view --serviceaccount=default:viewer");
        let viewer = "--as=system:serviceaccount:default:viewer";
        assert!(kubectl.run(&format!("top pods {viewer}")).contains("quiet"));
        let refused = kubectl.fails(&format!("top nodes {viewer}"));
        assert!(refused.contains("cannot list resource \"nodes\""), "{refused}");
    });
}
