//! Follows an attempt through a program.

use roadstead_api::key::ObjectKey;

use crate::decide::Attempt;
use crate::policy::Direction;
use crate::program::{
    ChainRule, ElementKey, ElementValue, PolicyChain, PolicyProgram, PolicySet, SetKey, Step,
};

/// Where a packet ended in each base chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Passage {
    /// Nobody stopped it; these policies let it through.
    Passed(Vec<ObjectKey>),
    /// It was dropped on its way out, or on its way in.
    Dropped(Direction),
}

/// What the program does with a packet of a connection.
pub fn trace(program: &PolicyProgram, attempt: &Attempt) -> Passage {
    walk(program, attempt, true)
}

/// What the program does with a packet of which the kernel knows no connection.
#[cfg(test)]
pub(crate) fn trace_untracked(program: &PolicyProgram, packet: &Attempt) -> Passage {
    walk(program, packet, false)
}

fn walk(program: &PolicyProgram, attempt: &Attempt, tracked: bool) -> Passage {
    let mut by = Vec::new();
    for direction in Direction::ALL {
        let mut walk = Walk { program, attempt, tracked, by: &mut by };
        if walk.chain(&PolicyChain::Base(direction)) == End::Drop {
            return Passage::Dropped(direction);
        }
    }
    Passage::Passed(by)
}

#[derive(PartialEq)]
enum End {
    Return,
    Accept,
    Drop,
}

struct Walk<'a> {
    program: &'a PolicyProgram,
    attempt: &'a Attempt,
    tracked: bool,
    by: &'a mut Vec<ObjectKey>,
}

impl Walk<'_> {
    fn chain(&mut self, name: &PolicyChain) -> End {
        let Some(rules) = self.program.chains.get(name) else { return End::Return };
        for rule in rules {
            match self.rule(rule) {
                Some(End::Accept) => {
                    if let PolicyChain::Policy(_, key) = name {
                        self.by.push((**key).clone());
                    }
                    return End::Accept;
                }
                Some(end) => return end,
                None => {}
            }
        }
        End::Return
    }

    /// How a rule ends the chain, if it does.
    fn rule(&mut self, rule: &ChainRule) -> Option<End> {
        for step in rule {
            match step {
                Step::Accept => return Some(End::Accept),
                Step::Drop => return Some(End::Drop),
                Step::Return => return Some(End::Return),
                Step::Jump(chain) => match self.chain(chain) {
                    End::Return => return None,
                    end => return Some(end),
                },
                Step::Profile(direction) if self.tracked => return self.profile(*direction),
                Step::PacketProfile(direction) => return self.profile(*direction),
                condition => {
                    if !self.holds(condition) {
                        return None;
                    }
                }
            }
        }
        None
    }

    fn profile(&mut self, direction: Direction) -> Option<End> {
        let address = match direction {
            Direction::Ingress => self.attempt.server,
            Direction::Egress => self.attempt.client,
        };
        let set = PolicySet::Subjects(direction);
        let key = ElementKey { set, key: SetKey::Address(address) };
        match self.program.elements.get(&key) {
            Some(ElementValue::Goto(direction, number)) => {
                Some(self.chain(&PolicyChain::Profile(*direction, *number)))
            }
            _ => None,
        }
    }

    /// Nothing is known of the connection of a packet that has none.
    fn holds(&self, condition: &Step) -> bool {
        let attempt = self.attempt;
        let has = |set, key| self.program.elements.contains_key(&ElementKey { set, key });
        let peer = |direction: &Direction| match direction {
            Direction::Ingress => attempt.client,
            Direction::Egress => attempt.server,
        };
        match condition {
            Step::Untracked => !self.tracked,
            _ if !self.tracked => false,
            Step::Itself => {
                attempt.client == attempt.server
                    && has(PolicySet::Own, SetKey::Address(attempt.client))
            }
            Step::PeerInGroup(direction, number) => {
                has(PolicySet::Group(*number), SetKey::Address(peer(direction)))
            }
            Step::PeerInNetwork(direction, network) => network.contains(&peer(direction)),
            Step::Protocol(protocol) => attempt.protocol == Some(*protocol),
            Step::Ports(first, last) => (*first..=*last).contains(&attempt.port),
            Step::NamedPort(number) => {
                has(PolicySet::Named(*number), SetKey::Port(attempt.server, attempt.port))
            }
            _ => false,
        }
    }
}
