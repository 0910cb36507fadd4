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

use crate::builtin_image::{self, BuiltInImage};
use crate::capabilities::{Capabilities, adjusted};
use crate::ephemeral;
use crate::image::{ImageContent, ImageUsers};
use crate::mandatory::{self, AppArmor, Mandatory};
use crate::probe::Kind;
use crate::seccomp_profile::profile_path;
use crate::sysctls::{NO_UNSAFE_SYSCTLS, UnsafeSysctls, sysctls};
use crate::user::{self, Account};

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
    /// What the runtime has to look up in the image, because only it can.
    pub unresolved: Option<Unresolved>,
    /// What AppArmor and SELinux hold it to.
    pub mandatory: Mandatory,
}

/// What an image says of its user, which only the runtime understands.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Unresolved {
    /// The image's own user, if it or its group is a name.
    pub user: Option<String>,
    /// Whether the group is whichever the user has there.
    pub group: bool,
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
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub enum Seccomp {
    /// Those of our own list.
    #[default]
    RuntimeDefault,
    /// Those of a list of the operator's, which is below the directory of profiles at this path.
    Localhost(String),
    /// All.
    Unconfined,
}

/// How much of the kernel a container sees and may change through files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub enum KernelPaths {
    /// The rest is masked or read-only.
    #[default]
    Masked,
    /// All of it, and it may change what is in /proc.
    Unmasked,
    /// Everything, and all devices.
    Open,
}

/// Nobody in a container sees what is behind these, unless it is privileged.
pub const MASKED_PATHS: [&str; 12] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
];

/// Nobody in a container changes these, unless it is privileged.
pub const READ_ONLY_PATHS: [&str; 5] =
    ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// Whether pods may ask for what gives them the node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Policy {
    /// What the baseline level of the Pod Security Standards allows a pod, host ports aside.
    Baseline,
    /// Everything.
    Privileged,
}

/// What the operator lets pods ask for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leave<'a> {
    pub(crate) policy: Policy,
    pub(crate) sysctls: &'a UnsafeSysctls,
}

impl From<Policy> for Leave<'static> {
    fn from(policy: Policy) -> Self {
        Self { policy, sysctls: &NO_UNSAFE_SYSCTLS }
    }
}

/// Returns what the container may do, or why it must not start.
pub(crate) fn confine(
    pod: &Pod,
    container: &Container,
    image: &ImageContent,
    Leave { policy, sysctls: allowed_sysctls }: Leave<'_>,
) -> Result<Confinement, String> {
    let (no_spec, no_pod, none) = Default::default();
    let spec: &PodSpec = pod.spec.as_ref().unwrap_or(&no_spec);
    let of_pod: &PodSecurityContext = spec.security_context.as_ref().unwrap_or(&no_pod);
    let own: &SecurityContext = container.security_context.as_ref().unwrap_or(&none);
    refuse_what_is_missing(spec, of_pod, own)?;
    let part = matches!(image, ImageContent::BuiltIn(image) if image.is_part());
    if policy == Policy::Baseline && !(part && is_of_parts(pod)) {
        if let Some((what, _)) = of_the_node(spec).into_iter().find(|(_, asked)| *asked) {
            return Err(disallowed(what));
        }
        if asks_other_hosts(container) {
            return Err(disallowed("a probe or hook that asks another host"));
        }
    }
    let privileged = own.privileged.unwrap_or(false);
    if privileged && policy == Policy::Baseline {
        return Err(disallowed("a privileged container"));
    }
    let asked = own.run_as_user.or(of_pod.run_as_user);
    let account = account(image, asked)?;
    refuse_root(pod, container, image)?;
    let asked_group = own.run_as_group.or(of_pod.run_as_group);
    let group = match asked_group {
        Some(group) => id("runAsGroup", group)?,
        None => account.group,
    };
    let groups = of_pod.supplemental_groups.iter().flatten().chain(&of_pod.fs_group);
    let mut groups = groups.map(|group| id("group", *group)).collect::<Result<Vec<_>, String>>()?;
    if of_pod.supplemental_groups_policy.as_deref() != Some("Strict") {
        groups.extend(
            account
                .groups
                .iter()
                .filter(|more| !groups.contains(more))
                .copied()
                .collect::<Vec<_>>(),
        );
    }
    // Images of others may need programs that make more of whoever starts them; the built-in ones have none.
    let escalation = match (image, own.allow_privilege_escalation) {
        (_, Some(allowed)) => allowed,
        (ImageContent::Layers(_), None) => true,
        (ImageContent::BuiltIn(_), None) => false,
    };
    Ok(Confinement {
        capabilities: match privileged {
            true => Capabilities::all(),
            false => capabilities(own, allowed(spec, container, policy))?,
        },
        escalation: match privileged || escalation {
            true => Escalation::Allowed,
            false => Escalation::Forbidden,
        },
        user: account.user,
        group,
        groups,
        read_only_root: own.read_only_root_filesystem.unwrap_or(false),
        seccomp: match privileged {
            true => Seccomp::Unconfined,
            false => seccomp(own, of_pod, policy)?,
        },
        kernel_paths: match privileged {
            true => KernelPaths::Open,
            false => kernel_paths(own, policy)?,
        },
        sysctls: sysctls(spec, allowed_sysctls)?,
        unresolved: unresolved(image, asked, asked_group),
        mandatory: Mandatory {
            app_armor: match privileged {
                true => AppArmor::Unconfined,
                false => mandatory::app_armor(of_pod, own, policy)?,
            },
            se_linux: mandatory::se_linux(of_pod, own, policy)?,
        },
    })
}

