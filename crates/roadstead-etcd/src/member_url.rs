//! Where the members of a cluster are.

use std::sync::Arc;

use roadstead_grpc::service_address::ServiceAddress;
use rustls::ClientConfig;

/// Where a member listens, as operators write it: `https://10.0.0.5:2379`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberUrl {
    secure: bool,
    host: String,
    port: u16,
}

impl MemberUrl {
    /// Reads a URL; says what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong =
            |why| format!("{text:?} is no URL of etcd such as https://10.0.0.5:2379: {why}");
        let (secure, rest) = match text.split_once("://") {
            Some(("https", rest)) => (true, rest),
            Some(("http", rest)) => (false, rest),
            Some(_) => return Err(wrong("it must begin with http:// or https://")),
            None => (false, text),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (host, port) = rest.rsplit_once(':').ok_or_else(|| wrong("it has no port"))?;
        let port = port.parse().map_err(|_| wrong("its port is no number"))?;
        let inside = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let plain = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        match inside {
            Some(address) if address.parse::<std::net::Ipv6Addr>().is_ok() => {}
            None if !host.is_empty() && host.chars().all(plain) => {}
            _ => return Err(wrong("its host is no name and no address")),
        }
        Ok(Self { secure, host: inside.unwrap_or(host).to_owned(), port })
    }

    /// Whether it needs TLS.
    pub fn is_secure(&self) -> bool {
        self.secure
    }

    /// Whether what goes there stays on this machine.
    pub fn is_local(&self) -> bool {
        let address = self.host.parse::<std::net::IpAddr>();
        self.host == "localhost" || address.is_ok_and(|address| address.is_loopback())
    }

    pub(crate) fn target(&self, tls: &Arc<ClientConfig>) -> ServiceAddress {
        let host = self.host.clone();
        match self.secure {
            true => ServiceAddress::Secure(host, self.port, tls.clone()),
            false => ServiceAddress::Plain(host, self.port),
        }
    }
}

#[test]
fn what_operators_write() {
    let cases = [
        ("http://127.0.0.1:2379", "false 127.0.0.1 2379"),
        ("https://etcd-0.example.com:2379/", "true etcd-0.example.com 2379"),
        ("https://[fd00::1]:2379", "true fd00::1 2379"),
        ("etcd:2379", "false etcd 2379"),
        ("https://etcd", "it has no port"),
        ("unix:///run/etcd", "it must begin with http:// or https://"),
        ("https://etcd:many", "its port is no number"),
        ("https://a/b:1", "its host is no name and no address"),
        ("https://:1", "its host is no name and no address"),
        ("https://[x]:1", "its host is no name and no address"),
    ];
    for (text, want) in cases {
        let found = match MemberUrl::parse(text) {
            Ok(MemberUrl { secure, host, port }) => format!("{secure} {host} {port}"),
            Err(why) => why,
        };
        assert!(found.ends_with(want), "{text}: {found}");
    }
}
