//! What a namespace that is being deleted says about it: why it is still there.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::NamespaceCondition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

/// What was found when a namespace was emptied.
#[derive(Clone, Debug, Default)]
pub struct Content {
    /// How many objects are left, by `RESOURCE.GROUP`.
    pub left: BTreeMap<String, usize>,
    /// How many objects wait for each finalizer.
    pub finalizers: BTreeMap<String, usize>,
    /// Why not all kinds are known.
    pub undiscovered: Option<String>,
    /// What could not be deleted, and why.
    pub failures: Vec<String>,
}

impl Content {
    /// Whether nothing keeps the namespace.
    pub fn is_empty(&self) -> bool {
        self.left.is_empty() && self.undiscovered.is_none() && self.failures.is_empty()
    }
}

/// The conditions after that, in upstream's words (namespaced_resources_deleter.go); those that
/// did not change keep their time.
pub fn plan_conditions(
    content: &Content,
    present: &[NamespaceCondition],
    now: Timestamp,
) -> Vec<NamespaceCondition> {
    let listed = |items: Vec<String>| items.join(", ");
    let left = content.left.iter().map(|(kind, n)| format!("{kind} has {n} resource instances"));
    let held =
        content.finalizers.iter().map(|(name, n)| format!("{name} in {n} resource instances"));
    let (left, held) = (listed(left.collect()), listed(held.collect()));
    // The type, why it is true if it is, and what to say if it is not.
    let all = [
        (
            "NamespaceDeletionDiscoveryFailure",
            content.undiscovered.clone().map(|why| {
                ("DiscoveryFailed", format!("Discovery failed for some groups, 1 failing: {why}"))
            }),
            ("ResourcesDiscovered", "All resources successfully discovered"),
        ),
        (
            "NamespaceDeletionGroupVersionParsingFailure",
            None,
            ("ParsedGroupVersions", "All legacy kube types successfully parsed"),
        ),
        (
            "NamespaceDeletionContentFailure",
            (!content.failures.is_empty()).then(|| {
                let (count, why) = (content.failures.len(), content.failures.join(", "));
                let message =
                    format!("Failed to delete all resource types, {count} remaining: {why}");
                ("ContentDeletionFailed", message)
            }),
            ("ContentDeleted", "All content successfully deleted, may be waiting on finalization"),
        ),
        (
            "NamespaceContentRemaining",
            (!left.is_empty())
                .then(|| ("SomeResourcesRemain", format!("Some resources are remaining: {left}"))),
            ("ContentRemoved", "All content successfully removed"),
        ),
        (
            "NamespaceFinalizersRemaining",
            (!held.is_empty()).then(|| {
                let message =
                    format!("Some content in the namespace has finalizers remaining: {held}");
                ("SomeFinalizersRemain", message)
            }),
            ("ContentHasNoFinalizers", "All content-preserving finalizers finished"),
        ),
    ];
    let planned = all.into_iter().map(|(type_, holds, otherwise)| {
        let status = if holds.is_some() { "True" } else { "False" };
        let (reason, message) = holds.unwrap_or((otherwise.0, otherwise.1.to_owned()));
        let before = present.iter().find(|own| own.type_ == type_ && own.status == status);
        NamespaceCondition {
            type_: type_.to_owned(),
            status: status.to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(message),
            last_transition_time: before
                .and_then(|before| before.last_transition_time.clone())
                .or(Some(Time(now))),
        }
    });
    let others = present.iter().filter(|own| !own.type_.starts_with("Namespace")).cloned();
    others.chain(planned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(text: &str) -> BTreeMap<String, usize> {
        let pairs = text.split_whitespace().filter_map(|pair| pair.split_once('='));
        pairs.map(|(name, count)| (name.to_owned(), count.parse().unwrap())).collect()
    }

    #[test]
    fn conditions() {
        let now = |text: &str| -> Timestamp { text.parse().unwrap() };
        let first = now("2024-01-01T00:00:00Z");
        let content = Content {
            left: counts("pods.=1 things.example.com=2"),
            finalizers: counts("example.com/wait=2"),
            ..Content::default()
        };
        let shown = |conditions: &[NamespaceCondition]| {
            let line = |own: &NamespaceCondition| {
                format!("{} {}", own.status, own.message.as_deref().unwrap_or(""))
            };
            conditions.iter().map(line).collect::<Vec<_>>()
        };
        let found = plan_conditions(&content, &[], first);
        assert_eq!(
            shown(&found),
            [
                "False All resources successfully discovered",
                "False All legacy kube types successfully parsed",
                "False All content successfully deleted, may be waiting on finalization",
                "True Some resources are remaining: pods. has 1 resource instances, \
                 things.example.com has 2 resource instances",
                "True Some content in the namespace has finalizers remaining: example.com/wait in \
                 2 resource instances",
            ]
        );
        let later = now("2024-01-01T00:01:00Z");
        assert_eq!(plan_conditions(&content, &found, later), found, "nothing is left to plan");
        let failed = Content {
            undiscovered: Some("no answer".into()),
            failures: vec!["pods: no".into()],
            ..Content::default()
        };
        let found = plan_conditions(&failed, &found, later);
        assert_eq!(
            shown(&found)[..3],
            [
                "True Discovery failed for some groups, 1 failing: no answer",
                "False All legacy kube types successfully parsed",
                "True Failed to delete all resource types, 1 remaining: pods: no",
            ]
        );
        let times: Vec<_> =
            found.iter().map(|own| own.last_transition_time.clone().unwrap().0).collect();
        assert_eq!(times, [later, first, later, later, later]);
        assert!(!failed.is_empty() && !content.is_empty() && Content::default().is_empty());
    }
}
