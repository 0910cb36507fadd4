//! Brings the addresses of load balancers to this node: answers ARP and NDP for those that it
//! holds.
//!
//! Of all nodes whose proxies are alive one holds each address (`roadstead_forwarding::announce`
//! says which). A proxy is alive while it renews its Lease; one that cannot renew its own stops
//! answering before others take over. Nothing is kept in the kernel, so a process that dies
//! leaves nobody behind who answers in its place. An address that a Node has is that machine's own,
//! whatever a Service says.

mod frames;
pub mod interfaces;
mod members;
pub mod responder;
mod socket;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client};
use roadstead_api::key::ObjectKey;
use roadstead_component::component::DebugState;
use roadstead_component::lease::NAMESPACE;
use roadstead_forwarding::announce::{ANNOUNCES_LABEL, Announcements, held};
use roadstead_forwarding::node_addresses::NodeAddresses;
use roadstead_watch::events::{EventDraft, InvolvedObject, Recorder, Severity};
use roadstead_watch::informer::{Change, Selection};
use roadstead_watch::keys_only::keys_only;
use serde::Serialize;
use tokio::sync::watch;
use tokio::time;
use tracing::{debug, warn};

use self::interfaces::{Interface, interfaces, on_link};
use self::members::Members;
use self::responder::{Held, respond};

/// How often to look whether somebody has died.
const LOOK: Duration = Duration::from_millis(500);
/// How often to look for new interfaces.
const LOOK_AROUND: Duration = Duration::from_secs(5);

/// What the announcer of a node is told, and where it shows what it does.
#[derive(Clone, Debug)]
pub struct AnnouncerInputs {
    /// Our node.
    pub node: String,
    /// The addresses that some node must answer for.
    pub announcements: watch::Receiver<Arc<Announcements>>,
    /// Until when our Lease is good. It is for the proxy to say: nobody else can believe us dead before
    /// that.
    pub lease_good_until: watch::Receiver<Option<Instant>>,
    /// Where to show what we answer for.
    pub state: DebugState,
}

/// What the page `/debug/state` says.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Shown {
    node: String,
    /// The nodes whose proxies are alive, as far as we know.
    alive: BTreeSet<String>,
    /// The addresses that some node must answer for.
    announced: usize,
    /// Those that we answer for, each with its interface.
    held: BTreeMap<IpAddr, String>,
}

/// Answers for the addresses that our node holds, until nobody can announce any more.
pub async fn run(client: Client, inputs: AnnouncerInputs) {
    let AnnouncerInputs { node, mut announcements, mut lease_good_until, state } = inputs;
    let (showing, shown) = watch::channel(Shown { node: node.clone(), ..Shown::default() });
    state.register("announce", move || shown.borrow().clone());
    let (recorder, writer) = Recorder::new(client.clone(), "kube-proxy", node.clone());
    let (answering, answered) = watch::channel(Arc::<Held>::default());
    let selection = Selection::all().labels(&format!("{ANNOUNCES_LABEL}=true"));
    let leases = Api::<Lease>::namespaced(client.clone(), NAMESPACE);
    let mut leases = keys_only::<Lease>(leases, selection);
    let mut nodes = keys_only::<Node>(Api::all(client), Selection::all());
    let mut announcer = Announcer { node, ..Announcer::default() };
    let decide = async {
        let mut interfaces = list_interfaces();
        let mut looked = Instant::now();
        let mut tick = time::interval(LOOK);
        loop {
            tokio::select! {
                Some(change) = leases.next() => announcer.members.observe(&change, Instant::now()),
                Some(change) = nodes.next() => announcer.observe_node(&change),
                changed = announcements.changed() => if changed.is_err() { return },
                // One that is given up is to be noticed at once.
                changed = lease_good_until.changed() => if changed.is_err() { return },
                _ = tick.tick() => {}
            }
            if looked.elapsed() > LOOK_AROUND {
                (interfaces, looked) = (list_interfaces(), Instant::now());
            }
            let all = announcements.borrow_and_update().clone();
            let good_until = *lease_good_until.borrow_and_update();
            let (wanted, events) = announcer.decide(&all, good_until, &interfaces);
            answering.send_if_modified(|held| {
                let differs = **held != wanted;
                *held = Arc::new(wanted);
                differs
            });
            showing.send_modify(|shown| {
                shown.alive = announcer.alive(good_until);
                shown.announced = all.values().map(|service| service.addresses.len()).sum();
                let held = answering.borrow();
                shown.held = held.iter().map(|(ip, on)| (*ip, on.name.clone())).collect();
            });
            events.into_iter().for_each(|draft| recorder.record(draft));
        }
    };
    tokio::join!(decide, respond(answered), writer.run());
}

