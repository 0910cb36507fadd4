//! A container made by the command line of an OCI runtime, such as runc: its image's own command is
//! process 1.
//!
//! The monitor writes the runtime's configuration and runs `create` in a process that has put the image's
//! layers together in a mount namespace of its own, so that the mount goes with the container. Then the
//! container's process 1 is a child of the monitor (its subreaper) and waits for `start`.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{self, Command, Stdio};

use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::process::{Pid, WaitOptions, waitpid};
use rustix::thread::UnshareFlags;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::attach::socket;
use super::exec::receive_all;
use super::process::{Side, fork, unshare, with_open_signals};
use super::streams::InnerStreams;
use super::{Failure, Mount, PARTS, ROOT, Recipe, Trying, volume_path};
use crate::cgroup::MEMBERS;

/// In a container's directory, which is the runtime's bundle.
const CONFIG: &str = "config.json";
pub(crate) const LAYERS: &str = "layers";
/// What the container writes to its own files, in its directory.
pub(crate) const UPPER: &str = "upper";
const WORK: &str = "work";
const LOG: &str = "oci.log";
const PID: &str = "oci.pid";
const CONSOLE: &str = "console.sock";
/// In a container's directory: the files that are bound into it.
const FILES: &str = "files";

/// What a runtime needs to run a container.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct OciRecipe {
    /// The runtime's program.
    pub(crate) runtime: PathBuf,
    /// Where it keeps its own state.
    pub(crate) state: PathBuf,
    /// The directories of the image's layers, lowest first.
    pub(crate) layers: Vec<PathBuf>,
    pub(crate) config: Value,
    /// What asks the container to end, if not SIGTERM.
    pub(crate) stop_signal: Option<i32>,
    /// Directories that can be written to although the rest of the root cannot.
    #[serde(default)]
    pub(crate) volumes: Vec<String>,
}

/// The first OCI runtime in the path.
pub(crate) fn find_runtime() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let all = ["runc", "crun"].iter().flat_map(|name| {
        std::env::split_paths(&path).map(move |directory| directory.join(name)).collect::<Vec<_>>()
    });
    all.into_iter().find(|program| program.is_file())
}

/// Where a file of the recipe will be for the container's configuration to bind.
pub(crate) fn file_path(directory: &Path, path: &str) -> PathBuf {
    directory.join(FILES).join(path.trim_start_matches('/').replace('/', "."))
}

/// Makes the container, up to the point where its command would run; returns its process 1, and the outer
/// end of its terminal if it has one.
pub(super) fn create(
    recipe: &Recipe,
    oci: &OciRecipe,
    streams: InnerStreams,
) -> Result<(Pid, Option<OwnedFd>), String> {
    let told = |failure: Failure| failure.to_string();
    prepare(recipe, oci).map_err(told)?;
    let console = match recipe.streams.terminal {
        true => Some(
            socket::listen(&recipe.directory, CONSOLE)
                .map_err(|error| format!("cannot make a socket for the terminal: {error}"))?,
        ),
        false => None,
    };
    let child = match fork().trying(|| "fork".into()).map_err(told)? {
        Side::Child => {
            let failure = become_create(recipe, oci, streams);
            let log = OpenOptions::new().create(true).append(true).open(recipe.directory.join(LOG));
            let line = serde_json::json!({"level": "error", "msg": failure.to_string()});
            let _ = log.and_then(|mut log| writeln!(log, "{line}"));
            process::exit(1)
        }
        Side::Parent(child) => child,
    };
    drop(streams);
    let status = wait_for(child).trying(|| "wait for the runtime".into()).map_err(told)?;
    if status != 0 {
        return Err(last_error(recipe, "create"));
    }
    let path = recipe.directory.join(PID);
    let pid = fs::read_to_string(&path).ok().and_then(|text| text.trim().parse().ok());
    let init = pid.and_then(Pid::from_raw).ok_or("the runtime names no process")?;
    join_groups(recipe, init).map_err(told)?;
    let terminal = console.map(|console| receive_terminal(&console)).transpose();
    let terminal = terminal.trying(|| "take over the terminal".into()).map_err(told)?;
    Ok((init, terminal))
}

