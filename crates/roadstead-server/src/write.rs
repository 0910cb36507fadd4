//! Writing one object: the steps between what the client wants and what the store commits.
//!
//! Every write reads the present state, computes the whole new state from it, and commits under
//! the condition that nothing changed meanwhile; else it starts again, or tells the client.

use bytes::Bytes;
use jiff::Timestamp;
use roadstead_api::invalid::Causes;
use roadstead_api::kind::Info;
use roadstead_api::look::{Look, child, is_deeper};
use roadstead_api::metadata;
use roadstead_patch::apply::managers::{Manager, keep_times};
use roadstead_patch::apply::track;
use roadstead_patch::apply::typing::Typing;
use roadstead_store::entry::{Entry, Key, Revision};
use roadstead_store::error::StoreError;
use roadstead_store::transaction::Transaction;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::admit;
use crate::allocate::{Allocation, ranges};
use crate::api::Api;
use crate::body::LIMIT;
use crate::delete::Removal;
use crate::error::ApiError;
use crate::external_addresses;
use crate::object;
use crate::registry::{KindRef, Resource};
use crate::unreadable;

/// Not a dry run.
pub const REALLY: bool = false;

/// How often a write that does not insist on a revision is computed anew.
const ATTEMPTS: usize = 100;

/// A write that happened, or would have.
#[derive(Debug)]
pub struct Written {
    /// The object afterwards.
    pub entry: Entry,
    /// Whether it was created.
    pub created: bool,
    /// What to tell the user besides.
    pub warnings: Vec<String>,
}

/// What part of an object a write is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Everything but the status.
    Main,
    /// The status, and what its writers may say about the object in its metadata.
    Status,
    /// One field of the spec, and nothing else.
    Field(&'static str),
    /// Everything as it is given: used by the server itself.
    Whole,
}

/// Who writes which kind of object, and where.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    /// The server.
    pub api: &'a Api,
    /// The kind.
    pub resource: &'a Resource,
    /// Empty for cluster-scoped kinds.
    pub namespace: &'a str,
    /// Whether nothing is really written.
    pub dry_run: bool,
    /// Who will own what the write changes.
    pub owner: Owner<'a>,
}

/// Who owns the fields that a write changes.
#[derive(Clone, Copy, Debug)]
pub enum Owner<'a> {
    /// This manager, by way of this subresource (or none).
    Manager(&'a str, &'a str),
    /// The object says so itself: it has been applied.
    Settled,
}

impl Context<'_> {
    /// Records in `new` who owns what this write changes.
    fn track(&self, old: Option<&Value>, new: &mut Value) {
        let Owner::Manager(name, subresource) = self.owner else { return };
        let time = seconds(Timestamp::now());
        let api_version = self.resource.info().api_version();
        let manager = Manager { name, api_version: &api_version, subresource, time: &time };
        track::track(typing(self.api, self.resource), old, new, &manager);
    }
}

/// How the fields of a kind are merged.
pub fn typing<'a>(api: &'a Api, resource: &'a Resource) -> Typing<'a> {
    match (&resource.kind, resource.type_id) {
        (_, Some(id)) => Typing::known(api.schema, id),
        (KindRef::Custom(custom), None) => Typing::custom(&custom.structural),
        (KindRef::BuiltIn(_), None) => Typing::Free,
    }
}