fn list_interfaces() -> Vec<Interface> {
    interfaces().unwrap_or_else(|error| {
        warn!(%error, "cannot list the interfaces: no load balancer is announced");
        Vec::new()
    })
}

#[derive(Default)]
struct Announcer {
    node: String,
    members: Members,
    nodes: NodeAddresses,
    /// Whether all Nodes that exist have been taken in once.
    knows_nodes: bool,
    /// Which Service has an Event about which address, and whether we answer for it.
    recorded: BTreeMap<IpAddr, (ObjectKey, bool)>,
}

impl Announcer {
    fn observe_node(&mut self, change: &Change<Node>) {
        match change {
            Change::Set(node) => drop(self.nodes.observe(node)),
            Change::Gone(key, _) => drop(self.nodes.remove(&key.name)),
            Change::Synced => self.knows_nodes = true,
        }
    }

    /// The nodes that answer. What others think of us does not matter, only what they can know.
    fn alive(&self, lease_good_until: Option<Instant>) -> BTreeSet<String> {
        let now = Instant::now();
        let mut alive = self.members.alive(now);
        alive.remove(&self.node);
        if lease_good_until.is_some_and(|until| now < until) {
            alive.insert(self.node.clone());
        }
        alive
    }

    /// What to answer for now, and what there is to tell the Services.
    fn decide(
        &mut self,
        all: &Announcements,
        lease_good_until: Option<Instant>,
        interfaces: &[Interface],
    ) -> (Held, Vec<EventDraft>) {
        if !self.knows_nodes {
            return Default::default();
        }
        let ours = held(all, &self.alive(lease_good_until), &self.node);
        let mut wanted = Held::new();
        let mut events = Vec::new();
        for (address, service) in &ours {
            let (address, service) = (*address, *service);
            let draft = if let Some(owner) = self.nodes.owner(address) {
                refused(address, service, owner)
            } else if let Some(interface) = on_link(interfaces, address) {
                wanted.insert(address, interface.into());
                assigned(&self.node, address, service, &interface.name)
            } else {
                debug!(%address, %service, "the address is on none of our networks");
                continue;
            };
            let now = (service.clone(), wanted.contains_key(&address));
            if self.recorded.insert(address, now.clone()) != Some(now) {
                events.push(draft);
            }
        }
        self.recorded.retain(|address, (_, answers)| {
            if *answers { wanted.contains_key(address) } else { ours.contains_key(address) }
        });
        (wanted, events)
    }
}

fn assigned(node: &str, address: IpAddr, service: &ObjectKey, interface: &str) -> EventDraft {
    let protocol = if address.is_ipv4() { "ARP" } else { "NDP" };
    EventDraft {
        about: about(service),
        severity: Severity::Normal,
        reason: "AddressAnnounced".into(),
        message: format!(
            "node {node} answers for {address} on its interface {interface} ({protocol})"
        ),
    }
}

fn refused(address: IpAddr, service: &ObjectKey, owner: &str) -> EventDraft {
    EventDraft {
        about: about(service),
        severity: Severity::Warning,
        reason: "AddressNotAnnounced".into(),
        message: format!("{address} belongs to node {owner}, so nobody else answers for it"),
    }
}

fn about(service: &ObjectKey) -> InvolvedObject {
    InvolvedObject {
        api_version: "v1".into(),
        kind: "Service".into(),
        namespace: service.namespace.clone(),
        name: service.name.clone(),
        ..InvolvedObject::default()
    }
}

#[cfg(test)]
mod tests {
    use roadstead_forwarding::announce::Announced;
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
        let good_until = Some(Instant::now() + Duration::from_secs(60));
        let mut announcer = Announcer { node: "n1".into(), ..Announcer::default() };
        let mut decide = |change: Option<serde_json::Value>| {
            let change = change.map(|node| serde_json::from_value(node).unwrap());
            let change = change.map_or(Change::Synced, Change::Set);
            announcer.observe_node(&change);
            let (held, events) =
                announcer.decide(&all, good_until, std::slice::from_ref(&interface));
            let reasons: Vec<_> = events.into_iter().map(|event| event.reason).collect();
            (held.into_keys().collect::<Vec<_>>(), reasons.join(" "))
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
