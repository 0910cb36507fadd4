//! As whom the parts work: each has the rights of its name and no others
//! (`docs/adr/0153-every-part-is-somebody.md`), in `up` and with a kubeconfig of its own. Those of the
//! controllers are in `roadstead_controllers::identities`.

use std::sync::Arc;

use anyhow::{Context, bail};
use kube::Client;
use roadstead_controllers::identities::user_of;
use roadstead_server::api::Api;
use roadstead_server::identity::user::User;
use roadstead_server::transport::local::Local;

/// The proxy, and what answers for the addresses of load balancers.
pub(crate) const PROXY: &str = "system:kube-proxy";
/// The DNS server.
pub(crate) const DNS: &str = "system:serviceaccount:kube-system:coredns";
/// What keeps the kernel equal to NetworkPolicies.
pub(crate) const NETWORK_POLICY: &str =
    "system:serviceaccount:kube-system:roadstead-network-policy";
/// `up` itself, which makes the DNS server known.
pub(crate) const UP: &str = "system:roadstead-up";

/// A client that may do what that user may.
pub(crate) fn client(api: &Arc<Api>, user: &str) -> Client {
    Client::new(Local::new(api.clone(), User::part(user)), "default")
}

/// A client that may do everything, for what whoever has this process does once.
pub(crate) fn master(api: &Arc<Api>) -> Client {
    Client::new(Local::new(api.clone(), User::component()), "default")
}

/// A client that may do what that node may.
pub(crate) fn node_client(api: &Arc<Api>, node: &str) -> Client {
    let user = User { in_process: true, ..User::of_node(node) };
    Client::new(Local::new(api.clone(), user), "default")
}

/// Name and group of a part, as the command line calls it; nodes have names.
pub(crate) fn of_part(part: &str, node: Option<&str>) -> anyhow::Result<(String, &'static str)> {
    let user = match part {
        "proxy" => PROXY,
        "dns" => DNS,
        "netpol" => NETWORK_POLICY,
        "node" => {
            let node = node.context("which node? see --node-name")?;
            return Ok((format!("system:node:{node}"), "system:nodes"));
        }
        controller => {
            let known = roadstead_controllers::choose(&[controller.to_owned()]).ok();
            let tasks = known.map(|names| roadstead_controllers::tasks(&names));
            // Some have one user together, as they are one task together.
            let all = roadstead_controllers::tasks(&roadstead_controllers::names());
            let task = tasks.as_deref().and_then(|tasks| match tasks {
                [(_, names)] => all.iter().find(|(_, all)| all.contains(&names[0])),
                _ => None,
            });
            match task {
                Some((task, _)) => user_of(task),
                None => bail!(
                    "{part:?} is no part: there are proxy, dns, netpol, node and the controllers {}",
                    roadstead_controllers::names().join(", ")
                ),
            }
        }
    };
    let group = if user.contains(":serviceaccount:") {
        "system:serviceaccounts"
    } else {
        "system:components"
    };
    Ok((user.to_owned(), group))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_parts_are() {
        let cases = [
            ("proxy", None, "system:kube-proxy"),
            ("dns", None, "system:serviceaccount:kube-system:coredns"),
            ("node", Some("n1"), "system:node:n1"),
            ("node", None, ""),
            ("deployment", None, "system:serviceaccount:kube-system:deployment-controller"),
            ("endpoints", None, "system:serviceaccount:kube-system:endpointslice-controller"),
            ("kube-scheduler", None, "system:kube-scheduler"),
            ("*", None, ""),
            ("-job", None, ""),
            ("nobody", None, ""),
        ];
        for (part, node, want) in cases {
            let got = of_part(part, node).map_or(String::new(), |(name, _)| name);
            assert_eq!(got, want, "{part}");
        }
    }
}
