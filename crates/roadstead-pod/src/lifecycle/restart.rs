//! Which containers are started again when they have ended: pure.

use k8s_openapi::api::core::v1::{Container, ContainerRestartRule, Pod, PodSpec};

use crate::ephemeral;
use crate::facts::Exit;

/// When a container that ended is started again.
#[derive(Clone, Copy, Debug, PartialEq)]
enum RestartPolicy {
    Always,
    OnFailure,
    Never,
}

impl RestartPolicy {
    fn named(name: &str) -> Self {
        match name {
            "Never" => RestartPolicy::Never,
            "OnFailure" => RestartPolicy::OnFailure,
            _ => RestartPolicy::Always,
        }
    }

    fn restarts(self, exit: &Exit) -> bool {
        match self {
            RestartPolicy::Always => true,
            RestartPolicy::OnFailure => exit.code != 0,
            RestartPolicy::Never => false,
        }
    }
}

/// Whether this container, having ended so, will be started again.
pub fn will_restart(pod: &Pod, container: &Container, exit: &Exit) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let over = pod.metadata.deletion_timestamp.is_some();
    if over || ephemeral::find(spec, &container.name).is_some() {
        return false;
    }
    let rules = container.restart_policy_rules.iter().flatten();
    rules.into_iter().any(|rule| matches(rule, exit)) || policy(spec, container).restarts(exit)
}

/// The container's own policy; without, the pod's, by which an init container that succeeded is done.
fn policy(spec: &PodSpec, container: &Container) -> RestartPolicy {
    if let Some(own) = &container.restart_policy {
        return RestartPolicy::named(own);
    }
    let is_init = spec.init_containers.iter().flatten().any(|init| init.name == container.name);
    match RestartPolicy::named(spec.restart_policy.as_deref().unwrap_or_default()) {
        RestartPolicy::Always if is_init => RestartPolicy::OnFailure,
        policy => policy,
    }
}

/// Whether the container is started again by this rule. `RestartAllContainers` does that, too, and leaves the
/// other containers of the pod alone, of which the API server warns.
fn matches(rule: &ContainerRestartRule, exit: &Exit) -> bool {
    rule.exit_codes.as_ref().is_some_and(|codes| {
        let listed = codes.values.iter().flatten().any(|code| *code == exit.code);
        match codes.operator.as_str() {
            "In" => listed,
            "NotIn" => !listed,
            _ => false,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::State;
    use crate::facts::tests::facts;
    use serde_json::{Value, json};

    #[test]
    fn who_is_restarted() {
        let acting = |action: &str, operator: &str| {
            json!({"restartPolicy": "Never", "restartPolicyRules": [
                {"action": action, "exitCodes": {"operator": operator, "values": [3, 4]}}]})
        };
        let rule = |operator: &str| acting("Restart", operator);
        let own = |policy: &str| json!({"restartPolicy": policy});
        let cases: [(&str, &str, &str, Value, &str); 12] = [
            ("by the pod's policy", "Always", "a", json!({}), "0 1 3"),
            ("after a failure", "OnFailure", "a", json!({}), "1 3"),
            ("never", "Never", "a", json!({}), ""),
            ("its own comes first", "Always", "a", own("Never"), ""),
            ("also the other way", "Never", "a", own("OnFailure"), "1 3"),
            ("a rule comes before", "Always", "a", rule("In"), "3"),
            ("a rule for all others", "Always", "a", rule("NotIn"), "0 1"),
            ("a rule for all containers", "Always", "a", acting("RestartAllContainers", "In"), "3"),
            ("init, until it succeeds", "Always", "i", json!({}), "1 3"),
            ("init, once", "Never", "i", json!({}), ""),
            ("a sidecar", "Never", "i", own("Always"), "0 1 3"),
            ("an ephemeral one", "Always", "e", json!({}), ""),
        ];
        for (name, policy, which, more, want) in cases {
            let mut container = more;
            container["name"] = json!(which);
            let list = match which {
                "i" => "initContainers",
                "e" => "ephemeralContainers",
                _ => "containers",
            };
            let pod = json!({"metadata": {}, "spec": {"restartPolicy": policy, "containers": [],
                                                      list: [container]}});
            let pod: Pod = serde_json::from_value(pod).unwrap();
            let container: Container = serde_json::from_value(container).unwrap();
            let codes = [0, 1, 3].into_iter().filter(|code| {
                let facts = facts(&format!("a=exit{code}"));
                let State::Exited(exit) = &facts.containers["a"].state else { panic!() };
                will_restart(&pod, &container, exit)
            });
            let codes: Vec<_> = codes.map(|code| code.to_string()).collect();
            assert_eq!(codes.join(" "), want, "{name}");
        }
    }
}
