//! The manifests of the document "Endpoint" (S3), in its order.

use roadstead_testkit::kubectl::eventually;

use super::ledger::Story;
use super::service::settled;
use super::typing::{DNS, PATIENCE, Reader, sorted};
use super::versus::alias;

const ADDRESSES: &str = "{.subsets[*].addresses[*].ip}";
const NOBODY: &[String] = &[];

pub(super) fn play(story: &mut Story) {
    // It takes a minute until its probes have failed often enough: it begins first.
    story.row("C38", |reader| assert_eq!(reader.applies(38).ok(), "pod/web-pod created"));
    basics(story);
    uses(story);
    several_ports(story);
    advanced(story);
    practices(story);
    operator(story);
}

fn of(service: &str) -> String {
    format!("endpointslices -l kubernetes.io/service-name={service}")
}

fn words(text: &str) -> Vec<String> {
    sorted(text.split_whitespace())
}

/// Hand-written Endpoints of a Service with a selector hold until the controller looks again.
fn sticks(reader: &Reader, service: &str, written: &str, label: &str) {
    let endpoints = format!("endpoints {service}");
    assert_eq!(reader.field(&endpoints, ADDRESSES), written);
    let pods = settled(reader, service, label);
    reader.touch(service);
    reader.field_becomes(&endpoints, ADDRESSES, |said| words(said) == pods);
}

fn basics(story: &mut Story) {
    story.row("C19", |reader| {
        assert_eq!(reader.applies(19).ok(), "service/my-service created");
        settled(reader, "my-service", "app=my-app");
        reader.field_becomes("endpoints my-service", ADDRESSES, |said| !said.is_empty());
        reader.is_answered("my-service", 80, "Hello Kubernetes bootcamp!");
    });
    story.row("C20", |reader| {
        assert_eq!(reader.applies(20).warned(), "endpoints/my-service configured");
        sticks(reader, "my-service", "10.244.0.11 10.244.0.12", "app=my-app");
    });
    story.row("C21", |reader| {
        assert_eq!(reader.applies(21).ok(), "service/external-service created");
        assert_eq!(reader.sliced("external-service"), NOBODY);
    });
    story.row("C22", |reader| {
        assert_eq!(reader.applies(22).warned(), "endpoints/external-service created");
        is_mirrored(reader, "external-service", &["192.168.1.100", "192.168.1.101"]);
        for outside in ["served by 192.168.1.100:80", "served by 192.168.1.101:80"] {
            reader.is_answered("external-service", 80, outside);
        }
    });
    story.row("C23", |reader| {
        assert_eq!(reader.applies(23).warned(), "endpoints/my-service configured");
        let path = "{.subsets[0].notReadyAddresses[0].ip} {.subsets[0].addresses[0].hostname} \
            {.subsets[0].addresses[1].targetRef.uid} {.subsets[0].ports[*].name}";
        let want = "10.244.0.13 pod-1 66666666-7777-8888-9999-000000000000 http https";
        assert_eq!(reader.field("endpoints my-service", path), want);
        sticks(reader, "my-service", "10.244.0.11 10.244.0.12", "app=my-app");
    });
}

/// One slice that somebody made of the Endpoints, with these addresses.
fn is_mirrored(reader: &Reader, service: &str, addresses: &[&str]) {
    let ask = || reader.sliced(service);
    eventually(service, PATIENCE, ask, |found| found == addresses);
    let by = r"{.items[*].metadata.labels.endpointslice\.kubernetes\.io/managed-by}";
    assert_eq!(reader.field(&of(service), by), "endpointslicemirroring-controller.k8s.io");
}

fn uses(story: &mut Story) {
    story.row("C24", |reader| {
        assert_eq!(reader.applies(24).ok(), "deployment.apps/web-app created");
        let done = reader.types("kubectl rollout status deployment/web-app --timeout=120s").ok();
        assert!(done.contains("successfully rolled out"), "{done}");
    });
    story.row("C25", |reader| {
        let before = reader.cluster_ip("web-service");
        assert_eq!(reader.applies(25).ok(), "service/web-service configured");
        assert_eq!(reader.cluster_ip("web-service"), before);
        let managed = format!(
            "{},endpointslice.kubernetes.io/managed-by=endpointslice-controller.k8s.io",
            of("web-service")
        );
        let pods = reader.pods("app=web");
        let path = "{.items[*].endpoints[*].addresses[0]}";
        reader.field_becomes(&managed, path, |said| words(said) == pods);
        reader.is_answered("web-service", 80, "Welcome to nginx!");
    });
    story.row("C26", |reader| {
        assert_eq!(reader.applies(26).ok(), "service/external-db created");
    });
    story.row("C27", |reader| {
        assert_eq!(reader.applies(27).warned(), "endpoints/external-db created");
        is_mirrored(reader, "external-db", &["192.168.1.100"]);
        reader.is_answered("external-db", 3306, "served by 192.168.1.100:3306");
    });
}

