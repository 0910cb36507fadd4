//! What exists in every cluster before anyone has asked for it.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures::future::try_join_all;
use roadstead_plan::alloc;
use roadstead_schema::json::Pointer;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::api::Api;
use crate::error::ApiError;
use crate::identity::rbac::{self, bootstrap::Bootstrap};
use crate::kinds::namespace::PERMANENT;
use crate::kinds::service::allocate::repair::{self, Difference};
use crate::kinds::service::allocate::take_over;
use crate::kinds::{custom_resource_definition, flow_control, service_cidr};
use crate::objects::write::{self, Context, Writable};
use crate::registry::Resource;
use crate::servers;

/// How often to look whether somebody has deleted what must be there.
const KEEP: Duration = Duration::from_secs(10);
/// After how many such times addresses and ports are checked, where others write, too: as often as upstream.
const REPAIR: u32 = 18;
/// How often to look, in memory, whether another server has come or gone.
const LOOK: Duration = Duration::from_secs(1);
const AUTO_UPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";
/// By which the server owns what it writes itself.
const MANAGER: &str = "roadstead";
/// What strangers may read.
const CLUSTER_INFO: &str = "cluster-info";

/// Makes the first namespaces and the `kubernetes` Service, and points the Service at this
/// server. What exists already is left as it is.
pub async fn run(api: &Api) -> Result<(), ApiError> {
    take_over::run(api).await?;
    if !api.storage.store.is_shared() {
        custom_resource_definition::resume(api).await?;
    }
    let namespaces = PERMANENT.map(|name| {
        let object = json!({"metadata": {"name": name}});
        SystemObject { group: "", plural: "namespaces", namespace: "", object }.create(api)
    });
    try_join_all(namespaces).await?;
    // Written together, they share a few syncs of the disk.
    let policy = rbac::bootstrap::objects();
    try_join_all(policy.into_iter().map(|Bootstrap { plural, namespace, object }| async move {
        SystemObject { group: rbac::GROUP, plural, namespace: &namespace, object }.ensure(api).await
    }))
    .await?;
    for class in classes() {
        let (group, plural) = ("scheduling.k8s.io", "priorityclasses");
        SystemObject { group, plural, namespace: "", object: class }.ensure(api).await?;
    }
    flow_control::ensure(api).await?;
    own_service(api, Say::Differences).await?;
    match api.advertise {
        Some((own, port)) => advertise(api, own, port).await,
        None => Ok(()),
    }
}

/// Tells machines that want to join what they must know: where the server is, and whom to trust. What an
/// operator has written there stays, as long as it names the authority that there is.
pub async fn publish(api: &Api, authority: &str, url: &str) -> Result<(), ApiError> {
    let authority = STANDARD.encode(authority);
    let namespace = "kube-public";
    let text = format!(
        "apiVersion: v1\nkind: Config\nclusters:\n- name: \"\"\n  cluster:\n    server: {url}\n    \
         certificate-authority-data: {authority}\n"
    );
    let registry = api.registry();
    let maps = registry.core("configmaps");
    let present = api.storage.object(maps, namespace, CLUSTER_INFO);
    if present.is_some_and(|map| map.text("/data/kubeconfig").contains(&authority)) {
        return Ok(());
    }
    let object = json!({"metadata": {"name": CLUSTER_INFO}, "data": {"kubeconfig": text}});
    SystemObject { group: "", plural: "configmaps", namespace, object }.ensure(api).await
}

/// Tells machines that have joined what they must know of the cluster, and makes the account by which they enforce
/// policies. What somebody has said already stays.
pub async fn tell_nodes(api: &Api, name: &str, facts: Value) -> Result<(), ApiError> {
    let namespace = "kube-system";
    let object = json!({"metadata": {"name": name}, "data": facts});
    SystemObject { group: "", plural: "configmaps", namespace, object }.create(api).await?;
    let object = json!({"metadata": {"name": "roadstead-network-policy"}});
    SystemObject { group: "", plural: "serviceaccounts", namespace, object }.create(api).await
}

/// Makes sure that all servers of a cluster believe the same authority, which the first of them has written
/// down where kube-apiserver does: else each would refuse what the others have signed.
pub async fn agree(api: &Api, authority: &str) -> Result<(), ApiError> {
    if !api.storage.store.is_shared() {
        return Ok(());
    }
    let (name, namespace, field) =
        ("extension-apiserver-authentication", "kube-system", "client-ca-file");
    let object = json!({"metadata": {"name": name}, "data": {field: authority}});
    SystemObject { group: "", plural: "configmaps", namespace, object }.create(api).await?;
    let registry = api.registry();
    let found = api.storage.object(registry.core("configmaps"), namespace, name);
    let found = found.unwrap_or_default();
    match found["data"][field].as_str() {
        Some(other) if other.trim() != authority.trim() => Err(ApiError::unprocessable(format!(
            "its servers have another authority (ConfigMap {namespace}/{name}): copy the directory pki \
             of the first server's data directory into this one's, and start again"
        ))),
        _ => Ok(()),
    }
}

