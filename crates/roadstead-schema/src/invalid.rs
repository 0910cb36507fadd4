//! What is wrong with an object, in the words that Kubernetes uses for it.

use std::fmt::{self, Display};

use serde_json::{Value, json};

/// The kinds of mistake a field can contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    /// Nothing is there, but something must be.
    Required,
    /// Something is there that cannot be right.
    Invalid,
    /// The value is not one of those that exist.
    NotSupported,
    /// Nothing may be there.
    Forbidden,
    /// The value names something that does not exist.
    NotFound,
    /// The same value is there already.
    Duplicate,
    /// The value is too long.
    TooLong,
    /// There are too many values.
    TooMany,
    /// The value is of another type.
    TypeInvalid,
}

impl Mistake {
    fn reason(self) -> &'static str {
        match self {
            Mistake::Required => "FieldValueRequired",
            Mistake::Invalid => "FieldValueInvalid",
            Mistake::NotSupported => "FieldValueNotSupported",
            Mistake::Forbidden => "FieldValueForbidden",
            Mistake::NotFound => "FieldValueNotFound",
            Mistake::Duplicate => "FieldValueDuplicate",
            Mistake::TooLong => "FieldValueTooLong",
            Mistake::TooMany => "FieldValueTooMany",
            Mistake::TypeInvalid => "FieldValueTypeInvalid",
        }
    }

    fn words(self) -> &'static str {
        match self {
            Mistake::Required => "Required value",
            Mistake::Invalid | Mistake::TypeInvalid => "Invalid value",
            Mistake::NotSupported => "Unsupported value",
            Mistake::Forbidden => "Forbidden",
            Mistake::NotFound => "Not found",
            Mistake::Duplicate => "Duplicate value",
            Mistake::TooLong => "Too long",
            Mistake::TooMany => "Too many",
        }
    }
}

/// One mistake in one field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    /// Such as `spec.ports[0].port`.
    pub field: String,
    /// What kind of mistake it is.
    mistake: Mistake,
    /// The text after the field.
    pub message: String,
}

impl Cause {
    /// As an element of `status.details.causes`.
    pub fn to_json(&self) -> Value {
        json!({"reason": self.mistake.reason(), "message": self.message, "field": self.field})
    }
}

impl Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

/// Collects what is wrong with an object.
#[derive(Debug, Default)]
pub struct Causes(pub Vec<Cause>);

/// How many mistakes are told: whoever makes more has to mend these first.
const MOST: usize = 500;
/// How much is told of a field's path, and of a value.
const FIELD: usize = 1 << 10;
const VALUE: usize = 16 << 10;

impl Causes {
    fn add(&mut self, mistake: Mistake, field: impl Into<String>, detail: &[&dyn Display]) {
        if self.0.len() >= MOST {
            return;
        }
        let mut message = mistake.words().to_owned();
        for part in detail {
            let part = cut(part.to_string(), VALUE);
            if !part.is_empty() {
                message.push_str(": ");
                message.push_str(&part);
            }
        }
        self.0.push(Cause { field: cut(field.into(), FIELD), mistake, message });
    }

    /// Nothing is there; `detail` may be empty.
    pub fn required(&mut self, field: impl Into<String>, detail: &str) {
        self.add(Mistake::Required, field, &[&detail]);
    }

    /// The value cannot be right.
    pub fn invalid(&mut self, field: impl Into<String>, value: &Value, detail: impl Display) {
        self.add(Mistake::Invalid, field, &[value, &detail]);
    }

    /// The value is not one of those that exist.
    pub fn unsupported(&mut self, field: impl Into<String>, value: &Value, supported: &[&str]) {
        let list = supported.iter().map(|word| format!("{word:?}")).collect::<Vec<_>>().join(", ");
        self.add(Mistake::NotSupported, field, &[value, &format!("supported values: {list}")]);
    }

    /// Nothing may be there.
    pub fn forbidden(&mut self, field: impl Into<String>, detail: &str) {
        self.add(Mistake::Forbidden, field, &[&detail]);
    }

    /// The value names something that does not exist.
    pub fn not_found(&mut self, field: impl Into<String>, value: &Value) {
        self.add(Mistake::NotFound, field, &[value]);
    }

    /// The value is there twice.
    pub fn duplicate(&mut self, field: impl Into<String>, value: &Value) {
        self.add(Mistake::Duplicate, field, &[value]);
    }

    /// The value is there twice; it is shown like this.
    pub fn duplicate_shown(&mut self, field: impl Into<String>, shown: &str) {
        self.add(Mistake::Duplicate, field, &[&shown]);
    }

    /// The value is longer than allowed.
    pub fn too_long(&mut self, field: impl Into<String>, bytes: usize) {
        self.add(Mistake::TooLong, field, &[&format!("may not be more than {bytes} bytes")]);
    }

    /// There are more values than allowed.
    pub fn too_many(&mut self, field: impl Into<String>, count: usize, most: u64) {
        let items = if most == 1 { "item" } else { "items" };
        let detail = format!("must have at most {most} {items}");
        self.add(Mistake::TooMany, field, &[&count, &detail]);
    }

    /// The value is of another type.
    pub(crate) fn type_invalid(
        &mut self,
        field: impl Into<String>,
        value: &Value,
        detail: impl Display,
    ) {
        self.add(Mistake::TypeInvalid, field, &[value, &detail]);
    }
}

/// A text, or its beginning.
fn cut(mut text: String, most: usize) -> String {
    if text.len() > most {
        text.truncate(text.floor_char_boundary(most));
        text.push('…');
    }
    text
}

#[test]
fn mistakes_are_told_up_to_a_bound() {
    let mut causes = Causes::default();
    let long = json!("x".repeat(1 << 20));
    for number in 0..10_000 {
        causes.invalid(format!("{number}{}", "y".repeat(FIELD)), &long, "is wrong");
    }
    assert_eq!(causes.0.len(), MOST);
    assert!(causes.0.iter().all(|cause| cause.message.len() < 2 * VALUE));
    assert!(causes.0.iter().all(|cause| cause.field.len() <= FIELD + 3));
    assert!(causes.0[0].message.ends_with("…: is wrong"));
}

#[test]
fn the_words_are_those_of_kubernetes() {
    let mut causes = Causes::default();
    causes.required("spec.ports", "");
    causes.invalid("spec.ports[0].port", &json!(0), "must be between 1 and 65535, inclusive");
    causes.unsupported("spec.ports[0].protocol", &json!("tcp"), &["SCTP", "TCP", "UDP"]);
    causes.forbidden("spec.clusterIPs", "may not be set for ExternalName services");
    causes.duplicate("spec.ports[1].name", &json!("x"));
    let lines: Vec<_> = causes.0.iter().map(ToString::to_string).collect();
    assert_eq!(
        lines,
        [
            "spec.ports: Required value",
            "spec.ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive",
            "spec.ports[0].protocol: Unsupported value: \"tcp\": supported values: \"SCTP\", \
             \"TCP\", \"UDP\"",
            "spec.clusterIPs: Forbidden: may not be set for ExternalName services",
            "spec.ports[1].name: Duplicate value: \"x\"",
        ]
    );
}
