//! The rules of one service port: its entries in the shared chains, and chains of its own.
//!
//! The layout is that of kube-proxy (upstream `pkg/proxy/iptables/proxier.go`), rule by rule and
//! comment by comment, so that tools and people find what they know.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;

use super::compile::{Context, LOCALHOST_ACCEPTED, MARK_MASQUERADE, loopback};
use super::model::{ChainName, Match, Rule, Sense, Verdict};
use super::names::{Purpose, display, endpoint_chain, service_chain};
use crate::select::TrafficPolicy;
use crate::service::{
    Frontend, FrontendKind, Handling, Host, IpFamily, Protocol, ServicePort, ServicePortName,
    Target,
};

/// The chains that all service ports share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Shared {
    /// `KUBE-SERVICES` in `nat`: where addresses lead.
    Services,
    /// `KUBE-NODEPORTS` in `nat`: where node ports lead.
    NodePorts,
    /// `KUBE-SERVICES` in `filter`: ClusterIPs without endpoints.
    Unserved,
    /// `KUBE-EXTERNAL-SERVICES` in `filter`: other frontends without endpoints.
    ExternalUnserved,
    /// `KUBE-PROXY-FIREWALL` in `filter`: what the source ranges did not admit.
    Firewall,
    /// `KUBE-NODEPORTS` in `filter`: load balancers may ask for the node's health.
    HealthChecks,
}

/// All rules of a service port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PortRules {
    /// Its entries in the shared chains, in order.
    pub shared: Vec<(Shared, Rule)>,
    /// Its own chains, all in `nat`.
    pub own: BTreeMap<ChainName, Vec<Rule>>,
}

/// Compiles a service port with the frontends that are really its own.
pub(crate) fn compile_port(
    context: &Context<'_>,
    name: &ServicePortName,
    port: &ServicePort,
    frontends: &[(Frontend, FrontendKind)],
) -> PortRules {
    let mut compiler =
        Compiler { context, name, port, title: display(name), rules: PortRules::default() };
    if frontends.is_empty() {
        return compiler.rules;
    }
    for (listed_as, frontend, kind) in in_order(port, frontends) {
        compiler.frontend(&frontend, kind, listed_as);
    }
    if let Some(number) = port.health_check_port {
        compiler.health_check(number);
    }
    if port.has_endpoints() {
        compiler.policies(frontends);
    }
    compiler.rules
}

/// The frontends in the order in which kube-proxy lists them. An external address that is also one of
/// the load balancer comes twice, and is a load balancer's both times: unlike kube-proxy's, our
/// rule for the external one does not lead past the source ranges.
fn in_order(
    port: &ServicePort,
    frontends: &[(Frontend, FrontendKind)],
) -> Vec<(FrontendKind, Frontend, FrontendKind)> {
    let place = |kind: FrontendKind| match kind {
        FrontendKind::ClusterIp => 0,
        FrontendKind::ExternalIp => 1,
        FrontendKind::LoadBalancer => 2,
        FrontendKind::NodePort => 3,
    };
    let is_external = |frontend: &Frontend| match frontend.host {
        Host::Address(address) => port.external_ips.contains(&address),
        Host::Node => false,
    };
    let mut all: Vec<_> = frontends.iter().map(|(f, kind)| (*kind, *f, *kind)).collect();
    let both = all
        .clone()
        .into_iter()
        .filter(|(kind, frontend, _)| *kind == FrontendKind::LoadBalancer && is_external(frontend));
    all.extend(both.map(|(_, frontend, kind)| (FrontendKind::ExternalIp, frontend, kind)));
    all.sort_by_key(|(listed_as, frontend, _)| (place(*listed_as), *frontend));
    all
}

/// The same, of callers on the node that call it by a loopback address.
fn counted_locally(matches: Vec<Match>) -> impl Iterator<Item = Match> {
    let loopback = Match::Destination(loopback(IpFamily::V4), Sense::Is);
    [loopback].into_iter().chain(matches).chain([Match::Count(LOCALHOST_ACCEPTED)])
}

