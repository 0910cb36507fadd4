//! Which kinds are served, and under which paths.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::{Bytes, BytesMut};
use jiff::Timestamp;
use roadstead_api::kind::{Info, Kind};
use roadstead_api::kinds;
use roadstead_schema::types::{Schema, TypeId};
use roadstead_store::entry::{Entry, Key};
use roadstead_store::feed::Feed;
use roadstead_store::kv::Store;
use serde_json::Value;

use crate::documents::made::Documents;
use crate::kinds::custom_resource::{self, Custom};
use crate::kinds::{Strategy, Subresource, custom_resource_definition, metrics, strategy};
use crate::objects::scale::ReplicaPaths;
use crate::objects::write::Writable;
use crate::reading::object;

/// A kind that is built in, or that a user has defined.
#[derive(Clone)]
pub(crate) enum KindRef {
    /// Part of the program.
    BuiltIn(&'static dyn Kind),
    /// Part of the cluster.
    Custom(Arc<Custom>),
}

impl Deref for KindRef {
    type Target = dyn Kind;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::BuiltIn(kind) => *kind,
            Self::Custom(kind) => &**kind,
        }
    }
}

/// A kind together with what the server derives from it.
pub(crate) struct Resource {
    /// What objects of this kind mean.
    pub(crate) kind: KindRef,
    /// The type of built-in objects in the schema.
    pub(crate) type_id: Option<TypeId>,
    /// Where the store keeps them.
    pub(crate) bucket: String,
    /// What the kind needs of the server.
    pub(crate) strategy: &'static dyn Strategy,
    /// What there is below its objects.
    subresources: Vec<Subresource>,
    /// How the stored bytes of an object begin that need no conversion to be served.
    head: String,
    /// Whether objects are completed when they are read: their schema may know more defaults than
    /// it did when they were written.
    completed: bool,
}

impl Resource {
    fn new(kind: KindRef, type_id: Option<TypeId>) -> Self {
        let bucket = kind.info().bucket();
        let head = object::head(&kind.info().api_version());
        let completed = match &kind {
            KindRef::Custom(custom) => custom.structural.has_defaults(),
            KindRef::BuiltIn(_) => false,
        };
        let strategy = strategy(&kind, &bucket);
        let info = kind.info();
        let status = info.status.then_some(Subresource::part("status", Writable::Status));
        let scale = info.scale.then_some(Subresource::SCALE);
        let own = strategy.subresources().iter().copied();
        let subresources = status.into_iter().chain(scale).chain(own).collect();
        Self { kind, type_id, bucket, strategy, subresources, head, completed }
    }

    /// Names, scope and shape.
    pub(crate) fn info(&self) -> &Info {
        self.kind.info()
    }

    /// What there is below objects of this kind, here or upstream.
    pub(crate) fn subresources(&self) -> &[Subresource] {
        &self.subresources
    }

    /// What has this name below objects of this kind.
    pub(crate) fn subresource(&self, name: &str) -> Option<&Subresource> {
        self.subresources.iter().find(|subresource| subresource.name == name)
    }

    /// Where objects keep their numbers of replicas, if they have a `/scale`.
    pub(crate) fn scale(&self) -> Option<ReplicaPaths> {
        match &self.kind {
            KindRef::Custom(custom) => custom.scale.clone(),
            KindRef::BuiltIn(kind) => kind.info().scale.then(ReplicaPaths::built_in),
        }
    }

    /// Whether stored bytes are served in another form.
    pub(crate) fn converts(&self, bytes: &[u8]) -> bool {
        self.completed || !bytes.starts_with(self.head.as_bytes())
    }

    /// Stored bytes in the form in which this kind is served.
    pub(crate) fn shown<'a>(&self, bytes: &'a [u8]) -> Cow<'a, [u8]> {
        if !self.converts(bytes) {
            return Cow::Borrowed(bytes);
        }
        let mut object = object::parse(bytes);
        self.show(&mut object);
        Cow::Owned(object::encode(&object).into())
    }

    /// The object as clients of this kind see it, with its revision.
    pub(crate) fn served(&self, entry: &Entry) -> Bytes {
        let shown = self.shown(&entry.value);
        let mut out = BytesMut::with_capacity(shown.len() + 40);
        object::splice(&mut out, &shown, entry.revision);
        out.freeze()
    }

    /// The object as a value in the form in which this kind is served, with its revision.
    pub(crate) fn value(&self, entry: &Entry) -> Value {
        let mut object = object::value(entry);
        if self.converts(&entry.value) {
            self.show(&mut object);
        }
        object
    }

    /// The cells of the object's row, which kinds make from objects as they are stored, but for what has
    /// become their default since.
    pub(crate) fn cells(&self, entry: &Entry, now: Timestamp) -> Vec<Value> {
        match self.completed {
            true => self.kind.cells(&self.value(entry), now),
            false => self.kind.cells(&object::value(entry), now),
        }
    }

    fn show(&self, object: &mut Value) {
        self.kind.show(object);
        object["apiVersion"] = self.info().api_version().into();
    }

    /// The bytes to store for an object in the form in which this kind is served.
    pub(crate) fn encode(&self, object: &Value) -> Bytes {
        let info = self.info();
        if !info.is_view() {
            return object::encode(object);
        }
        let mut stored = object.clone();
        self.kind.store(&mut stored);
        stored["apiVersion"] = info.stored_api_version().into();
        object::encode(&stored)
    }

    /// Where the store keeps one object; the namespace is empty for cluster-scoped kinds.
    pub(crate) fn key(&self, namespace: &str, name: &str) -> Key {
        Key::new(self.bucket.as_str(), format!("{namespace}/{name}"))
    }

    /// How the paths of all objects of a namespace begin; all objects, if it is empty.
    pub(crate) fn prefix(&self, namespace: &str) -> String {
        match namespace {
            "" => String::new(),
            namespace => format!("{namespace}/"),
        }
    }
}

