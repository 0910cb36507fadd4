//! What becomes of a Service when it changes.

use super::*;

const BOTH: &str = "10.96.0.0/16,fd00:96::/112";

/// A Service that is created with one spec and changed by another: merged into it (`PATCH`), or in
/// its place (`PUT`).
struct Case {
    name: &'static str,
    from: Value,
    method: &'static str,
    to: Value,
    /// What is true afterwards, or what the refusal says.
    want: &'static str,
}

fn case(name: &'static str, from: Value, to: Value, want: &'static str) -> Case {
    Case { name, from, method: "PATCH", to, want }
}

fn put(name: &'static str, from: Value, to: Value, want: &'static str) -> Case {
    Case { name, from, method: "PUT", to, want }
}

fn ports(extra: Value) -> Value {
    let mut spec = json!({"ports": [{"port": 80}]});
    spec.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    spec
}

fn check(cases: Vec<Case>) {
    run(async {
        for Case { name, from, method, to, want } in cases {
            let cluster = Cluster::with(BOTH).await;
            let before = cluster.create("web", from).await;
            assert_eq!(before.said(), "ok", "{name}");
            let body = match method {
                "PATCH" => json!({"spec": to}),
                _ => service("web", to),
            };
            let answer = cluster.call(method, &format!("{PATH}/web"), body).await;
            if answer.code == 200 {
                let want =
                    want.replace("=same", &format!("={}", before.body.text("/spec/clusterIP")));
                check_claims(name, &answer.body, &want);
            } else {
                assert_eq!(answer.said(), want, "{name}");
            }
            cluster.check();
            cluster.call("DELETE", &format!("{PATH}/web"), Value::Null).await;
            cluster.check();
        }
    });
}

