//! The rules of the level baseline.

use std::collections::BTreeSet;

use roadstead_schema::json::Pointer;
use serde_json::Value;

use super::containers::{Setters, all, named, names, plural, quoted};
use super::{Level, PodRules, Violation};

const APP_ARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";
const SECCOMP_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
const SECCOMP: &str = "container.seccomp.security.alpha.kubernetes.io/";

const CAPABILITIES: [&str; 13] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

/// Settings of the kernel that are a pod's own, and since which release they count as that.
const SYSCTLS: [(&str, u32); 14] = [
    ("kernel.shm_rmid_forced", 0),
    ("net.ipv4.ip_local_port_range", 0),
    ("net.ipv4.tcp_syncookies", 0),
    ("net.ipv4.ping_group_range", 0),
    ("net.ipv4.ip_unprivileged_port_start", 0),
    ("net.ipv4.ip_local_reserved_ports", 27),
    ("net.ipv4.tcp_keepalive_time", 29),
    ("net.ipv4.tcp_fin_timeout", 29),
    ("net.ipv4.tcp_keepalive_intvl", 29),
    ("net.ipv4.tcp_keepalive_probes", 29),
    ("net.ipv4.tcp_rmem", 32),
    ("net.ipv4.tcp_wmem", 32),
    ("net.ipv4.tcp_notsent_lowat", 37),
    ("net.ipv4.tcp_slow_start_after_idle", 37),
];

/// Finds what the level does not allow. What the level restricted says in other words is left to it.
pub(super) fn check(pod: &Value, rules: &PodRules, found: &mut Vec<Violation>) {
    let strict = |since: u32| rules.level == Level::Restricted && rules.version.has(since);
    found.extend(app_armor(pod));
    if !strict(22) {
        found.extend(capabilities(pod));
    }
    found.extend(host_namespaces(pod));
    if !strict(0) {
        found.extend(host_paths(pod));
    }
    found.extend(host_ports(pod));
    if rules.version.has(34) {
        found.extend(probes(pod));
    }
    found.extend(privileged(pod));
    if strict(0) || !has_own_users(pod, rules) {
        found.extend(proc_mount(pod));
    }
    found.extend(se_linux(pod, rules));
    if !strict(19) {
        found.extend(seccomp(pod, rules));
    }
    found.extend(sysctls(pod, rules));
    found.extend(host_process(pod));
}

/// Whether root of the pod is nobody outside of it (KEP-127).
pub(super) fn has_own_users(pod: &Value, rules: &PodRules) -> bool {
    rules.version.has(35) && pod.pointer("/spec/hostUsers") == Some(&Value::Bool(false))
}

fn app_armor(pod: &Value) -> Option<Violation> {
    let bad = |context: &'_ Value| -> bool {
        !matches!(context.text("/appArmorProfile/type"), "" | "RuntimeDefault" | "Localhost")
    };
    let setters = Setters::find(pod, |own| bad(own).then(|| own.text("/appArmorProfile/type")));
    let mut values: Vec<String> = setters.values.iter().map(|value| (*value).to_owned()).collect();
    let mut who = setters.who;
    let forbidden = pod.fields("/metadata/annotations").filter_map(|(name, value)| {
        let value = value.as_str()?;
        let allowed = matches!(value, "" | "runtime/default") || value.starts_with("localhost/");
        (name.starts_with(APP_ARMOR) && !allowed).then(|| format!("{name}={value:?}"))
    });
    let forbidden: BTreeSet<_> = forbidden.collect();
    if !forbidden.is_empty() {
        who.push(plural("annotation", "annotations", forbidden.len()).to_owned());
        values.extend(forbidden);
    }
    (!who.is_empty()).then(|| {
        let profiles = ["forbidden AppArmor profile", "forbidden AppArmor profiles"];
        let values_said = quoted(values.iter().map(String::as_str));
        Violation::new(
            plural(profiles[0], profiles[1], values.len()),
            format!("{} must not set AppArmor profile type to {values_said}", who.join(" and ")),
        )
    })
}

