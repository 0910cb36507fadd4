//! What some rules allow and others do not, without multiplying them out.
//!
//! A rule of a few kilobytes stands for millions of single permissions: verbs × groups × resources ×
//! names. Items that the same held rules have are taken together, so that what has to be compared
//! are the few sorts of items, and not the items. Whoever arranges rules so that there are many
//! sorts all the same is refused when the comparison has taken long enough.

use std::collections::{HashMap, HashSet};

use super::rule::Rule;

/// How many missing permissions are named.
const NAMED: usize = 20;
/// How many missing verbs are named of each.
const VERBS: usize = 50;
/// How many steps a comparison may take: some milliseconds.
const STEPS: u64 = 20_000_000;

/// What is not held of what was wanted.
#[derive(Debug, Default)]
pub(crate) struct Missing {
    /// The first of it, one rule for each resource (and name) or path.
    pub named: Vec<Rule>,
    /// How many more there are.
    pub more: u128,
    /// Whether the comparison was given up: there may be even more.
    pub unsettled: bool,
}

impl Missing {
    /// Whether everything is held.
    pub(crate) fn is_empty(&self) -> bool {
        self.named.is_empty() && self.more == 0 && !self.unsettled
    }
}

/// What of `wanted` is not in `held`: nobody may give away what they do not have. A single
/// permission counts as held if one of the rules has all of it, as upstream sees it.
pub(crate) fn missing<'a>(held: impl IntoIterator<Item = &'a Rule>, wanted: &[Rule]) -> Missing {
    missing_within(held, wanted, STEPS)
}

fn missing_within<'a>(
    held: impl IntoIterator<Item = &'a Rule>,
    wanted: &[Rule],
    steps: u64,
) -> Missing {
    let held = Held::new(held.into_iter().collect());
    let mut search = Search { held: &held, steps, missing: Missing::default() };
    for rule in wanted {
        search.resources(rule);
        search.paths(rule);
    }
    search.missing
}

/// Some of the held rules, by their numbers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Set(Vec<u64>);

impl Set {
    fn none(rules: usize) -> Self {
        Self(vec![0; rules.div_ceil(64)])
    }

    fn insert(&mut self, rule: usize) {
        self.0[rule / 64] |= 1 << (rule % 64);
    }

    fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    fn meets(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).any(|(own, other)| own & other != 0)
    }

    fn and(&self, other: &Self) -> Self {
        Self(self.0.iter().zip(&other.0).map(|(own, other)| own & other).collect())
    }
}

/// Which rules have an item of one list.
struct Lookup<'a> {
    /// Those that have every item.
    any: Set,
    by_item: HashMap<&'a str, Vec<usize>>,
}

impl<'a> Lookup<'a> {
    fn new(
        rules: &[&'a Rule],
        list: impl Fn(&'a Rule) -> &'a [String],
        any: impl Fn(&Rule) -> bool,
    ) -> Self {
        let mut lookup = Self { any: Set::none(rules.len()), by_item: HashMap::new() };
        for (number, rule) in rules.iter().enumerate() {
            if any(rule) {
                lookup.any.insert(number);
            }
            for item in list(rule) {
                lookup.by_item.entry(item).or_default().push(number);
            }
        }
        lookup
    }

    fn add(&self, item: &str, set: &mut Set) {
        for rule in self.by_item.get(item).into_iter().flatten() {
            set.insert(*rule);
        }
    }

    fn having(&self, item: &str) -> Set {
        let mut set = self.any.clone();
        self.add(item, &mut set);
        set
    }
}

/// The held rules, by what they have.
struct Held<'a> {
    verbs: Lookup<'a>,
    groups: Lookup<'a>,
    resources: Lookup<'a>,
    names: Lookup<'a>,
    /// Rules about paths that are not narrowed by names.
    paths: Lookup<'a>,
    /// What paths begin with that a rule allows, and the rule.
    prefixes: Vec<(&'a str, usize)>,
    all: Set,
}

impl<'a> Held<'a> {
    fn new(rules: Vec<&'a Rule>) -> Self {
        let star = |list: &[String]| list.iter().any(|item| item == "*");
        let mut all = Set::none(rules.len());
        (0..rules.len()).for_each(|rule| all.insert(rule));
        let mut prefixes = Vec::new();
        for (number, rule) in rules.iter().enumerate().filter(|(_, rule)| rule.names.is_empty()) {
            let patterns = rule.paths.iter().filter(|path| path.ends_with('*'));
            prefixes.extend(patterns.map(|path| (path.trim_end_matches('*'), number)));
        }
        let unnarrowed = |rule: &'a Rule| match rule.names.is_empty() {
            true => &rule.paths[..],
            false => &[],
        };
        Self {
            verbs: Lookup::new(&rules, |rule| &rule.verbs, |rule| star(&rule.verbs)),
            groups: Lookup::new(&rules, |rule| &rule.groups, |rule| star(&rule.groups)),
            resources: Lookup::new(&rules, |rule| &rule.resources, |rule| star(&rule.resources)),
            names: Lookup::new(&rules, |rule| &rule.names, |rule| rule.names.is_empty()),
            paths: Lookup::new(&rules, unnarrowed, |_| false),
            prefixes,
            all,
        }
    }

    fn resource(&self, wanted: &str) -> Set {
        let mut set = self.resources.having(wanted);
        if let Some((_, subresource)) = wanted.split_once('/') {
            self.resources.add(&format!("*/{subresource}"), &mut set);
        }
        set
    }

    fn path(&self, wanted: &str) -> Set {
        let mut set = self.paths.having(wanted);
        for (_, rule) in self.prefixes.iter().filter(|(prefix, _)| wanted.starts_with(prefix)) {
            set.insert(*rule);
        }
        set
    }
}

/// Items of a wanted rule that the same held rules have.
struct Sort<'a> {
    items: Vec<&'a str>,
    held: Set,
}

