//! What to do next for a pod: pure.
//!
//! [`plan`] compares what the API wants with the facts and names the next steps. The worker takes
//! them, changes the facts, and asks again.

mod restart;
mod stopping;

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};

use self::stopping::{Extent, advance, take_down};
use crate::departure;
use crate::ephemeral;
use crate::facts::{ContainerFacts, PodFacts, PodFailure, PostStart, Sandbox, State, after};
use crate::hook::has_post_start;
use crate::resize::{self, Change};

use self::restart::restart_all_plan;

pub(crate) use self::restart::can_restart_all;
pub use self::restart::{ALL_RESTARTED, is_restarting_all, restart_all, will_restart};
pub use self::stopping::{AFTER_SIGNAL, grace_period, hurry};

/// How long a container shows what failed, such as ErrImagePull, before it shows that it waits.
const SHOW_FAILURE: Duration = Duration::from_secs(2);

/// One thing for the worker to do.
#[derive(Clone, Debug, PartialEq)]
pub enum PodStep {
    /// Wait until nobody sends new connections to the pod.
    Depart {
        /// No longer than this.
        limit: Duration,
    },
    /// Make the pod's network.
    CreateSandbox,
    /// Bring the image of the container of this name, if it is not here.
    Pull(String),
    /// Say that its image is not tried again for a while.
    BackOffPull(String),
    /// Start the container of this name.
    Start(String),
    /// Begin to end a container: run its preStop hook, if it has one.
    Stop {
        /// Its name.
        container: String,
        /// How long it may take.
        grace: Duration,
    },
    /// End a container whose spec has changed, to start it again.
    Replace {
        /// Its name.
        container: String,
        /// How long it may take.
        grace: Duration,
        /// What is said about it.
        message: String,
    },
    /// Hold containers that run to other limits.
    Resize,
    /// All have ended, as a rule of one of them wants it: they begin anew.
    RestartAll,
    /// Ask the container of this name to end, hook or no hook.
    Signal(String),
    /// Force the container of this name to end.
    Kill(String),
    /// The pod has failed: nothing of it will be started any more.
    Fail(PodFailure),
    /// Give the pod's network back.
    RemoveSandbox,
    /// Everything is gone: the API object may go as well.
    Finish,
}

/// The next steps, and when to ask again although nothing has happened.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodPlan {
    /// In this order.
    pub steps: Vec<PodStep>,
    /// The earliest time at which there is something to do.
    pub wake_at: Option<Timestamp>,
}

impl PodPlan {
    fn wake(&mut self, at: Timestamp) {
        self.wake_at = Some(self.wake_at.map_or(at, |before| before.min(at)));
    }
}

/// Whether the API still has the pod.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Presence {
    /// It has.
    Present,
    /// The object was removed, perhaps by force: stop what runs, write nothing.
    Gone,
}

/// Returns the next steps for the pod.
pub fn plan(pod: &Pod, presence: Presence, facts: &PodFacts, now: Timestamp) -> PodPlan {
    let Some(spec) = &pod.spec else { return PodPlan::default() };
    let grace = grace_period(pod, presence);
    if presence == Presence::Gone || pod.metadata.deletion_timestamp.is_some() {
        let first = departure::plan(pod, facts, grace, now);
        if let Some(first) = first.filter(|_| presence == Presence::Present) {
            return first;
        }
        let grace = grace.saturating_sub(facts.departure.waited(now));
        let mut plan = take_down(spec, facts, grace, now);
        if !facts.any_running() {
            plan.steps.push(PodStep::Finish);
        }
        return plan;
    }
    if finished(pod, facts) {
        return take_down(spec, facts, grace, now);
    }
    if is_restarting_all(pod, facts) {
        return restart_all_plan(spec, facts, now);
    }
    let deadline = deadline(spec, facts);
    if deadline.is_some_and(|deadline| deadline <= now) {
        return PodPlan { steps: vec![PodStep::Fail(deadline_exceeded())], wake_at: None };
    }
    let mut plan = match &facts.sandbox {
        Sandbox::Ready => start_containers(pod, spec, facts, now),
        Sandbox::Failed { retry_at, .. } if *retry_at > now => {
            PodPlan { steps: vec![], wake_at: Some(*retry_at) }
        }
        _ => PodPlan { steps: vec![PodStep::CreateSandbox], wake_at: None },
    };
    match resize::is_due(spec, facts, now) {
        Ok(true) => plan.steps.push(PodStep::Resize),
        Ok(false) => {}
        Err(retry_at) => plan.wake(retry_at),
    }
    advance(spec, facts, Extent::Containers, now, &mut plan);
    deadline.into_iter().for_each(|deadline| plan.wake(deadline));
    plan
}

