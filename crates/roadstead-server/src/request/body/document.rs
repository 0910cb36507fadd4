//! A JSON or YAML document as a value, with the fields that it gives twice. The last of them counts,
//! as it does for upstream.

use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// What a client sent.
#[derive(Debug)]
pub(crate) struct Document {
    /// The content.
    pub value: Value,
    /// The paths of fields that were given more than once.
    pub duplicates: Vec<String>,
}

impl<'de> Deserialize<'de> for Document {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut duplicates = Vec::new();
        let value = Part(&mut duplicates).deserialize(deserializer)?;
        Ok(Self { value, duplicates })
    }
}

/// A part of the document. The duplicates found in it have paths that begin here; whoever contains
/// the part puts its own name before them, so that only documents with duplicates pay for paths.
struct Part<'a>(&'a mut Vec<String>);

impl<'de> DeserializeSeed<'de> for Part<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Part<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any valid JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        let mut known = self.0.len();
        while let Some(item) = list.next_element_seed(Part(self.0))? {
            prefix(&mut self.0[known..], &format!("[{}]", items.len()));
            known = self.0.len();
            items.push(item);
        }
        Ok(items.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut fields = Map::new();
        while let Some(name) = map.next_key::<String>()? {
            let known = self.0.len();
            let value = map.next_value_seed(Part(self.0))?;
            if self.0.len() > known {
                prefix(&mut self.0[known..], &name);
            }
            if self.0.len() < MOST && fields.contains_key(&name) {
                self.0.push(shortened(&name).to_owned());
            }
            fields.insert(name, value);
        }
        Ok(fields.into())
    }
}

/// How many fields are noticed (upstream notices as many),
const MOST: usize = 100;
/// and how much of a name is told.
const NAME: usize = 256;

fn shortened(name: &str) -> &str {
    &name[..name.floor_char_boundary(NAME.min(name.len()))]
}

fn prefix(paths: &mut [String], name: &str) {
    let name = shortened(name);
    for path in paths {
        let dot = if path.starts_with('[') { "" } else { "." };
        *path = format!("{name}{dot}{path}");
    }
}

#[test]
fn what_is_given_twice_is_noticed() {
    let cases = [
        ("nothing twice", r#"{"a": {"b": 1}, "c": [{"b": 1}, {"b": 1}]}"#, ""),
        ("at the top", r#"{"a": 1, "b": 2, "a": 3}"#, "a"),
        ("three times", r#"{"a": 1, "a": 2, "a": 3}"#, "a a"),
        (
            "deep inside",
            r#"{"spec": {"ports": [{}, {"port": 1, "port": 2}]}}"#,
            "spec.ports[1].port",
        ),
        ("in two places", r#"{"x": {"a": 1, "a": 2}, "y": {"b": 1, "b": 2}}"#, "x.a y.b"),
        ("lists in lists", r#"{"x": [[{"a": 1, "a": 2}]]}"#, "x[0][0].a"),
    ];
    for (name, text, want) in cases {
        let json: Document = serde_json::from_str(text).unwrap();
        assert_eq!(json.duplicates.join(" "), want, "{name}");
        assert_eq!(json.value, serde_json::from_str::<Value>(text).unwrap(), "{name}");
        let yaml = super::yaml(&bytes::Bytes::from(text)).unwrap();
        assert_eq!((yaml.duplicates, yaml.value), (json.duplicates, json.value), "{name}");
    }
    let name = "n".repeat(100_000);
    let many = format!("{{\"{name}\": {{{}\"b\": 1}}}}", "\"a\": 1,".repeat(10_000));
    let json: Document = serde_json::from_str(&many).unwrap();
    assert_eq!(json.duplicates.len(), MOST);
    assert!(json.duplicates.iter().all(|path| path.len() <= NAME + 2));
    let yaml = super::yaml(&bytes::Bytes::from("a: 1\nb:\n- c: yes\n  c: no\n1: x\n")).unwrap();
    assert_eq!(yaml.duplicates, ["b[0].c"]);
}
