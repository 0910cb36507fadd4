//! Kernel parameters that a pod sets for itself: those that reach no further than the pod, and those that the
//! operator lets pods set besides. Pure.

use std::fmt;
use std::str::FromStr;

use k8s_openapi::api::core::v1::{Pod, PodSpec};

/// Kernel parameters that reach no further than the pod, as the kubelet lists them.
const SAFE: [&str; 14] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_notsent_lowat",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_slow_start_after_idle",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_wmem",
];

/// Which namespace has a parameter of its own: what begins so.
const NAMESPACES: [(&str, Namespace); 5] = [
    ("net.", Namespace::Net),
    ("kernel.shm", Namespace::Ipc),
    ("kernel.msg", Namespace::Ipc),
    ("kernel.sem", Namespace::Ipc),
    ("fs.mqueue.", Namespace::Ipc),
];

/// A namespace with kernel parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Namespace {
    Net,
    Ipc,
}

impl Namespace {
    /// That of the parameters of which all names begin so.
    fn of(prefix: &str) -> Option<Self> {
        let found = NAMESPACES.iter().find(|(known, _)| prefix.starts_with(known));
        found.map(|(_, namespace)| *namespace)
    }

    /// Whether a pod has the node's own.
    fn is_the_nodes(self, spec: &PodSpec) -> bool {
        match self {
            Self::Net => spec.host_network == Some(true),
            Self::Ipc => spec.host_ipc == Some(true),
        }
    }
}

/// In upstream's words.
impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Net => "Net",
            Self::Ipc => "IPC",
        })
    }
}

/// Parameters that pods may set although they are not known to be harmless: `kernel.msg*,net.core.somaxconn`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnsafeSysctls(Vec<String>);

/// None.
pub(crate) static NO_UNSAFE_SYSCTLS: UnsafeSysctls = UnsafeSysctls(Vec::new());

impl UnsafeSysctls {
    fn has(&self, name: &str) -> bool {
        self.0.iter().any(|pattern| match pattern.strip_suffix('*') {
            Some(prefix) => name.starts_with(prefix),
            None => name == pattern,
        })
    }
}

impl FromStr for UnsafeSysctls {
    type Err = String;

    /// Those of the whole machine are not for pods, whoever allows it.
    fn from_str(text: &str) -> Result<Self, String> {
        let patterns = text.split(',').map(str::trim).filter(|pattern| !pattern.is_empty());
        let patterns = patterns.map(|pattern| {
            let pattern = dotted(pattern);
            match Namespace::of(pattern.trim_end_matches('*')) {
                _ if pattern.trim_end_matches('*').contains('*') => {
                    Err(format!("{pattern}: only the last character may be *"))
                }
                None => Err(format!("{pattern}: pods have none of these of their own")),
                Some(_) => Ok(pattern),
            }
        });
        patterns.collect::<Result<_, _>>().map(Self)
    }
}

fn dotted(name: &str) -> String {
    name.replace('/', ".")
}

/// What is wrong with the pod's kernel parameters, if anything is.
pub(crate) fn forbidden_sysctl(pod: &Pod, allowed: &UnsafeSysctls) -> Option<String> {
    sysctls(pod.spec.as_ref()?, allowed).err()
}

/// The kernel parameters of a pod; none if it may not have them all.
pub(crate) fn allowed_sysctls(pod: &Pod, allowed: &UnsafeSysctls) -> Vec<(String, String)> {
    pod.spec.as_ref().and_then(|spec| sysctls(spec, allowed).ok()).unwrap_or_default()
}

