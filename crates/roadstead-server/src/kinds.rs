//! What single kinds need of the server besides what is the same for all: one file for each of them.
//!
//! What a kind means by itself (its defaults, what is wrong with it, how it looks) is pure, and is the
//! `Kind` of `roadstead-api`. A [`Strategy`] is the other half: what depends on other objects, on who
//! asks, or has to be written in the same transaction. Generic code (`request`, `objects`, `reading`,
//! `documents`) knows kinds only by these two traits and by their [`Subresource`]s.

use std::sync::Arc;

use futures::future::BoxFuture;
use http::Response;
use roadstead_store::transaction::Transaction;
use serde_json::Value;
use tokio::sync::Mutex;

use crate::api::Api;
use crate::config::Services;
use crate::error::ApiError;
use crate::objects::delete::Removal;
use crate::objects::write::{Context, Writable};
use crate::registry::{KindRef, Resource};
use crate::request::chain::ActiveRequest;
use crate::request::handler::Handler;
use crate::transport::receive::RequestBody;
use crate::transport::response::Body;

pub(crate) mod admission;
mod certificate_signing_request;
mod cron_job;
pub(crate) mod custom_resource;
pub(crate) mod custom_resource_definition;
mod endpoints;
pub(crate) mod flow_control;
mod ingress;
mod ip_address;
mod limit_range;
pub(crate) mod metrics;
pub(crate) mod namespace;
pub(crate) mod node;
mod node_restriction;
mod pod;
mod pod_security;
pub(crate) mod private;
mod proxy;
pub(crate) mod resource_quota;
pub(crate) mod review;
mod role;
pub mod service;
mod service_account;
pub(crate) mod service_cidr;
pub(crate) mod unenforced;

/// Kinds with rules of their own, by where the store keeps them.
const STRATEGIES: [(&str, &dyn Strategy); 23] = [
    ("certificatesigningrequests.certificates.k8s.io", &certificate_signing_request::Requests),
    (custom_resource_definition::DEFINITIONS, &custom_resource_definition::Definitions),
    ("cronjobs.batch", &cron_job::CronJobs),
    ("endpoints", &endpoints::Endpoints),
    ("flowschemas.flowcontrol.apiserver.k8s.io", &flow_control::FlowSchemas),
    ("ipaddresses.networking.k8s.io", &ip_address::IpAddresses),
    ("localsubjectaccessreviews.authorization.k8s.io", &review::LOCAL_SUBJECT_ACCESS),
    ("namespaces", &namespace::Namespaces),
    ("nodes", &node::Nodes),
    ("pods", &pod::Pods),
    ("prioritylevelconfigurations.flowcontrol.apiserver.k8s.io", &flow_control::PriorityLevels),
    ("clusterroles.rbac.authorization.k8s.io", &role::Roles),
    ("clusterrolebindings.rbac.authorization.k8s.io", &role::Bindings),
    ("roles.rbac.authorization.k8s.io", &role::Roles),
    ("rolebindings.rbac.authorization.k8s.io", &role::Bindings),
    ("selfsubjectaccessreviews.authorization.k8s.io", &review::SELF_SUBJECT_ACCESS),
    ("selfsubjectreviews.authentication.k8s.io", &review::SELF_SUBJECT),
    ("selfsubjectrulesreviews.authorization.k8s.io", &review::SELF_SUBJECT_RULES),
    ("serviceaccounts", &service_account::ServiceAccounts),
    ("servicecidrs.networking.k8s.io", &service_cidr::ServiceCidrs),
    ("services", &service::Services),
    ("subjectaccessreviews.authorization.k8s.io", &review::SUBJECT_ACCESS),
    ("tokenreviews.authentication.k8s.io", &review::TOKEN),
];

/// The rules of a kind, if it has some of its own.
pub(crate) fn strategy(kind: &KindRef, bucket: &str) -> &'static dyn Strategy {
    let own = STRATEGIES.iter().find(|(known, _)| *known == bucket);
    match (kind, own) {
        (KindRef::Custom(_), _) if [metrics::NODES, metrics::PODS].contains(&bucket) => {
            &metrics::Measured
        }
        (KindRef::Custom(_), _) => &custom_resource::CustomResources,
        (KindRef::BuiltIn(_), Some((_, strategy))) => *strategy,
        (KindRef::BuiltIn(_), None) => &Plain,
    }
}

/// Work that goes on after a write.
pub(crate) type Afterwards<'a> = BoxFuture<'a, Result<(), ApiError>>;

/// What is told about a write.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    /// To whoever writes.
    pub(crate) warnings: Vec<String>,
    /// To whoever reads the audit log, by the names of annotations.
    pub(crate) audit: Vec<(&'static str, String)>,
}

impl Notes {
    /// These, and then others.
    pub(crate) fn and(mut self, others: Self) -> Self {
        self.warnings.extend(others.warnings);
        self.audit.extend(others.audit);
        self
    }
}

