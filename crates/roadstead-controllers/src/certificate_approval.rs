//! Approves what nodes ask for: to become a node, to stay one, to serve on their own port. What is decided is
//! `roadstead_plan::certificate_approval`; who may ask at all is the API server's to say. Requests that nobody
//! needs any more are removed.

use std::net::IpAddr;
use std::time::Duration;

use futures::FutureExt;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestCondition,
};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{ListParams, PostParams};
use kube::{Api, Client, ResourceExt};
use roadstead_api::key::ObjectKey;
use roadstead_plan::certificate_approval::{
    Neighbour, Neighbourhood, Opinion, Right, is_bootstrapper, judge, right_for,
};
use roadstead_plan::certificate_signing::Contents;
use roadstead_typed::Typed;
use roadstead_watch::cache::Cache;
use roadstead_watch::queue::Queue;
use roadstead_watch::write::{Collection, Write};
use serde_json::Value;
use tracing::{info, warn};

use crate::Context;
use crate::certificates::request::Request;
use crate::runner::{self, Changed, Controller, Inputs, Watches, WritePlan, every};

const LEASES: &str = "kube-node-lease";
const REQUESTS: Collection = Collection::of::<CertificateSigningRequest>();
/// What is decided is looked at soon, or never; what waits for a person may wait for a day (upstream's
/// csrcleaner).
const DECIDED_STAY: SignedDuration = SignedDuration::from_hours(1);
const PENDING_STAY: SignedDuration = SignedDuration::from_hours(24);

pub(crate) async fn run(context: Context) {
    let client = context.client.clone();
    let inputs = Inputs::new().watch(every::<CertificateSigningRequest>(&client));
    let reserved = context.settings.certificates.server_names.clone();
    runner::run(context, State { client, reserved, requests: Cache::default() }, inputs).await;
}

struct State {
    client: Client,
    /// Names and addresses that are the API server's.
    reserved: Vec<String>,
    requests: Cache<CertificateSigningRequest>,
}

impl Watches<CertificateSigningRequest> for State {
    fn cache(&mut self) -> &mut Cache<CertificateSigningRequest> {
        &mut self.requests
    }

    fn wake(&mut self, change: &Changed<CertificateSigningRequest>, queue: &mut Queue<ObjectKey>) {
        queue.add(change.key.clone());
    }
}

impl Controller for State {
    type Key = ObjectKey;
    const COMPONENT: &'static str = "certificate-approver";
    const QUEUE: &'static str = "certificate_approval";

    fn plan(&mut self, key: &ObjectKey, now: Timestamp) -> WritePlan {
        let Some(request) = self.requests.get(key) else { return WritePlan::none() };
        let left = match left(request, now) {
            None => {
                let uid = request.uid();
                return WritePlan::writes(vec![Write::delete(
                    REQUESTS,
                    key.clone(),
                    uid.as_deref(),
                )]);
            }
            left => WritePlan { again_after: left, ..WritePlan::none() },
        };
        // What cannot be read is for whoever signs to refuse.
        let Ok(parsed) = Request::parse(&request.spec.request.0) else { return left };
        let value = request.to_value().expect("API objects can be written as JSON");
        let contents = parsed.contents();
        let Some(right) = right_for(&value, &contents) else { return left };
        let question = Question {
            client: self.client.clone(),
            request: request.as_ref().clone(),
            value,
            contents,
            reserved: self.reserved.clone(),
        };
        let survey = question.answer(right, now).boxed();
        WritePlan { survey: Some(survey), ..left }
    }
}

/// For how long a request stays; `None` if it is to go. Whoever may make requests must not fill the store.
fn left(request: &CertificateSigningRequest, now: Timestamp) -> Option<Duration> {
    let conditions = request.status.as_ref().and_then(|status| status.conditions.as_ref());
    let decided = conditions.into_iter().flatten();
    let decided = decided.filter_map(|one| one.last_update_time.as_ref().map(|time| time.0)).max();
    let created = request.metadata.creation_timestamp.as_ref().map(|time| time.0);
    let end = match decided {
        Some(decided) => decided.checked_add(DECIDED_STAY),
        None => created.unwrap_or(now).checked_add(PENDING_STAY),
    };
    let left = Duration::try_from(end.ok()?.duration_since(now)).ok()?;
    (!left.is_zero()).then_some(left)
}

/// A request about which something is to be decided.
struct Question {
    client: Client,
    request: CertificateSigningRequest,
    value: Value,
    contents: Contents,
    reserved: Vec<String>,
}

impl Question {
    async fn answer(mut self, right: Right, now: Timestamp) -> Result<WritePlan, kube::Error> {
        if !self.may(right).await? {
            // A person may still approve it.
            return Ok(WritePlan::none());
        }
        let around = self.neighbourhood(now).await?;
        let opinion = judge(&self.value, &self.contents, right, &around);
        let (name, who) = (self.request.name_any(), self.request.spec.username.clone());
        let subject = &self.contents.common_name;
        let (kind, reason, message) = match opinion {
            Opinion::Approve(why) => {
                info!(request = name, who, subject, "certificate request approved");
                ("Approved", "AutoApproved", format!("Auto approving: {why}"))
            }
            Opinion::Deny(why) => {
                warn!(request = name, who, subject, why, "certificate request denied");
                ("Denied", "AutoDenied", why)
            }
        };
        let status = self.request.status.get_or_insert_default();
        status.conditions.get_or_insert_default().push(CertificateSigningRequestCondition {
            type_: kind.into(),
            status: "True".into(),
            reason: Some(reason.into()),
            message: Some(message),
            last_update_time: Some(Time(now)),
            ..Default::default()
        });
        let key = ObjectKey::new("", &name);
        let write = Write::replace(key, &self.request).to("approval").only_if_unchanged();
        Ok(WritePlan::writes(vec![write]))
    }

