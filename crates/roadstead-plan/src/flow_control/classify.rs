//! Which schema a request matches, and which flow of it the request belongs to.

use std::cmp::Ordering;

use roadstead_schema::json::Pointer;
use serde_json::Value;

/// What is known of a request before anybody has asked whether it may.
#[derive(Clone, Copy, Debug)]
pub struct RequestDigest<'a> {
    /// Who sends it.
    pub user: &'a str,
    /// And to which groups they belong.
    pub groups: &'a [String],
    /// Such as `get`.
    pub verb: &'a str,
    /// What it is about.
    pub target: RequestTarget<'a>,
}

/// What a request is about.
#[derive(Clone, Copy, Debug)]
pub enum RequestTarget<'a> {
    /// Objects, or something below one.
    Objects {
        /// Empty for the core group.
        group: &'a str,
        /// Such as `pods`.
        plural: &'a str,
        /// Such as `status`; empty for the object itself.
        subresource: &'a str,
        /// Empty for what is in no namespace, or in all of them.
        namespace: &'a str,
    },
    /// A path that is not about objects.
    Path(&'a str),
}

/// A FlowSchema, as far as it decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowSchema {
    /// Its name.
    pub name: String,
    /// What clients hear of it.
    pub uid: String,
    /// The level that it leads to.
    pub level: String,
    precedence: i64,
    method: Option<Method>,
    rules: Vec<Rules>,
}

