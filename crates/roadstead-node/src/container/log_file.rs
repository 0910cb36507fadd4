//! The files of a container's log: one that grows, and older ones, of which the oldest go.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use jiff::Timestamp;

/// As the kubelet's containerLogMaxSize and containerLogMaxFiles.
pub(crate) const LARGEST: u64 = 10 << 20;
const MOST: usize = 5;

/// Where the lines of a container go.
#[derive(Debug)]
pub(crate) struct LogFile {
    path: PathBuf,
    file: File,
    size: u64,
    largest: u64,
}

impl LogFile {
    /// Opens the log of a run; those of runs before the last one go.
    pub(crate) fn open(path: &Path, run: i32) -> io::Result<Self> {
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory)?;
            remove_runs_before(directory, run - 1);
        }
        Self::open_with(path, LARGEST)
    }

    fn open_with(path: &Path, largest: u64) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        let size = file.metadata()?.len();
        Ok(Self { path: path.to_owned(), file, size, largest })
    }

    /// Writes whole lines. What the disk does not take is lost, and the container goes on.
    pub(crate) fn write(&mut self, lines: &[u8], now: Timestamp) {
        if self.size > 0 && self.size + lines.len() as u64 > self.largest {
            // If it cannot be, it is tried again with the next lines.
            let _ = self.rotate(now);
        }
        if self.file.write_all(lines).is_ok() {
            self.size += lines.len() as u64;
        }
    }

    fn rotate(&mut self, now: Timestamp) -> io::Result<()> {
        put_aside(&self.path, now)?;
        *self = Self::open_with(&self.path, self.largest)?;
        Ok(())
    }
}

/// Gives a log that has grown another name, and removes the oldest of those that have one.
pub(crate) fn put_aside(path: &Path, now: Timestamp) -> io::Result<()> {
    let older = older(path);
    for path in &older[..(older.len() + 2).saturating_sub(MOST)] {
        fs::remove_file(path)?;
    }
    let mut name = path.to_owned().into_os_string();
    // With microseconds: a flood fills several files in a second.
    name.push(format!(".{}", now.strftime("%Y%m%d-%H%M%S.%6f")));
    fs::rename(path, name)
}

/// The files before this one, the oldest first.
fn older(path: &Path) -> Vec<PathBuf> {
    let own = path.file_name().unwrap_or_default().to_string_lossy().into_owned() + ".";
    let directory = path.parent().unwrap_or(Path::new("."));
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut older: Vec<_> = entries
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(&own))
        .map(|entry| entry.path())
        .collect();
    older.sort();
    older
}

/// As many as a restarting container has runs would be too many.
fn remove_runs_before(directory: &Path, first: i32) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let run = name.split_once(".log").and_then(|(run, _)| run.parse::<i32>().ok());
        if run.is_some_and(|run| run < first) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap().flatten();
        let mut names: Vec<_> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_log_is_never_more_than_its_files() {
        let place = std::env::temp_dir().join(format!("roadstead-log-{}", std::process::id()));
        fs::create_dir_all(&place).unwrap();
        let path = place.join("0.log");
        let mut log = LogFile::open_with(&path, 10).unwrap();
        for second in 0..20 {
            log.write(
                format!("line {second:2}\n").as_bytes(),
                Timestamp::from_second(second).unwrap(),
            );
        }
        let found = names(&place);
        assert_eq!(found.len(), MOST, "{found:?}");
        assert_eq!(found[0], "0.log");
        assert_eq!(found[4], "0.log.19700101-000019.000000");
        assert_eq!(fs::read_to_string(&path).unwrap(), "line 19\n");
        assert_eq!(fs::read_to_string(place.join(&found[4])).unwrap(), "line 18\n");

        // The next run keeps this one's; the one after that does not.
        drop(LogFile::open(&place.join("1.log"), 1).unwrap());
        assert_eq!(names(&place).len(), MOST + 1);
        drop(LogFile::open(&place.join("2.log"), 2).unwrap());
        assert_eq!(names(&place), ["1.log", "2.log"]);
        fs::remove_dir_all(&place).unwrap();
    }
}
