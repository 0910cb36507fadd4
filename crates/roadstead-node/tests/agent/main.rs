//! The agent's loop against a few lines of API server: with a fake runtime, and once with the
//! built-in one on a real kernel (layer L4).

mod departure;
mod eviction;
mod fake_api;
mod fake_runtime;
mod hooks;
mod parts;
mod policies;
mod probes;
mod rejection;
mod resize;
mod restarts;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fake_api::FakeApi;
use fake_runtime::{FakeImages, FakeRuntime};
use roadstead_component::component::Component;
use roadstead_node::agent::run_with;
use roadstead_node::config::{Config, DEFAULT_BRIDGE, Housekeeping, NodeLabels, PolicyWait};
use roadstead_node::images::StoredImages;
use roadstead_node::runtime::builtin::{BuiltinRuntime, cleanup};
use roadstead_node::runtime::{ContainerRuntime, Images, Runtime};
use roadstead_pod::pod_name::PodName;
use roadstead_pod::recovery::RecoveredPod;
use roadstead_pod::resources::PROCESSES;
use roadstead_pod::sysctls::UnsafeSysctls;
use roadstead_testkit::netns::{laboratory, run};
use serde_json::{Value, json};
use tokio::io::DuplexStream;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

const WEB: &str = "/api/v1/namespaces/default/pods/web";

fn config() -> Config {
    Config {
        node_name: "node".into(),
        bridge: DEFAULT_BRIDGE.into(),
        pod_cidrs: vec!["10.244.0.0/24".parse().unwrap()],
        service_cidrs: vec!["10.96.0.0/12".parse().unwrap()],
        cluster_dns: [10, 96, 0, 10].into(),
        cluster_domain: "cluster.local".into(),
        state_dir: "/run/state".into(),
        image_dir: "/run/images".into(),
        registry_config: None,
        registry_authfile: None,
        oci_runtime: None,
        runtime_endpoint: None,
        internal_ips: [192, 0, 2, 1].into(),
        open_files: None,
        allow_privileged: false,
        unsafe_sysctls: UnsafeSysctls::default(),
        node_labels: NodeLabels::default(),
        pod_pids: PROCESSES,
        secure_port: None,
        manifests: None,
        housekeeping: undisturbed(),
        policies: PolicyWait::default(),
        parts: Vec::new(),
        component: Component::default(),
    }
}

/// A node that evicts nobody, however full the disk of the machine is that the tests run on.
fn undisturbed() -> Housekeeping {
    let eviction_hard = "".parse().unwrap();
    Housekeeping { eviction_hard, ..Housekeeping::default() }
}

/// A pod named web with one container.
fn pod(image: &str, container: &Value) -> Value {
    let mut container = container.clone();
    container["name"] = json!("main");
    container["image"] = json!(image);
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "web", "namespace": "default", "uid": "u1"},
        "spec": {"nodeName": "node", "containers": [container], "terminationGracePeriodSeconds": 1},
    })
}

struct Agent {
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
    _incoming: mpsc::Sender<DuplexStream>,
}

impl Agent {
    fn start(api: &FakeApi, containers: impl ContainerRuntime) -> Self {
        Self::start_with(api, containers, FakeImages)
    }

    fn start_with(api: &FakeApi, containers: impl ContainerRuntime, images: impl Images) -> Self {
        Self::start_as(api, config(), containers, images)
    }

    fn start_as(
        api: &FakeApi,
        config: Config,
        containers: impl ContainerRuntime,
        images: impl Images,
    ) -> Self {
        let runtime = Runtime::new(containers, images);
        let stop = CancellationToken::new();
        let (incoming, streams) = mpsc::channel(1);
        let running = run_with(api.client(), (config, runtime), streams, stop.clone());
        let task = tokio::spawn(async move { running.await.unwrap() });
        Self { stop, task, _incoming: incoming }
    }

    async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap();
    }
}

fn condition<'a>(pod: &'a Value, type_: &str) -> &'a str {
    let conditions = pod["status"]["conditions"].as_array();
    let found = conditions.into_iter().flatten().find(|condition| condition["type"] == type_);
    found.and_then(|condition| condition["status"].as_str()).unwrap_or("none")
}

