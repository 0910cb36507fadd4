//! Namespaces: those that the system itself lives in stay, and one that is deleted waits until it is
//! empty.

use serde_json::Value;

use crate::error::ApiError;
use crate::kinds::{Access, Answer, Strategy, Subresource};
use crate::objects::write::{self, Changed, Writable};
use crate::request::handler::Handler;

/// Where the system itself lives.
pub(crate) const PERMANENT: [&str; 4] =
    ["default", "kube-system", "kube-public", "kube-node-lease"];

pub(super) struct Namespaces;

impl Strategy for Namespaces {
    fn subresources(&self) -> &'static [Subresource] {
        const {
            &[Subresource {
                name: "finalize",
                kind: None,
                verbs: &["update"],
                access: Access::Call(finalize),
            }]
        }
    }

    fn check_deletion(&self, name: &str) -> Result<(), ApiError> {
        if !PERMANENT.contains(&name) {
            return Ok(());
        }
        let message =
            format!("namespaces {name:?} is forbidden: this namespace may not be deleted");
        Err(ApiError::forbidden(message))
    }

    fn terminate(&self, namespace: &mut Value) {
        namespace["status"]["phase"] = "Terminating".into();
    }
}

/// Releases a namespace that is empty.
fn finalize<'a>(handler: &'a Handler<'a>) -> Answer<'a> {
    Box::pin(async move {
        let Changed { object: wanted, warnings } = handler.object()?;
        let change = |old: &Value| {
            let mut new = old.clone();
            new["spec"] = wanted["spec"].clone();
            new["metadata"]["deletionGracePeriodSeconds"] = 0.into();
            // Who names a revision has looked at that one.
            new["metadata"]["resourceVersion"] = wanted["metadata"]["resourceVersion"].clone();
            Ok(Changed { object: new, warnings: warnings.clone() })
        };
        let name = &handler.path.name;
        let written = write::update(&handler.context(), name, Writable::Whole, change).await?;
        Ok(handler.wrote(written))
    })
}
