//! Which proxies are alive, by their Leases.
//!
//! Clocks of machines differ, so no time of another machine is compared with ours: a Lease is
//! good for its duration from the moment when we saw it change.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt;
use roadstead_watch::informer::Change;

/// The proxies that we know of.
#[derive(Debug, Default)]
pub(super) struct Members(BTreeMap<String, Member>);

#[derive(Debug)]
struct Member {
    node: String,
    renewed: Option<String>,
    until: Instant,
}

impl Members {
    /// Takes in a change of a Lease. One without a holder was given up.
    pub(super) fn observe(&mut self, change: &Change<Lease>, now: Instant) {
        let lease = match change {
            Change::Set(lease) => lease,
            Change::Gone(key, _) => return drop(self.0.remove(&key.name)),
            Change::Synced => return,
        };
        let spec = lease.spec.clone().unwrap_or_default();
        let node = spec.holder_identity.unwrap_or_default();
        let renewed = spec.renew_time.map(|time| time.0.to_string());
        let seconds = u64::try_from(spec.lease_duration_seconds.unwrap_or(0)).unwrap_or(0);
        let name = lease.name_any();
        if self.0.get(&name).is_some_and(|known| known.node == node && known.renewed == renewed) {
            return;
        }
        self.0.insert(name, Member { node, renewed, until: now + Duration::from_secs(seconds) });
    }

    /// The nodes whose proxies are alive.
    pub(super) fn alive(&self, now: Instant) -> BTreeSet<String> {
        let alive = self.0.values().filter(|member| member.until > now && !member.node.is_empty());
        alive.map(|member| member.node.clone()).collect()
    }
}

#[cfg(test)]
mod tests {

    use serde_json::json;

    use super::*;

    fn lease(node: &str, renewed: u64) -> Change<Lease> {
        let lease = json!({
            "metadata": {"name": "kube-proxy-n1", "namespace": "kube-system"},
            "spec": {"holderIdentity": node, "leaseDurationSeconds": 10,
                "renewTime": format!("2026-01-01T00:00:{renewed:02}.000000Z")},
        });
        Change::Set(serde_json::from_value(lease).unwrap())
    }

    #[test]
    fn alive_for_as_long_as_it_is_renewed() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let mut members = Members::default();
        let steps = [
            ("seen", Some(lease("n1", 1)), 0, "n1"),
            ("still good", None, 9, "n1"),
            ("renewed", Some(lease("n1", 2)), 9, "n1"),
            ("the same once more", Some(lease("n1", 2)), 18, "n1"),
            ("not renewed", None, 20, ""),
            ("back", Some(lease("n1", 3)), 21, "n1"),
            ("given up", Some(lease("", 3)), 22, ""),
        ];
        for (name, change, seconds, want) in steps {
            change.iter().for_each(|change| members.observe(change, at(seconds)));
            let alive: Vec<_> = members.alive(at(seconds)).into_iter().collect();
            assert_eq!(alive.join(" "), want, "{name}");
        }
    }
}
