//! One watch on disk: the lines that came, and marks up to where they are the whole truth. A file begins with the
//! state; from time to time it is written anew, shorter.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use serde::Deserialize;

/// A state is written in pieces of about this size while it comes.
const PIECE: usize = 256 << 10;
/// A file with so much that is no longer true is written anew, if that is most of it.
const WASTE: u64 = 1 << 20;

#[derive(Deserialize)]
struct Line<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    object: Marked,
}

#[derive(Deserialize)]
struct Marked {
    metadata: Metadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    resource_version: String,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

impl Metadata {
    fn revision(&self) -> u64 {
        self.resource_version.parse().unwrap_or(0)
    }

    fn ends_the_state(&self) -> bool {
        self.annotations.contains_key("k8s.io/initial-events-end")
    }
}

/// The bookmark that says up to where all is known.
fn mark(revision: u64, ends_the_state: bool) -> String {
    let annotations =
        if ends_the_state { r#","annotations":{"k8s.io/initial-events-end":"true"}"# } else { "" };
    format!(
        "{{\"type\":\"BOOKMARK\",\"object\":{{\"metadata\":{{\"resourceVersion\":\"{revision}\"{annotations}}}}}}}\n"
    )
}

/// A watch that is being kept.
#[derive(Debug)]
pub(super) struct Journal {
    path: PathBuf,
    /// Somebody follows, and tells us.
    is_followed: bool,
    /// A line that has not ended yet.
    rest: Vec<u8>,
    /// The state is coming, into this file.
    coming: Option<File>,
    /// What is not written yet.
    lines: Vec<u8>,
    /// All up to here is in the file or in `lines`.
    reached: u64,
    /// The last that was heard of.
    seen: u64,
    /// What the file had when it was written anew, and what was added since.
    sizes: (u64, u64),
    failed: bool,
}

impl Journal {
    pub(super) fn at(path: PathBuf) -> Self {
        let kept = Kept::read(&path);
        let size = fs::metadata(&path).map_or(0, |data| data.len());
        let reached = kept.map_or(0, |kept| kept.revision);
        Self {
            path,
            is_followed: false,
            rest: Vec::new(),
            coming: None,
            lines: Vec::new(),
            reached,
            seen: reached,
            sizes: (size, 0),
            failed: false,
        }
    }

    /// Somebody begins to follow, with the state or after a revision; whether that can be kept.
    pub(super) fn begin(&mut self, after: Option<u64>) -> bool {
        let is_gapless = after.is_none_or(|after| 0 < after && after <= self.seen);
        if self.is_followed || !is_gapless {
            return false;
        }
        self.rest.clear();
        self.is_followed = true;
        if after.is_none() {
            self.lines.clear();
            self.failed = false;
            match new_file(&self.coming_path()) {
                Ok(file) => self.coming = Some(file),
                Err(_) => self.is_followed = false,
            }
        }
        self.is_followed
    }

    /// Nobody follows any more. A state that was not complete is not kept.
    pub(super) fn end(&mut self) {
        self.is_followed = false;
        if self.coming.take().is_some() {
            self.lines.clear();
            let _ = fs::remove_file(self.coming_path());
        }
    }

    /// A piece of what the server says.
    pub(super) fn take(&mut self, mut piece: &[u8]) {
        while let Some(end) = piece.iter().position(|byte| *byte == b'\n') {
            self.rest.extend_from_slice(&piece[..=end]);
            piece = &piece[end + 1..];
            let line = std::mem::take(&mut self.rest);
            self.hear(&line);
        }
        self.rest.extend_from_slice(piece);
    }

    fn hear(&mut self, text: &[u8]) {
        let Ok(Line { kind, object: Marked { metadata } }) = serde_json::from_slice(text) else {
            return;
        };
        match kind {
            "ERROR" => return,
            _ if self.coming.is_none() => self.seen = metadata.revision().max(self.seen),
            _ => {}
        }
        match kind {
            "BOOKMARK" if self.coming.is_some() && metadata.ends_the_state() => {
                self.reached = metadata.revision();
                self.seen = self.reached;
                self.lines.extend_from_slice(mark(self.reached, false).as_bytes());
                self.complete();
            }
            "BOOKMARK" => self.reached = metadata.revision().max(self.reached),
            "ADDED" | "MODIFIED" | "DELETED" => {
                self.lines.extend_from_slice(text);
                if self.coming.is_none() {
                    // There may be another event of the same revision; to hear one twice is no harm.
                    self.reached = metadata.revision().saturating_sub(1).max(self.reached);
                } else if self.lines.len() > PIECE {
                    self.pour();
                }
            }
            _ => {}
        }
    }

    /// Writes a piece of the state.
    fn pour(&mut self) {
        let lines = std::mem::take(&mut self.lines);
        if let Some(file) = &mut self.coming {
            self.failed |= file.write_all(&lines).is_err();
        }
    }

    /// The state is there: it takes the place of what was known before.
    fn complete(&mut self) {
        self.pour();
        let Some(file) = self.coming.take() else { return };
        let done = if self.failed { Err(io::ErrorKind::WriteZero.into()) } else { file.sync_all() };
        let done = done.and_then(|()| fs::rename(self.coming_path(), &self.path));
        self.failed = done.is_err();
        self.sizes = (fs::metadata(&self.path).map_or(0, |data| data.len()), 0);
    }

    /// Writes what has come since, so that it lasts.
    pub(super) fn write(&mut self) -> io::Result<()> {
        if self.coming.is_some() || self.lines.is_empty() || self.failed {
            return Ok(());
        }
        let mut lines = std::mem::take(&mut self.lines);
        lines.extend_from_slice(mark(self.reached, false).as_bytes());
        let written = OpenOptions::new().append(true).open(&self.path).and_then(|mut file| {
            file.write_all(&lines)?;
            file.sync_data()
        });
        // A gap would be taken for the truth.
        self.failed = written.is_err();
        self.sizes.1 += lines.len() as u64;
        written?;
        if self.sizes.1 > WASTE.max(self.sizes.0) { self.shorten() } else { Ok(()) }
    }

    fn shorten(&mut self) -> io::Result<()> {
        let Some(kept) = Kept::read(&self.path) else { return Ok(()) };
        let mut file = new_file(&self.coming_path())?;
        file.write_all(&kept.told())?;
        file.sync_all()?;
        fs::rename(self.coming_path(), &self.path)?;
        self.sizes = (file.metadata()?.len(), 0);
        Ok(())
    }

    fn coming_path(&self) -> PathBuf {
        self.path.with_extension("new")
    }
}

fn new_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)
}