/// One of the lists of a wanted rule.
struct List<'a> {
    sorts: Vec<Sort<'a>>,
    items: Vec<&'a str>,
    /// The rules that have all items.
    whole: Set,
}

/// What one rule wants: lists of which each combination is a permission, for each of the verbs.
struct Wanted<'a> {
    lists: Vec<List<'a>>,
    verbs: List<'a>,
    /// Makes a rule of a combination.
    rule: fn(&[&str]) -> Rule,
    /// Upstream shows the verbs of a resource together, and those of a path one by one.
    joined: bool,
}

struct Search<'a> {
    held: &'a Held<'a>,
    steps: u64,
    missing: Missing,
}

impl<'a> Search<'a> {
    fn resources(&mut self, rule: &Rule) {
        if [&rule.verbs, &rule.groups, &rule.resources].iter().any(|list| list.is_empty()) {
            return;
        }
        let held = self.held;
        let mut lists = vec![
            self.list(&rule.groups, |item| held.groups.having(item)),
            self.list(&rule.resources, |item| held.resource(item)),
        ];
        if !rule.names.is_empty() {
            lists.push(self.list(&rule.names, |item| held.names.having(item)));
        }
        let verbs = self.list(&rule.verbs, |item| held.verbs.having(item));
        let every_name = if rule.names.is_empty() { &held.names.any } else { &held.all };
        let wanted = Wanted { lists, verbs, rule: about_resource, joined: true };
        self.look(&wanted, &mut Vec::new(), every_name);
    }

    fn paths(&mut self, rule: &Rule) {
        if rule.verbs.is_empty() || rule.paths.is_empty() {
            return;
        }
        let held = self.held;
        // Each pattern is tried for each path.
        self.spend(rule.paths.len().saturating_mul(held.prefixes.len()));
        if self.missing.unsettled {
            return;
        }
        let lists = vec![self.list(&rule.paths, |item| held.path(item))];
        let verbs = self.list(&rule.verbs, |item| held.verbs.having(item));
        let wanted = Wanted { lists, verbs, rule: about_path, joined: false };
        self.look(&wanted, &mut Vec::new(), &held.all);
    }

    /// Takes steps from what is left of them.
    fn spend(&mut self, steps: usize) {
        let steps = u64::try_from(steps).unwrap_or(u64::MAX);
        match self.steps.checked_sub(steps) {
            Some(left) => self.steps = left,
            None => {
                self.steps = 0;
                self.missing.unsettled = true;
            }
        }
    }

