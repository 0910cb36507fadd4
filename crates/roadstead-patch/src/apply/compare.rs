//! What differs between two states of an object, as sets of paths.

use std::cmp::Ordering;
use std::sync::LazyLock;

use roadstead_schema::types::ListKind;
use serde_json::{Map, Value};

use super::element::Element;
use super::fieldset::FieldSet;
use super::typing::{Parts, Shape, Typing};

/// The paths in which two values differ.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Comparison {
    /// What only the new value has.
    pub added: FieldSet,
    /// What both have, differently.
    pub modified: FieldSet,
    /// What only the old value has.
    pub removed: FieldSet,
}

/// How the value at a path itself differs.
#[derive(Clone, Copy, Default)]
struct Mark {
    added: bool,
    modified: bool,
    removed: bool,
}

static EMPTY: LazyLock<Value> = LazyLock::new(|| Value::Object(Map::new()));

/// Compares two objects; without an old one, everything that is not always there is new.
pub(super) fn compare(typing: Typing<'_>, old: Option<&Value>, new: &Value) -> Comparison {
    let mut comparison = Comparison::default();
    comparison.values(typing, Some(old.unwrap_or(&EMPTY)), Some(new));
    comparison
}

impl Comparison {
    /// Whether nothing differs.
    pub(super) fn is_same(&self) -> bool {
        self.added.is_empty() && self.modified.is_empty() && self.removed.is_empty()
    }

    /// What the new value says and the old one does not.
    pub(super) fn set(&self) -> FieldSet {
        self.added.union(&self.modified)
    }

    /// Compares two values at one place: the mark is about the place, this about what is below.
    fn values(&mut self, typing: Typing<'_>, old: Option<&Value>, new: Option<&Value>) -> Mark {
        let (left, right) = (old.filter(|v| !v.is_null()), new.filter(|v| !v.is_null()));
        let (left, right) = (left.map(|v| typing.parts(v)), right.map(|v| typing.parts(v)));
        let empty = |parts: &Option<Parts<'_>>| parts.as_ref().is_none_or(Parts::is_empty);
        if empty(&left) && empty(&right) {
            return whole(old, new);
        }
        match (left, right) {
            (Some(Parts::Whole) | None, Some(Parts::Whole) | None) => return whole(old, new),
            (Some(Parts::Object(left)), Some(Parts::Object(right))) => {
                self.objects(typing, Some(left), Some(right));
            }
            (Some(Parts::Object(left)), None) => self.objects(typing, Some(left), None),
            (None, Some(Parts::Object(right))) => self.objects(typing, None, Some(right)),
            (Some(Parts::List(left)), Some(Parts::List(right))) => self.lists(typing, left, right),
            (Some(Parts::List(left)), None) => self.lists(typing, left, &[]),
            (None, Some(Parts::List(right))) => self.lists(typing, &[], right),
            // One has parts and the other has not: nothing below is the same thing any more.
            (Some(_), Some(_)) => {
                let mut gone = Self::default();
                gone.values(typing, old, None);
                self.values(typing, None, new);
                self.removed = gone.removed;
                return Mark { modified: true, ..Mark::default() };
            }
        }
        Mark { added: old.is_none(), modified: false, removed: new.is_none() }
    }

