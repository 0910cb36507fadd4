//! The load balancer addresses of the Services that the kernel carries, for whoever answers for them.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use roadstead_api::key::ObjectKey;
use roadstead_forwarding::announce::{Announced, Announcements};
use roadstead_forwarding::service::IpFamily;
use roadstead_forwarding::tracker::Tracker;
use tokio::sync::watch;

/// Brings the load balancer addresses of the changed Services up to date. Those of families that
/// are `behind` stay as they are: nobody should be called to what the kernel does not carry yet.
pub(super) fn announce(
    announcements: &watch::Sender<Arc<Announcements>>,
    tracker: &Tracker,
    dirty: &BTreeSet<ObjectKey>,
    behind: &[IpFamily],
) {
    announcements.send_if_modified(|all| {
        let now = |all: &Announcements, key| match behind {
            [] => tracker.announced(key),
            _ => carried(tracker.announced(key), all.get(key), behind),
        };
        if dirty.iter().all(|key| all.get(key) == now(all, key).as_ref()) {
            return false;
        }
        let all = Arc::make_mut(all);
        for key in dirty {
            match now(all, key) {
                Some(announced) => drop(all.insert(key.clone(), announced)),
                None => drop(all.remove(key)),
            }
        }
        true
    });
}

/// What is announced when some families are behind: of those, what was announced before.
fn carried(
    wanted: Option<Announced>,
    before: Option<&Announced>,
    behind: &[IpFamily],
) -> Option<Announced> {
    let late = |address: &&IpAddr| behind.contains(&IpFamily::of(**address));
    let old = before.iter().flat_map(|before| &before.addresses).filter(late);
    let new = wanted.iter().flat_map(|wanted| &wanted.addresses).filter(|a| !late(a));
    let addresses: BTreeSet<_> = new.chain(old).copied().collect();
    let nodes = wanted.as_ref().or(before).and_then(|announced| announced.nodes.clone());
    let addresses: Vec<_> = addresses.into_iter().collect();
    (!addresses.is_empty()).then_some(Announced { addresses, nodes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_a_family_that_is_behind_stay() {
        let announced = |text: &str| {
            let addresses = text.split_whitespace().map(|a| a.parse().unwrap()).collect();
            (!text.is_empty()).then_some(Announced { addresses, nodes: None })
        };
        let cases = [
            ("a new Service", "192.0.2.1 2001:db8::1", "", "192.0.2.1"),
            ("another address", "192.0.2.1 2001:db8::2", "2001:db8::1", "192.0.2.1 2001:db8::1"),
            ("gone", "", "192.0.2.1 2001:db8::1", "2001:db8::1"),
            ("nothing to carry yet", "2001:db8::1", "", ""),
        ];
        for (name, wanted, before, want) in cases {
            let got = carried(announced(wanted), announced(before).as_ref(), &[IpFamily::V6]);
            assert_eq!(got, announced(want), "{name}");
        }
    }
}
