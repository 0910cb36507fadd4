//! The data directory: whose it is, and who uses it.
//!
//! A file in it says that it is ours; without that file nothing is ever removed from it, and no
//! server starts in it. Whoever works with the directory holds a lock on that file.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::{apiserver, culprit};

/// The file that makes a directory ours.
const MARK: &str = "roadstead.directory";
const TEXT: &str =
    "This directory belongs to roadstead: `roadstead cleanup --data-dir` removes it.\n";
/// What the mark says, too, once there is a store: a new one is not made in its place.
const STORE: &str = "There is a store in it.\n";
/// What a server, a node agent and a user of both leave in it.
const KNOWN: [&str; 8] =
    ["store", "pki", "node", "images", "storage", "join", "machines", "admin.kubeconfig"];

/// A directory that is ours, and nobody else's while this lives.
#[derive(Debug)]
pub(crate) struct DataDirectory {
    path: PathBuf,
    /// Locked.
    mark: File,
}

/// What `cleanup` did with a directory.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Removed {
    /// What was in it and is gone.
    pub names: Vec<String>,
    /// What was in it and is not ours: the directory stays for their sake.
    pub left: Vec<String>,
}

/// What a directory is to us.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Standing {
    /// There is none, or nothing in it.
    Free,
    Ours,
    /// Made by a version that did not mark its directories.
    Unmarked,
    Foreign,
}

impl DataDirectory {
    /// Makes the directory and marks it, if there is none; whoever uses it goes on.
    pub(crate) fn make(path: &Path) -> anyhow::Result<()> {
        match standing(path)? {
            Standing::Free => Self::claim(path).map(drop),
            Standing::Ours | Standing::Unmarked => Ok(()),
            Standing::Foreign => Err(foreign(path)),
        }
    }

    /// Takes the directory for a server; makes it, if there is none.
    pub(crate) fn claim(path: &Path) -> anyhow::Result<Self> {
        let standing = standing(path)?;
        match standing {
            Standing::Foreign => return Err(foreign(path)),
            Standing::Free => {
                let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
                made.with_context(|| format!("cannot make {}", path.display()))?;
            }
            Standing::Ours | Standing::Unmarked => {}
        }
        Self::lock(path, standing)
    }

    /// Takes the directory in order to remove it; `None` if there is nothing to remove.
    pub(crate) fn claim_for_removal(path: &Path) -> anyhow::Result<Option<Self>> {
        match standing(path)? {
            Standing::Free => Ok(None),
            Standing::Foreign => Err(not_made_by_us(path)),
            ours => Self::lock(path, ours).map(Some),
        }
    }

    /// Fails if the directory is somebody else's, from which nothing may be removed.
    pub(crate) fn check_for_removal(path: &Path) -> anyhow::Result<()> {
        match standing(path)? {
            Standing::Foreign => Err(not_made_by_us(path)),
            Standing::Free | Standing::Ours | Standing::Unmarked => Ok(()),
        }
    }

    fn lock(path: &Path, standing: Standing) -> anyhow::Result<Self> {
        let name = path.join(MARK);
        let opened = File::options().read(true).append(true).create(true).mode(0o600).open(&name);
        let mut mark = opened.with_context(|| format!("cannot open {}", name.display()))?;
        match mark.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(in_use(path, &name)),
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("cannot lock {}", name.display()));
            }
        }
        // A server of a version that knew no marks shows itself by its store.
        let store = apiserver::store_file(path);
        if standing == Standing::Unmarked && culprit::having_open(&store).is_some() {
            return Err(in_use(path, &store));
        }
        let length = mark.metadata().map(|metadata| metadata.len());
        if length.is_ok_and(|length| length == 0) {
            mark.write_all(TEXT.as_bytes())
                .and_then(|()| mark.sync_all())
                .with_context(|| format!("cannot write {}", name.display()))?;
        }
        Ok(Self { path: path.to_owned(), mark })
    }

    /// Removes what is ours in the directory, and the directory if nothing else is in it.
    pub(crate) fn remove(self) -> anyhow::Result<Removed> {
        let mut removed = Removed::default();
        // The next one to come finds no store, and is not to look for one.
        let length = self
            .mark
            .metadata()
            .and_then(|mark| self.mark.set_len(mark.len().min(TEXT.len() as u64)));
        length.with_context(|| format!("cannot write {}", self.path.join(MARK).display()))?;
        for name in KNOWN {
            let path = self.path.join(name);
            let outcome = match path.symlink_metadata() {
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => Err(error),
                Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(&path),
                Ok(_) => fs::remove_file(&path),
            };
            outcome.with_context(|| format!("cannot remove {}", path.display()))?;
            removed.names.push(name.to_owned());
        }
        removed.left = names(&self.path)?.into_iter().filter(|name| name != MARK).collect();
        if removed.left.is_empty() {
            // The mark goes last: what is half removed can still be told to be ours.
            fs::remove_file(self.path.join(MARK))
                .and_then(|()| fs::remove_dir(&self.path))
                .with_context(|| format!("cannot remove {}", self.path.display()))?;
        }
        drop(self.mark);
        Ok(removed)
    }
}

/// Whether there has been a store in the directory.
pub(crate) fn has_store(path: &Path) -> bool {
    fs::read_to_string(path.join(MARK)).is_ok_and(|mark| mark.ends_with(STORE))
}

/// Remembers that there is a store in the directory.
pub(crate) fn note_store(path: &Path) -> anyhow::Result<()> {
    let name = path.join(MARK);
    let opened = File::options().append(true).open(&name);
    opened
        .and_then(|mut mark| mark.write_all(STORE.as_bytes()).and_then(|()| mark.sync_all()))
        .with_context(|| format!("cannot write {}", name.display()))
}

