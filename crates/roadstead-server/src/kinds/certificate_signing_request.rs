//! Requests for certificates: who asks is what the server knows, not what the request says, and who
//! may approve and sign it are rights of their own.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use roadstead_schema::invalid::Causes;
use roadstead_schema::json::{Pointer, child, children, default_to};
use serde_json::{Value, json};
use x509_parser::pem::parse_x509_pem;
use x509_parser::prelude::{FromDer, X509CertificationRequest};

use crate::error::ApiError;
use crate::identity::authority::Subject;
use crate::identity::rbac::rule::Attributes;
use crate::identity::user::User;
use crate::kinds::{Strategy, Subresource};
use crate::objects::write::{Context, Writable};
use crate::registry::Resource;

/// For clients of the API server, whoever they are.
const CLIENT: &str = "kubernetes.io/kube-apiserver-client";
/// For node agents as clients of the API server.
const NODE_CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
/// For node agents as servers.
const NODE_SERVING: &str = "kubernetes.io/kubelet-serving";

pub(super) struct Requests;

impl Strategy for Requests {
    fn subresources(&self) -> &'static [Subresource] {
        const { &[Subresource::part("approval", Writable::Status)] }
    }

    fn admit(
        &self,
        context: &Context<'_>,
        old: Option<&Value>,
        new: &mut Value,
    ) -> Result<(), ApiError> {
        match (context.user, old) {
            (Some(user), None) => sign_in(context.resource, user, new),
            (Some(user), Some(old)) => confine(context, user, old, new),
            (None, _) => Ok(()),
        }
    }
}

/// Writes into a new request who made it, and refuses what nobody, or not this user, may ask for.
fn sign_in(resource: &Resource, user: &User, request: &mut Value) -> Result<(), ApiError> {
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
    check_subject(resource, user, request)
}

/// Who the certificate would say that its holder is.
fn check_subject(resource: &Resource, user: &User, request: &Value) -> Result<(), ApiError> {
    let (name, text) = (request.text("/metadata/name"), request.text("/spec/request"));
    // That there is none is found later, together with what else is missing.
    if text.is_empty() {
        return Ok(());
    }
    let subject = requested_subject(text).map_err(|why| {
        let mut causes = Causes::default();
        causes.invalid("spec.request", &json!(text), why);
        ApiError::invalid(resource.info(), name, &causes.0)
    })?;
    let refused = |why: &str| Err(ApiError::forbidden_object(resource.info(), name, why));
    let is_node = user.name.starts_with("system:node:")
        && user.groups.iter().any(|group| group == "system:nodes");
    match request.text("/spec/signerName") {
        CLIENT if subject.organizations.iter().any(|name| name == "system:masters") => {
            refused(&format!("use of {CLIENT} signer with system:masters group is not allowed"))
        }
        NODE_CLIENT | NODE_SERVING if is_node && subject.common_name != user.name => {
            refused(&format!("can only create a node CSR with CN={}", user.name))
        }
        _ => Ok(()),
    }
}

/// The subject of a request in PEM, encoded as the API has bytes; the request must be signed with
/// the key that it is for.
fn requested_subject(text: &str) -> Result<Subject, String> {
    let pem = STANDARD.decode(text).map_err(|_| "illegal base64 data".to_owned())?;
    let wrong = || "PEM block type must be CERTIFICATE REQUEST".to_owned();
    let (_, pem) = parse_x509_pem(&pem).map_err(|_| wrong())?;
    if pem.label != "CERTIFICATE REQUEST" {
        return Err(wrong());
    }
    let parsed = X509CertificationRequest::from_der(&pem.contents);
    let (rest, request) = parsed.map_err(|error| format!("asn1: {error}"))?;
    if !rest.is_empty() {
        return Err("asn1: trailing data".to_owned());
    }
    request.verify_signature().map_err(|error| format!("x509: {error}"))?;
    Ok(Subject::of(&request.certification_request_info.subject))
}

/// Takes from a new state of a request only what its subresource may change: `approval` the
/// conditions, `status` everything but the decision.
fn confine(
    context: &Context<'_>,
    user: &User,
    old: &Value,
    new: &mut Value,
) -> Result<(), ApiError> {
    match context.subresource {
        "approval" => {
            check_right(context, user, "approve", old)?;
            let mut status = old.get("status").cloned().unwrap_or_else(|| json!({}));
            status["conditions"] = new["status"]["conditions"].clone();
            let now = crate::objects::write::seconds(jiff::Timestamp::now());
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
            let state = |request: &'_ Value| {
                let certificate = request.text("/status/certificate").to_owned();
                (certificate, request.list("/status/conditions").to_vec())
            };
            if state(old) != state(new) {
                check_right(context, user, "sign", old)?;
            }
        }
        _ => {}
    }
    Ok(())
}

fn is_decision(condition: &Value) -> bool {
    matches!(condition.text("/type"), "Approved" | "Denied")
}

/// Approving and signing are allowed for one signer, or for all of a domain.
fn check_right(
    context: &Context<'_>,
    user: &User,
    verb: &str,
    request: &Value,
) -> Result<(), ApiError> {
    let signer = request.text("/spec/signerName");
    let domain = signer.split_once('/').map_or(signer, |(domain, _)| domain);
    let may = |name: &str| {
        let (group, resource) = ("certificates.k8s.io", "signers");
        let attributes =
            Attributes { verb, group, resource, namespace: "", name, ..Attributes::default() };
        context.api.identity.rbac.allows(user, &attributes)
    };
    if may(signer) || may(&format!("{domain}/*")) {
        return Ok(());
    }
    let why = format!("user not permitted to {verb} requests with signerName {signer:?}");
    let info = context.resource.info();
    Err(ApiError::forbidden_object(info, request.text("/metadata/name"), &why))
}
