//! Follows the first packet of a connection through a program, trying every random draw.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use super::model::{Chain, Field, Hook, Is, Key, Program, Statement, Value};
use super::names::{ChainName, SetName};
use crate::packet::{Origin, Outcome, Packet};
use crate::service::{Frontend, Host};

/// What a trace must know besides the program.
#[derive(Clone, Debug)]
pub struct Situation<'a> {
    /// The packet.
    pub packet: &'a Packet,
    /// All addresses of the node.
    pub node_addresses: &'a BTreeSet<IpAddr>,
    /// The target that the sender was forwarded to before, if that is still remembered.
    pub before: Option<SocketAddr>,
}

/// One way a packet can go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Where it ends.
    pub outcome: Outcome,
    /// How likely it is, as numerator and denominator.
    pub chance: (u64, u64),
}

/// Returns all the ways a packet can go through the program.
pub fn trace(program: &Program, situation: &Situation<'_>) -> Vec<Path> {
    let mut paths = Vec::new();
    let mut draws = Draws::default();
    loop {
        let mut walk = Walk {
            program,
            situation,
            packet: situation.packet.clone(),
            mark: 0,
            remembered: None,
            forwarded: false,
            draws,
        };
        let outcome = walk.run();
        let product = |(n, d): (u64, u64), draw: &Draw| {
            let (numerator, denominator) = draw.chance();
            (n * numerator, d * denominator)
        };
        let chance = walk.draws.made.iter().fold((1, 1), product);
        paths.push(Path { outcome, chance });
        match walk.draws.next() {
            Some(next) => draws = next,
            None => return paths,
        }
    }
}

/// The random numbers of one walk: first those prescribed, then zeroes.
#[derive(Default)]
struct Draws {
    prescribed: Vec<u32>,
    made: Vec<Draw>,
}

/// A random choice: one of `below` values, or whether one in `below` comes up (0 if it does).
struct Draw {
    value: u32,
    below: u32,
    yes_or_no: bool,
}

impl Draw {
    fn choices(&self) -> u32 {
        if self.yes_or_no { self.below.min(2) } else { self.below }
    }

    fn chance(&self) -> (u64, u64) {
        let below = u64::from(self.below);
        match (self.yes_or_no, self.value) {
            (true, 1) => (below - 1, below),
            _ => (1, below),
        }
    }
}

impl Draws {
    fn draw(&mut self, below: u32, yes_or_no: bool) -> u32 {
        let value = self.prescribed.get(self.made.len()).copied().unwrap_or(0);
        self.made.push(Draw { value, below, yes_or_no });
        value
    }

    /// The next combination, counting up from the last draw.
    fn next(&self) -> Option<Draws> {
        let last = self.made.iter().rposition(|draw| draw.value + 1 < draw.choices())?;
        let mut prescribed: Vec<_> = self.made[..=last].iter().map(|draw| draw.value).collect();
        prescribed[last] += 1;
        Some(Draws { prescribed, made: Vec::new() })
    }
}

/// How a chain ends.
enum End {
    /// Back to the caller.
    Return,
    /// The packet may pass this hook.
    Accept,
    Drop,
    Reject,
}

struct Walk<'a> {
    program: &'a Program,
    situation: &'a Situation<'a>,
    packet: Packet,
    mark: u32,
    /// The packet's priority, in which we keep a class.
    remembered: Option<Key>,
    forwarded: bool,
    draws: Draws,
}

impl<'a> Walk<'a> {
    fn run(&mut self) -> Outcome {
        let first = match self.packet.origin {
            Origin::Node => Hook::Output,
            Origin::Network(_) => Hook::Prerouting,
        };
        if let Some(outcome) = self.stopped_at(first) {
            return outcome;
        }
        let is_ours = self.situation.node_addresses.contains(&self.packet.destination);
        if first == Hook::Prerouting {
            let second = if is_ours { Hook::Input } else { Hook::Forward };
            if let Some(outcome) = self.stopped_at(second) {
                return outcome;
            }
        }
        // Source translation accepts, so that masquerading shows in how the chains end.
        let masquerade = matches!(self.hook(Hook::Postrouting), End::Accept);
        if self.forwarded || masquerade {
            let target = (self.packet.destination, self.packet.port).into();
            Outcome::Forward { target, masquerade }
        } else {
            Outcome::Pass
        }
    }

    fn stopped_at(&mut self, hook: Hook) -> Option<Outcome> {
        match self.hook(hook) {
            End::Drop => Some(Outcome::Drop),
            End::Reject => Some(Outcome::Reject),
            End::Return | End::Accept => None,
        }
    }

    /// Runs the base chains of a hook in the order of their priorities.
    fn hook(&mut self, hook: Hook) -> End {
        let program = self.program;
        let mut chains: Vec<_> = program
            .chains
            .values()
            .filter_map(|chain| Some((chain.base.filter(|base| base.hook == hook)?, chain)))
            .collect();
        chains.sort_by_key(|(base, _)| base.priority);
        let mut end = End::Return;
        for (_, chain) in chains {
            match self.chain(chain) {
                End::Return => {}
                End::Accept => end = End::Accept,
                stop => return stop,
            }
        }
        end
    }

