//! The ReplicaSet controller: keeps the number of pods.

use futures::StreamExt;
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, PostParams, Preconditions};
use kube::{Api, Client, ResourceExt};
use roadstead_api::key::ObjectKey;
use roadstead_plan::owner::{controller_of, is_controlled_by};
use roadstead_plan::replicaset as plan;
use roadstead_watch::cache::Cache;
use roadstead_watch::events::{Recorder, Severity};
use roadstead_watch::informer::{Change, Selection, informer};
use roadstead_watch::queue::Queue;
use tracing::warn;

/// Runs the controller.
pub async fn run(client: Client) {
    let mut sets = informer(Api::<ReplicaSet>::all(client.clone()), Selection::all());
    let mut pods = informer(Api::<Pod>::all(client.clone()), Selection::all());
    let recorder = Recorder::new(client.clone(), "replicaset-controller");
    let (caches, queue) = ((Cache::default(), Cache::default()), Queue::default());
    let mut state = State { client, recorder, sets: caches.0, pods: caches.1, queue };
    loop {
        tokio::select! {
            biased;
            Some(change) = sets.next() => state.set(&change),
            Some(change) = pods.next() => state.pod(&change),
            () = state.queue.ready(), if state.sets.synced() && state.pods.synced() => {
                state.work().await;
            }
        }
    }
}

struct State {
    client: Client,
    recorder: Recorder,
    sets: Cache<ReplicaSet>,
    pods: Cache<Pod>,
    queue: Queue<ObjectKey>,
}

impl State {
    fn set(&mut self, change: &Change<ReplicaSet>) {
        if let Some((key, _)) = self.sets.observe(change) {
            self.queue.add(key);
        }
    }

    fn pod(&mut self, change: &Change<Pod>) {
        let Some((key, before)) = self.pods.observe(change) else { return };
        for pod in [before, self.pods.get(&key).cloned()].into_iter().flatten() {
            let owner = controller_of(&pod.metadata).filter(|owner| owner.kind == "ReplicaSet");
            if let Some(owner) = owner {
                self.queue.add(ObjectKey::new(&key.namespace, &owner.name));
            }
        }
    }

    async fn work(&mut self) {
        let Some(key) = self.queue.pop() else { return };
        match self.sync(&key).await {
            Ok(()) => self.queue.succeeded(&key),
            Err(error) => {
                let again_in = self.queue.retry(key.clone());
                warn!(replicaset = %key, %error, ?again_in, "pods not right yet");
            }
        }
    }

    async fn sync(&mut self, key: &ObjectKey) -> Result<(), kube::Error> {
        let Some(set) = self.sets.get(key).cloned() else { return Ok(()) };
        let pods = self.pods.in_namespace(&key.namespace).map(AsRef::as_ref);
        let pods = pods.filter(|pod: &&Pod| is_controlled_by(&pod.metadata, &set.metadata));
        let plan = plan::plan(&set, &pods.collect::<Vec<_>>(), Timestamp::now());
        let api: Api<Pod> = crate::within(&self.client, &key.namespace);
        for pod in &plan.create {
            let created = api.create(&PostParams::default(), pod).await?;
            let text = format!("Created pod: {}", created.name_any());
            self.pods.record(created);
            self.recorder.tell(&*set, Severity::Normal, "SuccessfulCreate", &text).await;
        }
        for pod in &plan.delete {
            let only_this = Preconditions { uid: pod.uid(), resource_version: None };
            let options = DeleteParams::default().preconditions(only_this);
            match api.delete(&pod.name_any(), &options).await {
                Ok(answer) => match answer.left() {
                    Some(going) if going.metadata.deletion_timestamp.is_some() => {
                        self.pods.record(going);
                    }
                    _ => self.pods.forget(pod),
                },
                Err(error) if crate::is_gone(&error) => self.pods.forget(pod),
                Err(error) => return Err(error),
            }
            let text = format!("Deleted pod: {}", pod.name_any());
            self.recorder.tell(&*set, Severity::Normal, "SuccessfulDelete", &text).await;
        }
        if !plan.create.is_empty() || !plan.delete.is_empty() {
            // Report what these writes have made of it.
            self.queue.add(key.clone());
            return Ok(());
        }
        self.report(key, &set, plan.status).await
    }

    async fn report(
        &mut self,
        key: &ObjectKey,
        set: &ReplicaSet,
        status: k8s_openapi::api::apps::v1::ReplicaSetStatus,
    ) -> Result<(), kube::Error> {
        if set.status.as_ref() == Some(&status) {
            return Ok(());
        }
        let mut set = set.clone();
        set.status = Some(status);
        let api: Api<ReplicaSet> = crate::within(&self.client, &key.namespace);
        let written = api.replace_status(&key.name, &PostParams::default(), &set).await?;
        self.sets.record(written);
        Ok(())
    }
}
