//! What Kubernetes publishes as good enough, and whether a run was. Pure.
//!
//! From "Kubernetes scalability and performance SLIs/SLOs": 99 of 100 requests that change something, or read
//! one object, within 1 s; lists of a namespace within 5 s, of the cluster within 30 s; pods without images to
//! pull run within 5 s.

use std::time::Duration;

use crate::latencies::{Latencies, Row, Scope};

/// How long a pod may take that has nothing to pull.
pub(crate) const POD_START: Duration = Duration::from_secs(5);
/// Above this share of its one processor the generator measures itself.
const BUSY: f64 = 0.5;

/// How long 99 of 100 requests of a row may take.
pub(crate) fn limit(row: &Row) -> Duration {
    match (row.verb, row.scope) {
        ("GET" | "LIST", Scope::Namespace) => Duration::from_secs(5),
        ("GET" | "LIST", Scope::Cluster) => Duration::from_secs(30),
        _ => Duration::from_secs(1),
    }
}

/// What a run is worth.
#[derive(Debug, PartialEq)]
pub(crate) enum Verdict {
    /// Everything was within its limit.
    Kept,
    /// These were not.
    Missed(Vec<String>),
    /// The generator was too busy to say.
    Void(String),
}

/// Judges a run in which the generator was busy for a share of the time.
pub(crate) fn judge(latencies: &Latencies, pod_start: Option<Duration>, busy: f64) -> Verdict {
    if busy > BUSY {
        return Verdict::Void(format!(
            "the generator was busy for {:.0} % of the time, and may be for {:.0} %",
            busy * 100.0,
            BUSY * 100.0
        ));
    }
    let mut missed = Vec::new();
    for (row, times) in &latencies.rows {
        let Some(found) = times.percentile(99) else { continue };
        if found > limit(row) {
            missed.push(format!("{} {}: {found:.1?}", row.verb, row.resource));
        }
    }
    if let Some(found) = pod_start.filter(|found| *found > POD_START) {
        missed.push(format!("start of pods: {found:.1?}"));
    }
    if missed.is_empty() { Verdict::Kept } else { Verdict::Missed(missed) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads `LIST pods cluster 29000`: so many milliseconds.
    fn latencies(text: &'static str) -> Latencies {
        let mut latencies = Latencies::default();
        for line in text.split(';').map(str::trim).filter(|line| !line.is_empty()) {
            let words: Vec<_> = line.split(' ').collect();
            let scope = match words[2] {
                "object" => Scope::Object,
                "namespace" => Scope::Namespace,
                _ => Scope::Cluster,
            };
            let row = Row { verb: words[0], resource: words[1], scope };
            latencies.add(row, Duration::from_millis(words[3].parse().unwrap()));
        }
        latencies
    }

    #[test]
    fn runs() {
        let void = "the generator was busy for 51 % of the time, and may be for 50 %";
        let cases = [
            ("", None, 0.0, ""),
            ("POST pods object 1000; GET pods object 1000", Some(5_000), 0.5, ""),
            ("LIST pods namespace 5000; LIST pods cluster 30000", None, 0.1, ""),
            ("POST pods object 1001", None, 0.1, "POST pods: 1.0s"),
            ("GET pods object 1500", None, 0.1, "GET pods: 1.5s"),
            ("LIST pods namespace 6000", None, 0.1, "LIST pods: 6.0s"),
            ("LIST pods cluster 31000", None, 0.1, "LIST pods: 31.0s"),
            ("", Some(6_000), 0.1, "start of pods: 6.0s"),
            ("POST pods object 1500", None, 0.51, void),
        ];
        for (text, start, busy, want) in cases {
            let start = start.map(Duration::from_millis);
            let found = match judge(&latencies(text), start, busy) {
                Verdict::Kept => String::new(),
                Verdict::Missed(all) => all.join(", "),
                Verdict::Void(why) => why,
            };
            assert_eq!(found, want, "{text} {busy}");
        }
    }
}
