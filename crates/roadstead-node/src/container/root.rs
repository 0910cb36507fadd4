//! A container's root directory: our own executable, /proc, /sys, a few devices and files in /etc.
//!
//! It works for root, and for root of a user namespace, where device nodes cannot be made and are
//! bound from outside instead.

use std::collections::BTreeSet;
use std::env;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{StatVfsMountFlags, statvfs};
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_change,
    mount_remount, unmount,
};
use rustix::process::pivot_root;

use super::process::{Extent, Restrictions, Sharing, change_mount, restrict_mount};
use super::{
    Failure, LAST_WORDS, Mount, ROOT, Recipe, SharedMemory, Trying, kernel_paths, volume_path,
};
use roadstead_pod::builtin_image::PROGRAMS;
use roadstead_pod::volumes::{Access, Propagation, Trust};

const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];

const NO_DEVICES: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV);

/// Makes the root directory and moves into it; nothing of the machine's files stays visible.
pub(super) fn enter(recipe: &Recipe) -> Result<(), Failure> {
    let followed = volume_path::followed(&recipe.mounts)?;
    mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE)
        .trying(|| "keep mounts to ourselves".into())?;
    let root = recipe.directory.join(ROOT);
    fs::create_dir_all(&root).trying(|| format!("make {}", root.display()))?;
    mount("tmpfs", &root, "tmpfs", NO_DEVICES, Some(c"mode=755,size=64m,nr_inodes=64k"))
        .trying(|| "mount the root".into())?;
    programs(&root, &recipe.executable)?;
    devices(&root, recipe.shared.as_ref())?;
    files(&root, recipe)?;
    kernel_paths::mount_below(&root, recipe.confinement.kernel_paths)?;
    for (mount, followed) in recipe.mounts.iter().zip(followed) {
        volume(&root, mount, followed)?;
    }
    if let Some(message) = &recipe.termination_message {
        let outside = recipe.directory.join(LAST_WORDS);
        let restricted = Restrictions::NO_DEVICES.and(Restrictions::NO_SETUID);
        let restricted = restricted.and(Restrictions::NO_PROGRAMS);
        volume_path::file_below(&root, &message.path)
            .and_then(|place| bound(volume_path::open(&outside, None)?, place, restricted))
            .trying(|| format!("bind {}", message.path))?;
    }
    if recipe.confinement.read_only_root {
        make_read_only(&root)?;
    }
    switch(&root).trying(|| "change the root".into())
}

pub(super) fn make_directory(path: &Path) -> Result<(), Failure> {
    fs::create_dir_all(path).trying(|| format!("make {}", path.display()))
}

/// Our executable under the name of each program, and the libraries it was started with.
fn programs(root: &Path, executable: &Path) -> Result<(), Failure> {
    make_directory(&root.join("bin"))?;
    bind_read_only(executable, &root.join("bin/roadstead"))?;
    for program in PROGRAMS {
        symlink("roadstead", root.join("bin").join(program))
            .trying(|| format!("link /bin/{program}"))?;
    }
    for library in libraries().trying(|| "list our libraries".into())? {
        let inside = root.join(library.strip_prefix("/").unwrap_or(&library));
        make_directory(inside.parent().unwrap_or(root))?;
        bind_read_only(&library, &inside)?;
        let name = library.file_name().unwrap_or_default();
        if name.to_string_lossy().starts_with("ld-") {
            // The kernel finds the loader by the path in the executable, which is one of these.
            for directory in ["lib", "lib64"] {
                make_directory(&root.join(directory))?;
                let _ = symlink(&library, root.join(directory).join(name));
            }
        }
    }
    Ok(())
}

/// The shared libraries mapped into this process: none if we are linked statically.
fn libraries() -> io::Result<BTreeSet<PathBuf>> {
    let maps = fs::read_to_string("/proc/self/maps")?;
    let paths = maps.lines().filter_map(|line| line.find('/').map(|at| &line[at..]));
    Ok(paths.filter(|path| path.contains(".so")).map(PathBuf::from).collect())
}

fn devices(root: &Path, pod: Option<&SharedMemory>) -> Result<(), Failure> {
    let directory = root.join("dev");
    make_directory(&directory)?;
    let options = c"mode=755,size=64k,nr_inodes=1k";
    mount("tmpfs", &directory, "tmpfs", NO_DEVICES | MountFlags::NOEXEC, Some(options))
        .trying(|| "mount /dev".into())?;
    let shared = directory.join("shm");
    make_directory(&shared)?;
    match pod {
        Some(pod) => mount_bind(&pod.files, &shared),
        None => {
            let options = c"mode=1777,size=64m";
            mount("tmpfs", &shared, "tmpfs", NO_DEVICES | MountFlags::NOEXEC, Some(options))
        }
    }
    .trying(|| "mount /dev/shm".into())?;
    let terminals = directory.join("pts");
    make_directory(&terminals)?;
    let options = c"newinstance,ptmxmode=0666,mode=0620";
    mount("devpts", &terminals, "devpts", MountFlags::NOSUID | MountFlags::NOEXEC, Some(options))
        .trying(|| "mount /dev/pts".into())?;
    symlink("pts/ptmx", directory.join("ptmx")).trying(|| "link /dev/ptmx".into())?;
    for name in DEVICES {
        let outside = Path::new("/dev").join(name);
        let inside = directory.join(name);
        File::create(&inside).trying(|| format!("make {}", inside.display()))?;
        mount_bind(&outside, &inside).trying(|| format!("bind {}", outside.display()))?;
    }
    let links = [("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")];
    for (name, number) in links {
        symlink(format!("/proc/self/fd{number}"), directory.join(name))
            .trying(|| format!("link /dev/{name}"))?;
    }
    Ok(())
}

