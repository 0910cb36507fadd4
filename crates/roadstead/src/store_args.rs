//! The flags about the store.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use roadstead_store::kv::{Options, Store};

use crate::{apiserver, data_directory, machine};

/// How often everything on disk is read and checked.
const SCRUB: Duration = Duration::from_secs(3600);
/// What all objects may take unless the operator says otherwise.
const QUOTA: u64 = 2 << 30;

/// What the store may hold, and what becomes of damage.
#[derive(Clone, Debug, Parser)]
pub(crate) struct StoreArgs {
    /// Start although what is on disk is damaged or gone, without what the refusal to start has named.
    /// Damaged files are kept beside the new ones.
    #[arg(long)]
    accept_loss: bool,
    /// How many bytes all objects may take together. Beyond that nothing can be created until some
    /// are deleted. 0: 2 GiB, or half of the memory if that is less; negative: no limit.
    #[arg(long, value_name = "BYTES", default_value_t = 0, allow_negative_numbers = true)]
    quota_backend_bytes: i64,
}

impl StoreArgs {
    /// A store that is gone when the process ends.
    pub(crate) fn memory(&self) -> Arc<Store> {
        Store::memory_with(self.options())
    }

    /// Opens the store of a data directory.
    pub(crate) fn open(&self, data_dir: &Path) -> anyhow::Result<Arc<Store>> {
        let expected = data_directory::has_store(data_dir);
        let options = Options { expected, ..self.options() };
        let store = Store::open(&apiserver::store_file(data_dir), options)?;
        if !expected {
            data_directory::note_store(data_dir)?;
        }
        Ok(store)
    }

    fn options(&self) -> Options {
        let quota = match self.quota_backend_bytes {
            0 => Some(machine::memory().map_or(QUOTA, |memory| QUOTA.min(memory / 2))),
            bytes => u64::try_from(bytes).ok(),
        };
        let accept_loss = self.accept_loss;
        Options { accept_loss, quota, scrub: Some(SCRUB), ..Options::default() }
    }
}

#[test]
fn quotas() {
    let quota = |text: &str| {
        let args = StoreArgs::try_parse_from(["test", "--quota-backend-bytes", text]).unwrap();
        args.options().quota
    };
    assert!(quota("0").is_some_and(|bytes| bytes > 0 && bytes <= QUOTA));
    assert_eq!((quota("4096"), quota("-1")), (Some(4096), None));
}
