//! The nftables data plane: programs and transactions, written to the kernel over netlink.

mod encode;
mod expressions;

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use roadstead_forwarding::nft::diff::Layout;
use roadstead_forwarding::service::{IpFamily, ServicePortName};
use roadstead_forwarding::table::ForwardingTable;

use crate::netlink::{NetlinkError, Socket};
use crate::plane::Committed;

/// One address family of the kernel's load balancer, and what we know to be in it.
#[derive(Debug)]
pub struct NftPlane {
    socket: Socket,
    /// `None` if we cannot know, so that the next commit writes it all.
    layout: Option<Layout>,
}

impl NftPlane {
    /// Opens the way to the kernel, without touching anything yet.
    pub fn open() -> io::Result<Self> {
        Ok(Self { socket: Socket::open()?, layout: None })
    }

    /// Makes the kernel carry the table, in which `changed` are the service ports that differ
    /// from the last commit. The first commit, and the one after a failure, writes everything.
    pub fn commit(
        &mut self,
        table: &ForwardingTable,
        changed: BTreeSet<Arc<ServicePortName>>,
    ) -> Result<Committed, NetlinkError> {
        // Taken out first: after a failure the layout would be ahead of the kernel.
        match self.layout.take() {
            Some(mut layout) => {
                let transaction = layout.update(table, changed);
                let operations = transaction.operations();
                if !transaction.is_empty() {
                    self.socket.commit(encode::transaction(table.family(), &transaction))?;
                }
                self.layout = Some(layout);
                Ok(Committed { whole: false, operations })
            }
            None => {
                let mut layout = Layout::new(table);
                let everything = table.iter().map(|(name, _)| name.clone());
                let operations = layout.update(table, everything).operations();
                self.socket.commit(encode::replacement(&layout.program()))?;
                self.layout = Some(layout);
                Ok(Committed { whole: true, operations })
            }
        }
    }

    /// Whether the next commit will write the whole table.
    pub fn needs_everything(&self) -> bool {
        self.layout.is_none()
    }

    /// Deletes the table of a family, if there is one.
    pub fn remove(&mut self, family: IpFamily) -> Result<(), NetlinkError> {
        self.layout = None;
        self.socket.commit(encode::removal(family))
    }
}
