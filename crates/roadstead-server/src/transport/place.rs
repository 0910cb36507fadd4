//! The place of a request among those under way: seats in its priority level, by how much work it is.

use std::sync::Arc;

use roadstead_plan::flow_control::classify::{RequestDigest, RequestTarget};
use roadstead_plan::flow_control::work::{self, ListSize};
use roadstead_store::kv::Range;

use crate::error::ApiError;
use crate::kinds::Subresource;
use crate::request::chain::ActiveRequest;
use crate::transport::fairness::line::Seats;
use crate::transport::fairness::{Class, Work};
use crate::transport::limits;

/// What a request has while it is under way; given back when dropped.
pub(crate) enum Place {
    /// Seats in its level.
    Seats { _seats: Seats },
    /// It connects to a pod or a Service.
    Connection { _place: limits::Place },
}

/// Waits for the place of a request.
pub(crate) async fn of(request: &ActiveRequest) -> Result<Place, ApiError> {
    let traffic = &request.api.traffic;
    if connects(request) {
        let place = traffic.connecting.enter(&request.user().name)?;
        return Ok(Place::Connection { _place: place });
    }
    let digest = digest(request);
    let class = traffic.fairness.classify(&digest).ok_or_else(ApiError::busy)?;
    let work = work(request, &class);
    let class = request.class.get_or_init(|| class);
    match traffic.fairness.enter(class, &digest, work).await {
        Ok(seats) => Ok(Place::Seats { _seats: seats }),
        Err(_) => Err(ApiError::busy()),
    }
}

/// Whether it connects to something that answers in its own time.
fn connects(request: &ActiveRequest) -> bool {
    let path = request.info.resource();
    if path.subresource.is_empty() {
        return false;
    }
    let registry = request.api.registry();
    let resource = registry.find(&path.group, &path.version, &path.plural);
    let below = resource.and_then(|resource| resource.subresource(&path.subresource));
    below.is_some_and(Subresource::connects)
}

fn digest(request: &ActiveRequest) -> RequestDigest<'_> {
    let (user, info) = (request.user(), &request.info);
    let target = match &info.path {
        None => RequestTarget::Path(request.parts.uri.path()),
        Some(path) => RequestTarget::Objects {
            group: &path.group,
            plural: &path.plural,
            subresource: &path.subresource,
            namespace: path.rights_namespace(),
        },
    };
    RequestDigest { user: &user.name, groups: &user.groups, verb: &info.verb, target }
}

/// How much work a request is, before anybody has begun with it.
fn work(request: &ActiveRequest, class: &Arc<Class>) -> Work {
    let info = &request.info;
    let lists = match &*info.verb {
        "list" | "deletecollection" => true,
        // Others begin with what is new.
        "watch" => {
            let after = info.query.get("resourceVersion");
            info.query.flag("sendInitialEvents") || matches!(after, "" | "0")
        }
        _ => false,
    };
    let seats = match lists && info.path.is_some() {
        true => work::seats_of_list(&listing(request), class.most_seats()),
        false => 1,
    };
    Work { seats, writes: info.is_mutating() }
}

fn listing(request: &ActiveRequest) -> ListSize {
    let (path, query, api) = (request.info.resource(), &request.info.query, &request.api);
    let registry = api.registry();
    let Some(resource) = registry.find(&path.group, &path.version, &path.plural) else {
        return ListSize::default();
    };
    let prefix = resource.prefix(&path.namespace);
    let range = Range { prefix: &prefix, after: "", limit: 0 };
    let objects = api.storage.store.page(&resource.bucket, &range, None);
    let fields = query.get("fieldSelector");
    ListSize {
        objects: objects.map_or(0, |page| page.total),
        limit: query
            .number("limit")
            .ok()
            .filter(|limit| *limit > 0)
            .and_then(|n| n.try_into().ok()),
        named: !path.name.is_empty() || fields.starts_with("metadata.name="),
        selects: !fields.is_empty() || !query.get("labelSelector").is_empty(),
    }
}