/// Stores a new object.
pub async fn create(context: &Context<'_>, mut object: Value) -> Result<Written, ApiError> {
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
    admit::complete(api, resource, namespace, &mut object)?;
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
        return insert(context, finished(context, object), home).await;
    };
    for _ in 0..8 {
        let mut object = object.clone();
        if !prefix.is_empty() {
            object["metadata"]["name"] = generated(&prefix).into();
        }
        match insert(context, finished(context, object), home.clone()).await {
            Err(error) if error.reason == "AlreadyExists" => {}
            result => return result,
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
    mut home: Option<Home>,
) -> Result<Written, ApiError> {
    let Context { api, resource, namespace, dry_run, .. } = *context;
    let info = resource.info();
    let name = object.text("/metadata/name").to_owned();
    let key = resource.key(namespace, &name);
    for _ in 0..ATTEMPTS {
        if !name.is_empty() && api.store.get(&key).is_some() {
            return Err(ApiError::already_exists(info, &name));
        }
        let mut object = object.clone();
        let mut transaction = Transaction::new().expect(key.clone(), None);
        if let Some(Home { key, revision }) = &home {
            transaction = transaction.expect(key.clone(), Some(*revision));
        }
        external_addresses::check(api, resource, None, &object)?;
        let allocation = Allocation { api, resource, old: None, dry_run };
        let transaction = allocation.complete(&mut object, transaction)?;
        validate(resource, Part::Main, &object, None)?;
        let warnings = resource.kind.warnings_on_create(&object);
        let value = encode(resource, &object)?;
        let transaction = transaction.put(key.clone(), value.clone());
        if let Some(revision) = commit(api, resource, transaction, dry_run).await? {
            let entry = Entry { key, value, revision };
            return Ok(Written { entry, created: true, warnings });
        }
        home = check_namespace(api, resource, namespace, &name)?;
    }
    Err(ApiError::internal(format!("too many writers compete for {key}")))
}

/// How deep an object may be: what is nested deeper could not be read again, and those who list
/// objects nest them in something else.
const DEPTH: usize = 110;

/// The bytes to store, unless they are more than a client could send: objects do not grow by many
/// small patches either.
fn encode(resource: &Resource, object: &Value) -> Result<Bytes, ApiError> {
    if is_deeper(object, DEPTH) {
        return Err(ApiError::bad_request("exceeded max depth"));
    }
    let value = resource.encode(object);
    if value.len() <= LIMIT { Ok(value) } else { Err(ApiError::too_large(LIMIT)) }
}

/// Changes an object: `change` makes the new state of the present one. A new state that names a
/// resourceVersion insists on it.
pub async fn update(
    context: &Context<'_>,
    name: &str,
    part: Part,
    change: impl Fn(&Value) -> Result<Value, ApiError>,
) -> Result<Written, ApiError> {
    let Context { api, resource, namespace, dry_run, .. } = *context;
    let info = resource.info();
    let key = resource.key(namespace, name);
    for _ in 0..ATTEMPTS {
        let Some(entry) = api.store.get(&key) else {
            return Err(ApiError::not_found(info, name));
        };
        unreadable::check_one(api, resource, &key)?;
        let old = resource.value(&entry);
        let mut new = change(&old)?;
        if part == Part::Main {
            admit::complete_update(api, resource, &mut new);
        }
        check_identity(resource, &old, &mut new, namespace, name)?;
        let expected = new.text("/metadata/resourceVersion");
        if !expected.is_empty() && expected != entry.revision.to_string() {
            return Err(ApiError::modified(info, name));
        }
        merge_parts(resource, part, &old, &mut new);
        context.track(Some(&old), &mut new);
        let guarded = Transaction::new().expect(key.clone(), Some(entry.revision));
        let mut transaction = guarded.clone();
        if part == Part::Main {
            external_addresses::check(api, resource, Some(&old), &new)?;
            let allocation = Allocation { api, resource, old: Some(&old), dry_run };
            transaction = allocation.complete(&mut new, transaction)?;
        }
        if part != Part::Whole {
            validate(resource, part, &new, Some(&old))?;
        }
        let warnings = match part {
            Part::Status => resource.kind.status_warnings(&new),
            Part::Main | Part::Field(_) | Part::Whole => resource.kind.warnings(&new),
        };
        if is_released(&new) {
            // What the new state would have taken is not taken: the object goes.
            let removal = Removal { api, resource, object: &old, dry_run };
            match removal.commit(guarded).await? {
                Some(revision) => {
                    let entry = Entry { key, value: entry.value.clone(), revision };
                    return Ok(Written { entry, created: false, warnings });
                }
                None => continue,
            }
        }
        if part != Part::Status && counts(info, &old, &new) {
            new["metadata"]["generation"] = (old.int("/metadata/generation") + 1).into();
        }
        // Owners whose fields are the same keep the time at which they took them.
        keep_times(&old, &mut new);
        let value = encode(resource, &new)?;
        if value == entry.value {
            let entry = Entry { key, value, revision: entry.revision };
            return Ok(Written { entry, created: false, warnings });
        }
        if dry_run {
            let entry = Entry { key, value, revision: entry.revision };
            return Ok(Written { entry, created: false, warnings });
        }
        let transaction = transaction.put(key.clone(), value.clone());
        if let Some(revision) = commit(api, resource, transaction, dry_run).await? {
            let entry = Entry { key, value, revision };
            return Ok(Written { entry, created: false, warnings });
        }
    }
    Err(ApiError::internal(format!("too many writers compete for {key}")))
}

/// Carries out a transaction about objects of a kind, and what follows from it; `None` means that
/// something changed meanwhile.
///
/// A dry run answers with the revision the store already has, and nothing follows.
pub async fn commit(
    api: &Api,
    resource: &Resource,
    transaction: Transaction,
    dry_run: bool,
) -> Result<Option<Revision>, ApiError> {
    if dry_run {
        return Ok(Some(api.store.revision()));
    }
    let settled = api.settled.get().filter(|settled| settled.concerns(&transaction));
    match api.store.commit(transaction).await {
        Ok(revision) => {
            if let Some(settled) = settled {
                settled.wait(revision).await;
            }
            ranges::tidy(api, resource).await?;
            Ok(Some(revision))
        }
        Err(StoreError::Conflict { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Puts the object into the namespace of the request.
fn place(resource: &Resource, namespace: &str, object: &mut Value) -> Result<(), ApiError> {
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
struct Home {
    key: Key,
    revision: Revision,
}

/// Nothing is put into a namespace that does not exist, or that is going away.
fn check_namespace(
    api: &Api,
    resource: &Resource,
    namespace: &str,
    name: &str,
) -> Result<Option<Home>, ApiError> {
    if !resource.info().namespaced {
        return Ok(None);
    }
    let registry = api.registry();
    let namespaces = registry.core("namespaces");
    let key = namespaces.key("", namespace);
    let Some(entry) = api.store.get(&key) else {
        return Err(ApiError::not_found(namespaces.info(), namespace));
    };
    let home = Some(Home { key, revision: entry.revision });
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

/// An update cannot turn an object into another.
fn check_identity(
    resource: &Resource,
    old: &Value,
    new: &mut Value,
    namespace: &str,
    name: &str,
) -> Result<(), ApiError> {
    let given = new.text("/metadata/name");
    if !given.is_empty() && given != name {
        let message =
            format!("the name of the object ({given}) does not match the name on the URL ({name})");
        return Err(ApiError::bad_request(message));
    }
    child(new, "metadata")["name"] = name.into();
    place(resource, namespace, new)?;
    let uid = new.text("/metadata/uid");
    if !uid.is_empty() && uid != old.text("/metadata/uid") {
        let why = format!(
            "Precondition failed: UID in precondition: {uid}, UID in object meta: {}",
            old.text("/metadata/uid")
        );
        return Err(ApiError::conflict(resource.info(), name, &why));
    }
    Ok(())
}

/// Takes from the new object only what the request is about.
fn merge_parts(resource: &Resource, part: Part, old: &Value, new: &mut Value) {
    match part {
        Part::Whole => return,
        Part::Status => {
            let given = std::mem::replace(new, old.clone());
            new["metadata"] = given["metadata"].clone();
            take_status(&given, new);
            metadata::keep_system_fields(old, new);
            metadata::keep(old, new, resource.info().status_keeps);
            resource.kind.prepare_status(old, new);
        }
        Part::Field(field) => {
            let given = std::mem::replace(new, old.clone());
            if let Some(owners) = given["metadata"].get("managedFields") {
                new["metadata"]["managedFields"] = owners.clone();
            }
            match given["spec"].get(field) {
                Some(value) => child(new, "spec")[field] = value.clone(),
                None => drop(child(new, "spec").as_object_mut().map(|spec| spec.remove(field))),
            }
        }
        Part::Main => {
            if resource.info().status {
                take_status(old, new);
            }
            metadata::keep_system_fields(old, new);
            resource.kind.prepare_update(old, new);
        }
    }
    resource.kind.default(new);
}

/// Gives an object the status of another, or none.
fn take_status(from: &Value, to: &mut Value) {
    match from.get("status") {
        Some(status) => to["status"] = status.clone(),
        None => drop(to.as_object_mut().map(|fields| fields.remove("status"))),
    }
}

fn validate(
    resource: &Resource,
    part: Part,
    object: &Value,
    old: Option<&Value>,
) -> Result<(), ApiError> {
    let mut causes = Causes::default();
    metadata::validate(resource.info(), object, &mut causes);
    if let Some(old) = old {
        metadata::validate_update(object, old, &mut causes);
    }
    match (part, old) {
        (Part::Status, Some(old)) => resource.kind.validate_status(object, old, &mut causes),
        (Part::Field(_), Some(old)) => {
            resource.kind.validate_subresource(object, old, &mut causes);
        }
        _ => resource.kind.validate(object, old, &mut causes),
    }
    if causes.0.is_empty() {
        return Ok(());
    }
    Err(ApiError::invalid(resource.info(), object.text("/metadata/name"), &causes.0))
}

/// An object that waits for deletion goes when its last finalizer is gone.
fn is_released(object: &Value) -> bool {
    object.has("/metadata/deletionTimestamp")
        && object.list("/metadata/finalizers").is_empty()
        && object.list("/spec/finalizers").is_empty()
        && object.int("/metadata/deletionGracePeriodSeconds") == 0
}

/// Whether `metadata.generation` counts a change: everything but metadata and status, usually.
fn counts(info: &Info, old: &Value, new: &Value) -> bool {
    fn content(object: &Value) -> impl Iterator<Item = (&String, &Value)> {
        let fields = object.as_object().into_iter().flatten();
        fields.filter(|(name, _)| !["metadata", "status"].contains(&name.as_str()))
    }
    let differs = |field: &&str| old["metadata"].get(field) != new["metadata"].get(field);
    info.generation && (!content(old).eq(content(new)) || info.counted.iter().any(differs))
}

/// A moment as Kubernetes writes it, to the second.
pub fn seconds(moment: Timestamp) -> String {
    let whole = Timestamp::from_second(moment.as_second()).expect("a second of this era");
    whole.to_string()
}

/// A name from `generateName`: five characters that cannot spell anything.
fn generated(prefix: &str) -> String {
    const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let random = Uuid::new_v4();
    let letter = |byte: &u8| char::from(LETTERS[usize::from(*byte) % LETTERS.len()]);
    // Leave room for the suffix in a name of 63 characters.
    let end = prefix.len().min(58);
    let prefix = prefix.get(..end).unwrap_or(prefix);
    prefix.chars().chain(random.as_bytes()[..5].iter().map(letter)).collect()
}
