//! Which strings may be names, labels and ports, and what to say about those that may not.

use roadstead_schema::invalid::Causes;
use serde_json::Value;

use crate::ip;

const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters \
    or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', \
    regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric \
    characters, '-' or '.', and must start and end with an alphanumeric character (e.g. \
    'example.com', regex used for validation is \
    '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const QUALIFIED: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and \
    must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or \
    '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const KEY: &str = "a valid label key must consist of alphanumeric characters, '-', '_' or '.', and \
    must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or \
    '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]') with an \
    optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')";
const LABEL_VALUE: &str = "a valid label must be an empty string or consist of alphanumeric \
    characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. \
    'MyValue',  or 'my_value',  or '12345', regex used for validation is \
    '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";

/// Labels count in bytes, names in characters: both are ASCII, and the words are upstream's.
fn too_long(limit: usize, unit: &str) -> String {
    format!("must be no more than {limit} {unit}")
}

fn is_label(text: &str) -> bool {
    let inner = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    let bytes = text.as_bytes();
    bytes.first().copied().is_some_and(inner)
        && bytes.last().copied().is_some_and(inner)
        && bytes.iter().all(|&c| inner(c) || c == b'-')
}

fn is_qualified(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.first().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.last().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.iter().all(|&c| c.is_ascii_alphanumeric() || b"-_.".contains(&c))
}

/// Says, in words, what is wrong with a text; nothing if it is good.
pub(crate) type Rule = fn(&str) -> Vec<String>;

/// Says what is wrong with a text by one of the rules below.
pub(crate) fn check(rule: Rule, field: impl Into<String>, text: &str, causes: &mut Causes) {
    let wrong = rule(text);
    if wrong.is_empty() {
        return;
    }
    let (field, value) = (field.into(), Value::from(text));
    wrong.iter().for_each(|wrong| causes.invalid(&*field, &value, wrong));
}

/// One DNS label: names of Services, Namespaces and ports.
pub fn label(text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if text.len() > 63 {
        wrong.push(too_long(63, "characters"));
    }
    if !is_label(text) {
        wrong.push(LABEL.to_owned());
    }
    wrong
}

/// DNS labels joined by dots: names of most objects.
pub fn subdomain(text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if text.len() > 253 {
        wrong.push(too_long(253, "characters"));
    }
    if !text.split('.').all(is_label) {
        wrong.push(SUBDOMAIN.to_owned());
    }
    wrong
}

/// The key of a label or an annotation, or any name such as `example.com/protocol`.
pub fn key(text: &str) -> Vec<String> {
    let (prefix, name) = match text.split('/').collect::<Vec<_>>()[..] {
        [name] => (None, name),
        [prefix, name] => (Some(prefix), name),
        _ => return vec![KEY.to_owned()],
    };
    let mut wrong = Vec::new();
    match prefix {
        Some("") => wrong.push("prefix part must be non-empty".to_owned()),
        Some(prefix) => wrong.extend(subdomain(prefix).iter().map(|w| format!("prefix part {w}"))),
        None => {}
    }
    if name.is_empty() {
        wrong.push("name part must be non-empty".to_owned());
    } else if name.len() > 63 {
        wrong.push(format!("name part {}", too_long(63, "bytes")));
    }
    if !is_qualified(name) {
        wrong.push(QUALIFIED.to_owned());
    }
    wrong
}

/// The value of a label.
pub(crate) fn label_value(text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if text.len() > 63 {
        wrong.push(too_long(63, "bytes"));
    }
    if !text.is_empty() && !is_qualified(text) {
        wrong.push(LABEL_VALUE.to_owned());
    }
    wrong
}

/// A port by name, as a container or a `targetPort` has it.
pub fn port(text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let allowed = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
    if text.len() > 15 {
        wrong.push("must be no more than 15 characters".to_owned());
    }
    if !text.bytes().all(allowed) {
        let only = "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)";
        wrong.push(only.to_owned());
    }
    if !text.bytes().any(|c| c.is_ascii_lowercase()) {
        wrong.push("must contain at least one letter (a-z)".to_owned());
    }
    if text.contains("--") {
        wrong.push("must not contain consecutive hyphens".to_owned());
    }
    if text.starts_with('-') || text.ends_with('-') {
        wrong.push("must not begin or end with a hyphen".to_owned());
    }
    wrong
}

/// Anything that can stand in a path.
pub(crate) fn path_segment(name: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if name == "." || name == ".." {
        wrong.push(format!("may not be '{name}'"));
    }
    for part in ["/", "%"] {
        if name.contains(part) {
            wrong.push(format!("may not contain '{part}'"));
        }
    }
    wrong
}

/// An address in its canonical form.
pub fn address(name: &str) -> Vec<String> {
    let mut causes = Causes::default();
    ip::check_canonical("", name, &mut causes);
    // Only what is wrong is wanted: the name is shown by the caller.
    let prefix = format!("Invalid value: {name:?}: ");
    causes.0.iter().map(|cause| cause.message.replacen(&prefix, "", 1)).collect()
}

/// What is wrong with a key of a ConfigMap or Secret, which may become the name of a file.
pub(crate) fn config_key(key: &str) -> Vec<String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let mut wrong = Vec::new();
    if key.len() > 253 {
        wrong.push(too_long(253, "bytes"));
    }
    if key.is_empty() || !key.chars().all(allowed) {
        wrong.push(
            "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. \
             'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is \
             '[-._a-zA-Z0-9]+')"
                .into(),
        );
    }
    match key {
        "." => wrong.push("must not be '.'".into()),
        ".." => wrong.push("must not be '..'".into()),
        key if key.starts_with("..") => wrong.push("must not start with '..'".into()),
        _ => {}
    }
    wrong
}

#[test]
fn names() {
    type Rule = fn(&str) -> Vec<String>;
    let cases: [(Rule, &str, &str); 16] = [
        (label, "web", ""),
        (label, "1web", ""),
        (label, "My_Svc", "a lowercase RFC 1123 label"),
        (label, "-web", "a lowercase RFC 1123 label"),
        (label, "", "a lowercase RFC 1123 label"),
        (subdomain, "a.b-c.d", ""),
        (subdomain, "a..b", "a lowercase RFC 1123 subdomain"),
        (key, "app", ""),
        (key, "app.kubernetes.io/name", ""),
        (key, "a/b/c", "a valid label key must consist of"),
        (key, "/b", "prefix part must be non-empty"),
        (label_value, "", ""),
        (label_value, "a b", "a valid label must be an empty string or consist of"),
        (port, "http-web", ""),
        (port, "8080", "must contain at least one letter (a-z)"),
        (port, "much-too-long-a-name", "must be no more than 15 characters"),
    ];
    for (rule, text, want) in cases {
        let wrong = rule(text);
        assert!(wrong.is_empty() == want.is_empty(), "{text:?}: {wrong:?}");
        assert!(wrong.first().is_none_or(|first| first.starts_with(want)), "{text:?}: {wrong:?}");
    }
}
