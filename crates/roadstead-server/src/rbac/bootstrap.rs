//! The roles and bindings of every cluster.

use serde_json::{Value, json};

/// Plural and object, in an order in which they can be created.
pub fn objects() -> Vec<(&'static str, Value)> {
    let mut all: Vec<_> = roles().into_iter().map(|role| ("clusterroles", role)).collect();
    let bindings = [
        ("cluster-admin", "cluster-admin", "Group", "system:masters"),
        ("system:discovery", "system:discovery", "Group", "system:authenticated"),
        ("system:basic-user", "system:basic-user", "Group", "system:authenticated"),
        ("system:public-info-viewer", "system:public-info-viewer", "Group", "system:authenticated"),
        (
            "system:public-info-viewer:anonymous",
            "system:public-info-viewer",
            "Group",
            "system:unauthenticated",
        ),
        ("system:node-proxier", "system:node-proxier", "User", "system:kube-proxy"),
        ("system:kube-scheduler", "system:kube-scheduler", "User", "system:kube-scheduler"),
        (
            "system:kube-controller-manager",
            "system:kube-controller-manager",
            "User",
            "system:kube-controller-manager",
        ),
        ("system:node", "system:node", "Group", "system:nodes"),
    ];
    for (name, role, kind, subject) in bindings {
        let subjects =
            json!([{"kind": kind, "apiGroup": "rbac.authorization.k8s.io", "name": subject}]);
        all.push(("clusterrolebindings", binding(name, role, subjects)));
    }
    let dns = json!([{"kind": "ServiceAccount", "name": "kube-dns", "namespace": "kube-system"}]);
    all.push(("clusterrolebindings", binding("system:kube-dns", "system:kube-dns", dns)));
    all
}

fn metadata(name: &str) -> Value {
    json!({"name": name, "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"},
        "annotations": {"rbac.authorization.kubernetes.io/autoupdate": "true"}})
}

fn binding(name: &str, role: &str, subjects: Value) -> Value {
    json!({"metadata": metadata(name), "subjects": subjects, "roleRef":
        {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}})
}

fn role(name: &str, rules: Value) -> Value {
    json!({"metadata": metadata(name), "rules": rules})
}

/// A role that collects the rules of others, and the part that is ours.
fn aggregated(name: &str, rules: Value) -> [Value; 2] {
    let label = format!("rbac.authorization.k8s.io/aggregate-to-{name}");
    let mut part = role(&format!("system:aggregate-to-{name}"), rules);
    part["metadata"]["labels"][&label] = "true".into();
    let mut sum = role(name, json!([]));
    sum["aggregationRule"] = json!({"clusterRoleSelectors": [{"matchLabels": {label: "true"}}]});
    [sum, part]
}

