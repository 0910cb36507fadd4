//! Which endpoints a new connection on this node may reach.
//!
//! This is the rule of kube-proxy (upstream `pkg/proxy/topology.go`), as one pure function over
//! the endpoints of one service port. It knows nothing of frontends or kernels.

use std::net::IpAddr;
use std::sync::Arc;

use crate::service::Locality;

/// The machine for which we select.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeView {
    /// Its name, as endpoints carry it.
    pub name: String,
    /// Its `topology.kubernetes.io/zone`, if it has one.
    pub zone: Option<String>,
}

/// The scope of a traffic policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TrafficPolicy {
    /// Endpoints on any node.
    #[default]
    Cluster,
    /// Endpoints on this node only.
    Local,
}

/// What an endpoint can do for new connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EndpointState {
    /// It accepts connections.
    Ready,
    /// It is shutting down but still serves.
    Draining,
    /// It must not be used.
    Dead,
}

impl EndpointState {
    /// Reads the three conditions, absent ones as the API defines them.
    pub(crate) fn from_conditions(
        ready: Option<bool>,
        serving: Option<bool>,
        terminating: Option<bool>,
    ) -> Self {
        if ready.unwrap_or(true) {
            EndpointState::Ready
        } else if serving.unwrap_or(true) && terminating.unwrap_or(false) {
            EndpointState::Draining
        } else {
            EndpointState::Dead
        }
    }
}

/// One endpoint of one service port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Its address.
    pub address: IpAddr,
    /// The port it listens on.
    pub port: u16,
    /// What it can do.
    pub state: EndpointState,
    /// The node it runs on, if known.
    pub node: Option<Arc<str>>,
    /// Who should use it, if hinted; most endpoints have none.
    pub hints: Option<Arc<Hints>>,
}

/// Who should use an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hints {
    /// The zones that should.
    pub zones: Vec<String>,
    /// The nodes that should.
    pub nodes: Vec<String>,
}

impl Endpoint {
    /// Where the endpoint is, seen from `node`.
    pub fn locality(&self, node: &NodeView) -> Locality {
        let here = self.node.as_deref() == Some(&*node.name);
        if here { Locality::Here } else { Locality::Elsewhere }
    }
}

/// The endpoints that may be used, for both policies.
#[derive(Debug, PartialEq, Eq)]
pub struct UsableEndpoints<'a> {
    /// Those for connections under policy Cluster.
    pub cluster: Vec<&'a Endpoint>,
    /// Those for connections under policy Local.
    pub local: Vec<&'a Endpoint>,
}

impl<'a> UsableEndpoints<'a> {
    /// Those for connections under `policy`.
    pub fn under(&self, policy: TrafficPolicy) -> &[&'a Endpoint] {
        match policy {
            TrafficPolicy::Cluster => &self.cluster,
            TrafficPolicy::Local => &self.local,
        }
    }
}

/// Selects from all endpoints of a service port those that `node` may use.
///
/// Ready endpoints win. When there are none, one that is shutting down but still serving is better
/// than refusing the connection. Hints narrow the cluster-wide choice only.
pub fn select<'a>(node: &NodeView, all: &'a [Endpoint]) -> UsableEndpoints<'a> {
    let hint = followed_hint(node, all);
    let ready = |e: &&Endpoint| e.state == EndpointState::Ready;
    let here = |e: &&Endpoint| e.locality(node) == Locality::Here;
    let cluster = all.iter().filter(ready).filter(|e| hint.is_none_or(|h| h.allows(node, e)));
    let local = all.iter().filter(ready).filter(here);
    UsableEndpoints {
        cluster: or_draining(cluster.collect(), all.iter()),
        local: or_draining(local.collect(), all.iter().filter(here)),
    }
}

/// Falls back to draining endpoints when no ready one was found.
fn or_draining<'a>(
    ready: Vec<&'a Endpoint>,
    all: impl Iterator<Item = &'a Endpoint>,
) -> Vec<&'a Endpoint> {
    if ready.is_empty() {
        all.filter(|e| e.state == EndpointState::Draining).collect()
    } else {
        ready
    }
}

/// The two kinds of hints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hint {
    Node,
    Zone,
}

impl Hint {
    fn allows(self, node: &NodeView, endpoint: &Endpoint) -> bool {
        let Some(hints) = &endpoint.hints else { return false };
        match self {
            Hint::Node => hints.nodes.contains(&node.name),
            Hint::Zone => node.zone.as_ref().is_some_and(|zone| hints.zones.contains(zone)),
        }
    }

    fn present(self, endpoint: &Endpoint) -> bool {
        endpoint.hints.as_ref().is_some_and(|hints| match self {
            Hint::Node => !hints.nodes.is_empty(),
            Hint::Zone => !hints.zones.is_empty(),
        })
    }
}