fn is_ready(pod: &Value) -> bool {
    condition(pod, "Ready") == "True"
}

#[tokio::test]
async fn a_node_without_its_runtime_is_not_ready() {
    let api = FakeApi::new();
    let agent = Agent::start(&api, FakeRuntime::that_is_down());
    let path = "/api/v1/nodes/node";
    let known = |node: &Value| condition(node, "Ready") != "none";
    let node = api.until(path, "registered", known).await;
    let ready = &node["status"]["conditions"][3];
    assert_eq!(
        [&ready["type"], &ready["status"], &ready["reason"], &ready["message"]],
        ["Ready", "False", "KubeletNotReady", "container runtime is down"]
    );
    agent.stop().await;
}

#[tokio::test]
async fn the_node_registers_itself() {
    let api = FakeApi::new();
    let agent = Agent::start(&api, FakeRuntime::default());
    let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/node";
    api.until(lease, "renewed", |lease| lease["spec"]["holderIdentity"] == "node").await;
    let node = api.get("/api/v1/nodes/node").unwrap();
    assert_eq!(node["metadata"]["labels"]["kubernetes.io/hostname"], "node");
    assert_eq!(node["spec"]["podCIDR"], "10.244.0.0/24");
    assert_eq!(condition(&node, "Ready"), "True");
    assert_eq!(
        node["status"]["nodeInfo"]["kubeletVersion"],
        concat!("v1.37.0+roadstead-", env!("CARGO_PKG_VERSION"))
    );
    agent.stop().await;
}

#[tokio::test]
async fn containers_know_the_services_of_their_namespace() {
    let api = FakeApi::new();
    let service = |namespace: &str, name: &str, ip: &str| {
        let path = format!("/api/v1/namespaces/{namespace}/services/{name}");
        let service = json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"namespace": namespace, "name": name},
            "spec": {"clusterIP": ip, "ports": [{"port": 80}]}});
        api.put(&path, service);
    };
    service("default", "kubernetes", "10.96.0.1");
    service("default", "db", "10.96.0.7");
    service("other", "cache", "10.96.0.8");
    service("default", "headless", "None");
    let runtime = FakeRuntime::default();
    let agent = Agent::start(&api, runtime.clone());
    api.put(WEB, pod("roadstead/echo", &json!({})));
    api.until(WEB, "ready", is_ready).await;
    let value = |name: &str| runtime.variable(name).unwrap_or_default();
    assert_eq!(value("KUBERNETES_SERVICE_HOST"), "10.96.0.1");
    assert_eq!(value("DB_PORT_80_TCP"), "tcp://10.96.0.7:80");
    assert_eq!(
        (value("CACHE_SERVICE_HOST"), value("HEADLESS_SERVICE_HOST")),
        ("".into(), "".into())
    );

    // One that was made a moment ago is there, and links can be declined.
    service("default", "late", "10.96.0.9");
    runtime.end("web", "main", 1);
    let restarted = |pod: &Value| pod["status"]["containerStatuses"][0]["restartCount"] == 1;
    api.until(WEB, "restarted", restarted).await;
    assert_eq!(value("LATE_SERVICE_PORT"), "80");
    let mut quiet = pod("roadstead/echo", &json!({}));
    quiet["metadata"]["name"] = json!("quiet");
    quiet["metadata"]["uid"] = json!("u2");
    quiet["spec"]["enableServiceLinks"] = json!(false);
    let path = "/api/v1/namespaces/default/pods/quiet";
    api.put(path, quiet);
    api.until(path, "ready", is_ready).await;
    assert_eq!(
        (value("KUBERNETES_SERVICE_PORT"), value("DB_SERVICE_HOST")),
        ("80".into(), "".into())
    );
    agent.stop().await;
}

