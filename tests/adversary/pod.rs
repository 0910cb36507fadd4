//! A pod: what runs in a container tries to reach the node, other pods and us.

use std::fs;
use std::time::{Duration, Instant};

use roadstead_testkit::kubectl::{Kubectl, eventually};
use roadstead_testkit::netns::{is_left_out, laboratory_of, run, try_run};
use serde_json::{Value, json};

use crate::attacks;
use crate::process::Roadstead;

/// A kernel parameter that belongs to the whole machine.
const PARAMETER: &str = "/proc/sys/kernel/printk_ratelimit_burst";

/// A pod that ends, with one container for each name, command and security context.
fn attacker<'a>(containers: impl IntoIterator<Item = (&'a str, Vec<&'a str>, Value)>) -> Value {
    let container = |(name, command, context): (&str, Vec<&str>, Value)| {
        json!({"name": name, "image": "roadstead/tools", "command": command,
               "securityContext": context})
    };
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "attacker"},
        "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0,
                 "containers": containers.into_iter().map(container).collect::<Vec<_>>()},
    })
}

fn create(roadstead: &Roadstead, pod: &Value) {
    let path = roadstead.directory().join("pod.json");
    fs::write(&path, pod.to_string()).unwrap();
    roadstead.kubectl().run(&format!("apply -f {}", path.display()));
}

fn statuses(kubectl: &Kubectl) -> Vec<Value> {
    let pod: Value = serde_json::from_str(&kubectl.run("get pod attacker -o json")).unwrap();
    pod["status"]["containerStatuses"].as_array().cloned().unwrap_or_default()
}

#[test]
fn writes_to_the_node() {
    laboratory_of("L5", || {
        let roadstead = Roadstead::up_ephemeral();
        let kubectl = roadstead.kubectl();
        // A server that answers with its own name. Its name is what the parameter is now: if it can be
        // written, that does no harm.
        let value = fs::read_to_string(PARAMETER).unwrap().trim().to_owned();
        kubectl.run(&format!("run {value} --image=roadstead/echo --restart=Never"));
        kubectl.run(&format!("wait --for=condition=Ready pod/{value} --timeout=30s"));
        let address = kubectl.run(&format!("get pod {value} -o jsonpath='{{.status.podIP}}'"));
        let url = format!("http://{address}:8080/");
        let fetch = |path: &'static str| vec!["curl", "-sS", "-m", "9", "-o", path, &url];
        create(
            &roadstead,
            &attacker([
                ("parameter", fetch(PARAMETER), json!({})),
                ("executable", fetch("/proc/self/exe"), json!({})),
                ("first-process", fetch("/proc/1/exe"), json!({})),
                ("its-files", fetch("/proc/1/root/etc/x"), json!({})),
                ("programs", fetch("/bin/roadstead"), json!({})),
                ("devices", fetch("/sys/kernel/uevent_helper"), json!({})),
                ("raised", fetch(PARAMETER), json!({"allowPrivilegeEscalation": true})),
                ("own", fetch("/tmp/x"), json!({})),
            ]),
        );
        let ended = |all: &Vec<Value>| {
            all.len() == 8 && all.iter().all(|one| one["state"]["terminated"].is_object())
        };
        let all =
            eventually("all have ended", Duration::from_secs(60), || statuses(&kubectl), ended);
        for one in all {
            // 23 is curl's word for a file that it cannot write.
            let want = if one["name"] == "own" { 0 } else { 23 };
            assert_eq!(one["state"]["terminated"]["exitCode"], want, "{one:#}");
        }
        assert_eq!(fs::read_to_string(PARAMETER).unwrap().trim(), value);
        attacks::refused(7);
    });
}

#[test]
fn asking_for_the_node() {
    laboratory_of("L5", || {
        let roadstead = Roadstead::up_ephemeral();
        let kubectl = roadstead.kubectl();
        let unconfined = json!({"seccompProfile": {"type": "Unconfined"}});
        let sleep = || vec!["sleep", "infinity"];
        create(
            &roadstead,
            &attacker([
                ("privileged", sleep(), json!({"privileged": true})),
                ("capability", sleep(), json!({"capabilities": {"add": ["SYS_ADMIN"]}})),
                ("unconfined", sleep(), unconfined),
                ("unmasked", sleep(), json!({"procMount": "Unmasked"})),
                ("root", sleep(), json!({"runAsNonRoot": true})),
            ]),
        );
        let refused = |all: &Vec<Value>| {
            let reason = |one: &Value| one["state"]["waiting"]["reason"].clone();
            all.len() == 5 && all.iter().all(|one| reason(one) == "CreateContainerConfigError")
        };
        let all = eventually("all wait", Duration::from_secs(30), || statuses(&kubectl), refused);
        for one in &all {
            assert!(one["state"]["waiting"]["message"].is_string(), "{one:#}");
        }
        assert_eq!(run("pgrep -fc '^/bin/sleep infinity' || true"), "0");
        attacks::refused(all.len());
    });
}

