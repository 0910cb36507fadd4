//! Answers in YAML, for those who ask for it by `Accept: application/yaml`.

use http::Response;
use http::header::{CONTENT_TYPE, HeaderValue};
use http_body_util::{BodyExt, Full};
use serde_json::Value;

use crate::http::Body;

/// Whether YAML is the first form that a client accepts and we can write.
pub fn is_wanted(accept: &str) -> bool {
    let mut choices = accept.split(',').map(|choice| choice.split(';').next().unwrap_or("").trim());
    let known = ["application/json", "application/yaml", "application/*", "*/*"];
    choices.find(|choice| known.contains(choice)) == Some("application/yaml")
}

/// The same answer in YAML, if it is JSON with an end.
pub async fn answer(response: Response<Body>) -> Response<Body> {
    let (mut parts, body) = response.into_parts();
    let bytes = body.collect().await.unwrap_or_else(|never| match never {}).to_bytes();
    let Ok(value) = serde_json::from_slice(&bytes) else {
        return Response::from_parts(parts, Full::new(bytes).boxed_unsync());
    };
    let mut text = String::new();
    write(&value, 0, &mut text);
    parts.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/yaml"));
    Response::from_parts(parts, Full::from(text.trim_start().to_owned()).boxed_unsync())
}

/// Appends a value after a key or dash: on the same line if it is simple, else on lines of its own.
fn write(value: &Value, indent: usize, out: &mut String) {
    let line = |out: &mut String| {
        out.push('\n');
        out.extend(std::iter::repeat_n("  ", indent));
    };
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (name, value) in fields {
                line(out);
                out.push_str(&shown(name));
                out.push(':');
                write(value, indent + 1, out);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for item in items {
                line(out);
                out.push('-');
                write(item, indent + 1, out);
            }
        }
        Value::String(text) => {
            out.push(' ');
            out.push_str(&shown(text));
        }
        simple => {
            out.push(' ');
            out.push_str(&simple.to_string());
        }
    }
}

/// A text as it is, if nobody could take it for anything else; in quotes otherwise.
fn shown(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    let words = ["y", "n", "yes", "no", "on", "off", "true", "false", "null"];
    let is_plain = text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(plain)
        && !words.contains(&text.to_lowercase().as_str());
    if is_plain { text.to_owned() } else { Value::from(text).to_string() }
}

#[test]
fn yaml_reads_as_what_was_written() {
    use serde_json::json;
    let value = json!({"a": {"b": [1, "x", {"c": [], "d": {}}, [true, null]], "e": ""},
        "on": "no", "f": "1e3", "g": "a: b\n# c", "h": "\u{e9}\"'", "i/j": -1.5, "12": "2024-01-01",
        "k": [[["deep"]]], "l": "- x"});
    let mut text = String::new();
    write(&value, 0, &mut text);
    assert_eq!(serde_saphyr::from_str::<Value>(&text).unwrap(), value, "{text}");
    for (accept, want) in [
        ("application/yaml", true),
        ("application/yaml, */*", true),
        ("application/json, application/yaml", false),
        ("application/vnd.kubernetes.protobuf, application/yaml;q=0.9", true),
        ("", false),
    ] {
        assert_eq!(is_wanted(accept), want, "{accept}");
    }
}
