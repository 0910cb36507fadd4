//! The document about how Services map to addresses (S4): with a selector, with Endpoints, with slices.

use super::ledger::Story;
use super::service::settled;
use super::typing::Reader;

const MIRRORS: &str = "endpointslicemirroring-controller.k8s.io";
const MANAGED_BY: &str = r"{.items[*].metadata.labels.endpointslice\.kubernetes\.io/managed-by}";

pub(super) fn play(story: &mut Story) {
    story.row("C46", |reader| {
        let said = reader.applies(46).ok();
        assert_eq!(said, "deployment.apps/kubernetes-bootcamp-v1-8080 created");
        let status = "kubectl rollout status deployment/kubernetes-bootcamp-v1-8080 --timeout=120s";
        assert!(reader.types(status).ok().contains("successfully rolled out"));
    });
    story.row("C47", |reader| {
        assert_eq!(reader.applies(47).ok(), "service/svc-8091 created");
        settled(reader, "svc-8091", "app.kubernetes.io/name=kubernetes-bootcamp-v1-8080");
        assert_eq!(reader.field("endpoints svc-8091", "{.subsets[*].ports[*].name}"), "svc-p8091");
        let slices = slices("svc-8091");
        assert!(reader.field(&slices, "{.items[*].metadata.name}").starts_with("svc-8091-"));
        assert_eq!(reader.field(&slices, "{.items[*].ports[*].name}"), "svc-p8091");
        reader.is_answered("svc-8091", 8091, "Hello Kubernetes bootcamp!");
    });
    with_endpoints(story);
    with_slices(story);
    only_slices_count(story);
}

fn slices(service: &str) -> String {
    format!("endpointslices -l kubernetes.io/service-name={service}")
}

fn with_endpoints(story: &mut Story) {
    story.row("C48", |reader| {
        assert_eq!(reader.applies(48).ok(), "service/svc-8092 created");
        assert_eq!(reader.field("service svc-8092", "{.spec.ports[0].targetPort}"), "8092");
    });
    story.row("C49", |reader| {
        assert_eq!(reader.applies(49).warned(), "endpoints/svc-8092 created");
        reader.field_becomes(&slices("svc-8092"), MANAGED_BY, |by| by == MIRRORS);
        reader.is_answered("svc-8092", 8092, "served by 10.244.2.5:8080");
    });
}

fn with_slices(story: &mut Story) {
    story.row("C50", |reader| {
        assert_eq!(reader.applies(50).ok(), "service/svc-8093 created");
    });
    story.row("C51", |reader| {
        let said = reader.applies(51).ok();
        assert_eq!(said, "endpointslice.discovery.k8s.io/svc-8093-endpointslice created");
        // Nobody said whether it is ready, which counts as ready.
        assert_eq!(reader.field(&slices("svc-8093"), "{.items[*].endpoints[*].conditions}"), "{}");
        reader.is_answered("svc-8093", 8093, "served by 10.244.1.25:8080");
    });
    story.row("D16", |reader| {
        let relabelled = |key: &str, name: &str| {
            let text = reader.manifest(51).replace("kubernetes.io/service-name: svc-8093", key);
            text.replace("name: svc-p8093", &format!("name: {name}"))
        };
        let right = "kubernetes.io/service-name: svc-8093";
        for (key, name) in [("app: svc-8093", "svc-p8093"), (right, "other")] {
            reader.applies_text(&relabelled(key, name)).ok();
            let gone = || reader.is_refused("svc-8093", 8093);
            roadstead_testkit::kubectl::eventually(key, super::typing::PATIENCE, gone, |gone| {
                *gone
            });
        }
        // The Service's targetPort is 8093 and does not count.
        reader.applies_text(&relabelled(right, "svc-p8093")).ok();
        assert_eq!(reader.field("service svc-8093", "{.spec.ports[0].targetPort}"), "8093");
        reader.is_answered("svc-8093", 8093, "served by 10.244.1.25:8080");
    });
}

/// Endpoints reach the proxy by their mirror image, and in no other way.
fn only_slices_count(story: &mut Story) {
    story.row("D15", |reader: &Reader| {
        let label = "kubectl label endpoints svc-8092 endpointslice.kubernetes.io/skip-mirror";
        reader.types(&format!("{label}=true")).ok();
        reader.field_becomes(&slices("svc-8092"), "{.items[*].metadata.name}", str::is_empty);
        assert_eq!(
            reader.field("endpoints svc-8092", "{.subsets[*].addresses[*].ip}"),
            "10.244.2.5"
        );
        let refused = || reader.is_refused("svc-8092", 8092);
        let patience = super::typing::PATIENCE;
        roadstead_testkit::kubectl::eventually("refused", patience, refused, |refused| *refused);
        reader.types(&format!("{label}-")).ok();
        reader.is_answered("svc-8092", 8092, "served by 10.244.2.5:8080");
    });
}
