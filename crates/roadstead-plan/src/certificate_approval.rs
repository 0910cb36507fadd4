//! Which requests for certificates of nodes are approved without a person (upstream's csrapproving), and what
//! is refused although somebody may ask: the name of a node that lives, an address that is somebody else's.

use std::net::IpAddr;

use roadstead_schema::json::Pointer;
use serde_json::Value;

use crate::bootstrap_token;
use crate::certificate_signing::{Contents, NODE_CLIENT, NODE_SERVING};

/// How the names of nodes begin, as users.
const NODE_USER: &str = "system:node:";
/// What is known of whoever has a token for one node only.
const BOUND_NODE: &str = "roadstead.dev/bootstrap-node";
/// Names of the API server, which are no names of nodes: who has a certificate for them is the API server to
/// everybody.
const SERVER_NAMES: [&str; 2] = ["localhost", "kubernetes"];

/// What somebody has to be allowed to before anything else is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Right {
    /// `certificatesigningrequests/nodeclient`: to become a node.
    BecomeNode,
    /// `certificatesigningrequests/selfnodeclient`: to stay the node that one is.
    StayNode,
    /// Nodes may ask for their own port, and nobody else.
    Serve,
}

/// What is decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Opinion {
    /// It is what nodes ask for.
    Approve(&'static str),
    /// Nobody is to sign it, for this reason.
    Deny(String),
}

/// A cluster, as far as it matters for a request.
#[derive(Clone, Debug, Default)]
pub struct Neighbourhood {
    /// The nodes.
    pub nodes: Vec<Neighbour>,
    /// Names and addresses by which the API server is known, and other addresses that are no node's.
    pub reserved: Vec<String>,
}

/// A node, as far as it matters for a request.
#[derive(Clone, Debug, Default)]
pub struct Neighbour {
    /// Its name.
    pub name: String,
    /// Its addresses, as it says itself.
    pub addresses: Vec<IpAddr>,
    /// What shows that it lives; `None` if nothing does.
    pub life: Option<String>,
}

/// The right by which a request may be approved; `None` if it waits for somebody else, or not any more.
pub fn right_for(request: &Value, contents: &Contents) -> Option<Right> {
    let decided = request.list("/status/conditions").iter();
    let is_decided = decided.map(|one| one.text("/type")).any(|kind| !kind.is_empty());
    if is_decided || !request.text("/status/certificate").is_empty() {
        return None;
    }
    let own = request.text("/spec/username") == contents.common_name;
    match request.text("/spec/signerName") {
        NODE_CLIENT if own => Some(Right::StayNode),
        NODE_CLIENT => Some(Right::BecomeNode),
        NODE_SERVING if is_node(request) => Some(Right::Serve),
        _ => None,
    }
}

fn is_node(request: &Value) -> bool {
    let mut groups = request.list("/spec/groups").iter();
    request.text("/spec/username").starts_with(NODE_USER)
        && groups.any(|group| group == "system:nodes")
}

/// Decides about a request of somebody who has the right.
pub fn judge(
    request: &Value,
    contents: &Contents,
    right: Right,
    around: &Neighbourhood,
) -> Opinion {
    let checked = match right {
        Right::BecomeNode => check_newcomer(request, contents, around),
        Right::StayNode => check_client(request, contents).and_then(|node| {
            find(around, node).map(drop).ok_or_else(|| {
                format!("there is no Node {node:?} any more: join again, with a token")
            })
        }),
        Right::Serve => check_serving(request, contents, around),
    };
    match (checked, right) {
        (Err(why), _) => Opinion::Deny(why),
        (Ok(()), Right::BecomeNode) => Opinion::Approve("a machine that may join as this node"),
        (Ok(()), Right::StayNode) => Opinion::Approve("the node itself renews its certificate"),
        (Ok(()), Right::Serve) => Opinion::Approve("the node's own names and addresses"),
    }
}

/// Whoever joins takes nobody's place.
fn check_newcomer(
    request: &Value,
    contents: &Contents,
    around: &Neighbourhood,
) -> Result<(), String> {
    let node = check_client(request, contents)?;
    if is_reserved(node, around) {
        return Err(format!("{node:?} is a name of the API server, and no node's"));
    }
    let bound = request["spec"]["extra"][BOUND_NODE].as_array();
    if let Some(bound) = bound
        && !bound.iter().any(|name| name == node)
    {
        let names: Vec<_> = bound.iter().filter_map(Value::as_str).collect();
        return Err(format!("this token is for the node {}, not for {node:?}", names.join(", ")));
    }
    match find(around, node).and_then(|node| node.life.as_ref()) {
        Some(life) => Err(format!(
            "the Node {node:?} lives ({life}): choose another --node-name, or stop that machine"
        )),
        None => Ok(()),
    }
}

