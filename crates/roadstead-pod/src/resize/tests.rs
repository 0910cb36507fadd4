use super::*;
use crate::facts::tests::{at, facts};
use crate::lifecycle::{PodStep, Presence, plan};
use crate::usage::MemoryUsage;

/// Reads `a:100m/1,64Mi/1Gi`: requests and limits of processors and memory; `a+:` begins anew when its memory
/// changes.
fn pod(text: &str) -> Pod {
    let containers: Vec<_> = text.split_whitespace().map(container).collect();
    serde_json::from_value(json!({"metadata": {"name": "web", "generation": 3},
        "spec": {"restartPolicy": "Always", "containers": containers}}))
    .unwrap()
}

fn container(text: &str) -> Value {
    let (name, amounts) = text.split_once(':').unwrap();
    let mut made = json!({"name": name.trim_end_matches('+'), "resources": resources(amounts)});
    if name.ends_with('+') {
        let policy = json!([{"resourceName": "memory", "restartPolicy": "RestartContainer"}]);
        made["resizePolicy"] = policy;
    }
    made
}

fn resources(amounts: &str) -> Value {
    let mut made = json!({"requests": {}, "limits": {}});
    for (name, amount) in ["cpu", "memory"].into_iter().zip(amounts.split(',')) {
        let (request, limit) = amount.split_once('/').unwrap_or((amount, ""));
        for (list, amount) in [("requests", request), ("limits", limit)] {
            if !amount.is_empty() {
                made[list][name] = amount.into();
            }
        }
    }
    made
}

/// Facts of containers that run, which were given this.
fn running(applied: &str) -> PodFacts {
    let mut all = facts("+");
    for word in applied.split_whitespace() {
        let (name, amounts) = word.split_once(':').unwrap();
        let mut known = facts("+ x=running").containers.remove("x").unwrap();
        known.resources = Some(serde_json::from_value(resources(amounts)).unwrap());
        all.containers.insert(name.into(), known);
    }
    all
}

#[test]
fn what_there_is_room_for() {
    let room =
        NodeRoom { allocatable: Requests { cpu: 2000, memory: 1 << 30, storage: 0 }, pods: 9 };
    let mut others = NodeUse::default();
    others.add(&pod("b:1,512Mi"));
    for (wanted, want) in [
        ("a:1,512Mi", ""),
        ("a:500m a2:500m", ""),
        ("a:/1,1Mi", ""),
        (
            "a:1100m,1Mi",
            "Deferred: Node didn't have enough resource: cpu, requested: 1100, used: 1000, capacity: 2000",
        ),
        (
            "a:1,513Mi",
            "Deferred: Node didn't have enough resource: memory, requested: 537919488, used: 536870912, capacity: 1073741824",
        ),
        (
            "a:3,513Mi",
            "Infeasible: Node didn't have enough capacity: cpu, requested: 3000, capacity: 2000",
        ),
    ] {
        let found = judge(&pod(wanted), &others, room);
        let found =
            found.map_or_else(|no| format!("{}: {}", no.reason, no.message), |()| "".into());
        assert_eq!(found, want, "{wanted}");
    }
}

#[test]
fn what_is_applied_and_how() {
    for (allocated, applied, want) in [
        ("a:1,1Gi", "a:1,1Gi", ""),
        ("a:1000m,1024Mi", "a:1,1Gi", ""),
        ("a:2,1Gi", "a:1,1Gi", "resize"),
        ("a:1/2", "a:1", "resize"),
        ("a:1,2Gi", "a:1,1Gi", "resize"),
        ("a+:2,1Gi", "a:1,1Gi", "resize"),
        ("a+:1,2Gi", "a:1,1Gi", "replace"),
        ("a+:2,2Gi", "a:1,1Gi", "replace"),
        ("a:2 b+:1,2Gi", "a:1 b:1,1Gi", "replace resize"),
    ] {
        let planned = plan(&pod(allocated), Presence::Present, &running(applied), at(10));
        let steps = planned.steps.iter().map(|step| match step {
            PodStep::Resize => "resize",
            PodStep::Replace { .. } => "replace",
            _ => "other",
        });
        let steps: Vec<_> = steps.collect();
        assert_eq!(steps.join(" "), want, "{applied} to {allocated}");
        let spec = pod(allocated).spec.unwrap();
        assert_eq!(is_in_progress(&spec, &running(applied)), !want.is_empty(), "{allocated}");
    }
}