/// When the pod has been active for too long.
fn deadline(spec: &PodSpec, facts: &PodFacts) -> Option<Timestamp> {
    let longest = SignedDuration::from_secs(spec.active_deadline_seconds?);
    facts.start_time?.checked_add(longest).ok()
}

fn deadline_exceeded() -> PodFailure {
    PodFailure {
        reason: "DeadlineExceeded",
        message: "Pod was active on the node longer than the specified deadline".into(),
    }
}

/// Whether all init containers have done their work, or had done it when the others began.
pub(crate) fn initialized(spec: &PodSpec, facts: &PodFacts) -> bool {
    let init: Vec<_> = spec.init_containers.iter().flatten().collect();
    next_init(spec, &init, facts).is_none()
}

/// The place of the init container whose turn it is.
fn next_init(spec: &PodSpec, init: &[&Container], facts: &PodFacts) -> Option<usize> {
    let has_begun = |container: &Container| {
        matches!(state(facts, &container.name), Some(State::Running { .. } | State::Exited(_)))
    };
    if spec.containers.iter().any(has_begun) {
        return None;
    }
    let next = match init.iter().rposition(|init| has_begun(init)) {
        Some(latest) if init_done(init[latest], facts) => latest + 1,
        Some(latest) => latest,
        None => 0,
    };
    (next < init.len()).then_some(next)
}

/// Whether the pod's phase is or will be Succeeded or Failed.
pub(crate) fn finished(pod: &Pod, facts: &PodFacts) -> bool {
    let Some(spec) = &pod.spec else { return true };
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    if matches!(phase, Some("Succeeded" | "Failed")) || facts.failure.is_some() {
        return true;
    }
    let ended_for_good = |container: &Container| match state(facts, &container.name) {
        Some(State::Exited(exit)) => !will_restart(pod, container, exit),
        _ => false,
    };
    let init_failed = spec
        .init_containers
        .iter()
        .flatten()
        .any(|init| ended_for_good(init) && !init_done(init, facts));
    init_failed || spec.containers.iter().all(ended_for_good)
}

fn state<'a>(facts: &'a PodFacts, name: &str) -> Option<&'a State> {
    facts.containers.get(name).map(|container| &container.state)
}

/// Whether this init container goes on beside the others.
pub(crate) fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

/// Whether an init container holds nobody back any more.
pub(crate) fn init_done(init: &Container, facts: &PodFacts) -> bool {
    match facts.containers.get(&init.name) {
        Some(ContainerFacts { state: State::Exited(exit), .. }) => exit.code == 0,
        Some(ContainerFacts { state: State::Running { .. }, started, .. }) => {
            is_sidecar(init) && *started
        }
        _ => false,
    }
}

fn start_containers(pod: &Pod, spec: &PodSpec, facts: &PodFacts, now: Timestamp) -> PodPlan {
    let mut plan = PodPlan::default();
    let init: Vec<_> = spec.init_containers.iter().flatten().collect();
    let next = next_init(spec, &init, facts);
    // One that died after its turn is restarted, and holds nobody back.
    for sidecar in init.iter().take(next.unwrap_or(init.len())).filter(|init| is_sidecar(init)) {
        start(pod, sidecar, facts, now, &mut plan);
    }
    match next {
        Some(next) => drop(start(pod, init[next], facts, now, &mut plan)),
        None => drop(spec.containers.iter().all(|main| start(pod, main, facts, now, &mut plan))),
    }
    for container in ephemeral::all(spec) {
        start(pod, &ephemeral::as_container(container), facts, now, &mut plan);
    }
    plan
}

