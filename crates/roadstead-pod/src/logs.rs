//! What `kubectl logs` shows of a container's log: which container, which lines, and how they look. Pure.
//!
//! The log is lines of `time stream tag text`, as the CRI prescribes; who reads the files, and waits for
//! more, is for others.

use std::str::FromStr;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStateWaiting, Pod};

/// Which of a container's two outputs are wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum LogStream {
    /// Both, in the order in which they came.
    #[default]
    All,
    /// What programs say.
    Stdout,
    /// What they complain about.
    Stderr,
}

impl LogStream {
    /// As in the API.
    const NAMES: [(&str, Self); 3] =
        [("All", Self::All), ("Stdout", Self::Stdout), ("Stderr", Self::Stderr)];

    /// Whether lines of the stream that a log calls so are among them.
    fn has(self, stream: &[u8]) -> bool {
        match self {
            Self::All => true,
            Self::Stdout => stream == b"stdout",
            Self::Stderr => stream == b"stderr",
        }
    }

    /// Why the last lines of it cannot be had, if they are asked for: they are counted in the whole log, and
    /// upstream has only those.
    pub fn excludes_tail(self) -> Option<&'static str> {
        let why = "`tailLines` and specific `stream` are mutually exclusive for now";
        (self != Self::All).then_some(why)
    }
}

impl FromStr for LogStream {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let known = Self::NAMES.iter().find(|(name, _)| *name == text);
        known.map(|(_, stream)| *stream).ok_or(())
    }
}

/// Which lines are wanted, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LogOptions {
    /// Lines of other streams are left out.
    pub stream: LogStream,
    /// Lines before this are left out.
    pub since: Option<Timestamp>,
    /// Each line begins with its time.
    pub timestamps: bool,
    /// No more bytes than these.
    pub limit_bytes: Option<u64>,
}

/// Returns the container whose log is wanted: the only one, if nobody says which.
pub fn log_container(pod: &Pod, asked: Option<&str>) -> Result<String, String> {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let spec = pod.spec.as_ref();
    let main: Vec<_> = spec.iter().flat_map(|spec| &spec.containers).map(|one| &one.name).collect();
    let init = spec.iter().flat_map(|spec| spec.init_containers.iter().flatten());
    let init: Vec<_> = init.map(|one| &one.name).collect();
    let later = spec.iter().flat_map(|spec| spec.ephemeral_containers.iter().flatten());
    let mut later = later.map(|one| &one.name);
    let listed =
        |names: &[&String]| names.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(" ");
    match (asked.filter(|asked| !asked.is_empty()), &main[..]) {
        (None, [only]) => Ok((*only).clone()),
        (None, _) => {
            let of_init = match &init[..] {
                [] => String::new(),
                init => format!(" or one of the init containers: [{}]", listed(init)),
            };
            Err(format!(
                "a container name must be specified for pod {name}, choose one of: [{}]{of_init}",
                listed(&main)
            ))
        }
        (Some(asked), _) => {
            let known = main.iter().chain(&init).any(|one| *one == asked);
            match known || later.any(|one| one == asked) {
                true => Ok(asked.to_owned()),
                false => Err(format!("container {asked} is not valid for pod {name}")),
            }
        }
    }
}

/// What to say instead of the log of a container that has not started.
pub fn waiting_words(pod: &str, container: &str, waiting: &ContainerStateWaiting) -> String {
    let why = match waiting.reason.as_deref().unwrap_or_default() {
        "ErrImagePull" => "image can't be pulled",
        "ImagePullBackOff" => "trying and failing to pull image",
        reason => reason,
    };
    format!("container {container:?} in pod {pod:?} is waiting to start: {why}")
}

/// Where the last `lines` lines begin. A line in parts is one, and so is one that is still being written.
pub fn tail_start(log: &[u8], lines: u64) -> usize {
    let mut start = log.len();
    let mut found = 0;
    for piece in log.split_inclusive(|byte| *byte == b'\n').rev() {
        // The parts before it belong to a line that has been counted when its end was.
        let ends_line = !is_part(piece) || start == log.len();
        if ends_line && found == lines {
            return start;
        }
        found += u64::from(ends_line);
        start -= piece.len();
    }
    start
}

/// How many lines there are, counted as in [`tail_start`].
pub fn count_lines(log: &[u8]) -> u64 {
    let mut records = log.split_inclusive(|byte| *byte == b'\n').rev();
    let last = u64::from(records.next().is_some());
    last + records.filter(|record| !is_part(record)).count() as u64
}

