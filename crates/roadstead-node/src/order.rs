//! From a pod's spec to an order for the runtime: pure, but for reading the node's resolv.conf.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Container, Pod};

use crate::cgroup::limits::resources;
use crate::config::Config;
use crate::environment::{Addresses, environment, expand, hostname, hosts_file, with_defaults};
use crate::runtime::{ContainerOrder, PodName};
use crate::security::{Policy, confine};
use crate::volumes;
use roadstead_api::resolv::{ClusterDns, ResolvConf, compose};

/// The node's own name servers.
const NODE_RESOLV_CONF: &str = "/etc/resolv.conf";
/// Those behind systemd-resolved, which itself answers on the node's own loopback only.
const REAL_RESOLV_CONF: &str = "/run/systemd/resolve/resolv.conf";

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

/// Replaces the node's name servers by the real ones if a pod could reach none of them. The rest stays,
/// because the DNS server knows it, too.
fn reachable(node: ResolvConf, real: impl FnOnce() -> ResolvConf) -> ResolvConf {
    let is_loopback = |server: &String| {
        server.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
    };
    if !node.nameservers.iter().all(is_loopback) {
        return node;
    }
    match real().nameservers {
        none if none.is_empty() => node,
        nameservers => ResolvConf { nameservers, ..node },
    }
}

/// What an order depends on besides the pod.
pub(crate) struct Circumstances<'a> {
    /// The pod's address.
    pub(crate) address: IpAddr,
    /// How often the container ran before.
    pub(crate) restarts: i32,
    /// Variables about Services.
    pub(crate) links: &'a [(String, String)],
    pub(crate) config: &'a Config,
}

/// Returns the order, and notes about what had to be left out of resolv.conf; the error says what
/// about the container's configuration cannot be used.
pub(crate) fn plan_order(
    pod: &Pod,
    container: &Container,
    circumstances: &Circumstances<'_>,
) -> Result<(ContainerOrder, Vec<String>), String> {
    let Circumstances { address, restarts, links, config } = *circumstances;
    let policy = if config.allow_privileged { Policy::Privileged } else { Policy::Baseline };
    let confinement = confine(pod, container, policy)?;
    let addresses = Addresses { pod: address, host: config.internal_ip };
    let environment = environment(pod, container, addresses, links)?;
    let expand = |words: &Option<Vec<String>>| -> Vec<String> {
        words.iter().flatten().map(|word| expand(word, &environment)).collect()
    };
    let (command, args) = (expand(&container.command), expand(&container.args));
    let hostname = match on_host_network(pod) {
        true => config.node_name.clone(),
        false => hostname(pod),
    };
    let cluster = ClusterDns { server: config.cluster_dns, domain: config.cluster_domain.clone() };
    let read = |path| ResolvConf::parse(&fs::read_to_string(path).unwrap_or_default());
    let node = reachable(read(NODE_RESOLV_CONF), || read(REAL_RESOLV_CONF));
    let (resolv_conf, notes) = compose(pod, &cluster, &node);
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
        command,
        args,
        environment: with_defaults(pod, environment),
        working_directory: container.working_dir.clone().filter(|path| !path.is_empty()),
        hostname,
        files,
        confinement,
        resources: resources(&pod.spec.clone().unwrap_or_default(), container, machine_bytes()),
        mounts: volumes::mounts(pod, container)?,
        restarts,
    };
    Ok((order, notes))
}

fn machine_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram.saturating_mul(info.mem_unit.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_servers_that_pods_can_reach() {
        let conf = |servers: &str| ResolvConf {
            nameservers: servers.split_whitespace().map(str::to_owned).collect(),
            ..ResolvConf::parse("search lan\n")
        };
        for (name, node, real, want) in [
            ("plain", "192.0.2.1", "192.0.2.2", "192.0.2.1"),
            ("systemd-resolved", "127.0.0.53", "192.0.2.2 fd00::53", "192.0.2.2 fd00::53"),
            ("one can be reached", "127.0.0.1 192.0.2.1", "192.0.2.2", "127.0.0.1 192.0.2.1"),
            ("nothing better", "127.0.0.53", "", "127.0.0.53"),
            ("the newer family", "::1", "192.0.2.2", "192.0.2.2"),
            ("none", "", "192.0.2.2", "192.0.2.2"),
        ] {
            let got = reachable(conf(node), || conf(real));
            assert_eq!(got.nameservers.join(" "), want, "{name}");
            assert_eq!(got.searches, ["lan"], "{name}");
        }
    }
}
