//! Limits of pods and containers: groups of processes that the kernel keeps to them.
//!
//! Each pod has a group in every hierarchy that has a controller we use, and in it each run of a
//! container has one. The monitor of a container removes its group; the agent the pod's.

pub(crate) mod limits;
mod places;

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use tracing::warn;

use self::limits::{Controller, Limits, Resources, Version, settings};
use self::places::{Place, places, unified};

/// What holds the processes in a group.
pub(crate) const MEMBERS: &str = "cgroup.procs";

/// The groups of this agent.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    /// With the directory that is ours.
    places: Vec<Place>,
}

impl Groups {
    /// Finds what the machine has, and takes a directory in it.
    ///
    /// There is one agent in a network, so the number of the network is a name that no other agent
    /// has, and that the next one finds again.
    pub(crate) fn take() -> Self {
        let network = fs::metadata("/proc/self/ns/net").map_or(0, |found| found.ino());
        let name = &format!("roadstead-{network}");
        let read = |path: &Path| fs::read_to_string(path).unwrap_or_default();
        let mountinfo = read(Path::new("/proc/self/mountinfo"));
        let controllers = unified(&mountinfo)
            .map(|top| read(&top.join("cgroup.controllers")))
            .unwrap_or_default();
        let all = places(&mountinfo, &read(Path::new("/proc/self/cgroup")), &controllers);
        let mut missing: Vec<_> = Controller::ALL.into_iter().collect();
        let mut usable = Vec::new();
        for place in all {
            match own(&place, name) {
                Ok(place) => {
                    missing.retain(|controller| *controller != place.controller);
                    usable.push(place);
                }
                Err(error) => {
                    let path = place.directory.display();
                    warn!(%path, controller = place.controller.name(), %error, "cannot use a control group");
                }
            }
        }
        if !missing.is_empty() {
            let missing: Vec<_> = missing.into_iter().map(Controller::name).collect();
            warn!(?missing, "no control groups for these: limits of pods do not hold");
        }
        Self { places: usable }
    }

    /// Which controllers hold no limit on this machine.
    pub(crate) fn missing(&self) -> Vec<&'static str> {
        let has = |controller| self.places.iter().any(|place| place.controller == controller);
        Controller::ALL.into_iter().filter(|one| !has(*one)).map(Controller::name).collect()
    }

    /// Makes the groups of a run; returns their directories, for its processes to join.
    pub(crate) fn prepare(
        &self,
        uid: &str,
        id: &str,
        resources: &Resources,
    ) -> io::Result<Vec<PathBuf>> {
        let mut directories = Vec::new();
        for place in &self.places {
            let pod = place.directory.join(pod_name(uid));
            let run = pod.join(id);
            make(&pod)?;
            write_all(&pod, &resources.of_pod, place)?;
            share(&pod, place)?;
            make(&run)?;
            write_all(&run, &resources.of_container, place)?;
            if !directories.contains(&run) {
                directories.push(run);
            }
        }
        Ok(directories)
    }

    /// Removes a pod's groups; its processes must be gone.
    pub(crate) fn remove_pod(&self, uid: &str) {
        for place in &self.places {
            remove_tree(&place.directory.join(pod_name(uid)));
        }
    }

    /// Removes the groups of pods that nobody knows any more.
    pub(crate) fn retain(&self, known: &[&str]) {
        let known: Vec<_> = known.iter().map(|uid| pod_name(uid)).collect();
        for place in &self.places {
            for entry in fs::read_dir(&place.directory).into_iter().flatten().flatten() {
                let name = entry.file_name().to_string_lossy().into_owned();
                if name.starts_with("pod") && !known.contains(&name) {
                    remove_tree(&entry.path());
                }
            }
        }
    }

    /// Removes everything.
    pub(crate) fn remove_all(&self) {
        for place in &self.places {
            remove_tree(&place.directory);
        }
    }
}

fn pod_name(uid: &str) -> String {
    format!("pod{uid}")
}

fn own(place: &Place, name: &str) -> io::Result<Place> {
    let directory = place.directory.join(name);
    share(&place.directory, place)?;
    make(&directory)?;
    share(&directory, place)?;
    Ok(Place { directory, ..place.clone() })
}

fn make(directory: &Path) -> io::Result<()> {
    match fs::create_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

/// Lets groups below have limits of their own; in version one they always can.
fn share(directory: &Path, place: &Place) -> io::Result<()> {
    match place.version {
        Version::One => Ok(()),
        Version::Two => {
            let controller = place.controller.name();
            fs::write(directory.join("cgroup.subtree_control"), format!("+{controller}"))
        }
    }
}

fn write_all(directory: &Path, limits: &Limits, place: &Place) -> io::Result<()> {
    for setting in settings(limits, place.controller, place.version) {
        match fs::write(directory.join(setting.file), &setting.value) {
            Err(error) if !setting.optional => {
                let what = format!("cannot set {} to {}: {error}", setting.file, setting.value);
                return Err(io::Error::new(error.kind(), what));
            }
            _ => {}
        }
    }
    Ok(())
}

fn remove_tree(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_tree(&entry.path());
        }
    }
    // Those that are gone are no concern, and one with processes will be tried again.
    let _ = fs::remove_dir(directory);
}

/// Whether the kernel ended a process of the group because its memory was used up.
pub(crate) fn ran_out_of_memory(group: &Path) -> bool {
    ["memory.oom_control", "memory.events"].iter().any(|file| {
        let text = fs::read_to_string(group.join(file)).unwrap_or_default();
        counted(&text)
    })
}

fn counted(text: &str) -> bool {
    let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
    count.and_then(|count| count.trim().parse::<u64>().ok()).is_some_and(|count| count > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_ended_processes() {
        for (text, want) in [
            ("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n", true),
            ("oom_kill_disable 0\nunder_oom 0\noom_kill 0\n", false),
            ("low 0\nmax 7\noom 1\noom_kill 2\noom_group_kill 1\n", true),
            ("", false),
        ] {
            assert_eq!(counted(text), want, "{text:?}");
        }
    }
}
