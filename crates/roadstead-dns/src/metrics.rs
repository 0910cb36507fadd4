//! What the server counts, under the names that CoreDNS gave them.
//!
//! Every thread counts for itself, so that counting never makes threads wait for each other; the
//! sums are made when somebody looks.

use std::fmt::Write;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use roadstead_dns_core::respond::Transport;
use serde::Serialize;

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

/// So many zones are counted apart; the last number is for all others.
const ZONES: usize = 8;

/// What one thread counts.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    zones: [ZoneCounters; ZONES],
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

/// What is counted of the queries about one zone.
#[derive(Debug, Default)]
struct ZoneCounters {
    /// By transport and family of the client's address.
    requests: [[[AtomicU64; KINDS.len() + 1]; 2]; 2],
    responses: [AtomicU64; CODES.len()],
}

/// A query with its end, as far as it is counted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answered {
    /// The type that was asked for.
    pub(crate) kind: u16,
    pub(crate) transport: Transport,
    pub(crate) client: IpAddr,
    /// The zone's number in [`CountedZones`].
    pub(crate) zone: usize,
    pub(crate) code: u8,
}

/// The zones that are counted apart. They keep their numbers when the configuration changes.
#[derive(Debug, Default)]
pub(crate) struct CountedZones(Mutex<Vec<String>>);

impl CountedZones {
    /// The number of a zone, which is a new one perhaps.
    pub(crate) fn number(&self, zone: &str) -> usize {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(number) = known.iter().position(|known| known == zone) {
            return number;
        }
        if known.len() < ZONES - 1 {
            known.push(zone.to_owned());
            return known.len() - 1;
        }
        ZONES - 1
    }

    /// Where queries are counted that no zone is for.
    pub(crate) fn others() -> usize {
        ZONES - 1
    }

    fn labels(&self) -> Vec<(usize, String)> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let others = (ZONES - 1, "other".to_owned());
        known.iter().cloned().enumerate().chain([others]).collect()
    }
}

/// How often something took how long.
#[derive(Debug, Default)]
pub(crate) struct Durations {
    buckets: [AtomicU64; BOUNDS.len() + 1],
    microseconds: AtomicU64,
}

impl Durations {
    /// Counts so many events that took that long each.
    pub(crate) fn observe(&self, each: Duration, count: u64) {
        let micros = u64::try_from(each.as_micros()).unwrap_or(u64::MAX);
        let bucket = BOUNDS.iter().position(|bound| micros <= *bound).unwrap_or(BOUNDS.len());
        self.buckets[bucket].fetch_add(count, Ordering::Relaxed);
        self.microseconds.fetch_add(micros.saturating_mul(count), Ordering::Relaxed);
    }
}

impl Counters {
    /// Counts a query by its type, and its reply by its code.
    pub(crate) fn answered(&self, query: &Answered) {
        let kind =
            KINDS.iter().position(|(_, number)| *number == query.kind).unwrap_or(KINDS.len());
        let zone = &self.zones[query.zone.min(ZONES - 1)];
        let (stream, six) =
            (query.transport == Transport::Tcp, query.client.to_canonical().is_ipv6());
        add(&zone.requests[usize::from(stream)][usize::from(six)][kind]);
        if let Some(counter) = zone.responses.get(usize::from(query.code)) {
            add(counter);
        }
    }

    /// Counts the time that some queries took.
    pub(crate) fn took(&self, each: Duration, count: u64) {
        self.durations.observe(each, count);
    }

    /// Counts an answer from memory.
    pub(crate) fn hit(&self, message: &[u8]) {
        let denial = message.get(6..8) == Some(&[0, 0]);
        add(if denial { &self.denial_hits } else { &self.hits });
    }

    /// Counts a question that memory could not answer.
    pub(crate) fn miss(&self) {
        add(&self.misses);
    }

    /// Counts a question to another server.
    pub(crate) fn forwarded(&self, took: Duration, answered: bool) {
        self.forwards.observe(took, 1);
        if !answered {
            add(&self.failures);
        }
    }

    /// Counts queries that we had no room for, or whose replies the system had none for.
    pub(crate) fn dropped(&self, count: usize) {
        if count > 0 {
            self.dropped.fetch_add(count as u64, Ordering::Relaxed);
        }
    }

