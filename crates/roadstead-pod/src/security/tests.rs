use super::*;
use crate::image::{ImageFacts, LayeredImage};
use serde_json::{Value, json};

fn pod(spec: Value, own: Value) -> Pod {
    let mut spec = spec;
    spec["containers"] = json!([{"name": "a", "securityContext": own}]);
    let meta = json!({"name": "p", "namespace": "n", "uid": "u"});
    serde_json::from_value(json!({"metadata": meta, "spec": spec})).unwrap()
}

fn confined(spec: Value, own: Value, policy: Policy) -> Result<Confinement, String> {
    let pod = pod(spec, own);
    let image = ImageFacts::built_in("roadstead/echo").unwrap().content;
    confine(&pod, &pod.spec.as_ref().unwrap().containers[0], &image, policy.into())
}

/// What differs from a container that asks for nothing.
fn show(got: &Confinement) -> String {
    let usual = Confinement::default();
    let mut words = Vec::new();
    let mut word = |differs: bool, text: String| words.extend(differs.then_some(text));
    word(got.capabilities != usual.capabilities, format!("caps={:x}", got.capabilities.bits()));
    word(got.escalation == Escalation::Allowed, "escalation".into());
    word((got.user, got.group) != (0, 0), format!("{}:{}", got.user, got.group));
    word(!got.groups.is_empty(), format!("groups={:?}", got.groups));
    word(got.read_only_root, "read-only".into());
    word(got.seccomp == Seccomp::Unconfined, "unconfined".into());
    if let Seccomp::Localhost(path) = &got.seccomp {
        word(true, format!("calls={path}"));
    }
    word(got.kernel_paths == KernelPaths::Open, "open".into());
    word(got.kernel_paths == KernelPaths::Unmasked, "unmasked".into());
    word(!got.sysctls.is_empty(), format!("{:?}", got.sysctls));
    words.join(" ")
}