/// The runtime has sent it by now.
fn receive_terminal(console: &UnixListener) -> io::Result<OwnedFd> {
    console.set_nonblocking(true)?;
    let (socket, _) = console.accept()?;
    let (_, mut descriptors) = receive_all(&socket)?;
    descriptors.pop().ok_or_else(|| io::Error::other("the runtime made none"))
}

/// Lets the command run.
pub(super) fn start(recipe: &Recipe, oci: &OciRecipe) -> Result<(), String> {
    let status = command(recipe, oci).args(["start", &recipe.id]).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        _ => Err(last_error(recipe, "start")),
    }
}

/// Removes what the runtime keeps of the container, and what is left of it.
pub(crate) fn delete(recipe: &Recipe, oci: &OciRecipe) {
    let _ = command(recipe, oci).args(["delete", "--force", &recipe.id]).status();
}

fn command(recipe: &Recipe, oci: &OciRecipe) -> Command {
    let mut command = Command::new(&oci.runtime);
    command.arg("--root").arg(&oci.state).arg("--log").arg(recipe.directory.join(LOG));
    command.args(["--log-format", "json"]).current_dir(&recipe.directory);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    with_open_signals(&mut command);
    command
}

/// Writes what the runtime reads, and removes what an earlier run wrote.
fn prepare(recipe: &Recipe, oci: &OciRecipe) -> Result<(), Failure> {
    let directory = &recipe.directory;
    for name in [LAYERS, UPPER, WORK, FILES, PARTS] {
        let path = directory.join(name);
        match fs::remove_dir_all(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
        .trying(|| format!("remove {}", path.display()))?;
        fs::create_dir(&path).trying(|| format!("make {}", path.display()))?;
    }
    for name in [LOG, PID, CONSOLE] {
        let _ = fs::remove_file(directory.join(name));
    }
    let root = directory.join(ROOT);
    fs::create_dir_all(&root).trying(|| format!("make {}", root.display()))?;
    for (number, layer) in oci.layers.iter().enumerate() {
        let link = directory.join(LAYERS).join(number.to_string());
        symlink(layer, &link).trying(|| format!("link {}", layer.display()))?;
    }
    for (path, text) in &recipe.files {
        let file = file_path(directory, path);
        fs::write(&file, text).trying(|| format!("write {}", file.display()))?;
    }
    let path = directory.join(CONFIG);
    let text = serde_json::to_vec(&oci.config).map_err(io::Error::from);
    text.and_then(|text| fs::write(&path, text)).trying(|| format!("write {}", path.display()))
}

/// Turns this process into the runtime's `create`; returns only if it could not.
fn become_create(recipe: &Recipe, oci: &OciRecipe, streams: InnerStreams) -> Failure {
    if let Err(failure) = put_together(recipe, oci) {
        return failure;
    }
    let mut create = command(recipe, oci);
    create.args(["create", "--bundle", ".", "--pid-file", PID]);
    if recipe.streams.terminal {
        create.args(["--console-socket", CONSOLE]);
    }
    if let Some(stdin) = streams.stdin {
        create.stdin(stdin);
    }
    if let Some([stdout, stderr]) = streams.outputs {
        create.stdout(stdout).stderr(stderr);
    }
    let error = create.arg(&recipe.id).exec();
    Failure { action: format!("run {}", oci.runtime.display()), source: error }
}

/// Mounts what the runtime needs, in a mount namespace of our own.
fn put_together(recipe: &Recipe, oci: &OciRecipe) -> Result<(), Failure> {
    unshare(UnshareFlags::NEWNS).trying(|| "make a mount namespace".into())?;
    let followed = volume_path::followed(&recipe.mounts)?;
    mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE)
        .trying(|| "keep mounts to ourselves".into())?;
    mount_layers(&recipe.directory, oci.layers.len())?;
    mount_volumes(recipe, oci)?;
    mount_parts(recipe, followed)
}

