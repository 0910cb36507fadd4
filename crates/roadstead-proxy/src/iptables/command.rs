//! The programs `iptables-save` and `iptables-restore`, in the variant that the machine uses.
//!
//! Rules written by one variant are invisible to the other, though both take effect. So all
//! programs of a machine must use the same one, and the kubelet's chains tell which that is.

use std::io::{self, Write};
use std::process::{Command, Output, Stdio};

use roadstead_forwarding::iptables::listing::Listing;
use roadstead_forwarding::iptables::model::TableName;
use roadstead_forwarding::service::IpFamily;

use crate::data_plane::{CounterDoubt, PERMISSION, Refusal};
use crate::nft::probe;

/// The kubelet makes them so that others find the right variant.
const HINTS: [&str; 2] = ["KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY"];
/// So long we wait for other programs that hold the lock.
const LOCK_SECONDS: &str = "5";

/// The status that iptables ends with if it did not get the lock.
const RESOURCE_PROBLEM: i32 = 4;

/// Why the rules could not be read or written. Nothing of a refused table has changed then.
#[derive(Debug, thiserror::Error)]
pub enum IptablesError {
    /// The program is not there or could not be started.
    #[error("cannot run {program}")]
    Run {
        /// What was to be run.
        program: String,
        /// Why.
        source: io::Error,
    },
    /// The program said no.
    #[error("{program} failed: {message}{}", quote(line))]
    Refused {
        /// What was run.
        program: String,
        /// What it said.
        message: String,
        /// The line of our input that it complains about, if it names one.
        line: Option<String>,
    },
}

impl Refusal for IptablesError {
    fn is_missing_feature(&self) -> bool {
        match self {
            IptablesError::Run { source, .. } => source.kind() == io::ErrorKind::NotFound,
            IptablesError::Refused { message, .. } => {
                message.contains("does not exist") || message.contains("not supported")
            }
        }
    }

    fn remedy(&self) -> Option<&'static str> {
        const PROGRAMS: &str = "install iptables, or use --proxy-mode nftables";
        match self {
            IptablesError::Run { .. } => Some(PROGRAMS),
            IptablesError::Refused { message, .. } => {
                message.contains("Permission denied").then_some(PERMISSION)
            }
        }
    }

    /// The kernel can have the counters (nfnetlink_acct) and not the rules (xt_nfacct). Legacy
    /// iptables names no line but the last.
    fn doubt_about_counters(&self) -> CounterDoubt {
        let IptablesError::Refused { message, line, .. } = self else { return CounterDoubt::None };
        let line = line.as_deref().unwrap_or_default();
        match [message.as_str(), line].iter().any(|text| text.contains("nfacct")) {
            true => CounterDoubt::Named,
            false if line == "COMMIT" => CounterDoubt::Possible,
            false => CounterDoubt::None,
        }
    }
}

fn quote(line: &Option<String>) -> String {
    line.as_ref().map(|line| format!(" ({line})")).unwrap_or_default()
}

/// One of the two implementations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// Through nftables.
    Nft,
    /// The old way.
    Legacy,
    /// Whichever the machine calls plain `iptables`.
    Plain,
}

/// How to run iptables here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Programs {
    family: IpFamily,
    variant: Variant,
}

impl Programs {
    /// Finds the variant that this machine uses, as kube-proxy's images do: the one in which the
    /// kubelet has left its hint, else the one with more rules, and nft if in doubt.
    pub fn find(family: IpFamily) -> Self {
        let of = |variant| Self { family, variant };
        let (nft, legacy) = (of(Variant::Nft).list(), of(Variant::Legacy).list());
        // Some kernels list tables that they cannot do.
        let nft = nft.ok().filter(|_| probe::translates(family));
        of(choose(nft.as_ref(), legacy.ok().as_ref()))
    }

    /// Those of a variant.
    pub fn of(family: IpFamily, variant: Variant) -> Self {
        Self { family, variant }
    }

    /// The variant.
    pub fn variant(&self) -> Variant {
        self.variant
    }

    /// Reads all tables.
    pub fn list(&self) -> Result<Listing, IptablesError> {
        let program = self.program("save");
        let output = Command::new(&program).stdin(Stdio::null()).output();
        let output =
            output.map_err(|source| IptablesError::Run { program: program.clone(), source })?;
        if !output.status.success() {
            let message = first_line(&output.stderr);
            return Err(IptablesError::Refused { program, message, line: None });
        }
        Ok(Listing::parse(&String::from_utf8_lossy(&output.stdout)))
    }

    /// Whether a chain exists; much cheaper than a listing.
    pub fn has(&self, table: TableName, chain: &str) -> Result<bool, IptablesError> {
        Ok(self.chain(table, chain)?.status.success())
    }

    /// Whether a chain exists and one of its rules contains these words.
    pub fn contains(
        &self,
        table: TableName,
        chain: &str,
        words: &str,
    ) -> Result<bool, IptablesError> {
        let output = self.chain(table, chain)?;
        Ok(output.status.success() && String::from_utf8_lossy(&output.stdout).contains(words))
    }

    /// The policy of one of the kernel's own chains, such as `DROP`.
    pub fn policy(&self, table: TableName, chain: &str) -> Result<String, IptablesError> {
        let output = self.chain(table, chain)?;
        let first = first_line(&output.stdout);
        let policy = first.strip_prefix(&format!("-P {chain} ")).unwrap_or_default();
        Ok(policy.split(';').next().unwrap_or_default().to_owned())
    }

