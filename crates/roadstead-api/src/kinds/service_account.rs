//! ServiceAccount: who a pod is to the API server.

use crate::kind::{Info, Kind};

pub(super) struct ServiceAccount;

static INFO: Info = Info {
    short_names: &["sa"],
    ..Info::new("", "v1", "ServiceAccount", "serviceaccounts", "serviceaccount")
};

impl Kind for ServiceAccount {
    fn info(&self) -> &'static Info {
        &INFO
    }
}
