//! Reads the files of one run's log from the oldest to the one that grows, and waits for more.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use roadstead_pod::logs::{LogOptions, LogView, count_lines, tail_start};
use tokio::fs::{self, File};
use tokio::io::{AsyncReadExt, AsyncSeekExt, SeekFrom};

use super::log_changes::LogChanges;

/// The most that is in memory of what is sent.
const PIECE: usize = 64 * 1024;

/// The log of one run.
pub(super) struct LogSource {
    pub(super) path: PathBuf,
    pub(super) ended: Box<dyn Fn() -> bool + Send + Sync>,
}

/// Where we are in it.
pub(super) struct LogReader {
    source: LogSource,
    view: LogView,
    file: File,
    inode: u64,
    /// If it is followed.
    changes: Option<LogChanges>,
    /// Without following: how far the log went when we came.
    end: (u64, u64),
    read: u64,
    buffer: Vec<u8>,
}

/// A file of the log.
struct Piece {
    path: PathBuf,
    inode: u64,
    size: u64,
}

impl LogReader {
    /// Begins at the beginning, or where the last lines begin.
    pub(super) async fn open(
        source: LogSource,
        options: LogOptions,
        (tail, follow): (Option<u64>, bool),
    ) -> io::Result<Self> {
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        let changes = follow.then(|| LogChanges::of(&source.path));
        loop {
            let pieces = pieces(&source.path).await?;
            let last = pieces.last().ok_or_else(missing)?;
            let end = (last.inode, last.size);
            let (at, start) = match tail {
                Some(lines) => tail_of(&pieces, lines).await?,
                None => (0, 0),
            };
            let Some(mut file) = open(&pieces[at]).await? else { continue };
            file.seek(SeekFrom::Start(start)).await?;
            let (inode, view) = (pieces[at].inode, LogView::new(options));
            let buffer = vec![0; PIECE];
            return Ok(Self { source, view, file, inode, changes, end, read: start, buffer });
        }
    }

    /// Returns what to send next; `None` at the end.
    pub(super) async fn next(&mut self) -> Option<Bytes> {
        loop {
            if self.view.is_full() {
                return None;
            }
            let is_last = self.changes.is_none() && self.inode == self.end.0;
            let left = if is_last { self.end.1.saturating_sub(self.read) } else { u64::MAX };
            let room = usize::try_from(left).unwrap_or(PIECE).min(PIECE);
            // Asked before reading: what it wrote before it ended is there then.
            let ended = (self.source.ended)();
            let count = self.file.read(&mut self.buffer[..room]).await.ok()?;
            self.read += count as u64;
            if count > 0 {
                let shown = self.view.push(&self.buffer[..count]);
                if !shown.is_empty() {
                    return Some(shown.into());
                }
                continue;
            }
            if is_last {
                return None;
            }
            match (self.advance().await, &self.changes) {
                (Ok(true), _) => {}
                (Ok(false), Some(changes)) if !ended => changes.next().await,
                _ => return None,
            }
        }
    }

    /// Goes on with the file after this one, if there is one and this one will not grow any more.
    async fn advance(&mut self) -> io::Result<bool> {
        loop {
            let pieces = pieces(&self.source.path).await?;
            let own = pieces.iter().position(|piece| piece.inode == self.inode);
            // Ours may have been removed as the oldest.
            let Some(next) = pieces.get(own.map_or(0, |own| own + 1)) else { return Ok(false) };
            if own.is_some_and(|own| pieces[own].size > self.read) {
                return Ok(true); // Its last lines came before it was put aside.
            }
            let Some(file) = open(next).await? else { continue };
            (self.file, self.inode, self.read) = (file, next.inode, 0);
            return Ok(true);
        }
    }
}

/// The files of the log, the oldest first.
async fn pieces(path: &Path) -> io::Result<Vec<Piece>> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let older = format!("{name}.");
    let mut entries = fs::read_dir(path.parent().unwrap_or(Path::new("."))).await?;
    let mut found = Vec::new();
    while let Some(entry) = entries.next_entry().await? {
        let own = entry.file_name().to_string_lossy().into_owned();
        if own != name && !own.starts_with(&older) {
            continue;
        }
        // One that went meanwhile is not there.
        let Ok(metadata) = entry.metadata().await else { continue };
        let (inode, size) = (metadata.ino(), metadata.len());
        found.push(Piece { path: entry.path(), inode, size });
    }
    // The one that grows has no time in its name, and is the newest.
    found.sort_by_key(|piece| (piece.path == path, piece.path.clone()));
    Ok(found)
}