/// The name of the node, if it is a request for the certificate of a node as a client.
fn check_client<'a>(request: &Value, contents: &'a Contents) -> Result<&'a str, String> {
    let node = check_subject(contents)?;
    if contents.names != Default::default() {
        return Err("a node is no server to the API server: no alternative names".to_owned());
    }
    check_usages(request, "client auth")?;
    Ok(node)
}

fn check_serving(
    request: &Value,
    contents: &Contents,
    around: &Neighbourhood,
) -> Result<(), String> {
    let node = check_subject(contents)?;
    if request.text("/spec/username") != contents.common_name {
        return Err(format!("{} is not who asks", contents.common_name));
    }
    check_usages(request, "server auth")?;
    let own = find(around, node).ok_or_else(|| format!("there is no Node {node:?}"))?;
    if contents.names.emails + contents.names.uris > 0 {
        return Err("nodes have names and addresses, and nothing else".to_owned());
    }
    if contents.dns_names.is_empty() && contents.addresses.is_empty() {
        return Err("no name and no address is asked for".to_owned());
    }
    for name in &contents.dns_names {
        if name != node || is_reserved(name, around) {
            return Err(format!("{name:?} is not the name of the Node {node:?}"));
        }
    }
    for address in &contents.addresses {
        check_address(*address, own, around)?;
    }
    Ok(())
}

/// A node says itself which addresses it has. It does not get what others have.
fn check_address(address: IpAddr, own: &Neighbour, around: &Neighbourhood) -> Result<(), String> {
    if !own.addresses.contains(&address) {
        return Err(format!("{address} is no address of the Node {:?}", own.name));
    }
    let strange = address.is_loopback() || address.is_unspecified() || address.is_multicast();
    if strange || is_reserved(&address.to_string(), around) {
        return Err(format!("{address} is an address of the API server or of no machine"));
    }
    let others = around.nodes.iter().filter(|other| other.name != own.name);
    match others.into_iter().find(|other| other.addresses.contains(&address)) {
        Some(other) => Err(format!("{address} is an address of the Node {:?}, too", other.name)),
        None => Ok(()),
    }
}

fn check_subject(contents: &Contents) -> Result<&str, String> {
    if contents.organizations != ["system:nodes"] {
        let found = contents.organizations.join(", ");
        return Err(format!("the organization is {found:?}: nodes have system:nodes alone"));
    }
    let node = contents.common_name.strip_prefix(NODE_USER).unwrap_or("");
    match is_name(node) {
        true => Ok(node),
        false => Err(format!("{:?} is no name of a node as a user", contents.common_name)),
    }
}

fn check_usages(request: &Value, purpose: &str) -> Result<(), String> {
    let usages: Vec<_> = request.list("/spec/usages").iter().filter_map(Value::as_str).collect();
    let allowed = ["digital signature", "key encipherment", purpose];
    match usages.iter().find(|usage| !allowed.contains(usage)) {
        Some(other) => Err(format!("the usage {other:?} is not for this")),
        None if usages.contains(&purpose) => Ok(()),
        None => Err(format!("the usage {purpose:?} is missing")),
    }
}

/// Names of objects, which are names of hosts.
fn is_name(name: &str) -> bool {
    let is_label = |label: &str| {
        let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        !label.is_empty()
            && label.bytes().all(inner)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    name.len() <= 253 && name.split('.').all(is_label)
}

fn is_reserved(name: &str, around: &Neighbourhood) -> bool {
    let first = name.split('.').next().unwrap_or("");
    SERVER_NAMES.contains(&first) || around.reserved.iter().any(|one| one == name)
}

fn find<'a>(around: &'a Neighbourhood, node: &str) -> Option<&'a Neighbour> {
    around.nodes.iter().find(|one| one.name == node)
}

