//! What an applied configuration sets, and whether it fits the schema.

use roadstead_schema::types::ListKind;
use serde_json::{Map, Value};

use super::element::Element;
use super::fieldset::FieldSet;
use super::typing::{Parts, Scalar, Shape, Typing};

/// Every path that a value sets.
pub(super) fn set_of(typing: Typing<'_>, value: &Value) -> FieldSet {
    let mut set = FieldSet::default();
    match typing.parts(value) {
        Parts::Whole => {}
        Parts::Object(fields) => {
            for (name, value) in fields {
                let child = typing.child(name);
                // What is empty is owned by itself; upstream has no owner for an empty list, so
                // that applying it a second time may add it again.
                let member = match child.typing.parts(value) {
                    Parts::Whole => true,
                    parts => !child.named || parts.is_empty(),
                };
                set.push(Element::field(name), member, set_of(child.typing, value));
            }
        }
        Parts::List(items) => {
            for (index, item) in items.iter().enumerate() {
                let element = typing.element_at(index, item);
                set.push(element, true, set_of(typing.items(), item));
            }
        }
    }
    set.finish();
    set
}

/// What about a value does not fit its typing, each with its path.
pub(super) fn misfits(typing: Typing<'_>, value: &Value) -> Vec<String> {
    let mut checker = Checker { path: Vec::new(), misfits: Vec::new() };
    checker.check(typing, value);
    checker.misfits
}

struct Checker<'v> {
    path: Vec<Step<'v>>,
    misfits: Vec<String>,
}

enum Step<'v> {
    Field(&'v str),
    Item(Element),
}

impl<'v> Checker<'v> {
    fn report(&mut self, text: impl AsRef<str>) {
        let step = |step: &Step<'_>| match step {
            Step::Field(name) => format!(".{name}"),
            Step::Item(element) => element.to_string(),
        };
        let path: String = self.path.iter().map(step).collect();
        let colon = if path.is_empty() { "" } else { ": " };
        self.misfits.push(format!("{path}{colon}{}", text.as_ref()));
    }

    fn check(&mut self, typing: Typing<'_>, value: &'v Value) {
        match (typing.shape(), value) {
            (Shape::Free, _) | (_, Value::Null) => {}
            (Shape::Scalar(scalar), value) => self.scalar(scalar, value),
            (Shape::Fields | Shape::Map, Value::Object(fields)) => self.fields(typing, fields),
            (Shape::Fields | Shape::Map, other) => {
                self.report(format!("expected map, got &{{{}}}", go_words(other)));
            }
            (Shape::List(kind, _), Value::Array(items)) => self.items(typing, kind, items),
            (Shape::List(..), other) => {
                self.report(format!("expected list, got &{{{}}}", go_words(other)));
            }
        }
    }

    fn fields(&mut self, typing: Typing<'_>, fields: &'v Map<String, Value>) {
        for (name, value) in fields {
            self.path.push(Step::Field(name));
            match typing.declared(name) {
                Some(child) => self.check(child.typing, value),
                None => self.report("field not declared in schema"),
            }
            self.path.pop();
        }
    }

    fn items(&mut self, typing: Typing<'_>, kind: ListKind, items: &'v [Value]) {
        let mut seen = std::collections::BTreeSet::new();
        for (index, item) in items.iter().enumerate() {
            let element = match kind {
                ListKind::Atomic => Element::Index(index),
                ListKind::Set | ListKind::Map => match typing.element(item) {
                    Ok(element) => element,
                    Err(text) => {
                        self.report(format!("element {index}: {text}"));
                        continue;
                    }
                },
            };
            if kind != ListKind::Atomic && !seen.insert(element.clone()) {
                self.report(format!("duplicate entries for key {element}"));
            }
            self.path.push(Step::Item(element));
            self.check(typing.items(), item);
            self.path.pop();
        }
    }

    fn scalar(&mut self, scalar: Scalar, value: &Value) {
        let text = match (scalar, value) {
            (Scalar::Text, Value::String(_))
            | (Scalar::Number, Value::Number(_))
            | (Scalar::Boolean, Value::Bool(_))
            | (Scalar::Any, Value::String(_) | Value::Number(_) | Value::Bool(_)) => return,
            (Scalar::Text, other) => {
                format!("expected string, got &value.valueUnstructured{{Value:{}}}", literal(other))
            }
            (Scalar::Number, other) => {
                format!("expected numeric (int or float), got {}", go_type(other))
            }
            (Scalar::Boolean, other) => format!("expected boolean, got {}", go_type(other)),
            (Scalar::Any, other) => format!("expected any scalar, got &{{{}}}", go_words(other)),
        };
        self.report(text);
    }
}

/// A value as Go prints it with `%v`.
fn go_words(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".into(),
        Value::String(text) => text.clone(),
        Value::Array(items) => {
            let items: Vec<_> = items.iter().map(go_words).collect();
            format!("[{}]", items.join(" "))
        }
        Value::Object(fields) => {
            let pair = |(name, value): (&String, &Value)| format!("{name}:{}", go_words(value));
            let fields: Vec<_> = fields.iter().map(pair).collect();
            format!("map[{}]", fields.join(" "))
        }
        other => other.to_string(),
    }
}

/// A value as Go prints it with `%#v`.
fn literal(value: &Value) -> String {
    let inner = match value {
        Value::Null => return "interface {}(nil)".into(),
        Value::Array(items) => items.iter().map(literal).collect::<Vec<_>>(),
        Value::Object(fields) => {
            fields.iter().map(|(name, value)| format!("{name:?}:{}", literal(value))).collect()
        }
        other => return other.to_string(),
    };
    format!("{}{{{}}}", go_type(value), inner.join(", "))
}

/// The type that Go's decoder gives a value.
fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}
