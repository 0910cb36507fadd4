//! `metadata.managedFields`: who owns which fields, and since when.

use serde_json::{Map, Value, json};

use super::edit;
use super::fieldset::FieldSet;

/// More writers by Update than these are not told apart.
const MOST_UPDATERS: usize = 10;
/// Who owns what the oldest of too many writers wrote.
const ANCIENT: &str = "ancient-changes";

/// How a manager came to own its fields. Appliers come first in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// By server-side apply: what it no longer applies goes away.
    Apply,
    /// By any other write.
    Update,
}

/// Who writes, when, and in which version of the kind.
#[derive(Clone, Copy, Debug)]
pub struct Manager<'a> {
    /// The `fieldManager` of the request, or the client's own name.
    pub name: &'a str,
    /// Such as `v1` or `apps/v1`.
    pub api_version: &'a str,
    /// Empty, or such as `status`.
    pub subresource: &'a str,
    /// The present moment to the second, in RFC 3339.
    pub time: &'a str,
}

/// One owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) operation: Operation,
    pub(super) time: String,
    pub(super) manager: String,
    pub(super) api_version: String,
    pub(super) subresource: String,
    /// FieldsV1, in our own spelling.
    pub(super) fields: Value,
}

impl Entry {
    pub(super) fn new(manager: &Manager<'_>, operation: Operation, fields: &FieldSet) -> Self {
        Self {
            operation,
            time: manager.time.to_owned(),
            manager: manager.name.to_owned(),
            api_version: manager.api_version.to_owned(),
            subresource: manager.subresource.to_owned(),
            fields: fields.encode(),
        }
    }

    /// Whether it is this manager's: an applier is the same in every version.
    pub(super) fn is(&self, manager: &Manager<'_>, operation: Operation) -> bool {
        self.operation == operation
            && self.manager == manager.name
            && self.subresource == manager.subresource
            && (operation == Operation::Apply || self.api_version == manager.api_version)
    }

    /// The place among the others: appliers first, then by time, then by name.
    fn order(&self) -> (Operation, [&str; 4]) {
        (self.operation, [&self.time, &self.manager, &self.api_version, &self.subresource])
    }

    /// What it owns.
    pub(super) fn set(&self) -> FieldSet {
        FieldSet::decode(&self.fields).unwrap_or_default()
    }

    fn is_empty(&self) -> bool {
        self.fields.as_object().is_none_or(Map::is_empty)
    }

    /// How conflicts name it.
    pub(super) fn shown(&self) -> String {
        let mut shown = format!("{:?}", self.manager);
        if !self.subresource.is_empty() {
            shown.push_str(&format!(" with subresource {:?}", self.subresource));
        }
        if self.operation == Operation::Update {
            shown.push_str(&format!(" using {}", self.api_version));
        }
        shown
    }

    fn decode(mut entry: Value) -> Option<Self> {
        let operation = match entry.get("operation")?.as_str()? {
            "Apply" => Operation::Apply,
            "Update" => Operation::Update,
            _ => return None,
        };
        if entry.get("fieldsType")? != "FieldsV1" {
            return None;
        }
        let mut text = |name: &str| match entry.get_mut(name).map(Value::take) {
            Some(Value::String(text)) => text,
            _ => String::new(),
        };
        Some(Self {
            operation,
            time: text("time"),
            manager: text("manager"),
            api_version: text("apiVersion"),
            subresource: text("subresource"),
            fields: entry.get_mut("fieldsV1").map(Value::take).unwrap_or_default(),
        })
    }

    fn encode(self) -> Value {
        let mut entry = Map::new();
        let operation = match self.operation {
            Operation::Apply => "Apply",
            Operation::Update => "Update",
        };
        let texts = [
            ("apiVersion", self.api_version),
            ("fieldsType", "FieldsV1".to_owned()),
            ("manager", self.manager),
            ("operation", operation.to_owned()),
            ("subresource", self.subresource),
            ("time", self.time),
        ];
        for (name, text) in texts.into_iter().filter(|(_, text)| !text.is_empty()) {
            entry.insert(name.to_owned(), text.into());
        }
        entry.insert("fieldsV1".to_owned(), self.fields);
        Value::Object(entry)
    }
}

/// All owners of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Managers(pub(super) Vec<Entry>);

impl Managers {
    /// Reads `managedFields` that we wrote; `None` if it says nothing.
    pub(super) fn decode(managed_fields: Value) -> Option<Self> {
        match managed_fields {
            Value::Array(entries) if !entries.is_empty() => {
                entries.into_iter().map(Entry::decode).collect::<Option<Vec<_>>>().map(Self)
            }
            _ => None,
        }
    }

