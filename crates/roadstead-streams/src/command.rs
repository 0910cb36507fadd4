//! `exec` and `attach` over SPDY: each channel is a stream, and the command waits for all of them.

use std::collections::BTreeMap;

use crate::channel::Channel;
use crate::spdy::frame::Headers;

/// What the client asked for in its query.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wanted {
    /// It will send input.
    pub stdin: bool,
    /// It wants to see output.
    pub stdout: bool,
    /// It wants to see errors. Ignored with a terminal, which has only one output.
    pub stderr: bool,
    /// The process gets a terminal.
    pub tty: bool,
}

impl Wanted {
    /// The channels that must be there before the command starts. Versions before 3 of the
    /// protocol know no resizing.
    pub fn channels(&self, version: u8) -> Vec<Channel> {
        let rows = [
            (Channel::Error, true),
            (Channel::Stdin, self.stdin),
            (Channel::Stdout, self.stdout),
            (Channel::Stderr, self.stderr && !self.tty),
            (Channel::Resize, self.tty && version >= 3),
        ];
        rows.into_iter().filter(|(_, wanted)| *wanted).map(|(channel, _)| channel).collect()
    }

    /// Whether the client asks for anything at all.
    pub fn is_nothing(&self) -> bool {
        !self.stdin && !self.stdout && !self.stderr
    }
}

/// Gathers the streams of one command.
#[derive(Debug)]
pub struct Gathering {
    missing: Vec<Channel>,
    streams: BTreeMap<Channel, u32>,
}

impl Gathering {
    /// Waits for what `wanted` says.
    pub fn new(wanted: &Wanted, version: u8) -> Self {
        Self { missing: wanted.channels(version), streams: BTreeMap::new() }
    }

    /// Takes a stream that the client opened. One that is not waited for is refused.
    pub fn opened(&mut self, stream: u32, headers: &Headers) -> Result<(), StreamRefused> {
        let kind = headers.get("streamtype").map_or("", String::as_str);
        let channel = channel_of(kind).ok_or_else(|| StreamRefused(kind.to_owned()))?;
        let at = self.missing.iter().position(|missing| *missing == channel);
        let at = at.ok_or_else(|| StreamRefused(kind.to_owned()))?;
        self.missing.remove(at);
        self.streams.insert(channel, stream);
        Ok(())
    }

    /// Returns the streams once all are there.
    pub fn complete(&self) -> Option<&BTreeMap<Channel, u32>> {
        self.missing.is_empty().then_some(&self.streams)
    }

    /// The stream of a channel, if it is there.
    pub fn stream(&self, channel: Channel) -> Option<u32> {
        self.streams.get(&channel).copied()
    }

    /// Those that are there.
    pub fn streams(&self) -> impl Iterator<Item = u32> {
        self.streams.values().copied()
    }
}

/// A stream that nobody waits for.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("invalid stream type {0:?}")]
pub struct StreamRefused(pub String);

fn channel_of(kind: &str) -> Option<Channel> {
    Some(match kind {
        "error" => Channel::Error,
        "stdin" => Channel::Stdin,
        "stdout" => Channel::Stdout,
        "stderr" => Channel::Stderr,
        "resize" => Channel::Resize,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(text: &str) -> Wanted {
        let has = |word| text.split(' ').any(|part| part == word);
        Wanted { stdin: has("in"), stdout: has("out"), stderr: has("err"), tty: has("tty") }
    }

    fn gather(asked: &str, version: u8, opened: &str) -> Result<bool, String> {
        let mut gathering = Gathering::new(&wanted(asked), version);
        for (at, kind) in opened.split(' ').enumerate() {
            let headers = Headers::from([("streamtype".to_owned(), kind.to_owned())]);
            gathering.opened(at as u32 * 2 + 1, &headers).map_err(|refused| refused.0)?;
        }
        Ok(gathering.complete().is_some())
    }

    #[test]
    fn a_command_waits_for_its_streams() {
        let cases = [
            ("output only", "out err", 4, "error stdout stderr", Ok(true)),
            ("in any order", "in out", 4, "stdout stdin error", Ok(true)),
            ("one is missing", "in out", 4, "error stdout", Ok(false)),
            (
                "a terminal has no stderr",
                "in out err tty",
                4,
                "error stdin stdout resize",
                Ok(true),
            ),
            ("early versions cannot resize", "in out tty", 2, "error stdin stdout", Ok(true)),
            ("not asked for", "out", 4, "error stdin", Err("stdin")),
            ("twice", "out", 4, "error error", Err("error")),
            ("unknown", "out", 4, "stdlog", Err("stdlog")),
        ];
        for (name, asked, version, opened, want) in cases {
            assert_eq!(gather(asked, version, opened), want.map_err(str::to_owned), "{name}");
        }
    }
}
