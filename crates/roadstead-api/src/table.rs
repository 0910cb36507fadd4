//! Tables, as `kubectl get` shows them: columns, and how their cells come out of objects.

use jiff::Timestamp;
use roadstead_schema::age::age_of;
use roadstead_schema::json::Pointer;
use serde_json::{Value, json};

/// A column of `kubectl get`.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// The heading.
    pub name: &'static str,
    /// `string`, `integer` or `date`.
    pub ty: &'static str,
    /// Whether only `-o wide` shows it.
    pub wide: bool,
}

impl Column {
    /// A column that is always shown.
    pub const fn text(name: &'static str) -> Self {
        Self { name, ty: "string", wide: false }
    }

    /// A column that only `-o wide` shows.
    pub const fn wide(name: &'static str) -> Self {
        Self { name, ty: "string", wide: true }
    }

    /// A column of numbers.
    pub const fn int(name: &'static str) -> Self {
        Self { name, ty: "integer", wide: false }
    }
}

/// How a cell comes out of an object.
#[derive(Clone, Copy, Debug)]
pub enum Cell {
    /// The name of the object.
    Name,
    /// How long ago it was created.
    Age,
    /// The value there, whatever it is.
    Value(&'static str),
    /// The text there, or `<none>`.
    Text(&'static str),
    /// The text there, nothing if absent.
    Plain(&'static str),
    /// The number there, 0 if absent.
    Int(&'static str),
    /// How many elements the list there has.
    Count(&'static str),
    /// How many fields the objects there have together.
    CountIn(&'static [&'static str]),
    /// The flag there.
    Flag(&'static str),
    /// `a=b,c=d`.
    Labels(&'static str),
    /// `1/3`: two numbers.
    Ratio(&'static str, &'static str),
    /// What a function makes of the object.
    Made(fn(&Value) -> String),
    /// The same, or `<none>` if that is nothing.
    MadeOrNone(fn(&Value) -> String),
    /// The number that a function makes of the object.
    Number(fn(&Value) -> i64),
    /// What a function makes of the object at this moment.
    Timed(fn(&Value, Timestamp) -> String),
}

/// A column, and how the cells in it come out of objects.
pub type ColumnCell = (Column, Cell);

/// The column that all tables begin with.
pub(crate) const NAME: ColumnCell = (Column::text("Name"), Cell::Name);
/// How old objects are.
pub(crate) const AGE: ColumnCell = (Column::text("Age"), Cell::Age);
/// The table of kinds that have no better one.
pub(crate) const NAME_AND_AGE: &[ColumnCell] = &[NAME, AGE];

impl Cell {
    /// The cell of an object.
    pub(crate) fn of(self, object: &Value, now: Timestamp) -> Value {
        match self {
            Self::Name => name_cell(object),
            Self::Age => age_cell(object, now),
            Self::Value(pointer) => object.pointer(pointer).cloned().unwrap_or_default(),
            Self::Text(pointer) => or_none(object.text(pointer)),
            Self::Plain(pointer) => json!(object.text(pointer)),
            Self::Int(pointer) => json!(object.int(pointer)),
            Self::Count(pointer) => json!(object.list(pointer).len()),
            Self::CountIn(all) => {
                json!(all.iter().map(|pointer| object.fields(pointer).count()).sum::<usize>())
            }
            Self::Flag(pointer) => json!(object.flag(pointer).to_string()),
            Self::Labels(pointer) => labels_cell(object, pointer),
            Self::Ratio(part, whole) => {
                json!(format!("{}/{}", object.int(part), object.int(whole)))
            }
            Self::Made(make) => json!(make(object)),
            Self::MadeOrNone(make) => or_none(make(object)),
            Self::Number(make) => json!(make(object)),
            Self::Timed(make) => json!(make(object, now)),
        }
    }
}

/// The first cell of every row.
pub fn name_cell(object: &Value) -> Value {
    json!(object.text("/metadata/name"))
}

/// How long ago the object was created.
fn age_cell(object: &Value, now: Timestamp) -> Value {
    json!(age_of(object.text("/metadata/creationTimestamp"), now))
}

/// `a=b,c=d`, or `<none>`.
fn labels_cell(object: &Value, pointer: &str) -> Value {
    let pairs = object.fields(pointer).map(|(k, v)| format!("{k}={}", v.as_str().unwrap_or("")));
    or_none(pairs.collect::<Vec<_>>().join(","))
}

/// The text, or `<none>` if it is empty.
fn or_none(text: impl Into<String>) -> Value {
    match text.into() {
        text if text.is_empty() => json!("<none>"),
        text => json!(text),
    }
}
