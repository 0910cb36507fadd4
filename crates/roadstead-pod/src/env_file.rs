//! Variables from files that a pod's own containers write (KEP-3721): how such a file is read. Pure.
//!
//! ```text
//! # a comment
//! NAME='value'   # taken as it is, over several lines if need be
//! ```

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Container, FileKeySelector, PodSpec};

/// A file is not read further than this: the kernel takes no environment that is larger.
pub const MOST_BYTES: u64 = 2 << 20;

/// A file of a volume of the pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct VolumeFile {
    /// The volume's name.
    pub volume: String,
    /// Where it is in there.
    pub path: String,
}

impl VolumeFile {
    fn of(selector: &FileKeySelector) -> Self {
        Self { volume: selector.volume_name.clone(), path: selector.path.clone() }
    }
}

/// What was found at the places that variables are from: the text, nothing, or why it cannot be read.
pub type VolumeFiles = BTreeMap<VolumeFile, Result<Option<String>, String>>;

/// The files that a container's variables are from, as far as the pod may name them: nobody but its
/// containers writes to an emptyDir.
pub fn named(spec: &PodSpec, container: &Container) -> BTreeSet<VolumeFile> {
    let variables = container.env.iter().flatten();
    let selectors = variables.filter_map(|one| one.value_from.as_ref()?.file_key_ref.as_ref());
    let own = selectors.filter(|selector| is_empty_directory(spec, &selector.volume_name));
    own.map(VolumeFile::of).collect()
}

fn is_empty_directory(spec: &PodSpec, volume: &str) -> bool {
    let mut volumes = spec.volumes.iter().flatten();
    volumes.any(|known| known.name == volume && known.empty_dir.is_some())
}

/// The value of a variable; none if it may be missing and is.
pub(crate) fn value(
    selector: &FileKeySelector,
    files: &VolumeFiles,
) -> Result<Option<String>, String> {
    let optional = selector.optional.unwrap_or(false);
    let FileKeySelector { key, path, volume_name, .. } = selector;
    let text = match files.get(&VolumeFile::of(selector)) {
        None => {
            return Err(format!("cannot find the volume {volume_name:?} referenced by FileKeyRef"));
        }
        Some(Err(why)) => return Err(format!("couldn't parse env file: {why}")),
        Some(Ok(None)) if optional => return Ok(None),
        Some(Ok(None)) => {
            return Err(format!("couldn't parse env file: there is no file {path:?}"));
        }
        Some(Ok(Some(text))) => text,
    };
    let found = find(text, key).map_err(|why| format!("couldn't parse env file: {why}"))?;
    // As upstream has it, what is empty is not there.
    match found.filter(|value| !value.is_empty()) {
        Some(value) => Ok(Some(value)),
        None if optional => Ok(None),
        None => Err(format!("environment variable key {key:?} not found in file {path:?}")),
    }
}

/// The value of a key. What comes after it in the file is not looked at.
fn find(text: &str, key: &str) -> Result<Option<String>, String> {
    let mut lines = (1..).zip(text.lines());
    while let Some((number, line)) = lines.next() {
        let line = line.trim_start_matches([' ', '\t']);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let wrong =
            |what: &str| format!("invalid environment variable format at line {number}: {what}");
        let (name, rest) = line.split_once('=').ok_or_else(|| wrong("missing '='"))?;
        let whole = name.trim_end_matches([' ', '\t']);
        if whole.is_empty() {
            return Err(wrong("empty variable name"));
        }
        if whole != name {
            return Err(wrong("whitespace before '=' is not allowed"));
        }
        // In a shell, that is a variable without a value.
        if rest.starts_with([' ', '\t']) {
            match name == key {
                true => return Ok(None),
                false => continue,
            }
        }
        let quoted = rest.strip_prefix('\'');
        let mut rest = quoted.ok_or_else(|| wrong("value must be enclosed in single quotes"))?;
        let mut value = String::new();
        let after = loop {
            if let Some((inside, after)) = rest.split_once('\'') {
                value.push_str(inside);
                break after;
            }
            value.push_str(rest);
            value.push('\n');
            let unclosed = || {
                format!(
                    "invalid environment variable format starting at line {number}: unclosed single quote"
                )
            };
            (_, rest) = lines.next().ok_or_else(unclosed)?;
        };
        let after = after.trim_start_matches([' ', '\t']);
        if !after.is_empty() && !after.starts_with('#') {
            return Err(wrong("unexpected content after closing quote"));
        }
        if name == key {
            return Ok(Some(value));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_files_say() {
        let format = "invalid environment variable format";
        for (text, want) in [
            ("A='1'", "1"),
            ("# A='0'\n\n \t A='1' # one\nA='2'", "1"),
            ("B='x y'\nA='$B \\n \"q\"'", "$B \\n \"q\""),
            ("A='one\n two\n\nthree'\r\n", "one\n two\n\nthree"),
            ("B='A='\nA='it''s'", "! at line 2: unexpected content after closing quote"),
            ("A=''", "-"),
            ("A= 'x'", "-"),
            ("B= x\nA='1'", "1"),
            ("B='1'", "-"),
            ("", "-"),
            ("A=1", "! at line 1: value must be enclosed in single quotes"),
            ("\nA ='1'", "! at line 2: whitespace before '=' is not allowed"),
            ("='1'", "! at line 1: empty variable name"),
            ("A", "! at line 1: missing '='"),
            ("A='1\n2", "! starting at line 1: unclosed single quote"),
            ("A='1'\nnonsense", "1"),
        ] {
            let found = match find(text, "A") {
                Ok(value) => value.filter(|value| !value.is_empty()).unwrap_or("-".into()),
                Err(why) => why.replace(format, "!"),
            };
            assert_eq!(found, want, "{text:?}");
        }
    }

    #[test]
    fn values_from_files() {
        let spec: PodSpec = serde_json::from_value(json!({
            "volumes": [{"name": "v", "emptyDir": {}}, {"name": "h", "hostPath": {"path": "/etc"}}],
            "containers": []}))
        .unwrap();
        let mut files = VolumeFiles::new();
        let at = |path: &str| VolumeFile { volume: "v".into(), path: path.into() };
        files.insert(at("env"), Ok(Some("A='1'".into())));
        files.insert(at("gone"), Ok(None));
        files.insert(at("pipe"), Err("it is not a regular file".into()));
        let no_volume = "! cannot find the volume \"h\" referenced by FileKeyRef";
        for (volume, path, key, optional, want) in [
            ("v", "env", "A", false, "1"),
            ("v", "env", "B", true, ""),
            ("v", "env", "B", false, "! environment variable key \"B\" not found in file \"env\""),
            ("v", "gone", "A", true, ""),
            ("v", "gone", "A", false, "! couldn't parse env file: there is no file \"gone\""),
            ("v", "pipe", "A", true, "! couldn't parse env file: it is not a regular file"),
            ("h", "passwd", "A", true, no_volume),
        ] {
            let selector =
                json!({"volumeName": volume, "path": path, "key": key, "optional": optional});
            let container = json!({"name": "c", "env": [
                {"name": "X", "valueFrom": {"fileKeyRef": selector}}]});
            let container: Container = serde_json::from_value(container).unwrap();
            let named = named(&spec, &container);
            assert_eq!(named.len(), usize::from(volume == "v"), "{volume} is read");
            let found = value(&serde_json::from_value(selector).unwrap(), &files);
            let found = found.map_or_else(|why| format!("! {why}"), Option::unwrap_or_default);
            assert_eq!(found, want, "{volume}/{path} {key} {optional}");
        }
    }
}
