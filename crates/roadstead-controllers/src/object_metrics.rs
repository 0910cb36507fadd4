//! The page of objects in numbers: watched while somebody asks for it, and for a while afterwards.
//!
//! Where no Prometheus asks nothing is watched and nothing is kept (`docs/adr/0212-objects-in-numbers.md`).

use std::collections::BTreeSet;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::{BoxStream, SelectAll, select_all};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Endpoints, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{Api, Client, Resource};
use roadstead_api::key::ObjectKey;
use roadstead_monitoring::objects::{MeasuredKind, Object, Objects};
use roadstead_watch::informer::{Change, Selection, key_of};
use roadstead_watch::keys_only::keys_only;
use serde::de::DeserializeOwned;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout};
use tracing::info;

/// Who lists and watches for the page.
pub const USER: &str = "system:serviceaccount:kube-system:roadstead-monitoring";

/// How long whoever asks waits for the first page. Prometheus waits for 10 s, unless it is told otherwise.
const PATIENCE: Duration = Duration::from_secs(8);

/// After so long without a question nobody asks any more.
const IDLE: Duration = Duration::from_secs(600);

/// How many may ask at once without waiting for each other.
const QUESTIONS: usize = 8;

/// Asks for the page.
#[derive(Clone, Debug)]
pub struct Asker(mpsc::Sender<oneshot::Sender<String>>);

impl Asker {
    /// The page, or nothing if not everything could be seen in time.
    pub async fn page(&self) -> Option<String> {
        let asked = async {
            let (answer, page) = oneshot::channel();
            self.0.send(answer).await.ok()?;
            page.await.ok()
        };
        timeout(PATIENCE, asked).await.ok().flatten()
    }
}

/// Answers who asks for the page.
#[derive(Debug)]
pub struct PageWriter(mpsc::Receiver<oneshot::Sender<String>>);

/// Both ends.
pub fn channel() -> (Asker, PageWriter) {
    let (ask, questions) = mpsc::channel(QUESTIONS);
    (Asker(ask), PageWriter(questions))
}

impl PageWriter {
    /// Answers as long as anybody can ask.
    pub async fn run(mut self, client: Client) {
        while let Some(first) = self.0.recv().await {
            info!("objects are watched for their metrics");
            self.answer(first, changes(&client)).await;
            info!("nobody asks for the metrics of objects any more");
        }
    }

    /// Watches and answers until nobody has asked for long.
    async fn answer(
        &mut self,
        first: oneshot::Sender<String>,
        mut changes: SelectAll<BoxStream<'static, Seen>>,
    ) {
        let mut objects = Objects::default();
        let mut unseen = BTreeSet::from(MeasuredKind::ALL);
        let (mut waiting, mut asked) = (vec![first], Instant::now());
        loop {
            if unseen.is_empty() && !waiting.is_empty() {
                let page = objects.text();
                // Who has gone away needs no answer.
                waiting.drain(..).for_each(|answer| drop(answer.send(page.clone())));
            }
            tokio::select! {
                Some(seen) = changes.next() => match seen {
                    Seen::Set(key, object) => objects.observe(&key, &object),
                    Seen::Gone(kind, key) => objects.forget(kind, &key),
                    Seen::Synced(kind) => drop(unseen.remove(&kind)),
                },
                question = self.0.recv() => {
                    let Some(question) = question else { return };
                    waiting.retain(|answer| !answer.is_closed());
                    waiting.push(question);
                    asked = Instant::now();
                }
                () = sleep_until(asked + IDLE) => return,
            }
        }
    }
}

/// What was seen of the objects.
enum Seen {
    Set(ObjectKey, Box<Object>),
    Gone(MeasuredKind, ObjectKey),
    Synced(MeasuredKind),
}

fn changes(client: &Client) -> SelectAll<BoxStream<'static, Seen>> {
    select_all([
        followed::<Service>(client, MeasuredKind::Service, Object::Service),
        followed::<Endpoints>(client, MeasuredKind::Endpoints, Object::Endpoints),
        followed::<EndpointSlice>(client, MeasuredKind::Slice, Object::Slice),
        followed::<Pod>(client, MeasuredKind::Pod, Object::Pod),
        followed::<Deployment>(client, MeasuredKind::Deployment, Object::Deployment),
    ])
}

fn followed<K>(
    client: &Client,
    kind: MeasuredKind,
    object: fn(K) -> Object,
) -> BoxStream<'static, Seen>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Send + 'static,
{
    let changes = keys_only::<K>(Api::all(client.clone()), Selection::all());
    let seen = changes.map(move |change| match change {
        Change::Set(own) => Seen::Set(key_of(&own), Box::new(object(own))),
        Change::Gone(key, _) => Seen::Gone(kind, key),
        Change::Synced => Seen::Synced(kind),
    });
    seen.boxed()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(name: &str) -> Seen {
        let mut service = Service::default();
        service.metadata.name = Some(name.into());
        Seen::Set(ObjectKey::new("default", name), Box::new(Object::Service(service)))
    }

    fn stream(seen: Vec<Seen>) -> SelectAll<BoxStream<'static, Seen>> {
        select_all([futures::stream::iter(seen).chain(futures::stream::pending()).boxed()])
    }

    #[tokio::test(start_paused = true)]
    async fn a_page_is_whole_or_there_is_none_yet() {
        let (asker, mut writer) = channel();
        let own = asker.clone();
        let asked = tokio::spawn(async move { own.page().await });
        let first = writer.0.recv().await.unwrap();
        let half = vec![
            service("web"),
            Seen::Synced(MeasuredKind::Service),
            Seen::Synced(MeasuredKind::Pod),
        ];
        tokio::spawn(async move { writer.answer(first, stream(half)).await });
        assert_eq!(asked.await.unwrap(), None, "not everything was seen");
        assert_eq!(asker.page().await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn who_does_not_ask_is_forgotten() {
        let (asker, mut writer) = channel();
        let own = asker.clone();
        let asked = tokio::spawn(async move { own.page().await });
        let first = writer.0.recv().await.unwrap();
        let all = MeasuredKind::ALL.map(Seen::Synced);
        let gone = Seen::Gone(MeasuredKind::Service, ObjectKey::new("default", "old"));
        let seen = [service("web"), service("old"), gone].into_iter().chain(all).collect();
        let begin = Instant::now();
        let watching = tokio::spawn(async move { writer.answer(first, stream(seen)).await });
        let page = asked.await.unwrap().unwrap();
        assert!(page.contains("service=\"web\"") && !page.contains("service=\"old\""), "{page}");
        tokio::time::sleep(IDLE / 2).await;
        assert!(asker.page().await.is_some());
        watching.await.unwrap();
        assert_eq!(begin.elapsed().as_secs(), (IDLE + IDLE / 2).as_secs());
    }
}
