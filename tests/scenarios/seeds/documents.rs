//! What the documents tell their readers to type: the manifests and commands of their fenced blocks.
//!
//! `documents/` has the five documents without their prose: every line stands where it stands in the document,
//! so that `S3:458` is line 458 of `s3.md`. Walls look whether they are what the documents say.

// Nobody needs everything of it.
#![allow(dead_code)]

/// The documents, in their order.
pub(crate) const DOCUMENTS: [&str; 5] = [
    include_str!("documents/s0.md"),
    include_str!("documents/s1.md"),
    include_str!("documents/s2.md"),
    include_str!("documents/s3.md"),
    include_str!("documents/s4.md"),
];

/// Programs that readers type; all other lines that look like commands are explanations.
const PROGRAMS: [&str; 7] =
    ["kubectl", "curl", "nslookup", "iptables", "iptables-save", "ipvsadm", "telnet"];

/// A fenced block.
#[derive(Debug, PartialEq)]
pub(crate) struct Block {
    /// Where its first line stands.
    pub line: usize,
    pub text: Vec<String>,
}

/// Something to type, and where it stands.
#[derive(Debug, PartialEq)]
pub(crate) enum Part {
    Manifest(usize, String),
    Command(usize, String),
}

/// The fenced blocks of a document, without what they are indented by.
pub(crate) fn blocks(text: &str) -> Vec<Block> {
    let (mut found, mut open) = (Vec::new(), None);
    for (number, line) in text.lines().enumerate() {
        let bare = line.trim_start();
        let indent = line.len() - bare.len();
        open = match (open, bare.starts_with("```")) {
            (None, true) => Some((indent, Block { line: number + 2, text: Vec::new() })),
            (None, false) => None,
            (Some((_, block)), true) => {
                found.push(block);
                None
            }
            (Some((indent, mut block)), false) => {
                block.text.push(line.get(indent..).unwrap_or_default().trim_end().to_owned());
                Some((indent, block))
            }
        };
    }
    found
}

/// What a block tells to type. A manifest begins with its `apiVersion`, because some blocks have several
/// without a separator; what a command printed is left out.
pub(crate) fn parts(block: &Block) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut manifest: Option<(usize, String)> = None;
    let finish = |manifest: Option<(usize, String)>, parts: &mut Vec<Part>| {
        parts.extend(manifest.map(|(line, text)| Part::Manifest(line, text)));
    };
    for (line, text) in (block.line..).zip(&block.text) {
        let begins = text.starts_with("apiVersion:");
        let typed = command(text);
        if begins || text == "---" || typed.is_some() {
            finish(manifest.take(), &mut parts);
        }
        if begins {
            manifest = Some((line, String::new()));
        }
        parts.extend(typed.map(|typed| Part::Command(line, typed.to_owned())));
        if let Some((_, whole)) = &mut manifest {
            whole.push_str(text);
            whole.push('\n');
        }
    }
    finish(manifest, &mut parts);
    parts
}

/// What a line tells to type, without its prompt.
fn command(line: &str) -> Option<&str> {
    let line = match line.split_once("]# ") {
        Some((prompt, rest)) if prompt.starts_with('[') => rest,
        _ => line,
    };
    let line = line.strip_prefix("$ ").or(line.strip_prefix("# ")).unwrap_or(line);
    let line = line.strip_prefix("在容器内: ").unwrap_or(line).trim_end();
    PROGRAMS.contains(&line.split(' ').next()?).then_some(line)
}

/// Everything that a document tells to type, from top to bottom.
pub(crate) fn to_type(document: &str) -> Vec<Part> {
    blocks(document).iter().flat_map(parts).collect()
}

/// All manifests of all documents.
pub(crate) fn manifests() -> Vec<String> {
    let parts = DOCUMENTS.iter().flat_map(|document| to_type(document));
    let manifest = |part| match part {
        Part::Manifest(_, text) => Some(text),
        Part::Command(..) => None,
    };
    parts.filter_map(manifest).collect()
}
