use super::*;

fn shown(stored: &Value) -> Value {
    let mut object = stored.clone();
    OldAutoscaler.show(&mut object);
    object
}

fn stored(shown: &Value) -> Value {
    let mut object = shown.clone();
    OldAutoscaler.store(&mut object);
    object
}

#[test]
fn the_processor_has_a_field_of_its_own() {
    let new = json!({"metadata": {"name": "web"}, "spec": {"maxReplicas": 3, "metrics": [
        {"type": "Resource", "resource": {"name": "cpu",
            "target": {"type": "Utilization", "averageUtilization": 50}}}]}});
    let old = json!({"metadata": {"name": "web"},
        "spec": {"maxReplicas": 3, "targetCPUUtilizationPercentage": 50}});
    assert_eq!(shown(&new), old);
    assert_eq!(stored(&old), new);
    let without = json!({"metadata": {"name": "web"}, "spec": {"maxReplicas": 3}});
    assert_eq!(shown(&without), without);
    // Who names no metric means the processor.
    let kept = stored(&without);
    assert_eq!(shown(&kept)["spec"]["targetCPUUtilizationPercentage"], 80);
    let mut new = without;
    Autoscaler.default(&mut new);
    assert_eq!(kept["spec"]["metrics"], new["spec"]["metrics"]);
}

/// Every kind of metric, the annotation that upstream writes for it, and back.
#[test]
fn other_metrics_travel_in_an_annotation() {
    let cases = [
        (
            "memory",
            json!({"type": "Resource", "resource": {"name": "memory",
                "target": {"type": "AverageValue", "averageValue": "1Gi"}}}),
            r#"[{"resource":{"name":"memory","targetAverageValue":"1Gi"},"type":"Resource"}]"#,
        ),
        (
            "of one container",
            json!({"type": "ContainerResource", "containerResource": {"name": "cpu",
                "container": "app", "target": {"type": "Utilization", "averageUtilization": 60}}}),
            r#"[{"containerResource":{"container":"app","name":"cpu","targetAverageUtilization":60},"type":"ContainerResource"}]"#,
        ),
        (
            "of pods",
            json!({"type": "Pods", "pods": {"metric": {"name": "hits"},
                "target": {"type": "AverageValue", "averageValue": "10"}}}),
            r#"[{"pods":{"metricName":"hits","targetAverageValue":"10"},"type":"Pods"}]"#,
        ),
        (
            "of another object",
            json!({"type": "Object", "object": {"metric": {"name": "hits"},
                "describedObject": {"kind": "Ingress", "name": "web"},
                "target": {"type": "Value", "value": "100"}}}),
            r#"[{"object":{"metricName":"hits","target":{"kind":"Ingress","name":"web"},"targetValue":"100"},"type":"Object"}]"#,
        ),
        (
            "from outside",
            json!({"type": "External", "external": {"metric": {"name": "queue",
                "selector": {"matchLabels": {"a": "b"}}},
                "target": {"type": "AverageValue", "averageValue": "5"}}}),
            r#"[{"external":{"metricName":"queue","metricSelector":{"matchLabels":{"a":"b"}},"targetAverageValue":"5"},"type":"External"}]"#,
        ),
    ];
    for (name, metric, annotation) in cases {
        let new = json!({"metadata": {"name": "x"}, "spec": {"metrics": [metric]}});
        let old = shown(&new);
        let key = "autoscaling.alpha.kubernetes.io/metrics";
        assert_eq!(old["metadata"]["annotations"][key], annotation, "{name}");
        assert_eq!(stored(&old), new, "{name}");
    }
}

#[test]
fn status_and_behavior_survive_the_journey() {
    let new = json!({"metadata": {"name": "x", "annotations": {"own": "1"}},
        "spec": {"behavior": {"scaleDown": {"stabilizationWindowSeconds": 60}},
            "metrics": [cpu_target(50)]},
        "status": {"currentReplicas": 2, "conditions": [{"type": "AbleToScale"}],
            "currentMetrics": [{"type": "Resource", "resource": {"name": "memory",
                "current": {"averageValue": "1Mi"}}}]}});
    let old = shown(&new);
    assert_eq!(old["status"], json!({"currentReplicas": 2}));
    assert_eq!(stored(&old), new);
}

#[test]
fn targets_are_shown_as_kubectl_shows_them() {
    let object = json!({"spec": {"metrics": [cpu_target(80), cpu_target(1), cpu_target(2)]},
        "status": {"currentMetrics": [{"type": "Resource", "resource": {"name": "cpu",
            "current": {"averageUtilization": 12}}}]}});
    assert_eq!(metrics::targets(&object), "cpu: 12%/80%, cpu: <unknown>/1% + 1 more...");
}