/// Who may do everything in one namespace, and nothing else, asks for the network of the node. There is no such
/// pod, not even an empty one: by its ports she would reach what listens on the node for itself.
#[test]
fn asking_for_the_network_of_the_node() {
    laboratory_of("L5", || {
        let mut roadstead = Roadstead::up_ephemeral();
        let kubectl = roadstead.kubectl();
        kubectl.run("create namespace dev");
        kubectl.run("create rolebinding eve -n dev --clusterrole=admin --user=eve");
        let probe = json!({"httpGet": {"host": "127.0.0.1", "port": 10249, "path": "/metrics"}});
        let pod = |name: &str, image: &str, probe: &Value| {
            let container = json!({"name": "c", "image": image, "readinessProbe": probe});
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "dev"},
                   "spec": {"hostNetwork": true, "containers": [container]}})
        };
        for pod in [
            pod("network", "roadstead/echo", &Value::Null),
            pod("probe", "roadstead/echo", &probe),
            pod("part", "roadstead/kube-proxy", &probe),
        ] {
            let path = roadstead.directory().join("pod.json");
            fs::write(&path, pod.to_string()).unwrap();
            kubectl.run(&format!("--as=eve apply -f {}", path.display()));
            let name = pod["metadata"]["name"].as_str().unwrap();
            let asked = || kubectl.run(&format!("--as=eve -n dev get pod {name} -o json"));
            let why = "the network of the node (hostNetwork) is disallowed by cluster policy";
            let shown = eventually(name, Duration::from_secs(30), asked, |said| said.contains(why));
            let status = &serde_json::from_str::<Value>(&shown).unwrap()["status"];
            assert_eq!((&status["phase"], &status["podIP"]), (&json!("Pending"), &Value::Null));
            for (port, path) in [(10249, "metrics"), (10256, "healthz")] {
                let proxied = format!("/api/v1/namespaces/dev/pods/{name}:{port}/proxy/{path}");
                kubectl.fails(&format!("--as=eve get --raw {proxied}"));
            }
            kubectl.fails(&format!("--as=eve -n dev port-forward {name} :10249"));
            attacks::refused(4);
        }
        assert!(roadstead.is_running());
        // The parts of `up` itself have it, and run.
        kubectl.run("wait pod -n kube-system --all --for=condition=Ready --timeout=60s");
    });
}

#[test]
fn more_memory_than_allowed() {
    if is_left_out("cgroups") {
        return;
    }
    laboratory_of("L5", || {
        let roadstead = Roadstead::up_ephemeral();
        let kubectl = roadstead.kubectl();
        let lacking = "no control groups for";
        assert!(
            !roadstead.log().contains(lacking),
            "limits of pods cannot be tested here: there are {lacking} some (set \
             ROADSTEAD_SKIP=cgroups to leave them out)"
        );
        let mut pod = attacker([("greedy", vec!["sleep", "infinity"], json!({}))]);
        pod["spec"]["containers"][0]["resources"] = json!({"limits": {"memory": "128Ki"}});
        create(&roadstead, &pod);
        let reason = |all: &Vec<Value>| {
            let ended = all.first().map(|one| one["state"]["terminated"]["reason"].clone());
            ended == Some(json!("OOMKilled"))
        };
        eventually("it was ended", Duration::from_secs(30), || statuses(&kubectl), reason);
        attacks::refused(1);
    });
}

