//! Filters from profiles that operators keep on the node: pure.
//!
//! One program has one answer to what matches and one to what does not, and of several programs the strictest
//! answer holds. So the first lets everything pass that any rule is about, and answers the rest; and each
//! answer that rules give has one more, which lets the rest pass.

use std::collections::BTreeMap;

use libc::EPERM;
use roadstead_pod::seccomp_profile::{Action, Argument, CallRule, Comparison, SeccompProfile};
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule,
};

use super::calls;

/// For each call the rules, of which one has to hold; none is always.
type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Returns the programs to install, in this order.
pub(crate) fn filters(profile: &SeccompProfile) -> Result<Vec<BpfProgram>, BackendError> {
    let default = answer(profile.default_action, profile.default_errno_ret);
    let said = |rule: &&CallRule| answer(rule.action, rule.errno_ret) != default;
    let spoken_of: Vec<_> = profile.syscalls.iter().filter(said).collect();
    let mut programs = Vec::new();
    if default != SeccompAction::Allow {
        programs.push(program(&spoken_of, default, SeccompAction::Allow)?);
    }
    let mut answers: Vec<SeccompAction> = Vec::new();
    for rule in &spoken_of {
        let own = answer(rule.action, rule.errno_ret);
        if own != SeccompAction::Allow && !answers.contains(&own) {
            answers.push(own);
        }
    }
    for own in answers {
        let is_own = |rule: &&&CallRule| answer(rule.action, rule.errno_ret) == own;
        let rules: Vec<_> = spoken_of.iter().filter(is_own).copied().collect();
        programs.push(program(&rules, SeccompAction::Allow, own)?);
    }
    Ok(programs)
}

fn program(
    rules: &[&CallRule],
    otherwise: SeccompAction,
    matching: SeccompAction,
) -> Result<BpfProgram, BackendError> {
    let machine = std::env::consts::ARCH.try_into()?;
    SeccompFilter::new(by_number(rules)?, otherwise, matching, machine)?.try_into()
}

fn by_number(rules: &[&CallRule]) -> Result<Rules, BackendError> {
    let mut all: BTreeMap<i64, Option<Vec<SeccompRule>>> = BTreeMap::new();
    for rule in rules {
        // What this machine does not have, nobody can call.
        for number in rule.names.iter().filter_map(|name| calls::number(name)) {
            let known = all.entry(number).or_insert_with(|| Some(Vec::new()));
            match (conditions(rule)?, known) {
                (Some(more), Some(known)) => known.extend(more),
                // Once always, the rest makes no difference.
                (None, known) => *known = None,
                (Some(_), None) => {}
            }
        }
    }
    Ok(all.into_iter().map(|(number, rules)| (number, rules.unwrap_or_default())).collect())
}

/// Each alternative is one rule; `None` is always. All conditions have to hold, but as runc has it, those
/// about one and the same argument are alternatives.
fn conditions(rule: &CallRule) -> Result<Option<Vec<SeccompRule>>, BackendError> {
    let mut seen = [false; 6];
    let mut repeated = false;
    for argument in &rule.args {
        repeated |= std::mem::replace(&mut seen[usize::from(argument.index.min(5))], true);
    }
    let all = rule.args.iter().map(condition).collect::<Result<Vec<_>, _>>()?;
    Ok(match (all.is_empty(), repeated) {
        (true, _) => None,
        (false, false) => Some(vec![SeccompRule::new(all)?]),
        (false, true) => {
            let each = all.into_iter().map(|one| SeccompRule::new(vec![one]));
            Some(each.collect::<Result<_, _>>()?)
        }
    })
}

fn condition(argument: &Argument) -> Result<SeccompCondition, BackendError> {
    let (is, value) = match argument.op {
        Comparison::Ne => (SeccompCmpOp::Ne, argument.value),
        Comparison::Lt => (SeccompCmpOp::Lt, argument.value),
        Comparison::Le => (SeccompCmpOp::Le, argument.value),
        Comparison::Eq => (SeccompCmpOp::Eq, argument.value),
        Comparison::Ge => (SeccompCmpOp::Ge, argument.value),
        Comparison::Gt => (SeccompCmpOp::Gt, argument.value),
        Comparison::MaskedEq => (SeccompCmpOp::MaskedEq(argument.value), argument.value_two),
    };
    SeccompCondition::new(argument.index, SeccompCmpArgLen::Qword, is, value)
}