fn several_ports(story: &mut Story) {
    story.row("C28", |reader| {
        assert_eq!(reader.applies(28).ok(), "service/web-app created");
        let ports = "{.subsets[0].ports[*].port}";
        let all = ["8080", "8443", "9090"];
        reader.field_becomes("endpoints web-app", ports, |said| words(said) == all);
    });
    story.row("C29", |reader| {
        assert_eq!(reader.applies(29).warned(), "endpoints/web-app configured");
        assert_eq!(reader.field("endpoints web-app", ADDRESSES), "10.244.0.11 10.244.0.12");
        reader.touch("web-app");
        // Where web-pod is, which never is ready, nobody is sent.
        let ready =
            |said: &str| words(said).len() == 3 && !said.contains("10.244.0.11 10.244.0.12");
        reader.field_becomes("endpoints web-app", ADDRESSES, ready);
    });
    story.row("C30", |reader| {
        assert_eq!(reader.applies(30).ok(), "service/hybrid-service created");
    });
    story.row("C31", |reader| {
        assert_eq!(reader.applies(31).warned(), "endpoints/hybrid-service created");
        let all = ["10.244.0.11", "10.244.0.12", "192.168.1.100", "192.168.1.101"];
        is_mirrored(reader, "hybrid-service", &all);
    });
    story.row("C32", |reader| {
        let said = reader.applies(32).ok();
        assert_eq!(said, "endpointslice.discovery.k8s.io/web-service-abc created");
        super::versus::leads_to_pods(reader, "web-service", 80, "Welcome to nginx!");
    });
}

fn advanced(story: &mut Story) {
    story.row("C33", |reader| {
        assert_eq!(reader.applies(33).warned(), "endpoints/my-service configured");
        let path = "{.subsets[0].notReadyAddresses[*].ip}";
        assert_eq!(reader.field("endpoints my-service", path), "10.244.0.13 10.244.0.14");
        sticks(reader, "my-service", "10.244.0.11 10.244.0.12", "app=my-app");
    });
    story.row("C34", |reader| {
        assert_eq!(reader.applies(34).warned(), "endpoints/multi-subset-service created");
        assert_eq!(reader.sliced("multi-subset-service"), NOBODY);
        let port = "ports: [{name: http, port: 80}]";
        selectorless(reader, "multi-subset-service", port);
        let all = ["10.244.0.11", "10.244.0.12", "10.244.0.21", "10.244.0.22"];
        is_mirrored(reader, "multi-subset-service", &all);
    });
    story.row("C35", |reader| {
        assert_eq!(reader.applies(35).warned(), "endpoints/hostname-service created");
        selectorless(reader, "hostname-service", "clusterIP: None\n  ports: [{port: 80}]");
        for (name, want) in [("web-1", "10.244.0.11"), ("web-2", "10.244.0.12")] {
            let name = format!("{name}.hostname-service.default.svc.cluster.local");
            reader.until(&format!("dig +short @{DNS} {name}"), |said| said == want);
        }
    });
    story.row("C36", |reader| {
        assert_eq!(reader.applies(36).warned(), "endpoints/node-aware-service created");
        let nodes =
            reader.field("endpoints node-aware-service", "{.subsets[0].addresses[*].nodeName}");
        assert_eq!(nodes, "node-1 node-2");
    });
    // Without a selector, and headless: what Endpoints say. Their port counts, not the targetPort.
    story.row("D5", |reader| {
        let name = "hostname-service.default.svc.cluster.local";
        assert_eq!(reader.dig(&format!("@{DNS} {name}")), ["10.244.0.11", "10.244.0.12"]);
    });
    story.row("D12", |reader| {
        let spec = "clusterIP: None\n  ports: [{name: http, port: 80, targetPort: 8080}]";
        selectorless(reader, "two-ports", spec);
        let endpoints = "apiVersion: v1\nkind: Endpoints\nmetadata: {name: two-ports}\nsubsets:\n\
            - addresses: [{ip: 10.244.0.11}]\n  ports: [{name: http, port: 9090}]\n";
        reader.applies_text(endpoints).ok();
        let question =
            format!("dig +short SRV @{DNS} _http._tcp.two-ports.default.svc.cluster.local");
        reader.until(&question, |said| said.contains(" 9090 "));
    });
}

