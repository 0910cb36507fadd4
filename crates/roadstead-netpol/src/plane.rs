//! The table of policies in the kernel, of one address family.
//!
//! Foreign changes show in the kernel's generation number, which everybody's commits raise; only then
//! is the table read back and compared. What is amiss is written anew as a whole, in one batch: there is
//! no moment without policies.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::time::Instant;

use roadstead_forwarding::service::IpFamily;
use roadstead_netlink::error::NetlinkError;
use roadstead_netlink::nftables::TableBatch;
use roadstead_netlink::nftables::others::{CheckPacer, OwnCommits};
use roadstead_netlink::nftables::readback::{self, NamedTable};
use roadstead_netlink::socket::{NetlinkFamily, Socket};
use roadstead_policy::program::{PolicyProgram, PolicyTransaction, TABLE, is_of};

use crate::encode;

/// The policies of one address family in the kernel.
#[derive(Debug)]
pub struct PolicyPlane {
    family: IpFamily,
    socket: Socket,
    /// Whether the kernel has what was committed last, as far as we know.
    known: bool,
    /// The kernel's generation and our own commits when all was last known to be well.
    seen: (u32, u32),
    pacer: CheckPacer,
    own_commits: OwnCommits,
}

impl PolicyPlane {
    /// Opens the way to the kernel, without touching anything yet.
    pub fn open(family: IpFamily, own_commits: OwnCommits) -> io::Result<Self> {
        Ok(Self {
            family,
            socket: Socket::open(NetlinkFamily::Netfilter)?,
            known: false,
            seen: (0, 0),
            pacer: CheckPacer::default(),
            own_commits,
        })
    }

    /// Of which family.
    pub fn family(&self) -> IpFamily {
        self.family
    }

    /// Whether the whole program must be written, because we do not know what the kernel has.
    pub fn needs_everything(&self) -> bool {
        !self.known
    }

    /// Makes the kernel have the program, which the changes have just led to. After an error, and at
    /// the first time, it is written as a whole.
    pub fn commit(
        &mut self,
        program: &PolicyProgram,
        changes: &PolicyTransaction,
    ) -> Result<(), NetlinkError> {
        if self.known {
            let changes = changes.of_family(self.family);
            // After a failure the kernel may have anything.
            self.known = false;
            if !changes.is_empty() {
                self.send(encode::transaction(self.family, &changes))?;
            }
        } else {
            self.seen = (readback::generation(&mut self.socket)?, self.own_commits.count());
            let whole = program.whole().of_family(self.family);
            self.send(encode::replacement(self.family, &whole))?;
        }
        self.known = true;
        Ok(())
    }

    /// Looks whether the kernel still has the program that was committed; if not, the next commit
    /// writes it. Costs next to nothing as long as nobody else changes anything.
    pub fn check(&mut self, program: &PolicyProgram) -> Result<bool, NetlinkError> {
        if !self.known {
            return Ok(true);
        }
        let now = (readback::generation(&mut self.socket)?, self.own_commits.count());
        let alone = now.0.wrapping_sub(self.seen.0) == now.1.wrapping_sub(self.seen.1);
        if alone || !self.pacer.may_check(Instant::now()) {
            return Ok(true);
        }
        let started = Instant::now();
        self.seen = now;
        self.known = self.is_intact(program)?;
        self.pacer.note_check(started, Instant::now(), self.known);
        Ok(self.known)
    }

    fn is_intact(&mut self, program: &PolicyProgram) -> Result<bool, NetlinkError> {
        let family = self.family;
        let table = NamedTable { family: family.number(), name: TABLE };
        let chains: BTreeMap<_, _> = program
            .chains
            .iter()
            .map(|(name, rules)| {
                let rules = rules.iter().filter(|rule| is_of(rule, family));
                let notes = rules.map(|rule| encode::signature(family, rule).to_vec());
                (name.to_string(), notes.collect::<Vec<_>>())
            })
            .collect();
        if readback::chains(&mut self.socket, table)? != chains {
            return Ok(false);
        }
        let mut wanted: BTreeMap<String, HashMap<Vec<u8>, Vec<u8>>> =
            program.sets.iter().map(|set| (set.to_string(), HashMap::new())).collect();
        for (key, value) in program.elements.iter().filter(|(key, _)| key.is_of(family)) {
            let set = wanted.entry(key.set.to_string()).or_default();
            set.insert(encode::key_bytes(key), encode::data_bytes(value));
        }
        let mut found = BTreeMap::new();
        for set in readback::sets(&mut self.socket, table)? {
            let elements = readback::elements(&mut self.socket, table, &set)?;
            found.insert(set, elements);
        }
        Ok(found == wanted)
    }

    /// Deletes our table, if there is one.
    pub fn remove(&mut self) -> Result<(), NetlinkError> {
        self.known = false;
        self.send(encode::removal(self.family))
    }

    fn send(&mut self, batch: TableBatch) -> Result<(), NetlinkError> {
        self.socket.commit(batch.into_batch())?;
        self.own_commits.note_commits(1);
        Ok(())
    }
}