/// The capabilities that containers add beyond those that are allowed, with the containers.
pub(super) fn added<'a>(pod: &'a Value, allowed: &[&str]) -> Option<String> {
    let of = |container: &'a Value| {
        let all = container.list("/securityContext/capabilities/add").iter();
        all.filter_map(Value::as_str).filter(|own| !allowed.contains(own))
    };
    let forbidden: BTreeSet<_> = all(pod).flat_map(of).collect();
    let containers = names(pod, |own| {
        let added = own.list("/securityContext/capabilities/add").iter().filter_map(Value::as_str);
        added.into_iter().any(|added| !allowed.contains(&added))
    });
    (!forbidden.is_empty()).then(|| {
        format!(
            "{} must not include {} in securityContext.capabilities.add",
            named(&containers),
            quoted(forbidden.into_iter())
        )
    })
}

fn capabilities(pod: &Value) -> Option<Violation> {
    added(pod, &CAPABILITIES).map(|detail| Violation::new("non-default capabilities", detail))
}

fn host_namespaces(pod: &Value) -> Option<Violation> {
    let used = ["hostNetwork", "hostPID", "hostIPC"].into_iter();
    let used = used.filter(|field| pod["spec"][field] == true).map(|field| format!("{field}=true"));
    let used: Vec<_> = used.collect();
    (!used.is_empty()).then(|| Violation::new("host namespaces", used.join(", ")))
}

fn host_paths(pod: &Value) -> Option<Violation> {
    let volumes = pod.list("/spec/volumes").iter().filter(|volume| volume.has("/hostPath"));
    let volumes: Vec<_> = volumes.map(|volume| volume.text("/name")).collect();
    let said = plural("volume", "volumes", volumes.len());
    (!volumes.is_empty()).then(|| {
        Violation::new("hostPath volumes", format!("{said} {}", quoted(volumes.into_iter())))
    })
}

fn host_ports(pod: &Value) -> Option<Violation> {
    let of = |container: &Value| {
        let ports = container.list("/ports").iter().map(|port| port.int("/hostPort"));
        ports.filter(|port| *port != 0).map(|port| port.to_string()).collect::<Vec<_>>()
    };
    let containers = names(pod, |container| !of(container).is_empty());
    let ports: BTreeSet<_> = all(pod).flat_map(of).collect();
    (!ports.is_empty()).then(|| {
        let uses = plural("uses", "use", containers.len());
        let what = plural("hostPort", "hostPorts", ports.len());
        let ports: Vec<_> = ports.into_iter().collect();
        Violation::new(
            "hostPort",
            format!("{} {uses} {what} {}", named(&containers), ports.join(", ")),
        )
    })
}

/// Probes and hooks of another host are sent by the node, which reaches more than the pod.
fn probes(pod: &Value) -> Option<Violation> {
    let handlers = [
        "/livenessProbe",
        "/readinessProbe",
        "/startupProbe",
        "/lifecycle/postStart",
        "/lifecycle/preStop",
    ];
    let of = |container: &'_ Value| -> Vec<String> {
        let hosts = handlers.iter().flat_map(|handler| {
            ["httpGet", "tcpSocket"]
                .map(|how| container.text(&format!("{handler}/{how}/host")).to_owned())
        });
        hosts.filter(|host| !host.is_empty()).collect()
    };
    let hosts: BTreeSet<_> = all(pod).flat_map(of).collect();
    let mut containers = names(pod, |container| !of(container).is_empty());
    containers.sort_unstable();
    (!hosts.is_empty()).then(|| {
        let uses = plural("uses", "use", containers.len());
        let what = plural("probe or lifecycle host", "probe or lifecycle hosts", hosts.len());
        let hosts = quoted(hosts.iter().map(String::as_str));
        Violation::new(
            "probe or lifecycle host",
            format!("{} {uses} {what} {hosts}", named(&containers)),
        )
    })
}

fn privileged(pod: &Value) -> Option<Violation> {
    let containers = names(pod, |own| own.flag("/securityContext/privileged"));
    (!containers.is_empty()).then(|| {
        let detail = format!("{} must not set securityContext.privileged=true", named(&containers));
        Violation::new("privileged", detail)
    })
}

fn proc_mount(pod: &Value) -> Option<Violation> {
    let is_bad = |own: &Value| !matches!(own.text("/securityContext/procMount"), "" | "Default");
    let containers = names(pod, is_bad);
    let bad = all(pod).filter(|own| is_bad(own));
    let values: BTreeSet<_> = bad.map(|own| own.text("/securityContext/procMount")).collect();
    (!containers.is_empty()).then(|| {
        let detail = format!(
            "{} must not set securityContext.procMount to {}",
            named(&containers),
            quoted(values.into_iter())
        );
        Violation::new("procMount", detail)
    })
}

