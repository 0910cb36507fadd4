//! The levels and schemas of every cluster, as kube-apiserver makes them. Without the mandatory ones the
//! server could not tell what to do with a request; the suggested ones are the operator's to change.

use serde_json::{Value, json};

/// Which kind of object it is, and how its maintenance goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rank {
    /// Always as we want it.
    Mandatory,
    /// As we want it, unless the operator says otherwise.
    Suggested,
}

/// An object that every cluster has, without apiVersion and kind.
#[derive(Debug)]
pub struct SystemObject {
    /// Which of the two kinds, as in a path.
    pub plural: &'static str,
    /// Whether operators may change it.
    pub rank: Rank,
    /// Name, annotation and spec.
    pub object: Value,
}

/// Whether we may bring the spec of an object up to date.
pub const AUTO_UPDATE: &str = "apf.kubernetes.io/autoupdate-spec";

/// The plural of PriorityLevelConfiguration.
pub const LEVELS: &str = "prioritylevelconfigurations";

/// The plural of FlowSchema.
pub const SCHEMAS: &str = "flowschemas";

/// The suggested levels: name, shares, percentage to lend, queues, hand.
const SUGGESTED: [(&str, u32, u32, u32, u32); 6] = [
    ("system", 30, 33, 64, 6),
    ("node-high", 40, 25, 64, 6),
    ("leader-election", 10, 0, 16, 4),
    ("workload-high", 40, 50, 128, 6),
    ("workload-low", 100, 90, 128, 6),
    ("global-default", 20, 50, 128, 6),
];

/// All of them, the levels before the schemas that name them.
pub fn objects() -> Vec<SystemObject> {
    let suggested = SUGGESTED.map(|(name, shares, lendable, queues, hand)| {
        let queuing = json!({"queues": queues, "handSize": hand, "queueLengthLimit": 50});
        let spec = json!({"type": "Limited", "limited": {"nominalConcurrencyShares": shares,
            "lendablePercent": lendable, "limitResponse": {"type": "Queue", "queuing": queuing}}});
        made(LEVELS, Rank::Suggested, name, spec)
    });
    let mandatory = ["exempt", "catch-all"].map(|name| {
        let spec = mandatory_level_spec(name);
        made(LEVELS, Rank::Mandatory, name, spec)
    });
    suggested.into_iter().chain(mandatory).chain(schemas()).collect()
}

/// The fixed form of a mandatory level.
pub fn mandatory_level(name: &str) -> Option<Value> {
    let known = ["exempt", "catch-all"].contains(&name);
    known.then(|| made(LEVELS, Rank::Mandatory, name, mandatory_level_spec(name)).object)
}

/// The fixed form of a mandatory schema.
pub fn mandatory_schema(name: &str) -> Option<Value> {
    let is_it = |schema: &SystemObject| {
        schema.rank == Rank::Mandatory && schema.object["metadata"]["name"] == name
    };
    ["exempt", "catch-all"]
        .contains(&name)
        .then(schemas)?
        .into_iter()
        .find(is_it)
        .map(|it| it.object)
}

fn mandatory_level_spec(name: &str) -> Value {
    match name {
        "exempt" => json!({"type": "Exempt",
            "exempt": {"nominalConcurrencyShares": 0, "lendablePercent": 0}}),
        _ => json!({"type": "Limited", "limited": {"nominalConcurrencyShares": 5,
            "lendablePercent": 0, "limitResponse": {"type": "Reject"}}}),
    }
}

fn made(plural: &'static str, rank: Rank, name: &str, spec: Value) -> SystemObject {
    let metadata = json!({"name": name, "annotations": {AUTO_UPDATE: "true"}});
    SystemObject { plural, rank, object: json!({"metadata": metadata, "spec": spec}) }
}

/// A schema on one line: its name, level, precedence, and how flows are told apart.
struct Row(&'static str, &'static str, u32, &'static str);

fn schemas() -> Vec<SystemObject> {
    use Rank::{Mandatory, Suggested};
    let everybody = || groups(&["system:unauthenticated", "system:authenticated"]);
    let nodes = || groups(&["system:nodes"]);
    let accounts = || {
        json!({"kind": "ServiceAccount",
        "serviceAccount": {"name": "*", "namespace": "kube-system"}})
    };
    let controller_manager = || user("system:kube-controller-manager");
    let leaders = json!([controller_manager(), user("system:kube-scheduler"), accounts()]);
    let leases = |verbs: Value| {
        json!({"verbs": verbs, "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"], "namespaces": ["*"]})
    };
    let own_node = json!({"verbs": ["*"], "apiGroups": [""], "resources": ["nodes", "nodes/status"],
        "namespaces": ["*"], "clusterScope": true});
    let health = json!({"subjects": everybody(), "nonResourceRules": [{"verbs": ["get"],
        "nonResourceURLs": ["/healthz", "/readyz", "/livez"]}]});
    let only =
        |subjects: Value, rules: Value| json!({"subjects": subjects, "resourceRules": rules});
    let rows = [
        (Suggested, Row("system-nodes", "system", 500, "ByUser"), everything(nodes())),
        (
            Suggested,
            Row("system-node-high", "node-high", 400, "ByUser"),
            only(nodes(), json!([own_node, leases(json!(["*"]))])),
        ),
        (Suggested, Row("probes", "exempt", 2, ""), health),
        (
            Suggested,
            Row("system-leader-election", "leader-election", 100, "ByUser"),
            only(leaders, json!([leases(json!(["get", "create", "update"]))])),
        ),
        (
            Suggested,
            Row("kube-controller-manager", "workload-high", 800, "ByNamespace"),
            everything(json!([controller_manager()])),
        ),
        (
            Suggested,
            Row("kube-scheduler", "workload-high", 800, "ByNamespace"),
            everything(json!([user("system:kube-scheduler")])),
        ),
        (
            Suggested,
            Row("kube-system-service-accounts", "workload-high", 900, "ByNamespace"),
            everything(json!([accounts()])),
        ),
        (
            Suggested,
            Row("service-accounts", "workload-low", 9000, "ByUser"),
            everything(groups(&["system:serviceaccounts"])),
        ),
        (
            Suggested,
            Row("global-default", "global-default", 9900, "ByUser"),
            everything(everybody()),
        ),
        (Mandatory, Row("exempt", "exempt", 1, ""), everything(groups(&["system:masters"]))),
        (Mandatory, Row("catch-all", "catch-all", 10_000, "ByUser"), everything(everybody())),
    ];
    let schema = |(rank, Row(name, level, precedence, method), rules): (Rank, Row, Value)| {
        let mut spec = json!({"priorityLevelConfiguration": {"name": level},
            "matchingPrecedence": precedence, "rules": [rules]});
        if !method.is_empty() {
            spec["distinguisherMethod"] = json!({"type": method});
        }
        made(SCHEMAS, rank, name, spec)
    };
    rows.into_iter().map(schema).collect()
}

fn groups(names: &[&str]) -> Value {
    names.iter().map(|name| json!({"kind": "Group", "group": {"name": name}})).collect()
}

fn user(name: &str) -> Value {
    json!({"kind": "User", "user": {"name": name}})
}

/// All that these subjects can ask for.
fn everything(subjects: Value) -> Value {
    json!({"subjects": subjects,
        "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"],
            "namespaces": ["*"], "clusterScope": true}],
        "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}]})
}
