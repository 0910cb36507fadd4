//! Deleting: at once, after a grace period, or when the last finalizer is gone.

use jiff::{SignedDuration, Timestamp};
use roadstead_api::invalid::Causes;
use roadstead_api::look::Look;
use roadstead_plan::gc;
use roadstead_store::entry::{Entry, Revision};
use roadstead_store::transaction::Transaction;
use serde_json::{Value, json};

use crate::allocate;
use crate::api::Api;
use crate::cleanup;
use crate::custom;
use crate::error::ApiError;
use crate::registry::Resource;
use crate::unreadable;
use crate::write::{commit, seconds};

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
    /// What becomes of dependents; `None` leaves it to what was asked for before.
    pub propagation: Option<Propagation>,
}

/// What becomes of the dependents of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    /// They go after it.
    Background,
    /// They go before it.
    Foreground,
    /// They stay.
    Orphan,
}

impl Propagation {
    /// The finalizer by which the garbage collector learns of it.
    fn finalizer(self) -> Option<&'static str> {
        match self {
            Self::Background => None,
            Self::Foreground => Some(gc::FOREGROUND),
            Self::Orphan => Some(gc::ORPHAN),
        }
    }
}

impl Options {
    /// Reads a `DeleteOptions`.
    pub fn read(body: &Value, dry_run: bool) -> Result<Self, ApiError> {
        let text = |pointer| Some(body.text(pointer).to_owned()).filter(|text| !text.is_empty());
        let mut causes = Causes::default();
        let orphan = body.get("orphanDependents").and_then(Value::as_bool);
        if orphan.is_some() && body.has("/propagationPolicy") {
            let detail = "orphanDependents and deletionPropagation cannot be both set";
            causes.invalid("propagationPolicy", &body["propagationPolicy"], detail);
        }
        let propagation = match (body.text("/propagationPolicy"), orphan) {
            ("Background", _) | ("", Some(false)) => Some(Propagation::Background),
            ("Foreground", _) => Some(Propagation::Foreground),
            ("Orphan", _) | ("", Some(true)) => Some(Propagation::Orphan),
            ("", None) => None,
            (other, _) => {
                let known = ["Foreground", "Background", "Orphan", "nil"];
                causes.unsupported("propagationPolicy", &json!(other), &known);
                None
            }
        };
        let words = body.list("/dryRun");
        if words.iter().any(|word| word != "All") {
            causes.unsupported("dryRun", &json!(words), &["All"]);
        }
        if !causes.0.is_empty() {
            return Err(ApiError::invalid_options("DeleteOptions", &causes.0));
        }
        Ok(Self {
            grace: body.get("gracePeriodSeconds").and_then(Value::as_i64),
            uid: text("/preconditions/uid"),
            version: text("/preconditions/resourceVersion"),
            dry_run: dry_run || !words.is_empty(),
            propagation,
        })
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
        if unreadable::is_unreadable(api, &key).is_some() {
            let removal = unreadable::removal(resource, &key, entry.revision);
            match commit(api, resource, removal, options.dry_run).await? {
                Some(_) => return Ok(Deleted::Gone(json!({"metadata": {"name": name}}))),
                None => continue,
            }
        }
        check_preconditions(resource, &object, name, options)?;
        let grace = grace(resource, &object, options);
        // Whoever deletes it again may have changed their mind.
        let told = options.propagation.is_some_and(|wanted| propagate(&mut object, wanted));
        if resource.bucket == custom::DEFINITIONS && !object.has("/metadata/deletionTimestamp") {
            hold(&mut object, cleanup::FINALIZER);
        }
        let held = !object.list("/metadata/finalizers").is_empty()
            || !object.list("/spec/finalizers").is_empty();
        let transaction = Transaction::new().expect(key.clone(), Some(entry.revision)).freeing();
        if !held && grace == 0 {
            let removal = Removal { api, resource, object: &object, dry_run: options.dry_run };
            match removal.commit(transaction).await? {
                Some(revision) => {
                    object["metadata"]["resourceVersion"] = revision.to_string().into();
                    return Ok(Deleted::Gone(object));
                }
                None => continue,
            }
        }
        if !mark(resource, &mut object, grace) && !told {
            return Ok(Deleted::Going(Entry {
                key,
                value: entry.value.clone(),
                revision: entry.revision,
            }));
        }
        let value = resource.encode(&object);
        let transaction = transaction.put(key.clone(), value.clone());
        if let Some(revision) = commit(api, resource, transaction, options.dry_run).await? {
            return Ok(Deleted::Going(Entry { key, value, revision }));
        }
    }
}

/// An object that nothing holds any more. This is the only way for one to go, whoever lets it:
/// with it goes what it holds, and what it stands for comes back if another object needs it.
pub struct Removal<'a> {
    /// The server.
    pub api: &'a Api,
    /// The kind.
    pub resource: &'a Resource,
    /// The object in its last state.
    pub object: &'a Value,
    /// Whether nothing is really removed.
    pub dry_run: bool,
}

impl Removal<'_> {
    /// Removes the object, if `guard` is still true; `None` means that it is not.
    pub async fn commit(&self, guard: Transaction) -> Result<Option<Revision>, ApiError> {
        let Self { api, resource, object, dry_run } = *self;
        let (namespace, name) = (object.text("/metadata/namespace"), object.text("/metadata/name"));
        let transaction = allocate::release(resource, object, guard);
        let transaction = transaction.delete(resource.key(namespace, name));
        let transaction = allocate::restore(api, resource, object, transaction);
        let removed = commit(api, resource, transaction, dry_run).await?;
        if removed.is_some() && !dry_run {
            cleanup::after_removal(api, resource).await?;
        }
        Ok(removed)
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

/// Tells the garbage collector what becomes of dependents; false if it knew.
fn propagate(object: &mut Value, wanted: Propagation) -> bool {
    let before = object.list("/metadata/finalizers").to_vec();
    let others = before.iter().filter(|own| **own != gc::FOREGROUND && **own != gc::ORPHAN);
    let others: Vec<_> = others.cloned().collect();
    let unchanged = wanted.finalizer().map_or(before == others, |own| before.contains(&own.into()));
    if unchanged {
        return false;
    }
    object["metadata"]["finalizers"] = others.into();
    if let Some(finalizer) = wanted.finalizer() {
        hold(object, finalizer);
    }
    true
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

#[test]
fn dependents_are_told_of() {
    // The finalizers before, what is asked for, the finalizers after.
    let cases = [
        ("", Propagation::Foreground, "foregroundDeletion"),
        ("a", Propagation::Orphan, "a orphan"),
        ("a orphan", Propagation::Foreground, "a foregroundDeletion"),
        ("foregroundDeletion a", Propagation::Background, "a"),
        ("a foregroundDeletion", Propagation::Foreground, "a foregroundDeletion"),
        ("a", Propagation::Background, "a"),
    ];
    for (before, wanted, after) in cases {
        let list = |text: &str| text.split_whitespace().map(Value::from).collect::<Vec<_>>();
        let mut object = json!({"metadata": {"finalizers": list(before)}});
        let told = propagate(&mut object, wanted);
        assert_eq!(object.list("/metadata/finalizers"), list(after), "{before} {wanted:?}");
        assert_eq!(told, before != after, "{before} {wanted:?}");
    }
}
