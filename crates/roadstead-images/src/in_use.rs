//! Which layers containers use: each has links to its own, as long as it may run again.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

use crate::error::{ImageError, OnPath};

/// Where a container's links to its layers are, in its directory.
const LINKS: &str = "layers";
/// A container's directory is not deeper than this in the node agent's.
const DEEPEST: usize = 6;

/// The names of all layers that have a link below the node agent's directory.
pub(crate) fn linked_layers(directory: &Path) -> Result<BTreeSet<String>, ImageError> {
    let mut found = BTreeSet::new();
    look(directory, DEEPEST, &mut found)?;
    Ok(found)
}

fn look(directory: &Path, depth: usize, found: &mut BTreeSet<String>) -> Result<(), ImageError> {
    let entries = match fs::read_dir(directory) {
        // A container may go while we look.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.on("cannot read", directory)?,
    };
    for entry in entries {
        let entry = entry.on("cannot read", directory)?;
        let (kind, path) = (entry.file_type().on("cannot read", &entry.path())?, entry.path());
        if kind.is_symlink() && directory.ends_with(LINKS) {
            let target = fs::read_link(&path).unwrap_or_default();
            let name = target.file_name().map(|name| name.to_string_lossy().into_owned());
            found.extend(name.filter(|name| name.len() == 64));
        }
        // What a container has written is none of our business.
        let own =
            ["upper", "work", "root", "rootfs", "files"].iter().any(|name| path.ends_with(name));
        if kind.is_dir() && !own && depth > 0 {
            look(&path, depth - 1, found)?;
        }
    }
    Ok(())
}
