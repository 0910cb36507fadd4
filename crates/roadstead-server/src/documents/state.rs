//! What the server, and the parts of its process, know and do at this moment: `/debug/state`.

use roadstead_store::kv::Range;
use serde_json::{Map, Value, json};

use crate::api::Api;

/// The page, for people who look for a mistake. Names and contents of objects are not on it, but parts of the
/// process may name what they work on: it takes the right to `get` its path.
pub(crate) fn page(api: &Api) -> Value {
    let mut parts = api.parts();
    parts["apiserver"] = server(api);
    parts
}

fn server(api: &Api) -> Value {
    let (store, registry) = (&api.storage.store, api.registry());
    let kept = registry.iter().filter(|own| !own.info().review && !own.info().is_view());
    let everything = Range { prefix: "", after: "", limit: 1 };
    let counts = kept.filter_map(|resource| {
        let count = store.page(&resource.bucket, &everything, None).ok()?.total;
        (count > 0).then(|| (resource.bucket.clone(), json!(count)))
    });
    let objects: Map<String, Value> = counts.collect();
    let (used, quota) = store.usage();
    let [reading, writing] = api.traffic.fairness.under_way();
    json!({
        "revision": store.revision().0,
        "kinds": registry.iter().count(),
        "objects": objects,
        "usedBytes": used,
        "quotaBytes": quota,
        "readOnlyBecause": store.failure().map(|why| why.to_string()),
        "damaged": store.damage().len(),
        "underWay": {"readOnly": reading, "mutating": writing},
        "awaitsDns": api.dns().is_some(),
    })
}