fn answer(action: Action, error: Option<u32>) -> SeccompAction {
    let error = error.unwrap_or(EPERM.cast_unsigned());
    match action {
        Action::Allow => SeccompAction::Allow,
        Action::Errno => SeccompAction::Errno(error),
        Action::Kill | Action::KillThread => SeccompAction::KillThread,
        Action::KillProcess => SeccompAction::KillProcess,
        Action::Log => SeccompAction::Log,
        Action::Trace => SeccompAction::Trace(error),
        Action::Trap => SeccompAction::Trap,
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use roadstead_testkit::netns::{laboratory, try_run};
    use serde_json::{Value, json};

    use super::*;
    use crate::container::process::install_filter;

    fn rule(names: &[&str], action: &str, more: Value) -> Value {
        let mut rule = json!({"names": names, "action": format!("SCMP_ACT_{action}")});
        rule.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap_or_default());
        rule
    }

    fn read(default: &str, rules: Vec<Value>) -> SeccompProfile {
        let text = json!({"defaultAction": format!("SCMP_ACT_{default}"), "syscalls": rules});
        SeccompProfile::parse(text.to_string().as_bytes()).unwrap()
    }

    /// What becomes of making a directory, of a link, and of one more thing.
    fn tried(profile: SeccompProfile) -> Vec<String> {
        thread::spawn(move || {
            rustix::thread::set_no_new_privs(true).unwrap();
            for program in filters(&profile).unwrap() {
                install_filter(&program).unwrap();
            }
            let said = |command: &str| {
                let output = try_run(command);
                let text = String::from_utf8_lossy(&output.stderr).into_owned();
                let why = text.trim_end().rsplit(": ").next().unwrap_or_default().to_owned();
                if output.status.success() { "done".to_owned() } else { why }
            };
            ["rm -rf /run/d; mkdir /run/d", "ln -sfn / /run/l", "chmod 0700 /run"]
                .map(said)
                .to_vec()
        })
        .join()
        .unwrap()
    }

    #[test]
    fn the_kernel_does_what_a_profile_says() {
        laboratory(|| {
            let (mkdir, link) = (&["mkdir", "mkdirat"][..], &["symlink", "symlinkat"][..]);
            let no = "Operation not permitted";
            for (name, profile, want) in [
                ("nothing", read("ALLOW", vec![]), ["done", "done", "done"]),
                (
                    "an error, and another",
                    read(
                        "ALLOW",
                        vec![
                            rule(mkdir, "ERRNO", json!({})),
                            rule(link, "ERRNO", json!({"errnoRet": 28})),
                        ],
                    ),
                    [no, "No space left on device", "done"],
                ),
                (
                    "a rule that changes nothing",
                    read("ALLOW", vec![rule(mkdir, "ALLOW", json!({}))]),
                    ["done", "done", "done"],
                ),
                (
                    "always beats sometimes",
                    read(
                        "ALLOW",
                        vec![
                            rule(
                                mkdir,
                                "ERRNO",
                                json!({"args": [
                                {"index": 1, "value": 0, "op": "SCMP_CMP_EQ"}]}),
                            ),
                            rule(mkdir, "ERRNO", json!({})),
                        ],
                    ),
                    [no, "done", "done"],
                ),
                (
                    "with an argument that it does not have",
                    read(
                        "ALLOW",
                        vec![rule(
                            &["mkdir"],
                            "ERRNO",
                            json!({"args": [
                            {"index": 1, "value": 1, "op": "SCMP_CMP_EQ"}]}),
                        )],
                    ),
                    ["done", "done", "done"],
                ),
                (
                    "calls that no machine has",
                    read("ALLOW", vec![rule(&["no_such_call", "socketcall"], "KILL", json!({}))]),
                    ["done", "done", "done"],
                ),
            ] {
                assert_eq!(tried(profile), want, "{name}");
            }
        });
    }

    #[test]
    fn what_is_not_listed_gets_the_default() {
        let profile = read(
            "ERRNO",
            vec![
                rule(&["read", "write"], "ALLOW", json!({})),
                rule(&["mkdir"], "KILL_PROCESS", json!({})),
                rule(&["chmod"], "ERRNO", json!({})),
            ],
        );
        // The default with what passes, and those that are killed; the same error needs nothing more.
        assert_eq!(filters(&profile).unwrap().len(), 2);
        assert_eq!(filters(&read("ALLOW", vec![])).unwrap().len(), 0);
    }
}
