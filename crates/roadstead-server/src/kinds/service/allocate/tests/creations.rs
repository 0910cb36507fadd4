//! What a new Service gets, and what is refused.

use super::*;

const FOUR: &str = "10.96.0.0/16";
const SIX: &str = "fd00:96::/112";
const BOTH: &str = "10.96.0.0/16,fd00:96::/112";
const BOTH_SIX_FIRST: &str = "fd00:96::/112,10.96.0.0/16";

fn plain(extra: Value) -> Value {
    let mut spec = json!({"ports": [{"port": 80}]});
    spec.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    spec
}

#[test]
fn families_of_new_services() {
    let cases = [
        ("default", FOUR, json!({}), "spec/ipFamilyPolicy=SingleStack spec/ipFamilies=[\"IPv4\"]"),
        ("default on six", SIX, json!({}), "spec/ipFamilies=[\"IPv6\"] spec/clusterIPs/1=-"),
        ("default on both", BOTH, json!({}), "spec/ipFamilies=[\"IPv4\"] spec/clusterIPs/1=-"),
        ("the first range decides", BOTH_SIX_FIRST, json!({}), "spec/ipFamilies=[\"IPv6\"]"),
        (
            "prefer on one",
            FOUR,
            json!({"ipFamilyPolicy": "PreferDualStack"}),
            "spec/ipFamilies=[\"IPv4\"] spec/ipFamilyPolicy=PreferDualStack spec/clusterIPs/1=-",
        ),
        (
            "prefer on both",
            BOTH,
            json!({"ipFamilyPolicy": "PreferDualStack"}),
            "spec/ipFamilies=[\"IPv4\",\"IPv6\"] spec/clusterIPs/0=* spec/clusterIPs/1=*",
        ),
        (
            "prefer six first",
            BOTH,
            json!({"ipFamilyPolicy": "PreferDualStack", "ipFamilies": ["IPv6"]}),
            "spec/ipFamilies=[\"IPv6\",\"IPv4\"] spec/clusterIPs/1=*",
        ),
        (
            "require on both",
            BOTH,
            json!({"ipFamilyPolicy": "RequireDualStack"}),
            "spec/ipFamilies=[\"IPv4\",\"IPv6\"] spec/clusterIPs/1=*",
        ),
        (
            "the other family alone",
            BOTH,
            json!({"ipFamilies": ["IPv6"]}),
            "spec/ipFamilies=[\"IPv6\"] spec/ipFamilyPolicy=SingleStack spec/clusterIPs/1=-",
        ),
        (
            "a family from an address",
            BOTH,
            json!({"clusterIP": "fd00:96::9"}),
            "spec/ipFamilies=[\"IPv6\"] spec/clusterIP=fd00:96::9 spec/clusterIPs=[\"fd00:96::9\"]",
        ),
        (
            "two addresses",
            BOTH,
            json!({"clusterIP": "fd00:96::9", "clusterIPs": ["fd00:96::9", "10.96.0.9"],
                "ipFamilyPolicy": "PreferDualStack"}),
            "spec/ipFamilies=[\"IPv6\",\"IPv4\"] spec/clusterIPs/1=10.96.0.9",
        ),
        (
            "headless without selector",
            FOUR,
            json!({"clusterIP": "None"}),
            "spec/ipFamilyPolicy=RequireDualStack spec/ipFamilies=[\"IPv4\",\"IPv6\"]",
        ),
        (
            "headless with selector",
            BOTH,
            json!({"clusterIP": "None", "selector": {"a": "b"}}),
            "spec/ipFamilyPolicy=SingleStack spec/ipFamilies=[\"IPv4\"] spec/clusterIPs=[\"None\"]",
        ),
        (
            "headless of the other family",
            FOUR,
            json!({"clusterIP": "None", "ipFamilies": ["IPv6"], "ipFamilyPolicy": "SingleStack"}),
            "spec/ipFamilies=[\"IPv6\"]",
        ),
        (
            "external",
            BOTH,
            json!({"type": "ExternalName", "externalName": "a.b", "internalTrafficPolicy": "Local"}),
            "spec/ipFamilies=- spec/ipFamilyPolicy=- spec/clusterIP=- spec/internalTrafficPolicy=-",
        ),
    ];
    run(async {
        for (name, ranges, spec, claims) in cases {
            let cluster = Cluster::with(ranges).await;
            let answer = cluster.create("web", plain(spec)).await;
            assert_eq!(answer.said(), "ok", "{name}");
            check_claims(name, &answer.body, claims);
            cluster.check();
        }
    });
}

