//! A container's process 1: makes the container around itself, starts the command, passes signals
//! on, and reaps. When it ends, the kernel ends everything in the container.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};

use rustix::fs::fchown;
use rustix::process::{Pid, Signal, Uid, set_parent_process_death_signal};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

use super::process::{keep_files_to_ourselves, supervise, unshare, with_open_signals};
use super::{Failure, Recipe, Trying, confine, root};
use crate::cgroup::MEMBERS;

/// Runs the command; returns its exit code. Says on `started` why it could not, or closes it.
pub(super) fn main(recipe: &Recipe, outputs: [OwnedFd; 2], started: OwnedFd) -> i32 {
    match start(recipe, outputs) {
        Ok(child) => {
            drop(started);
            supervise(child).unwrap_or(255)
        }
        Err(failure) => {
            let _ = File::from(started).write_all(failure.to_string().as_bytes());
            255
        }
    }
}

fn start(recipe: &Recipe, outputs: [OwnedFd; 2]) -> Result<Pid, Failure> {
    set_parent_process_death_signal(Some(Signal::KILL)).trying(|| "follow the monitor".into())?;
    join_groups(recipe)?;
    if let Some(path) = &recipe.network {
        let network = File::open(path).trying(|| format!("open {}", path.display()))?;
        move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))
            .trying(|| "enter the pod's network".into())?;
    }
    let namespaces = UnshareFlags::NEWNS | UnshareFlags::NEWUTS | UnshareFlags::NEWIPC;
    unshare(namespaces | UnshareFlags::NEWCGROUP).trying(|| "make namespaces".into())?;
    rustix::system::sethostname(recipe.hostname.as_bytes())
        .trying(|| "set the host name".into())?;
    set_kernel_parameters(recipe)?;
    root::enter(recipe)?;
    for output in &outputs {
        // So that /dev/stdout can be opened by whoever the command runs as.
        let user = Uid::from_raw(recipe.confinement.user);
        fchown(output, Some(user), None)
            .trying(|| format!("hand the output to user {}", recipe.confinement.user))?;
    }
    keep_files_to_ourselves().trying(|| "keep our files to ourselves".into())?;
    confine::enter(&recipe.confinement)?;
    let [stdout, stderr] = outputs;
    let (program, arguments) = recipe.command.split_first().expect("made by command_line");
    let child = with_open_signals(&mut Command::new(program))
        .args(arguments)
        .env_clear()
        .envs(recipe.environment.iter().map(|(name, value)| (name, value)))
        .current_dir(recipe.working_directory.as_deref().unwrap_or("/"))
        .stdin(Stdio::null())
        .stdout(stdout)
        .stderr(stderr)
        .spawn()
        .trying(|| format!("run {program}"))?;
    // Our own copies of the pipes went with the command's.
    let _ = rustix::stdio::dup2_stdout(null()?);
    Ok(Pid::from_child(&child))
}

/// From here on what we use is counted.
fn join_groups(recipe: &Recipe) -> Result<(), Failure> {
    for group in &recipe.groups {
        // Zero is whoever writes it, whatever his number is here.
        fs::write(group.join(MEMBERS), "0").trying(|| format!("join {}", group.display()))?;
    }
    // To be spared more than we are ourselves is a privilege, which we may not have.
    let _ = fs::write("/proc/self/oom_score_adj", recipe.oom_score_adj.to_string());
    Ok(())
}

/// They belong to the namespaces that we are in, whichever /proc we write to.
fn set_kernel_parameters(recipe: &Recipe) -> Result<(), Failure> {
    // A pod's ports are its own, so nobody needs a privilege to listen on one.
    if recipe.network.is_some() {
        let _ = write_parameter("net.ipv4.ip_unprivileged_port_start", "0");
    }
    for (name, value) in &recipe.confinement.sysctls {
        write_parameter(name, value).trying(|| format!("set the sysctl {name} to {value:?}"))?;
    }
    Ok(())
}

fn write_parameter(name: &str, value: &str) -> io::Result<()> {
    fs::write(format!("/proc/sys/{}", name.replace('.', "/")), value)
}

fn null() -> Result<File, Failure> {
    File::options().write(true).open("/dev/null").trying(|| "open /dev/null".into())
}
