//! The data planes behind one door: what the agent needs of each.

use std::collections::BTreeSet;
use std::error::Error;
use std::fmt;
use std::io;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use roadstead_forwarding::iptables::diff::Kept;
use roadstead_forwarding::ipvs::rules;
use roadstead_forwarding::service::{IpFamily, ServicePortName};
use roadstead_forwarding::table::ForwardingTable;
use rustix::io::Errno;

use crate::iptables::IptablesPlane;
use crate::iptables::command::IptablesError;
use crate::ipvs::{IpvsError, IpvsOptions, IpvsPlane};
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
    /// The kernel's own load balancer, as in kube-proxy's ipvs mode.
    Ipvs,
}

impl Mode {
    /// All of them.
    pub const ALL: [Mode; 3] = [Mode::Nftables, Mode::Iptables, Mode::Ipvs];
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Nftables => "nftables",
            Mode::Iptables => "iptables",
            Mode::Ipvs => "ipvs",
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
    /// IPVS did not.
    #[error(transparent)]
    Ipvs(#[from] IpvsError),
}

impl CommitError {
    /// What happened, why, and what a person can do about it, in one line.
    pub fn full_text(&self) -> String {
        let causes = std::iter::successors(self.source(), |error| (*error).source());
        let causes = causes.map(|cause| format!(": {cause}")).collect::<String>();
        let remedy = self.remedy().map(|remedy| format!(" ({remedy})")).unwrap_or_default();
        format!("{self}{causes}{remedy}")
    }

    /// What a person can do about it, if that is known.
    pub fn remedy(&self) -> Option<&'static str> {
        const MODULES: &str = "load these modules of the kernel, or use --proxy-mode iptables \
            (mode: iptables in the configuration)";
        const PROGRAMS: &str = "install iptables, or use --proxy-mode nftables";
        const PERMISSION: &str = "run as root, or with CAP_NET_ADMIN where the network belongs";
        const TOGETHER: &str = "stop whoever owns the table kube-proxy, unless CAP_NET_ADMIN is \
            for another network namespace";
        let forbidden = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
        match self {
            CommitError::Nftables(NetlinkError::Refused { source, .. })
                if forbidden(source) && is_net_admin() =>
            {
                Some(TOGETHER)
            }
            CommitError::Nftables(NetlinkError::Refused { source, .. })
            | CommitError::Ipvs(IpvsError::Refused { source, .. })
                if forbidden(source) =>
            {
                Some(PERMISSION)
            }
            CommitError::Nftables(_) if self.is_missing_feature() => Some(MODULES),
            CommitError::Iptables(IptablesError::Run { .. }) => Some(PROGRAMS),
            CommitError::Iptables(IptablesError::Refused { message, .. })
                if message.contains("Permission denied") =>
            {
                Some(PERMISSION)
            }
            _ => None,
        }
    }

    /// Whether rules that count packets by name may be the reason: the kernel can have the counters
    /// (nfnetlink_acct) and not the rules (xt_nfacct). Legacy iptables names no line but the last.
    pub(crate) fn may_be_about_counters(&self) -> bool {
        match self {
            CommitError::Iptables(IptablesError::Refused { message, line, .. }) => {
                let line = line.as_deref().unwrap_or_default();
                [message.as_str(), line].iter().any(|text| text.contains("nfacct"))
                    || line == "COMMIT"
            }
            _ => false,
        }
    }

    /// Whether the kernel or the machine lacks what the address family or data plane needs.
    pub fn is_missing_feature(&self) -> bool {
        match self {
            // A refusal alone may pass, whatever it says: each part has been tried out by now.
            CommitError::Nftables(NetlinkError::Lacking { .. }) => true,
            CommitError::Nftables(_) => false,
            CommitError::Iptables(error) | CommitError::Ipvs(IpvsError::Rules(error)) => {
                lacks_iptables(error)
            }
            CommitError::Ipvs(IpvsError::Missing(_) | IpvsError::Lacks { .. }) => true,
            CommitError::Ipvs(IpvsError::Refused { source, .. }) => is_missing(source),
        }
    }
}

/// Whether this process has CAP_NET_ADMIN at all.
fn is_net_admin() -> bool {
    const NET_ADMIN: u64 = 1 << 12;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    effective.is_some_and(|set| set & NET_ADMIN != 0)
}

