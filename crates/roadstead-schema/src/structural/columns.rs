//! The columns that `kubectl get` shows for custom resources.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::age::age_of;
use crate::invalid::Causes;
use crate::json::Pointer;

/// A column of a CustomResourceDefinition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrinterColumn {
    /// The heading.
    pub name: String,
    /// `string`, `integer`, `number`, `boolean` or `date`.
    pub ty: String,
    /// What the value means, for `kubectl explain` and the like.
    pub description: String,
    /// Such as `password`; only passed on.
    pub format: String,
    /// Above 0, only `-o wide` shows it.
    pub priority: i64,
    path: Path,
}

impl PrinterColumn {
    /// The columns of a list `additionalPrinterColumns`; without any, the age is one.
    pub fn read(list: &[Value], path: &str, causes: &mut Causes) -> Vec<Self> {
        if list.is_empty() {
            return vec![Self::age()];
        }
        let read = |(index, column)| Self::read_one(column, &format!("{path}[{index}]"), causes);
        list.iter().enumerate().map(read).collect()
    }

    fn age() -> Self {
        Self {
            name: "Age".into(),
            ty: "date".into(),
            description: "CreationTimestamp is a timestamp representing the server time when \
                          this object was created."
                .into(),
            format: String::new(),
            priority: 0,
            path: Path::parse(".metadata.creationTimestamp").unwrap_or_default(),
        }
    }

    fn read_one(column: &Value, at: &str, causes: &mut Causes) -> Self {
        const TYPES: [&str; 5] = ["boolean", "date", "integer", "number", "string"];
        let (name, ty, path) =
            (column.text("/name"), column.text("/type"), column.text("/jsonPath"));
        for (field, text) in [("name", name), ("type", ty), ("jsonPath", path)] {
            if text.is_empty() {
                causes.required(format!("{at}.{field}"), "");
            }
        }
        if !ty.is_empty() && !TYPES.contains(&ty) {
            causes.unsupported(format!("{at}.type"), &json!(ty), &TYPES);
        }
        let path = Path::parse(path).unwrap_or_else(|why| {
            if !path.is_empty() {
                causes.invalid(format!("{at}.jsonPath"), &json!(path), why);
            }
            Path::default()
        });
        Self {
            name: name.to_owned(),
            ty: ty.to_owned(),
            description: column.text("/description").to_owned(),
            format: column.text("/format").to_owned(),
            priority: column.int("/priority"),
            path,
        }
    }

    /// The cell of an object; null if there is nothing to show.
    pub fn cell(&self, object: &Value, now: Timestamp) -> Value {
        let found = self.path.find(object);
        let Some(value) = found.first().filter(|value| !value.is_null()) else {
            return Value::Null;
        };
        match (self.ty.as_str(), value) {
            ("date", Value::String(moment)) => match moment.parse::<Timestamp>() {
                Ok(_) => json!(age_of(moment, now)),
                Err(_) => json!("<invalid>"),
            },
            ("integer", Value::Number(n)) => n.as_f64().map_or(Value::Null, |f| json!(f as i64)),
            ("number", Value::Number(_)) | ("boolean", Value::Bool(_)) => (*value).clone(),
            ("string", Value::String(text)) => json!(text),
            ("string", other) => json!(other.to_string()),
            _ => Value::Null,
        }
    }
}

/// A simple JSONPath: `.a.b`, `.a['b']`, `.a[0]`, `.a[*]`, `.a[?(@.type=="Ready")].status`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Path(Vec<Step>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Field(String),
    Index(i64),
    All,
    /// Elements in which the value behind the path is, or is not, this one.
    Where {
        path: Path,
        equal: bool,
        value: Value,
    },
    /// Elements in which there is something behind the path.
    Has(Path),
}

impl Path {
    fn parse(text: &str) -> Result<Self, &'static str> {
        if !text.starts_with('.') {
            return Err("must be a simple json path starting with .");
        }
        Self::steps(text).ok_or("must be a json path in the dot notation")
    }

    fn steps(mut rest: &str) -> Option<Self> {
        let mut steps = Vec::new();
        if rest == "." {
            return Some(Self(steps));
        }
        while !rest.is_empty() {
            let step;
            (step, rest) = match rest.strip_prefix('[') {
                Some(bracket) => {
                    let end = closing(bracket)?;
                    (bracketed(&bracket[..end])?, &bracket[end + 1..])
                }
                None => named(rest.strip_prefix('.')?)?,
            };
            steps.push(step);
        }
        Some(Self(steps))
    }

    fn find<'v>(&self, value: &'v Value) -> Vec<&'v Value> {
        let mut found = vec![value];
        for step in &self.0 {
            found = found.into_iter().flat_map(|value| step.find(value)).collect();
        }
        found
    }
}

impl Step {
    fn find<'v>(&self, value: &'v Value) -> Vec<&'v Value> {
        let items = || value.as_array().into_iter().flatten();
        match self {
            Self::Field(name) => value.get(name).into_iter().collect(),
            Self::Index(index) => {
                let list = value.as_array().map_or(&[][..], Vec::as_slice);
                let length = i64::try_from(list.len()).unwrap_or(i64::MAX);
                let index = if *index < 0 { length + index } else { *index };
                usize::try_from(index).ok().and_then(|index| list.get(index)).into_iter().collect()
            }
            Self::All => match value {
                Value::Object(fields) => fields.values().collect(),
                _ => items().collect(),
            },
            Self::Where { path, equal, value } => {
                items().filter(|item| path.find(item).contains(&value) == *equal).collect()
            }
            Self::Has(path) => items().filter(|item| !path.find(item).is_empty()).collect(),
        }
    }
}

