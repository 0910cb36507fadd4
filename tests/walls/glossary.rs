//! One thing has one name (docs/glossary.md): a public type is defined in one crate only unless the
//! glossary says why not, and names that were given up do not come back.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use crate::root;
use crate::source::{production, sources};

const SHARED: &str = "## Names that several crates have";
const RETIRED: &str = "## Names that were given up";

/// The first cell of each row of the table below a heading: the words in backticks there.
fn words_below(text: &str, heading: &str) -> BTreeSet<String> {
    let below = text.split_once(heading).unwrap_or_else(|| panic!("no heading {heading}")).1;
    let section = below.split("\n## ").next().unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    let words = rows.flat_map(|row| {
        let cell = row.split('|').nth(1).unwrap();
        cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>()
    });
    words.collect()
}

fn glossary() -> String {
    fs::read_to_string(root().join("docs/glossary.md")).unwrap()
}

/// Public types by name, and the crates that define them.
fn public_types() -> BTreeMap<String, BTreeSet<String>> {
    let mut types: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (path, text) in sources() {
        let owner = path.components().nth(1).unwrap().as_os_str().to_str().unwrap().to_owned();
        for line in production(&text).lines() {
            let Some(item) = line.strip_prefix("pub ") else { continue };
            let kinds = ["struct ", "enum ", "trait ", "type "];
            let Some(item) = kinds.iter().find_map(|kind| item.strip_prefix(kind)) else {
                continue;
            };
            let end = item.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(item.len());
            types.entry(item[..end].to_owned()).or_default().insert(owner.clone());
        }
    }
    types
}

#[test]
fn a_public_type_is_defined_in_one_crate_only() {
    let listed = words_below(&glossary(), SHARED);
    let shared: BTreeMap<_, _> =
        public_types().into_iter().filter(|(_, crates)| crates.len() > 1).collect();
    for (name, crates) in &shared {
        assert!(
            listed.contains(name),
            "{name} is defined in {crates:?}: rename one of them after what it is, or say in \
             docs/glossary.md why both are called so"
        );
    }
    for name in &listed {
        assert!(shared.contains_key(name), "docs/glossary.md lists {name}, which one crate has");
    }
}

#[test]
fn names_that_were_given_up_do_not_come_back() {
    let retired = words_below(&glossary(), RETIRED);
    assert!(!retired.is_empty());
    let definitions = ["fn ", "mod ", "struct ", "enum ", "trait ", "type "];
    for (path, text) in sources() {
        for line in production(&text).lines() {
            let line = line.trim_start();
            let line =
                line.strip_prefix("pub(crate) ").or(line.strip_prefix("pub ")).unwrap_or(line);
            let line = line.strip_prefix("async ").unwrap_or(line);
            let Some(item) = definitions.iter().find_map(|kind| line.strip_prefix(kind)) else {
                continue;
            };
            let end = item.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(item.len());
            let name = &item[..end];
            assert!(!retired.contains(name), "{}: docs/glossary.md gave up {name}", path.display());
        }
    }
}
