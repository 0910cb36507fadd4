//! The configuration that an OCI runtime makes a container from, as its specification has it: pure.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::capabilities::Capabilities;
use crate::container_config::ContainerConfig;
use crate::image::LayeredImage;
use crate::mandatory::ProcessLabels;
use crate::security::{Confinement, Escalation, KernelPaths, MASKED_PATHS, READ_ONLY_PATHS};
use crate::volumes::{Access, Propagation, Trust};

/// What a configuration depends on besides the container's own.
#[derive(Clone, Debug)]
pub struct OciContext<'a> {
    /// Where the image's files are put together, seen from the configuration.
    pub root: &'a Path,
    /// The pod's network; `None` is the node's own.
    pub network: Option<&'a Path>,
    /// Which processes it sees.
    pub processes: Namespace<'a>,
    /// What all containers of the pod have as /dev/shm; `None` is one of its own.
    pub shared_memory: Option<&'a Path>,
    /// The namespace of its message queues and the like.
    pub messages: Namespace<'a>,
    /// Where the node has its message queues, for a container that has those.
    pub node_queues: Option<&'a Path>,
    /// Where the runtime groups the container's processes.
    pub cgroups_path: String,
    /// Files and directories of the node that the container sees.
    pub binds: Vec<Bind>,
    /// The list of system calls, if the container is held to one.
    pub seccomp: Option<Value>,
    /// The most that we could give.
    pub available: Capabilities,
    /// What AppArmor and SELinux hold it to.
    pub labels: &'a ProcessLabels,
}

/// Whose namespace of a kind a container is in.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Namespace<'a> {
    /// One of its own.
    #[default]
    Own,
    /// The one that is at this path.
    At(&'a Path),
    /// The node's.
    Node,
}

impl Namespace<'_> {
    fn config(self, kind: &str) -> Option<Value> {
        match self {
            Self::Own => Some(json!({"type": kind})),
            Self::At(path) => Some(json!({"type": kind, "path": path})),
            Self::Node => None,
        }
    }
}

/// A file or directory of the node in a container.
#[derive(Clone, Debug, PartialEq)]
pub struct Bind {
    /// On the node.
    pub source: PathBuf,
    /// In the container.
    pub path: String,
    /// Whether the container may write to it.
    pub access: Access,
    /// What its files can do.
    pub trust: Trust,
    /// Who sees what is mounted there later.
    pub propagation: Propagation,
}

const SHARED_MEMORY: &str = "/dev/shm";
const QUEUES: &str = "/dev/mqueue";

/// Returns the program to run and its arguments.
///
/// `command` replaces the image's entrypoint and arguments, `args` alone its arguments.
pub fn command_line(
    image: &LayeredImage,
    command: &[String],
    args: &[String],
) -> Result<Vec<String>, String> {
    let line: Vec<String> = match (command.is_empty(), args.is_empty()) {
        (false, _) => command.iter().chain(args).cloned().collect(),
        (true, false) => image.entrypoint.iter().chain(args).cloned().collect(),
        (true, true) => image.entrypoint.iter().chain(&image.cmd).cloned().collect(),
    };
    if line.is_empty() { Err("no command specified".into()) } else { Ok(line) }
}

/// Returns the configuration; the error says what cannot be run.
pub fn oci_config(
    config: &ContainerConfig,
    image: &LayeredImage,
    context: &OciContext<'_>,
) -> Result<Value, String> {
    let confinement = &config.confinement;
    let masked = confinement.kernel_paths == KernelPaths::Masked;
    let devices = confinement.kernel_paths == KernelPaths::Open;
    let mut made = json!({
        "ociVersion": "1.0.2",
        "process": process(config, image, context.available)?,
        "root": {"path": context.root, "readonly": confinement.read_only_root},
        "hostname": config.hostname,
        "mounts": mounts(confinement, context),
        "linux": {
            "cgroupsPath": context.cgroups_path,
            "namespaces": namespaces(context),
            "sysctl": sysctls(confinement, context.network),
            "resources": {"devices": [{"allow": devices, "access": "rwm"}]},
            "maskedPaths": if masked { &MASKED_PATHS[..] } else { &[] },
            "readonlyPaths": if masked { &READ_ONLY_PATHS[..] } else { &[] },
            "seccomp": context.seccomp,
        },
    });
    if let Some(profile) = &context.labels.app_armor {
        made["process"]["apparmorProfile"] = json!(profile);
    }
    if let (Some(label), Some(own)) = (&context.labels.se_linux, &confinement.mandatory.se_linux) {
        made["process"]["selinuxLabel"] = json!(label);
        made["linux"]["mountLabel"] = json!(own.of_files());
    }
    if let Some(propagation) = root_propagation(&context.binds) {
        made["linux"]["rootfsPropagation"] = json!(propagation);
    }
    Ok(made)
}

/// What is mounted below a root comes no further than to the root itself.
fn root_propagation(binds: &[Bind]) -> Option<&'static str> {
    let has = |propagation| binds.iter().any(|bind| bind.propagation == propagation);
    match (has(Propagation::Bidirectional), has(Propagation::HostToContainer)) {
        (true, _) => Some("rshared"),
        (false, true) => Some("rslave"),
        (false, false) => None,
    }
}

