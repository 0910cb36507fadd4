//! A certificate by way of the API, as kubectl's users get one.

use std::time::Duration;

use roadstead_testkit::kubectl::eventually;
use roadstead_testkit::netns::{is_left_out, run, try_run};

use crate::controllers::controllers;
use crate::process::Roadstead;

#[test]
fn a_certificate_is_asked_for_approved_and_used() {
    if is_left_out("L5") {
        return;
    }
    let roadstead = Roadstead::durable_apiserver();
    let kubectl = roadstead.kubectl();
    let place = roadstead.directory().display().to_string();
    let pki = format!("{place}/data/pki");
    let _signer = controllers(
        &roadstead,
        &[
            "--controllers=certificate-signing",
            &format!("--cluster-signing-cert-file={pki}/ca.crt"),
            &format!("--cluster-signing-key-file={pki}/ca.key"),
        ],
    );
    // Several groups, and a key of another kind than the authority's.
    run(&format!(
        "cd {place} && openssl req -new -newkey rsa:2048 -nodes -keyout jane.key -out jane.csr \
         -subj /O=dev/O=ops/CN=jane 2>/dev/null"
    ));
    let request = format!(
        "apiVersion: certificates.k8s.io/v1
kind: CertificateSigningRequest
metadata: {{name: jane}}
spec:
  signerName: kubernetes.io/kube-apiserver-client
  expirationSeconds: 86400
  usages: [client auth, digital signature]
  request: {}
",
        run(&format!("base64 -w0 {place}/jane.csr"))
    );
    std::fs::write(format!("{place}/request.yaml"), request).unwrap();
    kubectl.run(&format!("create -f {place}/request.yaml"));
    let table = || {
        let line = kubectl.run("get csr jane --no-headers");
        line.split_whitespace().skip(2).map(str::to_owned).collect::<Vec<_>>().join(" ")
    };
    let signer = "kubernetes.io/kube-apiserver-client roadstead-admin 24h";
    assert_eq!(table(), format!("{signer} Pending"));
    let head = kubectl.run("get csr");
    let columns = "NAME AGE SIGNERNAME REQUESTOR REQUESTEDDURATION CONDITION";
    let shown: Vec<_> = head.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(shown.join(" "), columns);
    kubectl.run("certificate approve jane");
    eventually("signed", Duration::from_secs(20), table, |line| {
        *line == format!("{signer} Approved,Issued")
    });
    run(&format!(
        "echo {} | base64 -d > {place}/jane.crt",
        kubectl.run("get csr jane -o jsonpath='{.status.certificate}'")
    ));
    kubectl.run("create rolebinding ops --clusterrole=view --group=ops");
    let as_jane = |what: &str| {
        let server = roadstead.credentials().server;
        let flags = format!("--server={server} --certificate-authority={pki}/ca.crt");
        let own = format!("--client-certificate={place}/jane.crt --client-key={place}/jane.key");
        let output = try_run(&format!("kubectl --kubeconfig=/dev/null {flags} {own} {what}"));
        let said = [output.stdout, output.stderr].concat();
        String::from_utf8_lossy(&said).into_owned()
    };
    let said = as_jane("auth whoami");
    assert!(said.contains("jane") && said.contains("dev") && said.contains("ops"), "{said}");
    let said = as_jane("get pods");
    assert!(said.contains("No resources found"), "by the group ops: {said}");
    let said = as_jane("get secrets");
    assert!(said.contains("User \"jane\" cannot list resource \"secrets\""), "{said}");

    // A request that no signer grants says why.
    run(&format!(
        "sed -i 's/name: jane/name: server/; s/client auth/server auth/' {place}/request.yaml"
    ));
    kubectl.run(&format!("create -f {place}/request.yaml"));
    kubectl.run("certificate approve server");
    let condition = || kubectl.run("get csr server --no-headers");
    eventually("refused", Duration::from_secs(20), condition, |line| {
        line.trim_end().ends_with("Approved,Failed")
    });
    run(&format!("sed -i 's/name: server/name: denied/' {place}/request.yaml"));
    kubectl.run(&format!("create -f {place}/request.yaml"));
    kubectl.run("certificate deny denied");
    assert!(kubectl.run("get csr denied --no-headers").trim_end().ends_with("Denied"));
}
