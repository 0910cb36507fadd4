//! The nftables data plane: programs and transactions, written to the kernel over netlink.
//!
//! The first commit takes over what it finds in the kernel, so a restart changes nothing that is
//! still right. Foreign changes show in the kernel's generation number, which everybody's commits
//! raise; only then is the table read back and compared.

pub(crate) mod data_plane;
mod delayed;
mod encode;
mod expressions;
pub(crate) mod probe;
mod readback;

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use roadstead_forwarding::nft::compile::compile;
use roadstead_forwarding::nft::diff::Layout;
use roadstead_forwarding::nft::model::Transaction;
use roadstead_forwarding::service::{IpFamily, ServicePortName};
use roadstead_forwarding::table::ForwardingTable;
use roadstead_netlink::error::NetlinkError;
use roadstead_netlink::nftables::TableBatch;
use roadstead_netlink::nftables::others::{CheckPacer, OwnCommits};
use roadstead_netlink::nftables::readback::generation;
use roadstead_netlink::socket::{NetlinkFamily, Socket};
use rustix::io::Errno;
use tracing::debug;

use self::delayed::DelayedDeletions;
use self::readback::Found;
use crate::conntrack::Conntrack;
use crate::data_plane::Committed;

/// Why nftables could not be brought up to date.
#[derive(Debug, thiserror::Error)]
pub enum NftError {
    /// The kernel did not take it.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// The kernel refused something because it lacks a part of nftables.
    #[error("the kernel has not what nftables needs for {family:?}, or has not loaded it: {parts}")]
    Lacking {
        /// For which address family.
        family: IpFamily,
        /// The names of the modules.
        parts: String,
        /// What was refused.
        source: NetlinkError,
    },
}

/// One address family of the kernel's load balancer, and what we know to be in it.
#[derive(Debug)]
pub struct NftPlane {
    family: IpFamily,
    socket: Socket,
    /// `None` if we cannot know, so that the next commit looks or writes it all.
    layout: Option<Layout>,
    /// How many commits have failed since the last good one. After the second, nothing that is
    /// found is built upon.
    failures: u32,
    /// The kernel's generation and our own commits when all was last known to be well.
    seen: (u32, u32),
    delayed: DelayedDeletions,
    /// Since when something of the layout waits to be deleted.
    retired: Option<Instant>,
    pacer: CheckPacer,
    own_commits: OwnCommits,
    conntrack: Conntrack,
}

impl NftPlane {
    /// Opens the way to the kernel, without touching anything yet.
    pub fn open(family: IpFamily) -> io::Result<Self> {
        Ok(Self {
            family,
            socket: Socket::open(NetlinkFamily::Netfilter)?,
            layout: None,
            failures: 0,
            seen: (0, 0),
            delayed: DelayedDeletions::default(),
            retired: None,
            pacer: CheckPacer::default(),
            own_commits: OwnCommits::default(),
            conntrack: Conntrack::default(),
        })
    }

    /// Makes the kernel carry the table, in which `changed` are the service ports that differ
    /// from the last commit. The first commit takes over what it finds, and so does the one after a
    /// failure; after another failure everything is written.
    pub fn commit(
        &mut self,
        table: &ForwardingTable,
        changed: BTreeSet<Arc<ServicePortName>>,
    ) -> Result<Committed, NftError> {
        // Taken out first: after a failure the layout would be ahead of the kernel.
        let outcome = match self.layout.take() {
            Some(layout) => self.update(layout, table, changed),
            None => self.take_over(table),
        };
        self.failures = if outcome.is_err() { self.failures + 1 } else { 0 };
        outcome.map_err(|error| self.explain(error))
    }

    /// Finds out what the kernel lacks, if that is why it refused something.
    fn explain(&mut self, error: NetlinkError) -> NftError {
        let family = self.family;
        let Some(refusal) = error.refusal() else { return error.into() };
        // Busy, out of memory or without permission: nothing that a module would help with.
        let lacking = [Errno::INVAL, Errno::NOENT, Errno::OPNOTSUPP, Errno::AFNOSUPPORT];
        if !lacking.iter().any(|errno| refusal.raw_os_error() == Some(errno.raw_os_error())) {
            return error.into();
        }
        match probe::lacking(&mut self.socket, family).join(", ") {
            parts if parts.is_empty() => error.into(),
            parts => NftError::Lacking { family, parts, source: error },
        }
    }

    fn update(
        &mut self,
        mut layout: Layout,
        table: &ForwardingTable,
        changed: BTreeSet<Arc<ServicePortName>>,
    ) -> Result<Committed, NetlinkError> {
        let mut transaction = layout.update(table, changed);
        let operations = transaction.operations();
        self.retired = layout.has_retired().then(Instant::now);
        self.delayed.hold_back(&mut transaction, Instant::now());
        if !transaction.is_empty() {
            self.send(encode::transaction(table.family(), &transaction))?;
        }
        self.layout = Some(layout);
        Ok(Committed { whole: false, operations })
    }