#[tokio::test]
async fn a_pod_waits_for_its_volumes_and_follows_them() {
    let api = FakeApi::new();
    let runtime = FakeRuntime::default();
    let agent = Agent::start(&api, runtime.clone());
    let mount = json!({"volumeMounts": [{"name": "c", "mountPath": "/c"},
                                          {"name": "t", "mountPath": "/t"}]});
    let mut web = pod("roadstead/echo", &mount);
    web["spec"]["volumes"] = json!([{"name": "c", "configMap": {"name": "m"}}, {"name": "t",
        "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}]);
    api.put(WEB, web);
    let message = |pod: &Value| {
        let state = &pod["status"]["containerStatuses"][0]["state"]["waiting"];
        assert!(state.is_null() || state["reason"] == "ContainerCreating", "{state}");
        state["message"].as_str().unwrap_or_default().to_owned()
    };
    let waits = api.until(WEB, "waiting with a message", |pod| !message(pod).is_empty()).await;
    let why = "MountVolume.SetUp failed for volume \"c\" : configmap \"m\" not found";
    assert_eq!(message(&waits), why);
    assert_eq!(waits["status"]["phase"], "Pending");
    api.until_message(why).await;
    assert_eq!(runtime.calls(), [""; 0]);

    // It starts as soon as the object is there, and sees what becomes of it.
    let map = |text: &str| {
        json!({"apiVersion": "v1", "kind": "ConfigMap",
               "metadata": {"name": "m", "namespace": "default"}, "data": {"a": text}})
    };
    let path = "/api/v1/namespaces/default/configmaps/m";
    let began = Instant::now();
    api.put(path, map("1"));
    api.until(WEB, "ready", is_ready).await;
    assert!(began.elapsed() < Duration::from_secs(5), "it did not wait for the next attempt");
    assert_eq!(runtime.file("c/a").as_deref(), Some("1"));
    assert_eq!(runtime.file("t/token").as_deref(), Some("token-for-\"web\""));
    api.put(path, map("2"));
    let end = Instant::now() + Duration::from_secs(10);
    while runtime.file("c/a").as_deref() != Some("2") {
        assert!(Instant::now() < end, "the file stays as it was");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    agent.stop().await;
}

#[tokio::test]
async fn variables_come_from_objects() {
    let api = FakeApi::new();
    let runtime = FakeRuntime::default();
    let agent = Agent::start(&api, runtime.clone());
    let from = json!({"configMapKeyRef": {"name": "m", "key": "a"}});
    let container = json!({"env": [{"name": "A", "valueFrom": from}]});
    api.put(WEB, pod("roadstead/echo", &container));
    let stuck = |pod: &Value| waiting(pod) == "CreateContainerConfigError";
    let waits = api.until(WEB, "stuck", stuck).await;
    let state = &waits["status"]["containerStatuses"][0]["state"]["waiting"];
    assert_eq!(state["message"], "configmap \"m\" not found");
    api.until_message("Error: configmap \"m\" not found").await;
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap",
                     "metadata": {"name": "m", "namespace": "default"}, "data": {"a": "1"}});
    api.put("/api/v1/namespaces/default/configmaps/m", map);
    api.patch(WEB, &json!({"spec": {"priority": 1}}));
    api.until(WEB, "ready", is_ready).await;
    assert_eq!(runtime.variable("A").as_deref(), Some("1"));
    agent.stop().await;
}

#[tokio::test]
async fn the_life_of_a_pod() {
    let api = FakeApi::new();
    let runtime = FakeRuntime::default();
    let agent = Agent::start(&api, runtime.clone());
    api.put(WEB, pod("roadstead/echo", &json!({})));
    let running = api.until(WEB, "ready", is_ready).await;
    let status = &running["status"];
    assert_eq!((&status["phase"], &status["podIP"]), (&json!("Running"), &json!("10.244.0.2")));
    assert_eq!(status["hostIP"], "192.0.2.1");
    assert_eq!(status["containerStatuses"][0]["containerID"], "roadstead://web-main-0");

    runtime.end("web", "main", 1);
    let restarted = |pod: &Value| is_ready(pod) && restarts(pod) == 1;
    let again = api.until(WEB, "restarted", restarted).await;
    let last = &again["status"]["containerStatuses"][0]["lastState"]["terminated"];
    assert_eq!((&last["exitCode"], &last["reason"]), (&json!(1), &json!("Error")));

    runtime.end("web", "main", 2);
    let waits = |pod: &Value| waiting(pod) == "CrashLoopBackOff";
    let broken = api.until(WEB, "backing off", waits).await;
    assert_eq!(broken["status"]["phase"], "Running");
    assert_eq!(condition(&broken, "Ready"), "False");

    let deletion = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z",
                                       "deletionGracePeriodSeconds": 1}});
    api.patch(WEB, &deletion);
    api.until(WEB, "gone", Value::is_null).await;
    let (_, options) = &api.deletions()[0];
    assert_eq!(options["gracePeriodSeconds"], 0);
    assert_eq!(options["preconditions"]["uid"], "u1");
    let want =
        ["sandbox web", "start web/main", "start web/main", "remove sandbox web", "remove web"];
    assert_eq!(runtime.calls(), want);
    let reasons = ["Pulled", "Created", "Started", "Pulled", "Created", "Started", "BackOff"];
    let unique: Vec<_> = api.event_reasons();
    assert!(reasons.iter().all(|reason| unique.iter().any(|seen| seen == reason)), "{unique:?}");
    agent.stop().await;
}

