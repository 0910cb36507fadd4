//! ClusterRoles that are the sum of others show what they add up to.
//!
//! Authorization sums them up by itself and needs none of this; people who look at a role do, and
//! so do tools that copy one.

use std::sync::Arc;

use roadstead_api::selector::Selector;
use roadstead_schema::json::Pointer;
use roadstead_store::error::StoreError;
use serde::Deserialize;
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::api::Api;
use crate::error::ApiError;
use crate::objects::write::{self, Context, Writable};
use crate::reading::object;

const ROLES: &str = "clusterroles.rbac.authorization.k8s.io";
/// The name under which upstream's controller writes.
const MANAGER: &str = "clusterrole-aggregation-controller";

/// Keeps the rules of all sums up to date until `stop`.
pub(crate) async fn run(api: Arc<Api>, stop: CancellationToken) {
    loop {
        match follow(&api, &stop).await {
            Ok(()) => return,
            // The history was shorter than our sleep.
            Err(StoreError::Compacted { .. }) => {}
            Err(error) => return warn!(%error, "roles are no longer summed up"),
        }
    }
}

async fn follow(api: &Api, stop: &CancellationToken) -> Result<(), StoreError> {
    let revision = api.storage.store.revision();
    let mut feed = api.storage.store.feed(ROLES, revision)?;
    loop {
        if let Err(error) = sum_up(api).await {
            warn!(error = %error.message, "cannot sum up roles");
        }
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            batch = feed.next() => drop(batch?),
        }
    }
}

/// Writes the sums that are not as they should be.
async fn sum_up(api: &Api) -> Result<(), ApiError> {
    let found = api.storage.store.list(ROLES, "", None)?;
    let roles: Vec<_> = found.entries.iter().map(|entry| object::value(entry)).collect();
    let registry = api.registry();
    let resource = registry.find("rbac.authorization.k8s.io", "v1", "clusterroles");
    let resource = resource.ok_or_else(ApiError::no_such_path)?;
    let context = Context::own(api, resource, "", MANAGER);
    for role in &roles {
        let Some(rules) = sum(role, &roles).filter(|rules| *rules != role.list("/rules")) else {
            continue;
        };
        let change = |now: &Value| {
            let mut new = now.clone();
            new["rules"] = rules.clone().into();
            Ok(new.into())
        };
        match write::update(&context, role.text("/metadata/name"), Writable::Main, change).await {
            Err(error) if error.reason != "NotFound" => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// The rules of a role that is the sum of others; `all` are in the order of their names.
fn sum(role: &Value, all: &[Value]) -> Option<Vec<Value>> {
    role.get("aggregationRule")?;
    let mut rules = Vec::new();
    for selector in role.list("/aggregationRule/clusterRoleSelectors") {
        let selector = Deserialize::deserialize(selector).unwrap_or_default();
        let selector = Selector::from_object(&selector);
        let matches =
            |part: &&Value| selector.matches(|key| part["metadata"]["labels"][key].as_str());
        let others =
            all.iter().filter(|part| part.text("/metadata/name") != role.text("/metadata/name"));
        for rule in others.filter(matches).flat_map(|part| part.list("/rules")) {
            if !rules.contains(rule) {
                rules.push(rule.clone());
            }
        }
    }
    Some(rules)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn sums() {
        let role = |name: &str, label: &str, verbs: &[&str]| {
            let rules: Vec<_> = verbs.iter().map(|verb| json!({"verbs": [verb]})).collect();
            json!({"metadata": {"name": name, "labels": {"to": label}}, "rules": rules})
        };
        let all = [
            role("a", "view", &["get", "list"]),
            role("b", "edit", &["create"]),
            role("c", "view", &["list", "watch"]),
            role("sum", "view", &["stale"]),
        ];
        // The selectors of the sum, and the verbs that it gets.
        let cases = [
            ("nothing", vec![], ""),
            ("one selector, each rule once", vec!["view"], "get list watch"),
            ("two selectors, in their order", vec!["edit", "view"], "create get list watch"),
        ];
        for (name, labels, want) in cases {
            let selectors: Vec<_> =
                labels.iter().map(|label| json!({"matchLabels": {"to": label}})).collect();
            let mut sum_role = all[3].clone();
            sum_role["aggregationRule"] = json!({"clusterRoleSelectors": selectors});
            let rules = sum(&sum_role, &all).unwrap();
            let verbs: Vec<_> =
                rules.iter().map(|rule| rule["verbs"][0].as_str().unwrap()).collect();
            assert_eq!(verbs.join(" "), want, "{name}");
        }
        assert_eq!(sum(&all[0], &all), None, "others are left alone");
    }
}
