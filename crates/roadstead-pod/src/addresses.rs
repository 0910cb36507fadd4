//! The addresses of a pod or a node: one, or one of each family. Pure.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// One address, or one of each family, that of the primary family first.
///
/// Written with a comma between, as variables and records have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Addresses {
    /// Where only one has room.
    pub first: IpAddr,
    second: Option<IpAddr>,
}

impl Addresses {
    /// The first of each family; `None` if there are none at all.
    pub fn of(all: impl IntoIterator<Item = IpAddr>) -> Option<Self> {
        let mut all = all.into_iter();
        let first = all.next()?;
        Some(Self { first, second: all.find(|other| other.is_ipv4() != first.is_ipv4()) })
    }

    /// In their order.
    pub fn iter(&self) -> impl Iterator<Item = IpAddr> + use<> {
        std::iter::once(self.first).chain(self.second)
    }

    /// That of IPv4.
    pub fn four(&self) -> Option<Ipv4Addr> {
        self.iter().find_map(|address| match address {
            IpAddr::V4(address) => Some(address),
            IpAddr::V6(_) => None,
        })
    }

    /// That of IPv6.
    pub fn six(&self) -> Option<Ipv6Addr> {
        self.iter().find_map(|address| match address {
            IpAddr::V6(address) => Some(address),
            IpAddr::V4(_) => None,
        })
    }
}

impl From<IpAddr> for Addresses {
    fn from(first: IpAddr) -> Self {
        Self { first, second: None }
    }
}

impl From<[u8; 4]> for Addresses {
    fn from(first: [u8; 4]) -> Self {
        IpAddr::from(first).into()
    }
}

impl fmt::Display for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.first)?;
        self.second.map_or(Ok(()), |second| write!(f, ",{second}"))
    }
}

impl From<Addresses> for String {
    fn from(addresses: Addresses) -> Self {
        addresses.to_string()
    }
}

impl FromStr for Addresses {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let read: Result<Vec<IpAddr>, _> = text.split(',').map(str::parse).collect();
        let read = read.map_err(|error| format!("{text}: {error}"))?;
        let count = read.len();
        let addresses = Self::of(read).filter(|found| found.iter().count() == count);
        addresses.ok_or_else(|| format!("{text} is not one address of each family"))
    }
}

impl TryFrom<String> for Addresses {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_each_family() {
        for (text, want) in [
            ("10.0.0.1", Some("10.0.0.1")),
            ("fd00::0:1", Some("fd00::1")),
            ("10.0.0.1,fd00::1", Some("10.0.0.1,fd00::1")),
            ("fd00::1,10.0.0.1", Some("fd00::1,10.0.0.1")),
            ("10.0.0.1,10.0.0.2", None),
            ("10.0.0.1,fd00::1,10.0.0.2", None),
            ("", None),
        ] {
            let read = text.parse::<Addresses>();
            assert_eq!(read.as_ref().ok().map(ToString::to_string).as_deref(), want, "{text}");
            let Ok(read) = read else { continue };
            // A record of a node with one family is what it always was.
            let written = serde_json::to_string(&read).unwrap();
            assert_eq!(serde_json::from_str::<Addresses>(&written).unwrap(), read);
            assert_eq!(read.four().is_some(), text.contains('.'));
            assert_eq!(read.six().is_some(), text.contains(':'));
        }
        assert!(Addresses::of([]).is_none());
    }
}
