//! Follows a packet through a program, to see what the kernel would do with it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::model::{
    ChainName, Field, Match, Program, Rule, Sense, TableName, TrackedState, Verdict,
};
use crate::ipvs::model::Server;
use crate::packet::{Origin, Outcome, Packet};

/// What a rule may ask that is not in the packet.
pub struct World<'a> {
    /// The addresses of the node.
    pub node_addresses: &'a BTreeSet<IpAddr>,
    /// The lists of clients that the sender is on.
    pub lists: &'a BTreeSet<ChainName>,
    /// Whether fields of the packet are in an ipset.
    pub in_set: &'a dyn Fn(&str, &[Field], &Packet) -> bool,
}

/// Everything that may become of a packet, and how likely each is: so many times out of so many.
pub fn trace(
    program: &Program,
    world: &World<'_>,
    packet: &Packet,
) -> BTreeMap<Outcome, (u64, u64)> {
    let mut outcomes = BTreeMap::new();
    let mut draws = Some(Draws::default());
    while let Some(mut current) = draws {
        let mut walk = Walk::new(program, world, packet.clone(), &mut current);
        let outcome = walk.run();
        let (won, of) = current.chance();
        let sum = outcomes.entry(outcome).or_insert((0, 1));
        *sum = add(*sum, (won, of));
        draws = current.next();
    }
    outcomes
}

fn add(a: (u64, u64), b: (u64, u64)) -> (u64, u64) {
    let (won, of) = (a.0 * b.1 + b.0 * a.1, a.1 * b.1);
    let divisor = greatest_common_divisor(won, of);
    (won / divisor, of / divisor)
}

fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a.max(1) } else { greatest_common_divisor(b, a % b) }
}

/// The draws of a walk: each wins or loses, so that all walks together are a tree.
#[derive(Clone, Debug, Default)]
pub(crate) struct Draws {
    prescribed: Vec<bool>,
    made: Vec<(bool, u32)>,
}

impl Draws {
    fn wins(&mut self, one_in: u32) -> bool {
        let won = self.prescribed.get(self.made.len()).copied().unwrap_or(true);
        self.made.push((won, one_in));
        won
    }

    fn chance(&self) -> (u64, u64) {
        let factor = |(won, of): &(bool, u32)| match won {
            true => (1, u64::from(*of)),
            false => (u64::from(*of) - 1, u64::from(*of)),
        };
        self.made.iter().map(factor).fold((1, 1), |(won, of), (w, o)| {
            let (won, of) = (won * w, of * o);
            let divisor = greatest_common_divisor(won, of);
            (won / divisor, of / divisor)
        })
    }

    fn next(&self) -> Option<Draws> {
        let last = self.made.iter().rposition(|(won, _)| *won)?;
        let mut prescribed: Vec<_> = self.made[..=last].iter().map(|(won, _)| *won).collect();
        prescribed[last] = false;
        Some(Draws { prescribed, made: Vec::new() })
    }
}

/// How a chain ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Back to the caller.
    Return,
    /// The packet may pass this hook.
    Accept,
    /// It disappears.
    Drop,
    /// It is refused.
    Reject,
}

/// A packet on its way.
pub(crate) struct Walk<'a> {
    program: &'a Program,
    world: &'a World<'a>,
    /// As it looks by now.
    pub packet: Packet,
    mark: u32,
    forwarded: bool,
    masqueraded: bool,
    through: Option<Server>,
    draws: &'a mut Draws,
}

impl<'a> Walk<'a> {
    /// Starts with a packet that has not passed any hook.
    pub(crate) fn new(
        program: &'a Program,
        world: &'a World<'a>,
        packet: Packet,
        draws: &'a mut Draws,
    ) -> Self {
        Self {
            program,
            world,
            packet,
            mark: 0,
            forwarded: false,
            masqueraded: false,
            through: None,
            draws,
        }
    }

    fn run(&mut self) -> Outcome {
        let (nat, filter) = (TableName::Nat, TableName::Filter);
        let stages: &[(TableName, &str)] = match self.packet.origin {
            Origin::Node => &[(nat, "OUTPUT"), (filter, "OUTPUT")],
            Origin::Network(_) => &[(nat, "PREROUTING")],
        };
        for (table, hook) in stages {
            if let Some(outcome) = stop(self.hook(*table, hook)) {
                return outcome;
            }
        }
        // What the node sends to itself comes in again by the loopback link.
        let hook = match self.packet.origin {
            _ if self.is_for_this_node() => Some("INPUT"),
            Origin::Network(_) => Some("FORWARD"),
            Origin::Node => None,
        };
        if let Some(outcome) = hook.and_then(|hook| stop(self.hook(filter, hook))) {
            return outcome;
        }
        self.leave()
    }

