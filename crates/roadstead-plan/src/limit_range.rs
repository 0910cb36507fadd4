//! What a LimitRange makes of new pods and claims, and what it refuses (upstream's LimitRanger).

use roadstead_api::quantity::exact::{Amounts, Quantity, amounts};
use roadstead_schema::json::{Pointer, child, children, default_to};
use serde_json::Value;

use crate::pod_amounts::{self, Side};

/// Where the pod says what was filled in.
const ANNOTATION: &str = "kubernetes.io/limit-ranger";

/// Gives the containers of a pod what they leave out and a LimitRange of their namespace has.
pub fn complete(pod: &mut Value, range: &Value) {
    let (limits, requests) = (defaults(range, "default"), defaults(range, "defaultRequest"));
    let mut notes = Vec::new();
    for (list, called) in [("containers", "container"), ("initContainers", "init container")] {
        for container in children(child(pod, "spec"), list) {
            let name = container.text("/name").to_owned();
            for (field, defaults, what) in
                [("requests", &requests, "request"), ("limits", &limits, "limit")]
            {
                let set = fill(container, field, defaults);
                if !set.is_empty() {
                    notes.push(format!("{} {what} for {called} {name}", set.join(", ")));
                }
            }
        }
    }
    if !notes.is_empty() {
        let note = format!("LimitRanger plugin set: {}", notes.join("; "));
        child(child(pod, "metadata"), "annotations")[ANNOTATION] = note.into();
    }
}

/// The defaults for containers; what stands first in the object counts.
fn defaults(range: &Value, field: &str) -> Vec<(String, Value)> {
    let items = range.list("/spec/limits").iter();
    let items = items.filter(|item| item.text("/type") == "Container");
    let mut found: Vec<(String, Value)> = Vec::new();
    for (name, amount) in items.flat_map(|item| item[field].as_object().into_iter().flatten()) {
        if !found.iter().any(|(known, _)| known == name) {
            found.push((name.clone(), amount.clone()));
        }
    }
    found.sort_by(|one, other| one.0.cmp(&other.0));
    found
}

/// Fills in what is missing; says what that was.
fn fill<'a>(container: &mut Value, field: &str, defaults: &'a [(String, Value)]) -> Vec<&'a str> {
    let missing =
        defaults.iter().filter(|(name, _)| container["resources"][field].get(name).is_none());
    let missing: Vec<_> = missing.collect();
    for (name, amount) in &missing {
        default_to(child(child(container, "resources"), field), name, amount.clone());
    }
    missing.into_iter().map(|(name, _)| name.as_str()).collect()
}

/// What is wrong with a pod.
pub fn check_pod(pod: &Value, range: &Value) -> Vec<String> {
    let spec = &pod["spec"];
    let mut wrong = Vec::new();
    for item in range.list("/spec/limits") {
        let kind = item.text("/type");
        match kind {
            "Container" => {
                for container in
                    ["/containers", "/initContainers"].map(|list| spec.list(list)).concat()
                {
                    let asked = Asked {
                        requests: pod_amounts::of(&container, Side::Requests),
                        limits: pod_amounts::of(&container, Side::Limits),
                    };
                    asked.check(item, &mut wrong);
                }
            }
            "Pod" => {
                let asked = Asked {
                    requests: pod_amounts::of_pod(spec, Side::Requests),
                    limits: pod_amounts::of_pod(spec, Side::Limits),
                };
                asked.check(item, &mut wrong);
            }
            _ => {}
        }
    }
    unique(wrong)
}

/// What is wrong with a claim.
pub fn check_claim(claim: &Value, range: &Value) -> Vec<String> {
    let requests = amounts(&claim["spec"]["resources"]["requests"]);
    let asked = Asked { requests, limits: Amounts::new() };
    let mut wrong = Vec::new();
    let items = range.list("/spec/limits").iter();
    for item in items.filter(|item| item.text("/type") == "PersistentVolumeClaim") {
        for (name, least) in amounts(&item["min"]) {
            wrong.extend(asked.too_little(item.text("/type"), &name, least));
        }
        for (name, most) in amounts(&item["max"]) {
            let begin = format!("maximum {name} usage per {} is {most}", item.text("/type"));
            wrong.extend(match asked.requests.get(&name) {
                None => Some(format!("{begin}.  No request is specified")),
                Some(asked) if *asked > most => Some(format!("{begin}, but request is {asked}")),
                Some(_) => None,
            });
        }
    }
    unique(wrong)
}

