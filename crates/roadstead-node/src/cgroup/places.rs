//! Where this machine has which controller, read from what the kernel says about mounts: pure.

use std::path::{Component, Path, PathBuf};

use roadstead_pod::resources::{Controller, Version};

/// A controller, and the directory that groups can be made in.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Place {
    pub(crate) controller: Controller,
    pub(crate) version: Version,
    pub(crate) directory: PathBuf,
}

/// Where the hierarchy of version two is mounted, if it is.
pub(crate) fn unified(mountinfo: &str) -> Option<PathBuf> {
    mounts(mountinfo).find(|mount| mount.kind == "cgroup2").map(|mount| mount.point)
}

/// Where all hierarchies are mounted.
#[cfg(feature = "cri")]
pub(crate) fn tops(mountinfo: &str) -> Vec<PathBuf> {
    let all = mounts(mountinfo).filter(|mount| ["cgroup", "cgroup2"].contains(&mount.kind));
    all.map(|mount| mount.point).collect()
}

/// Returns where each controller is, in version one or, if it is among `unified_controllers`, in
/// version two.
///
/// In version one groups are made below our own, so that a limit on us holds for pods as well.
/// Version two allows no groups below one that has processes; there they are made at the top, as a
/// kubelet makes them.
pub(crate) fn places(mountinfo: &str, own: &str, unified_controllers: &str) -> Vec<Place> {
    let mut places = Vec::new();
    for mount in mounts(mountinfo) {
        for controller in Controller::ALL {
            let name = controller.name();
            let place = match mount.kind {
                "cgroup" if mount.options.split(',').any(|option| option == name) => Place {
                    controller,
                    version: Version::One,
                    directory: below(&mount, own_group(own, name)),
                },
                "cgroup2" if unified_controllers.split_whitespace().any(|one| one == name) => {
                    Place { controller, version: Version::Two, directory: mount.point.clone() }
                }
                _ => continue,
            };
            if !places.iter().any(|known: &Place| known.controller == controller) {
                places.push(place);
            }
        }
    }
    places
}

/// Returns the files by which a process joins the groups of another, in every hierarchy in which they
/// differ. `of_process` and `own` are what the kernel says of the two. An error names a group that cannot
/// be seen from here.
pub(crate) fn member_files(
    mountinfo: &str,
    of_process: &str,
    own: &str,
) -> Result<Vec<PathBuf>, String> {
    let mut files = Vec::new();
    for line in of_process.lines().filter(|line| !own.lines().any(|own| own == *line)) {
        let Some((controllers, path)) =
            line.split_once(':').and_then(|(_, rest)| rest.split_once(':'))
        else {
            continue;
        };
        let has = |mount: &Mounted<'_>| match controllers {
            "" => mount.kind == "cgroup2",
            names => {
                let first = names.split(',').next().unwrap_or_default();
                mount.kind == "cgroup" && mount.options.split(',').any(|option| option == first)
            }
        };
        // Who joins has one thread; alone, it can do so without stopping all others of the machine.
        let file = if controllers.is_empty() { "cgroup.procs" } else { "tasks" };
        let mut seen = mounts(mountinfo).filter(has).peekable();
        if seen.peek().is_none() {
            continue;
        }
        let found = seen.find_map(|mount| {
            let inside = Path::new(path).strip_prefix(mount.root).ok()?;
            let outside = inside.components().any(|part| part == Component::ParentDir);
            (!outside).then(|| mount.point.join(inside).join(file))
        });
        files.push(found.ok_or_else(|| format!("the control group {path} cannot be seen"))?);
    }
    Ok(files)
}

struct Mounted<'a> {
    root: &'a str,
    point: PathBuf,
    kind: &'a str,
    options: &'a str,
}

fn mounts(mountinfo: &str) -> impl Iterator<Item = Mounted<'_>> {
    mountinfo.lines().filter_map(|line| {
        let (mount, system) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(3);
        let (root, point) = (mount.next()?, mount.next()?);
        let mut system = system.split(' ');
        let (kind, options) = (system.next()?, system.nth(1)?);
        // A space in a path comes as \040; nobody has one in this.
        Some(Mounted { root, point: point.into(), kind, options })
    })
}

