//! A plane whose kernel is a value: what a new plane takes (`docs/adding.md`) is this file, its row in
//! `PLANES` and its variant of `ProxyMode`. The agent works with it as with the others.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use roadstead_forwarding::iptables::diff::Kept;
use roadstead_forwarding::service::{IpFamily, ServicePortName};
use roadstead_forwarding::table::ForwardingTable;
use roadstead_testkit::netns::laboratory;
use roadstead_watch::informer::Change;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{
    CommitError, Committed, CounterDoubt, DataPlane, Loopback, Needs, PlaneContext, PlaneKind,
    ProxyMode, Refusal,
};
use crate::agent::Agent;
use crate::agent::config::{Config, Follow, Outputs};
use crate::conntrack::StaleFlows;
use crate::metrics::Metrics;

pub(super) const KIND: PlaneKind = PlaneKind {
    mode: ProxyMode::Pretended,
    name: "pretended",
    needs: Needs {
        all_nodes: true,
        service_networks: false,
        named_counters: false,
        loopback: Loopback::Rules,
        node_port_addresses: &[],
    },
    open: |_: &PlaneContext, family| Ok(Box::new(PretendedPlane { family, whole: true })),
    iptables_rules: Kept::nothing,
    fallback: None,
    metrics: Metrics::of_nftables,
};

thread_local! {
    /// That of the test, which runs in one thread.
    static KERNEL: RefCell<PretendedKernel> = RefCell::default();
}

/// What a kernel has, and what was asked of it.
#[derive(Debug, Default)]
struct PretendedKernel {
    /// The targets of each service port, in each family that it was ever told of.
    carried: BTreeMap<IpFamily, BTreeMap<String, usize>>,
    /// How many service ports the commits looked at, one after the other.
    looked_at: Vec<usize>,
    /// How many kinds of flows it forgot.
    forgotten: usize,
    /// Whether it takes nothing.
    refuses: bool,
    /// Whether somebody removed what was there.
    robbed: bool,
}

fn kernel<T>(ask: impl FnOnce(&mut PretendedKernel) -> T) -> T {
    KERNEL.with_borrow_mut(ask)
}

#[derive(Debug)]
struct PretendedPlane {
    family: IpFamily,
    /// Whether nothing is known of what the kernel has.
    whole: bool,
}

/// It takes nothing.
#[derive(Debug, thiserror::Error)]
#[error("it pretends to be broken")]
struct Broken;

impl Refusal for Broken {
    fn is_missing_feature(&self) -> bool {
        false
    }

    fn remedy(&self) -> Option<&'static str> {
        Some("pretend otherwise")
    }
}

impl DataPlane for PretendedPlane {
    fn commit(
        &mut self,
        table: &ForwardingTable,
        changed: BTreeSet<Arc<ServicePortName>>,
    ) -> Result<Committed, CommitError> {
        let whole = std::mem::replace(&mut self.whole, true);
        kernel(|kernel| {
            if kernel.refuses {
                return Err(Broken.into());
            }
            kernel.robbed = false;
            let carried = kernel.carried.entry(self.family).or_default();
            let looked_at = table.iter().filter(|(name, _)| whole || changed.contains(*name));
            let ports: Vec<_> =
                looked_at.map(|(name, port)| (name.to_string(), port.cluster.len())).collect();
            let gone = |name: &String| !table.iter().any(|(known, _)| known.to_string() == *name);
            carried.retain(|name, _| !gone(name));
            kernel.looked_at.push(ports.len());
            carried.extend(ports);
            self.whole = false;
            Ok(Committed { whole, operations: changed.len() })
        })
    }

    fn needs_everything(&self) -> bool {
        self.whole
    }

    fn forget(&mut self, flows: StaleFlows) {
        kernel(|kernel| kernel.forgotten += flows.filters.len());
    }

    fn check(&mut self) -> Result<bool, CommitError> {
        self.whole |= kernel(|kernel| kernel.robbed);
        Ok(!self.whole)
    }

    fn check_period(&self) -> Duration {
        Duration::from_secs(3)
    }

    fn remove(&mut self, _kept: &Kept) -> Result<(), CommitError> {
        kernel(|kernel| kernel.carried.remove(&self.family));
        Ok(())
    }
}

