//! Kinds that users define: CustomResourceDefinitions made into [`Kind`]s.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use roadstead_api::kind::{Info, Kind, METADATA};
use roadstead_api::table::{Column, name_cell};
use roadstead_schema::invalid::Causes;
use roadstead_schema::json::{Pointer, size};
use roadstead_schema::structural::columns::PrinterColumn;
use roadstead_schema::structural::{Structural, defaults, validate};
use serde_json::Value;

use crate::api::Api;
use crate::kinds::{Afterwards, Strategy, custom_resource_definition};
use crate::objects::scale::ReplicaPaths;
use crate::registry::Resource;

/// What all kinds that users define have in common.
pub(super) struct CustomResources;

impl Strategy for CustomResources {
    fn removed<'a>(&self, api: &'a Api, resource: &'a Resource) -> Option<Afterwards<'a>> {
        custom_resource_definition::after_removal(api, resource)
    }
}

/// One version of a kind that a user has defined.
pub(crate) struct Custom {
    info: Info,
    columns: Vec<Column>,
    /// How the cells after the name come about.
    cells: Vec<PrinterColumn>,
    /// The schema as it was given.
    pub(crate) schema: Value,
    /// The schema as it is applied.
    pub(crate) structural: Structural,
    /// Whether the definition is going: nothing new may be made.
    pub(crate) terminating: bool,
    /// Where the numbers of replicas are, if there is a `/scale`.
    pub(crate) scale: Option<ReplicaPaths>,
}

/// The kinds of a definition: one for each version that is served.
pub(crate) fn read(definition: &[u8]) -> Vec<Arc<Custom>> {
    let definition: Value = serde_json::from_slice(definition).unwrap_or_default();
    let versions = definition.list("/spec/versions").iter();
    let served = versions.filter(|version| version.flag("/served"));
    served.map(|version| Arc::new(Custom::new(&definition, version))).collect()
}

impl Custom {
    fn new(definition: &Value, version: &Value) -> Self {
        let name = |field: &str| intern(definition.text(&format!("/spec/names/{field}")));
        let list = |field: &str| {
            let texts = definition.list(&format!("/spec/names/{field}")).iter();
            let texts: Vec<_> = texts.filter_map(Value::as_str).map(intern).collect();
            intern_list(texts)
        };
        let info = Info {
            namespaced: definition.text("/spec/scope") == "Namespaced",
            short_names: list("shortNames"),
            categories: list("categories"),
            status: version.has("/subresources/status"),
            scale: version.has("/subresources/scale"),
            generation: true,
            status_keeps: METADATA,
            stored_version: intern(stored_version(definition)),
            deprecated: deprecation(definition, version),
            ..Info::new(
                intern(definition.text("/spec/group")),
                intern(version.text("/name")),
                name("kind"),
                name("plural"),
                name("singular"),
            )
        };
        let cells = PrinterColumn::read(
            version.list("/additionalPrinterColumns"),
            "",
            // It was accepted: what is wrong with it has been said.
            &mut Causes::default(),
        );
        let mut columns = vec![Column::text("Name")];
        columns.extend(cells.iter().map(|column| Column {
            name: intern(&column.name),
            ty: intern(&column.ty),
            wide: column.priority > 0,
        }));
        let schema = version["schema"]["openAPIV3Schema"].clone();
        let structural = Structural::stored(&schema);
        let terminating = definition.has("/metadata/deletionTimestamp");
        let scale = version.pointer("/subresources/scale").map(ReplicaPaths::custom);
        Self { info, columns, cells, schema, structural, terminating, scale }
    }
}

/// The version in which objects are written from now on; older ones stay as they are.
fn stored_version(definition: &Value) -> &str {
    let mut versions = definition.list("/spec/versions").iter();
    versions.find(|version| version.flag("/storage")).map_or("", |version| version.text("/name"))
}

/// What to tell users of a version that its author advises against.
fn deprecation(definition: &Value, version: &Value) -> &'static str {
    if !version.flag("/deprecated") {
        return "";
    }
    match version.text("/deprecationWarning") {
        "" => {
            let (group, name) = (definition.text("/spec/group"), version.text("/name"));
            let kind = definition.text("/spec/names/kind");
            intern(&format!("{group}/{name} {kind} is deprecated"))
        }
        words => intern(words),
    }
}

/// How much the cells of a row show together: a hundred columns can name the same large part of an
/// object. What does not fit is left out.
const CELLS: usize = 256 << 10;

impl Kind for Custom {
    fn info(&self) -> &Info {
        &self.info
    }

    fn default(&self, object: &mut Value) {
        defaults::apply(&self.structural, object);
    }

    fn show(&self, object: &mut Value) {
        defaults::apply(&self.structural, object);
    }

    fn validate(&self, object: &Value, _: Option<&Value>, causes: &mut Causes) {
        if !defaults::is_complete(&self.structural, object) {
            causes.forbidden(
                "spec",
                "the defaults of what is left out are more than an object may be",
            );
        }
        validate::validate(&self.structural, object, "", causes);
    }

    fn columns(&self) -> Vec<Column> {
        self.columns.clone()
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let mut room = CELLS;
        let cells = self.cells.iter().map(|column| {
            let cell = column.cell(object, now);
            let left = room.checked_sub(size(&cell));
            room = left.unwrap_or(room);
            if left.is_some() { cell } else { Value::Null }
        });
        [name_cell(object)].into_iter().chain(cells).collect()
    }
}

/// Names of kinds live as long as the process; each is kept once, however often a definition
/// comes and goes.
fn intern(text: &str) -> &'static str {
    static NAMES: Mutex<Option<HashSet<&'static str>>> = Mutex::new(None);
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    let names = names.get_or_insert_default();
    match names.get(text) {
        Some(known) => known,
        None => {
            let kept: &'static str = Box::leak(text.to_owned().into_boxed_str());
            names.insert(kept);
            kept
        }
    }
}

fn intern_list(texts: Vec<&'static str>) -> &'static [&'static str] {
    static LISTS: Mutex<Option<HashSet<&'static [&'static str]>>> = Mutex::new(None);
    let mut lists = LISTS.lock().unwrap_or_else(PoisonError::into_inner);
    let lists = lists.get_or_insert_default();
    match lists.get(&texts[..]) {
        Some(known) => known,
        None => {
            let kept: &'static [&'static str] = Box::leak(texts.into_boxed_slice());
            lists.insert(kept);
            kept
        }
    }
}
