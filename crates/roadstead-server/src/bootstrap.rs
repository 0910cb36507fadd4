//! What exists in every cluster before anyone has asked for it.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::future::try_join_all;
use roadstead_api::look::Look;
use roadstead_plan::alloc;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::allocate::{ranges, repair};
use crate::api::Api;
use crate::cleanup;
use crate::error::ApiError;
use crate::rbac::{self, bootstrap::Bootstrap};
use crate::write::{self, Context, Owner, Part};

/// How often to look whether somebody has deleted what must be there.
const KEEP: Duration = Duration::from_secs(10);
const AUTO_UPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";
const NAMESPACES: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];

/// Makes the first namespaces and the `kubernetes` Service, and points the Service at this
/// server. What exists already is left as it is.
pub async fn run(api: &Api) -> Result<(), ApiError> {
    cleanup::resume(api).await?;
    let namespaces = NAMESPACES
        .map(|name| ensure(api, "", "v1", "namespaces", "", json!({"metadata": {"name": name}})));
    try_join_all(namespaces).await?;
    // Written together, they share a few syncs of the disk.
    let policy = rbac::bootstrap::objects();
    try_join_all(policy.into_iter().map(|Bootstrap { plural, namespace, object }| async move {
        ensure(api, "rbac.authorization.k8s.io", "v1", plural, &namespace, object).await
    }))
    .await?;
    for class in classes() {
        ensure(api, "scheduling.k8s.io", "v1", "priorityclasses", "", class).await?;
    }
    own_service(api, Say::Differences).await
}

/// The priorities of what a cluster cannot do without.
fn classes() -> [Value; 2] {
    let class = |name: &str, value: i64, whom: &str| {
        json!({"metadata": {"name": name}, "value": value,
            "description": format!("Used for system critical pods that must {whom}.")})
    };
    let node = "not be moved from their current node";
    let cluster = "run in the cluster, but can be moved to another node if necessary";
    [
        class("system-node-critical", 2_000_001_000, node),
        class("system-cluster-critical", 2_000_000_000, cluster),
    ]
}

/// Brings back what [`run`] has made and somebody has deleted, and keeps roles that are the sum of
/// others up to date, until `stop`.
pub async fn keep(api: Arc<Api>, stop: CancellationToken) {
    let sums = rbac::aggregate::run(api.clone(), stop.clone());
    tokio::join!(sums, bring_back(api, stop));
}

async fn bring_back(api: Arc<Api>, stop: CancellationToken) {
    let checked = api.clone();
    // Nobody needs to wait for this.
    let check = tokio::task::spawn_blocking(move || repair::differences(&checked));
    match check.await {
        Ok(Ok(found)) => repair::mend(&api, found).await,
        Ok(Err(error)) => warn!(error = %error.message, "cannot check addresses and ports"),
        Err(error) => warn!(%error, "cannot check addresses and ports"),
    }
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(KEEP) => {}
        }
        if let Err(error) = own_service(&api, Say::Nothing).await {
            warn!(error = %error.message, "cannot bring the Service kubernetes up to date");
        }
    }
}

/// Whether to tell the operator about what is not as asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Say {
    Differences,
    Nothing,
}

/// The ranges, and the Service that leads to this server.
async fn own_service(api: &Api, say: Say) -> Result<(), ApiError> {
    service_range(api, say).await?;
    let first = alloc::nth(api.config.service_range, 1).to_string();
    let service = json!({
        "metadata": {
            "name": "kubernetes",
            "labels": {"component": "apiserver", "provider": "kubernetes"},
        },
        "spec": {
            "clusterIP": first,
            "ports": [{"name": "https", "port": 443,
                "targetPort": api.config.advertise.map_or(6443, |(_, port)| port)}],
        },
    });
    ensure(api, "", "v1", "services", "default", service).await?;
    match api.config.advertise {
        Some((address, port)) => advertise(api, address, port).await,
        None => Ok(()),
    }
}

