//! Merging an applied configuration into an object, and taking out what is no longer applied.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::element::Element;
use super::fieldset::FieldSet;
use super::typing::{Parts, Typing};

/// The object with everything that the configuration says.
pub(super) fn merge(typing: Typing<'_>, live: Value, config: &Value) -> Value {
    match (live, config) {
        (live, Value::Null) => match typing.parts(&live) {
            // Null says nothing about what others put there.
            parts @ (Parts::Object(_) | Parts::List(_)) if !parts.is_empty() => live,
            _ => Value::Null,
        },
        (Value::Object(mut live), config) => match typing.parts(config) {
            Parts::Object(fields) => {
                merge_fields(typing, &mut live, fields);
                Value::Object(live)
            }
            _ => config.clone(),
        },
        (Value::Array(live), config) => match typing.parts(config) {
            Parts::List(items) => Value::Array(merge_items(typing, live, items)),
            _ => config.clone(),
        },
        _ => config.clone(),
    }
}

fn merge_fields(typing: Typing<'_>, live: &mut Map<String, Value>, config: &Map<String, Value>) {
    for (name, wanted) in config {
        match live.get_mut(name) {
            Some(value) => {
                let child = typing.child(name).typing;
                *value = merge(child, value.take(), wanted);
            }
            None => {
                live.insert(name.clone(), wanted.clone());
            }
        }
    }
}

/// Applied elements come in the order in which they are applied; the others stay where they are
/// in relation to those that keep their order. What is new comes just before what follows it.
fn merge_items(typing: Typing<'_>, live: Vec<Value>, config: &[Value]) -> Vec<Value> {
    let place = |(index, item)| (typing.element_at(index, item), index);
    let places: BTreeMap<Element, usize> = config.iter().enumerate().map(place).collect();
    let mut shared: Vec<Option<Value>> = vec![None; config.len()];
    // Others, and the places of the shared elements, in the present order.
    let mut walk = Vec::with_capacity(live.len());
    for (index, item) in live.into_iter().enumerate() {
        match places.get(&typing.element_at(index, &item)) {
            Some(&place) if shared[place].is_none() => {
                shared[place] = Some(item);
                walk.push(Ok(place));
            }
            Some(_) => {}
            None => walk.push(Err(item)),
        }
    }
    let in_both: Vec<usize> = (0..config.len()).filter(|place| shared[*place].is_some()).collect();
    let mut awaited = in_both.into_iter().peekable();
    let mut merged = Vec::with_capacity(config.len() + walk.len());
    let mut next = 0;
    for step in walk {
        match step {
            Err(other) => merged.push(other),
            Ok(place) if awaited.peek() == Some(&place) => {
                awaited.next();
                merged.extend((next..=place).map(|at| joined(typing, &mut shared, config, at)));
                next = place + 1;
            }
            Ok(_) => {}
        }
    }
    merged.extend((next..config.len()).map(|at| joined(typing, &mut shared, config, at)));
    merged
}

fn joined(typing: Typing<'_>, shared: &mut [Option<Value>], config: &[Value], at: usize) -> Value {
    match shared[at].take() {
        Some(live) => merge(typing.items(), live, &config[at]),
        None => config[at].clone(),
    }
}

/// Takes out what is in `last` and not in `keep`: what somebody owned and nobody does now.
pub(super) fn prune(typing: Typing<'_>, value: &mut Value, last: &FieldSet, keep: &FieldSet) {
    if last.is_empty() {
        return;
    }
    match typing.parts(value) {
        Parts::Whole => {}
        Parts::Object(_) => {
            let Value::Object(fields) = value else { return };
            fields.retain(|name, value| {
                let Some(last) = last.field(name) else { return true };
                let keep = keep.field(name);
                let child = typing.child(name);
                // An object with known fields is owned by whoever owns anything in it.
                let (owned, kept) = match child.named {
                    true => (true, keep.is_some()),
                    false => (last.member, keep.is_some_and(|keep| keep.member)),
                };
                if owned && !kept {
                    return false;
                }
                let none = FieldSet::default();
                let below = keep.map_or(&none, |keep| &keep.below);
                let is_emptied = prune_inside(child.typing, value, &last.below, below);
                !is_emptied || keep.is_some_and(|keep| keep.member)
            });
        }
        Parts::List(_) => {
            let Value::Array(items) = value else { return };
            let mut index = 0;
            items.retain_mut(|item| {
                let element = typing.element_at(index, item);
                index += 1;
                let Some(last) = last.branch(&element) else { return true };
                let keep = keep.branch(&element);
                if last.member && !keep.is_some_and(|keep| keep.member) {
                    return false;
                }
                let none = FieldSet::default();
                let below = keep.map_or(&none, |keep| &keep.below);
                prune(typing.items(), item, &last.below, below);
                true
            });
        }
    }
}

/// Prunes, and says whether nothing is left.
fn prune_inside(typing: Typing<'_>, value: &mut Value, last: &FieldSet, keep: &FieldSet) -> bool {
    let was_empty = typing.parts(value).is_empty();
    prune(typing, value, last, keep);
    !was_empty && typing.parts(value).is_empty()
}
