use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const NOW: i64 = 1_800_000_000;

fn time(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn scaler(more: Value) -> HorizontalPodAutoscaler {
    let mut spec = json!({"minReplicas": 1, "maxReplicas": 100, "scaleTargetRef": {"kind": "Deployment", "name": "web"},
        "metrics": [utilization("cpu", 50)]});
    for (key, value) in more.as_object().unwrap() {
        spec[key] = value.clone();
    }
    serde_json::from_value(json!({"metadata": {"name": "web", "namespace": "ns"}, "spec": spec}))
        .unwrap()
}

fn utilization(resource: &str, percent: i32) -> Value {
    json!({"type": "Resource", "resource": {"name": resource,
        "target": {"type": "Utilization", "averageUtilization": percent}}})
}

fn amount(resource: &str, value: &str) -> Value {
    json!({"type": "Resource", "resource": {"name": resource,
        "target": {"type": "AverageValue", "averageValue": value}}})
}

/// Pods and what they use: `a=500` uses half a processor and as many Mi of memory; `b=?` was not
/// measured; `c=500 young` began a minute ago and is not ready, `d=? pending`, `e=500 failed`,
/// `f=500 leaving`. All ask for a processor and 1000 Mi.
fn pods(text: &str) -> (Vec<Pod>, Measured) {
    let (mut all, mut measured) = (Vec::new(), Vec::new());
    for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        let (first, state) = word.split_once(' ').unwrap_or((word, ""));
        let (name, used) = first.split_once('=').unwrap();
        let young = state == "young";
        let began = NOW - if young { 60 } else { 3600 };
        let ready = if young { "False" } else { "True" };
        let phase = match state {
            "pending" => "Pending",
            "failed" => "Failed",
            _ => "Running",
        };
        let leaving = (state == "leaving").then_some(time(NOW));
        let requests = json!({"cpu": "1", "memory": "1000Mi"});
        all.push(
            serde_json::from_value(json!({
                "metadata": {"name": name, "deletionTimestamp": leaving},
                "spec": {"containers": [{"name": "main", "resources": {"requests": requests}}]},
                "status": {"phase": phase, "startTime": time(began), "conditions": [
                    {"type": "Ready", "status": ready, "lastTransitionTime": time(began + 5)}]},
            }))
            .unwrap(),
        );
        if used != "?" {
            let usage = json!({"cpu": format!("{used}m"), "memory": format!("{used}Mi")});
            measured.push(
                serde_json::from_value(json!({"metadata": {"name": name},
                "timestamp": time(NOW), "window": "15s",
                "containers": [{"name": "main", "usage": usage}]}))
                .unwrap(),
            );
        }
    }
    (all, Ok(measured))
}

fn look(scaler: &HorizontalPodAutoscaler, replicas: i32, text: &str) -> Verdict {
    // It has been there for a while.
    let mut history = History::default();
    history.begin(time(NOW - 1000), replicas);
    look_at(scaler, replicas, text, NOW, &mut history)
}

fn look_at(
    scaler: &HorizontalPodAutoscaler,
    replicas: i32,
    text: &str,
    now: i64,
    history: &mut History,
) -> Verdict {
    let (pods, mut measured) = pods(text);
    if text.is_empty() {
        measured = Err("the server could not find the requested resource".to_owned());
    }
    let seen = Seen {
        replicas,
        selector: "app=web",
        pods: &pods,
        measured,
        rivals: &[],
        adapters: &[],
        now: time(now),
    };
    decide(scaler, &seen, history)
}

/// `ScalingActive=True/ValidMetricFound`, by type.
fn said(verdict: &Verdict, kind: &str) -> String {
    let all = verdict.status.conditions.iter().flatten();
    let own = all.into_iter().find(|own| own.type_ == kind);
    own.map_or_else(String::new, |own| {
        format!("{}/{}", own.status, own.reason.as_deref().unwrap_or(""))
    })
}

fn wanted(verdict: &Verdict) -> Option<i32> {
    verdict.rescale.as_ref().map(|(replicas, _)| *replicas)
}

