//! Hosts that forward nothing unless told to: `iptables -P FORWARD DROP`, as Docker sets it.
//!
//! In nftables a packet must pass every table, so an accept in ours does not overrule a drop in
//! another. Where the policy belongs to iptables' own chain FORWARD, rules for the traffic of pods
//! and Services go after all others, in a chain of ours: they overrule nothing but the policy. The policies of anybody else's chains are
//! not ours to touch: whoever set them is told the command.

use std::fs;
use std::time::Duration;

use kube::Client;
use roadstead_forwarding::iptables::listing::Listing;
use roadstead_forwarding::iptables::model::TableName;
use roadstead_forwarding::node_network::{DetectLocal, NodeNetwork};
use roadstead_forwarding::service::IpFamily;
use roadstead_netlink::attributes::{attribute, text_of};
use roadstead_netlink::error::NetlinkError;
use roadstead_netlink::socket::{Answer, NetlinkFamily, Request, Socket};
use roadstead_netlink::{DUMP, NFTABLES, netfilter};
use roadstead_watch::events::{self, EventDraft, InvolvedObject, Severity};
use tokio::{task, time};
use tracing::{info, warn};

use crate::iptables::command::{IptablesError, Programs, Variant};

/// Our chain in iptables' table `filter`.
pub const CHAIN: &str = "ROADSTEAD-FORWARD";
const COMMENT: &str = "traffic of pods and Services";
/// How often to look; Docker sets the policy when it starts.
const LOOK: Duration = Duration::from_secs(5);
const FAMILIES: [IpFamily; 2] = [IpFamily::V4, IpFamily::V6];

/// Keeps the way open for pods and Services, for ever. What cannot be opened is told once, as an
/// Event of the Node.
pub(crate) async fn keep_open(client: Client, node: String, node_network: NodeNetwork) {
    let mut told = Vec::new();
    loop {
        let network = node_network.clone();
        let foreign = task::spawn_blocking(move || open(&network)).await.unwrap_or_default();
        for policy in &foreign {
            if !told.contains(policy) {
                tell(&client, &node, policy, &node_network).await;
            }
        }
        told = foreign;
        time::sleep(LOOK).await;
    }
}

/// Opens what can be opened; returns the policies that others must change.
pub fn open(node_network: &NodeNetwork) -> Vec<ForwardPolicy> {
    let mut foreign = Vec::new();
    for family in FAMILIES {
        let network = node_network.of_family(family);
        let policies = policies(family).unwrap_or_else(|error| {
            warn!(?family, %error, "cannot see who drops forwarded packets");
            Vec::new()
        });
        let ours = |policy: &&ForwardPolicy| policy.is_of_iptables(family);
        if policies.iter().any(|policy| ours(&policy)) {
            report(family, accept(family, Variant::Nft, &network));
        }
        if legacy_drops(family) {
            report(family, accept(family, Variant::Legacy, &network));
        }
        foreign.extend(policies.into_iter().filter(|policy| !ours(&policy)));
    }
    foreign
}

/// Removes our rules, wherever they are.
pub fn remove() -> Result<(), IptablesError> {
    for family in FAMILIES {
        for variant in [Variant::Nft, Variant::Legacy] {
            if variant == Variant::Legacy && !has_legacy_filter(family) {
                continue;
            }
            let programs = Programs::of(family, variant);
            if programs.has(TableName::Filter, CHAIN).unwrap_or(false) {
                let jump = jump();
                programs.restore(&format!(
                    "*filter\n:{CHAIN} - [0:0]\n-D FORWARD {jump}\n-X {CHAIN}\nCOMMIT\n"
                ))?;
            }
        }
    }
    Ok(())
}

fn report(family: IpFamily, outcome: Result<bool, IptablesError>) {
    match outcome {
        Ok(false) => {}
        Ok(true) => info!(?family, chain = CHAIN, "iptables forwards pods and Services again"),
        Err(error) => warn!(?family, %error, "iptables drops what pods and Services send"),
    }
}

/// Puts our rules before the policy; returns whether they were missing.
fn accept(
    family: IpFamily,
    variant: Variant,
    node_network: &NodeNetwork,
) -> Result<bool, IptablesError> {
    let programs = Programs::of(family, variant);
    let input = missing(&programs.list()?, node_network);
    match &input {
        Some(input) => programs.restore(input)?,
        None => return Ok(false),
    }
    Ok(true)
}

