use super::*;
use serde_json::{Value, json};

fn pod(spec: Value, own: Value) -> Pod {
    let mut spec = spec;
    spec["containers"] = json!([{"name": "a", "securityContext": own}]);
    let meta = json!({"name": "p", "namespace": "n", "uid": "u"});
    serde_json::from_value(json!({"metadata": meta, "spec": spec})).unwrap()
}

fn confined(spec: Value, own: Value, policy: Policy) -> Result<Confinement, String> {
    let pod = pod(spec, own);
    confine(&pod, &pod.spec.as_ref().unwrap().containers[0], policy)
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
    word(got.kernel_paths == KernelPaths::Open, "open".into());
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
    ] {
        let refusal = confined(json!({}), own.clone(), Policy::Baseline).unwrap_err();
        assert!(
            refusal.starts_with(&format!("{why} is disallowed by cluster policy")),
            "{refusal}"
        );
        assert_eq!(show(&confined(json!({}), own, Policy::Privileged).unwrap()), allowed, "{why}");
    }
}

#[test]
fn what_cannot_be_given_is_refused() {
    let of_pod = |context: Value| json!({"securityContext": context});
    let sysctl = |name: &str| of_pod(json!({"sysctls": [{"name": name, "value": "1"}]}));
    let mut on_host = sysctl("net.ipv4.tcp_syncookies");
    on_host["hostNetwork"] = json!(true);
    for (spec, own, want) in [
        (json!({"hostPID": true}), json!({}), "hostPID is not supported by this node"),
        (json!({"hostIPC": true}), json!({}), "hostIPC is not supported by this node"),
        (json!({"hostUsers": false}), json!({}), "hostUsers: false is not supported by this node"),
        (
            json!({"shareProcessNamespace": true}),
            json!({}),
            "shareProcessNamespace is not supported by this node",
        ),
        (
            json!({}),
            json!({"procMount": "Unmasked"}),
            "procMount: Unmasked is not supported by this node",
        ),
        (
            json!({}),
            json!({"seccompProfile": {"type": "Localhost", "localhostProfile": "x"}}),
            "a Localhost seccomp profile is not supported by this node",
        ),
        (
            json!({}),
            json!({"appArmorProfile": {"type": "Localhost", "localhostProfile": "x"}}),
            "a Localhost AppArmor profile is not supported by this node",
        ),
        (
            json!({}),
            json!({"seLinuxOptions": {"level": "s0"}}),
            "seLinuxOptions is not supported by this node",
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
        (on_host, json!({}), "forbidden sysctl: \"net.ipv4.tcp_syncookies\" not allowlisted"),
    ] {
        assert_eq!(confined(spec, own, Policy::Privileged).unwrap_err(), want);
    }
}