fn se_linux(pod: &Value, rules: &PodRules) -> Option<Violation> {
    let is_bad_type = |kind: &str| match kind {
        "" | "container_t" | "container_init_t" | "container_kvm_t" => false,
        "container_engine_t" => !rules.version.has(31),
        _ => true,
    };
    let bad_type = |own: &Value| is_bad_type(own.text("/seLinuxOptions/type"));
    let sets = |own: &Value, field: &str| !own.text(&format!("/seLinuxOptions/{field}")).is_empty();
    let is_bad = |own: &Value| bad_type(own) || sets(own, "user") || sets(own, "role");
    let setters = Setters::find(pod, |own| is_bad(own).then(|| own.text("/seLinuxOptions/type")));
    let types: Vec<_> = setters.values.iter().copied().filter(|kind| is_bad_type(kind)).collect();
    let contexts: Vec<_> = [&pod["spec"]["securityContext"]]
        .into_iter()
        .chain(all(pod).map(|own| &own["securityContext"]))
        .collect();
    let mut wrong = Vec::new();
    if !types.is_empty() {
        let said = plural("type", "types", types.len());
        wrong.push(format!("{said} {}", quoted(types.into_iter())));
    }
    for field in ["user", "role"] {
        if contexts.iter().any(|own| sets(own, field)) {
            wrong.push(format!("{field} may not be set"));
        }
    }
    (!setters.who.is_empty()).then(|| {
        let detail = format!(
            "{} set forbidden securityContext.seLinuxOptions: {}",
            setters.said(),
            wrong.join("; ")
        );
        Violation::new("seLinuxOptions", detail)
    })
}

/// The type of a seccomp profile, if it is one that nobody may have.
pub(super) fn bad_seccomp(context: &Value) -> Option<&str> {
    let kind = context.text("/seccompProfile/type");
    let bad = context.has("/seccompProfile") && !matches!(kind, "RuntimeDefault" | "Localhost");
    bad.then_some(kind)
}

fn seccomp(pod: &Value, rules: &PodRules) -> Option<Violation> {
    if rules.version.has(19) {
        return explicit_seccomp(pod);
    }
    let annotations = pod.fields("/metadata/annotations").filter_map(|(name, value)| {
        let value = value.as_str()?;
        let own = name.strip_prefix(SECCOMP).map(|own| names(pod, |it| it.text("/name") == own));
        let about = name == SECCOMP_POD || own.is_some_and(|found| !found.is_empty());
        let allowed = matches!(value, "runtime/default" | "docker/default")
            || value.starts_with("localhost/");
        (about && !allowed).then(|| format!("{name}={value:?}"))
    });
    let forbidden: BTreeSet<_> = annotations.collect();
    let said = plural("annotation", "annotations", forbidden.len());
    (!forbidden.is_empty()).then(|| {
        let forbidden: Vec<_> = forbidden.into_iter().collect();
        Violation::new("seccompProfile", format!("forbidden {said} {}", forbidden.join(", ")))
    })
}

/// Who asks for a seccomp profile that nobody may have.
pub(super) fn explicit_seccomp(pod: &Value) -> Option<Violation> {
    let setters = Setters::find(pod, bad_seccomp);
    (!setters.who.is_empty()).then(|| {
        let detail = format!(
            "{} must not set securityContext.seccompProfile.type to {}",
            setters.said(),
            quoted(setters.values.iter().copied())
        );
        Violation::new("seccompProfile", detail)
    })
}

fn sysctls(pod: &Value, rules: &PodRules) -> Option<Violation> {
    let allowed = |name: &str| {
        SYSCTLS.iter().any(|(known, since)| *known == name && rules.version.has(*since))
    };
    let all = pod.list("/spec/securityContext/sysctls").iter().map(|own| own.text("/name"));
    let forbidden: Vec<_> = all.filter(|name| !allowed(name)).collect();
    (!forbidden.is_empty()).then(|| Violation::new("forbidden sysctls", forbidden.join(", ")))
}

fn host_process(pod: &Value) -> Option<Violation> {
    let setters = Setters::find(pod, |own| own.flag("/windowsOptions/hostProcess").then_some(""));
    (!setters.who.is_empty()).then(|| {
        let detail = "must not set securityContext.windowsOptions.hostProcess=true";
        Violation::new("hostProcess", format!("{} {detail}", setters.said()))
    })
}
