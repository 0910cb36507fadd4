//! The iptables data plane: rules written by `iptables-restore`, as little as the change needs.

pub mod command;

use std::collections::BTreeSet;
use std::sync::Arc;

use roadstead_forwarding::iptables::compile::CANARY;
use roadstead_forwarding::iptables::diff::{Kept, Layout, removal};
use roadstead_forwarding::iptables::model::TableName;
use roadstead_forwarding::service::{IpFamily, ServicePortName};
use roadstead_forwarding::table::ForwardingTable;
use tracing::info;

use self::command::{IptablesError, Programs};
use crate::plane::Committed;

/// One address family of the kernel's rules, and what we know to be in them.
#[derive(Debug)]
pub struct IptablesPlane {
    family: IpFamily,
    programs: Programs,
    /// `None` if we cannot know, so that the next commit looks first.
    layout: Option<Layout>,
}

impl IptablesPlane {
    /// Finds the variant of iptables that this machine uses, without touching anything yet.
    pub fn open(family: IpFamily) -> Self {
        let programs = Programs::find(family);
        info!(?family, variant = ?programs.variant(), "using iptables");
        Self { family, programs, layout: None }
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
            None => Layout::adopt(table, &self.programs.list()?),
        };
        if !restore.is_empty() {
            self.programs.restore(&restore.to_string())?;
        }
        self.layout = Some(layout);
        Ok(Committed { whole, operations: restore.operations() })
    }

    /// Whether the next commit will look at everything.
    pub fn needs_everything(&self) -> bool {
        self.layout.is_none()
    }

    /// Looks whether somebody has flushed our tables; the next commit then heals them.
    pub fn check(&mut self) -> Result<bool, IptablesError> {
        if self.layout.is_none() {
            return Ok(true);
        }
        for table in TableName::ALL {
            if !self.programs.has(table, CANARY)? {
                self.layout = None;
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Deletes everything of ours that is not kept, if there is anything.
    pub fn remove(&mut self, kept: &Kept) -> Result<(), IptablesError> {
        self.layout = None;
        let restore = removal(self.family, &self.programs.list()?, kept);
        if restore.is_empty() { Ok(()) } else { self.programs.restore(&restore.to_string()) }
    }
}