struct Compiler<'a> {
    context: &'a Context<'a>,
    name: &'a ServicePortName,
    port: &'a ServicePort,
    title: String,
    rules: PortRules,
}

impl Compiler<'_> {
    /// The way from a frontend to the chain that handles it, or the refusal.
    fn frontend(&mut self, frontend: &Frontend, kind: FrontendKind, listed_as: FrontendKind) {
        let what = match listed_as {
            FrontendKind::ClusterIp => " cluster IP",
            FrontendKind::ExternalIp => " external IP",
            FrontendKind::LoadBalancer => " loadbalancer IP",
            FrontendKind::NodePort => "",
        };
        let handling = self.port.handling(self.port.policy(kind));
        // Under policy Local, pods and the node itself reach all endpoints from an external chain.
        if self.port.has_endpoints()
            && (kind != FrontendKind::ClusterIp || matches!(handling, Handling::Forward(_)))
        {
            let shared = match frontend.host {
                Host::Address(_) => Shared::Services,
                Host::Node => Shared::NodePorts,
            };
            let matches = to_frontend(frontend, format!("{}{what}", self.title));
            let chain = self.chain_of(kind);
            if frontend.host == Host::Node && self.context.counts_localhost() {
                let counted = counted_locally(matches.clone());
                let rule = Rule::new(counted, Verdict::Jump(chain.clone()));
                self.rules.shared.push((shared, rule));
            }
            self.rules.shared.push((shared, Rule::new(matches, Verdict::Jump(chain))));
        }
        self.refusal(frontend, kind, handling);
        if listed_as == FrontendKind::LoadBalancer {
            self.fence(frontend);
        }
    }

    /// Drops what still has the address of a load balancer. Where there are no endpoints everything
    /// has, and those who may call are left to be refused.
    fn fence(&mut self, frontend: &Frontend) {
        let Some(ranges) = &self.port.source_ranges else { return };
        let chain = service_chain(Purpose::Firewall, self.name);
        let comment = format!("{} traffic not accepted by {chain}", self.title);
        let matches = to_frontend(frontend, comment);
        if !self.port.has_endpoints() {
            let own = self.looped_back().iter().copied();
            let own = own.filter(|own| frontend.host == Host::Address(*own)).map(IpNet::from);
            let admit = |network: IpNet| {
                let from = [Match::Source(network, Sense::Is)].into_iter();
                let rule = Rule::new(from.chain(matches.clone()), Verdict::Return);
                (Shared::Firewall, rule)
            };
            let admitted: Vec<_> = ranges.iter().copied().chain(own).map(admit).collect();
            self.rules.shared.extend(admitted);
        }
        self.rules.shared.push((Shared::Firewall, Rule::new(matches, Verdict::Drop)));
    }

    /// A node that calls the load balancer's address has that address as its source.
    fn looped_back(&self) -> &[IpAddr] {
        let node = self.context.node_network.node_address;
        match node.is_some_and(|node| self.port.admits(node)) {
            true => &self.port.load_balancer_ips,
            false => &[],
        }
    }

    fn refusal(&mut self, frontend: &Frontend, kind: FrontendKind, handling: Handling<'_>) {
        let (verdict, why) = match handling {
            Handling::Forward(_) => return,
            Handling::Reject => (Verdict::Reject, "has no endpoints"),
            Handling::Drop => (Verdict::Drop, "has no local endpoints"),
        };
        let shared = match kind {
            FrontendKind::ClusterIp => Shared::Unserved,
            _ => Shared::ExternalUnserved,
        };
        let mut matches = to_frontend(frontend, format!("{} {why}", self.title));
        if frontend.host == Host::Node {
            matches.insert(1, Match::DestinationLocal);
        }
        self.rules.shared.push((shared, Rule::new(matches, verdict)));
    }

    /// Lets load balancers ask for the node's health, whatever other rules say.
    fn health_check(&mut self, number: u16) {
        let comment = Match::Comment(format!("{} health check node port", self.title));
        let tcp = Protocol::Tcp;
        let matches = [comment, Match::Protocol(tcp), Match::Port(tcp, number)];
        self.rules.shared.push((Shared::HealthChecks, Rule::new(matches, Verdict::Accept)));
    }

    /// The chain that a kind of frontends leads to.
    fn chain_of(&self, kind: FrontendKind) -> ChainName {
        match kind {
            FrontendKind::ClusterIp => self.policy_chain(self.port.internal_policy),
            FrontendKind::LoadBalancer if self.has_firewall() => {
                service_chain(Purpose::Firewall, self.name)
            }
            _ => service_chain(Purpose::External, self.name),
        }
    }

    fn policy_chain(&self, policy: TrafficPolicy) -> ChainName {
        let purpose = match policy {
            TrafficPolicy::Cluster => Purpose::Cluster,
            TrafficPolicy::Local => Purpose::Local,
        };
        service_chain(purpose, self.name)
    }

    fn has_firewall(&self) -> bool {
        self.port.has_endpoints()
            && !self.port.load_balancer_ips.is_empty()
            && self.port.source_ranges.is_some()
    }

    /// The chains of a port that has endpoints.
    fn policies(&mut self, frontends: &[(Frontend, FrontendKind)]) {
        let port = self.port;
        if port.is_external() {
            self.external_chain();
        }
        if self.has_firewall() {
            self.firewall_chain();
        }
        let mut used = BTreeSet::new();
        for (policy, uses) in [
            (TrafficPolicy::Cluster, port.uses_cluster()),
            (TrafficPolicy::Local, port.uses_local()),
        ] {
            let targets = port.targets(policy);
            if uses && !targets.is_empty() {
                self.picking_chain(policy, frontends, targets);
                used.extend(targets);
            }
        }
        for target in used {
            self.endpoint_chain(target);
        }
    }

    /// Chooses among targets; callers of the ClusterIP from outside are marked first.
    fn picking_chain(
        &mut self,
        policy: TrafficPolicy,
        frontends: &[(Frontend, FrontendKind)],
        targets: &[Target],
    ) {
        let mut rules = Vec::new();
        let internal = frontends.iter().filter(|(_, kind)| *kind == FrontendKind::ClusterIp);
        for (frontend, _) in internal.filter(|_| self.port.internal_policy == policy) {
            if let Some((from, verdict)) = self.context.masqueraded_callers() {
                let to = to_frontend(frontend, format!("{} cluster IP", self.title));
                rules.push(Rule::new(from.into_iter().chain(to), verdict));
            }
        }
        if let Some(timeout) = self.port.affinity {
            rules.extend(targets.iter().map(|target| self.returning(target, timeout)));
        }
        let count = u32::try_from(targets.len()).expect("fewer targets than addresses");
        rules.extend((0..count).rev().zip(targets).map(|(others, target)| {
            let chance = (others > 0).then_some(Match::OneIn(others + 1));
            let matches = self.endpoint_comment(target).into_iter().chain(chance);
            Rule::new(matches, Verdict::Jump(endpoint_chain(self.name, target.socket())))
        }));
        self.rules.own.insert(self.policy_chain(policy), rules);
    }

    /// A client that has been with a target goes there again.
    fn returning(&self, target: &Target, timeout: Duration) -> Rule {
        let chain = endpoint_chain(self.name, target.socket());
        let seconds = u32::try_from(timeout.as_secs()).unwrap_or(u32::MAX);
        let comment = self.endpoint_comment(target).into_iter();
        let seen = Match::SeenWithin(chain.clone(), seconds);
        Rule::new(comment.chain([seen]), Verdict::Jump(chain))
    }

    fn endpoint_comment(&self, target: &Target) -> Option<Match> {
        let comment = || Match::Comment(format!("{} -> {}", self.title, target.socket()));
        (!self.context.large).then(comment)
    }

    /// Sends a connection to a target; one that calls itself is marked.
    fn endpoint_chain(&mut self, target: &Target) {
        let chain = endpoint_chain(self.name, target.socket());
        let protocol = self.name.protocol;
        let comment = || (!self.context.large).then(|| Match::Comment(self.title.clone()));
        let own = Match::Source(IpNet::from(target.address), Sense::Is);
        let hairpin = Rule::new([own].into_iter().chain(comment()), jump(MARK_MASQUERADE));
        let remember = self.port.affinity.map(|_| Match::Remember(chain.clone()));
        let matches = [Match::Protocol(protocol)]
            .into_iter()
            .chain(comment())
            .chain(remember)
            .chain([Match::Transport(protocol)]);
        let translate = Rule::new(matches, Verdict::Destination(target.socket()));
        self.rules.own.insert(chain, vec![hairpin, translate]);
    }

    /// What comes from outside the cluster: masqueraded under policy Cluster, as it is under Local.
    fn external_chain(&mut self) {
        let comment =
            |text: &str| Match::Comment(format!("{text} for {} external destinations", self.title));
        let cluster = self.policy_chain(TrafficPolicy::Cluster);
        let mut rules = Vec::new();
        match self.port.external_policy {
            TrafficPolicy::Cluster => {
                rules.push(Rule::new([comment("masquerade traffic")], jump(MARK_MASQUERADE)));
            }
            TrafficPolicy::Local => {
                // A short circuit: inside the cluster the load balancer would send it anywhere.
                for from in self.context.local_callers() {
                    let matches = [from, comment("pod traffic")];
                    rules.push(Rule::new(matches, Verdict::Jump(cluster.clone())));
                }
                let own = |text| [comment(text), Match::SourceLocal];
                rules.push(Rule::new(own("masquerade LOCAL traffic"), jump(MARK_MASQUERADE)));
                rules.push(Rule::new(own("route LOCAL traffic"), Verdict::Jump(cluster)));
            }
        }
        if !self.port.targets(self.port.external_policy).is_empty() {
            let chain = self.policy_chain(self.port.external_policy);
            rules.push(Rule::new([], Verdict::Jump(chain)));
        }
        self.rules.own.insert(service_chain(Purpose::External, self.name), rules);
    }

    /// Admits the source ranges; whoever falls through keeps its destination, and is dropped.
    fn firewall_chain(&mut self) {
        let external = service_chain(Purpose::External, self.name);
        let admit = |network: IpNet| {
            let comment = Match::Comment(format!("{} loadbalancer IP", self.title));
            let matches = [Match::Source(network, Sense::Is), comment];
            Rule::new(matches, Verdict::Jump(external.clone()))
        };
        let ranges = self.port.source_ranges.iter().flatten().copied();
        let own = self.looped_back().iter().copied().map(IpNet::from);
        let mut rules: Vec<_> = ranges.chain(own).map(admit).collect();
        let comment =
            format!("other traffic to {} will be dropped by KUBE-PROXY-FIREWALL", self.title);
        rules.push(Rule::new([Match::Comment(comment)], Verdict::Nothing));
        self.rules.own.insert(service_chain(Purpose::Firewall, self.name), rules);
    }
}

fn jump(chain: &'static str) -> Verdict {
    Verdict::Jump(chain.into())
}

/// The destination of a frontend, in the order in which kube-proxy writes it.
fn to_frontend(frontend: &Frontend, comment: String) -> Vec<Match> {
    let Frontend { host, protocol, port } = *frontend;
    let mut matches = vec![Match::Comment(comment), Match::Protocol(protocol)];
    if let Host::Address(address) = host {
        matches.push(Match::Destination(IpNet::from(address), Sense::Is));
    }
    matches.push(Match::Port(protocol, port));
    matches
}
