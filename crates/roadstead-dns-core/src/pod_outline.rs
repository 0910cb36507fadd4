//! What a DNS server reads of a pod.
//!
//! Of a pod only its addresses matter, and what its resolv.conf is made from. To read all that may be in a
//! pod would take more code than the rest of the server has.

use k8s_openapi::api::core::v1::{Pod, PodDNSConfig, PodIP, PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::{Metadata, NamespaceResourceScope, Resource};
use serde::Deserialize;

/// A pod, without what is not read.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct PodOutline {
    metadata: ObjectMeta,
    spec: Option<SpecOutline>,
    status: Option<StatusOutline>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SpecOutline {
    dns_config: Option<PodDNSConfig>,
    dns_policy: Option<String>,
    host_network: Option<bool>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StatusOutline {
    phase: Option<String>,
    #[serde(rename = "podIPs")]
    pod_ips: Option<Vec<PodIP>>,
    start_time: Option<Time>,
}

impl From<PodOutline> for Pod {
    fn from(outline: PodOutline) -> Self {
        let spec = |spec: SpecOutline| PodSpec {
            dns_config: spec.dns_config,
            dns_policy: spec.dns_policy,
            host_network: spec.host_network,
            ..PodSpec::default()
        };
        let status = |status: StatusOutline| PodStatus {
            phase: status.phase,
            pod_ips: status.pod_ips,
            start_time: status.start_time,
            ..PodStatus::default()
        };
        let PodOutline { metadata, spec: has_spec, status: has_status } = outline;
        Self { metadata, spec: has_spec.map(spec), status: has_status.map(status) }
    }
}

impl Resource for PodOutline {
    const API_VERSION: &'static str = Pod::API_VERSION;
    const GROUP: &'static str = Pod::GROUP;
    const KIND: &'static str = Pod::KIND;
    const VERSION: &'static str = Pod::VERSION;
    const URL_PATH_SEGMENT: &'static str = Pod::URL_PATH_SEGMENT;
    type Scope = NamespaceResourceScope;
}

impl Metadata for PodOutline {
    type Ty = ObjectMeta;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_read_is_as_it_was() {
        let read = json!({"metadata": {"name": "a", "namespace": "shop", "uid": "u"},
            "spec": {"hostNetwork": true, "dnsPolicy": "None", "dnsConfig": {"searches": ["lan"]}},
            "status": {"phase": "Running", "podIPs": [{"ip": "10.0.0.1"}], "startTime": "2026-01-01T00:00:20Z"}});
        let mut whole = read.clone();
        whole["spec"]["containers"] = json!([{"name": "main"}]);
        whole["status"]["message"] = json!("else");
        let mut want: Pod = serde_json::from_value(whole.clone()).unwrap();
        want.spec.as_mut().unwrap().containers.clear();
        want.status.as_mut().unwrap().message = None;
        let outline = |value| serde_json::from_value::<PodOutline>(value).unwrap();
        assert_eq!(Pod::from(outline(whole)), want);
        assert_eq!(Pod::from(outline(json!({"metadata": {}}))), Pod::default());
    }
}
