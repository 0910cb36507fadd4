//! Editing FieldsV1 as it is stored, at a cost that follows the change and not the object.
//!
//! What is stored was written by [`FieldSet::encode`], so equal elements have equal names.

use serde_json::{Map, Value};

use super::fieldset::FieldSet;

/// Takes paths out of `fields`.
pub(super) fn subtract(fields: &mut Value, paths: &FieldSet) {
    let Value::Object(fields) = fields else { return };
    for branch in paths.branches() {
        let name = branch.element.encode();
        let Some(below) = fields.get_mut(&name) else { continue };
        let member = is_member(below) && !branch.member;
        subtract(below, &branch.below);
        if !set_member(below, member) {
            fields.remove(&name);
        }
    }
}

/// Puts paths into `fields`.
pub(super) fn add(fields: &mut Value, paths: &FieldSet) {
    let Value::Object(fields) = fields else { return };
    for branch in paths.branches() {
        let (member, below) = match fields.entry(branch.element.encode()) {
            serde_json::map::Entry::Vacant(vacant) => {
                (branch.member, vacant.insert(Value::Object(Map::new())))
            }
            serde_json::map::Entry::Occupied(occupied) => {
                let below = occupied.into_mut();
                (branch.member || is_member(below), below)
            }
        };
        add(below, &branch.below);
        set_member(below, member);
    }
}

fn is_member(below: &Value) -> bool {
    below.as_object().is_some_and(|below| below.is_empty() || below.contains_key("."))
}

/// Says in what is below a path whether the path itself is in the set; false if nothing is.
fn set_member(below: &mut Value, member: bool) -> bool {
    let Value::Object(below) = below else { return false };
    below.remove(".");
    if below.is_empty() {
        return member;
    }
    if member {
        below.insert(".".to_owned(), Value::Object(Map::new()));
    }
    true
}

#[cfg(test)]
mod tests {
    use super::super::fieldset::tests::sets;
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn editing_is_what_sets_do(a in sets(), b in sets()) {
            let mut fields = a.encode();
            add(&mut fields, &b);
            prop_assert_eq!(fields, a.union(&b).encode());
            let mut fields = a.encode();
            subtract(&mut fields, &b);
            prop_assert_eq!(fields, a.difference(&b).encode());
        }
    }
}
