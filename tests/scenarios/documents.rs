//! The Deployments and Pods of the documents, as they are written, on a machine without internet.

use std::time::Duration;

use roadstead_testkit::kubectl::{Kubectl, eventually};
use roadstead_testkit::netns::{laboratory_of, run, try_run};

use crate::images::{LAYER, up_with_images};
use crate::process::Roadstead;

const SECOND: Duration = Duration::from_secs(1);

const NGINX_OF_WEEK: &str = "
apiVersion: apps/v1
kind: Deployment
metadata:
  name: nginx
  labels:
    app: nginx
  namespace: week
spec:
  replicas: 3
  selector:
    matchLabels:
      app: nginx
  template:
    metadata:
      labels:
        app: nginx
    spec:
      containers:
      - name: nginx
        image: nginx:latest
        imagePullPolicy: IfNotPresent
        ports:
          - containerPort: 80
---
apiVersion: v1
kind: Service
metadata:
  labels:
    app: nginx
  name: nginx-svc
  namespace: week
spec:
  ports:
  - name: nginx
    port: 80
    protocol: TCP
    targetPort: 80
  selector:
    app: nginx
";

const WEB: &str = "
apiVersion: apps/v1
kind: Deployment
metadata:
  name: web-app
spec:
  replicas: 3
  selector:
    matchLabels:
      app: web
  template:
    metadata:
      labels:
        app: web
    spec:
      containers:
      - name: nginx
        image: nginx:1.19
        ports:
        - containerPort: 80
---
apiVersion: v1
kind: Service
metadata:
  name: web-service
spec:
  selector:
    app: web
  ports:
  - port: 80
    targetPort: 80
---
apiVersion: v1
kind: Pod
metadata:
  name: web-pod
  labels:
    app: web
spec:
  containers:
  - name: nginx
    image: nginx
    ports:
    - containerPort: 80
    readinessProbe:
      httpGet:
        path: /healthz
        port: 80
      initialDelaySeconds: 5
      periodSeconds: 10
    livenessProbe:
      httpGet:
        path: /healthz
        port: 80
      initialDelaySeconds: 15
      periodSeconds: 20
";

const BOOTCAMP: &str = "
apiVersion: apps/v1
kind: Deployment
metadata:
  labels:
    app.kubernetes.io/name: kubernetes-bootcamp-v1-8080
  name: kubernetes-bootcamp-v1-8080
spec:
  replicas: 3
  selector:
    matchLabels:
      app.kubernetes.io/name: kubernetes-bootcamp-v1-8080
  template:
    metadata:
      labels:
        app.kubernetes.io/name: kubernetes-bootcamp-v1-8080
    spec:
      containers:
      - image: docker.io/hhitzhl/kubernetes-bootcamp:v1
        name: kubernetes-bootcamp-v1-8080
        ports:
        - containerPort: 8080
---
apiVersion: v1
kind: Service
metadata:
  name: svc-8091
spec:
  selector:
    app.kubernetes.io/name: kubernetes-bootcamp-v1-8080
  ports:
  - name: http
    port: 8091
    protocol: TCP
    targetPort: 8080
";