    /// Whether roles let them ask for it.
    async fn may(&self, right: Right) -> Result<bool, kube::Error> {
        let subresource = match right {
            Right::BecomeNode => "nodeclient",
            Right::StayNode => "selfnodeclient",
            // Who a node is, its certificate says.
            Right::Serve => return Ok(true),
        };
        let spec = &self.request.spec;
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: spec.username.clone(),
                groups: spec.groups.clone(),
                uid: spec.uid.clone(),
                extra: spec.extra.clone(),
                resource_attributes: Some(ResourceAttributes {
                    group: Some("certificates.k8s.io".into()),
                    resource: Some("certificatesigningrequests".into()),
                    subresource: Some(subresource.into()),
                    verb: Some("create".into()),
                    ..ResourceAttributes::default()
                }),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        let reviews: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let answer = reviews.create(&PostParams::default(), &review).await?;
        Ok(answer.status.is_some_and(|status| status.allowed))
    }

    /// What is so at this moment, and not what a cache saw last.
    async fn neighbourhood(&self, now: Timestamp) -> Result<Neighbourhood, kube::Error> {
        let nodes = Api::<Node>::all(self.client.clone()).list(&ListParams::default()).await?;
        let mut nodes: Vec<_> = nodes.iter().map(neighbour).collect();
        let asked = self.contents.common_name.strip_prefix("system:node:").unwrap_or("");
        if is_bootstrapper(&self.value)
            && let Some(node) = nodes.iter_mut().find(|node| node.name == asked)
        {
            let leases: Api<Lease> = Api::namespaced(self.client.clone(), LEASES);
            let lease = leases.get_opt(asked).await?;
            node.life = lease.and_then(|lease| renewed(&lease, now)).or(node.life.take());
        }
        let slices: Api<EndpointSlice> = Api::namespaced(self.client.clone(), "default");
        let servers = slices.get_opt("kubernetes").await?;
        let servers = servers.into_iter().flat_map(|slice| slice.endpoints.unwrap_or_default());
        let servers = servers.flat_map(|endpoint| endpoint.addresses);
        Ok(Neighbourhood {
            reserved: self.reserved.iter().cloned().chain(servers).collect(),
            nodes,
        })
    }
}

/// A node as it says itself that it is. That it is ready is a sign of life until it is known that it is not.
fn neighbour(node: &Node) -> Neighbour {
    let status = node.status.as_ref();
    let addresses = status.and_then(|status| status.addresses.as_ref()).into_iter().flatten();
    let addresses = addresses.filter_map(|address| address.address.parse::<IpAddr>().ok());
    let mut conditions = status.and_then(|status| status.conditions.as_ref()).into_iter().flatten();
    let is_ready = conditions.any(|one| one.type_ == "Ready" && one.status == "True");
    Neighbour {
        name: node.name_any(),
        addresses: addresses.collect(),
        life: is_ready.then(|| "it is ready".to_owned()),
    }
}

/// What shows that a Lease has not run out.
fn renewed(lease: &Lease, now: Timestamp) -> Option<String> {
    let spec = lease.spec.as_ref()?;
    let ago = now.as_second() - spec.renew_time.as_ref()?.0.as_second();
    let lasts = i64::from(spec.lease_duration_seconds.unwrap_or(0));
    (ago < lasts).then(|| format!("its Lease was renewed {} s ago", ago.max(0)))
}

#[test]
fn leases_run_out() {
    let now: Timestamp = "2026-11-19T12:00:00Z".parse().unwrap();
    for (time, want) in [
        ("2026-11-19T11:59:55Z", Some("its Lease was renewed 5 s ago")),
        ("2026-11-19T11:59:20Z", None),
        ("2026-11-19T13:00:00Z", Some("its Lease was renewed 0 s ago")),
    ] {
        let lease = serde_json::json!({"spec": {"renewTime": time.replace('Z', ".000000Z"),
            "leaseDurationSeconds": 40}});
        let lease: Lease = serde_json::from_value(lease).unwrap();
        assert_eq!(renewed(&lease, now).as_deref(), want, "{time}");
    }
}

#[test]
fn requests_do_not_stay() {
    let now: Timestamp = "2026-11-19T12:00:00Z".parse().unwrap();
    for (created, decided, want) in [
        ("2026-11-19T11:00:00Z", None, Some(23 * 3600)),
        ("2026-11-18T12:00:00Z", None, None),
        ("2026-11-17T11:00:00Z", Some("2026-11-19T11:30:00Z"), Some(1800)),
        ("2026-11-19T10:00:00Z", Some("2026-11-19T10:00:01Z"), None),
    ] {
        let mut request = serde_json::json!({"metadata": {"creationTimestamp": created},
            "spec": {"request": "", "signerName": "s"}});
        if let Some(decided) = decided {
            request["status"]["conditions"] = serde_json::json!([{"type": "Denied", "status": "True", "lastUpdateTime": decided}]);
        }
        let request: CertificateSigningRequest = serde_json::from_value(request).unwrap();
        assert_eq!(left(&request, now).map(|left| left.as_secs()), want, "{created} {decided:?}");
    }
}