/// What a file says: the objects, and of which revision.
pub(super) struct Kept {
    objects: BTreeMap<(String, String), Vec<u8>>,
    revision: u64,
}

impl Kept {
    /// Reads a file up to its last mark. Whatever comes after it is not known to be all.
    pub(super) fn read(path: &Path) -> Option<Self> {
        let text = fs::read(path).ok()?;
        let (mut kept, mut unsure) = (Self { objects: BTreeMap::new(), revision: 0 }, Vec::new());
        for line in text.split_inclusive(|byte| *byte == b'\n') {
            let Ok(Line { kind, object: Marked { metadata } }) = serde_json::from_slice(line)
            else {
                break;
            };
            if kind == "BOOKMARK" {
                unsure.drain(..).for_each(|(key, line)| kept.set(key, line));
                kept.revision = metadata.revision();
            } else {
                let is_there = kind != "DELETED";
                let key = (metadata.namespace, metadata.name);
                unsure.push((key, is_there.then(|| line.to_vec())));
            }
        }
        (kept.revision > 0).then_some(kept)
    }

    fn set(&mut self, key: (String, String), line: Option<Vec<u8>>) {
        match line {
            Some(line) => drop(self.objects.insert(key, line)),
            None => drop(self.objects.remove(&key)),
        }
    }

