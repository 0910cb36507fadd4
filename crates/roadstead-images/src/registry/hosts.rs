//! Which servers have the images of a registry.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;

use crate::reference::{DEFAULT_REGISTRY, Reference};

/// The server behind the default registry's name.
const DEFAULT_SERVER: &str = "registry-1.docker.io";

/// What the operator says about registries, by their names in references.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Hosts {
    mirrors: BTreeMap<String, Vec<Mirror>>,
}

/// A server that is asked before the registry itself.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Mirror {
    /// `https://host[:port][/path]`; `http://` is the only way to have plain HTTP.
    pub url: String,
    /// The certificate authorities to trust, in PEM, instead of the machine's.
    #[serde(default)]
    pub ca_file: Option<PathBuf>,
}

/// Where to ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// Whether the connection is encrypted.
    pub tls: bool,
    /// `host` or `host:port`, as in a `Host` header.
    pub authority: String,
    /// What stands before `/v2/`.
    pub prefix: String,
    /// The certificate authorities to trust instead of the machine's.
    pub ca_file: Option<PathBuf>,
}

impl Hosts {
    /// Adds a server for a registry, after those it has.
    pub fn add(&mut self, registry: &str, mirror: Mirror) {
        self.mirrors.entry(registry.to_owned()).or_default().push(mirror);
    }

    /// Where to ask for an image, in order: mirrors, then the registry itself. A mirror whose URL
    /// makes no sense is an error that names it.
    pub fn servers(&self, reference: &Reference) -> Result<Vec<Server>, String> {
        let mirrors = self.mirrors.get(&reference.registry).map_or(&[][..], Vec::as_slice);
        let mut servers = mirrors.iter().map(Mirror::server).collect::<Result<Vec<_>, _>>()?;
        let authority = match reference.registry.as_str() {
            DEFAULT_REGISTRY => DEFAULT_SERVER,
            other => other,
        };
        if !servers.iter().any(|server| server.authority == authority) {
            servers.push(Server {
                tls: true,
                authority: authority.to_owned(),
                prefix: String::new(),
                ca_file: None,
            });
        }
        Ok(servers)
    }
}

impl Mirror {
    fn server(&self) -> Result<Server, String> {
        let wrong =
            || format!("{:?} is not the URL of a registry (https://host[:port][/path])", self.url);
        let (scheme, rest) = self.url.split_once("://").ok_or_else(wrong)?;
        let tls = match scheme {
            "https" => true,
            "http" => false,
            _ => return Err(wrong()),
        };
        let (authority, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let plain = |c: char| c.is_ascii_alphanumeric() || "-.:[]".contains(c);
        if authority.is_empty() || !authority.chars().all(plain) {
            return Err(wrong());
        }
        let prefix = prefix.trim_end_matches('/');
        let prefix = if prefix.is_empty() { String::new() } else { format!("/{prefix}") };
        let ca_file = self.ca_file.clone();
        Ok(Server { tls, authority: authority.to_owned(), prefix, ca_file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(hosts: &Hosts, image: &str) -> Result<String, String> {
        let servers = hosts.servers(&image.parse().unwrap())?;
        let text = |server: &Server| {
            let scheme = if server.tls { "https" } else { "http" };
            format!("{scheme}://{}{}", server.authority, server.prefix)
        };
        Ok(servers.iter().map(text).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn in_which_order() {
        let hosts: Hosts = serde_json::from_str(
            r#"{"docker.io": [{"url": "http://127.0.0.1:5000"}, {"url": "https://cache.example/hub/"}],
                "local.example": [{"url": "http://local.example"}]}"#,
        )
        .unwrap();
        let cases = [
            (
                "nginx",
                "http://127.0.0.1:5000 https://cache.example/hub https://registry-1.docker.io",
            ),
            ("other.example/a", "https://other.example"),
            ("local.example/a", "http://local.example"),
        ];
        for (image, want) in cases {
            assert_eq!(shown(&hosts, image).unwrap(), want, "{image}");
        }
        for url in ["ftp://a", "a", "https://", "https://a b", "https://user:secret@host"] {
            let mut hosts = Hosts::default();
            hosts.add("docker.io", Mirror { url: url.to_owned(), ca_file: None });
            assert!(shown(&hosts, "nginx").is_err(), "{url}");
        }
        assert!(
            serde_json::from_str::<Hosts>(r#"{"a": [{"url": "x", "insecure": true}]}"#).is_err()
        );
    }
}
