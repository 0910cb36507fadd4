//! Label and field selectors: parsing them and asking whether something matches.

use std::collections::BTreeMap;
use std::fmt::{self, Display};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

/// Labels as typed objects have them.
pub type Labels = BTreeMap<String, String>;

/// One condition on one label.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Requirement {
    Equal(String, String),
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    Absent(String),
}

/// Conditions that must all hold. The empty selector matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector(Vec<Requirement>);

impl Selector {
    /// Reads `a=b,c!=d,e in (x,y),f notin (z),g,!h`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let parts = split_outside_parentheses(text);
        let parts = parts.into_iter().map(str::trim).filter(|part| !part.is_empty());
        parts.map(requirement).collect::<Result<_, _>>().map(Self)
    }

    /// The selector of a controller: equal labels and expressions.
    pub fn from_object(selector: &LabelSelector) -> Self {
        let equal = selector.match_labels.iter().flatten();
        let equal = equal.map(|(key, value)| Requirement::Equal(key.clone(), value.clone()));
        let expressions = selector.match_expressions.iter().flatten().map(|expression| {
            let (key, values) = (expression.key.clone(), expression.values.clone());
            match expression.operator.as_str() {
                "In" => Requirement::In(key, values.unwrap_or_default()),
                "NotIn" => Requirement::NotIn(key, values.unwrap_or_default()),
                "Exists" => Requirement::Exists(key),
                _ => Requirement::Absent(key),
            }
        });
        Self(equal.chain(expressions).collect())
    }

    /// Whether there is no condition at all.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether labels, read by key, meet all conditions.
    pub fn matches<'a>(&self, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.0.iter().all(|requirement| match requirement {
            Requirement::Equal(key, value) => label(key).is_some_and(|own| own == value),
            Requirement::In(key, values) => {
                label(key).is_some_and(|v| values.iter().any(|w| w == v))
            }
            Requirement::NotIn(key, values) => {
                label(key).is_none_or(|v| values.iter().all(|w| w != v))
            }
            Requirement::Exists(key) => label(key).is_some(),
            Requirement::Absent(key) => label(key).is_none(),
        })
    }

    /// Whether the labels of a typed object meet all conditions.
    pub fn matches_labels(&self, labels: Option<&Labels>) -> bool {
        self.matches(|key| labels?.get(key).map(String::as_str))
    }
}

/// As clients write it, in the order of the labels.
impl Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let set = |values: &[String]| {
            let mut values = values.to_vec();
            values.sort();
            values.join(",")
        };
        let shown = self.0.iter().map(|requirement| match requirement {
            Requirement::Equal(key, value) => (key, format!("{key}={value}")),
            Requirement::In(key, values) => (key, format!("{key} in ({})", set(values))),
            Requirement::NotIn(key, values) => (key, format!("{key} notin ({})", set(values))),
            Requirement::Exists(key) => (key, key.clone()),
            Requirement::Absent(key) => (key, format!("!{key}")),
        });
        let mut shown: Vec<_> = shown.collect();
        shown.sort();
        let shown: Vec<_> = shown.into_iter().map(|(_, text)| text).collect();
        f.write_str(&shown.join(","))
    }
}

/// Whether all pairs of a Service's selector are among the labels. An empty selector selects
/// nothing.
pub fn selects(selector: &Labels, labels: Option<&Labels>) -> bool {
    !selector.is_empty()
        && selector.iter().all(|(key, value)| labels.and_then(|l| l.get(key)) == Some(value))
}

fn split_outside_parentheses(text: &str) -> Vec<&str> {
    let mut depth = 0usize;
    text.split(|c| {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    })
    .collect()
}

fn requirement(part: &str) -> Result<Requirement, String> {
    let bad = || format!("unable to parse requirement: {part:?} is not a label condition");
    let key = |text: &str| {
        let text = text.trim();
        match crate::names::key(text).first() {
            None => Ok(text.to_owned()),
            Some(wrong) => {
                Err(format!("unable to parse requirement: <nil>: Invalid value: {text:?}: {wrong}"))
            }
        }
    };
    let set = |text: &str| {
        let inner =
            text.trim().strip_prefix('(').and_then(|t| t.strip_suffix(')')).ok_or_else(bad)?;
        Ok::<_, String>(inner.split(',').map(|value| value.trim().to_owned()).collect())
    };
    if let Some(name) = part.strip_prefix('!') {
        return Ok(Requirement::Absent(key(name)?));
    }
    if let Some((name, value)) = part.split_once("!=") {
        return Ok(Requirement::NotIn(key(name)?, vec![value.trim().to_owned()]));
    }
    if let Some((name, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
        return Ok(Requirement::Equal(key(name)?, value.trim().to_owned()));
    }
    match part.split_once(char::is_whitespace) {
        None => Ok(Requirement::Exists(key(part)?)),
        Some((name, rest)) => {
            let rest = rest.trim();
            if let Some(values) = rest.strip_prefix("notin") {
                Ok(Requirement::NotIn(key(name)?, set(values)?))
            } else if let Some(values) = rest.strip_prefix("in") {
                Ok(Requirement::In(key(name)?, set(values)?))
            } else {
                Err(bad())
            }
        }
    }
}

/// One condition of a field selector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldCondition {
    /// Such as `spec.nodeName`.
    pub label: String,
    /// What to compare with.
    pub value: String,
    /// Whether the field must equal the value, or differ from it.
    pub equal: bool,
}

/// Reads `metadata.name=web,status.phase!=Running`.
pub fn parse_fields(text: &str) -> Result<Vec<FieldCondition>, String> {
    let parts = text.split(',').filter(|part| !part.is_empty());
    parts
        .map(|part| {
            let (label, value, equal) = if let Some((label, value)) = part.split_once("!=") {
                (label, value, false)
            } else if let Some((label, value)) =
                part.split_once("==").or_else(|| part.split_once('='))
            {
                (label, value, true)
            } else {
                return Err(format!("invalid selector: '{part}'; can't understand '{part}'"));
            };
            Ok(FieldCondition { label: label.into(), value: value.into(), equal })
        })
        .collect()
}

#[test]
fn label_selectors() {
    let labels: Labels =
        [("app", "web"), ("tier", "front")].map(|(k, v)| (k.into(), v.into())).into();
    let cases = [
        ("", true),
        ("app=web", true),
        ("app==web,tier=front", true),
        ("app!=web", false),
        ("none!=x", true),
        ("app in (db, web)", true),
        ("app notin (db,web)", false),
        ("tier", true),
        ("!tier", false),
        ("!other,app in (web)", true),
    ];
    for (text, want) in cases {
        let selector = Selector::parse(text).unwrap();
        assert_eq!(selector.matches_labels(Some(&labels)), want, "{text}");
    }
    for bad in ["app in web", "app within (x)", "a b/c=d", "=x"] {
        assert!(Selector::parse(bad).is_err(), "{bad}");
    }
}
