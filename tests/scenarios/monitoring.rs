//! Monitoring as the documents write it: their ServiceMonitor and PrometheusRule, the metrics that these speak
//! of, and a real Prometheus whose alert fires and resolves.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use roadstead_testkit::kubectl::eventually;
use roadstead_testkit::netns::{is_left_out, laboratory_of, run, try_run};
use serde_json::Value;

use crate::controllers::controllers;
use crate::process::Roadstead;

const PATIENCE: Duration = Duration::from_secs(60);

/// Where `scripts/prometheus` puts Debian's, or another one.
const PROGRAM: &str = "ROADSTEAD_PROMETHEUS";

/// The document's, as it is written there.
const MONITOR: &str = "
apiVersion: monitoring.coreos.com/v1
kind: ServiceMonitor
metadata:
  name: endpoint-monitor
  namespace: monitoring
spec:
  selector:
    matchLabels:
      app: my-app
  endpoints:
  - port: metrics
    interval: 15s
  namespaceSelector:
    matchNames:
    - default
";

/// The document's, as it is written there.
const RULE: &str = "
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: endpoint-alerts
  namespace: monitoring
spec:
  groups:
  - name: endpoint.rules
    rules:
    - alert: EndpointDown
      expr: kube_endpoint_address_available{endpoint=\"my-service\"} < 1
      for: 5m
      labels:
        severity: critical
      annotations:
        summary: \"Endpoint {{ $labels.endpoint }} has no available addresses\"
        description: \"Service {{ $labels.endpoint }} in namespace {{ $labels.namespace }} has no available endpoints for at least 5 minutes.\"
    
    - alert: EndpointDegraded
      expr: kube_endpoint_address_available{endpoint=\"my-service\"} < kube_endpoint_address_not_ready{endpoint=\"my-service\"}
      for: 5m
      labels:
        severity: warning
      annotations:
        summary: \"Endpoint {{ $labels.endpoint }} is degraded\"
        description: \"Service {{ $labels.endpoint }} in namespace {{ $labels.namespace }} has more not ready endpoints than ready endpoints.\"
";

/// The Service that the rule speaks of, with a port that the monitor selects: the built-in image answers
/// every path.
const APP: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: my-app}
spec:
  replicas: 1
  selector: {matchLabels: {app: my-app}}
  template:
    metadata: {labels: {app: my-app}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - name: echo
        image: roadstead/echo
        ports: [{name: http, containerPort: 8080}]
---
apiVersion: v1
kind: Service
metadata: {name: my-service, labels: {app: my-app}}
spec:
  selector: {app: my-app}
  ports: [{name: metrics, port: 80, targetPort: 8080}]
";

fn start() -> Roadstead {
    let roadstead = Roadstead::up_with("--install-crds prometheus-operator");
    let kubectl = roadstead.kubectl();
    kubectl.run("create namespace monitoring");
    for (manifest, created) in [
        (MONITOR, "servicemonitor.monitoring.coreos.com/endpoint-monitor created"),
        (RULE, "prometheusrule.monitoring.coreos.com/endpoint-alerts created"),
    ] {
        let said = kubectl.apply(manifest);
        assert!(said.contains(created), "{said}");
    }
    kubectl.apply(APP);
    kubectl.run("rollout status deployment/my-app --timeout=60s");
    roadstead
}

fn roadstead_says(roadstead: &Roadstead, command: &str) -> String {
    let binary = env!("CARGO_BIN_EXE_roadstead");
    let kubeconfig = roadstead.kubeconfig();
    run(&format!("KUBECONFIG={} {binary} prometheus {command}", kubeconfig.display()))
}

/// A page, once it is there.
fn page(address: &str) -> String {
    let ask = || try_run(&format!("curl -sf http://127.0.0.1:{address}"));
    let answer = eventually("a page", PATIENCE, ask, |output| output.status.success());
    String::from_utf8(answer.stdout).unwrap()
}

const PAGES: [&str; 6] = [
    "10252/metrics",
    "10252/metrics/objects",
    "10252/metrics/apiserver",
    "10249/metrics",
    "10253/metrics",
    "9153/metrics",
];

/// The names of everything that pages tell.
fn exposed(pages: &[String]) -> BTreeSet<String> {
    let mut names = BTreeSet::from(["up".to_owned()]);
    for line in pages.iter().flat_map(|page| page.lines()) {
        match line.strip_prefix("# TYPE ") {
            // What has not happened yet has no samples, and is announced all the same.
            Some(announced) => {
                let (name, kind) = announced.split_once(' ').unwrap();
                let endings: &[&str] = match kind {
                    "counter" => &["", "_total"],
                    "histogram" => &["_bucket", "_sum", "_count"],
                    _ => &[""],
                };
                names.extend(endings.iter().map(|ending| format!("{name}{ending}")));
            }
            None if line.starts_with('#') => {}
            None => drop(names.insert(line.split(['{', ' ']).next().unwrap().to_owned())),
        }
    }
    names
}

/// The metrics that an expression speaks of: words that are no functions, labels, numbers or operators.
fn metrics_of(expression: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = expression.to_owned();
    for (open, close) in [('{', '}'), ('[', ']'), ('"', '"')] {
        while let Some((before, after)) = rest.split_once(open) {
            let (_, after) = after.split_once(close).unwrap();
            rest = format!("{before} {after}");
        }
    }
    // `sum by (le) (…)`: what is grouped by are labels.
    while let Some((before, after)) = rest.split_once(" by (") {
        let (_, after) = after.split_once(')').unwrap();
        rest = format!("{before}{after}");
    }
    let is_word = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let mut at = 0;
    while at < rest.len() {
        let word: String = rest[at..].chars().take_while(|letter| is_word(*letter)).collect();
        let after = rest[at + word.len()..].trim_start();
        let is_name = word.contains('_') || word == "up";
        if is_name && !after.starts_with('(') {
            found.push(word.clone());
        }
        at += word.len().max(1);
    }
    found
}

#[test]
fn expressions_are_read() {
    let cases = [
        ("up{job=~\"a_b.+\"} == 0", "up"),
        ("sum by (le_x) (rate(a_total{code=\"5_\"}[5m])) / b_c > 0.8 * d_e", "a_total b_c d_e"),
        ("histogram_quantile(0.99, sum by (le) (rate(x_bucket[5m])))", "x_bucket"),
    ];
    for (expression, want) in cases {
        assert_eq!(metrics_of(expression).join(" "), want, "{expression}");
    }
}

/// The expressions of our own alerts and of our dashboard.
fn own_expressions() -> Vec<String> {
    let read = |name: &str| {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/monitoring/");
        std::fs::read_to_string(format!("{root}{name}")).unwrap()
    };
    let dashboard: Value = serde_json::from_str(&read("roadstead-dashboard.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let mut all: Vec<_> =
        targets.map(|target| target["expr"].as_str().unwrap().to_owned()).collect();
    assert!(all.len() > 30, "{}", all.len());
    let alerts = read("roadstead-alerts.yaml");
    let of_alerts = alerts.lines().filter_map(|line| line.trim().strip_prefix("expr: "));
    let before = all.len();
    all.extend(of_alerts.map(str::to_owned));
    assert!(all.len() > before + 10, "{}", all.len() - before);
    all
}

/// The controllers of a cluster that is not ours say the same of its objects.
#[test]
fn controllers_alone_tell_of_objects() {
    laboratory_of("L5", || {
        let server = Roadstead::apiserver();
        let _controllers = controllers(&server, &["--metrics-bind-address=127.0.0.1:10252"]);
        let kubectl = server.kubectl();
        kubectl.apply(
            "{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {ports: [{port: 80}]}}",
        );
        kubectl.apply(
            "{apiVersion: v1, kind: Endpoints, metadata: {name: web}, subsets: [\
             {addresses: [{ip: 10.9.9.1}], notReadyAddresses: [{ip: 10.9.9.2}], ports: [{port: 80}]}]}",
        );
        let ask = || page("10252/metrics/objects");
        let sample = |text: &str, name: &str, labels: &[&str]| {
            text.lines().any(|line| {
                line.starts_with(&format!("{name}{{"))
                    && labels.iter().all(|label| line.contains(label))
                    && line.ends_with(" 1")
            })
        };
        let mine = "namespace=\"default\"";
        eventually("what kube-state-metrics would say", PATIENCE, ask, |text| {
            let of = |name, label| sample(text, name, &[mine, label]);
            of("kube_service_info", "service=\"web\"")
                && of("kube_service_spec_type", "type=\"ClusterIP\"")
                && of("kube_endpoint_address_available", "endpoint=\"web\"")
                && of("kube_endpoint_address_not_ready", "endpoint=\"web\"")
        });
    });
}

#[test]
fn what_alerts_and_dashboards_speak_of_is_told() {
    laboratory_of("L5", || {
        let roadstead = start();
        let kubectl = roadstead.kubectl();
        // What nobody has asked for yet is not told at all, nor how long the pod's way into the kernel took before
        // it is there.
        run("nslookup my-service.default.svc.cluster.local 10.96.0.10");
        let expressions = own_expressions();
        let untold = || {
            let pages: Vec<_> = PAGES.iter().map(|address| page(address)).collect();
            let exposed = exposed(&pages);
            let mut names: Vec<_> = expressions.iter().flat_map(|all| metrics_of(all)).collect();
            names.retain(|name| !exposed.contains(name));
            names
        };
        for expression in &expressions {
            assert!(!metrics_of(expression).is_empty(), "{expression} speaks of nothing");
        }
        eventually("every metric is told", PATIENCE, untold, Vec::is_empty);

        // The object metrics follow what they are about.
        let objects = || page("10252/metrics/objects");
        let available = |count: u32| {
            let line = format!(
                "kube_endpoint_address_available{{namespace=\"default\",endpoint=\"my-service\"}} \
                 {count}\n"
            );
            eventually("the endpoints", PATIENCE, objects, |page| page.contains(&line))
        };
        let text = available(1);
        for part in [
            "kube_service_spec_type{namespace=\"default\",service=\"my-service\"",
            "kube_endpointslice_ports{namespace=\"default\",endpointslice=\"my-service-",
            "kube_deployment_status_replicas_available{namespace=\"default\",deployment=\"my-app\"} 1",
            "kube_pod_container_status_running{namespace=\"default\",pod=\"my-app-",
            "roadstead_object_metrics_left_out{resource=\"pods\"} 0",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
        kubectl.run("scale deployment my-app --replicas=2");
        available(2);

        // Our own alerts are of that kind, too.
        let said = kubectl.run("get servicemonitors,promrule -n monitoring -o name");
        assert!(said.contains("endpoint-monitor") && said.contains("endpoint-alerts"), "{said}");
        kubectl.apply("../../examples/monitoring/roadstead-alerts.yaml");

        // What they mean.
        let config = roadstead_says(&roadstead, "config");
        for part in [
            "serviceMonitor/monitoring/endpoint-monitor/0",
            "kubernetes_sd_configs",
            "/metrics/objects",
        ] {
            assert!(config.contains(part), "{part} is missing in\n{config}");
        }
        let rules = roadstead_says(&roadstead, "rules");
        for part in ["EndpointDown", "EndpointDegraded", "RoadsteadRulesBehind", "for: 5m"] {
            assert!(rules.contains(part), "{part} is missing in\n{rules}");
        }
    });
}

/// A running Prometheus, stopped when it goes out of scope.
struct Prometheus(Child);

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Prometheus {
    fn start(program: &PathBuf, directory: &std::path::Path) -> Self {
        let log = std::fs::File::create(directory.join("log")).unwrap();
        let mut command = Command::new(program);
        command
            .arg(format!("--config.file={}", directory.join("prometheus.yml").display()))
            .arg(format!("--storage.tsdb.path={}", directory.join("data").display()))
            .arg("--web.listen-address=127.0.0.1:9090")
            .stdin(Stdio::null())
            .stderr(log);
        Self(command.spawn().unwrap())
    }

    /// What it answers.
    fn ask(path: &str) -> Value {
        let answer = try_run(&format!("curl -sf http://127.0.0.1:9090/api/v1/{path}"));
        serde_json::from_slice(&answer.stdout).unwrap_or_default()
    }

    /// The state of an alert, or nothing.
    fn alert(name: &str) -> String {
        let alerts = Self::ask("alerts");
        let mut all = alerts["data"]["alerts"].as_array().cloned().unwrap_or_default().into_iter();
        let own = all.find(|alert| alert["labels"]["alertname"] == name);
        own.map(|alert| alert["state"].as_str().unwrap().to_owned()).unwrap_or_default()
    }
}

/// A Prometheus that can be run here, or the reason why none is.
fn program() -> Option<PathBuf> {
    let made = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/prometheus/usr/bin/prometheus");
    let given = std::env::var_os(PROGRAM).map_or_else(|| made.into(), PathBuf::from);
    if given.exists() {
        return Some(given);
    }
    eprintln!("LEFT OUT: prometheus: {} is not there; see scripts/prometheus", given.display());
    None
}

#[test]
fn the_alert_of_the_document_fires_and_resolves_in_a_real_prometheus() {
    if is_left_out("prometheus") {
        return;
    }
    let Some(program) = program() else {
        panic!("scripts/prometheus fetches one (set ROADSTEAD_SKIP=prometheus to leave this out)");
    };
    laboratory_of("L5", || {
        let roadstead = start();
        let kubectl = roadstead.kubectl();
        let directory = tempfile::tempdir().unwrap();
        // Nobody waits five minutes here; all else is the document's.
        kubectl.apply(&RULE.replace("for: 5m", "for: 1s"));
        let output = directory.path().display().to_string();
        let flags = "--discovery static --interval 1s";
        roadstead_says(&roadstead, &format!("config {flags} --output {output}"));
        let promtool = program.with_file_name("promtool");
        if promtool.exists() {
            let checked =
                try_run(&format!("{} check config {output}/prometheus.yml", promtool.display()));
            let said = String::from_utf8_lossy(&checked.stderr).into_owned();
            assert!(checked.status.success(), "{said}");
        }
        let _prometheus = Prometheus::start(&program, directory.path());
        let targets = || {
            let answer = Prometheus::ask("targets?state=active");
            let all = answer["data"]["activeTargets"].as_array().cloned().unwrap_or_default();
            let state = |own: &Value| {
                let job = own["labels"]["job"].as_str().unwrap_or_default().to_owned();
                (job, own["health"].as_str().unwrap_or_default().to_owned())
            };
            all.iter().map(state).collect::<Vec<_>>()
        };
        // Six pages of ours are read; the pod that the monitor selects is asked, and says no metrics.
        let is_up = |all: &Vec<(String, String)>| {
            let own =
                all.iter().filter(|(job, health)| job.starts_with("roadstead-") && health == "up");
            own.count() == 6 && all.iter().any(|(job, _)| job == "my-service")
        };
        eventually("everything of ours is scraped", PATIENCE, targets, is_up);
        let count = |query: &str| {
            let answer = Prometheus::ask(&format!("query?query={query}"));
            answer["data"]["result"][0]["value"][1].as_str().unwrap_or_default().to_owned()
        };
        let available = || count("kube_endpoint_address_available%7Bendpoint=%22my-service%22%7D");
        eventually("the endpoint is counted", PATIENCE, available, |count| count == "1");
        assert_eq!(Prometheus::alert("EndpointDown"), "");

        kubectl.run("scale deployment my-app --replicas=0");
        let state = || Prometheus::alert("EndpointDown");
        eventually("the alert fires", PATIENCE, state, |state| state == "firing");
        kubectl.run("scale deployment my-app --replicas=1");
        eventually("the alert resolves", PATIENCE, state, |state| state.is_empty());
        eventually("the endpoint is back", PATIENCE, available, |count| count == "1");
    });
}
