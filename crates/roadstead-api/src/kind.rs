//! What the API server must know about a kind of object to serve it.

use jiff::Timestamp;
use roadstead_schema::invalid::Causes;
use serde_json::Value;

use crate::table::{Column, ColumnCell, NAME_AND_AGE};

/// The fields of the metadata that clients may change at all.
pub const METADATA: &[&str] = &["labels", "annotations", "finalizers", "ownerReferences"];

/// Which names the objects of a kind may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameRule {
    /// One DNS label.
    Label,
    /// DNS labels joined by dots.
    Subdomain,
    /// Anything that can stand in a path.
    Path,
    /// An address in canonical form.
    Address,
}

/// Names, scope and shape of a kind.
#[derive(Debug)]
pub struct Info {
    /// Empty for the core group.
    pub group: &'static str,
    /// Such as `v1`.
    pub version: &'static str,
    /// Such as `Service`.
    pub kind: &'static str,
    /// Such as `services`.
    pub plural: &'static str,
    /// Such as `service`.
    pub singular: &'static str,
    /// Such as `svc`.
    pub short_names: &'static [&'static str],
    /// Such as `all`, for `kubectl get all`.
    pub categories: &'static [&'static str],
    /// Whether objects live in a namespace.
    pub namespaced: bool,
    /// Which names are allowed.
    pub name_rule: NameRule,
    /// Whether there is a `/status`, and the main resource ignores `status`.
    pub status: bool,
    /// Whether there is a `/scale`.
    pub scale: bool,
    /// Whether `metadata.generation` counts the changes of everything but metadata and status.
    pub generation: bool,
    /// Which fields of the metadata it counts too.
    pub counted: &'static [&'static str],
    /// Whether a new object may bring its status.
    pub status_on_create: bool,
    /// Which fields of the metadata a write to `/status` leaves as they were. It may change all
    /// others, as upstream's strategies let it: controllers keep notes there.
    pub status_keeps: &'static [&'static str],
    /// Whether a PUT to an absent name creates the object.
    pub create_on_update: bool,
    /// Whether a DELETE answers with the object rather than a Status.
    pub delete_returns_object: bool,
    /// What to tell everyone who still uses this kind; empty if nothing is wrong with it.
    pub deprecated: &'static str,
    /// Whether an object is a question, answered at once and never stored.
    pub review: bool,
    /// The group under which objects are kept; its own unless the kind is a view of another.
    pub stored_group: &'static str,
    /// The version in which objects are kept.
    pub stored_version: &'static str,
}

impl Info {
    /// What most kinds are like: namespaced, without subresources.
    pub const fn new(
        group: &'static str,
        version: &'static str,
        kind: &'static str,
        plural: &'static str,
        singular: &'static str,
    ) -> Self {
        Self {
            group,
            version,
            kind,
            plural,
            singular,
            short_names: &[],
            categories: &[],
            namespaced: true,
            name_rule: NameRule::Subdomain,
            status: false,
            scale: false,
            generation: false,
            counted: &[],
            status_on_create: false,
            status_keeps: &[],
            create_on_update: false,
            delete_returns_object: false,
            deprecated: "",
            review: false,
            stored_group: group,
            stored_version: version,
        }
    }

    /// With other names that kubectl accepts.
    pub const fn short(self, short_names: &'static [&'static str]) -> Self {
        Self { short_names, ..self }
    }

    /// With a `/status`.
    pub(crate) const fn with_status(self) -> Self {
        Self { status: true, generation: true, ..self }
    }

    /// With a `/status` that changes nothing else.
    pub(crate) const fn with_only_status(self) -> Self {
        Self { status_keeps: METADATA, ..self.with_status() }
    }

    /// With a `/scale`.
    pub(crate) const fn with_scale(self) -> Self {
        Self { scale: true, ..self }
    }

    /// Part of `kubectl get all`.
    pub(crate) const fn in_all(self) -> Self {
        Self { categories: &["all"], ..self }
    }

    /// With names such as `system:node`.
    pub(crate) const fn with_path_names(self) -> Self {
        Self { name_rule: NameRule::Path, ..self }
    }

    /// `v1` or `apps/v1`.
    pub fn api_version(&self) -> String {
        joined(self.group, self.version)
    }

    /// The `apiVersion` of objects in the store.
    pub fn stored_api_version(&self) -> String {
        joined(self.stored_group, self.stored_version)
    }

    /// Whether objects are kept in another form than the one in which they are served.
    pub fn is_view(&self) -> bool {
        (self.group, self.version) != (self.stored_group, self.stored_version)
    }

    /// Where the store keeps objects: `services` or `deployments.apps`.
    pub fn bucket(&self) -> String {
        match self.stored_group {
            "" => self.plural.to_owned(),
            group => format!("{}.{group}", self.plural),
        }
    }

    /// `services` or `deployments.apps`: how errors name the resource.
    pub fn resource(&self) -> String {
        match self.group {
            "" => self.plural.to_owned(),
            group => format!("{}.{group}", self.plural),
        }
    }
}

