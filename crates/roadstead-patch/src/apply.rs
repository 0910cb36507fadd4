//! Server-side apply: a client says what it wants, and the server knows who wants what.
//!
//! Every field of an object has owners, kept in `metadata.managedFields`. Applying a
//! configuration sets its fields, removes those that the same manager applied before and nobody
//! else owns, and refuses to change what others own, unless forced. All other writes go through
//! [`track::track`], which records who changed what. (KEP-555; upstream: structured-merge-diff.)
//!
//! Owners that wrote another version of the kind are taken to speak of the same fields. Random
//! histories of Services give the same objects, conflicts and owners as upstream's library, with
//! one difference: a list or map that somebody owns stays when it becomes empty. (There it becomes
//! null, and applying it a second time is a change.)

use serde_json::Value;

use self::compare::{Comparison, compare};
use self::element::Element;
use self::fieldset::FieldSet;
use self::managers::{Entry, Manager, Managers, Operation};
use self::typing::Typing;

mod client_side;
mod compare;
mod edit;
mod element;
mod fieldset;
pub mod managers;
mod merge;
pub mod track;
mod typed;
pub mod typing;

/// Who owns what was there before anybody applied anything.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";

/// What a client applies.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Who applies.
    pub manager: Manager<'a>,
    /// Whether to take fields from others rather than refuse.
    pub force: bool,
    /// What part of the object the request is about.
    pub part: Part<'a>,
}

/// The part of an object that can be applied; the rest of a configuration is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part<'a> {
    /// All of it: the kind has no status of its own.
    All,
    /// All but `status`.
    Main,
    /// Only `status` and `metadata`, but for these fields of the latter.
    Status(&'a [&'a str]),
}

/// Why a configuration could not be applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    /// The request makes no sense (400).
    #[error("{0}")]
    Malformed(String),
    /// The configuration does not fit the schema (500 upstream, with no reason).
    #[error("failed to create typed patch object ({object}; {kind}): {misfits}")]
    Untyped {
        /// Namespace and name.
        object: String,
        /// Such as `/v1, Kind=Service`.
        kind: String,
        /// The mistake, or `errors:` and a line for each.
        misfits: String,
    },
    /// Others own fields that it would change (409, a cause `FieldManagerConflict` for each).
    #[error("{}", conflict_text(.0))]
    Conflict(Vec<Conflict>),
}

/// A field that somebody else owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The message of the cause: `conflict with "kubectl-edit" using v1`.
    pub message: String,
    /// The field of the cause: `.spec.ports[port=80,protocol="TCP"].targetPort`.
    pub field: String,
}

/// The object as `config` wants it, with new `managedFields`; equal to `live` if nothing changes.
///
/// Defaults, validation and storing are the caller's. A caller that finds the result to be the
/// old object but for times can undo these with [`managers::keep_times`].
pub fn apply(
    typing: Typing<'_>,
    live: Option<&Value>,
    mut config: Value,
    request: &Request<'_>,
) -> Result<Value, ApplyError> {
    check(typing, &config, &request.manager)?;
    restrict(&mut config, request.part);
    let mut object = live.cloned().unwrap_or_else(|| Value::Object(Default::default()));
    let managed_fields = track::take(&mut object);
    let former = match live {
        Some(live) => owners(typing, live, managed_fields.clone(), &request.manager),
        None => Managers::default(),
    };
    let count = former.0.len();
    let (last, mut others) = former.split(&request.manager);
    let mut own = typed::set_of(typing, &config);
    object = merge::merge(typing, object, &config);
    if let Some(last) = &last {
        let mut keep = others.0.iter().fold(own.clone(), |keep, entry| keep.union(&entry.set()));
        keep.insert(&[Element::field("metadata")]);
        merge::prune(typing, &mut object, &last.set(), &keep);
    }
    strip(&mut own);

    let mut changes = compare(typing, live, &object);
    strip(&mut changes.added);
    strip(&mut changes.modified);
    if !request.force {
        let inherited = client_side::inherited(typing, live, &request.manager);
        check_conflicts(&others, &changes, &inherited)?;
    }
    typing.drop_nulls(&mut object);
    others.lose(&changes.set());
    others.lose(&changes.removed);

    let entry = Entry::new(&request.manager, Operation::Apply, &own);
    let is_same_intent =
        last.is_some_and(|last| Entry { time: last.time.clone(), ..entry.clone() } == last);
    if let Some(managed_fields) = managed_fields
        && is_same_intent
        && others.0.len() + 1 == count
    {
        track::put(&mut object, managed_fields);
        if Some(&object) == live {
            return Ok(object);
        }
    }
    client_side::remember(&mut object, config, &request.manager);
    others.0.push(entry);
    track::put(&mut object, others.encode());
    Ok(object)
}