    /// Counts a configuration that made no sense.
    pub(crate) fn refused_reload(&self) {
        add(&self.refused_reloads);
    }

    /// Counts a stranger's query that got no proper reply.
    pub(crate) fn limited(&self) {
        add(&self.limited);
    }
}

fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// What is not counted, but simply so.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Gauges {
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
    zones: OnceLock<Arc<CountedZones>>,
    /// Where the server listens; 0 before it does.
    port: AtomicU16,
    /// From the commit of a change to its being answered.
    pub(crate) programming: Durations,
}

impl Metrics {
    /// Counters for one more thread.
    pub(crate) fn register(&self, counters: Arc<Counters>) {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).push(counters);
    }

    /// What the numbers of zones mean, and where the server listens.
    pub(crate) fn describe(&self, zones: Arc<CountedZones>, port: u16) {
        let _ = self.zones.set(zones);
        self.port.store(port, Ordering::Relaxed);
    }

    /// The page that Prometheus reads.
    pub fn page(&self, gauges: &Gauges) -> String {
        let threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let mut page = MetricsPage {
            text: String::new(),
            server: format!("server=\"dns://:{}\"", self.port.load(Ordering::Relaxed)),
        };
        let server = page.server.clone();
        let version = env!("CARGO_PKG_VERSION");
        page.family("coredns_build_info", "gauge", "What this is.");
        page.line("coredns_build_info", &format!("version=\"roadstead {version}\""), 1);
        queries(&mut page, &threads, self.zones.get().map(|zones| zones.labels()));
        others(&mut page, &threads);
        let simple = [
            ("coredns_cache_entries", "Answers in memory.", gauges.cached),
            ("coredns_forward_healthcheck_broken", "Upstreams that are down.", gauges.broken),
            ("roadstead_dns_known_clients", "Pods whose search is completed.", gauges.clients),
        ];
        for (name, help, count) in simple {
            page.family(name, "gauge", help);
            page.line(name, &server, count.try_into().unwrap_or(0));
        }
        let name = "coredns_autopath_success_total";
        page.family(name, "counter", "Searches that were completed.");
        page.line(name, &server, gauges.completed);
        let name = "roadstead_dns_programmed_revision";
        page.family(name, "gauge", "The newest resource version that is answered from.");
        page.line(name, &server, gauges.revision);
        let name = "coredns_kubernetes_dns_programming_duration_seconds";
        let (help, kind) = ("From an object's change to its answer.", "service_kind=\"any\"");
        page.histogram(name, help, kind, &[&self.programming]);
        page.text
    }
}

fn sum(threads: &[Arc<Counters>], pick: impl Fn(&Counters) -> &AtomicU64) -> u64 {
    threads.iter().map(|one| pick(one).load(Ordering::Relaxed)).sum()
}

/// What clients asked and what they got.
fn queries(page: &mut MetricsPage, threads: &[Arc<Counters>], zones: Option<Vec<(usize, String)>>) {
    let zones = zones.unwrap_or_default();
    let server = page.server.clone();
    let labels = |zone: &str| format!("{server},zone=\"{zone}\",view=\"\"");
    page.family("coredns_dns_requests_total", "counter", "Queries by type.");
    let rows = ["udp", "tcp"].into_iter().enumerate();
    let rows = rows.flat_map(|proto| [(proto, 0, "1"), (proto, 1, "2")]);
    for ((number, zone), ((proto, proto_name), family, family_name)) in
        zones.iter().flat_map(|zone| rows.clone().map(move |row| (zone, row)))
    {
        let names = KINDS.iter().map(|(name, _)| *name).chain(["other"]);
        for (kind, name) in names.enumerate() {
            let count = sum(threads, |one| &one.zones[*number].requests[proto][family][kind]);
            if count > 0 {
                let labels = labels(zone);
                let rest =
                    format!("proto=\"{proto_name}\",family=\"{family_name}\",type=\"{name}\"");
                page.line("coredns_dns_requests_total", &format!("{labels},{rest}"), count);
            }
        }
    }
    page.family("coredns_dns_responses_total", "counter", "Replies by code.");
    for (number, zone) in &zones {
        for (at, name) in CODES.iter().enumerate() {
            let count = sum(threads, |one| &one.zones[*number].responses[at]);
            if count > 0 {
                let labels = format!("{},rcode=\"{name}\"", labels(zone));
                page.line("coredns_dns_responses_total", &labels, count);
            }
        }
    }
    let all: Vec<_> = threads.iter().map(|one| &one.durations).collect();
    let name = "coredns_dns_request_duration_seconds";
    page.histogram(name, "How long queries took.", &server, &all);
}

