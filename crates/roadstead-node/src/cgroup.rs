//! Limits of pods and containers: groups of processes that the kernel keeps to them.
//!
//! Each pod has a group in every hierarchy that has a controller we use, and in it each run of a
//! container has one. The monitor of a container removes its group; the agent the pod's.

mod places;

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use tracing::warn;

use self::places::{Place, member_files, places, unified};
use crate::container::process::end;
use roadstead_pod::resources::{Controller, Limits, Resources, Version, settings};
use roadstead_pod::usage::Usage;

/// A process that has ended may still be leaving its group, which is busy for that long at most.
const LEAVING: Duration = Duration::from_secs(2);
const LOOK_AGAIN: Duration = Duration::from_millis(5);

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
        Self::take_below(&fs::read_to_string("/proc/self/cgroup").unwrap_or_default())
    }

    /// The same at the top of each hierarchy, where runtimes that are told a path look for it.
    #[cfg(feature = "cri")]
    pub(crate) fn take_at_top() -> Self {
        Self::take_below("")
    }

    /// Below the groups that a process has of which the kernel says this.
    fn take_below(own_groups: &str) -> Self {
        let network = fs::metadata("/proc/self/ns/net").map_or(0, |found| found.ino());
        let name = &format!("roadstead-{network}");
        let read = |path: &Path| fs::read_to_string(path).unwrap_or_default();
        let mountinfo = read(Path::new("/proc/self/mountinfo"));
        let controllers = unified(&mountinfo)
            .map(|top| read(&top.join("cgroup.controllers")))
            .unwrap_or_default();
        let all = places(&mountinfo, own_groups, &controllers);
        let mut missing: Vec<_> = Controller::LIMITING.into_iter().collect();
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
        Controller::LIMITING.into_iter().filter(|one| !has(*one)).map(Controller::name).collect()
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

    /// Holds a run, and its pod, to other limits.
    ///
    /// Whether the run or the pod comes first depends on which of them gets more, and memory must not be limited
    /// beyond memory and swap together at any moment. So everything is tried once in the one order, and has
    /// to succeed in the other.
    pub(crate) fn hold(&self, uid: &str, id: &str, resources: &Resources) -> io::Result<()> {
        for place in &self.places {
            let pod = place.directory.join(pod_name(uid));
            let run = pod.join(id);
            let (of_pod, of_run) = (&resources.of_pod, &resources.of_container);
            for (directory, limits) in [(&pod, of_pod), (&run, of_run)] {
                for setting in settings(limits, place.controller, place.version).iter().rev() {
                    let _ = fs::write(directory.join(setting.file), &setting.value);
                }
            }
            write_all(&run, of_run, place)?;
            write_all(&pod, of_pod, place)?;
        }
        Ok(())
    }

    /// Makes the groups of a pod, for a runtime that makes those of containers in them; returns their path in
    /// every hierarchy.
    #[cfg(feature = "cri")]
    pub(crate) fn prepare_pod(&self, uid: &str, limits: &Limits) -> io::Result<String> {
        for place in &self.places {
            let pod = place.directory.join(pod_name(uid));
            make(&pod)?;
            write_all(&pod, limits, place)?;
            share(&pod, place)?;
        }
        Ok(format!("/{}/{}", self.name(), pod_name(uid)))
    }

    /// Removes a pod's groups in all hierarchies, as far as they are empty: a runtime uses more of them than
    /// we do. Without a pod, what all pods had in common.
    #[cfg(feature = "cri")]
    pub(crate) fn remove_everywhere(&self, uid: Option<&str>) {
        let until = Instant::now() + LEAVING;
        let mountinfo = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        for top in places::tops(&mountinfo) {
            let all = top.join(self.name());
            remove_tree(&uid.map_or(all.clone(), |uid| all.join(pod_name(uid))), until);
        }
    }

    /// What our directory is called.
    fn name(&self) -> String {
        let name = self.places.first().and_then(|place| place.directory.file_name());
        name.unwrap_or("roadstead".as_ref()).to_string_lossy().into_owned()
    }

    /// Where an OCI runtime is to group the processes of a run, in its own words.
    ///
    /// In version two that is our own group, whose limits it leaves alone. In version one it also has
    /// groups of controllers that we do not use, such as that of devices; so it gets one beside ours, in
    /// each hierarchy, and the run moves from there to ours where we have one.
    pub(crate) fn oci_path(&self, uid: &str, id: &str) -> String {
        let name = self.name();
        let unified = self.places.iter().all(|place| place.version == Version::Two);
        match unified && !self.places.is_empty() {
            true => format!("/{name}/{}/{id}", pod_name(uid)),
            false => format!("{name}-{id}"),
        }
    }

    /// What a pod uses, or one run of a container of it.
    pub(crate) fn usage(&self, uid: &str, id: Option<&str>) -> Usage {
        let mut usage = Usage::default();
        for place in &self.places {
            let pod = place.directory.join(pod_name(uid));
            let group = id.map_or(pod.clone(), |id| pod.join(id));
            usage.observe(place.controller, place.version, |file| {
                fs::read_to_string(group.join(file)).unwrap_or_default()
            });
        }
        usage
    }

    /// Removes a pod's groups; its processes must be gone. May take a moment: not for asynchronous
    /// threads.
    pub(crate) fn remove_pod(&self, uid: &str) {
        let until = Instant::now() + LEAVING;
        for place in &self.places {
            remove_tree(&place.directory.join(pod_name(uid)), until);
        }
    }

    /// Removes the groups of pods that nobody knows any more, as far as they are empty.
    pub(crate) fn retain(&self, known: &[&str]) {
        let known: Vec<_> = known.iter().map(|uid| pod_name(uid)).collect();
        let now = Instant::now();
        for place in &self.places {
            for entry in fs::read_dir(&place.directory).into_iter().flatten().flatten() {
                let name = entry.file_name().to_string_lossy().into_owned();
                if name.starts_with("pod") && !known.contains(&name) {
                    remove_tree(&entry.path(), now);
                }
            }
        }
    }

    /// Removes everything; the pods must be gone. May take a moment, as above.
    pub(crate) fn remove_all(&self) {
        let until = Instant::now() + LEAVING;
        for place in &self.places {
            remove_tree(&place.directory, until);
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

fn remove_tree(directory: &Path, until: Instant) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_tree(&entry.path(), until);
        }
    }
    // Those that are gone are no concern, and one with processes goes with the next agent.
    while let Err(error) = fs::remove_dir(directory)
        && error.kind() == io::ErrorKind::ResourceBusy
        && Instant::now() < until
    {
        thread::sleep(LOOK_AGAIN);
    }
}

/// The files by which a process joins the groups that this one is in.
pub(crate) fn joined_by(pid: i32) -> io::Result<Vec<PathBuf>> {
    let of_process = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
    let own = fs::read_to_string("/proc/self/cgroup")?;
    let mountinfo = fs::read_to_string("/proc/self/mountinfo")?;
    member_files(&mountinfo, &of_process, &own).map_err(io::Error::other)
}

/// Ends all processes of these groups, as often as new ones are born meanwhile.
pub(crate) fn end_members(groups: &[PathBuf]) {
    let until = Instant::now() + LEAVING;
    let members = || -> BTreeSet<i32> {
        let texts = groups.iter().map(|group| fs::read_to_string(group.join(MEMBERS)));
        let texts: Vec<_> = texts.map(Result::unwrap_or_default).collect();
        texts.iter().flat_map(|text| text.lines()).filter_map(|pid| pid.parse().ok()).collect()
    };
    let mut left = members();
    while !left.is_empty() && Instant::now() < until {
        left.into_iter().for_each(end);
        thread::sleep(LOOK_AGAIN);
        left = members();
    }
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
