use roadstead_schema::json::Pointer;
use serde_json::json;

use super::*;

fn rules(text: &str) -> PodRules {
    let (level, version) = text.split_once(':').unwrap();
    PodRules { level: Level::parse(level).unwrap(), version: Version::parse(version).unwrap() }
}

/// A pod that the strictest rules allow, with changes.
fn pod(changes: Value) -> Value {
    let context = json!({"allowPrivilegeEscalation": false, "runAsNonRoot": true,
        "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"}});
    let mut pod = json!({"metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "securityContext": context}]}});
    for (pointer, value) in changes.fields("") {
        let mut at = &mut pod;
        for step in pointer.split('.') {
            at = match step.parse::<usize>() {
                Ok(index) => &mut at[index],
                Err(_) => &mut at[step],
            };
        }
        *at = value.clone();
    }
    pod
}

fn said(level: &str, changes: Value) -> String {
    details(&rules(level).violations(&pod(changes)))
}

#[test]
fn what_everybody_meets_first() {
    let plain = json!({"spec": {"containers": [{"name": "nginx"}]}});
    let latest = rules("restricted:latest");
    assert_eq!(
        refusal(&latest, &latest.violations(&plain)),
        "violates PodSecurity \"restricted:latest\": allowPrivilegeEscalation != false (container \
         \"nginx\" must set securityContext.allowPrivilegeEscalation=false), unrestricted capabilities \
         (container \"nginx\" must set securityContext.capabilities.drop=[\"ALL\"]), runAsNonRoot != \
         true (pod or container \"nginx\" must set securityContext.runAsNonRoot=true), seccompProfile \
         (pod or container \"nginx\" must set securityContext.seccompProfile.type to \
         \"RuntimeDefault\" or \"Localhost\")"
    );
    assert!(rules("baseline:latest").violations(&plain).is_empty());
    let everything = json!({"spec": {"hostNetwork": true, "hostPID": true}});
    assert!(rules("privileged:latest").violations(&everything).is_empty());
    assert!(latest.violations(&pod(json!({}))).is_empty());
}

#[test]
fn rules_of_baseline() {
    let context = |field: &str, value: Value| json!({format!("spec.containers.0.securityContext.{field}"): value});
    for (changes, want) in [
        (
            context("appArmorProfile", json!({"type": "Unconfined"})),
            "forbidden AppArmor profile (container \"c\" must not set AppArmor profile type to \
             \"Unconfined\")",
        ),
        (
            json!({"metadata.annotations": {"container.apparmor.security.beta.kubernetes.io/c": "unconfined"}}),
            "forbidden AppArmor profile (annotation must not set AppArmor profile type to \
             \"container.apparmor.security.beta.kubernetes.io/c=\\\"unconfined\\\"\")",
        ),
        (context("capabilities.add", json!(["CHOWN"])), ""),
        (
            context("capabilities.add", json!(["SYS_ADMIN", "NET_RAW"])),
            "non-default capabilities (container \"c\" must not include \"NET_RAW\", \"SYS_ADMIN\" in \
             securityContext.capabilities.add)",
        ),
        (
            json!({"spec.hostNetwork": true, "spec.hostIPC": true}),
            "host namespaces (hostNetwork=true, hostIPC=true)",
        ),
        (
            json!({"spec.volumes": [{"name": "a", "hostPath": {"path": "/"}}, {"name": "b", "hostPath": {}}]}),
            "hostPath volumes (volumes \"a\", \"b\")",
        ),
        (
            json!({"spec.containers.0.ports": [{"hostPort": 80}, {"hostPort": 443}, {"hostPort": 0}]}),
            "hostPort (container \"c\" uses hostPorts 443, 80)",
        ),
        (
            json!({"spec.containers.0.livenessProbe": {"httpGet": {"host": "10.0.0.1"}}}),
            "probe or lifecycle host (container \"c\" uses probe or lifecycle host \"10.0.0.1\")",
        ),
        (
            context("privileged", json!(true)),
            "privileged (container \"c\" must not set securityContext.privileged=true)",
        ),
        (
            context("procMount", json!("Unmasked")),
            "procMount (container \"c\" must not set securityContext.procMount to \"Unmasked\")",
        ),
        (context("seLinuxOptions", json!({"type": "container_t"})), ""),
        (
            json!({"spec.securityContext": {"seLinuxOptions": {"type": "x", "user": "u", "role": "r"}}}),
            "seLinuxOptions (pod set forbidden securityContext.seLinuxOptions: type \"x\"; user may not \
             be set; role may not be set)",
        ),
        (
            json!({"spec.securityContext": {"seccompProfile": {"type": "Unconfined"}},
                "spec.containers.0.securityContext.seccompProfile": {"type": "Unconfined"}}),
            "seccompProfile (pod and container \"c\" must not set securityContext.seccompProfile.type to \
             \"Unconfined\")",
        ),
        (
            json!({"spec.securityContext": {"sysctls": [{"name": "kernel.msgmax"},
                {"name": "net.ipv4.tcp_syncookies"}, {"name": "kernel.sem"}]}}),
            "forbidden sysctls (kernel.msgmax, kernel.sem)",
        ),
        (
            context("windowsOptions", json!({"hostProcess": true})),
            "hostProcess (container \"c\" must not set securityContext.windowsOptions.hostProcess=true)",
        ),
    ] {
        assert_eq!(said("baseline:latest", changes.clone()), want, "{changes}");
        assert!(want.is_empty() || !said("restricted:latest", changes).is_empty());
    }
}

#[test]
fn rules_of_restricted() {
    for (changes, want) in [
        (
            json!({"spec.containers.0.securityContext.capabilities": {"add": ["CHOWN", "NET_BIND_SERVICE"]}}),
            "unrestricted capabilities (container \"c\" must set \
             securityContext.capabilities.drop=[\"ALL\"]; container \"c\" must not include \"CHOWN\" in \
             securityContext.capabilities.add)",
        ),
        (
            json!({"spec.volumes": [{"name": "a", "emptyDir": {}}, {"name": "b", "nfs": {}},
                {"name": "d", "hostPath": {}}, {"name": "e"}]}),
            "restricted volume types (volumes \"b\", \"d\" use restricted volume types \"hostPath\", \"nfs\")",
        ),
        (
            json!({"spec.containers.0.securityContext.runAsNonRoot": false}),
            "runAsNonRoot != true (container \"c\" must not set securityContext.runAsNonRoot=false)",
        ),
        (
            json!({"spec.containers.0.securityContext.runAsUser": 0, "spec.securityContext": {"runAsUser": 0}}),
            "runAsUser=0 (pod and container \"c\" must not set runAsUser=0)",
        ),
        (
            json!({"spec.containers.0.securityContext.seccompProfile": null,
                "spec.securityContext": {"seccompProfile": {"type": "Localhost"}}}),
            "",
        ),
        (
            json!({"spec.ephemeralContainers": [{"name": "e", "securityContext": {"runAsNonRoot": true,
                "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"}}}]}),
            "allowPrivilegeEscalation != false (container \"e\" must set \
             securityContext.allowPrivilegeEscalation=false)",
        ),
        (
            json!({"spec.os": {"name": "windows"}, "spec.containers.0.securityContext": {"runAsNonRoot": true}}),
            "",
        ),
    ] {
        assert_eq!(said("restricted:latest", changes.clone()), want, "{changes}");
    }
}

