//! How many replicas a HorizontalPodAutoscaler wants, given what its pods use.
//!
//! One look goes in steps: each metric proposes a number, the largest counts, what was recommended
//! lately holds it back, and limits of speed and number bound it. What was recommended and done is in a
//! [`History`], which nobody stores: after a restart it begins with the present number.

use jiff::Timestamp;
use k8s_openapi::api::autoscaling::v2::{
    HorizontalPodAutoscaler, HorizontalPodAutoscalerStatus, MetricStatus,
};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use self::conditions::Conditions;
use self::metrics::{Proposals, propose};

mod behavior;
mod conditions;
mod history;
mod measured;
mod metrics;
mod replicas;

pub use history::History;
pub use measured::{Measured, PodMetrics};

/// What to tell: whether it is a warning, reason and message.
pub(crate) type Note = (bool, &'static str, String);

/// What a HorizontalPodAutoscaler finds.
#[derive(Debug)]
pub struct Seen<'a> {
    /// How many replicas its target asks for.
    pub replicas: i32,
    /// Which pods are those of the target, as text.
    pub selector: &'a str,
    /// These pods.
    pub pods: &'a [Pod],
    /// What pods use, or why nobody knows.
    pub measured: Measured,
    /// Who else scales the same pods, each as namespace/name, itself included; empty if nobody does.
    pub rivals: &'a [String],
    /// Which of the other APIs of metrics are served: `custom.metrics.k8s.io`, `external.metrics.k8s.io`.
    pub adapters: &'a [&'static str],
    /// What time it is.
    pub now: Timestamp,
}

/// What is to be done, and what is to be said about it.
#[derive(Debug, Default)]
pub struct Verdict {
    /// The number of replicas to write, and why, if it is not the present one.
    pub rescale: Option<(i32, String)>,
    /// What is true now.
    pub status: HorizontalPodAutoscalerStatus,
    /// What to tell.
    pub notes: Vec<Note>,
}

/// The target cannot be read, or has no number of replicas.
pub fn unreachable(scaler: &HorizontalPodAutoscaler, why: &str, now: Timestamp) -> Verdict {
    let mut conditions = Conditions::of(scaler, now);
    let text = format!("the HPA controller was unable to get the target's current scale: {why}");
    conditions.set("AbleToScale", false, "FailedGetScale", text);
    let mut status = scaler.status.clone().unwrap_or_default();
    status.conditions = conditions.list();
    let notes = vec![(true, "FailedGetScale", why.to_owned())];
    Verdict { rescale: None, status, notes }
}

/// Decides how many replicas there should be.
pub fn decide(scaler: &HorizontalPodAutoscaler, seen: &Seen<'_>, history: &mut History) -> Verdict {
    let mut look = Look {
        scaler,
        seen,
        conditions: Conditions::of(scaler, seen.now),
        notes: Vec::new(),
        metrics: None,
    };
    let text = "the HPA controller was able to get the target's current scale";
    look.conditions.set("AbleToScale", true, "SucceededGetScale", text.to_owned());
    history.begin(seen.now, seen.replicas);
    let (least, most) = bounds(scaler);
    let current = seen.replicas;
    let rescale = if current == 0 {
        let text = "scaling is disabled since the replica count of the target is zero";
        look.conditions.set("ScalingActive", false, "ScalingDisabled", text.to_owned());
        None
    } else if current > most {
        Some((most, "Current number of replicas above Spec.MaxReplicas".to_owned()))
    } else if current < least {
        Some((least, "Current number of replicas below Spec.MinReplicas".to_owned()))
    } else {
        look.by_metrics(history)
    };
    let old = scaler.status.as_ref().map_or(0, |status| status.desired_replicas);
    let desired = match &rescale {
        Some((wanted, _)) => *wanted,
        None if current == 0 => 0,
        // Nobody knows.
        None => old,
    };
    let rescale = rescale.filter(|(wanted, _)| *wanted != current);
    let status = HorizontalPodAutoscalerStatus {
        current_replicas: Some(current),
        desired_replicas: desired,
        current_metrics: look.metrics,
        conditions: look.conditions.list(),
        ..scaler.status.clone().unwrap_or_default()
    };
    Verdict { rescale, status, notes: look.notes }
}

