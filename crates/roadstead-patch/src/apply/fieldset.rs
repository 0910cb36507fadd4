//! Sets of paths: which fields of an object somebody owns.
//!
//! A set is a tree of steps. A path may be in the set without the paths below it, and the other
//! way round: owning an element of a list is not owning its fields. The written form is FieldsV1.

use std::cmp::Ordering;

use serde_json::{Map, Value};

use super::element::Element;

/// A set of paths, all of which begin at the same place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FieldSet {
    /// In order, each element once; none without a member at or below it.
    branches: Vec<Branch>,
}

/// The paths of a set that begin with the same step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Branch {
    /// The step.
    pub element: Element,
    /// Whether the path of only this step is in the set.
    pub member: bool,
    /// The longer paths, without this step.
    pub below: FieldSet,
}

impl Branch {
    fn is_empty(&self) -> bool {
        !self.member && self.below.is_empty()
    }
}

/// Which of two sets a merge of both keeps.
#[derive(Clone, Copy)]
struct Keep {
    left: bool,
    right: bool,
    both: bool,
}

const UNION: Keep = Keep { left: true, right: true, both: true };
const DIFFERENCE: Keep = Keep { left: true, right: false, both: false };
const INTERSECTION: Keep = Keep { left: false, right: false, both: true };

impl FieldSet {
    /// Whether no path is in it.
    pub(super) fn is_empty(&self) -> bool {
        self.branches.is_empty()
    }

    /// What begins with each step, in order.
    pub(super) fn branches(&self) -> &[Branch] {
        &self.branches
    }

    /// What begins with a step.
    pub(super) fn branch(&self, element: &Element) -> Option<&Branch> {
        let found = self.branches.binary_search_by(|branch| branch.element.cmp(element));
        found.ok().map(|index| &self.branches[index])
    }

    /// What begins with a field.
    pub(super) fn field(&self, name: &str) -> Option<&Branch> {
        let order = |branch: &Branch| match &branch.element {
            Element::Field(field) => (**field).cmp(name),
            _ => Ordering::Greater,
        };
        self.branches.binary_search_by(order).ok().map(|index| &self.branches[index])
    }

    /// Whether a path is in the set.
    #[cfg(test)]
    pub(super) fn has(&self, path: &[Element]) -> bool {
        match path {
            [] => false,
            [last] => self.branch(last).is_some_and(|branch| branch.member),
            [first, rest @ ..] => self.branch(first).is_some_and(|branch| branch.below.has(rest)),
        }
    }

    /// Puts a path into the set.
    pub(super) fn insert(&mut self, path: &[Element]) {
        let Some((first, rest)) = path.split_first() else { return };
        let place = self.branches.binary_search_by(|branch| branch.element.cmp(first));
        let index = place.unwrap_or_else(|index| {
            let below = FieldSet::default();
            self.branches.insert(index, Branch { element: first.clone(), member: false, below });
            index
        });
        match rest {
            [] => self.branches[index].member = true,
            rest => self.branches[index].below.insert(rest),
        }
    }

    /// Adds what begins with a step that comes after all others so far; `finish` mends the order
    /// for those who cannot promise it.
    pub(super) fn push(&mut self, element: Element, member: bool, below: FieldSet) {
        let branch = Branch { element, member, below };
        if !branch.is_empty() {
            self.branches.push(branch);
        }
    }

    /// Sorts what was pushed out of order, and joins what was pushed twice.
    pub(super) fn finish(&mut self) {
        if self.branches.is_sorted_by(|a, b| a.element < b.element) {
            return;
        }
        self.branches.sort_by(|a, b| a.element.cmp(&b.element));
        let branches = std::mem::take(&mut self.branches);
        for branch in branches {
            match self.branches.last_mut() {
                Some(last) if last.element == branch.element => {
                    last.member |= branch.member;
                    last.below = last.below.union(&branch.below);
                }
                _ => self.branches.push(branch),
            }
        }
    }

