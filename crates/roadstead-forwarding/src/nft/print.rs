//! The program as text that `nft -f` accepts.
//!
//! `nft list` of what we write over netlink looks the same but for one thing: there the key of
//! `endpoints` is declared as `type … . mark`, while the parser of nft insists that a rule reading
//! `numgen` be matched by a set declared with `typeof … numgen`.

use std::fmt;

use ipnet::IpNet;

use super::model::{
    Base, Chain, ChainKind, Class, Field, Hook, Is, Key, KeyField, Program, Rule, Statement, TABLE,
    Value,
};
use super::names::{AffinitySet, Data, SetName, Slots, Type};
use crate::service::{IpFamily, ServicePortName};

/// So many clients at most are remembered for one target, as nft itself would have it.
pub const AFFINITY_SIZE: u32 = 65_535;

/// Longer comments are refused by nft.
const COMMENT_LIMIT: usize = 127;

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "table {} {TABLE} {{", word(self.family))?;
        for set in SetName::ALL {
            self.print_set(f, set)?;
        }
        for set in &self.affinity {
            print_affinity(f, self.family, set)?;
        }
        // Chains may refer to sets and to each other, and nft sorts that out.
        for (name, chain) in &self.chains {
            writeln!(f, "\tchain {name} {{")?;
            print_chain(f, self.family, chain)?;
            writeln!(f, "\t}}")?;
        }
        writeln!(f, "}}")
    }
}

impl Program {
    fn print_set(&self, f: &mut fmt::Formatter<'_>, set: SetName) -> fmt::Result {
        let kind = if set.data() == Data::Nothing { "set" } else { "map" };
        writeln!(f, "\t{kind} {} {{", set.name())?;
        writeln!(f, "\t\t{}", declaration(self.family, set))?;
        if set.has_ranges() {
            writeln!(f, "\t\tflags interval")?;
        }
        let elements: Vec<_> = self.elements.iter().filter(|(key, _)| key.set() == set).collect();
        if !elements.is_empty() {
            writeln!(f, "\t\telements = {{")?;
            for (key, value) in elements {
                writeln!(f, "\t\t\t{},", element(key, value))?;
            }
            writeln!(f, "\t\t}}")?;
        }
        writeln!(f, "\t}}")
    }
}

fn word(family: IpFamily) -> &'static str {
    match family {
        IpFamily::V4 => "ip",
        IpFamily::V6 => "ip6",
    }
}

fn print_affinity(f: &mut fmt::Formatter<'_>, family: IpFamily, set: &AffinitySet) -> fmt::Result {
    writeln!(f, "\tset {set} {{")?;
    writeln!(f, "\t\ttype {}", address_type(family))?;
    writeln!(f, "\t\tsize {AFFINITY_SIZE}")?;
    writeln!(f, "\t\tflags dynamic,timeout")?;
    writeln!(f, "\t\ttimeout {}s", set.timeout.as_secs())?;
    writeln!(f, "\t}}")
}

fn address_type(family: IpFamily) -> &'static str {
    match family {
        IpFamily::V4 => "ipv4_addr",
        IpFamily::V6 => "ipv6_addr",
    }
}

fn declaration(family: IpFamily, set: SetName) -> String {
    let ip = word(family);
    let slots = [Slots::Address, Slots::LocalAddress, Slots::NodePort, Slots::LocalNodePort];
    if let Some(slots) = slots.into_iter().find(|slots| slots.set() == set) {
        let key = loads(ip, slots.fields());
        return format!("typeof {key} . numgen random mod 2 : {ip} daddr . th dport");
    }
    let address = address_type(family);
    let name = |kind: &Type| match kind {
        Type::Address => address,
        Type::Protocol => "inet_proto",
        Type::Port => "inet_service",
        Type::Mark => "mark",
        Type::Class => "classid",
    };
    let key = set.key_types().iter().map(name).collect::<Vec<_>>().join(" . ");
    match set.data() {
        Data::Verdict => format!("type {key} : verdict"),
        Data::Class => format!("type {key} : classid"),
        _ => format!("type {key}"),
    }
}

fn element(key: &Key, value: &Value) -> String {
    let field = |field: KeyField| match field {
        KeyField::Address(address) => address.to_string(),
        KeyField::Protocol(protocol) => protocol.to_string(),
        KeyField::Port(port) => port.to_string(),
        KeyField::Mark(slot) => slot.to_string(),
        KeyField::Network(network) if network.prefix_len() == network.max_prefix_len() => {
            network.addr().to_string()
        }
        KeyField::Network(network) => network.to_string(),
        KeyField::Class(class) => class_text(class),
    };
    let key = key.fields().map(field).collect::<Vec<_>>().join(" . ");
    match value {
        Value::Member => key,
        Value::Named(service) => format!("{key} comment \"{}\"", comment(service)),
        Value::Class(class, service) => {
            format!("{key} comment \"{}\" : {}", comment(service), class_text(*class))
        }
        Value::Goto(chain) => format!("{key} : goto {chain}"),
        Value::Target(target) => format!("{key} : {} . {}", target.ip(), target.port()),
    }
}

