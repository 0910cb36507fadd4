//! The nftables data plane: programs and transactions, written to the kernel over netlink.
//!
//! The first commit takes over what it finds in the kernel, so a restart changes nothing that is
//! still right. Foreign changes show in the kernel's generation number, which everybody's commits
//! raise; only then is the table read back and compared.

mod encode;
mod expressions;
mod late;
pub(crate) mod probe;
mod readback;

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use roadstead_forwarding::nft::compile::compile;
use roadstead_forwarding::nft::diff::Layout;
use roadstead_forwarding::nft::model::Transaction;
use roadstead_forwarding::service::{IpFamily, ServicePortName};
use roadstead_forwarding::table::ForwardingTable;
use rustix::io::Errno;
use tracing::debug;

use self::late::Late;
use self::readback::Found;
use crate::netlink::{Batch, NetlinkError, Socket};
use crate::pace::Pace;
use crate::plane::Committed;

/// How often this process has committed, to tell its own commits from those of others.
static OWN_COMMITS: AtomicU32 = AtomicU32::new(0);

/// The number that everybody's commits to nftables raise.
pub(crate) fn generation(socket: &mut Socket) -> Result<u32, NetlinkError> {
    readback::generation(socket)
}

/// One address family of the kernel's load balancer, and what we know to be in it.
#[derive(Debug)]
pub struct NftPlane {
    socket: Socket,
    /// `None` if we cannot know, so that the next commit looks or writes it all.
    layout: Option<Layout>,
    /// How many commits have failed since the last good one. After the second, nothing that is
    /// found is built upon.
    failures: u32,
    /// The kernel's generation and our own commits when all was last known to be well.
    seen: (u32, u32),
    late: Late,
    /// Since when something of the layout waits to be deleted.
    retired: Option<Instant>,
    pace: Pace,
}

impl NftPlane {
    /// Opens the way to the kernel, without touching anything yet.
    pub fn open() -> io::Result<Self> {
        Ok(Self {
            socket: Socket::open()?,
            layout: None,
            failures: 0,
            seen: (0, 0),
            late: Late::default(),
            retired: None,
            pace: Pace::default(),
        })
    }

    /// Makes the kernel carry the table, in which `changed` are the service ports that differ
    /// from the last commit. The first commit takes over what it finds, and so does the one after a
    /// failure; after another failure everything is written.
    pub fn commit(
        &mut self,
        table: &ForwardingTable,
        changed: BTreeSet<Arc<ServicePortName>>,
    ) -> Result<Committed, NetlinkError> {
        // Taken out first: after a failure the layout would be ahead of the kernel.
        let outcome = match self.layout.take() {
            Some(layout) => self.update(layout, table, changed),
            None => self.take_over(table),
        };
        self.failures = if outcome.is_err() { self.failures + 1 } else { 0 };
        outcome.map_err(|error| self.explain(error, table.family()))
    }

    /// Finds out what the kernel lacks, if that is why it refused something.
    fn explain(&mut self, error: NetlinkError, family: IpFamily) -> NetlinkError {
        let NetlinkError::Refused { source, .. } = &error else { return error };
        // Busy, out of memory or without permission: nothing that a module would help with.
        let lacking = [Errno::INVAL, Errno::NOENT, Errno::OPNOTSUPP, Errno::AFNOSUPPORT];
        if !lacking.iter().any(|errno| source.raw_os_error() == Some(errno.raw_os_error())) {
            return error;
        }
        match probe::lacking(&mut self.socket, family).join(", ") {
            parts if parts.is_empty() => error,
            parts => NetlinkError::Lacking { family, parts, source: Box::new(error) },
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
        self.late.hold_back(&mut transaction, Instant::now());
        if !transaction.is_empty() {
            self.send(encode::transaction(table.family(), &transaction))?;
        }
        self.layout = Some(layout);
        Ok(Committed { whole: false, operations })
    }

    fn take_over(&mut self, table: &ForwardingTable) -> Result<Committed, NetlinkError> {
        self.late.forget();
        self.retired = None;
        self.seen = (self.generation()?, OWN_COMMITS.load(Ordering::Relaxed));
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

    /// Whether the next commit will look at the whole table.
    pub fn needs_everything(&self) -> bool {
        self.layout.is_none()
    }

    /// Looks whether the kernel still has what was committed; if not, the next commit heals it.
    /// Costs next to nothing as long as nobody else changes anything.
    pub fn check(&mut self, family: IpFamily) -> Result<bool, NetlinkError> {
        if self.layout.is_none() {
            return Ok(true);
        }
        let now = (self.generation()?, OWN_COMMITS.load(Ordering::Relaxed));
        let alone = now.0.wrapping_sub(self.seen.0) == now.1.wrapping_sub(self.seen.1);
        if let Some(transaction) = self.late.due(!alone, Instant::now())
            && let Err(error) = self.send(encode::transaction(family, &transaction))
        {
            // Somebody has deleted them; what else is missing will show.
            debug!(%error, "late elements are gone");
        }
        if !self.bury(family) {
            return Ok(false);
        }
        // Somebody who commits all the time must not keep us busy reading.
        if alone || !self.pace.may_look(Instant::now()) {
            return Ok(true);
        }
        let started = Instant::now();
        self.seen = (self.generation()?, OWN_COMMITS.load(Ordering::Relaxed));
        let found = readback::read(&mut self.socket, family)?;
        let program = self.layout.as_ref().map(Layout::program);
        let intact = found.zip(program).is_some_and(|(found, program)| {
            let (transaction, foreign) = found.missing(&program);
            found.has_structure(&program) && transaction.is_empty() && foreign.is_empty()
        });
        self.pace.note(started, Instant::now(), intact);
        if !intact {
            self.layout = None;
        }
        Ok(intact)
    }

    /// Deletes what has waited for that for a while; returns whether that went well. Whoever takes
    /// over later then finds nothing unknown, and keeps what the kernel knows of sticky clients.
    fn bury(&mut self, family: IpFamily) -> bool {
        const WHILE: Duration = Duration::from_secs(1);
        let is_ripe = self.retired.is_some_and(|since| since.elapsed() >= WHILE);
        let Some(layout) = self.layout.as_mut().filter(|_| is_ripe) else { return true };
        self.retired = None;
        let transaction = layout.bury();
        let outcome = self.send(encode::transaction(family, &transaction));
        if let Err(error) = &outcome {
            debug!(%error, "what nobody needs any more cannot be deleted");
            self.layout = None;
        }
        outcome.is_ok()
    }

    /// Deletes the table of a family, if there is one.
    pub fn remove(&mut self, family: IpFamily) -> Result<(), NetlinkError> {
        self.layout = None;
        self.send(encode::removal(family)).map_err(|error| self.explain(error, family))
    }

    fn generation(&mut self) -> Result<u32, NetlinkError> {
        readback::generation(&mut self.socket)
    }

    fn send(&mut self, batch: Batch) -> Result<(), NetlinkError> {
        self.socket.commit(batch)?;
        OWN_COMMITS.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}