#[test]
fn types() {
    let lb = |extra: Value| {
        let mut spec = ports(json!({"type": "LoadBalancer"}));
        spec.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        spec
    };
    let local = || lb(json!({"externalTrafficPolicy": "Local"}));
    let external = || json!({"type": "ExternalName", "externalName": "a.b"});
    check(vec![
        case(
            "to NodePort",
            ports(json!({})),
            json!({"type": "NodePort"}),
            "spec/ports/0/nodePort=* spec/externalTrafficPolicy=Cluster spec/clusterIP=same",
        ),
        case(
            "to LoadBalancer",
            ports(json!({})),
            json!({"type": "LoadBalancer"}),
            "spec/ports/0/nodePort=* spec/allocateLoadBalancerNodePorts=true spec/clusterIP=same",
        ),
        case(
            "NodePort to ClusterIP",
            ports(json!({"type": "NodePort"})),
            json!({"type": "ClusterIP"}),
            "spec/ports/0/nodePort=- spec/externalTrafficPolicy=- spec/clusterIP=same",
        ),
        case(
            "NodePort to ClusterIP with a new node port",
            ports(json!({"type": "NodePort"})),
            json!({"type": "ClusterIP", "ports": [{"port": 80, "nodePort": 30001}]}),
            "spec.ports[0].nodePort: Forbidden: may not be used when `type` is 'ClusterIP'",
        ),
        case(
            "NodePort to ClusterIP with another policy",
            ports(json!({"type": "NodePort"})),
            json!({"type": "ClusterIP", "externalTrafficPolicy": "Local"}),
            "spec.externalTrafficPolicy: Invalid value: \"Local\": may only be set for \
             externally-accessible services",
        ),
        case(
            "LoadBalancer to ClusterIP",
            lb(json!({"loadBalancerClass": "a.b/c", "externalTrafficPolicy": "Local"})),
            json!({"type": "ClusterIP"}),
            "spec/ports/0/nodePort=- spec/externalTrafficPolicy=- spec/healthCheckNodePort=- \
             spec/allocateLoadBalancerNodePorts=- spec/loadBalancerClass=-",
        ),
        case(
            "LoadBalancer to NodePort",
            local(),
            json!({"type": "NodePort"}),
            "spec/ports/0/nodePort=* spec/externalTrafficPolicy=Local spec/healthCheckNodePort=- \
             spec/allocateLoadBalancerNodePorts=-",
        ),
        case(
            "to ExternalName",
            ports(json!({"type": "NodePort", "selector": {"a": "b"}})),
            external(),
            "spec/clusterIP=- spec/clusterIPs=- spec/ipFamilies=- spec/ipFamilyPolicy=- \
             spec/ports/0/nodePort=- spec/ports/0/port=80 spec/selector/a=b \
             spec/internalTrafficPolicy=-",
        ),
        case(
            "to ExternalName without a name",
            ports(json!({})),
            json!({"type": "ExternalName"}),
            "spec.externalName: Required value",
        ),
        case(
            "ExternalName to ClusterIP",
            external(),
            ports(json!({"type": "ClusterIP"})),
            "spec/clusterIP=* spec/ipFamilies=[\"IPv4\"] spec/ipFamilyPolicy=SingleStack \
             spec/externalName=a.b spec/internalTrafficPolicy=Cluster",
        ),
        case(
            "ExternalName to headless",
            external(),
            json!({"type": "ClusterIP", "clusterIP": "None"}),
            "spec/clusterIPs=[\"None\"] spec/ipFamilyPolicy=RequireDualStack",
        ),
        case(
            "ExternalName to two families",
            external(),
            ports(json!({"type": "NodePort", "ipFamilyPolicy": "RequireDualStack"})),
            "spec/clusterIPs/1=* spec/ports/0/nodePort=*",
        ),
        case(
            "headless to ExternalName",
            json!({"clusterIP": "None"}),
            external(),
            "spec/clusterIP=- spec/ipFamilies=-",
        ),
        case(
            "headless to NodePort",
            ports(json!({"clusterIP": "None"})),
            json!({"type": "NodePort"}),
            "spec.clusterIPs[0]: Invalid value: \"None\": may not be set to 'None' for NodePort \
             services",
        ),
        case(
            "headless to an address",
            ports(json!({"clusterIP": "None"})),
            json!({"clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.9"],
                "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack"}),
            "spec.clusterIPs[0]: Invalid value: [\"10.96.0.9\"]: may not change once set",
        ),
        case(
            "to headless",
            ports(json!({})),
            json!({"clusterIP": "None"}),
            "spec.clusterIPs[0]: Invalid value: [\"None\"]: may not change once set",
        ),
        case(
            "another address",
            ports(json!({"clusterIP": "10.96.0.9"})),
            json!({"clusterIP": "10.96.0.8"}),
            "spec.clusterIPs[0]: Invalid value: [\"10.96.0.8\"]: may not change once set",
        ),
        case(
            "policy Local",
            lb(json!({})),
            json!({"externalTrafficPolicy": "Local"}),
            "spec/healthCheckNodePort=*",
        ),
        case(
            "policy Cluster",
            local(),
            json!({"externalTrafficPolicy": "Cluster"}),
            "spec/healthCheckNodePort=-",
        ),
        case(
            "another health check port",
            lb(json!({"externalTrafficPolicy": "Local", "healthCheckNodePort": 30001})),
            json!({"healthCheckNodePort": 30002}),
            "spec.healthCheckNodePort: Forbidden: field is immutable",
        ),
        case(
            "a health check port without Local",
            lb(json!({})),
            json!({"healthCheckNodePort": 30002}),
            "spec.healthCheckNodePort: Invalid value: 30002: may only be set when `type` is \
             'LoadBalancer' and `externalTrafficPolicy` is 'Local'",
        ),
        case(
            "another class",
            lb(json!({"loadBalancerClass": "a.b/c"})),
            json!({"loadBalancerClass": "a.b/d"}),
            "spec.loadBalancerClass: Invalid value: \"a.b/d\": may not change once set",
        ),
        case(
            "no class any more",
            lb(json!({"loadBalancerClass": "a.b/c"})),
            json!({"loadBalancerClass": null}),
            "spec.loadBalancerClass: Invalid value: null: may not change once set",
        ),
        case(
            "no node ports any more",
            lb(json!({})),
            json!({"allocateLoadBalancerNodePorts": false, "ports": [{"port": 80}]}),
            "spec/ports/0/nodePort=-",
        ),
        case(
            "node ports stay unless they are left out",
            lb(json!({})),
            json!({"allocateLoadBalancerNodePorts": false}),
            "spec/ports/0/nodePort=*",
        ),
    ]);
}

