//! Brings the addresses of load balancers to this node: answers ARP and NDP for those that it
//! holds.
//!
//! Of all nodes whose proxies are alive one holds each address (`roadstead_forwarding::announce`
//! says which). A proxy is alive while it renews its Lease; one that cannot renew its own stops
//! answering before others take over. Nothing is kept in the kernel, so a process that dies
//! leaves nobody behind who answers in its place.

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
    let leases = Api::<Lease>::namespaced(client, NAMESPACE);
    let mut leases = informer::<Lease>(leases, selection);
    let mut speaker = Speaker { node, members: Members::default(), told: BTreeMap::new() };
    let decide = async {
        let mut around = look_around();
        let mut looked = Instant::now();
        let mut tick = time::interval(LOOK);
        loop {
            tokio::select! {
                Some(change) = leases.next() => speaker.members.observe(&change, Instant::now()),
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

struct Speaker {
    node: String,
    members: Members,
    /// Which Service was last told about which address.
    told: BTreeMap<IpAddr, ObjectKey>,
}

impl Speaker {
    /// What to answer for now, and what there is to tell the Services.
    fn decide(
        &mut self,
        all: &Announcements,
        renewed: Option<Renewal>,
        around: &[Interface],
    ) -> (Held, Vec<Happening>) {
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
            let Some(interface) = on_link(around, *address) else {
                debug!(%address, %service, "the address is on none of our networks");
                continue;
            };
            wanted.insert(*address, interface.into());
            if self.told.insert(*address, (*service).clone()).as_ref() != Some(*service) {
                news.push(assigned(&self.node, *address, service, &interface.name));
            }
        }
        self.told.retain(|address, _| wanted.contains_key(address));
        (wanted, news)
    }
}

fn assigned(node: &str, address: IpAddr, service: &ObjectKey, interface: &str) -> Happening {
    let protocol = if address.is_ipv4() { "ARP" } else { "NDP" };
    Happening {
        about: About {
            api_version: "v1".into(),
            kind: "Service".into(),
            namespace: service.namespace.clone(),
            name: service.name.clone(),
            ..About::default()
        },
        severity: Severity::Normal,
        reason: "AddressAnnounced".into(),
        message: format!(
            "node {node} answers for {address} on its interface {interface} ({protocol})"
        ),
    }
}