#[test]
fn refusals() {
    let policy = |policy: &str| json!({"ipFamilyPolicy": policy});
    let cases = [
        (
            "require on one",
            FOUR,
            policy("RequireDualStack"),
            "spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": this cluster is not \
             configured for dual-stack services",
        ),
        (
            "the other family",
            FOUR,
            json!({"ipFamilies": ["IPv6"]}),
            "spec.ipFamilies[0]: Invalid value: \"IPv6\": not configured on this cluster",
        ),
        (
            "both, on one",
            FOUR,
            json!({"ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "RequireDualStack"}),
            "[spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": this cluster is not \
             configured for dual-stack services, spec.ipFamilies[1]: Invalid value: \"IPv6\": not \
             configured on this cluster]",
        ),
        (
            "an address of the other family",
            FOUR,
            json!({"clusterIP": "fd00:96::9"}),
            "spec.clusterIPs[0]: Invalid value: [\"fd00:96::9\"]: IPv6 is not configured on this \
             cluster",
        ),
        (
            "two families without policy",
            BOTH,
            json!({"ipFamilies": ["IPv4", "IPv6"]}),
            "spec.ipFamilyPolicy: Invalid value: \"SingleStack\": must be 'RequireDualStack' or \
             'PreferDualStack' when multiple IP families are specified",
        ),
        (
            "two addresses without policy",
            BOTH,
            json!({"clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.9", "fd00:96::9"]}),
            "spec.ipFamilyPolicy: Invalid value: \"SingleStack\": must be 'RequireDualStack' or \
             'PreferDualStack' when multiple cluster IPs are specified",
        ),
        (
            "two of one family",
            BOTH,
            json!({"clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.9", "10.96.0.8"],
                "ipFamilyPolicy": "PreferDualStack"}),
            "spec.clusterIPs: Invalid value: [\"10.96.0.9\",\"10.96.0.8\"]: may specify no more \
             than one IP for each IP family",
        ),
        (
            "many addresses only",
            FOUR,
            json!({"clusterIPs": ["10.96.0.9"]}),
            "spec.clusterIPs: Invalid value: [\"10.96.0.9\"]: must be empty when `clusterIP` is \
             not specified",
        ),
        (
            "addresses that differ",
            FOUR,
            json!({"clusterIP": "10.96.0.8", "clusterIPs": ["10.96.0.9"]}),
            "spec.clusterIPs: Invalid value: [\"10.96.0.9\"]: first value must match `clusterIP`",
        ),
        (
            "a family twice",
            BOTH,
            json!({"ipFamilies": ["IPv4", "IPv4"], "ipFamilyPolicy": "PreferDualStack"}),
            "spec.ipFamilies[1]: Duplicate value: \"IPv4\"",
        ),
        (
            "no such family",
            BOTH,
            json!({"ipFamilies": ["IPv5"]}),
            "spec.ipFamilies[0]: Unsupported value: \"IPv5\": supported values: \"IPv4\", \"IPv6\"",
        ),
        (
            "no such policy",
            BOTH,
            policy("Dual"),
            "spec.ipFamilyPolicy: Unsupported value: \"Dual\": supported values: \
             \"PreferDualStack\", \"RequireDualStack\", \"SingleStack\"",
        ),
        (
            "address and family differ",
            BOTH,
            json!({"clusterIP": "10.96.0.9", "ipFamilies": ["IPv6"]}),
            "spec.clusterIPs[0]: Invalid value: \"10.96.0.9\": expected an IPv6 value as indicated \
             by `ipFamilies[0]`",
        ),
        (
            "outside",
            FOUR,
            json!({"clusterIP": "1.2.3.4"}),
            "spec.clusterIPs: Invalid value: [\"1.2.3.4\"]: failed to allocate IP 1.2.3.4: the \
             provided network does not match the current range",
        ),
        (
            "the network itself",
            FOUR,
            json!({"clusterIP": "10.96.0.0"}),
            "spec.clusterIPs: Invalid value: [\"10.96.0.0\"]: failed to allocate IP 10.96.0.0: the \
             provided network does not match the current range",
        ),
        (
            "taken",
            FOUR,
            json!({"clusterIP": "10.96.0.1"}),
            "spec.clusterIPs: Invalid value: [\"10.96.0.1\"]: failed to allocate IP 10.96.0.1: \
             provided IP is already allocated",
        ),
        (
            "taken, and a second one wanted",
            BOTH,
            json!({"clusterIP": "10.96.0.1", "ipFamilyPolicy": "PreferDualStack"}),
            "spec.clusterIPs: Invalid value: [\"10.96.0.1\",\"\"]: failed to allocate IP \
             10.96.0.1: provided IP is already allocated",
        ),
        (
            "no address",
            FOUR,
            json!({"clusterIP": "none"}),
            "spec.clusterIPs[0]: Invalid value: \"none\": must be a valid IP address, (e.g. \
             10.9.8.7 or 2001:db8::ffff)",
        ),
        (
            "zeros",
            FOUR,
            json!({"clusterIP": "010.96.0.9"}),
            "spec.clusterIPs[0]: Invalid value: \"010.96.0.9\": must not have leading 0s",
        ),
        (
            "a port outside",
            FOUR,
            json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 80}]}),
            "spec.ports[0].nodePort: Invalid value: 80: provided port is not in the valid range. \
             The range of valid ports is 30000-32767",
        ),
        (
            "the same node port for two numbers",
            FOUR,
            json!({"type": "NodePort", "ports": [{"name": "a", "port": 80, "nodePort": 30080},
                {"name": "b", "port": 81, "nodePort": 30080}]}),
            "spec.ports[1].nodePort: Invalid value: 30080: provided port is already allocated",
        ),
        (
            "a health check port outside",
            FOUR,
            json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local",
                "healthCheckNodePort": 80}),
            "Internal error occurred: failed to allocate requested HealthCheck NodePort 80: \
             provided port is not in the valid range. The range of valid ports is 30000-32767",
        ),
        (
            "allocation comes before validation",
            FOUR,
            json!({"clusterIP": "1.2.3.4", "ports": []}),
            "spec.clusterIPs: Invalid value: [\"1.2.3.4\"]: failed to allocate IP 1.2.3.4: the \
             provided network does not match the current range",
        ),
    ];
    run(async {
        for (name, ranges, spec, want) in cases {
            let cluster = Cluster::with(ranges).await;
            assert_eq!(cluster.create("web", plain(spec)).await.said(), want, "{name}");
            cluster.check();
        }
    });
}

