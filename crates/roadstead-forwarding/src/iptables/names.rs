//! The names of chains, as kube-proxy gives them: a prefix and a hash that fits the kernel's limit.

use std::net::SocketAddr;

use aws_lc_rs::digest::{SHA256, digest};

use super::model::ChainName;
use crate::service::ServicePortName;

const BASE32: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
/// So many characters of the hash go into a name.
const HASH_LENGTH: usize = 16;

/// What a chain of a service port is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Picks among the endpoints of policy Cluster.
    Cluster,
    /// Picks among the endpoints of policy Local.
    Local,
    /// Takes traffic from outside the cluster.
    External,
    /// Admits only the load balancer's source ranges.
    Firewall,
}

/// The chain of a service port.
pub(crate) fn service_chain(purpose: Purpose, name: &ServicePortName) -> ChainName {
    let prefix = match purpose {
        Purpose::Cluster => "KUBE-SVC-",
        Purpose::Local => "KUBE-SVL-",
        Purpose::External => "KUBE-EXT-",
        Purpose::Firewall => "KUBE-FW-",
    };
    format!("{prefix}{}", hash(&hashed_name(name))).into()
}

/// The chain that sends a connection to one endpoint of a service port.
pub(crate) fn endpoint_chain(name: &ServicePortName, endpoint: SocketAddr) -> ChainName {
    format!("KUBE-SEP-{}", hash(&format!("{}{endpoint}", hashed_name(name)))).into()
}

/// Whether a chain belongs to a single service port, in this or a former life of the proxy.
pub(crate) fn is_per_service(chain: &str) -> bool {
    ["KUBE-SVC-", "KUBE-SVL-", "KUBE-EXT-", "KUBE-FW-", "KUBE-SEP-"]
        .iter()
        .any(|prefix| chain.starts_with(prefix))
}

/// The name of a service port in comments, without its protocol.
pub fn display(name: &ServicePortName) -> String {
    match name.port.as_str() {
        "" => format!("{}/{}", name.namespace, name.name),
        port => format!("{}/{}:{port}", name.namespace, name.name),
    }
}

fn hashed_name(name: &ServicePortName) -> String {
    format!("{}{}", display(name), name.protocol)
}

fn hash(text: &str) -> String {
    let digest = digest(&SHA256, text.as_bytes());
    let bit = |at: usize| u8::from(digest.as_ref()[at / 8] & (0x80 >> (at % 8)) != 0);
    let letter = |at: usize| (0..5).fold(0u8, |value, offset| (value << 1) | bit(at * 5 + offset));
    (0..HASH_LENGTH).map(|at| char::from(BASE32[usize::from(letter(at))])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::Protocol;

    #[test]
    fn the_names_of_the_seed() {
        let name = ServicePortName {
            namespace: "week".into(),
            name: "nginx-svc".into(),
            port: "nginx".into(),
            protocol: Protocol::Tcp,
        };
        let service = service_chain(Purpose::Cluster, &name);
        assert_eq!(&*service, "KUBE-SVC-4LRRYOSSZE5QDVLA");
        let cases = [
            ("10.208.67.129:80", "KUBE-SEP-S2NHQD4JFZO6ZT3O"),
            ("10.208.67.130:80", "KUBE-SEP-WCKBX4BRVWPAVTTD"),
            ("10.42.234.135:80", "KUBE-SEP-2ELJFQOAS5FHEUHZ"),
        ];
        for (endpoint, want) in cases {
            assert_eq!(&*endpoint_chain(&name, endpoint.parse().unwrap()), want, "{endpoint}");
        }
    }

    #[test]
    fn names_tell_purposes_and_protocols_apart() {
        let name = |protocol| ServicePortName {
            namespace: "ns".into(),
            name: "web".into(),
            port: String::new(),
            protocol,
        };
        let purposes = [Purpose::Cluster, Purpose::Local, Purpose::External, Purpose::Firewall];
        let mut names: Vec<_> = purposes
            .iter()
            .flat_map(|purpose| {
                [Protocol::Tcp, Protocol::Udp].map(|p| service_chain(*purpose, &name(p)))
            })
            .collect();
        assert!(names.iter().all(|name| is_per_service(name) && name.len() <= 28));
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 8);
        assert!(!is_per_service("KUBE-SERVICES"));
    }
}
