//! Copies of the whole zone for other servers (AXFR, RFC 5936), over TCP and only for those whom
//! the configuration names.
//!
//! Changes alone (IXFR) are not kept; who asks for them gets all, or nothing if nothing changed.

use std::net::IpAddr;

use roadstead_zone::answer::AnswerEnd;
use roadstead_zone::record_type::RecordType;
use roadstead_zone::records::Records;
use roadstead_zone::transfer::{RecordData, ZoneRecord};
use roadstead_zone::zone::Zone;

use crate::encode::{Encoder, ZoneName};
use crate::message::{CLASS_INTERNET, HEADER_LENGTH, Query, Record, Section, read_name, records};
use crate::reply::{OwnerName, Reply, ResponseCode, types};
use crate::setup::Setup;

const IXFR: u16 = 251;
const AXFR: u16 = 252;
/// How long each message is at most: there are many anyway.
const MESSAGE: usize = 16_384;

/// Whether a query is for a copy.
pub fn is_wanted(kind: u16) -> bool {
    matches!(kind, IXFR | AXFR)
}

/// The messages of a copy; `None` if the client may not have it.
pub fn messages(zone: &Zone, setup: &Setup, bytes: &[u8], peer: IpAddr) -> Option<Vec<Vec<u8>>> {
    let query = Query::parse(bytes).ok()?;
    let origin = zone.origin().wire();
    let ours = query.name.wire() == origin && query.class == CLASS_INTERNET;
    let block = setup.block(query.name.wire()).filter(|_| ours && is_wanted(query.kind))?;
    let allowed = block.transfers.iter().any(|transfer| transfer.allows(origin, peer));
    if !allowed || block.kubernetes.is_none() || !zone.synced() {
        return None;
    }
    let mut writer = TransferWriter { query: &query, setup, zone, messages: Vec::new() };
    if query.kind == IXFR && known_serial(&query) == Some(zone.serial()) {
        writer.message(|encoder| {
            let _ = soa(encoder);
        });
        return Some(writer.messages);
    }
    let mut rest = zone.copy().peekable();
    let (mut begun, mut ended) = (false, false);
    while !ended {
        writer.message(|encoder| {
            if !begun {
                begun = soa(encoder);
                name_server(encoder);
            }
            while rest.next_if(|record| add(encoder.reply, record)).is_some() {}
            ended = rest.peek().is_none() && soa(encoder);
        });
    }
    Some(writer.messages)
}

fn soa(encoder: &mut Encoder<'_, '_>) -> bool {
    let lifetime = encoder.zone.settings().lifetimes.cluster_ip;
    encoder.soa(Section::Answer, lifetime)
}

/// Who serves the zone, and where.
fn name_server(encoder: &mut Encoder<'_, '_>) {
    let answer = encoder.zone.answer(encoder.zone.origin().wire(), RecordType::Ns);
    if let AnswerEnd::Found(Records::Ns(target), lifetime) = answer.end {
        let _ = encoder.name_server(target, (HEADER_LENGTH, lifetime), Section::Answer);
    }
}

/// The serial number that the client has, from the SOA in its query.
fn known_serial(query: &Query<'_>) -> Option<u32> {
    let mut all = records(query.bytes).map_while(Result::ok);
    let is_soa = |(section, record): &(Section, Record)| {
        *section == Section::Authority && record.kind == types::SOA
    };
    let (_, soa) = all.find(is_soa)?;
    let (_, at) = read_name(query.bytes, soa.data_at)?;
    let (_, at) = read_name(query.bytes, at)?;
    Some(u32::from_be_bytes(*query.bytes.get(at..)?.first_chunk()?))
}

fn add(reply: &mut Reply<'_>, record: &ZoneRecord) -> bool {
    let (owner, lifetime) = (OwnerName::Name(&record.owner), record.lifetime);
    match &record.data {
        RecordData::Address(address) => reply.address(Section::Answer, owner, *address, lifetime),
        RecordData::Alias(target) => {
            let kind = (types::CNAME, lifetime);
            reply.record(Section::Answer, owner, kind, |r| r.put(target.wire()))
        }
        RecordData::Service { weight, port, target } => {
            reply.record(Section::Answer, owner, (types::SRV, lifetime), |r| {
                r.put(&[0, 0])?;
                r.put(&weight.to_be_bytes())?;
                r.put(&port.to_be_bytes())?;
                r.put(target)
            })
        }
    }
}