/// One sentence, or several in brackets.
pub fn together(wrong: &[String]) -> String {
    match wrong {
        [one] => one.clone(),
        many => format!("[{}]", many.join(", ")),
    }
}

fn unique(wrong: Vec<String>) -> Vec<String> {
    let mut different = Vec::new();
    for one in wrong {
        if !different.contains(&one) {
            different.push(one);
        }
    }
    different
}

struct Asked {
    requests: Amounts,
    limits: Amounts,
}

impl Asked {
    fn check(&self, item: &Value, wrong: &mut Vec<String>) {
        let kind = item.text("/type");
        for (name, least) in amounts(&item["min"]) {
            wrong.extend(self.too_little(kind, &name, least));
        }
        for (name, most) in amounts(&item["max"]) {
            wrong.extend(self.too_much(kind, &name, most));
        }
        for (name, most) in amounts(&item["maxLimitRequestRatio"]) {
            wrong.extend(self.too_far_apart(kind, &name, most));
        }
    }

    fn of(&self, name: &str) -> (Option<Quantity>, Option<Quantity>) {
        (self.requests.get(name).copied(), self.limits.get(name).copied())
    }

    fn too_little(&self, kind: &str, name: &str, least: Quantity) -> Option<String> {
        let begin = format!("minimum {name} usage per {kind} is {least}");
        match self.of(name) {
            (None, _) => Some(format!("{begin}.  No request is specified")),
            (Some(request), _) if request < least => {
                Some(format!("{begin}, but request is {request}"))
            }
            (_, Some(limit)) if limit < least => Some(format!("{begin}, but limit is {limit}")),
            _ => None,
        }
    }

    fn too_much(&self, kind: &str, name: &str, most: Quantity) -> Option<String> {
        let begin = format!("maximum {name} usage per {kind} is {most}");
        match self.of(name) {
            (_, None) => Some(format!("{begin}.  No limit is specified")),
            (_, Some(limit)) if limit > most => Some(format!("{begin}, but limit is {limit}")),
            (Some(request), _) if request > most => {
                Some(format!("{begin}, but request is {request}"))
            }
            _ => None,
        }
    }

