//! Deployments in numbers.

use k8s_openapi::api::apps::v1::{Deployment, DeploymentStatus, RollingUpdateDeployment};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::family::{Family, Measured, Samples, row};

impl Measured for Deployment {
    const NAME: &'static str = "deployment";
    const HAS_UID: bool = false;
    const FAMILIES: &'static [Family<Self>] = &[
        row("kube_deployment_created", "When it was created, in seconds since 1970", |own, out| {
            out.moment(own.metadata.creation_timestamp.as_ref());
        }),
        row("kube_deployment_status_replicas", "Its pods", |own, out| {
            status(own, |status| status.replicas, out);
        }),
        row("kube_deployment_status_replicas_ready", "Its pods that are ready", |own, out| {
            status(own, |status| status.ready_replicas, out);
        }),
        row(
            "kube_deployment_status_replicas_available",
            "Its pods that are available",
            |own, out| {
                status(own, |status| status.available_replicas, out);
            },
        ),
        row("kube_deployment_status_replicas_unavailable", "Pods that are missing", |own, out| {
            status(own, |status| status.unavailable_replicas, out);
        }),
        row("kube_deployment_status_replicas_updated", "Pods as it wants them", |own, out| {
            status(own, |status| status.updated_replicas, out);
        }),
        row("kube_deployment_status_observed_generation", "What was acted upon", |own, out| {
            let generation = own.status.as_ref().and_then(|status| status.observed_generation);
            out.value(generation.unwrap_or(0) as f64);
        }),
        row("kube_deployment_status_condition", "A condition that it is in", conditions),
        row("kube_deployment_spec_replicas", "The pods that it is to have", |own, out| {
            out.value(f64::from(replicas(own)));
        }),
        row("kube_deployment_spec_paused", "Whether nobody is to act upon it", |own, out| {
            let paused = own.spec.paused.unwrap_or(false);
            out.value(f64::from(u8::from(paused)));
        }),
        row(
            "kube_deployment_spec_strategy_rollingupdate_max_unavailable",
            "Pods that may be missing during an update",
            |own, out| {
                rolling(own, |update| update.max_unavailable.as_ref(), f64::floor, out);
            },
        ),
        row(
            "kube_deployment_spec_strategy_rollingupdate_max_surge",
            "Pods that there may be too many during an update",
            |own, out| {
                rolling(own, |update| update.max_surge.as_ref(), f64::ceil, out);
            },
        ),
        row("kube_deployment_metadata_generation", "What is asked for now", |own, out| {
            out.value(own.metadata.generation.unwrap_or(0) as f64);
        }),
    ];
}

fn status(own: &Deployment, of: fn(&DeploymentStatus) -> Option<i32>, out: &mut Samples) {
    out.value(f64::from(own.status.as_ref().and_then(of).unwrap_or(0)));
}

fn replicas(own: &Deployment) -> i32 {
    own.spec.replicas.unwrap_or(1)
}

fn conditions(own: &Deployment, out: &mut Samples) {
    let conditions = own.status.as_ref().and_then(|status| status.conditions.as_ref());
    for condition in conditions.into_iter().flatten() {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let (kind, reason) = (text(&condition.type_), text(&condition.reason));
        let labels = [("condition", kind.as_str()), ("reason", reason.as_str())];
        out.condition(&labels, "status", &text(&condition.status));
    }
}

type Part = fn(&RollingUpdateDeployment) -> Option<&IntOrString>;

/// A number of pods, or a percentage of all.
fn rolling(own: &Deployment, part: Part, round: fn(f64) -> f64, out: &mut Samples) {
    let strategy = own.spec.strategy.as_ref();
    let update = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
    match update.and_then(part) {
        Some(IntOrString::Int(number)) => out.value(f64::from(*number)),
        Some(IntOrString::String(text)) => {
            if let Ok(percent) = text.trim_end_matches('%').parse::<f64>() {
                out.value(round(f64::from(replicas(own)) * percent / 100.0));
            }
        }
        None => {}
    }
}
