//! What every cluster has of levels and schemas, kept as it is meant to be; and whether schemas make sense.

use roadstead_api::kinds::flow_control::bootstrap::{AUTO_UPDATE, Rank, SystemObject};
use roadstead_schema::json::{Pointer, child};
use serde_json::{Value, json};

/// An object as it should be, if that is not what it is; `current` is the present one.
pub fn revised(system: &SystemObject, current: &Value) -> Option<Value> {
    let updates = system.rank == Rank::Mandatory || may_update(current);
    let mut new = current.clone();
    if updates {
        let wanted = &system.object["spec"];
        // How much the exempt take of the server is for the operator to say.
        let kept = (wanted["type"] == "Exempt").then(|| current["spec"]["exempt"].clone());
        new["spec"] = wanted.clone();
        if let Some(kept) = kept.filter(Value::is_object) {
            new["spec"]["exempt"] = kept;
        }
    }
    if annotation(current) != Some(updates) {
        let annotations = child(child(&mut new, "metadata"), "annotations");
        annotations[AUTO_UPDATE] = updates.to_string().into();
    }
    (new != *current).then_some(new)
}

/// Whether we made an object that nobody needs any more.
pub fn is_left_over(system: &[SystemObject], plural: &str, object: &Value) -> bool {
    let name = &object["metadata"]["name"];
    let is_it =
        |one: &SystemObject| one.plural == plural && one.object["metadata"]["name"] == *name;
    annotation(object) == Some(true) && !system.iter().any(is_it)
}

/// Whether the operator leaves it to us.
fn may_update(current: &Value) -> bool {
    // Without a word about it: as long as nobody has changed it.
    annotation(current).unwrap_or(current.int("/metadata/generation") == 1)
}

/// What Go reads as a boolean.
fn annotation(object: &Value) -> Option<bool> {
    match object["metadata"]["annotations"][AUTO_UPDATE].as_str()? {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// The status of a schema as it should be, if that is not what it is: whether its level `exists`.
pub fn status(schema: &Value, exists: bool, now: &str) -> Option<Value> {
    let level = schema.text("/spec/priorityLevelConfiguration/name");
    let (status, reason, end) = match exists {
        true => ("False", "Found", "and it exists"),
        false => ("True", "NotFound", "but there is no such object"),
    };
    let message = format!(
        "This FlowSchema references the PriorityLevelConfiguration object named {level:?} {end}"
    );
    let mut conditions = schema.list("/status/conditions").to_vec();
    let place = conditions.iter().position(|condition| condition["type"] == "Dangling");
    let is_right = |own: &Value| {
        own["status"] == status && own["reason"] == reason && own["message"] == *message
    };
    if place.is_some_and(|place| is_right(&conditions[place])) {
        return None;
    }
    let condition = json!({"type": "Dangling", "status": status, "reason": reason,
        "message": message, "lastTransitionTime": now});
    match place {
        Some(place) => conditions[place] = condition,
        None => conditions.push(condition),
    }
    let mut new = json!({"status": schema["status"]});
    child(&mut new, "status")["conditions"] = conditions.into();
    Some(new["status"].take())
}

#[cfg(test)]
mod tests {
    use roadstead_api::kinds::flow_control::bootstrap;

    use super::*;

    fn system(name: &str) -> SystemObject {
        let all = bootstrap::objects().into_iter();
        let mut found = all.filter(|one| one.object["metadata"]["name"] == name);
        found.next().unwrap()
    }

    #[test]
    fn what_is_brought_back() {
        // Which level, what the annotation says, the generation, whether the spec is ours again, and what
        // the annotation says then.
        let cases = [
            ("system", Some("true"), 2, true, "true"),
            ("system", Some("false"), 2, false, "false"),
            ("system", Some("0"), 2, false, "0"),
            ("system", None, 1, true, "true"),
            ("system", None, 2, false, "false"),
            ("system", Some("what"), 2, false, "false"),
            ("catch-all", Some("false"), 2, true, "true"),
            ("catch-all", None, 2, true, "true"),
        ];
        for (name, says, generation, ours, then) in cases {
            let wanted = system(name);
            let mut current = wanted.object.clone();
            current["metadata"]["generation"] = generation.into();
            current["metadata"]["annotations"] = json!({});
            if let Some(says) = says {
                current["metadata"]["annotations"][AUTO_UPDATE] = says.into();
            }
            current["spec"]["limited"]["nominalConcurrencyShares"] = json!(7);
            let new = revised(&wanted, &current).unwrap_or_else(|| current.clone());
            let case = format!("{name} {says:?} {generation}");
            assert_eq!(new["spec"] == wanted.object["spec"], ours, "{case}");
            assert_eq!(new["metadata"]["annotations"][AUTO_UPDATE], then, "{case}");
            assert_eq!(revised(&wanted, &new), None, "{case}: once is enough");
        }
    }

    #[test]
    fn the_exempt_are_the_operators_to_weigh() {
        let wanted = system("exempt");
        let mut current = wanted.object.clone();
        assert_eq!(revised(&wanted, &current), None);
        current["spec"]["exempt"]["nominalConcurrencyShares"] = json!(9);
        assert_eq!(revised(&wanted, &current), None);
    }

    #[test]
    fn what_is_left_over() {
        let all = bootstrap::objects();
        let object = |name: &str, says: &str| json!({"metadata": {"name": name, "annotations": {AUTO_UPDATE: says}}});
        let cases = [
            ("system", "true", false),
            ("old", "true", true),
            ("own", "false", false),
            ("own", "", false),
        ];
        for (name, says, want) in cases {
            let found = is_left_over(&all, bootstrap::LEVELS, &object(name, says));
            assert_eq!(found, want, "{name} {says}");
        }
    }

    #[test]
    fn schemas_say_whether_their_level_exists() {
        let mut schema = json!({"spec": {"priorityLevelConfiguration": {"name": "l"}}});
        let message =
            "This FlowSchema references the PriorityLevelConfiguration object named \"l\" ";
        for (exists, status_, reason, end) in [
            (false, "True", "NotFound", "but there is no such object"),
            (true, "False", "Found", "and it exists"),
        ] {
            schema["status"] = status(&schema, exists, "now").unwrap();
            let want = json!([{"type": "Dangling", "status": status_, "reason": reason,
                "message": format!("{message}{end}"), "lastTransitionTime": "now"}]);
            assert_eq!(schema["status"]["conditions"], want);
            assert_eq!(status(&schema, exists, "later"), None);
        }
    }
}