/// Opens it; `None` if there is another file by that name now.
async fn open(piece: &Piece) -> io::Result<Option<File>> {
    match File::open(&piece.path).await {
        Ok(file) => Ok((file.metadata().await?.ino() == piece.inode).then_some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The file, and the place in it, where the last lines begin.
async fn tail_of(pieces: &[Piece], mut lines: u64) -> io::Result<(usize, u64)> {
    for (at, piece) in pieces.iter().enumerate().rev() {
        let Some(mut file) = open(piece).await? else { return Ok((at, 0)) };
        match start_in(&mut file, piece.size, lines).await? {
            Tail::Begins(start) => return Ok((at, start)),
            Tail::Earlier(found) => lines -= found,
        }
    }
    Ok((0, 0))
}

enum Tail {
    Begins(u64),
    /// It has so many lines, and all belong to the tail.
    Earlier(u64),
}

/// Looks at more and more of the file's end, until the lines are found.
async fn start_in(file: &mut File, size: u64, lines: u64) -> io::Result<Tail> {
    let mut wanted = PIECE as u64;
    loop {
        let from = size.saturating_sub(wanted);
        file.seek(SeekFrom::Start(from)).await?;
        let mut end = vec![];
        (&mut *file).take(size - from).read_to_end(&mut end).await?;
        // Its first record may be the rest of one.
        let cut = match from {
            0 => 0,
            _ => end.iter().position(|byte| *byte == b'\n').map_or(end.len(), |at| at + 1),
        };
        let start = tail_start(&end[cut..], lines);
        if start > 0 || lines == 0 {
            return Ok(Tail::Begins(from + (cut + start) as u64));
        }
        if from == 0 {
            let found = count_lines(&end);
            return Ok(if found < lines { Tail::Earlier(found) } else { Tail::Begins(0) });
        }
        wanted *= 4;
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::super::log_changes::POLL;
    use super::*;

    /// A log in a directory of its own.
    struct Log {
        directory: PathBuf,
        ended: Arc<AtomicBool>,
    }

    impl Log {
        fn new(name: &str) -> Self {
            let own = format!("roadstead-reader-{name}-{}", std::process::id());
            let directory = std::env::temp_dir().join(own);
            let _ = fs::remove_dir_all(&directory);
            fs::create_dir_all(&directory).unwrap();
            Self { directory, ended: Arc::default() }
        }

        fn write(&self, file: &str, lines: std::ops::Range<u32>) {
            use std::io::Write;
            let path = self.directory.join(file);
            let mut file = fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
            for line in lines {
                writeln!(file, "1970-01-01T00:00:01.5Z stdout F {line}").unwrap();
            }
        }

        fn rotate(&self, to: &str) {
            fs::rename(self.directory.join("0.log"), self.directory.join(to)).unwrap();
        }

        async fn reader(&self, tail: Option<u64>, follow: bool) -> LogReader {
            let ended = self.ended.clone();
            let source = LogSource {
                path: self.directory.join("0.log"),
                ended: Box::new(move || ended.load(Ordering::SeqCst)),
            };
            LogReader::open(source, LogOptions::default(), (tail, follow)).await.unwrap()
        }
    }

    impl Drop for Log {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.directory);
        }
    }

    async fn rest(mut reader: LogReader) -> String {
        let mut text = Vec::new();
        while let Some(piece) = reader.next().await {
            text.extend_from_slice(&piece);
        }
        String::from_utf8(text).unwrap()
    }

    fn lines(range: std::ops::Range<u32>) -> String {
        range.map(|line| format!("{line}\n")).collect()
    }

    #[tokio::test]
    async fn tails_go_over_files_and_pieces() {
        let log = Log::new("tails");
        log.write("0.log.19700101-000001.000000", 0..10);
        log.write("0.log.19700101-000002.000000", 10..9_000);
        log.write("0.log", 9_000..9_003);
        log.write("1.log", 0..7);
        for tail in [0, 1, 3, 4, 2_000, 8_992, 8_993, 8_994, 9_003, 20_000] {
            let first = 9_003_u64.saturating_sub(tail) as u32;
            let text = rest(log.reader(Some(tail), false).await).await;
            assert!(text == lines(first..9_003), "the last {tail}: {} bytes", text.len());
        }
        assert_eq!(rest(log.reader(None, false).await).await, lines(0..9_003));
    }

    #[tokio::test]
    async fn following_goes_over_rotation_and_ends_with_the_run() {
        let log = Log::new("follow");
        log.write("0.log", 0..3);
        let mut reader = log.reader(Some(1), true).await;
        assert_eq!(reader.next().await.unwrap(), "2\n");
        log.write("0.log", 3..5);
        log.rotate("0.log.19700101-000001.000000");
        log.write("0.log", 5..7);
        log.rotate("0.log.19700101-000002.000000");
        log.write("0.log", 7..8);
        let mut seen = String::new();
        while seen != lines(3..8) {
            seen += std::str::from_utf8(&reader.next().await.unwrap()).unwrap();
            assert!(lines(3..8).starts_with(&seen), "{seen}");
        }
        // Nothing more comes until more is written.
        let waiting = tokio::time::timeout(POLL * 3, reader.next()).await;
        assert!(waiting.is_err(), "{waiting:?}");
        log.write("0.log", 8..9);
        log.ended.store(true, Ordering::SeqCst);
        assert_eq!(rest(reader).await, "8\n");
    }
}