#[test]
fn what_an_update_leaves_out_stays() {
    let fixed = || {
        json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local",
            "healthCheckNodePort": 30003, "clusterIP": "10.96.0.9",
            "ports": [{"name": "a", "port": 80, "nodePort": 30001},
                {"name": "b", "port": 81, "nodePort": 30002}]})
    };
    check(vec![
        put(
            "the same again",
            fixed(),
            json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local",
                "ports": [{"name": "a", "port": 80}, {"name": "b", "port": 81}]}),
            "spec/clusterIP=10.96.0.9 spec/ports/0/nodePort=30001 spec/ports/1/nodePort=30002 \
             spec/healthCheckNodePort=30003 spec/ipFamilies=[\"IPv4\"]",
        ),
        put(
            "node ports go by name",
            fixed(),
            json!({"type": "NodePort", "ports": [{"name": "b", "port": 90}]}),
            "spec/ports/0/nodePort=30002 spec/healthCheckNodePort=-",
        ),
        put(
            "a node port that moved is not given twice",
            fixed(),
            json!({"type": "NodePort", "ports": [{"name": "a", "port": 80},
                {"name": "b", "port": 81, "nodePort": 30001}]}),
            "spec/ports/0/nodePort=* spec/ports/1/nodePort=30001",
        ),
        put(
            "only one address named",
            json!({"ports": [{"port": 80}], "ipFamilyPolicy": "RequireDualStack",
                "clusterIP": "10.96.0.9"}),
            json!({"ports": [{"port": 80}], "clusterIP": "10.96.0.9"}),
            "spec/clusterIPs/0=10.96.0.9 spec/clusterIPs/1=* spec/ipFamilyPolicy=RequireDualStack",
        ),
        put(
            "nothing named",
            json!({"ports": [{"port": 80}], "ipFamilyPolicy": "PreferDualStack"}),
            json!({"ports": [{"port": 80}]}),
            "spec/clusterIPs/1=* spec/ipFamilyPolicy=PreferDualStack spec/ipFamilies/1=IPv6",
        ),
        put(
            "an ExternalName needs no address back",
            json!({"type": "ExternalName", "externalName": "a.b"}),
            json!({"type": "ExternalName", "externalName": "c.d"}),
            "spec/clusterIP=- spec/externalName=c.d",
        ),
        case(
            "a duplicate node port",
            fixed(),
            json!({"ports": [{"name": "a", "port": 80, "nodePort": 30009},
                {"name": "b", "port": 81, "nodePort": 30009}]}),
            "spec.ports[1].nodePort: Duplicate value: 30009",
        ),
        case(
            "its own health check port is taken",
            fixed(),
            json!({"ports": [{"name": "a", "port": 80, "nodePort": 30003}]}),
            "spec.ports[0].nodePort: Invalid value: 30003: provided port is already allocated",
        ),
    ]);
}

