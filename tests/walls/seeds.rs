//! Every row of the documents' table has a test, and `docs/seeds.md` says which.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use crate::documents_to_type::{DOCUMENTS, Part, blocks, manifests, to_type};
use crate::root;

const SECTIONS: [(char, usize); 4] = [('A', 33), ('B', 7), ('C', 51), ('D', 19)];

/// What a page says of a row: the file of its test, and what is seen there.
fn listed(page: &str) -> BTreeMap<String, (String, String)> {
    let text = fs::read_to_string(root().join(page)).unwrap();
    let row = |line: &str| {
        let cells: Vec<_> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let [name, _, test, seen] = cells[..] else { panic!("not four cells: {line}") };
        (name.to_owned(), (test.trim_matches('`').to_owned(), seen.to_owned()))
    };
    let is_row = |line: &&str| {
        let name = line.strip_prefix("| ").unwrap_or_default();
        name.starts_with(['A', 'B', 'C', 'D'])
            && name[1..].starts_with(|c: char| c.is_ascii_digit())
    };
    text.lines().filter(is_row).map(row).collect()
}

/// The rows of the table: as the specification has them, where it lies beside the repository.
fn wanted() -> BTreeSet<String> {
    let Ok(text) = fs::read_to_string(root().join("../shared/spec/seed-acceptance.md")) else {
        eprintln!(
            "NOT RUN: the rows are those of docs/seeds.md, because ../shared/spec is not here"
        );
        let rows = |(section, count)| (1..=count).map(move |number| format!("{section}{number}"));
        return SECTIONS.into_iter().flat_map(rows).collect();
    };
    let mut rows = BTreeSet::new();
    for (section, count) in SECTIONS {
        let below = text.split(&format!("\n## {section}. ")).nth(1).expect("a section of rows");
        let table = below.split("\n## ").next().unwrap_or_default();
        let lines = table.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| #"));
        let found = lines.filter(|line| !line.starts_with("| where")).count();
        assert_eq!(
            found, count,
            "section {section} has other rows than tests/scenarios/seeds knows"
        );
        rows.extend((1..=found).map(|number| format!("{section}{number}")));
    }
    rows
}

#[test]
fn every_row_of_the_documents_has_a_test() {
    let wanted = wanted();
    for page in ["docs/seeds.md", "docs/seeds.zh-CN.md"] {
        let listed = listed(page);
        for row in &wanted {
            let Some((test, seen)) = listed.get(row) else { panic!("{page} lacks {row}") };
            assert!(!seen.is_empty(), "{page}: {row} does not say what is seen");
            let text = fs::read_to_string(root().join(test));
            let text = text.unwrap_or_else(|_| panic!("{page}: {row} has no file {test}"));
            let places = [format!("story.row(\"{row}\""), format!("(\"{row}\", ")];
            assert!(places.iter().any(|place| text.contains(place)), "{test} does not type {row}");
        }
        let unknown: Vec<_> = listed.keys().filter(|row| !wanted.contains(*row)).collect();
        assert!(unknown.is_empty(), "{page} has rows that nobody asks for: {unknown:?}");
    }
}

#[test]
fn the_documents_tell_to_type_what_they_tell() {
    assert_eq!(manifests().len(), 51);
    let parts: Vec<_> = DOCUMENTS.iter().flat_map(|document| to_type(document)).collect();
    let command = |part: &Part| match part {
        Part::Command(_, text) => Some(text.clone()),
        Part::Manifest(..) => None,
    };
    let lines: Vec<_> = parts.iter().filter_map(command).collect();
    assert_eq!(lines.len(), 50, "{lines:#?}");
    for program in
        ["kubectl ", "curl ", "nslookup ", "iptables ", "iptables-save ", "ipvsadm ", "telnet "]
    {
        assert!(lines.iter().any(|line| line.starts_with(program)), "nobody types {program}");
    }
}

/// What the repository has of the documents is what they say.
#[test]
fn the_documents_are_those_beside_the_repository() {
    let directory = root().join("../shared/seeds");
    let Ok(entries) = fs::read_dir(&directory) else {
        eprintln!("NOT RUN: comparing the documents, because ../shared/seeds is not here");
        return;
    };
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "txt"));
    paths.sort();
    assert_eq!(paths.len(), DOCUMENTS.len());
    for (path, own) in paths.iter().zip(DOCUMENTS) {
        let text = fs::read_to_string(path).unwrap();
        assert_eq!(blocks(own), blocks(&text), "{}", path.display());
    }
}