fn is_part(record: &[u8]) -> bool {
    record.splitn(4, |byte| *byte == b' ').nth(2).is_some_and(|tag| tag.starts_with(b"P"))
}

/// Turns a log, as it is read, into what is shown.
#[derive(Debug)]
pub struct LogView {
    options: LogOptions,
    /// The record whose end has not been read yet.
    begun: Vec<u8>,
    /// We are in the middle of a line: the next record goes on with it.
    inside: bool,
    shown: u64,
}

impl LogView {
    /// Nothing has been read yet.
    pub fn new(options: LogOptions) -> Self {
        Self { options, begun: Vec::new(), inside: false, shown: 0 }
    }

    /// Whether nothing more will be shown, whatever is read.
    pub fn is_full(&self) -> bool {
        self.options.limit_bytes.is_some_and(|limit| self.shown >= limit)
    }

    /// Takes what was read; returns what to show of it.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.begun.extend_from_slice(piece);
            if self.begun.ends_with(b"\n") {
                let record = std::mem::take(&mut self.begun);
                self.record(&record[..record.len() - 1], &mut out);
            }
        }
        if let Some(limit) = self.options.limit_bytes {
            out.truncate(usize::try_from(limit.saturating_sub(self.shown)).unwrap_or(usize::MAX));
        }
        self.shown += out.len() as u64;
        out
    }

    fn record(&mut self, record: &[u8], out: &mut Vec<u8>) {
        let mut fields = record.splitn(4, |byte| *byte == b' ');
        let (Some(time), Some(stream), Some(tag)) = (fields.next(), fields.next(), fields.next())
        else {
            return; // Damaged: nobody knows what it was.
        };
        if !self.options.stream.has(stream) {
            return;
        }
        let text = fields.next().unwrap_or_default();
        let parsed = std::str::from_utf8(time).ok().and_then(|time| time.parse::<Timestamp>().ok());
        let Some(time) = parsed else { return };
        if self.options.since.is_some_and(|since| time < since) {
            return;
        }
        if self.options.timestamps && !self.inside {
            out.extend_from_slice(time.strftime("%Y-%m-%dT%H:%M:%S.%9fZ ").to_string().as_bytes());
        }
        out.extend_from_slice(text);
        self.inside = tag.starts_with(b"P");
        if !self.inside {
            out.push(b'\n');
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{Container, PodSpec};

    use super::*;

    /// Records of the seconds 1, 2, 3 …, written as `F:text P:part F:end`; in small letters they are of stderr.
    fn log(text: &str) -> String {
        let records = text.split(' ').enumerate().filter(|(_, record)| !record.is_empty());
        let line = |(at, record): (usize, &str)| {
            let (tag, text) = record.split_once(':').unwrap();
            let (stream, tag) = match tag.to_uppercase() {
                upper if upper == tag => ("stdout", upper),
                upper => ("stderr", upper),
            };
            format!("1970-01-01T00:00:0{}.5Z {stream} {tag} {text}\n", at + 1)
        };
        records.map(line).collect()
    }

    fn shown(text: &str, options: LogOptions) -> String {
        let log = log(text);
        let mut whole = LogView::new(options);
        let all = whole.push(log.as_bytes());
        // The same in pieces.
        let mut view = LogView::new(options);
        let pieces: Vec<u8> = log.as_bytes().chunks(3).flat_map(|piece| view.push(piece)).collect();
        assert_eq!(all, pieces, "{text}");
        String::from_utf8(all).unwrap()
    }

    #[test]
    fn lines_that_are_shown() {
        let plain = LogOptions::default();
        let of = |stream| LogOptions { stream, ..plain };
        let since = Timestamp::from_second(3).ok();
        let cases = [
            ("plain", "F:a F:b", plain, "a\nb\n"),
            ("joined", "P:a P:b F:c F:d", plain, "abc\nd\n"),
            ("an empty line", "F: F:b", plain, "\nb\n"),
            ("since", "F:a F:b F:c F:d", LogOptions { since, ..plain }, "c\nd\n"),
            (
                "times, once for a line",
                "F:a P:b F:c",
                LogOptions { timestamps: true, ..plain },
                "1970-01-01T00:00:01.500000000Z a\n1970-01-01T00:00:02.500000000Z bc\n",
            ),
            ("a limit", "F:abc F:def", LogOptions { limit_bytes: Some(6), ..plain }, "abc\nde"),
            ("nothing", "", plain, ""),
            ("both streams", "F:a f:b F:c", plain, "a\nb\nc\n"),
            ("what it says", "F:a f:b F:c", of(LogStream::Stdout), "a\nc\n"),
            ("what it complains about", "F:a f:b F:c", of(LogStream::Stderr), "b\n"),
            ("a line in parts", "P:a f:b F:c", of(LogStream::Stdout), "ac\n"),
            ("others in parts", "p:x F:a p:y f:z F:b", of(LogStream::Stdout), "a\nb\n"),
            (
                "a limit counts what is shown",
                "F:abc f:long F:def",
                LogOptions { limit_bytes: Some(6), ..of(LogStream::Stdout) },
                "abc\nde",
            ),
        ];
        for (name, text, options, want) in cases {
            assert_eq!(shown(text, options), want, "{name}");
        }
        let mut damaged = LogView::new(plain);
        assert_eq!(damaged.push(b"\nx y\n\xff stdout F z\n"), b"");
    }

    #[test]
    fn streams_by_name() {
        for (name, want) in [
            ("All", Some((LogStream::All, false))),
            ("Stdout", Some((LogStream::Stdout, true))),
            ("Stderr", Some((LogStream::Stderr, true))),
            ("stdout", None),
            ("", None),
        ] {
            let stream = name.parse::<LogStream>().ok();
            let found = stream.map(|stream| (stream, stream.excludes_tail().is_some()));
            assert_eq!(found, want, "{name}");
        }
    }

    #[test]
    fn tails() {
        let cases = [
            ("none", "F:a F:b", 0, ""),
            ("the last", "F:a F:b", 1, "F:b"),
            ("more than there are", "F:a F:b", 9, "F:a F:b"),
            ("parts are one line", "F:a P:b P:c F:d", 1, "P:b P:c F:d"),
            ("and the one before", "P:x F:a P:b F:d", 2, "P:x F:a P:b F:d"),
            ("one that goes on", "F:a P:b", 1, "P:b"),
        ];
        for (name, text, lines, want) in cases {
            let all = log(text);
            let rest = &all[tail_start(all.as_bytes(), lines)..];
            let texts = |log: &str| -> Vec<String> {
                log.lines().map(|line| line.splitn(3, ' ').nth(2).unwrap().to_owned()).collect()
            };
            assert_eq!(texts(rest), texts(&log(want)), "{name}");
            assert_eq!(
                count_lines(rest.as_bytes()),
                lines.min(count_lines(all.as_bytes())),
                "{name}"
            );
        }
    }

    #[test]
    fn containers() {
        let names = |text: &str| -> Vec<Container> {
            let all = text.split(' ').filter(|name| !name.is_empty());
            all.map(|name| Container { name: name.into(), ..Container::default() }).collect()
        };
        let must = "a container name must be specified for pod p, choose one of: [a b]";
        let cases = [
            ("a", "", None, Ok("a")),
            ("a", "i", Some("i"), Ok("i")),
            ("a b", "", Some("b"), Ok("b")),
            ("a b", "", None, Err(must.to_owned())),
            ("a b", "i", None, Err(format!("{must} or one of the init containers: [i]"))),
            ("a", "", Some("x"), Err("container x is not valid for pod p".to_owned())),
        ];
        for (main, init, asked, want) in cases {
            let mut pod = Pod::default();
            pod.metadata.name = Some("p".into());
            pod.spec = Some(PodSpec {
                containers: names(main),
                init_containers: Some(names(init)),
                ..PodSpec::default()
            });
            assert_eq!(log_container(&pod, asked), want.map(str::to_owned), "{main}/{init}");
        }
    }

    #[test]
    fn who_waits_says_why() {
        for (reason, want) in [
            ("ContainerCreating", "ContainerCreating"),
            ("ErrImagePull", "image can't be pulled"),
            ("ImagePullBackOff", "trying and failing to pull image"),
        ] {
            let waiting = ContainerStateWaiting { reason: Some(reason.into()), message: None };
            let want = format!("container \"c\" in pod \"p\" is waiting to start: {want}");
            assert_eq!(waiting_words("p", "c", &waiting), want);
        }
    }
}
