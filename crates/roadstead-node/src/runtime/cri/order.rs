//! From what a container is to be to how CRI says it: pure.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use roadstead_pod::container_config::ContainerConfig;
use roadstead_pod::mandatory::{AppArmor, SeLinuxLabel};
use roadstead_pod::pod_name::{NetworkMode, PodName};
use roadstead_pod::resources::{Resources, cpu_quota, cpu_shares};
use roadstead_pod::sandbox::{Messages, Processes, SandboxOrder};
use roadstead_pod::security::{
    Confinement, Escalation, KernelPaths, MASKED_PATHS, READ_ONLY_PATHS, Seccomp,
};
use roadstead_pod::volumes::Propagation;

use super::messages::*;

/// What tools that look at a runtime expect.
pub(super) const POD_UID: &str = "io.kubernetes.pod.uid";
const POD_NAME: &str = "io.kubernetes.pod.name";
const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
const CONTAINER_NAME: &str = "io.kubernetes.container.name";
/// Whose a sandbox is: a runtime may work for several agents. Its value is the agent's directory.
pub(super) const OWNER: &str = "roadstead.state-directory";

/// What of a pod is the same for all its containers.
pub(super) struct Owned<'a> {
    pub(super) pod: &'a PodName,
    /// The agent's directory.
    pub(super) owner: &'a str,
}

impl Owned<'_> {
    fn labels(&self) -> BTreeMap<String, String> {
        let PodName { namespace, name, uid } = self.pod;
        let labels = [
            (POD_NAME, name.as_str()),
            (POD_NAMESPACE, namespace),
            (POD_UID, uid),
            (OWNER, self.owner),
        ];
        labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
    }
}

/// The sandbox of a pod. `groups` is the path of its control groups.
pub(super) fn sandbox_config(
    owned: &Owned<'_>,
    order: &SandboxOrder,
    groups: String,
    logs: String,
) -> PodSandboxConfig {
    let (uid, name, namespace) =
        (owned.pod.uid.clone(), owned.pod.name.clone(), owned.pod.namespace.clone());
    // A pod's ports are its own, so nobody needs a privilege to listen on one.
    let ports = ("net.ipv4.ip_unprivileged_port_start".to_owned(), "0".to_owned());
    let ports = (order.network == NetworkMode::Own).then_some(ports);
    PodSandboxConfig {
        metadata: Some(PodSandboxMetadata { name, uid, namespace, attempt: 0 }),
        hostname: match order.network {
            NetworkMode::Own => order.hostname.clone(),
            // It has the node's.
            NetworkMode::Host => String::new(),
        },
        log_directory: logs,
        labels: owned.labels(),
        linux: Some(LinuxPodSandboxConfig {
            cgroup_parent: groups,
            security_context: Some(LinuxSandboxSecurityContext {
                namespace_options: Some(namespaces(
                    order.network,
                    &order.processes,
                    order.messages,
                )),
                privileged: order.privileged,
                seccomp: Some(SecurityProfile::default()),
            }),
            sysctls: ports.into_iter().chain(order.sysctls.iter().cloned()).collect(),
        }),
    }
}

/// A container beside another has that one's name at the runtime.
fn namespaces(network: NetworkMode, processes: &Processes, messages: Messages) -> NamespaceOption {
    let (pid, target_id) = match processes {
        Processes::Own => (NAMESPACE_CONTAINER, String::new()),
        Processes::Pod => (NAMESPACE_POD, String::new()),
        Processes::Node => (NAMESPACE_NODE, String::new()),
        Processes::Beside(id) => (NAMESPACE_TARGET, id.clone()),
    };
    NamespaceOption {
        network: if network == NetworkMode::Host { NAMESPACE_NODE } else { NAMESPACE_POD },
        pid,
        ipc: if messages == Messages::Node { NAMESPACE_NODE } else { NAMESPACE_POD },
        target_id,
    }
}

/// A file or directory of the node, for a container.
pub(super) struct Bind {
    pub(super) source: PathBuf,
    pub(super) path: String,
    pub(super) readonly: bool,
    pub(super) propagation: Propagation,
}

/// What a container depends on besides its own configuration.
pub(super) struct CriContext<'a> {
    pub(super) owner: &'a str,
    pub(super) network: NetworkMode,
    pub(super) binds: Vec<Bind>,
    /// Which processes it sees; another container has the runtime's name.
    pub(super) processes: Processes,
    /// Where the operator keeps lists of system calls.
    pub(super) profiles: PathBuf,
}

