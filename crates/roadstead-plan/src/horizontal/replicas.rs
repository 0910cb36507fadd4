//! From what pods use to how many there should be.
//!
//! The number follows the ratio of use to target. Pods about which nothing is known yet must not make
//! it jump: for those that were not measured, and for those that are just starting, what speaks against
//! the change is assumed.

use std::collections::BTreeMap;

use jiff::SignedDuration;
use k8s_openapi::api::autoscaling::v2::{HPAScalingRules, HorizontalPodAutoscalerBehavior};
use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::apimachinery::pkg::api::resource as k8s;
use roadstead_api::quantity::exact::Quantity;

use super::Seen;
use super::measured::Sample;
use crate::pods::count;

/// While a pod is as young, its processors may be busy with starting.
const INITIALISATION: SignedDuration = SignedDuration::from_secs(300);
/// A pod that has not been ready since this long after its start never was.
const FIRST_READY: SignedDuration = SignedDuration::from_secs(30);
/// Smaller deviations are left alone.
const TOLERANCE: f64 = 0.1;

/// By how much the ratio may deviate from one before anything is done.
#[derive(Clone, Copy)]
pub(super) struct Tolerance {
    up: f64,
    down: f64,
}

impl Tolerance {
    pub(super) fn of(rules: Option<&HorizontalPodAutoscalerBehavior>) -> Self {
        let own = |rules: Option<&HPAScalingRules>| {
            let text = rules.and_then(|rules| rules.tolerance.as_ref());
            let amount = text.and_then(|text| Quantity::parse(&text.0));
            amount.map_or(TOLERANCE, Quantity::approximate)
        };
        Self {
            up: own(rules.and_then(|rules| rules.scale_up.as_ref())),
            down: own(rules.and_then(|rules| rules.scale_down.as_ref())),
        }
    }

    fn covers(self, ratio: f64) -> bool {
        (1.0 - self.down..=1.0 + self.up).contains(&ratio)
    }
}

/// What each pod should use.
#[derive(Clone, Copy)]
pub(super) enum Load {
    /// That much, in thousandths.
    Amount(i64),
    /// So many hundredths of what it asks for.
    Percent(i32),
}

/// What a metric comes to.
#[derive(Debug, PartialEq)]
pub(super) struct Found {
    pub(super) replicas: i32,
    /// What a pod uses, in hundredths of what it asks for.
    pub(super) percent: Option<i32>,
    /// What a pod uses, in thousandths.
    pub(super) average: i64,
}

/// The use of one resource.
pub(super) struct Calculation<'a> {
    pub(super) seen: &'a Seen<'a>,
    pub(super) resource: &'a str,
    pub(super) container: Option<&'a str>,
    pub(super) tolerance: Tolerance,
}

/// Pods by what is known of them.
#[derive(Default)]
struct Groups<'a> {
    ready: i32,
    unready: Vec<&'a str>,
    missing: Vec<&'a str>,
    ignored: Vec<&'a str>,
}

impl<'a> Calculation<'a> {
    /// How many replicas there should be.
    pub(super) fn replicas(
        &self,
        samples: &BTreeMap<String, Sample>,
        load: Load,
    ) -> Result<Found, String> {
        if self.seen.pods.is_empty() {
            return Err("no pods returned by selector while calculating replica count".to_owned());
        }
        let groups = self.groups(samples);
        let mut used: BTreeMap<&str, i64> =
            samples.iter().map(|(name, sample)| (name.as_str(), sample.thousandths)).collect();
        for name in groups.ignored.iter().chain(&groups.unready) {
            used.remove(name);
        }
        let asked = match load {
            Load::Percent(_) => self.requests()?,
            Load::Amount(_) => BTreeMap::new(),
        };
        if used.is_empty() {
            let why = "did not receive metrics for targeted pods (pods might be unready)";
            return Err(why.to_owned());
        }
        let Use { ratio, percent, average } = measure(&used, &asked, load)?;
        let replicas = self.settle(ratio, &groups, used, (&asked, load))?;
        Ok(Found { replicas, percent, average })
    }

    fn settle<'s>(
        &self,
        ratio: f64,
        groups: &Groups<'s>,
        mut used: BTreeMap<&'s str, i64>,
        (asked, load): (&BTreeMap<&'s str, i64>, Load),
    ) -> Result<i32, String> {
        let current = self.seen.replicas;
        let up = ratio > 1.0;
        let unready_count = !groups.unready.is_empty() && up;
        if !unready_count && groups.missing.is_empty() {
            return Ok(match self.tolerance.covers(ratio) {
                true => current,
                false => ceil(ratio * f64::from(groups.ready)),
            });
        }
        for &name in &groups.missing {
            if ratio < 1.0 {
                used.insert(name, full(asked.get(name).copied().unwrap_or(0), load));
            } else if up {
                used.insert(name, 0);
            }
        }
        if unready_count {
            used.extend(groups.unready.iter().map(|name| (*name, 0)));
        }
        let again = measure(&used, asked, load)?.ratio;
        let turned = (ratio < 1.0 && again > 1.0) || (up && again < 1.0);
        if self.tolerance.covers(again) || turned {
            return Ok(current);
        }
        let wanted = ceil(again * f64::from(count(used.len())));
        let wrong_way = (again < 1.0 && wanted > current) || (again > 1.0 && wanted < current);
        Ok(if wrong_way { current } else { wanted })
    }

