//! Mistakes get the code, reason and words of Kubernetes, and change nothing.

use roadstead_testkit::kubectl::Kubectl;
use roadstead_testkit::netns::is_left_out;

use crate::process::Roadstead;

fn service(name: &str, spec: &str) -> String {
    format!("{{apiVersion: v1, kind: Service, metadata: {{name: {name}}}, spec: {spec}}}")
}

#[test]
fn mistakes_are_explained_and_change_nothing() {
    if is_left_out("L5") {
        return;
    }
    let roadstead = Roadstead::apiserver();
    let kubectl = roadstead.kubectl();
    let before = everything(&kubectl);
    let port = "ports: [{port: 80}]";
    let cases = [
        (
            "an unfinished manifest",
            "apiVersion: v1\nkind: Service\nmetadata: {name: x".into(),
            "error converting YAML to JSON",
        ),
        (
            "no such kind",
            "{apiVersion: v1, kind: Serv, metadata: {name: x}}".into(),
            "no matches for kind \"Serv\" in version \"v1\"",
        ),
        (
            "no such namespace",
            format!(
                "{{apiVersion: v1, kind: Service, metadata: {{name: x, namespace: nope}}, spec: {{{port}}}}}"
            ),
            "namespaces \"nope\" not found",
        ),
        (
            "no ports",
            service("x", "{}"),
            "The Service \"x\" is invalid: spec.ports: Required value",
        ),
        (
            "a port too high",
            service("x", "{ports: [{port: 70000}]}"),
            "spec.ports[0].port: Invalid value: 70000: must be between 1 and 65535, inclusive",
        ),
        (
            "a port in quotes",
            service("x", "{ports: [{port: \"80\"}]}"),
            "json: cannot unmarshal string into Go struct field ServicePort.spec.ports.port of type int32",
        ),
        (
            "an address that is none",
            service("x", &format!("{{clusterIP: 10.96.0.300, {port}}}")),
            "spec.clusterIPs[0]: Invalid value: \"10.96.0.300\": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
        ),
        (
            "an address from elsewhere",
            service("x", &format!("{{clusterIP: 1.2.3.4, {port}}}")),
            "failed to allocate IP 1.2.3.4: the provided network does not match the current range",
        ),
        (
            "an address already taken",
            service("x", &format!("{{clusterIP: 10.96.0.1, {port}}}")),
            "failed to allocate IP 10.96.0.1: provided IP is already allocated",
        ),
        (
            "a bad name",
            service("My_Svc", &format!("{{{port}}}")),
            "metadata.name: Invalid value: \"My_Svc\": a lowercase RFC 1123 label must consist of",
        ),
        (
            "a misspelt type",
            service("x", &format!("{{type: Loadbalancer, {port}}}")),
            "spec.type: Unsupported value: \"Loadbalancer\": supported values: \"ClusterIP\", \"ExternalName\", \"LoadBalancer\", \"NodePort\"",
        ),
    ];
    for (name, manifest, want) in cases {
        // Some versions of kubectl find some mistakes themselves; this is about the server.
        let command = kubectl.apply_command(&manifest) + " --validate=false";
        let said = kubectl.fails(&command);
        assert!(said.contains(want), "{name}: {said}");
    }
    let missing = kubectl.fails("get service nope");
    assert_eq!(missing, "Error from server (NotFound): services \"nope\" not found");
    stale(&kubectl);
    raw(&roadstead);
    assert_eq!(everything(&kubectl), before);
}

fn everything(kubectl: &Kubectl) -> String {
    kubectl.run("get services,configmaps,namespaces,ipaddresses,deployments -A -o yaml | grep -v resourceVersion")
}

