//! How the files of a volume are replaced all at once: pure.
//!
//! The files are in a directory of their own, `..data` is a link to it, and what users see are links
//! through `..data`. A change makes a new directory and then moves the link: whoever reads sees all
//! files of before or all of now. What a power cut leaves behind is removed by the next change.

use std::collections::{BTreeMap, BTreeSet};

use super::payload::Payload;

/// The link to the directory that counts.
pub const DATA: &str = "..data";
/// The link before it has its place.
pub const NEW_DATA: &str = "..data_tmp";

/// What there is in the directory of a volume.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Found {
    /// Where `..data` leads.
    pub current: Option<String>,
    /// All other names in the directory, and for links what they lead to.
    pub names: BTreeMap<String, Option<String>>,
    /// What is in the current directory.
    pub content: Payload,
}

/// One thing to do in the directory of a volume.
#[derive(Clone, Debug, PartialEq)]
pub enum VolumeStep {
    /// Makes a directory with these files, by paths below it.
    Fill {
        /// Its name.
        directory: String,
        /// What goes into it.
        payload: Payload,
    },
    /// Lets `..data` lead there, from one moment to the next.
    Switch(String),
    /// Makes a link of this name to the file or directory of the same name in `..data`.
    Link(String),
    /// Removes a name: a link, or a directory with all that is in it.
    Remove(String),
}

/// Returns what to do so that the volume has these files and no others; nothing if it has them.
pub fn plan(found: &Found, wanted: &Payload, fresh: &str) -> Vec<VolumeStep> {
    let mut steps = Vec::new();
    let is_current = found.current.is_some() && found.content == *wanted;
    if !is_current {
        steps.push(VolumeStep::Fill { directory: fresh.into(), payload: wanted.clone() });
        steps.push(VolumeStep::Switch(fresh.into()));
    }
    let tops: BTreeSet<_> = wanted.files.keys().map(|path| top(path)).collect();
    let is_right = |name: &&str| {
        let target = found.names.get(*name).and_then(Option::as_deref);
        target == Some(&format!("{DATA}/{name}"))
    };
    for name in tops.iter().filter(|name| !is_right(name)) {
        if found.names.contains_key(*name) {
            steps.push(VolumeStep::Remove((*name).to_owned()));
        }
        steps.push(VolumeStep::Link((*name).to_owned()));
    }
    let kept = if is_current { found.current.as_deref() } else { None };
    let stale = found.names.keys().filter(|name| {
        !tops.contains(name.as_str()) && Some(name.as_str()) != kept && name.as_str() != fresh
    });
    steps.extend(stale.map(|name| VolumeStep::Remove(name.clone())));
    steps
}

fn top(path: &str) -> &str {
    path.split('/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::super::payload::PayloadFile;
    use super::*;

    /// Reads `a=1 b/c=2`.
    fn payload(text: &str) -> Payload {
        let files = text.split_whitespace().map(|word| {
            let (path, data) = word.split_once('=').unwrap();
            let file = PayloadFile { data: data.as_bytes().to_vec(), mode: 0o644, owner: None };
            (path.to_owned(), file)
        });
        Payload { files: files.collect() }
    }

    /// Reads what `..data` leads to, what is there, and names with `>` if they are right.
    fn found(current: &str, content: &str, names: &str) -> Found {
        let names = names.split_whitespace().map(|name| match name.strip_prefix('>') {
            Some(name) => (name.to_owned(), Some(format!("..data/{name}"))),
            None => (name.to_owned(), None),
        });
        Found {
            current: Some(current.to_owned()).filter(|name| !name.is_empty()),
            names: names.collect(),
            content: payload(content),
        }
    }

    #[test]
    fn replaced_all_at_once() {
        for (name, found, wanted, want) in [
            ("new", found("", "", ""), "a=1 b/c=2", "fill(a b/c) switch link:a link:b"),
            ("empty", found("", "", ""), "", "fill() switch"),
            ("nothing to do", found("..1", "a=1", "..1 >a"), "a=1", ""),
            ("changed", found("..1", "a=1", "..1 >a"), "a=2", "fill(a) switch remove:..1"),
            (
                "added and removed",
                found("..1", "a=1", "..1 >a"),
                "b=1",
                "fill(b) switch link:b remove:..1 remove:a",
            ),
            (
                "half done",
                found("..1", "a=1", "..0 ..1 ..data_tmp"),
                "a=1",
                "link:a remove:..0 remove:..data_tmp",
            ),
            ("somebody else's", found("..1", "a=1", "..1 a"), "a=1", "remove:a link:a"),
        ] {
            let steps = plan(&found, &payload(wanted), "..2");
            let show = |step: &VolumeStep| match step {
                VolumeStep::Fill { directory, payload } => {
                    assert_eq!(directory, "..2");
                    let paths = payload.files.keys().cloned().collect::<Vec<_>>();
                    format!("fill({})", paths.join(" "))
                }
                VolumeStep::Switch(_) => "switch".into(),
                VolumeStep::Link(name) => format!("link:{name}"),
                VolumeStep::Remove(name) => format!("remove:{name}"),
            };
            let steps = steps.iter().map(show).collect::<Vec<_>>().join(" ");
            assert_eq!(steps, want, "{name}");
        }
    }
}
