//! A container's log, in the format that the CRI prescribes: `time stream tag text`.
//!
//! The tag is `F` for a full line and `P` for a part of one that is longer than our buffer.

use std::fs::File;
use std::io::Read;
use std::sync::{Mutex, PoisonError};

use jiff::Timestamp;

use super::log_file::LogFile;

const LONGEST: usize = 16 * 1024;

/// Where a line came from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Stream {
    Stdout,
    Stderr,
}

/// Copies a pipe into the log until it ends.
///
/// Each line is written in one piece, so that two streams can share the file.
pub(super) fn copy(stream: Stream, mut pipe: File, log: &Mutex<LogFile>) {
    let mut lines = Lines::default();
    let mut buffer = vec![0; LONGEST];
    let write = |text: &[u8], now| {
        log.lock().unwrap_or_else(PoisonError::into_inner).write(text, now);
    };
    loop {
        match pipe.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => {
                let now = Timestamp::now();
                write(&lines.push(stream, &buffer[..count], now), now);
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    let now = Timestamp::now();
    write(&lines.finish(stream, now), now);
}

/// The beginning of a line whose end has not come yet.
#[derive(Debug, Default)]
struct Lines {
    begun: Vec<u8>,
}

impl Lines {
    fn push(&mut self, stream: Stream, bytes: &[u8], now: Timestamp) -> Vec<u8> {
        let mut out = Vec::new();
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.begun.extend_from_slice(piece);
            if self.begun.ends_with(b"\n") {
                self.begun.pop();
                record(&mut out, stream, "F", &self.begun, now);
                self.begun.clear();
            }
            while self.begun.len() >= LONGEST {
                let rest = self.begun.split_off(LONGEST);
                record(&mut out, stream, "P", &self.begun, now);
                self.begun = rest;
            }
        }
        out
    }

    fn finish(mut self, stream: Stream, now: Timestamp) -> Vec<u8> {
        if self.begun.is_empty() { Vec::new() } else { self.push(stream, b"\n", now) }
    }
}

fn record(out: &mut Vec<u8>, stream: Stream, tag: &str, text: &[u8], now: Timestamp) {
    let stream = match stream {
        Stream::Stdout => "stdout",
        Stream::Stderr => "stderr",
    };
    out.extend_from_slice(format!("{now} {stream} {tag} ").as_bytes());
    out.extend_from_slice(text);
    out.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(pieces: &[&str]) -> String {
        let now = Timestamp::from_second(1).unwrap();
        let mut lines = Lines::default();
        let mut out: Vec<u8> = pieces
            .iter()
            .flat_map(|text| lines.push(Stream::Stdout, text.as_bytes(), now))
            .collect();
        out.extend(lines.finish(Stream::Stdout, now));
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
