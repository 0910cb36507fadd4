//! A certificate by way of the API, as kubectl's users get one.

use std::time::Duration;

use roadstead_testkit::kubectl::{Kubectl, eventually};
use roadstead_testkit::netns::{is_left_out, run, try_run};

use crate::controllers::controllers_of;
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
    // The signer has its own rights, and no others.
    let own = roadstead.directory().join("own.kubeconfig");
    let place_of =
        format!("--data-dir {place}/data --kubeconfig {}", roadstead.kubeconfig().display());
    let issued = try_run(&format!(
        "{} certificates kubeconfig certificate-signing {place_of} --out {}",
        env!("CARGO_BIN_EXE_roadstead"),
        own.display()
    ));
    assert!(issued.status.success(), "{}", String::from_utf8_lossy(&issued.stderr));
    let said = Kubectl::new(own.clone()).fails("get secrets --all-namespaces");
    assert!(said.contains("kube-system:certificate-controller\" cannot list"), "{said}");
    let _signer = controllers_of(
        &own,
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

/// When the certificate ends that the server shows.
fn shown_until(roadstead: &Roadstead) -> String {
    let server = roadstead.credentials().server.replace("https://", "");
    run(&format!(
        "openssl s_client -connect {server} </dev/null 2>/dev/null | openssl x509 -noout -enddate"
    ))
}

#[test]
fn certificates_renew_themselves_and_connections_go_on() {
    if is_left_out("L5") {
        return;
    }
    let roadstead = Roadstead::apiserver_with("--certificate-duration 12s");
    let place = roadstead.directory().display().to_string();
    let first = roadstead.credentials();
    let shown = shown_until(&roadstead);
    std::fs::copy(roadstead.kubeconfig(), format!("{place}/old")).unwrap();
    let command =
        format!("exec kubectl --kubeconfig {place}/old get configmaps --watch > {place}/watched");
    let mut watch = std::process::Command::new("sh").args(["-c", &command]).spawn().unwrap();
    let patience = Duration::from_secs(30);
    let seen = |name: &'static str| {
        let read = || std::fs::read_to_string(format!("{place}/watched")).unwrap();
        eventually(name, patience, read, |text| text.contains(name));
    };
    roadstead.kubectl().run("create configmap before");
    seen("before");
    eventually(
        "renewed",
        patience,
        || roadstead.credentials().certificate,
        |certificate| *certificate != first.certificate,
    );
    assert_ne!(shown_until(&roadstead), shown);
    // The old one ends, for new connections.
    let old = || try_run(&format!("kubectl --kubeconfig {place}/old get configmaps"));
    eventually("the old one ends", patience, old, |output| !output.status.success());
    roadstead.kubectl().run("create configmap after");
    seen("after");
    assert_eq!(watch.try_wait().unwrap(), None, "the watch goes on");
    watch.kill().unwrap();
    watch.wait().unwrap();
}

#[test]
fn tokens_outlive_the_key_that_signed_them() {
    if is_left_out("L5") {
        return;
    }
    // Keys are looked at every three seconds then.
    let flags = "apiserver --listen 127.0.0.1:0 --certificate-duration 30s";
    let roadstead = Roadstead::start_in(tempfile::tempdir().unwrap(), flags);
    let place = roadstead.directory().display().to_string();
    roadstead.kubectl().run("create serviceaccount robot");
    let token = || roadstead.kubectl().token("robot");
    let key_ids = || {
        let text = roadstead.kubectl().run("get --raw /openid/v1/jwks");
        let set: serde_json::Value = serde_json::from_str(&text).unwrap();
        let keys = set["keys"].as_array().unwrap().iter();
        keys.map(|key| key["kid"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let works = |token: &str| {
        let server = roadstead.credentials().server;
        let ca = format!("--certificate-authority={place}/data/pki/ca.crt --server={server}");
        let ask = format!("kubectl --kubeconfig=/dev/null {ca} --token={token} get nodes");
        // Who is known is told by name what is not allowed.
        let who = "User \"system:serviceaccount:default:robot\" cannot list";
        String::from_utf8_lossy(&try_run(&ask).stderr).contains(who)
    };
    let rotate = |flags: &str| {
        let binary = env!("CARGO_BIN_EXE_roadstead");
        let command = format!("{binary} certificates rotate-service-account-key {flags}");
        let output = try_run(&format!("{command} --data-dir {place}/data"));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    let patience = Duration::from_secs(20);
    let (first, old) = (key_ids(), token());
    assert!(works(&old));
    rotate("");
    eventually("another key", patience, key_ids, |ids| ids.len() == 2 && ids[0] != first[0]);
    assert_eq!(key_ids()[1], first[0]);
    let new = token();
    assert!(works(&old) && works(&new));
    rotate("--forget-previous");
    eventually("only one key", patience, key_ids, |ids| ids.len() == 1);
    assert!(!works(&old) && !works(&new) && works(&token()));

    let list = || {
        let command = format!("{} certificates", env!("CARGO_BIN_EXE_roadstead"));
        let kubeconfig = roadstead.kubeconfig();
        let place = format!("--data-dir {place}/data --kubeconfig {}", kubeconfig.display());
        let output = try_run(&format!("{command} renew {place} && {command} list {place}"));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let words = ["authority", "(3651 days)", "administrator", "(364 days)", "signs tokens"];
    // The server may have renewed it in between.
    eventually("a list", patience, list, |said| words.iter().all(|words| said.contains(words)));
    roadstead.kubectl().run("get namespaces");
}