/// What to restore so that our rules are there; `None` if they are.
fn missing(listing: &Listing, node_network: &NodeNetwork) -> Option<String> {
    let (filter, rules, jump) = (TableName::Filter, rules(node_network), jump());
    let jumps = listing.rules(filter, "FORWARD").contains(&jump);
    if jumps && listing.rules(filter, CHAIN) == rules {
        return None;
    }
    let mut lines = vec!["*filter".to_owned(), format!(":{CHAIN} - [0:0]")];
    lines.extend(rules.iter().map(|rule| format!("-A {CHAIN} {rule}")));
    if !jumps {
        lines.push(format!("-A FORWARD {jump}"));
    }
    lines.push("COMMIT\n".into());
    Some(lines.join("\n"))
}

fn jump() -> String {
    format!("-m comment --comment \"{COMMENT}\" -j {CHAIN}")
}

/// What passes: whatever the proxy masquerades, what pods send and receive, and answers.
fn rules(node_network: &NodeNetwork) -> Vec<String> {
    let mark = node_network.masquerade_mark;
    let marked = format!("-m mark --mark {mark:#x}/{mark:#x} -j ACCEPT");
    let answers = "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT".to_owned();
    let pods = pods(node_network).into_iter().map(|(_, pod)| format!("{pod} -j ACCEPT"));
    [marked].into_iter().chain(pods).chain([answers]).collect()
}

/// How pods are recognised, as nftables and as iptables write it.
fn pods(node_network: &NodeNetwork) -> Vec<(String, String)> {
    let interface = |name: String, plus: &str, star: &str| {
        let of = |nft: &str, flag: &str| {
            (format!("{nft} \"{name}{star}\""), format!("{flag} {name}{plus}"))
        };
        vec![of("iifname", "-i"), of("oifname", "-o")]
    };
    match &node_network.detect_local {
        DetectLocal::Unknown => Vec::new(),
        DetectLocal::Networks(networks) => {
            let both = |net: &ipnet::IpNet| {
                let ip = if net.addr().is_ipv4() { "ip" } else { "ip6" };
                let of =
                    |nft: &str, flag: &str| (format!("{ip} {nft} {net}"), format!("{flag} {net}"));
                [of("saddr", "-s"), of("daddr", "-d")]
            };
            networks.iter().flat_map(both).collect()
        }
        DetectLocal::Bridge(name) => interface(name.clone(), "", ""),
        DetectLocal::InterfacePrefix(name) => interface(name.clone(), "+", "*"),
    }
}

/// A chain that drops forwarded packets unless told otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardPolicy {
    /// `ip`, `ip6` or `inet`.
    pub family: &'static str,
    /// Its table.
    pub table: String,
    /// Its name.
    pub chain: String,
}

impl ForwardPolicy {
    fn is_of_iptables(&self, family: IpFamily) -> bool {
        let own = if family == IpFamily::V4 { "ip" } else { "ip6" };
        (self.family, &*self.table, &*self.chain) == (own, "filter", "FORWARD")
    }

    /// The commands that let pods and Services pass.
    pub fn remedy(&self, node_network: &NodeNetwork) -> String {
        let Self { family, table, chain } = self;
        let mark = node_network.masquerade_mark;
        let all = pods(node_network).into_iter().map(|(pod, _)| pod);
        let wanted = all.filter(|pod| {
            *family == "inet" || !pod.starts_with("ip") || { pod.split(' ').next() == Some(family) }
        });
        let marked = format!("meta mark & {mark:#x} == {mark:#x}");
        let conditions = ["ct state established,related".to_owned(), marked].into_iter();
        let command = |condition: String| {
            format!("nft 'insert rule {family} {table} {chain} {condition} accept'")
        };
        conditions.chain(wanted).map(command).collect::<Vec<_>>().join("; ")
    }
}