/// What the kernel says when something is not built in.
fn is_missing(error: &io::Error) -> bool {
    let missing = [Errno::AFNOSUPPORT, Errno::OPNOTSUPP, Errno::NOENT, Errno::PROTONOSUPPORT];
    missing.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

fn lacks_iptables(error: &IptablesError) -> bool {
    match error {
        IptablesError::Run { source, .. } => source.kind() == io::ErrorKind::NotFound,
        IptablesError::Refused { message, .. } => {
            message.contains("does not exist") || message.contains("not supported")
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
    /// Through IPVS.
    Ipvs(Box<IpvsPlane>),
}

impl Plane {
    /// Opens the way to the kernel, without touching anything yet.
    pub fn open(mode: Mode, family: IpFamily, ipvs: &IpvsOptions) -> Result<Self, CommitError> {
        Ok(match mode {
            Mode::Nftables => {
                let plane = NftPlane::open().map_err(NetlinkError::Socket)?;
                Plane::Nftables(plane, family)
            }
            Mode::Iptables => Plane::Iptables(IptablesPlane::open(family)),
            Mode::Ipvs => Plane::Ipvs(Box::new(IpvsPlane::open(family, ipvs.clone())?)),
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
            Plane::Ipvs(plane) => plane.commit(table, changed)?,
        })
    }

    /// Whether the next commit will look at everything.
    pub fn needs_everything(&self) -> bool {
        match self {
            Plane::Nftables(plane, _) => plane.needs_everything(),
            Plane::Iptables(plane) => plane.needs_everything(),
            Plane::Ipvs(plane) => plane.needs_everything(),
        }
    }

    /// Whether the next commit may take a while.
    pub fn takes_long(&self) -> bool {
        match self {
            Plane::Nftables(plane, _) => plane.needs_everything(),
            // It waits for another process, and perhaps for a lock.
            Plane::Iptables(_) => true,
            Plane::Ipvs(plane) => plane.needs_everything(),
        }
    }

    /// How long after the beginning of a write that took so long the next one may begin.
    pub fn pause(&self, took: Duration) -> Duration {
        /// Longer would be felt; it is upstream's `minSyncPeriod`.
        const MOST: Duration = Duration::from_secs(1);
        match self {
            Plane::Nftables(..) | Plane::Ipvs(_) => Duration::ZERO,
            // Others need the lock, too, and it is free for most of the time then.
            Plane::Iptables(_) => (took * 3).min(MOST),
        }
    }

    /// Looks whether the kernel still has what was committed; if not, the next commit heals it.
    /// To be called every [`check_period`](Self::check_period).
    pub fn check(&mut self) -> Result<bool, CommitError> {
        Ok(match self {
            Plane::Nftables(plane, family) => plane.check(*family)?,
            Plane::Iptables(plane) => plane.check()?,
            Plane::Ipvs(plane) => plane.check()?,
        })
    }

    /// How often to look; where that is often, it costs a system call.
    pub fn check_period(&self) -> Duration {
        match self {
            Plane::Nftables(..) => Duration::from_millis(250),
            Plane::Iptables(plane) => plane.check_period(),
            Plane::Ipvs(_) => Duration::from_secs(5),
        }
    }

    /// Deletes everything of ours, if there is anything, but for what another mode needs: iptables
    /// and IPVS share some chains.
    pub fn remove(&mut self, in_use: Option<Mode>) -> Result<(), CommitError> {
        let kept = kept_for(in_use);
        match self {
            Plane::Nftables(plane, family) => plane.remove(*family)?,
            Plane::Iptables(plane) => plane.remove(&kept)?,
            Plane::Ipvs(plane) => plane.remove(&kept)?,
        }
        Ok(())
    }

    /// The same, but for what connections need that were made in this mode. Returns whether nothing is
    /// left; if not, [`has_left`](Self::has_left) is to be asked now and then.
    pub fn leave(&mut self, in_use: Mode) -> Result<bool, CommitError> {
        match self {
            // The kernel knows how to translate them without our rules.
            Plane::Nftables(..) | Plane::Iptables(_) => self.remove(Some(in_use)).map(|()| true),
            Plane::Ipvs(plane) => Ok(plane.leave(&kept_for(Some(in_use)))?),
        }
    }

    /// Deletes what connections needed until now; returns whether nothing is left.
    pub fn has_left(&mut self) -> Result<bool, CommitError> {
        match self {
            Plane::Nftables(..) | Plane::Iptables(_) => Ok(true),
            Plane::Ipvs(plane) => Ok(plane.has_left()?),
        }
    }
}

/// The rules that the mode in use needs.
fn kept_for(in_use: Option<Mode>) -> Kept {
    match in_use {
        Some(Mode::Iptables) => Kept::ours(),
        Some(Mode::Ipvs) => rules::kept(),
        Some(Mode::Nftables) | None => Kept::nothing(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_come_with_a_remedy() {
        let refused = |errno: Errno| {
            let source = io::Error::from(errno);
            CommitError::Nftables(NetlinkError::Refused { kind: 0, position: 1, source })
        };
        let program = "iptables-nft-restore".to_owned();
        let said = |message: &str| {
            let (program, message) = (program.clone(), message.to_owned());
            CommitError::Iptables(IptablesError::Refused { program, message, line: None })
        };
        let run =
            IptablesError::Run { program: program.clone(), source: io::ErrorKind::NotFound.into() };
        let lacking = NetlinkError::Lacking {
            family: IpFamily::V4,
            parts: "nft_nat".into(),
            source: Box::new(NetlinkError::Refused {
                kind: 0,
                position: 1,
                source: Errno::NOENT.into(),
            }),
        };
        assert!(!refused(Errno::NOENT).is_missing_feature(), "that may pass");
        let cases = [
            ("no permission", refused(Errno::PERM), "CAP_NET_ADMIN"),
            ("no nft_nat", CommitError::Nftables(lacking), "--proxy-mode iptables"),
            ("no such program", CommitError::Iptables(run), "install iptables"),
            ("no permission for iptables", said("Permission denied (you must be root)"), "root"),
            ("something else", refused(Errno::INVAL), ""),
        ];
        for (name, error, want) in cases {
            let remedy = error.remedy().unwrap_or_default();
            assert!(remedy.contains(want) && remedy.is_empty() == want.is_empty(), "{name}");
        }
    }

    #[test]
    fn modes_have_names() {
        for mode in Mode::ALL {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        assert!("userspace".parse::<Mode>().is_err());
    }
}
