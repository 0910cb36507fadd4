//! One attempt to change an object: the new state is computed from the present one, and committed if
//! nothing changed meanwhile.

use roadstead_api::kind::Info;
use roadstead_api::metadata;
use roadstead_patch::apply::managers::keep_times;
use roadstead_schema::json::{Pointer, child};
use roadstead_store::entry::Entry;
use roadstead_store::transaction::Transaction;
use serde_json::Value;

use crate::error::ApiError;
use crate::kinds::Notes;
use crate::kinds::admission::{self, Occasion};
use crate::objects::common_turn::CommonTurn;
use crate::objects::delete::Removal;
use crate::objects::write::{Changed, Context, Writable, Written, commit, encode, place, validate};
use crate::registry::Resource;

/// A change of one object.
pub(super) struct Update<'a> {
    pub(super) context: &'a Context<'a>,
    pub(super) name: &'a str,
    pub(super) part: Writable,
}

impl Update<'_> {
    /// Computes the new state and commits it; `None` means that something changed meanwhile.
    pub(super) async fn attempt(
        &self,
        change: &mut impl FnMut(&Value) -> Result<Changed, ApiError>,
        common: &mut CommonTurn,
    ) -> Result<Option<Written>, ApiError> {
        let Context { api, resource, namespace, dry_run, .. } = *self.context;
        let key = resource.key(namespace, self.name);
        let occasion = match self.part {
            Writable::Main => Some(Occasion::Update),
            Writable::Chosen(_) => Some(Occasion::Resize),
            Writable::Status | Writable::Field(_) | Writable::Whole => None,
        };
        let _turns = match occasion {
            Some(occasion) => admission::turns(api, resource, namespace, occasion).await,
            None => Vec::new(),
        };
        let Some(entry) = api.storage.store.get(&key) else {
            return Err(ApiError::not_found(resource.info(), self.name));
        };
        api.storage.check_one(resource, &key)?;
        let old = resource.value(&entry);
        let Changed { object: mut new, mut warnings } = change(&old)?;
        let guard = Transaction::new().expect(key.clone(), Some(entry.revision));
        let mut transaction = self.next_state(&entry, &old, &mut new, guard.clone())?;
        if occasion.is_some() {
            transaction = admission::complete(self.context, Some(&old), &new, transaction)?;
        }
        warnings.extend(match self.part {
            Writable::Status => resource.kind.status_warnings(&new),
            Writable::Main | Writable::Field(_) | Writable::Chosen(_) | Writable::Whole => {
                resource.kind.warnings(&new)
            }
        });
        if !common.allows(api, resource, &transaction) {
            return Ok(None);
        }
        let notes = match self.part {
            Writable::Main | Writable::Field(_) | Writable::Chosen(_) => {
                let notes = resource.strategy.notes(self.context, Some(&old), &new);
                notes.and(admission::notes(self.context, Some(&old), &new))
            }
            Writable::Status | Writable::Whole => Notes::default(),
        };
        warnings.extend(notes.warnings);
        let (value, revision) = if is_released(&new) {
            // What the new state would have taken is not taken: the object goes.
            let removal = Removal { api, resource, object: &old, dry_run };
            (entry.value.clone(), removal.commit(guard, common).await?)
        } else {
            let value = encode(resource, &new)?;
            let revision = match dry_run || value == entry.value {
                true => Some(entry.revision),
                false => {
                    let transaction = transaction.put(key.clone(), value.clone());
                    commit(api, resource, transaction, dry_run).await?
                }
            };
            (value, revision)
        };
        Ok(revision.map(|revision| {
            let entry = Entry { key, value, revision };
            Written { entry, created: false, warnings, audit: notes.audit }
        }))
    }

    /// Makes of what the client wants the whole new state, and completes the transaction that writes
    /// it.
    fn next_state(
        &self,
        entry: &Entry,
        old: &Value,
        new: &mut Value,
        mut transaction: Transaction,
    ) -> Result<Transaction, ApiError> {
        let Self { context, part, .. } = *self;
        let resource = context.resource;
        admission::admit(context, Some(old), new)?;
        resource.strategy.admit(context, Some(old), new)?;
        self.check_identity(old, new)?;
        let expected = new.text("/metadata/resourceVersion");
        if !expected.is_empty() && expected != entry.revision.to_string() {
            return Err(ApiError::modified(resource.info(), self.name));
        }
        merge_parts(resource, part, old, new);
        context.track(Some(old), new);
        if part == Writable::Main {
            transaction = resource.strategy.complete(context, Some(old), new, transaction)?;
        }
        if part != Writable::Whole {
            validate(resource, part, new, Some(old))?;
        }
        if part != Writable::Status && counts(resource.info(), old, new) {
            new["metadata"]["generation"] = (old.int("/metadata/generation") + 1).into();
        }
        // Owners whose fields are the same keep the time at which they took them.
        keep_times(old, new);
        Ok(transaction)
    }

    /// An update cannot turn an object into another.
    fn check_identity(&self, old: &Value, new: &mut Value) -> Result<(), ApiError> {
        let Self { context: Context { resource, namespace, .. }, name, .. } = *self;
        let given = new.text("/metadata/name");
        if !given.is_empty() && given != name {
            let message = format!(
                "the name of the object ({given}) does not match the name on the URL ({name})"
            );
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
}

/// Takes from the new object only what the request is about.
fn merge_parts(resource: &Resource, part: Writable, old: &Value, new: &mut Value) {
    match part {
        Writable::Whole => return,
        Writable::Status => {
            let given = std::mem::replace(new, old.clone());
            new["metadata"] = given["metadata"].clone();
            take_status(&given, new);
            metadata::keep_system_fields(old, new);
            metadata::keep(old, new, resource.info().status_keeps);
            resource.kind.prepare_status(old, new);
        }
        Writable::Field(field) => {
            let given = std::mem::replace(new, old.clone());
            if let Some(owners) = given["metadata"].get("managedFields") {
                new["metadata"]["managedFields"] = owners.clone();
            }
            match given["spec"].get(field) {
                Some(value) => child(new, "spec")[field] = value.clone(),
                None => drop(child(new, "spec").as_object_mut().map(|spec| spec.remove(field))),
            }
        }
        Writable::Chosen(name) => {
            let given = std::mem::replace(new, old.clone());
            if let Some(owners) = given["metadata"].get("managedFields") {
                new["metadata"]["managedFields"] = owners.clone();
            }
            resource.kind.merge_subresource(name, &given, new);
        }
        Writable::Main => {
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
