//! Whether a value is what a schema asks for, in the words of Kubernetes.
//!
//! The texts come from two layers upstream: kube-openapi says `spec.x in body should be …`, and
//! apiextensions turns that into a field error.

use serde_json::{Map, Number, Value, json};

use super::{Additional, Bound, Primitive, Rules, Structural, formats};
use crate::invalid::Causes;
use crate::types::ListKind;

/// Reports what is wrong with `value`; `path` is empty for a whole object.
pub fn validate(schema: &Structural, value: &Value, path: &str, causes: &mut Causes) {
    Validator { causes }.value(schema, value, path);
}

/// Names and paths that are longer are cut.
const LONG: usize = 1024;

struct Validator<'a> {
    causes: &'a mut Causes,
}

impl Validator<'_> {
    fn value(&mut self, schema: &Structural, value: &Value, path: &str) {
        if value.is_null() && schema.nullable {
            return;
        }
        if !self.ty(schema, value, path) {
            return;
        }
        let rules = &schema.rules;
        self.combinations(rules, value, path);
        match value {
            Value::String(text) => self.text(rules, text, path),
            Value::Number(number) => self.number(rules, number, path),
            Value::Array(items) => self.items(schema, items, path),
            Value::Object(fields) => self.fields(schema, fields, path),
            Value::Null | Value::Bool(_) => {}
        }
        if let Some(allowed) = &rules.enumeration
            && !allowed.contains(value)
        {
            let word = |value: &Value| match value {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            let words: Vec<_> = allowed.iter().map(word).collect();
            let words: Vec<_> = words.iter().map(String::as_str).collect();
            self.causes.unsupported(path, value, &words);
        }
    }

    fn invalid(&mut self, path: &str, value: &Value, what: std::fmt::Arguments<'_>) {
        self.causes.invalid(path, value, format_args!("{path} in body {what}"));
    }

    /// Whether the value is of the type; if not, nothing else is worth saying.
    fn ty(&mut self, schema: &Structural, value: &Value, path: &str) -> bool {
        let found = match value {
            Value::Null => "null",
            Value::Bool(_) => "boolean",
            Value::Number(number) if is_whole(number) => "integer",
            Value::Number(_) => "number",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        };
        let (wanted, fits) = match schema.ty {
            _ if schema.int_or_string => ("integer,string", matches!(found, "integer" | "string")),
            None => return true,
            Some(Primitive::Number) => ("number", matches!(found, "integer" | "number")),
            Some(ty) => (ty.name(), found == ty.name()),
        };
        if !fits {
            let detail = format!("{path} in body must be of type {wanted}: {found:?}");
            self.causes.type_invalid(path, &json!(found), detail);
        }
        fits
    }

    fn text(&mut self, rules: &Rules, text: &str, path: &str) {
        let value = json!(text);
        let length = text.chars().count() as u64;
        if let Some(most) = rules.length.most.filter(|most| length > *most) {
            self.causes.too_long(path, most as usize);
        }
        if let Some(least) = rules.length.least.filter(|least| length < *least) {
            self.invalid(path, &value, format_args!("should be at least {least} chars long"));
        }
        if let Some(pattern) = rules.pattern.as_ref().filter(|pattern| !pattern.matches(text)) {
            self.invalid(path, &value, format_args!("should match '{}'", pattern.text));
        }
        if !formats::is_valid(&rules.format, text) {
            let detail = format!("{path} in body must be of type {}: {text:?}", rules.format);
            self.causes.type_invalid(path, &value, detail);
        }
    }

    fn number(&mut self, rules: &Rules, number: &Number, path: &str) {
        let value = Value::Number(number.clone());
        let float = number.as_f64().unwrap_or(f64::NAN);
        let limit = |bound: &Bound| bound.value.as_f64().unwrap_or(f64::NAN);
        if let Some(bound) = &rules.minimum
            && (float < limit(bound) || bound.exclusive && float == limit(bound))
        {
            let or_equal = if bound.exclusive { "" } else { " or equal to" };
            let text = format_args!("should be greater than{or_equal} {}", bound.value);
            self.invalid(path, &value, text);
        }
        if let Some(bound) = &rules.maximum
            && (float > limit(bound) || bound.exclusive && float == limit(bound))
        {
            let or_equal = if bound.exclusive { "" } else { " or equal to" };
            self.invalid(
                path,
                &value,
                format_args!("should be less than{or_equal} {}", bound.value),
            );
        }
        if let Some(factor) = rules.multiple_of.filter(|factor| !is_multiple(float, *factor)) {
            self.invalid(path, &value, format_args!("should be a multiple of {factor}"));
        }
        let fits = match rules.format.as_str() {
            "int32" => number.as_i64().is_some_and(|number| i32::try_from(number).is_ok()),
            "int64" => number.as_i64().is_some() || float.abs() < i64::MAX as f64,
            _ => true,
        };
        if !fits {
            self.invalid(path, &value, format_args!("must be of type {}", rules.format));
        }
    }

    fn items(&mut self, schema: &Structural, items: &[Value], path: &str) {
        let range = schema.rules.items;
        let count = items.len();
        if let Some(least) = range.least.filter(|least| (count as u64) < *least) {
            let value = json!(count);
            self.invalid(path, &value, format_args!("should have at least {least} items"));
        }
        if let Some(most) = range.most.filter(|most| count as u64 > *most) {
            self.causes.too_many(path, count, most);
        }
        self.duplicates(schema, items, path);
        let Some(schema) = &schema.items else { return };
        for (index, item) in items.iter().enumerate() {
            self.value(schema, item, &format!("{path}[{index}]"));
        }
    }

    /// The elements of sets, and the keys of lists that are maps, differ.
    fn duplicates(&mut self, schema: &Structural, items: &[Value], path: &str) {
        let key = |item: &Value| match schema.list {
            Some(ListKind::Set) => Some(item.clone()),
            Some(ListKind::Map) => {
                let of = |key: &String| Some((key.clone(), item.get(key)?.clone()));
                Some(schema.keys.iter().filter_map(of).collect::<Map<_, _>>().into())
            }
            _ => None,
        };
        let mut seen = std::collections::BTreeSet::new();
        for (index, item) in items.iter().enumerate() {
            let Some(key) = key(item) else { return };
            if !seen.insert(key.to_string()) {
                self.causes.duplicate(format!("{path}[{index}]"), &key);
            }
        }
    }

    fn fields(&mut self, schema: &Structural, fields: &Map<String, Value>, path: &str) {
        let range = schema.rules.properties;
        let count = fields.len();
        if let Some(least) = range.least.filter(|least| (count as u64) < *least) {
            let value = json!(count);
            self.invalid(path, &value, format_args!("should have at least {least} properties"));
        }
        if let Some(most) = range.most.filter(|most| count as u64 > *most) {
            self.causes.too_many(path, count, most);
        }
        let below = |name: &str| match path {
            "" => name[..name.floor_char_boundary(LONG)].to_owned(),
            // Nobody reads such a path; and each field below would repeat it.
            path if path.len() > LONG => path.to_owned(),
            path => format!("{path}.{}", &name[..name.floor_char_boundary(LONG)]),
        };
        for (name, value) in fields {
            let schema = match (&schema.additional, schema.properties.get(name)) {
                (_, Some(property)) => property,
                (Additional::Each(each), None) => each,
                (_, None) => continue,
            };
            self.value(schema, value, &below(name));
        }
        for name in schema.rules.required.iter().filter(|name| !fields.contains_key(*name)) {
            self.causes.required(below(name), "");
        }
        for name in ["apiVersion", "kind"] {
            let given = fields.get(name).and_then(Value::as_str).unwrap_or("");
            if schema.embedded && given.is_empty() {
                self.causes.required(below(name), "must not be empty");
            }
        }
    }

    fn combinations(&mut self, rules: &Rules, value: &Value, path: &str) {
        let mistakes = |schema: &Structural| {
            let mut causes = Causes::default();
            validate(schema, value, path, &mut causes);
            causes.0
        };
        // Upstream gives no field for these, and the best of the failed alternatives.
        let nowhere = "<nil>";
        let best =
            |failed: Vec<Vec<_>>| failed.into_iter().min_by_key(Vec::len).unwrap_or_default();
        for schema in &rules.all_of {
            let wrong = mistakes(schema);
            if !wrong.is_empty() {
                let text = format!("{path:?} must validate all the schemas (allOf)");
                self.causes.invalid(nowhere, &json!(""), text);
                self.causes.0.extend(wrong);
            }
        }
        if !rules.any_of.is_empty() {
            let failed: Vec<_> = rules.any_of.iter().map(mistakes).collect();
            if !failed.iter().any(Vec::is_empty) {
                let text = format!("{path:?} must validate at least one schema (anyOf)");
                self.causes.invalid(nowhere, &json!(""), text);
                self.causes.0.extend(best(failed));
            }
        }
        if !rules.one_of.is_empty() {
            let failed: Vec<_> = rules.one_of.iter().map(mistakes).collect();
            let valid = failed.iter().filter(|failed| failed.is_empty()).count();
            let text = format!("{path:?} must validate one and only one schema (oneOf). Found ");
            if valid == 0 {
                self.causes.invalid(nowhere, &json!(""), text + "none valid");
                self.causes.0.extend(best(failed));
            } else if valid > 1 {
                let text = format!("{text}{valid} valid alternatives");
                self.causes.invalid(nowhere, &json!(""), text);
            }
        }
        if rules.not.as_ref().is_some_and(|schema| mistakes(schema).is_empty()) {
            let text = format!("{path:?} must not validate the schema (not)");
            self.causes.invalid(nowhere, &json!(""), text);
        }
    }
}

fn is_whole(number: &Number) -> bool {
    !number.is_f64() || number.as_f64().is_some_and(|float| float.fract() == 0.0)
}

fn is_multiple(number: f64, factor: f64) -> bool {
    let times = number / factor;
    factor > 0.0 && (times - times.round()).abs() < 1e-9
}