fn joined(group: &str, version: &str) -> String {
    match group {
        "" => version.to_owned(),
        group => format!("{group}/{version}"),
    }
}

/// A kind of object: what it is called, what its fields are when left out, which values are
/// wrong, and how it looks in a table. Unit structs in `kinds/` implement it.
pub trait Kind: Send + Sync {
    /// Names, scope and shape.
    fn info(&self) -> &Info;

    /// Fills in what the client left out.
    fn default(&self, _object: &mut Value) {}

    /// Sets what only the server may set when an object is created.
    fn prepare_create(&self, _object: &mut Value) {}

    /// Carries over to the new object what the client did not mention but the server had decided.
    fn prepare_update(&self, _old: &Value, _new: &mut Value) {}

    /// The same when the status alone is written.
    fn prepare_status(&self, _old: &Value, _new: &mut Value) {}

    /// Says what is wrong with an object; `old` is what it replaces.
    fn validate(&self, _object: &Value, _old: Option<&Value>, _causes: &mut Causes) {}

    /// Says what is wrong with an object whose status alone was written.
    fn validate_status(&self, object: &Value, old: &Value, causes: &mut Causes) {
        self.validate(object, Some(old), causes);
    }

    /// Takes from what was sent to the subresource of this name all that may be changed by it; `new` is the
    /// object as it was.
    fn merge_subresource(&self, _name: &str, _given: &Value, _new: &mut Value) {}

    /// Says what is wrong with a change through the subresource of this name, which leaves all but its
    /// own part as it was.
    fn validate_subresource(&self, _name: &str, object: &Value, old: &Value, causes: &mut Causes) {
        self.validate(object, Some(old), causes);
    }

    /// Says what is worth a warning; each becomes a line on the user's terminal.
    fn warnings(&self, _object: &Value) -> Vec<String> {
        Vec::new()
    }

    /// Turns an object from the form in which it is kept into the one in which it is served; only
    /// views differ in more than the `apiVersion`, which is not for this function to change.
    fn show(&self, _object: &mut Value) {}

    /// The opposite of [`Kind::show`].
    fn store(&self, _object: &mut Value) {}

    /// Says what is worth a warning when an object is created.
    fn warnings_on_create(&self, object: &Value) -> Vec<String> {
        self.warnings(object)
    }

    /// Says what is worth a warning when the status alone was written.
    fn status_warnings(&self, _object: &Value) -> Vec<String> {
        Vec::new()
    }

    /// The table that `kubectl get` shows: each column with the cell that an object has in it.
    fn table(&self) -> &'static [ColumnCell] {
        NAME_AND_AGE
    }

    /// The columns of the table.
    fn columns(&self) -> Vec<Column> {
        self.table().iter().map(|(column, _)| *column).collect()
    }

    /// One row: a cell for each column. The object has the form in which it is kept.
    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        self.table().iter().map(|(_, cell)| cell.of(object, now)).collect()
    }

    /// Which fields, besides name and namespace, a field selector may ask for: the label and the
    /// JSON pointer to its value in the form in which objects are kept, or several joined by a bar
    /// of which the first counts that is not empty.
    fn selectable(&self) -> &'static [(&'static str, &'static str)] {
        &[]
    }
}
