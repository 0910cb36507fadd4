//! What an operator, or whoever starts the server, can choose.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use ipnet::IpNet;
use roadstead_plan::alloc;

use crate::identity::audit::Audit;

/// What an operator can choose.
pub struct Config {
    /// Where the addresses of Services come from.
    pub service_range: IpNet,
    /// The address that the `kubernetes` Service leads to, with its port; `None` leaves the
    /// Service without endpoints.
    pub advertise: Option<(IpAddr, u16)>,
    /// Where to write who did what.
    pub audit: Option<Audit>,
}

/// What an operator can choose about Services.
#[derive(Clone, Debug)]
pub struct Services {
    /// Where addresses of the other family come from, in a cluster that has both.
    pub second_range: Option<IpNet>,
    /// Where node ports come from.
    pub node_ports: RangeInclusive<u16>,
    /// Whether everybody who uses Endpoints hears that EndpointSlices have replaced them.
    pub warn_about_endpoints: bool,
    /// Whether new external addresses are refused, whatever they are.
    pub deny_external_ips: bool,
    /// Where the addresses of pods come from, besides what Nodes say.
    pub pod_ranges: Vec<IpNet>,
    /// Whether controllers give nodes their part of these: no node takes one itself.
    pub gives_pod_ranges: bool,
}

impl Default for Services {
    fn default() -> Self {
        Self {
            second_range: None,
            node_ports: alloc::NODE_PORTS,
            warn_about_endpoints: true,
            deny_external_ips: false,
            pod_ranges: Vec::new(),
            gives_pod_ranges: false,
        }
    }
}

/// What is around the API server, as far as whoever starts it knows.
#[derive(Clone, Debug, Default)]
pub struct Neighbours {
    /// The controllers and other components that run, all of them; `None` if there may be others.
    pub components: Option<Vec<&'static str>>,
}

impl Neighbours {
    /// Whether nobody else is there.
    pub(crate) fn are_known(&self) -> bool {
        self.components.is_some()
    }

    /// Whether it is certain that this component does not run.
    pub(crate) fn lacks(&self, component: &str) -> bool {
        self.components.as_ref().is_some_and(|all| !all.contains(&component))
    }
}
