//! What bounds a proposal: recommendations of the past, speed, and number.

use k8s_openapi::api::autoscaling::v2::{HPAScalingPolicy, HPAScalingRules};

use super::Look;
use super::history::{History, window};

/// For so many seconds a high recommendation holds back lower ones.
const DOWN_WINDOW: i32 = 300;
const READY: (&str, &str) = ("ReadyForNewScale", "recommended size matches current size");
const HELD_UP: (&str, &str) = (
    "ScaleUpStabilized",
    "recent recommendations were lower than current one, applying the lowest recent recommendation",
);
const HELD_DOWN: (&str, &str) = (
    "ScaleDownStabilized",
    "recent recommendations were higher than current one, applying the highest recent recommendation",
);
const WITHIN: (&str, &str) =
    ("DesiredWithinRange", "the desired count is within the acceptable range");
const TOO_FEW: (&str, &str) =
    ("TooFewReplicas", "the desired replica count is less than the minimum replica count");
const TOO_MANY: (&str, &str) =
    ("TooManyReplicas", "the desired replica count is more than the maximum replica count");
const TOO_FAST_UP: (&str, &str) =
    ("ScaleUpLimit", "the desired replica count is increasing faster than the maximum scale rate");
const TOO_FAST_DOWN: (&str, &str) = (
    "ScaleDownLimit",
    "the desired replica count is decreasing faster than the maximum scale rate",
);

impl Look<'_> {
    fn say(&mut self, kind: &str, holds: bool, (reason, message): (&str, &str)) {
        self.conditions.set(kind, holds, reason, message.to_owned());
    }
}

/// Without rules: down only when nothing higher was recommended for five minutes, up to twice as many
/// at once, or four.
pub(super) fn by_default(
    (least, most): (i32, i32),
    (current, proposed): (i32, i32),
    look: &mut Look<'_>,
    history: &mut History,
) -> i32 {
    let now = look.seen.now;
    let steady = history.within(DOWN_WINDOW, now).fold(proposed, i32::max);
    history.recommend(now, proposed);
    look.say("AbleToScale", true, if steady == proposed { READY } else { HELD_DOWN });
    let fast = current.saturating_mul(2).max(4);
    let allowed = most.min(fast);
    let (bounded, why) = if steady < least {
        (least, TOO_FEW)
    } else if steady > allowed {
        (allowed, if most > fast { TOO_FAST_UP } else { TOO_MANY })
    } else {
        (steady, WITHIN)
    };
    look.say("ScalingLimited", why != WITHIN, why);
    bounded
}

/// With rules for either direction.
pub(super) fn by_rules(
    (least, most): (i32, i32),
    (current, proposed): (i32, i32),
    look: &mut Look<'_>,
    history: &mut History,
) -> i32 {
    let now = look.seen.now;
    let rules = look.scaler.spec.behavior.as_ref();
    let up = rules.and_then(|rules| rules.scale_up.as_ref());
    let down = rules.and_then(|rules| rules.scale_down.as_ref());
    let lowest = history.within(window(up, 0), now).fold(proposed, i32::min);
    let highest = history.within(window(down, DOWN_WINDOW), now).fold(proposed, i32::max);
    history.recommend(now, proposed);
    let steady = current.max(lowest).min(highest);
    let held = if proposed >= current { HELD_UP } else { HELD_DOWN };
    look.say("AbleToScale", true, if steady == proposed { READY } else { held });
    let pace =
        |rules: Option<&HPAScalingRules>, way| Pace::of(rules, way).limit(current, history, look);
    let (bounded, why) = if steady > current {
        let fastest = pace(up, Way::Up).max(current);
        match most > fastest {
            true => (steady.min(fastest), TOO_FAST_UP),
            false => (steady.min(most), TOO_MANY),
        }
    } else if steady < current {
        let fastest = pace(down, Way::Down).min(current);
        match least < fastest {
            true => (steady.max(fastest), TOO_FAST_DOWN),
            false => (steady.max(least), TOO_FEW),
        }
    } else {
        (steady, WITHIN)
    };
    let why = if bounded == steady { WITHIN } else { why };
    look.say("ScalingLimited", bounded != steady, why);
    bounded
}

#[derive(Clone, Copy, PartialEq)]
enum Way {
    Up,
    Down,
}

/// How fast it may go one way.
struct Pace {
    way: Way,
    select: String,
    policies: Vec<HPAScalingPolicy>,
}

impl Pace {
    /// What is left out is as the API server would have filled it in.
    fn of(rules: Option<&HPAScalingRules>, way: Way) -> Self {
        let policy = |kind: &str, value| HPAScalingPolicy {
            type_: kind.to_owned(),
            value,
            period_seconds: 15,
        };
        let own = rules.and_then(|rules| rules.policies.clone()).unwrap_or_default();
        let policies = match way {
            _ if !own.is_empty() => own,
            Way::Up => vec![policy("Pods", 4), policy("Percent", 100)],
            Way::Down => vec![policy("Percent", 100)],
        };
        let select = rules.and_then(|rules| rules.select_policy.clone());
        Self { way, select: select.unwrap_or_else(|| "Max".to_owned()), policies }
    }

    /// The number that it may come to now: of several policies that with the largest change counts,
    /// or with the smallest.
    fn limit(&self, current: i32, history: &History, look: &Look<'_>) -> i32 {
        if self.select == "Disabled" {
            return current;
        }
        let reached = self.policies.iter().map(|policy| {
            let begin = history.at_begin(current, policy.period_seconds, look.seen.now);
            self.reached(begin, policy)
        });
        let largest = (self.way == Way::Up) != (self.select == "Min");
        if largest { reached.max() } else { reached.min() }.unwrap_or(current)
    }

    fn reached(&self, begin: i32, policy: &HPAScalingPolicy) -> i32 {
        let value = f64::from(policy.value);
        let begin = f64::from(begin);
        let number = match (self.way, policy.type_.as_str()) {
            (Way::Up, "Pods") => begin + value,
            (Way::Up, _) => (begin * (1.0 + value / 100.0)).ceil(),
            (Way::Down, "Pods") => begin - value,
            (Way::Down, _) => (begin * (1.0 - value / 100.0)).trunc(),
        };
        number as i32
    }
}