    fn objects(
        &mut self,
        typing: Typing<'_>,
        old: Option<&Map<String, Value>>,
        new: Option<&Map<String, Value>>,
    ) {
        let (mut left, mut right) =
            (old.into_iter().flatten().peekable(), new.into_iter().flatten().peekable());
        loop {
            let order = match (left.peek(), right.peek()) {
                (None, None) => return,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some((a, _)), Some((b, _))) => a.cmp(b),
            };
            let was = if order == Ordering::Greater { None } else { left.next() };
            let is = if order == Ordering::Less { None } else { right.next() };
            let Some((name, _)) = was.or(is) else { return };
            let (was, is) = (was.map(|(_, value)| value), is.map(|(_, value)| value));
            if was.is_some_and(|was| !was.is_object() && !was.is_array()) && was == is {
                continue;
            }
            let was = was.or_else(|| {
                let there = old.is_some() && typing.is_always_there(name);
                match is {
                    Some(Value::Object(_)) if there => Some(&*EMPTY),
                    Some(Value::Array(_)) if there => Some(&Value::Null),
                    _ => None,
                }
            });
            let mut below = Self::default();
            let mark = below.values(typing.child(name).typing, was, is);
            self.push(|| Element::field(name), mark, below);
        }
    }

    fn lists(&mut self, typing: Typing<'_>, old: &[Value], new: &[Value]) {
        if old == new {
            return;
        }
        if is_aligned(typing, old, new) {
            return self.aligned_lists(typing, old, new);
        }
        let (old, new) = (by_element(typing, old), by_element(typing, new));
        let (mut left, mut right) = (old.as_slice(), new.as_slice());
        while let Some(element) = first_of(left, right).cloned() {
            let was = take_equal(&mut left, &element);
            let is = take_equal(&mut right, &element);
            let mut below = Self::default();
            let mark = match (was, is) {
                (&[], [(_, is), ..]) => below.values(typing.items(), None, Some(is)),
                ([(_, was), ..], &[]) => below.values(typing.items(), Some(was), None),
                ([(_, was)], [(_, is)]) => below.values(typing.items(), Some(was), Some(is)),
                // Elements that should not be there twice are compared as a whole.
                (was, is) => Mark { modified: was != is, ..Mark::default() },
            };
            self.push(|| element, mark, below);
        }
    }

    /// Compares lists in which the same elements have the same places, as is usual.
    fn aligned_lists(&mut self, typing: Typing<'_>, old: &[Value], new: &[Value]) {
        for (index, (was, is)) in old.iter().zip(new).enumerate().filter(|(_, (a, b))| a != b) {
            let mut below = Self::default();
            let mark = below.values(typing.items(), Some(was), Some(is));
            self.push(|| typing.element_at(index, is), mark, below);
        }
        for set in [&mut self.added, &mut self.modified, &mut self.removed] {
            set.finish();
        }
    }

    fn push(&mut self, element: impl FnOnce() -> Element, mark: Mark, below: Self) {
        if below.is_same() && !mark.added && !mark.modified && !mark.removed {
            return;
        }
        let element = element();
        self.added.push(element.clone(), mark.added, below.added);
        self.modified.push(element.clone(), mark.modified, below.modified);
        self.removed.push(element, mark.removed, below.removed);
    }
}

fn whole(old: Option<&Value>, new: Option<&Value>) -> Mark {
    match (old, new) {
        (None, None) => Mark::default(),
        (None, Some(_)) => Mark { added: true, ..Mark::default() },
        (Some(_), None) => Mark { removed: true, ..Mark::default() },
        (Some(old), Some(new)) => Mark { modified: old != new, ..Mark::default() },
    }
}

fn is_aligned(typing: Typing<'_>, old: &[Value], new: &[Value]) -> bool {
    let Shape::List(ListKind::Map, keys) = typing.shape() else { return false };
    let same = |was: &Value, is: &Value| keys.iter().all(|key| was.get(key) == is.get(key));
    old.len() == new.len() && old.iter().zip(new).all(|(was, is)| same(was, is))
}

type Item<'v> = (Element, &'v Value);

fn by_element<'v>(typing: Typing<'_>, items: &'v [Value]) -> Vec<Item<'v>> {
    let items = items.iter().enumerate();
    let mut items: Vec<_> =
        items.map(|(index, item)| (typing.element_at(index, item), item)).collect();
    items.sort_by(|(a, _), (b, _)| a.cmp(b));
    items
}

fn first_of<'v>(left: &'v [Item<'_>], right: &'v [Item<'_>]) -> Option<&'v Element> {
    let (left, right) = (left.first().map(|(e, _)| e), right.first().map(|(e, _)| e));
    match (left, right) {
        (Some(left), Some(right)) => Some(left.min(right)),
        (left, right) => left.or(right),
    }
}

/// The elements at the front that are `element`, taken off.
fn take_equal<'s, 'v>(items: &mut &'s [Item<'v>], element: &Element) -> &'s [Item<'v>] {
    let count = items.iter().take_while(|(other, _)| other == element).count();
    let (taken, rest) = items.split_at(count);
    *items = rest;
    taken
}