/// What the documents call my-service and test-pod, without saying what they are.
const MY_SERVICE: &str = "
apiVersion: v1
kind: Service
metadata: {name: my-service}
spec: {selector: {app: my}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Pod
metadata: {name: my-pod, labels: {app: my}}
spec: {containers: [{name: c, image: roadstead/echo}]}
---
apiVersion: v1
kind: Pod
metadata: {name: test-pod}
spec: {containers: [{name: c, image: roadstead/echo}]}
";

#[test]
fn the_pods_of_the_documents_run_as_they_are_written() {
    laboratory_of(LAYER, || {
        let roadstead = up_with_images(&["nginx", "busybox", "bootcamp"]);
        let kubectl = roadstead.kubectl();
        kubectl.run("create ns week");
        for manifest in [WEB, NGINX_OF_WEEK, BOOTCAMP] {
            kubectl.apply(manifest);
        }
        kubectl.run("-n week rollout status deployment/nginx --timeout=90s");
        kubectl.run("rollout status deployment/web-app --timeout=90s");
        kubectl.run("rollout status deployment/kubernetes-bootcamp-v1-8080 --timeout=90s");
        let pods = kubectl.run("get pod -n week");
        assert_eq!(pods.matches("1/1     Running   0").count(), 3, "{pods}");
        answers(&kubectl, "-n week", "nginx-svc", 80, "Welcome to nginx!");
        answers(&kubectl, "", "web-service", 80, "Welcome to nginx!");
        answers(&kubectl, "", "svc-8091", 8091, "Hello Kubernetes bootcamp!");
        a_pod_has_an_account(&kubectl);
        a_name_is_looked_up_in_a_pod(&kubectl);
        typed_in_a_pod(&kubectl);
        telnet_in_a_shell(&kubectl);
        a_probe_that_fails_keeps_a_pod_out(&kubectl);
    });
}

/// `iptables-save | grep …` shows what the documents print, where iptables carries the traffic.
#[test]
fn iptables_shows_what_the_documents_print() {
    laboratory_of("L5", || {
        let roadstead = Roadstead::up_with("--proxy-mode iptables --service-cidr 172.16.0.0/16");
        let kubectl = roadstead.kubectl();
        kubectl.run("create ns week");
        let fixed = NGINX_OF_WEEK
            .replace("image: nginx:latest", "image: roadstead/echo")
            .replace("spec:\n  ports:", "spec:\n  clusterIP: 172.16.73.164\n  ports:");
        kubectl.apply(&fixed);
        kubectl.run("-n week rollout status deployment/nginx --timeout=90s");
        let shows = |what: &'static str| move || run(&format!("iptables-save | grep {what}"));
        let service = "-A KUBE-SERVICES -d 172.16.73.164/32 -p tcp -m comment --comment \
            \"week/nginx-svc:nginx cluster IP\" -m tcp --dport 80 -j KUBE-SVC-4LRRYOSSZE5QDVLA";
        eventually("the Service", 30 * SECOND, shows("172.16.73.164"), |rules| {
            rules.contains(service)
                && rules.contains("! -s 10.244.0.0/16")
                && rules.contains("KUBE-MARK-MASQ")
        });
        let rules =
            eventually("its pods", 30 * SECOND, shows("KUBE-SVC-4LRRYOSSZE5QDVLA"), |rules| {
                rules.matches("-A KUBE-SVC-4LRRYOSSZE5QDVLA").count() == 4
            });
        for part in ["--probability 0.33333333349", "--probability 0.50000000000"] {
            assert_eq!(rules.matches(part).count(), 1, "{rules}");
        }
        assert_eq!(rules.matches("week/nginx-svc:nginx -> 10.244.0.").count(), 3, "{rules}");
        let listed = run("iptables -t nat -L KUBE-SERVICES | grep 172.16.73.164");
        assert!(listed.contains("week/nginx-svc:nginx cluster IP"), "{listed}");
    });
}

fn answers(kubectl: &Kubectl, namespace: &str, service: &str, port: u16, want: &str) {
    let path = "{.spec.clusterIP}";
    let address = kubectl.run(&format!("{namespace} get service {service} -o jsonpath='{path}'"));
    let curl = format!("curl -s -m 2 http://{address}:{port}/");
    let page = || String::from_utf8(try_run(&curl).stdout).unwrap();
    eventually(service, 10 * SECOND, page, |page| page.contains(want));
}

/// What is where programs look for it lets them in, as nobody special.
fn a_pod_has_an_account(kubectl: &Kubectl) {
    let read = |file: &str| {
        let path = "/var/run/secrets/kubernetes.io/serviceaccount";
        kubectl.run(&format!("-n week exec deployment/nginx -- cat {path}/{file}"))
    };
    assert_eq!(read("namespace"), "week");
    std::fs::write("/run/ca.crt", read("ca.crt")).unwrap();
    let token = read("token");
    let said = run(&format!(
        "curl -s --cacert /run/ca.crt -H 'Authorization: Bearer {token}' \
         https://127.0.0.1:6443/api/v1/namespaces/week/pods"
    ));
    let who = "User \\\"system:serviceaccount:week:default\\\" cannot list resource";
    assert!(said.contains(who), "{said}");
}

/// `kubectl run test-$RANDOM --image=busybox --rm -it -- nslookup web-service`: busybox asks for every name of
/// the search list itself, and ends with 1 if any of them does not exist.
fn a_name_is_looked_up_in_a_pod(kubectl: &Kubectl) {
    let address = kubectl.run("get service web-service -o jsonpath='{.spec.clusterIP}'");
    let mut typist =
        kubectl.in_terminal("run test-123 --image=busybox --rm -it -- nslookup web-service");
    typist.shows("web-service.default.svc.cluster.local");
    typist.shows(&format!("Address: {address}"));
    typist.shows("pod \"test-123\" deleted");
    typist.ends();
}

/// `kubectl exec -it test-pod -- …`: what the command says, and how it ends.
fn typed_in_a_pod(kubectl: &Kubectl) {
    kubectl.apply(MY_SERVICE);
    kubectl.run("wait pod/test-pod pod/my-pod --for=condition=Ready --timeout=60s");
    let address = kubectl.run("get service my-service -o jsonpath='{.spec.clusterIP}'");
    for (line, code, want) in [
        ("curl my-service:80", 0, "my-pod"),
        ("curl http://my-service.default.svc.cluster.local", 0, "my-pod"),
        ("curl no-service:80", 6, "no-service"),
        ("nslookup my-service", 0, address.as_str()),
        ("nslookup my-service.default.svc.cluster.local", 0, address.as_str()),
    ] {
        // What the proxy has not written yet is answered a moment later.
        let typed = || {
            let mut typist = kubectl.in_terminal(&format!("exec -it test-pod -- {line}"));
            (typist.ends(), typist.shown())
        };
        eventually(line, 30 * SECOND, typed, |(ended, shown)| {
            *ended == code && shown.contains(want)
        });
    }
}

/// `telnet 10.244.1.5 8080` in a shell of busybox: from pod to pod, without a Service.
fn telnet_in_a_shell(kubectl: &Kubectl) {
    let other = kubectl.run("get pod my-pod -o jsonpath='{.status.podIP}'");
    let mut typist = kubectl.in_terminal("run test-456 --image=busybox --rm -it --");
    typist.shows("If you don't see a command prompt, try pressing enter.");
    typist.types(&format!("\ntelnet {other} 8080\n"));
    typist.shows("Connected to");
    typist.types("GET / HTTP/1.0\n\n");
    typist.shows("Connection closed by foreign host");
    typist.types("exit\n");
    typist.ends();
    let shown = typist.shown();
    assert!(shown.contains("HTTP/1.") && shown.contains("my-pod"), "{shown}");
}

/// Nginx has no /healthz: the pod is never ready, and its address is with those that are not.
fn a_probe_that_fails_keeps_a_pod_out(kubectl: &Kubectl) {
    let events = || {
        let of = "--field-selector involvedObject.name=web-pod,reason=Unhealthy";
        kubectl.run(&format!("get events {of} -o jsonpath='{{.items[*].message}}'"))
    };
    eventually("the probe fails", 30 * SECOND, events, |said| {
        said.contains("Readiness probe failed: HTTP probe failed with statuscode: 404")
    });
    let described = kubectl.run("describe pod web-pod");
    // From 1.37 on, kubectl has whole words for it.
    let described = described.replace("successThreshold", "#success");
    let described = described.replace("failureThreshold", "#failure");
    for line in [
        "http-get http://:80/healthz delay=5s timeout=1s period=10s #success=1 #failure=3",
        "http-get http://:80/healthz delay=15s timeout=1s period=20s #success=1 #failure=3",
    ] {
        assert!(described.contains(line), "{described}");
    }
    let address = kubectl.run("get pod web-pod -o jsonpath='{.status.podIP}'");
    let path = "{.subsets[0].notReadyAddresses[*].ip}";
    let not_ready = kubectl.run(&format!("get endpoints web-service -o jsonpath='{path}'"));
    assert_eq!(not_ready, address);
    let ready = kubectl.run("get pod web-pod --no-headers");
    assert!(ready.contains("0/1") && ready.contains("Running"), "{ready}");
    // It is asked directly, and answers: only Services leave it out.
    assert!(run(&format!("curl -s -m 2 http://{address}/")).contains("Welcome to nginx!"));
}
