//! Gives up what a container must not have, for good: the calling process and all that it starts
//! can never get it back.

use std::fs::OpenOptions;
use std::io::{self, Write};

use rustix::fs::{PROC_SUPER_MAGIC, fstatfs};
use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Gid, Signal, Uid, set_dumpable_behavior};
use rustix::process::{getgid, getuid, set_parent_process_death_signal};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, capability_is_in_bounding_set,
    clear_ambient_capability_set, remove_capability_from_bounding_set, set_capabilities,
    set_no_new_privs, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};

use super::process::install_filter;
use super::{Failure, Trying};
use crate::seccomp;
use roadstead_pod::mandatory::ProcessLabels;
use roadstead_pod::seccomp_profile::SeccompProfile;
use roadstead_pod::security::{Confinement, Escalation, Seccomp};

/// For a container's process 1: it ends with its monitor. `calls` is the list that the confinement names.
pub(super) fn enter(
    confinement: &Confinement,
    calls: Option<&SeccompProfile>,
    labels: &ProcessLabels,
) -> Result<(), Failure> {
    enter_beside(confinement, calls, labels)?;
    // A change of user makes the kernel forget it.
    set_parent_process_death_signal(Some(Signal::KILL)).trying(|| "follow the monitor".into())
}

/// Applies everything, in an order in which each step may still be taken.
pub(super) fn enter_beside(
    confinement: &Confinement,
    calls: Option<&SeccompProfile>,
    labels: &ProcessLabels,
) -> Result<(), Failure> {
    label(labels)?;
    match confinement.escalation {
        Escalation::Forbidden => {
            set_no_new_privs(true).trying(|| "forbid new privileges".into())?;
        }
        // Then only the privileged may filter, which we are for a little longer.
        Escalation::Allowed => filter_calls(confinement, calls)?,
    }
    // We may have less than a privileged container asks for: then it gets what we have.
    let wanted = CapabilitySet::from_bits_truncate(confinement.capabilities.bits());
    let kept = capabilities(None).trying(|| "read our capabilities".into())?.permitted & wanted;
    clear_ambient_capability_set().trying(|| "drop ambient capabilities".into())?;
    bound(kept).trying(|| "drop capabilities".into())?;
    become_user(confinement).trying(|| format!("become user {}", confinement.user))?;
    let own = if confinement.user == 0 { kept } else { CapabilitySet::empty() };
    let sets =
        CapabilitySets { effective: own, permitted: own, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets).trying(|| "set capabilities".into())?;
    if confinement.escalation == Escalation::Forbidden {
        filter_calls(confinement, calls)?;
    }
    // What runs beside us in the container can neither trace us nor open our files in /proc, which
    // lead out of the container: our executable above all. A change of user makes the kernel forget it.
    set_dumpable_behavior(DumpableBehavior::NotDumpable).trying(|| "hide our memory".into())
}

/// What is executed next is under these. In a container, /proc may be something else: then it does not start.
fn label(labels: &ProcessLabels) -> Result<(), Failure> {
    let profile = labels.app_armor.as_ref().map(|name| format!("exec {name}"));
    for (text, places) in [
        (profile, ["/proc/self/attr/apparmor/exec", "/proc/self/attr/exec"]),
        (labels.se_linux.clone(), ["/proc/self/attr/exec", "/proc/self/attr/exec"]),
    ] {
        let Some(text) = text else { continue };
        let action = || format!("be held to {text:?}");
        let opened =
            places.iter().find_map(|place| OpenOptions::new().write(true).open(place).ok());
        let file = opened.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound));
        let mut file = file.trying(action)?;
        if fstatfs(&file).trying(action)?.f_type != PROC_SUPER_MAGIC {
            let source = io::Error::other("/proc is none");
            return Err(Failure { action: action(), source });
        }
        file.write_all(text.as_bytes()).trying(action)?;
    }
    Ok(())
}

fn filter_calls(confinement: &Confinement, calls: Option<&SeccompProfile>) -> Result<(), Failure> {
    let programs = match (&confinement.seccomp, calls) {
        (Seccomp::Unconfined, _) => return Ok(()),
        (Seccomp::RuntimeDefault, _) => seccomp::filters(confinement.capabilities).map(Vec::from),
        (Seccomp::Localhost(_), Some(calls)) => seccomp::localhost::filters(calls),
        (Seccomp::Localhost(path), None) => {
            let source = io::Error::from(io::ErrorKind::NotFound);
            return Err(Failure { action: format!("use the seccomp profile {path}"), source });
        }
    };
    let programs =
        programs.map_err(io::Error::other).trying(|| "make the system call filter".into())?;
    for program in &programs {
        install_filter(program).trying(|| "filter system calls".into())?;
    }
    Ok(())
}

/// Leaves these capabilities, at most, to all that is started from here.
fn bound(kept: CapabilitySet) -> io::Result<()> {
    for number in 0..64 {
        let one = CapabilitySet::from_bits_retain(1 << number);
        match capability_is_in_bounding_set(one) {
            Ok(true) if !kept.contains(one) => remove_capability_from_bounding_set(one)?,
            Ok(_) => {}
            // The kernel knows no further ones.
            Err(Errno::INVAL) => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn become_user(confinement: &Confinement) -> io::Result<()> {
    let groups: Vec<_> = confinement.groups.iter().map(|group| Gid::from_raw(*group)).collect();
    match set_thread_groups(&groups) {
        // In a user namespace made by an ordinary user nobody can drop groups, nor use them.
        Err(Errno::PERM) if groups.is_empty() => {}
        result => result?,
    }
    let (user, group) = (Uid::from_raw(confinement.user), Gid::from_raw(confinement.group));
    if group != getgid() {
        set_thread_res_gid(group, group, group)?;
    }
    if user != getuid() {
        set_thread_res_uid(user, user, user)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::thread;

    use roadstead_testkit::netns::{laboratory, try_run};

    use super::*;

    #[test]
    fn what_a_confined_process_cannot_do() {
        laboratory(|| {
            let commands = [
                // Needs no capability: only the list of system calls is in its way.
                "unshare --user true",
                "unshare --net true",
                "mount -t tmpfs tmpfs /mnt",
                "ip link add dummy9 type veth && ip link del dummy9",
            ];
            let succeed = move || commands.map(|command| try_run(command).status.success());
            assert_eq!(succeed(), [true; 4], "as root of a laboratory");
            // All of it belongs to one thread and what it starts.
            let confined = thread::spawn(move || {
                enter(&Confinement::default(), None, &ProcessLabels::default()).unwrap();
                assert!(try_run("chroot / true").status.success(), "what is usual goes on");
                succeed()
            });
            assert_eq!(confined.join().unwrap(), [false; 4]);
        });
    }
}
