//! What an autoscaler says about itself: whether it can scale, whether it does, what bounds it.

use jiff::Timestamp;
use k8s_openapi::api::autoscaling::v2::{
    HorizontalPodAutoscaler, HorizontalPodAutoscalerCondition,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// The conditions, one of each type.
pub(super) struct Conditions {
    all: Vec<HorizontalPodAutoscalerCondition>,
    now: Time,
}

impl Conditions {
    /// Those that the status has.
    pub(super) fn of(scaler: &HorizontalPodAutoscaler, now: Timestamp) -> Self {
        let status = scaler.status.as_ref();
        Self::new(status.and_then(|status| status.conditions.clone()), now)
    }

    pub(super) fn new(all: Option<Vec<HorizontalPodAutoscalerCondition>>, now: Timestamp) -> Self {
        let now = Time(Timestamp::from_second(now.as_second()).unwrap_or(now));
        Self { all: all.unwrap_or_default(), now }
    }

    /// Says something else about that; its time changes only with its status.
    pub(super) fn set(&mut self, kind: &str, holds: bool, reason: &str, message: String) {
        let at = self.all.iter().position(|own| own.type_ == kind).unwrap_or_else(|| {
            let type_ = kind.to_owned();
            self.all.push(HorizontalPodAutoscalerCondition { type_, ..Default::default() });
            self.all.len() - 1
        });
        let own = &mut self.all[at];
        let status = if holds { "True" } else { "False" };
        if own.status != status {
            own.last_transition_time = Some(self.now.clone());
        }
        own.status = status.to_owned();
        own.reason = Some(reason.to_owned());
        own.message = Some(message);
    }

    pub(super) fn list(self) -> Option<Vec<HorizontalPodAutoscalerCondition>> {
        Some(self.all).filter(|all| !all.is_empty())
    }
}