struct TransferWriter<'a> {
    query: &'a Query<'a>,
    setup: &'a Setup,
    zone: &'a Zone,
    messages: Vec<Vec<u8>>,
}

impl TransferWriter<'_> {
    fn message(&mut self, fill: impl FnOnce(&mut Encoder<'_, '_>)) {
        let mut buffer = vec![0; MESSAGE + HEADER_LENGTH];
        let mut reply = Reply::new(self.query, &mut buffer, self.setup);
        reply.set_authoritative();
        let zone_name = ZoneName::of_question();
        fill(&mut Encoder { reply: &mut reply, zone: self.zone, zone_name, turn: 0 });
        let length = reply.finish(ResponseCode::NoError);
        buffer.truncate(length);
        self.messages.push(buffer);
    }
}

#[cfg(test)]
mod tests {
    use hickory_proto::op::{Message, MessageType, OpCode, Query as HickoryQuery};
    use hickory_proto::rr::rdata::SOA;
    use hickory_proto::rr::{
        Name as HickoryName, RData, Record as HickoryRecord, RecordType as Kind,
    };
    use roadstead_zone::name::Name;
    use roadstead_zone::seed::Seed;
    use roadstead_zone::settings::ZoneSettings;
    use roadstead_zone::zone::Keeper;
    use serde_json::{Value, json};

    use super::*;
    use crate::corefile::{self, CorefileEnvironment};

    const SERIAL: u32 = 7;

    fn zone() -> Keeper {
        let mut settings = ZoneSettings::new(&Name::parse("cluster.local").unwrap());
        settings.servers = vec!["10.96.0.10".parse().unwrap()];
        let mut zone = Keeper::new(settings, 1, Seed::new(1));
        let service = |name: &str, spec: Value| {
            let object = json!({"metadata": {"namespace": "prod", "name": name}, "spec": spec});
            serde_json::from_value(object).unwrap()
        };
        let ports = json!([{"name": "http", "port": 80}, {"port": 81}]);
        zone.observe_service(&service(
            "web",
            json!({"clusterIPs": ["10.96.0.1", "fd96::1"], "ports": ports}),
        ));
        zone.observe_service(&service(
            "outer",
            json!({"type": "ExternalName", "externalName": "example.org"}),
        ));
        zone.observe_service(&service("db", json!({"clusterIPs": ["None"]})));
        let slice = json!({
            "metadata": {"namespace": "prod", "name": "db-1", "labels": {"kubernetes.io/service-name": "db"}},
            "addressType": "IPv4",
            "ports": [{"name": "pg", "port": 5432}],
            "endpoints": [{"addresses": ["10.0.0.1"], "hostname": "db-0"}, {"addresses": ["10.0.0.2"]}],
        });
        zone.observe_slice(&serde_json::from_value(slice).unwrap());
        zone.set_synced();
        zone
    }

    /// The records of a copy, as text; `None` if there is none.
    fn ask(zone: &Zone, rules: &str, name: &str, kind: Kind, serial: u32) -> Option<Vec<String>> {
        let text = format!(".:53 {{\n kubernetes cluster.local\n {rules}\n}}");
        let setup =
            corefile::read(&text, false, &CorefileEnvironment::files(&|_| Ok(String::new())))
                .unwrap()
                .setup;
        let mut query = Message::new(4711, MessageType::Query, OpCode::Query);
        let name = HickoryName::from_ascii(name).unwrap();
        query.add_query(HickoryQuery::query(name.clone(), kind));
        let soa = SOA::new(name.clone(), name.clone(), serial, 0, 0, 0, 0);
        query.add_authority(HickoryRecord::from_rdata(name, 0, RData::SOA(soa)));
        let peer = "192.0.2.1".parse().unwrap();
        let all = messages(zone, &setup, &query.to_vec().unwrap(), peer)?;
        let mut texts = Vec::new();
        for bytes in all {
            let message = Message::from_vec(&bytes).unwrap();
            assert!(message.metadata.authoritative && message.metadata.id == 4711);
            let text = |r: &HickoryRecord| format!("{} {} {}", r.name, r.record_type(), r.data);
            texts.extend(message.answers.iter().map(text));
        }
        Some(texts)
    }