    /// The last hook, and what has become of the packet.
    pub(crate) fn leave(&mut self) -> Outcome {
        self.hook(TableName::Nat, "POSTROUTING");
        if self.forwarded {
            let target = (self.packet.destination, self.packet.port).into();
            Outcome::Forward { target, masquerade: self.masqueraded }
        } else {
            Outcome::Pass
        }
    }

    /// Sends the packet elsewhere, as IPVS does between two hooks.
    pub(crate) fn redirect(&mut self, target: std::net::SocketAddr) {
        self.packet.destination = target.ip();
        self.packet.port = target.port();
        self.forwarded = true;
    }

    /// Notes that IPVS has taken the packet by one of its servers.
    pub(crate) fn through(&mut self, server: Server) {
        self.through = Some(server);
    }

    /// Whether the packet is for an address of this node.
    pub(crate) fn is_for_this_node(&self) -> bool {
        self.world.node_addresses.contains(&self.packet.destination)
    }

    /// Passes one of the kernel's chains: jumps into our chains, the last made first.
    pub(crate) fn hook(&mut self, table: TableName, from: &str) -> End {
        let program = self.program;
        let hooks = program.hooks.iter().rev().filter(|h| h.table == table && h.from == from);
        for hook in hooks {
            match self.rule(table, &hook.rule) {
                End::Return => {}
                end => return end,
            }
        }
        End::Return
    }

    fn chain(&mut self, table: TableName, name: &ChainName) -> End {
        let program = self.program;
        for rule in &program.chains[&(table, name.clone())] {
            if rule.verdict == Verdict::Return {
                if self.matches(rule) {
                    return End::Return;
                }
                continue;
            }
            match self.rule(table, rule) {
                End::Return => {}
                end => return end,
            }
        }
        End::Return
    }

    /// Applies a rule; `Return` means that the next rule is looked at.
    fn rule(&mut self, table: TableName, rule: &Rule) -> End {
        if !self.matches(rule) {
            return End::Return;
        }
        match &rule.verdict {
            Verdict::Jump(chain) => self.chain(table, chain),
            Verdict::Return | Verdict::Nothing => End::Return,
            Verdict::Accept => End::Accept,
            Verdict::Drop => End::Drop,
            Verdict::Reject => End::Reject,
            Verdict::Mark(bit) => {
                self.mark |= bit;
                End::Return
            }
            Verdict::Unmark(bit) => {
                self.mark ^= bit;
                End::Return
            }
            Verdict::Masquerade => {
                self.masqueraded = true;
                End::Accept
            }
            Verdict::Destination(target) => {
                self.redirect(*target);
                End::Accept
            }
        }
    }

    fn matches(&mut self, rule: &Rule) -> bool {
        // The header of a rule is compared before its extensions, whatever their order; only a
        // draw has an effect, and no rule has one before a header.
        rule.matches.iter().all(|one| self.holds(one))
    }

    fn holds(&mut self, one: &Match) -> bool {
        let sensed = |sense: Sense, holds: bool| (sense == Sense::Is) == holds;
        let Packet { source, destination, protocol, port, .. } = self.packet;
        match one {
            Match::Source(network, sense) => sensed(*sense, network.contains(&source)),
            Match::Destination(network, sense) => sensed(*sense, network.contains(&destination)),
            Match::Input(pattern, sense) => sensed(*sense, self.came_by(pattern)),
            Match::Protocol(wanted) | Match::Transport(wanted) => *wanted == protocol,
            Match::Comment(_) | Match::Remember(_) | Match::Count(_) => true,
            Match::Uninvited => !self.forwarded,
            Match::Port(wanted, number) => *wanted == protocol && *number == port,
            Match::SourceLocal => {
                self.packet.origin == Origin::Node || self.world.node_addresses.contains(&source)
            }
            Match::DestinationLocal => self.world.node_addresses.contains(&destination),
            Match::State(state) => *state == TrackedState::New,
            Match::Marked(bit, sense) => sensed(*sense, self.mark & bit != 0),
            Match::OneIn(count) => self.draws.wins(*count),
            Match::SeenWithin(list, _) => self.world.lists.contains(list),
            Match::Virtual(address, protocol, port) => {
                let (address, protocol, port) = (*address, *protocol, *port);
                self.through == Some(Server { address, protocol, port })
            }
            Match::InSet(set, fields, sense) => {
                sensed(*sense, (self.world.in_set)(set, fields, &self.packet))
            }
        }
    }

    fn came_by(&self, pattern: &str) -> bool {
        let Origin::Network(name) = &self.packet.origin else { return false };
        match pattern.strip_suffix('+') {
            Some(prefix) => name.starts_with(prefix),
            None => **name == *pattern,
        }
    }
}

fn stop(end: End) -> Option<Outcome> {
    match end {
        End::Drop => Some(Outcome::Drop),
        End::Reject => Some(Outcome::Reject),
        End::Return | End::Accept => None,
    }
}
