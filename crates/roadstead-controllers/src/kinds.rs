//! Which kinds there are: those that the server tells of, custom ones included.

use kube::Client;
use kube::core::ApiResource;
use kube::discovery::{ApiCapabilities, Discovery, Scope, verbs};

/// A kind by its names.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// How to ask for it.
    pub resource: ApiResource,
    /// Whether its objects live in namespaces.
    pub namespaced: bool,
}

/// Every kind once, in the version that promises most, of which all these verbs are allowed.
pub async fn discover(client: &Client, wanted: &[&str]) -> Result<Vec<Found>, kube::Error> {
    let found = Discovery::new(client.clone()).run().await?;
    let all = found.groups().flat_map(|group| group.resources_by_stability());
    let fits = |capabilities: &ApiCapabilities| {
        wanted.iter().all(|verb| capabilities.supports_operation(verb))
    };
    let all = all.filter(|(_, capabilities)| fits(capabilities));
    let kinds = all.map(|(resource, capabilities)| Found {
        resource,
        namespaced: capabilities.scope == Scope::Namespaced,
    });
    Ok(kinds.collect())
}

/// Every kind whose objects can own others or be owned. Events are too many, and go by themselves.
pub async fn with_owners(client: &Client) -> Result<Vec<Found>, kube::Error> {
    let mut kinds = discover(client, &[verbs::LIST, verbs::WATCH, verbs::DELETE]).await?;
    kinds.retain(|kind| kind.resource.plural != "events");
    Ok(kinds)
}

/// Every kind whose objects can be in a namespace.
pub async fn in_namespaces(client: &Client) -> Result<Vec<ApiResource>, kube::Error> {
    let kinds = discover(client, &[verbs::LIST, verbs::DELETE_COLLECTION]).await?;
    Ok(kinds.into_iter().filter(|kind| kind.namespaced).map(|kind| kind.resource).collect())
}
