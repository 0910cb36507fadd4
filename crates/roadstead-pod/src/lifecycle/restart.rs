//! Which containers are started again when they have ended: pure.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, ContainerRestartRule, Pod, PodSpec};

use super::stopping::{Extent, advance};
use super::{PodPlan, PodStep};
use crate::ephemeral;
use crate::facts::{ContainerFacts, Exit, PodFacts, State};

/// The action of a rule by which all containers of the pod begin anew.
const RESTART_ALL: &str = "RestartAllContainers";
/// Why a container has ended, or waits, of a pod whose containers all begin anew.
pub const ALL_RESTARTED: &str = "RestartingAllContainers";

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
    rule_for(container, exit).is_some() || policy(spec, container).restarts(exit)
}

/// The rule that decides about a container that ended so, if one does: both actions start it again.
fn rule_for<'a>(container: &'a Container, exit: &Exit) -> Option<&'a ContainerRestartRule> {
    container.restart_policy_rules.iter().flatten().find(|rule| matches(rule, exit))
}

fn containers(spec: &PodSpec) -> impl Iterator<Item = &Container> {
    spec.init_containers.iter().flatten().chain(&spec.containers)
}

/// Whether a rule of any container lets all of them begin anew.
pub(crate) fn can_restart_all(spec: &PodSpec) -> bool {
    let mut rules = containers(spec).flat_map(|own| own.restart_policy_rules.iter().flatten());
    rules.any(|rule| rule.action == RESTART_ALL)
}

/// Whether a container has ended in a way that lets all containers of the pod begin anew (KEP-5532).
pub fn is_restarting_all(pod: &Pod, facts: &PodFacts) -> bool {
    let over = pod.metadata.deletion_timestamp.is_some() || facts.failure.is_some();
    let mut all = pod.spec.iter().flat_map(containers);
    !over
        && all.any(|container| match facts.containers.get(&container.name) {
            Some(ContainerFacts { state: State::Exited(exit), .. }) => {
                rule_for(container, exit).is_some_and(|rule| rule.action == RESTART_ALL)
            }
            _ => false,
        })
}

/// Ends what still runs, debuggers aside: nobody gets time for it.
pub(super) fn restart_all_plan(spec: &PodSpec, facts: &PodFacts, now: Timestamp) -> PodPlan {
    let mut plan = PodPlan::default();
    for container in containers(spec) {
        let known = facts.containers.get(&container.name);
        if let Some(State::Running { stopping: None, .. }) = known.map(|known| &known.state) {
            let container = container.name.clone();
            plan.steps.push(PodStep::Stop { container, grace: Duration::ZERO });
        }
    }
    advance(spec, facts, Extent::Containers, now, &mut plan);
    if !containers(spec).any(|container| facts.runs(&container.name)) {
        plan.steps.push(PodStep::RestartAll);
    }
    plan
}

/// Lets all containers begin anew, init containers first. Whoever has ended by itself waits for its turn as
/// it would otherwise, so that a pod that fails at once does not keep the node busy.
pub fn restart_all(pod: &Pod, facts: &mut PodFacts) {
    for container in pod.spec.iter().flat_map(containers) {
        let Some(known) = facts.containers.get_mut(&container.name) else { continue };
        let State::Exited(exit) = &known.state else { continue };
        known.last = Some(exit.clone());
        known.restarts += 1;
        let message = "The container is removed because RestartAllContainers in place";
        known.state = State::Waiting { reason: ALL_RESTARTED, message: Some(message.into()) };
    }
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
    use crate::facts::tests::{at, facts};
    use crate::lifecycle::{Presence, plan};
    use serde_json::{Value, json};

    /// Containers `a` and `b`, a sidecar `s` and an init container `i`; `a` has a rule for exit code 3.
    fn swept(policy: &str) -> Pod {
        let rules = json!([
            {"action": "Restart", "exitCodes": {"operator": "In", "values": [4]}},
            {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [3, 4]}}]);
        let spec = json!({"restartPolicy": policy, "terminationGracePeriodSeconds": 5,
            "initContainers": [{"name": "i"}, {"name": "s", "restartPolicy": "Always"}],
            "containers": [
                {"name": "a", "restartPolicy": "Never", "restartPolicyRules": rules}, {"name": "b"}],
            "ephemeralContainers": [{"name": "e"}]});
        serde_json::from_value(json!({"metadata": {"name": "web"}, "spec": spec})).unwrap()
    }

    #[test]
    fn all_begin_anew() {
        let up = "+ i=exit0 s=ready e=running";
        for (name, policy, given, want) in [
            ("others are ended", "Never", "a=exit3 b=ready", "stop b, stop s"),
            ("one after the other has gone", "Never", "a=exit3 b=exit137 s=killed", ""),
            ("all have", "Never", "a=exit3 b=exit0 s=exit137", "restart all"),
            ("whoever waits, too", "Never", "a=exit3@99 b=exit1@99 s=exit137", "restart all"),
            ("the first rule counts", "Always", "a=exit4 b=ready", "pull a"),
            ("another code", "Never", "a=exit1 b=exit0", "stop s"),
        ] {
            let planned =
                plan(&swept(policy), Presence::Present, &facts(&format!("{up} {given}")), at(10));
            let steps = planned.steps.iter().map(|step| match step {
                PodStep::Stop { container, .. } => format!("stop {container}"),
                PodStep::Pull(container) => format!("pull {container}"),
                PodStep::RestartAll => "restart all".into(),
                step => format!("{step:?}"),
            });
            let mut steps: Vec<_> =
                steps.filter(|step| step != "Stop e" && step != "stop e").collect();
            steps.sort();
            assert_eq!(steps.join(", "), want, "{name}");
        }
    }

    #[test]
    fn init_containers_come_first_again() {
        let pod = swept("Never");
        let mut facts = facts("+ i=exit0 s=exit137 a=exit3@40 b=exit137 e=running");
        assert!(is_restarting_all(&pod, &facts));
        restart_all(&pod, &mut facts);
        assert!(!is_restarting_all(&pod, &facts));
        let known = &facts.containers["b"];
        assert_eq!((known.restarts, known.last.as_ref().map(|exit| exit.code)), (1, Some(137)));
        assert!(matches!(known.state, State::Waiting { reason: ALL_RESTARTED, .. }));
        assert_eq!(facts.containers["a"].retry_at, Some(at(40)));
        let planned = plan(&pod, Presence::Present, &facts, at(10));
        assert_eq!(planned.steps, [PodStep::Pull("i".into())]);
        // Nobody begins anew in a pod that ends.
        let mut deleted = pod.clone();
        deleted.metadata.deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(0)));
        let again = crate::facts::tests::facts("+ i=exit0 s=exit137 a=exit3 b=exit137");
        assert!(!is_restarting_all(&deleted, &again) && is_restarting_all(&pod, &again));
    }

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
