//! A container's process 1: makes the container around itself, starts the command, passes signals
//! on, and reaps. When it ends, the kernel ends everything in the container.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use rustix::fs::fchown;
use rustix::process::{Pid, Signal, Uid, set_parent_process_death_signal};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

use super::process::{
    keep_files_to_ourselves, supervise, unshare, with_controlling_terminal, with_open_signals,
    with_our_end,
};
use super::streams::InnerStreams;
use super::terminal::{self, Terminal};
use super::{Failure, ProcessSpace, Recipe, Trying, confine, exec, root};
use crate::cgroup::MEMBERS;

/// Runs the command; returns its exit code. Says on `started` why it could not, or closes it.
/// If the container has a terminal, its outer end comes with that.
pub(super) fn main(recipe: &Recipe, streams: InnerStreams, mut started: UnixStream) -> i32 {
    match start(recipe, streams, &started) {
        Ok(child) => {
            drop(started);
            supervise(child, recipe.stop_signal.unwrap_or(libc::SIGTERM)).unwrap_or(255)
        }
        Err(failure) => {
            let _ = started.write_all(failure.to_string().as_bytes());
            255
        }
    }
}

fn start(recipe: &Recipe, streams: InnerStreams, monitor: &UnixStream) -> Result<Pid, Failure> {
    set_parent_process_death_signal(Some(Signal::KILL)).trying(|| "follow the monitor".into())?;
    join_groups(recipe)?;
    if let Some(path) = &recipe.network {
        let network = File::open(path).trying(|| format!("open {}", path.display()))?;
        move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))
            .trying(|| "enter the pod's network".into())?;
    }
    let mut namespaces = UnshareFlags::NEWNS | UnshareFlags::NEWUTS;
    match recipe.shared.as_ref().map(|pod| &pod.messages) {
        None => namespaces |= UnshareFlags::NEWIPC,
        // Those that we have already.
        Some(None) => {}
        Some(Some(path)) => {
            let messages = File::open(path).trying(|| "open the pod's messages".into())?;
            let kind = Some(LinkNameSpaceType::InterProcessCommunication);
            move_into_link_name_space(messages.as_fd(), kind)
                .trying(|| "enter the pod's messages".into())?;
        }
    }
    unshare(namespaces | UnshareFlags::NEWCGROUP).trying(|| "make namespaces".into())?;
    rustix::system::sethostname(recipe.hostname.as_bytes())
        .trying(|| "set the host name".into())?;
    set_kernel_parameters(recipe)?;
    root::enter(recipe)?;
    let (streams, has_terminal) = with_terminal(recipe, streams, monitor)?;
    let user = Uid::from_raw(recipe.confinement.user);
    for stream in streams.stdin.iter().chain(streams.outputs.iter().flatten()) {
        // So that /dev/stdout can be opened by whoever the command runs as.
        fchown(stream, Some(user), None)
            .trying(|| format!("hand the streams to user {}", recipe.confinement.user))?;
    }
    keep_files_to_ourselves().trying(|| "keep our files to ourselves".into())?;
    confine::enter(&recipe.confinement, recipe.calls.as_ref(), &recipe.labels)?;
    let (program, arguments) = recipe.command.split_first().expect("made by command_line");
    let mut command = Command::new(program);
    with_open_signals(&mut command)
        .args(arguments)
        .env_clear()
        .envs(recipe.environment.iter().map(|(name, value)| (name, value)))
        .current_dir(recipe.working_directory.as_deref().unwrap_or("/"))
        .stdin(streams.stdin.map_or_else(Stdio::null, Stdio::from));
    if let Some([stdout, stderr]) = streams.outputs {
        command.stdout(stdout).stderr(stderr);
    }
    if recipe.processes != ProcessSpace::Own {
        // There, the kernel does not end it with us.
        with_our_end(&mut command);
    }
    if has_terminal {
        with_controlling_terminal(&mut command);
    }
    let child = command.spawn().trying(|| format!("run {program}"))?;
    // Our own copies of the pipes go with the command's.
    drop(command);
    let _ = rustix::stdio::dup2_stdout(null()?);
    Ok(Pid::from_child(&child))
}

/// Makes the terminal, if there is to be one, and hands its outer end to the monitor.
fn with_terminal(
    recipe: &Recipe,
    streams: InnerStreams,
    monitor: &UnixStream,
) -> Result<(InnerStreams, bool), Failure> {
    if !recipe.streams.terminal {
        return Ok((streams, false));
    }
    let made = || -> io::Result<InnerStreams> {
        let Terminal { outer, inner } = terminal::open()?;
        exec::send(monitor, &(), &[outer.as_fd()])?;
        let outputs = Some([inner.try_clone()?, inner.try_clone()?]);
        Ok(InnerStreams { stdin: Some(inner), outputs })
    };
    made().trying(|| "make a terminal".into()).map(|streams| (streams, true))
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
