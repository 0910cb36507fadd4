//! Pod Security: which pods a namespace takes, by the levels of the Pod Security Standards.
//!
//! The labels of a namespace choose a level and a version of its rules for three modes: pods that violate
//! `enforce` are refused, those that violate `warn` and `audit` are told of. The rules and their words
//! are upstream's, because people search for those words.

use std::fmt;

use roadstead_schema::invalid::Causes;
use serde_json::Value;

mod baseline;
mod containers;
mod restricted;

const PREFIX: &str = "pod-security.kubernetes.io/";

/// How much a pod may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Everything.
    #[default]
    Privileged,
    /// What most programs need, and nothing that is known to give them the node.
    Baseline,
    /// Only what well-behaved programs need.
    Restricted,
}

impl Level {
    fn parse(text: &str) -> Option<Self> {
        match text {
            "privileged" => Some(Self::Privileged),
            "baseline" => Some(Self::Baseline),
            "restricted" => Some(Self::Restricted),
            _ => None,
        }
    }
}

/// Of which release the rules are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Version {
    #[default]
    Latest,
    /// `v1.x`.
    Minor(u32),
}

impl Version {
    fn parse(text: &str) -> Option<Self> {
        if text == "latest" {
            return Some(Self::Latest);
        }
        let minor = text.strip_prefix("v1.")?;
        let is_number = minor.bytes().all(|byte| byte.is_ascii_digit())
            && (minor == "0" || !minor.starts_with('0'));
        is_number.then(|| minor.parse().ok().map(Self::Minor))?
    }

    /// Whether rules are in force that came with a release.
    fn has(self, minor: u32) -> bool {
        match self {
            Self::Latest => true,
            Self::Minor(own) => own >= minor,
        }
    }
}

/// The rules that count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PodRules {
    /// How much is allowed.
    pub level: Level,
    version: Version,
}

impl PodRules {
    /// Whether they allow less than others, or are of another release: what was fine may not be so any more.
    pub fn may_refuse_more_than(&self, others: &Self) -> bool {
        self.level != Level::Privileged
            && self != others
            && (self.version != others.version || self.level > others.level)
    }

    /// What they say about a pod, or about the template of one.
    pub fn violations(&self, pod: &Value) -> Vec<Violation> {
        let mut found = Vec::new();
        if self.level >= Level::Baseline {
            baseline::check(pod, self, &mut found);
        }
        if self.level == Level::Restricted {
            restricted::check(pod, self, &mut found);
        }
        found
    }
}

impl fmt::Display for PodRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = match self.level {
            Level::Privileged => "privileged",
            Level::Baseline => "baseline",
            Level::Restricted => "restricted",
        };
        match self.version {
            Version::Latest => write!(f, "{level}:latest"),
            Version::Minor(minor) => write!(f, "{level}:v1.{minor}"),
        }
    }
}

/// Something that is not allowed.
#[derive(Debug, PartialEq, Eq)]
pub struct Violation {
    reason: String,
    detail: String,
}

impl Violation {
    fn new(reason: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { reason: reason.into(), detail: detail.into() }
    }
}

/// The rules of a namespace, by mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Modes {
    /// What violates them is refused.
    pub enforce: PodRules,
    /// What violates them is written down.
    pub audit: PodRules,
    /// Of what violates them its author is told.
    pub warn: PodRules,
}

impl Modes {
    /// What the labels of a namespace say, and what is wrong with them. What makes no sense refuses most
    /// where it is enforced, and nothing elsewhere.
    pub fn of_namespace(namespace: &Value) -> (Self, Causes) {
        let (mut modes, mut causes) = (Self::default(), Causes::default());
        let label = |name: &str| namespace["metadata"]["labels"].get(format!("{PREFIX}{name}"));
        let (mut enforced, mut warned) = (false, false);
        for (mode, rules) in [
            ("enforce", &mut modes.enforce),
            ("audit", &mut modes.audit),
            ("warn", &mut modes.warn),
        ] {
            if let Some(text) = label(mode) {
                let level = Level::parse(text.as_str().unwrap_or(""));
                if level.is_none() {
                    let why = "must be one of privileged, baseline, restricted";
                    causes.invalid(format!("metadata.labels[{PREFIX}{mode}]"), text, why);
                }
                enforced |= mode == "enforce" && level.is_some();
                warned |= mode == "warn";
                let otherwise =
                    if mode == "enforce" { Level::Restricted } else { Level::Privileged };
                rules.level = level.unwrap_or(otherwise);
            }
            if let Some(text) = label(&format!("{mode}-version")) {
                let version = Version::parse(text.as_str().unwrap_or(""));
                if version.is_none() {
                    let why = "must be \"latest\" or \"v1.x\"";
                    causes.invalid(format!("metadata.labels[{PREFIX}{mode}-version]"), text, why);
                }
                rules.version = version.unwrap_or_default();
            }
        }
        // Who writes a workload hears at once that its pods will be refused.
        if enforced && !warned {
            modes.warn.level = modes.enforce.level;
            if label("warn-version").is_none() {
                modes.warn.version = modes.enforce.version;
            }
        }
        (modes, causes)
    }
}

/// What a refusal says: `violates PodSecurity "restricted:latest": …`.
pub fn refusal(rules: &PodRules, violations: &[Violation]) -> String {
    format!("violates PodSecurity \"{rules}\": {}", details(violations))
}

/// What a warning says.
pub fn warning(rules: &PodRules, violations: &[Violation]) -> String {
    format!("would violate PodSecurity \"{rules}\": {}", details(violations))
}

fn details(violations: &[Violation]) -> String {
    let all = violations.iter().map(|Violation { reason, detail }| match detail.is_empty() {
        true => reason.clone(),
        false => format!("{reason} ({detail})"),
    });
    all.collect::<Vec<_>>().join(", ")
}

/// What to tell whoever makes a namespace stricter than its pods are; so many pods of `all` were looked at.
pub fn stricter(namespace: &str, rules: &PodRules, pods: &[Value], all: usize) -> Vec<String> {
    // The reasons, in the order in which they are found, with the first pod by name and the number of them.
    let mut found: Vec<(String, &str, usize)> = Vec::new();
    for pod in pods {
        let reasons: Vec<_> = rules.violations(pod).into_iter().map(|own| own.reason).collect();
        let name = pod["metadata"]["name"].as_str().unwrap_or("");
        match found.iter_mut().find(|(known, ..)| *known == reasons.join(", ")) {
            _ if reasons.is_empty() => {}
            Some((_, first, count)) => {
                *first = (*first).min(name);
                *count += 1;
            }
            None => found.push((reasons.join(", "), name, 1)),
        }
    }
    let mut warnings = Vec::new();
    if pods.len() < all {
        let checked = pods.len();
        warnings.push(format!(
            "new PodSecurity enforce level only checked against the first {checked} of {all} existing pods"
        ));
    }
    if !found.is_empty() {
        warnings.push(format!(
            "existing pods in namespace {namespace:?} violate the new PodSecurity enforce level \"{rules}\""
        ));
    }
    let mut lines: Vec<_> = found
        .into_iter()
        .map(|(reasons, first, count)| match count {
            1 => format!("{first}: {reasons}"),
            2 => format!("{first} (and 1 other pod): {reasons}"),
            more => format!("{first} (and {} other pods): {reasons}", more - 1),
        })
        .collect();
    lines.sort();
    warnings.extend(lines);
    warnings
}

#[cfg(test)]
mod tests;
