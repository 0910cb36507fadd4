//! The pods that ask: whose search list we know, and so what they will try next.
//!
//! Only the pods of one node are followed, the node whose pods ask this server. A pod is known if
//! it uses this server and no other, and if its node's resolv.conf, from which a part of its list
//! comes, has not changed since it started. Of anybody else nothing is assumed.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client};
use roadstead_api::key::ObjectKey;
use roadstead_api::resolv::{ClusterDns, ResolvConf, compose};
use roadstead_watch::informer::{Selection, key_of};
use roadstead_watch::lean::{LeanChange, lean};
use roadstead_zone::search::Search;
use tokio::time;

use crate::publish::Published;

/// How often the node's resolv.conf is looked at, besides whenever a pod changes.
const LOOK: Duration = Duration::from_secs(2);
/// A resolver has given up after this time.
const WALK: Duration = Duration::from_secs(60);
/// How many of a client's ambiguous tries are remembered.
const MOST_WALKS: usize = 32;

/// Where the clients are, and what their lists are made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The name of the node whose pods ask this server.
    pub name: String,
    /// The resolv.conf that the node's agent uses.
    pub resolv_conf: PathBuf,
}

/// All clients whose search list is known.
#[derive(Debug, Default)]
pub struct Clients {
    by_address: HashMap<IpAddr, (ObjectKey, Arc<Asker>)>,
    completed: Arc<AtomicU64>,
}

impl Clients {
    /// Clients with a list each, for tests and benchmarks.
    pub fn of(all: impl IntoIterator<Item = (IpAddr, Search)>) -> Self {
        let named = |(at, (address, search))| {
            let key = ObjectKey::new("", format!("{at}"));
            (address, (key, Arc::new(Asker::new(search))))
        };
        let by_address = all.into_iter().enumerate().map(named).collect();
        Self { by_address, completed: Arc::default() }
    }

    pub(crate) fn get(&self, address: IpAddr) -> Option<&Asker> {
        self.by_address.get(&address).map(|(_, asker)| asker.as_ref())
    }

    /// Whether that is one of them.
    pub fn knows(&self, address: IpAddr) -> bool {
        self.by_address.contains_key(&address)
    }

    pub(crate) fn count(&self) {
        self.completed.fetch_add(1, Ordering::Relaxed);
    }

    /// How many searches were completed.
    pub fn completed(&self) -> u64 {
        self.completed.load(Ordering::Relaxed)
    }

    /// How many clients are known.
    pub fn len(&self) -> usize {
        self.by_address.len()
    }

    /// Whether nobody is known.
    pub fn is_empty(&self) -> bool {
        self.by_address.is_empty()
    }
}

/// A client.
#[derive(Debug)]
pub(crate) struct Asker {
    pub search: Search,
    /// Names whose first try looks like nothing else, but whose later ones do.
    walks: Mutex<Vec<(Instant, Box<[u8]>)>>,
}

impl Asker {
    fn new(search: Search) -> Self {
        Self { search, walks: Mutex::default() }
    }

    /// Takes in the first try for a name; returns whether it may be taken for one, rather than
    /// for a later try of a longer name.
    pub fn is_first(&self, base: &[u8], now: Instant) -> bool {
        let mut walks = self.walks.lock().unwrap_or_else(PoisonError::into_inner);
        walks.retain(|(since, _)| now.saturating_duration_since(*since) < WALK);
        let is_later = self.search.longer(base).any(|longer| {
            let mut all = walks.iter();
            all.any(|(_, known)| **known == *longer)
        });
        // Without memory we could not tell, so nothing is a first try until there is room again.
        let full = walks.len() >= MOST_WALKS;
        if self.search.is_ambiguous(base) {
            match walks.iter_mut().find(|(_, known)| **known == *base) {
                Some((since, _)) => *since = now,
                None if full => {}
                None => walks.push((now, base.into())),
            }
        }
        !is_later && !full
    }
}

/// What matters about a pod.
#[derive(Clone, Debug)]
struct Known {
    /// Only what decides about its resolv.conf.
    pod: Pod,
    addresses: Vec<IpAddr>,
    started: Option<Timestamp>,
}

/// The node's resolv.conf, and when it was last written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct OfNode {
    conf: ResolvConf,
    written: Option<Timestamp>,
}

/// Follows the node's pods for ever.
pub(crate) async fn run(
    client: Client,
    node: Node,
    cluster: ClusterDns,
    clients: Arc<Published<Clients>>,
) {
    let selection = Selection::all().fields(&format!("spec.nodeName={}", node.name));
    let mut changes = lean::<Pod>(Api::all(client), selection);
    let mut ticks = time::interval(LOOK);
    let mut pods = BTreeMap::new();
    let mut last = OfNode::default();
    loop {
        let changed = tokio::select! {
            Some(change) = changes.next() => take_in(&mut pods, change),
            _ = ticks.tick() => false,
        };
        let now = look(&node).await;
        if changed || now != last {
            let next = plan_clients(&pods, &cluster, &now, &clients.get());
            clients.publish(Arc::new(next));
            last = now;
        }
    }
}

async fn look(node: &Node) -> OfNode {
    let text = tokio::fs::read_to_string(&node.resolv_conf).await.unwrap_or_default();
    let written = match tokio::fs::metadata(&node.resolv_conf).await {
        Ok(metadata) => metadata.modified().ok().and_then(|time| Timestamp::try_from(time).ok()),
        // No file is the same as an empty one, since we do not know when.
        Err(_) => Timestamp::try_from(SystemTime::now()).ok(),
    };
    OfNode { conf: ResolvConf::parse(&text), written }
}

