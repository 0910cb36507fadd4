//! What roles and bindings must look like.

use roadstead_schema::invalid::Causes;
use roadstead_schema::json::{Pointer, child, children, default_to};
use serde_json::Value;

use crate::kinds::cells;
use crate::kinds::plain::{PlainKind, cluster, namespaced, shown};
use crate::table::{AGE, Cell, Column, ColumnCell, NAME};

const GROUP: &str = "rbac.authorization.k8s.io";

const CREATED_AT: &[ColumnCell] =
    &[NAME, (Column::text("Created At"), Cell::Plain("/metadata/creationTimestamp"))];
const BINDING: &[ColumnCell] = &[
    NAME,
    (
        Column::text("Role"),
        Cell::Made(|binding| {
            format!("{}/{}", binding.text("/roleRef/kind"), binding.text("/roleRef/name"))
        }),
    ),
    AGE,
    (Column::wide("Users"), Cell::Made(|binding| cells::subjects(binding, "User"))),
    (Column::wide("Groups"), Cell::Made(|binding| cells::subjects(binding, "Group"))),
    (
        Column::wide("ServiceAccounts"),
        Cell::Made(|binding| cells::subjects(binding, "ServiceAccount")),
    ),
];

/// All of them.
pub(super) static ALL: [PlainKind; 4] = [
    PlainKind {
        check: validate_role,
        ..shown(namespaced(GROUP, "Role", "roles", "role").with_path_names(), CREATED_AT)
    },
    PlainKind {
        default: default_binding,
        check: validate_role_binding,
        ..shown(
            namespaced(GROUP, "RoleBinding", "rolebindings", "rolebinding").with_path_names(),
            BINDING,
        )
    },
    PlainKind {
        check: validate_role,
        ..shown(
            cluster(GROUP, "ClusterRole", "clusterroles", "clusterrole").with_path_names(),
            CREATED_AT,
        )
    },
    PlainKind {
        default: default_binding,
        check: validate_cluster_binding,
        ..shown(
            cluster(GROUP, "ClusterRoleBinding", "clusterrolebindings", "clusterrolebinding")
                .with_path_names(),
            BINDING,
        )
    },
];

/// Fills in the groups that a binding may leave out.
fn default_binding(binding: &mut Value) {
    default_to(child(binding, "roleRef"), "apiGroup", GROUP);
    for subject in children(binding, "subjects") {
        if matches!(subject.text("/kind"), "User" | "Group") {
            default_to(subject, "apiGroup", GROUP);
        }
    }
}

/// A RoleBinding may refer to either kind of role.
fn validate_role_binding(binding: &Value, old: Option<&Value>, causes: &mut Causes) {
    validate_binding(binding, old, &["Role", "ClusterRole"], causes);
}

/// A ClusterRoleBinding may not refer to a role of some namespace.
fn validate_cluster_binding(binding: &Value, old: Option<&Value>, causes: &mut Causes) {
    validate_binding(binding, old, &["ClusterRole"], causes);
}

fn validate_binding(binding: &Value, old: Option<&Value>, kinds: &[&str], causes: &mut Causes) {
    let reference = &binding["roleRef"];
    if reference.text("/apiGroup") != GROUP {
        causes.unsupported("roleRef.apiGroup", &reference["apiGroup"], &[GROUP]);
    }
    if !kinds.contains(&reference.text("/kind")) {
        causes.unsupported("roleRef.kind", &reference["kind"], kinds);
    }
    if reference.text("/name").is_empty() {
        causes.required("roleRef.name", "");
    }
    // Whoever may change a binding could otherwise turn it into one to a greater role.
    if old.is_some_and(|old| old["roleRef"] != *reference) {
        causes.invalid("roleRef", reference, "field is immutable");
    }
}

/// Rules need verbs, and say what they are about.
fn validate_role(role: &Value, _: Option<&Value>, causes: &mut Causes) {
    if role.has("/aggregationRule") && role.list("/aggregationRule/clusterRoleSelectors").is_empty()
    {
        let detail = "at least one clusterRoleSelector required if aggregationRule is non-nil";
        causes.required("aggregationRule.clusterRoleSelectors", detail);
    }
    let namespaced = role.has("/metadata/namespace");
    for (index, rule) in role.list("/rules").iter().enumerate() {
        validate_rule(rule, namespaced, &format!("rules[{index}]"), causes);
    }
}

fn validate_rule(rule: &Value, namespaced: bool, field: &str, causes: &mut Causes) {
    let empty = |name: &str| rule.list(&format!("/{name}")).is_empty();
    if empty("verbs") {
        causes.required(format!("{field}.verbs"), "verbs must contain at least one value");
    }
    if !empty("nonResourceURLs") {
        let (field, paths) = (format!("{field}.nonResourceURLs"), &rule["nonResourceURLs"]);
        if namespaced {
            let detail = "namespaced rules cannot apply to non-resource URLs";
            causes.invalid(&field, paths, detail);
        }
        if !["apiGroups", "resources", "resourceNames"].into_iter().all(empty) {
            let detail = "rules cannot apply to both regular resources and non-resource URLs";
            causes.invalid(&field, paths, detail);
        }
        return;
    }
    if empty("apiGroups") {
        let detail = "resource rules must supply at least one api group";
        causes.required(format!("{field}.apiGroups"), detail);
    }
    if empty("resources") {
        let detail = "resource rules must supply at least one resource";
        causes.required(format!("{field}.resources"), detail);
    }
}

#[test]
fn mistakes() {
    use serde_json::json;
    let role = |kind: &str, name: &str| json!({"kind": kind, "name": name, "apiGroup": GROUP});
    let binding = |role: Value| json!({"roleRef": role});
    let rule = |rule: Value| json!({"rules": [rule]});
    type Check = fn(&Value, Option<&Value>, &mut Causes);
    let cases: [(Check, Value, Option<Value>, &str); 8] = [
        (validate_role_binding, binding(role("Role", "a")), None, ""),
        (
            validate_cluster_binding,
            binding(role("Role", "a")),
            None,
            "roleRef.kind: Unsupported value: \"Role\": supported values: \"ClusterRole\"",
        ),
        (
            validate_role_binding,
            binding(role("Role", "a")),
            Some(binding(role("Role", "b"))),
            "roleRef: Invalid value: \
             {\"apiGroup\":\"rbac.authorization.k8s.io\",\"kind\":\"Role\",\"name\":\"a\"}: field is \
             immutable",
        ),
        (validate_role_binding, binding(role("Role", "")), None, "roleRef.name: Required value"),
        (validate_role, rule(json!({"verbs": ["get"], "nonResourceURLs": ["/a"]})), None, ""),
        (
            validate_role,
            rule(json!({"resources": ["pods"], "apiGroups": [""]})),
            None,
            "rules[0].verbs: Required value: verbs must contain at least one value",
        ),
        (
            validate_role,
            rule(json!({"verbs": ["get"], "apiGroups": [""]})),
            None,
            "rules[0].resources: Required value: resource rules must supply at least one resource",
        ),
        (
            validate_role,
            json!({"aggregationRule": {}}),
            None,
            "aggregationRule.clusterRoleSelectors: Required value: at least one \
             clusterRoleSelector required if aggregationRule is non-nil",
        ),
    ];
    for (check, object, old, want) in cases {
        let mut causes = Causes::default();
        check(&object, old.as_ref(), &mut causes);
        let found: Vec<_> = causes.0.iter().map(ToString::to_string).collect();
        assert_eq!(found.join("; "), want, "{object}");
    }
}
