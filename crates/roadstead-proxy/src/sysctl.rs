//! Settings of the kernel: what cannot be set is said, and the proxy goes on.

use std::fs;
use std::path::Path;

use tracing::{info, warn};

/// Sets what differs. In a container the settings may be read-only, and some kernels lack some.
pub fn apply<'a>(settings: impl IntoIterator<Item = (&'a str, &'a str)>) {
    apply_under(Path::new("/proc/sys"), settings);
}

/// Whether a setting is 1.
pub(crate) fn is_on(name: &str) -> bool {
    let found = fs::read_to_string(Path::new("/proc/sys").join(name));
    found.is_ok_and(|found| found.trim() == "1")
}

/// Raises a number that is too small; more is as good.
pub fn raise(name: &str, least: u64) {
    let found = fs::read_to_string(Path::new("/proc/sys").join(name)).unwrap_or_default();
    if found.trim().parse::<u64>().is_ok_and(|found| found < least) {
        apply([(name, least.to_string().as_str())]);
    }
}

/// Says how readily the kernel should end this process when memory is short.
pub(crate) fn adjust_oom_score(adjustment: i64) {
    if let Err(error) = fs::write("/proc/self/oom_score_adj", adjustment.to_string()) {
        warn!(adjustment, %error, "when memory is short we are treated like any other process");
    }
}

fn apply_under<'a>(root: &Path, settings: impl IntoIterator<Item = (&'a str, &'a str)>) {
    for (name, wanted) in settings {
        let path = root.join(name);
        let found = fs::read_to_string(&path).unwrap_or_default();
        if found.trim() == wanted {
            continue;
        }
        match fs::write(&path, wanted) {
            Ok(()) => info!(name, wanted, was = found.trim(), "setting of the kernel changed"),
            Err(error) => warn!(name, wanted, %error, "setting of the kernel stays as it is"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_set_stays() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("here"), "0\n").unwrap();
        apply_under(root.path(), [("here", "1"), ("not/here", "1")]);
        assert_eq!(fs::read_to_string(root.path().join("here")).unwrap(), "1");
    }
}
