//! As whom each controller works where it has a client of its own: the names that upstream's
//! controllers have with `--use-service-account-credentials`, to which the roles of every cluster are bound.
//!
//! What ours need beyond those roles is in `crates/roadstead-server/data/roadstead-policy.json`.

/// The user of a task, for its name in [`tasks`](crate::tasks).
pub fn user_of(task: &str) -> &'static str {
    let known = USERS.iter().find(|(name, _)| *name == task);
    known.map_or(NOBODY, |(_, user)| user)
}

/// Who has no rights.
const NOBODY: &str = "system:serviceaccount:kube-system:unknown-controller";

/// Tasks and their users.
const USERS: [(&str, &str); 24] = [
    ("certificate-approval", "system:serviceaccount:kube-system:certificate-approver"),
    ("certificate-signing", "system:serviceaccount:kube-system:certificate-controller"),
    ("cronjob", "system:serviceaccount:kube-system:cronjob-controller"),
    ("daemonset", "system:serviceaccount:kube-system:daemon-set-controller"),
    ("deployment", "system:serviceaccount:kube-system:deployment-controller"),
    ("disruption", "system:serviceaccount:kube-system:disruption-controller"),
    ("endpointslice", "system:serviceaccount:kube-system:endpointslice-controller"),
    ("event-ttl", "system:serviceaccount:kube-system:event-ttl-controller"),
    ("garbage-collector", "system:serviceaccount:kube-system:generic-garbage-collector"),
    ("horizontal-pod-autoscaler", "system:serviceaccount:kube-system:horizontal-pod-autoscaler"),
    ("job", "system:serviceaccount:kube-system:job-controller"),
    ("loadbalancer", "system:serviceaccount:kube-system:service-controller"),
    ("namespace", "system:serviceaccount:kube-system:namespace-controller"),
    ("namespace-content", "system:serviceaccount:kube-system:service-account-controller"),
    ("node-ipam", "system:serviceaccount:kube-system:node-ipam-controller"),
    ("node-lifecycle", "system:serviceaccount:kube-system:node-controller"),
    ("persistentvolume-binder", "system:serviceaccount:kube-system:persistent-volume-binder"),
    ("pod-garbage-collector", "system:serviceaccount:kube-system:pod-garbage-collector"),
    ("replicaset", "system:serviceaccount:kube-system:replicaset-controller"),
    ("replicationcontroller", "system:serviceaccount:kube-system:replication-controller"),
    ("resourcequota", "system:serviceaccount:kube-system:resourcequota-controller"),
    ("scheduler", "system:kube-scheduler"),
    ("statefulset", "system:serviceaccount:kube-system:statefulset-controller"),
    ("token-cleaner", "system:serviceaccount:kube-system:token-cleaner"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_has_a_user_of_its_own() {
        let mut seen = std::collections::BTreeSet::new();
        for (task, _) in crate::tasks(&crate::names()) {
            assert_ne!(user_of(task), NOBODY, "{task} has no user");
            assert!(seen.insert(user_of(task)), "{task} is somebody else, too");
        }
    }
}
