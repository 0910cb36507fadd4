//! Endpoints and EndpointSlices that people write by hand, with the mistakes they make. What the
//! API refuses, it refuses in the words of Kubernetes; what it accepts although nobody will use it
//! is explained where people look: in `kubectl describe`.

use std::time::Duration;

use roadstead_testkit::kubectl::{Kubectl, eventually};
use roadstead_testkit::netns::is_left_out;

use crate::controllers::controllers;
use crate::process::Roadstead;

const PATIENCE: Duration = Duration::from_secs(30);

#[test]
fn mistakes_in_endpoints_are_explained() {
    if is_left_out("L5") {
        return;
    }
    let roadstead = Roadstead::apiserver();
    let kubectl = roadstead.kubectl();
    refused(&kubectl);
    let _running = controllers(&roadstead, &[]);
    accepted(&kubectl);
}

fn slice(name: &str, label: &str, family: &str, addresses: &[&str], port: &str) -> String {
    let endpoints: Vec<_> = addresses.iter().map(|a| format!("{{addresses: ['{a}']}}")).collect();
    format!(
        "{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {{name: {name}, \
         labels: {{{label}}}}}, addressType: {family}, endpoints: [{}], ports: [{{{port}}}]}}",
        endpoints.join(", ")
    )
}

fn endpoints(name: &str, addresses: &[&str], port: &str) -> String {
    let addresses: Vec<_> = addresses.iter().map(|a| format!("{{ip: '{a}'}}")).collect();
    format!(
        "{{apiVersion: v1, kind: Endpoints, metadata: {{name: {name}}}, subsets: [{{addresses: \
         [{}], ports: [{{{port}}}]}}]}}",
        addresses.join(", ")
    )
}

fn many(count: usize) -> Vec<String> {
    (1..=count).map(|n| format!("10.9.{}.{}", n / 250, n % 250 + 1)).collect()
}

const WEB: &str = "kubernetes.io/service-name: web";
const HTTP: &str = "name: http, port: 80";

/// These never get in.
fn refused(kubectl: &Kubectl) {
    let loopback = "may not be in the loopback range (127.0.0.0/8, ::1/128)";
    let link_local = "may not be in the link-local range (169.254.0.0/16, fe80::/10)";
    let of = |family: &str, address: &str| slice("bad", WEB, family, &[address], HTTP);
    let at = |address: &str| endpoints("bad", &[address], HTTP);
    let thousand_and_one = many(1001);
    let thousand_and_one: Vec<_> = thousand_and_one.iter().map(String::as_str).collect();
    let (slice_field, field) = ("endpoints[0].addresses", "subsets[0].addresses[0].ip");
    let cases = [
        (
            "IPv6 in a slice of IPv4",
            of("IPv4", "fd00::1"),
            format!("{slice_field}: Invalid value: \"fd00::1\": must be an IPv4 address"),
        ),
        (
            "loopback in a slice",
            of("IPv4", "127.0.0.1"),
            format!("{slice_field}[0]: Invalid value: \"127.0.0.1\": {loopback}"),
        ),
        (
            "link-local in a slice",
            of("IPv6", "fe80::1"),
            format!("{slice_field}[0]: Invalid value: \"fe80::1\": {link_local}"),
        ),
        (
            "1,001 endpoints",
            slice("bad", WEB, "IPv4", &thousand_and_one, HTTP),
            "endpoints: Too many: 1001: must have at most 1000 items".into(),
        ),
        (
            "loopback in Endpoints",
            at("127.0.0.1"),
            format!("{field}: Invalid value: \"127.0.0.1\": {loopback}"),
        ),
        (
            "link-local in Endpoints",
            at("169.254.169.254"),
            format!("{field}: Invalid value: \"169.254.169.254\": {link_local}"),
        ),
        (
            "a name in Endpoints",
            at("db.example.com"),
            format!("{field}: Invalid value: \"db.example.com\": must be a valid IP address"),
        ),
    ];
    for (name, manifest, want) in cases {
        let said = kubectl.fails(&kubectl.apply_command(&manifest).replace("apply", "create"));
        assert!(said.contains("\"bad\" is invalid") && said.contains(&want), "{name}: {said}");
    }
}