    /// Reads `managedFields` that a client wrote, into our own spelling; `None` if it says
    /// nothing that can be understood.
    pub(super) fn read(managed_fields: Value) -> Option<Self> {
        let mut managers = Self::decode(managed_fields)?;
        for entry in &mut managers.0 {
            entry.fields = match &entry.fields {
                Value::Null => Value::Object(Map::new()),
                fields => FieldSet::decode(fields)?.encode(),
            };
        }
        Some(managers)
    }

    /// As `managedFields`, in the order that Kubernetes gives them.
    pub(super) fn encode(mut self) -> Value {
        self.0.retain(|entry| !entry.is_empty());
        self.0.sort_by(|a, b| a.order().cmp(&b.order()));
        Value::Array(self.0.into_iter().map(Entry::encode).collect())
    }

    /// What an applier applied last, and everyone else.
    pub(super) fn split(mut self, manager: &Manager<'_>) -> (Option<Entry>, Self) {
        let own = self.0.iter().position(|entry| entry.is(manager, Operation::Apply));
        let own = own.map(|index| self.0.remove(index));
        (own, self)
    }

    /// Takes paths from everyone.
    pub(super) fn lose(&mut self, paths: &FieldSet) {
        if paths.is_empty() {
            return;
        }
        self.0.iter_mut().for_each(|entry| edit::subtract(&mut entry.fields, paths));
        self.0.retain(|entry| !entry.is_empty());
    }

    /// Gives paths to a manager, whose time this becomes.
    pub(super) fn gain(&mut self, manager: &Manager<'_>, operation: Operation, paths: &FieldSet) {
        match self.0.iter_mut().find(|entry| entry.is(manager, operation)) {
            Some(entry) => {
                edit::add(&mut entry.fields, paths);
                entry.time = manager.time.to_owned();
            }
            None => self.0.push(Entry::new(manager, operation, paths)),
        }
    }

    /// Joins the oldest writers, per version of the kind, until few enough remain.
    pub(super) fn cap(&mut self) {
        let is_updater = |entry: &Entry| entry.operation == Operation::Update;
        let count = self.0.iter().filter(|entry| is_updater(entry)).count();
        if count <= MOST_UPDATERS {
            return;
        }
        let (mut updaters, others): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.0).into_iter().partition(is_updater);
        updaters.sort_by(|a, b| (&a.time, &a.manager).cmp(&(&b.time, &b.manager)));
        let mut kept: Vec<Entry> = Vec::with_capacity(count);
        let mut excess = count - MOST_UPDATERS;
        for entry in updaters {
            let older = kept.iter_mut().find(|older| older.api_version == entry.api_version);
            match older {
                Some(older) if excess > 0 => {
                    older.manager = ANCIENT.to_owned();
                    older.subresource = String::new();
                    edit::add(&mut older.fields, &entry.set());
                    older.time = entry.time;
                    excess -= 1;
                }
                _ => kept.push(entry),
            }
        }
        self.0 = others;
        self.0.extend(kept);
    }
}

/// Whether a client asks to forget all owners: `managedFields: [{}]`. An empty list does not, as
/// clients that know nothing of the field may send that.
pub(super) fn is_reset(managed_fields: &Value) -> bool {
    *managed_fields == json!([{}])
}

/// Leaves the old `managedFields` in place if the new ones, and the whole object, differ from the
/// old in nothing but times: a write that changes nothing is not a write.
pub fn keep_times(old: &Value, new: &mut Value) {
    let pair_same = |old: &Value, new: &Value| {
        let (Some(old), Some(new)) = (old.as_object(), new.as_object()) else { return false };
        let timeless = |(name, _): &(&String, &Value)| *name != "time";
        old.iter().filter(timeless).eq(new.iter().filter(timeless))
    };
    // The order depends on the times.
    let same = |old: &Value, new: &Value| {
        let (Some(old), Some(new)) = (old.as_array(), new.as_array()) else { return false };
        let known = |new: &Value| old.iter().any(|old| pair_same(old, new));
        old.len() == new.len() && new.iter().all(known)
    };
    let fields = |object: &Value| object["metadata"]["managedFields"].clone();
    let (before, after) = (fields(old), fields(new));
    if before == after || !same(&before, &after) {
        return;
    }
    new["metadata"]["managedFields"] = before;
    if new != old {
        new["metadata"]["managedFields"] = after;
    }
}

/// The name of a client that gives no `fieldManager`: its User-Agent up to the first slash.
pub fn name_from_user_agent(user_agent: &str) -> String {
    const LONGEST: usize = 128;
    let mut name = String::new();
    let first = user_agent.split('/').next().unwrap_or("");
    for letter in first.chars().filter(|letter| !letter.is_control()) {
        if name.len() + letter.len_utf8() > LONGEST {
            break;
        }
        name.push(letter);
    }
    name
}
