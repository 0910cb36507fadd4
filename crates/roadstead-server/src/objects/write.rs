//! Writing one object: the steps between what the client wants and what the store commits.
//!
//! Every write reads the present state, computes the whole new state from it, and commits under
//! the condition that nothing changed meanwhile; else it starts again, or tells the client.

use bytes::Bytes;
use jiff::Timestamp;
use roadstead_api::metadata;
use roadstead_patch::apply::managers::Manager;
use roadstead_patch::apply::track;
use roadstead_patch::apply::typing::Typing;
use roadstead_schema::invalid::Causes;
use roadstead_schema::json::{Pointer, child, is_deeper};
use roadstead_schema::types::Schema;
use roadstead_store::entry::{Entry, Key, Revision};
use roadstead_store::error::StoreError;
use roadstead_store::kv::Store;
use roadstead_store::transaction::Transaction;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::api::Api;
use crate::error::ApiError;
use crate::identity::user::User;
use crate::kinds::admission::{self, Occasion};
use crate::objects::common_turn::CommonTurn;
use crate::objects::update::Update;
use crate::reading::object;
use crate::registry::{KindRef, Resource};
use crate::request::body::LIMIT;

/// Not a dry run.
pub(crate) const REALLY: bool = false;

/// How often a write that does not insist on a revision is computed anew.
pub(super) const ATTEMPTS: usize = 100;

/// A write that happened, or would have.
#[derive(Debug)]
pub(crate) struct Written {
    /// The object afterwards.
    pub entry: Entry,
    /// Whether it was created.
    pub created: bool,
    /// What to tell the user besides.
    pub warnings: Vec<String>,
    /// What to write into the audit log besides.
    pub audit: Vec<(&'static str, String)>,
}

impl Written {
    /// The same, with warnings that come before its own.
    fn with_first(mut self, warnings: Vec<String>) -> Self {
        self.warnings.splice(..0, warnings);
        self
    }
}

/// A new state of an object, and what to tell the user about it.
#[derive(Clone, Debug)]
pub(crate) struct Changed {
    pub(crate) object: Value,
    pub(crate) warnings: Vec<String>,
}

impl From<Value> for Changed {
    fn from(object: Value) -> Self {
        Self { object, warnings: Vec::new() }
    }
}

/// What part of an object a write is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Writable {
    /// Everything but the status.
    Main,
    /// The status, and what its writers may say about the object in its metadata.
    Status,
    /// One field of the spec, and nothing else.
    Field(&'static str),
    /// What the kind chooses of the spec for the subresource of this name. Unlike a single field, it may
    /// change what the object costs.
    Chosen(&'static str),
    /// Everything as it is given: used by the server itself.
    Whole,
}

/// Who writes which kind of object, and where.
#[derive(Clone, Copy)]
pub(crate) struct Context<'a> {
    pub(crate) api: &'a Api,
    pub(crate) resource: &'a Resource,
    /// Empty for cluster-scoped kinds.
    pub(crate) namespace: &'a str,
    /// Empty for the object itself.
    pub(crate) subresource: &'a str,
    /// `None`: the server itself, who may do everything.
    pub(crate) user: Option<&'a User>,
    pub(crate) dry_run: bool,
    pub(crate) owner: Owner<'a>,
}

/// Who owns the fields that a write changes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Owner<'a> {
    /// The manager of this name.
    Manager(&'a str),
    /// The object says so itself: it has been applied.
    Applied,
}

impl<'a> Context<'a> {
    /// A write of the server's own.
    pub(crate) fn own(
        api: &'a Api,
        resource: &'a Resource,
        namespace: &'a str,
        manager: &'a str,
    ) -> Self {
        let owner = Owner::Manager(manager);
        Self { api, resource, namespace, subresource: "", user: None, dry_run: false, owner }
    }

