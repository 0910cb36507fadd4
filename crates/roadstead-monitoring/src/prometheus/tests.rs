//! Manifests as their authors write them, and what Prometheus is told then.

use k8s_openapi::serde::de::DeserializeOwned;

use super::*;

fn read<K: DeserializeOwned>(yaml: &str) -> K {
    serde_saphyr::from_str(yaml).unwrap()
}

fn configured(monitors: &[&str], rules: &[&str], discovery: Discovery<'_>) -> PrometheusFiles {
    let values = |texts: &[&str]| texts.iter().map(|text| read(text)).collect::<Vec<Value>>();
    configuration(&PrometheusInput {
        monitors: &values(monitors),
        rules: &values(rules),
        own: &[],
        discovery,
        interval: "30s",
        rule_files: &["rules.yml".into()],
    })
}

const MONITOR: &str = "
metadata: {name: endpoint-monitor, namespace: monitoring}
spec:
  selector: {matchLabels: {app: my-app}}
  endpoints: [{port: metrics, interval: 15s}]
  namespaceSelector: {matchNames: [default]}
";

/// What a job does to targets, one word per rule.
fn relabels(job: &Value) -> String {
    let words = job["relabel_configs"].as_array().unwrap().iter().map(|rule| {
        let text = |field: &str| rule[field].as_str().unwrap_or_default().to_owned();
        let sources = rule["source_labels"].as_array().into_iter().flatten();
        let sources: Vec<_> = sources
            .map(|own| own.as_str().unwrap().trim_start_matches("__meta_kubernetes_"))
            .collect();
        match text("action").as_str() {
            "" if sources.is_empty() => format!("{}={}", text("target_label"), text("replacement")),
            "" => format!("{}->{}", sources[0], text("target_label")),
            action => format!("{action}:{}:{}", sources.join("+"), text("regex")),
        }
    });
    words.collect::<Vec<_>>().join(" ")
}

#[test]
fn the_monitor_of_the_document() {
    let discovery = Discovery::Kubernetes(Some("/etc/roadstead/kubeconfig"));
    let done = configured(&[MONITOR], &[], discovery);
    assert_eq!(done.notes, [""; 0]);
    assert_eq!(done.config["global"]["scrape_interval"], "30s");
    assert_eq!(done.config["rule_files"], json!(["rules.yml"]));
    let job = &done.config["scrape_configs"][0];
    assert_eq!(job["job_name"], "serviceMonitor/monitoring/endpoint-monitor/0");
    assert_eq!(job["scrape_interval"], "15s");
    assert_eq!(
        job["kubernetes_sd_configs"],
        json!([{"role": "endpointslice", "namespaces": {"names": ["default"]},
            "kubeconfig_file": "/etc/roadstead/kubeconfig"}])
    );
    let label = "service_label_app+service_labelpresent_app";
    assert_eq!(
        relabels(job),
        format!(
            "keep:{label}:(my-app);true keep:endpointslice_port_name:metrics \
             drop:pod_phase:(Failed|Succeeded) pod_node_name->node namespace->namespace \
             service_name->service pod_name->pod pod_container_name->container \
             service_name->job endpoint=metrics"
        )
    );
}

