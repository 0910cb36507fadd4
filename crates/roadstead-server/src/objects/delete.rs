//! Deleting: at once, after a grace period, or when the last finalizer is gone.

use jiff::{SignedDuration, Timestamp};
use roadstead_plan::garbage_collector;
use roadstead_schema::invalid::Causes;
use roadstead_schema::json::Pointer;
use roadstead_store::entry::{Entry, Key, Revision};
use roadstead_store::transaction::Transaction;
use serde_json::{Value, json};

use crate::api::Api;
use crate::error::ApiError;
use crate::kinds::admission::{self, Occasion};
use crate::objects::common_turn::CommonTurn;
use crate::objects::unreadable;
use crate::objects::write::{ATTEMPTS, commit, contended, seconds};
use crate::reading::object;
use crate::registry::Resource;

/// What the client said about the deletion, in the body or the query.
#[derive(Debug, Default)]
pub(crate) struct Options {
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
pub(crate) enum Propagation {
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
            Self::Foreground => Some(garbage_collector::FOREGROUND),
            Self::Orphan => Some(garbage_collector::ORPHAN),
        }
    }
}

impl Options {
    /// Reads a `DeleteOptions`.
    pub(crate) fn read(body: &Value, dry_run: bool) -> Result<Self, ApiError> {
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
pub(crate) enum Deleted {
    /// It is gone; this was its last state.
    Gone(Value),
    /// It will go; this is its present state.
    Going(Entry),
}

impl Deleted {
    /// Whether something was committed after a revision.
    fn is_since(&self, before: Revision) -> bool {
        match self {
            Self::Gone(_) => true,
            Self::Going(entry) => entry.revision > before,
        }
    }
}

/// One object that is to go.
#[derive(Clone, Copy)]
pub(crate) struct Deletion<'a> {
    pub(crate) api: &'a Api,
    pub(crate) resource: &'a Resource,
    /// Empty for cluster-scoped kinds.
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
}

impl Deletion<'_> {
    /// Removes the object, or marks it so that whoever holds it lets it go.
    pub(crate) async fn run(&self, options: &Options) -> Result<Deleted, ApiError> {
        let Self { api, resource, namespace, name } = *self;
        resource.strategy.check_deletion(name)?;
        let store = &api.storage.store;
        // As for updates: only a commit is certain at once.
        let mut certain = !store.is_shared();
        let mut common = CommonTurn::default();
        for _ in 0..ATTEMPTS {
            common.wait().await;
            let before = store.revision();
            let deleted = match self.attempt(options, &mut common).await {
                Ok(None) => continue,
                Ok(Some(deleted)) if certain || deleted.is_since(before) => deleted,
                Err(error) if certain || !error.is_refusal() => return Err(error),
                Ok(Some(_)) | Err(_) => {
                    store.fresh().await?;
                    certain = true;
                    continue;
                }
            };
            if !options.dry_run
                && let Some(afterwards) = resource.strategy.deleted(api, name)
            {
                afterwards.await?;
            }
            return Ok(deleted);
        }
        Err(contended(&resource.key(namespace, name)))
    }

    /// Whether the object is the one that the client means.
    pub(crate) fn check(&self, object: &Value, options: &Options) -> Result<(), ApiError> {
        check_preconditions(self.resource, object, self.name, options)
    }

