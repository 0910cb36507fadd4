//! Requests for certificates: who asks is what the server knows, not what the request says, and who
//! may approve it is a right of its own.

use roadstead_api::look::{Look, child, children, default_to};
use serde_json::{Value, json};

use crate::api::{Api, User};
use crate::error::ApiError;
use crate::rbac::rule::Action;
use crate::registry::Resource;

const REQUESTS: &str = "certificatesigningrequests.certificates.k8s.io";

/// Writes into a new request who made it.
pub fn sign_in(resource: &Resource, user: &User, request: &mut Value) {
    if resource.bucket != REQUESTS {
        return;
    }
    let spec = child(request, "spec");
    spec["username"] = user.name.as_str().into();
    spec["groups"] = json!(user.groups);
    let known = [
        ("uid", json!(user.uid), user.uid.is_empty()),
        ("extra", json!(user.extra), user.extra.is_empty()),
    ];
    for (field, value, unknown) in known {
        match unknown {
            true => drop(spec.as_object_mut().map(|spec| spec.remove(field))),
            false => spec[field] = value,
        }
    }
}

/// Takes from a new state of a request only what its subresource may change: `approval` the
/// conditions, `status` everything but the decision.
pub fn confine(
    api: &Api,
    user: &User,
    resource: &Resource,
    subresource: &str,
    old: &Value,
    new: &mut Value,
) -> Result<(), ApiError> {
    if resource.bucket != REQUESTS {
        return Ok(());
    }
    match subresource {
        "approval" => {
            check_approver(api, user, resource, old)?;
            let mut status = old.get("status").cloned().unwrap_or_else(|| json!({}));
            status["conditions"] = new["status"]["conditions"].clone();
            let now = crate::write::seconds(jiff::Timestamp::now());
            for condition in children(&mut status, "conditions") {
                default_to(condition, "lastUpdateTime", now.as_str());
                default_to(condition, "lastTransitionTime", now.as_str());
            }
            new["status"] = status;
        }
        "status" => {
            let decision = |condition: &&Value| is_decision(condition);
            let kept = old.list("/status/conditions").iter().filter(decision);
            let others = new.list("/status/conditions").iter();
            let others = others.filter(|condition| !is_decision(condition));
            let conditions: Vec<_> = kept.chain(others).cloned().collect();
            if !conditions.is_empty() || new.has("/status/conditions") {
                child(new, "status")["conditions"] = conditions.into();
            }
        }
        _ => {}
    }
    Ok(())
}

fn is_decision(condition: &Value) -> bool {
    matches!(condition.text("/type"), "Approved" | "Denied")
}

/// Approving is allowed for one signer, or for all of a domain.
fn check_approver(
    api: &Api,
    user: &User,
    resource: &Resource,
    request: &Value,
) -> Result<(), ApiError> {
    let signer = request.text("/spec/signerName");
    let domain = signer.split_once('/').map_or(signer, |(domain, _)| domain);
    let may = |name: &str| {
        let (group, resource) = ("certificates.k8s.io", "signers");
        let action = Action { verb: "approve", group, resource, namespace: "", name, path: "" };
        api.rbac.allows(user, &action)
    };
    if may(signer) || may(&format!("{domain}/*")) {
        return Ok(());
    }
    let why = format!("user not permitted to approve requests with signerName {signer:?}");
    Err(ApiError::forbidden_object(resource.info(), request.text("/metadata/name"), &why))
}
