//! What people do with the API alone: explain, define, autoscale, edit, compare, look.

use std::time::Duration;

use roadstead_testkit::kubectl::{Kubectl, eventually};
use roadstead_testkit::netns::{is_left_out, laboratory_of};

use crate::process::Roadstead;

/// Runs commands and checks that each prints what it should.
fn walk(kubectl: &Kubectl, steps: &[(&str, &[&str])]) {
    for (command, wanted) in steps {
        let said = kubectl.run(&format!("{command} 2>&1"));
        for words in *wanted {
            assert!(said.contains(words), "kubectl {command}: {words:?} is not in:\n{said}");
        }
    }
}

#[test]
fn a_walk_through_the_api() {
    if is_left_out("L5") {
        return;
    }
    let roadstead = Roadstead::apiserver();
    let kubectl = roadstead.kubectl();
    walk(
        &kubectl,
        &[
            ("explain service.spec.type", &["ClusterIP (the default)", "NodePort"]),
            ("explain endpointslice.endpoints.conditions", &["ready", "terminating"]),
            ("explain deployment.spec.strategy", &["rollingUpdate", "Recreate"]),
            ("api-resources", &["endpointslices", "horizontalpodautoscalers", "events.k8s.io/v1"]),
            ("api-versions", &["autoscaling/v1", "autoscaling/v2", "events.k8s.io/v1"]),
            ("auth can-i create services", &["yes"]),
            ("create deployment web --image=web:1", &["created"]),
            ("set image deployment/web web=web:2", &["image updated"]),
            ("set env deployment/web A=b", &["env updated"]),
            ("autoscale deployment/web --min=1 --max=3 --cpu-percent=50", &["autoscaled"]),
            ("get hpa", &["Deployment/web", "/50%"]),
            (
                "get horizontalpodautoscalers.v1.autoscaling web -o yaml",
                &["targetCPUUtilizationPercentage: 50"],
            ),
            ("expose deployment web --port=80 --target-port=8080", &["service/web exposed"]),
            ("get svc web -o wide", &["SELECTOR", "app=web"]),
            (
                "get svc -o custom-columns=N:.metadata.name,T:.spec.type --sort-by=.metadata.name",
                &["kubernetes", "web"],
            ),
            ("label svc web tier=front", &["labeled"]),
            ("annotate svc web note=hello", &["annotated"]),
            ("get svc -L tier --show-labels", &["front", "LABELS"]),
            ("create job once --image=tool -- date", &["created"]),
            ("get job once -o wide", &["Running", "0/1", "batch.kubernetes.io/controller-uid="]),
            ("describe svc web", &["TargetPort:", "Session Affinity:"]),
            ("describe hpa web", &["50%", "Min replicas:"]),
            ("get --raw '/readyz?verbose'", &["[+]etcd ok", "readyz check passed"]),
            ("get --raw /livez/ping", &["ok"]),
        ],
    );
    assert!(kubectl.fails("top pods").contains("Metrics API not available"));
    let editor = "KUBE_EDITOR='sed -i s/hello/bye/'";
    let program = Kubectl::program();
    let edited =
        kubectl.run(&format!("version --client > /dev/null; {editor} {program} edit svc web"));
    assert_eq!(edited, "service/web edited\n");
    assert_eq!(kubectl.run("get svc web -o jsonpath='{.metadata.annotations.note}'"), "bye");
    definitions(&kubectl);
}

/// A kind comes, gets another version, and goes with its objects.
fn definitions(kubectl: &Kubectl) {
    let definition = |versions: &str| {
        format!(
            "{{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, \
             metadata: {{name: things.example.com}}, spec: {{group: example.com, scope: Namespaced, \
             names: {{plural: things, kind: Thing, shortNames: [th]}}, versions: [{versions}]}}}}"
        )
    };
    let version = |name: &str, storage: bool| {
        format!(
            "{{name: {name}, served: true, storage: {storage}, schema: {{openAPIV3Schema: {{type: \
             object, properties: {{spec: {{type: object, properties: {{size: {{type: integer, \
             description: How large it is}}}}}}}}}}}}}}"
        )
    };
    kubectl.apply(&definition(&version("v1beta1", true)));
    kubectl.apply(
        "{apiVersion: example.com/v1beta1, kind: Thing, metadata: {name: a}, spec: {size: 3}}",
    );
    kubectl.apply(&definition(&[version("v1beta1", false), version("v1", true)].join(", ")));
    let stored = "get crd things.example.com -o jsonpath='{.status.storedVersions}'";
    assert_eq!(kubectl.run(stored), r#"["v1beta1","v1"]"#);
    let patience = Duration::from_secs(10);
    // kubectl keeps what it knows about the server for a while.
    eventually(
        "both versions",
        patience,
        || kubectl.run("api-versions"),
        |text| text.contains("example.com/v1\n") && text.contains("example.com/v1beta1\n"),
    );
    for version in ["v1beta1", "v1"] {
        let thing = kubectl.run(&format!("get things.{version}.example.com a -o yaml"));
        assert!(thing.contains(&format!("apiVersion: example.com/{version}\n")), "{thing}");
    }
    assert!(
        kubectl.run("explain thing.spec --api-version=example.com/v1").contains("How large it is")
    );
    kubectl.run("delete crd things.example.com --timeout=20s");
    assert!(kubectl.fails("get crd things.example.com").contains("NotFound"));
}

#[test]
fn a_service_is_asked_through_the_api() {
    laboratory_of("L5", || {
        let roadstead = Roadstead::up_ephemeral();
        let kubectl = roadstead.kubectl();
        kubectl.apply("../../examples/web.yaml");
        kubectl.run("rollout status deployment/web --timeout=60s");
        let path = "/api/v1/namespaces/default/services/web:80/proxy/";
        let patience = Duration::from_secs(10);
        let ask = || kubectl.try_run(&format!("get --raw {path}"));
        let answer = eventually("a pod answers", patience, ask, |output| output.status.success());
        let answer = String::from_utf8_lossy(&answer.stdout).trim().to_owned();
        assert!(kubectl.run("get pods -l app=web -o name").contains(&answer), "{answer}");
        kubectl.run("delete service kubernetes");
        let there = || kubectl.try_run("get service kubernetes").status.success();
        eventually("it comes back", Duration::from_secs(15), there, |there| *there);
    });
}