#[test]
fn families() {
    let dual = || ports(json!({"ipFamilyPolicy": "RequireDualStack"}));
    let fixed = || {
        ports(json!({"clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.9", "fd00:96::9"],
            "ipFamilyPolicy": "RequireDualStack"}))
    };
    check(vec![
        case(
            "to two by preference",
            ports(json!({})),
            json!({"ipFamilyPolicy": "PreferDualStack"}),
            "spec/clusterIP=same spec/clusterIPs/1=* spec/ipFamilies=[\"IPv4\",\"IPv6\"]",
        ),
        case(
            "to two by demand",
            ports(json!({"ipFamilies": ["IPv6"]})),
            json!({"ipFamilyPolicy": "RequireDualStack"}),
            "spec/clusterIP=same spec/clusterIPs/1=* spec/ipFamilies=[\"IPv6\",\"IPv4\"]",
        ),
        case(
            "to two, with an address",
            ports(json!({"clusterIP": "10.96.0.9"})),
            json!({"ipFamilyPolicy": "RequireDualStack", "clusterIPs": ["10.96.0.9", "fd00:96::9"]}),
            "spec/clusterIPs=[\"10.96.0.9\",\"fd00:96::9\"] spec/ipFamilies=[\"IPv4\",\"IPv6\"]",
        ),
        case(
            "to two, with an address outside",
            ports(json!({"clusterIP": "10.96.0.9"})),
            json!({"ipFamilyPolicy": "RequireDualStack", "clusterIPs": ["10.96.0.9", "fd01::9"]}),
            "spec.clusterIPs: Invalid value: [\"10.96.0.9\",\"fd01::9\"]: failed to allocate IP \
             fd01::9: the provided network does not match the current range",
        ),
        case(
            "back to one",
            dual(),
            json!({"ipFamilyPolicy": "SingleStack"}),
            "spec/clusterIP=same spec/clusterIPs/1=- spec/ipFamilies=[\"IPv4\"]",
        ),
        case(
            "back to one, said in full",
            fixed(),
            json!({"ipFamilyPolicy": "SingleStack", "clusterIPs": ["10.96.0.9"],
                "ipFamilies": ["IPv4"]}),
            "spec/clusterIPs=[\"10.96.0.9\"] spec/ipFamilies=[\"IPv4\"]",
        ),
        case(
            "fewer without policy",
            fixed(),
            json!({"clusterIPs": ["10.96.0.9"], "ipFamilies": ["IPv4"]}),
            "[spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": must be 'SingleStack' to \
             release the secondary cluster IP, spec.ipFamilyPolicy: Invalid value: \
             \"RequireDualStack\": must be 'SingleStack' to release the secondary IP family]",
        ),
        case(
            "fewer addresses only",
            fixed(),
            json!({"clusterIPs": ["10.96.0.9"]}),
            "spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": must be 'SingleStack' to \
             release the secondary cluster IP",
        ),
        case(
            "families swapped",
            fixed(),
            json!({"ipFamilies": ["IPv6", "IPv4"]}),
            "[spec.clusterIPs[0]: Invalid value: \"10.96.0.9\": expected an IPv6 value as \
             indicated by `ipFamilies[0]`, spec.clusterIPs[1]: Invalid value: \"fd00:96::9\": \
             expected an IPv4 value as indicated by `ipFamilies[1]`]",
        ),
        case(
            "another second address",
            fixed(),
            json!({"clusterIPs": ["10.96.0.9", "fd00:96::8"]}),
            "spec.clusterIPs[1]: Invalid value: [\"10.96.0.9\",\"fd00:96::8\"]: may not change \
             once set",
        ),
        case(
            "the second first",
            ports(json!({"clusterIP": "10.96.0.9"})),
            json!({"ipFamilyPolicy": "RequireDualStack", "clusterIP": "fd00:96::9",
                "clusterIPs": ["fd00:96::9", "10.96.0.9"], "ipFamilies": ["IPv6", "IPv4"]}),
            "spec.clusterIPs: Invalid value: [\"fd00:96::9\",\"10.96.0.9\"]: failed to allocate IP \
             10.96.0.9: provided IP is already allocated",
        ),
        case(
            "a headless Service may change families",
            ports(json!({"clusterIP": "None", "selector": {"a": "b"}})),
            json!({"ipFamilies": ["IPv6"]}),
            "spec/ipFamilies=[\"IPv6\"]",
        ),
        case(
            "a headless Service may have two",
            ports(json!({"clusterIP": "None", "selector": {"a": "b"}})),
            json!({"ipFamilyPolicy": "PreferDualStack"}),
            "spec/ipFamilies=[\"IPv4\",\"IPv6\"] spec/clusterIPs=[\"None\"]",
        ),
        case(
            "prefer instead of require",
            dual(),
            json!({"ipFamilyPolicy": "PreferDualStack"}),
            "spec/clusterIPs/1=* spec/ipFamilyPolicy=PreferDualStack",
        ),
    ]);
}

#[test]
fn a_preference_is_not_met_by_surprise() {
    run(async {
        let store = Store::memory();
        let single = Cluster::over(store.clone(), "10.96.0.0/16", Services::default()).await;
        let spec = ports(json!({"ipFamilyPolicy": "PreferDualStack"}));
        assert_eq!(single.create("web", spec).await.said(), "ok");
        // The same store, by a server that has both families now.
        let both = Cluster::over(store, BOTH, Services::default()).await;
        let path = format!("{PATH}/web");
        let touched = json!({"metadata": {"labels": {"a": "b"}}});
        let answer = both.call("PATCH", &path, touched).await;
        check_claims("untouched", &answer.body, "metadata/labels/a=b spec/clusterIPs/1=-");
        let demand = json!({"spec": {"ipFamilyPolicy": "RequireDualStack"}});
        let answer = both.call("PATCH", &path, demand).await;
        check_claims("on demand", &answer.body, "spec/clusterIPs/1=*");
        both.check();
    });
}

