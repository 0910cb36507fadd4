//! What people type every day.

use std::process::{Command, Stdio};
use std::time::Duration;

use roadstead_testkit::kubectl::{Kubectl, eventually};
use roadstead_testkit::netns::laboratory_of;

use crate::process::Roadstead;

#[test]
fn everyday_commands() {
    laboratory_of("L5", || {
        let roadstead = Roadstead::up();
        let kubectl = roadstead.kubectl();
        let nodes = kubectl.run("get nodes");
        assert!(nodes.contains("node") && nodes.contains("Ready"), "{nodes}");

        let watching = Command::new("timeout")
            .args(["12", &Kubectl::program(), "get", "services", "-w"])
            .env("KUBECONFIG", roadstead.kubeconfig())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        assert_eq!(
            kubectl.apply("../../examples/web.yaml"),
            "deployment.apps/web created\nservice/web created\n"
        );
        assert_eq!(
            kubectl.apply("../../examples/web.yaml"),
            "deployment.apps/web unchanged\nservice/web unchanged\n"
        );
        kubectl.run("wait --for=condition=Available deployment/web --timeout=60s");
        kubectl.run("wait --for=condition=Ready pod -l app=web --timeout=60s");
        assert_eq!(
            kubectl.run("scale deployment web --replicas=2"),
            "deployment.apps/web scaled\n"
        );
        kubectl.run("rollout status deployment/web --timeout=60s");
        let ready = "get deployment web --no-headers";
        let patience = Duration::from_secs(10);
        eventually("two pods", patience, || kubectl.run(ready), |line| line.contains("2/2"));

        let wide = kubectl.run("get services -o wide");
        assert!(wide.contains("SELECTOR") && wide.contains("app=web"), "{wide}");
        let all = kubectl.run("get all");
        for part in ["pod/web-", "service/web", "deployment.apps/web", "replicaset.apps/web-"] {
            assert!(all.contains(part), "{part} in {all}");
        }
        let described = kubectl.run("describe service web");
        for line in ["Name:", "Selector:", "Type:", "IP:", "TargetPort:", "Endpoints:", "Events:"] {
            assert!(described.contains(line), "{line} in {described}");
        }
        let described = kubectl.run("describe deployment web");
        assert!(described.contains("ScalingReplicaSet"), "{described}");
        let described = kubectl.run("describe pods -l app=web");
        for line in ["Scheduled", "Started", "http-get http://:http/healthz", "ContainersReady"] {
            assert!(described.contains(line), "{line} in {described}");
        }
        kubectl.run("label service web tier=front");
        kubectl.run(
            "patch service web -p '{\"spec\":{\"ports\":[{\"port\":80,\"targetPort\":8080}]}}'",
        );
        kubectl.run("rollout restart deployment/web");
        kubectl.run("rollout status deployment/web --timeout=60s");

        assert!(kubectl.run("delete -f ../../examples/web.yaml").contains("\"web\" deleted"));
        let left = || kubectl.run("get pods,replicasets,endpointslices -l app=web -o name");
        eventually("the pods go with their owner", patience, left, String::is_empty);

        kubectl.apply("apiVersion: v1\nkind: Namespace\nmetadata:\n  name: shop\n");
        kubectl.run("create configmap settings --from-literal=a=b -n shop --dry-run=client -o yaml > /run/map.yaml");
        let apply = kubectl.apply_command("/run/map.yaml");
        kubectl.run(&apply);
        kubectl.run("delete namespace shop --timeout=30s");
        assert!(kubectl.fails("get namespace shop").contains("NotFound"));

        let seen = watching.wait_with_output().unwrap();
        let seen = String::from_utf8_lossy(&seen.stdout);
        assert!(seen.lines().filter(|line| line.starts_with("web ")).count() >= 2, "{seen}");
    });
}