    fn too_far_apart(&self, kind: &str, name: &str, most: Quantity) -> Option<String> {
        let begin = format!("{name} max limit to request ratio per {kind} is {most}");
        let given = |amount: Option<Quantity>| amount.filter(|amount| !amount.is_zero());
        let (request, limit) = self.of(name);
        let Some(request) = given(request) else {
            return Some(format!("{begin}, but no request is specified or request is 0"));
        };
        let Some(limit) = given(limit) else {
            return Some(format!("{begin}, but no limit is specified or limit is 0"));
        };
        let ratio = limit.approximate() / request.approximate();
        (ratio > most.approximate()).then(|| format!("{begin}, but provided ratio is {ratio:.6}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn range(kind: &str, fields: Value) -> Value {
        let mut item = fields;
        item["type"] = kind.into();
        json!({"spec": {"limits": [item]}})
    }

    fn pod(resources: Value) -> Value {
        json!({"spec": {"containers": [{"name": "c", "resources": resources}]}})
    }

    #[test]
    fn what_is_refused() {
        // The type, its limits, what the container says, the refusal.
        let cases = [
            ("Container", json!({"max": {"cpu": "1"}}), json!({"limits": {"cpu": "1000m"}}), ""),
            (
                "Container",
                json!({"max": {"cpu": "1"}}),
                json!({"limits": {"cpu": "2"}}),
                "maximum cpu usage per Container is 1, but limit is 2",
            ),
            (
                "Container",
                json!({"max": {"cpu": "1"}}),
                json!({}),
                "maximum cpu usage per Container is 1.  No limit is specified",
            ),
            (
                "Container",
                json!({"max": {"memory": "1Gi"}, "min": {"memory": "64Mi"}}),
                json!({"limits": {"memory": "2Gi"}, "requests": {"memory": "32Mi"}}),
                "[minimum memory usage per Container is 64Mi, but request is 32Mi, maximum memory usage \
                 per Container is 1Gi, but limit is 2Gi]",
            ),
            (
                "Pod",
                json!({"min": {"cpu": "1"}}),
                json!({"requests": {"cpu": "2"}, "limits": {"cpu": "500m"}}),
                "minimum cpu usage per Pod is 1, but limit is 500m",
            ),
            (
                "Container",
                json!({"maxLimitRequestRatio": {"cpu": "2"}}),
                json!({"requests": {"cpu": "1"}, "limits": {"cpu": "3"}}),
                "cpu max limit to request ratio per Container is 2, but provided ratio is 3.000000",
            ),
            (
                "Pod",
                json!({"maxLimitRequestRatio": {"cpu": "2"}}),
                json!({"limits": {"cpu": "3"}}),
                "cpu max limit to request ratio per Pod is 2, but no request is specified or request is 0",
            ),
            (
                "Pod",
                json!({"maxLimitRequestRatio": {"cpu": "2"}}),
                json!({"requests": {"cpu": "3"}}),
                "cpu max limit to request ratio per Pod is 2, but no limit is specified or limit is 0",
            ),
            ("PersistentVolumeClaim", json!({"max": {"cpu": "1"}}), json!({}), ""),
        ];
        for (kind, limits, resources, want) in cases {
            let wrong = check_pod(&pod(resources), &range(kind, limits));
            let found = if wrong.is_empty() { String::new() } else { together(&wrong) };
            assert_eq!(found, want, "{kind}");
        }
    }

    #[test]
    fn claims() {
        let limits = json!({"max": {"storage": "2Gi"}, "min": {"storage": "1Gi"}});
        for (asked, want) in [
            ("1Gi", ""),
            ("1Mi", "minimum storage usage per PersistentVolumeClaim is 1Gi, but request is 1Mi"),
            ("3Gi", "maximum storage usage per PersistentVolumeClaim is 2Gi, but request is 3Gi"),
        ] {
            let claim = json!({"spec": {"resources": {"requests": {"storage": asked}}}});
            let wrong = check_claim(&claim, &range("PersistentVolumeClaim", limits.clone()));
            assert_eq!(wrong.join("; "), want, "{asked}");
        }
    }

    #[test]
    fn what_is_filled_in() {
        let range = range(
            "Container",
            json!({"default": {"cpu": "1", "memory": "1Gi"}, "defaultRequest": {"cpu": "100m"}}),
        );
        let mut pod = json!({"spec": {
            "containers": [{"name": "a"}, {"name": "b", "resources": {"limits": {"cpu": "2"},
                "requests": {"cpu": "2"}}}],
            "initContainers": [{"name": "i"}]}});
        complete(&mut pod, &range);
        let resources = |at: &str| pod.pointer(at).unwrap()["resources"].clone();
        let full = json!({"requests": {"cpu": "100m"}, "limits": {"cpu": "1", "memory": "1Gi"}});
        assert_eq!(resources("/spec/containers/0"), full);
        assert_eq!(resources("/spec/initContainers/0"), full);
        assert_eq!(
            resources("/spec/containers/1"),
            json!({"requests": {"cpu": "2"}, "limits": {"cpu": "2", "memory": "1Gi"}})
        );
        assert_eq!(
            pod["metadata"]["annotations"][ANNOTATION],
            "LimitRanger plugin set: cpu request for container a; cpu, memory limit for container a; \
             memory limit for container b; cpu request for init container i; cpu, memory limit for init \
             container i"
        );
    }
}