    /// Records in `new` who owns what this write changes.
    pub(super) fn track(&self, old: Option<&Value>, new: &mut Value) {
        let Owner::Manager(name) = self.owner else { return };
        let subresource = self.subresource;
        let time = seconds(Timestamp::now());
        let api_version = self.resource.info().api_version();
        let manager = Manager { name, api_version: &api_version, subresource, time: &time };
        track::track(typing(self.resource), old, new, &manager);
    }
}

/// How the fields of a kind are merged.
pub(crate) fn typing(resource: &Resource) -> Typing<'_> {
    match (&resource.kind, resource.type_id) {
        (_, Some(id)) => Typing::known(Schema::kubernetes(), id),
        (KindRef::Custom(custom), None) => Typing::custom(&custom.structural),
        (KindRef::BuiltIn(_), None) => Typing::Free,
    }
}

/// Stores a new object.
pub(crate) async fn create(
    context: &Context<'_>,
    new: impl Into<Changed>,
) -> Result<Written, ApiError> {
    let (new, store) = (new.into(), &context.api.storage.store);
    if !store.is_shared() {
        return create_once(context, new).await;
    }
    match create_once(context, new.clone()).await {
        // Others may have written meanwhile what it depends on.
        Err(error) if error.is_refusal() => {
            store.fresh().await?;
            create_once(context, new).await
        }
        result => result,
    }
}

async fn create_once(context: &Context<'_>, new: Changed) -> Result<Written, ApiError> {
    let Changed { mut object, warnings } = new;
    let Context { api, resource, namespace, .. } = *context;
    let info = resource.info();
    place(resource, namespace, &mut object)?;
    if let KindRef::Custom(custom) = &resource.kind
        && custom.terminating
    {
        return Err(ApiError::definition_terminating());
    }
    if !object.text("/metadata/resourceVersion").is_empty() {
        let message = "resourceVersion should not be set on objects to be created";
        return Err(ApiError::bad_request(message));
    }
    let home = check_namespace(api, resource, namespace, object.text("/metadata/name"))?;
    admission::admit(context, None, &mut object)?;
    resource.strategy.admit(context, None, &mut object)?;
    let unnamed = object.text("/metadata/name").is_empty();
    let generate = unnamed.then(|| object.text("/metadata/generateName").to_owned());
    let system = json!({
        "uid": Uuid::new_v4().to_string(),
        "creationTimestamp": seconds(Timestamp::now()),
    });
    if let (Value::Object(metadata), Value::Object(system)) =
        (child(&mut object, "metadata"), system)
    {
        for gone in ["deletionTimestamp", "deletionGracePeriodSeconds", "generation", "selfLink"] {
            metadata.remove(gone);
        }
        metadata.extend(system);
        if info.generation {
            metadata.insert("generation".into(), 1.into());
        }
    }
    if info.status && !info.status_on_create {
        object.as_object_mut().map(|fields| fields.remove("status"));
    }
    let Some(prefix) = generate else {
        let written = insert(context, finished(context, object), home).await?;
        return Ok(written.with_first(warnings));
    };
    for _ in 0..8 {
        let mut object = object.clone();
        if !prefix.is_empty() {
            object["metadata"]["name"] = generated(&prefix).into();
        }
        match insert(context, finished(context, object), home.clone()).await {
            Err(error) if error.reason == "AlreadyExists" => {}
            result => return result.map(|written| written.with_first(warnings)),
        }
    }
    Err(ApiError::already_exists(info, &prefix))
}

/// A new object with everything that its kind adds.
fn finished(context: &Context<'_>, mut object: Value) -> Value {
    context.resource.kind.default(&mut object);
    context.resource.kind.prepare_create(&mut object);
    context.track(None, &mut object);
    object
}