#[test]
fn from_use_to_number() {
    let cpu = || json!({});
    let memory = || json!({"metrics": [utilization("memory", 50)]});
    let flat = || json!({"metrics": [amount("cpu", "500m")]});
    let busy = "a=1000, b=1000";
    let cases = [
        ("as it should be", cpu(), "a=500, b=500", None),
        ("within the tolerance", cpu(), "a=540, b=560", None),
        ("twice as busy", cpu(), busy, Some(4)),
        ("idle", cpu(), "a=100, b=200", Some(1)),
        ("by an amount", flat(), busy, Some(4)),
        ("by an amount, idle", flat(), "a=100, b=100", Some(1)),
        ("a larger tolerance", json!({"behavior": {"scaleUp": {"tolerance": "1.5"}}}), busy, None),
        ("the young do not count for processors", cpu(), "a=1000, b=1000 young", None),
        ("but for memory", memory(), "a=1000, b=1000 young", Some(4)),
        ("the young are idle when it grows", cpu(), "a=2000, b=2000 young", Some(4)),
        ("pending ones are idle, too", memory(), "a=2000, b=? pending", Some(4)),
        ("the unknown are idle when it grows", cpu(), "a=1500, b=?", Some(3)),
        ("the unknown are busy when it shrinks", cpu(), "a=100, b=?", None),
        ("the failed are nobody", cpu(), "a=1000, b=1000, c=9000 failed", Some(4)),
        ("nor those that leave", cpu(), "a=1000, b=1000, c=9000 leaving", Some(4)),
        (
            "the largest proposal counts",
            json!({"metrics": [utilization("cpu", 50),
            utilization("memory", 20)]}),
            busy,
            Some(4),
        ),
    ];
    for (name, more, text, want) in cases {
        let verdict = look(&scaler(more), 2, text);
        assert_eq!(wanted(&verdict), want, "{name}: {verdict:?}");
        assert_eq!(said(&verdict, "ScalingActive"), "True/ValidMetricFound", "{name}");
    }
}

#[test]
fn what_bounds_it() {
    let cases = [
        ("too many", json!({"maxReplicas": 3}), "a=1000, b=1000", Some(3), "True/TooManyReplicas"),
        ("at the least", json!({"minReplicas": 2}), "a=100, b=100", None, "True/TooFewReplicas"),
        ("too fast", json!({}), "a=9000, b=9000", Some(4), "True/ScaleUpLimit"),
        ("just right", json!({}), "a=700, b=700", Some(3), "False/DesiredWithinRange"),
    ];
    for (name, more, text, want, limited) in cases {
        let verdict = look(&scaler(more), 2, text);
        assert_eq!(wanted(&verdict), want, "{name}");
        assert_eq!(said(&verdict, "ScalingLimited"), limited, "{name}");
    }
    for (name, more, replicas, want, reason) in [
        ("above", json!({"maxReplicas": 3}), 5, 3, "above Spec.MaxReplicas"),
        ("below", json!({"minReplicas": 2}), 1, 2, "below Spec.MinReplicas"),
    ] {
        let verdict = look(&scaler(more), replicas, "");
        let want = (want, format!("Current number of replicas {reason}"));
        assert_eq!(verdict.rescale, Some(want), "{name}: whatever the metrics say");
    }
    let verdict = look(&scaler(json!({})), 0, "a=1000");
    assert_eq!((wanted(&verdict), verdict.status.desired_replicas), (None, 0));
    assert_eq!(said(&verdict, "ScalingActive"), "False/ScalingDisabled");
}

#[test]
fn down_it_goes_slowly() {
    let own = scaler(json!({}));
    let mut history = History::default();
    let mut sizes = Vec::new();
    let mut replicas = 4;
    for step in 0..24 {
        let idle = "a=10, b=10, c=10, d=10";
        let text = if step == 0 { "a=500, b=500, c=500, d=500" } else { idle };
        let now = NOW + step * 15;
        let verdict = look_at(&own, replicas, text, now, &mut history);
        if step == 1 {
            assert_eq!(said(&verdict, "AbleToScale"), "True/ScaleDownStabilized");
        }
        replicas = wanted(&verdict).unwrap_or(replicas);
        sizes.push(replicas);
    }
    assert_eq!(sizes.iter().position(|size| *size == 1), Some(20), "{sizes:?}");
    assert!(sizes.iter().all(|size| *size == 4 || *size == 1), "{sizes:?}");
}