const GUARDED: &str = "
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec: {terminationGracePeriodSeconds: 0, containers: [{name: c, image: roadstead/echo}]}
---
apiVersion: v1
kind: Pod
metadata: {name: friend, labels: {app: friend}}
spec: {terminationGracePeriodSeconds: 0, containers: [{name: c, image: roadstead/echo}]}
---
apiVersion: v1
kind: Pod
metadata: {name: denied, labels: {app: denied}}
spec: {terminationGracePeriodSeconds: 0, containers: [{name: c, image: roadstead/echo}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: friends}
spec:
  podSelector: {matchLabels: {app: web}}
  ingress: [{from: [{podSelector: {matchLabels: {app: friend}}}]}]
";

/// A node, and what it says runs there.
const LIARS: &str = "
apiVersion: v1
kind: Node
metadata: {name: n2}
spec: {podCIDR: 10.244.77.0/24, podCIDRs: [10.244.77.0/24]}
---
apiVersion: v1
kind: Pod
metadata: {name: lender, labels: {app: friend}}
spec: {nodeName: n2, containers: [{name: c, image: roadstead/echo}]}
---
apiVersion: v1
kind: Pod
metadata: {name: taker, labels: {app: other}}
spec: {nodeName: n2, containers: [{name: c, image: roadstead/echo}]}
";

/// Whoever a policy denies makes its own addresses, neighbours and routes, with more rights in its network than
/// any container gets, and does not come through.
#[test]
fn ways_around_a_policy() {
    laboratory_of("L5", || {
        let roadstead = Roadstead::up_ephemeral();
        let kubectl = roadstead.kubectl();
        kubectl.apply(GUARDED);
        kubectl.run("wait --for=condition=Ready pod --all --timeout=60s");
        let field =
            |pod: &str, path: &str| kubectl.run(&format!("get pod {pod} -o jsonpath='{{{path}}}'"));
        let networks = roadstead.directory().join("data/node/netns");
        let enter = |pod: &str| {
            format!(
                "nsenter --net={}/roadstead-{}",
                networks.display(),
                field(pod, ".metadata.uid")
            )
        };
        let [web, friend, denied] =
            ["web", "friend", "denied"].map(|pod| field(pod, ".status.podIP"));
        let [in_web, in_friend, in_denied] = ["web", "friend", "denied"].map(enter);
        let reaches = |from: &str, to: &str| {
            let said = try_run(&format!("{from} curl -g -s -m 1 http://{to}:8080/"));
            String::from_utf8_lossy(&said.stdout).contains("web")
        };
        let patience = Duration::from_secs(30);
        let rights = || (reaches(&in_friend, &web), reaches(&in_denied, &web));
        eventually("the policy holds", patience, rights, |now| *now == (true, false));
        let seen = |from: &str| {
            run(&format!("{in_web} nft add table inet seen"));
            run(&format!(
                "{in_web} nft 'add chain inet seen in {{ type filter hook input priority 0; }}'"
            ));
            run(&format!("{in_web} nft add rule inet seen in ip saddr {from} counter"));
        };
        let hardware = run(&format!(
            "{in_web} cat /sys/class/net/eth0/address 2>/dev/null; \
            {in_web} ip -br link show eth0 | awk '{{print $3}}'"
        ));
        let hardware = hardware.lines().last().unwrap().to_owned();
        let local =
            run(&format!("{in_web} ip -6 -br addr show dev eth0 scope link | awk '{{print $3}}'"));
        let local = local.split('/').next().unwrap_or_default().to_owned();
        for switched in ["1", "0"] {
            // With and without br_netfilter, as far as this kernel has it.
            try_run(&format!("echo {switched} > /proc/sys/net/bridge/bridge-nf-call-iptables"));
            try_run(&format!("echo {switched} > /proc/sys/net/bridge/bridge-nf-call-ip6tables"));
            let what = format!("bridge-nf-call-iptables {switched}");
            if !local.is_empty() {
                assert!(!reaches(&in_denied, &format!("[{local}%eth0]")), "link-local, {what}");
            }
            run(&format!(
                "{in_denied} ip neigh replace {web} lladdr {hardware} dev eth0 nud permanent"
            ));
            run(&format!("{in_denied} ip route replace {web}/32 dev eth0"));
            assert!(!reaches(&in_denied, &web), "straight over the bridge, {what}");
            run(&format!("{in_denied} ip route del {web}/32 dev eth0"));
        }
        // Taken for its friend: not one packet arrives.
        seen(&friend);
        run(&format!("{in_denied} ip addr add {friend}/32 dev eth0"));
        for _ in 0..3 {
            try_run(&format!("{in_denied} curl -s -m 1 --interface {friend} http://{web}:8080/"));
        }
        let counted = run(&format!("{in_web} nft list chain inet seen in"));
        assert!(counted.contains("packets 0"), "{counted}");
        assert!(reaches(&in_friend, &web), "the friend is not harmed");
        let counted = run(&format!("{in_web} nft list chain inet seen in"));
        assert!(!counted.contains("packets 0"), "the counter counts: {counted}");
        assert!(!reaches(&in_denied, &web), "nor does {denied} by its own");
        // Twice by the link-local address and straight over the bridge, as its friend, and as itself.
        attacks::refused(6);
        // Another node lends its labels, and says that the guarded address is one of its own.
        kubectl.apply(LIARS);
        let as_node = "--as=system:node:n2 --as-group=system:nodes --as-group=system:authenticated";
        for (liar, address) in [("lender", &denied), ("taker", &web)] {
            // A node may write the status of its pods, and not read it apart from them.
            let mut pod: Value =
                serde_json::from_str(&kubectl.run(&format!("get pod {liar} -o json"))).unwrap();
            pod["status"] =
                json!({"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]});
            let file = roadstead.directory().join("lie.json");
            fs::write(&file, pod.to_string()).unwrap();
            let place = format!("/api/v1/namespaces/default/pods/{liar}/status");
            kubectl.run(&format!("replace --raw {place} -f {} {as_node}", file.display()));
            let began = Instant::now();
            while began.elapsed() < Duration::from_secs(2) {
                assert!(!reaches(&in_denied, &web), "{liar} opens the way");
            }
            assert!(reaches(&in_friend, &web), "{liar} closes the way of others");
        }
        attacks::refused(2);
    });
}
