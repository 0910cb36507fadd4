//! Which kinds there are: those that the server tells of, custom ones included.

use kube::Client;
use kube::core::ApiResource;
use kube::discovery::{ApiCapabilities, Discovery, Scope};

/// A kind by its names.
#[derive(Clone, Debug, PartialEq)]
pub struct DiscoveredKind {
    /// How to ask for it.
    pub resource: ApiResource,
    /// Whether its objects live in namespaces.
    pub namespaced: bool,
}

/// Every kind once, in the version that promises most, of which all these verbs are allowed.
pub async fn discover(
    client: &Client,
    wanted: &[&str],
) -> Result<Vec<DiscoveredKind>, kube::Error> {
    let found = Discovery::new(client.clone()).run().await?;
    let all = found.groups().flat_map(|group| group.resources_by_stability());
    let fits = |capabilities: &ApiCapabilities| {
        wanted.iter().all(|verb| capabilities.supports_operation(verb))
    };
    let all = all.filter(|(_, capabilities)| fits(capabilities));
    let kinds = all.map(|(resource, capabilities)| DiscoveredKind {
        resource,
        namespaced: capabilities.scope == Scope::Namespaced,
    });
    Ok(kinds.collect())
}