/// What an autoscaler makes of pods that are all equally busy, look after look, 15 s apart.
fn ride(behavior: Value, mut replicas: i32, loads: &[i64]) -> String {
    let own = scaler(json!({"behavior": behavior, "metrics": [amount("cpu", "100m")]}));
    let mut history = History::default();
    let mut shown = Vec::new();
    for (step, load) in (0..).zip(loads) {
        let share = load / i64::from(replicas);
        let names = (0..replicas).map(|index| format!("p{index}={share}"));
        let now = NOW + step * 15;
        let text = names.collect::<Vec<_>>().join(", ");
        let verdict = look_at(&own, replicas, &text, now, &mut history);
        replicas = wanted(&verdict).unwrap_or(replicas);
        let done = verdict.carried_out(&own, Ok(()), (&mut history, time(now)));
        let limited = said(&done, "ScalingLimited");
        let why = limited.strip_prefix("True/").map(|why| format!(":{why}")).unwrap_or_default();
        shown.push(format!("{replicas}{why}"));
    }
    shown.join(" ")
}

#[test]
fn rules_of_speed() {
    let pods = |value: i32, period: i32| json!([{"type": "Pods", "value": value, "periodSeconds": period}]);
    let percent = |value: i32, period: i32| json!([{"type": "Percent", "value": value, "periodSeconds": period}]);
    let both = json!([pods(1, 15)[0], percent(50, 15)[0]]);
    let cases = [
        (
            "one pod at a time",
            json!({"scaleUp": {"policies": pods(1, 15)}}),
            2,
            vec![2000; 3],
            "3:ScaleUpLimit 4:ScaleUpLimit 5:ScaleUpLimit",
        ),
        (
            "one a minute",
            json!({"scaleUp": {"policies": pods(1, 60)}}),
            2,
            vec![2000; 5],
            "3:ScaleUpLimit 3:ScaleUpLimit 3:ScaleUpLimit 3:ScaleUpLimit 4:ScaleUpLimit",
        ),
        (
            "the default: four, or twice as many",
            json!({"scaleUp": {}}),
            2,
            vec![9000; 3],
            "6:ScaleUpLimit 12:ScaleUpLimit 24:ScaleUpLimit",
        ),
        (
            "the larger change",
            json!({"scaleUp": {"policies": both, "selectPolicy": "Max"}}),
            4,
            vec![9000; 2],
            "6:ScaleUpLimit 9:ScaleUpLimit",
        ),
        (
            "the smaller change",
            json!({"scaleUp": {"policies": both, "selectPolicy": "Min"}}),
            4,
            vec![9000; 2],
            "5:ScaleUpLimit 6:ScaleUpLimit",
        ),
        (
            "never up",
            json!({"scaleUp": {"selectPolicy": "Disabled"}}),
            4,
            vec![9000],
            "4:ScaleUpLimit",
        ),
        (
            "down at once",
            json!({"scaleDown": {"stabilizationWindowSeconds": 0}}),
            8,
            vec![100; 2],
            "1 1",
        ),
        (
            "down by one",
            json!({"scaleDown": {"stabilizationWindowSeconds": 0, "policies": pods(1, 15)}}),
            8,
            vec![100; 3],
            "7:ScaleDownLimit 6:ScaleDownLimit 5:ScaleDownLimit",
        ),
        (
            "down by the smaller change",
            json!({"scaleDown": {"stabilizationWindowSeconds": 0, "selectPolicy": "Min", "policies": both}}),
            8,
            vec![100; 2],
            "7:ScaleDownLimit 6:ScaleDownLimit",
        ),
        (
            "never down",
            json!({"scaleDown": {"stabilizationWindowSeconds": 0, "selectPolicy": "Disabled"}}),
            8,
            vec![100],
            "8:ScaleDownLimit",
        ),
        (
            "a peak is not followed",
            json!({"scaleUp": {"stabilizationWindowSeconds": 60}}),
            2,
            vec![900, 200, 900],
            "2 2 2",
        ),
        (
            "a plateau is",
            json!({"scaleUp": {"stabilizationWindowSeconds": 30}}),
            2,
            vec![400; 4],
            "2 2 4 4",
        ),
    ];
    for (name, behavior, replicas, loads, want) in cases {
        assert_eq!(ride(behavior, replicas, &loads), want, "{name}");
    }
}

/// What is told, and the reason and message of one condition.
fn words(verdict: &Verdict, kind: &str) -> (Vec<String>, String) {
    let notes = verdict.notes.iter().map(|(_, reason, text)| format!("{reason}: {text}"));
    let all = verdict.status.conditions.iter().flatten();
    let own = all.into_iter().find(|own| own.type_ == kind);
    (notes.collect(), own.and_then(|own| own.message.clone()).unwrap_or_default())
}

