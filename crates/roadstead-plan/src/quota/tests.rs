use super::*;
use serde_json::json;

const PODS: ObjectKind<'static> = ObjectKind { group: "", plural: "pods" };
const SERVICES: ObjectKind<'static> = ObjectKind { group: "", plural: "services" };

/// `pods=1/2 cpu=500m/1`: used and hard.
fn quota(text: &str) -> Value {
    let mut quota = json!({"metadata": {"name": "q"}, "spec": {}, "status": {}});
    for pair in text.split_whitespace() {
        let (name, amounts) = pair.split_once('=').unwrap();
        let (used, hard) = amounts.split_once('/').unwrap();
        quota["status"]["used"][name] = used.into();
        quota["status"]["hard"][name] = hard.into();
        quota["spec"]["hard"][name] = hard.into();
    }
    quota
}

fn pod(resources: Value) -> Value {
    json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "resources": resources}]}})
}

fn told(charged: Result<Option<Value>, String>) -> String {
    match charged {
        Ok(Some(used)) => listed(&amounts(&used)),
        Ok(None) => "nothing".to_owned(),
        Err(refusal) => refusal,
    }
}

#[test]
fn what_pods_cost() {
    let small = json!({"requests": {"cpu": "100m", "memory": "64Mi"},
        "limits": {"cpu": "200m", "memory": "128Mi"}});
    for (text, resources, want) in [
        ("pods=1/2", json!({}), "pods=2"),
        (
            "pods=2/2",
            json!({}),
            "exceeded quota: q, requested: pods=1, used: pods=2, limited: pods=2",
        ),
        ("configmaps=0/0", json!({}), "nothing"),
        ("cpu=1/2 requests.memory=1Gi/2Gi", small.clone(), "cpu=1100m,requests.memory=1088Mi"),
        (
            "limits.cpu=1/1 limits.memory=1Gi/1Gi pods=0/1",
            small.clone(),
            "exceeded quota: q, requested: limits.cpu=200m,limits.memory=128Mi, used: \
             limits.cpu=1,limits.memory=1Gi, limited: limits.cpu=1,limits.memory=1Gi",
        ),
        (
            "limits.cpu=0/1 requests.memory=0/1Gi",
            json!({"requests": {"memory": "1Mi"}}),
            "failed quota: q: must specify limits.cpu for: c",
        ),
        (
            "cpu=0/1 memory=0/1Gi",
            json!({}),
            "failed quota: q: must specify cpu for: c; memory for: c",
        ),
        (
            "requests.nvidia.com/gpu=1/1",
            json!({"requests": {"nvidia.com/gpu": "1"}}),
            "exceeded quota: q, requested: requests.nvidia.com/gpu=1, used: \
             requests.nvidia.com/gpu=1, limited: requests.nvidia.com/gpu=1",
        ),
        ("count/pods=4/5 count/pods.apps=0/0", json!({}), "count/pods=5,count/pods.apps=0"),
    ] {
        let found = charge(&quota(text), &PODS, None, Some(&pod(resources)));
        assert_eq!(told(found), want, "{text}");
    }
}

#[test]
fn what_goes_is_given_back() {
    let mut ended = pod(json!({}));
    ended["status"]["phase"] = "Succeeded".into();
    for (text, pod, want) in [
        ("pods=1/2", pod(json!({})), "pods=0"),
        ("pods=0/2", pod(json!({})), "pods=0"),
        ("pods=1/2 count/pods=1/2", ended, "count/pods=0,pods=1"),
    ] {
        assert_eq!(told(charge(&quota(text), &PODS, Some(&pod), None)), want, "{text}");
    }
    let mut fresh = quota("pods=0/2");
    fresh["status"]["used"] = json!({});
    let found = told(charge(&fresh, &PODS, None, Some(&pod(json!({})))));
    assert_eq!(found, "status unknown for quota: q, resources: pods");
    fresh["status"] = json!({});
    assert_eq!(told(charge(&fresh, &PODS, None, Some(&pod(json!({}))))), "nothing", "not yet");
}