    /// The state as a server tells it to whoever asks for it first.
    pub(super) fn told(&self) -> Bytes {
        let mut text: Vec<u8> = self.objects.values().flatten().copied().collect();
        text.extend_from_slice(mark(self.revision, true).as_bytes());
        text.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `+a@3` sets a at revision 3, `-a@4` deletes it, `=5` is a bookmark, `.5` one that ends the state.
    fn lines(text: &str) -> String {
        let words = text.split_whitespace().map(|word| {
            let (what, rest) = word.split_at(1);
            let (name, revision) = rest.split_once('@').unwrap_or(("", rest));
            let object =
                format!(r#"{{"metadata":{{"name":"{name}","resourceVersion":"{revision}"}}}}"#);
            match what {
                "+" => format!("{{\"type\":\"MODIFIED\",\"object\":{object}}}\n"),
                "-" => format!("{{\"type\":\"DELETED\",\"object\":{object}}}\n"),
                mark_of => mark(revision.parse().unwrap(), mark_of == "."),
            }
        });
        words.collect()
    }

    fn kept(path: &Path) -> String {
        Kept::read(path).map_or("nothing".into(), |kept| {
            let names = kept.objects.iter().map(|((_, name), line)| {
                let line: Line<'_> = serde_json::from_slice(line).unwrap();
                format!("{name}@{}", line.object.metadata.resource_version)
            });
            format!("{} ={}", names.collect::<Vec<_>>().join(" "), kept.revision)
        })
    }

    #[test]
    fn what_is_read_again() {
        let directory = tempfile::tempdir().unwrap();
        // A first state and whether it is written, what comes then, and what is known.
        for (name, first, then, want) in [
            ("a state", "+a@1 +b@2 .5", "", "a@1 b@2 =5"),
            ("no end of it", "+a@1", "", "nothing"),
            ("changes", "+a@1 +b@2 .5", "+a@6 -b@7", "a@6 =6"),
            ("a bookmark", "+a@1 .5", "+a@6 =9", "a@6 =9"),
            ("two events of one revision", "+a@1 .5", "+b@8 +c@8", "a@1 b@8 c@8 =7"),
        ] {
            let path = directory.path().join("file");
            let _ = fs::remove_file(&path);
            let mut journal = Journal::at(path.clone());
            assert!(journal.begin(None), "{name}");
            journal.take(lines(first).as_bytes());
            journal.write().unwrap();
            // In pieces, as they come.
            lines(then).as_bytes().chunks(7).for_each(|piece| journal.take(piece));
            journal.write().unwrap();
            assert_eq!(kept(&path), want, "{name}");
            journal.end();
            assert_eq!(kept(&path), want, "{name}");
        }
    }

    #[test]
    fn what_is_torn_is_left_out() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let whole = lines("+a@1 .5 +b@6 =6 +c@7 =7");
        let want = ["nothing", "a@1 =5", "a@1 b@6 =6", "a@1 b@6 c@7 =7"];
        let mut seen = Vec::new();
        for length in 0..=whole.len() {
            fs::write(&path, &whole[..length]).unwrap();
            seen.push(kept(&path));
        }
        seen.dedup();
        assert_eq!(seen, want);
    }

    #[test]
    fn a_new_state_takes_the_place_of_the_old_one_when_it_is_complete() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let mut journal = Journal::at(path.clone());
        journal.begin(None);
        journal.take(lines("+a@1 .5").as_bytes());
        journal.end();
        assert!(journal.begin(None));
        journal.take(lines("+b@7").as_bytes());
        journal.write().unwrap();
        assert_eq!(kept(&path), "a@1 =5");
        journal.end();
        assert!(!journal.begin(Some(6)), "it is not known what 6 was");
        assert!(journal.begin(Some(5)));
        journal.take(lines("-a@8").as_bytes());
        journal.write().unwrap();
        assert_eq!(kept(&path), " =7");
        journal.end();
        assert!(journal.begin(Some(8)), "who has heard of 8 has told us");
    }

    #[test]
    fn files_do_not_grow_for_ever() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let mut journal = Journal::at(path.clone());
        journal.begin(None);
        journal.take(lines("+a@1 .1").as_bytes());
        for revision in 0..40_u64 {
            let many: String =
                (0..1000).map(|n| lines(&format!("+a@{}", 2 + revision * 1000 + n))).collect();
            journal.take(many.as_bytes());
            journal.write().unwrap();
        }
        assert!(fs::metadata(&path).unwrap().len() < 2 * WASTE);
        assert_eq!(kept(&path), "a@40001 =40000");
    }
}
