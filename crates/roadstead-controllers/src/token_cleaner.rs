//! Removes bootstrap tokens that are over (upstream's tokencleaner). They are good for nothing from the moment
//! on at which they end, whether or not this runs.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::jiff::Timestamp;
use kube::{Api, ResourceExt};
use roadstead_api::key::ObjectKey;
use roadstead_plan::bootstrap_token::{BootstrapToken, NAMESPACE, TYPE};
use roadstead_watch::cache::Cache;
use roadstead_watch::informer::{Selection, informer};
use roadstead_watch::queue::Queue;
use roadstead_watch::write::{Collection, Write};
use tracing::info;

use crate::Context;
use crate::runner::{self, Changed, Controller, Inputs, Watches, WritePlan};

const SECRETS: Collection = Collection::of::<Secret>();

pub(crate) async fn run(context: Context) {
    let secrets: Api<Secret> = Api::namespaced(context.client.clone(), NAMESPACE);
    let tokens = Selection::all().fields(&format!("type={TYPE}"));
    let inputs = Inputs::new().watch(informer(secrets, tokens));
    runner::run(context, State::default(), inputs).await;
}

#[derive(Default)]
struct State {
    secrets: Cache<Secret>,
}

impl Watches<Secret> for State {
    fn cache(&mut self) -> &mut Cache<Secret> {
        &mut self.secrets
    }

    fn wake(&mut self, change: &Changed<Secret>, queue: &mut Queue<ObjectKey>) {
        queue.add(change.key.clone());
    }
}

impl Controller for State {
    type Key = ObjectKey;
    const COMPONENT: &'static str = "token-cleaner";
    const QUEUE: &'static str = "token_cleaner";

    fn plan(&mut self, key: &ObjectKey, now: Timestamp) -> WritePlan {
        let Some(secret) = self.secrets.get(key) else { return WritePlan::none() };
        // What is no token is somebody's mistake, for him to mend.
        let Some(end) = token(secret).and_then(|token| token.end) else { return WritePlan::none() };
        match Duration::try_from(end.duration_since(now)) {
            Ok(left) if !left.is_zero() => {
                WritePlan { again_after: Some(left), ..WritePlan::none() }
            }
            _ => {
                info!(token = key.name, "a bootstrap token is over");
                let uid = secret.uid();
                WritePlan::writes(vec![Write::delete(SECRETS, key.clone(), uid.as_deref())])
            }
        }
    }
}

fn token(secret: &Secret) -> Option<BootstrapToken> {
    let data = secret.data.iter().flatten();
    let texts = data
        .filter_map(|(name, value)| Some((name.clone(), String::from_utf8(value.0.clone()).ok()?)));
    let texts: BTreeMap<_, _> = texts.collect();
    BootstrapToken::read(&secret.name_any(), secret.type_.as_deref()?, &texts).ok()
}
