//! The pods of one node, the node whose pods ask this server, and the search lists that they have.
//!
//! A pod's list is known if it uses this server and no other, and if its node's resolv.conf, from which
//! a part of the list comes, has not changed since it started.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use roadstead_api::key::ObjectKey;
use roadstead_api::resolv::{ClusterDns, ResolvConf, compose};
use roadstead_zone::search::SearchList;

use crate::clients::AddressOwner;

/// Resolvers that wait longer for one name may ask after we have forgotten what was said.
const PATIENCE: Duration = Duration::from_secs(10);

/// What matters about a pod.
#[derive(Clone, Debug)]
struct KnownPod {
    /// Only what decides about its resolv.conf.
    pod: Pod,
    addresses: Vec<IpAddr>,
    started: Option<Timestamp>,
    /// Whether it is being deleted: when that is done, another pod may have its addresses before we
    /// hear of it.
    leaving: bool,
}

/// The node's resolv.conf, from which a part of every list comes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeResolvConf {
    /// What it says.
    pub conf: ResolvConf,
    /// When it was last written.
    pub written: Option<Timestamp>,
}

/// The pods of the node.
#[derive(Debug, Default)]
pub struct ClientPods(BTreeMap<ObjectKey, KnownPod>);

impl ClientPods {
    /// Takes in the newest state of a pod; returns whether anything changed that matters.
    pub fn observe(&mut self, key: ObjectKey, pod: Pod) -> bool {
        match known(pod) {
            Some(known) => {
                self.0.insert(key, known);
                true
            }
            None => self.remove(&key),
        }
    }

    /// Takes in that a pod is gone; returns whether it was known.
    pub fn remove(&mut self, key: &ObjectKey) -> bool {
        self.0.remove(key).is_some()
    }

    /// Who has which address, and what is known about them.
    pub fn owners(&self, cluster: &ClusterDns, node: &NodeResolvConf) -> Vec<AddressOwner> {
        let of_pod = |(key, pod): (&ObjectKey, &KnownPod)| {
            let search = search_of(pod, cluster, node);
            let owner = |address: &IpAddr| AddressOwner {
                key: key.clone(),
                address: *address,
                search: search.clone(),
            };
            pod.addresses.iter().map(owner).collect::<Vec<_>>()
        };
        self.0.iter().flat_map(of_pod).collect()
    }
}

/// `None` if the pod has no address of its own, or none any more.
fn known(mut pod: Pod) -> Option<KnownPod> {
    let status = pod.status.take()?;
    let over = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
    let spec = pod.spec.as_mut()?;
    if over || spec.host_network.unwrap_or(false) {
        return None;
    }
    let addresses = status.pod_ips.into_iter().flatten();
    let addresses: Vec<IpAddr> = addresses.filter_map(|ip| ip.ip.parse().ok()).collect();
    let mut own = Pod::default();
    own.metadata.namespace = pod.metadata.namespace;
    own.spec = Some(k8s_openapi::api::core::v1::PodSpec {
        dns_policy: spec.dns_policy.take(),
        dns_config: spec.dns_config.take(),
        ..Default::default()
    });
    let leaving = pod.metadata.deletion_timestamp.is_some();
    Some(KnownPod { pod: own, addresses, started: status.start_time.map(|time| time.0), leaving })
}