/// Plans the next step of one container; returns whether the next one need not wait for it.
fn start(
    pod: &Pod,
    container: &Container,
    facts: &PodFacts,
    now: Timestamp,
    plan: &mut PodPlan,
) -> bool {
    let unknown = ContainerFacts::default();
    let known = facts.containers.get(&container.name).unwrap_or(&unknown);
    match (&known.state, known.retry_at) {
        (State::Running { stopping, .. }, _) => {
            if let Some(message) = replaced_because(container, known)
                && stopping.is_none()
            {
                let grace = grace_period(pod, Presence::Present);
                let container = container.name.clone();
                plan.steps.push(PodStep::Replace { container, grace, message });
            }
            return known.post_start != PostStart::Running;
        }
        (State::Exited(exit), _) if !will_restart(pod, container, exit) => {}
        (state, Some(retry_at)) if retry_at > now => {
            plan.wake(retry_at);
            shown_until(state)
                .filter(|until| *until > now)
                .into_iter()
                .for_each(|at| plan.wake(at));
            match back_off_pull_at(state, retry_at, known.delay) {
                Some(at) if at > now => plan.wake(at),
                Some(_) => plan.steps.push(PodStep::BackOffPull(container.name.clone())),
                None => {}
            }
        }
        _ if known.image.is_some() => {
            plan.steps.push(PodStep::Start(container.name.clone()));
            return !has_post_start(container);
        }
        _ if known.pulling => return false,
        _ => {
            plan.steps.push(PodStep::Pull(container.name.clone()));
            return false;
        }
    }
    true
}

/// Whether a container begins anew, and what is said then: another image is wanted than the one that runs, or
/// it wants to begin anew when it gets more of the machine. Nothing else of a container can change.
fn replaced_because(container: &Container, known: &ContainerFacts) -> Option<String> {
    let (wanted, name) = (container.image.as_deref().unwrap_or_default(), &container.name);
    if !known.image_name.is_empty() && known.image_name != wanted {
        return Some(format!("Container {name} definition changed, will be restarted"));
    }
    let restarts = resize::change(container, known) == Change::Restart;
    restarts.then(|| format!("Container {name} resize requires restart"))
}

/// How long a container that could not be started says so, before it says that it waits.
pub(crate) fn shown_until(state: &State) -> Option<Timestamp> {
    match state {
        State::Exited(exit) if exit.reason == "StartError" => {
            Some(after(exit.finished_at, SHOW_FAILURE))
        }
        _ => None,
    }
}

