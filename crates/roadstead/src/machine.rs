//! What this machine is and what it allows.

use std::fs;
use std::path::PathBuf;

/// Where the name servers of this machine are written.
pub const RESOLV_CONF: &str = "/etc/resolv.conf";
/// CAP_NET_ADMIN and CAP_SYS_ADMIN: links and rules, namespaces and mounts.
const NEEDED: u64 = 1 << 12 | 1 << 21;

/// Whether we may change links and rules and make namespaces.
pub fn is_privileged() -> bool {
    has_capabilities(NEEDED)
}

/// Whether we may change rules.
pub fn may_write_rules() -> bool {
    has_capabilities(1 << 12)
}

fn has_capabilities(needed: u64) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    effective.is_some_and(|set| set & needed == needed)
}

/// Where state is kept unless the user says otherwise.
pub fn data_dir() -> PathBuf {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    match home {
        Some(home) if !is_privileged() => home.join(".local/state/roadstead"),
        _ => "/var/lib/roadstead".into(),
    }
}

/// The host name, in the form that node names have.
pub fn host_name() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim().to_lowercase();
    if name.is_empty() || name.starts_with('(') { "localhost".into() } else { name }
}

/// How many bytes of memory there are.
pub fn memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}