    /// Keeps only the branches that satisfy `keep`, which may also change them.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(&mut Branch) -> bool) {
        self.branches.retain_mut(|branch| keep(branch) && !branch.is_empty());
    }

    /// The paths in either set.
    pub(super) fn union(&self, other: &Self) -> Self {
        self.combine(other, UNION)
    }

    /// The paths in this set that are not in the other.
    pub(super) fn difference(&self, other: &Self) -> Self {
        self.combine(other, DIFFERENCE)
    }

    /// The paths in both sets.
    pub(super) fn intersection(&self, other: &Self) -> Self {
        self.combine(other, INTERSECTION)
    }

    /// The members that have no members below them.
    #[cfg(test)]
    pub(super) fn leaves(&self) -> Self {
        let mut leaves = Self::default();
        for branch in &self.branches {
            let member = branch.below.is_empty();
            leaves.push(branch.element.clone(), member, branch.below.leaves());
        }
        leaves
    }

    fn combine(&self, other: &Self, keep: Keep) -> Self {
        let mut result = Self::default();
        let (mut left, mut right) = (self.branches.as_slice(), other.branches.as_slice());
        loop {
            let order = match (left.first(), right.first()) {
                (None, None) => return result,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(a), Some(b)) => a.element.cmp(&b.element),
            };
            match order {
                Ordering::Less => {
                    if keep.left {
                        result.branches.push(left[0].clone());
                    }
                    left = &left[1..];
                }
                Ordering::Greater => {
                    if keep.right {
                        result.branches.push(right[0].clone());
                    }
                    right = &right[1..];
                }
                Ordering::Equal => {
                    let (a, b) = (&left[0], &right[0]);
                    let member = match (a.member, b.member) {
                        (true, true) => keep.both,
                        (true, false) => keep.left,
                        (false, true) => keep.right,
                        (false, false) => false,
                    };
                    let below = a.below.combine(&b.below, keep);
                    result.push(a.element.clone(), member, below);
                    (left, right) = (&left[1..], &right[1..]);
                }
            }
        }
    }

    /// Calls `visit` with every path; at each place shorter paths come before longer ones.
    pub(super) fn visit(&self, visit: &mut impl FnMut(&[Element])) {
        self.visit_below(&mut Vec::new(), visit);
    }

    fn visit_below(&self, path: &mut Vec<Element>, visit: &mut impl FnMut(&[Element])) {
        for branch in self.branches.iter().filter(|branch| branch.member) {
            path.push(branch.element.clone());
            visit(path);
            path.pop();
        }
        for branch in self.branches.iter().filter(|branch| !branch.below.is_empty()) {
            path.push(branch.element.clone());
            branch.below.visit_below(path, visit);
            path.pop();
        }
    }

    /// All paths as messages show them, such as `.spec.ports[port=80,protocol="TCP"].name`.
    pub(super) fn shown(&self) -> Vec<String> {
        let mut shown = Vec::new();
        self.visit(&mut |path| shown.push(path.iter().map(Element::to_string).collect()));
        shown
    }

    /// Reads FieldsV1; `None` if it is not that.
    pub(super) fn decode(fields: &Value) -> Option<Self> {
        fields.as_object().and_then(Self::decode_object)
    }

    fn decode_object(fields: &Map<String, Value>) -> Option<Self> {
        let mut branches = Vec::with_capacity(fields.len());
        for (name, below) in fields.iter().filter(|(name, _)| *name != ".") {
            let element = Element::parse(name)?;
            let fields = below.as_object()?;
            let below = Self::decode_object(fields)?;
            let member = below.is_empty() || fields.contains_key(".");
            branches.push(Branch { element, member, below });
        }
        let mut set = Self { branches };
        set.finish();
        Some(set)
    }

    /// As FieldsV1.
    pub(super) fn encode(&self) -> Value {
        let encode = |branch: &Branch| {
            let mut below = branch.below.encode();
            if branch.member && !branch.below.is_empty() {
                below["."] = Value::Object(Map::new());
            }
            (branch.element.encode(), below)
        };
        Value::Object(self.branches.iter().map(encode).collect())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn set(fields: Value) -> FieldSet {
        FieldSet::decode(&fields).unwrap()
    }

    #[test]
    fn members_and_what_is_below_them_are_different_things() {
        let a = set(json!({"f:a": {".": {}, "f:b": {}, "f:c": {"i:0": {}}}}));
        let b = set(json!({"f:a": {"f:c": {}}, "f:d": {}}));
        let has = |set: &FieldSet, path: &str| {
            set.has(&path.split('/').map(|step| Element::parse(step).unwrap()).collect::<Vec<_>>())
        };
        assert!(has(&a, "f:a") && has(&a, "f:a/f:b") && !has(&a, "f:a/f:c"));
        assert!(!has(&b, "f:a") && has(&b, "f:a/f:c"));
        let union = json!({"f:a": {".": {}, "f:b": {}, "f:c": {".": {}, "i:0": {}}}, "f:d": {}});
        assert_eq!(a.union(&b).encode(), union);
        assert_eq!(a.difference(&b), a);
        assert_eq!(b.difference(&a), b);
        assert_eq!(a.intersection(&a.union(&b)), a);
        assert!(a.intersection(&b).is_empty());
        assert_eq!(a.leaves().encode(), json!({"f:a": {"f:b": {}, "f:c": {"i:0": {}}}}));
        assert_eq!(a.shown(), [".a", ".a.b", ".a.c[0]"]);
    }

    #[test]
    fn what_is_not_fields_v1_is_refused() {
        for fields in [json!([]), json!({"a": {}}), json!({"f:a": 1}), json!({"f:a": {"k:x": {}}})]
        {
            assert_eq!(FieldSet::decode(&fields), None, "{fields}");
        }
    }

    fn element() -> impl Strategy<Value = Element> {
        prop_oneof![
            "[a-c]{1,2}".prop_map(|name| Element::field(&name)),
            (0..3u8, "[A-B]").prop_map(|(port, name)| {
                let (port, name) = (json!(port), json!(name));
                Element::key([("port", &port), ("name", &name)].into_iter())
            }),
            "[a-c\"]".prop_map(|text| Element::value(&json!(text))),
            (0..12usize).prop_map(Element::Index),
        ]
    }

    pub(in super::super) fn sets() -> impl Strategy<Value = FieldSet> {
        let path = prop::collection::vec(element(), 1..4);
        prop::collection::vec(path, 0..12).prop_map(|paths| {
            let mut set = FieldSet::default();
            paths.iter().for_each(|path| set.insert(path));
            set
        })
    }

    proptest! {
        #[test]
        fn reading_what_was_written_gives_the_same(set in sets()) {
            prop_assert_eq!(FieldSet::decode(&set.encode()), Some(set.clone()));
            let mut again = FieldSet::default();
            set.visit(&mut |path| again.insert(path));
            prop_assert_eq!(again, set);
        }

        #[test]
        fn they_obey_the_laws_of_sets(a in sets(), b in sets()) {
            prop_assert_eq!(a.union(&b), b.union(&a));
            prop_assert_eq!(a.intersection(&b), b.intersection(&a));
            prop_assert_eq!(a.difference(&b).union(&a.intersection(&b)), a.clone());
            prop_assert!(a.difference(&b).intersection(&b).is_empty());
            prop_assert_eq!(a.union(&a), a.clone());
            let mut all = true;
            a.union(&b).visit(&mut |path| all &= a.has(path) || b.has(path));
            prop_assert!(all);
        }
    }
}
