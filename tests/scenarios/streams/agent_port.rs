//! The agent's own port, and requests that the API server hands on to agents.

use std::fs;
use std::path::Path;

use roadstead_testkit::kubectl::{Kubectl, eventually};
use roadstead_testkit::netns::{laboratory, run};
use serde_json::json;

use super::SECOND;
use crate::process::Roadstead;
use crate::proxy::set_status;

const OBJECTS: &str = "
apiVersion: v1
kind: Pod
metadata: {name: echo}
spec:
  containers: [{name: main, image: 'roadstead/echo:latest'}]
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: scraper}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: scraper}
rules: [{apiGroups: [''], resources: [nodes/metrics, nodes/stats, nodes/healthz], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: scraper}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: scraper}
subjects: [{kind: ServiceAccount, name: scraper, namespace: default}]
---
apiVersion: v1
kind: Node
metadata: {name: elsewhere}
";

#[test]
fn the_agent_has_a_port_of_its_own() {
    laboratory(|| {
        let roadstead = Roadstead::up();
        let kubectl = roadstead.kubectl();
        kubectl.apply(OBJECTS);
        kubectl.run("wait --for=condition=Ready pod/echo --timeout=60s");
        by_the_api_server(&kubectl, "node");
        let path = "{.status.daemonEndpoints.kubeletEndpoint.Port}";
        assert_eq!(kubectl.run(&format!("get node node -o jsonpath='{path}'")), "10250");
        by_itself(&kubectl, roadstead.directory());
        // Another Node leads to the same agent, but over its port.
        let path = "{.status.addresses[0].address}";
        let address = kubectl.run(&format!("get node node -o jsonpath='{path}'"));
        let status = |address: &str, port: u16| {
            let status = json!({"addresses": [{"type": "InternalIP", "address": address}],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": port}}});
            set_status(&kubectl, "/api/v1/nodes/elsewhere", &status);
        };
        status(&address, 10250);
        by_the_api_server(&kubectl, "elsewhere");
        for (address, port) in [("127.0.0.1", 6443), ("127.0.0.1", 10250)] {
            status(address, port);
            let refused = kubectl.fails("get --raw /api/v1/nodes/elsewhere/proxy/api/v1/secrets");
            assert!(refused.contains("127.0.0.1 is not the address of a node"), "{refused}");
        }
        // Not even where it would be believed.
        status(&address, 6443);
        let refused = kubectl.fails("get --raw /api/v1/nodes/elsewhere/proxy/api/v1/secrets");
        assert!(!refused.contains("items"), "{refused}");
    });
}

fn by_the_api_server(kubectl: &Kubectl, node: &str) {
    let get = |path: &str| kubectl.run(&format!("get --raw /api/v1/nodes/{node}/proxy/{path}"));
    assert_eq!(get("healthz"), "ok");
    assert!(get("pods").contains("\"PodList\""));
    assert!(get("pods").contains("\"echo\""));
    get("containerLogs/default/echo/main");
    let metrics =
        || kubectl.try_run(&format!("get --raw /api/v1/nodes/{node}/proxy/metrics/resource"));
    eventually("it measures", 30 * SECOND, metrics, |output| output.status.success());
    let missing = kubectl.fails(&format!("get --raw /api/v1/nodes/{node}/proxy/nothing"));
    assert!(missing.contains("could not find the requested resource"), "{missing}");
    assert_eq!(kubectl.run(&format!("get --raw /api/v1/nodes/{node}:10250/proxy/healthz")), "ok");
    let elsewhere = kubectl.fails(&format!("get --raw /api/v1/nodes/{node}:22/proxy/"));
    assert!(elsewhere.contains("only requests to the agent of a node"), "{elsewhere}");
}

fn by_itself(kubectl: &Kubectl, directory: &Path) {
    let authority = directory.join("data/pki/ca.crt");
    let curl = |path: &str, more: &str| {
        let authority = authority.display();
        run(&format!(
            "curl -s -m 10 -w ' %{{http_code}}' --cacert {authority} 'https://127.0.0.1:10250{path}' {more}"
        ))
    };
    assert_eq!(curl("/healthz", ""), "Unauthorized 401");
    assert_eq!(curl("/pods", "-H 'Authorization: Bearer nonsense'"), "Unauthorized 401");
    assert_eq!(curl("/exec/default/echo/main?command=sh&output=1", "-X POST"), "Unauthorized 401");
    let token = kubectl.token("scraper");
    let bearer = format!("-H 'Authorization: Bearer {}'", token);
    assert_eq!(curl("/healthz", &bearer), "ok 200");
    assert!(curl("/stats/summary", &bearer).ends_with(" 200"));
    let who = "Forbidden (user=system:serviceaccount:default:scraper, verb=";
    for (path, method, what) in [
        ("/pods", "GET", "get, resource=nodes, subresource(s)=[pods proxy])"),
        ("/containerLogs/default/echo/main", "GET", "get, resource=nodes, subresource(s)=[proxy])"),
        ("/exec/default/echo/main", "GET", "create, resource=nodes, subresource(s)=[proxy])"),
        ("/portForward/default/echo", "POST", "create, resource=nodes, subresource(s)=[proxy])"),
    ] {
        assert_eq!(curl(path, &format!("-X {method} {bearer}")), format!("{who}{what} 403"));
    }
    // The administrator has a certificate.
    for (part, file) in [("client-certificate-data", "crt"), ("client-key-data", "key")] {
        let config = directory.join("kubeconfig");
        let text = fs::read_to_string(config).unwrap();
        let data = text.lines().find_map(|line| line.trim().strip_prefix(&format!("{part}: ")));
        run(&format!("echo {} | base64 -d > /run/admin.{file}", data.unwrap()));
    }
    let admin = "--cert /run/admin.crt --key /run/admin.key";
    assert!(curl("/pods", admin).ends_with(" 200"));
    let state = curl("/debug/state", admin);
    assert!(
        state.contains("\"node\": \"node\"") && state.contains("\"phase\": \"Running\""),
        "{state}"
    );
    assert!(curl("/containerLogs/default/echo/main", admin).ends_with(" 200"));
}
