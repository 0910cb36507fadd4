//! Whether a schema is structural, in the words of upstream's validation.go.

use regex::Regex;
use serde_json::{Value, json};

use super::{Additional, Primitive, Structural, defaults, validate};
use crate::invalid::Causes;
use crate::types::ListKind;

/// Where in a schema a part of it is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Root,
    Field,
    Item,
}

/// Reports what about the schema at `path` is not structural.
pub(super) fn check(schema: &Structural, path: &str, causes: &mut Causes) {
    Checker { causes }.schema(schema, Level::Root, path);
}

/// The schema outside of `anyOf` and the like that describes the same value, and its place.
struct Whole<'a> {
    schema: &'a Structural,
    path: &'a str,
}

struct Checker<'a> {
    causes: &'a mut Causes,
}

impl Checker<'_> {
    fn schema(&mut self, schema: &Structural, level: Level, path: &str) {
        self.parts(schema, level, path);
        self.extensions(schema, path);
        self.ty(schema, level, path);
        self.list(schema, path);
        self.metadata(schema, level, path);
        self.rules(schema, &Whole { schema, path }, path);
        if let Some(default) = &schema.default {
            self.default(schema, default, path);
        }
    }

    fn parts(&mut self, schema: &Structural, level: Level, path: &str) {
        if let Some(items) = &schema.items {
            self.schema(items, Level::Item, &format!("{path}.items"));
        }
        for (name, property) in &schema.properties {
            self.schema(property, Level::Field, &format!("{path}.properties[{name}]"));
        }
        let at = || format!("{path}.additionalProperties");
        match &schema.additional {
            Additional::None => return,
            Additional::Any => {}
            Additional::Each(each) => self.schema(each, Level::Field, &at()),
        }
        if level == Level::Root {
            self.causes.forbidden(at(), "must not be used at the root");
        } else if !schema.properties.is_empty() && matches!(schema.additional, Additional::Each(_))
        {
            // Anything at all beside what is known contradicts nothing.
            self.causes.forbidden(at(), "additionalProperties and properties are mutual exclusive");
        }
    }

    fn ty(&mut self, schema: &Structural, level: Level, path: &str) {
        let at = format!("{path}.type");
        let is_free = schema.int_or_string || schema.preserves_unknown;
        let embedded = "must be object if x-kubernetes-embedded-resource is true";
        match (schema.ty, level) {
            (Some(Primitive::Object), _) => {}
            (None, _) if schema.embedded => self.causes.required(at, embedded),
            (Some(ty), _) if schema.embedded => {
                self.causes.invalid(at, &json!(ty.name()), embedded);
            }
            (Some(ty), Level::Root) => {
                self.causes.invalid(at, &json!(ty.name()), "must be object at the root");
            }
            (None, Level::Root) => self.causes.required(at, "must not be empty at the root"),
            (None, Level::Field) if !is_free => {
                self.causes.required(at, "must not be empty for specified object fields");
            }
            (None, Level::Item) if !is_free => {
                self.causes.required(at, "must not be empty for specified array items");
            }
            _ => {}
        }
        if schema.ty == Some(Primitive::Array) && schema.items.is_none() {
            self.causes.required(format!("{path}.items"), "must be specified");
        }
    }

    fn extensions(&mut self, schema: &Structural, path: &str) {
        let why = "must be false if x-kubernetes-int-or-string is true";
        if schema.int_or_string && schema.preserves_unknown {
            let at = format!("{path}.x-kubernetes-preserve-unknown-fields");
            self.causes.invalid(at, &json!(true), why);
        }
        if schema.int_or_string && schema.embedded {
            self.causes.invalid(
                format!("{path}.x-kubernetes-embedded-resource"),
                &json!(true),
                why,
            );
        }
        if schema.embedded && !schema.preserves_unknown && schema.properties.is_empty() {
            let why = "must not be empty if x-kubernetes-embedded-resource is true without \
                       x-kubernetes-preserve-unknown-fields";
            self.causes.required(format!("{path}.properties"), why);
        }
    }

    fn list(&mut self, schema: &Structural, path: &str) {
        let at = format!("{path}.x-kubernetes-list-map-keys");
        match schema.list {
            None | Some(ListKind::Atomic | ListKind::Set) if !schema.keys.is_empty() => {
                self.causes.invalid(
                    format!("{path}.x-kubernetes-list-type"),
                    &json!(""),
                    "must be map if x-kubernetes-list-map-keys is non-empty",
                );
                return;
            }
            None => return,
            Some(_) if schema.ty != Some(Primitive::Array) => {
                let ty = schema.ty.map_or("", Primitive::name);
                let why = "must be array if x-kubernetes-list-type is specified";
                self.causes.invalid(format!("{path}.type"), &json!(ty), why);
                return;
            }
            Some(ListKind::Map) => {}
            Some(_) => return,
        }
        if schema.keys.is_empty() {
            self.causes.required(&at, "must not be empty if x-kubernetes-list-type is map");
        }
        let Some(items) = &schema.items else { return };
        if items.ty != Some(Primitive::Object) {
            let why = "must be object if parent array's x-kubernetes-list-type is map";
            let ty = items.ty.map_or("", Primitive::name);
            self.causes.invalid(format!("{path}.items.type"), &json!(ty), why);
            return;
        }
        for (index, key) in schema.keys.iter().enumerate() {
            let Some(property) = items.properties.get(key) else {
                let why = "entries must all be names of item properties";
                self.causes.invalid(format!("{at}[{index}]"), &json!(key), why);
                continue;
            };
            if property.default.is_none() && !items.rules.required.contains(key) {
                let why = "this property is in x-kubernetes-list-map-keys, so it must have a \
                           default or be a required property";
                self.causes.required(format!("{path}.items.properties[{key}].default"), why);
            }
        }
    }

    /// The metadata of an object is not the schema's business, but for names.
    fn metadata(&mut self, schema: &Structural, level: Level, path: &str) {
        if level != Level::Root && !schema.embedded {
            return;
        }
        for name in ["apiVersion", "kind"] {
            if let Some(property) = schema.properties.get(name)
                && property.ty != Some(Primitive::String)
            {
                let ty = json!(property.ty.map_or("", Primitive::name));
                let at = format!("{path}.properties[{name}].type");
                self.causes.invalid(at, &ty, "must be string");
            }
        }
        let Some(metadata) = schema.properties.get("metadata") else { return };
        let at = format!("{path}.properties[metadata]");
        if metadata.ty != Some(Primitive::Object) {
            let ty = json!(metadata.ty.map_or("", Primitive::name));
            self.causes.invalid(format!("{at}.type"), &ty, "must be object");
        }
        let mut names = metadata.properties.keys();
        if level == Level::Root && !names.all(|name| ["name", "generateName"].contains(&&**name)) {
            let why = "must not specify anything other than name and generateName, but metadata \
                       is implicitly specified";
            self.causes.forbidden(at, why);
        }
    }

    fn rules(&mut self, schema: &Structural, whole: &Whole<'_>, path: &str) {
        let rules = &schema.rules;
        if let Some(pattern) = &rules.pattern
            && let Err(error) = Regex::new(&pattern.text)
        {
            self.causes.invalid(
                format!("{path}.pattern"),
                &json!(pattern.text),
                format_args!("must be a valid regular expression, but isn't: {error}"),
            );
        }
        let lists = [("allOf", &rules.all_of), ("anyOf", &rules.any_of), ("oneOf", &rules.one_of)];
        for (name, list) in lists {
            for (index, nested) in list.iter().enumerate() {
                self.nested(nested, whole, &format!("{path}.{name}[{index}]"));
            }
        }
        if let Some(nested) = &rules.not {
            self.nested(nested, whole, &format!("{path}.not"));
        }
    }

    /// Within `anyOf` and the like, values are restricted but not described.
    fn nested(&mut self, nested: &Structural, whole: &Whole<'_>, path: &str) {
        // The one usual way to write a number or a text says the types again.
        if nested.ty.is_some() && !whole.schema.int_or_string {
            self.causes.forbidden(format!("{path}.type"), "must be empty to be structural");
        }
        if !matches!(nested.additional, Additional::None) {
            let at = format!("{path}.additionalProperties");
            self.causes.forbidden(at, "must be undefined to be structural");
        }
        if nested.default.is_some() {
            self.causes.forbidden(format!("{path}.default"), "must be undefined to be structural");
        }
        let flags = [
            ("nullable", nested.nullable),
            ("x-kubernetes-preserve-unknown-fields", nested.preserves_unknown),
            ("x-kubernetes-embedded-resource", nested.embedded),
            ("x-kubernetes-int-or-string", nested.int_or_string),
        ];
        for (name, flag) in flags {
            if flag {
                self.causes.forbidden(format!("{path}.{name}"), "must be false to be structural");
            }
        }
        self.nested_parts(nested, whole, path);
        self.rules(nested, whole, path);
    }

    fn nested_parts(&mut self, nested: &Structural, whole: &Whole<'_>, path: &str) {
        for (name, property) in &nested.properties {
            let at = format!("{path}.properties[{name}]");
            let home = format!("{}.properties[{name}]", whole.path);
            match whole.schema.property(name) {
                Some(schema) => self.nested(property, &Whole { schema, path: &home }, &at),
                None if whole.schema.keeps_others() => {}
                None => self.causes.required(home, &format!("because it is defined in {at}")),
            }
        }
        if let (Some(nested), Some(schema)) = (&nested.items, &whole.schema.items) {
            let home = format!("{}.items", whole.path);
            self.nested(nested, &Whole { schema, path: &home }, &format!("{path}.items"));
        }
    }

    /// A default must itself be what the schema asks for, with nothing unknown in it.
    fn default(&mut self, schema: &Structural, default: &Value, path: &str) {
        let at = format!("{path}.default");
        let mut full = default.clone();
        let unknown = super::prune::prune_part(schema, &mut full);
        if let Some(unknown) = unknown.first() {
            let why = format!("must not have unknown fields: {unknown}");
            self.causes.invalid(at, default, why);
            return;
        }
        defaults::apply(schema, &mut full);
        let mut causes = Causes::default();
        validate::validate(schema, &full, &at, &mut causes);
        self.causes.0.append(&mut causes.0);
    }
}