/// When a container whose image did not come begins to wait for the next attempt: a moment after the
/// failure, so that both can be seen.
fn back_off_pull_at(
    state: &State,
    retry_at: Timestamp,
    delay: Option<Duration>,
) -> Option<Timestamp> {
    let State::Waiting { reason: "ErrImagePull", .. } = state else { return None };
    let failed_at = retry_at - SignedDuration::try_from(delay?).ok()?;
    Some(after(failed_at, SHOW_FAILURE))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::facts::tests::{at, facts};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use serde_json::json;

    /// A pod of these words: see `next_steps`.
    pub(crate) fn pod(policy: &str, words: &str) -> Pod {
        let mut spec = json!({"restartPolicy": policy, "terminationGracePeriodSeconds": 5,
            "initContainers": [], "containers": [], "ephemeralContainers": []});
        for word in words.split(' ').filter(|word| *word != "X") {
            let (name, kind) = match word.char_indices().nth(1) {
                Some((at, _)) => word.split_at(at),
                None => (word, ""),
            };
            let hook = json!({"postStart": {"exec": {"command": ["true"]}}});
            let (list, container) = match kind {
                "!" => ("initContainers", json!({"name": name})),
                "*" => ("initContainers", json!({"name": name, "restartPolicy": "Always"})),
                "?" => ("ephemeralContainers", json!({"name": name})),
                "^" => ("containers", json!({"name": name, "lifecycle": hook})),
                _ => ("containers", json!({"name": name})),
            };
            spec[list].as_array_mut().unwrap().push(container);
        }
        let mut pod: Pod =
            serde_json::from_value(json!({"metadata": {"name": "web"}, "spec": spec})).unwrap();
        if words.ends_with('X') {
            pod.metadata.deletion_timestamp = Some(Time(at(0)));
        }
        pod
    }

    fn show(plan: &PodPlan) -> String {
        let step = |step: &PodStep| match step {
            PodStep::Depart { .. } => "depart".into(),
            PodStep::CreateSandbox => "sandbox".into(),
            PodStep::Pull(name) => format!("pull:{name}"),
            PodStep::BackOffPull(name) => format!("back-off:{name}"),
            PodStep::Start(name) => format!("start:{name}"),
            PodStep::Stop { container, grace } => format!("stop:{container}/{}", grace.as_secs()),
            PodStep::Replace { container, .. } => format!("replace:{container}"),
            PodStep::Resize => "resize".into(),
            PodStep::RestartAll => "restart-all".into(),
            PodStep::Signal(name) => format!("signal:{name}"),
            PodStep::Kill(name) => format!("kill:{name}"),
            PodStep::Fail(failure) => format!("fail:{}", failure.reason),
            PodStep::RemoveSandbox => "remove".into(),
            PodStep::Finish => "finish".into(),
        };
        let wake = plan.wake_at.map(|wake| format!("wake@{}", wake.as_second()));
        plan.steps.iter().map(step).chain(wake).collect::<Vec<String>>().join(" ")
    }

    #[test]
    fn next_steps() {
        // Specs: `i!` is an init container, `s*` a sidecar, `h^` has a postStart hook, `e?` is ephemeral.
        let cases = [
            ("a new pod", "Always", "a b", "", "sandbox"),
            ("images first", "Always", "a b", "+", "pull:a"),
            ("one after the other", "Always", "a b", "+ a=pulling", ""),
            ("the next one's", "Always", "a b", "+ a=pulled", "start:a pull:b"),
            ("all at once", "Always", "a b", "+ a=pulled b=pulled", "start:a start:b"),
            ("no image", "Always", "a b", "+ a=why:ErrImagePull@19", "pull:b wake@11"),
            ("still none", "Always", "a", "+ a=why:ErrImagePull@18", "back-off:a wake@18"),
            ("tried again", "Always", "a", "+ a=why:ErrImagePull@9", "pull:a"),
            ("nothing to do", "Always", "a b", "+ a=running b=running", ""),
            ("restart at once", "Always", "a b", "+ a=exit0@5 b=running", "pull:a"),
            ("restart later", "Always", "a", "+ a=exit1@20", "wake@20"),
            ("success ends it", "OnFailure", "a", "+ a=exit0", "remove"),
            ("failure does not", "OnFailure", "a", "+ a=exit1@9", "pull:a"),
            ("one has ended", "Never", "a b", "+ a=exit1 b=running", ""),
            ("all have ended", "Never", "a b", "+ a=exit1 b=exit0", "remove"),
            ("ended and removed", "Never", "a", "- a=exit1", ""),
            ("init first", "Always", "i! a", "+", "pull:i"),
            ("init runs", "Always", "i! a", "+ i=running", ""),
            ("init is done", "Always", "i! a", "+ i=exit0", "pull:a"),
            ("init is tried again", "Always", "i! a", "+ i=exit1@3", "pull:i"),
            ("init failed for good", "Never", "i! a", "+ i=exit1", "remove"),
            ("deleted", "Always", "a b X", "+ a=running b=exit1@20", "stop:a/5"),
            ("a hook holds the next one back", "Always", "h^ b", "+ h=hook b=pulled", ""),
            ("also before it runs", "Always", "h^ b", "+ h=pulled b=pulled", "start:h"),
            ("a hook is done", "Always", "h^ b", "+ h=running b=pulled", "start:b"),
            ("init after a sidecar", "Always", "s* i! a", "+ s=running", "pull:i"),
            ("a sidecar that has not started", "Always", "s* i! a", "+ s=hook", ""),
            ("a sidecar that died", "Always", "s* i! a", "+ s=exit1@5 i=running", "pull:s"),
            ("and init is done", "Always", "s* i! a", "+ s=exit1@5 i=exit0", "pull:s pull:a"),
            ("and never started", "Always", "s* i! a", "+ s=exit1@5", "pull:s"),
            ("it stops nobody", "Always", "s* a", "+ s=exit1@20 a=exit1@5", "pull:a wake@20"),
            ("its image neither", "Always", "s* a", "+ s=exit1@5 a=exit1@5", "pull:s pull:a"),
            ("sidecars end last", "Never", "s* a", "+ s=running a=exit0", "stop:s/5"),
            ("and then all is over", "Never", "s* a", "+ s=exit1 a=exit0", "remove"),
            ("one is to be restarted", "Always", "a", "+ a=turn@20", "signal:a"),
            ("one does not listen", "Always", "a", "+ a=signalled@10", "kill:a"),
            ("ephemeral ones, at any time", "Always", "i! a e?", "+ i=running", "pull:e"),
            ("but not twice", "Always", "a e?", "+ a=running e=exit1", ""),
            ("they count for nothing", "Never", "a e?", "+ a=exit0 e=running", "stop:e/5"),
            ("deleted, hook", "Always", "a X", "+ a=prestop@20", "wake@20"),
            ("deleted, hook too long", "Always", "a X", "+ a=prestop@10", "signal:a"),
            ("deleted, asked", "Always", "a X", "+ a=signalled@12", "wake@12"),
            ("deleted, does not listen", "Always", "a X", "+ a=signalled@10", "kill:a"),
            ("deleted, killed", "Always", "a X", "+ a=killed", ""),
            ("all stop at once", "Always", "s* a X", "+ s=running a=running", "stop:a/5 stop:s/5"),
            ("but sidecars wait", "Always", "s* a X", "+ s=turn@20 a=turn@20", "signal:a wake@20"),
            (
                "for all others",
                "Always",
                "s* t* a X",
                "+ s=turn@20 t=turn@20 a=exit0",
                "signal:t wake@20",
            ),
            (
                "not for earlier ones",
                "Always",
                "s* t* a X",
                "+ s=turn@20 t=exit0 a=exit0",
                "signal:s",
            ),
            (
                "and not for ever",
                "Always",
                "s* a X",
                "+ s=turn@10 a=signalled@12",
                "signal:s wake@12",
            ),
            ("deleted, ended", "Always", "a X", "+ a=exit0", "remove finish"),
            ("deleted before it began", "Always", "a X", "", "finish"),
        ];
        for (name, policy, spec, given, want) in cases {
            let pod = pod(policy, spec);
            let plan = plan(&pod, Presence::Present, &facts(given), at(10));
            assert_eq!(show(&plan), want, "{name}");
        }
    }

    #[test]
    fn a_pod_that_finished_in_an_earlier_life_stays_finished() {
        let mut pod = pod("Never", "a");
        pod.status.get_or_insert_default().phase = Some("Succeeded".into());
        assert_eq!(show(&plan(&pod, Presence::Present, &facts(""), at(10))), "");
    }

    #[test]
    fn deadlines() {
        let mut pod = pod("Always", "a");
        pod.spec.as_mut().unwrap().active_deadline_seconds = Some(10);
        for (given, begun, want) in [
            ("+ a=running", 1, "wake@11"),
            ("+ a=running", 0, "fail:DeadlineExceeded"),
            ("", 0, "fail:DeadlineExceeded"),
        ] {
            let facts = PodFacts { start_time: Some(at(begun)), ..facts(given) };
            assert_eq!(show(&plan(&pod, Presence::Present, &facts, at(10))), want, "{given}");
        }
        let failure = Some(deadline_exceeded());
        let facts = PodFacts { start_time: Some(at(0)), failure, ..facts("+ a=running") };
        assert_eq!(show(&plan(&pod, Presence::Present, &facts, at(10))), "stop:a/5");
    }

    #[test]
    fn another_image() {
        let mut pod = pod("Never", "a");
        pod.spec.as_mut().unwrap().containers[0].image = Some("new".into());
        for (given, image, want) in [
            ("+ a=running", "new", ""),
            ("+ a=running", "", ""),
            ("+ a=running", "old", "replace:a"),
            ("+ a=signalled@20", "old", "wake@20"),
        ] {
            let mut facts = facts(given);
            facts.containers.get_mut("a").unwrap().image_name = image.into();
            let plan = plan(&pod, Presence::Present, &facts, at(10));
            assert_eq!(show(&plan), want, "{given} {image}");
        }
    }

    #[test]
    fn who_is_gone_gets_no_grace_and_who_hurries_shortens_it() {
        let pod = pod("Always", "a X");
        let gone = plan(&pod, Presence::Gone, &facts("+ a=running"), at(10));
        assert_eq!(show(&gone), "stop:a/0");
        let mut ending = facts("+ a=signalled@20");
        hurry(&mut ending, at(12));
        assert_eq!(show(&plan(&pod, Presence::Present, &ending, at(10))), "wake@12");
        hurry(&mut ending, at(15));
        assert_eq!(show(&plan(&pod, Presence::Present, &ending, at(10))), "wake@12");
    }
}
