//! What others wrote and we ship: under which licences, from where, and how much of it twice.
//!
//! `deny.toml` says the same to cargo-deny, which also knows of published weaknesses where it can fetch
//! them; this runs everywhere.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use serde_json::Value;

use crate::{metadata, root};

/// Those who take part of a package under one of these may do with it what we do.
fn is_allowed(licence: &str, allowed: &BTreeSet<String>) -> bool {
    // `AND` binds stronger than `OR`; a slash is an old way to write `OR`.
    let text = licence.replace(" / ", " OR ").replace('/', " OR ");
    let mut words = Vec::new();
    for word in text.replace('(', " ( ").replace(')', " ) ").split_whitespace() {
        match (words.last_mut(), word) {
            (Some(last), "WITH") => *last = format!("{last} WITH"),
            (Some(last), word) if last.ends_with(" WITH") => *last = format!("{last} {word}"),
            _ => words.push(word.to_owned()),
        }
    }
    let mut at = 0;
    let is = any(&words, &mut at, allowed);
    assert_eq!(at, words.len(), "{licence:?} cannot be read");
    is
}

fn any(words: &[String], at: &mut usize, allowed: &BTreeSet<String>) -> bool {
    let mut is = all(words, at, allowed);
    while words.get(*at).is_some_and(|word| word == "OR") {
        *at += 1;
        is |= all(words, at, allowed);
    }
    is
}

fn all(words: &[String], at: &mut usize, allowed: &BTreeSet<String>) -> bool {
    let mut is = one(words, at, allowed);
    while words.get(*at).is_some_and(|word| word == "AND") {
        *at += 1;
        is &= one(words, at, allowed);
    }
    is
}

fn one(words: &[String], at: &mut usize, allowed: &BTreeSet<String>) -> bool {
    let word = words.get(*at).expect("a licence is named");
    *at += 1;
    if word != "(" {
        return allowed.contains(word);
    }
    let is = any(words, at, allowed);
    assert_eq!(words.get(*at).map(String::as_str), Some(")"), "{words:?}");
    *at += 1;
    is
}

/// The texts of a list in `deny.toml`: one in a line.
fn listed(list: &str) -> BTreeSet<String> {
    let text = fs::read_to_string(root().join("deny.toml")).unwrap();
    let (_, rest) = text.split_once(&format!("\n{list} = [")).expect("deny.toml has this list");
    let (inside, _) = rest.split_once(']').unwrap();
    inside.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

fn packages() -> Vec<Value> {
    let metadata = metadata();
    let all = metadata["packages"].as_array().unwrap().clone();
    assert!(all.len() > 200, "only {} packages", all.len());
    all
}

#[test]
fn licences_can_be_read() {
    let allowed = ["MIT", "ISC", "Apache-2.0 WITH LLVM-exception"].map(str::to_owned).into();
    for (licence, want) in [
        ("MIT", true),
        ("GPL-3.0", false),
        ("GPL-3.0 OR MIT", true),
        ("MIT/GPL-3.0", true),
        ("MIT AND GPL-3.0", false),
        ("ISC AND (GPL-3.0 OR MIT)", true),
        ("(MIT AND GPL-3.0) OR GPL-2.0", false),
        ("Apache-2.0 WITH LLVM-exception AND MIT", true),
        ("Apache-2.0", false),
    ] {
        assert_eq!(is_allowed(licence, &allowed), want, "{licence}");
    }
}

#[test]
fn every_package_may_be_shipped() {
    let allowed = listed("allow");
    for package in packages() {
        let (name, licence) = (&package["name"], package["license"].as_str().unwrap_or("none"));
        assert!(is_allowed(licence, &allowed), "{name} has the licence {licence:?}: see deny.toml");
    }
}

#[test]
fn packages_come_from_where_all_come_from() {
    for package in packages() {
        let source = package["source"].as_str();
        let known = source
            .is_none_or(|source| source == "registry+https://github.com/rust-lang/crates.io-index");
        assert!(known, "{} is from {source:?}", package["name"]);
    }
}

/// Two versions of one package are twice as much to compile and to trust.
#[test]
fn few_packages_are_there_twice() {
    let mut versions: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for package in packages() {
        let text = |field: &str| package[field].as_str().unwrap().to_owned();
        versions.entry(text("name")).or_default().insert(text("version"));
    }
    let twice: BTreeSet<_> =
        versions.into_iter().filter(|(_, all)| all.len() > 1).map(|(name, _)| name).collect();
    let known = listed("skip");
    for name in &twice {
        assert!(known.contains(name), "{name} is there twice: avoid it, or add it to deny.toml");
    }
    for name in &known {
        assert!(twice.contains(name), "{name} is there only once: take it out of deny.toml");
    }
}