#[test]
fn what_services_and_others_cost() {
    let service = |kind: &str, ports: usize, more: Value| {
        let mut spec = json!({"type": kind, "ports": vec![json!({"port": 1}); ports]});
        set(&mut spec, &more);
        json!({"spec": spec})
    };
    let full = "services=0/9 services.nodeports=0/9 services.loadbalancers=0/9 count/services=0/9";
    for (service, want) in [
        (service("ClusterIP", 2, json!({})), [1, 1, 0, 0]),
        (service("NodePort", 2, json!({})), [1, 1, 0, 2]),
        (service("LoadBalancer", 3, json!({})), [1, 1, 1, 3]),
        (service("LoadBalancer", 3, json!({"allocateLoadBalancerNodePorts": false})), [1, 1, 1, 0]),
    ] {
        let [count, services, balancers, ports] = want;
        let want = format!(
            "count/services={count},services={services},services.loadbalancers={balancers},\
             services.nodeports={ports}"
        );
        assert_eq!(told(charge(&quota(full), &SERVICES, None, Some(&service))), want);
    }
    let (plain, ports) = (service("ClusterIP", 2, json!({})), service("NodePort", 2, json!({})));
    let change = charge(&quota("services.nodeports=8/9"), &SERVICES, Some(&plain), Some(&ports));
    assert_eq!(
        told(change),
        "exceeded quota: q, requested: services.nodeports=2, used: services.nodeports=8, limited: \
         services.nodeports=9"
    );
    let back = charge(&quota("services.nodeports=9/5"), &SERVICES, Some(&ports), Some(&plain));
    assert_eq!(told(back), "services.nodeports=7", "less is always allowed");
    let things = ObjectKind { group: "example.com", plural: "things" };
    let found = charge(&quota("count/things.example.com=1/1"), &things, None, Some(&json!({})));
    assert!(told(found).starts_with("exceeded quota: q, requested: count/things.example.com=1,"));
    let secrets = ObjectKind { group: "", plural: "secrets" };
    let found = charge(&quota("secrets=0/5 count/secrets=1/5"), &secrets, None, Some(&json!({})));
    assert_eq!(told(found), "count/secrets=2,secrets=1");
    let claims = ObjectKind { group: "", plural: "persistentvolumeclaims" };
    let claim = json!({"spec": {"storageClassName": "fast", "resources": {"requests": {"storage": "1Gi"}}}});
    let limits = "requests.storage=1Gi/3Gi fast.storageclass.storage.k8s.io/requests.storage=0/1Gi \
        slow.storageclass.storage.k8s.io/requests.storage=0/1Gi";
    assert_eq!(
        told(charge(&quota(limits), &claims, None, Some(&claim))),
        "fast.storageclass.storage.k8s.io/requests.storage=1Gi,requests.storage=2Gi,\
         slow.storageclass.storage.k8s.io/requests.storage=0"
    );
}

fn set(object: &mut Value, more: &Value) {
    for (name, value) in more.fields("") {
        object[name] = value.clone();
    }
}

#[test]
fn scopes_choose_pods() {
    let asks = json!({"requests": {"cpu": "1"}, "limits": {"cpu": "1"}});
    let with = |resources: &Value, more: Value| {
        let mut pod = pod(resources.clone());
        set(&mut pod["spec"], &more);
        pod
    };
    let none = json!({});
    let across = json!({"affinity": {"podAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": [{"podAffinityTerm": {"namespaces": ["x"]}}]}}});
    let class = |operator: &str, values: &[&str]| {
        json!({"scopeSelector": {"matchExpressions": [
            {"scopeName": "PriorityClass", "operator": operator, "values": values}]}})
    };
    let scope = |name: &str| json!({"scopes": [name]});
    for (spec, pod, want) in [
        (scope("BestEffort"), with(&none, json!({})), true),
        (scope("BestEffort"), with(&asks, json!({})), false),
        (scope("NotBestEffort"), with(&asks, json!({})), true),
        (scope("Terminating"), with(&none, json!({"activeDeadlineSeconds": 5})), true),
        (scope("Terminating"), with(&none, json!({})), false),
        (scope("NotTerminating"), with(&none, json!({})), true),
        (scope("CrossNamespacePodAffinity"), with(&none, across), true),
        (scope("CrossNamespacePodAffinity"), with(&none, json!({})), false),
        (scope("PriorityClass"), with(&none, json!({"priorityClassName": "a"})), true),
        (class("In", &["a"]), with(&none, json!({"priorityClassName": "a"})), true),
        (class("In", &["a"]), with(&none, json!({"priorityClassName": "b"})), false),
        (class("In", &["a"]), with(&none, json!({})), false),
        (class("NotIn", &["a"]), with(&none, json!({})), true),
        (class("DoesNotExist", &[]), with(&none, json!({})), true),
        (scope("Unheard"), with(&none, json!({})), false),
    ] {
        let mut quota = quota("pods=0/1");
        set(&mut quota["spec"], &spec);
        let charged = charge(&quota, &PODS, None, Some(&pod)).unwrap();
        assert_eq!(charged.is_some(), want, "{spec} {pod}");
        assert_eq!(charge(&quota, &SERVICES, None, Some(&json!({}))), Ok(None), "only pods");
    }
}

#[test]
fn everything_counted_anew() {
    let mut quota = quota(
        "pods=9/2 requests.cpu=9/2 services=9/1 configmaps=9/5 count/things.example.com=9/5 \
         count/pods=9/9",
    );
    quota["status"] = json!({});
    let hard = amounts(&quota["spec"]["hard"]);
    assert_eq!(looked_into(&hard), [PODS, SERVICES]);
    let counted: Vec<_> = counted(&hard).into_iter().map(|(limit, ..)| limit).collect();
    assert_eq!(counted, ["configmaps", "count/things.example.com"]);
    let mut ended = pod(json!({}));
    ended["status"]["phase"] = "Failed".into();
    let pods = vec![pod(json!({"requests": {"cpu": "1500m"}})), ended];
    let number = |number| Quantity::count(number);
    let counts = [("configmaps", 3), ("count/things.example.com", 4), ("secrets", 8)];
    let counts = counts.map(|(name, count)| (name.to_owned(), number(count))).into();
    let status = status(&quota, &[(PODS, pods), (SERVICES, vec![])], &counts);
    assert_eq!(
        listed(&amounts(&status["used"])),
        "configmaps=3,count/pods=2,count/things.example.com=4,pods=1,requests.cpu=1500m,services=0"
    );
    assert_eq!(status["hard"], quota["spec"]["hard"]);
}