    #[test]
    fn a_copy_has_everything() {
        let keeper = zone();
        let serial = keeper.zone().serial();
        let ask = |rules, name, kind, serial| ask(keeper.zone(), rules, name, kind, serial);
        let everybody = "transfer {\n  to *\n }";
        let mut all = ask(everybody, "Cluster.local.", Kind::AXFR, 0).unwrap();
        let (first, last) = (all.remove(0), all.pop().unwrap());
        assert!(first == last && first.starts_with("Cluster.local. SOA ns.dns."), "{first}");
        all.sort_unstable();
        let want = [
            "10-0-0-2.db.prod.svc.cluster.local. A 10.0.0.2",
            "Cluster.local. NS ns.dns.Cluster.local.",
            "_http._tcp.web.prod.svc.cluster.local. SRV 0 50 80 web.prod.svc.cluster.local.",
            "_pg._tcp.db.prod.svc.cluster.local. SRV 0 50 5432 10-0-0-2.db.prod.svc.cluster.local.",
            "_pg._tcp.db.prod.svc.cluster.local. SRV 0 50 5432 db-0.db.prod.svc.cluster.local.",
            "db-0.db.prod.svc.cluster.local. A 10.0.0.1",
            "db.prod.svc.cluster.local. A 10.0.0.1",
            "db.prod.svc.cluster.local. A 10.0.0.2",
            "db.prod.svc.cluster.local. SRV 0 50 5432 10-0-0-2.db.prod.svc.cluster.local.",
            "db.prod.svc.cluster.local. SRV 0 50 5432 db-0.db.prod.svc.cluster.local.",
            "ns.dns.Cluster.local. A 10.96.0.10",
            "outer.prod.svc.cluster.local. CNAME example.org.",
            "web.prod.svc.cluster.local. A 10.96.0.1",
            "web.prod.svc.cluster.local. AAAA fd96::1",
            "web.prod.svc.cluster.local. SRV 0 25 80 web.prod.svc.cluster.local.",
            "web.prod.svc.cluster.local. SRV 0 25 81 web.prod.svc.cluster.local.",
        ];
        assert_eq!(all, want);
        let count = |rules, kind, serial| {
            ask(rules, "cluster.local.", kind, serial).map(|records| records.len())
        };
        let whole = Some(want.len() + 2);
        assert_eq!(count(everybody, Kind::IXFR, SERIAL), whole, "changes");
        assert_eq!(count(everybody, Kind::IXFR, serial), Some(1), "no changes");
        assert_eq!(count("transfer {\n  to 192.0.2.1\n }", Kind::AXFR, 0), whole, "named");
        assert_eq!(count("transfer {\n  to 192.0.2.2\n }", Kind::AXFR, 0), None, "somebody else");
        assert_eq!(count("transfer a.org {\n  to *\n }", Kind::AXFR, 0), None, "something else");
        assert_eq!(count("errors", Kind::AXFR, 0), None, "nobody");
        assert_eq!(ask(everybody, "svc.cluster.local.", Kind::AXFR, 0), None, "not a zone");
    }

    #[test]
    fn a_long_copy_has_many_messages() {
        let mut keeper = zone();
        for n in 0..2000 {
            let object = json!({
                "metadata": {"namespace": "prod", "name": format!("many-{n}")},
                "spec": {"clusterIPs": [format!("10.97.{}.{}", n / 256, n % 256)]},
            });
            keeper.observe_service(&serde_json::from_value(object).unwrap());
        }
        let all = ask(keeper.zone(), "transfer {\n  to *\n }", "cluster.local.", Kind::AXFR, 0);
        let all = all.unwrap();
        let soa = |text: &String| text.contains(" SOA ");
        assert_eq!(all.iter().filter(|text| soa(text)).count(), 2);
        assert!(soa(&all[0]) && soa(all.last().unwrap()));
        assert_eq!(all.iter().filter(|text| text.starts_with("many-")).count(), 2000);
    }
}