/// These get in, and somebody says why they lead nowhere.
fn accepted(kubectl: &Kubectl) {
    let port = |port: &str| format!("nobody uses port {port}: ports are matched by name");
    let thousand_and_one = many(1001);
    let thousand_and_one: Vec<_> = thousand_and_one.iter().map(String::as_str).collect();
    let twice = &["10.0.0.1", "10.0.0.1"][..];
    let no_service =
        |name: &str| format!("there is no Service \"{name}\" in namespace \"default\"");
    let cases = [
        (
            "endpoints misnamed",
            endpoints("misnamed", &["10.0.0.1"], HTTP),
            "NoSuchService",
            no_service("misnamed"),
        ),
        (
            "endpointslice mislabelled",
            slice("mislabelled", "kubernetes.io/service-name: wbe", "IPv4", &["10.0.0.1"], HTTP),
            "NoSuchService",
            no_service("wbe"),
        ),
        (
            "endpointslice unlabelled",
            slice("unlabelled", "app: web", "IPv4", &["10.0.0.1"], HTTP),
            "NoServiceName",
            "without the label kubernetes.io/service-name no Service uses these endpoints".into(),
        ),
        (
            "endpoints other-port",
            endpoints("other-port", &["10.0.0.1"], "name: web, port: 80"),
            "PortNameMismatch",
            port("\"web\"/TCP"),
        ),
        (
            "endpointslice unnamed-port",
            slice("unnamed-port", WEB, "IPv4", &["10.0.0.1"], "port: 80"),
            "PortNameMismatch",
            port("\"\"/TCP"),
        ),
        (
            "endpoints twice",
            endpoints("twice", twice, HTTP),
            "DuplicateAddress",
            "address 10.0.0.1 is listed more than once".into(),
        ),
        (
            "endpointslice twice",
            slice("twice", WEB, "IPv4", twice, HTTP),
            "DuplicateAddress",
            "address 10.0.0.1 is listed more than once".into(),
        ),
        (
            "endpointslice other-family",
            slice("other-family", WEB, "IPv6", &["fd00::1"], HTTP),
            "AddressTypeMismatch",
            "these endpoints are IPv6, but Service \"web\" is IPv4 only".into(),
        ),
        (
            "endpoints too-many",
            endpoints("too-many", &thousand_and_one, HTTP),
            "TooManyAddressesToMirror",
            "1 addresses were skipped".into(),
        ),
    ];
    for name in ["web", "other-port", "twice", "too-many"] {
        kubectl.apply(&format!(
            "{{apiVersion: v1, kind: Service, metadata: {{name: {name}}}, spec: {{ports: \
             [{{{HTTP}}}]}}}}"
        ));
    }
    // Controllers that start remove Endpoints without a Service, as upstream's do.
    kubectl.apply(
        "{apiVersion: v1, kind: Service, metadata: {name: sign}, spec: {selector: {a: b}, ports: \
         [{port: 80}]}}",
    );
    let sign = "get endpointslices -o name -l kubernetes.io/service-name=sign";
    eventually("they run", PATIENCE, || kubectl.run(sign), |names| !names.is_empty());
    for (_, manifest, ..) in &cases {
        kubectl.run(&kubectl.apply_command(manifest).replace("apply", "create"));
    }
    for (object, _, reason, want) in &cases {
        // Before 1.21, kubectl describes slices of a version that no cluster has any more.
        let describe = || match object.split_once(' ') {
            Some(("endpointslice", name)) => {
                kubectl.run(&format!("get events --field-selector involvedObject.name={name}"))
            }
            _ => kubectl.run(&format!("describe {object}")),
        };
        eventually(object, PATIENCE, describe, |text| text.contains(reason) && text.contains(want));
    }
    let counts = kubectl.run(
        "get events -o jsonpath='{range .items[*]}{.involvedObject.name} {.reason} {.count}{\"\\n\"}{end}'",
    );
    let repeated: Vec<_> = counts.lines().filter(|line| !line.ends_with(" 1")).collect();
    assert!(repeated.is_empty(), "told more than once: {repeated:?}");
}