#[test]
fn what_a_monitor_may_say() {
    let cases = [
        (
            "In",
            "selector: {matchExpressions: [{key: a/b, operator: In, values: [x, y.z]}]}",
            "{}",
            "keep:service_label_a_b+service_labelpresent_a_b:(x|y\\.z);true",
        ),
        (
            "NotIn",
            "selector: {matchExpressions: [{key: a, operator: NotIn, values: [x]}]}",
            "{}",
            "drop:service_label_a+service_labelpresent_a:(x);true",
        ),
        (
            "Exists",
            "selector: {matchExpressions: [{key: a, operator: Exists}]}",
            "{}",
            "keep:service_labelpresent_a:true",
        ),
        (
            "DoesNotExist",
            "selector: {matchExpressions: [{key: a, operator: DoesNotExist}]}",
            "{}",
            "drop:service_labelpresent_a:true",
        ),
        ("a number", "{}", "targetPort: 9100", "keep:pod_container_port_number:9100"),
        ("a name", "{}", "targetPort: web", "keep:pod_container_port_name:web"),
        ("its own job", "jobLabel: team", "{}", "service_label_team->job"),
        ("labels of pods", "podTargetLabels: [a-b]", "{}", "pod_label_a_b->a_b"),
        (
            "its own rules",
            "{}",
            "relabelings: [{action: Keep, sourceLabels: [x], regex: z}]",
            "keep:x:z",
        ),
    ];
    for (name, spec, endpoint, want) in cases {
        let brace = |text: &str| match text.starts_with('{') {
            true => String::new(),
            false => text.to_owned(),
        };
        let text = format!(
            "metadata: {{name: m}}\nspec:\n  {}\n  endpoints:\n  - path: /metrics\n    {}\n",
            brace(spec),
            brace(endpoint)
        );
        let done = configured(&[&text], &[], Discovery::Kubernetes(None));
        assert_eq!(done.notes, [""; 0], "{name}");
        let got = relabels(&done.config["scrape_configs"][0]);
        assert!(got.contains(want), "{name}: {want} is not in {got}");
    }
}

#[test]
fn namespaces_that_are_looked_into() {
    let cases = [
        ("nobody's choice is its own", "{}", json!(["team"])),
        ("some", "{matchNames: [a, b]}", json!(["a", "b"])),
        ("all", "{any: true}", json!(null)),
    ];
    for (name, selector, want) in cases {
        let text = format!(
            "metadata: {{name: m, namespace: team}}\nspec: {{endpoints: [{{port: web}}], \
             namespaceSelector: {selector}}}"
        );
        let done = configured(&[&text], &[], Discovery::Kubernetes(None));
        let question = &done.config["scrape_configs"][0]["kubernetes_sd_configs"][0];
        assert_eq!(question["namespaces"]["names"], want, "{name}");
    }
}

#[test]
fn what_cannot_be_said_is_named() {
    let text = "
metadata: {name: m, namespace: team}
spec:
  endpoints:
  - port: web
    scheme: HTTPS
    basicAuth: {username: {name: s, key: u}}
    tlsConfig: {insecureSkipVerify: true, ca: {secret: {name: s, key: c}}}
";
    let done = configured(&[text, "metadata: {name: odd}"], &[], Discovery::Kubernetes(None));
    let notes = done.notes.join("\n");
    for part in ["team/m: basicAuth is left out", "team/m: tlsConfig.ca is", "default/odd: missing"]
    {
        assert!(notes.contains(part), "{part}: {notes}");
    }
    let job = &done.config["scrape_configs"][0];
    assert_eq!(job["tls_config"], json!({"insecure_skip_verify": true}));
    assert_eq!(job["scheme"], "https");
}

/// A Service with two ports and one pod, another one that is not selected, and one elsewhere.
fn cluster() -> TargetObjects {
    let service = |name: &str, namespace: &str, app: &str| {
        read(&format!(
            "metadata: {{name: {name}, namespace: {namespace}, labels: {{app: {app}}}}}\nspec: {{}}"
        ))
    };
    let slice = |name: &str, namespace: &str| {
        read(&format!(
            "
metadata: {{name: {name}-1, namespace: {namespace}, labels: {{kubernetes.io/service-name: {name}}}}}
addressType: IPv4
endpoints:
- {{addresses: [10.0.0.1], nodeName: n1, targetRef: {{kind: Pod, name: p, namespace: {namespace}}}}}
- {{addresses: ['fd00::1']}}
ports: [{{name: metrics, port: 9100}}, {{name: web, port: 80}}]
"
        ))
    };
    let pod = read(
        "
metadata: {name: p, namespace: default, labels: {tier: front}}
spec: {containers: [{name: c, ports: [{containerPort: 9100, name: m}]}]}
status: {phase: Running}
",
    );
    TargetObjects {
        services: vec![
            service("one", "default", "my-app"),
            service("two", "default", "other"),
            service("three", "elsewhere", "my-app"),
        ],
        slices: vec![slice("one", "default"), slice("two", "default"), slice("three", "elsewhere")],
        pods: vec![pod],
    }
}