#[test]
fn status() {
    let ingress = |ingress: Value| json!({"status": {"loadBalancer": {"ingress": [ingress]}}});
    let place = "status.loadBalancer.ingress[0]";
    let cases = [
        ("address", json!({"ip": "192.0.2.1"}), "ok".to_owned()),
        ("by proxy", json!({"ip": "192.0.2.1", "ipMode": "Proxy"}), "ok".to_owned()),
        ("name", json!({"hostname": "lb.example.com"}), "ok".to_owned()),
        (
            "no address",
            json!({"ip": "lb"}),
            format!(
                "{place}.ip: Invalid value: \"lb\": must be a valid IP address, (e.g. 10.9.8.7 or \
                 2001:db8::ffff)"
            ),
        ),
        (
            "no mode",
            json!({"ip": "192.0.2.1", "ipMode": "vip"}),
            format!(
                "{place}.ipMode: Unsupported value: \"vip\": supported values: \"Proxy\", \"VIP\""
            ),
        ),
        (
            "mode without address",
            json!({"hostname": "a.b", "ipMode": "VIP"}),
            format!("{place}.ipMode: Forbidden: may not be specified when `ip` is not set"),
        ),
        (
            "an address as a name",
            json!({"hostname": "192.0.2.1"}),
            format!(
                "{place}.hostname: Invalid value: \"192.0.2.1\": must be a DNS name, not an IP \
                 address"
            ),
        ),
    ];
    run(async {
        for (name, given, want) in cases {
            let cluster = Cluster::with(BOTH).await;
            cluster.create("web", ports(json!({"type": "LoadBalancer"}))).await;
            let path = format!("{PATH}/web");
            let answer = cluster.call("PATCH", &format!("{path}/status"), ingress(given)).await;
            assert_eq!(answer.said(), want, "{name}");
            if answer.code != 200 {
                continue;
            }
            // The main resource does not touch it, as long as there is a balancer.
            let label = json!({"metadata": {"labels": {"a": "b"}}, "status": {"loadBalancer": {}}});
            let answer = cluster.call("PATCH", &path, label).await;
            check_claims(name, &answer.body, "status/loadBalancer/ingress/0=*");
            let answer = cluster.call("PATCH", &path, json!({"spec": {"type": "NodePort"}})).await;
            check_claims(name, &answer.body, "status/loadBalancer={}");
        }
        let cluster = Cluster::with(BOTH).await;
        cluster.create("web", ports(json!({}))).await;
        let status = ingress(json!({"ip": "192.0.2.1"}));
        assert_eq!(
            cluster.call("PATCH", &format!("{PATH}/web/status"), status).await.said(),
            "status.loadBalancer.ingress: Forbidden: may only be used when `spec.type` is \
             'LoadBalancer'"
        );
    });
}

#[test]
fn finalizers_keep_what_is_held() {
    run(async {
        let cluster = Cluster::with(BOTH).await;
        let mut held = service("web", ports(json!({"type": "NodePort"})));
        held["metadata"]["finalizers"] = json!(["example.com/mine"]);
        cluster.call("POST", PATH, held).await;
        let path = format!("{PATH}/web");
        cluster.call("DELETE", &path, Value::Null).await;
        cluster.check();
        let address = cluster.get("web").await.text("/spec/clusterIP").to_owned();
        let taken = ports(json!({"clusterIP": address}));
        assert!(cluster.create("other", taken.clone()).await.said().contains("already allocated"));
        // The last finalizer goes together with a change that would take more.
        let last = json!({"metadata": {"finalizers": null},
            "spec": {"type": "LoadBalancer", "externalTrafficPolicy": "Local"}});
        assert_eq!(cluster.call("PATCH", &path, last).await.code, 200);
        cluster.check();
        assert_eq!(cluster.create("other", taken).await.said(), "ok");
        cluster.check();
    });
}