/// Makes kinds of others known, from their CustomResourceDefinitions. Those that are known already stay as
/// they are: somebody else may act on them.
pub async fn define(api: &Api, definitions: Vec<Value>) -> Result<(), ApiError> {
    let (group, plural) = ("apiextensions.k8s.io", "customresourcedefinitions");
    try_join_all(
        definitions
            .into_iter()
            .map(|object| SystemObject { group, plural, namespace: "", object }.create(api)),
    )
    .await
    .map(drop)
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

/// Says that this server is there, and makes the Service `kubernetes` lead to all that are, until `stop`. Each of
/// several servers does this.
pub async fn keep(api: Arc<Api>, stop: CancellationToken) {
    let Some((own, port)) = api.advertise else { return stop.cancelled().await };
    loop {
        tokio::select! {
            () = stop.cancelled() => return leave(&api).await,
            () = tokio::time::sleep(KEEP) => {}
            () = others_change(&api) => {}
        }
        if let Err(error) = advertise(&api, own, port).await {
            warn!(error = %error.message, "cannot bring the Service kubernetes up to date");
        }
    }
}

/// What one of several servers does for all, until `stop`: brings back what [`run`] has made and somebody has
/// deleted, keeps roles that are the sum of others up to date, and finishes what a server that is gone has begun.
pub async fn tend(api: Arc<Api>, stop: CancellationToken) {
    let sums = rbac::aggregate::run(api.clone(), stop.clone());
    tokio::join!(sums, bring_back(api, stop));
}

async fn bring_back(api: Arc<Api>, stop: CancellationToken) {
    let mut passing = repair_round(&api, Vec::new()).await;
    let shared = api.storage.store.is_shared();
    let mut rounds = 0_u32;
    if shared && let Err(error) = custom_resource_definition::resume(&api).await {
        warn!(error = %error.message, "cannot finish the removal of kinds");
    }
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(KEEP) => {}
        }
        rounds += 1;
        // Where others write, they may leave what they have taken.
        if !passing.is_empty() || shared && rounds.is_multiple_of(REPAIR) {
            passing = repair_round(&api, passing).await;
        }
        if let Err(error) = own_service(&api, Say::Nothing).await {
            warn!(error = %error.message, "cannot bring the Service kubernetes up to date");
        }
        if let Err(error) = flow_control::ensure(&api).await {
            warn!(error = %error.message, "cannot keep FlowSchemas and priority levels");
        }
    }
}

/// Mends what is taken and not held, or held and not taken. Where others write, too, what may be on its way
/// is mended only if it was so in the round before; it is returned for the next one.
async fn repair_round(api: &Arc<Api>, before: Vec<Difference>) -> Vec<Difference> {
    let looking = api.clone();
    let found = tokio::task::spawn_blocking(move || repair::differences(&looking)).await;
    let found = match found {
        Ok(Ok(found)) => found,
        Ok(Err(error)) => {
            warn!(error = %error.message, "cannot check addresses and ports");
            return before;
        }
        Err(error) => {
            warn!(%error, "cannot check addresses and ports");
            return before;
        }
    };
    let shared = api.storage.store.is_shared();
    let is_passing = |one: &Difference| shared && one.may_pass() && !before.contains(one);
    let (passing, certain) = found.into_iter().partition(is_passing);
    repair::mend(api, certain).await;
    passing
}

/// Takes the server out of the Service `kubernetes`, if there are others.
async fn leave(api: &Api) {
    let Some((own, port)) = api.advertise else { return };
    servers::leave(&api.storage.store, own).await;
    let mut others = servers::present(&api.storage.store).unwrap_or_default();
    others.remove(&own);
    if !others.is_empty()
        && let Err(error) = lead_to(api, (own, port), &others).await
    {
        warn!(error = %error.message, "the Service kubernetes may lead here a while longer");
    }
}

/// Waits until another server has come or gone.
async fn others_change(api: &Api) {
    if !api.storage.store.is_shared() {
        return std::future::pending().await;
    }
    let before = servers::present(&api.storage.store).ok();
    loop {
        tokio::time::sleep(LOOK).await;
        if servers::present(&api.storage.store).ok() != before {
            return;
        }
    }
}

/// Whether to tell the operator about what is not as asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Say {
    Differences,
    Nothing,
}

/// The ranges, and the Service that leads to the servers.
async fn own_service(api: &Api, say: Say) -> Result<(), ApiError> {
    service_range(api, say).await?;
    let first = alloc::nth(api.network.range, 1).to_string();
    let service = json!({
        "metadata": {
            "name": "kubernetes",
            "labels": {"component": "apiserver", "provider": "kubernetes"},
        },
        "spec": {
            "clusterIP": first,
            "ports": [{"name": "https", "port": 443,
                "targetPort": api.advertise.map_or(6443, |(_, port)| port)}],
        },
    });
    let namespace = "default";
    let service = SystemObject { group: "", plural: "services", namespace, object: service };
    service.ensure(api).await
}