pub(crate) fn disallowed(what: &str) -> String {
    format!("{what} is disallowed by cluster policy: `roadstead up --allow-privileged` allows it")
}

fn refuse_what_is_missing(
    spec: &PodSpec,
    of_pod: &PodSecurityContext,
    own: &SecurityContext,
) -> Result<(), String> {
    let missing = [
        ("hostUsers: false", spec.host_users == Some(false)),
        ("windowsOptions", own.windows_options.is_some() || of_pod.windows_options.is_some()),
    ];
    match missing.into_iter().find(|(_, asked)| *asked) {
        Some((what, _)) => Err(format!("{what} is not supported by this node")),
        None => Ok(()),
    }
}

/// Namespaces of the node, and which of them the pod asks for.
fn of_the_node(spec: &PodSpec) -> [(&'static str, bool); 3] {
    [
        (HOST_NETWORK, spec.host_network == Some(true)),
        ("the processes of the node (hostPID)", spec.host_pid == Some(true)),
        ("the memory and messages of the node (hostIPC)", spec.host_ipc == Some(true)),
    ]
}

const HOST_NETWORK: &str = "the network of the node (hostNetwork)";

/// Whoever may make pods here may restart what the cluster lives on anyway: parts of our process show as
/// containers of these.
pub const PARTS_NAMESPACE: &str = "kube-system";

/// Whether its containers may be parts of our own process: then nothing runs in them.
fn is_of_parts(pod: &Pod) -> bool {
    pod.metadata.namespace.as_deref() == Some(PARTS_NAMESPACE)
}

/// Why the pod may not have the network of its node, if it wants that. Nothing of it may be there, not even
/// without containers: who forwards ports to it reaches what listens on the node only for itself.
pub fn forbidden_host_network(pod: &Pod, policy: Policy) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    let images = spec.init_containers.iter().flatten().chain(&spec.containers);
    let mut images = images.map(|container| container.image.as_deref().unwrap_or_default());
    let asks = policy == Policy::Baseline && spec.host_network == Some(true);
    let parts = is_of_parts(pod)
        && images.all(|image| builtin_image::find(image).is_some_and(BuiltInImage::is_part));
    (asks && !parts).then(|| disallowed(HOST_NETWORK))
}

/// Probes and hooks are sent by the node, which reaches more than a pod does.
fn asks_other_hosts(container: &Container) -> bool {
    let kinds = [Kind::Startup, Kind::Readiness, Kind::Liveness];
    let probes = kinds.into_iter().filter_map(|kind| kind.of(container));
    let mut hosts: Vec<_> = probes
        .flat_map(|probe| {
            let http = probe.http_get.as_ref().and_then(|http| http.host.as_deref());
            [http, probe.tcp_socket.as_ref().and_then(|tcp| tcp.host.as_deref())]
        })
        .collect();
    let hooks = container.lifecycle.iter().flat_map(|all| [&all.post_start, &all.pre_stop]);
    let gets = hooks.flatten().filter_map(|hook| hook.http_get.as_ref());
    hosts.extend(gets.map(|http| http.host.as_deref()));
    hosts.into_iter().flatten().any(|host| !host.is_empty())
}

/// The most that the container may ask for.
fn allowed(spec: &PodSpec, container: &Container, policy: Policy) -> Capabilities {
    let is_ephemeral = ephemeral::find(spec, &container.name).is_some();
    let is_shared = spec.share_process_namespace == Some(true);
    match (policy, is_ephemeral && !is_shared) {
        (Policy::Privileged, _) => Capabilities::all(),
        (Policy::Baseline, false) => Capabilities::usual(),
        // Debuggers trace. They reach no further than the processes that they see, which are the pod's. Where
        // all of a pod see each other, some of these are containers that are just being made, and have
        // everything yet.
        (Policy::Baseline, true) => {
            let trace = Capabilities::one("SYS_PTRACE").unwrap_or(Capabilities::NONE);
            Capabilities::usual().with(trace)
        }
    }
}

