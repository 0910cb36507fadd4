//! What ConfigMaps and Secrets have in common: named contents, a limit, and that they can be frozen.

use roadstead_schema::invalid::Causes;
use roadstead_schema::json::Pointer;
use serde_json::Value;

use crate::names;

/// How much an object may hold.
const LIMIT: usize = 1 << 20;

/// Checks the keys of one map.
pub(super) fn validate_keys(object: &Value, field: &str, causes: &mut Causes) {
    for (key, _) in object[field].fields("") {
        names::check(names::config_key, format!("{field}[{key}]"), key, causes);
    }
}

/// Checks that all contents together are not too much; `whole` is what is named if they are.
pub(super) fn validate_size(size: usize, whole: &str, causes: &mut Causes) {
    if size > LIMIT {
        causes.too_long(whole, LIMIT);
    }
}

/// Checks that what was frozen stays as it was.
pub(super) fn validate_frozen(object: &Value, old: &Value, fields: &[&str], causes: &mut Causes) {
    if !old.flag("/immutable") {
        return;
    }
    let changed = |field: &&&str| old[**field] != object[**field];
    let flag = (!object.flag("/immutable")).then_some(&"immutable");
    for field in flag.into_iter().chain(fields.iter().filter(changed)) {
        causes.forbidden(*field, "field is immutable when `immutable` is set");
    }
}

/// The bytes in a map of texts.
pub(super) fn text_size(object: &Value, field: &str) -> usize {
    object[field].fields("").map(|(_, text)| text.as_str().map_or(0, str::len)).sum()
}

/// The bytes in a map of base64.
pub(super) fn byte_size(object: &Value, field: &str) -> usize {
    let size = |text: &str| {
        let letters = text.bytes().filter(|byte| !b"=\r\n".contains(byte)).count();
        letters * 3 / 4
    };
    object[field].fields("").map(|(_, text)| text.as_str().map_or(0, size)).sum()
}
