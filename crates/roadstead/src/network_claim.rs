//! Whose rules, bridge and pods this machine's network carries.
//!
//! Rules and links belong to a network namespace, and so does this claim: a file under /run named
//! after it, locked while `up` runs. It stays behind with the pods that go on without us, so that
//! nobody takes them for his own. A restart of the machine removes both. It remembers, too, how the
//! kernel was set before the first of us came, so that the last one can leave it so.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder, File, TryLockError};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use roadstead_proxy::iptables::tables;
use serde::{Deserialize, Serialize};
use tracing::warn;

/// Where claims are kept, each under the inode of its network namespace.
pub(crate) const DIRECTORY: &str = "/run/roadstead";
pub(crate) const NAMESPACE: &str = "/proc/self/ns/net";
const KERNEL: &str = "/proc/sys";
/// What the node agent and the proxy set.
const SETTINGS: [&str; 4] = [
    "net/ipv4/conf/all/send_redirects",
    "net/ipv4/conf/all/route_localnet",
    "net/ipv4/ip_forward",
    "net/ipv6/conf/all/forwarding",
];

/// The network is ours while this lives.
#[derive(Debug)]
pub(crate) struct NetworkClaim {
    path: PathBuf,
    /// Locked.
    file: File,
    before: Before,
    had_owner: bool,
}

/// What the network was like before the first of us came.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Before {
    /// Settings of the kernel.
    settings: BTreeMap<String, String>,
    /// The tables of iptables, if somebody has looked.
    pub tables: Option<BTreeSet<String>>,
}

/// Who made what is in the network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Owner {
    pid: u32,
    data_dir: PathBuf,
    /// What it makes; those who did not say so made everything.
    #[serde(default)]
    extent: Extent,
    #[serde(default)]
    before: Before,
}

/// What of a network somebody makes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Extent {
    /// Pods, their links, and the rules for Services and policies, as `up`.
    #[default]
    Cluster,
    /// Pods and their links; rules are the business of others.
    Pods,
}

impl NetworkClaim {
    /// Takes the network for the cluster of a data directory. Fails, before anything is touched,
    /// if another one runs here or has left its pods.
    pub(crate) fn take(data_dir: &Path, extent: Extent) -> anyhow::Result<Self> {
        let name = fs::metadata(NAMESPACE).context("cannot look at our network namespace")?.ino();
        Self::take_in(Path::new(DIRECTORY), name, (data_dir, extent))
    }

    fn take_in(
        directory: &Path,
        namespace: u64,
        (data_dir, extent): (&Path, Extent),
    ) -> anyhow::Result<Self> {
        let made = DirBuilder::new().recursive(true).mode(0o755).create(directory);
        made.with_context(|| format!("cannot make {}", directory.display()))?;
        let path = directory.join(format!("network-{namespace}"));
        let mut options = File::options();
        let file = options.read(true).write(true).create(true).truncate(false).mode(0o644);
        let mut file =
            file.open(&path).with_context(|| format!("cannot open {}", path.display()))?;
        let data_dir = std::path::absolute(data_dir).context("cannot find the data directory")?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => bail!(running(read(&mut file))),
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("cannot lock {}", path.display()));
            }
        }
        let last = read(&mut file);
        if let Some(owner) = &last
            && owner.data_dir != data_dir
            && has_pods(&owner.data_dir)
        {
            let theirs = owner.data_dir.display();
            bail!(
                "the pods of the cluster in {theirs} are on this machine; start that one, \
                 or remove it with: roadstead cleanup --data-dir {theirs}"
            );
        }
        let had_owner = last.is_some();
        let before = last.map(|last| last.before).unwrap_or_else(|| Before {
            settings: settings(Path::new(KERNEL)),
            tables: Some(tables::present()),
        });
        let owner = Owner { pid: std::process::id(), data_dir, extent, before: before.clone() };
        let text = serde_json::to_vec(&owner).context("cannot describe ourselves")?;
        file.set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| file.write_all(&text))
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self { path, file, before, had_owner })
    }

    /// Whether one of us ran here before, since the machine started or the network was given back.
    pub(crate) fn had_owner(&self) -> bool {
        self.had_owner
    }

    /// Gives the network back: nothing of ours is left in it, and the rest is as it was before us.
    /// Returns what that took, in words.
    pub(crate) fn release(self) -> Vec<String> {
        let mut restored = restore(Path::new(KERNEL), &self.before.settings);
        if let Some(before) = &self.before.tables {
            match tables::remove_empty(before) {
                Ok(removed) if removed.is_empty() => {}
                Ok(removed) => restored.push(format!("no empty tables {}", removed.join(", "))),
                Err(error) => warn!(%error, "empty tables of iptables stay"),
            }
        }
        // Whoever opened it in the meantime finds nobody in it, which is true.
        let _ = self.file.set_len(0);
        let _ = fs::remove_file(&self.path);
        restored
    }
}