/// Our own group in the hierarchy of a controller.
fn own_group<'a>(own: &'a str, name: &str) -> &'a str {
    let mut lines = own.lines().filter_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        controllers.split(',').any(|one| one == name).then_some(path)
    });
    lines.next().unwrap_or("/")
}

fn below(mount: &Mounted<'_>, own: &str) -> PathBuf {
    let inside = Path::new(own).strip_prefix(mount.root);
    match inside {
        Ok(inside) if !own.contains("..") && inside != Path::new("") => mount.point.join(inside),
        // It is what is mounted, or not visible through this mount.
        _ => mount.point.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "\
30 1 0:26 / /sys/fs/cgroup ro - tmpfs tmpfs ro
31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
32 30 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
33 30 0:29 / /sys/fs/cgroup/pids rw,nosuid shared:9 - cgroup cgroup rw,pids
34 30 0:30 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
";
    const TWO: &str =
        "30 1 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

    fn show(places: &[Place]) -> Vec<String> {
        let show = |place: &Place| {
            let version = if place.version == Version::One { 1 } else { 2 };
            format!("{} v{version} {}", place.controller.name(), place.directory.display())
        };
        places.iter().map(show).collect()
    }

    #[test]
    fn places_of_machines() {
        let own = "4:memory:/user.slice\n2:cpu,cpuacct:/\n1:pids:/user.slice\n0::/user.slice\n";
        let old = [
            "cpu v1 /sys/fs/cgroup/cpu,cpuacct",
            "cpuacct v1 /sys/fs/cgroup/cpu,cpuacct",
            "memory v1 /sys/fs/cgroup/memory/user.slice",
            "pids v1 /sys/fs/cgroup/pids/user.slice",
        ];
        let without_pids = ONE.replace("rw,pids", "rw,devices");
        let mixed = [old[0], old[1], old[2], "pids v2 /sys/fs/cgroup/unified"];
        let new = ["cpu v2 /sys/fs/cgroup", "memory v2 /sys/fs/cgroup", "pids v2 /sys/fs/cgroup"];
        for (name, mountinfo, own, controllers, want) in [
            ("version one", ONE, own, "hugetlb", &old[..]),
            ("hybrid", &without_pids, own, "hugetlb pids", &mixed),
            ("version two", TWO, "0::/user.slice\n", "cpuset cpu io memory pids", &new),
            ("version two, less of it", TWO, "0::/\n", "cpu", &new[..1]),
            ("nothing", "30 1 0:26 / / rw - ext4 /dev/vda rw\n", "", "", &[]),
        ] {
            assert_eq!(show(&places(mountinfo, own, controllers)), want, "{name}");
        }
    }

    #[test]
    fn our_own_group_may_be_out_of_sight() {
        let mountinfo = "32 30 0:28 /docker/x /cg/memory rw - cgroup cgroup rw,memory\n";
        for (own, want) in [
            ("4:memory:/docker/x\n", "/cg/memory"),
            ("4:memory:/docker/x/y\n", "/cg/memory/y"),
            ("4:memory:/docker/other\n", "/cg/memory"),
            ("4:memory:/../other\n", "/cg/memory"),
        ] {
            assert_eq!(places(mountinfo, own, "")[0].directory, Path::new(want), "{own}");
        }
    }

    #[test]
    fn the_groups_of_another_process() {
        let own = "4:memory:/\n2:cpu,cpuacct:/\n1:pids:/\n0::/\n";
        let other = "4:memory:/pod/a\n3:rdma:/pod/a\n2:cpu,cpuacct:/pod/b\n1:pids:/\n0::/x\n";
        let want = [
            "/sys/fs/cgroup/memory/pod/a/tasks",
            "/sys/fs/cgroup/cpu,cpuacct/pod/b/tasks",
            "/sys/fs/cgroup/unified/x/cgroup.procs",
        ];
        let files = member_files(ONE, other, own).unwrap();
        assert_eq!(files, want.map(PathBuf::from));
        assert_eq!(
            member_files(TWO, "0::/pod/a\n", "0::/\n").unwrap(),
            [PathBuf::from("/sys/fs/cgroup/pod/a/cgroup.procs")]
        );
        assert!(member_files(TWO, "0::/../pod\n", "0::/\n").is_err());
    }
}
