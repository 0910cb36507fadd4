//! Every record of the zone, for servers that want a copy of it (AXFR). Names of addresses, and of
//! the endpoints of Services that have an address themselves, are left out, as CoreDNS does.

use std::net::IpAddr;

use crate::entry::{Entry, Kind};
use crate::name::Name;
use crate::records::{HostLabel, ServiceRecords, Target};
use crate::view::Dashed;
use crate::zone::Zone;

/// One record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copied {
    /// Whose it is, in wire form.
    pub owner: Vec<u8>,
    /// How long it may be remembered.
    pub lifetime: u32,
    /// What it says.
    pub data: Data,
}

/// What a record says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
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
    pub fn copy(&self) -> impl Iterator<Item = Copied> {
        self.existing().flat_map(|entry| self.copy_of(entry))
    }

    fn copy_of(&self, entry: &Entry) -> Vec<Copied> {
        let lifetimes = &self.settings().lifetimes;
        let lifetime = match entry.kind {
            Kind::ClusterIp => lifetimes.cluster_ip,
            _ => lifetimes.endpoint,
        };
        let mut all = Vec::new();
        let mut add = |owner: &[u8], data| all.push(Copied { owner: owner.into(), lifetime, data });
        let own = self.name_of(Target { host: HostLabel::Service, key: &entry.key });
        if let Kind::External(target) = &entry.kind {
            if let Some(target) = target {
                add(&own, Data::Alias(target.clone()));
            }
            return all;
        }
        entry.own.iter().for_each(|address| add(&own, Data::Address(address)));
        let records = ServiceRecords { entry, only: None };
        for (target, host) in records.hosts().filter(|_| entry.is_headless()) {
            let name = self.name_of(target);
            host.addresses().for_each(|address| add(&name, Data::Address(address)));
        }
        for record in records.iter() {
            let target = self.name_of(record.target);
            add(&own, Data::Service { weight: record.weight, port: record.port, target });
        }
        let named = entry.ports.iter().enumerate().filter(|(_, port)| !port.name.is_empty());
        for (at, port) in named {
            let mut owner = Vec::new();
            label(&mut owner, format!("_{}", port.name).as_bytes());
            label(&mut owner, format!("_{}", port.protocol.label()).as_bytes());
            owner.extend(&own);
            for record in (ServiceRecords { entry, only: Some(at) }).iter() {
                let target = self.name_of(record.target);
                add(&owner, Data::Service { weight: record.weight, port: record.port, target });
            }
        }
        all
    }

    /// A name in wire form.
    fn name_of(&self, target: Target<'_>) -> Vec<u8> {
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
