//! The query of a request, taken apart.

use std::collections::HashMap;

use roadstead_api::selector::{FieldCondition, Selector, parse_fields};
use roadstead_schema::invalid::Causes;
use serde_json::json;

use crate::error::ApiError;

/// The query of a request.
#[derive(Debug, Default)]
pub(crate) struct Query(HashMap<String, String>);

impl Query {
    /// Takes a query apart. Of a repeated parameter the first value counts, but a dry run is all
    /// that is ever said of `dryRun`: anything else is refused later.
    pub(crate) fn parse(text: Option<&str>) -> Self {
        let mut values = HashMap::<String, String>::new();
        for (name, value) in pairs(text) {
            let odd = name == "dryRun" && value != "All";
            match values.get_mut(&name) {
                Some(known) if odd => *known = value,
                Some(_) => {}
                None => drop(values.insert(name, value)),
            }
        }
        Self(values)
    }

    /// Whether a parameter is there, with or without a value.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// The value of a parameter, or "".
    pub(crate) fn get(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    /// Whether a parameter is set to something true.
    pub(crate) fn flag(&self, name: &str) -> bool {
        matches!(self.get(name), "true" | "1" | "True" | "TRUE" | "t")
    }

    /// A number, 0 if it is absent.
    pub(crate) fn number(&self, name: &str) -> Result<u64, ApiError> {
        match self.get(name) {
            "" => Ok(0),
            text => text.parse().map_err(|_| {
                ApiError::bad_request(format!("invalid value {text:?} for parameter {name}"))
            }),
        }
    }

    /// Whether nothing may be written.
    pub(crate) fn dry_run(&self) -> bool {
        self.get("dryRun") == "All"
    }

    /// Checks the parameters that say how to write; `kind` is what upstream calls them together.
    pub(crate) fn check_options(&self, kind: &'static str) -> Result<(), ApiError> {
        let mut causes = Causes::default();
        if self.has("dryRun") && !self.dry_run() {
            causes.unsupported("dryRun", &json!([self.get("dryRun")]), &["All"]);
        }
        match self.get("fieldValidation") {
            "" | "Ignore" | "Warn" | "Strict" => {}
            other => {
                let known = ["", "Ignore", "Strict", "Warn"];
                causes.unsupported("fieldValidation", &json!(other), &known);
            }
        }
        match causes.0.is_empty() {
            true => Ok(()),
            false => Err(ApiError::invalid_options(kind, &causes.0)),
        }
    }

    /// The conditions on labels.
    pub(crate) fn labels(&self) -> Result<Selector, ApiError> {
        Selector::parse(self.get("labelSelector")).map_err(ApiError::bad_request)
    }

    /// The conditions on fields.
    pub(crate) fn fields(&self) -> Result<Vec<FieldCondition>, ApiError> {
        parse_fields(self.get("fieldSelector")).map_err(ApiError::bad_request)
    }
}

/// All values of a parameter that may be repeated.
pub(crate) fn repeated(text: Option<&str>, name: &str) -> Vec<String> {
    pairs(text).filter(|(own, _)| own == name).map(|(_, value)| value).collect()
}

fn pairs(text: Option<&str>) -> impl Iterator<Item = (String, String)> {
    let pairs = text.unwrap_or("").split('&').filter(|pair| !pair.is_empty());
    pairs.map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (unescape(name), unescape(value))
    })
}

/// Text of a query without percent escapes; a plus is a blank.
pub(crate) fn unescape(text: &str) -> String {
    String::from_utf8_lossy(&unescaped(text, b' ')).into_owned()
}

/// The bytes that percent escapes and pluses stand for.
pub(super) fn unescaped(text: &str, plus: u8) -> Vec<u8> {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let escaped = || u8::from_str_radix(text.get(at + 1..at + 3)?, 16).ok();
        match bytes[at] {
            b'+' => out.push(plus),
            b'%' if escaped().is_some() => {
                out.extend(escaped());
                at += 2;
            }
            byte => out.push(byte),
        }
        at += 1;
    }
    out
}

#[test]
fn queries_are_taken_apart() {
    let query = Query::parse(Some("labelSelector=app%3Dweb%2Ca+in+(b)&watch=1&limit=x&bad=%zz"));
    assert_eq!(query.get("labelSelector"), "app=web,a in (b)");
    assert!(query.flag("watch"));
    assert_eq!(query.get("bad"), "%zz");
    assert!(query.number("limit").is_err());
}
