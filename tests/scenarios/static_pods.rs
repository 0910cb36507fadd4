//! Pods that a node runs from files, whatever the API says.

use std::fs;
use std::time::Duration;

use roadstead_testkit::kubectl::eventually;
use roadstead_testkit::netns::{laboratory_of, run, try_run};

use crate::process::Roadstead;

const MANIFEST: &str = "
apiVersion: v1
kind: Pod
metadata: {name: own, labels: {app: own}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: roadstead/echo, env: [{name: PORT, value: '8080'}]}
";
const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_node_runs_the_pods_of_its_files() {
    laboratory_of("L5", || {
        run("mkdir /run/manifests");
        fs::write("/run/manifests/own.yaml", MANIFEST).unwrap();
        fs::write("/run/manifests/wrong.yaml", "apiVersion: v1\nkind: Service\n").unwrap();
        let mut roadstead = Roadstead::up_with("--pod-manifest-path /run/manifests");
        let kubectl = roadstead.kubectl();
        // Who says that a pod is a mirror gets no account by it.
        let mirror = "{apiVersion: v1, kind: Pod, metadata: {name: m, annotations: \
            {kubernetes.io/config.mirror: x}}, spec: {serviceAccountName: default, \
            containers: [{name: c, image: i}]}}";
        let said = kubectl.fails(&kubectl.apply_command(mirror));
        assert!(said.contains("a mirror pod may not reference service accounts"), "{said}");
        let node = kubectl.run("get nodes -o jsonpath='{.items[0].metadata.name}'");
        let pod = format!("own-{}", node.to_lowercase());
        let get = |path: &str| {
            let found = kubectl.try_run(&format!("get pod {pod} -o jsonpath={{.{path}}}"));
            String::from_utf8(found.stdout).unwrap()
        };
        let running = |text: &String| text == "Running";
        eventually("it runs and is shown", 20 * SECOND, || get("status.phase"), running);
        assert_eq!(get("metadata.ownerReferences[0].kind"), "Node");
        let answer = || {
            let curl = format!("curl -s -m 1 http://{}:8080/", get("status.podIP"));
            String::from_utf8(try_run(&curl).stdout).unwrap().trim().to_owned()
        };
        eventually("it answers", 10 * SECOND, answer, |text| *text == pod);
        let began = || get("status.containerStatuses[0].state.running.startedAt");
        let (first, shown) = (began(), get("metadata.uid"));
        kubectl.run(&format!("logs {pod}"));

        // Who deletes what is shown deletes nothing else.
        kubectl.run(&format!("delete pod {pod} --wait=false"));
        let again = || get("metadata.uid");
        eventually("shown again", 20 * SECOND, again, |uid| !uid.is_empty() && *uid != shown);
        eventually("with its status", 10 * SECOND, || get("status.phase"), running);
        assert_eq!(began(), first, "it went on");

        // An agent that starts again goes on with it.
        roadstead.stop();
        roadstead.start_again();
        eventually("still shown", 20 * SECOND, || get("status.phase"), running);
        assert_eq!(began(), first, "it went on");

        fs::write("/run/manifests/own.yaml", MANIFEST.replace("app: own", "app: new")).unwrap();
        let label = || get("metadata.labels.app");
        eventually("changed", 20 * SECOND, label, |label| label == "new");
        eventually("runs anew", 20 * SECOND, || get("status.phase"), running);
        fs::remove_file("/run/manifests/own.yaml").unwrap();
        eventually("gone", 20 * SECOND, || get("metadata.uid"), String::is_empty);
        let ended =
            || kubectl.run("get pods -A --field-selector metadata.namespace!=kube-system -o name");
        eventually("nothing is left", 10 * SECOND, ended, String::is_empty);
    });
}
