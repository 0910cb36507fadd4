//! Whether the files that we write to are still where they belong. A file that was deleted, moved or
//! replaced can be written to as before, and what is written is gone with the process.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// Files that are open, and by what the kernel knows them.
#[derive(Debug)]
pub(crate) struct Linked(Vec<(PathBuf, (u64, u64))>);

impl Linked {
    /// Remembers files that have just been opened.
    pub(crate) fn new(paths: impl IntoIterator<Item = PathBuf>) -> io::Result<Self> {
        let known = paths.into_iter().map(|path| {
            let metadata = path.metadata()?;
            Ok((path, (metadata.dev(), metadata.ino())))
        });
        known.collect::<io::Result<_>>().map(Self)
    }

    /// In words what has become of one of them.
    pub(crate) fn check(&self) -> Result<(), String> {
        for (path, known) in &self.0 {
            let found = path.metadata().map(|metadata| (metadata.dev(), metadata.ino()));
            let what = match found {
                Ok(found) if found == *known => continue,
                Ok(_) => "has been replaced".to_owned(),
                Err(error) if error.kind() == io::ErrorKind::NotFound => "has been removed".into(),
                Err(error) => format!("cannot be found: {error}"),
            };
            return Err(format!("the file {} {what} while the server has it open", path.display()));
        }
        Ok(())
    }
}
