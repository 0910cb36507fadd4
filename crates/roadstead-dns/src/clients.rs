//! The pods that ask: whose search list we know, and so what they will try next.
//!
//! Only the pods of one node are followed, the node whose pods ask this server. A pod is known if
//! it uses this server and no other, and if its node's resolv.conf, from which a part of its list
//! comes, has not changed since it started. Of anybody else nothing is assumed.
//!
//! A pod may ask before we have heard of it, so it is helped only some time after that, when none of
//! its lookups can be one that began without help. And it may ask when it is not to be helped any
//! more: then the lookups that began with help end with it.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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

use self::agreement::{Agreements, Question, TRY, Way};
use crate::publish::Published;

pub(crate) mod agreement;

/// How often the node's resolv.conf is looked at, besides whenever a pod changes.
const LOOK: Duration = Duration::from_secs(2);
/// A resolver has given up after this time.
const WALK: Duration = Duration::from_secs(60);
/// Resolvers that wait longer for one name may ask after we have forgotten what was said.
const PATIENCE: Duration = Duration::from_secs(10);
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
    by_address: HashMap<IpAddr, Peer>,
    completed: Arc<AtomicU64>,
}

/// Who has an address.
#[derive(Clone, Debug)]
pub struct Owner {
    /// The name of the pod.
    pub key: ObjectKey,
    /// One of its addresses.
    pub address: IpAddr,
    /// The pod's search list, if it can be known, and if it is to be helped.
    pub search: Option<Search>,
}

impl Clients {
    /// Clients with a list each, which are helped at once, for tests and benchmarks.
    pub fn of(all: impl IntoIterator<Item = (IpAddr, Search)>) -> Self {
        let now = Instant::now();
        let named = |(at, (address, search))| {
            let owner = ObjectKey::new("", format!("{at}"));
            let asker = Arc::new(Asker::new(search));
            (address, Peer { owner, asker, help: Help::From(now) })
        };
        let by_address = all.into_iter().enumerate().map(named).collect();
        Self { by_address, completed: Arc::default() }
    }

    /// Who is helped when these have the addresses. Those who were known before keep their memory;
    /// an address with two owners belongs to one that we do not know.
    pub fn next(&self, owners: &[Owner], now: Instant) -> Self {
        let mut counts: HashMap<IpAddr, usize> = HashMap::new();
        for owner in owners {
            *counts.entry(owner.address).or_default() += 1;
        }
        let single = owners.iter().filter(|owner| counts[&owner.address] == 1);
        let client = |owner: &Owner| {
            let old = self.by_address.get(&owner.address).filter(|old| old.owner == owner.key);
            Some((owner.address, Peer::next(old, owner, now)?))
        };
        Self { by_address: single.filter_map(client).collect(), completed: self.completed.clone() }
    }

    pub(crate) fn get(&self, address: IpAddr) -> Option<&Peer> {
        self.by_address.get(&address)
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

/// A client, as it is known at the moment.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    owner: ObjectKey,
    pub asker: Arc<Asker>,
    help: Help,
}

/// When a client is helped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Help {
    /// What it asked before that may have been the half of a lookup that we know nothing of.
    From(Instant),
    /// No lookup begins with help any more.
    Until(Instant),
}

impl Peer {
    /// What becomes of a client; `None` if nothing has to be known about the owner of the address.
    fn next(old: Option<&Self>, new: &Owner, now: Instant) -> Option<Self> {
        let from_now = Help::From(now + TRY);
        let client = |asker, help| Some(Self { owner: new.key.clone(), asker, help });
        match (old, &new.search) {
            (Some(old), Some(search)) if old.asker.search == *search => match old.help {
                Help::From(_) => Some(old.clone()),
                Help::Until(_) => client(old.asker.clone(), from_now),
            },
            (_, Some(search)) => client(Arc::new(Asker::new(search.clone())), from_now),
            (Some(old), None) => match old.help {
                Help::From(start) if now < start => None,
                Help::From(_) => client(old.asker.clone(), Help::Until(now)),
                Help::Until(end) if now >= end + 2 * TRY => None,
                Help::Until(_) => Some(old.clone()),
            },
            (None, None) => None,
        }
    }

    /// Whether a lookup may begin with help.
    pub fn is_helped(&self, now: Instant) -> bool {
        matches!(self.help, Help::From(start) if start <= now)
    }
}

/// What a client asked before.
#[derive(Debug)]
pub(crate) struct Asker {
    pub search: Search,
    memory: Mutex<Memory>,
}

#[derive(Debug, Default)]
struct Memory {
    /// Names whose first try looks like nothing else, but whose later ones do.
    walks: Vec<(Instant, Box<[u8]>)>,
    agreements: Agreements,
}

