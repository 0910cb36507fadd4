//! How often probes went well or not, for `/metrics/probes`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex, PoisonError};

use roadstead_pod::pod_name::PodName;
use roadstead_pod::probe::{Kind, Outcome};

/// Counts by pod, container, kind of probe and result. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct ProbeCounts(Arc<Mutex<Counts>>);

/// By the pod's uid: its name, and its counts by the rest of the labels.
type Counts = BTreeMap<String, (PodName, BTreeMap<(String, &'static str, &'static str), u64>)>;

impl ProbeCounts {
    pub(crate) fn count(&self, pod: &PodName, container: &str, kind: Kind, outcome: &Outcome) {
        let result = match outcome {
            Outcome::Success | Outcome::Warning(_) => "successful",
            Outcome::Failure(_) => "failed",
            Outcome::Error(_) => "unknown",
        };
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_pod =
            counts.entry(pod.uid.clone()).or_insert_with(|| (pod.clone(), BTreeMap::new()));
        *of_pod.1.entry((container.to_owned(), kind.title(), result)).or_default() += 1;
    }

    /// A pod that is gone is not counted any more.
    pub(crate) fn forget(&self, uid: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
    }

    /// As Prometheus reads it.
    pub(crate) fn text(&self) -> String {
        let help = "Cumulative number of a liveness, readiness or startup probe for a container by result.";
        let mut out =
            format!("# HELP prober_probe_total [BETA] {help}\n# TYPE prober_probe_total counter\n");
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (PodName { namespace, name, uid }, of_pod) in counts.values() {
            for ((container, kind, result), count) in of_pod {
                // A String takes everything.
                let _ = writeln!(
                    out,
                    "prober_probe_total{{container=\"{container}\",namespace=\"{namespace}\",\
                     pod=\"{name}\",pod_uid=\"{uid}\",probe_type=\"{kind}\",result=\"{result}\"}} {count}"
                );
            }
        }
        out
    }
}

#[test]
fn probes_are_counted_by_result() {
    let counts = ProbeCounts::default();
    let pod = PodName { namespace: "n".into(), name: "p".into(), uid: "u".into() };
    for outcome in [Outcome::Success, Outcome::Warning("w".into()), Outcome::Failure("f".into())] {
        counts.count(&pod, "c", Kind::Readiness, &outcome);
    }
    let line = |result, count| {
        format!(
            "prober_probe_total{{container=\"c\",namespace=\"n\",pod=\"p\",pod_uid=\"u\",\
             probe_type=\"Readiness\",result=\"{result}\"}} {count}"
        )
    };
    let text = counts.text();
    let lines: Vec<_> = text.lines().skip(2).collect();
    assert_eq!(lines, [line("failed", 1), line("successful", 2)]);
    counts.forget("u");
    assert_eq!(counts.text().lines().count(), 2);
}
