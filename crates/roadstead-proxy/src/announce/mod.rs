//! Brings the addresses of load balancers to this node: answers ARP and NDP for those that it
//! holds.
//!
//! Of all nodes whose proxies are alive one holds each address (`roadstead_forwarding::announce`
//! says which). A proxy is alive while it renews its Lease; one that cannot renew its own stops
//! answering before others take over. Nothing is kept in the kernel, so a process that dies
//! leaves nobody behind who answers in its place. An address that a Node has is that machine's own,
//! whatever a Service says.

pub mod frames;
pub mod interfaces;
mod members;
pub mod responder;
mod socket;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client};
use roadstead_api::key::ObjectKey;
use roadstead_forwarding::announce::{Announcements, held};
use roadstead_watch::events::{About, Happening, Recorder, Severity};
use roadstead_watch::informer::{Selection, informer};
use tokio::sync::watch;
use tokio::time;
use tracing::{debug, warn};

use self::interfaces::{Interface, interfaces, on_link};
use self::members::Members;
use self::responder::{Held, respond};
use crate::lease::{LABEL, NAMESPACE, Renewal};
use crate::nodes::NodeAddresses;
use crate::watched::watched;

/// How often to look whether somebody has died.
const LOOK: Duration = Duration::from_millis(500);
/// How often to look for new interfaces.
const LOOK_AROUND: Duration = Duration::from_secs(5);

/// Answers for the addresses that `node` holds, for ever.
pub async fn run(
    client: Client,
    node: String,
    mut announcements: watch::Receiver<Arc<Announcements>>,
    renewed: watch::Receiver<Option<Renewal>>,
) {
    let (recorder, writer) = Recorder::new(client.clone(), "kube-proxy", node.clone());
    let (answering, answered) = watch::channel(Arc::<Held>::default());
    let selection = Selection::all().labels(&format!("{LABEL}=true"));
    let leases = Api::<Lease>::namespaced(client.clone(), NAMESPACE);
    let mut leases = informer::<Lease>(leases, selection);
    let mut nodes = watched::<Node>(Api::all(client), Selection::all());
    let mut speaker = Speaker { node, ..Speaker::default() };
    let decide = async {
        let mut around = look_around();
        let mut looked = Instant::now();
        let mut tick = time::interval(LOOK);
        loop {
            tokio::select! {
                Some(change) = leases.next() => speaker.members.observe(&change, Instant::now()),
                Some(change) = nodes.next() => drop(speaker.nodes.observe(&change)),
                changed = announcements.changed() => if changed.is_err() { return },
                _ = tick.tick() => {}
            }
            if looked.elapsed() > LOOK_AROUND {
                (around, looked) = (look_around(), Instant::now());
            }
            let all = announcements.borrow_and_update().clone();
            let (wanted, news) = speaker.decide(&all, *renewed.borrow(), &around);
            answering.send_if_modified(|held| {
                let differs = **held != wanted;
                *held = Arc::new(wanted);
                differs
            });
            news.into_iter().for_each(|happening| recorder.tell(happening));
        }
    };
    tokio::join!(decide, respond(answered), writer.run());
}

fn look_around() -> Vec<Interface> {
    interfaces().unwrap_or_else(|error| {
        warn!(%error, "cannot list the interfaces: no load balancer is announced");
        Vec::new()
    })
}

#[derive(Default)]
struct Speaker {
    node: String,
    members: Members,
    nodes: NodeAddresses,
    /// Which Service was last told about which address, and whether we answer for it.
    told: BTreeMap<IpAddr, (ObjectKey, bool)>,
}