#[test]
fn rules_came_with_releases() {
    let engine =
        json!({"spec.securityContext": {"seLinuxOptions": {"type": "container_engine_t"}}});
    let user = json!({"spec.securityContext": {"runAsUser": 0}});
    let keep = json!({"spec.securityContext": {"sysctls": [{"name": "net.ipv4.tcp_rmem"}]}});
    let probe = json!({"spec.containers.0.startupProbe": {"tcpSocket": {"host": "h"}}});
    let idle = json!({"spec.securityContext":
        {"sysctls": [{"name": "net.ipv4.tcp_slow_start_after_idle"}, {"name": "net.ipv4.tcp_notsent_lowat"}]}});
    let own_users = |field: &str, value: Value| json!({"spec.hostUsers": false, format!("spec.containers.0.securityContext.{field}"): value});
    let unmasked = own_users("procMount", json!("Unmasked"));
    let root = own_users("runAsUser", json!(0));
    let as_root = own_users("runAsNonRoot", json!(false));
    let as_host = json!({"spec.hostUsers": true, "spec.containers.0.securityContext.runAsUser": 0});
    let image = json!({"spec.volumes": [{"name": "v", "image": {"reference": "i"}}]});
    let alpha =
        json!({"metadata.annotations": {"seccomp.security.alpha.kubernetes.io/pod": "unconfined"}});
    for (level, changes, allowed) in [
        ("baseline:v1.30", &engine, false),
        ("baseline:v1.31", &engine, true),
        ("restricted:v1.22", &user, true),
        ("restricted:v1.23", &user, false),
        ("baseline:v1.31", &keep, false),
        ("baseline:v1.32", &keep, true),
        ("baseline:v1.36", &idle, false),
        ("baseline:v1.37", &idle, true),
        ("baseline:v1.34", &unmasked, false),
        ("baseline:v1.35", &unmasked, true),
        ("restricted:v1.35", &unmasked, false),
        ("restricted:v1.34", &root, false),
        ("restricted:v1.35", &root, true),
        ("restricted:v1.34", &as_root, false),
        ("restricted:latest", &as_root, true),
        ("restricted:latest", &as_host, false),
        ("restricted:v1.25", &image, true),
        ("baseline:v1.33", &probe, true),
        ("baseline:v1.34", &probe, false),
        ("baseline:v1.18", &alpha, false),
        ("baseline:v1.19", &alpha, true),
    ] {
        assert_eq!(said(level, changes.clone()).is_empty(), allowed, "{level} {changes}");
    }
}