/// Whether somebody is known by nothing but a token.
pub fn is_bootstrapper(request: &Value) -> bool {
    let mut groups = request.list("/spec/groups").iter();
    groups.any(|group| group == bootstrap_token::GROUP)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::certificate_signing::Names;

    /// Who asks, for which signer, with which usage; `CN|O|names`; what is decided, or "-" for nothing.
    fn decide(who: &str, signer: &str, usage: &str, subject: &str) -> String {
        let parts: Vec<_> = subject.split('|').collect();
        let names: Vec<_> = parts[2].split_whitespace().map(str::to_owned).collect();
        let addresses: Vec<IpAddr> = names.iter().filter_map(|name| name.parse().ok()).collect();
        let dns: Vec<_> = names.into_iter().filter(|one| one.parse::<IpAddr>().is_err()).collect();
        let contents = Contents {
            common_name: parts[0].to_owned(),
            organizations: parts[1].split_whitespace().map(str::to_owned).collect(),
            names: Names { dns: dns.len(), addresses: addresses.len(), ..Names::default() },
            dns_names: dns,
            addresses,
        };
        let (user, extra) = who.split_once('@').unwrap_or((who, ""));
        let group =
            if user.starts_with(NODE_USER) { "system:nodes" } else { "system:bootstrappers" };
        let mut request = json!({"spec": {"username": user, "groups": [group],
            "signerName": format!("kubernetes.io/{signer}"), "usages": ["digital signature", usage]}});
        if !extra.is_empty() {
            request["spec"]["extra"] = json!({BOUND_NODE: [extra]});
        }
        let node = |name: &str, address: &str, life: Option<&str>| Neighbour {
            name: name.into(),
            addresses: vec![address.parse().unwrap()],
            life: life.map(str::to_owned),
        };
        let around = Neighbourhood {
            nodes: vec![
                node("n1", "192.0.2.1", Some("its Lease was renewed 2 s ago")),
                node("n2", "192.0.2.2", None),
                node("liar", "192.0.2.1", None),
                node("thief", "192.0.2.100", None),
                node("odd", "127.0.0.1", None),
            ],
            reserved: vec!["192.0.2.100".into(), "master".into()],
        };
        match right_for(&request, &contents).map(|right| judge(&request, &contents, right, &around))
        {
            None => "-".into(),
            Some(Opinion::Approve(_)) => "yes".into(),
            Some(Opinion::Deny(why)) => why,
        }
    }

    #[test]
    fn who_becomes_a_node() {
        const CLIENT: &str = "kube-apiserver-client-kubelet";
        let token = "system:bootstrap:abc123";
        let bound = "system:bootstrap:abc123@n9";
        for (who, usage, subject, want) in [
            (token, "client auth", "system:node:n9|system:nodes|", "yes"),
            (token, "client auth", "system:node:n2|system:nodes|", "yes"),
            (bound, "client auth", "system:node:n9|system:nodes|", "yes"),
            (bound, "client auth", "system:node:n8|system:nodes|", "this token is for the node n9"),
            (
                token,
                "client auth",
                "system:node:n1|system:nodes|",
                "(its Lease was renewed 2 s ago)",
            ),
            (
                token,
                "client auth",
                "system:node:n9|system:masters|",
                "nodes have system:nodes alone",
            ),
            (token, "client auth", "system:node:n9|system:nodes system:masters|", "alone"),
            (token, "client auth", "system:node:n9||", "nodes have system:nodes alone"),
            (token, "client auth", "admin|system:nodes|", "no name of a node"),
            (token, "client auth", "system:node:|system:nodes|", "no name of a node"),
            (token, "client auth", "system:node:N9|system:nodes|", "no name of a node"),
            (token, "client auth", "system:node:master|system:nodes|", "a name of the API server"),
            (
                token,
                "client auth",
                "system:node:kubernetes.default.svc|system:nodes|",
                "API server",
            ),
            (
                token,
                "server auth",
                "system:node:n9|system:nodes|",
                "\"server auth\" is not for this",
            ),
            (token, "cert sign", "system:node:n9|system:nodes|", "\"cert sign\" is not for this"),
            (token, "client auth", "system:node:n9|system:nodes|n9", "no alternative names"),
            ("system:node:n2", "client auth", "system:node:n2|system:nodes|", "yes"),
            (
                "system:node:n7",
                "client auth",
                "system:node:n7|system:nodes|",
                "no Node \"n7\" any more",
            ),
        ] {
            let got = decide(who, CLIENT, usage, subject);
            assert!(got.contains(want), "{who} {usage} {subject}: {got}");
        }
        assert_eq!(decide(token, "kube-apiserver-client", "client auth", "a|system:nodes|"), "-");
        assert_eq!(
            decide(token, "kubelet-serving", "server auth", "system:node:n2|system:nodes|n2"),
            "-"
        );
    }

    #[test]
    fn what_a_node_serves_as() {
        for (who, subject, want) in [
            ("n2", "system:node:n2|system:nodes|n2 192.0.2.2", "yes"),
            ("n2", "system:node:n2|system:nodes|192.0.2.2", "yes"),
            ("n2", "system:node:n1|system:nodes|n1 192.0.2.1", "is not who asks"),
            ("n2", "system:node:n2|system:nodes|192.0.2.1", "no address of the Node \"n2\""),
            ("n2", "system:node:n2|system:nodes|n1", "not the name of the Node"),
            (
                "n2",
                "system:node:n2|system:nodes|kubernetes.default.svc",
                "not the name of the Node",
            ),
            ("n2", "system:node:n2|system:nodes|", "no name and no address"),
            ("liar", "system:node:liar|system:nodes|192.0.2.1", "of the Node \"n1\", too"),
            ("thief", "system:node:thief|system:nodes|192.0.2.100", "of the API server"),
            ("odd", "system:node:odd|system:nodes|127.0.0.1", "of no machine"),
            ("n7", "system:node:n7|system:nodes|n7", "there is no Node"),
        ] {
            let who = format!("system:node:{who}");
            let got = decide(&who, "kubelet-serving", "server auth", subject);
            assert!(got.contains(want), "{who} {subject}: {got}");
        }
    }
}
