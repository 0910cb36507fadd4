//! What a data plane is to the agent: one trait, a table of those that there are, and errors that
//! come with a remedy.
//!
//! A plane makes the kernel carry the table of one address family. What it asks of the agent is in
//! its [`Needs`], what it alone knows about a failure in the [`Refusal`] of its error. Nothing
//! outside of a plane's own modules asks which one it is.

use std::collections::BTreeSet;
use std::error::Error;
use std::fmt;
use std::io;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use roadstead_forwarding::iptables::diff::Kept;
use roadstead_forwarding::service::{IpFamily, ServicePortName};
use roadstead_forwarding::table::ForwardingTable;
use roadstead_netlink::nftables::others::OwnCommits;

use crate::agent::config::Config;
use crate::conntrack::{Conntrack, StaleFlows};
use crate::iptables::{self, RuleCount};
use crate::ipvs::{self, IpvsOptions};
use crate::metrics::{Metrics, PlaneMetrics};
use crate::nft;

#[cfg(test)]
mod pretended;

/// A way to make the kernel carry one address family.
///
/// For all of them: after an error the kernel still has what it had, and the next commit looks at
/// everything again.
pub(crate) trait DataPlane: fmt::Debug + Send {
    /// Tries out whatever the kernel may lack, and leaves nothing behind.
    fn try_out(&mut self) -> Result<(), CommitError> {
        Ok(())
    }

    /// Makes the kernel carry the table, in which `changed` are the service ports that differ from
    /// the last commit.
    fn commit(
        &mut self,
        table: &ForwardingTable,
        changed: BTreeSet<Arc<ServicePortName>>,
    ) -> Result<Committed, CommitError>;

    /// Whether the next commit will look at everything.
    fn needs_everything(&self) -> bool;

    /// Whether the next commit may take a while.
    fn takes_long(&self) -> bool {
        self.needs_everything()
    }

    /// How long after the beginning of a commit that took so long the next one may begin.
    fn pause(&self, _took: Duration) -> Duration {
        Duration::ZERO
    }

    /// Forgets flows that a commit made stale, without waiting for that.
    fn forget(&mut self, flows: StaleFlows);

    /// Looks whether the kernel still has what was committed; if not, the next commit heals it.
    /// To be called every [`check_period`](Self::check_period).
    fn check(&mut self) -> Result<bool, CommitError>;

    /// How often to check; where that is often, it costs a system call.
    fn check_period(&self) -> Duration;

    /// Deletes everything of ours, if there is anything, but for the iptables rules that another
    /// plane needs.
    fn remove(&mut self, kept: &Kept) -> Result<(), CommitError>;

    /// The same, but for what connections need that were made through this plane. Returns whether
    /// nothing is left; if not, [`has_left`](Self::has_left) is to be asked now and then. Where the
    /// kernel knows how to translate them without our rules, everything goes at once.
    fn leave(&mut self, kept: &Kept) -> Result<bool, CommitError> {
        self.remove(kept).map(|()| true)
    }

    /// Deletes what connections needed until now; returns whether nothing is left.
    fn has_left(&mut self) -> Result<bool, CommitError> {
        Ok(true)
    }

    /// How many rules there are, for the metrics that count them.
    fn rule_counts(&self) -> Vec<RuleCount> {
        Vec::new()
    }
}

/// What a plane needs of its surroundings, so that the agent provides it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Needs {
    /// The addresses of all nodes: no Service may take one of them.
    pub(crate) all_nodes: bool,
    /// The networks that ClusterIPs are taken from, to tell an unused ClusterIP from any other
    /// address.
    pub(crate) service_networks: bool,
    /// Counters that the kernel keeps by name, for rules to count with.
    pub(crate) named_counters: bool,
    /// Who serves node ports on loopback addresses.
    pub(crate) loopback: Loopback,
    /// Where node ports are served if the operator does not say (`nodePortAddresses`).
    pub(crate) node_port_addresses: &'static [&'static str],
}

/// Who serves node ports on loopback addresses, where the operator wants that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loopback {
    /// Rules do on 127.0.0.1, and nobody on ::1.
    Rules,
    /// Rules cannot, so we listen ourselves.
    Relays,
}

type Open = fn(&PlaneContext, IpFamily) -> Result<Box<dyn DataPlane>, CommitError>;

/// A row in the table of planes.
#[derive(Debug)]
pub(crate) struct PlaneKind {
    pub(crate) mode: ProxyMode,
    /// As in `--proxy-mode`.
    pub(crate) name: &'static str,
    pub(crate) needs: Needs,
    /// Opens the way to the kernel, without touching anything yet.
    pub(crate) open: Open,
    /// The iptables rules that it needs, which others leave in place when they go: iptables and
    /// IPVS share some chains.
    pub(crate) iptables_rules: fn() -> Kept,
    /// Takes its place on kernels that lack it, if the operator agrees.
    pub(crate) fallback: Option<ProxyMode>,
    /// The metrics that only this plane has.
    pub(crate) metrics: fn(&Metrics) -> PlaneMetrics<'_>,
}

