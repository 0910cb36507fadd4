//! What every namespace has from the start: a default service account, and the certificate by
//! which pods recognise the API server.

use std::collections::BTreeMap;

use futures::StreamExt;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PostParams;
use kube::{Api, Client, ResourceExt};
use roadstead_api::key::ObjectKey;
use roadstead_watch::cache::Cache;
use roadstead_watch::informer::{Change, Selection, informer};
use roadstead_watch::queue::Queue;
use tracing::warn;

const ACCOUNT: &str = "default";
const CERTIFICATE: &str = "kube-root-ca.crt";

/// Runs the controller; without a certificate only the accounts are made.
pub async fn run(client: Client, root_ca: Option<String>) {
    let named = |name: &str| Selection::all().fields(&format!("metadata.name={name}"));
    let mut namespaces = informer(Api::<Namespace>::all(client.clone()), Selection::all());
    let mut accounts = informer(Api::<ServiceAccount>::all(client.clone()), named(ACCOUNT));
    let mut maps = informer(Api::<ConfigMap>::all(client.clone()), named(CERTIFICATE));
    let mut known = Cache::default();
    let mut queue: Queue<String> = Queue::default();
    loop {
        tokio::select! {
            biased;
            Some(change) = namespaces.next() => {
                if let Some((key, _)) = known.observe(&change) {
                    queue.add(key.name);
                }
            }
            // Whoever deletes them gets them back.
            Some(Change::Gone(account)) = accounts.next() => queue.add(namespace_of(&*account)),
            Some(Change::Gone(map)) = maps.next() => queue.add(namespace_of(&*map)),
            () = queue.ready() => {
                let Some(name) = queue.pop() else { continue };
                let Some(namespace) = known.get(&ObjectKey::new("", &name)) else { continue };
                if namespace.metadata.deletion_timestamp.is_some() {
                    continue;
                }
                match fill(&client, &name, root_ca.as_deref()).await {
                    Ok(()) => queue.succeeded(&name),
                    Err(error) => {
                        let again_in = queue.retry(name.clone());
                        warn!(namespace = name, %error, ?again_in, "namespace not prepared");
                    }
                }
            }
        }
    }
}

fn namespace_of(object: &impl ResourceExt) -> String {
    object.namespace().unwrap_or_default()
}

async fn fill(client: &Client, namespace: &str, root_ca: Option<&str>) -> Result<(), kube::Error> {
    let metadata = |name: &str| ObjectMeta { name: Some(name.into()), ..Default::default() };
    let account = ServiceAccount { metadata: metadata(ACCOUNT), ..Default::default() };
    let accounts: Api<ServiceAccount> = crate::within(client, namespace);
    tolerate(accounts.create(&PostParams::default(), &account).await)?;
    let Some(root_ca) = root_ca else { return Ok(()) };
    let data = BTreeMap::from([("ca.crt".to_owned(), root_ca.to_owned())]);
    let map = ConfigMap { metadata: metadata(CERTIFICATE), data: Some(data), ..Default::default() };
    let maps: Api<ConfigMap> = crate::within(client, namespace);
    tolerate(maps.create(&PostParams::default(), &map).await)
}

/// It is there already, or the namespace is going away.
fn tolerate<K>(result: Result<K, kube::Error>) -> Result<(), kube::Error> {
    match result {
        Err(kube::Error::Api(status)) if matches!(status.code, 403 | 404 | 409) => Ok(()),
        other => other.map(drop),
    }
}
