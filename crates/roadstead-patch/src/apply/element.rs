//! One step of a path in `managedFields`: a field, an element of a list by key, value or index.
//!
//! Keys and values are kept as canonical JSON, so that equal elements are equal texts.

use std::fmt::{self, Display, Write as _};

use serde_json::Value;

/// A step from a value to a part of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Element {
    /// A field of an object, or an entry of a map.
    Field(Box<str>),
    /// The element of a list with these key fields, as JSON such as `{"port":80}`.
    Key(Box<str>),
    /// The element of a list that is this value, as JSON.
    Value(Box<str>),
    /// The element at a position.
    Index(usize),
}

impl Element {
    /// The step to a field.
    pub(super) fn field(name: &str) -> Self {
        Self::Field(name.into())
    }

    /// The step to a list element with these key fields, in any order.
    pub(super) fn key<'v>(fields: impl Iterator<Item = (&'v str, &'v Value)>) -> Self {
        let mut fields: Vec<_> = fields.collect();
        fields.sort_unstable_by_key(|(name, _)| *name);
        let mut text = String::with_capacity(32);
        for (position, (name, value)) in fields.into_iter().enumerate() {
            text.push(if position == 0 { '{' } else { ',' });
            write_text(&mut text, name);
            text.push(':');
            write_scalar(&mut text, value);
        }
        text.push('}');
        Self::Key(text.into())
    }

    /// The step to a list element of this value.
    pub(super) fn value(value: &Value) -> Self {
        let mut text = String::new();
        write_scalar(&mut text, value);
        Self::Value(text.into())
    }

    /// Reads a name in FieldsV1, such as `f:spec`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (kind, rest) = text.split_once(':')?;
        let json = || serde_json::from_str::<Value>(rest).ok();
        match kind {
            "f" => Some(Self::field(rest)),
            "k" => match json()? {
                Value::Object(fields) if !fields.is_empty() => {
                    Some(Self::key(fields.iter().map(|(name, value)| (name.as_str(), value))))
                }
                _ => None,
            },
            "v" => Some(Self::value(&json()?)),
            "i" => rest.parse().ok().map(Self::Index),
            _ => None,
        }
    }

    /// The name in FieldsV1.
    pub(super) fn encode(&self) -> String {
        match self {
            Self::Field(name) => ["f:", name].concat(),
            Self::Key(json) => ["k:", json].concat(),
            Self::Value(json) => ["v:", json].concat(),
            Self::Index(index) => format!("i:{index}"),
        }
    }
}

/// As part of a path in a message: `.spec`, `[port=80,protocol="TCP"]`, `[="a"]`, `[3]`.
impl Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(name) => write!(f, ".{name}"),
            Self::Value(json) => write!(f, "[={json}]"),
            Self::Index(index) => write!(f, "[{index}]"),
            Self::Key(json) => {
                let fields: Value = serde_json::from_str(json).map_err(|_| fmt::Error)?;
                let fields = fields.as_object().into_iter().flatten();
                f.write_char('[')?;
                for (position, (name, value)) in fields.enumerate() {
                    let comma = if position == 0 { "" } else { "," };
                    write!(f, "{comma}{name}={value}")?;
                }
                f.write_char(']')
            }
        }
    }
}

/// Writes JSON in which equal numbers are equal texts.
fn write_scalar(text: &mut String, value: &Value) {
    let whole = |number: &f64| number.fract() == 0.0 && number.abs() < 1e15;
    match value {
        Value::String(string) => write_text(text, string),
        Value::Number(number) => match number.as_f64().filter(|_| number.is_f64()) {
            Some(float) if whole(&float) => text.push_str(&(float as i64).to_string()),
            _ => text.push_str(&number.to_string()),
        },
        other => text.push_str(&other.to_string()),
    }
}

fn write_text(text: &mut String, string: &str) {
    let plain = |byte: &u8| (0x20..0x7f).contains(byte) && *byte != b'"' && *byte != b'\\';
    if string.as_bytes().iter().all(plain) {
        text.push('"');
        text.push_str(string);
        text.push('"');
    } else {
        text.push_str(&Value::from(string).to_string());
    }
}

#[test]
fn names_and_paths() {
    let cases = [
        ("f:spec", "f:spec", ".spec"),
        ("f:app.kubernetes.io/name", "f:app.kubernetes.io/name", ".app.kubernetes.io/name"),
        ("f:", "f:", "."),
        (
            r#"k:{"protocol":"TCP", "port":80.0}"#,
            r#"k:{"port":80,"protocol":"TCP"}"#,
            r#"[port=80,protocol="TCP"]"#,
        ),
        (r#"k:{"name":"a\"b"}"#, r#"k:{"name":"a\"b"}"#, r#"[name="a\"b"]"#),
        (r#"v:"a""#, r#"v:"a""#, r#"[="a"]"#),
        ("v:true", "v:true", "[=true]"),
        ("v:1.5", "v:1.5", "[=1.5]"),
        ("i:3", "i:3", "[3]"),
    ];
    for (given, encoded, shown) in cases {
        let element = Element::parse(given).unwrap_or_else(|| panic!("{given}"));
        assert_eq!((element.encode().as_str(), element.to_string().as_str()), (encoded, shown));
    }
    for given in ["spec", "x:y", "k:1", "k:{}", "k:{", "v:", "i:-1", "i:a", "."] {
        assert_eq!(Element::parse(given), None, "{given}");
    }
}
