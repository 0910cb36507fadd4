use roadstead_schema::json::Pointer;
use serde_json::{Value, json};

use super::*;

fn policy(objects: &[Value]) -> Policy {
    let kind = |object: &Value| match object.text("/kind") {
        "ClusterRole" => 0,
        "Role" => 1,
        "ClusterRoleBinding" => 2,
        _ => 3,
    };
    let mut policy = Policy::default();
    for (index, object) in objects.iter().enumerate() {
        let key = (kind(object), Arc::from(index.to_string().as_str()));
        policy.observe(key, Some(object.to_string().as_bytes()));
    }
    policy.sum_up();
    policy
}

fn allows(policy: &Policy, user: &User, action: &Attributes<'_>) -> bool {
    policy
        .roles_of(user, action.namespace)
        .iter()
        .flat_map(|role| role.iter())
        .any(|r| r.allows(action))
}

/// `role:pods get,list` and `bind:where role subject`.
fn cluster() -> Policy {
    let role = |kind: &str, namespace: &str, name: &str, rules: Value| json!({"kind": kind, "metadata": {"name": name, "namespace": namespace}, "rules": rules});
    let bind = |namespace: &str, role_kind: &str, role: &str, kind: &str, name: &str| {
        let what = if namespace.is_empty() { "ClusterRoleBinding" } else { "RoleBinding" };
        json!({"kind": what, "metadata": {"name": "b", "namespace": namespace},
            "roleRef": {"kind": role_kind, "name": role},
            "subjects": [{"kind": kind, "name": name, "namespace": "default"}]})
    };
    let reader =
        json!([{"verbs": ["get", "list"], "apiGroups": [""], "resources": ["pods", "pods/log"]}]);
    let one = json!([{"verbs": ["*"], "apiGroups": ["apps"], "resources": ["*"], "resourceNames": ["web"]}]);
    let scaler = json!([{"verbs": ["update"], "apiGroups": ["*"], "resources": ["*/scale"]}]);
    let prober = json!([{"verbs": ["get"], "nonResourceURLs": ["/healthz/*", "/metrics"]}]);
    let mut sum = role("ClusterRole", "", "sum", json!([]));
    sum["aggregationRule"] = json!({"clusterRoleSelectors": [{"matchLabels": {"into": "sum"}}]});
    let mut part = role("ClusterRole", "", "part", reader.clone());
    part["metadata"]["labels"] = json!({"into": "sum"});
    policy(&[
        role("ClusterRole", "", "reader", reader),
        role("Role", "shop", "one", one),
        role("ClusterRole", "", "scaler", scaler),
        role("ClusterRole", "", "prober", prober),
        sum,
        part,
        bind("", "ClusterRole", "reader", "User", "anna"),
        bind("shop", "ClusterRole", "reader", "Group", "shoppers"),
        bind("shop", "Role", "one", "ServiceAccount", "robot"),
        bind("", "ClusterRole", "scaler", "User", "sam"),
        bind("", "ClusterRole", "prober", "User", "pia"),
        bind("", "ClusterRole", "sum", "User", "sue"),
    ])
}

#[test]
fn roles_allow_what_they_say() {
    let policy = cluster();
    // user or group, verb, resource.group, namespace, name
    let cases = [
        ("anna get pods default x", true),
        ("anna get pods/log default x", true),
        ("anna get pods - -", true),
        ("anna delete pods default x", false),
        ("anna get secrets default x", false),
        ("anna get pods.apps default x", false),
        ("shoppers list pods shop -", true),
        ("shoppers list pods default -", false),
        ("system:serviceaccount:default:robot delete deployments.apps shop web", true),
        ("system:serviceaccount:default:robot delete deployments.apps shop db", false),
        ("system:serviceaccount:default:robot list deployments.apps shop -", false),
        ("sam update deployments/scale.apps default web", true),
        ("sam update deployments.apps default web", false),
        ("sue get pods default x", true),
        ("nobody get pods default x", false),
    ];
    for (text, want) in cases {
        let words: Vec<_> =
            text.split(' ').map(|word| if word == "-" { "" } else { word }).collect();
        let [who, verb, resource, namespace, name] = words[..] else { panic!("{text}") };
        let (resource, group) = resource.split_once('.').unwrap_or((resource, ""));
        let user = User::new(who, vec![who.into()]);
        let action = Attributes { verb, group, resource, namespace, name, ..Attributes::default() };
        assert_eq!(allows(&policy, &user, &action), want, "{text}");
    }
    let pia = User::new("pia", vec![]);
    for (path, want) in [("/healthz/ping", true), ("/metrics", true), ("/metrics/x", false)] {
        let action = Attributes { verb: "get", path, ..Attributes::default() };
        assert_eq!(allows(&policy, &pia, &action), want, "{path}");
    }
}