/// Makes the ServiceCIDR that the operator has chosen, or gives the present one a second family.
/// One that says something else stays: Services have addresses from it.
async fn service_range(api: &Api, say: Say) -> Result<(), ApiError> {
    let registry = api.registry();
    let resource = registry.find("networking.k8s.io", "v1", "servicecidrs");
    let resource = resource.ok_or_else(ApiError::no_such_path)?;
    let context = Context::own(api, resource, "", MANAGER);
    let wanted: Vec<_> = api.network.chosen().map(|range| range.to_string()).collect();
    let object = json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
        "metadata": {"name": service_cidr::DEFAULT}, "spec": {"cidrs": wanted}});
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
        Ok(new.into())
    };
    write::update(&context, service_cidr::DEFAULT, Writable::Main, change).await?;
    service_cidr::tidy(api).await
}

/// Makes the Service lead to this server, and to all others that are there.
async fn advertise(api: &Api, own: IpAddr, port: u16) -> Result<(), ApiError> {
    let servers = servers::announce(&api.storage.store, own).await?;
    lead_to(api, (own, port), &servers).await
}

/// Makes the Service lead to these servers.
async fn lead_to(
    api: &Api,
    (own, port): (IpAddr, u16),
    servers: &BTreeSet<IpAddr>,
) -> Result<(), ApiError> {
    let same = servers.iter().filter(|address| address.is_ipv4() == own.is_ipv4());
    let addresses: Vec<_> = same.map(ToString::to_string).collect();
    let family = if own.is_ipv4() { "IPv4" } else { "IPv6" };
    let endpoints = addresses
        .iter()
        .map(|address| json!({"addresses": [address], "conditions": {"ready": true}}));
    let slice = json!({
        "metadata": {
            "name": "kubernetes",
            "labels": {"kubernetes.io/service-name": "kubernetes"},
        },
        "addressType": family,
        "endpoints": endpoints.collect::<Vec<_>>(),
        "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
    });
    let (group, plural, namespace) = ("discovery.k8s.io", "endpointslices", "default");
    SystemObject { group, plural, namespace, object: slice }.ensure(api).await?;
    let addresses = addresses.iter().map(|address| json!({"ip": address}));
    let endpoints = json!({
        "metadata": {
            "name": "kubernetes",
            "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"},
        },
        "subsets": [{"addresses": addresses.collect::<Vec<_>>(),
            "ports": [{"name": "https", "port": port, "protocol": "TCP"}]}],
    });
    SystemObject { group: "", plural: "endpoints", namespace, object: endpoints }.ensure(api).await
}

/// An object that every cluster has.
struct SystemObject<'a> {
    group: &'a str,
    plural: &'a str,
    /// Empty for cluster-scoped kinds.
    namespace: &'a str,
    object: Value,
}

impl SystemObject<'_> {
    /// Creates the object; what exists already is left as it is.
    async fn create(self, api: &Api) -> Result<(), ApiError> {
        let (registry, object) = (api.registry(), self.object);
        let resource = registry.find(self.group, "v1", self.plural);
        let resource = resource.ok_or_else(ApiError::no_such_path)?;
        let context = Context::own(api, resource, self.namespace, MANAGER);
        match write::create(&context, typed(resource, object)).await {
            Err(error) if error.reason == "AlreadyExists" => Ok(()),
            result => result.map(drop),
        }
    }

    /// Creates the object, or brings everything but its status up to date.
    async fn ensure(self, api: &Api) -> Result<(), ApiError> {
        let (registry, object) = (api.registry(), self.object);
        let resource = registry.find(self.group, "v1", self.plural);
        let resource = resource.ok_or_else(ApiError::no_such_path)?;
        let context = Context::own(api, resource, self.namespace, MANAGER);
        let object = typed(resource, object);
        match write::create(&context, object.clone()).await {
            Err(error) if error.reason == "AlreadyExists" => {}
            result => return result.map(drop),
        }
        // What the operator has taken out of our hands stays as it is.
        let change = |now: &Value| {
            let mut new = object.clone();
            if now["metadata"]["annotations"][AUTO_UPDATE] == "false" {
                return Ok(now.clone().into());
            }
            if new.has("/aggregationRule") {
                // They are the sum of others, see `rbac::aggregate`.
                new["rules"] = now["rules"].clone();
            }
            Ok(new.into())
        };
        let name = object.text("/metadata/name");
        if let Err(error) = write::update(&context, name, Writable::Main, change).await {
            warn!(object = name, error = %error.message, "cannot bring a system object up to date");
        }
        Ok(())
    }
}

/// The object with the kind that it has.
fn typed(resource: &Resource, mut object: Value) -> Value {
    object["apiVersion"] = resource.info().api_version().into();
    object["kind"] = resource.info().kind.into();
    object
}
