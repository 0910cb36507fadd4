//! A container's log, in the format that the CRI prescribes: `time stream tag text`.
//!
//! The tag is `F` for a full line and `P` for a part of one that is longer than our buffer.

use std::fs::File;
use std::io::Read;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use jiff::Timestamp;

use super::attach::Audience;
use super::log_file::LogFile;

const LONGEST: usize = 16 * 1024;
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Where a line came from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Stream {
    Stdout,
    Stderr,
}

/// Copies a pipe or terminal into the log until it ends, and to whoever looks on.
///
/// Each line is written in one piece, so that two streams can share the file.
pub(super) fn copy(stream: Stream, mut pipe: File, log: &Mutex<LogFile>, audience: &Audience) {
    let mut lines = Lines::new(stream);
    let mut buffer = vec![0; LONGEST];
    let write = |text: &[u8], now| {
        log.lock().unwrap_or_else(PoisonError::into_inner).write(text, now);
    };
    loop {
        match pipe.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => {
                let now = Timestamp::now();
                write(&lines.push(&buffer[..count], now), now);
                audience.show(stream, &buffer[..count]);
            }
            // So the kernel says that nobody has a terminal open: somebody may open it again.
            Err(error) if error.raw_os_error() == Some(libc::EIO) && !audience.is_over() => {
                thread::sleep(LOOK_AGAIN);
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    let now = Timestamp::now();
    write(&lines.finish(now), now);
    audience.end(stream);
}

/// The records of one whole line.
pub(crate) fn records(stream: Stream, line: &str, now: Timestamp) -> Vec<u8> {
    let mut lines = Lines::new(stream);
    let mut out = lines.push(line.as_bytes(), now);
    out.extend(lines.push(b"\n", now));
    out
}

/// The beginning of a line whose end has not come yet.
#[derive(Debug)]
struct Lines {
    stream: Stream,
    begun: Vec<u8>,
}

impl Lines {
    fn new(stream: Stream) -> Self {
        Self { stream, begun: Vec::new() }
    }

    fn push(&mut self, bytes: &[u8], now: Timestamp) -> Vec<u8> {
        let mut out = Vec::new();
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.begun.extend_from_slice(piece);
            if self.begun.ends_with(b"\n") {
                self.begun.pop();
                self.record(&mut out, "F", now);
                self.begun.clear();
            }
            while self.begun.len() >= LONGEST {
                let rest = self.begun.split_off(LONGEST);
                self.record(&mut out, "P", now);
                self.begun = rest;
            }
        }
        out
    }

    fn finish(mut self, now: Timestamp) -> Vec<u8> {
        if self.begun.is_empty() { Vec::new() } else { self.push(b"\n", now) }
    }

    fn record(&self, out: &mut Vec<u8>, tag: &str, now: Timestamp) {
        let stream = match self.stream {
            Stream::Stdout => "stdout",
            Stream::Stderr => "stderr",
        };
        out.extend_from_slice(format!("{now} {stream} {tag} ").as_bytes());
        out.extend_from_slice(&self.begun);
        out.push(b'\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(pieces: &[&str]) -> String {
        let now = Timestamp::from_second(1).unwrap();
        let mut lines = Lines::new(Stream::Stdout);
        let mut out: Vec<u8> =
            pieces.iter().flat_map(|text| lines.push(text.as_bytes(), now)).collect();
        out.extend(lines.finish(now));
        String::from_utf8(out).unwrap().replace("1970-01-01T00:00:01Z stdout ", "")
    }

    #[test]
    fn lines() {
        let cases: [(&str, &[&str], &str); 5] = [
            ("one line", &["hello\n"], "F hello\n"),
            ("two at once", &["a\nb\n"], "F a\nF b\n"),
            ("one in pieces", &["he", "llo\n"], "F hello\n"),
            ("an empty line", &["\n"], "F \n"),
            ("no newline at the end", &["a\nb"], "F a\nF b\n"),
        ];
        for (name, pieces, want) in cases {
            assert_eq!(log(pieces), want, "{name}");
        }
        let long = "x".repeat(LONGEST);
        assert_eq!(log(&[&long, "y\n"]), format!("P {long}\nF y\n"));
    }
}
