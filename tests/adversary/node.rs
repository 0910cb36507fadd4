//! A node: a machine that holds the credentials of its node agent, and wants those of others.

use std::fs;

use roadstead_testkit::netns::run;

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
    // (kubectl reads before it patches, which nodes may not; they may write.)
    kubectl.run(&format!("patch node n1 --subresource=status -p '{claim}'"));
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
        kubectl.run(&format!("patch pod {pod} --subresource=status -p '{status}'"));
        let path = format!("/api/v1/namespaces/default/pods/{pod}:6443/proxy/");
        let said = kubectl.fails(&format!("get --raw {path}"));
        assert!(said.contains("address not allowed"), "{pod} {address}: {said}");
    }
}

/// A node gets certificates for itself, and not for another.
#[test]
fn a_certificate_of_another_node() {
    let roadstead = Roadstead::apiserver();
    let kubectl = roadstead.kubectl();
    // Nodes may ask for certificates in every cluster; who approves them is another question.
    let place = roadstead.directory().display().to_string();
    for (name, subject, refused) in [
        (
            "other",
            "/O=system:nodes/CN=system:node:n2",
            Some("can only create a node CSR with CN=system:node:n1"),
        ),
        ("own", "/O=system:nodes/CN=system:node:n1", None),
    ] {
        run(&format!(
            "cd {place} && openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes \
             -keyout key -out csr -subj {subject} 2>/dev/null"
        ));
        let request = format!(
            "---\n{{apiVersion: certificates.k8s.io/v1, kind: CertificateSigningRequest, metadata: {{name: {name}}}, \
             spec: {{signerName: kubernetes.io/kube-apiserver-client-kubelet, usages: [client auth, \
             digital signature], request: {}}}}}",
            run(&format!("base64 -w0 {place}/csr"))
        );
        fs::write(format!("{place}/request.yaml"), request).unwrap();
        let command = format!("create -f {place}/request.yaml {NODE}");
        match refused {
            Some(words) => assert!(kubectl.fails(&command).contains(words)),
            None => drop(kubectl.run(&command)),
        }
    }
    // Nor does it approve or sign its own.
    let said = kubectl.fails(&format!("certificate approve own {NODE}"));
    assert!(said.contains("orbidden"), "{said}");
}