/// A name up to the next step; a backslash makes a dot part of it.
fn named(text: &str) -> Option<(Step, &str)> {
    let mut name = String::new();
    let mut letters = text.char_indices();
    let mut end = text.len();
    while let Some((index, letter)) = letters.next() {
        match letter {
            '\\' => name.push(letters.next()?.1),
            '.' | '[' => {
                end = index;
                break;
            }
            letter => name.push(letter),
        }
    }
    let step = match name.as_str() {
        "" => return None,
        "*" => Step::All,
        _ => Step::Field(name),
    };
    Some((step, &text[end..]))
}

/// Where the bracket that was opened before `text` is closed.
fn closing(text: &str) -> Option<usize> {
    let (mut depth, mut quote) = (0, None);
    for (index, letter) in text.char_indices() {
        match (quote, letter) {
            (Some(open), letter) if letter == open => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(letter),
            (None, '[') => depth += 1,
            (None, ']') if depth == 0 => return Some(index),
            (None, ']') => depth -= 1,
            _ => {}
        }
    }
    None
}

fn bracketed(text: &str) -> Option<Step> {
    if text == "*" {
        return Some(Step::All);
    }
    if let Some(condition) = text.strip_prefix("?(").and_then(|text| text.strip_suffix(')')) {
        let path = |text: &str| Path::steps(text.trim().strip_prefix('@')?);
        let compared = [("==", true), ("!=", false)]
            .into_iter()
            .find_map(|(operator, equal)| Some((condition.split_once(operator)?, equal)));
        return match compared {
            Some(((left, right), equal)) => {
                Some(Step::Where { path: path(left)?, equal, value: literal(right.trim())? })
            }
            None => path(condition).map(Step::Has),
        };
    }
    match literal(text)? {
        Value::String(name) => Some(Step::Field(name)),
        number => number.as_i64().map(Step::Index),
    }
}

/// A number, `true`, or a text in quotes of either kind.
fn literal(text: &str) -> Option<Value> {
    match text.strip_prefix('\'').and_then(|text| text.strip_suffix('\'')) {
        Some(text) => Some(json!(text)),
        None => serde_json::from_str(text).ok(),
    }
}

#[test]
fn cells() {
    let object = json!({
        "metadata": {"creationTimestamp": "2026-01-01T00:00:00Z", "annotations": {"a.b/c": "x"}},
        "spec": {"replicas": 3, "ratio": 0.5, "paused": true, "list": [{"a": 1}, {"a": 2}],
            "when": "soon"},
        "status": {"conditions": [
            {"type": "Synced", "status": "False"},
            {"type": "Ready", "status": "True"},
        ]},
    });
    let now = "2026-01-01T00:05:00Z".parse().unwrap();
    let cases = [
        (".spec.replicas", "integer", json!(3)),
        (".spec.replicas", "string", json!("3")),
        (".spec.ratio", "number", json!(0.5)),
        (".spec.ratio", "integer", json!(0)),
        (".spec.paused", "boolean", json!(true)),
        (".spec.paused", "integer", json!(null)),
        (".spec.missing.deeper", "string", json!(null)),
        (".spec.list", "string", json!(r#"[{"a":1},{"a":2}]"#)),
        (".spec.list[1].a", "integer", json!(2)),
        (".spec.list[-1].a", "integer", json!(2)),
        (".spec.list[*].a", "integer", json!(1)),
        (".metadata.annotations.a\\.b/c", "string", json!("x")),
        (".metadata.annotations['a.b/c']", "string", json!("x")),
        (".status.conditions[?(@.type==\"Ready\")].status", "string", json!("True")),
        (".status.conditions[?(@.type=='Synced')].status", "string", json!("False")),
        (".status.conditions[?(@.type!=\"Synced\")].status", "string", json!("True")),
        (".status.conditions[?(@.reason)].status", "string", json!(null)),
        (".metadata.creationTimestamp", "date", json!("5m")),
        (".spec.when", "date", json!("<invalid>")),
    ];
    for (path, ty, want) in cases {
        let list = [json!({"name": "X", "type": ty, "jsonPath": path})];
        let mut causes = Causes::default();
        let columns = PrinterColumn::read(&list, "", &mut causes);
        assert_eq!((columns[0].cell(&object, now), causes.0.len()), (want, 0), "{path} {ty}");
    }
    let mut causes = Causes::default();
    let list = [
        json!({"name": "A", "type": "text", "jsonPath": "spec"}),
        json!({"jsonPath": ".spec[", "type": "string"}),
    ];
    PrinterColumn::read(&list, "columns", &mut causes);
    let lines: Vec<_> = causes.0.iter().map(ToString::to_string).collect();
    assert_eq!(
        lines,
        [
            "columns[0].type: Unsupported value: \"text\": supported values: \"boolean\", \
             \"date\", \"integer\", \"number\", \"string\"",
            "columns[0].jsonPath: Invalid value: \"spec\": must be a simple json path starting \
             with .",
            "columns[1].name: Required value",
            "columns[1].jsonPath: Invalid value: \".spec[\": must be a json path in the dot \
             notation",
        ]
    );
    let age = PrinterColumn::read(&[], "", &mut causes);
    assert_eq!((age[0].name.as_str(), age[0].cell(&object, now)), ("Age", json!("5m")));
}
