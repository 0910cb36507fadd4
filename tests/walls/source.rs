//! Reads the source: how files are laid out, and that clippy watches over the pure crates.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{PURE, root};

/// Where clippy finds what pure code must not call.
const BANS: &str = "clippy-pure.toml";

/// Every source file of the crates, with its path below the root.
pub(crate) fn sources() -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root().join("crates")).unwrap() {
        gather(&entry.unwrap().path().join("src"), &mut found);
    }
    assert!(found.len() > 300, "only {} files of source", found.len());
    found
}

fn gather(directory: &Path, found: &mut Vec<(PathBuf, String)>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            gather(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            found.push((path.strip_prefix(root()).unwrap().to_owned(), text));
        }
    }
}

#[test]
fn a_module_is_named_after_what_it_is() {
    for (path, _) in sources() {
        assert!(
            !path.ends_with("mod.rs"),
            "{}: name it like its folder, beside it",
            path.display()
        );
    }
}

#[test]
fn files_stay_small() {
    for (path, text) in sources() {
        let lines = text.lines().count();
        assert!(lines <= 620, "{} has {lines} lines: which noun wants a file?", path.display());
    }
}

#[test]
fn clippy_watches_over_pure_crates() {
    let bans = fs::read_to_string(root().join(BANS)).unwrap();
    let banned = ["Instant::now", "SystemTime::now", "Timestamp::now", "RandomState", "env::var"];
    for banned in banned.into_iter().chain(["collections::HashMap", "collections::HashSet"]) {
        assert!(bans.contains(banned), "{BANS} does not ban {banned}");
    }
    for name in PURE {
        let own = root().join(format!("crates/roadstead-{name}/clippy.toml"));
        let text = fs::read_to_string(&own).unwrap_or_default();
        assert_eq!(text, bans, "roadstead-{name} is pure: ln -s ../../{BANS} {}", own.display());
    }
}

#[test]
fn pure_crates_draw_no_hasher() {
    for (path, text) in sources() {
        let name = path.components().nth(1).unwrap().as_os_str().to_str().unwrap();
        let is_pure = name.strip_prefix("roadstead-").is_some_and(|name| PURE.contains(&name));
        let drawn = production(&text).contains("RandomState::default()");
        assert!(!(is_pure && drawn), "{}: take the hasher as an argument", path.display());
    }
}

#[test]
fn the_floor_plan_holds() {
    let output = Command::new("python3").arg(root().join("scripts/counts")).output();
    let output = output.expect("python3 runs scripts/counts");
    let counts = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "scripts/counts found:\n{counts}");
    assert_eq!(counts.lines().count(), 6, "{counts}");
}

/// The code of a file without its tests, wherever they stand. What is a test ends with the brace at the
/// margin, or on the line on which it begins.
pub(crate) fn production(text: &str) -> String {
    let (mut code, mut attributes) = (String::new(), Vec::new());
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.starts_with("#[") {
            attributes.push(line);
            continue;
        }
        let is_test = attributes.iter().any(|attribute| is_of_tests(attribute));
        if is_test && !line.ends_with([';', '}']) {
            lines.by_ref().find(|line| *line == "}");
        }
        let attributes = attributes.drain(..);
        if !is_test {
            attributes.chain([line]).for_each(|line| code.extend([line, "\n"]));
        }
    }
    code
}

fn is_of_tests(attribute: &str) -> bool {
    let kinds = ["#[cfg(test", "#[cfg(all(test", "#[test]", "#[tokio::test"];
    kinds.iter().any(|kind| attribute.starts_with(kind))
}

#[test]
fn code_after_tests_is_read() {
    let text = "use a;\n#[cfg(test)]\nmod samples;\nmod b;\n#[cfg(test)]\nmod tests {\n    fn c() {\n    }\n}\n\
                #[must_use]\nfn d() {\n}\n#[test]\nfn e() {\n}\nfn f() {}\n";
    assert_eq!(production(text), "use a;\nmod b;\n#[must_use]\nfn d() {\n}\nfn f() {}\n");
}