/// The pod's search list, if it can be known.
fn search_of(pod: &KnownPod, cluster: &ClusterDns, node: &NodeResolvConf) -> Option<SearchList> {
    let (started, written) = (pod.started?, node.written?);
    let (conf, _) = compose(&pod.pod, cluster, &node.conf);
    let namespace = pod.pod.metadata.namespace.as_deref()?;
    let own = format!("{namespace}.svc.{}", cluster.domain);
    let usual = conf.nameservers == [cluster.server.to_string()]
        && conf.searches.first() == Some(&own)
        && conf.patience() <= PATIENCE
        && !pod.leaving;
    // The API tells the start in whole seconds.
    (usual && started > written).then(|| SearchList::new(&conf.searches, conf.dots())).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clients::{Clients, MOST_WALKS, SearchQuestion, WALK};
    use roadstead_zone::name::Name;
    use serde_json::{Value, json};
    use std::time::Instant;

    const WRITTEN: &str = "2026-01-01T00:00:10Z";

    fn pod(name: &str, spec: Value, status: Value) -> (ObjectKey, Option<KnownPod>) {
        let mut all = json!({
            "metadata": {"namespace": "shop", "name": name},
            "spec": spec,
            "status": {"podIPs": [{"ip": "10.244.0.2"}], "startTime": "2026-01-01T00:00:20Z", "phase": "Running"},
        });
        all["spec"]["containers"] = json!([]);
        for (field, value) in status.as_object().unwrap() {
            all["status"][field] = value.clone();
        }
        let pod: Pod = serde_json::from_value(all).unwrap();
        (ObjectKey::new("shop", name), known(pod))
    }

    fn clients(pods: Vec<(ObjectKey, Option<KnownPod>)>, before: &Clients) -> Clients {
        let pods = pods.into_iter().filter_map(|(key, pod)| Some((key, pod?))).collect();
        let cluster = ClusterDns { server: [10, 96, 0, 10].into(), domain: "cluster.local".into() };
        let conf = ResolvConf::parse("search corp\nnameserver 192.0.2.1");
        let node = NodeResolvConf { conf, written: Some(WRITTEN.parse().unwrap()) };
        before.next(&ClientPods(pods).owners(&cluster, &node), Instant::now())
    }

    #[test]
    fn who_is_known() {
        let searches = "shop.svc.cluster.local svc.cluster.local cluster.local corp";
        let more = format!("{searches} lan");
        let cases = [
            ("the usual", json!({}), json!({}), Some((searches, 5))),
            (
                "of the cluster",
                json!({"dnsPolicy": "ClusterFirst"}),
                json!({}),
                Some((searches, 5)),
            ),
            ("of the node", json!({"dnsPolicy": "Default"}), json!({}), None),
            ("on the node's network", json!({"hostNetwork": true}), json!({}), None),
            ("over", json!({}), json!({"phase": "Succeeded"}), None),
            ("without an address", json!({}), json!({"podIPs": []}), None),
            ("older than the file", json!({}), json!({"startTime": "2026-01-01T00:00:05Z"}), None),
            ("perhaps older", json!({}), json!({"startTime": WRITTEN}), None),
            (
                "with another server",
                json!({"dnsConfig": {"nameservers": ["192.0.2.9"]}}),
                json!({}),
                None,
            ),
            (
                "with its own choice",
                json!({"dnsConfig": {"searches": ["lan"], "options": [{"name": "ndots", "value": "2"}]}}),
                json!({}),
                Some((&*more, 2)),
            ),
            (
                "impatient",
                json!({"dnsConfig": {"options": [{"name": "timeout", "value": "1"}]}}),
                json!({}),
                Some((searches, 5)),
            ),
            (
                "more patient than we remember",
                json!({"dnsConfig": {"options": [{"name": "attempts", "value": "3"}]}}),
                json!({}),
                None,
            ),
            (
                "with its own list",
                json!({"dnsPolicy": "None", "dnsConfig": {"nameservers": ["10.96.0.10"], "searches": ["a"]}}),
                json!({}),
                None,
            ),
        ];
        for (name, spec, status, want) in cases {
            let clients = clients(vec![pod("a", spec, status)], &Clients::default());
            let got = clients.get([10, 244, 0, 2].into());
            let got = got.map(|client| client.asker.search.clone());
            let want = want.map(|(list, dots)| {
                let list: Vec<_> = list.split(' ').map(str::to_owned).collect();
                SearchList::new(&list, dots).unwrap()
            });
            assert_eq!(got, want, "{name}");
        }
        let two = vec![pod("a", json!({}), json!({})), pod("b", json!({}), json!({}))];
        assert!(clients(two, &Clients::default()).is_empty(), "two pods with one address");
    }

    fn base(text: &str) -> Vec<u8> {
        let wire = Name::parse(text).unwrap().wire().to_vec();
        wire[..wire.len() - 1].to_vec()
    }

    #[test]
    fn memory_outlives_other_changes() {
        let now = Instant::now();
        let before = clients(vec![pod("a", json!({}), json!({}))], &Clients::default());
        let address = [10, 244, 0, 2].into();
        let first = |clients: &Clients, name: &str, now| {
            clients.get(address).unwrap().asker.may_complete(
                SearchQuestion { base: &base(name), family: 0, id: 0 },
                true,
                now,
            )
        };
        assert!(first(&before, "www.example.com.shop", now));
        let after = clients(vec![pod("a", json!({}), json!({}))], &before);
        assert!(!first(&after, "www.example.com", now), "it goes on with the longer one");
        assert!(first(&after, "www.example.org", now));
        assert!(first(&after, "www.example.com", now + WALK), "a new search");
        for n in 0..MOST_WALKS {
            first(&after, &format!("www.n{n}.shop"), now + WALK);
        }
        assert!(!first(&after, "www.example.org", now + WALK), "it cannot be told");
        let other = clients(vec![pod("b", json!({}), json!({}))], &after);
        assert!(first(&other, "www.example.org", now + WALK));
    }

    #[test]
    fn a_pod_that_is_being_deleted() {
        let (key, pod) = pod("a", json!({}), json!({}));
        let leaving = pod.clone().map(|pod| KnownPod { leaving: true, ..pod });
        let known = clients(vec![(key.clone(), pod)], &Clients::default());
        assert_eq!(known.len(), 1);
        assert!(clients(vec![(key, leaving)], &known).is_empty(), "nothing began with help");
    }
}