fn capabilities(own: &SecurityContext, allowed: Capabilities) -> Result<Capabilities, String> {
    let Some(Wished { add, drop }) = &own.capabilities else { return Ok(Capabilities::usual()) };
    let [add, drop] = [add, drop].map(|names| names.as_deref().unwrap_or_default());
    let wanted = adjusted(add, drop)?;
    if !allowed.contains(wanted) {
        let extra = add
            .iter()
            .find(|name| Capabilities::one(name).is_none_or(|one| !allowed.contains(one)));
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
        (Some("Localhost"), _) => {
            let path = profile.and_then(|profile| profile.localhost_profile.as_deref());
            Ok(Seccomp::Localhost(profile_path(path.unwrap_or_default())?))
        }
        (Some(other), _) => Err(format!("a {other} seccomp profile is not supported by this node")),
    }
}

/// Without a user namespace, what is usually hidden is the node's own.
fn kernel_paths(own: &SecurityContext, policy: Policy) -> Result<KernelPaths, String> {
    match (own.proc_mount.as_deref(), policy) {
        (Some("Unmasked"), Policy::Privileged) => Ok(KernelPaths::Unmasked),
        (Some("Unmasked"), Policy::Baseline) => Err(disallowed("procMount: Unmasked")),
        _ => Ok(KernelPaths::Masked),
    }
}

/// Who the container runs as: whoever the pod says, or else its image.
fn account(image: &ImageContent, asked: Option<i64>) -> Result<Account, String> {
    let asked = asked.map(|user| id("runAsUser", user)).transpose()?;
    match (image, asked) {
        (ImageContent::BuiltIn(_), user) => {
            Ok(Account { user: user.unwrap_or(0), home: "/".into(), ..Account::default() })
        }
        (ImageContent::Layers(image), Some(user)) => Ok(user::with_number(image, user)),
        (ImageContent::Layers(image), None) if image.users == ImageUsers::KnownToRuntime => {
            let (user, group) = image.user.split_once(':').unwrap_or((&image.user, ""));
            let number = |text: &str| text.parse().unwrap_or(0);
            let (user, group) = (number(user), number(group));
            Ok(Account { user, group, groups: vec![], home: String::new() })
        }
        (ImageContent::Layers(image), None) => user::of_image(image),
    }
}

/// What is left to a runtime that has the image's files. A group that the image names is one.
fn unresolved(
    image: &ImageContent,
    asked: Option<i64>,
    asked_group: Option<i64>,
) -> Option<Unresolved> {
    let ImageContent::Layers(image) = image else { return None };
    if image.users == ImageUsers::Listed {
        return None;
    }
    let (user, group) = image.user.split_once(':').unwrap_or((&image.user, ""));
    let is_name = |text: &str| !text.is_empty() && text.parse::<u32>().is_err();
    let is_named = is_name(user) || is_name(group);
    Some(Unresolved {
        user: (asked.is_none() && is_named).then(|| user.to_owned()),
        group: asked_group.is_none() && (asked.is_some() || group.parse::<u32>().is_err()),
    })
}

/// A container that must not be root has to say who to be, by a number that is not root's.
fn refuse_root(pod: &Pod, container: &Container, image: &ImageContent) -> Result<(), String> {
    let of_pod = pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref());
    let own = container.security_context.as_ref();
    let must_not = own.and_then(|own| own.run_as_non_root);
    if must_not.or(of_pod.and_then(|of_pod| of_pod.run_as_non_root)) != Some(true) {
        return Ok(());
    }
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    let meta = &pod.metadata;
    let [name, namespace, uid] = [&meta.name, &meta.namespace, &meta.uid].map(text);
    let which = format!("(pod: \"{name}_{namespace}({uid})\", container: {})", container.name);
    let asked = own.and_then(|own| own.run_as_user);
    let image_user = match image {
        ImageContent::BuiltIn(_) => "0",
        ImageContent::Layers(image) => image.user.split(':').next().unwrap_or_default(),
    };
    match (asked.or(of_pod.and_then(|of_pod| of_pod.run_as_user)), image_user) {
        (Some(0), _) => Err(format!("container's runAsUser breaks non-root policy {which}")),
        (Some(_), _) => Ok(()),
        (None, "" | "0") => {
            Err(format!("container has runAsNonRoot and image will run as root {which}"))
        }
        (None, user) if user.parse::<u32>().is_err() => Err(format!(
            "container has runAsNonRoot and image has non-numeric user ({user}), cannot verify user is non-root {which}"
        )),
        (None, _) => Ok(()),
    }
}

/// Where the files of the user are that a container of this image runs as; empty if only its runtime knows.
pub(crate) fn home(image: &ImageContent, user: u32) -> String {
    match image {
        ImageContent::BuiltIn(_) => "/".into(),
        ImageContent::Layers(image) if image.users == ImageUsers::KnownToRuntime => String::new(),
        ImageContent::Layers(image) => user::with_number(image, user).home,
    }
}

fn id(field: &str, number: i64) -> Result<u32, String> {
    // The last one means "unchanged" to the kernel.
    let id = u32::try_from(number).ok().filter(|id| *id != u32::MAX);
    id.ok_or_else(|| format!("{field} {number} is not an id"))
}

#[cfg(test)]
mod tests;