fn files(root: &Path, recipe: &Recipe) -> Result<(), Failure> {
    for directory in ["etc", "tmp"] {
        make_directory(&root.join(directory))?;
    }
    fs::set_permissions(root.join("tmp"), fs::Permissions::from_mode(0o1777))
        .trying(|| "open /tmp".into())?;
    for (path, text) in &recipe.files {
        let inside = root.join(path.trim_start_matches('/'));
        make_directory(inside.parent().unwrap_or(root))?;
        fs::write(&inside, text).trying(|| format!("write {path}"))?;
    }
    Ok(())
}

/// A volume knows no devices, whoever made one in it. `followed` is its tree, if it follows the node's mounts.
fn volume(root: &Path, mount: &Mount, followed: Option<OwnedFd>) -> Result<(), Failure> {
    let tree = match followed {
        Some(tree) => Ok(tree),
        None => volume_path::open(&mount.source, mount.sub_path.as_deref())
            .and_then(volume_path::tree_of),
    };
    let opened = tree.trying(|| format!("open the volume for {}", mount.path))?;
    let is_directory =
        volume_path::is_directory(&opened).trying(|| format!("look at {}", mount.path))?;
    let place = match is_directory {
        true => volume_path::directory_below(root, &mount.path),
        false => volume_path::file_below(root, &mount.path),
    };
    let place = place.trying(|| format!("make {}", mount.path))?;
    let trusted = match mount.trust {
        Trust::Node => Restrictions::NONE,
        Trust::Data => Restrictions::NO_DEVICES,
        Trust::Image => {
            Restrictions::NO_DEVICES.and(Restrictions::NO_SETUID).and(Restrictions::NO_PROGRAMS)
        }
    };
    let restricted = match mount.access {
        Access::ReadWrite => trusted,
        Access::ReadOnly | Access::RecursiveReadOnly => trusted.and(Restrictions::READ_ONLY),
    };
    let mounted = || {
        let tree = opened;
        if mount.propagation == Propagation::HostToContainer {
            let unchanged = Restrictions::NONE;
            change_mount(tree.as_fd(), unchanged, Sharing::Follows, Extent::All)?;
        }
        restrict_mount(tree.as_fd(), restricted, Extent::Top)?;
        if mount.access == Access::RecursiveReadOnly {
            restrict_mount(tree.as_fd(), Restrictions::READ_ONLY, Extent::All)?;
        }
        volume_path::put(tree, place)
    };
    mounted().trying(|| format!("mount {}", mount.path))
}

/// Mounts what was opened over a place, restricted before anybody sees it.
fn bound(opened: OwnedFd, place: OwnedFd, restricted: Restrictions) -> io::Result<()> {
    let tree = volume_path::tree_of(opened)?;
    restrict_mount(tree.as_fd(), restricted, Extent::Top)?;
    volume_path::put(tree, place)
}

fn bind_read_only(outside: &Path, inside: &Path) -> Result<(), Failure> {
    File::create(inside).trying(|| format!("make {}", inside.display()))?;
    mount_bind(outside, inside).trying(|| format!("bind {}", outside.display()))?;
    make_read_only(inside)
}

/// Makes the mount at this path read-only.
pub(super) fn make_read_only(inside: &Path) -> Result<(), Failure> {
    restrict(inside, MountFlags::RDONLY)
}

fn restrict(inside: &Path, more: MountFlags) -> Result<(), Failure> {
    // A user namespace may add restrictions to a mount but not drop those it came with.
    let present = statvfs(inside).trying(|| format!("look at {}", inside.display()))?.f_flag;
    let mut flags = MountFlags::BIND;
    for (have, keep) in [
        (StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
        (StatVfsMountFlags::NOATIME, MountFlags::NOATIME),
        (StatVfsMountFlags::NODIRATIME, MountFlags::NODIRATIME),
        (StatVfsMountFlags::RELATIME, MountFlags::RELATIME),
        (StatVfsMountFlags::NODEV, MountFlags::NODEV),
        (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
    ] {
        flags.set(keep, present.contains(have));
    }
    flags |= more;
    mount_remount(inside, flags, c"").trying(|| format!("protect {}", inside.display()))
}

pub(super) fn switch(root: &Path) -> io::Result<()> {
    env::set_current_dir(root)?;
    // The old root is put on top of the new one, and then taken away.
    pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    env::set_current_dir("/")
}
