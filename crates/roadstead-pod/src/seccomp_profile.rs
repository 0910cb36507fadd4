//! Lists of system calls that operators keep on their nodes, in the words of the OCI: read and checked. Pure.
//!
//! What we cannot do as it is said makes the whole profile unusable: half of one is no protection.

use serde::{Deserialize, Serialize};

/// What may be called, and what becomes of the rest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SeccompProfile {
    /// What becomes of calls that nothing else is said of.
    pub default_action: Action,
    /// The error that they end with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_errno_ret: Option<u32>,
    /// For which machines it is; if not given, for those that it is on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub architectures: Vec<String>,
    /// What is said of some calls.
    #[serde(default)]
    pub syscalls: Vec<CallRule>,
}

/// What is said of some calls.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CallRule {
    /// Their names.
    pub names: Vec<String>,
    /// What becomes of them.
    pub action: Action,
    /// The error that they end with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub errno_ret: Option<u32>,
    /// With which arguments that holds: all of these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<Argument>,
    /// Docker's own: when the rule holds at all. The OCI has no such words.
    #[serde(default, skip_serializing)]
    includes: serde_json::Value,
    #[serde(default, skip_serializing)]
    excludes: serde_json::Value,
}

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are those of the OCI")]
pub enum Action {
    #[serde(rename = "SCMP_ACT_ALLOW")]
    Allow,
    #[serde(rename = "SCMP_ACT_ERRNO")]
    Errno,
    #[serde(rename = "SCMP_ACT_KILL")]
    Kill,
    #[serde(rename = "SCMP_ACT_KILL_THREAD")]
    KillThread,
    #[serde(rename = "SCMP_ACT_KILL_PROCESS")]
    KillProcess,
    #[serde(rename = "SCMP_ACT_LOG")]
    Log,
    #[serde(rename = "SCMP_ACT_TRACE")]
    Trace,
    #[serde(rename = "SCMP_ACT_TRAP")]
    Trap,
}

/// What an argument of a call is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Argument {
    /// Which one, from 0.
    pub index: u8,
    /// The value, or the mask.
    pub value: u64,
    /// The value behind the mask.
    #[serde(default)]
    pub value_two: u64,
    /// How.
    pub op: Comparison,
}

/// How an argument is compared.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are those of the OCI")]
pub enum Comparison {
    #[serde(rename = "SCMP_CMP_NE")]
    Ne,
    #[serde(rename = "SCMP_CMP_LT")]
    Lt,
    #[serde(rename = "SCMP_CMP_LE")]
    Le,
    #[serde(rename = "SCMP_CMP_EQ")]
    Eq,
    #[serde(rename = "SCMP_CMP_GE")]
    Ge,
    #[serde(rename = "SCMP_CMP_GT")]
    Gt,
    #[serde(rename = "SCMP_CMP_MASKED_EQ")]
    MaskedEq,
}

impl SeccompProfile {
    /// Reads a profile; the error says what we cannot do as it is said.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        let profile: Self = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        let is_said = |value: &serde_json::Value| match value {
            serde_json::Value::Object(fields) => !fields.is_empty(),
            other => !other.is_null(),
        };
        let rules = &profile.syscalls;
        if rules.iter().any(|rule| is_said(&rule.includes) || is_said(&rule.excludes)) {
            return Err("includes and excludes are not words of the OCI".into());
        }
        if rules.iter().flat_map(|rule| &rule.args).any(|argument| argument.index > 5) {
            return Err("a system call has six arguments".into());
        }
        let mut errors = rules.iter().map(|rule| rule.errno_ret).chain([profile.default_errno_ret]);
        // The kernel keeps no more of it, and with nothing left the call would seem to have worked.
        match errors.any(|error| error.is_some_and(|error| error > 4095)) {
            true => Err("there is no such error number".into()),
            false => Ok(profile),
        }
    }
}

/// The part of a path below the directory of profiles, or what is wrong with it.
pub(crate) fn profile_path(path: &str) -> Result<String, String> {
    let parts: Vec<_> = path.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    match path.starts_with('/') || parts.is_empty() || parts.contains(&"..") || path.contains('\0')
    {
        true => Err(format!("localhostProfile {path:?} must be a path below the node's profiles")),
        false => Ok(parts.join("/")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn profiles_are_read_or_refused_whole() {
        let rule = |more: serde_json::Value| {
            let mut rule = json!({"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO"});
            rule.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            json!({"defaultAction": "SCMP_ACT_ALLOW", "comment": "mine", "syscalls": [rule]})
        };
        let argument =
            |index: u8, op: &str| json!({"args": [{"index": index, "value": 1, "op": op}]});
        for (name, text, want) in [
            ("nothing but a default", json!({"defaultAction": "SCMP_ACT_LOG"}), ""),
            ("a rule", rule(json!({"errnoRet": 38})), ""),
            ("an argument", rule(argument(5, "SCMP_CMP_MASKED_EQ")), ""),
            ("docker's empty words", rule(json!({"includes": {}, "excludes": null})), ""),
            ("docker's words", rule(json!({"includes": {"caps": ["X"]}})), "not words of the OCI"),
            ("a seventh argument", rule(argument(6, "SCMP_CMP_EQ")), "has six arguments"),
            ("no comparison", rule(argument(0, "LIKE")), "unknown variant `LIKE`"),
            ("no such error", rule(json!({"errnoRet": 4096})), "no such error number"),
            ("somebody is asked", json!({"defaultAction": "SCMP_ACT_NOTIFY"}), "SCMP_ACT_NOTIFY"),
            ("no default", json!({"syscalls": []}), "missing field `defaultAction`"),
        ] {
            let said = SeccompProfile::parse(text.to_string().as_bytes()).err().unwrap_or_default();
            assert!(said.contains(want) && said.is_empty() == want.is_empty(), "{name}: {said}");
        }
        let profile = SeccompProfile::parse(rule(json!({})).to_string().as_bytes()).unwrap();
        let again = serde_json::to_value(&profile).unwrap();
        assert_eq!(
            again["syscalls"][0],
            json!({"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO"})
        );
    }

    #[test]
    fn profiles_are_below_one_directory() {
        for (path, want) in [
            ("audit.json", Some("audit.json")),
            ("profiles/./deny.json", Some("profiles/deny.json")),
            ("/etc/x.json", None),
            ("../x.json", None),
            ("a/../../x", None),
            ("", None),
            (".", None),
        ] {
            assert_eq!(profile_path(path).ok().as_deref(), want, "{path}");
        }
    }
}