    fn take_over(&mut self, table: &ForwardingTable) -> Result<Committed, NetlinkError> {
        self.delayed.clear();
        self.retired = None;
        self.seen = (self.generation()?, self.own_commits.count());
        let found = match self.failures {
            2.. => None,
            _ => readback::read(&mut self.socket, table.family())?,
        };
        if let Some(found) = found
            && let Some(committed) = self.adopt(table, &found)?
        {
            return Ok(committed);
        }
        let mut layout = Layout::new(table);
        let fixed = layout.program();
        let mut services = layout.update(table, table.iter().map(|(name, _)| name.clone()));
        // Lists of the kernel keep the order in which they were written.
        services.sort();
        let operations = services.operations();
        let batch = encode::replacement(&fixed, &services);
        // The kernel makes its own copy; two of ours at that time would be one too many.
        drop(services);
        self.send(batch)?;
        self.layout = Some(layout);
        Ok(Committed { whole: true, operations })
    }

    /// Completes the table that was found and corrects its elements; `None` if some of its chains or
    /// sets are not ours.
    fn adopt(
        &mut self,
        table: &ForwardingTable,
        found: &Found,
    ) -> Result<Option<Committed>, NetlinkError> {
        let slots = found.slots(&compile(table));
        let layout = Layout::resume(table, &slots, found.classes());
        let program = layout.program();
        let Some(structure) = found.lacks(&program) else { return Ok(None) };
        let (elements, foreign) = found.missing(&program);
        let transaction = Transaction { add: elements.add, delete: elements.delete, ..structure };
        let operations = transaction.operations() + foreign.len();
        if operations > 0 {
            let mut batch = encode::transaction(table.family(), &Transaction::default());
            encode::delete_foreign(&mut batch, &foreign);
            encode::append(&mut batch, table.family(), &transaction);
            self.send(batch)?;
        }
        self.layout = Some(layout);
        Ok(Some(Committed { whole: true, operations }))
    }

    /// Looks whether the kernel still has what was committed; if not, the next commit heals it.
    /// Costs next to nothing as long as nobody else changes anything.
    fn check(&mut self) -> Result<bool, NetlinkError> {
        let family = self.family;
        if self.layout.is_none() {
            return Ok(true);
        }
        let now = (self.generation()?, self.own_commits.count());
        let alone = now.0.wrapping_sub(self.seen.0) == now.1.wrapping_sub(self.seen.1);
        if let Some(transaction) = self.delayed.due(!alone, Instant::now())
            && let Err(error) = self.send(encode::transaction(family, &transaction))
        {
            // Somebody has deleted them; what else is missing will show.
            debug!(%error, "late elements are gone");
        }
        if !self.bury() {
            return Ok(false);
        }
        // Somebody who commits all the time must not keep us busy reading.
        if alone || !self.pacer.may_check(Instant::now()) {
            return Ok(true);
        }
        let started = Instant::now();
        self.seen = (self.generation()?, self.own_commits.count());
        let found = readback::read(&mut self.socket, family)?;
        let program = self.layout.as_ref().map(Layout::program);
        let intact = found.zip(program).is_some_and(|(found, program)| {
            let (transaction, foreign) = found.missing(&program);
            found.has_structure(&program) && transaction.is_empty() && foreign.is_empty()
        });
        self.pacer.note_check(started, Instant::now(), intact);
        if !intact {
            self.layout = None;
        }
        Ok(intact)
    }

    /// Deletes what has waited for that for a while; returns whether that went well. Whoever takes
    /// over later then finds nothing unknown, and keeps what the kernel knows of sticky clients.
    fn bury(&mut self) -> bool {
        const WHILE: Duration = Duration::from_secs(1);
        let is_ripe = self.retired.is_some_and(|since| since.elapsed() >= WHILE);
        let Some(layout) = self.layout.as_mut().filter(|_| is_ripe) else { return true };
        self.retired = None;
        let transaction = layout.bury();
        let outcome = self.send(encode::transaction(self.family, &transaction));
        if let Err(error) = &outcome {
            debug!(%error, "what nobody needs any more cannot be deleted");
            self.layout = None;
        }
        outcome.is_ok()
    }

    /// Deletes our table, if there is one.
    pub fn remove(&mut self) -> Result<(), NftError> {
        self.layout = None;
        self.send(encode::removal(self.family)).map_err(|error| self.explain(error))
    }

    fn generation(&mut self) -> Result<u32, NetlinkError> {
        generation(&mut self.socket)
    }

    fn send(&mut self, batch: TableBatch) -> Result<(), NetlinkError> {
        self.socket.commit(batch.into_batch())?;
        self.own_commits.note_commits(1);
        Ok(())
    }
}
