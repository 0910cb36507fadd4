//! Who has a file open: the error message that saves a search.

use std::fs;
use std::path::Path;

/// The process that has the file open, as `name (pid N)`, if we may see it.
pub(crate) fn holder_of(path: &Path) -> Option<String> {
    let file = path.canonicalize().ok()?;
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let mut processes = processes.filter_map(|entry| {
        let number: u32 = entry.file_name().to_str()?.parse().ok()?;
        Some((number, entry.path()))
    });
    let (number, process) = processes.find(|(_, process)| has_open(process, &file))?;
    let name = fs::read_to_string(process.join("comm")).ok()?;
    Some(format!("{} (pid {number})", name.trim()))
}

fn has_open(process: &Path, file: &Path) -> bool {
    let Ok(open) = fs::read_dir(process.join("fd")) else { return false };
    open.flatten().any(|descriptor| fs::read_link(descriptor.path()).is_ok_and(|to| to == *file))
}
