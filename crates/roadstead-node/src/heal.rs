//! Keeps the pod network whole: what somebody removes of it comes back.
//!
//! The kernel tells of every change of links, addresses and routes. A moment after one, and now and
//! then without one, what should be there is compared with what is.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use futures::StreamExt;
use nlink::netlink::messages::LinkMessage;
use nlink::netlink::{Connection, NetworkEvent, OwnedEventStream, Route, RtnetlinkGroup};
use roadstead_pod::addresses::Addresses;
use tokio::time::{self, Instant};

use crate::config::NodeError;
use crate::network::{Network, Trying, is_namespace, return_by_same_link};

/// Changes come in groups.
const SETTLE: Duration = Duration::from_millis(100);
/// For what we might have missed.
const NOW_AND_THEN: Duration = Duration::from_secs(30);

/// A pod's link that should be there.
#[derive(Clone, Debug)]
pub(crate) struct PodLink {
    /// Where the pod's network is.
    pub(crate) namespace: PathBuf,
    /// The name of its link on the node.
    pub(crate) name: String,
    pub(crate) addresses: Addresses,
}

/// How much may be amiss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Suspicion {
    /// Links: cheap to look at.
    Links,
    /// The bridge's address and the route to it as well: written again, unseen.
    Everything,
}

/// What to do about a pod's link: pure.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Remedy {
    Make,
    /// It hangs on nothing, or on something else.
    Attach,
    BringUp,
}

/// The state of a link on the node: pure.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Found {
    master: Option<u32>,
    up: bool,
}

fn remedy(found: Option<Found>, bridge: u32) -> Option<Remedy> {
    match found {
        None => Some(Remedy::Make),
        Some(Found { master, .. }) if master != Some(bridge) => Some(Remedy::Attach),
        Some(Found { up: false, .. }) => Some(Remedy::BringUp),
        Some(_) => None,
    }
}

impl Network {
    /// Brings back what is missing; returns the names of the links it had to do with.
    pub(crate) async fn heal(
        &self,
        pods: &[PodLink],
        suspicion: Suspicion,
    ) -> Result<Vec<String>, NodeError> {
        let host = Connection::<Route>::new().trying(|| "open a netlink socket".into())?;
        let mut links = host.get_links().await.trying(|| "list links".into())?;
        let mut healed = Vec::new();
        let bridge = find(&links, &self.bridge).filter(|bridge| bridge.is_up());
        if bridge.is_none() {
            healed.push(self.bridge.clone());
        }
        if bridge.is_none() || suspicion == Suspicion::Everything {
            self.set_up().await?;
            links = host.get_links().await.trying(|| "list links".into())?;
        }
        let Some(bridge) = find(&links, &self.bridge).map(|bridge| bridge.ifindex()) else {
            // Removed once more: there will be an event.
            return Ok(healed);
        };
        for pod in pods.iter().filter(|pod| is_namespace(&pod.namespace)) {
            let found = find(&links, &pod.name);
            let found = found.map(|link| Found { master: link.master(), up: link.is_up() });
            let Some(remedy) = remedy(found, bridge) else { continue };
            healed.push(pod.name.clone());
            let name = pod.name.as_str();
            match remedy {
                Remedy::Make => self.join_pod(&pod.namespace, name, pod.addresses).await?,
                Remedy::Attach => {
                    let attached = host.set_link_master(name, self.bridge.as_str()).await;
                    attached.trying(|| format!("attach the link {name}"))?;
                    return_by_same_link(&host, name).await?;
                    host.set_link_up(name).await.trying(|| format!("bring {name} up"))?;
                }
                Remedy::BringUp => {
                    host.set_link_up(name).await.trying(|| format!("bring {name} up"))?;
                }
            }
        }
        Ok(healed)
    }
}

fn find<'a>(links: &'a [LinkMessage], name: &str) -> Option<&'a LinkMessage> {
    links.iter().find(|link| link.name() == Some(name))
}

/// Hears from the kernel what happens to the network.
pub(crate) struct Watcher {
    events: OwnedEventStream<Route>,
    network: Network,
}

impl Watcher {
    pub(crate) async fn start(network: &Network) -> Result<Self, NodeError> {
        let host = Connection::<Route>::new().trying(|| "open a netlink socket".into())?;
        let mut groups =
            vec![RtnetlinkGroup::Link, RtnetlinkGroup::Ipv4Addr, RtnetlinkGroup::Ipv4Route];
        if network.has_six() {
            groups.extend([RtnetlinkGroup::Ipv6Addr, RtnetlinkGroup::Ipv6Route]);
        }
        host.subscribe(&groups).trying(|| "listen to changes of the network".into())?;
        Ok(Self { events: host.into_events().await, network: network.clone() })
    }

    /// Waits until the network may not be as it should; `None` when the kernel is silent for good.
    pub(crate) async fn next(&mut self) -> Result<Option<Suspicion>, NodeError> {
        let mut suspicion = None;
        let mut until = Instant::now() + NOW_AND_THEN;
        loop {
            let event = match time::timeout_at(until, self.events.next()).await {
                Err(_) => return Ok(suspicion.or(Some(Suspicion::Everything))),
                Ok(None) => return Ok(None),
                Ok(Some(event)) => event.trying(|| "hear of a change".into())?,
            };
            let Some(found) = self.network.suspect(&event) else { continue };
            if suspicion.is_none() {
                until = Instant::now() + SETTLE;
            }
            suspicion = suspicion.max(Some(found));
        }
    }
}

impl Network {
    /// What we write ourselves to heal is no removal, so there is no circle.
    fn suspect(&self, event: &NetworkEvent) -> Option<Suspicion> {
        match event {
            NetworkEvent::NewLink(_) | NetworkEvent::DelLink(_) => Some(Suspicion::Links),
            // Every link has addresses and routes of IPv6 that the kernel gave it, and they go with it.
            NetworkEvent::DelAddress(gone) if gone.is_ipv6() => {
                let ours = |own: &IpAddr| self.own_addresses().any(|address| address == *own);
                gone.primary_address().is_some_and(ours).then_some(Suspicion::Everything)
            }
            NetworkEvent::DelRoute(gone) if gone.is_ipv6() => {
                let ranges =
                    self.subnets.iter().flat_map(|own| own.services.into_iter().chain([own.pods]));
                let to = gone.destination().copied();
                let mut ours = ranges.map(|range| (Some(range.network()), range.prefix_len()));
                ours.any(|range| range == (to, gone.dst_len())).then_some(Suspicion::Everything)
            }
            NetworkEvent::DelAddress(_) | NetworkEvent::DelRoute(_) => Some(Suspicion::Everything),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remedies() {
        let found = |master, up| Some(Found { master, up });
        for (name, link, want) in [
            ("whole", found(Some(7), true), None),
            ("gone", None, Some(Remedy::Make)),
            ("its bridge was removed", found(None, true), Some(Remedy::Attach)),
            ("on another bridge", found(Some(8), true), Some(Remedy::Attach)),
            ("down", found(Some(7), false), Some(Remedy::BringUp)),
        ] {
            assert_eq!(remedy(link, 7), want, "{name}");
        }
    }
}
