//! What is counted about addresses and node ports, under upstream's names.

use std::fmt::Write;
use std::time::Instant;

use ipnet::IpNet;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use roadstead_api::ip;
use roadstead_plan::alloc;

use super::repair::Difference;
use super::{ADDRESSES, node_ports};
use crate::api::Api;

/// Whether somebody asked for a certain address or port, or took any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    Static,
    Dynamic,
}

impl Scope {
    fn name(self) -> &'static str {
        match self {
            Self::Static => "static",
            Self::Dynamic => "dynamic",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RangeLabels {
    cidr: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AddressLabels {
    cidr: String,
    scope: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PortLabels {
    scope: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RepairLabels {
    r#type: &'static str,
}

/// Everything that is counted about allocations.
pub(crate) struct Counters {
    addresses: Family<AddressLabels, Counter>,
    address_errors: Family<AddressLabels, Counter>,
    durations: Family<RangeLabels, Histogram>,
    ports: Family<PortLabels, Counter>,
    port_errors: Family<PortLabels, Counter>,
    address_differences: Family<RepairLabels, Counter>,
    address_failures: Counter,
    port_differences: Family<RepairLabels, Counter>,
    port_failures: Counter,
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            addresses: Family::default(),
            address_errors: Family::default(),
            durations: Family::new_with_constructor(histogram as fn() -> Histogram),
            ports: Family::default(),
            port_errors: Family::default(),
            address_differences: Family::default(),
            address_failures: Counter::default(),
            port_differences: Family::default(),
            port_failures: Counter::default(),
        }
    }
}

fn histogram() -> Histogram {
    Histogram::new([0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0])
}

impl Counters {
    /// Names all of them. The library adds `_total` to counters by itself.
    pub(crate) fn register(&self, registry: &mut Registry) {
        let addresses = "kube_apiserver_clusterip_allocator_allocation";
        registry.register(addresses, "Cluster IPs given out", self.addresses.clone());
        let errors = "kube_apiserver_clusterip_allocator_allocation_errors";
        registry.register(errors, "Cluster IPs refused", self.address_errors.clone());
        let durations = "kube_apiserver_clusterip_allocator_allocation_duration_seconds";
        registry.register(durations, "How long finding one took", self.durations.clone());
        let ports = "kube_apiserver_nodeport_allocator_allocation";
        registry.register(ports, "Node ports given out", self.ports.clone());
        let errors = "kube_apiserver_nodeport_allocator_allocation_errors";
        registry.register(errors, "Node ports refused", self.port_errors.clone());
        let differences = "apiserver_clusterip_repair_ip_errors";
        let help = "Cluster IPs that were not what Services hold";
        registry.register(differences, help, self.address_differences.clone());
        let failures = "apiserver_clusterip_repair_reconcile_errors";
        registry.register(failures, "Those that stay so", self.address_failures.clone());
        let differences = "apiserver_nodeport_repair_port_errors";
        let help = "Node ports that were not what Services hold";
        registry.register(differences, help, self.port_differences.clone());
        let failures = "apiserver_nodeport_repair_reconcile_errors";
        registry.register(failures, "Those that stay so", self.port_failures.clone());
    }

    /// Counts an address that was looked for since `began`.
    pub(super) fn address(&self, range: Option<IpNet>, scope: Scope, began: Instant, found: bool) {
        // An address outside of all ranges is refused by none of them in particular.
        let cidr = range.map(|range| range.to_string()).unwrap_or_default();
        let labels = RangeLabels { cidr: cidr.clone() };
        self.durations.get_or_create(&labels).observe(began.elapsed().as_secs_f64());
        let family = if found { &self.addresses } else { &self.address_errors };
        family.get_or_create(&AddressLabels { cidr, scope: scope.name() }).inc();
    }

    /// Counts a node port that was looked for.
    pub(super) fn port(&self, scope: Scope, found: bool) {
        let family = if found { &self.ports } else { &self.port_errors };
        family.get_or_create(&PortLabels { scope: scope.name() }).inc();
    }

    /// Counts a difference between what is taken and what Services hold.
    pub(super) fn difference(&self, difference: &Difference, mended: bool) {
        let (differences, failures) = match difference.reason.starts_with("Port") {
            true => (&self.port_differences, &self.port_failures),
            false => (&self.address_differences, &self.address_failures),
        };
        let r#type = match difference.reason {
            "ClusterIPNotAllocated" | "PortNotAllocated" => "repair",
            "IPAddressNotAllocated" | "PortNotHeld" => "leak",
            "ClusterIPAlreadyAllocated" | "PortAlreadyAllocated" => "duplicate",
            _ => "unknown",
        };
        differences.get_or_create(&RepairLabels { r#type }).inc();
        if !mended {
            failures.inc();
        }
    }
}

/// Appends how much of each range is taken, counted in the store itself.
pub(crate) fn gauges(api: &Api, out: &mut String) {
    let store = &api.storage.store;
    let (Ok(addresses), Ok(ports)) =
        (store.list(ADDRESSES, "", None), node_ports::all(store, None))
    else {
        return;
    };
    let taken = addresses.entries.iter();
    let taken: Vec<_> = taken.filter_map(|e| ip::parse(e.key.path.trim_matches('/'))).collect();
    let known = api.network.ranges.now();
    let counts: Vec<_> = known
        .ready
        .iter()
        .map(|range| {
            let used = taken.iter().filter(|address| range.net.contains(*address)).count() as u64;
            (range.net.to_string(), used, alloc::usable(range.net).saturating_sub(used))
        })
        .collect();
    let name = "kube_apiserver_clusterip_allocator";
    let _ = writeln!(out, "# HELP {name}_allocated_ips Cluster IPs that are taken.");
    let _ = writeln!(out, "# TYPE {name}_allocated_ips gauge");
    for (cidr, used, _) in &counts {
        let _ = writeln!(out, "{name}_allocated_ips{{cidr=\"{cidr}\"}} {used}");
    }
    let _ = writeln!(out, "# HELP {name}_available_ips Cluster IPs that are free.");
    let _ = writeln!(out, "# TYPE {name}_available_ips gauge");
    for (cidr, _, free) in &counts {
        let _ = writeln!(out, "{name}_available_ips{{cidr=\"{cidr}\"}} {free}");
    }
    let (name, used) = ("kube_apiserver_nodeport_allocator", ports.len());
    let free = api.network.services.node_ports.len().saturating_sub(used);
    let _ = writeln!(out, "# HELP {name}_allocated_ports Node ports that are taken.");
    let _ = writeln!(out, "# TYPE {name}_allocated_ports gauge\n{name}_allocated_ports {used}");
    let _ = writeln!(out, "# HELP {name}_available_ports Node ports that are free.");
    let _ = writeln!(out, "# TYPE {name}_available_ports gauge\n{name}_available_ports {free}");
}
