//! Fields of a pod's spec that are kept and on which nothing of ours acts. What the node cannot do it
//! refuses, and says so at the pod; these it would leave out in silence.

use serde_json::Value;

/// Below `spec`, and what is not done about it.
const FIELDS: [(&str, &str); 5] = [
    ("/schedulingGroup", ACTED_ON),
    ("/evictionResponders", ACTED_ON),
    ("/resourceClaims", ACTED_ON),
    ("/runtimeClassName", ACTED_ON),
    ("/securityContext/seLinuxChangePolicy", ACTED_ON),
];

const ACTED_ON: &str = "acts on it";
const ENFORCED: &str = "enforces it";

/// The paths of all that nothing is done about, with what is not done. `at` is the path of the spec.
pub(super) fn kept(spec: &Value, at: &str) -> Vec<(String, &'static str)> {
    let fields = FIELDS
        .iter()
        .filter(|(path, _)| spec.pointer(path).is_some_and(|value| !is_nothing(value)));
    let mut kept: Vec<_> =
        fields.map(|(path, deed)| (format!("{at}{}", path.replace('/', ".")), *deed)).collect();
    for list in ["initContainers", "containers"] {
        for (number, container) in (0..).zip(spec[list].as_array().into_iter().flatten()) {
            of_container(container, &format!("{at}.{list}[{number}]"), &mut kept);
        }
    }
    kept
}

fn of_container(container: &Value, at: &str, kept: &mut Vec<(String, &'static str)>) {
    for amounts in ["limits", "requests"] {
        let named = container["resources"][amounts].as_object();
        let unknown = named.into_iter().flatten().map(|(name, _)| name);
        let unknown =
            unknown.filter(|name| !matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage"));
        kept.extend(unknown.map(|name| (format!("{at}.resources.{amounts}[{name}]"), ENFORCED)));
    }
    if !is_nothing(&container["resources"]["claims"]) {
        kept.push((format!("{at}.resources.claims"), ACTED_ON));
    }
}

fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_left_out() {
        let resources = json!({"limits": {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "1"},
                               "requests": {"ephemeral-storage": "1Gi", "hugepages-2Mi": "2Mi"}});
        for (spec, want) in [
            (json!({"containers": [{"name": "a"}], "nodeSelector": {"a": "b"}}), ""),
            (json!({"resourceClaims": [{}]}), "s.resourceClaims"),
            (json!({"resourceClaims": []}), ""),
            (json!({"topologySpreadConstraints": [{}], "affinity": {"podAffinity": {"x": 1}}}), ""),
            (
                json!({"containers": [{}, {"resources": resources}]}),
                "s.containers[1].resources.limits[nvidia.com/gpu] \
                 s.containers[1].resources.requests[hugepages-2Mi]",
            ),
        ] {
            let found: Vec<_> = kept(&spec, "s").into_iter().map(|(path, _)| path).collect();
            assert_eq!(found.join(" "), want, "{spec}");
        }
    }
}