    fn list<'b>(&mut self, items: &'b [String], having: impl Fn(&str) -> Set) -> List<'b> {
        let mut seen = HashSet::new();
        let mut by_held = HashMap::<Set, usize>::new();
        let mut list =
            List { sorts: Vec::<Sort<'b>>::new(), items: Vec::new(), whole: self.held.all.clone() };
        for item in items.iter().map(String::as_str) {
            if !seen.insert(item) {
                continue;
            }
            self.spend(1 + self.held.all.0.len());
            if self.missing.unsettled {
                break;
            }
            let held = having(item);
            list.items.push(item);
            match by_held.get(&held) {
                Some(&sort) => list.sorts[sort].items.push(item),
                None => {
                    list.whole = list.whole.and(&held);
                    by_held.insert(held.clone(), list.sorts.len());
                    list.sorts.push(Sort { items: vec![item], held });
                }
            }
        }
        list
    }

    /// Looks for what is missing among the combinations that begin with `chosen`, of which
    /// `candidates` have all that has been chosen.
    fn look<'b>(
        &mut self,
        wanted: &'b Wanted<'b>,
        chosen: &mut Vec<&'b [&'b str]>,
        candidates: &Set,
    ) {
        let rest = &wanted.lists[chosen.len()..];
        self.spend((rest.len() + 1) * (1 + candidates.0.len()));
        if self.missing.unsettled {
            return;
        }
        if candidates.is_empty() {
            // Nobody has any of it.
            let all: Vec<_> =
                chosen.iter().copied().chain(rest.iter().map(|l| &l.items[..])).collect();
            return self.note(wanted, &all, &wanted.verbs.items);
        }
        let one = rest.iter().fold(candidates.and(&wanted.verbs.whole), |set, l| set.and(&l.whole));
        if !one.is_empty() {
            return;
        }
        let Some(list) = rest.first() else {
            self.spend(wanted.verbs.sorts.len() * (1 + candidates.0.len()));
            let sorts = wanted.verbs.sorts.iter().filter(|sort| !sort.held.meets(candidates));
            let verbs: Vec<_> = sorts.flat_map(|sort| &sort.items).copied().collect();
            return self.note(wanted, chosen, &verbs);
        };
        for sort in &list.sorts {
            chosen.push(&sort.items);
            self.look(wanted, chosen, &candidates.and(&sort.held));
            chosen.pop();
        }
    }

    /// Notes that these verbs are missing for all combinations of the items.
    fn note(&mut self, wanted: &Wanted<'_>, lists: &[&[&str]], verbs: &[&str]) {
        if verbs.is_empty() {
            return;
        }
        let wide = |count: usize| u128::try_from(count).unwrap_or(u128::MAX);
        let each = if wanted.joined { 1 } else { wide(verbs.len()) };
        let combinations = lists.iter().map(|list| wide(list.len()));
        let mut count = combinations.fold(each, u128::saturating_mul);
        let mut place = vec![0; lists.len()];
        while self.missing.named.len() < NAMED && count > 0 {
            let items: Vec<_> = lists.iter().zip(&place).map(|(list, at)| list[*at]).collect();
            let rule = (wanted.rule)(&items);
            for verbs in verbs.chunks(if wanted.joined { verbs.len() } else { 1 }) {
                if self.missing.named.len() == NAMED {
                    break;
                }
                self.name(&rule, verbs);
                count = count.saturating_sub(1);
            }
            if !advance(&mut place, lists) {
                break;
            }
        }
        self.missing.more = self.missing.more.saturating_add(count);
    }

    /// Names a permission, together with what is missing for the same resource already.
    fn name(&mut self, rule: &Rule, verbs: &[&str]) {
        let verbs = verbs.iter().take(VERBS).map(|verb| (*verb).to_owned());
        let same = |other: &&mut Rule| {
            rule.paths.is_empty()
                && other.paths.is_empty()
                && (&other.groups, &other.resources, &other.names)
                    == (&rule.groups, &rule.resources, &rule.names)
        };
        match self.missing.named.iter_mut().find(same) {
            Some(other) => {
                for verb in verbs {
                    if !other.verbs.contains(&verb) && other.verbs.len() < VERBS {
                        other.verbs.push(verb);
                    }
                }
            }
            None => self.missing.named.push(Rule { verbs: verbs.collect(), ..rule.clone() }),
        }
    }
}

fn about_resource(items: &[&str]) -> Rule {
    let one = |at: usize| items.get(at).map(|item| (*item).to_owned()).into_iter().collect();
    Rule { groups: one(0), resources: one(1), names: one(2), ..Rule::default() }
}

fn about_path(items: &[&str]) -> Rule {
    Rule { paths: items.iter().map(|item| (*item).to_owned()).collect(), ..Rule::default() }
}

/// The next combination, the last list first; false after the last one.
fn advance(place: &mut [usize], lists: &[&[&str]]) -> bool {
    for (at, list) in place.iter_mut().zip(lists).rev() {
        *at += 1;
        if *at < list.len() {
            return true;
        }
        *at = 0;
    }
    false
}

#[cfg(test)]
mod tests;
