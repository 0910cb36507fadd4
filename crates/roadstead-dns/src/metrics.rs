//! What the server counts, under the names that CoreDNS gave them.
//!
//! Every thread counts for itself, so that counting never makes threads wait for each other; the
//! sums are made when somebody looks.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::respond::Transport;

/// The types that are counted apart; the rest is "other".
const KINDS: [(&str, u16); 12] = [
    ("A", 1),
    ("NS", 2),
    ("CNAME", 5),
    ("SOA", 6),
    ("PTR", 12),
    ("MX", 15),
    ("TXT", 16),
    ("AAAA", 28),
    ("SRV", 33),
    ("DS", 43),
    ("HTTPS", 65),
    ("ANY", 255),
];
const CODES: [&str; 6] = ["NOERROR", "FORMERR", "SERVFAIL", "NXDOMAIN", "NOTIMP", "REFUSED"];
/// Upper bounds of durations, in microseconds.
const BOUNDS: [u64; 12] =
    [25, 50, 100, 250, 500, 1_000, 5_000, 25_000, 100_000, 500_000, 2_000_000, 8_000_000];

/// What one thread counts.
#[derive(Debug, Default)]
pub struct Counters {
    requests: [[AtomicU64; KINDS.len() + 1]; 2],
    responses: [AtomicU64; CODES.len()],
    durations: Durations,
    hits: AtomicU64,
    denial_hits: AtomicU64,
    misses: AtomicU64,
    forwards: Durations,
    failures: AtomicU64,
    dropped: AtomicU64,
    limited: AtomicU64,
    refused_reloads: AtomicU64,
}

/// How often something took how long.
#[derive(Debug, Default)]
pub struct Durations {
    buckets: [AtomicU64; BOUNDS.len() + 1],
    microseconds: AtomicU64,
}

impl Durations {
    /// Counts so many events that took that long each.
    pub fn observe(&self, each: Duration, count: u64) {
        let micros = u64::try_from(each.as_micros()).unwrap_or(u64::MAX);
        let bucket = BOUNDS.iter().position(|bound| micros <= *bound).unwrap_or(BOUNDS.len());
        self.buckets[bucket].fetch_add(count, Ordering::Relaxed);
        self.microseconds.fetch_add(micros.saturating_mul(count), Ordering::Relaxed);
    }
}

impl Counters {
    /// Counts a query by its type, and its reply by its code.
    pub fn answered(&self, kind: u16, transport: Transport, code: u8) {
        let kind = KINDS.iter().position(|(_, number)| *number == kind).unwrap_or(KINDS.len());
        add(&self.requests[usize::from(transport == Transport::Tcp)][kind]);
        if let Some(counter) = self.responses.get(usize::from(code)) {
            add(counter);
        }
    }

    /// Counts the time that some queries took.
    pub fn took(&self, each: Duration, count: u64) {
        self.durations.observe(each, count);
    }

    /// Counts an answer from memory.
    pub fn hit(&self, message: &[u8]) {
        let denial = message.get(6..8) == Some(&[0, 0]);
        add(if denial { &self.denial_hits } else { &self.hits });
    }

    /// Counts a question that memory could not answer.
    pub fn miss(&self) {
        add(&self.misses);
    }

    /// Counts a question to another server.
    pub fn forwarded(&self, took: Duration, answered: bool) {
        self.forwards.observe(took, 1);
        if !answered {
            add(&self.failures);
        }
    }

    /// Counts queries that we had no room for, or whose replies the system had none for.
    pub fn dropped(&self, count: usize) {
        if count > 0 {
            self.dropped.fetch_add(count as u64, Ordering::Relaxed);
        }
    }

    /// Counts a configuration that made no sense.
    pub fn refused_reload(&self) {
        add(&self.refused_reloads);
    }

    /// Counts a stranger's query that got no proper reply.
    pub fn limited(&self) {
        add(&self.limited);
    }
}

fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// What is not counted, but simply so.
#[derive(Clone, Copy, Debug, Default)]
pub struct State {
    /// How many answers are in memory.
    pub cached: usize,
    /// How many upstreams are down.
    pub broken: usize,
    /// How many clients get their searches completed.
    pub clients: usize,
    /// How many searches were completed.
    pub completed: u64,
    /// The newest resource version that is answered from.
    pub revision: u64,
}

/// The counters of all threads.
#[derive(Debug, Default)]
pub struct Metrics {
    threads: Mutex<Vec<Arc<Counters>>>,
    /// From the commit of a change to its being answered.
    pub programming: Durations,
}

impl Metrics {
    /// Counters for one more thread.
    pub fn register(&self, counters: Arc<Counters>) {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).push(counters);
    }

    /// The page that Prometheus reads.
    pub fn page(&self, state: &State) -> String {
        let threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let mut page = String::new();
        let version = env!("CARGO_PKG_VERSION");
        family(&mut page, "coredns_build_info", "gauge", "What this is.");
        line(&mut page, "coredns_build_info", &format!("version=\"roadstead {version}\""), 1);
        queries(&mut page, &threads);
        others(&mut page, &threads);
        let gauges = [
            ("coredns_cache_entries", "Answers in memory.", state.cached),
            ("coredns_forward_healthcheck_broken", "Upstreams that are down.", state.broken),
            ("roadstead_dns_known_clients", "Pods whose search is completed.", state.clients),
        ];
        for (name, help, count) in gauges {
            family(&mut page, name, "gauge", help);
            line(&mut page, name, SERVER, count.try_into().unwrap_or(0));
        }
        let name = "coredns_autopath_success_total";
        family(&mut page, name, "counter", "Searches that were completed.");
        line(&mut page, name, SERVER, state.completed);
        let name = "roadstead_dns_programmed_revision";
        family(&mut page, name, "gauge", "The newest resource version that is answered from.");
        line(&mut page, name, SERVER, state.revision);
        let name = "coredns_kubernetes_dns_programming_duration_seconds";
        let (help, kind) = ("From an object's change to its answer.", "service_kind=\"any\"");
        histogram(&mut page, name, help, kind, &[&self.programming]);
        page
    }
}

fn sum(threads: &[Arc<Counters>], pick: impl Fn(&Counters) -> &AtomicU64) -> u64 {
    threads.iter().map(|one| pick(one).load(Ordering::Relaxed)).sum()
}

/// What clients asked and what they got.
fn queries(page: &mut String, threads: &[Arc<Counters>]) {
    family(page, "coredns_dns_requests_total", "counter", "Queries by type.");
    for (at, proto) in ["udp", "tcp"].into_iter().enumerate() {
        let names = KINDS.iter().map(|(name, _)| *name).chain(["other"]);
        for (kind, name) in names.enumerate() {
            let count = sum(threads, |one| &one.requests[at][kind]);
            let labels = format!("{SERVER},proto=\"{proto}\",type=\"{name}\"");
            if count > 0 {
                line(page, "coredns_dns_requests_total", &labels, count);
            }
        }
    }
    family(page, "coredns_dns_responses_total", "counter", "Replies by code.");
    for (at, name) in CODES.iter().enumerate() {
        let count = sum(threads, |one| &one.responses[at]);
        line(page, "coredns_dns_responses_total", &format!("{SERVER},rcode=\"{name}\""), count);
    }
    let all: Vec<_> = threads.iter().map(|one| &one.durations).collect();
    let name = "coredns_dns_request_duration_seconds";
    histogram(page, name, "How long queries took.", SERVER, &all);
}