fn restarts(pod: &Value) -> i64 {
    pod["status"]["containerStatuses"][0]["restartCount"].as_i64().unwrap_or(-1)
}

fn waiting(pod: &Value) -> &str {
    pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"].as_str().unwrap_or("")
}

#[tokio::test]
async fn a_container_that_does_not_listen_is_killed_after_the_grace_period() {
    let api = FakeApi::new();
    let runtime = FakeRuntime::default();
    let agent = Agent::start(&api, runtime.clone());
    api.put(WEB, pod("roadstead/echo", &json!({})));
    api.until(WEB, "ready", is_ready).await;
    let began = Instant::now();
    api.patch(WEB, &json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}));
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(is_ready(&api.get(WEB).unwrap()), "as long as it runs");
    api.until(WEB, "gone", Value::is_null).await;
    assert!(began.elapsed() >= Duration::from_secs(1), "{:?}", began.elapsed());
    let stops: Vec<_> =
        runtime.calls().into_iter().filter(|call| call.starts_with("stop")).collect();
    assert_eq!(stops, ["stop web/main Gracefully", "stop web/main Now"]);
    agent.stop().await;
}

#[tokio::test]
async fn a_missing_image_is_reported_and_tried_again_when_it_changes() {
    let api = FakeApi::new();
    let agent = Agent::start(&api, FakeRuntime::default());
    api.put(WEB, pod("missing", &json!({})));
    let stuck = api.until(WEB, "stuck", |pod| waiting(pod) == "ErrImagePull").await;
    assert_eq!(stuck["status"]["phase"], "Pending");
    let waits = api.until(WEB, "waiting", |pod| waiting(pod) == "ImagePullBackOff").await;
    let state = &waits["status"]["containerStatuses"][0]["state"]["waiting"];
    let why = "Back-off pulling image \"missing\": ErrImagePull: no such image";
    assert_eq!(state["message"], why);
    let spec = pod("roadstead/echo", &json!({}));
    api.patch(WEB, &json!({"spec": spec["spec"]}));
    api.until(WEB, "ready", is_ready).await;
    agent.stop().await;
}