/// The chains of nftables that drop forwarded packets of a family unless told otherwise.
fn policies(family: IpFamily) -> Result<Vec<ForwardPolicy>, NetlinkError> {
    const GET_CHAIN: u8 = 4;
    const TABLE: u16 = 1;
    const NAME: u16 = 3;
    const HOOK: u16 = 4;
    const POLICY: u16 = 5;
    const HOOK_NUMBER: u16 = 1;
    const FORWARD: u32 = 2;
    const DROP: u32 = 0;
    let mut socket = Socket::open(NetlinkFamily::Netfilter).map_err(NetlinkError::Socket)?;
    // Chains of `inet` are listed with those of IPv4 only, so that they are told once.
    let kinds: &[(u8, _)] = match family {
        IpFamily::V4 => &[(2, "ip"), (1, "inet")],
        IpFamily::V6 => &[(10, "ip6")],
    };
    let mut found = Vec::new();
    for &(number, family) in kinds {
        let dropping =
            |chain: Answer<'_>| {
                let chain = chain.attributes;
                let word = |bytes: &[u8]| Some(u32::from_be_bytes(bytes.try_into().ok()?));
                let text = |kind| attribute(chain, kind).map(text_of).unwrap_or_default();
                let hook = attribute(chain, HOOK).and_then(|hook| attribute(hook, HOOK_NUMBER));
                let policy = attribute(chain, POLICY).and_then(word);
                (hook.and_then(word) == Some(FORWARD) && policy == Some(DROP))
                    .then(|| ForwardPolicy { family, table: text(TABLE), chain: text(NAME) })
            };
        let kind = netfilter(NFTABLES, GET_CHAIN);
        let request = Request { kind, flags: DUMP, header: &[number, 0, 0, 0] };
        match socket.ask(&request, |_| {}, dropping) {
            Ok(chains) => found.extend(chains),
            // Without nf_tables nobody drops anything that way.
            Err(NetlinkError::Declined(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// Whether the old iptables drops forwarded packets. Asking it would load its modules, so we only
/// do where they are.
fn legacy_drops(family: IpFamily) -> bool {
    has_legacy_filter(family)
        && Programs::of(family, Variant::Legacy)
            .policy(TableName::Filter, "FORWARD")
            .is_ok_and(|policy| policy == "DROP")
}

fn has_legacy_filter(family: IpFamily) -> bool {
    let file = match family {
        IpFamily::V4 => "/proc/net/ip_tables_names",
        IpFamily::V6 => "/proc/net/ip6_tables_names",
    };
    fs::read_to_string(file).is_ok_and(|names| names.lines().any(|name| name == "filter"))
}

async fn tell(client: &Client, node: &str, policy: &ForwardPolicy, node_network: &NodeNetwork) {
    let ForwardPolicy { family, table, chain } = policy;
    let remedy = policy.remedy(node_network);
    let message = format!(
        "the chain {chain} of the nftables table {family} {table} drops what pods and Services \
         send through this node; let them pass: {remedy}"
    );
    warn!(message, "forwarded packets are dropped");
    let about = InvolvedObject {
        api_version: "v1".into(),
        kind: "Node".into(),
        name: node.to_owned(),
        uid: node.to_owned(),
        ..InvolvedObject::default()
    };
    let reason = "ForwardingBlocked".into();
    let draft = EventDraft { about, severity: Severity::Warning, reason, message };
    events::record_once(client.clone(), "kube-proxy", draft).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(detect_local: DetectLocal) -> NodeNetwork {
        NodeNetwork { detect_local, ..NodeNetwork::default() }
    }

    fn networks() -> DetectLocal {
        DetectLocal::Networks(vec!["10.244.0.0/16".parse().unwrap()])
    }

    #[test]
    fn who_may_pass() {
        let cases = [
            ("nobody is known as a pod", DetectLocal::Unknown, ""),
            ("networks", networks(), "-s 10.244.0.0/16 -d 10.244.0.0/16"),
            ("a bridge", DetectLocal::Bridge("cni0".into()), "-i cni0 -o cni0"),
            ("names", DetectLocal::InterfacePrefix("veth".into()), "-i veth+ -o veth+"),
        ];
        for (name, detect_local, want) in cases {
            let rules = rules(&network(detect_local));
            let pods = &rules[1..rules.len() - 1];
            let pods: Vec<_> =
                pods.iter().map(|rule| rule.trim_end_matches(" -j ACCEPT")).collect();
            assert_eq!(pods.join(" "), want, "{name}");
        }
    }

    #[test]
    fn nothing_is_written_twice() {
        let network = network(networks());
        let closed = Listing::parse("*filter\n:FORWARD DROP [0:0]\nCOMMIT\n");
        let input = missing(&closed, &network).unwrap();
        let open = Listing::parse(&input);
        assert_eq!(missing(&open, &network), None);
        let moved = NodeNetwork { masquerade_mark: 0x8000, ..network };
        let input = missing(&open, &moved).unwrap();
        assert!(!input.contains("-A FORWARD"), "{input}");
    }

    #[test]
    fn the_remedy_is_a_command() {
        let policy =
            ForwardPolicy { family: "inet", table: "filter".into(), chain: "forward".into() };
        let remedy = policy.remedy(&network(networks()));
        assert_eq!(
            remedy,
            "nft 'insert rule inet filter forward ct state established,related accept'; \
             nft 'insert rule inet filter forward meta mark & 0x4000 == 0x4000 accept'; \
             nft 'insert rule inet filter forward ip saddr 10.244.0.0/16 accept'; \
             nft 'insert rule inet filter forward ip daddr 10.244.0.0/16 accept'"
        );
    }
}
