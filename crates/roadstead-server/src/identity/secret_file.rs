//! Files that only their owner can read: private keys, kubeconfigs, and the audit log.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use uuid::Uuid;

const OWNER_ONLY: u32 = 0o600;

/// Writes a file that only its owner can read, completely or not at all. Nothing that lies in the
/// directory already, under whatever name and with whatever rights, changes what comes out.
pub fn write_secret(path: &Path, text: &str) -> io::Result<()> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let unfinished = unfinished(directory, path);
    let written = fill(&unfinished, text).and_then(|()| fs::rename(&unfinished, path));
    if written.is_err() {
        let _ = fs::remove_file(&unfinished);
    }
    written?;
    // Without it a power cut may leave the old file, or none.
    File::open(directory)?.sync_all()
}

/// Opens a file for lines that are nobody else's business; takes the rights of others away where
/// they have any.
pub fn append_private(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let file = options.create(true).append(true).mode(OWNER_ONLY).open(path)?;
    let metadata = file.metadata()?;
    // A pipe or a terminal is its owner's choice.
    if metadata.is_file() && metadata.permissions().mode() & 0o077 != 0 {
        file.set_permissions(Permissions::from_mode(OWNER_ONLY))?;
    }
    Ok(file)
}

/// A name that nobody can guess and lay something under.
fn unfinished(directory: &Path, path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    directory.join(format!(".{name}.{}", Uuid::new_v4().simple()))
}

fn fill(path: &Path, text: &str) -> io::Result<()> {
    let mut options = OpenOptions::new();
    // Exclusively: what is there already is neither followed nor written into.
    let mut file = options.write(true).create_new(true).mode(OWNER_ONLY).open(path)?;
    file.set_permissions(Permissions::from_mode(OWNER_ONLY))?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
    }

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn what_lies_around_changes_nothing() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        let (secret, victim) = (at("kc"), at("victim"));
        fs::write(&victim, "precious").unwrap();
        // An unfinished file that everybody can read, a link to somebody else's, the secret itself
        // open to all, and the secret as a link.
        fs::write(at("kc.new"), "old").unwrap();
        fs::set_permissions(at("kc.new"), Permissions::from_mode(0o644)).unwrap();
        write_secret(&secret, "one").unwrap();
        assert_eq!((fs::read_to_string(&secret).unwrap(), mode(&secret)), ("one".into(), 0o600));
        fs::remove_file(at("kc.new")).unwrap();
        symlink(&victim, at("kc.new")).unwrap();
        fs::set_permissions(&secret, Permissions::from_mode(0o666)).unwrap();
        write_secret(&secret, "two").unwrap();
        assert_eq!((fs::read_to_string(&secret).unwrap(), mode(&secret)), ("two".into(), 0o600));
        fs::remove_file(&secret).unwrap();
        symlink(&victim, &secret).unwrap();
        write_secret(&secret, "three").unwrap();
        assert_eq!((fs::read_to_string(&secret).unwrap(), mode(&secret)), ("three".into(), 0o600));
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
        assert_eq!(names(place.path()), ["kc", "kc.new", "victim"], "nothing is left behind");
    }

    #[test]
    fn what_cannot_be_written_leaves_nothing_behind() {
        let place = tempfile::tempdir().unwrap();
        let directory = place.path().join("kc");
        fs::create_dir(&directory).unwrap();
        assert!(write_secret(&directory, "text").is_err());
        assert_eq!(names(place.path()), ["kc"]);
    }

    #[test]
    fn a_log_is_for_its_owner() {
        let place = tempfile::tempdir().unwrap();
        let log = place.path().join("audit.log");
        append_private(&log).unwrap().write_all(b"one\n").unwrap();
        assert_eq!(mode(&log), 0o600);
        fs::set_permissions(&log, Permissions::from_mode(0o644)).unwrap();
        append_private(&log).unwrap().write_all(b"two\n").unwrap();
        assert_eq!(mode(&log), 0o600);
        assert_eq!(fs::read_to_string(&log).unwrap(), "one\ntwo\n");
        append_private(Path::new("/dev/null")).unwrap();
        assert_ne!(mode(Path::new("/dev/null")), 0o600);
    }
}
