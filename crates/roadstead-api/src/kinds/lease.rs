//! Lease: a sign of life, and the lock of a leader.

use crate::kind::{Info, Kind};
use crate::table::{AGE, Cell, Column, ColumnCell, NAME};

pub(super) struct Lease;

static INFO: Info = Info {
    create_on_update: true,
    ..Info::new("coordination.k8s.io", "v1", "Lease", "leases", "lease")
};

impl Kind for Lease {
    fn info(&self) -> &'static Info {
        &INFO
    }

    fn table(&self) -> &'static [ColumnCell] {
        const { &[NAME, (Column::text("Holder"), Cell::Value("/spec/holderIdentity")), AGE] }
    }
}
