//! Questions in the form of objects, and their answers.

use std::sync::Arc;

use roadstead_schema::json::Pointer;
use serde_json::{Value, json};

use crate::api::Api;
use crate::identity::rbac::rule::{self, Attributes, Rule};
use crate::identity::tokens::{self, Bearer};
use crate::identity::user::User;
use crate::kinds::Strategy;
use crate::request::handler::Handler;

/// A kind of question, and how it is answered.
pub(super) struct Review(fn(&Handler<'_>, &Value) -> Value);

impl Strategy for Review {
    fn review(&self, handler: &Handler<'_>, question: &Value) -> Value {
        self.0(handler, question)
    }
}

pub(super) const SELF_SUBJECT: Review =
    Review(|handler, _| json!({"userInfo": shown(handler.user)}));

pub(super) const TOKEN: Review = Review(|handler, question| token(handler.api, question));

pub(super) const SELF_SUBJECT_ACCESS: Review =
    Review(|handler, question| access(handler.api, handler.user, &question["spec"]));

pub(super) const SELF_SUBJECT_RULES: Review = Review(|handler, question| {
    let Handler { api, user, .. } = handler;
    rules(&api.identity.rbac.roles_of(user, question.text("/spec/namespace")), user)
});

pub(super) const SUBJECT_ACCESS: Review =
    Review(|handler, question| access(handler.api, &subject(question), &question["spec"]));

pub(super) const LOCAL_SUBJECT_ACCESS: Review = Review(|handler, question| {
    let mut spec = question["spec"].clone();
    spec["resourceAttributes"]["namespace"] = handler.path.namespace.as_str().into();
    access(handler.api, &subject(question), &spec)
});

/// Whom a question is about.
fn subject(question: &Value) -> User {
    let groups = question.list("/spec/groups").iter().filter_map(Value::as_str);
    User::new(question.text("/spec/user"), groups.map(str::to_owned).collect())
}

fn token(api: &Api, review: &Value) -> Value {
    let asked: Vec<_> = review.list("/spec/audiences").iter().filter_map(Value::as_str).collect();
    let audiences = if asked.is_empty() { vec![tokens::ISSUER] } else { asked };
    match api.identity.tokens.authenticate(&api.storage, review.text("/spec/token"), &audiences) {
        Ok(Bearer { user, audiences }) => {
            json!({"authenticated": true, "user": shown(&user), "audiences": audiences})
        }
        Err(why) => json!({"authenticated": false, "error": why}),
    }
}

/// A user as objects and logs show it.
pub(crate) fn shown(user: &User) -> Value {
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
    let attributes = if spec.has("/nonResourceAttributes") {
        Attributes {
            verb: spec.text("/nonResourceAttributes/verb"),
            path: spec.text("/nonResourceAttributes/path"),
            ..Attributes::default()
        }
    } else {
        Attributes {
            verb: attribute("verb"),
            group: attribute("group"),
            resource: &resource,
            namespace: attribute("namespace"),
            name: attribute("name"),
            ..Attributes::default()
        }
    };
    json!({"allowed": api.identity.rbac.allows(user, &attributes)})
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
