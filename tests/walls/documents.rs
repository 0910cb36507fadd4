//! What the documents name is there: every path of every page, and every linked word.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::Path;

use crate::root;

/// How many paths some pages name at least: a page that names none would prove nothing.
const PATHS: [(&str, usize); 6] = [
    ("ARCHITECTURE.md", 40),
    ("docs/adding.md", 15),
    ("docs/glossary.md", 20),
    ("docs/dataplane.md", 5),
    ("docs/security.md", 15),
    ("docs/adr/0003-nftables-over-netlink.md", 3),
];

/// All pages that are meant to be true today. What changed once, the changelog says as it was then.
fn pages() -> Vec<String> {
    let mut pages = files_below("docs");
    let top = fs::read_dir(root()).unwrap().map(|entry| entry.unwrap().file_name());
    pages.extend(top.map(|name| name.into_string().unwrap()).filter(|name| name != "CHANGELOG.md"));
    pages.retain(|page| page.ends_with(".md"));
    pages
}

/// The paths of all files below a directory of the repository.
fn files_below(directory: &str) -> Vec<String> {
    let entries = fs::read_dir(root().join(directory)).unwrap().map(Result::unwrap);
    let files = entries.flat_map(|entry| {
        let path = format!("{directory}/{}", entry.file_name().to_str().unwrap());
        if entry.file_type().unwrap().is_dir() { files_below(&path) } else { vec![path] }
    });
    files.collect()
}

#[test]
fn the_architecture_mentions_every_crate() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    for entry in fs::read_dir(root().join("crates")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(text.contains(&format!("`{name}`")), "ARCHITECTURE.md does not mention {name}");
    }
}

#[test]
fn paths_in_documents_are_there() {
    let sources: Vec<_> = ["crates", "tests", "benches", "fuzz"].map(files_below).concat();
    let (known, mut found) = (HashMap::from(PATHS), 0);
    for page in &pages() {
        let text = fs::read_to_string(root().join(page)).unwrap();
        let mut paths = 0;
        for quoted in quoted(&text) {
            let is_path = quoted.contains('/')
                && !quoted.contains([' ', '<', '{', '*', '$', ':'])
                && !quoted.contains("NAME");
            if is_path && !quoted.starts_with('/') && has_known_root(quoted) {
                paths += 1;
                assert!(root().join(quoted).exists(), "{page} mentions {quoted}: not there");
            } else if is_path && quoted.starts_with("roadstead-") {
                panic!("{page} mentions {quoted}: paths begin at the root of the repository");
            } else if quoted.ends_with(".rs") && !quoted.contains([' ', '*', '/']) {
                let file = format!("/{quoted}");
                let is_there = sources.iter().any(|source| source.ends_with(&file));
                assert!(is_there, "{page} mentions {quoted}: no file is called that");
            }
        }
        for (word, target) in links(&text) {
            paths += 1;
            check_link(page, word, target);
        }
        let at_least = known.get(page.as_str());
        assert!(at_least.is_none_or(|least| paths >= *least), "{page} names {paths} paths");
        found += usize::from(at_least.is_some());
    }
    assert_eq!(found, PATHS.len(), "a page is gone");
}

/// Who adds one of these things reads one page.
#[test]
fn each_thing_is_added_by_less_than_a_page() {
    const LINES: usize = 55;
    let text = fs::read_to_string(root().join("docs/adding.md")).unwrap();
    let pages: Vec<_> = text.split("\n## ").skip(1).collect();
    for (title, must) in [
        ("A kind", "**With a special rule.**"),
        ("A subresource", "`Subresource`"),
        ("An admission plugin", "`AdmissionPlugin`"),
        ("A controller", "`CONTROLLERS`"),
        ("A data plane", "`DataPlane`"),
        ("A log below the store", "`Log`"),
    ] {
        let page = pages.iter().find(|page| page.starts_with(&format!("{title}\n")));
        let page =
            page.unwrap_or_else(|| panic!("docs/adding.md does not say how to add: {title}"));
        assert!(page.contains(must), "{title}: {must} is missing");
        assert!(!links(page).is_empty(), "{title}: where is the place to touch?");
    }
    for page in pages {
        let lines = page.lines().count();
        assert!(lines <= LINES, "{}: {lines} lines", page.lines().next().unwrap());
    }
}

/// A link from a quoted word leads to a file that has this word.
fn check_link(page: &str, word: &str, target: &str) {
    let directory = root().join(page).parent().unwrap().to_owned();
    let file = directory.join(target);
    assert!(file.exists(), "{page}: the link of `{word}` leads to {target}, which is not there");
    if file.is_file() {
        let text = fs::read_to_string(&file).unwrap();
        // A path is spelled out for the reader; then there is nothing to look for inside.
        let is_path = word.contains('/') || word.ends_with(".rs");
        assert!(is_path || text.contains(word), "{page}: {target} does not speak of `{word}`");
    }
}

/// Paths start at the root of the repository; `apps/v1` is none, and what is made in `target` comes and goes.
fn has_known_root(path: &str) -> bool {
    let first = Path::new(path).components().next();
    let first = first.filter(|first| first.as_os_str() != "target");
    first.is_some_and(|first| root().join(first).is_dir())
}

/// The words between backticks, outside of fenced blocks.
fn quoted(text: &str) -> Vec<&str> {
    let prose = text.split("```").step_by(2);
    prose.flat_map(|prose| prose.split('`').skip(1).step_by(2)).collect()
}

/// `[`word`](target)`, to files of this repository.
fn links(text: &str) -> Vec<(&str, &str)> {
    let mut found = Vec::new();
    for part in text.split("[`").skip(1) {
        let Some((word, rest)) = part.split_once("`](") else { continue };
        let Some((target, _)) = rest.split_once(')') else { continue };
        if !word.contains('`') && !target.contains("://") {
            found.push((word, target.split('#').next().unwrap()));
        }
    }
    found
}

/// The README in Chinese has words of its own, and says the same: every command, file and number of the
/// English one is in it, and none more.
#[test]
fn the_readme_says_the_same_in_chinese() {
    let read = |name: &str| fs::read_to_string(root().join(name)).unwrap();
    let (english, chinese) = (read("README.md"), read("README.zh-CN.md"));
    let words = |text: &str| -> BTreeSet<String> {
        let plain = |word: &str| word.split_whitespace().collect::<Vec<_>>().join(" ");
        quoted(text).into_iter().map(plain).collect()
    };
    assert_eq!(words(&english), words(&chinese), "what is between backticks");
    let blocks = |text: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| line.starts_with("    "));
        lines.map(str::to_owned).collect()
    };
    assert_eq!(blocks(&english), blocks(&chinese), "what is to be typed");
    let numbers = |text: &str| {
        let tables = text.split_once("|---|").unwrap().1;
        let parts = tables.split(|letter: char| !matches!(letter, '0'..='9' | '.' | ','));
        let parts = parts.map(|part| part.trim_matches([',', '.']));
        let mut found: Vec<_> = parts.filter(|part| !part.is_empty()).collect();
        found.sort_unstable();
        found.join(" ")
    };
    assert_eq!(numbers(&english), numbers(&chinese), "the figures");
}

#[test]
fn links_are_found() {
    let text = "see [`Frontend`](a/b.rs), `plain`, [text](x.md) and [`Log`](c.rs#L1)";
    assert_eq!(links(text), [("Frontend", "a/b.rs"), ("Log", "c.rs")]);
    assert_eq!(quoted("a `b` c\n```\n`d`\n```\n`e`"), ["b", "e"]);
}