/// All kinds by path, at one moment.
pub(crate) struct Registry {
    resources: Vec<Arc<Resource>>,
    by_path: HashMap<(String, String, String), usize>,
    /// The documents that describe these kinds.
    pub(crate) documents: Documents,
    /// Those that describe built-in kinds only, whatever else there is.
    pub(crate) lasting: Arc<Documents>,
}

impl Registry {
    fn new(customs: Vec<Arc<Custom>>, measured: Vec<Arc<Custom>>, lasting: Arc<Documents>) -> Self {
        let schema = Schema::kubernetes();
        let built_in = kinds::all().into_iter().map(|kind| {
            let info = kind.info();
            let type_id = schema.of_kind(info.group, info.version, info.kind);
            assert!(type_id.is_some(), "{} is not in the schema", info.kind);
            Arc::new(Resource::new(KindRef::BuiltIn(kind), type_id))
        });
        let mut resources: Vec<_> = built_in.collect();
        let measured = measured.into_iter();
        resources.extend(measured.map(|kind| Arc::new(Resource::new(KindRef::Custom(kind), None))));
        let groups: HashSet<_> = resources.iter().map(|resource| resource.info().group).collect();
        // Nobody takes the place of a built-in kind, also not by an old definition.
        let own = customs.into_iter().filter(|kind| !groups.contains(kind.info().group));
        resources.extend(own.map(|kind| Arc::new(Resource::new(KindRef::Custom(kind), None))));
        let paths = resources.iter().enumerate().map(|(index, resource)| {
            let info = resource.info();
            ((info.group.to_owned(), info.version.to_owned(), info.plural.to_owned()), index)
        });
        let by_path = paths.collect();
        Self { resources, by_path, documents: Documents::default(), lasting }
    }

    /// The kind served under a group, version and plural.
    pub(crate) fn find(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Resource>> {
        let path = (group.to_owned(), version.to_owned(), plural.to_owned());
        self.by_path.get(&path).map(|&index| &self.resources[index])
    }

    /// A core kind that must exist.
    pub(crate) fn core(&self, plural: &str) -> &Arc<Resource> {
        self.find("", "v1", plural).expect("core kinds are always served")
    }

    /// All kinds in the order of discovery.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Resource>> {
        self.resources.iter()
    }

    /// All groups in the order of discovery, each with its versions.
    pub(crate) fn groups(&self) -> Vec<(&str, &str)> {
        let mut groups = Vec::new();
        for resource in &self.resources {
            let group = (resource.info().group, resource.info().version);
            if !groups.contains(&group) {
                groups.push(group);
            }
        }
        groups
    }
}

/// The registry as it is now: custom kinds appear and vanish with their definitions.
pub(crate) struct Catalog {
    store: Arc<Store>,
    state: Mutex<(Option<Feed>, Arc<Registry>)>,
    /// Whether somebody measures what nodes and pods use.
    measured: AtomicBool,
}

impl Catalog {
    /// Follows the definitions in a store.
    pub(crate) fn new(store: Arc<Store>) -> Self {
        let registry = Arc::new(Registry::new(Vec::new(), Vec::new(), Arc::default()));
        Self { store, state: Mutex::new((None, registry)), measured: AtomicBool::new(false) }
    }

    /// From now on the kinds of what is measured are served, too.
    pub(crate) fn serve_measured(&self) {
        self.measured.store(true, Ordering::Relaxed);
        // Whoever asks next makes it anew.
        self.state.lock().unwrap_or_else(PoisonError::into_inner).0 = None;
    }

    /// The kinds served now. A definition counts as soon as its creation has been answered.
    pub(crate) fn now(&self) -> Arc<Registry> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = match &mut state.0 {
            Some(feed) => feed.now().map_or(true, |batch| !batch.events.is_empty()),
            None => true,
        };
        if changed
            && let Ok(snapshot) = self.store.list(custom_resource_definition::DEFINITIONS, "", None)
        {
            let definitions = snapshot.entries.iter();
            let customs =
                definitions.flat_map(|entry| custom_resource::read(&entry.value)).collect();
            state.0 =
                self.store.feed(custom_resource_definition::DEFINITIONS, snapshot.revision).ok();
            let measured = self.measured.load(Ordering::Relaxed);
            let measured = if measured { metrics::kinds() } else { Vec::new() };
            let lasting = state.1.lasting.clone();
            state.1 = Arc::new(Registry::new(customs, measured, lasting));
        }
        state.1.clone()
    }
}
