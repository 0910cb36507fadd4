//! What the table of hosts, and templates, say.

use std::net::IpAddr;

use roadstead_zone::name::{Name, find_suffix};
use roadstead_zone::record_type::RecordType;

use crate::message::Section;
use crate::reply::{OwnerName, Reply, ResponseCode, types};
use crate::respond::Stage;
use crate::setup::HostsTable;

/// Looks a name up in the table of hosts; `None` leaves it to the next in line.
pub(crate) fn look_up<'a>(hosts: &'a HostsTable, name: &[u8]) -> Option<Stage<'a>> {
    let within = hosts.zones.iter().any(|zone| find_suffix(name, zone.wire()).is_some());
    let within = within || hosts.zones.is_empty();
    if let Some(addresses) = hosts.addresses.get(name).filter(|_| within) {
        return Some(Stage::Hosts(addresses, hosts.lifetime));
    }
    let address = roadstead_zone::reverse::address(name);
    if let Some(found) = address.and_then(|address| hosts.names.get(&address)) {
        return Some(Stage::HostName(found, hosts.lifetime));
    }
    match &hosts.fall_through {
        _ if !within => None,
        None => Some(Stage::NoHost),
        Some(fall_through) => (!fall_through.covers(name)).then_some(Stage::NoHost),
    }
}

/// Writes what the table of hosts, or a template, says.
pub(crate) fn write(
    reply: &mut Reply<'_>,
    stage: &Stage<'_>,
    kind: RecordType,
    owner: usize,
) -> ResponseCode {
    reply.set_authoritative();
    let owner = OwnerName::At(owner);
    let fits = match stage {
        Stage::Hosts(addresses, lifetime) => addresses
            .iter()
            .filter(|one| wants(kind, one))
            .all(|one| reply.address(Section::Answer, owner, *one, *lifetime)),
        Stage::HostName(name, lifetime) => {
            let wanted = matches!(kind, RecordType::Ptr | RecordType::Any);
            !wanted || pointer(reply, owner, name, *lifetime)
        }
        Stage::Template(answers, code) => {
            let all = answers.iter().filter(|(_, one)| wants(kind, one));
            let mut all = all.map(|(lifetime, one)| (*one, *lifetime));
            if !all.all(|(one, lifetime)| reply.address(Section::Answer, owner, one, lifetime)) {
                reply.set_truncated();
            }
            return *code;
        }
        _ => return ResponseCode::NoName,
    };
    if !fits {
        reply.set_truncated();
    }
    ResponseCode::NoError
}

/// Whether an address is of the type that was asked for.
fn wants(kind: RecordType, address: &IpAddr) -> bool {
    match kind {
        RecordType::A => address.is_ipv4(),
        RecordType::Aaaa => address.is_ipv6(),
        _ => kind == RecordType::Any,
    }
}

fn pointer(reply: &mut Reply<'_>, owner: OwnerName<'_>, name: &Name, lifetime: u32) -> bool {
    reply.record(Section::Answer, owner, (types::PTR, lifetime), |r| r.put(name.wire()))
}