#[tokio::test]
async fn what_is_said_about_images() {
    let never = json!({"imagePullPolicy": "Never"});
    for (image, container, want, events) in [
        (
            "there",
            json!({}),
            "",
            &[
                "Pulling image \"there\"",
                "Successfully pulled image \"there\" in",
                "Image size: 12345 bytes.",
                "Container created",
                "Container started",
            ][..],
        ),
        (
            "loaded",
            json!({}),
            "",
            &["already present on machine and can be accessed by the pod, its registry cannot"],
        ),
        (
            "missing",
            never,
            "ErrImageNeverPull",
            &[
                "Container image \"missing\" is not present with pull policy of Never",
                "Error: ErrImageNeverPull",
            ],
        ),
        (
            "Bad",
            json!({}),
            "InvalidImageName",
            &[
                "Failed to apply default image tag \"Bad\": invalid reference format",
                "Error: InvalidImageName",
            ],
        ),
        (
            "missing",
            json!({}),
            "ErrImagePull",
            &["Failed to pull image \"missing\": no such image", "Error: ErrImagePull"],
        ),
    ] {
        let api = FakeApi::new();
        let agent = Agent::start(&api, FakeRuntime::default());
        api.put(WEB, pod(image, &container));
        match want {
            "" => drop(api.until(WEB, "ready", is_ready).await),
            want => drop(api.until(WEB, want, |pod| waiting(pod) == want).await),
        }
        for event in events {
            api.until_message(event).await;
        }
        agent.stop().await;
    }
}

#[tokio::test]
async fn pods_that_were_deleted_meanwhile_are_removed() {
    let name = PodName { namespace: "default".into(), name: "old".into(), uid: "u0".into() };
    let old = RecoveredPod { pod: name, addresses: None, containers: BTreeMap::new() };
    let runtime = FakeRuntime::with_recovered(vec![old]);
    let agent = Agent::start(&FakeApi::new(), runtime.clone());
    let end = Instant::now() + Duration::from_secs(5);
    while runtime.calls() != ["remove old"] {
        assert!(Instant::now() < end, "{:?}", runtime.calls());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    agent.stop().await;
}

/// The example beside this test's own executable.
fn executable() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let path = own.parent().unwrap().parent().unwrap().join("examples/applets");
    assert!(path.exists(), "{} is missing: build the examples first", path.display());
    path
}

fn curl(url: &str) -> String {
    run(&format!("{} --roadstead-applet curl -s {url}", Path::new(&executable()).display()))
}

#[test]
fn readiness_and_liveness_of_a_real_pod() {
    laboratory(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(probed());
    });
}

async fn probed() {
    let api = FakeApi::new();
    let runtime = BuiltinRuntime::start(&config(), executable()).await.unwrap();
    let agent = Agent::start_with(&api, runtime, StoredImages::open(&config()).unwrap());
    let probe = |failures: u32| {
        json!({"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 1,
               "failureThreshold": failures})
    };
    let began = Instant::now();
    let container = json!({"readinessProbe": probe(1), "livenessProbe": probe(3)});
    api.put(WEB, pod("roadstead/echo", &container));
    let ready = api.until(WEB, "ready", is_ready).await;
    eprintln!("from the pod's creation to ready: {:?}", began.elapsed());
    let address = ready["status"]["podIP"].as_str().unwrap().to_owned();
    assert_eq!(curl(&format!("{address}:8080/")), "web");

    curl(&format!("{address}:8080/fail"));
    api.until(WEB, "not ready", |pod| condition(pod, "Ready") == "False").await;
    let restarted = |pod: &Value| is_ready(pod) && restarts(pod) == 1;
    api.until(WEB, "restarted by its liveness probe", restarted).await;
    let reasons = api.event_reasons();
    assert!(reasons.contains(&"Unhealthy".into()) && reasons.contains(&"Killing".into()));

    // The agent goes and comes: the pod does not notice.
    agent.stop().await;
    assert_eq!(curl(&format!("{address}:8080/")), "web");
    let runtime = BuiltinRuntime::start(&config(), executable()).await.unwrap();
    let agent = Agent::start_with(&api, runtime, StoredImages::open(&config()).unwrap());
    tokio::time::sleep(Duration::from_millis(500)).await;
    let pod = api.get(WEB).unwrap();
    assert_eq!((is_ready(&pod), restarts(&pod)), (true, 1));

    api.patch(WEB, &json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}));
    api.until(WEB, "gone", Value::is_null).await;
    assert_eq!(run("ip -br link show type veth | wc -l"), "0");
    agent.stop().await;
    cleanup(&config()).await.unwrap();
}