impl Speaker {
    /// What to answer for now, and what there is to tell the Services.
    fn decide(
        &mut self,
        all: &Announcements,
        renewed: Option<Renewal>,
        around: &[Interface],
    ) -> (Held, Vec<Happening>) {
        if !self.nodes.is_known() {
            return Default::default();
        }
        let now = Instant::now();
        let mut alive = self.members.alive(now);
        // What others think of us does not matter, only what they can know.
        alive.remove(&self.node);
        if renewed.is_some_and(|renewed| renewed.is_valid(now)) {
            alive.insert(self.node.clone());
        }
        let ours = held(all, &alive, &self.node);
        let mut wanted = Held::new();
        let mut news = Vec::new();
        for (address, service) in &ours {
            let (address, service) = (*address, *service);
            let happening = if let Some(owner) = self.nodes.owner(address) {
                refused(address, service, owner)
            } else if let Some(interface) = on_link(around, address) {
                wanted.insert(address, interface.into());
                assigned(&self.node, address, service, &interface.name)
            } else {
                debug!(%address, %service, "the address is on none of our networks");
                continue;
            };
            let told = (service.clone(), wanted.contains_key(&address));
            if self.told.insert(address, told.clone()) != Some(told) {
                news.push(happening);
            }
        }
        self.told.retain(|address, (_, answers)| {
            if *answers { wanted.contains_key(address) } else { ours.contains_key(address) }
        });
        (wanted, news)
    }
}

fn assigned(node: &str, address: IpAddr, service: &ObjectKey, interface: &str) -> Happening {
    let protocol = if address.is_ipv4() { "ARP" } else { "NDP" };
    Happening {
        about: about(service),
        severity: Severity::Normal,
        reason: "AddressAnnounced".into(),
        message: format!(
            "node {node} answers for {address} on its interface {interface} ({protocol})"
        ),
    }
}

fn refused(address: IpAddr, service: &ObjectKey, owner: &str) -> Happening {
    Happening {
        about: about(service),
        severity: Severity::Warning,
        reason: "AddressNotAnnounced".into(),
        message: format!("{address} belongs to node {owner}, so nobody else answers for it"),
    }
}

fn about(service: &ObjectKey) -> About {
    About {
        api_version: "v1".into(),
        kind: "Service".into(),
        namespace: service.namespace.clone(),
        name: service.name.clone(),
        ..About::default()
    }
}

#[cfg(test)]
mod tests {
    use roadstead_forwarding::announce::Announced;
    use roadstead_watch::informer::Change;
    use serde_json::json;

    use super::*;

    #[test]
    fn addresses_of_nodes_are_left_alone() {
        let interface = Interface {
            index: 1,
            name: "eth0".into(),
            hardware: [2, 0, 0, 0, 0, 1],
            networks: vec!["192.168.7.1/24".parse().unwrap()],
        };
        let addresses = ["192.168.7.2", "192.168.7.100"].map(|text| text.parse().unwrap());
        let announced = Announced { addresses: addresses.into(), nodes: None };
        let all: Announcements = [(ObjectKey::new("default", "web"), announced)].into();
        let renewed = Some(Renewal::new(Instant::now(), Duration::from_secs(60)));
        let mut speaker = Speaker { node: "n1".into(), ..Speaker::default() };
        let mut decide = |change: Option<serde_json::Value>| {
            let change = change.map(|node| Arc::new(serde_json::from_value(node).unwrap()));
            let change = change.map_or(Change::Synced, Change::Set);
            speaker.nodes.observe(&change);
            let (held, news) = speaker.decide(&all, renewed, std::slice::from_ref(&interface));
            let news: Vec<_> = news.into_iter().map(|news| news.reason).collect();
            (held.into_keys().collect::<Vec<_>>(), news.join(" "))
        };
        let node = |address: &str| {
            let listed = json!([{"type": "InternalIP", "address": address}]);
            Some(json!({"metadata": {"name": "n2"}, "status": {"addresses": listed}}))
        };
        assert_eq!(decide(node("192.168.7.2")), (vec![], String::new()), "not all nodes are known");
        let told = "AddressNotAnnounced AddressAnnounced".to_owned();
        assert_eq!(decide(None), (vec![addresses[1]], told));
        assert_eq!(decide(None), (vec![addresses[1]], String::new()), "told once");
        let told = "AddressAnnounced".to_owned();
        assert_eq!(decide(node("192.168.7.3")), (addresses.into(), told), "the node has moved");
    }
}
