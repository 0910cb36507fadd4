//! Who may pull what: the contents of image pull secrets.

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

use crate::reference::{DEFAULT_REGISTRY, Reference};

/// A name and a password.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// Who.
    pub username: String,
    /// Never shown.
    pub password: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credentials({})", self.username)
    }
}

impl Credentials {
    /// The value of an `Authorization` header.
    pub(crate) fn basic(&self) -> String {
        format!("Basic {}", STANDARD.encode(format!("{}:{}", self.username, self.password)))
    }
}

/// The credentials of several registries, by where they are for: a host, or a path on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keyring {
    entries: Vec<(String, Credentials)>,
}

#[derive(Deserialize)]
struct Entry {
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
}

impl Keyring {
    /// Adds what a Secret of type `kubernetes.io/dockerconfigjson` or `…/dockercfg` holds.
    pub fn add(&mut self, json: &[u8]) -> Result<(), serde_json::Error> {
        #[derive(Deserialize)]
        struct Config {
            auths: BTreeMap<String, Entry>,
        }
        let entries = match serde_json::from_slice::<Config>(json) {
            Ok(config) => config.auths,
            Err(_) => serde_json::from_slice(json)?,
        };
        self.entries.extend(
            entries
                .into_iter()
                .filter_map(|(place, entry)| Some((plain_place(&place), entry.credentials()?))),
        );
        Ok(())
    }

    /// The credentials for an image, those for the longest path first.
    pub fn find(&self, reference: &Reference) -> Vec<&Credentials> {
        let name = reference.repository();
        let mut fitting: Vec<_> =
            self.entries.iter().filter(|(place, _)| fits(place, &name)).collect();
        fitting.sort_by_key(|(place, _)| std::cmp::Reverse(place.len()));
        fitting.into_iter().map(|(_, credentials)| credentials).collect()
    }
}

impl Entry {
    fn credentials(self) -> Option<Credentials> {
        if let (Some(username), Some(password)) = (self.username, self.password) {
            return Some(Credentials { username, password });
        }
        let decoded = STANDARD.decode(self.auth?.trim()).ok()?;
        let text = String::from_utf8(decoded).ok()?;
        let (username, password) = text.split_once(':')?;
        let password = password.trim_end_matches('\0');
        Some(Credentials { username: username.to_owned(), password: password.to_owned() })
    }
}

/// Where an entry is for, without the protocol and the API version that old tools write.
fn plain_place(place: &str) -> String {
    let place =
        place.strip_prefix("https://").or_else(|| place.strip_prefix("http://")).unwrap_or(place);
    let place = place.trim_end_matches('/');
    let place = place.strip_suffix("/v1").or_else(|| place.strip_suffix("/v2")).unwrap_or(place);
    match place {
        "index.docker.io" | "registry-1.docker.io" => DEFAULT_REGISTRY.to_owned(),
        other => other.to_owned(),
    }
}

/// Hosts may have `*` for a whole part; paths are compared part by part.
fn fits(place: &str, name: &str) -> bool {
    let (host, path) = place.split_once('/').unwrap_or((place, ""));
    let (name_host, name_path) = name.split_once('/').unwrap_or((name, ""));
    let (mut ours, mut theirs) = (host.split('.'), name_host.split('.'));
    let same_host = loop {
        match (ours.next(), theirs.next()) {
            (None, None) => break true,
            (Some("*"), Some(_)) => {}
            (Some(one), Some(other)) if one == other => {}
            _ => break false,
        }
    };
    let rest = name_path.strip_prefix(path);
    same_host
        && rest.is_some_and(|rest| path.is_empty() || rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keyring(places: &[&str]) -> Keyring {
        let entry = |place: &&str| format!(r#""{place}":{{"username":"{place}","password":"p"}}"#);
        let entries: Vec<_> = places.iter().map(entry).collect();
        let mut keyring = Keyring::default();
        keyring.add(format!(r#"{{"auths":{{{}}}}}"#, entries.join(",")).as_bytes()).unwrap();
        keyring
    }

    #[test]
    fn whose_password() {
        let cases = [
            ("the host", "example.com", "example.com/a/b", true),
            ("another host", "example.com", "example.org/a", false),
            ("a port is part of it", "example.com:5000", "example.com/a", false),
            ("a path", "example.com/team", "example.com/team/a", true),
            ("not half a part", "example.com/te", "example.com/team/a", false),
            ("old forms", "https://index.docker.io/v1/", "nginx", true),
            ("any part", "*.example.com", "eu.example.com/a", true),
            ("one part only", "*.example.com", "a.b.example.com/a", false),
        ];
        for (name, place, image, want) in cases {
            let found = keyring(&[place]);
            assert_eq!(!found.find(&image.parse().unwrap()).is_empty(), want, "{name}");
        }
        let keyring = keyring(&["example.com", "example.com/team"]);
        let first = keyring.find(&"example.com/team/a".parse().unwrap())[0].username.clone();
        assert_eq!(first, "example.com/team", "the longest first");
    }

    #[test]
    fn forms() {
        let mut keyring = Keyring::default();
        let auth = STANDARD.encode("me:se:cret");
        keyring.add(format!(r#"{{"auths":{{"a.com":{{"auth":"{auth}"}}}}}}"#).as_bytes()).unwrap();
        keyring.add(format!(r#"{{"b.com":{{"auth":"{auth}"}}}}"#).as_bytes()).unwrap();
        for host in ["a.com/x", "b.com/x"] {
            let reference = host.parse().unwrap();
            let found = keyring.find(&reference);
            assert_eq!((found[0].username.as_str(), found[0].password.as_str()), ("me", "se:cret"));
        }
        assert!(keyring.add(b"no json").is_err());
        assert_eq!(format!("{:?}", keyring.entries[0].1), "Credentials(me)", "nothing is shown");
    }
}
