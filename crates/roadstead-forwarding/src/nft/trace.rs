//! Follows the first packet of a connection through a program, trying every random draw.

use super::model::{Chain, ChainName, Field, Hook, Key, Program, SetName, Statement, Value, Vip};
use crate::packet::{Origin, Outcome, Packet};

/// One way a packet can go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Where it ends.
    pub outcome: Outcome,
    /// It is taken once in so many times.
    pub one_in: u64,
}

/// Returns all the ways a packet can go through the program.
pub fn trace(program: &Program, packet: &Packet) -> Vec<Path> {
    let mut paths = Vec::new();
    let mut draws = Draws::default();
    loop {
        let mut walk = Walk {
            program,
            packet: packet.clone(),
            mark: 0,
            remembered: None,
            forwarded: false,
            draws,
        };
        let outcome = walk.run();
        let one_in = walk.draws.made.iter().map(|draw| u64::from(draw.below)).product();
        paths.push(Path { outcome, one_in });
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

struct Draw {
    value: u32,
    below: u32,
}

impl Draws {
    fn draw(&mut self, below: u32) -> u32 {
        let value = self.prescribed.get(self.made.len()).copied().unwrap_or(0);
        self.made.push(Draw { value, below });
        value
    }

    /// The next combination, counting up from the last draw.
    fn next(&self) -> Option<Draws> {
        let last = self.made.iter().rposition(|draw| draw.value + 1 < draw.below)?;
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
    packet: Packet,
    mark: u32,
    /// The packet's priority, in which we keep a number of slots.
    remembered: Option<u32>,
    forwarded: bool,
    draws: Draws,
}

impl Walk<'_> {
    fn run(&mut self) -> Outcome {
        let before_routing = match self.packet.origin {
            Origin::Node => [Hook::Output].as_slice(),
            Origin::Network(_) => &[Hook::Prerouting, Hook::Forward],
        };
        for hook in before_routing {
            match self.hook(*hook) {
                End::Drop => return Outcome::Drop,
                End::Reject => return Outcome::Reject,
                End::Return | End::Accept => {}
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

    fn named(&mut self, name: ChainName) -> End {
        let program = self.program;
        self.chain(&program.chains[&name])
    }

    fn statement(&mut self, statement: &Statement) -> Step {
        match *statement {
            Statement::IsNew => Step::Next,
            Statement::IsTranslated => Step::matches(self.forwarded),
            Statement::SourceOutside(network) => {
                Step::matches(!network.contains(&self.packet.source))
            }
            Statement::MarkClear(bits) => Step::matches(self.mark & bits == 0),
            Statement::Member(fields, set) => Step::matches(self.find(fields, set).is_some()),
            Statement::SetMark(bits) => {
                self.mark |= bits;
                Step::Next
            }
            Statement::FlipMark(bits) => {
                self.mark ^= bits;
                Step::Next
            }
            Statement::RememberCount(fields, map) => match self.find(fields, map) {
                Some(Value::Slots(count, _)) => {
                    self.remembered = Some(*count);
                    Step::Next
                }
                _ => Step::NoMatch,
            },
            Statement::GotoByCount(_) => match self.remembered_chain() {
                Some(chain) => Step::End(self.named(chain)),
                None => Step::NoMatch,
            },
            Statement::ForgetCount => {
                self.remembered = None;
                Step::Next
            }
            Statement::DestinationFromSlot(count, _) => self.forward(count),
            Statement::Masquerade => Step::End(End::Accept),
            Statement::Reject => Step::End(End::Reject),
            Statement::Drop => Step::End(End::Drop),
            Statement::Return => Step::End(End::Return),
            Statement::Jump(chain) => match self.named(chain) {
                End::Return => Step::Next,
                end => Step::End(end),
            },
        }
    }

    fn forward(&mut self, count: u32) -> Step {
        let slot = self.draws.draw(count);
        match self.program.elements.get(&Key::Endpoint(self.frontend(), slot)) {
            Some(Value::Target(target)) => {
                self.packet.destination = target.ip();
                self.packet.port = target.port();
                self.forwarded = true;
                Step::End(End::Accept)
            }
            _ => Step::NoMatch,
        }
    }

    fn remembered_chain(&self) -> Option<ChainName> {
        match self.program.elements.get(&Key::Pick(self.remembered?)) {
            Some(Value::Goto(chain)) => Some(*chain),
            _ => None,
        }
    }

    fn frontend(&self) -> Vip {
        let Packet { destination: address, protocol, port, .. } = self.packet;
        Vip { address, protocol, port }
    }

    fn find(&self, fields: &[Field], set: SetName) -> Option<&Value> {
        let Packet { source, destination, protocol, port, .. } = self.packet;
        let key = match (fields, set) {
            ([Field::Destination], SetName::ClusterIps) => Key::ClusterIp(destination),
            ([Field::Destination, Field::Protocol, Field::Port], SetName::ServiceIps) => {
                Key::Service(self.frontend())
            }
            ([Field::Destination, Field::Protocol, Field::Port], SetName::NoEndpointServices) => {
                Key::NoEndpoint(self.frontend())
            }
            (
                [Field::Destination, Field::Protocol, Field::Port],
                SetName::NoLocalEndpointServices,
            ) => Key::NoLocalEndpoint(self.frontend()),
            (
                [Field::Source, Field::Destination, Field::Protocol, Field::Port],
                SetName::HairpinConnections,
            ) if source == destination => Key::Hairpin(destination, protocol, port),
            _ => return None,
        };
        self.program.elements.get(&key)
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