/// Fails if rules are those of a cluster whose pods go on here, although nobody looks after them now.
pub(crate) fn check_rules_are_free() -> anyhow::Result<()> {
    let name = fs::metadata(NAMESPACE).context("cannot look at our network namespace")?.ino();
    check_free(&Path::new(DIRECTORY).join(format!("network-{name}")))
}

fn check_free(path: &Path) -> anyhow::Result<()> {
    let owner = File::open(path).ok().and_then(|mut file| read(&mut file));
    match owner.filter(|owner| owner.extent == Extent::Cluster && has_pods(&owner.data_dir)) {
        None => Ok(()),
        Some(owner) => {
            let theirs = owner.data_dir.display();
            bail!(
                "these are the rules of the cluster in {theirs}, whose pods are on this machine; \
                 remove both with: roadstead cleanup --data-dir {theirs}"
            )
        }
    }
}

fn settings(kernel: &Path) -> BTreeMap<String, String> {
    let read = |name: &str| fs::read_to_string(kernel.join(name)).ok();
    let found = SETTINGS.iter().filter_map(|name| Some((*name, read(name)?)));
    found.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect()
}

/// Only those that we know: whoever can write the file is not to set everything else.
fn restore(kernel: &Path, before: &BTreeMap<String, String>) -> Vec<String> {
    let now = settings(kernel);
    let changed = SETTINGS.iter().filter_map(|name| {
        let value = before.get(*name).filter(|value| now.get(*name) != Some(value))?;
        fs::write(kernel.join(name), value).ok()?;
        Some(format!("{} = {value}", name.replace('/', ".")))
    });
    changed.collect()
}

fn running(owner: Option<Owner>) -> String {
    match owner {
        Some(Owner { pid, data_dir, .. }) => format!(
            "roadstead (pid {pid}) runs on this machine already, with --data-dir {}; stop it first",
            data_dir.display()
        ),
        None => "another roadstead is starting on this machine".into(),
    }
}

fn read(file: &mut File) -> Option<Owner> {
    let mut text = String::new();
    file.rewind().ok()?;
    file.read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}

/// Whether a node agent has left pods there.
fn has_pods(data_dir: &Path) -> bool {
    let pods = fs::read_dir(data_dir.join("node/pods"));
    pods.is_ok_and(|mut pods| pods.next().is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_has_one_owner() {
        let place = tempfile::tempdir().unwrap();
        let (run, mine, other) =
            (place.path().join("run"), place.path().join("mine"), place.path().join("other"));
        let refusal = |namespace, data_dir: &Path| {
            NetworkClaim::take_in(&run, namespace, (data_dir, Extent::Cluster))
                .unwrap_err()
                .to_string()
        };
        let first = NetworkClaim::take_in(&run, 7, (&mine, Extent::Cluster)).unwrap();
        assert!(!first.had_owner());
        let said = refusal(7, &other);
        let pid = format!("(pid {})", std::process::id());
        assert!(said.contains(&pid) && said.contains("mine"), "{said}");
        NetworkClaim::take_in(&run, 8, (&other, Extent::Cluster))
            .expect("another network is another matter")
            .release();

        // It stops, and its pods go on.
        fs::create_dir_all(mine.join("node/pods/uid")).unwrap();
        drop(first);
        let remedy = format!("cleanup --data-dir {}", mine.display());
        let said = refusal(7, &other);
        assert!(said.contains(&remedy), "{said}");
        // Nor are its rules anybody else's; those beside a node agent are.
        let claim = run.join("network-7");
        let said = check_free(&claim).unwrap_err().to_string();
        assert!(said.contains(&remedy), "{said}");
        drop(NetworkClaim::take_in(&run, 7, (&mine, Extent::Pods)).unwrap());
        check_free(&claim).unwrap();
        let again = NetworkClaim::take_in(&run, 7, (&mine, Extent::Cluster))
            .expect("its own pods are no obstacle");
        assert!(again.had_owner());
        drop(again);

        // Without pods, what is left is rules, and the next one brings its own.
        fs::remove_dir(mine.join("node/pods/uid")).unwrap();
        NetworkClaim::take_in(&run, 7, (&other, Extent::Cluster)).unwrap().release();
        assert_eq!(fs::read_dir(&run).unwrap().count(), 0);
    }
    #[test]
    fn the_kernel_is_left_as_it_was_found() {
        let kernel = tempfile::tempdir().unwrap();
        let file = |name: &str| kernel.path().join(name);
        for (name, value) in SETTINGS.iter().zip(["1\n", "0\n", "0\n", "0\n"]) {
            fs::create_dir_all(file(name).parent().unwrap()).unwrap();
            fs::write(file(name), value).unwrap();
        }
        let mut before = settings(kernel.path());
        before.insert("kernel/core_pattern".into(), "|evil".into());
        fs::write(file("net/ipv4/ip_forward"), "1\n").unwrap();
        assert_eq!(restore(kernel.path(), &before), ["net.ipv4.ip_forward = 0"]);
        assert_eq!(fs::read_to_string(file("net/ipv4/ip_forward")).unwrap(), "0");
        assert!(!file("kernel/core_pattern").exists());
    }
}