/// All planes, in the order of [`ProxyMode`].
pub(crate) static PLANES: &[PlaneKind] = &[
    nft::data_plane::KIND,
    iptables::data_plane::KIND,
    ipvs::data_plane::KIND,
    #[cfg(test)]
    pretended::KIND,
];

/// The planes by their names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProxyMode {
    /// Verdict maps, written over netlink.
    #[default]
    Nftables,
    /// The rules that kube-proxy writes in its iptables mode.
    Iptables,
    /// The kernel's own load balancer, as in kube-proxy's ipvs mode.
    Ipvs,
    /// None at all: what a new plane takes, and no more.
    #[cfg(test)]
    Pretended,
}

impl ProxyMode {
    /// Its row in the table.
    pub(crate) fn kind(self) -> &'static PlaneKind {
        &PLANES[self as usize]
    }
}

impl fmt::Display for ProxyMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind().name)
    }
}

impl FromStr for ProxyMode {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let found = PLANES.iter().find(|kind| kind.name == text);
        found.map(|kind| kind.mode).ok_or_else(|| format!("no proxy mode {text}"))
    }
}

/// What planes are opened with; those of both address families share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct PlaneContext {
    pub(crate) ipvs: IpvsOptions,
    pub(crate) conntrack: Conntrack,
    pub(crate) own_commits: OwnCommits,
}

impl PlaneContext {
    /// Starts what works in the background for all planes.
    pub(crate) fn new(config: &Config, metrics: Arc<Metrics>) -> Self {
        let (ipvs, own_commits) = (config.ipvs.clone(), config.own_commits.clone());
        Self { ipvs, conntrack: Conntrack::start(metrics), own_commits }
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

/// What only the plane that failed knows about its failure.
pub(crate) trait Refusal: Error + Send + Sync + 'static {
    /// Whether the kernel or the machine lacks what the address family or data plane needs.
    fn is_missing_feature(&self) -> bool;

    /// What a person can do about it, if that is known.
    fn remedy(&self) -> Option<&'static str>;

    /// Whether rules that count packets by name are the reason; asked of planes that need them.
    fn doubt_about_counters(&self) -> CounterDoubt {
        CounterDoubt::None
    }
}

/// Whether a refusal is about rules that count packets by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CounterDoubt {
    /// It is about something else.
    None,
    /// It does not say what it is about.
    Possible,
    /// It names them.
    Named,
}

/// What most refusals for lack of permission are about.
pub(crate) const PERMISSION: &str = "run as root, or with CAP_NET_ADMIN where the network belongs";

/// Whether it is a lack of permission.
pub(crate) fn is_forbidden(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied
}

/// Why the kernel did not take a change. It keeps what it had.
#[derive(Debug)]
pub struct CommitError(Box<dyn Refusal>);

impl<E: Refusal> From<E> for CommitError {
    fn from(refusal: E) -> Self {
        Self(Box::new(refusal))
    }
}

impl fmt::Display for CommitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for CommitError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
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
        self.0.remedy()
    }

    /// Whether the kernel or the machine lacks what the address family or data plane needs.
    pub(crate) fn is_missing_feature(&self) -> bool {
        self.0.is_missing_feature()
    }

    /// Whether rules that count packets by name are the reason.
    pub(crate) fn doubt_about_counters(&self) -> CounterDoubt {
        self.0.doubt_about_counters()
    }
}

#[cfg(test)]
mod tests {
    use roadstead_netlink::error::NetlinkError;
    use rustix::io::Errno;

    use super::*;
    use crate::iptables::command::IptablesError;
    use crate::nft::NftError;

    #[test]
    fn errors_come_with_a_remedy() {
        let refused = |errno: Errno| {
            let source = io::Error::from(errno);
            CommitError::from(NftError::from(NetlinkError::Refused {
                kind: 0,
                position: 1,
                source,
            }))
        };
        let program = "iptables-nft-restore".to_owned();
        let said = |message: &str| {
            let (program, message) = (program.clone(), message.to_owned());
            CommitError::from(IptablesError::Refused { program, message, line: None })
        };
        let run =
            IptablesError::Run { program: program.clone(), source: io::ErrorKind::NotFound.into() };
        let lacking = NftError::Lacking {
            family: IpFamily::V4,
            parts: "nft_nat".into(),
            source: NetlinkError::Refused { kind: 0, position: 1, source: Errno::NOENT.into() },
        };
        assert!(!refused(Errno::NOENT).is_missing_feature(), "that may pass");
        let cases = [
            ("no permission", refused(Errno::PERM), "CAP_NET_ADMIN"),
            ("no nft_nat", lacking.into(), "--proxy-mode iptables"),
            ("no such program", run.into(), "install iptables"),
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
        for (at, kind) in PLANES.iter().enumerate() {
            assert_eq!(kind.mode as usize, at, "{}", kind.name);
            assert_eq!(kind.mode.to_string().parse(), Ok(kind.mode));
        }
        assert!("userspace".parse::<ProxyMode>().is_err());
    }
}