    fn groups(&self, samples: &BTreeMap<String, Sample>) -> Groups<'a> {
        let mut groups = Groups::default();
        for pod in self.seen.pods {
            let name = name(pod);
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            let sample = samples.get(name);
            let list = if pod.metadata.deletion_timestamp.is_some() || phase == Some("Failed") {
                &mut groups.ignored
            } else if phase == Some("Pending") {
                &mut groups.unready
            } else {
                match sample {
                    None => &mut groups.missing,
                    Some(sample) if self.resource == "cpu" && self.is_starting(pod, sample) => {
                        &mut groups.unready
                    }
                    Some(_) => {
                        groups.ready += 1;
                        continue;
                    }
                }
            };
            list.push(name);
        }
        groups
    }

    /// Whether what a pod uses of the processors says nothing yet.
    fn is_starting(&self, pod: &Pod, sample: &Sample) -> bool {
        let status = pod.status.as_ref();
        let conditions = status.and_then(|status| status.conditions.as_ref());
        let ready = conditions.and_then(|all| all.iter().find(|own| own.type_ == "Ready"));
        let start = status.and_then(|status| status.start_time.as_ref());
        let (Some(ready), Some(start)) = (ready, start) else { return true };
        let is_unready = ready.status == "False";
        let turned = ready.last_transition_time.as_ref().map(|time| time.0);
        if self.seen.now.duration_since(start.0) < INITIALISATION {
            let is_old = |turned| sample.at.duration_since(turned) < sample.window;
            return is_unready || turned.is_some_and(is_old);
        }
        is_unready && turned.is_none_or(|turned| turned.duration_since(start.0) < FIRST_READY)
    }

    /// What each pod asks for, in thousandths.
    fn requests(&self) -> Result<BTreeMap<&'a str, i64>, String> {
        self.seen.pods.iter().map(|pod| Ok((name(pod), self.request(pod)?))).collect()
    }

    fn request(&self, pod: &Pod) -> Result<i64, String> {
        let Some(spec) = &pod.spec else { return Ok(0) };
        let amount = |requests: Option<&BTreeMap<String, k8s::Quantity>>| {
            Quantity::parse(&requests?.get(self.resource)?.0).map(Quantity::in_thousandths)
        };
        let whole = amount(spec.resources.as_ref().and_then(|own| own.requests.as_ref()));
        if let (Some(whole), None) = (whole, self.container) {
            return Ok(whole);
        }
        let stays = |own: &&Container| own.restart_policy.as_deref() == Some("Always");
        let sidecars = spec.init_containers.iter().flatten().filter(stays);
        let all = spec.containers.iter().chain(sidecars);
        let counted = all.filter(|own| self.container.is_none_or(|wanted| own.name == wanted));
        counted
            .map(|own| {
                let requests = own.resources.as_ref().and_then(|own| own.requests.as_ref());
                amount(requests).ok_or_else(|| {
                    let (resource, container, pod) = (self.resource, &own.name, name(pod));
                    format!("missing request for {resource} in container {container} of Pod {pod}")
                })
            })
            .sum()
    }
}

/// How much is used, and how that is to what should be.
struct Use {
    ratio: f64,
    percent: Option<i32>,
    average: i64,
}

fn measure(
    used: &BTreeMap<&str, i64>,
    asked: &BTreeMap<&str, i64>,
    load: Load,
) -> Result<Use, String> {
    let number = i64::try_from(used.len()).unwrap_or(i64::MAX).max(1);
    let total = |amounts: &mut dyn Iterator<Item = i64>| amounts.fold(0, i64::saturating_add);
    match load {
        Load::Amount(target) => {
            let average = total(&mut used.values().copied()) / number;
            let ratio = average as f64 / target.max(1) as f64;
            Ok(Use { ratio, percent: None, average })
        }
        Load::Percent(target) => {
            let both = used.iter().filter_map(|(name, used)| Some((*used, *asked.get(name)?)));
            let both: Vec<_> = both.collect();
            let used = total(&mut both.iter().map(|(used, _)| *used));
            let asked = total(&mut both.iter().map(|(_, asked)| *asked));
            if asked == 0 {
                return Err("no metrics returned matched known pods".to_owned());
            }
            let percent = i128::from(used) * 100 / i128::from(asked);
            let percent = i32::try_from(percent).unwrap_or(i32::MAX);
            let ratio = f64::from(percent) / f64::from(target.max(1));
            let pods = i64::try_from(both.len()).unwrap_or(i64::MAX).max(1);
            Ok(Use { ratio, percent: Some(percent), average: used / pods })
        }
    }
}

/// What is assumed of a pod that was not measured when there seem to be too many: that it uses all
/// that it should, and all that it asks for.
fn full(asked: i64, load: Load) -> i64 {
    match load {
        Load::Amount(target) => target,
        Load::Percent(target) => {
            let all = i128::from(asked) * i128::from(target.max(100)) / 100;
            i64::try_from(all).unwrap_or(i64::MAX)
        }
    }
}

fn ceil(number: f64) -> i32 {
    // A product that is a hair above a whole number is that number.
    (number - 1e-9).ceil().max(0.0) as i32
}

fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or("")
}
