//! What a container may say at its end: where it writes it, and what is taken instead. Pure.

use k8s_openapi::api::core::v1::Container;
use serde::{Deserialize, Serialize};

use crate::logs::{LogOptions, LogView, tail_start};

/// The most that is read of the file, from its end.
pub const MOST_OF_FILE: u64 = 4096;
/// As much of a log as surely has what may be taken of it: a record has up to 16 KiB.
pub const ENOUGH_OF_LOG: u64 = 32 << 10;
const MOST_LINES: u64 = 80;
const MOST_OF_LOG: usize = 2048;

/// Where a container's last words come from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TerminationMessage {
    /// The file in the container that they are written to.
    pub path: String,
    /// What is taken if it is empty.
    pub otherwise: Otherwise,
}

/// What is taken if a container has written nothing.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Otherwise {
    /// Nothing.
    Nothing,
    /// The end of its log, if it failed.
    LogOnError,
}

impl TerminationMessage {
    /// Reads it.
    pub fn of(container: &Container) -> Self {
        let path = container.termination_message_path.as_deref().filter(|path| !path.is_empty());
        Self {
            path: within_root(path.unwrap_or("/dev/termination-log")),
            otherwise: match container.termination_message_policy.as_deref() {
                Some("FallbackToLogsOnError") => Otherwise::LogOnError,
                _ => Otherwise::Nothing,
            },
        }
    }

    /// Whether the log is to be looked at.
    pub fn wants_log(&self, file: &[u8], code: i32) -> bool {
        file.is_empty() && code != 0 && self.otherwise == Otherwise::LogOnError
    }
}

/// What is taken of a log's end.
pub fn from_log(end: &[u8]) -> Vec<u8> {
    let lines = &end[tail_start(end, MOST_LINES)..];
    let text = LogView::new(LogOptions::default()).push(lines);
    text[text.len().saturating_sub(MOST_OF_LOG)..].to_vec()
}

/// The same path without `.` and `..`, so that it cannot lead out of the container's root.
fn within_root(path: &str) -> String {
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths() {
        for (given, want) in [
            (None, "/dev/termination-log"),
            (Some(""), "/dev/termination-log"),
            (Some("/tmp/x"), "/tmp/x"),
            (Some("x"), "/x"),
            (Some("/../../etc/./x//y/.."), "/etc/x"),
        ] {
            let termination_message_path = given.map(str::to_owned);
            let container = Container { termination_message_path, ..Container::default() };
            assert_eq!(TerminationMessage::of(&container).path, want, "{given:?}");
        }
    }

    #[test]
    fn the_end_of_a_log() {
        let record = |text: &str| format!("2026-01-01T00:00:00.5Z stdout F {text}\n");
        let numbers =
            |from: u32| (from..=100).map(|number| format!("{number}\n")).collect::<String>();
        let many: String = (1..=100).map(|number| record(&number.to_string())).collect();
        assert_eq!(from_log(many.as_bytes()), numbers(21).as_bytes());
        // Whatever is read begins in the middle of a record.
        assert_eq!(from_log(&many.as_bytes()[5..]), numbers(21).as_bytes());
        let long = record(&"x".repeat(5000));
        assert_eq!(from_log(long.as_bytes()).len(), MOST_OF_LOG);
        assert_eq!(from_log(b""), b"");
    }
}