async fn insert(
    context: &Context<'_>,
    object: Value,
    mut home: Option<NamespaceGuard>,
) -> Result<Written, ApiError> {
    let Context { api, resource, namespace, dry_run, .. } = *context;
    let info = resource.info();
    let name = object.text("/metadata/name").to_owned();
    let key = resource.key(namespace, &name);
    let mut common = CommonTurn::default();
    let mut turns = admission::turns(api, resource, namespace, Occasion::Create).await;
    for _ in 0..ATTEMPTS {
        if !name.is_empty() && api.storage.store.get(&key).is_some() {
            return Err(ApiError::already_exists(info, &name));
        }
        let mut object = object.clone();
        let mut transaction = Transaction::new().expect(key.clone(), None);
        if let Some(NamespaceGuard { key, revision }) = &home {
            transaction = transaction.expect(key.clone(), Some(*revision));
        }
        let transaction = resource.strategy.complete(context, None, &mut object, transaction)?;
        validate(resource, Writable::Main, &object, None)?;
        let transaction = admission::complete(context, None, &object, transaction)?;
        if !common.allows(api, resource, &transaction) {
            drop(turns);
            common.wait().await;
            turns = admission::turns(api, resource, namespace, Occasion::Create).await;
            continue;
        }
        let notes = resource.strategy.notes(context, None, &object);
        let notes = notes.and(admission::notes(context, None, &object));
        let mut warnings = resource.kind.warnings_on_create(&object);
        warnings.extend(notes.warnings);
        let value = encode(resource, &object)?;
        let transaction = transaction.put(key.clone(), value.clone());
        if let Some(revision) = commit(api, resource, transaction, dry_run).await? {
            let entry = Entry { key, value, revision };
            return Ok(Written { entry, created: true, warnings, audit: notes.audit });
        }
        home = check_namespace(api, resource, namespace, &name)?;
    }
    Err(contended(&key))
}

/// How deep an object may be: what is nested deeper could not be read again, and those who list
/// objects nest them in something else.
const DEPTH: usize = 110;

/// The bytes to store, unless they are more than a client could send: objects do not grow by many
/// small patches either.
pub(super) fn encode(resource: &Resource, object: &Value) -> Result<Bytes, ApiError> {
    if is_deeper(object, DEPTH) {
        return Err(ApiError::bad_request("exceeded max depth"));
    }
    let value = resource.encode(object);
    if value.len() <= LIMIT { Ok(value) } else { Err(ApiError::too_large(LIMIT)) }
}

/// Changes an object: `change` makes the new state of the present one. A new state that names a
/// resourceVersion insists on it.
pub(crate) async fn update(
    context: &Context<'_>,
    name: &str,
    part: Writable,
    mut change: impl FnMut(&Value) -> Result<Changed, ApiError>,
) -> Result<Written, ApiError> {
    let update = Update { context, name, part };
    let store = &context.api.storage.store;
    // Where others write, too, memory may be behind: an attempt from there may end in a commit, but every
    // other end is looked at again when it is certain that nothing is missing.
    let mut certain = !store.is_shared();
    let mut common = CommonTurn::default();
    for _ in 0..ATTEMPTS {
        common.wait().await;
        let before = store.revision();
        match update.attempt(&mut change, &mut common).await {
            Ok(None) => {}
            Ok(Some(written)) if certain || written.entry.revision > before => return Ok(written),
            Err(error) if certain || !error.is_refusal() => return Err(error),
            Ok(Some(_)) | Err(_) => {
                store.fresh().await?;
                certain = true;
            }
        }
    }
    Err(contended(&context.resource.key(context.namespace, name)))
}

/// The answer to whoever was overtaken too often.
pub(super) fn contended(key: &Key) -> ApiError {
    ApiError::internal(format!("too many writers compete for {key}"))
}

