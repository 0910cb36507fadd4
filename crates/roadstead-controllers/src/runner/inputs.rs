//! What a controller watches, put together before it runs.

use std::sync::Arc;
use std::time::Duration;

use futures::stream::{BoxStream, SelectAll, StreamExt};
use kube::{Api, Client, Resource};
use roadstead_watch::informer::{Change, Selection, informer};
use roadstead_watch::queue::Queue;
use roadstead_watch::write::{Collection, Write};
use serde::de::DeserializeOwned;

use super::{Changed, Controller, Desk, Watches};

/// Something that happened, to be taken in by the controller.
pub(super) type Step<C> = Box<dyn FnOnce(&mut Desk<C>) + Send>;

/// A kind whose objects are in a cache of the controller.
pub(super) struct Watched<C: Controller> {
    pub(super) collection: Collection,
    /// Takes in the answer to one of the controller's own writes.
    pub(super) record: fn(&mut Desk<C>, &Write, &str),
    pub(super) len: fn(&mut Desk<C>) -> usize,
}

/// What a controller watches, and what it looks at first.
pub(crate) struct Inputs<C: Controller> {
    pub(super) steps: SelectAll<BoxStream<'static, Step<C>>>,
    pub(super) watched: Vec<Watched<C>>,
    pub(super) first: Vec<(C::Key, Duration)>,
}

impl<C: Controller> Inputs<C> {
    /// Nothing yet.
    pub(crate) fn new() -> Self {
        Self { steps: SelectAll::new(), watched: Vec::new(), first: Vec::new() }
    }

    /// Also this kind. Nothing is planned before all of its objects have been seen once.
    pub(crate) fn watch<K>(mut self, changes: BoxStream<'static, Change<Arc<K>>>) -> Self
    where
        C: Watches<K>,
        K: Resource + k8s_openapi::Resource + DeserializeOwned + Send + Sync + 'static,
    {
        let input = self.watched.len();
        let step = move |change| {
            Box::new(move |desk: &mut Desk<C>| desk.observe::<K>(input, &change)) as Step<C>
        };
        self.steps.push(changes.map(step).boxed());
        self.watched.push(Watched {
            collection: Collection::of::<K>(),
            record: Desk::record::<K>,
            len: |desk| desk.controller.cache().len(),
        });
        self
    }

    /// Also something that is in no cache; the controller keeps what it needs of it.
    pub(crate) fn follow<T: Send + 'static>(
        mut self,
        items: BoxStream<'static, T>,
        take: fn(&mut C, T, &mut Queue<C::Key>),
    ) -> Self {
        let step = move |item| {
            let step = move |desk: &mut Desk<C>| take(&mut desk.controller, item, &mut desk.queue);
            Box::new(step) as Step<C>
        };
        self.steps.push(items.map(step).boxed());
        self
    }

    /// This key is due a while after the start, whatever happens.
    pub(crate) fn begin_with(mut self, key: C::Key, delay: Duration) -> Self {
        self.first.push((key, delay));
        self
    }
}

/// All objects of a kind.
pub(crate) fn every<K>(client: &Client) -> BoxStream<'static, Change<Arc<K>>>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Send + Sync + 'static,
{
    informer(Api::all(client.clone()), Selection::all())
}

impl<C: Controller> Desk<C> {
    fn observe<K: Resource>(&mut self, input: usize, change: &Change<Arc<K>>)
    where
        C: Watches<K>,
    {
        if matches!(change, Change::Synced) {
            self.unsynced.remove(&input);
        }
        let cache = self.controller.cache();
        let Some((key, before)) = cache.observe(change) else { return };
        let now = cache.get(&key).cloned();
        let changed = Changed { key, before, now };
        self.controller.index(&changed, &mut self.queue);
        self.controller.wake(&changed, &mut self.queue);
    }

    fn record<K: Resource + DeserializeOwned>(&mut self, write: &Write, answer: &str)
    where
        C: Watches<K>,
    {
        let cache = self.controller.cache();
        let Some((key, before)) = cache.take_in(write, answer) else { return };
        let now = cache.get(&key).cloned();
        self.controller.index(&Changed { key, before, now }, &mut self.queue);
    }
}