#[test]
fn node_ports() {
    let cases = [
        (
            "ports of one number share",
            json!({"type": "NodePort", "ports": [{"name": "t", "port": 53, "protocol": "TCP"},
                {"name": "u", "port": 53, "protocol": "UDP", "nodePort": 30053}]}),
            "spec/ports/0/nodePort=30053 spec/ports/1/nodePort=30053",
        ),
        (
            "a balancer has them too",
            json!({"type": "LoadBalancer"}),
            "spec/ports/0/nodePort=* spec/healthCheckNodePort=- \
             spec/allocateLoadBalancerNodePorts=true",
        ),
        (
            "unless it does not want any",
            json!({"type": "LoadBalancer", "allocateLoadBalancerNodePorts": false,
                "ports": [{"name": "a", "port": 80}, {"name": "b", "port": 81, "nodePort": 30081}]}),
            "spec/ports/0/nodePort=- spec/ports/1/nodePort=30081",
        ),
        (
            "health check",
            json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local"}),
            "spec/healthCheckNodePort=*",
        ),
        (
            "health check on a port of choice",
            json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local",
                "healthCheckNodePort": 30099}),
            "spec/healthCheckNodePort=30099",
        ),
    ];
    run(async {
        for (name, spec, claims) in cases {
            let cluster = Cluster::with(FOUR).await;
            let answer = cluster.create("web", plain(spec)).await;
            assert_eq!(answer.said(), "ok", "{name}");
            check_claims(name, &answer.body, claims);
            cluster.check();
        }
    });
}

#[test]
fn taken_ports_are_refused_and_come_back() {
    run(async {
        let cluster = Cluster::with(FOUR).await;
        let spec =
            || plain(json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 30080}]}));
        assert_eq!(cluster.create("a", spec()).await.said(), "ok");
        assert_eq!(
            cluster.create("b", spec()).await.said(),
            "spec.ports[0].nodePort: Invalid value: 30080: provided port is already allocated"
        );
        let health = plain(json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local",
            "healthCheckNodePort": 30080}));
        assert_eq!(
            cluster.create("b", health).await.said(),
            "Internal error occurred: failed to allocate requested HealthCheck NodePort 30080: \
             provided port is already allocated"
        );
        cluster.call("DELETE", &format!("{PATH}/a"), Value::Null).await;
        assert_eq!(cluster.create("b", spec()).await.said(), "ok");
        cluster.check();
    });
}

#[test]
fn ranges_run_out() {
    run(async {
        let services = Services { node_ports: 30_000..=30_001, ..Services::default() };
        let cluster = Cluster::over(Store::memory(), "10.96.0.0/29", services).await;
        // Six addresses, one of which is the server's own.
        for number in 0..5 {
            assert_eq!(cluster.create(&format!("s{number}"), plain(json!({}))).await.said(), "ok");
        }
        let answer = cluster.create("s5", plain(json!({}))).await;
        assert_eq!(
            (answer.code, answer.said().as_str()),
            (
                500,
                "Internal error occurred: failed to allocate a serviceIP for Service \"s5\": range \
                 is full"
            )
        );
        cluster.check();
        cluster.call("DELETE", &format!("{PATH}/s0"), Value::Null).await;
        let three = json!({"type": "NodePort", "ports": [{"name": "a", "port": 1},
            {"name": "b", "port": 2}, {"name": "c", "port": 3}]});
        assert_eq!(
            cluster.create("s5", three).await.said(),
            "Internal error occurred: failed to allocate a nodePort: range is full"
        );
        assert_eq!(cluster.create("s5", plain(json!({"type": "NodePort"}))).await.said(), "ok");
        cluster.check();
    });
}