#[test]
fn what_is_given() {
    let of_pod = |context: Value| json!({"securityContext": context});
    for (name, spec, own, want) in [
        ("nothing asked", json!({}), json!({}), ""),
        ("as in containerd", json!({}), json!({"capabilities": {"drop": ["ALL"]}}), "caps=0"),
        (
            "one kept",
            json!({}),
            json!({"capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}}),
            "caps=400",
        ),
        ("escalation", json!({}), json!({"allowPrivilegeEscalation": true}), "escalation"),
        ("none", json!({}), json!({"allowPrivilegeEscalation": false}), ""),
        ("a user", json!({}), json!({"runAsUser": 7, "runAsNonRoot": true}), "7:0"),
        ("the pod's user", of_pod(json!({"runAsUser": 7, "runAsGroup": 8})), json!({}), "7:8"),
        ("its own first", of_pod(json!({"runAsUser": 7})), json!({"runAsUser": 9}), "9:0"),
        (
            "groups",
            of_pod(json!({"supplementalGroups": [5], "fsGroup": 6})),
            json!({}),
            "groups=[5, 6]",
        ),
        ("a read-only root", json!({}), json!({"readOnlyRootFilesystem": true}), "read-only"),
        ("seccomp", of_pod(json!({"seccompProfile": {"type": "RuntimeDefault"}})), json!({}), ""),
        (
            "a profile of the node",
            of_pod(json!({"seccompProfile": {"type": "Localhost", "localhostProfile": "a/b"}})),
            json!({}),
            "calls=a/b",
        ),
        ("common processes", json!({"shareProcessNamespace": true}), json!({}), ""),
        (
            "a safe sysctl",
            of_pod(json!({"sysctls": [{"name": "net/ipv4/tcp_syncookies", "value": "0"}]})),
            json!({}),
            "[(\"net.ipv4.tcp_syncookies\", \"0\")]",
        ),
    ] {
        assert_eq!(show(&confined(spec, own, Policy::Baseline).unwrap()), want, "{name}");
    }
}

#[test]
fn what_would_give_the_node_away() {
    let unconfined = json!({"seccompProfile": {"type": "Unconfined"}});
    for (own, why, allowed) in [
        (
            json!({"privileged": true}),
            "a privileged container",
            "caps=1ffffffffff escalation unconfined open",
        ),
        (
            json!({"capabilities": {"add": ["SYS_ADMIN"]}}),
            "the capability SYS_ADMIN",
            "caps=a82425fb",
        ),
        (json!({"capabilities": {"add": ["ALL"]}}), "the capability ALL", "caps=1ffffffffff"),
        (unconfined, "the seccomp profile Unconfined", "unconfined"),
        (json!({"procMount": "Unmasked"}), "procMount: Unmasked", "unmasked"),
    ] {
        let refusal = confined(json!({}), own.clone(), Policy::Baseline).unwrap_err();
        assert!(
            refusal.starts_with(&format!("{why} is disallowed by cluster policy")),
            "{refusal}"
        );
        assert_eq!(show(&confined(json!({}), own, Policy::Privileged).unwrap()), allowed, "{why}");
    }
    for (field, why) in [
        ("hostNetwork", "the network of the node (hostNetwork)"),
        ("hostPID", "the processes of the node (hostPID)"),
        ("hostIPC", "the memory and messages of the node (hostIPC)"),
    ] {
        let refusal = confined(json!({field: true}), json!({}), Policy::Baseline).unwrap_err();
        assert!(
            refusal.starts_with(&format!("{why} is disallowed by cluster policy")),
            "{refusal}"
        );
        let allowed = confined(json!({field: true}), json!({}), Policy::Privileged).unwrap();
        assert_eq!(show(&allowed), "", "{field}");
    }
}

#[test]
fn what_cannot_be_given_is_refused() {
    let of_pod = |context: Value| json!({"securityContext": context});
    let sysctl = |name: &str| of_pod(json!({"sysctls": [{"name": name, "value": "1"}]}));
    for (spec, own, want) in [
        (json!({"hostUsers": false}), json!({}), "hostUsers: false is not supported by this node"),
        (
            json!({}),
            json!({"seccompProfile": {"type": "Localhost", "localhostProfile": "../x"}}),
            "localhostProfile \"../x\" must be a path below the node's profiles",
        ),
        (
            json!({}),
            json!({"appArmorProfile": {"type": "Localhost", "localhostProfile": " "}}),
            "invalid AppArmor profile name: \"\"",
        ),
        (json!({}), json!({"capabilities": {"add": ["FLY"]}}), "unknown capability \"FLY\""),
        (json!({}), json!({"runAsUser": 4_294_967_295_u32}), "runAsUser 4294967295 is not an id"),
        (
            of_pod(json!({"runAsNonRoot": true})),
            json!({}),
            "container has runAsNonRoot and image will run as root (pod: \"p_n(u)\", container: a)",
        ),
        (
            of_pod(json!({"runAsNonRoot": true})),
            json!({"runAsUser": 0}),
            "container's runAsUser breaks non-root policy (pod: \"p_n(u)\", container: a)",
        ),
        (
            sysctl("kernel.core_pattern"),
            json!({}),
            "forbidden sysctl: \"kernel.core_pattern\" not allowlisted",
        ),
    ] {
        assert_eq!(confined(spec, own, Policy::Privileged).unwrap_err(), want);
    }
}

#[test]
fn who_images_run_as() {
    for (name, user, spec, own, want) in [
        ("root", "", json!({}), json!({}), "escalation"),
        ("the image's", "web", json!({}), json!({}), "escalation 101:33 groups=[4]"),
        ("by number", "7:8", json!({}), json!({}), "escalation 7:8"),
        ("the pod's", "web", json!({}), json!({"runAsUser": 9}), "escalation 9:0"),
        ("known", "", json!({}), json!({"runAsUser": 101}), "escalation 101:33 groups=[4]"),
        (
            "the pod's groups only",
            "web",
            json!({"securityContext": {"supplementalGroupsPolicy": "Strict", "fsGroup": 5}}),
            json!({"allowPrivilegeEscalation": false}),
            "101:33 groups=[5]",
        ),
        (
            "unknown",
            "nobody",
            json!({}),
            json!({}),
            "unable to find user nobody: no matching entries in passwd file",
        ),
        (
            "must not be root",
            "",
            json!({}),
            json!({"runAsNonRoot": true}),
            "container has runAsNonRoot and image will run as root (pod: \"p_n(u)\", container: a)",
        ),
        (
            "who is that?",
            "web",
            json!({}),
            json!({"runAsNonRoot": true}),
            "container has runAsNonRoot and image has non-numeric user (web), cannot verify user is \
             non-root (pod: \"p_n(u)\", container: a)",
        ),
        ("not root", "7", json!({}), json!({"runAsNonRoot": true}), "escalation 7:0"),
    ] {
        let image = LayeredImage {
            user: user.into(),
            passwd: "web:x:101:33::/var/www:/bin/sh\n".into(),
            group: "log:x:4:web\n".into(),
            ..LayeredImage::default()
        };
        let pod = pod(spec, own);
        let container = &pod.spec.as_ref().unwrap().containers[0];
        let image = ImageContent::Layers(Box::new(image));
        let got = confine(&pod, container, &image, Policy::Baseline.into());
        assert_eq!(got.map_or_else(|why| why, |got| show(&got)), want, "{name}");
    }
}

#[test]
fn debuggers_may_trace() {
    for (list, add, shared, fine) in [
        ("containers", "SYS_PTRACE", false, false),
        ("ephemeralContainers", "SYS_PTRACE", false, true),
        // There are containers among these processes that are just being made.
        ("ephemeralContainers", "SYS_PTRACE", true, false),
        ("ephemeralContainers", "SYS_ADMIN", false, false),
        ("ephemeralContainers", "ALL", false, false),
    ] {
        let container = json!({"name": "d", "securityContext": {"capabilities": {"add": [add]}}});
        let pod = json!({"metadata": {}, "spec": {"containers": [], list: [container],
                                                  "shareProcessNamespace": shared}});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let container: Container = serde_json::from_value(container).unwrap();
        let image = ImageContent::Layers(Box::default());
        let found = confine(&pod, &container, &image, Policy::Baseline.into());
        assert_eq!(found.is_ok(), fine, "{list} {add} {shared}");
    }
}

#[test]
fn the_node_asks_no_other_hosts_for_pods() {
    let get = |host: &str| json!({"httpGet": {"port": 80, "host": host}});
    let tcp = json!({"tcpSocket": {"port": 22, "host": "127.0.0.1"}});
    for (container, fine) in [
        (json!({"readinessProbe": get("")}), true),
        (json!({"readinessProbe": get("169.254.169.254")}), false),
        (json!({"livenessProbe": tcp}), false),
        (json!({"lifecycle": {"preStop": get("127.0.0.1")}}), false),
        (json!({"lifecycle": {"postStart": get("")}}), true),
    ] {
        for (of_host, policy) in
            [(false, Policy::Baseline), (true, Policy::Baseline), (false, Policy::Privileged)]
        {
            let mut container = container.clone();
            container["name"] = json!("c");
            let pod = json!({"metadata": {}, "spec": {"hostNetwork": of_host,
                                                      "containers": [container]}});
            let pod: Pod = serde_json::from_value(pod).unwrap();
            let own: Container = serde_json::from_value(container.clone()).unwrap();
            let image = ImageContent::Layers(Box::default());
            let found = confine(&pod, &own, &image, policy.into());
            let allowed = fine && !of_host || policy == Policy::Privileged;
            assert_eq!(found.is_ok(), allowed, "{container} {of_host} {policy:?}");
        }
    }
}

#[test]
fn the_network_of_the_node() {
    let case = |namespace: &str, images: &[&str]| {
        let containers: Vec<_> = images.iter().map(|i| json!({"name": "c", "image": i})).collect();
        let pod = json!({"metadata": {"namespace": namespace},
                         "spec": {"hostNetwork": true, "containers": containers}});
        serde_json::from_value::<Pod>(pod).unwrap()
    };
    let (proxy, dns) = ("roadstead/kube-proxy", "roadstead/coredns");
    for (namespace, images, allowed) in [
        ("default", &["roadstead/echo"][..], false),
        ("kube-system", &["roadstead/echo"], false),
        ("kube-system", &[proxy], true),
        ("kube-system", &[dns], true),
        // Parts bring no others with them, and are none elsewhere.
        ("kube-system", &[proxy, "busybox"], false),
        ("default", &[proxy], false),
    ] {
        let pod = case(namespace, images);
        let said = forbidden_host_network(&pod, Policy::Baseline);
        assert_eq!(said.is_none(), allowed, "{namespace} {images:?}: {said:?}");
        assert!(said.is_none_or(|said| said.contains("`roadstead up --allow-privileged`")));
        assert_eq!(forbidden_host_network(&pod, Policy::Privileged), None);
        // Nor does a debugger that comes later get it.
        let mut debugger = pod.spec.as_ref().unwrap().containers[0].clone();
        debugger.image = Some("busybox".into());
        let image = ImageContent::Layers(Box::default());
        confine(&pod, &debugger, &image, Policy::Baseline.into()).unwrap_err();
    }
    let content = ImageFacts::built_in(proxy).unwrap().content;
    let pod = case("kube-system", &[proxy]);
    let part = &pod.spec.as_ref().unwrap().containers[0];
    confine(&pod, part, &content, Policy::Baseline.into()).unwrap();
}