#[test]
fn labels_of_namespaces() {
    // Labels without their prefix; what they mean; what is wrong.
    for (labels, want, wrong) in [
        ("", "privileged:latest privileged:latest privileged:latest", ""),
        ("enforce=baseline", "baseline:latest privileged:latest baseline:latest", ""),
        (
            "enforce=restricted enforce-version=v1.25 warn=baseline",
            "restricted:v1.25 privileged:latest baseline:latest",
            "",
        ),
        (
            "enforce=baseline enforce-version=v1.3",
            "baseline:v1.3 privileged:latest baseline:v1.3",
            "",
        ),
        (
            "enforce=strict audit=odd",
            "restricted:latest privileged:latest privileged:latest",
            "metadata.labels[pod-security.kubernetes.io/enforce]: Invalid value: \"strict\": must be one of \
             privileged, baseline, restricted; metadata.labels[pod-security.kubernetes.io/audit]: Invalid \
             value: \"odd\": must be one of privileged, baseline, restricted",
        ),
        (
            "warn-version=1.2",
            "privileged:latest privileged:latest privileged:latest",
            "metadata.labels[pod-security.kubernetes.io/warn-version]: Invalid value: \"1.2\": must be \
             \"latest\" or \"v1.x\"",
        ),
    ] {
        let mut namespace = json!({"metadata": {"labels": {}}});
        for (name, value) in labels.split_whitespace().filter_map(|pair| pair.split_once('=')) {
            namespace["metadata"]["labels"][format!("{PREFIX}{name}")] = value.into();
        }
        let (modes, causes) = Modes::of_namespace(&namespace);
        let found = format!("{} {} {}", modes.enforce, modes.audit, modes.warn);
        assert_eq!(found, want, "{labels}");
        let causes: Vec<_> = causes.0.iter().map(ToString::to_string).collect();
        assert_eq!(causes.join("; "), wrong, "{labels}");
    }
}

#[test]
fn existing_pods() {
    let bare =
        |name: &str| json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c"}]}});
    let mut network = pod(json!({"spec.hostNetwork": true}));
    network["metadata"]["name"] = "z".into();
    let pods = [bare("b"), network, bare("a"), pod(json!({})), bare("d")];
    let found = stricter("here", &rules("restricted:v1.30"), &pods, 9);
    assert_eq!(
        found,
        [
            "new PodSecurity enforce level only checked against the first 5 of 9 existing pods",
            "existing pods in namespace \"here\" violate the new PodSecurity enforce level \
             \"restricted:v1.30\"",
            "a (and 2 other pods): allowPrivilegeEscalation != false, unrestricted capabilities, \
             runAsNonRoot != true, seccompProfile",
            "z: host namespaces",
        ]
    );
    assert!(stricter("here", &rules("privileged:latest"), &pods, 5).is_empty());
}
