use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

/// A single permission: verb, group, resource, name ("" for all) and path.
type Permission = (String, String, String, String, String);

/// Everything that a rule stands for, one by one.
fn multiplied(rule: &Rule) -> BTreeSet<Permission> {
    let mut all = BTreeSet::new();
    let names = if rule.names.is_empty() { vec![String::new()] } else { rule.names.clone() };
    for verb in &rule.verbs {
        for path in &rule.paths {
            let none = String::new;
            all.insert((verb.clone(), none(), none(), none(), path.clone()));
        }
        for group in &rule.groups {
            for resource in &rule.resources {
                for name in &names {
                    let (verb, group) = (verb.clone(), group.clone());
                    all.insert((verb, group, resource.clone(), name.clone(), String::new()));
                }
            }
        }
    }
    all
}

/// Whether a rule has a permission, as upstream decides it.
fn has(rule: &Rule, (verb, group, resource, name, path): &Permission) -> bool {
    let listed = |list: &[String], item: &str| list.iter().any(|own| own == "*" || own == item);
    let named = rule.names.is_empty() || (!name.is_empty() && rule.names.contains(name));
    if !listed(&rule.verbs, verb) || !named {
        return false;
    }
    if !path.is_empty() {
        let covers = |own: &String| {
            own == path || own.ends_with('*') && path.starts_with(own.trim_end_matches('*'))
        };
        return rule.names.is_empty() && rule.paths.iter().any(covers);
    }
    let any = resource.split_once('/').map(|(_, subresource)| format!("*/{subresource}"));
    let resources = &rule.resources;
    listed(&rule.groups, group)
        && (listed(resources, resource) || any.is_some_and(|any| resources.contains(&any)))
}

fn some(words: &'static [&'static str], most: usize) -> impl Strategy<Value = Vec<String>> {
    proptest::collection::vec(proptest::sample::select(words).prop_map(str::to_owned), 0..=most)
}

fn rules(most: usize) -> impl Strategy<Value = Vec<Rule>> {
    let about_resources = (
        some(&["get", "list", "create", "*"], 3),
        some(&["", "apps", "batch", "*"], 3),
        some(&["pods", "jobs", "pods/log", "pods/scale", "jobs/scale", "*/scale", "*"], 4),
        prop_oneof![3 => Just(Vec::new()), 1 => some(&["a", "b", "c"], 3)],
    );
    let about_resources = about_resources.prop_map(|(verbs, groups, resources, names)| Rule {
        verbs,
        groups,
        resources,
        names,
        paths: Vec::new(),
    });
    let paths = some(&["/healthz", "/healthz/*", "/healthz/ping", "/metrics", "/**", "*"], 3);
    // Not valid, but stored ones may be anything.
    let narrowed = prop_oneof![5 => Just(Vec::new()), 1 => some(&["a"], 1)];
    let about_paths = (some(&["get", "post", "*"], 2), paths, narrowed);
    let about_paths = about_paths.prop_map(|(verbs, paths, names)| Rule {
        verbs,
        paths,
        names,
        ..Rule::default()
    });
    proptest::collection::vec(prop_oneof![3 => about_resources, 1 => about_paths], 0..=most)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn nothing_is_missing_but_what_multiplying_misses(held in rules(6), wanted in rules(3)) {
        let all: BTreeSet<_> = wanted.iter().flat_map(multiplied).collect();
        let lacking: BTreeSet<_> =
            all.into_iter().filter(|one| !held.iter().any(|rule| has(rule, one))).collect();
        let found = missing(&held, &wanted);
        prop_assert!(!found.unsettled);
        prop_assert_eq!(found.is_empty(), lacking.is_empty());
        let named: BTreeSet<_> = found.named.iter().flat_map(multiplied).collect();
        if found.more == 0 {
            prop_assert_eq!(named, lacking);
        } else {
            prop_assert_eq!(found.named.len(), NAMED);
            prop_assert!(named.is_subset(&lacking));
        }
    }
}

fn words(word: &str, count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{word}{number}")).collect()
}

#[test]
fn a_wide_rule_is_no_work() {
    let wide = Rule {
        verbs: words("v", 20_000),
        groups: words("g", 20_000),
        resources: words("r", 20_000),
        names: words("n", 20_000),
        paths: words("/p", 20_000),
    };
    let pods = Rule { verbs: vec!["get".into()], groups: vec!["".into()], ..wide.clone() };
    let found = missing(&[pods], std::slice::from_ref(&wide));
    assert_eq!(found.named.len(), NAMED);
    assert!(found.named.iter().all(|rule| rule.verbs.len() <= VERBS));
    assert_eq!(found.more, 20_000_u128.pow(3) + 20_000_u128.pow(2) - 20);
    let own = missing(std::slice::from_ref(&wide), std::slice::from_ref(&wide));
    assert_eq!((own.named.len(), own.more), (NAMED, 20_000_u128.pow(2) - 20), "paths with names");
    let wide = Rule { names: vec![], ..wide };
    assert!(missing(std::slice::from_ref(&wide), std::slice::from_ref(&wide)).is_empty());
}

#[test]
fn many_sorts_are_not_all_compared() {
    // Held: for each number all but that verb, that group or that resource.
    let but = |word: &str, at: usize| {
        let mut all = words(word, 100);
        all.remove(at);
        all
    };
    let held: Vec<_> = (0..100)
        .map(|at| Rule {
            verbs: but("v", at),
            groups: but("g", at),
            resources: but("r", at),
            ..Rule::default()
        })
        .collect();
    let (verbs, groups, resources) = (words("v", 100), words("g", 100), words("r", 100));
    let wanted = [Rule { verbs, groups, resources, ..Rule::default() }];
    let found = missing_within(&held, &wanted, 100_000);
    assert!(found.unsettled && !found.is_empty(), "what is not known to be held is not held");
    assert!(missing(&held, &wanted).is_empty());
}
