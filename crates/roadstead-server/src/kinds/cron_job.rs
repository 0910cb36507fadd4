//! CronJobs: their time zone must be one that this machine knows.

use std::path::Path;

use roadstead_api::time_zone::{DIRECTORIES, check_name, is_utc, unknown};
use roadstead_schema::invalid::Causes;
use roadstead_schema::json::Pointer;
use roadstead_store::transaction::Transaction;
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::kinds::Strategy;
use crate::objects::write::Context;

pub(super) struct CronJobs;

impl Strategy for CronJobs {
    fn complete(
        &self,
        context: &Context<'_>,
        old: Option<&Value>,
        new: &mut Value,
        transaction: Transaction,
    ) -> Result<Transaction, ApiError> {
        let zone = |object: &Value| object.text("/spec/timeZone").to_owned();
        let wanted = zone(new);
        let is_new = old.is_none_or(|old| zone(old) != wanted);
        // What is wrong with the name itself is said with all else that is wrong.
        if !is_new || is_utc(&wanted) || check_name(&wanted).is_err() {
            return Ok(transaction);
        }
        let present = || DIRECTORIES.iter().map(Path::new).filter(|place| place.is_dir());
        if present().any(|place| place.join(&wanted).is_file()) {
            return Ok(transaction);
        }
        let mut causes = Causes::default();
        let why = unknown(&wanted, present().next().is_some());
        causes.invalid("spec.timeZone", &json!(wanted), why);
        Err(ApiError::invalid(context.resource.info(), new.text("/metadata/name"), &causes.0))
    }
}
