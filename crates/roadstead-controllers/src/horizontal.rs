//! The autoscaler: as many replicas as the work of the pods asks for.
//!
//! Every look at an autoscaler asks the API server anew: for the number of replicas, for the pods, and for
//! what they use. What was recommended before is remembered here, and nowhere else.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use roadstead_api::key::ObjectKey;
use roadstead_plan::horizontal::{self as plan, History, Verdict};
use roadstead_watch::cache::Cache;
use roadstead_watch::events::{EventDraft, InvolvedObject, Severity};
use roadstead_watch::queue::Queue;
use roadstead_watch::write::Write;

use self::target::Target;
use crate::Context;
use crate::runner::{self, Changed, Controller, Inputs, Watches, WritePlan, every};

mod rivals;
pub(crate) mod target;

use self::rivals::Rivals;

/// How often each is looked at (upstream's period).
const PERIOD: Duration = Duration::from_secs(15);

pub(crate) async fn run(context: Context) {
    let client = context.client.clone();
    let inputs = Inputs::new().watch(every::<HorizontalPodAutoscaler>(&client));
    let state = State { client, scalers: Cache::default(), memory: Memory::default() };
    runner::run(context, state, inputs).await;
}

struct State {
    client: Client,
    scalers: Cache<HorizontalPodAutoscaler>,
    memory: Memory,
}

/// What outlives a look. Looks at several autoscalers are under way at once, and one at each.
#[derive(Clone, Default)]
struct Memory(Arc<Mutex<Remembered>>);

#[derive(Default)]
struct Remembered {
    histories: BTreeMap<ObjectKey, History>,
    rivals: Rivals,
}

impl Memory {
    fn open(&self) -> MutexGuard<'_, Remembered> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watches<HorizontalPodAutoscaler> for State {
    fn cache(&mut self) -> &mut Cache<HorizontalPodAutoscaler> {
        &mut self.scalers
    }

    fn wake(&mut self, change: &Changed<HorizontalPodAutoscaler>, queue: &mut Queue<ObjectKey>) {
        let uid = |own: &Arc<HorizontalPodAutoscaler>| own.metadata.uid.clone();
        let (before, now) = (change.before.as_ref(), change.now.as_ref());
        if before.is_some() && before.map(uid) != now.map(uid) {
            let mut memory = self.memory.open();
            memory.histories.remove(&change.key);
            memory.rivals.forget(&change.key);
        }
        queue.add(change.key.clone());
    }
}

impl Controller for State {
    type Key = ObjectKey;
    const COMPONENT: &'static str = "horizontal-pod-autoscaler";
    const QUEUE: &'static str = "horizontalpodautoscaler";

    fn plan(&mut self, key: &ObjectKey, now: Timestamp) -> WritePlan {
        let Some(scaler) = self.scalers.get(key) else { return WritePlan::none() };
        if scaler.metadata.deletion_timestamp.is_some() {
            return WritePlan::none();
        }
        let look = Look {
            client: self.client.clone(),
            memory: self.memory.clone(),
            key: key.clone(),
            scaler: scaler.clone(),
            now,
        };
        let survey = Some(look.take().boxed());
        WritePlan { survey, again_after: Some(PERIOD), ..WritePlan::none() }
    }
}

/// One look at one autoscaler.
struct Look {
    client: Client,
    memory: Memory,
    key: ObjectKey,
    scaler: Arc<HorizontalPodAutoscaler>,
    now: Timestamp,
}

impl Look {
    async fn take(self) -> Result<WritePlan, kube::Error> {
        let reference = &self.scaler.spec.scale_target_ref;
        let target = Target::find(&self.client, &self.key.namespace, reference).await;
        let scaled = match target {
            Ok(target) => target.scale().await.map(|scale| (target, scale)),
            Err(why) => Err(why),
        };
        let verdict = match scaled {
            Ok((target, scale)) => self.judge(&target, scale).await?,
            Err(why) => plan::unreachable(&self.scaler, &why, self.now),
        };
        Ok(self.report(verdict))
    }

    async fn judge(&self, target: &Target, scale: target::Scale) -> Result<Verdict, kube::Error> {
        let selector = scale.selector().to_owned();
        let (pods, measured) = match selector.is_empty() {
            true => (Vec::new(), Ok(Vec::new())),
            false => (target.pods(&selector).await?, target.measured(&selector).await),
        };
        let adapters = target.adapters(self.scaler.spec.metrics.as_deref()).await;
        let verdict = {
            let mut memory = self.memory.open();
            let Remembered { histories, rivals } = &mut *memory;
            let rivals = rivals.meet(&self.key, &selector, &pods);
            let seen = plan::Seen {
                replicas: scale.replicas(),
                selector: &selector,
                pods: &pods,
                measured,
                rivals: &rivals,
                adapters: &adapters,
                now: self.now,
            };
            plan::decide(&self.scaler, &seen, histories.entry(self.key.clone()).or_default())
        };
        let Some((wanted, _)) = verdict.rescale else { return Ok(verdict) };
        let outcome = target.resize(scale, wanted).await;
        let mut memory = self.memory.open();
        let history = memory.histories.entry(self.key.clone()).or_default();
        Ok(verdict.carried_out(&self.scaler, outcome, (history, self.now)))
    }

    fn report(&self, verdict: Verdict) -> WritePlan {
        let events = verdict.notes.into_iter().map(|(warning, reason, message)| EventDraft {
            about: InvolvedObject::of(self.scaler.as_ref()),
            severity: if warning { Severity::Warning } else { Severity::Normal },
            reason: reason.to_owned(),
            message,
        });
        let mut writes = Vec::new();
        if self.scaler.status.as_ref() != Some(&verdict.status) {
            let mut newest = self.scaler.as_ref().clone();
            newest.status = Some(verdict.status);
            writes.push(Write::replace_status(self.key.clone(), &newest));
        }
        WritePlan { writes, events: events.collect(), ..WritePlan::none() }
    }
}
