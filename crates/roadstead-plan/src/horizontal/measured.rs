//! What pods use, as `metrics.k8s.io` says it.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use roadstead_api::duration;
use roadstead_api::quantity::exact::Quantity;
use serde::Deserialize;

/// What was measured of pods; or why nothing was, in the words of whoever was asked.
pub type Measured = Result<Vec<PodMetrics>, String>;

/// What a pod uses.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PodMetrics {
    metadata: Named,
    timestamp: Option<Timestamp>,
    window: String,
    containers: Vec<Container>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Named {
    name: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Container {
    name: String,
    usage: BTreeMap<String, String>,
}

/// How much of one resource a pod uses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sample {
    pub(super) thousandths: i64,
    pub(super) at: Timestamp,
    pub(super) window: SignedDuration,
}

/// Samples by the names of pods. A pod of which one container was not measured has none.
pub(super) fn samples(
    measured: &Measured,
    namespace: &str,
    resource: &str,
    container: Option<&str>,
) -> Result<BTreeMap<String, Sample>, String> {
    let failed = |why: &str| format!("unable to get metrics for resource {resource}: {why}");
    let all = measured.as_ref().map_err(|why| {
        failed(&format!("unable to fetch metrics from resource metrics API: {why}"))
    })?;
    if all.is_empty() {
        return Err(failed("no metrics returned from resource metrics API"));
    }
    let mut samples = BTreeMap::new();
    for pod in all {
        let name = &pod.metadata.name;
        let own = |one: &&Container| container.is_none_or(|wanted| one.name == wanted);
        let mut counted = pod.containers.iter().filter(own).peekable();
        if let (None, Some(container)) = (counted.peek(), container) {
            let text =
                format!("container {container} not present in metrics for pod {namespace}/{name}");
            return Err(failed(&text));
        }
        let used: Option<i64> = counted
            .map(|one| Some(Quantity::parse(one.usage.get(resource)?)?.in_thousandths()))
            .sum();
        if let Some((thousandths, at)) = used.zip(pod.timestamp) {
            let window = duration::parse(&pod.window).unwrap_or_default();
            samples.insert(name.clone(), Sample { thousandths, at, window });
        }
    }
    Ok(samples)
}
