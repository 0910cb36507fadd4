//! From `openAPIV3Schema` as JSON to a [`Structural`].

use serde_json::{Map, Value};

use super::{Additional, Bound, Pattern, Primitive, Range, Rules, Structural};
use crate::invalid::Causes;
use crate::types::ListKind;

/// Reads a schema; what cannot be read is reported and left out.
pub(super) fn read(schema: &Value, path: &str, causes: &mut Causes) -> Structural {
    match schema {
        Value::Object(fields) => Reader { fields, path, causes }.schema(),
        other => {
            causes.invalid(path, other, "must be an object");
            Structural::default()
        }
    }
}

struct Reader<'a> {
    fields: &'a Map<String, Value>,
    path: &'a str,
    causes: &'a mut Causes,
}

/// Keywords that upstream knows and does not allow in a CustomResourceDefinition.
const FORBIDDEN: [(&str, &str); 4] = [
    ("$ref", "$ref is not supported"),
    ("definitions", "definitions is not supported"),
    ("dependencies", "dependencies is not supported"),
    ("patternProperties", "patternProperties is not supported"),
];

impl Reader<'_> {
    fn schema(&mut self) -> Structural {
        for (name, why) in FORBIDDEN {
            if self.fields.contains_key(name) {
                self.causes.forbidden(self.at(name), why);
            }
        }
        if self.flag("uniqueItems") {
            let why = "uniqueItems cannot be set to true since the runtime complexity becomes \
                       quadratic";
            self.causes.forbidden(self.at("uniqueItems"), why);
        }
        Structural {
            ty: self.word("type", &Primitive::ALL),
            properties: self.properties(),
            additional: self.additional(),
            items: self.child("items").map(Box::new),
            default: self.fields.get("default").cloned(),
            nullable: self.flag("nullable"),
            preserves_unknown: self.flag("x-kubernetes-preserve-unknown-fields"),
            embedded: self.flag("x-kubernetes-embedded-resource"),
            int_or_string: self.flag("x-kubernetes-int-or-string"),
            list: self.word("x-kubernetes-list-type", &LIST_TYPES),
            keys: self.texts("x-kubernetes-list-map-keys"),
            atomic: self.word("x-kubernetes-map-type", &MAP_TYPES).unwrap_or(false),
            rules: self.rules(),
        }
    }

    fn rules(&mut self) -> Rules {
        Rules {
            format: self.text("format"),
            enumeration: self.fields.get("enum").and_then(Value::as_array).cloned(),
            pattern: Some(self.text("pattern")).filter(|p| !p.is_empty()).map(|p| Pattern::new(&p)),
            minimum: self.bound("minimum", "exclusiveMinimum"),
            maximum: self.bound("maximum", "exclusiveMaximum"),
            multiple_of: self.fields.get("multipleOf").and_then(Value::as_f64),
            length: self.range("minLength", "maxLength"),
            items: self.range("minItems", "maxItems"),
            properties: self.range("minProperties", "maxProperties"),
            required: self.texts("required"),
            all_of: self.alternatives("allOf"),
            any_of: self.alternatives("anyOf"),
            one_of: self.alternatives("oneOf"),
            not: self.child("not").map(Box::new),
        }
    }

    fn at(&self, name: &str) -> String {
        format!("{}.{name}", self.path)
    }

    fn wrong(&mut self, name: &str, value: &Value, wanted: &str) {
        self.causes.invalid(self.at(name), value, format_args!("must be {wanted}"));
    }

    fn get(&self, name: &str) -> Option<&'_ Value> {
        self.fields.get(name).filter(|value| !value.is_null())
    }

    fn flag(&mut self, name: &str) -> bool {
        match self.get(name).cloned() {
            None => false,
            Some(Value::Bool(flag)) => flag,
            Some(other) => {
                self.wrong(name, &other, "a boolean");
                false
            }
        }
    }

    fn text(&mut self, name: &str) -> String {
        match self.get(name).cloned() {
            None => String::new(),
            Some(Value::String(text)) => text,
            Some(other) => {
                self.wrong(name, &other, "a string");
                String::new()
            }
        }
    }

    fn texts(&mut self, name: &str) -> Vec<String> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        match self.get(name).cloned() {
            None => Vec::new(),
            Some(Value::Array(items)) if items.iter().all(Value::is_string) => {
                items.iter().filter_map(text).collect()
            }
            Some(other) => {
                self.wrong(name, &other, "a list of strings");
                Vec::new()
            }
        }
    }

    /// One of several words.
    fn word<T: Copy>(&mut self, name: &str, words: &[(&str, T)]) -> Option<T> {
        let text = self.text(name);
        let found = words.iter().find(|(word, _)| *word == text).map(|(_, value)| *value);
        if found.is_none() && !text.is_empty() {
            let words: Vec<_> = words.iter().map(|(word, _)| *word).collect();
            self.causes.unsupported(self.at(name), &text.into(), &words);
        }
        found
    }

    fn bound(&mut self, name: &str, exclusive: &str) -> Option<Bound> {
        let exclusive = self.flag(exclusive);
        match self.get(name).cloned()? {
            Value::Number(value) => Some(Bound { value, exclusive }),
            other => {
                self.wrong(name, &other, "a number");
                None
            }
        }
    }

    fn range(&mut self, least: &str, most: &str) -> Range {
        let mut number = |name: &str| {
            let value = self.get(name).cloned()?;
            if value.as_u64().is_none() {
                self.wrong(name, &value, "a number of things");
            }
            value.as_u64()
        };
        Range { least: number(least), most: number(most) }
    }

    fn child(&mut self, name: &str) -> Option<Structural> {
        let child = self.fields.get(name)?;
        Some(read(child, &self.at(name), self.causes))
    }

    fn properties(&mut self) -> std::collections::BTreeMap<String, Structural> {
        let mut properties = std::collections::BTreeMap::new();
        let all = self.fields.get("properties").and_then(Value::as_object);
        for (name, schema) in all.into_iter().flatten() {
            let path = format!("{}.properties[{name}]", self.path);
            properties.insert(name.clone(), read(schema, &path, self.causes));
        }
        properties
    }

    fn additional(&mut self) -> Additional {
        match self.fields.get("additionalProperties") {
            None | Some(Value::Null | Value::Bool(false)) => Additional::None,
            Some(Value::Bool(true)) => Additional::Any,
            Some(_) => {
                let each = self.child("additionalProperties").unwrap_or_default();
                Additional::Each(Box::new(each))
            }
        }
    }

    fn alternatives(&mut self, name: &str) -> Vec<Structural> {
        let all = self.fields.get(name).and_then(Value::as_array);
        let mut alternatives = Vec::new();
        for (index, schema) in all.into_iter().flatten().enumerate() {
            let path = format!("{}.{name}[{index}]", self.path);
            alternatives.push(read(schema, &path, self.causes));
        }
        alternatives
    }
}

const LIST_TYPES: [(&str, ListKind); 3] =
    [("atomic", ListKind::Atomic), ("map", ListKind::Map), ("set", ListKind::Set)];
const MAP_TYPES: [(&str, bool); 2] = [("atomic", true), ("granular", false)];
