//! What every namespace has from the start, and gets back if somebody takes it away or changes it: a
//! default service account, and the certificate by which pods recognise the API server.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Namespace, ServiceAccount};
use k8s_openapi::jiff::Timestamp;
use kube::{Api, ResourceExt};
use roadstead_api::key::ObjectKey;
use roadstead_plan::namespace_content::{
    ACCOUNT, CERTIFICATE, Certificate, ContentPlan, Present, plan,
};
use roadstead_watch::cache::Cache;
use roadstead_watch::informer::{Selection, informer, key_of};
use roadstead_watch::queue::Queue;
use roadstead_watch::write::{Collection, Write};

use crate::Context;
use crate::runner::{self, Changed, Controller, Inputs, Watches, WritePlan, every};

const MAPS: Collection = Collection::of::<ConfigMap>();

/// Without a certificate only the accounts are made.
pub(crate) async fn run(context: Context) {
    let client = &context.client;
    let named = |name: &str| Selection::all().fields(&format!("metadata.name={name}"));
    let inputs = Inputs::new()
        .watch(every::<Namespace>(client))
        .watch(informer(Api::<ServiceAccount>::all(client.clone()), named(ACCOUNT)))
        .watch(informer(Api::<ConfigMap>::all(client.clone()), named(CERTIFICATE)));
    let root_ca = context.settings.root_ca.clone();
    runner::run(context, State { root_ca, ..State::default() }, inputs).await;
}

#[derive(Default)]
struct State {
    root_ca: Option<String>,
    namespaces: Cache<Namespace>,
    accounts: Cache<ServiceAccount>,
    maps: Cache<ConfigMap>,
}

/// Keys are names of namespaces.
impl Watches<Namespace> for State {
    fn cache(&mut self) -> &mut Cache<Namespace> {
        &mut self.namespaces
    }

    fn wake(&mut self, change: &Changed<Namespace>, queue: &mut Queue<String>) {
        queue.add(change.key.name.clone());
    }
}

impl Watches<ServiceAccount> for State {
    fn cache(&mut self) -> &mut Cache<ServiceAccount> {
        &mut self.accounts
    }

    fn wake(&mut self, change: &Changed<ServiceAccount>, queue: &mut Queue<String>) {
        queue.add(change.key.namespace.clone());
    }
}

impl Watches<ConfigMap> for State {
    fn cache(&mut self) -> &mut Cache<ConfigMap> {
        &mut self.maps
    }

    fn wake(&mut self, change: &Changed<ConfigMap>, queue: &mut Queue<String>) {
        queue.add(change.key.namespace.clone());
    }
}

impl Controller for State {
    type Key = String;
    const COMPONENT: &'static str = "namespace-content-controller";
    const QUEUE: &'static str = "namespace-content";

    fn plan(&mut self, name: &String, _: Timestamp) -> WritePlan<String> {
        let namespace = self.namespaces.get(&ObjectKey::new("", name));
        let Some(namespace) = namespace.filter(|own| own.metadata.deletion_timestamp.is_none())
        else {
            return WritePlan::none();
        };
        let name = namespace.name_any();
        let within = |object: &str| ObjectKey::new(&name, object);
        let present = Present {
            account: self.accounts.get(&within(ACCOUNT)).map(AsRef::as_ref),
            certificate: self.maps.get(&within(CERTIFICATE)).map(AsRef::as_ref),
        };
        let ContentPlan { account, certificate } = plan(&present, self.root_ca.as_deref());
        let account = account.as_ref().map(|account| Write::create(&name, account));
        let mut again_after = None;
        let certificate = certificate.map(|change| match change {
            Certificate::Create(map) => Write::create(&name, &map),
            Certificate::Replace(map) => Write::replace(key_of(&map), &map),
            Certificate::Delete(uid) => {
                // And made anew.
                again_after = Some(Duration::ZERO);
                Write::delete(MAPS, within(CERTIFICATE), uid.as_deref())
            }
        });
        let writes = account.into_iter().chain(certificate).collect();
        WritePlan { writes, again_after, ..WritePlan::none() }
    }
}
