//! The files that a configuration is made from: tables of hosts, resolv.conf, imported rules. What
//! was read is remembered, so that a change of any of them is noticed.

use std::cell::RefCell;
use std::io;
use std::path::{Path, PathBuf};

/// ConfigurationFiles as they were when they were read.
#[derive(Debug, Default)]
pub(crate) struct ConfigurationFiles {
    /// What relative paths are relative to.
    base: PathBuf,
    seen: RefCell<Vec<(PathBuf, Option<String>)>>,
}

impl ConfigurationFiles {
    /// None so far.
    pub(crate) fn new(base: &Path) -> Self {
        Self { base: base.into(), seen: RefCell::default() }
    }

    /// Reads a file, or the names of what is in a folder if the path ends in `/`.
    pub(crate) fn read(&self, path: &str) -> io::Result<String> {
        let path = self.base.join(path);
        let text = look(&path);
        self.seen.borrow_mut().push((path, text.as_ref().ok().cloned()));
        text
    }

    /// Where a file is that the configuration names.
    pub(crate) fn place(&self, path: &str) -> PathBuf {
        self.base.join(path)
    }

    /// Whether any of them is not as it was.
    pub(crate) fn have_changed(&self) -> bool {
        self.seen.borrow().iter().any(|(path, text)| look(path).ok() != *text)
    }
}

fn look(path: &Path) -> io::Result<String> {
    if !path.as_os_str().as_encoded_bytes().ends_with(b"/") {
        return std::fs::read_to_string(path);
    }
    let mut names = Vec::new();
    for entry in std::fs::read_dir(path)? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort_unstable();
    Ok(names.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_noticed() {
        let folder = std::env::temp_dir().join(format!("roadstead-files-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.join(name), text).unwrap();
        write("hosts", "1");
        let files = || {
            let files = ConfigurationFiles::new(&folder);
            assert!(files.read("hosts").is_ok() && files.read("none").is_err());
            assert!(files.read("./").unwrap().contains("hosts"));
            assert!(!files.have_changed());
            files
        };
        for (what, name, text) in [
            ("another text", "hosts", "2"),
            ("one that was missing", "none", "1"),
            ("one more in the folder", "more", "1"),
        ] {
            let files = files();
            write(name, text);
            assert!(files.have_changed(), "{what}");
            let _ = std::fs::remove_file(folder.join("none"));
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
