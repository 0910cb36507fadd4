//! The iptables data plane: rules written by `iptables-restore`, as little as the change needs.

pub mod command;
pub(crate) mod data_plane;
pub mod tables;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use roadstead_forwarding::iptables::compile::{CANARY, GUARD};
use roadstead_forwarding::iptables::diff::{Kept, Layout, removal};
use roadstead_forwarding::iptables::model::TableName;
use roadstead_forwarding::service::{IpFamily, ServicePortName};
use roadstead_forwarding::table::ForwardingTable;
use roadstead_netlink::nftables::others::{CheckPacer, OwnCommits};
use roadstead_netlink::nftables::readback::generation;
use roadstead_netlink::socket::{NetlinkFamily, Socket};
use tracing::info;

use self::command::{IptablesError, Programs, Variant};
use crate::conntrack::Conntrack;
use crate::data_plane::Committed;
use crate::sysctl;

/// One address family of the kernel's rules, and what we know to be in them.
#[derive(Debug)]
pub struct IptablesPlane {
    family: IpFamily,
    programs: Programs,
    /// `None` if we cannot know, so that the next commit looks first.
    layout: Option<Layout>,
    /// Shows changes of others as soon as they happen, where iptables writes to nftables.
    generation: Option<Generation>,
    /// When we last looked for our canaries.
    looked: Instant,
    /// When the rules were last compared as a whole.
    compared: Instant,
    pacer: CheckPacer,
    conntrack: Conntrack,
    /// How many rules the last commit wrote, by table.
    written: [(TableName, usize); 2],
}

/// Lets 127.0.0.0/8 be translated, so that node ports can be called there.
const ROUTE_LOCALNET: &str = "net/ipv4/conf/all/route_localnet";
/// How often to look whether others have changed anything.
const QUICK: Duration = Duration::from_millis(250);
/// How often the rules are compared as a whole, whether or not somebody seems to have changed them.
const FULL_COMPARISON: Duration = Duration::from_secs(3600);
/// How often to look for our canaries.
const LEISURELY: Duration = Duration::from_secs(5);

/// The number that every commit to nftables raises: what it was when our rules were last read, and
/// how many of the commits since then were our own. What others do while we write is not lost then.
#[derive(Debug)]
struct Generation {
    socket: Socket,
    own_commits: OwnCommits,
    /// The number, and how many commits were ours.
    seen: (u32, u32),
}

impl Generation {
    fn open(own_commits: OwnCommits) -> Option<Self> {
        let mut socket = Socket::open(NetlinkFamily::Netfilter).ok()?;
        let seen = (generation(&mut socket).ok()?, own_commits.count());
        Some(Self { socket, own_commits, seen })
    }

    /// Whether somebody else has committed anything since the last `catch_up`.
    fn has_changed(&mut self) -> bool {
        let own = self.own_commits.count().wrapping_sub(self.seen.1);
        generation(&mut self.socket).is_ok_and(|now| now.wrapping_sub(self.seen.0) != own)
    }

    /// What was before this does not count any more; whoever calls it reads the rules next.
    fn catch_up(&mut self) {
        let now = generation(&mut self.socket).unwrap_or(self.seen.0);
        self.seen = (now, self.own_commits.count());
    }
}

