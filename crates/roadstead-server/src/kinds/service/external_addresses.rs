//! Which external addresses a Service may ask for (CVE-2020-8554).
//!
//! Every node takes the traffic to an external address, so whoever may write a Service could have
//! the connections of others. What belongs to the cluster itself is refused in any case, and all of
//! them where the operator says so, as upstream's admission plugin DenyServiceExternalIPs does.
//! What an object had before stays good.

use std::net::IpAddr;

use ipnet::IpNet;
use roadstead_api::ip;
use roadstead_schema::invalid::Causes;
use roadstead_schema::json::Pointer;
use serde_json::Value;

use crate::api::Api;
use crate::error::ApiError;
use crate::kinds::service::allocate;
use crate::reading::object;
use crate::registry::Resource;

const DENIED: &str = "Use of external IPs is denied by admission control.";

/// Looks at the external addresses that a Service did not have before.
pub(crate) fn check(
    api: &Api,
    resource: &Resource,
    old: Option<&Value>,
    new: &Value,
) -> Result<(), ApiError> {
    let asked = new.list("/spec/externalIPs");
    if asked.is_empty() {
        return Ok(());
    }
    let known = old.map(|old| old.list("/spec/externalIPs")).unwrap_or_default();
    let is_new = |(_, text): &(usize, &Value)| !known.contains(text);
    let mut asked = asked.iter().enumerate().filter(is_new).peekable();
    if asked.peek().is_none() {
        return Ok(());
    }
    let name = new.text("/metadata/name");
    if api.network.services.deny_external_ips {
        return Err(ApiError::forbidden_object(resource.info(), name, DENIED));
    }
    let taken = Taken::now(api)?;
    let mut causes = Causes::default();
    for (index, text) in asked {
        let address = text.as_str().and_then(ip::parse);
        if let Some(why) = address.and_then(|address| taken.refusal(api, address)) {
            causes.invalid(format!("spec.externalIPs[{index}]"), text, why);
        }
    }
    match &causes.0[..] {
        [] => Ok(()),
        causes => Err(ApiError::invalid(resource.info(), name, causes)),
    }
}

/// What belongs to the cluster.
struct Taken {
    services: Vec<IpNet>,
    pods: Vec<IpNet>,
    nodes: Vec<IpAddr>,
}

impl Taken {
    fn now(api: &Api) -> Result<Self, ApiError> {
        let mut taken = Self {
            services: api.network.ranges.now().networks().collect(),
            pods: api.network.services.pod_ranges.clone(),
            nodes: Vec::new(),
        };
        let nodes = api.registry().core("nodes").bucket.clone();
        for entry in api.storage.store.list(&nodes, "", None)?.entries {
            let node = object::value(&entry);
            let texts = |list: &[Value], field: &str| -> Vec<String> {
                let text = |item: &Value| match field {
                    "" => item.as_str().map(str::to_owned),
                    field => item[field].as_str().map(str::to_owned),
                };
                list.iter().filter_map(text).collect()
            };
            let ranges = texts(node.list("/spec/podCIDRs"), "");
            taken.pods.extend(ranges.iter().filter_map(|text| ip::parse_network(text)));
            let addresses = texts(node.list("/status/addresses"), "address");
            taken.nodes.extend(addresses.iter().filter_map(|text| ip::parse(text)));
        }
        Ok(taken)
    }

    /// Why a Service cannot have an address, if it cannot.
    fn refusal(&self, api: &Api, address: IpAddr) -> Option<String> {
        let among = |nets: &[IpNet]| nets.iter().find(|net| net.contains(&address)).copied();
        if let Some(range) = among(&self.services) {
            return Some(format!("may not be in the range of cluster IPs ({range})"));
        }
        if allocate::is_taken(&api.storage.store, address) {
            return Some("may not be the cluster IP of a Service".into());
        }
        if let Some(range) = among(&self.pods) {
            return Some(format!("may not be in the range of pod IPs ({})", range.trunc()));
        }
        self.nodes.contains(&address).then(|| "may not be the address of a Node".into())
    }
}
