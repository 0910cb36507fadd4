//! A node of the cluster as this one has to know it, read from its object.

use std::net::IpAddr;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use serde_json::{Value, json};

const BACKEND: &str = "flannel.alpha.coreos.com/backend-type";
const DATA: &str = "flannel.alpha.coreos.com/backend-data";
const PUBLIC: &str = "flannel.alpha.coreos.com/public-ip";
const MANAGED: &str = "flannel.alpha.coreos.com/kube-subnet-manager";

/// Another node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Peer {
    /// The older one is believed first.
    pub(crate) made: String,
    pub(crate) name: String,
    pub(crate) pods: Vec<IpNet>,
    /// Its addresses among the nodes.
    pub(crate) addresses: Vec<IpAddr>,
    /// Where it takes packets out of VXLAN.
    pub(crate) tunnel: Option<TunnelEnd>,
}

/// Where packets are taken out of VXLAN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TunnelEnd {
    pub(crate) hardware: [u8; 6],
    pub(crate) address: IpAddr,
}

impl Peer {
    /// What a Node says of itself. What makes no sense is left out.
    pub(crate) fn read(node: &Node) -> Self {
        let spec = node.spec.clone().unwrap_or_default();
        let pods = spec.pod_cidrs.unwrap_or_else(|| spec.pod_cidr.into_iter().collect());
        let addresses = node.status.as_ref().and_then(|status| status.addresses.as_ref());
        let addresses = addresses.into_iter().flatten().filter(|one| one.type_ == "InternalIP");
        let made = node.metadata.creation_timestamp.as_ref();
        Self {
            made: made.map(|made| made.0.to_string()).unwrap_or_default(),
            name: node.name_any(),
            pods: pods.iter().filter_map(|one| one.parse::<IpNet>().ok()).collect(),
            addresses: addresses.filter_map(|one| one.address.parse().ok()).collect(),
            tunnel: TunnelEnd::read(node),
        }
    }

    /// By which others are chosen when two say the same of themselves.
    pub(crate) fn age(&self) -> (&str, &str) {
        (&self.made, &self.name)
    }
}

impl TunnelEnd {
    fn read(node: &Node) -> Option<Self> {
        let said = node.annotations();
        if said.get(BACKEND).map(String::as_str) != Some("vxlan") {
            return None;
        }
        let data: Value = serde_json::from_str(said.get(DATA)?).ok()?;
        let hardware = hardware(data["VtepMAC"].as_str()?)?;
        Some(Self { hardware, address: said.get(PUBLIC)?.parse().ok()? })
    }

    /// The annotations by which others know it.
    pub(crate) fn annotations(&self, vni: u32) -> Value {
        let data = json!({"VNI": vni, "VtepMAC": text(self.hardware)});
        json!({BACKEND: "vxlan", DATA: data.to_string(), PUBLIC: self.address.to_string(),
            MANAGED: "true"})
    }
}

fn hardware(text: &str) -> Option<[u8; 6]> {
    let bytes: Option<Vec<_>> =
        text.split(':').map(|part| u8::from_str_radix(part, 16).ok()).collect();
    let bytes: [u8; 6] = bytes?.try_into().ok()?;
    // A group, or nobody, is no machine.
    (bytes[0] & 1 == 0 && bytes != [0; 6]).then_some(bytes)
}

fn text(hardware: [u8; 6]) -> String {
    hardware.map(|byte| format!("{byte:02x}")).join(":")
}

#[test]
fn what_nodes_say() {
    let end = TunnelEnd { hardware: [2, 0x52, 10, 244, 1, 0], address: [192, 0, 2, 2].into() };
    let node = |annotations: Value| -> Node {
        let node = json!({"metadata": {"name": "n2", "annotations": annotations},
            "spec": {"podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.0/24", "nonsense"]},
            "status": {"addresses": [{"type": "Hostname", "address": "n2"},
                {"type": "InternalIP", "address": "192.0.2.2"}]}});
        serde_json::from_value(node).unwrap()
    };
    let peer = Peer::read(&node(end.annotations(1)));
    assert_eq!(peer.pods, ["10.244.1.0/24".parse::<IpNet>().unwrap()]);
    assert_eq!((peer.tunnel, peer.addresses), (Some(end), vec![[192, 0, 2, 2].into()]));
    for mac in ["ff:ff:ff:ff:ff:ff", "00:00:00:00:00:00", "02:52:0a:f4:01", "x"] {
        let mut said = end.annotations(1);
        said[DATA] = json!({"VtepMAC": mac}).to_string().into();
        assert_eq!(Peer::read(&node(said)).tunnel, None, "{mac}");
    }
}
