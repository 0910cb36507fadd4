//! Linux capabilities by the names that Kubernetes uses, and the set that a container gets: pure.

use serde::{Deserialize, Serialize};

/// The kernel's names in the kernel's order; the position is the number.
const NAMES: [&str; 41] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
];

/// What a container gets that asks for nothing: the set of containerd and of the OCI's example.
const USUAL: [&str; 14] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "FSETID",
    "FOWNER",
    "MKNOD",
    "NET_RAW",
    "SETGID",
    "SETUID",
    "SETFCAP",
    "SETPCAP",
    "NET_BIND_SERVICE",
    "SYS_CHROOT",
    "KILL",
    "AUDIT_WRITE",
];

/// A set of capabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities(u64);

impl Default for Capabilities {
    fn default() -> Self {
        Self::usual()
    }
}

impl Capabilities {
    /// No capability at all.
    pub(crate) const NONE: Self = Self(0);

    /// What a container gets that asks for nothing.
    pub fn usual() -> Self {
        USUAL.iter().filter_map(|name| Self::one(name)).fold(Self::NONE, Self::with)
    }

    /// Every capability that the kernel knows.
    pub fn all() -> Self {
        Self((1 << NAMES.len()) - 1)
    }

    /// The capability of that name, with or without `CAP_` before it.
    pub fn one(name: &str) -> Option<Self> {
        let name = name.to_ascii_uppercase();
        let name = name.strip_prefix("CAP_").unwrap_or(&name);
        NAMES.iter().position(|known| *known == name).map(|number| Self(1 << number))
    }

    /// Those of both sets.
    pub fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Those that are not in the other set.
    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether all of the other set are in this one.
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Those of both sets at once.
    pub(crate) fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// The set with these bits, as far as we know them.
    pub fn from_bits(bits: u64) -> Self {
        Self(bits & Self::all().0)
    }

    /// Their names as the OCI has them.
    pub fn names(self) -> Vec<String> {
        let held = NAMES.iter().enumerate().filter(|(number, _)| self.0 & (1 << number) != 0);
        held.map(|(_, name)| format!("CAP_{name}")).collect()
    }

    /// A bit for each capability, at the place of its number.
    pub fn bits(self) -> u64 {
        self.0
    }
}

/// Returns what is left after `drop` and `add` of a securityContext; an error names a word that is
/// no capability.
///
/// As in containerd: `ALL` first, then what is added, then what is dropped by name.
pub(crate) fn adjusted(add: &[String], drop: &[String]) -> Result<Capabilities, String> {
    let is_all = |name: &String| name.eq_ignore_ascii_case("ALL");
    let named = |names: &[String]| {
        let names = names.iter().filter(|name| !is_all(name));
        names
            .map(|name| Capabilities::one(name).ok_or_else(|| unknown(name)))
            .try_fold(Capabilities::NONE, |sum, one| Ok::<_, String>(sum.with(one?)))
    };
    let (added, dropped) = (named(add)?, named(drop)?);
    let base = match (add.iter().any(is_all), drop.iter().any(is_all)) {
        (true, _) => Capabilities::all(),
        (false, true) => Capabilities::NONE,
        (false, false) => Capabilities::usual(),
    };
    Ok(base.with(added).without(dropped))
}

fn unknown(name: &str) -> String {
    format!("unknown capability {name:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(names: &str) -> Capabilities {
        let names = names.split_whitespace();
        names
            .map(|name| Capabilities::one(name).unwrap())
            .fold(Capabilities::NONE, Capabilities::with)
    }

    #[test]
    fn numbers() {
        // As `/proc/PID/status` of a container of containerd shows them.
        assert_eq!(Capabilities::usual().bits(), 0xa804_25fb);
        assert_eq!(Capabilities::all().bits(), 0x1ff_ffff_ffff);
        assert_eq!(Capabilities::one("cap_net_raw"), Capabilities::one("NET_RAW"));
    }

    #[test]
    fn added_and_dropped() {
        let usual = Capabilities::usual();
        for (name, add, drop, want) in [
            ("nothing asked", "", "", usual),
            ("one more", "NET_ADMIN", "", usual.with(set("NET_ADMIN"))),
            ("one less", "", "NET_RAW", usual.without(set("NET_RAW"))),
            ("none", "", "ALL", Capabilities::NONE),
            ("just one", "NET_BIND_SERVICE", "ALL", set("NET_BIND_SERVICE")),
            ("all", "ALL", "", Capabilities::all()),
            ("all but one", "all", "SYS_ADMIN", Capabilities::all().without(set("SYS_ADMIN"))),
            ("both", "KILL", "KILL", usual.without(set("KILL"))),
        ] {
            let words = |text: &str| text.split_whitespace().map(Into::into).collect::<Vec<_>>();
            assert_eq!(adjusted(&words(add), &words(drop)), Ok(want), "{name}");
        }
        let error = adjusted(&["FLY".into()], &[]).unwrap_err();
        assert_eq!(error, "unknown capability \"FLY\"");
    }
}
