//! Deleting: at once, after a grace period, or when the last finalizer is gone.

use jiff::{SignedDuration, Timestamp};
use roadstead_api::look::Look;
use roadstead_plan::gc;
use roadstead_store::entry::Entry;
use roadstead_store::transaction::Transaction;
use serde_json::{Value, json};

use crate::allocate::{self, ranges};
use crate::api::Api;
use crate::cleanup;
use crate::custom;
use crate::error::ApiError;
use crate::object;
use crate::registry::Resource;
use crate::write::{Written, commit, seconds};

/// What the client said about the deletion, in the body or the query.
#[derive(Debug, Default)]
pub struct Options {
    /// How long the object may take to go; `None` leaves it to the object.
    pub grace: Option<i64>,
    /// The object must still be this one.
    pub uid: Option<String>,
    /// The object must still be in this state.
    pub version: Option<String>,
    /// Whether nothing is really deleted.
    pub dry_run: bool,
    /// The finalizer by which the garbage collector learns what to do about dependents.
    pub finalizer: Option<&'static str>,
}

impl Options {
    /// Reads a `DeleteOptions`.
    pub fn read(body: &Value, dry_run: bool) -> Self {
        let text = |pointer| Some(body.text(pointer).to_owned()).filter(|text| !text.is_empty());
        Self {
            grace: body.get("gracePeriodSeconds").and_then(Value::as_i64),
            uid: text("/preconditions/uid"),
            version: text("/preconditions/resourceVersion"),
            dry_run: dry_run || body.list("/dryRun").iter().any(|word| word == "All"),
            finalizer: match body.text("/propagationPolicy") {
                "Foreground" => Some(gc::FOREGROUND),
                "Orphan" => Some(gc::ORPHAN),
                _ => body.flag("/orphanDependents").then_some(gc::ORPHAN),
            },
        }
    }
}

/// What became of the object.
#[derive(Debug)]
pub enum Deleted {
    /// It is gone; this was its last state.
    Gone(Value),
    /// It will go; this is its present state.
    Going(Entry),
}

/// Deletes one object.
pub async fn delete(
    api: &Api,
    resource: &Resource,
    namespace: &str,
    name: &str,
    options: &Options,
) -> Result<Deleted, ApiError> {
    let info = resource.info();
    let key = resource.key(namespace, name);
    check_permanent(resource, name)?;
    loop {
        let Some(entry) = api.store.get(&key) else {
            return Err(ApiError::not_found(info, name));
        };
        let mut object = resource.value(&entry);
        check_preconditions(resource, &object, name, options)?;
        let grace = grace(resource, &object, options);
        if let Some(finalizer) = options.finalizer {
            hold(&mut object, finalizer);
        }
        if resource.bucket == custom::DEFINITIONS && !object.has("/metadata/deletionTimestamp") {
            hold(&mut object, cleanup::FINALIZER);
        }
        let held = !object.list("/metadata/finalizers").is_empty()
            || !object.list("/spec/finalizers").is_empty();
        let transaction = Transaction::new().expect(key.clone(), Some(entry.revision));
        if !held && grace == 0 {
            let transaction = allocate::release(resource, &object, transaction);
            let transaction = transaction.delete(key.clone());
            let transaction = allocate::restore(api, resource, &object, transaction);
            match commit(api, transaction, options.dry_run).await? {
                Some(revision) => {
                    ranges::tidy(api, resource).await?;
                    cleanup::after_removal(api, resource).await?;
                    object["metadata"]["resourceVersion"] = revision.to_string().into();
                    return Ok(Deleted::Gone(object));
                }
                None => continue,
            }
        }
        if !mark(resource, &mut object, grace) {
            return Ok(Deleted::Going(Entry {
                key,
                value: entry.value.clone(),
                revision: entry.revision,
            }));
        }
        let value = resource.encode(&object);
        let commit =
            commit(api, transaction.put(key.clone(), value.clone()), options.dry_run).await?;
        if let Some(revision) = commit {
            ranges::tidy(api, resource).await?;
            return Ok(Deleted::Going(Entry { key, value, revision }));
        }
    }
}