/// Makes the ServiceCIDR that the operator has chosen, or gives the present one a second family.
/// One that says something else stays: Services have addresses from it.
async fn service_range(api: &Api, say: Say) -> Result<(), ApiError> {
    let registry = api.registry();
    let resource = registry.find("networking.k8s.io", "v1", "servicecidrs");
    let resource = resource.ok_or_else(ApiError::no_such_path)?;
    let owner = Owner::Manager("roadstead", "");
    let context = Context { api, resource, namespace: "", dry_run: false, owner };
    let ranges = [Some(api.config.service_range), api.services.second_range];
    let wanted: Vec<_> = ranges.into_iter().flatten().map(|range| range.to_string()).collect();
    let object = json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
        "metadata": {"name": ranges::DEFAULT}, "spec": {"cidrs": wanted}});
    match write::create(&context, object).await {
        Err(error) if error.reason == "AlreadyExists" => {}
        result => return result.map(drop),
    }
    let change = |old: &Value| {
        let mut new = old.clone();
        let present = old.list("/spec/cidrs");
        if present.len() == 1 && wanted.len() == 2 && present[0] == wanted[0].as_str() {
            new["spec"]["cidrs"] = json!(wanted);
        } else if json!(present) != json!(wanted) && say == Say::Differences {
            warn!(present = %json!(present), wanted = %json!(wanted), "the ServiceCIDR kubernetes \
                is not what was asked for; it stays as it is");
        }
        Ok(new)
    };
    write::update(&context, ranges::DEFAULT, Part::Main, change).await?;
    ranges::tidy(api, resource).await
}

async fn advertise(api: &Api, address: IpAddr, port: u16) -> Result<(), ApiError> {
    let family = if address.is_ipv4() { "IPv4" } else { "IPv6" };
    let slice = json!({
        "metadata": {
            "name": "kubernetes",
            "labels": {"kubernetes.io/service-name": "kubernetes"},
        },
        "addressType": family,
        "endpoints": [{"addresses": [address.to_string()], "conditions": {"ready": true}}],
        "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
    });
    ensure(api, "discovery.k8s.io", "v1", "endpointslices", "default", slice).await?;
    let endpoints = json!({
        "metadata": {
            "name": "kubernetes",
            "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"},
        },
        "subsets": [{"addresses": [{"ip": address.to_string()}],
            "ports": [{"name": "https", "port": port, "protocol": "TCP"}]}],
    });
    ensure(api, "", "v1", "endpoints", "default", endpoints).await
}

/// Creates the object, or brings everything but its status up to date.
async fn ensure(
    api: &Api,
    group: &str,
    version: &str,
    plural: &str,
    namespace: &str,
    mut object: Value,
) -> Result<(), ApiError> {
    let registry = api.registry();
    let resource = registry.find(group, version, plural).ok_or_else(ApiError::no_such_path)?;
    object["apiVersion"] = resource.info().api_version().into();
    object["kind"] = resource.info().kind.into();
    let name = object["metadata"]["name"].as_str().unwrap_or("").to_owned();
    let owner = Owner::Manager("roadstead", "");
    let context = Context { api, resource, namespace, dry_run: false, owner };
    match write::create(&context, object.clone()).await {
        Err(error) if error.reason == "AlreadyExists" => {}
        result => return result.map(drop),
    }
    if plural == "namespaces" {
        return Ok(());
    }
    // What the operator has taken out of our hands stays as it is.
    let change = |now: &Value| {
        let mut new = object.clone();
        if now["metadata"]["annotations"][AUTO_UPDATE] == "false" {
            return Ok(now.clone());
        }
        if new.has("/aggregationRule") {
            // They are the sum of others, see `rbac::aggregate`.
            new["rules"] = now["rules"].clone();
        }
        Ok(new)
    };
    let updated = write::update(&context, &name, Part::Main, change).await;
    if let Err(error) = updated {
        warn!(object = %name, error = %error.message, "cannot bring a system object up to date");
    }
    Ok(())
}