/// Whether each table still has what it has in any cluster. Upstream looks for the canaries only,
/// which survive a flush (`-F`) that does not delete chains.
pub(crate) fn signs_of_life(programs: &Programs) -> Result<bool, IptablesError> {
    let signs = [
        (TableName::Mangle, CANARY, CANARY),
        (TableName::Nat, "PREROUTING", "-j KUBE-SERVICES"),
        (TableName::Nat, "KUBE-POSTROUTING", "-j MASQUERADE"),
        (TableName::Filter, "KUBE-FORWARD", "-j ACCEPT"),
    ];
    for (table, chain, words) in signs {
        if !programs.contains(table, chain, words)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The tables with rules of ours; the third has only a canary.
const COUNTED: [TableName; 2] = [TableName::Filter, TableName::Nat];

/// How many rules of ours a table has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RuleCount {
    /// The table.
    pub table: TableName,
    /// How many it has.
    pub total: usize,
    /// How many of them the last commit wrote.
    pub last: usize,
}

impl IptablesPlane {
    /// Finds the variant of iptables that this machine uses, without touching anything yet.
    pub fn open(family: IpFamily) -> Self {
        Self::open_beside(family, &OwnCommits::default())
    }

    /// The same, where others of this proxy commit to the same kernel.
    pub(crate) fn open_beside(family: IpFamily, own_commits: &OwnCommits) -> Self {
        let programs = Programs::find(family);
        info!(?family, variant = ?programs.variant(), "using iptables");
        let is_nft = programs.variant() != Variant::Legacy;
        let generation = is_nft.then(|| Generation::open(own_commits.clone())).flatten();
        let written = COUNTED.map(|table| (table, 0));
        let now = Instant::now();
        let (looked, compared) = (now, now);
        let pacer = CheckPacer::default();
        let conntrack = Conntrack::default();
        Self {
            family,
            programs,
            layout: None,
            generation,
            looked,
            compared,
            pacer,
            conntrack,
            written,
        }
    }

    /// Makes the kernel carry the table, in which `changed` are the service ports that differ
    /// from the last commit. The first commit, and the one after a failure, reads what the kernel
    /// has and writes what is missing.
    pub fn commit(
        &mut self,
        table: &ForwardingTable,
        changed: BTreeSet<Arc<ServicePortName>>,
    ) -> Result<Committed, IptablesError> {
        let whole = self.layout.is_none();
        // Taken out first: after a failure the layout would be ahead of the kernel.
        let (layout, restore) = match self.layout.take() {
            Some(mut layout) => {
                let restore = layout.update(table, changed);
                (layout, restore)
            }
            None => {
                self.generation.iter_mut().for_each(Generation::catch_up);
                Layout::adopt(table, &self.programs.list()?)
            }
        };
        if !restore.is_empty() {
            self.programs.restore(&restore.to_string())?;
            // Each table is a commit of its own.
            self.generation.iter().for_each(|g| g.own_commits.note_commits(restore.tables()));
        }
        if whole && table.node_network().serves_loopback() {
            // Not before the guard is there.
            sysctl::apply([(ROUTE_LOCALNET, "1")]);
        }
        self.layout = Some(layout);
        self.written = COUNTED.map(|table| (table, restore.rules(table)));
        Ok(Committed { whole, operations: restore.operations() })
    }

    /// Looks whether somebody has changed our rules; the next commit then heals them.
    pub fn check(&mut self) -> Result<bool, IptablesError> {
        let Some(layout) = &self.layout else { return Ok(true) };
        let foreign = self.generation.as_mut().is_some_and(Generation::has_changed);
        let now = Instant::now();
        if foreign && !self.pacer.may_check(now) {
            return Ok(true);
        }
        // Where others' changes do not show, they are looked for.
        if foreign || self.compared.elapsed() > FULL_COMPARISON {
            self.compared = now;
            self.generation.iter_mut().for_each(Generation::catch_up);
            let intact = layout.is_intact(&self.programs.list()?);
            self.pacer.note_check(now, Instant::now(), intact);
            if !intact {
                self.layout = None;
            }
            return Ok(intact);
        }
        if self.generation.is_some() && self.looked.elapsed() < LEISURELY {
            return Ok(true);
        }
        self.looked = Instant::now();
        let intact = signs_of_life(&self.programs)?;
        if !intact {
            self.layout = None;
        }
        Ok(intact)
    }

    /// Deletes everything of ours that is not kept, if there is anything.
    pub fn remove(&mut self, kept: &Kept) -> Result<(), IptablesError> {
        self.layout = None;
        let listing = self.programs.list()?;
        let restore = removal(self.family, &listing, kept);
        if self.family == IpFamily::V4 && restore.deletes(TableName::Filter, GUARD) {
            // Before the guard goes.
            sysctl::apply([(ROUTE_LOCALNET, "0")]);
        }
        if restore.is_empty() { Ok(()) } else { self.programs.restore(&restore.to_string()) }
    }
}
