//! A node: a machine that holds the credentials of its node agent, and wants those of others.

use std::fs;

use crate::process::Roadstead;

const NODE: &str = "--as=system:node:n1 --as-group=system:nodes --as-group=system:authenticated";

/// A node says where its pods are. It cannot make the API server, which stands where nobody else
/// does, knock anywhere else.
#[test]
fn an_address_that_is_not_a_pods() {
    let roadstead = Roadstead::apiserver_with("--cluster-cidr 10.244.0.0/16");
    let kubectl = roadstead.kubectl();
    let file = roadstead.directory().join("objects.yaml");
    let objects = "
apiVersion: v1
kind: Node
metadata: {name: n1}
---
apiVersion: v1
kind: Pod
metadata: {name: own, namespace: default}
spec: {nodeName: n1, containers: [{name: c, image: i}]}
---
apiVersion: v1
kind: Pod
metadata: {name: host, namespace: default}
spec: {nodeName: n1, hostNetwork: true, containers: [{name: c, image: i}]}
";
    fs::write(&file, objects).unwrap();
    kubectl.run(&format!("create -f {}", file.display()));
    let claim = r#"{"status":{"addresses":[{"type":"InternalIP","address":"192.0.2.7"}]}}"#;
    kubectl.run(&format!("patch node n1 --subresource=status {NODE} -p '{claim}'"));
    for (pod, address) in [
        ("own", "127.0.0.1"),
        ("own", "169.254.169.254"),
        ("own", "10.96.0.1"),
        ("own", "192.0.2.7"),
        ("own", "198.51.100.1"),
        ("host", "127.0.0.1"),
        ("host", "10.96.0.1"),
        ("host", "10.244.0.9"),
        ("host", "198.51.100.1"),
    ] {
        let status =
            format!(r#"{{"status":{{"podIP":"{address}","podIPs":[{{"ip":"{address}"}}]}}}}"#);
        kubectl.run(&format!("patch pod {pod} --subresource=status {NODE} -p '{status}'"));
        let path = format!("/api/v1/namespaces/default/pods/{pod}:6443/proxy/");
        let said = kubectl.fails(&format!("get --raw {path}"));
        assert!(said.contains("address not allowed"), "{pod} {address}: {said}");
    }
}