#[test]
fn what_is_said_when_something_is_missing() {
    let beginning = "the HPA was unable to compute the replica count: ";
    let one = |metric: Value| json!({"metrics": [metric]});
    let pods_metric = json!({"type": "Pods", "pods": {"metric": {"name": "requests"},
        "target": {"type": "AverageValue", "averageValue": "1k"}}});
    let object = json!({"type": "Object", "object": {"metric": {"name": "hits"},
        "describedObject": {"kind": "Ingress", "name": "main"},
        "target": {"type": "Value", "value": "1k"}}});
    let external = json!({"type": "External", "external": {"metric": {"name": "queue",
        "selector": {"matchLabels": {"q": "a"}}}, "target": {"type": "Value", "value": "3"}}});
    let container = json!({"type": "ContainerResource", "containerResource": {"name": "cpu",
        "container": "other", "target": {"type": "Utilization", "averageUtilization": 50}}});
    let cases = [
        (
            json!({}),
            "",
            "FailedGetResourceMetric",
            "cpu resource metric value",
            "failed to get cpu utilization: unable to get metrics for resource cpu: unable to fetch \
             metrics from resource metrics API: the server could not find the requested resource",
        ),
        (
            one(amount("memory", "1Mi")),
            "a=? ",
            "FailedGetResourceMetric",
            "memory resource metric value",
            "failed to get memory usage: unable to get metrics for resource memory: no metrics \
             returned from resource metrics API",
        ),
        (
            json!({}),
            "a=1 young",
            "FailedGetResourceMetric",
            "cpu resource metric value",
            "failed to get cpu utilization: did not receive metrics for targeted pods (pods might be \
             unready)",
        ),
        (
            one(container),
            "a=1",
            "FailedGetContainerResourceMetric",
            "cpu container metric value",
            "failed to get cpu utilization: unable to get metrics for resource cpu: container other \
             not present in metrics for pod ns/a",
        ),
        (
            one(pods_metric),
            "a=1",
            "FailedGetPodsMetric",
            "pods metric value",
            "unable to get metric requests: unable to fetch metrics from custom metrics API: no \
             custom metrics API (custom.metrics.k8s.io) registered",
        ),
        (
            one(object),
            "a=1",
            "FailedGetObjectMetric",
            "object metric value",
            "unable to get metric hits: Ingress on ns main/unable to fetch metrics from custom \
             metrics API: no custom metrics API (custom.metrics.k8s.io) registered",
        ),
        (
            one(external),
            "a=1",
            "FailedGetExternalMetric",
            "queue external metric value",
            "unable to get external metric ns/queue/&LabelSelector{MatchLabels:map[string]string{q: \
             a,},MatchExpressions:[]LabelSelectorRequirement{},}: unable to fetch metrics from \
             external metrics API: the server could not find the requested resource (get \
             queue.external.metrics.k8s.io)",
        ),
    ];
    for (more, text, reason, kind, why) in cases {
        let verdict = look(&scaler(more), 2, text);
        let (notes, message) = words(&verdict, "ScalingActive");
        assert_eq!(verdict.rescale, None);
        assert_eq!(message, format!("{beginning}{why}"));
        let first = format!("first error is: failed to get {kind}: {why}");
        let all =
            format!("FailedComputeMetricsReplicas: invalid metrics (1 invalid out of 1), {first}");
        assert_eq!(notes, [format!("{reason}: {why}"), all]);
    }
}

#[test]
fn one_metric_of_two() {
    let external = json!({"type": "External", "external": {"metric": {"name": "queue"},
        "target": {"type": "Value", "value": "3"}}});
    let own = scaler(json!({"metrics": [external, utilization("cpu", 50)]}));
    assert_eq!(
        wanted(&look(&own, 2, "a=1000, b=1000")),
        Some(4),
        "it grows by the one that is known"
    );
    let verdict = look(&own, 2, "a=10, b=10");
    assert_eq!(wanted(&verdict), None, "but does not shrink");
    assert_eq!(said(&verdict, "ScalingActive"), "False/FailedGetExternalMetric");
    let (notes, _) = words(&verdict, "ScalingActive");
    assert!(notes[1].contains("(1 invalid out of 2)"), "{notes:?}");
}

