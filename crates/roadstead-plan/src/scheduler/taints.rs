//! Taints of nodes, and pods that tolerate them.

use k8s_openapi::api::core::v1::{Taint, Toleration};

use super::node::NodeState;
use super::reasons::Obstacle;

pub(crate) fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let key = toleration.key.as_deref().unwrap_or("");
    let exists = toleration.operator.as_deref() == Some("Exists");
    let effect = toleration.effect.as_deref().unwrap_or("");
    (effect.is_empty() || effect == taint.effect)
        && (key == taint.key || (key.is_empty() && exists))
        && (exists
            || toleration.value.as_deref().unwrap_or("") == taint.value.as_deref().unwrap_or(""))
}

/// The first taint that keeps a pod away.
pub(super) fn untolerated<'a>(
    tolerations: &[Toleration],
    node: &'a NodeState,
) -> Option<Obstacle<'a>> {
    let binding = node.taints.iter().filter(|t| ["NoSchedule", "NoExecute"].contains(&&*t.effect));
    let mut open = binding.filter(|taint| !tolerations.iter().any(|own| tolerates(own, taint)));
    let taint = open.next()?;
    Some(Obstacle::Taint { key: &taint.key, value: taint.value.as_deref().unwrap_or("") })
}

/// How many taints a pod would rather not have.
pub(super) fn disliked(tolerations: &[Toleration], node: &NodeState) -> i64 {
    let soft = node.taints.iter().filter(|taint| taint.effect == "PreferNoSchedule");
    let bears = |taint: &&Taint| tolerations.iter().any(|own| tolerates(own, taint));
    soft.filter(|taint| !bears(taint)).count() as i64
}

/// Whether a pod tolerates that a node is cordoned.
pub(super) fn bears_cordon(tolerations: &[Toleration]) -> bool {
    let taint = Taint {
        key: crate::node_lifecycle::UNSCHEDULABLE.to_owned(),
        effect: "NoSchedule".to_owned(),
        ..Taint::default()
    };
    tolerations.iter().any(|own| tolerates(own, &taint))
}
