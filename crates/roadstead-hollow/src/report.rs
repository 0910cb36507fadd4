//! What is said of a run: what was simulated, what it cost, and how it compares with what is published. Pure.

use std::fmt::{self, Write};
use std::time::Duration;

use crate::latencies::{Latencies, Scope, Times};
use crate::options::{NODES_PER_CONNECTION, Simulation};
use crate::world::Meters;
use crate::yardsticks::{POD_START, Verdict, limit};

/// What a process has spent while it was measured.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    pub(crate) name: String,
    /// Of one processor.
    pub(crate) busy: f64,
    pub(crate) resident_mib: f64,
}

/// A run that has ended.
#[derive(Debug)]
pub struct Report {
    pub(crate) options: Simulation,
    pub(crate) connections: usize,
    pub(crate) filled: Duration,
    pub(crate) took: Duration,
    pub(crate) meters: Meters,
    /// The generator first.
    pub(crate) processes: Vec<Process>,
    /// Services, slices and nodes in the end.
    pub(crate) objects: [usize; 3],
    /// What all proxies were told.
    pub(crate) events: u64,
    pub(crate) verdict: Verdict,
}

impl Report {
    /// Whether it was measured at all, and nobody was told what cannot be.
    pub fn is_sound(&self) -> bool {
        let failed = self.meters.latencies.failures.is_empty() && self.meters.faults.is_empty();
        failed && !matches!(self.verdict, Verdict::Void(_))
    }

    /// Whether nobody was told what cannot be, however busy everybody was.
    pub fn is_consistent(&self) -> bool {
        self.meters.latencies.failures.is_empty() && self.meters.faults.is_empty()
    }

    /// How many requests were measured, and how many events proxies were told.
    pub fn counts(&self) -> (usize, u64) {
        (self.meters.latencies.count(), self.events)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.caption())?;
        f.write_str(&requests(&self.meters.latencies, self.took))?;
        f.write_str(&self.events())?;
        f.write_str(&self.costs())?;
        f.write_str(&self.judgement())
    }
}

impl Report {
    /// What was simulated, and what was not.
    fn caption(&self) -> String {
        let Simulation { nodes, pods_per_node, watchers, churn, .. } = self.options;
        format!(
            "{nodes} hollow nodes with {pods_per_node} pods each and {watchers} hollow proxies, {churn} pods \
             deleted and created per second, for {:.0?} after {:.0?} of filling. Simulated in one process on \
             this machine: no pod runs, no packet passes, a pod runs 0.5 to 2 s after its node has heard of \
             it; Leases every 10 s, statuses every 5 min. {NODES_PER_CONNECTION} nodes share one HTTP/2 \
             connection over TLS ({} connections with those of the makers), each proxy has one. Times count \
             from when a request was due.\n\n",
            self.took, self.filled, self.connections,
        )
    }

    fn events(&self) -> String {
        let meters = &self.meters;
        let mut text =
            "| from, to | count | p50 | p99 | limit |\n|---|---|---|---|---|\n".to_owned();
        let rows = [
            ("pod due → its node hears that it runs", &meters.pod_start, Some(POD_START)),
            ("the same without the pretended 0.5 to 2 s", &meters.pod_start_alone, None),
            ("status of a pod sent → its node hears of it", &meters.own_event, None),
            ("change of a Service sent → each proxy hears of it", &meters.service_event, None),
            ("readiness of a pod sent → a proxy hears of it in a slice", &meters.slice_event, None),
        ];
        for (name, times, limit) in rows.iter().filter(|(_, times, _)| times.count() > 0) {
            let limit = limit.as_ref().map_or_else(String::new, in_ms);
            row(&mut text, name, times, &limit);
        }
        text + "\n"
    }

    fn costs(&self) -> String {
        let mut text = "| process | of one processor | resident |\n|---|---|---|\n".to_owned();
        for (at, Process { name, busy, resident_mib }) in self.processes.iter().enumerate() {
            let name = if at == 0 { "generator" } else { name };
            let busy = busy * 100.0;
            let _ = writeln!(text, "| {name} | {busy:.0} % | {resident_mib:.0} MiB |");
        }
        text + "\n"
    }

    fn judgement(&self) -> String {
        let ([services, slices, nodes], Meters { faults, resumed, latencies, .. }) =
            (self.objects, &self.meters);
        let mut text = format!(
            "Proxies were told {} events of {services} Services, {slices} slices and {nodes} Nodes; {resumed} \
             watches began again.\n",
            self.events
        );
        for ((row, why), count) in &latencies.failures {
            let _ = writeln!(text, "FAILED: {count} x {} {}: {why}", row.verb, row.resource);
        }
        for fault in faults.iter().take(10) {
            let _ = writeln!(text, "FAILED: {fault}");
        }
        if faults.is_empty() {
            text += "What each proxy knew in the end was what a list said.\n";
        }
        match &self.verdict {
            Verdict::Kept => text += "Every published limit was kept.\n",
            Verdict::Missed(all) => _ = writeln!(text, "Not kept: {}.", all.join("; ")),
            Verdict::Void(why) => _ = writeln!(text, "VOID: {why}."),
        }
        text
    }
}

fn requests(latencies: &Latencies, took: Duration) -> String {
    let mut text = "| request | scope | per second | count | p50 | p99 | limit |\n".to_owned();
    text += "|---|---|---|---|---|---|---|\n";
    for (what, times) in &latencies.rows {
        let scope = match what.scope {
            Scope::Object => "object",
            Scope::Namespace => "namespace",
            Scope::Cluster => "cluster",
        };
        let rate = times.count() as f64 / took.as_secs_f64();
        let name = format!("{} {} | {scope} | {rate:.1}", what.verb, what.resource);
        row(&mut text, &name, times, &in_ms(&limit(what)));
    }
    text + "\n"
}

fn row(text: &mut String, name: &str, times: &Times, limit: &str) {
    let at = |percent| times.percentile(percent).as_ref().map_or_else(String::new, in_ms);
    let _ = writeln!(text, "| {name} | {} | {} | {} | {limit} |", times.count(), at(50), at(99));
}

fn in_ms(time: &Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1e3)
}