/// Writing over somebody else's change is refused.
fn stale(kubectl: &Kubectl) {
    let map = |version: &str, value: &str| {
        format!(
            "{{apiVersion: v1, kind: ConfigMap, metadata: {{name: m, resourceVersion: {version}}}, \
             data: {{a: {value}}}}}"
        )
    };
    kubectl.apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: m}, data: {a: one}}");
    let command = kubectl.apply_command(&map("'1'", "two")).replace("apply", "replace");
    let said = kubectl.fails(&command);
    assert!(
        said.contains("(Conflict)")
            && said.contains(
                "Operation cannot be fulfilled on configmaps \"m\": the object has been modified; \
                 please apply your changes to the latest version and try again"
            ),
        "{said}"
    );
    assert_eq!(kubectl.run("get configmap m -o jsonpath='{.data.a}'"), "one");
    kubectl.run("delete configmap m");
}

/// What kubectl would never send.
fn raw(roadstead: &Roadstead) {
    let config = std::fs::read_to_string(roadstead.kubeconfig()).unwrap();
    let field = |name: &str| {
        let line = config.lines().find(|line| line.trim().starts_with(name)).unwrap();
        line.split_once(": ").unwrap().1.trim().to_owned()
    };
    let directory = tempfile::tempdir().unwrap();
    for (file, name) in [
        ("ca", "certificate-authority-data"),
        ("crt", "client-certificate-data"),
        ("key", "client-key-data"),
    ] {
        let command =
            format!("echo {} | base64 -d > {}/{file}", field(name), directory.path().display());
        roadstead_testkit::netns::run(&command);
    }
    let curl = |arguments: &str| {
        let path = directory.path().display();
        let flags = format!("--cacert {path}/ca --cert {path}/crt --key {path}/key");
        roadstead_testkit::netns::run(&format!("curl -s -w ' %{{http_code}}' {flags} {arguments}"))
    };
    let services = format!("{}/api/v1/namespaces/default/services", field("server"));
    let post = |body: &str| format!("-H 'Content-Type: application/json' -d '{body}' {services}");
    let cases = [
        ("not JSON", post("{"), "BadRequest", "400"),
        ("no name", post("{}"), "name or generateName is required", "422"),
        (
            "another kind",
            post(r#"{"kind":"Pod","apiVersion":"v1"}"#),
            "does not match the expected kind",
            "400",
        ),
        (
            "a media type nobody speaks",
            format!("-H 'Content-Type: text/csv' -d x {services}"),
            "UnsupportedMediaType",
            "415",
        ),
        (
            "no such resource",
            format!("{services}x"),
            "the server could not find the requested resource",
            "404",
        ),
        ("no such method", format!("-X PROPFIND {services}"), "MethodNotAllowed", "405"),
        ("a wrong selector", format!("'{services}?labelSelector=a%20b%20c'"), "BadRequest", "400"),
        (
            "an unknown field",
            format!("'{services}?fieldSelector=spec.foo%3D1'"),
            "field label not supported: spec.foo",
            "400",
        ),
        (
            "a body too large",
            format!(
                "-H 'Content-Type: application/json' -d @/dev/stdin {services} < {}",
                big(&directory)
            ),
            "Request entity too large",
            "413",
        ),
    ];
    for (name, arguments, words, code) in cases {
        let answer = curl(&arguments);
        assert!(answer.contains(words) && answer.ends_with(code), "{name}: {answer}");
        assert!(answer.contains("\"status\":\"Failure\""), "{name}: {answer}");
    }
    // Without a certificate only health and version are answered.
    let stranger = |path: &str| {
        let url = format!("{}{path}", field("server"));
        roadstead_testkit::netns::run(&format!("curl -sk -w ' %{{http_code}}' {url}"))
    };
    assert!(stranger("/api/v1/services").ends_with("401"));
    assert_eq!(stranger("/healthz"), "ok 200");
    assert!(stranger("/version").ends_with("200"));
}

fn big(directory: &tempfile::TempDir) -> String {
    let path = directory.path().join("big");
    std::fs::write(&path, "x".repeat(4 << 20)).unwrap();
    path.display().to_string()
}
