//! The probes of a pod's containers, and what their verdicts change.

use std::collections::HashMap;
use std::time::Duration;

use roadstead_pod::facts::{State, after};
use roadstead_pod::lifecycle::grace_period;
use roadstead_pod::probe::{Check, Kind, Schedule, Tally, Verdict, step};
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use super::{Worker, later};
use crate::prober::{self, Assignment, Report, Target};

/// The probes under way.
pub(super) struct Probes {
    running: HashMap<(String, Kind), Probing>,
    reports: mpsc::Receiver<Report>,
    report: mpsc::Sender<Report>,
}

/// A probe under way; dropping it ends it.
struct Probing {
    tally: Tally,
    schedule: Schedule,
    _task: AbortOnDropHandle<()>,
}

impl Default for Probes {
    fn default() -> Self {
        let (report, reports) = mpsc::channel(16);
        Self { running: HashMap::new(), reports, report }
    }
}

impl Probes {
    /// Waits for the next result.
    pub(super) async fn next(&mut self) -> Option<Report> {
        self.reports.recv().await
    }

    /// Ends those of which this is true.
    pub(super) fn end(&mut self, ends: impl Fn(&str, Kind) -> bool) {
        self.running.retain(|(container, kind), _| !ends(container, *kind));
    }

    fn begin(&mut self, assignment: Assignment, schedule: Schedule) {
        let key = (assignment.target.container.clone(), assignment.kind);
        let task = tokio::spawn(prober::run(assignment, self.report.clone()));
        let _task = AbortOnDropHandle::new(task);
        self.running.insert(key, Probing { tally: Tally::default(), schedule, _task });
    }
}

/// When the probes of a run begin.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Begin {
    /// As soon as they may.
    AtOnce,
    /// After a random part of their period: those of a whole node begin at the same time.
    Spread,
}

impl Worker {
    /// Begins the probes of the run that there is now.
    pub(super) fn start_probes(&mut self, name: &str, begin: Begin) {
        let Some(container) = self.find(name).filter(|_| !self.is_ephemeral(name)) else { return };
        let Some(known) = self.facts.containers.get(name) else { return };
        let State::Running { id, since, .. } = known.state.clone() else { return };
        let kinds: &[Kind] = match known.started {
            true => &[Kind::Readiness, Kind::Liveness],
            false => &[Kind::Startup],
        };
        for kind in kinds {
            let Some(probe) = kind.of(&container) else { continue };
            let Some(target) = self.target(name) else { return };
            let schedule = Schedule::of(probe);
            let earliest = after(since, schedule.initial_delay);
            let first_at = match begin {
                Begin::AtOnce => earliest,
                Begin::Spread => earliest.max(later(part_of(schedule.period))),
            };
            let assignment = Assignment {
                target,
                id: id.clone(),
                kind: *kind,
                check: Check::of(probe, &container),
                schedule: schedule.clone(),
                first_at,
            };
            self.probes.begin(assignment, schedule);
        }
    }

    /// What probes and hooks of the container are about.
    pub(super) fn target(&self, container: &str) -> Option<Target> {
        Some(Target {
            runtime: self.context.runtime.containers.clone(),
            pod: self.name.clone(),
            container: container.to_owned(),
            address: self.facts.addresses?.first,
        })
    }

    pub(super) fn probed(&mut self, report: Report) {
        let Report { container, id, kind, outcome } = report;
        let Some(facts) = self.facts.containers.get_mut(&container) else { return };
        let is_current = matches!(&facts.state, State::Running { id: now, .. } if *now == id);
        let Some(probing) = self.probes.running.get_mut(&(container.clone(), kind)) else { return };
        if !is_current {
            return;
        }
        self.context.probe_counts.count(&self.name, &container, kind, &outcome);
        let (tally, verdict) = step(probing.tally, &outcome, probing.schedule.thresholds);
        probing.tally = tally;
        match (kind, verdict) {
            (_, Verdict::Undecided) | (Kind::Liveness, Verdict::Passing) => {}
            (Kind::Readiness, verdict) => facts.ready = verdict == Verdict::Passing,
            (Kind::Startup, Verdict::Passing) => self.startup_passed(&container),
            (Kind::Startup | Kind::Liveness, Verdict::Failing) => {}
        }
        if let Some((reason, message)) = outcome.event(kind) {
            self.context.events.warning(&self.pod, Some(&container), reason, message);
        }
        if verdict == Verdict::Failing && kind != Kind::Readiness {
            self.kill_unhealthy(&container, kind);
        }
    }

    fn startup_passed(&mut self, name: &str) {
        self.probes.end(|container, kind| container == name && kind == Kind::Startup);
        let waits = self.find(name).is_some_and(|container| container.readiness_probe.is_some());
        if let Some(facts) = self.facts.containers.get_mut(name) {
            facts.started = true;
            facts.ready = !waits;
        }
        self.start_probes(name, Begin::AtOnce);
    }

    fn kill_unhealthy(&mut self, name: &str, kind: Kind) {
        let Some(container) = self.find(name) else { return };
        let spec = self.pod.spec.as_ref();
        let never = spec.and_then(|spec| spec.restart_policy.as_deref()) == Some("Never");
        let again = if never { "" } else { ", will be restarted" };
        let message =
            format!("Container {name} failed {} probe{again}", kind.title().to_lowercase());
        let own = kind.of(&container).and_then(|probe| probe.termination_grace_period_seconds);
        let grace = own.map(|seconds| Duration::from_secs(seconds.max(0).unsigned_abs()));
        let grace = grace.unwrap_or_else(|| grace_period(&self.pod, self.presence));
        self.stop(name, grace, &message);
    }
}

/// A random part of this.
fn part_of(period: Duration) -> Duration {
    let millis = period.as_millis().max(1);
    let part = uuid::Uuid::new_v4().as_u128() % millis;
    Duration::from_millis(u64::try_from(part).unwrap_or_default())
}