/// What other servers were asked, and what came of it.
fn others(page: &mut MetricsPage, threads: &[Arc<Counters>]) {
    let server = page.server.clone();
    page.family("coredns_cache_hits_total", "counter", "Answers from memory.");
    let hits = sum(threads, |one| &one.hits);
    let denials = sum(threads, |one| &one.denial_hits);
    for (kind, count) in [("success", hits), ("denial", denials)] {
        page.line("coredns_cache_hits_total", &format!("{server},type=\"{kind}\""), count);
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
        page.family(name, "counter", help);
        page.line(name, &server, sum(threads, pick));
    }
    let all: Vec<_> = threads.iter().map(|one| &one.forwards).collect();
    let name = "coredns_proxy_request_duration_seconds";
    page.histogram(name, "How long others took.", "proxy_name=\"forward\"", &all);
}

/// A page in the making, in the form that Prometheus reads.
#[derive(Debug)]
struct MetricsPage {
    text: String,
    /// The label that says which server this is.
    server: String,
}

impl MetricsPage {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn line(&mut self, name: &str, labels: &str, value: u64) {
        let _ = writeln!(self.text, "{name}{{{labels}}} {value}");
    }

    fn histogram(&mut self, name: &str, help: &str, labels: &str, all: &[&Durations]) {
        self.family(name, "histogram", help);
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut total = 0;
        for at in 0..=BOUNDS.len() {
            total += all.iter().map(|one| load(&one.buckets[at])).sum::<u64>();
            let bound = BOUNDS.get(at).map_or("+Inf".to_owned(), |bound| seconds(*bound));
            let _ = writeln!(self.text, "{name}_bucket{{{labels},le=\"{bound}\"}} {total}");
        }
        let sum = all.iter().map(|one| load(&one.microseconds)).sum();
        let _ = writeln!(self.text, "{name}_sum{{{labels}}} {}", seconds(sum));
        self.line(&format!("{name}_count"), labels, total);
    }
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
        let zones = Arc::new(CountedZones::default());
        metrics.describe(zones.clone(), 53);
        let (root, acme) = (zones.number("."), zones.number("acme."));
        assert_eq!((root, acme, zones.number(".")), (0, 1, 0));
        for _ in 0..2 {
            let counters = Arc::new(Counters::default());
            metrics.register(counters.clone());
            let four = IpAddr::from([10, 0, 0, 1]);
            let query =
                Answered { kind: 1, transport: Transport::Udp, client: four, zone: root, code: 0 };
            counters.answered(&query);
            let six = "fd00::1".parse().unwrap();
            let (kind, transport) = (999, Transport::Tcp);
            counters.answered(&Answered { kind, transport, client: six, zone: acme, code: 3 });
            let mapped = "::ffff:10.0.0.1".parse().unwrap();
            counters.answered(&Answered { client: mapped, zone: CountedZones::others(), ..query });
            counters.took(Duration::from_micros(30), 2);
            counters.refused_reload();
        }
        let page =
            metrics.page(&Gauges { cached: 7, completed: 3, revision: 42, ..Gauges::default() });
        for want in [
            r#"coredns_dns_requests_total{server="dns://:53",zone=".",view="",proto="udp",family="1",type="A"} 2"#,
            r#"coredns_dns_requests_total{server="dns://:53",zone="acme.",view="",proto="tcp",family="2",type="other"} 2"#,
            r#"coredns_dns_requests_total{server="dns://:53",zone="other",view="",proto="udp",family="1",type="A"} 2"#,
            r#"coredns_dns_responses_total{server="dns://:53",zone="acme.",view="",rcode="NXDOMAIN"} 2"#,
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
