//! From a pod's spec to an order for the runtime: pure, but for reading the node's resolv.conf.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Container, Pod};

use crate::config::Config;
use crate::environment::{Addresses, environment, hostname, hosts_file};
use crate::runtime::{ContainerOrder, PodName};
use roadstead_api::resolv::{ClusterDns, ResolvConf, compose};

/// The node's own name servers.
const NODE_RESOLV_CONF: &str = "/etc/resolv.conf";

/// The names by which the runtime knows the pod.
pub(crate) fn pod_name(pod: &Pod) -> PodName {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    let meta = &pod.metadata;
    PodName { namespace: text(&meta.namespace), name: text(&meta.name), uid: text(&meta.uid) }
}

/// Whether the pod uses the node's network.
pub(crate) fn on_host_network(pod: &Pod) -> bool {
    pod.spec.as_ref().and_then(|spec| spec.host_network).unwrap_or(false)
}

/// Returns the order, and notes about what had to be left out of resolv.conf; the error says what
/// about the container's configuration cannot be used.
pub(crate) fn plan_order(
    pod: &Pod,
    container: &Container,
    address: IpAddr,
    restarts: i32,
    config: &Config,
) -> Result<(ContainerOrder, Vec<String>), String> {
    let addresses = Addresses { pod: address, host: config.internal_ip };
    let environment = environment(pod, container, addresses)?;
    let hostname = match on_host_network(pod) {
        true => config.node_name.clone(),
        false => hostname(pod),
    };
    let cluster = ClusterDns { server: config.cluster_dns, domain: config.cluster_domain.clone() };
    let node = fs::read_to_string(NODE_RESOLV_CONF).unwrap_or_default();
    let (resolv_conf, notes) = compose(pod, &cluster, &ResolvConf::parse(&node));
    let files = BTreeMap::from([
        ("/etc/hostname".to_owned(), format!("{hostname}\n")),
        ("/etc/hosts".to_owned(), hosts_file(pod, address, &config.cluster_domain)),
        ("/etc/resolv.conf".to_owned(), resolv_conf.to_string()),
    ]);
    let order = ContainerOrder {
        pod: pod_name(pod),
        container: container.name.clone(),
        image: container.image.clone().unwrap_or_default(),
        pull_policy: container.image_pull_policy.clone(),
        command: container.command.clone().unwrap_or_default(),
        args: container.args.clone().unwrap_or_default(),
        environment,
        working_directory: container.working_dir.clone().filter(|path| !path.is_empty()),
        hostname,
        files,
        restarts,
    };
    Ok((order, notes))
}