fn process(
    config: &ContainerConfig,
    image: &LayeredImage,
    available: Capabilities,
) -> Result<Value, String> {
    let confinement = &config.confinement;
    let kept = confinement.capabilities.and(available).names();
    // Who is not root has none of its own, and can get no more than these.
    let own = if confinement.user == 0 { kept.clone() } else { vec![] };
    let given = config.working_directory.as_deref();
    let from_image = Some(image.working_dir.as_str()).filter(|path| path.starts_with('/'));
    let variables = config.environment.iter().map(|(name, value)| format!("{name}={value}"));
    Ok(json!({
        "terminal": config.streams.terminal,
        "user": {
            "uid": confinement.user,
            "gid": confinement.group,
            "additionalGids": confinement.groups,
        },
        "args": command_line(image, &config.command, &config.args)?,
        "env": variables.collect::<Vec<_>>(),
        "cwd": given.or(from_image).unwrap_or("/"),
        "noNewPrivileges": confinement.escalation == Escalation::Forbidden,
        "capabilities": {"bounding": kept, "effective": own, "permitted": own},
    }))
}

fn namespaces(context: &OciContext<'_>) -> Vec<Value> {
    let own = ["uts", "mount", "cgroup"].map(|kind| json!({"type": kind}));
    let network = context.network.map(|path| json!({"type": "network", "path": path}));
    let others = [context.processes.config("pid"), context.messages.config("ipc")];
    others.into_iter().flatten().chain(own).chain(network).collect()
}

fn sysctls(confinement: &Confinement, network: Option<&Path>) -> Value {
    // A pod's ports are its own, so nobody needs a privilege to listen on one.
    let ports = ("net.ipv4.ip_unprivileged_port_start".to_owned(), "0".to_owned());
    let defaults = network.map(|_| ports);
    defaults
        .into_iter()
        .chain(confinement.sysctls.iter().cloned())
        .map(|(name, value)| (name, json!(value)))
        .collect()
}

fn mounts(confinement: &Confinement, context: &OciContext<'_>) -> Vec<Value> {
    let access = match confinement.kernel_paths {
        KernelPaths::Masked | KernelPaths::Unmasked => "ro",
        KernelPaths::Open => "rw",
    };
    let usual = [
        ("/proc", "proc", "nosuid,noexec,nodev"),
        ("/dev", "tmpfs", "nosuid,strictatime,mode=755,size=65536k"),
        ("/dev/pts", "devpts", "nosuid,noexec,newinstance,ptmxmode=0666,mode=0620"),
        (QUEUES, "mqueue", "nosuid,noexec,nodev"),
        ("/sys", "sysfs", &format!("nosuid,noexec,nodev,{access}")),
        ("/sys/fs/cgroup", "cgroup", &format!("nosuid,noexec,nodev,relatime,{access}")),
    ]
    .map(|(path, kind, options)| {
        json!({"destination": path, "type": kind, "source": kind,
               "options": options.split(',').collect::<Vec<_>>()})
    });
    let shared = match context.shared_memory {
        None => json!({"destination": SHARED_MEMORY, "type": "tmpfs", "source": "tmpfs",
            "options": ["nosuid", "noexec", "nodev", "mode=1777", "size=65536k"]}),
        Some(path) => json!({"destination": SHARED_MEMORY, "type": "bind", "source": path,
            "options": ["bind", "rprivate", "nosuid", "noexec", "nodev", "rw"]}),
    };
    // A mount of its own would take the right to the node's.
    let of_node = context.messages == Namespace::Node;
    let usual = usual.into_iter().filter(move |one| !of_node || one["destination"] != QUEUES);
    let queues = context.node_queues.filter(|_| of_node).map(|path| {
        json!({"destination": QUEUES, "type": "bind", "source": path,
               "options": ["bind", "rprivate", "nosuid", "noexec", "nodev", "rw"]})
    });
    let binds = context.binds.iter().map(|bind| {
        let access = match bind.access {
            Access::ReadWrite => "rw",
            Access::ReadOnly => "ro",
            Access::RecursiveReadOnly => "rro",
        };
        let propagation = match bind.propagation {
            Propagation::None => "rprivate",
            Propagation::HostToContainer => "rslave",
            Propagation::Bidirectional => "rshared",
        };
        let trust: &[&str] = match bind.trust {
            Trust::Data => &["nodev"],
            Trust::Node => &["dev"],
            Trust::Image => &["nodev", "nosuid", "noexec"],
        };
        let options = [&["rbind", propagation], trust, &[access]].concat();
        json!({"destination": bind.path, "type": "bind", "source": bind.source, "options": options})
    });
    usual.chain([shared]).chain(queues).chain(binds).collect()
}

/// The number of an image's stop signal; the kernel's names, with or without `SIG`, or a number.
pub fn stop_signal(text: &str) -> Option<i32> {
    const NAMES: [&str; 31] = [
        "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2",
        "PIPE", "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG",
        "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
    ];
    if let Ok(number) = text.parse::<i32>() {
        return (1..=64).contains(&number).then_some(number);
    }
    let name = text.strip_prefix("SIG").unwrap_or(text);
    let real_time = |base: i32, rest: &str, sign: i32| match rest {
        "" => Some(base),
        rest => Some(base + sign * rest.trim_start_matches(['+', '-']).parse::<i32>().ok()?),
    };
    if let Some(rest) = name.strip_prefix("RTMIN") {
        return real_time(34, rest, 1);
    }
    if let Some(rest) = name.strip_prefix("RTMAX") {
        return real_time(64, rest, -1);
    }
    let found = NAMES.iter().position(|known| *known == name)?;
    i32::try_from(found + 1).ok()
}

#[cfg(test)]
mod tests;
