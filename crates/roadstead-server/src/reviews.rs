//! Questions in the form of objects, and their answers.

use std::sync::Arc;

use roadstead_api::look::Look;
use serde_json::{Value, json};

use crate::api::{Api, User};
use crate::rbac::rule::{self, Action, Rule};
use crate::tokens::{self, Bearer};

/// Answers a question by completing its status.
pub fn answer(api: &Api, user: &User, plural: &str, namespace: &str, mut review: Value) -> Value {
    review["status"] = match plural {
        "selfsubjectreviews" => json!({"userInfo": shown(user)}),
        "tokenreviews" => token(api, &review),
        "selfsubjectaccessreviews" => access(api, user, &review["spec"]),
        "selfsubjectrulesreviews" => {
            rules(&api.rbac.roles_of(user, review.text("/spec/namespace")), user)
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

/// How many items (verbs, groups, …) the rules in an answer may have together.
const ITEMS: usize = 20_000;
/// And how many bytes these.
const BYTES: usize = 1 << 20;

/// What the user may do, or the beginning of it: whoever may write roles can give themselves very
/// many.
fn rules(roles: &[Arc<[Rule]>], user: &User) -> Value {
    let all = roles.iter().flat_map(|role| role.iter());
    let everything = rule::all();
    let all = all.chain(everything.iter().filter(|_| user.is_master()));
    let (mut resources, mut paths) = (Vec::new(), Vec::new());
    let (mut items, mut bytes, mut complete) = (0, 0, true);
    for rule in all {
        let lists = [&rule.verbs, &rule.groups, &rule.resources, &rule.names, &rule.paths];
        items += lists.iter().map(|list| list.len()).sum::<usize>();
        bytes += lists.iter().flat_map(|list| list.iter()).map(String::len).sum::<usize>();
        if items > ITEMS || bytes > BYTES {
            complete = false;
            break;
        }
        match rule.paths.is_empty() {
            true => resources.push(json!({"verbs": rule.verbs, "apiGroups": rule.groups,
                "resources": rule.resources, "resourceNames": rule.names})),
            false => paths.push(json!({"verbs": rule.verbs, "nonResourceURLs": rule.paths})),
        }
    }
    let mut status =
        json!({"incomplete": !complete, "resourceRules": resources, "nonResourceRules": paths});
    if !complete {
        status["evaluationError"] = "there are more rules than can be shown".into();
    }
    status
}
