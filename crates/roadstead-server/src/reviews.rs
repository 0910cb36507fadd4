//! Questions in the form of objects, and their answers.

use roadstead_api::look::Look;
use serde_json::{Value, json};

use crate::api::{Api, User};
use crate::rbac::rule::{Action, Rule};
use crate::tokens::{self, Bearer};

/// Answers a question by completing its status.
pub fn answer(api: &Api, user: &User, plural: &str, namespace: &str, mut review: Value) -> Value {
    review["status"] = match plural {
        "selfsubjectreviews" => json!({"userInfo": shown(user)}),
        "tokenreviews" => token(api, &review),
        "selfsubjectaccessreviews" => access(api, user, &review["spec"]),
        "selfsubjectrulesreviews" => {
            rules(&api.rbac.rules_of(user, review.text("/spec/namespace")), user)
        }
        _ => {
            let mut spec = review["spec"].clone();
            if plural == "localsubjectaccessreviews" {
                spec["resourceAttributes"]["namespace"] = namespace.into();
            }
            let groups = spec.list("/groups").iter().filter_map(Value::as_str).map(str::to_owned);
            let other = User::new(spec.text("/user"), groups.collect());
            access(api, &other, &spec)
        }
    };
    review
}

fn token(api: &Api, review: &Value) -> Value {
    let asked: Vec<_> = review.list("/spec/audiences").iter().filter_map(Value::as_str).collect();
    let audiences = if asked.is_empty() { vec![tokens::ISSUER] } else { asked };
    match api.tokens.authenticate(api, review.text("/spec/token"), &audiences) {
        Ok(Bearer { user, audiences }) => {
            json!({"authenticated": true, "user": shown(&user), "audiences": audiences})
        }
        Err(why) => json!({"authenticated": false, "error": why}),
    }
}

/// A user as objects and logs show it.
pub fn shown(user: &User) -> Value {
    let mut shown = json!({"username": user.name, "groups": user.groups});
    if !user.uid.is_empty() {
        shown["uid"] = user.uid.as_str().into();
    }
    if !user.extra.is_empty() {
        shown["extra"] = json!(user.extra);
    }
    shown
}

fn access(api: &Api, user: &User, spec: &Value) -> Value {
    let attribute = |name: &str| spec.text(&format!("/resourceAttributes/{name}"));
    let resource = match attribute("subresource") {
        "" => attribute("resource").to_owned(),
        subresource => format!("{}/{subresource}", attribute("resource")),
    };
    let action = if spec.has("/nonResourceAttributes") {
        Action {
            verb: spec.text("/nonResourceAttributes/verb"),
            path: spec.text("/nonResourceAttributes/path"),
            ..Action::default()
        }
    } else {
        Action {
            verb: attribute("verb"),
            group: attribute("group"),
            resource: &resource,
            namespace: attribute("namespace"),
            name: attribute("name"),
            path: "",
        }
    };
    json!({"allowed": api.rbac.allows(user, &action)})
}

fn rules(rules: &[Rule], user: &User) -> Value {
    let everything = Rule {
        verbs: vec!["*".into()],
        groups: vec!["*".into()],
        resources: vec!["*".into()],
        ..Rule::default()
    };
    let all = rules.iter().chain(user.is_master().then_some(&everything));
    let (paths, resources): (Vec<_>, Vec<_>) = all.partition(|rule| !rule.paths.is_empty());
    let resources = resources.iter().map(|rule| {
        json!({"verbs": rule.verbs, "apiGroups": rule.groups, "resources": rule.resources,
            "resourceNames": rule.names})
    });
    let paths =
        paths.iter().map(|rule| json!({"verbs": rule.verbs, "nonResourceURLs": rule.paths}));
    json!({"incomplete": false, "resourceRules": resources.collect::<Vec<_>>(),
        "nonResourceRules": paths.collect::<Vec<_>>()})
}