/// Who owns the object at present. What nobody is known to own belongs to nobody in particular.
fn owners(
    typing: Typing<'_>,
    live: &Value,
    managed_fields: Option<Value>,
    manager: &Manager<'_>,
) -> Managers {
    let mut managers = managed_fields.and_then(Managers::decode).unwrap_or_default();
    if managers.0.is_empty() {
        let mut fields = compare(typing, None, live).set();
        strip(&mut fields);
        let manager = Manager { name: BEFORE_FIRST_APPLY, subresource: "", ..*manager };
        managers.gain(&manager, Operation::Update, &fields);
    }
    managers
}

fn check(typing: Typing<'_>, config: &Value, manager: &Manager<'_>) -> Result<(), ApplyError> {
    let text = |pointer: &str| config.pointer(pointer).and_then(Value::as_str).unwrap_or("");
    if config.pointer("/metadata/managedFields").is_some_and(Value::is_array) {
        return Err(ApplyError::Malformed("metadata.managedFields must be nil".into()));
    }
    let version = text("/apiVersion");
    if version != manager.api_version {
        return Err(ApplyError::Malformed(format!(
            "Incorrect version specified in apply patch. Specified patch version: {version}, \
             expected: {}",
            manager.api_version
        )));
    }
    let misfits = match typed::misfits(typing, config) {
        misfits if misfits.is_empty() => return Ok(()),
        misfits if misfits.len() == 1 => misfits.concat(),
        misfits => format!("errors:\n  {}", misfits.join("\n  ")),
    };
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    Err(ApplyError::Untyped {
        object: format!("{}/{}", text("/metadata/namespace"), text("/metadata/name")),
        kind: format!("{group}/{version}, Kind={}", text("/kind")),
        misfits,
    })
}

/// Drops what the request is not about.
fn restrict(config: &mut Value, part: Part<'_>) {
    let Value::Object(fields) = config else { return };
    match part {
        Part::All => {}
        Part::Main => {
            fields.remove("status");
        }
        Part::Status(kept) => {
            fields
                .retain(|name, _| ["apiVersion", "kind", "metadata", "status"].contains(&&**name));
            if let Some(Value::Object(metadata)) = fields.get_mut("metadata") {
                metadata.retain(|name, _| !kept.contains(&name.as_str()));
            }
        }
    }
}

fn check_conflicts(
    others: &Managers,
    changes: &Comparison,
    inherited: &FieldSet,
) -> Result<(), ApplyError> {
    let changed = changes.set().difference(inherited);
    let mut others: Vec<_> = others.0.iter().collect();
    others.sort_by_key(|entry| (&entry.manager, entry.operation, &entry.api_version));
    let mut conflicts = Vec::new();
    for entry in others {
        let message = format!("conflict with {}", entry.shown());
        let fields = entry.set().intersection(&changed).shown();
        let conflict = |field| Conflict { message: message.clone(), field };
        conflicts.extend(fields.into_iter().map(conflict));
    }
    match conflicts.is_empty() {
        true => Ok(()),
        false => Err(ApplyError::Conflict(conflicts)),
    }
}

fn conflict_text(conflicts: &[Conflict]) -> String {
    if let [Conflict { message, field }] = conflicts {
        return format!("Apply failed with 1 conflict: {message}: {field}");
    }
    let mut lines: Vec<String> = Vec::new();
    for same in conflicts.chunk_by(|a, b| a.message == b.message) {
        lines.push(same[0].message.replacen("conflict", "conflicts", 1) + ":");
        lines.extend(same.iter().map(|conflict| format!("- {}", conflict.field)));
    }
    format!("Apply failed with {} conflicts: {}", conflicts.len(), lines.join("\n"))
}

/// Takes out what nobody owns: what the object is, and what only the server sets.
fn strip(set: &mut FieldSet) {
    const UNOWNED: [&str; 11] = [
        "clusterName",
        "creationTimestamp",
        "deletionGracePeriodSeconds",
        "deletionTimestamp",
        "generation",
        "managedFields",
        "name",
        "namespace",
        "resourceVersion",
        "selfLink",
        "uid",
    ];
    set.retain(|branch| match &branch.element {
        Element::Field(name) => match &**name {
            "apiVersion" | "kind" => false,
            "metadata" => {
                branch.member = false;
                branch.below.retain(|branch| match &branch.element {
                    Element::Field(name) => !UNOWNED.contains(&&**name),
                    _ => true,
                });
                true
            }
            _ => true,
        },
        _ => true,
    });
}

#[cfg(test)]
mod tests;