fn roles() -> Vec<Value> {
    let read = json!(["get", "list", "watch"]);
    let write = json!(["create", "delete", "deletecollection", "patch", "update"]);
    let core = json!([
        "configmaps",
        "endpoints",
        "persistentvolumeclaims",
        "pods",
        "replicationcontrollers",
        "serviceaccounts",
        "services",
        "pods/log",
        "pods/status",
        "services/status",
        "events",
        "limitranges",
        "resourcequotas",
        "bindings"
    ]);
    let apps = json!([
        "daemonsets",
        "deployments",
        "deployments/scale",
        "replicasets",
        "replicasets/scale",
        "statefulsets",
        "statefulsets/scale",
        "controllerrevisions"
    ]);
    let net = json!(["ingresses", "networkpolicies"]);
    let workloads = |verbs: &Value| {
        json!([
            {"verbs": verbs, "apiGroups": [""], "resources": core},
            {"verbs": verbs, "apiGroups": ["apps"], "resources": apps},
            {"verbs": verbs, "apiGroups": ["batch"], "resources": ["jobs", "cronjobs"]},
            {"verbs": verbs, "apiGroups": ["autoscaling"], "resources": ["horizontalpodautoscalers"]},
            {"verbs": verbs, "apiGroups": ["networking.k8s.io"], "resources": net},
            {"verbs": verbs, "apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"]},
            {"verbs": verbs, "apiGroups": ["policy"], "resources": ["poddisruptionbudgets"]},
        ])
    };
    let mut edit = workloads(&write);
    edit.as_array_mut().expect("a list").push(json!({"apiGroups": [""],
        "verbs": ["get", "list", "watch", "create", "delete", "deletecollection", "patch", "update"],
        "resources": ["secrets", "pods/exec", "pods/attach", "pods/portforward", "pods/proxy",
            "services/proxy", "pods/eviction", "serviceaccounts/token"]}));
    let admin = json!([{"verbs": ["*"], "apiGroups": ["rbac.authorization.k8s.io"],
        "resources": ["roles", "rolebindings"]},
        {"verbs": ["create"], "apiGroups": ["authorization.k8s.io"],
            "resources": ["localsubjectaccessreviews"]}]);
    let mut all = vec![
        role(
            "cluster-admin",
            json!([
                {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]},
                {"verbs": ["*"], "nonResourceURLs": ["*"]},
            ]),
        ),
        role(
            "system:discovery",
            json!([{"verbs": ["get"], "nonResourceURLs": ["/api", "/api/*",
            "/apis", "/apis/*", "/healthz", "/livez", "/openapi", "/openapi/*", "/readyz",
            "/version", "/version/"]}]),
        ),
        role(
            "system:public-info-viewer",
            json!([{"verbs": ["get"], "nonResourceURLs": ["/healthz",
            "/livez", "/readyz", "/version", "/version/"]}]),
        ),
        role(
            "system:basic-user",
            json!([
                {"verbs": ["create"], "apiGroups": ["authorization.k8s.io"],
                    "resources": ["selfsubjectaccessreviews", "selfsubjectrulesreviews"]},
                {"verbs": ["create"], "apiGroups": ["authentication.k8s.io"],
                    "resources": ["selfsubjectreviews"]},
            ]),
        ),
        role(
            "system:node-proxier",
            json!([
                {"verbs": read, "apiGroups": [""], "resources": ["services", "endpoints", "nodes"]},
                {"verbs": read, "apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"]},
                {"verbs": read, "apiGroups": ["networking.k8s.io"], "resources": ["servicecidrs"]},
                {"verbs": ["create", "patch", "update"], "apiGroups": ["", "events.k8s.io"],
                    "resources": ["events"]},
            ]),
        ),
        role(
            "system:kube-dns",
            json!([
                {"verbs": read, "apiGroups": [""],
                    "resources": ["endpoints", "services", "pods", "namespaces"]},
                {"verbs": read, "apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"]},
            ]),
        ),
        role(
            "system:kube-scheduler",
            json!([
                {"verbs": read, "apiGroups": ["*"], "resources": ["*"]},
                {"verbs": ["create"], "apiGroups": [""], "resources": ["bindings", "pods/binding"]},
                {"verbs": ["patch", "update"], "apiGroups": [""], "resources": ["pods/status"]},
                {"verbs": ["create", "patch", "update"], "apiGroups": ["", "events.k8s.io"],
                    "resources": ["events"]},
                {"verbs": ["*"], "apiGroups": ["coordination.k8s.io"], "resources": ["leases"]},
            ]),
        ),
        role(
            "system:kube-controller-manager",
            json!([
                {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]},
            ]),
        ),
        role(
            "system:node",
            json!([
                {"verbs": read, "apiGroups": [""], "resources": ["services", "nodes", "pods", "secrets",
                    "configmaps", "endpoints"]},
                {"verbs": ["create", "patch", "update"], "apiGroups": [""],
                    "resources": ["nodes", "nodes/status", "events", "pods/status"]},
                {"verbs": ["create", "delete"], "apiGroups": [""], "resources": ["pods"]},
                {"verbs": ["*"], "apiGroups": ["coordination.k8s.io"], "resources": ["leases"]},
                {"verbs": ["create"], "apiGroups": [""], "resources": ["serviceaccounts/token"]},
            ]),
        ),
    ];
    all.extend(aggregated("view", workloads(&read)));
    all.extend(aggregated("edit", edit));
    all.extend(aggregated("admin", admin));
    let nested = [("view", "edit"), ("view", "admin"), ("edit", "admin")];
    for part in &mut all {
        for (inner, outer) in nested {
            if part["metadata"]["name"] == format!("system:aggregate-to-{inner}") {
                let label = format!("rbac.authorization.k8s.io/aggregate-to-{outer}");
                part["metadata"]["labels"][label] = "true".into();
            }
        }
    }
    all
}