/// The kernel parameters of a pod, or which of them it may not have, in upstream's words.
pub(crate) fn sysctls(
    spec: &PodSpec,
    allowed: &UnsafeSysctls,
) -> Result<Vec<(String, String)>, String> {
    let of_pod = spec.security_context.as_ref();
    let wished = of_pod.into_iter().flat_map(|of_pod| of_pod.sysctls.iter().flatten());
    wished
        .map(|sysctl| {
            let name = dotted(&sysctl.name);
            // The kernel takes a path for a name, too, and ours must not lead elsewhere.
            let is_name = name.split('.').all(|part| !part.is_empty());
            let listed = SAFE.contains(&name.as_str()) || allowed.has(&name);
            match Namespace::of(&name).filter(|_| listed && is_name) {
                None => Err(format!("forbidden sysctl: {name:?} not allowlisted")),
                Some(namespace) if namespace.is_the_nodes(spec) => Err(format!(
                    "forbidden sysctl: {name:?} not allowed with host {namespace} enabled"
                )),
                Some(_) => Ok((name, sysctl.value.clone())),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_pods_may_set() {
        let no = |name: &str| format!("forbidden sysctl: {name:?} not allowlisted");
        let host = |name: &str, what: &str| {
            format!("forbidden sysctl: {name:?} not allowed with host {what} enabled")
        };
        let (port, shared) = ("net.ipv4.ip_local_port_range", "kernel.shm_rmid_forced");
        for (name, given, allowed, words, want) in [
            ("a safe one", port, "", "", Ok(port)),
            ("written as a path", "net/ipv4/ip_local_port_range", "", "", Ok(port)),
            ("of messages", shared, "", "", Ok(shared)),
            ("with the node's network", port, "", "net", Err(host(port, "Net"))),
            ("with the node's messages", shared, "", "ipc", Err(host(shared, "IPC"))),
            ("messages, with its network", shared, "", "net", Ok(shared)),
            ("an unsafe one", "net.core.somaxconn", "", "", Err(no("net.core.somaxconn"))),
            (
                "allowed by name",
                "net.core.somaxconn",
                "net.core.somaxconn",
                "",
                Ok("net.core.somaxconn"),
            ),
            ("allowed by pattern", "kernel.msgmax", "x.y,kernel.msg*", "", Ok("kernel.msgmax")),
            ("another name", "kernel.shmmax", "kernel.msg*", "", Err(no("kernel.shmmax"))),
            (
                "allowed, the node's",
                "kernel.msgmax",
                "kernel.msg*",
                "ipc",
                Err(host("kernel.msgmax", "IPC")),
            ),
            ("of the machine", "kernel.core_pattern", "", "", Err(no("kernel.core_pattern"))),
            (
                "a way up",
                "net.ipv4....kernel.panic",
                "net.*",
                "",
                Err(no("net.ipv4....kernel.panic")),
            ),
        ] {
            let context = json!({"sysctls": [{"name": given, "value": "1"}]});
            let spec = json!({"containers": [], "securityContext": context,
                "hostNetwork": words == "net", "hostIPC": words == "ipc"});
            let spec: PodSpec = serde_json::from_value(spec).unwrap();
            let allowed = UnsafeSysctls(allowed.split(',').map(str::to_owned).collect());
            let got = sysctls(&spec, &allowed);
            let want = want.map(|name| vec![(name.to_owned(), "1".to_owned())]);
            assert_eq!(got, want, "{name}");
        }
    }

    #[test]
    fn what_operators_may_allow() {
        for (text, want) in [
            ("", Ok(0)),
            ("kernel.msg*, net/core/somaxconn", Ok(2)),
            ("kernel.sem", Ok(1)),
            ("fs.mqueue.msg_max", Ok(1)),
            (
                "kernel.core_pattern",
                Err("kernel.core_pattern: pods have none of these of their own"),
            ),
            ("kernel.*", Err("kernel.*: pods have none of these of their own")),
            ("*", Err("*: pods have none of these of their own")),
            ("net.*.x*", Err("net.*.x*: only the last character may be *")),
        ] {
            let got = text.parse::<UnsafeSysctls>().map(|all| all.0.len());
            assert_eq!(got, want.map_err(str::to_owned), "{text}");
        }
    }
}