/// The half of a kind that needs the server. Hooks are called in the order in which they stand here;
/// most kinds need none.
pub(crate) trait Strategy: Sync {
    /// What there is below objects of this kind, besides `status` and `scale`.
    fn subresources(&self) -> &'static [Subresource] {
        &[]
    }

    /// What can be done with objects of this kind, if that is not everything.
    fn verbs(&self) -> Option<&'static [&'static str]> {
        None
    }

    /// Answers whatever is asked about a kind whose objects are not stored.
    fn answer<'a>(&self, _handler: &'a Handler<'a>, _method: &str) -> Option<Answer<'a>> {
        None
    }

    /// Whether the operator does not want to hear that the kind is deprecated.
    fn hides_deprecation(&self, _services: &Services) -> bool {
        false
    }

    /// Answers an object that is a question and never stored: the status of the answer.
    fn review(&self, _handler: &Handler<'_>, _question: &Value) -> Value {
        Value::Null
    }

    /// Admission: completes what somebody wants to write, by other objects or by who it is, or
    /// refuses it. Called once for each attempt, before the parts that the request is not about are
    /// put back; `old` is `None` for a new object.
    fn admit(
        &self,
        _context: &Context<'_>,
        _old: Option<&Value>,
        _new: &mut Value,
    ) -> Result<(), ApiError> {
        Ok(())
    }

    /// Completes the transaction that writes everything but the status, and the object with what it
    /// takes in it. Validation comes after that.
    fn complete(
        &self,
        _context: &Context<'_>,
        _old: Option<&Value>,
        _new: &mut Value,
        transaction: Transaction,
    ) -> Result<Transaction, ApiError> {
        Ok(transaction)
    }

    /// The turn that a write has to wait for, because all who write the same besides their own object would
    /// otherwise overtake each other.
    fn turn<'a>(&self, _api: &'a Api, _transaction: &Transaction) -> Option<&'a Arc<Mutex<()>>> {
        None
    }

    /// Says what to tell about a write that will be made, by other objects; what a kind says by itself
    /// is its own.
    fn notes(&self, _context: &Context<'_>, _old: Option<&Value>, _new: &Value) -> Notes {
        Notes::default()
    }

    /// Goes on after objects of this kind were written or removed; not after a dry run.
    fn committed<'a>(&self, _api: &'a Api) -> Option<Afterwards<'a>> {
        None
    }

    /// Refuses the deletion of what must stay.
    fn check_deletion(&self, _name: &str) -> Result<(), ApiError> {
        Ok(())
    }

    /// For how many seconds an object may stay that is deleted; `asked` is what the client wants.
    fn grace(&self, _object: &Value, _asked: Option<i64>) -> i64 {
        0
    }

    /// The finalizer that an object gets when it is deleted.
    fn finalizer(&self) -> Option<&'static str> {
        None
    }

    /// Says in the object that it is being deleted, besides the time of deletion.
    fn terminate(&self, _object: &mut Value) {}

    /// Goes on after an object has been deleted, be it gone or only marked; not after a dry run.
    fn deleted<'a>(&self, _api: &'a Api, _name: &'a str) -> Option<Afterwards<'a>> {
        None
    }

    /// Completes the transaction that removes an object: what it holds goes with it.
    fn remove(&self, removal: &Removal<'_>, transaction: Transaction) -> Transaction {
        transaction.delete(removal.key())
    }

    /// Goes on after an object was removed; not after a dry run.
    fn removed<'a>(&self, _api: &'a Api, _resource: &'a Resource) -> Option<Afterwards<'a>> {
        None
    }
}

/// A kind without rules of its own.
struct Plain;

impl Strategy for Plain {}

/// Something below an object. Discovery, authorisation and dispatch all read this.
#[derive(Clone, Copy)]
pub(crate) struct Subresource {
    pub(crate) name: &'static str,
    /// The kind of what is sent and answered; `None`: that of the object itself.
    pub(crate) kind: Option<GroupVersionKind>,
    /// What can be done with it.
    pub(crate) verbs: &'static [&'static str],
    pub(crate) access: Access,
}

#[derive(Clone, Copy)]
pub(crate) struct GroupVersionKind {
    pub(crate) group: &'static str,
    pub(crate) version: &'static str,
    pub(crate) kind: &'static str,
}

impl GroupVersionKind {
    pub(crate) const fn new(
        group: &'static str,
        version: &'static str,
        kind: &'static str,
    ) -> Self {
        Self { group, version, kind }
    }
}

/// An answer in the making.
pub(crate) type Answer<'a> = BoxFuture<'a, Result<Response<Body>, ApiError>>;

/// How a request below an object is answered.
#[derive(Clone, Copy)]
pub(crate) enum Access {
    /// The object is read, and this part of it written.
    Part(Writable),
    /// The number of replicas is read and written.
    Scale,
    /// By a function of its own, which has the body.
    Call(for<'a> fn(&'a Handler<'a>) -> Answer<'a>),
    /// By a function that takes the body as a stream, or the whole connection.
    Connect(for<'a> fn(&'a ActiveRequest, &'a Resource, RequestBody) -> Answer<'a>),
}

impl Subresource {
    /// Reads and writes a part of the object.
    pub(crate) const fn part(name: &'static str, part: Writable) -> Self {
        let verbs = &["get", "patch", "update"];
        Self { name, kind: None, verbs, access: Access::Part(part) }
    }

    /// Whether it is a connection to something that answers in its own time.
    pub(crate) fn connects(&self) -> bool {
        matches!(self.access, Access::Connect(_))
    }

    pub(crate) const SCALE: Self = Self {
        name: "scale",
        kind: Some(GroupVersionKind::new("autoscaling", "v1", "Scale")),
        verbs: &["get", "patch", "update"],
        access: Access::Scale,
    };
}

#[test]
fn every_strategy_has_its_kind() {
    let buckets: Vec<_> =
        roadstead_api::kinds::all().into_iter().map(|kind| kind.info().bucket()).collect();
    for (bucket, _) in STRATEGIES {
        assert!(buckets.iter().any(|known| known == bucket), "{bucket}");
    }
    let reviews = roadstead_api::kinds::all().into_iter().filter(|kind| kind.info().review);
    for kind in reviews {
        let bucket = kind.info().bucket();
        assert!(STRATEGIES.iter().any(|(known, _)| *known == bucket), "nobody answers a {bucket}");
    }
}
