//! Who keeps the rules of this machine's network, so that nobody deletes them meanwhile.
//!
//! Rules cannot be locked. Whoever keeps some holds a file under /run, named after the network, together
//! with others who do; `--cleanup` needs it alone. The rules of a stopped `up` belong to its pods.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use tracing::warn;

use crate::culprit;
use crate::network_claim::{DIRECTORY, NAMESPACE};

/// Which rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rules {
    /// Those for Services.
    Proxy,
    /// Those of NetworkPolicies.
    Netpol,
}

/// Nobody deletes the rules while this lives.
#[derive(Debug)]
pub(crate) struct RulesClaim {
    /// Locked, with others.
    _file: File,
}

/// Nobody keeps the rules while this lives, and nothing is left of those who did.
#[derive(Debug)]
pub(crate) struct RulesRemoval {
    path: PathBuf,
    /// Locked, alone.
    _file: File,
}

impl Drop for RulesRemoval {
    fn drop(&mut self) {
        // Whoever has opened it meanwhile sees that it is gone, and makes another one.
        let _ = fs::remove_file(&self.path);
    }
}

impl Rules {
    /// Says that we keep these rules from now on. Where that cannot be said, such as in a container
    /// that may write nothing, they are kept all the same.
    pub(crate) fn keep(self) -> Option<RulesClaim> {
        let kept = self.file().and_then(|path| keep_in(&path));
        kept.inspect_err(|error| warn!(error = format!("{error:#}"), "the rules are not claimed"))
            .ok()
    }

    /// Takes these rules in order to remove them; fails, before anything is touched, if somebody
    /// keeps them.
    pub(crate) fn take_for_removal(self) -> anyhow::Result<RulesRemoval> {
        take_in(&self.file()?)
    }

    fn file(self) -> anyhow::Result<PathBuf> {
        let network = fs::metadata(NAMESPACE).context("cannot look at our network namespace")?;
        let name = match self {
            Self::Proxy => "proxy",
            Self::Netpol => "netpol",
        };
        Ok(Path::new(DIRECTORY).join(format!("{name}-{}", network.ino())))
    }
}

fn open(path: &Path) -> anyhow::Result<File> {
    if let Some(directory) = path.parent() {
        let made = DirBuilder::new().recursive(true).mode(0o755).create(directory);
        made.with_context(|| format!("cannot make {}", directory.display()))?;
    }
    let mut options = File::options();
    let file = options.read(true).write(true).create(true).truncate(false).mode(0o644).open(path);
    file.with_context(|| format!("cannot open {}", path.display()))
}

fn keep_in(path: &Path) -> anyhow::Result<RulesClaim> {
    loop {
        let file = open(path)?;
        match file.try_lock_shared() {
            Ok(()) if is_at(&file, path) => return Ok(RulesClaim { _file: file }),
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => bail!("somebody is removing them"),
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("cannot lock {}", path.display()));
            }
        }
    }
}

/// Whether the file has not been removed between opening and locking it.
fn is_at(file: &File, path: &Path) -> bool {
    let (opened, there) = (file.metadata(), fs::metadata(path));
    matches!((opened, there), (Ok(opened), Ok(there)) if opened.ino() == there.ino())
}

fn take_in(path: &Path) -> anyhow::Result<RulesRemoval> {
    let file = open(path)?;
    match file.try_lock() {
        Ok(()) if is_at(&file, path) => Ok(RulesRemoval { path: path.to_owned(), _file: file }),
        Ok(()) => bail!("somebody else is removing them"),
        Err(TryLockError::WouldBlock) => {
            // Not we ourselves, who have it open as well.
            drop(file);
            let holder = culprit::having_open(path).unwrap_or_else(|| "another process".into());
            bail!("{holder} keeps these rules on this machine; stop it first")
        }
        Err(TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("cannot lock {}", path.display()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_kept_by_many_and_removed_by_one() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("run/proxy-7");
        let (first, second) = (keep_in(&path).unwrap(), keep_in(&path).unwrap());
        let said = take_in(&path).unwrap_err().to_string();
        assert!(said.contains(&format!("(pid {}) keeps", std::process::id())), "{said}");
        drop(first);
        take_in(&path).expect_err("one of them is left");
        drop(second);
        let removing = take_in(&path).unwrap();
        keep_in(&path).expect_err("they are being removed");
        drop(removing);
        assert!(!path.exists(), "nothing is left");
        keep_in(&path).unwrap();
    }
}