    /// `None` means that something changed meanwhile.
    async fn attempt(
        &self,
        options: &Options,
        common: &mut CommonTurn,
    ) -> Result<Option<Deleted>, ApiError> {
        let Self { api, resource, namespace, name } = *self;
        let strategy = resource.strategy;
        let key = resource.key(namespace, name);
        let _turns = admission::turns(api, resource, namespace, Occasion::Delete).await;
        let Some(entry) = api.storage.store.get(&key) else {
            return Err(ApiError::not_found(resource.info(), name));
        };
        let guard = Transaction::new().expect(key.clone(), Some(entry.revision)).freeing();
        if api.storage.is_unreadable(&key).is_some() {
            let object = unreadable::outline(resource, &key);
            let guard = guard.put(key, object::encode(&object));
            let removal = Removal { api, resource, object: &object, dry_run: options.dry_run };
            let removed = removal.commit(guard, common).await?;
            return Ok(removed.map(|_| Deleted::Gone(json!({"metadata": {"name": name}}))));
        }
        let mut object = resource.value(&entry);
        check_preconditions(resource, &object, name, options)?;
        let grace = strategy.grace(&object, options.grace);
        // Whoever deletes it again may have changed their mind.
        let told = options.propagation.is_some_and(|wanted| propagate(&mut object, wanted));
        if let Some(finalizer) = strategy.finalizer()
            && !object.has("/metadata/deletionTimestamp")
        {
            hold(&mut object, finalizer);
        }
        let held = !object.list("/metadata/finalizers").is_empty()
            || !object.list("/spec/finalizers").is_empty();
        if !held && grace == 0 {
            let removal = Removal { api, resource, object: &object, dry_run: options.dry_run };
            let removed = removal.commit(guard, common).await?;
            return Ok(removed.map(|revision| {
                object["metadata"]["resourceVersion"] = revision.to_string().into();
                Deleted::Gone(object)
            }));
        }
        if !mark(resource, &mut object, grace) && !told {
            let (value, revision) = (entry.value.clone(), entry.revision);
            return Ok(Some(Deleted::Going(Entry { key, value, revision })));
        }
        let value = resource.encode(&object);
        let transaction = guard.put(key.clone(), value.clone());
        let marked = commit(api, resource, transaction, options.dry_run).await?;
        Ok(marked.map(|revision| Deleted::Going(Entry { key, value, revision })))
    }
}

/// An object that nothing holds any more. This is the only way for one to go, whoever lets it:
/// with it goes what it holds, and what it stands for comes back if another object needs it.
pub(crate) struct Removal<'a> {
    pub(crate) api: &'a Api,
    pub(crate) resource: &'a Resource,
    /// The object in its last state; of one that cannot be read only the name.
    pub(crate) object: &'a Value,
    pub(crate) dry_run: bool,
}

impl Removal<'_> {
    /// Where the store keeps it.
    pub(crate) fn key(&self) -> Key {
        let text = |pointer| self.object.text(pointer);
        self.resource.key(text("/metadata/namespace"), text("/metadata/name"))
    }

    /// Removes the object, if `guard` is still true; `None` means that it is not.
    pub(crate) async fn commit(
        &self,
        guard: Transaction,
        common: &mut CommonTurn,
    ) -> Result<Option<Revision>, ApiError> {
        let Self { api, resource, dry_run, .. } = *self;
        let transaction = resource.strategy.remove(self, guard);
        let transaction = admission::remove(self, transaction);
        if !dry_run && !common.allows(api, resource, &transaction) {
            return Ok(None);
        }
        let removed = commit(api, resource, transaction, dry_run).await?;
        if removed.is_some()
            && !dry_run
            && let Some(afterwards) = resource.strategy.removed(api, resource)
        {
            afterwards.await?;
        }
        Ok(removed)
    }
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

/// Tells the garbage collector what becomes of dependents; false if it knew.
fn propagate(object: &mut Value, wanted: Propagation) -> bool {
    let before = object.list("/metadata/finalizers").to_vec();
    let others = before
        .iter()
        .filter(|own| **own != garbage_collector::FOREGROUND && **own != garbage_collector::ORPHAN);
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
    // Who asks may ask for longer than time goes.
    let end = Timestamp::now().checked_add(SignedDuration::from_secs(grace));
    let end = end.unwrap_or(Timestamp::MAX);
    object["metadata"]["deletionTimestamp"] = seconds(end).into();
    object["metadata"]["deletionGracePeriodSeconds"] = grace.into();
    if !marked {
        resource.strategy.terminate(object);
    }
    if resource.info().generation {
        object["metadata"]["generation"] = (object.int("/metadata/generation") + 1).into();
    }
    true
}

/// The Status that answers a deletion when the object itself does not.
pub(crate) fn success(resource: &Resource, object: &Value) -> Value {
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