fn selectorless(reader: &Reader, name: &str, spec: &str) {
    let text =
        format!("apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\nspec:\n  {spec}\n");
    assert_eq!(reader.applies_text(&text).ok(), format!("service/{name} created"));
}

fn practices(story: &mut Story) {
    story.row("C37", |reader| {
        assert_eq!(reader.applies(37).warned(), "endpoints/my-service configured");
        let labels = "{.metadata.labels}";
        assert!(reader.field("endpoints my-service", labels).contains("\"component\":\"web\""));
        sticks(reader, "my-service", "10.244.0.11 10.244.0.12", "app=my-app");
        let said = reader.field("endpoints my-service", labels);
        assert!(!said.contains("component") && said.contains("endpoint-controller"), "{said}");
    });
    story.row("C39", |reader| {
        assert_eq!(reader.applies(39).ok(), "service/external-service-dns created");
        assert_eq!(alias(reader, "external-service-dns"), ["api.example.com."]);
    });
    story.row("C40", |reader| {
        assert_eq!(reader.applies(40).ok(), "service/external-service-ip created");
    });
    story.row("C41", |reader| {
        assert_eq!(reader.applies(41).warned(), "endpoints/external-service-ip created");
        is_mirrored(reader, "external-service-ip", &["192.168.1.100", "192.168.1.101"]);
        reader.is_answered("external-service-ip", 80, "served by 192.168.1.101:80");
    });
    story.row("C42", |reader| {
        assert_eq!(reader.applies(42).ok(), "deployment.apps/ha-web created");
        // There is one node.
        let phases = "{.items[*].status.phase}";
        let alone = |said: &str| words(said) == ["Pending", "Pending", "Running"];
        reader.field_becomes("pods -l app=ha-web", phases, alone);
        let events = "kubectl get events --field-selector reason=FailedScheduling";
        reader.until(events, |said| said.contains("didn't match pod anti-affinity rules"));
    });
}

/// Kinds of the Prometheus operator: nobody knows them, until somebody defines them.
fn operator(story: &mut Story) {
    let kinds = [
        ("C43", 43, "ServiceMonitor", "endpoint-monitor"),
        ("C44", 44, "PrometheusRule", "endpoint-alerts"),
    ];
    for (name, number, kind, object) in kinds {
        story.row(name, |reader| {
            let said = reader.applies(number).fails();
            let unknown = format!("no matches for kind \"{kind}\" in version \"monitoring.coreos.com/v1\"");
            assert!(said.contains(&unknown), "{said}");
            if reader.kubectl.is_at_least(24, "what kubectl advises about unknown kinds") {
                let known = format!("resource mapping not found for name: \"{object}\" namespace: \"monitoring\"");
                assert!(said.contains(&known), "{said}");
                assert!(said.contains("ensure CRDs are installed first"), "{said}");
            }
            let (singular, plural) = (kind.to_lowercase(), format!("{}s", kind.to_lowercase()));
            let definition = format!(
                "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\n\
                 metadata: {{name: {plural}.monitoring.coreos.com}}\nspec:\n  group: monitoring.coreos.com\n  \
                 scope: Namespaced\n  names: {{kind: {kind}, plural: {plural}, singular: {singular}}}\n  \
                 versions:\n  - name: v1\n    served: true\n    storage: true\n    schema:\n      \
                 openAPIV3Schema: {{type: object, x-kubernetes-preserve-unknown-fields: true}}\n"
            );
            reader.applies_text(&definition).ok();
            let wanted = format!("{singular}.monitoring.coreos.com/{object} created");
            let typed = || reader.applies(number);
            eventually("the definition", PATIENCE, typed, |typed| typed.said == wanted);
            reader.types(&format!("kubectl delete crd {plural}.monitoring.coreos.com")).ok();
        });
    }
}
