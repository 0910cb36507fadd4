//! The Deployment controller: moves pods from one version of a template to the next.

use futures::StreamExt;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use roadstead_api::key::ObjectKey;
use roadstead_plan::deployment::{self as plan, DeploymentPlan};
use roadstead_plan::owner::{controller_of, is_controlled_by};
use roadstead_watch::cache::Cache;
use roadstead_watch::events::{Recorder, Severity};
use roadstead_watch::informer::{Change, Selection, informer};
use roadstead_watch::queue::Queue;
use serde_json::json;
use tracing::warn;

/// Runs the controller.
pub async fn run(client: Client) {
    let mut deployments = informer(Api::<Deployment>::all(client.clone()), Selection::all());
    let mut sets = informer(Api::<ReplicaSet>::all(client.clone()), Selection::all());
    let recorder = Recorder::new(client.clone(), "deployment-controller");
    let (caches, queue) = ((Cache::default(), Cache::default()), Queue::default());
    let mut state = State { client, recorder, deployments: caches.0, sets: caches.1, queue };
    loop {
        tokio::select! {
            biased;
            Some(change) = deployments.next() => state.deployment(&change),
            Some(change) = sets.next() => state.set(&change),
            () = state.queue.ready(), if state.deployments.synced() && state.sets.synced() => {
                state.work().await;
            }
        }
    }
}

struct State {
    client: Client,
    recorder: Recorder,
    deployments: Cache<Deployment>,
    sets: Cache<ReplicaSet>,
    queue: Queue<ObjectKey>,
}

impl State {
    fn deployment(&mut self, change: &Change<Deployment>) {
        if let Some((key, _)) = self.deployments.observe(change) {
            self.queue.add(key);
        }
    }

    fn set(&mut self, change: &Change<ReplicaSet>) {
        let Some((key, before)) = self.sets.observe(change) else { return };
        for set in [before, self.sets.get(&key).cloned()].into_iter().flatten() {
            if let Some(owner) = controller_of(&set.metadata) {
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
                warn!(deployment = %key, %error, ?again_in, "rollout not carried on");
            }
        }
    }

    async fn sync(&mut self, key: &ObjectKey) -> Result<(), kube::Error> {
        let Some(deployment) = self.deployments.get(key).cloned() else { return Ok(()) };
        let sets = self.sets.in_namespace(&key.namespace).map(AsRef::as_ref);
        let sets: Vec<&ReplicaSet> = sets
            .filter(|set: &&ReplicaSet| is_controlled_by(&set.metadata, &deployment.metadata))
            .collect();
        let plan = plan::plan(&deployment, &sets, Timestamp::now());
        self.carry_out(key, &plan).await?;
        for (reason, message) in &plan.notes {
            self.recorder.tell(&*deployment, Severity::Normal, reason, message).await;
        }
        self.report(key, &deployment, plan).await
    }

    async fn carry_out(
        &mut self,
        key: &ObjectKey,
        plan: &DeploymentPlan,
    ) -> Result<(), kube::Error> {
        let api: Api<ReplicaSet> = crate::within(&self.client, &key.namespace);
        if let Some(set) = &plan.create {
            let created = api.create(&PostParams::default(), set).await?;
            self.sets.record(created);
        }
        for set in &plan.update {
            let written = api.replace(&set.name_any(), &PostParams::default(), set).await?;
            self.sets.record(written);
        }
        for set in &plan.delete {
            match api.delete(&set.name_any(), &DeleteParams::default()).await {
                Err(error) if !crate::is_gone(&error) => return Err(error),
                _ => self.sets.forget(set),
            }
        }
        Ok(())
    }

    async fn report(
        &mut self,
        key: &ObjectKey,
        deployment: &Deployment,
        plan: DeploymentPlan,
    ) -> Result<(), kube::Error> {
        let api: Api<Deployment> = crate::within(&self.client, &key.namespace);
        if plan.revision.is_some()
            && deployment.annotations().get(plan::REVISION) != plan.revision.as_ref()
        {
            let patch = json!({"metadata": {"annotations": {plan::REVISION: plan.revision}}});
            let written =
                api.patch(&key.name, &PatchParams::default(), &Patch::Merge(&patch)).await?;
            self.deployments.record(written);
        }
        if deployment.status.as_ref() == Some(&plan.status) {
            return Ok(());
        }
        let Some(newest) = self.deployments.get(key) else { return Ok(()) };
        let mut newest = newest.as_ref().clone();
        newest.status = Some(plan.status);
        let written = api.replace_status(&key.name, &PostParams::default(), &newest).await?;
        self.deployments.record(written);
        Ok(())
    }
}
