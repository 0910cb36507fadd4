//! Answers for addresses that no interface has, and says so when they become ours.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv6Addr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time;
use tracing::{debug, info, warn};

use crate::frames::{Hardware, answer, group_of, unasked};
use crate::interfaces::Interface;
use crate::socket::{Asking, LinkSocket};

/// When an address becomes ours we say so that many times, a second apart.
const ROUNDS: u32 = 5;

/// The addresses that we answer for, each with the interface it is on.
pub type Held = BTreeMap<IpAddr, HeldOn>;

/// Where an address is ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldOn {
    /// The number of the interface.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Its Ethernet address.
    pub hardware: Hardware,
}

impl From<&Interface> for HeldOn {
    fn from(interface: &Interface) -> Self {
        let Interface { index, name, hardware, .. } = interface.clone();
        Self { index, name, hardware }
    }
}

/// Answers for whatever `held` says, until nobody can say any more. Everything ends with it: a
/// process that is gone answers no questions.
pub async fn respond(mut held: watch::Receiver<Arc<Held>>) {
    let mut before = Held::new();
    let mut listeners: BTreeMap<(u32, Asking), JoinSet<()>> = BTreeMap::new();
    let mut groups = Groups::default();
    let mut tellers = JoinSet::new();
    loop {
        let now = held.borrow_and_update().clone();
        let wanted: BTreeSet<_> = now.iter().map(|(a, place)| (place.index, asking(a))).collect();
        listeners.retain(|what, _| wanted.contains(what));
        groups.join(&now);
        for (index, asking) in wanted {
            listeners.entry((index, asking)).or_insert_with(|| {
                let mut listener = JoinSet::new();
                listener.spawn(listen(index, asking, held.clone()));
                listener
            });
        }
        for (address, place) in now.iter() {
            if before.get(address) != Some(place) {
                info!(%address, interface = place.name, "answering for a load balancer");
                tellers.spawn(tell(*address, place.clone(), held.clone()));
            }
        }
        for address in before.keys().filter(|address| !now.contains_key(address)) {
            info!(%address, "no longer answering for a load balancer");
        }
        before = (*now).clone();
        while tellers.try_join_next().is_some() {}
        if held.changed().await.is_err() {
            return;
        }
    }
}

fn asking(address: &IpAddr) -> Asking {
    if address.is_ipv4() { Asking::Arp } else { Asking::Ndp }
}

/// Answers all questions on one interface; tries again when the interface goes down.
async fn listen(index: u32, asking: Asking, held: watch::Receiver<Arc<Held>>) {
    loop {
        if let Err(error) = answer_all(index, asking, &held).await {
            warn!(index, ?asking, %error, "cannot answer on an interface, trying again");
            time::sleep(Duration::from_secs(1)).await;
        }
    }
}

async fn answer_all(
    index: u32,
    asking: Asking,
    held: &watch::Receiver<Arc<Held>>,
) -> io::Result<()> {
    let socket = LinkSocket::open(index, asking)?;
    loop {
        let question = socket.next().await?;
        let place = held.borrow().get(&question.about).filter(|p| p.index == index).cloned();
        if let Some(place) = place {
            debug!(address = %question.about, asker = ?question.asker, "answered");
            socket.send(&answer(&question, place.hardware))?;
        }
    }
}

/// Corrects the memory of everybody who knew another holder.
async fn tell(address: IpAddr, place: HeldOn, held: watch::Receiver<Arc<Held>>) {
    for _ in 0..ROUNDS {
        if held.borrow().get(&address) != Some(&place) {
            return;
        }
        let frames = unasked(address, place.hardware);
        let told = LinkSocket::open(place.index, asking(&address))
            .and_then(|socket| frames.iter().try_for_each(|frame| socket.send(frame)));
        if let Err(error) = told {
            warn!(%address, interface = place.name, %error, "cannot announce an address");
        }
        time::sleep(Duration::from_secs(1)).await;
    }
}

/// The multicast groups in which questions for IPv6 addresses are asked.
#[derive(Debug, Default)]
struct Groups {
    /// Only for its memberships, which end with it.
    socket: Option<UdpSocket>,
    joined: BTreeSet<(Ipv6Addr, u32)>,
}

impl Groups {
    fn join(&mut self, held: &Held) {
        let group = |(address, place): (&IpAddr, &HeldOn)| match address {
            IpAddr::V6(address) => Some((group_of(*address), place.index)),
            IpAddr::V4(_) => None,
        };
        let wanted: BTreeSet<_> = held.iter().filter_map(group).collect();
        if wanted == self.joined {
            return;
        }
        let outcome = self.change(&wanted);
        if let Err(error) = outcome {
            warn!(%error, "cannot listen for questions about IPv6 addresses");
        }
    }

    fn change(&mut self, wanted: &BTreeSet<(Ipv6Addr, u32)>) -> io::Result<()> {
        let socket = match &self.socket {
            Some(socket) => socket,
            None => self.socket.insert(UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))?),
        };
        for (group, index) in self.joined.difference(wanted) {
            // The interface may be gone, and its groups with it.
            let _ = socket.leave_multicast_v6(group, *index);
        }
        self.joined.retain(|membership| wanted.contains(membership));
        for (group, index) in wanted {
            if !self.joined.contains(&(*group, *index)) {
                socket.join_multicast_v6(group, *index)?;
                self.joined.insert((*group, *index));
            }
        }
        Ok(())
    }
}