#[test]
fn what_failed_is_tried_later() {
    let mut facts = running("a:1");
    let progress = ResizeProgress { retry_at: Some(at(20)), ..ResizeProgress::default() };
    facts.resize.progress = Some(progress);
    let planned = |now| plan(&pod("a:2"), Presence::Present, &facts, at(now));
    assert_eq!((planned(10).steps, planned(10).wake_at), (vec![], Some(at(20))));
    assert_eq!(planned(20).steps, [PodStep::Resize]);
}

#[test]
fn limits_are_not_lowered_below_what_is_used() {
    let use_of = |bytes: u64| Usage {
        memory: Some(MemoryUsage { usage: bytes, ..MemoryUsage::default() }),
        ..Usage::default()
    };
    for (allocated, applied, used, want) in [
        ("a:1,1Ki/2Ki", "a:1,1Ki/4Ki", 1900, ""),
        ("a:1,1Ki/4Ki", "a:1,1Ki/2Ki", 9999, ""),
        (
            "a:1,1Ki/2Ki",
            "a:1,1Ki/4Ki",
            2048,
            "[attempting to set pod memory limit (2048) below current usage (2148), attempting to set container \"a\" memory limit (2048) below current usage (2048)]",
        ),
        (
            "a:1,1Ki/2Ki b:1",
            "a:1,1Ki b:1",
            3000,
            "attempting to set container \"a\" memory limit (2048) below current usage (3000)",
        ),
    ] {
        let spec = pod(allocated).spec.unwrap();
        let own = [("a".to_owned(), use_of(used))];
        let found = refuse_less_memory(&spec, &running(applied), (&use_of(used + 100), &own));
        let want = if want.is_empty() {
            Ok(())
        } else {
            Err(format!("cannot decrease memory limits: {want}"))
        };
        assert_eq!(found, want, "{applied} to {allocated}");
    }
}

#[test]
fn who_gets_less_is_first() {
    let spec = pod("a:1,/4Ki b:1,/1Ki c:1,/2Ki").spec.unwrap();
    let facts = running("a:1,/2Ki b:1,/2Ki c:1,/2Ki");
    let names: Vec<_> = live_changes(&spec, &facts).iter().map(|one| one.name.as_str()).collect();
    assert_eq!(names, ["b", "a"]);
}

#[test]
fn what_was_allocated_is_kept() {
    let (wanted, before) = (pod("a:2,2Gi/2Gi b:1"), pod("a:1,1Gi/1Gi b:1"));
    let allocated = as_allocated(&wanted, &before);
    assert!(is_wanted(&wanted, &allocated) && !is_wanted(&wanted, &wanted));
    assert!(!is_wanted(&before, &allocated));
    // After a start of the agent, what it has said tells what that was.
    let mut reported = wanted.clone();
    let status = json!({"containerStatuses": [
        {"name": "a", "image": "", "imageID": "", "ready": true, "restartCount": 0,
         "resources": resources("1,1Gi/1Gi")}]});
    reported.status = Some(serde_json::from_value(status).unwrap());
    assert_eq!(as_reported(&reported).spec, before.spec);
    let older = Pod { status: None, ..wanted.clone() };
    assert_eq!(as_reported(&older).spec, wanted.spec);
}

#[test]
fn words_of_events() {
    let found = message("Pod resize started", &pod("a:1/,2Gi"), Some(3), None);
    let want = r#"Pod resize started: {"containers":[{"name":"a","resources":{"limits":{},"requests":{"cpu":"1","memory":"2Gi"}}}],"generation":3}"#;
    assert_eq!(found, want);
    let found = message("Pod resize error", &Pod::default(), Some(4), Some("no \"room\""));
    assert_eq!(found, r#"Pod resize error: {"generation":4,"error":"no \"room\""}"#);
}