/// The container.
pub(super) fn container_config(
    config: &ContainerConfig,
    image: String,
    context: CriContext<'_>,
) -> CriContainerConfig {
    let owned = Owned { pod: &config.pod, owner: context.owner };
    let mut labels = owned.labels();
    labels.insert(CONTAINER_NAME.into(), config.container.clone());
    let attempt = u32::try_from(config.restarts).unwrap_or(0);
    let variables = config.environment.iter().cloned();
    let mounts = context.binds.into_iter().map(|bind| ContainerMount {
        container_path: bind.path,
        host_path: bind.source.to_string_lossy().into_owned(),
        readonly: bind.readonly,
        propagation: match bind.propagation {
            Propagation::None => PROPAGATION_PRIVATE,
            Propagation::HostToContainer => PROPAGATION_HOST_TO_CONTAINER,
            Propagation::Bidirectional => PROPAGATION_BIDIRECTIONAL,
        },
    });
    let mut security = security(&config.confinement, &context.profiles);
    security.namespace_options =
        Some(namespaces(context.network, &context.processes, config.messages));
    CriContainerConfig {
        metadata: Some(ContainerMetadata { name: config.container.clone(), attempt }),
        image: Some(ImageSpec { image }),
        command: config.command.clone(),
        args: config.args.clone(),
        working_dir: config.working_directory.clone().unwrap_or_default(),
        envs: variables.map(|(key, value)| KeyValue { key, value }).collect(),
        mounts: mounts.collect(),
        labels,
        log_path: format!("{}/{}.log", config.container, config.restarts),
        stdin: config.streams.stdin,
        stdin_once: config.streams.stdin_once,
        tty: config.streams.terminal,
        linux: Some(LinuxContainerConfig {
            resources: Some(resources(&config.resources)),
            security_context: Some(security),
        }),
    }
}

fn security(confinement: &Confinement, profiles: &Path) -> LinuxContainerSecurityContext {
    let masked = confinement.kernel_paths == KernelPaths::Masked;
    let privileged = confinement.kernel_paths == KernelPaths::Open;
    let names = confinement.capabilities.names();
    let names = names.iter().map(|name| name.trim_start_matches("CAP_").to_owned());
    let paths = |all: &[&str]| match masked {
        true => all.iter().map(|path| (*path).to_owned()).collect(),
        false => vec![],
    };
    let (user, username, group) = user(confinement);
    let (apparmor, apparmor_profile) = app_armor(&confinement.mandatory.app_armor);
    let label = confinement.mandatory.se_linux.clone();
    LinuxContainerSecurityContext {
        apparmor,
        apparmor_profile,
        selinux_options: label.map(|SeLinuxLabel { user, role, kind, level }| SeLinuxOption {
            user,
            role,
            kind,
            level,
        }),
        // These and no others, whatever the runtime would give.
        capabilities: (!privileged).then(|| Capability {
            add_capabilities: names.collect(),
            drop_capabilities: vec!["ALL".into()],
        }),
        privileged,
        namespace_options: None,
        run_as_user: user.map(|value| Int64Value { value }),
        run_as_username: username,
        readonly_rootfs: confinement.read_only_root,
        supplemental_groups: confinement.groups.iter().map(|group| i64::from(*group)).collect(),
        no_new_privs: confinement.escalation == Escalation::Forbidden,
        run_as_group: group.map(|value| Int64Value { value }),
        masked_paths: paths(&MASKED_PATHS),
        readonly_paths: paths(&READ_ONLY_PATHS),
        seccomp: Some(SecurityProfile {
            profile_type: match confinement.seccomp {
                Seccomp::RuntimeDefault => 0,
                Seccomp::Unconfined => PROFILE_UNCONFINED,
                Seccomp::Localhost(_) => PROFILE_LOCALHOST,
            },
            localhost_ref: match &confinement.seccomp {
                Seccomp::Localhost(path) => profiles.join(path).to_string_lossy().into_owned(),
                Seccomp::RuntimeDefault | Seccomp::Unconfined => String::new(),
            },
        }),
    }
}

/// In the words of today's runtimes, and in those of older ones.
fn app_armor(wanted: &AppArmor) -> (Option<SecurityProfile>, String) {
    let (profile_type, name, old) = match wanted {
        AppArmor::Unset => return (None, String::new()),
        AppArmor::RuntimeDefault => (0, "", "runtime/default".to_owned()),
        AppArmor::Unconfined => (PROFILE_UNCONFINED, "", "unconfined".to_owned()),
        AppArmor::Localhost(name) => {
            (PROFILE_LOCALHOST, name.as_str(), format!("localhost/{name}"))
        }
    };
    (Some(SecurityProfile { profile_type, localhost_ref: name.to_owned() }), old)
}

