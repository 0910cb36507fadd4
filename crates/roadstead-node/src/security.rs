//! What a container may do: the security contexts of its pod and its own, read once into plain
//! values, or refused. Pure.
//!
//! Nothing is left out in silence: what we cannot give makes [`confine`] fail, and so does what
//! would give the node away, unless the operator allows that.

use k8s_openapi::api::core::v1::{
    Capabilities as Wished, Container, Pod, PodSecurityContext, PodSpec, SeccompProfile,
    SecurityContext,
};
use serde::{Deserialize, Serialize};

use crate::capabilities::{Capabilities, adjusted};

/// What the processes of a container may do.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Confinement {
    /// The capabilities of its root, and the most that any process of it can have.
    pub capabilities: Capabilities,
    /// Whether programs may make more of themselves than who starts them.
    pub escalation: Escalation,
    /// The user it runs as.
    pub user: u32,
    /// The group it runs as.
    pub group: u32,
    /// More groups.
    pub groups: Vec<u32>,
    /// Its root directory cannot be written to.
    pub read_only_root: bool,
    /// Which system calls it may make.
    pub seccomp: Seccomp,
    /// How much of the kernel it sees in /proc and /sys.
    pub kernel_paths: KernelPaths,
    /// Kernel parameters of its own namespaces, by name.
    pub sysctls: Vec<(String, String)>,
}

/// Whether set-user-id programs and file capabilities have any effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub enum Escalation {
    /// They have none.
    #[default]
    Forbidden,
    /// They have.
    Allowed,
}

/// Which system calls are allowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub enum Seccomp {
    /// Those of our own list.
    #[default]
    RuntimeDefault,
    /// All.
    Unconfined,
}

/// How much of the kernel a container sees and may change through files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub enum KernelPaths {
    /// The rest is masked or read-only.
    #[default]
    Masked,
    /// Everything.
    Open,
}

/// Whether pods may ask for what gives them the node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Policy {
    /// What the baseline level of the Pod Security Standards allows a container.
    Baseline,
    /// Everything.
    Privileged,
}