#[test]
fn nobody_gives_away_what_they_do_not_have() {
    let rules = |value: Value| rule::read(&value);
    let pods = json!([{"verbs": ["get", "list"], "apiGroups": [""], "resources": ["pods"]}]);
    let get = json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]);
    let all = json!([{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]);
    let named = json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"], "resourceNames": ["a"]}]);
    let cases = [
        ("less", &pods, &get, ""),
        ("the same", &pods, &pods, ""),
        ("more", &get, &pods, "{APIGroups:[\"\"], Resources:[\"pods\"], Verbs:[\"list\"]}"),
        ("everything covers", &all, &pods, ""),
        (
            "nothing covers everything",
            &pods,
            &all,
            "{APIGroups:[\"*\"], Resources:[\"*\"], Verbs:[\"*\"]}",
        ),
        ("all names cover one", &get, &named, ""),
        (
            "one name does not cover all",
            &named,
            &get,
            "{APIGroups:[\"\"], Resources:[\"pods\"], Verbs:[\"get\"]}",
        ),
    ];
    for (name, held, wanted, want) in cases {
        let missing = cover::missing(&rules(held.clone()), &rules(wanted.clone()));
        assert_eq!(missing.named.iter().map(rule::shown).collect::<String>(), want, "{name}");
    }
}

/// `sum:parts,…` is a cluster role `sum` that adds up those labelled with any of the parts.
fn summing(name: &str, label: &str, parts: &[&str], verb: &str) -> Value {
    let selectors: Vec<_> =
        parts.iter().map(|part| json!({"matchLabels": {"into": part}})).collect();
    let mut role = json!({"kind": "ClusterRole", "metadata": {"name": name, "labels": {"into": label}},
        "rules": [{"verbs": [verb], "apiGroups": [""], "resources": ["pods"]}]});
    if !parts.is_empty() {
        role["aggregationRule"] = json!({"clusterRoleSelectors": selectors});
    }
    role
}

#[test]
fn sums_of_sums_in_a_circle_or_a_long_chain() {
    let verbs = |policy: &Policy, name: &str| {
        let rules = policy.role("", name).unwrap();
        let mut verbs: Vec<_> = rules.iter().map(|rule| rule.verbs[0].clone()).collect();
        verbs.sort();
        verbs.join(" ")
    };
    let circle = policy(&[summing("a", "1", &["2"], "get"), summing("b", "2", &["1"], "list")]);
    assert_eq!(verbs(&circle, "a"), "get list");
    assert_eq!(verbs(&circle, "b"), "get list");
    // Long enough to overflow a stack, if each sum were a call.
    let chain: Vec<_> = (0..300)
        .map(|n| {
            let next = (n + 1).to_string();
            summing(&format!("r{n}"), &n.to_string(), &[&next], "get")
        })
        .collect();
    assert_eq!(policy(&chain).role("", "r0").unwrap().len(), 300);
}

#[test]
fn a_policy_follows_its_objects() {
    let mut policy = cluster();
    let key = |kind: usize, index: usize| (kind, Arc::from(index.to_string().as_str()));
    let anna = User::new("anna", vec![]);
    let get = Attributes { verb: "get", resource: "pods", ..Attributes::default() };
    assert!(allows(&policy, &anna, &get));
    policy.observe(key(2, 6), None);
    assert!(!allows(&policy, &anna, &get), "the binding is gone");
    let twice = json!({"metadata": {"name": "b"}, "roleRef": {"kind": "ClusterRole", "name": "reader"},
        "subjects": [{"kind": "User", "name": "anna"}, {"kind": "User", "name": "anna"}]});
    for index in [6, 20] {
        policy.observe(key(2, index), Some(twice.to_string().as_bytes()));
    }
    assert_eq!(
        policy.roles_of(&anna, "").len(),
        1,
        "a role counts once, however often it is given"
    );
    policy.observe(key(2, 20), None);
    assert!(allows(&policy, &anna, &get), "another binding gives it");
    policy.observe(key(0, 0), None);
    assert!(!allows(&policy, &anna, &get), "the role is gone");
    let sue = User::new("sue", vec![]);
    assert!(allows(&policy, &sue, &get));
    policy.observe(key(0, 5), None);
    policy.sum_up();
    assert!(!allows(&policy, &sue, &get), "a part of the sum is gone");
}