/// How the flows of a schema are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    User,
    Namespace,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Rules {
    subjects: Vec<Subject>,
    objects: Vec<ObjectRule>,
    paths: Vec<PathRule>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Subject {
    User(String),
    Group(String),
    /// The accounts of a namespace that begin like this user name, or are it.
    Accounts {
        namespace: String,
        name: String,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct ObjectRule {
    verbs: Words,
    groups: Words,
    plurals: Words,
    namespaces: Words,
    cluster_scope: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct PathRule {
    verbs: Words,
    paths: Vec<String>,
}

/// Certain words, or any.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Words {
    Any,
    These(Vec<String>),
}

impl Words {
    fn read(list: &[Value]) -> Self {
        match list.iter().any(|word| word == "*") {
            true => Self::Any,
            false => Self::These(texts(list)),
        }
    }

    fn have(&self, is_it: impl Fn(&str) -> bool) -> bool {
        match self {
            Self::Any => true,
            Self::These(words) => words.iter().any(|word| is_it(word)),
        }
    }
}

fn texts(list: &[Value]) -> Vec<String> {
    list.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

impl FlowSchema {
    /// Reads a schema as it is stored.
    pub fn read(object: &Value) -> Self {
        let spec = &object["spec"];
        let method = match spec.text("/distinguisherMethod/type") {
            "ByUser" => Some(Method::User),
            "ByNamespace" => Some(Method::Namespace),
            _ => None,
        };
        Self {
            name: object.text("/metadata/name").to_owned(),
            uid: object.text("/metadata/uid").to_owned(),
            level: spec.text("/priorityLevelConfiguration/name").to_owned(),
            precedence: spec.int("/matchingPrecedence"),
            method,
            rules: spec.list("/rules").iter().map(Rules::read).collect(),
        }
    }

    /// Which of two schemas is asked first: nobody comes before the mandatory ones of their rank.
    pub fn order(&self, other: &Self) -> Ordering {
        (self.precedence, &self.name).cmp(&(other.precedence, &other.name))
    }

    /// Whether the request is one of those that it is about.
    pub fn matches(&self, request: &RequestDigest<'_>) -> bool {
        self.rules.iter().any(|rules| rules.cover(request))
    }

    /// What tells the flow of the request from others of this schema.
    pub fn distinguisher<'a>(&self, request: &RequestDigest<'a>) -> &'a str {
        match (self.method, request.target) {
            (Some(Method::User), _) => request.user,
            (Some(Method::Namespace), RequestTarget::Objects { namespace, .. }) => namespace,
            (Some(Method::Namespace), RequestTarget::Path(_)) | (None, _) => "",
        }
    }
}

impl Rules {
    fn read(rules: &Value) -> Self {
        let subjects = rules.list("/subjects").iter().filter_map(Subject::read);
        let objects = rules.list("/resourceRules").iter().map(|rule| ObjectRule {
            verbs: Words::read(rule.list("/verbs")),
            groups: Words::read(rule.list("/apiGroups")),
            plurals: Words::read(rule.list("/resources")),
            namespaces: Words::read(rule.list("/namespaces")),
            cluster_scope: rule.flag("/clusterScope"),
        });
        let paths = rules.list("/nonResourceRules").iter().map(|rule| PathRule {
            verbs: Words::read(rule.list("/verbs")),
            paths: texts(rule.list("/nonResourceURLs")),
        });
        Self { subjects: subjects.collect(), objects: objects.collect(), paths: paths.collect() }
    }

    fn cover(&self, request: &RequestDigest<'_>) -> bool {
        let about = match request.target {
            RequestTarget::Objects { .. } => self.objects.iter().any(|rule| rule.matches(request)),
            RequestTarget::Path(path) => {
                self.paths.iter().any(|rule| rule.matches(request.verb, path))
            }
        };
        about && self.subjects.iter().any(|subject| subject.is(request))
    }
}

impl Subject {
    fn read(subject: &Value) -> Option<Self> {
        match subject.text("/kind") {
            "User" => Some(Self::User(subject.text("/user/name").to_owned())),
            "Group" => Some(Self::Group(subject.text("/group/name").to_owned())),
            "ServiceAccount" => Some(Self::Accounts {
                namespace: subject.text("/serviceAccount/namespace").to_owned(),
                name: subject.text("/serviceAccount/name").to_owned(),
            }),
            _ => None,
        }
    }

    fn is(&self, request: &RequestDigest<'_>) -> bool {
        match self {
            Self::User(name) => name == "*" || name == request.user,
            Self::Group(name) => name == "*" || request.groups.iter().any(|group| group == name),
            Self::Accounts { namespace, name } => {
                let account = request.user.strip_prefix("system:serviceaccount:");
                let own = account.and_then(|account| account.split_once(':'));
                own.is_some_and(|(home, own)| home == namespace && (name == "*" || name == own))
            }
        }
    }
}

impl ObjectRule {
    fn matches(&self, request: &RequestDigest<'_>) -> bool {
        let RequestTarget::Objects { group, plural, subresource, namespace } = request.target
        else {
            return false;
        };
        let is_named = |word: &str| match subresource {
            "" => word == plural,
            below => word.split_once('/') == Some((plural, below)),
        };
        let here = match namespace {
            "" => self.cluster_scope,
            namespace => self.namespaces.have(|word| word == namespace),
        };
        here && self.verbs.have(|word| word == request.verb)
            && self.groups.have(|word| word == group)
            && self.plurals.have(is_named)
    }
}

impl PathRule {
    fn matches(&self, verb: &str, path: &str) -> bool {
        let is_below = |rule: &String| {
            let root = rule.strip_suffix('*').unwrap_or(rule);
            let root = root.strip_suffix('/').unwrap_or(root);
            rule == "*"
                || *rule == path
                || path.strip_prefix(root).is_some_and(|rest| rest.starts_with('/'))
        };
        self.verbs.have(|word| word == verb) && self.paths.iter().any(is_below)
    }
}

#[cfg(test)]
mod tests {
    use roadstead_api::kinds::flow_control::bootstrap;
    use serde_json::json;

    use super::*;

    fn schemas() -> Vec<FlowSchema> {
        let all = bootstrap::objects().into_iter();
        let all = all.filter(|one| one.plural == bootstrap::SCHEMAS);
        let mut all: Vec<_> = all.map(|one| FlowSchema::read(&one.object)).collect();
        all.sort_by(FlowSchema::order);
        all
    }

    /// `VERB /path`, or `VERB GROUP|PLURAL[/SUBRESOURCE]|NAMESPACE`, from `USER[,GROUP…]`.
    fn digest<T>(who: &str, what: &str, ask: impl FnOnce(&RequestDigest<'_>) -> T) -> T {
        let (user, groups) = who.split_once(',').unwrap_or((who, ""));
        let groups: Vec<_> = groups.split(',').map(str::to_owned).collect();
        let (verb, about) = what.split_once(' ').unwrap();
        let target = match about.split('|').collect::<Vec<_>>()[..] {
            [group, resource, namespace] => {
                let (plural, subresource) = resource.split_once('/').unwrap_or((resource, ""));
                RequestTarget::Objects { group, plural, subresource, namespace }
            }
            _ => RequestTarget::Path(about),
        };
        ask(&RequestDigest { user, groups: &groups, verb, target })
    }

    #[test]
    fn who_belongs_where_in_every_cluster() {
        let all = schemas();
        let account =
            "system:serviceaccount:kube-system:a,system:serviceaccounts,system:authenticated";
        let lease = "update coordination.k8s.io|leases|kube-system";
        // Who, what, the schema, and the flow in it.
        let cases = [
            ("root,system:masters", "delete |pods|n", "exempt", ""),
            ("system:anonymous,system:unauthenticated", "get /healthz", "probes", ""),
            ("system:anonymous,system:unauthenticated", "get /livez/ping", "probes", ""),
            ("u,system:authenticated", "get /healthzz", "global-default", "u"),
            ("u,system:authenticated", "post /healthz", "global-default", "u"),
            ("system:kube-scheduler,x", lease, "system-leader-election", "system:kube-scheduler"),
            ("system:kube-scheduler,x", "list |pods|", "kube-scheduler", ""),
            ("system:kube-controller-manager,x", "create |pods|n", "kube-controller-manager", "n"),
            (account, lease, "system-leader-election", "system:serviceaccount:kube-system:a"),
            (account, "delete |pods|n", "kube-system-service-accounts", "n"),
            (
                "system:serviceaccount:kube-systems:a,system:serviceaccounts",
                "get |pods|n",
                "service-accounts",
                "system:serviceaccount:kube-systems:a",
            ),
            (
                "system:node:a,system:nodes",
                "patch |nodes/status|",
                "system-node-high",
                "system:node:a",
            ),
            ("system:node:a,system:nodes", "patch |pods/status|n", "system-nodes", "system:node:a"),
            ("system:node:a,system:nodes", lease, "system-node-high", "system:node:a"),
            ("u,system:authenticated", "list |pods|", "global-default", "u"),
        ];
        for (who, what, schema, flow) in cases {
            digest(who, what, |request| {
                let found = all.iter().find(|schema| schema.matches(request));
                let found = found.map(|found| (&*found.name, found.distinguisher(request)));
                assert_eq!(found, Some((schema, flow)), "{who}: {what}");
            });
        }
    }

    #[test]
    fn rules() {
        let schema = |subject: Value, rule: Value| {
            FlowSchema::read(&json!({"metadata": {"name": "a"}, "spec": {"rules": [{
                "subjects": [subject], "resourceRules": [rule]}]}}))
        };
        let rule = |plural: &str, namespaces: Value, cluster: bool| {
            json!({"verbs": ["get"], "apiGroups": ["apps"], "resources": [plural],
                "namespaces": namespaces, "clusterScope": cluster})
        };
        let user = |name: &str| json!({"kind": "User", "user": {"name": name}});
        let in_n = rule("a/status", json!(["n"]), false);
        let cases = [
            (user("u"), in_n.clone(), "get apps|a/status|n", true),
            (user("*"), in_n.clone(), "get apps|a/status|n", true),
            (user("v"), in_n.clone(), "get apps|a/status|n", false),
            (user("u"), in_n.clone(), "get apps|a|n", false),
            (user("u"), in_n.clone(), "get apps|a/statu|n", false),
            (user("u"), in_n.clone(), "get apps|a/status|m", false),
            (user("u"), in_n.clone(), "get apps|a/status|", false),
            (user("u"), in_n.clone(), "put apps|a/status|n", false),
            (user("u"), in_n.clone(), "get |a/status|n", false),
            (user("u"), in_n, "get /apis", false),
            (user("u"), rule("*", json!(["*"]), false), "get apps|a/scale|m", true),
            (user("u"), rule("*", json!(["*"]), false), "get apps|a|", false),
            (user("u"), rule("*", json!([]), true), "get apps|a|", true),
            (user("u"), rule("*", json!([]), true), "get apps|a|n", false),
            (
                json!({"kind": "Group", "group": {"name": "*"}}),
                rule("*", json!(["*"]), true),
                "get apps|a|",
                true,
            ),
            (json!({"kind": "Group"}), rule("*", json!(["*"]), true), "get apps|a|", false),
        ];
        for (subject, rule, what, want) in cases {
            let schema = schema(subject.clone(), rule.clone());
            let found = digest("u,g", what, |request| schema.matches(request));
            assert_eq!(found, want, "{subject} {rule} {what}");
        }
    }
}
