//! Structural schemas: what the objects of a CustomResourceDefinition look like.
//!
//! A structural schema gives every field one type, outside of `anyOf` and the like, so that
//! unknown fields can be dropped, defaults filled in and lists merged. This module reads
//! `openAPIV3Schema`, says what about it is not structural, and applies it to objects: [`prune`],
//! [`defaults`], [`validate`]; [`columns`] prints them. (Upstream: apiextensions-apiserver,
//! pkg/apiserver/schema.)
//!
//! Rules in CEL (`x-kubernetes-validations`) are accepted and not evaluated.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use regex::Regex;
use serde_json::Value;

use crate::invalid::Causes;
use crate::types::ListKind;

mod check;
pub mod columns;
pub mod defaults;
mod formats;
pub mod prune;
mod read;
pub mod validate;

/// What a value may be, and what holds for it.
#[derive(Debug, Default)]
pub struct Structural {
    /// The type; may be absent for values of any type, and within `anyOf` and the like.
    pub ty: Option<Primitive>,
    /// The fields of an object.
    pub properties: BTreeMap<String, Structural>,
    /// The values of fields that are not named.
    pub additional: Additional,
    /// The elements of a list.
    pub items: Option<Box<Structural>>,
    /// What the field is when it is left out.
    pub default: Option<Value>,
    /// Whether null is a value.
    pub nullable: bool,
    /// Whether unknown fields are kept.
    pub preserves_unknown: bool,
    /// Whether this is a whole Kubernetes object.
    pub embedded: bool,
    /// Whether this is a number or a text.
    pub int_or_string: bool,
    /// How server-side apply merges a list.
    pub list: Option<ListKind>,
    /// For lists merged by key: the fields that make up the key.
    pub keys: Vec<String>,
    /// Whether server-side apply replaces the object as a whole.
    pub atomic: bool,
    /// What must hold for values.
    pub rules: Rules,
}

/// The types of JSON Schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Primitive {
    /// Named values.
    Object,
    /// Several values in order.
    Array,
    /// Text.
    String,
    /// A whole number.
    Integer,
    /// Any number.
    Number,
    /// True or false.
    Boolean,
}

impl Primitive {
    const ALL: [(&'static str, Self); 6] = [
        ("array", Self::Array),
        ("boolean", Self::Boolean),
        ("integer", Self::Integer),
        ("number", Self::Number),
        ("object", Self::Object),
        ("string", Self::String),
    ];

    /// The type of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(other, _)| *other == name).map(|(_, ty)| *ty)
    }

    /// As JSON Schema calls it.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, ty)| *ty == self).map_or("", |(name, _)| name)
    }
}

/// What an object may contain besides its named fields.
#[derive(Debug, Default)]
pub enum Additional {
    /// Nothing.
    #[default]
    None,
    /// Anything.
    Any,
    /// Values of this schema.
    Each(Box<Structural>),
}

/// What must hold for a value.
#[derive(Debug, Default)]
pub struct Rules {
    pub(crate) format: String,
    pub(crate) enumeration: Option<Vec<Value>>,
    pub(crate) pattern: Option<Pattern>,
    pub(crate) minimum: Option<Bound>,
    pub(crate) maximum: Option<Bound>,
    pub(crate) multiple_of: Option<f64>,
    pub(crate) length: Range,
    pub(crate) items: Range,
    pub(crate) properties: Range,
    pub(crate) required: Vec<String>,
    pub(crate) all_of: Vec<Structural>,
    pub(crate) any_of: Vec<Structural>,
    pub(crate) one_of: Vec<Structural>,
    pub(crate) not: Option<Box<Structural>>,
}

/// How many there may be of something.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Range {
    pub(crate) least: Option<u64>,
    pub(crate) most: Option<u64>,
}

/// A limit, and whether it is itself excluded.
#[derive(Clone, Debug)]
pub(crate) struct Bound {
    pub(crate) value: serde_json::Number,
    pub(crate) exclusive: bool,
}

/// A regular expression, compiled when it is first needed: many schemas are never used.
#[derive(Debug)]
pub(crate) struct Pattern {
    pub(crate) text: String,
    compiled: OnceLock<Option<Regex>>,
}

impl Pattern {
    fn new(text: &str) -> Self {
        Self { text: text.to_owned(), compiled: OnceLock::new() }
    }

    /// A pattern that cannot be compiled matches everything; `check` refuses it beforehand.
    fn matches(&self, text: &str) -> bool {
        let compiled = self.compiled.get_or_init(|| Regex::new(&self.text).ok());
        compiled.as_ref().is_none_or(|regex| regex.is_match(text))
    }
}

impl Structural {
    /// Reads a schema that somebody submits; `path` is where it is, such as
    /// `spec.versions[0].schema.openAPIV3Schema`.
    pub fn parse(schema: &Value, path: &str) -> Result<Self, Causes> {
        let mut causes = Causes::default();
        let structural = read::read(schema, path, &mut causes);
        if causes.0.is_empty() {
            check::check(&structural, path, &mut causes);
        }
        if causes.0.is_empty() { Ok(structural) } else { Err(causes) }
    }

    /// Reads a schema that was accepted before.
    pub fn stored(schema: &Value) -> Self {
        read::read(schema, "", &mut Causes::default())
    }

    /// The schema behind the name of a field, if the field is known.
    pub fn property(&self, name: &str) -> Option<&Structural> {
        match (&self.additional, self.properties.get(name)) {
            (_, Some(property)) => Some(property),
            (Additional::Each(each), None) => Some(each),
            (_, None) => None,
        }
    }

    /// Whether objects are completed by it.
    pub fn has_defaults(&self) -> bool {
        let each = match &self.additional {
            Additional::Each(each) => Some(&**each),
            Additional::None | Additional::Any => None,
        };
        let below = self.properties.values().chain(self.items.as_deref()).chain(each);
        self.default.is_some() || below.into_iter().any(Self::has_defaults)
    }

    /// Whether fields that are not named are kept.
    pub fn keeps_others(&self) -> bool {
        self.preserves_unknown || matches!(self.additional, Additional::Any)
    }
}

#[cfg(test)]
mod tests;
