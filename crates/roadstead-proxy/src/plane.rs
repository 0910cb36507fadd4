//! The data planes behind one door: what the agent needs of each.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use roadstead_forwarding::service::{IpFamily, ServicePortName};
use roadstead_forwarding::table::ForwardingTable;
use rustix::io::Errno;

use crate::iptables::IptablesPlane;
use crate::iptables::command::IptablesError;
use crate::netlink::NetlinkError;
use crate::nft::NftPlane;

/// The kinds of data planes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Verdict maps, written over netlink.
    #[default]
    Nftables,
    /// The rules that kube-proxy writes in its iptables mode.
    Iptables,
}

impl Mode {
    /// All of them.
    pub const ALL: [Mode; 2] = [Mode::Nftables, Mode::Iptables];
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Nftables => "nftables",
            Mode::Iptables => "iptables",
        })
    }
}

impl FromStr for Mode {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let found = Mode::ALL.into_iter().find(|mode| mode.to_string() == text);
        found.ok_or_else(|| format!("no proxy mode {text}"))
    }
}

/// What a commit did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Whether everything was written or compared anew.
    pub whole: bool,
    /// How many objects of the kernel were added or deleted.
    pub operations: usize,
}

/// Why the kernel did not take a change. It keeps what it had.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// nftables did not.
    #[error(transparent)]
    Nftables(#[from] NetlinkError),
    /// iptables did not.
    #[error(transparent)]
    Iptables(#[from] IptablesError),
}

impl CommitError {
    /// Whether the kernel or the machine lacks what the address family or data plane needs.
    pub fn is_missing_feature(&self) -> bool {
        let missing = [Errno::AFNOSUPPORT, Errno::OPNOTSUPP, Errno::NOENT];
        match self {
            CommitError::Nftables(NetlinkError::Refused { source, .. }) => {
                missing.iter().any(|errno| source.raw_os_error() == Some(errno.raw_os_error()))
            }
            CommitError::Nftables(_) => false,
            CommitError::Iptables(IptablesError::Run { source, .. }) => {
                source.kind() == io::ErrorKind::NotFound
            }
            CommitError::Iptables(IptablesError::Refused { message, .. }) => {
                message.contains("does not exist") || message.contains("not supported")
            }
        }
    }
}

/// A way to make the kernel carry one address family.
///
/// For all of them: after an error the kernel still has what it had, and the next commit looks at
/// everything again.
#[derive(Debug)]
pub enum Plane {
    /// Through nftables.
    Nftables(NftPlane, IpFamily),
    /// Through iptables.
    Iptables(IptablesPlane),
}

impl Plane {
    /// Opens the way to the kernel, without touching anything yet.
    pub fn open(mode: Mode, family: IpFamily) -> io::Result<Self> {
        Ok(match mode {
            Mode::Nftables => Plane::Nftables(NftPlane::open()?, family),
            Mode::Iptables => Plane::Iptables(IptablesPlane::open(family)),
        })
    }

    /// Makes the kernel carry the table, in which `changed` are the service ports that differ
    /// from the last commit.
    pub fn commit(
        &mut self,
        table: &ForwardingTable,
        changed: BTreeSet<Arc<ServicePortName>>,
    ) -> Result<Committed, CommitError> {
        Ok(match self {
            Plane::Nftables(plane, _) => plane.commit(table, changed)?,
            Plane::Iptables(plane) => plane.commit(table, changed)?,
        })
    }

    /// Whether the next commit may take a while.
    pub fn takes_long(&self) -> bool {
        match self {
            Plane::Nftables(plane, _) => plane.needs_everything(),
            // It waits for another process, and perhaps for a lock.
            Plane::Iptables(_) => true,
        }
    }

    /// Looks whether the kernel still has what was committed; if not, the next commit heals it.
    /// To be called every [`check_period`](Self::check_period).
    pub fn check(&mut self) -> Result<bool, CommitError> {
        Ok(match self {
            Plane::Nftables(plane, family) => plane.check(*family)?,
            Plane::Iptables(plane) => plane.check()?,
        })
    }

    /// How often to look; it costs a system call here, and three processes there.
    pub fn check_period(&self) -> Duration {
        match self {
            Plane::Nftables(..) => Duration::from_millis(250),
            Plane::Iptables(_) => Duration::from_secs(5),
        }
    }

    /// Deletes everything of ours, if there is anything.
    pub fn remove(&mut self) -> Result<(), CommitError> {
        match self {
            Plane::Nftables(plane, family) => plane.remove(*family)?,
            Plane::Iptables(plane) => plane.remove()?,
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_have_names() {
        for mode in Mode::ALL {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        assert!("userspace".parse::<Mode>().is_err());
    }
}