/// Carries out a transaction about objects of a kind, and what follows from it; `None` means that
/// something changed meanwhile.
///
/// A dry run answers with the revision the store already has, and nothing follows.
pub(crate) async fn commit(
    api: &Api,
    resource: &Resource,
    transaction: Transaction,
    dry_run: bool,
) -> Result<Option<Revision>, ApiError> {
    if dry_run {
        return Ok(Some(api.storage.store.revision()));
    }
    let dns = api.dns().filter(|dns| dns.concerns(&transaction));
    match commit_with_less(&api.storage.store, transaction).await {
        Ok(revision) => {
            if let Some(dns) = dns {
                dns.wait(revision).await;
            }
            if let Some(afterwards) = resource.strategy.committed(api) {
                afterwards.await?;
            }
            Ok(Some(revision))
        }
        Err(StoreError::Conflict { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Where there is no room, a removal does without what it would write besides: counts and ports are
/// mended later, and the object is gone.
async fn commit_with_less(store: &Store, transaction: Transaction) -> Result<Revision, StoreError> {
    let less = store.is_shared().then(|| transaction.removal_alone()).flatten();
    match (store.commit(transaction).await, less) {
        (Err(StoreError::NoSpace { .. }), Some(less)) => store.commit(less).await,
        (result, _) => result,
    }
}

/// Puts the object into the namespace of the request.
pub(super) fn place(
    resource: &Resource,
    namespace: &str,
    object: &mut Value,
) -> Result<(), ApiError> {
    let given = object.text("/metadata/namespace").to_owned();
    if !given.is_empty() && given != namespace {
        let message = if resource.info().namespaced {
            "the namespace of the provided object does not match the namespace sent on the request"
        } else {
            "namespace is not allowed on this type"
        };
        return Err(ApiError::bad_request(message));
    }
    if resource.info().namespaced {
        child(object, "metadata")["namespace"] = namespace.into();
    }
    Ok(())
}

/// The namespace of a new object, as it was when it was looked at: it must not begin to go, or be
/// gone, before the object is in it.
#[derive(Clone)]
struct NamespaceGuard {
    key: Key,
    revision: Revision,
}

/// Nothing is put into a namespace that does not exist, or that is going away.
fn check_namespace(
    api: &Api,
    resource: &Resource,
    namespace: &str,
    name: &str,
) -> Result<Option<NamespaceGuard>, ApiError> {
    if !resource.info().namespaced {
        return Ok(None);
    }
    let registry = api.registry();
    let namespaces = registry.core("namespaces");
    let key = namespaces.key("", namespace);
    let Some(entry) = api.storage.store.get(&key) else {
        return Err(ApiError::not_found(namespaces.info(), namespace));
    };
    let home = Some(NamespaceGuard { key, revision: entry.revision });
    // Few namespaces mention the word, and only those need a closer look.
    let word = b"\"Terminating\"";
    if !entry.value.windows(word.len()).any(|part| part == word) {
        return Ok(home);
    }
    match object::value(&entry).text("/status/phase") {
        "Terminating" => Err(ApiError::terminating(resource.info(), name, namespace)),
        _ => Ok(home),
    }
}

pub(super) fn validate(
    resource: &Resource,
    part: Writable,
    object: &Value,
    old: Option<&Value>,
) -> Result<(), ApiError> {
    let mut causes = Causes::default();
    metadata::validate(resource.info(), object, &mut causes);
    if let Some(old) = old {
        metadata::validate_update(object, old, &mut causes);
    }
    match (part, old) {
        (Writable::Status, Some(old)) => resource.kind.validate_status(object, old, &mut causes),
        (Writable::Field(name) | Writable::Chosen(name), Some(old)) => {
            resource.kind.validate_subresource(name, object, old, &mut causes);
        }
        _ => resource.kind.validate(object, old, &mut causes),
    }
    if causes.0.is_empty() {
        return Ok(());
    }
    Err(ApiError::invalid(resource.info(), object.text("/metadata/name"), &causes.0))
}

/// A moment as Kubernetes writes it, to the second.
pub(crate) fn seconds(moment: Timestamp) -> String {
    let whole = Timestamp::from_second(moment.as_second()).expect("a second of this era");
    whole.to_string()
}

/// A name from `generateName`: five characters that cannot spell anything.
pub(crate) fn generated(prefix: &str) -> String {
    const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let random = Uuid::new_v4();
    let letter = |byte: &u8| char::from(LETTERS[usize::from(*byte) % LETTERS.len()]);
    // Leave room for the suffix in a name of 63 characters.
    let end = prefix.len().min(58);
    let prefix = prefix.get(..end).unwrap_or(prefix);
    prefix.chars().chain(random.as_bytes()[..5].iter().map(letter)).collect()
}