#[test]
fn targets_of_those_that_cannot_ask_have_the_labels_that_they_would_be_given() {
    let cluster = cluster();
    let done = configured(&[MONITOR], &[], Discovery::Static(&cluster));
    let job = &done.config["scrape_configs"][0];
    let targets = job["static_configs"].as_array().unwrap();
    let mut addresses: Vec<_> =
        targets.iter().map(|own| own["targets"][0].as_str().unwrap()).collect();
    addresses.sort_unstable();
    assert_eq!(addresses, ["10.0.0.1:80", "10.0.0.1:9100", "[fd00::1]:80", "[fd00::1]:9100"]);
    let meant = targets.iter().find(|own| own["targets"][0] == "10.0.0.1:9100").unwrap();
    let meta = |name: &str| format!("__meta_kubernetes_{name}");
    let want = [
        ("namespace", "default"),
        ("service_name", "one"),
        ("service_label_app", "my-app"),
        ("service_labelpresent_app", "true"),
        ("endpointslice_port_name", "metrics"),
        ("pod_name", "p"),
        ("pod_node_name", "n1"),
        ("pod_label_tier", "front"),
        ("pod_labelpresent_tier", "true"),
        ("pod_phase", "Running"),
        ("pod_container_name", "c"),
        ("pod_container_port_name", "m"),
        ("pod_container_port_number", "9100"),
    ];
    let want: serde_json::Map<_, _> =
        want.iter().map(|(name, value)| (meta(name), json!(value))).collect();
    assert_eq!(meant["labels"], Value::Object(want));
    // What they are made of afterwards is the same.
    let asked = configured(&[MONITOR], &[], Discovery::Kubernetes(None));
    let by_question = &asked.config["scrape_configs"][0]["relabel_configs"];
    assert_eq!(job["relabel_configs"], *by_question);
}

#[test]
fn rules_of_several_objects_in_one_file() {
    let one = "
metadata: {name: b, namespace: monitoring}
spec:
  groups:
  - name: endpoint.rules
    partial_response_strategy: warn
    interval: 10s
    rules:
    - {alert: EndpointDown, expr: 'up < 1', for: 5m, labels: {severity: critical}}
    - {record: one, expr: 1}
";
    let two =
        "metadata: {name: a, namespace: monitoring}\nspec: {groups: [{name: endpoint.rules}]}";
    let done = configured(&[], &[one, two], Discovery::Kubernetes(None));
    assert_eq!(
        done.rules,
        json!({"groups": [
            {"name": "monitoring/a/endpoint.rules", "rules": []},
            {"name": "monitoring/b/endpoint.rules", "interval": "10s", "rules": [
                {"alert": "EndpointDown", "expr": "up < 1", "for": "5m",
                    "labels": {"severity": "critical"}},
                {"record": "one", "expr": "1"},
            ]},
        ]})
    );
    let notes = done.notes.join("\n");
    assert!(notes.contains("monitoring/b: partial_response_strategy of group endpoint.rules"));
}

#[test]
fn own_pages() {
    let page = OwnPage {
        job: "roadstead-objects".into(),
        target: "127.0.0.1:10252".into(),
        path: "/metrics/objects".into(),
        honor_labels: true,
    };
    let wanted = PrometheusInput {
        monitors: &[],
        rules: &[],
        own: &[page],
        discovery: Discovery::Kubernetes(None),
        interval: "15s",
        rule_files: &[],
    };
    assert_eq!(
        configuration(&wanted).config["scrape_configs"],
        json!([{"job_name": "roadstead-objects", "metrics_path": "/metrics/objects",
            "honor_labels": true, "static_configs": [{"targets": ["127.0.0.1:10252"]}]}])
    );
}