    fn chain(&self, table: TableName, chain: &str) -> Result<Output, IptablesError> {
        let program = self.program("");
        let table = table.to_string();
        let output = Command::new(&program)
            .args(["-w", LOCK_SECONDS, "-t", &table, "-S", chain])
            .stdin(Stdio::null())
            .output();
        let output = output.map_err(|source| {
            let program = program.clone();
            IptablesError::Run { program, source }
        })?;
        // Somebody else has the lock: nobody knows what the chain looks like.
        if output.status.code() == Some(RESOURCE_PROBLEM) {
            let message = first_line(&output.stderr);
            return Err(IptablesError::Refused { program, message, line: None });
        }
        Ok(output)
    }

    /// Writes rules; a table takes all of its part or nothing.
    pub fn restore(&self, input: &str) -> Result<(), IptablesError> {
        let program = self.program("restore");
        let failed = |source| IptablesError::Run { program: program.clone(), source };
        let mut child = Command::new(&program)
            .args(["-w", LOCK_SECONDS, "--noflush", "--counters"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let mut pipe = child.stdin.take().expect("it was asked for");
        let written = pipe.write_all(input.as_bytes());
        drop(pipe);
        let output = child.wait_with_output().map_err(failed)?;
        if output.status.success() {
            return written.map_err(failed);
        }
        let message = first_line(&output.stderr);
        let line = complaint(&message).and_then(|number| input.lines().nth(number.checked_sub(1)?));
        Err(IptablesError::Refused { line: line.map(str::to_owned), program, message })
    }

    fn program(&self, action: &str) -> String {
        let family = if self.family == IpFamily::V4 { "iptables" } else { "ip6tables" };
        let variant = match self.variant {
            Variant::Nft => "-nft",
            Variant::Legacy => "-legacy",
            Variant::Plain => "",
        };
        let dash = if action.is_empty() { "" } else { "-" };
        format!("{family}{variant}{dash}{action}")
    }
}

/// Chooses by what each variant lists; `None` if it does not work here.
fn choose(nft: Option<&Listing>, legacy: Option<&Listing>) -> Variant {
    let hinted = |listing: &Listing| HINTS.iter().any(|hint| listing.has(TableName::Mangle, hint));
    let rules = |listing: &Listing| listing.chains.values().map(Vec::len).sum::<usize>();
    match (nft, legacy) {
        (None, None) => Variant::Plain,
        (Some(_), None) => Variant::Nft,
        (None, Some(_)) => Variant::Legacy,
        (Some(nft), Some(_)) if hinted(nft) => Variant::Nft,
        (Some(_), Some(legacy)) if hinted(legacy) => Variant::Legacy,
        (Some(nft), Some(legacy)) if rules(legacy) > rules(nft) => Variant::Legacy,
        (Some(_), Some(_)) => Variant::Nft,
    }
}

fn first_line(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    lines.take(2).collect::<Vec<_>>().join("; ")
}

/// The number in "line 7 failed" or "Error occurred at line: 7".
fn complaint(message: &str) -> Option<usize> {
    let rest = message.split("line").nth(1)?;
    let digits: String =
        rest.chars().skip_while(|c| !c.is_ascii_digit()).take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_variant() {
        let listing = |text: &str| Listing::parse(text);
        let empty = listing("*nat\n:OUTPUT ACCEPT [0:0]\nCOMMIT\n");
        let hint = listing("*mangle\n:KUBE-IPTABLES-HINT - [0:0]\nCOMMIT\n");
        let canary = listing("*mangle\n:KUBE-KUBELET-CANARY - [0:0]\nCOMMIT\n");
        let rules = listing("*nat\n-A OUTPUT -j LOG\nCOMMIT\n");
        let cases = [
            ("none works", None, None, Variant::Plain),
            ("only nft works", Some(&empty), None, Variant::Nft),
            ("only legacy works", None, Some(&empty), Variant::Legacy),
            ("a hint in nft", Some(&hint), Some(&rules), Variant::Nft),
            ("a hint in legacy", Some(&rules), Some(&canary), Variant::Legacy),
            ("a hint in both", Some(&canary), Some(&hint), Variant::Nft),
            ("more rules in legacy", Some(&empty), Some(&rules), Variant::Legacy),
            ("more rules in nft", Some(&rules), Some(&empty), Variant::Nft),
            ("a new machine", Some(&empty), Some(&empty), Variant::Nft),
        ];
        for (name, nft, legacy, want) in cases {
            assert_eq!(choose(nft, legacy), want, "{name}");
        }
    }

    #[test]
    fn doubts_about_counters() {
        let line = |line: &str| Some(line.to_owned()).filter(|line| !line.is_empty());
        let cases = [
            ("unknown option --nfacct-name", "", CounterDoubt::Named),
            ("line 7 failed", "-A KUBE-SERVICES -m nfacct --nfacct-name x", CounterDoubt::Named),
            ("line 9 failed", "COMMIT", CounterDoubt::Possible),
            ("line 7 failed", "-A KUBE-SERVICES -j ACCEPT", CounterDoubt::None),
            ("Permission denied", "", CounterDoubt::None),
        ];
        for (message, at, want) in cases {
            let (program, message) = ("iptables-restore".into(), message.to_owned());
            let refused = IptablesError::Refused { program, message, line: line(at) };
            assert_eq!(refused.doubt_about_counters(), want, "{refused}");
        }
    }

    #[test]
    fn complaints() {
        let cases = [
            ("iptables-restore: line 12 failed", Some(12)),
            ("Error occurred at line: 3", Some(3)),
            ("Another app is currently holding the xtables lock", None),
        ];
        for (message, want) in cases {
            assert_eq!(complaint(message), want, "{message}");
        }
    }
}
