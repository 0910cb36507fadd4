//! The program as text that `nft -f` accepts.
//!
//! `nft list` of what we write over netlink looks the same but for one thing: there the key of
//! `endpoints` is declared as `type … . mark`, while the parser of nft insists that a rule reading
//! `numgen` be matched by a set declared with `typeof … numgen`.

use std::fmt;

use super::model::{
    Base, Chain, ChainKind, Data, Field, Hook, Key, KeyField, Program, Rule, SetName, Statement,
    TABLE, Type, Value,
};
use crate::service::{IpFamily, ServicePortName};

/// Longer comments are refused by nft.
const COMMENT_LIMIT: usize = 127;

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "table {} {TABLE} {{", word(self.family))?;
        for set in SetName::ALL {
            self.print_set(f, set)?;
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

fn declaration(family: IpFamily, set: SetName) -> String {
    let ip = word(family);
    if set == SetName::Endpoints {
        return format!(
            "typeof {ip} daddr . meta l4proto . th dport . numgen random mod 2 : {ip} daddr . th dport"
        );
    }
    let address = match family {
        IpFamily::V4 => "ipv4_addr",
        IpFamily::V6 => "ipv6_addr",
    };
    let name = |kind: &Type| match kind {
        Type::Address => address,
        Type::Protocol => "inet_proto",
        Type::Port => "inet_service",
        Type::Mark => "mark",
        Type::Count => "classid",
    };
    let key = set.key_types().iter().map(name).collect::<Vec<_>>().join(" . ");
    match set.data() {
        Data::Verdict => format!("type {key} : verdict"),
        Data::Count => format!("type {key} : classid"),
        _ => format!("type {key}"),
    }
}

fn element(key: &Key, value: &Value) -> String {
    let field = |field: KeyField| match field {
        KeyField::Address(address) => address.to_string(),
        KeyField::Protocol(protocol) => protocol.to_string(),
        KeyField::Port(port) => port.to_string(),
        KeyField::Mark(slot) => slot.to_string(),
        KeyField::Count(count) => class(count),
    };
    let key = key.fields().map(field).collect::<Vec<_>>().join(" . ");
    match value {
        Value::Member => key,
        Value::Unserved(service) => format!("{key} comment \"{}\"", comment(service)),
        Value::Slots(count, service) => {
            format!("{key} comment \"{}\" : {}", comment(service), class(*count))
        }
        Value::Goto(chain) => format!("{key} : goto {chain}"),
        Value::Target(target) => format!("{key} : {} . {}", target.ip(), target.port()),
    }
}

/// The comment on an element of a service.
pub fn comment(service: &ServicePortName) -> String {
    let mut text = service.to_string();
    text.truncate(COMMENT_LIMIT);
    text
}

/// A number of slots as the kernel keeps it. nft cannot read back a priority below 1:0.
pub fn count_number(count: u32) -> u32 {
    (1 << 16) + count
}

/// The same as nft writes it, in hexadecimal.
fn class(count: u32) -> String {
    let number = count_number(count);
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

fn rule_text(family: IpFamily, rule: &Rule) -> String {
    rule.iter().map(|s| statement(family, s)).collect::<Vec<_>>().join(" ")
}

fn statement(family: IpFamily, statement: &Statement) -> String {
    let ip = word(family);
    match statement {
        Statement::IsNew => "ct state new".into(),
        Statement::IsTranslated => "ct status dnat".into(),
        Statement::SourceOutside(network) => format!("{ip} saddr != {network}"),
        Statement::MarkClear(bits) => format!("meta mark & {bits:#010x} == 0x00000000"),
        Statement::Member(fields, set) => format!("{} @{}", loads(ip, fields), set.name()),
        Statement::SetMark(bits) => format!("meta mark set meta mark | {bits:#010x}"),
        Statement::FlipMark(bits) => format!("meta mark set meta mark ^ {bits:#010x}"),
        Statement::RememberCount(fields, map) => {
            format!("meta priority set {} map @{}", loads(ip, fields), map.name())
        }
        Statement::GotoByCount(map) => format!("meta priority vmap @{}", map.name()),
        Statement::ForgetCount => "meta priority set none".into(),
        Statement::DestinationFromSlot(count, map) => format!(
            "dnat {ip} to {ip} daddr . meta l4proto . th dport . numgen random mod {count} map @{}",
            map.name()
        ),
        Statement::Masquerade => "masquerade fully-random".into(),
        Statement::Reject => "reject".into(),
        Statement::Drop => "drop".into(),
        Statement::Return => "return".into(),
        Statement::Jump(chain) => format!("jump {chain}"),
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
