//! Every record of the zone, for servers that want a copy of it (AXFR). Names of addresses, and of
//! the endpoints of Services that have an address themselves, are left out, as CoreDNS does.

use std::net::IpAddr;

use crate::entry::{EntryKind, ServiceEntry};
use crate::name::Name;
use crate::records::{HostLabel, RecordTarget, ServiceRecords};
use crate::view::Dashed;
use crate::zone::Zone;

/// One record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneRecord {
    /// Whose it is, in wire form.
    pub owner: Vec<u8>,
    /// How long it may be remembered.
    pub lifetime: u32,
    /// What it says.
    pub data: RecordData,
}

/// What a record says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordData {
    /// An address.
    Address(IpAddr),
    /// Another name.
    Alias(Name),
    /// Where a named port is served.
    Service {
        /// Shares add up to about a hundred.
        weight: u16,
        /// The port.
        port: u16,
        /// Who serves it, in wire form.
        target: Vec<u8>,
    },
}

impl Zone {
    /// All records but the zone's own, Service by Service.
    pub fn copy(&self) -> impl Iterator<Item = ZoneRecord> {
        self.existing().flat_map(|entry| self.copy_of(entry))
    }

    fn copy_of(&self, entry: &ServiceEntry) -> Vec<ZoneRecord> {
        let lifetimes = &self.settings().lifetimes;
        let lifetime = match entry.kind {
            EntryKind::ClusterIp => lifetimes.cluster_ip,
            _ => lifetimes.endpoint,
        };
        let mut all = Vec::new();
        let mut add =
            |owner: &[u8], data| all.push(ZoneRecord { owner: owner.into(), lifetime, data });
        let own = self.name_of(RecordTarget { host: HostLabel::Service, key: &entry.key });
        if let EntryKind::External(target) = &entry.kind {
            if let Some(target) = target {
                add(&own, RecordData::Alias(target.clone()));
            }
            return all;
        }
        entry.own.iter().for_each(|address| add(&own, RecordData::Address(address)));
        let records = ServiceRecords { entry, only: None };
        for (target, host) in records.hosts().filter(|_| entry.is_headless()) {
            let name = self.name_of(target);
            host.addresses().for_each(|address| add(&name, RecordData::Address(address)));
        }
        for record in records.iter() {
            let target = self.name_of(record.target);
            add(&own, RecordData::Service { weight: record.weight, port: record.port, target });
        }
        let named = entry.ports.iter().enumerate().filter(|(_, port)| !port.name.is_empty());
        for (at, port) in named {
            let mut owner = Vec::new();
            label(&mut owner, format!("_{}", port.name).as_bytes());
            label(&mut owner, format!("_{}", port.protocol.label()).as_bytes());
            owner.extend(&own);
            for record in (ServiceRecords { entry, only: Some(at) }).iter() {
                let target = self.name_of(record.target);
                add(
                    &owner,
                    RecordData::Service { weight: record.weight, port: record.port, target },
                );
            }
        }
        all
    }

    /// A name in wire form.
    fn name_of(&self, target: RecordTarget<'_>) -> Vec<u8> {
        let mut name = Vec::new();
        match target.host {
            HostLabel::Service => {}
            HostLabel::Name(host) => label(&mut name, host.as_bytes()),
            HostLabel::Address(address) => label(&mut name, Dashed::new(address).bytes()),
        }
        name.extend(target.key);
        label(&mut name, b"svc");
        name.extend(self.origin().wire());
        name
    }
}

fn label(name: &mut Vec<u8>, label: &[u8]) {
    name.push(u8::try_from(label.len()).unwrap_or(0));
    name.extend(label);
}