/// Puts the layers together. What is written to them is for one run, so it need not survive a power cut.
fn mount_layers(directory: &Path, layers: usize) -> Result<(), Failure> {
    // Short names: all options together must fit into a page.
    std::env::set_current_dir(directory.join(LAYERS)).trying(|| "enter the layers".into())?;
    let lower = (0..layers).rev().map(|number| number.to_string()).collect::<Vec<_>>().join(":");
    // An image may have no files at all.
    let lower = if lower.is_empty() { "." } else { &lower };
    let own = if in_user_namespace() { ",userxattr" } else { "" };
    let options = format!("lowerdir={lower},upperdir=../{UPPER},workdir=../{WORK},volatile{own}");
    let options = std::ffi::CString::new(options)
        .map_err(io::Error::from)
        .trying(|| "name the layers".into())?;
    mount("overlay", directory.join(ROOT), "overlay", MountFlags::NODEV, Some(options.as_c_str()))
        .trying(|| "mount the image".into())
}

/// Makes mounts of their own of the image's volumes: what makes the root read-only does not reach them. As
/// the rest of what a container writes, they are for one run, and begin with what the image has there.
fn mount_volumes(recipe: &Recipe, oci: &OciRecipe) -> Result<(), Failure> {
    for path in &oci.volumes {
        volume_path::directory_of_image(&recipe.directory.join(ROOT), path)
            .and_then(|place| volume_path::put(volume_path::tree_of(&place)?, place))
            .trying(|| format!("mount the image's volume {path}"))?;
    }
    Ok(())
}

/// Puts parts of volumes where the runtime looks for them, in our mount namespace: it is told paths, and
/// in the volume itself the container could change what they mean.
fn mount_parts(recipe: &Recipe, followed: Vec<Option<OwnedFd>>) -> Result<(), Failure> {
    for (number, (mount, followed)) in recipe.mounts.iter().zip(followed).enumerate() {
        let place = mount.source_for_oci(&recipe.directory, number);
        let mounted = match followed {
            Some(tree) => put_at(tree, &place),
            None => mount_part(mount, &place),
        };
        mounted.trying(|| format!("mount a part of the volume for {}", mount.path))?;
    }
    Ok(())
}

/// Mounts the part of a volume that is wanted, if it is not all of it, at `place`.
pub(crate) fn mount_part(mount: &Mount, place: &Path) -> io::Result<()> {
    if mount.is_whole() {
        return Ok(());
    }
    let opened = volume_path::open(&mount.source, mount.sub_path.as_deref())?;
    put_at(volume_path::tree_of(opened)?, place)
}

/// Mounts a tree at a path of ours, where nothing is yet.
fn put_at(tree: OwnedFd, place: &Path) -> io::Result<()> {
    match volume_path::is_directory(&tree)? {
        true => fs::create_dir(place)?,
        false => drop(File::create(place)?),
    }
    volume_path::put_at(tree, place)
}

/// There, attributes that hide files of lower layers have other names.
pub(crate) fn in_user_namespace() -> bool {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    map.split_whitespace().collect::<Vec<_>>() != ["0", "0", "4294967295"]
}

/// From here on what it uses is counted.
fn join_groups(recipe: &Recipe, init: Pid) -> Result<(), Failure> {
    let pid = init.as_raw_nonzero().to_string();
    for group in &recipe.groups {
        fs::write(group.join(MEMBERS), &pid).trying(|| format!("join {}", group.display()))?;
    }
    // To be spared more than we are ourselves is a privilege, which we may not have.
    let _ = fs::write(format!("/proc/{pid}/oom_score_adj"), recipe.oom_score_adj.to_string());
    Ok(())
}

fn wait_for(child: Pid) -> io::Result<i32> {
    loop {
        match waitpid(Some(child), WaitOptions::empty()) {
            Ok(Some((_, status))) => return Ok(status.exit_status().unwrap_or(255)),
            Ok(None) => {}
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// What the runtime complained about last.
fn last_error(recipe: &Recipe, what: &str) -> String {
    let mut text = String::new();
    let log = File::open(recipe.directory.join(LOG));
    let _ = log.map(|log| log.take(1 << 16).read_to_string(&mut text));
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut errors = lines.rev().filter(|line| line["level"] == "error");
    let last = errors.next().and_then(|line| line["msg"].as_str().map(str::to_owned));
    last.unwrap_or_else(|| format!("the runtime failed to {what} the container"))
}