/// Kernel parameters that reach no further than the pod, as the kubelet lists them.
const SAFE_SYSCTLS: [&str; 14] = [
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

/// Returns what the container may do, or why it must not start.
pub(crate) fn confine(
    pod: &Pod,
    container: &Container,
    policy: Policy,
) -> Result<Confinement, String> {
    let (no_spec, no_pod, none) = Default::default();
    let spec: &PodSpec = pod.spec.as_ref().unwrap_or(&no_spec);
    let of_pod: &PodSecurityContext = spec.security_context.as_ref().unwrap_or(&no_pod);
    let own: &SecurityContext = container.security_context.as_ref().unwrap_or(&none);
    refuse_what_is_missing(spec, of_pod, own)?;
    let privileged = own.privileged.unwrap_or(false);
    if privileged && policy == Policy::Baseline {
        return Err(disallowed("a privileged container"));
    }
    let user = user(pod, container, of_pod, own)?;
    let groups = of_pod.supplemental_groups.iter().flatten().chain(&of_pod.fs_group);
    Ok(Confinement {
        capabilities: if privileged { Capabilities::all() } else { capabilities(own, policy)? },
        escalation: match privileged || own.allow_privilege_escalation == Some(true) {
            true => Escalation::Allowed,
            false => Escalation::Forbidden,
        },
        user,
        group: id("runAsGroup", own.run_as_group.or(of_pod.run_as_group).unwrap_or(0))?,
        groups: groups.map(|group| id("group", *group)).collect::<Result<_, _>>()?,
        read_only_root: own.read_only_root_filesystem.unwrap_or(false),
        seccomp: match privileged {
            true => Seccomp::Unconfined,
            false => seccomp(own, of_pod, policy)?,
        },
        kernel_paths: if privileged { KernelPaths::Open } else { KernelPaths::Masked },
        sysctls: sysctls(spec, of_pod)?,
    })
}

fn disallowed(what: &str) -> String {
    format!("{what} is disallowed by cluster policy: `roadstead up --allow-privileged` allows it")
}

fn refuse_what_is_missing(
    spec: &PodSpec,
    of_pod: &PodSecurityContext,
    own: &SecurityContext,
) -> Result<(), String> {
    let profile = own.app_armor_profile.as_ref().or(of_pod.app_armor_profile.as_ref());
    let missing = [
        ("hostPID", spec.host_pid == Some(true)),
        ("hostIPC", spec.host_ipc == Some(true)),
        ("shareProcessNamespace", spec.share_process_namespace == Some(true)),
        ("hostUsers: false", spec.host_users == Some(false)),
        ("procMount: Unmasked", own.proc_mount.as_deref() == Some("Unmasked")),
        ("seLinuxOptions", own.se_linux_options.is_some() || of_pod.se_linux_options.is_some()),
        ("windowsOptions", own.windows_options.is_some() || of_pod.windows_options.is_some()),
        ("a Localhost AppArmor profile", profile.is_some_and(|p| p.type_ == "Localhost")),
    ];
    match missing.into_iter().find(|(_, asked)| *asked) {
        Some((what, _)) => Err(format!("{what} is not supported by this node")),
        None => Ok(()),
    }
}

fn capabilities(own: &SecurityContext, policy: Policy) -> Result<Capabilities, String> {
    let Some(Wished { add, drop }) = &own.capabilities else { return Ok(Capabilities::usual()) };
    let [add, drop] = [add, drop].map(|names| names.as_deref().unwrap_or_default());
    let wanted = adjusted(add, drop)?;
    if policy == Policy::Baseline && !Capabilities::usual().contains(wanted) {
        let extra = add.iter().find(|name| {
            Capabilities::one(name).is_none_or(|one| !Capabilities::usual().contains(one))
        });
        let extra = extra.map(String::as_str).unwrap_or_default();
        return Err(disallowed(&format!("the capability {extra}")));
    }
    Ok(wanted)
}

fn seccomp(
    own: &SecurityContext,
    of_pod: &PodSecurityContext,
    policy: Policy,
) -> Result<Seccomp, String> {
    let profile: Option<&SeccompProfile> =
        own.seccomp_profile.as_ref().or(of_pod.seccomp_profile.as_ref());
    match (profile.map(|profile| profile.type_.as_str()), policy) {
        (None | Some("RuntimeDefault"), _) => Ok(Seccomp::RuntimeDefault),
        (Some("Unconfined"), Policy::Privileged) => Ok(Seccomp::Unconfined),
        (Some("Unconfined"), Policy::Baseline) => Err(disallowed("the seccomp profile Unconfined")),
        (Some(other), _) => Err(format!("a {other} seccomp profile is not supported by this node")),
    }
}

/// The built-in images are root's, so who must not be root has to say who to be.
fn user(
    pod: &Pod,
    container: &Container,
    of_pod: &PodSecurityContext,
    own: &SecurityContext,
) -> Result<u32, String> {
    let user = own.run_as_user.or(of_pod.run_as_user);
    if own.run_as_non_root.or(of_pod.run_as_non_root) == Some(true) && user.unwrap_or(0) == 0 {
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        let meta = &pod.metadata;
        let [name, namespace, uid] = [&meta.name, &meta.namespace, &meta.uid].map(text);
        let which = format!("(pod: \"{name}_{namespace}({uid})\", container: {})", container.name);
        return Err(match user {
            Some(_) => format!("container's runAsUser breaks non-root policy {which}"),
            None => format!("container has runAsNonRoot and image will run as root {which}"),
        });
    }
    id("runAsUser", user.unwrap_or(0))
}

fn id(field: &str, number: i64) -> Result<u32, String> {
    // The last one means "unchanged" to the kernel.
    let id = u32::try_from(number).ok().filter(|id| *id != u32::MAX);
    id.ok_or_else(|| format!("{field} {number} is not an id"))
}

fn sysctls(spec: &PodSpec, of_pod: &PodSecurityContext) -> Result<Vec<(String, String)>, String> {
    let mut sysctls = Vec::new();
    for sysctl in of_pod.sysctls.iter().flatten() {
        let name = sysctl.name.replace('/', ".");
        let of_host = spec.host_network == Some(true) && name.starts_with("net.");
        if of_host || !SAFE_SYSCTLS.contains(&name.as_str()) {
            return Err(format!("forbidden sysctl: {:?} not allowlisted", sysctl.name));
        }
        sysctls.push((name, sysctl.value.clone()));
    }
    Ok(sysctls)
}

#[cfg(test)]
mod tests;