fn not_made_by_us(path: &Path) -> anyhow::Error {
    anyhow::anyhow!(
        "{} was not made by roadstead, so nothing is removed (there is no {MARK} in it)",
        path.display()
    )
}

fn foreign(path: &Path) -> anyhow::Error {
    anyhow::anyhow!(
        "{} holds files that roadstead did not make; choose another --data-dir, \
         a new or an empty directory",
        path.display()
    )
}

fn in_use(directory: &Path, file: &Path) -> anyhow::Error {
    let holder = culprit::having_open(file).unwrap_or_else(|| "another process".into());
    anyhow::anyhow!("{} is in use by {holder}; stop it first", directory.display())
}

fn standing(path: &Path) -> anyhow::Result<Standing> {
    let names = names(path)?;
    let known = |name: &String| KNOWN.contains(&name.as_str());
    let made_by_us =
        || ["pki/ca.key", "store/roadstead.redb"].iter().any(|file| path.join(file).is_file());
    Ok(match () {
        () if names.is_empty() => Standing::Free,
        () if names.iter().any(|name| name == MARK) => Standing::Ours,
        () if names.iter().all(known) && made_by_us() => Standing::Unmarked,
        () => Standing::Foreign,
    })
}

/// What is in a directory; nothing, if there is none.
fn names(path: &Path) -> anyhow::Result<Vec<String>> {
    let entries = match fs::read_dir(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.and_then(|entries| entries.collect::<io::Result<Vec<_>>>()),
    };
    let entries = entries.with_context(|| format!("cannot read {}", path.display()))?;
    let name = |entry: fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
    let mut names: Vec<_> = entries.into_iter().map(name).collect();
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes the files in a fresh directory; a name that ends with `/` is a directory.
    fn directory(files: &str) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        for file in files.split_whitespace() {
            let path = directory.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            match file.ends_with('/') {
                true => fs::create_dir_all(path).unwrap(),
                false => fs::write(path, "x").unwrap(),
            }
        }
        directory
    }

    #[test]
    fn what_a_directory_is_to_us() {
        for (files, want) in [
            ("", Standing::Free),
            ("roadstead.directory", Standing::Ours),
            ("roadstead.directory thesis.txt", Standing::Ours),
            ("pki/ca.key store/roadstead.redb admin.kubeconfig", Standing::Unmarked),
            ("store/roadstead.redb", Standing::Unmarked),
            ("store/roadstead.redb thesis.txt", Standing::Foreign),
            ("store/ node/", Standing::Foreign),
            ("thesis.txt", Standing::Foreign),
        ] {
            assert_eq!(standing(directory(files).path()).unwrap(), want, "{files:?}");
        }
        assert_eq!(standing(Path::new("/nowhere/at/all")).unwrap(), Standing::Free);
    }

    #[test]
    fn only_what_is_ours_goes() {
        let ours = directory("pki/ca.key store/roadstead.redb node/lock");
        let removed = DataDirectory::claim(ours.path()).unwrap().remove().unwrap();
        assert_eq!(removed.names, ["store", "pki", "node"]);
        assert!(removed.left.is_empty() && !ours.path().exists());

        let shared = directory("roadstead.directory pki/ca.key thesis.txt");
        let removed = DataDirectory::claim(shared.path()).unwrap().remove().unwrap();
        assert_eq!((removed.names, removed.left), (vec!["pki".into()], vec!["thesis.txt".into()]));
        assert!(shared.path().join("thesis.txt").exists());

        let foreign = directory("store/ thesis.txt");
        for refused in [
            DataDirectory::claim(foreign.path()).unwrap_err(),
            DataDirectory::claim_for_removal(foreign.path()).unwrap_err(),
            DataDirectory::check_for_removal(foreign.path()).unwrap_err(),
        ] {
            assert!(refused.to_string().contains("roadstead"), "{refused}");
        }
        assert_eq!(names(foreign.path()).unwrap(), ["store", "thesis.txt"], "and nothing is added");
    }

    #[test]
    fn a_store_is_remembered_until_it_is_removed() {
        let place = directory("");
        let claim = DataDirectory::claim(place.path()).unwrap();
        assert!(!has_store(place.path()));
        note_store(place.path()).unwrap();
        drop(claim);
        assert!(has_store(place.path()));
        // Something keeps the directory, but not the store.
        fs::write(place.path().join("thesis.txt"), "x").unwrap();
        DataDirectory::claim(place.path()).unwrap().remove().unwrap();
        assert!(place.path().join(MARK).exists() && !has_store(place.path()));
    }

    #[test]
    fn a_link_in_the_place_of_a_directory_of_ours_is_not_followed() {
        let (ours, precious) = (directory("roadstead.directory"), directory("thesis.txt"));
        std::os::unix::fs::symlink(precious.path(), ours.path().join("store")).unwrap();
        DataDirectory::claim(ours.path()).unwrap().remove().unwrap();
        assert!(precious.path().join("thesis.txt").exists());
    }

    #[test]
    fn one_at_a_time() {
        let place = directory("");
        let first = DataDirectory::claim(place.path()).unwrap();
        let refused = DataDirectory::claim(place.path()).unwrap_err().to_string();
        assert!(refused.contains(&format!("(pid {})", std::process::id())), "{refused}");
        drop(first);
        DataDirectory::claim(place.path()).unwrap();
    }
}