impl Asker {
    fn new(search: Search) -> Self {
        Self { search, memory: Mutex::default() }
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in the first try for a name; returns whether the search may be completed, as far as
    /// earlier questions are concerned. `fresh` is whether it might if there had been none; `family` is
    /// 0 for a question that is not about addresses.
    pub fn may_complete(&self, (base, family): (&[u8], u8), fresh: bool, now: Instant) -> bool {
        let mut memory = self.memory();
        let first = memory.is_first(&self.search, base, now);
        if family == 0 {
            return fresh && first;
        }
        let question = question(base, family);
        match memory.agreements.held(question, now) {
            Some(Way::Completed) if first => return true,
            Some(Way::Completed) => memory.agreements.begin(question, Way::Alone, now),
            None if fresh && first => return true,
            Some(Way::Alone) | None => memory.agreements.agree(question, Way::Alone, now),
        };
        false
    }

    /// Takes in how the search would go on; returns how it does, so that both families go the same
    /// way.
    pub fn agree(&self, (base, family): (&[u8], u8), way: Way, now: Instant) -> Way {
        if family == 0 {
            return way;
        }
        self.memory().agreements.agree(question(base, family), way, now)
    }
}

fn question(base: &[u8], family: u8) -> Question {
    let mut hasher = DefaultHasher::new();
    base.hash(&mut hasher);
    Question { base: hasher.finish(), family }
}

impl Memory {
    /// Takes in the first try for a name; returns whether it may be taken for one, rather than
    /// for a later try of a longer name.
    fn is_first(&mut self, search: &Search, base: &[u8], now: Instant) -> bool {
        let walks = &mut self.walks;
        walks.retain(|(since, _)| now.saturating_duration_since(*since) < WALK);
        let known = |longer: &[u8]| walks.iter().any(|(_, known)| **known == *longer);
        let is_later = !walks.is_empty() && search.longer(base).any(|longer| known(&longer));
        // Without memory we could not tell, so nothing is a first try until there is room again.
        let full = walks.len() >= MOST_WALKS;
        if search.is_ambiguous(base) {
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
    /// Whether it is being deleted: when that is done, another pod may have its addresses before we
    /// hear of it.
    leaving: bool,
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
            let next = clients.get().next(&owners(&pods, &cluster, &now), Instant::now());
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
    let leaving = pod.metadata.deletion_timestamp.is_some();
    Some(Known { pod: own, addresses, started: status.start_time.map(|time| time.0), leaving })
}

/// Who has which address, and what is known about them.
fn owners(pods: &BTreeMap<ObjectKey, Known>, cluster: &ClusterDns, node: &OfNode) -> Vec<Owner> {
    let of_pod = |(key, pod): (&ObjectKey, &Known)| {
        let search = search_of(pod, cluster, node);
        let owner = |address: &IpAddr| Owner {
            key: key.clone(),
            address: *address,
            search: search.clone(),
        };
        pod.addresses.iter().map(owner).collect::<Vec<_>>()
    };
    pods.iter().flat_map(of_pod).collect()
}

/// The pod's search list, if it can be known.
fn search_of(pod: &Known, cluster: &ClusterDns, node: &OfNode) -> Option<Search> {
    let (started, written) = (pod.started?, node.written?);
    let (conf, _) = compose(&pod.pod, cluster, &node.conf);
    let namespace = pod.pod.metadata.namespace.as_deref()?;
    let own = format!("{namespace}.svc.{}", cluster.domain);
    let usual = conf.nameservers == [cluster.server.to_string()]
        && conf.searches.first() == Some(&own)
        && conf.patience() <= PATIENCE
        && !pod.leaving;
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
        before.next(&owners(&pods, &cluster, &node), Instant::now())
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
                Search::new(&list, dots).unwrap()
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
            clients.get(address).unwrap().asker.may_complete((&base(name), 0), true, now)
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

    /// Who has the address from when on: `a` and `b` are pods, `a-` is one whose list is not to be
    /// used; `ab` are two at once.
    fn helped(script: &str) -> String {
        let start = Instant::now();
        let address = [10, 244, 0, 2].into();
        let mut clients = Clients::default();
        let search = Search::new(&["shop.svc.cluster.local".into()], 5).unwrap();
        let step = |word: &str| {
            let (who, at) = word.split_once('@').unwrap();
            let now = start + Duration::from_secs(at.parse().unwrap());
            let names = who.chars().filter(char::is_ascii_alphabetic);
            let search = Some(&search).filter(|_| !who.ends_with('-'));
            let owner = |name: char| Owner {
                key: ObjectKey::new("shop", name),
                address,
                search: search.cloned(),
            };
            clients = clients.next(&names.map(owner).collect::<Vec<_>>(), now);
            match clients.get(address) {
                None => "nobody",
                Some(client) if client.is_helped(now) => "helped",
                Some(_) => "known",
            }
        };
        script.split(' ').map(step).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn when_a_pod_is_helped() {
        let cases = [
            ("not at once", "a@0 a@14 a@15", "known known helped"),
            ("until it goes", "a@0 a@15 -@16 a@17 a@32", "known helped nobody known helped"),
            ("it changes hands", "a@0 a@15 b@16 b@31", "known helped known helped"),
            (
                "it may not be helped any more",
                "a@0 a@15 a-@16 a-@45 a-@46",
                "known helped known known nobody",
            ),
            ("and is again", "a@0 a@15 a-@16 a@17 a@32", "known helped known known helped"),
            ("it never was", "a@0 a-@14 a-@15", "known nobody nobody"),
            ("two have it", "a@0 a@15 ab@16 b@17", "known helped nobody known"),
        ];
        for (name, script, want) in cases {
            assert_eq!(helped(script), want, "{name}");
        }
    }

    #[test]
    fn a_pod_that_is_being_deleted() {
        let (key, pod) = pod("a", json!({}), json!({}));
        let leaving = pod.clone().map(|pod| Known { leaving: true, ..pod });
        let known = clients(vec![(key.clone(), pod)], &Clients::default());
        assert_eq!(known.len(), 1);
        assert!(clients(vec![(key, leaving)], &known).is_empty(), "nothing began with help");
    }
}
