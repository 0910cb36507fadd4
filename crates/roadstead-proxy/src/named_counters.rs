//! Counters that the kernel keeps by name (nfacct), for rules of iptables to count packets with.

use std::fmt;
use std::io;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use roadstead_forwarding::iptables::compile::{INVALID_DROPPED, LOCALHOST_ACCEPTED};
use roadstead_netlink::attributes::{Attributes, attribute};
use roadstead_netlink::error::NetlinkError;
use roadstead_netlink::socket::{NetlinkFamily, Request, Socket};
use roadstead_netlink::{CREATE, netfilter};
use rustix::io::Errno;
use tracing::{debug, info};

const SUBSYSTEM: u8 = 7;
const NEW: u16 = netfilter(SUBSYSTEM, 0);
const GET: u16 = netfilter(SUBSYSTEM, 1);
const DELETE: u16 = netfilter(SUBSYSTEM, 3);
const HEADER: [u8; 4] = [0; 4];
const NAME: u16 = 1;
const PACKETS: u16 = 2;
const NAMES: [&str; 2] = [INVALID_DROPPED, LOCALHOST_ACCEPTED];

/// Makes the counters that are not there yet; returns whether rules may use them. Those of a
/// predecessor count on.
pub(crate) fn make() -> bool {
    let made = Socket::open(NetlinkFamily::Netfilter)
        .map_err(NetlinkError::Socket)
        .and_then(|mut socket| NAMES.iter().try_for_each(|name| make_one(&mut socket, name)));
    if let Err(error) = &made {
        // The two metrics are absent then, which is better than a constant zero.
        info!(%error, "the kernel has no named counters (nfnetlink_acct): packets are not counted");
    }
    made.is_ok()
}

/// Deletes the counters: rules cannot use them after all.
pub(crate) fn remove() {
    let Ok(mut socket) = Socket::open(NetlinkFamily::Netfilter) else { return };
    for name in NAMES {
        let request = Request { kind: DELETE, flags: 0, header: &HEADER };
        if let Err(error) = socket.order(&request, |message| message.text(NAME, name)) {
            debug!(name, %error, "a counter stays");
        }
    }
}

fn make_one(socket: &mut Socket, name: &str) -> Result<(), NetlinkError> {
    let request = Request { kind: NEW, flags: CREATE, header: &HEADER };
    match socket.order(&request, |message| message.text(NAME, name)) {
        Err(NetlinkError::Declined(source)) if is_busy(&source) => Ok(()),
        outcome => outcome,
    }
}

/// One that is there already.
fn is_busy(error: &io::Error) -> bool {
    let there = [Errno::BUSY, Errno::EXIST];
    there.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// How many packets were counted under a name; `None` if there is no such counter.
fn packets(name: &str) -> Option<u64> {
    let mut socket = Socket::open(NetlinkFamily::Netfilter).ok()?;
    let request = Request { kind: GET, flags: 0, header: &HEADER };
    let fill = |message: &mut Attributes<'_>| message.text(NAME, name);
    let counts = socket.ask(&request, fill, |answer| {
        let octets = attribute(answer.attributes, PACKETS)?;
        Some(u64::from_be_bytes(octets.try_into().ok()?))
    });
    counts.ok()?.first().copied()
}

/// Shows the counters under kube-proxy's names, as long as they exist.
#[derive(Debug)]
pub(crate) struct NamedCounters;

impl Collector for NamedCounters {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let shown = [
            (INVALID_DROPPED, "iptables_ct_state_invalid_dropped_packets"),
            (LOCALHOST_ACCEPTED, "iptables_localhost_nodeports_accepted_packets"),
        ];
        for (name, metric) in shown {
            let Some(packets) = packets(name) else { continue };
            let counter = ConstCounter::new(packets);
            let help = metric.replace('_', " ");
            let kind = counter.metric_type();
            counter.encode(encoder.encode_descriptor(metric, &help, None, kind)?)?;
        }
        Ok(())
    }
}