#[test]
fn what_is_said_of_a_change() {
    let own = scaler(json!({}));
    let name = "cpu resource utilization (percentage of request)";
    let mut history = History::default();
    let verdict = look(&own, 2, "a=1000, b=1000");
    let current = verdict.status.current_metrics.clone().unwrap()[0].resource.clone().unwrap();
    assert_eq!(current.current.average_utilization, Some(100));
    assert_eq!(current.current.average_value.unwrap().0, "1");
    let done = verdict.carried_out(&own, Ok(()), (&mut history, time(NOW)));
    assert_eq!(done.status.last_scale_time, Some(Time(time(NOW))));
    assert_eq!((done.status.current_replicas, done.status.desired_replicas), (Some(2), 4));
    let (notes, message) = words(&done, "AbleToScale");
    assert_eq!(notes, [format!("SuccessfulRescale: New size: 4; reason: {name} above target")]);
    assert_eq!(message, "the HPA controller was able to update the target scale to 4");

    let verdict = look(&own, 2, "a=10, b=10");
    let done = verdict.carried_out(&own, Err("no".to_owned()), (&mut history, time(NOW)));
    let (notes, message) = words(&done, "AbleToScale");
    assert_eq!(notes, ["FailedRescale: New size: 1; reason: All metrics below target; error: no"]);
    assert_eq!(message, "the HPA controller was unable to update the target scale: no");
    assert_eq!(done.status.last_scale_time, None);

    let gone = unreachable(&own, "not found", time(NOW));
    assert_eq!(said(&gone, "AbleToScale"), "False/FailedGetScale");
}

#[test]
fn whose_pods_they_are() {
    let own = scaler(json!({}));
    let (pods, measured) = pods("a=1000");
    let rivals = ["ns/web".to_owned(), "ns/other".to_owned()];
    for (selector, rivals, reason, told) in [
        ("", &[][..], "InvalidSelector", "SelectorRequired: selector is required"),
        (
            "app=web",
            &rivals,
            "AmbiguousSelector",
            "AmbiguousSelector: pods by selector app=web are controlled by multiple HPAs: [ns/web ns/other]",
        ),
    ] {
        let seen = Seen {
            replicas: 1,
            selector,
            pods: &pods,
            measured: measured.clone(),
            rivals,
            adapters: &[],
            now: time(NOW),
        };
        let verdict = decide(&own, &seen, &mut History::default());
        assert_eq!(said(&verdict, "ScalingActive"), format!("False/{reason}"));
        assert_eq!(words(&verdict, "").0, [told]);
    }
}

proptest! {
    /// Whatever the load and the rules, the number stays between its bounds; once the load is steady
    /// it comes to rest, and where it rests nothing is written.
    #[test]
    fn it_comes_to_rest(
        (least, extra) in (1i32..5, 0i32..20),
        rules in prop_oneof![
            Just(Value::Null),
            Just(json!({"scaleUp": {}, "scaleDown": {"stabilizationWindowSeconds": 30}})),
            Just(json!({"scaleUp": {"policies": [{"type": "Pods", "value": 1, "periodSeconds": 15}]}})),
        ],
        loads in proptest::collection::vec(1i64..4000, 0..20),
        last in 1i64..4000,
    ) {
        let mut own = scaler(json!({"minReplicas": least, "maxReplicas": least + extra,
            "behavior": rules, "metrics": [amount("cpu", "100m")]}));
        let (mut history, mut replicas) = (History::default(), 3);
        let mut rest = 0;
        for (step, load) in (0..).zip(loads.into_iter().chain(std::iter::repeat_n(last, 60))) {
            let share = load / i64::from(replicas);
            let names = (0..replicas).map(|index| format!("p{index}={share}"));
            let text = names.collect::<Vec<_>>().join(", ");
            let now = NOW + step * 15;
            let verdict = look_at(&own, replicas, &text, now, &mut history);
            let changed = wanted(&verdict);
            replicas = changed.unwrap_or(replicas);
            prop_assert!((least..=least + extra).contains(&replicas), "{replicas}");
            let verdict = verdict.carried_out(&own, Ok(()), (&mut history, time(now)));
            rest = if own.status.as_ref() == Some(&verdict.status) { rest + 1 } else { 0 };
            own.status = Some(verdict.status);
        }
        prop_assert!(rest > 10, "still moving: {:?}", own.status);
        let asked = i32::try_from((last + 99) / 100).unwrap().clamp(least, least + extra);
        let near = f64::from(asked) * 0.85 - 1.0..=f64::from(asked) * 1.15 + 1.0;
        prop_assert!(near.contains(&f64::from(replicas)), "{replicas} for {asked}");
    }
}