/// Hints are all or nothing: one ready endpoint without a hint, or none for us, voids them.
fn followed_hint(node: &NodeView, all: &[Endpoint]) -> Option<Hint> {
    let ready = || all.iter().filter(|e| e.state == EndpointState::Ready);
    [Hint::Node, Hint::Zone]
        .into_iter()
        .find(|hint| ready().all(|e| hint.present(e)) && ready().any(|e| hint.allows(node, e)))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// `a@n1=ready,zone:z1,node:n1`: an endpoint named by one letter (its address ends in 1 for
    /// a, 2 for b), its node, its state and its hints.
    pub(crate) fn endpoints(text: &str) -> Vec<Endpoint> {
        text.split_whitespace().map(endpoint).collect()
    }

    fn endpoint(word: &str) -> Endpoint {
        let (name, rest) = word.split_once('@').unwrap();
        let (node, rest) = rest.split_once('=').unwrap();
        let mut parts = rest.split(',');
        let state = match parts.next().unwrap() {
            "ready" => EndpointState::Ready,
            "draining" => EndpointState::Draining,
            "dead" => EndpointState::Dead,
            other => panic!("no state {other}"),
        };
        let hints: Vec<_> = parts.map(|part| part.split_once(':').unwrap()).collect();
        let of = |kind| hints.iter().filter(move |(k, _)| *k == kind).map(|(_, v)| v.to_string());
        Endpoint {
            address: [10, 0, 0, name.as_bytes()[0] - b'a' + 1].into(),
            port: 80,
            state,
            node: (node != "-").then(|| node.into()),
            hints: Some(Arc::new(Hints {
                zones: of("zone").collect(),
                nodes: of("node").collect(),
            })),
        }
    }

    fn names(endpoints: &[&Endpoint]) -> String {
        let letter = |e: &&Endpoint| match e.address {
            IpAddr::V4(address) => char::from(b'a' + address.octets()[3] - 1),
            IpAddr::V6(_) => panic!("not in this notation"),
        };
        endpoints.iter().map(letter).collect()
    }

    #[test]
    fn usable_endpoints() {
        let cases = [
            ("nothing", "", "", ""),
            ("ready beats draining", "a@n1=ready b@n2=draining", "a", "a"),
            ("draining if none is ready", "a@n1=draining b@n2=dead c@n2=draining", "ac", "a"),
            ("dead is never used", "a@n1=dead", "", ""),
            ("local ignores other nodes", "a@n2=ready b@-=ready", "ab", ""),
            ("each policy falls back by itself", "a@n2=ready b@n1=draining", "a", "b"),
            ("zone hints", "a@n1=ready,zone:z1 b@n2=ready,zone:z2", "a", "a"),
            ("an endpoint for two zones", "a@n2=ready,zone:z2,zone:z1 b@n2=ready,zone:z2", "a", ""),
            ("one without a hint voids all", "a@n1=ready,zone:z1 b@n2=ready", "ab", "a"),
            ("none for our zone voids all", "a@n1=ready,zone:z2 b@n2=ready,zone:z3", "ab", "a"),
            ("the unready need no hint", "a@n2=ready,zone:z1 b@n2=dead c@n2=draining", "a", ""),
            (
                "node hints come before zone hints",
                "a@n1=ready,zone:z1,node:n1 b@n2=ready,zone:z1,node:n2",
                "a",
                "a",
            ),
            (
                "zone hints serve where node hints do not",
                "a@n3=ready,zone:z1,node:n3 b@n2=ready,zone:z2,node:n2",
                "a",
                "",
            ),
        ];
        let node = NodeView { name: "n1".into(), zone: Some("z1".into()) };
        for (name, given, cluster, local) in cases {
            let given = endpoints(given);
            let got = select(&node, &given);
            assert_eq!((&*names(&got.cluster), &*names(&got.local)), (cluster, local), "{name}");
        }
    }

    #[test]
    fn conditions() {
        let (yes, no) = (Some(true), Some(false));
        let cases = [
            (None, None, None, EndpointState::Ready),
            (yes, no, no, EndpointState::Ready),
            (no, yes, no, EndpointState::Dead),
            (no, None, None, EndpointState::Dead),
            (no, None, yes, EndpointState::Draining),
            (no, yes, yes, EndpointState::Draining),
            (no, no, yes, EndpointState::Dead),
        ];
        for (ready, serving, terminating, want) in cases {
            let got = EndpointState::from_conditions(ready, serving, terminating);
            assert_eq!(got, want, "{ready:?} {serving:?} {terminating:?}");
        }
    }
}
