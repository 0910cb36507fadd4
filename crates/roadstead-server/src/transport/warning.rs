//! Lines that clients show to their users, besides the answer. There may be a great many things to
//! warn of; clients read headers only up to a bound.

use http::header::{HeaderMap, HeaderValue, WARNING};

/// When all warnings have more characters than this together, each is cut (upstream's bound),
const TOGETHER: usize = 4 * 1024;
/// to so many.
const EACH: usize = 256;

/// Adds a line, unless it is there or there are too many.
pub(crate) fn add(headers: &mut HeaderMap, text: &str) {
    let Some(line) = line(text, usize::MAX) else { return };
    if headers.get_all(WARNING).iter().any(|other| *other == line) {
        return;
    }
    let taken: usize = headers.get_all(WARNING).iter().map(HeaderValue::len).sum();
    if taken + line.len() <= TOGETHER {
        headers.append(WARNING, line);
        return;
    }
    let all: Vec<_> = headers.get_all(WARNING).iter().map(shown).chain([text.to_owned()]).collect();
    headers.remove(WARNING);
    let mut taken = 0;
    for line in all.iter().filter_map(|text| self::line(text, EACH)) {
        taken += line.len();
        if taken > TOGETHER {
            return;
        }
        headers.append(WARNING, line);
    }
}

/// Adds a line before all others.
pub(crate) fn add_first(headers: &mut HeaderMap, text: &str) {
    let others: Vec<_> = headers.get_all(WARNING).iter().map(shown).collect();
    headers.remove(WARNING);
    add(headers, text);
    others.iter().for_each(|other| add(headers, other));
}

/// A warning as a header; its text cut to so many characters.
fn line(text: &str, most: usize) -> Option<HeaderValue> {
    let text: String = text.chars().take(most).collect();
    let text = text.replace('\\', "\\\\").replace('"', "\\\"");
    HeaderValue::from_str(&format!("299 - \"{text}\"")).ok()
}

/// The text of a header.
fn shown(line: &HeaderValue) -> String {
    let line = line.to_str().unwrap_or("");
    let text = line.strip_prefix("299 - \"").and_then(|text| text.strip_suffix('"')).unwrap_or("");
    let mut out = String::new();
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        out.extend(if letter == '\\' { letters.next() } else { Some(letter) });
    }
    out
}

#[test]
fn warnings_are_bounded() {
    let of = |texts: &[String]| {
        let mut headers = HeaderMap::new();
        texts.iter().for_each(|text| add(&mut headers, text));
        headers.get_all(WARNING).iter().map(shown).collect::<Vec<_>>()
    };
    let few = ["a \"b\"".to_owned(), "c\\".to_owned(), "a \"b\"".to_owned()];
    assert_eq!(of(&few), ["a \"b\"", "c\\"], "each once");
    assert_eq!(of(&["x".repeat(4_000)])[0].len(), 4_000, "one may be long");
    let long: Vec<_> = (0..3).map(|number| format!("{number}{}", "x".repeat(3_000))).collect();
    let lengths: Vec<_> = of(&long).iter().map(String::len).collect();
    assert_eq!(lengths, [EACH, EACH, 3_001], "those are cut that leave no room");
    let many: Vec<_> = (0..20_000).map(|number| format!("duplicate field {number}")).collect();
    let found = of(&many);
    assert!(found.len() > 100 && found.len() < 200, "{}", found.len());
    assert_eq!(found[0], "duplicate field 0");
}
