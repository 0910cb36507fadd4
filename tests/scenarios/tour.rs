//! `docs/tour.md`: every command in it is typed, and what it shows is what is seen.
//!
//! What is different each time (ages, addresses, the ends of names) is made equal before it is compared. After a
//! change that is meant, `ROADSTEAD_TOUR=write cargo test --test scenarios tour` writes the page anew.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use roadstead_testkit::kubectl::{Kubectl, eventually};
use roadstead_testkit::netns::{laboratory_of, run, try_run};

use crate::process::Roadstead;

/// The letters at the end of a name that a server has chosen.
const CHOSEN: &str = "bcdfghjklmnpqrstvwxz2456789";

fn path() -> PathBuf {
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/tour.md").into()
}

/// A part of the page: text, or commands with what they show.
enum Part<'a> {
    Text(&'a str),
    /// Each command, and its lines.
    Typed(Vec<(&'a str, String)>),
}

fn parts(page: &str) -> Vec<Part<'_>> {
    let part = |piece| match str::strip_prefix(piece, "console\n") {
        Some(block) => Part::Typed(typed(block)),
        None => Part::Text(piece),
    };
    page.split("```").map(part).collect()
}

fn typed(block: &str) -> Vec<(&str, String)> {
    let mut commands: Vec<(&str, String)> = Vec::new();
    for line in block.lines() {
        match (line.strip_prefix("$ "), commands.last_mut()) {
            (Some(command), _) => commands.push((command, String::new())),
            (None, Some((_, shown))) => shown.push_str(&format!("{line}\n")),
            (None, None) => panic!("{line:?} is shown by no command"),
        }
    }
    commands
}

/// The page with other lines shown.
fn written(parts: &[Part<'_>]) -> String {
    let text = |part: &Part<'_>| match part {
        Part::Text(text) => (*text).to_owned(),
        Part::Typed(commands) => {
            let blocks = commands.iter().map(|(command, shown)| format!("$ {command}\n{shown}"));
            format!("console\n{}", blocks.collect::<String>())
        }
    };
    parts.iter().map(text).collect::<Vec<_>>().join("```")
}

/// What is the same each time.
fn plain(shown: &str) -> String {
    let line = |line: &str| line.split_whitespace().map(plain_word).collect::<Vec<_>>().join(" ");
    shown.lines().map(line).collect::<Vec<_>>().join("\n")
}

fn plain_word(word: &str) -> String {
    let is_age = word.ends_with(['s', 'm', 'h'])
        && word.starts_with(|letter: char| letter.is_ascii_digit())
        && word.chars().all(|letter| letter.is_ascii_digit() || "smh".contains(letter));
    if is_age {
        return "AGE".into();
    }
    // Commas between addresses, quotes and colons around them stay.
    let mut out = String::new();
    for piece in word.split_inclusive([',', '"', ':', '/', '(', ')', '=', '{', '}']) {
        let (body, end) = match piece.char_indices().last() {
            Some((at, letter)) if !letter.is_ascii_alphanumeric() => piece.split_at(at),
            _ => (piece, ""),
        };
        out.push_str(&plain_name(body));
        out.push_str(end);
    }
    out
}

fn plain_name(name: &str) -> String {
    if name.parse::<std::net::IpAddr>().is_ok() {
        return "ADDRESS".into();
    }
    let is_chosen = |part: &&str| {
        (part.len() == 5 || (8..=10).contains(&part.len()))
            && part.chars().all(|letter| CHOSEN.contains(letter))
    };
    let parts: Vec<_> = name.split('-').collect();
    let first = parts.iter().skip(1).position(is_chosen).map(|at| at + 1);
    match first {
        Some(at) => format!("{}-CHOSEN", parts[..at].join("-")),
        None => name.to_owned(),
    }
}

#[test]
fn what_differs_each_time_is_made_equal() {
    let cases = [
        ("web-54b6f7ddf9-4jt5r  1/1  Running 0   8m5s", "web-CHOSEN 1/1 Running 0 AGE"),
        ("web ClusterIP 10.0.162.149 <none> 80/TCP", "web ClusterIP ADDRESS <none> 80/TCP"),
        ("8080 10.244.0.5,10.244.0.6 21s", "8080 ADDRESS,ADDRESS AGE"),
        ("service/web created", "service/web created"),
        ("{pod=\"web-54b6f7ddf9-4jt5r\"} 1", "{pod=\"web-CHOSEN\"} 1"),
    ];
    for (shown, want) in cases {
        assert_eq!(plain(shown), want);
    }
}

#[test]
fn the_page_is_taken_apart_and_put_together() {
    let page = "# A\n\n```console\n$ one\n1\n2\n$ two\n```\n\ntext\n\n```sh\nx\n```\n";
    let parts = parts(page);
    let Part::Typed(commands) = &parts[1] else { panic!("no commands") };
    assert_eq!(commands[..], [("one", "1\n2\n".to_owned()), ("two", String::new())]);
    assert_eq!(written(&parts), page);
}

#[test]
fn the_tour_shows_what_is_seen() {
    laboratory_of("L5", || {
        let roadstead = Roadstead::up_with("--install-crds prometheus-operator");
        let directory = tempfile::tempdir().unwrap();
        let bin = directory.path().display();
        // Where it is, for the scripts have its name.
        let kubectl = run(&format!("command -v {}", Kubectl::program()));
        for (name, program) in
            [("kubectl", kubectl), ("roadstead", env!("CARGO_BIN_EXE_roadstead").into())]
        {
            let script = format!("#!/bin/sh\nexec {program} \"$@\"\n");
            fs::write(directory.path().join(name), script).unwrap();
        }
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
        let kubeconfig = roadstead.kubeconfig();
        let before = format!(
            "chmod +x {bin}/*; cd {root}; export KUBECONFIG={} PATH={bin}:$PATH HOME={bin}; ",
            kubeconfig.display()
        );
        let see = |command: &str| {
            let output = try_run(&format!("{before}{{ {command}; }} 2>&1"));
            String::from_utf8(output.stdout).unwrap()
        };
        let page = fs::read_to_string(path()).unwrap();
        let is_written = std::env::var("ROADSTEAD_TOUR").is_ok_and(|word| word == "write");
        let mut parts = parts(&page);
        let mut count = 0;
        for part in &mut parts {
            let Part::Typed(commands) = part else { continue };
            for (command, shown) in commands {
                count += 1;
                if is_written {
                    // What was written just now is not what a reader sees who takes some time.
                    std::thread::sleep(Duration::from_secs(1));
                    *shown = see(command);
                    continue;
                }
                let seen = || see(command);
                // A reader would look again, too, where something takes its time.
                let want = plain(shown);
                let is_so = |seen: &String| plain(seen) == want;
                let what = format!("{command} shows\n{want}\n");
                eventually(&what, Duration::from_secs(20), seen, is_so);
            }
        }
        assert!(count > 12, "{count} commands");
        if is_written {
            fs::write(path(), written(&parts)).unwrap();
        }
    });
}
