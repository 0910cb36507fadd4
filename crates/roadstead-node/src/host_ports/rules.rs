//! What nftables is told about host ports: pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use nlink::netlink::nftables::{
    BaseChain, Chain, CmpOp, CtStatus, Expr, Family, FibFlags, FilterHook, NatHook, PayloadBase,
    Priority, Register, Rule,
};
use nlink::netlink::types::route::RouteType;
use roadstead_pod::host_ports::HostPort;

/// The families that pods have addresses of.
pub(super) const FAMILIES: [Family; 2] = [Family::Ip, Family::Ip6];
/// The name of our tables, one in each family.
pub(super) const TABLE: &str = "roadstead-hostports";
/// What `nft list` shows beside it.
pub(super) const MARK: &str = "the host ports of roadstead";

/// The number of the destination port's first byte, in all protocols that have ports.
const DESTINATION_PORT: u32 = 2;

/// A port of the node, and where it leads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Forward {
    pub(super) port: HostPort,
    pub(super) target: IpAddr,
}

/// A family, and a chain of its table.
type Place = (Family, &'static str);

/// A rule, with a comment that says what it does, and by which it is known again.
pub(super) struct HostPortRule {
    chain: &'static str,
    comment: String,
    rule: Rule,
}

impl HostPortRule {
    fn new(place: Place, comment: impl Into<String>, rule: impl Fn(Rule) -> Rule) -> Self {
        let (family, chain) = place;
        let blank = Rule::new(TABLE, chain).family(family);
        Self { chain, comment: comment.into(), rule: rule(blank) }
    }

    pub(super) fn identity(&self) -> (String, String) {
        (self.chain.to_owned(), self.comment.clone())
    }

    pub(super) fn rule(self) -> Rule {
        self.rule.comment(&self.comment)
    }
}

/// The chains. Those that translate come one step after the proxy's, which is a node port's first.
pub(super) fn chains(family: Family) -> Result<Vec<Chain>, nlink::Error> {
    let after_services = Priority::Custom(Priority::DstNat.to_i32() + 1);
    let chain = |name| Chain::new(TABLE, name).map(|chain| chain.family(family));
    Ok(vec![
        chain("ports")?,
        chain("guard")?.base(BaseChain::filter(FilterHook::Prerouting, Priority::Raw)),
        chain("prerouting")?.base(BaseChain::nat(NatHook::Prerouting, after_services)),
        chain("output")?.base(BaseChain::nat(NatHook::Output, after_services)),
        chain("postrouting")?.base(BaseChain::nat(NatHook::Postrouting, Priority::SrcNat)),
    ])
}

/// All rules of a family, in the order in which the kernel lists them: by chain. Without forwards there are
/// none.
pub(super) fn ruleset(family: Family, bridge: &str, forwards: &[Forward]) -> Vec<HostPortRule> {
    let (loopback, length): (IpAddr, u8) = match family {
        Family::Ip6 => (Ipv6Addr::LOCALHOST.into(), 128),
        _ => (Ipv4Addr::new(127, 0, 0, 0).into(), 8),
    };
    let forwards: Vec<_> =
        forwards.iter().filter(|one| one.target.is_ipv6() == (family == Family::Ip6)).collect();
    if forwards.is_empty() {
        return Vec::new();
    }
    let mut rules: Vec<_> = forwards.iter().map(|forward| translation(family, forward)).collect();
    rules.extend([
        HostPortRule::new((family, "guard"), "pods do not reach the node's loopback", |rule| {
            rule.match_iif(bridge).match_daddr(loopback, length).drop()
        }),
        HostPortRule::new((family, "guard"), "nor pretend to be it", |rule| {
            rule.match_iif(bridge).match_saddr(loopback, length).drop()
        }),
    ]);
    rules.extend(["prerouting", "output"].map(|chain| {
        HostPortRule::new((family, chain), "what is for the node itself", |rule| {
            let rule = rule.match_fib_type(FibFlags::DADDR, RouteType::Local);
            rule.try_jump("ports").expect("it is a name of a chain")
        })
    }));
    let place = (family, "postrouting");
    rules.push(HostPortRule::new(place, "pods cannot answer to loopback", |rule| {
        rule.match_oif(bridge).match_saddr(loopback, length).masquerade()
    }));
    let mut targets: Vec<_> = forwards.iter().map(|forward| forward.target).collect();
    targets.sort();
    targets.dedup();
    rules.extend(targets.into_iter().map(|target| {
        HostPortRule::new(place, format!("{target} to itself"), |rule| {
            let (rule, whole) = (rule.match_ct_status(CtStatus::DST_NAT), whole(target));
            rule.match_saddr(target, whole).match_daddr(target, whole).masquerade()
        })
    }));
    rules
}

/// The length of a prefix that is an address.
fn whole(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn translation(family: Family, Forward { port, target }: &Forward) -> HostPortRule {
    let to = SocketAddr::new(*target, port.container_port);
    HostPortRule::new((family, "ports"), format!("{port} to {to}"), |rule| {
        let rule = match port.address {
            Some(address) => rule.match_daddr(address, whole(address)),
            None => rule,
        };
        let rule = rule.match_l4proto(port.protocol.number());
        let load = Expr::Payload {
            dreg: Register::R0,
            base: PayloadBase::Transport,
            offset: DESTINATION_PORT,
            len: 2,
        };
        let data = port.port.to_be_bytes().to_vec();
        let compare = Expr::Cmp { sreg: Register::R0, op: CmpOp::Eq, data };
        let rule = rule.expr(load).expr(compare);
        match *target {
            IpAddr::V4(target) => rule.dnat(target, Some(port.container_port)),
            IpAddr::V6(target) => rule.dnat_v6(target, Some(port.container_port)),
        }
    })
}