/// The comment on an element of a service.
pub fn comment(service: &ServicePortName) -> String {
    let mut text = service.to_string();
    let cut = (0..=COMMENT_LIMIT.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    text.truncate(cut.unwrap_or(0));
    text.retain(|c| c != '"' && !c.is_control());
    text
}

/// A class as nft writes it, in hexadecimal.
fn class_text(class: Class) -> String {
    let number = class.number();
    format!("{:x}:{:x}", number >> 16, number & 0xffff)
}

fn print_chain(f: &mut fmt::Formatter<'_>, family: IpFamily, chain: &Chain) -> fmt::Result {
    if let Some(Base { kind, hook, priority }) = chain.base {
        let kind = match kind {
            ChainKind::Filter => "filter",
            ChainKind::Nat => "nat",
        };
        let hook = match hook {
            Hook::Prerouting => "prerouting",
            Hook::Input => "input",
            Hook::Forward => "forward",
            Hook::Output => "output",
            Hook::Postrouting => "postrouting",
        };
        writeln!(f, "\t\ttype {kind} hook {hook} priority {priority}; policy accept;")?;
    }
    for rule in &chain.rules {
        writeln!(f, "\t\t{}", rule_text(family, rule))?;
    }
    Ok(())
}

/// A rule as nft writes it.
pub fn rule_text(family: IpFamily, rule: &Rule) -> String {
    rule.iter().map(|s| statement(family, s)).collect::<Vec<_>>().join(" ")
}

fn statement(family: IpFamily, statement: &Statement) -> String {
    let ip = word(family);
    match statement {
        Statement::IsNew => "ct state new".into(),
        Statement::IsTranslated => "ct status dnat".into(),
        Statement::Source(is, net) => format!("{ip} saddr {}{}", not(*is), network(net)),
        Statement::Destination(is, net) => format!("{ip} daddr {}{}", not(*is), network(net)),
        Statement::Interface(is, name) => format!("iifname {}\"{name}\"", not(*is)),
        Statement::InterfacePrefix(is, name) => format!("iifname {}\"{name}*\"", not(*is)),
        Statement::SourceIsOurs => "fib saddr type local".into(),
        Statement::DestinationIsOurs => "fib daddr type local".into(),
        Statement::ProtocolIs(protocol) => format!("meta l4proto {protocol}"),
        Statement::MarkSet(bits) => format!("meta mark & {bits:#010x} != 0x00000000"),
        Statement::Member(fields, is, set) => {
            format!("{} {}@{}", loads(ip, fields), not(*is), set.name())
        }
        Statement::Remembered(set) => format!("{ip} saddr @{set}"),
        Statement::Remember(set) => format!("update @{set} {{ {ip} saddr }}"),
        Statement::OnceIn(count) => format!("numgen random mod {count} 0"),
        Statement::SetMark(bits) => format!("meta mark set meta mark | {bits:#010x}"),
        Statement::FlipMark(bits) => format!("meta mark set meta mark ^ {bits:#010x}"),
        Statement::RememberClass(fields, map) => {
            format!("meta priority set {} map @{}", loads(ip, fields), map.name())
        }
        Statement::GotoByClass(map) => format!("meta priority vmap @{}", map.name()),
        Statement::ForgetClass => "meta priority set none".into(),
        Statement::GotoByFields(fields, map) => {
            format!("{} vmap @{}", loads(ip, fields), map.name())
        }
        Statement::DestinationFromSlot(fields, count, map) => format!(
            "dnat {ip} to {} . numgen random mod {count} map @{}",
            loads(ip, fields),
            map.name()
        ),
        Statement::DestinationTo(target) => format!("dnat to {target}"),
        Statement::Masquerade => "masquerade fully-random".into(),
        Statement::Reject => "reject".into(),
        Statement::Drop => "drop".into(),
        Statement::Accept => "accept".into(),
        Statement::Return => "return".into(),
        Statement::Jump(chain) => format!("jump {chain}"),
        Statement::Goto(chain) => format!("goto {chain}"),
    }
}

fn not(is: Is) -> &'static str {
    match is {
        Is::In => "",
        Is::NotIn => "!= ",
    }
}

fn network(network: &IpNet) -> String {
    match network.prefix_len() == network.max_prefix_len() {
        true => network.addr().to_string(),
        false => network.to_string(),
    }
}

fn loads(ip: &str, fields: &[Field]) -> String {
    let load = |field: &Field| match field {
        Field::Source => format!("{ip} saddr"),
        Field::Destination => format!("{ip} daddr"),
        Field::Protocol => "meta l4proto".into(),
        Field::Port => "th dport".into(),
    };
    fields.iter().map(load).collect::<Vec<_>>().join(" . ")
}