    fn chain(&mut self, chain: &Chain) -> End {
        'rules: for rule in &chain.rules {
            for statement in rule {
                match self.statement(statement) {
                    Step::Next => {}
                    Step::NoMatch => continue 'rules,
                    Step::End(end) => return end,
                }
            }
        }
        End::Return
    }

    fn named(&mut self, name: &ChainName) -> End {
        let program = self.program;
        self.chain(&program.chains[name])
    }

    fn statement(&mut self, statement: &Statement) -> Step {
        let interface = match &self.packet.origin {
            Origin::Node => "",
            Origin::Network(name) => name,
        };
        let ours = &self.situation.node_addresses;
        let is = |is: Is, holds: bool| Step::matches(holds == (is == Is::In));
        match statement {
            Statement::IsNew => Step::Next,
            Statement::IsTranslated => Step::matches(self.forwarded),
            Statement::Source(sense, net) => is(*sense, net.contains(&self.packet.source)),
            Statement::Destination(sense, net) => {
                is(*sense, net.contains(&self.packet.destination))
            }
            Statement::Interface(sense, name) => is(*sense, interface == name),
            Statement::InterfacePrefix(sense, name) => {
                is(*sense, interface.starts_with(name.as_str()))
            }
            Statement::SourceIsOurs => Step::matches(ours.contains(&self.packet.source)),
            Statement::DestinationIsOurs => Step::matches(ours.contains(&self.packet.destination)),
            Statement::ProtocolIs(protocol) => Step::matches(self.packet.protocol == *protocol),
            Statement::MarkSet(bits) => Step::matches(self.mark & bits != 0),
            Statement::Member(fields, sense, set) => is(*sense, self.find(fields, *set).is_some()),
            Statement::Remembered(set) => Step::matches(self.situation.before == Some(set.target)),
            Statement::Remember(_) => Step::Next,
            Statement::OnceIn(count) => Step::matches(self.draws.draw(*count, true) == 0),
            Statement::SetMark(bits) => {
                self.mark |= bits;
                Step::Next
            }
            Statement::FlipMark(bits) => {
                self.mark ^= bits;
                Step::Next
            }
            Statement::RememberClass(fields, map) => match self.find(fields, *map) {
                Some(Value::Class(class, _)) => {
                    self.remembered = Some(Key::Pick(*class));
                    Step::Next
                }
                _ => Step::NoMatch,
            },
            Statement::GotoByClass(_) => {
                let key = self.remembered;
                self.goto(key.and_then(|key| self.program.elements.get(&key)))
            }
            Statement::ForgetClass => {
                self.remembered = None;
                Step::Next
            }
            Statement::GotoByFields(fields, map) => self.goto(self.find(fields, *map)),
            Statement::DestinationFromSlot(fields, count, map) => {
                let slot = self.draws.draw(*count, false);
                match self.find_slot(fields, *map, slot) {
                    Some(Value::Target(target)) => self.forward(*target),
                    _ => Step::NoMatch,
                }
            }
            Statement::DestinationTo(target) => self.forward(*target),
            Statement::Masquerade | Statement::Accept => Step::End(End::Accept),
            Statement::Reject => Step::End(End::Reject),
            Statement::Drop => Step::End(End::Drop),
            Statement::Return => Step::End(End::Return),
            Statement::Jump(chain) => match self.named(chain) {
                End::Return => Step::Next,
                end => Step::End(end),
            },
            Statement::Goto(chain) => Step::End(self.named(chain)),
        }
    }

    fn goto(&mut self, found: Option<&Value>) -> Step {
        match found {
            Some(Value::Goto(chain)) => {
                let chain = chain.clone();
                Step::End(self.named(&chain))
            }
            _ => Step::NoMatch,
        }
    }

    fn forward(&mut self, target: SocketAddr) -> Step {
        self.packet.destination = target.ip();
        self.packet.port = target.port();
        self.forwarded = true;
        Step::End(End::Accept)
    }

    fn frontend(&self, fields: &[Field]) -> Frontend {
        let Packet { destination, protocol, port, .. } = self.packet;
        let has_address = fields.contains(&Field::Destination);
        let host = if has_address { Host::Address(destination) } else { Host::Node };
        Frontend { host, protocol, port }
    }

    fn find_slot(&self, fields: &[Field], map: SetName, slot: u32) -> Option<&Value> {
        let frontend = self.frontend(fields);
        let keys = [Key::Endpoint(frontend, slot), Key::LocalEndpoint(frontend, slot)];
        let key = keys.into_iter().find(|key| key.set() == map)?;
        self.program.elements.get(&key)
    }

    fn find(&self, fields: &[Field], set: SetName) -> Option<&'a Value> {
        let Packet { source, destination, protocol, port, .. } = self.packet;
        let frontend = self.frontend(fields);
        let elements = &self.program.elements;
        if set == SetName::FirewallAllowed {
            let allows = |key: &Key| matches!(key, Key::Allowed(f, net) if *f == frontend && net.contains(&source));
            return elements.iter().find(|(key, _)| allows(key)).map(|(_, value)| value);
        }
        let keys = [
            Key::ClusterIp(destination),
            Key::NodePortIp(destination),
            Key::FrontendIp(destination),
            Key::NodePort(protocol, port),
            Key::Service(frontend),
            Key::LocalService(frontend),
            Key::Affinity(frontend),
            Key::NoEndpoint(frontend),
            Key::NoLocalEndpoint(frontend),
            Key::Firewalled(frontend),
            Key::Hairpin(destination, protocol, port),
        ];
        let key = keys.into_iter().find(|key| key.set() == set)?;
        // A key that has the source in it is about somebody who calls itself.
        (!fields.contains(&Field::Source) || source == destination).then(|| elements.get(&key))?
    }
}

/// What a statement does to the walk.
enum Step {
    Next,
    NoMatch,
    End(End),
}

impl Step {
    fn matches(condition: bool) -> Self {
        if condition { Step::Next } else { Step::NoMatch }
    }
}