fn set<K: DeserializeOwned>(object: Value) -> Change<K> {
    Change::Set(serde_json::from_value(object).unwrap())
}

fn service(name: &str, address: &str) -> Change<Service> {
    set(json!({"metadata": {"namespace": "ns", "name": name},
        "spec": {"clusterIPs": [address], "ports": [{"port": 53, "protocol": "UDP"}]}}))
}

fn slice(name: &str, addresses: &[&str]) -> Change<EndpointSlice> {
    let endpoints = addresses.iter().map(|address| json!({"addresses": [address]}));
    set(json!({"metadata": {"namespace": "ns", "name": name,
            "labels": {"kubernetes.io/service-name": name}},
        "addressType": "IPv4", "endpoints": endpoints.collect::<Vec<_>>(),
        "ports": [{"name": "", "port": 53, "protocol": "UDP"}]}))
}

fn carried() -> String {
    let carried = kernel(|kernel| kernel.carried.get(&IpFamily::V4).cloned().unwrap_or_default());
    let ports = carried.into_iter().map(|(name, targets)| format!("{name}={targets}"));
    ports.collect::<Vec<_>>().join(" ")
}

/// In a laboratory, since a plane that has written removes what others left in the kernel.
#[test]
fn another_plane_is_a_type_and_a_row() {
    laboratory(|| {
        assert_eq!("pretended".parse(), Ok(ProxyMode::Pretended));
        assert_eq!(Broken.doubt_about_counters(), CounterDoubt::None);
        let follow = Follow { node: true, ..Follow::default() };
        let families = vec![IpFamily::V4];
        let mode = ProxyMode::Pretended;
        let config = Config { node_name: "n1".into(), mode, families, follow, ..Config::default() };
        let outputs = Outputs::default();
        let mut agent = Agent::new(config, outputs.clone()).unwrap();
        assert_eq!(agent.check_period(), Duration::from_secs(3));

        agent.observe_service(&service("a", "10.96.0.1"));
        agent.observe_service(&service("b", "10.96.0.2"));
        agent.observe_slice(&slice("a", &["10.0.0.1"]));
        agent.observe_service(&Change::Synced);
        agent.observe_slice(&Change::Synced);
        agent.observe_node(&Change::Synced);
        assert!(!agent.synced(), "it wants the addresses of all nodes");
        agent.observe_any_node(&Change::<Node>::Synced);
        assert!(agent.synced());

        agent.commit().unwrap();
        assert_eq!(carried(), "ns/a/udp=1 ns/b/udp=0");
        assert_eq!(outputs.programmed.borrow().service_ports, 2);
        // From now on it is told of changes only, and of flows that lead nowhere any more.
        let forgotten = kernel(|kernel| kernel.forgotten);
        agent.observe_slice(&slice("a", &["10.0.0.2", "10.0.0.3"]));
        agent.commit().unwrap();
        assert_eq!(carried(), "ns/a/udp=2 ns/b/udp=0");
        assert_eq!(kernel(|kernel| kernel.looked_at.clone()), [2, 1]);
        assert!(kernel(|kernel| kernel.forgotten) > forgotten, "10.0.0.1 is gone");

        // What it refuses stays to be written, and comes with the plane's own remedy.
        kernel(|kernel| kernel.refuses = true);
        agent.observe_slice(&slice("b", &["10.0.0.4"]));
        let error = agent.commit().unwrap_err();
        assert_eq!(error.full_text(), "it pretends to be broken (pretend otherwise)");
        assert_eq!(carried(), "ns/a/udp=2 ns/b/udp=0");
        assert_eq!(outputs.programmed.borrow().commits, 2);
        kernel(|kernel| kernel.refuses = false);
        agent.commit().unwrap();
        assert_eq!(carried(), "ns/a/udp=2 ns/b/udp=1");

        // What somebody else removed comes back, as a whole.
        assert!(agent.is_intact());
        kernel(|kernel| (kernel.robbed, kernel.carried) = (true, BTreeMap::new()));
        assert!(!agent.is_intact());
        agent.commit().unwrap();
        assert_eq!(carried(), "ns/a/udp=2 ns/b/udp=1");
        assert_eq!(kernel(|kernel| kernel.looked_at.clone()), [2, 1, 2, 2]);
    });
}