/// Returns whether anything changed that matters.
fn take_in(pods: &mut BTreeMap<ObjectKey, Known>, change: LeanChange<Pod>) -> bool {
    match change {
        LeanChange::Set(pod) => {
            let key = key_of(&pod);
            match known(pod) {
                Some(known) => {
                    pods.insert(key, known);
                    true
                }
                None => pods.remove(&key).is_some(),
            }
        }
        LeanChange::Gone(key, _) => pods.remove(&key).is_some(),
        LeanChange::Synced => true,
    }
}

/// `None` if the pod has no address of its own, or none any more.
fn known(mut pod: Pod) -> Option<Known> {
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
    Some(Known { pod: own, addresses, started: status.start_time.map(|time| time.0) })
}

/// Who can be helped. Those who were known before keep their memory.
fn plan_clients(
    pods: &BTreeMap<ObjectKey, Known>,
    cluster: &ClusterDns,
    node: &OfNode,
    before: &Clients,
) -> Clients {
    let mut owners: HashMap<IpAddr, usize> = HashMap::new();
    for address in pods.values().flat_map(|pod| &pod.addresses) {
        *owners.entry(*address).or_default() += 1;
    }
    let mut by_address = HashMap::new();
    for (key, pod) in pods {
        let Some(search) = search_of(pod, cluster, node) else { continue };
        // An address with two owners belongs to one that we do not know.
        for address in pod.addresses.iter().filter(|address| owners[*address] == 1) {
            let old = before
                .by_address
                .get(address)
                .filter(|(owner, old)| owner == key && old.search == search);
            let asker = old.map(|(_, old)| old.clone());
            let asker = asker.unwrap_or_else(|| Arc::new(Asker::new(search.clone())));
            by_address.insert(*address, (key.clone(), asker));
        }
    }
    Clients { by_address, completed: before.completed.clone() }
}

/// The pod's search list, if it can be known.
fn search_of(pod: &Known, cluster: &ClusterDns, node: &OfNode) -> Option<Search> {
    let (started, written) = (pod.started?, node.written?);
    let (conf, _) = compose(&pod.pod, cluster, &node.conf);
    let namespace = pod.pod.metadata.namespace.as_deref()?;
    let own = format!("{namespace}.svc.{}", cluster.domain);
    let usual =
        conf.nameservers == [cluster.server.to_string()] && conf.searches.first() == Some(&own);
    // The API tells the start in whole seconds.
    (usual && started > written).then(|| Search::new(&conf.searches, conf.dots())).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use roadstead_zone::name::Name;
    use serde_json::{Value, json};

    const WRITTEN: &str = "2026-01-01T00:00:10Z";

    fn pod(name: &str, spec: Value, status: Value) -> (ObjectKey, Option<Known>) {
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
        (key_of(&pod), known(pod))
    }

    fn clients(pods: Vec<(ObjectKey, Option<Known>)>, before: &Clients) -> Clients {
        let pods = pods.into_iter().filter_map(|(key, pod)| Some((key, pod?))).collect();
        let cluster = ClusterDns { server: [10, 96, 0, 10].into(), domain: "cluster.local".into() };
        let conf = ResolvConf::parse("search corp\nnameserver 192.0.2.1");
        let node = OfNode { conf, written: Some(WRITTEN.parse().unwrap()) };
        plan_clients(&pods, &cluster, &node, before)
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
                "with its own list",
                json!({"dnsPolicy": "None", "dnsConfig": {"nameservers": ["10.96.0.10"], "searches": ["a"]}}),
                json!({}),
                None,
            ),
        ];
        for (name, spec, status, want) in cases {
            let clients = clients(vec![pod("a", spec, status)], &Clients::default());
            let got = clients.get([10, 244, 0, 2].into()).map(|asker| asker.search.clone());
            let want = want.map(|(list, dots)| {
                let list: Vec<_> = list.split(' ').map(str::to_owned).collect();
                Search::new(&list, dots).unwrap()
            });
            assert_eq!(got, want, "{name}");
        }
        let two = vec![pod("a", json!({}), json!({})), pod("b", json!({}), json!({}))];
        assert!(clients(two, &Clients::default()).is_empty(), "two pods with one address");
    }

    #[test]
    fn memory_outlives_other_changes() {
        let now = Instant::now();
        let base = |text: &str| {
            let wire = Name::parse(text).unwrap().wire().to_vec();
            wire[..wire.len() - 1].to_vec()
        };
        let before = clients(vec![pod("a", json!({}), json!({}))], &Clients::default());
        let address = [10, 244, 0, 2].into();
        assert!(before.get(address).unwrap().is_first(&base("www.example.com.shop"), now));
        let after = clients(vec![pod("a", json!({}), json!({}))], &before);
        let asker = after.get(address).unwrap();
        assert!(!asker.is_first(&base("www.example.com"), now), "it goes on with the longer one");
        assert!(asker.is_first(&base("www.example.org"), now));
        assert!(asker.is_first(&base("www.example.com"), now + WALK), "a new search");
        for n in 0..MOST_WALKS {
            asker.is_first(&base(&format!("www.n{n}.shop")), now + WALK);
        }
        assert!(!asker.is_first(&base("www.example.org"), now + WALK), "it cannot be told");
        let other = clients(vec![pod("b", json!({}), json!({}))], &after);
        assert!(other.get(address).unwrap().is_first(&base("www.example.org"), now + WALK));
    }
}
