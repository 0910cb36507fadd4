//! Ephemeral containers, which `kubectl debug` adds to a pod that runs: as containers like the others.

use k8s_openapi::api::core::v1::{Container, EphemeralContainer, PodSpec};

/// The ephemeral container of this name.
pub fn find<'a>(spec: &'a PodSpec, name: &str) -> Option<&'a EphemeralContainer> {
    all(spec).find(|container| container.name == name)
}

pub(crate) fn all(spec: &PodSpec) -> impl Iterator<Item = &EphemeralContainer> {
    spec.ephemeral_containers.iter().flatten()
}

/// What it has in common with other containers, which is all that it may have: no probes, no hooks, no
/// ports and no resources.
pub fn as_container(container: &EphemeralContainer) -> Container {
    let own = container.clone();
    Container {
        args: own.args,
        command: own.command,
        env: own.env,
        env_from: own.env_from,
        image: own.image,
        image_pull_policy: own.image_pull_policy,
        name: own.name,
        security_context: own.security_context,
        stdin: own.stdin,
        stdin_once: own.stdin_once,
        termination_message_path: own.termination_message_path,
        termination_message_policy: own.termination_message_policy,
        tty: own.tty,
        volume_devices: own.volume_devices,
        volume_mounts: own.volume_mounts,
        working_dir: own.working_dir,
        ..Container::default()
    }
}