/// Removes an object whose last finalizer an update has just removed.
pub async fn finish(
    api: &Api,
    resource: &Resource,
    entry: &Entry,
    transaction: Transaction,
    dry_run: bool,
) -> Result<Written, ApiError> {
    let object = object::value(entry);
    let transaction = allocate::release(resource, &object, transaction);
    match commit(api, transaction.delete(entry.key.clone()), dry_run).await? {
        Some(revision) => {
            ranges::tidy(api, resource).await?;
            cleanup::after_removal(api, resource).await?;
            let value = entry.value.clone();
            let entry = Entry { key: entry.key.clone(), value, revision };
            Ok(Written { entry, created: false, warnings: Vec::new() })
        }
        None => Err(ApiError::modified(resource.info(), object.text("/metadata/name"))),
    }
}

/// Namespaces that the system itself lives in.
fn check_permanent(resource: &Resource, name: &str) -> Result<(), ApiError> {
    let permanent = ["default", "kube-system", "kube-public", "kube-node-lease"];
    if resource.bucket == "namespaces" && permanent.contains(&name) {
        let message =
            format!("namespaces {name:?} is forbidden: this namespace may not be deleted");
        return Err(ApiError::forbidden(message));
    }
    Ok(())
}

fn check_preconditions(
    resource: &Resource,
    object: &Value,
    name: &str,
    options: &Options,
) -> Result<(), ApiError> {
    let checks = [
        ("UID", &options.uid, object.text("/metadata/uid")),
        ("ResourceVersion", &options.version, object.text("/metadata/resourceVersion")),
    ];
    for (what, expected, found) in checks {
        if let Some(expected) = expected
            && expected != found
        {
            let why = format!(
                "Precondition failed: {what} in precondition: {expected}, {what} in object meta: \
                 {found}"
            );
            return Err(ApiError::conflict(resource.info(), name, &why));
        }
    }
    Ok(())
}

/// Only pods take time to go, and only those that a node may be running.
fn grace(resource: &Resource, object: &Value, options: &Options) -> i64 {
    let finished = ["Succeeded", "Failed"].contains(&object.text("/status/phase"));
    if resource.bucket != "pods" || object.text("/spec/nodeName").is_empty() || finished {
        return 0;
    }
    let own = object.int("/spec/terminationGracePeriodSeconds");
    options.grace.unwrap_or(own).max(0)
}

/// Makes the object wait for somebody.
fn hold(object: &mut Value, finalizer: &str) {
    let held = object["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
    if !held.iter().any(|name| name == finalizer) {
        let all: Vec<_> = held.into_iter().chain([finalizer.into()]).collect();
        object["metadata"]["finalizers"] = all.into();
    }
}

/// Marks the object as going; false if it was marked already and nothing changes. A second
/// deletion can only shorten the time.
fn mark(resource: &Resource, object: &mut Value, grace: i64) -> bool {
    let marked = object.has("/metadata/deletionTimestamp");
    if marked && grace >= object.int("/metadata/deletionGracePeriodSeconds") {
        return false;
    }
    let end = Timestamp::now() + SignedDuration::from_secs(grace);
    object["metadata"]["deletionTimestamp"] = seconds(end).into();
    object["metadata"]["deletionGracePeriodSeconds"] = grace.into();
    if resource.bucket == "namespaces" {
        object["status"]["phase"] = "Terminating".into();
    }
    if resource.bucket == custom::DEFINITIONS && !marked {
        let mut conditions = object.list("/status/conditions").to_vec();
        conditions.push(cleanup::terminating());
        object["status"]["conditions"] = conditions.into();
    }
    if resource.info().generation {
        object["metadata"]["generation"] = (object.int("/metadata/generation") + 1).into();
    }
    true
}

/// The Status that answers a deletion when the object itself does not.
pub fn success(resource: &Resource, object: &Value) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
        "details": {"name": object["metadata"]["name"], "group": resource.info().group,
            "kind": resource.info().plural, "uid": object["metadata"]["uid"]}})
}