/// Who it runs as: by number or by name, and in which group; nobody is whoever the image says.
fn user(confinement: &Confinement) -> (Option<i64>, String, Option<i64>) {
    let (user, group) = (confinement.user.into(), confinement.group.into());
    match &confinement.unresolved {
        None => (Some(user), String::new(), Some(group)),
        Some(left) => {
            let group = Some(group).filter(|_| !left.group);
            match (&left.user, group) {
                (None, group) => (Some(user), String::new(), group),
                (Some(_), None) => (None, String::new(), None),
                (Some(name), Some(group)) => (None, name.clone(), Some(group)),
            }
        }
    }
}

pub(super) fn resources(resources: &Resources) -> LinuxContainerResources {
    let limits = &resources.of_container;
    let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let quota = limits.cpu.map(cpu_quota);
    LinuxContainerResources {
        cpu_period: quota.map_or(0, |(_, period)| signed(period)),
        cpu_quota: quota.map_or(0, |(quota, _)| signed(quota)),
        cpu_shares: signed(cpu_shares(limits.cpu_request)),
        memory_limit_in_bytes: limits.memory.map_or(0, signed),
        oom_score_adj: resources.oom_score_adj.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use roadstead_pod::security::Unresolved;

    #[test]
    fn who_a_container_runs_as() {
        let left =
            |user: Option<&str>, group| Some(Unresolved { user: user.map(str::to_owned), group });
        for (name, user_id, unresolved, want) in [
            ("we know it all", 7, None, (Some(7), "", Some(9))),
            ("a number of the image", 7, left(None, true), (Some(7), "", None)),
            ("a group of the pod", 7, left(None, false), (Some(7), "", Some(9))),
            ("a name of the image", 0, left(Some("web"), true), (None, "", None)),
            ("with a group of the pod", 0, left(Some("web"), false), (None, "web", Some(9))),
        ] {
            let confinement =
                Confinement { user: user_id, group: 9, unresolved, ..Confinement::default() };
            let (user, username, group) = user(&confinement);
            assert_eq!((user, username.as_str(), group), want, "{name}");
        }
    }

    #[test]
    fn privileges_are_given_whole_or_one_by_one() {
        let profiles = Path::new("/profiles");
        let plain = security(&Confinement::default(), profiles);
        assert!(plain.no_new_privs && !plain.privileged && plain.masked_paths.len() > 5);
        assert_eq!(plain.capabilities.unwrap().drop_capabilities, ["ALL"]);
        let open = Confinement { kernel_paths: KernelPaths::Open, ..Confinement::default() };
        let open = security(&open, profiles);
        assert!(open.privileged && open.capabilities.is_none() && open.masked_paths.is_empty());
        let unmasked =
            Confinement { kernel_paths: KernelPaths::Unmasked, ..Confinement::default() };
        let unmasked = security(&unmasked, profiles);
        assert!(!unmasked.privileged && unmasked.capabilities.is_some());
        assert!(unmasked.masked_paths.is_empty() && unmasked.readonly_paths.is_empty());
        let seccomp = Seccomp::Localhost("a/b.json".into());
        let listed = security(&Confinement { seccomp, ..Confinement::default() }, profiles);
        let seccomp = listed.seccomp.unwrap();
        let said = (seccomp.profile_type, seccomp.localhost_ref.as_str());
        assert_eq!(said, (PROFILE_LOCALHOST, "/profiles/a/b.json"));
    }

    #[test]
    fn whose_namespaces() {
        for (processes, messages, pid, ipc) in [
            (Processes::Own, Messages::Pod, NAMESPACE_CONTAINER, NAMESPACE_POD),
            (Processes::Pod, Messages::Pod, NAMESPACE_POD, NAMESPACE_POD),
            (Processes::Node, Messages::Node, NAMESPACE_NODE, NAMESPACE_NODE),
            (Processes::Beside("id".into()), Messages::Pod, NAMESPACE_TARGET, NAMESPACE_POD),
        ] {
            let made = namespaces(NetworkMode::Own, &processes, messages);
            assert_eq!((made.network, made.pid, made.ipc), (NAMESPACE_POD, pid, ipc));
            assert_eq!(made.target_id, if pid == NAMESPACE_TARGET { "id" } else { "" });
        }
    }
}