/// What other servers were asked, and what came of it.
fn others(page: &mut String, threads: &[Arc<Counters>]) {
    family(page, "coredns_cache_hits_total", "counter", "Answers from memory.");
    let hits = sum(threads, |one| &one.hits);
    let denials = sum(threads, |one| &one.denial_hits);
    for (kind, count) in [("success", hits), ("denial", denials)] {
        line(page, "coredns_cache_hits_total", &format!("{SERVER},type=\"{kind}\""), count);
    }
    type Pick = fn(&Counters) -> &AtomicU64;
    let simple: [(&str, &str, Pick); 5] = [
        ("coredns_cache_misses_total", "Questions that memory could not answer.", |one| {
            &one.misses
        }),
        ("coredns_forward_failures_total", "Questions that nobody answered.", |one| &one.failures),
        ("coredns_reload_failed_total", "Configurations that were refused.", |one| {
            &one.refused_reloads
        }),
        ("roadstead_dns_dropped_total", "Queries or replies without room for them.", |one| {
            &one.dropped
        }),
        ("roadstead_dns_limited_total", "Replies that strangers did not get.", |one| &one.limited),
    ];
    for (name, help, pick) in simple {
        family(page, name, "counter", help);
        line(page, name, SERVER, sum(threads, pick));
    }
    let all: Vec<_> = threads.iter().map(|one| &one.forwards).collect();
    let name = "coredns_proxy_request_duration_seconds";
    histogram(page, name, "How long others took.", "proxy_name=\"forward\"", &all);
}

const SERVER: &str = "server=\"dns://:53\"";

fn family(page: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(page, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn line(page: &mut String, name: &str, labels: &str, value: u64) {
    let _ = writeln!(page, "{name}{{{labels}}} {value}");
}

fn histogram(page: &mut String, name: &str, help: &str, labels: &str, all: &[&Durations]) {
    family(page, name, "histogram", help);
    let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let mut total = 0;
    for at in 0..=BOUNDS.len() {
        total += all.iter().map(|one| load(&one.buckets[at])).sum::<u64>();
        let bound = BOUNDS.get(at).map_or("+Inf".to_owned(), |bound| seconds(*bound));
        let _ = writeln!(page, "{name}_bucket{{{labels},le=\"{bound}\"}} {total}");
    }
    let sum = all.iter().map(|one| load(&one.microseconds)).sum();
    let _ = writeln!(page, "{name}_sum{{{labels}}} {}", seconds(sum));
    line(page, &format!("{name}_count"), labels, total);
}

fn seconds(micros: u64) -> String {
    let text = format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page() {
        let metrics = Metrics::default();
        for _ in 0..2 {
            let counters = Arc::new(Counters::default());
            metrics.register(counters.clone());
            counters.answered(1, Transport::Udp, 0);
            counters.answered(999, Transport::Tcp, 3);
            counters.took(Duration::from_micros(30), 2);
            counters.refused_reload();
        }
        let page =
            metrics.page(&State { cached: 7, completed: 3, revision: 42, ..State::default() });
        for want in [
            r#"coredns_dns_requests_total{server="dns://:53",proto="udp",type="A"} 2"#,
            r#"coredns_dns_requests_total{server="dns://:53",proto="tcp",type="other"} 2"#,
            r#"coredns_dns_responses_total{server="dns://:53",rcode="NXDOMAIN"} 2"#,
            r#"coredns_dns_request_duration_seconds_bucket{server="dns://:53",le="0.000025"} 0"#,
            r#"coredns_dns_request_duration_seconds_bucket{server="dns://:53",le="0.00005"} 4"#,
            r#"coredns_dns_request_duration_seconds_sum{server="dns://:53"} 0.00012"#,
            r#"coredns_reload_failed_total{server="dns://:53"} 2"#,
            r#"coredns_autopath_success_total{server="dns://:53"} 3"#,
            r#"roadstead_dns_programmed_revision{server="dns://:53"} 42"#,
            r#"coredns_cache_entries{server="dns://:53"} 7"#,
        ] {
            assert!(page.lines().any(|line| line == want), "{want} is missing in\n{page}");
        }
    }
}