#[test]
fn a_dry_run_takes_nothing() {
    run(async {
        let cluster = Cluster::with(BOTH).await;
        let spec = plain(json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local",
            "ipFamilyPolicy": "RequireDualStack"}));
        let path = format!("{PATH}?dryRun=All");
        let answer = cluster.call("POST", &path, service("web", spec)).await;
        let claims = "spec/clusterIPs=[\"10.96.0.0\",\"fd00:96::\"] \
             spec/ports/0/nodePort=32769 spec/healthCheckNodePort=32770";
        check_claims("dry run", &answer.body, claims);
        let named = plain(json!({"clusterIP": "10.96.0.1"}));
        assert_eq!(cluster.call("POST", &path, service("web", named)).await.said(), "ok");
        let outside = plain(json!({"clusterIP": "1.2.3.4"}));
        assert_ne!(cluster.call("POST", &path, service("web", outside)).await.said(), "ok");
        cluster.check();
        assert_eq!(cluster.get("web").await.text("/reason"), "NotFound");
    });
}

#[test]
fn addresses_are_written_as_objects_are() {
    let service = json!({"name": "a \"b\"", "namespace": "c"});
    let bytes = super::super::address_object("fd00::9".parse().unwrap(), &service);
    let object: Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(object.text("/spec/parentRef/name"), "a \"b\"");
    assert_eq!(crate::reading::object::encode(&object), bytes);
}

#[test]
fn addresses_are_objects() {
    run(async {
        let cluster = Cluster::with(FOUR).await;
        let named = plain(json!({"clusterIP": "10.96.0.9"}));
        assert_eq!(cluster.create("web", named.clone()).await.said(), "ok");
        let path = format!("{ADDRESSES}/10.96.0.9");
        let address = cluster.call("GET", &path, Value::Null).await.body;
        let parent = json!({"group": "", "resource": "services", "namespace": "default",
            "name": "web"});
        assert_eq!(address["spec"], json!({"parentRef": parent}));
        let labels = json!({"ipaddress.kubernetes.io/ip-family": "IPv4",
            "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io"});
        assert_eq!(address["metadata"]["labels"], labels);
        // Deleting it does not take it from the Service.
        cluster.call("DELETE", &path, Value::Null).await;
        let again = cluster.call("GET", &path, Value::Null).await.body;
        assert_eq!(again["spec"], address["spec"]);
        assert_ne!(again["metadata"]["uid"], address["metadata"]["uid"]);
        cluster.check();
        cluster.call("DELETE", &format!("{PATH}/web"), Value::Null).await;
        assert_eq!(cluster.call("GET", &path, Value::Null).await.code, 404);
        // One made by hand blocks the address.
        let made = json!({"apiVersion": "networking.k8s.io/v1", "kind": "IPAddress",
            "metadata": {"name": "10.96.0.9"},
            "spec": {"parentRef": {"resource": "things", "name": "mine"}}});
        assert_eq!(cluster.call("POST", ADDRESSES, made).await.code, 201);
        assert_eq!(
            cluster.create("web", named.clone()).await.said(),
            "spec.clusterIPs: Invalid value: [\"10.96.0.9\"]: failed to allocate IP 10.96.0.9: \
             provided IP is already allocated"
        );
        cluster.call("DELETE", &path, Value::Null).await;
        assert_eq!(cluster.create("web", named).await.said(), "ok");
        cluster.check();
    });
}

#[test]
fn warnings() {
    let deprecated = "\"v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 \
        EndpointSlice\"";
    run(async {
        let path = "/api/v1/namespaces/default/endpoints";
        let cluster = Cluster::with(FOUR).await;
        assert_eq!(cluster.call("GET", path, Value::Null).await.warnings, [deprecated]);
        let services = Services { warn_about_endpoints: false, ..Services::default() };
        let quiet = Cluster::over(Store::memory(), FOUR, services).await;
        assert!(quiet.call("GET", path, Value::Null).await.warnings.is_empty());
        let spec = plain(json!({"trafficDistribution": "PreferClose", "externalName": "a.b"}));
        assert_eq!(
            cluster.create("web", spec).await.warnings,
            [
                r#""spec.externalName is ignored when spec.type is not \"ExternalName\"""#,
                r#""spec.trafficDistribution: \"PreferClose\" is deprecated; use \"PreferSameZone\"""#,
            ]
        );
    });
}