/// Between which numbers replicas may be.
fn bounds(scaler: &HorizontalPodAutoscaler) -> (i32, i32) {
    (scaler.spec.min_replicas.unwrap_or(1), scaler.spec.max_replicas)
}

/// One look at what is scaled.
struct Look<'a> {
    scaler: &'a HorizontalPodAutoscaler,
    seen: &'a Seen<'a>,
    conditions: Conditions,
    notes: Vec<Note>,
    metrics: Option<Vec<MetricStatus>>,
}

impl Look<'_> {
    /// The number that the metrics come to, and the reason, bounded by everything that bounds it.
    fn by_metrics(&mut self, history: &mut History) -> Option<(i32, String)> {
        let current = self.seen.replicas;
        let Proposals { outcome, metrics } = self.proposals()?;
        self.metrics = Some(metrics);
        let (proposed, name) = match outcome {
            Ok(proposal) => proposal,
            Err(failure) => {
                self.notes.push((true, "FailedComputeMetricsReplicas", failure));
                return None;
            }
        };
        let reason = match proposed > current {
            true => format!("{name} above target"),
            false => "All metrics below target".to_owned(),
        };
        let (limits, numbers) = (bounds(self.scaler), (current, proposed));
        let bounded = match self.scaler.spec.behavior.is_some() {
            true => behavior::by_rules(limits, numbers, self, history),
            false => behavior::by_default(limits, numbers, self, history),
        };
        Some((bounded, reason))
    }

    /// What the metrics propose; nothing, if it is not clear whose pods they are about.
    fn proposals(&mut self) -> Option<Proposals> {
        let problem = |reason, text: &str| Some((reason, text.to_owned()));
        let wrong = if self.seen.selector.is_empty() {
            self.notes.push((true, "SelectorRequired", "selector is required".to_owned()));
            problem("InvalidSelector", "the HPA target's scale is missing a selector")
        } else if !self.seen.rivals.is_empty() {
            let (selector, all) = (self.seen.selector, self.seen.rivals.join(" "));
            let text =
                format!("pods by selector {selector} are controlled by multiple HPAs: [{all}]");
            self.notes.push((true, "AmbiguousSelector", text.clone()));
            problem("AmbiguousSelector", &text)
        } else {
            None
        };
        if let Some((reason, text)) = wrong {
            self.conditions.set("ScalingActive", false, reason, text);
            return None;
        }
        let (proposals, told) = propose(self.scaler, self.seen, &mut self.conditions);
        self.notes.extend(told);
        Some(proposals)
    }
}

impl Verdict {
    /// What is true after the number of replicas was written, or could not be.
    pub fn carried_out(
        mut self,
        scaler: &HorizontalPodAutoscaler,
        outcome: Result<(), String>,
        (history, now): (&mut History, Timestamp),
    ) -> Self {
        let Some((wanted, reason)) = self.rescale.take() else { return self };
        let mut conditions = Conditions::new(self.status.conditions.take(), now);
        match outcome {
            Ok(()) => {
                let text =
                    format!("the HPA controller was able to update the target scale to {wanted}");
                conditions.set("AbleToScale", true, "SucceededRescale", text);
                let text = format!("New size: {wanted}; reason: {reason}");
                self.notes.push((false, "SuccessfulRescale", text));
                let before = self.status.current_replicas.unwrap_or(0);
                history.scaled(scaler, wanted - before, now);
                let second = Timestamp::from_second(now.as_second()).unwrap_or(now);
                self.status.last_scale_time = Some(Time(second));
            }
            Err(why) => {
                let text =
                    format!("the HPA controller was unable to update the target scale: {why}");
                conditions.set("AbleToScale", false, "FailedUpdateScale", text);
                let text = format!("New size: {wanted}; reason: {reason}; error: {why}");
                self.notes.push((true, "FailedRescale", text));
                let old = scaler.status.as_ref().map(|status| status.desired_replicas);
                self.status.desired_replicas = old.unwrap_or(0);
            }
        }
        self.status.conditions = conditions.list();
        self
    }
}

#[cfg(test)]
mod tests;
