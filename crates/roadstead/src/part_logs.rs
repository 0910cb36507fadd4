//! What the proxy and the DNS server say, for the logs of their pods: the lines of klog, which is what
//! readers of kube-proxy's logs know.
//!
//! A part speaks before its pod is there, and while one pod follows another: the newest lines wait for
//! the next log.

use std::collections::VecDeque;
use std::fmt::{Debug, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use roadstead_node::runtime::parts::PartLog;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// So many lines wait for a pod.
const MOST_WAITING: usize = 200;

/// A line is not longer, in bytes.
const LONGEST: usize = 8 << 10;

/// The logs of all parts.
#[derive(Clone, Debug)]
pub(crate) struct PartLogs {
    /// Of the proxy.
    pub proxy: Spoken,
    /// Of the DNS server.
    pub dns: Spoken,
}

impl Default for PartLogs {
    fn default() -> Self {
        Self { proxy: Spoken::of("roadstead_proxy"), dns: Spoken::of("roadstead_dns") }
    }
}

/// What one part says.
#[derive(Clone, Debug)]
pub(crate) struct Spoken {
    /// Where its events come from: this crate.
    target: &'static str,
    talkative: Arc<AtomicBool>,
    place: Arc<Mutex<Place>>,
}

/// Where lines go, or wait.
#[derive(Debug)]
struct Place {
    log: PartLog,
    waiting: VecDeque<(Timestamp, String)>,
}

impl Spoken {
    fn of(target: &'static str) -> Self {
        let place = Place { log: PartLog::closed(), waiting: VecDeque::new() };
        Self { target, talkative: Arc::default(), place: Arc::new(Mutex::new(place)) }
    }

    /// Writes into this log from now on, what waits first.
    pub(crate) fn write_to(&self, log: PartLog) {
        let mut place = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        place.log = log;
        for (at, line) in std::mem::take(&mut place.waiting) {
            place.log.write(&line, at);
        }
    }

    /// Whether to write everything, and not only what an operator wants at three in the morning.
    pub(crate) fn set_talkative(&self, talkative: bool) {
        self.talkative.store(talkative, Ordering::Relaxed);
    }

    fn wants(&self, metadata: &Metadata<'_>) -> bool {
        let rest = metadata.target().strip_prefix(self.target);
        let own = rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("::"));
        own && (*metadata.level() <= Level::INFO || self.talkative.load(Ordering::Relaxed))
    }

    fn say(&self, at: Timestamp, line: String) {
        let mut place = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        if place.log.write(&line, at) {
            return;
        }
        if place.waiting.len() == MOST_WAITING {
            place.waiting.pop_front();
        }
        place.waiting.push_back((at, line));
    }
}

impl<S: Subscriber> Layer<S> for PartLogs {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let metadata = event.metadata();
        for part in [&self.proxy, &self.dns] {
            if part.wants(metadata) {
                let now = Timestamp::now();
                part.say(now, line(event, now));
            }
        }
    }
}

/// `I1118 20:04:05.123456       1 file.rs:12] "message" key="value"`.
fn line(event: &Event<'_>, at: Timestamp) -> String {
    let metadata = event.metadata();
    let letter = match *metadata.level() {
        Level::ERROR => 'E',
        Level::WARN => 'W',
        _ => 'I',
    };
    let file = metadata.file().unwrap_or("unknown").rsplit('/').next().unwrap_or_default();
    let (time, pid) = (at.strftime("%m%d %H:%M:%S.%6f"), std::process::id());
    let mut words = Words::default();
    event.record(&mut words);
    let mut text = format!("{letter}{time} {pid:>7} {file}:{}]", metadata.line().unwrap_or(0));
    let _ = write!(text, " {:?}{}", words.message, words.fields);
    if text.len() > LONGEST {
        let end = (0..=LONGEST).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
    text
}

/// The message of an event, and its fields as klog has them.
#[derive(Debug, Default)]
struct Words {
    message: String,
    fields: String,
}

impl Words {
    fn add(&mut self, field: &Field, value: impl Debug) {
        let _ = write!(self.fields, " {}={value:?}", field.name());
    }
}

impl Visit for Words {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let text = format!("{value:?}");
        match field.name() {
            "message" => self.message = text,
            _ => self.add(field, text),
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => value.clone_into(&mut self.message),
            _ => self.add(field, value),
        }
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value);
    }
}

#[cfg(test)]
mod tests {
    use tracing::{debug, info, warn};
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    fn waiting(spoken: &Spoken) -> Vec<String> {
        let place = spoken.place.lock().unwrap();
        place.waiting.iter().map(|(_, line)| line.clone()).collect()
    }

    #[test]
    fn lines_are_those_of_klog() {
        let logs = PartLogs::default();
        let subscriber = tracing_subscriber::registry().with(logs.clone());
        tracing::subscriber::with_default(subscriber, || {
            info!(target: "roadstead_proxy", mode = %"ipvs", rules = 3, "proxy \"starts\"\nhere");
            warn!(target: "roadstead_proxy::nft", why = "odd", "retried");
            debug!(target: "roadstead_proxy", "not said");
            info!(target: "roadstead_proxying", "somebody else");
            logs.proxy.set_talkative(true);
            debug!(target: "roadstead_proxy", "said");
            info!(target: "roadstead_dns::agent", long = "ä".repeat(LONGEST), "much");
        });
        let lines = waiting(&logs.proxy);
        let (heads, texts): (Vec<_>, Vec<_>) =
            lines.iter().map(|line| line.split_once("] ").unwrap()).unzip();
        assert_eq!(
            texts,
            [
                r#""proxy \"starts\"\nhere" mode="ipvs" rules=3"#,
                r#""retried" why="odd""#,
                r#""said""#
            ]
        );
        // `I1118 20:04:05.123456       1 part_logs.rs:12`
        assert!(heads[0].starts_with('I') && heads[1].starts_with('W'), "{heads:?}");
        assert_eq!(heads[0].find("."), Some(14), "{heads:?}");
        assert!(heads[0].contains(" part_logs.rs:"), "{heads:?}");
        let lines = waiting(&logs.dns);
        assert!(lines[0].len() <= LONGEST + 3 && lines[0].ends_with('…'));
    }

    #[test]
    fn only_the_newest_lines_wait() {
        let spoken = Spoken::of("x");
        for number in 0..MOST_WAITING + 5 {
            spoken.say(Timestamp::UNIX_EPOCH, number.to_string());
        }
        let lines = waiting(&spoken);
        assert_eq!((lines.len(), lines[0].as_str()), (MOST_WAITING, "5"));
    }
}
