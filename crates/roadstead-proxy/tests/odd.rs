//! Objects that no API server would accept but a watch may deliver, and kernels that say no: what
//! was served before is still served.

use std::io::Write;
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Instant;

use k8s_openapi::api::core::v1::Service;
use roadstead_proxy::agent::Agent;
use roadstead_proxy::agent::config::{Config, Outputs};
use roadstead_proxy::data_plane::ProxyMode;
use roadstead_testkit::lab::{NODE, PORT, call, start_pod};
use roadstead_testkit::netns::{inside, laboratory, make_node, run, try_run};
use roadstead_watch::informer::{Change, key_of};
use serde_json::{Value, json};

fn agent(mode: ProxyMode) -> Agent {
    Agent::new(Config { node_name: NODE.into(), mode, ..Config::default() }, Outputs::default())
        .unwrap()
}

fn service(agent: &mut Agent, metadata: Value, spec: Value) {
    let object = json!({"metadata": metadata, "spec": spec});
    agent.observe_service(&Change::Set(serde_json::from_value(object).unwrap()));
}

fn slice(agent: &mut Agent, of: &str, fields: Value) {
    let mut object = json!({
        "metadata": {"namespace": "default", "name": format!("{of}-slice"),
            "labels": {"kubernetes.io/service-name": of}},
        "addressType": "IPv4", "endpoints": [],
        "ports": [{"name": "p", "port": PORT, "protocol": "TCP"}],
    });
    for (key, value) in fields.as_object().unwrap() {
        object[key] = value.clone();
    }
    agent.observe_slice(&Change::Set(serde_json::from_value(object).unwrap()));
}

/// A Service like any other, which must go on working whatever else there is.
fn good(agent: &mut Agent, pod: &str) {
    let ports = json!([{"name": "p", "port": 80, "protocol": "TCP"}]);
    service(agent, named("good"), json!({"clusterIPs": ["10.96.0.1"], "ports": ports}));
    slice(agent, "good", json!({"endpoints": [{"addresses": [pod]}]}));
}

fn named(name: &str) -> Value {
    json!({"namespace": "default", "name": name})
}

fn is_served(address: &str) -> bool {
    let frontend: SocketAddr = format!("{address}:80").parse().unwrap();
    inside("outside", || call("TCP", frontend)).is_ok()
}

fn many(count: u32) -> Value {
    let address = |n: u32| std::net::Ipv4Addr::from(0x0b00_0000 + n).to_string();
    (0..count).map(|n| json!({"addresses": [address(n)]})).collect()
}

fn spec(ports: Value) -> Value {
    json!({"clusterIPs": ["10.96.0.2"], "clusterIP": "10.96.0.2", "ports": ports})
}

/// Name, Service and slice; each is put beside the good one.
fn cases() -> Vec<(&'static str, Value, Value, Value)> {
    let port = |number: i64| json!([{"name": "p", "port": number, "protocol": "TCP"}]);
    let one = json!({"endpoints": [{"addresses": ["10.244.0.3"]}]});
    let longest = "n".repeat(253);
    let label = "p".repeat(63);
    let long_port = json!([{"name": label, "port": 80, "protocol": "TCP"}]);
    let long_slice = json!({"endpoints": [{"addresses": ["10.244.0.3"]}],
        "ports": [{"name": "p".repeat(63), "port": PORT, "protocol": "TCP"}]});
    let with = |spec: Value, key: &str, value: Value| {
        let mut spec = spec;
        spec[key] = value;
        spec
    };
    let usual = || spec(port(80));
    vec![
        ("no spec at all", named("odd"), Value::Null, one.clone()),
        ("no ports", named("odd"), json!({"clusterIPs": ["10.96.0.2"]}), one.clone()),
        ("port 0", named("odd"), spec(port(0)), one.clone()),
        ("port -1", named("odd"), spec(port(-1)), one.clone()),
        ("port 70000", named("odd"), spec(port(70_000)), one.clone()),
        (
            "an unknown protocol",
            named("odd"),
            spec(json!([{"name": "p", "port": 80, "protocol": "QUIC"}])),
            one.clone(),
        ),
        (
            "the same port twice",
            named("odd"),
            spec(json!([
            {"name": "p", "port": 80, "protocol": "TCP"},
            {"name": "q", "port": 80, "protocol": "TCP"}])),
            one.clone(),
        ),
        (
            "the same port name twice",
            named("odd"),
            spec(json!([
            {"name": "p", "port": 80, "protocol": "TCP"},
            {"name": "p", "port": 81, "protocol": "TCP"}])),
            one.clone(),
        ),
        ("no name", json!({}), usual(), one.clone()),
        ("names at their limits", named(&longest), spec(long_port), long_slice),
        (
            "addresses that are none",
            named("odd"),
            with(usual(), "clusterIPs", json!(["10.96.0.300", "", "None", "10.96.0.2"])),
            one.clone(),
        ),
        (
            "somebody else's address",
            named("odd"),
            with(usual(), "clusterIPs", json!(["10.96.0.1"])),
            one.clone(),
        ),
        (
            "the address of nobody",
            named("odd"),
            with(usual(), "externalIPs", json!(["0.0.0.0", "255.255.255.255", "127.0.0.1"])),
            one.clone(),
        ),
        (
            "ranges that are none",
            named("odd"),
            with(usual(), "loadBalancerSourceRanges", json!(["all", "1.2.3.4/99", " "])),
            one.clone(),
        ),
        (
            "affinity for ever",
            named("odd"),
            with(
                with(usual(), "sessionAffinity", json!("ClientIP")),
                "sessionAffinityConfig",
                json!({"clientIP": {"timeoutSeconds": i32::MAX}}),
            ),
            one.clone(),
        ),
        (
            "IPv6 in a slice of IPv4",
            named("odd"),
            usual(),
            json!({"endpoints": [{"addresses": ["fd00::1"]}]}),
        ),
        (
            "an unknown kind of addresses",
            named("odd"),
            usual(),
            json!({"addressType": "IPX", "endpoints": [{"addresses": ["10.244.0.3"]}]}),
        ),
        (
            "an endpoint without addresses",
            named("odd"),
            usual(),
            json!({"endpoints": [{"addresses": []}]}),
        ),
        (
            "a slice without ports",
            named("odd"),
            usual(),
            json!({"ports": null, "endpoints": [{"addresses": ["10.244.0.3"]}]}),
        ),
        (
            "a slice port without a number",
            named("odd"),
            usual(),
            json!({"ports": [{"name": "p"}], "endpoints": [{"addresses": ["10.244.0.3"]}]}),
        ),
        (
            "a slice port of 99999",
            named("odd"),
            usual(),
            json!({"ports": [{"name": "p", "port": 99_999}],
                "endpoints": [{"addresses": ["10.244.0.3"]}]}),
        ),
        (
            "loopback as an endpoint",
            named("odd"),
            usual(),
            json!({"endpoints": [{"addresses": ["127.0.0.1"]}]}),
        ),
        (
            "the same endpoint a hundred times",
            named("odd"),
            usual(),
            json!({"endpoints": vec![json!({"addresses": ["10.244.0.3"]}); 100]}),
        ),
        (
            "ten thousand endpoints in one slice",
            named("odd"),
            usual(),
            json!({"endpoints": many(10_000)}),
        ),
    ]
}

fn odd_objects(mode: ProxyMode, most: usize) {
    make_node();
    let pod = start_pod(2).address.to_string();
    let mut agent = agent(mode);
    good(&mut agent, &pod);
    agent.commit().unwrap();
    assert!(is_served("10.96.0.1"), "{mode}");
    for (name, metadata, spec, fields) in cases() {
        let count = fields["endpoints"].as_array().map_or(0, Vec::len);
        if count > most {
            continue;
        }
        let owner = metadata["name"].as_str().unwrap_or_default().to_owned();
        service(&mut agent, metadata.clone(), spec);
        slice(&mut agent, &owner, fields);
        let begin = Instant::now();
        agent.commit().unwrap_or_else(|error| panic!("{mode}, {name}: {error:?}"));
        assert!(begin.elapsed().as_secs() < 20, "{mode}, {name} took {:?}", begin.elapsed());
        assert!(is_served("10.96.0.1") || name == "somebody else's address", "{mode}, {name}");
        // And back again.
        let object: Service =
            serde_json::from_value(json!({"metadata": metadata, "spec": {}})).unwrap();
        agent.observe_service(&Change::Gone(key_of(&object), 0));
        slice(&mut agent, &owner, json!({}));
        agent.commit().unwrap_or_else(|error| panic!("{mode}, after {name}: {error:?}"));
        assert!(is_served("10.96.0.1"), "{mode}, after {name}");
    }
}

#[test]
fn odd_objects_harm_nobody_in_nftables() {
    laboratory(|| {
        odd_objects(ProxyMode::Nftables, 10_000);
        run("nft list ruleset > /dev/null && nft -j list ruleset > /dev/null");
    });
}

#[test]
fn odd_objects_harm_nobody_in_iptables() {
    laboratory(|| odd_objects(ProxyMode::Iptables, 100));
}

#[test]
#[ignore = "needs a kernel with IPVS, see scripts/lab"]
fn odd_objects_harm_nobody_in_ipvs() {
    laboratory(|| odd_objects(ProxyMode::Ipvs, 100));
}

/// Another program that owns our table, until its input ends: the kernel refuses us then.
fn own_table(family: &str) -> (Child, ChildStdin) {
    let mut owner = Command::new("nft").arg("-i").stdin(Stdio::piped()).spawn().unwrap();
    let mut input = owner.stdin.take().unwrap();
    writeln!(input, "add table {family} kube-proxy {{ flags owner; }}").unwrap();
    let begin = Instant::now();
    while !run("nft list tables").contains("kube-proxy") {
        assert!(begin.elapsed().as_secs() < 5, "this nft knows no owners");
    }
    (owner, input)
}

/// What the kernel refuses in one family keeps neither the other one nor what follows from it.
#[test]
fn a_refused_family_does_not_hold_the_other_back() {
    laboratory(|| {
        make_node();
        let pod = start_pod(2).address.to_string();
        let (mut owner, input) = own_table("ip6");
        let config = Config { node_name: NODE.into(), ..Config::default() };
        let outputs = Outputs::default();
        let (programmed, health) = (outputs.programmed.subscribe(), outputs.health.clone());
        let checks = outputs.health_checks.subscribe();
        let mut agent = Agent::new(config, outputs).unwrap();
        good(&mut agent, &pod);
        agent.commit_due();
        assert!(is_served("10.96.0.1"));
        assert_eq!(programmed.borrow().commits, 1, "what the other family carries is published");
        assert_eq!(health.page(true).0, 503, "the refused one shows");
        let ports = json!([{"name": "p", "port": 80, "protocol": "TCP"}]);
        let next = json!({"clusterIPs": ["10.96.0.2"], "ports": ports, "type": "LoadBalancer",
            "externalTrafficPolicy": "Local", "healthCheckNodePort": 32000});
        service(&mut agent, named("next"), next);
        slice(&mut agent, "next", json!({"endpoints": [{"addresses": [pod]}]}));
        agent.commit_due();
        assert!(is_served("10.96.0.2"), "not before the other one is tried again");
        assert_eq!(checks.borrow().by_service.len(), 1, "nobody was told");
        drop(input);
        owner.wait().unwrap();
        agent.commit().unwrap();
        assert_eq!(health.page(true).0, 200);
    });
}

/// Another program that owns the table makes the kernel refuse ours; when it ends we go on.
#[test]
fn a_refused_batch_is_tried_again() {
    laboratory(|| {
        make_node();
        let pod = start_pod(2).address.to_string();
        let (mut owner, input) = own_table("ip");
        let mut agent = agent(ProxyMode::Nftables);
        good(&mut agent, &pod);
        let error = agent.commit().unwrap_err();
        assert!(error.remedy().unwrap().contains("owns the table kube-proxy"), "{error:?}");
        drop(input);
        owner.wait().unwrap();
        agent.commit().unwrap();
        assert!(is_served("10.96.0.1"));
    });
}

/// A batch that the kernel refuses changes nothing: the old rules go on, and the next attempt
/// writes everything.
#[test]
fn after_a_refused_batch_the_last_good_state_serves() {
    laboratory(|| {
        make_node();
        let pod = start_pod(2).address.to_string();
        let mut agent = agent(ProxyMode::Nftables);
        good(&mut agent, &pod);
        agent.commit().unwrap();
        // Somebody puts an element where ours has to go: the kernel calls that busy.
        run("nft add element ip kube-proxy service-ips '{ 10.96.0.2 . tcp . 80 : 7:7 }'");
        let before = run("nft list ruleset");
        let ports = json!([{"name": "p", "port": 80, "protocol": "TCP"}]);
        service(&mut agent, named("next"), json!({"clusterIPs": ["10.96.0.2"], "ports": ports}));
        slice(&mut agent, "next", json!({"endpoints": [{"addresses": [pod]}]}));
        let error = agent.commit().unwrap_err();
        assert!(error.to_string().contains("refused"), "{error}");
        assert_eq!(run("nft list ruleset"), before, "nothing has changed");
        assert!(is_served("10.96.0.1"), "the last good state serves");
        agent.commit().unwrap();
        assert!(is_served("10.96.0.1") && is_served("10.96.0.2"));
    });
}

/// Clients stay with their pods, though the kernel refuses a batch, and though the proxy restarts
/// after their Service has shrunk.
#[test]
fn sticky_clients_outlive_a_refusal_and_a_restart() {
    laboratory(|| {
        make_node();
        let pod = start_pod(2).address.to_string();
        let sticky = |agent: &mut Agent, endpoints: &[&str]| {
            let ports = json!([{"name": "p", "port": 80, "protocol": "TCP"}]);
            let spec = json!({"clusterIPs": ["10.96.0.1"], "ports": ports,
                "sessionAffinity": "ClientIP"});
            service(agent, named("good"), spec);
            let endpoints: Vec<_> = endpoints.iter().map(|e| json!({"addresses": [e]})).collect();
            slice(agent, "good", json!({"endpoints": endpoints}));
        };
        let remembered = || run("nft list table ip kube-proxy").contains("expires");
        let mut first = agent(ProxyMode::Nftables);
        sticky(&mut first, &[&pod]);
        first.commit().unwrap();
        assert!(is_served("10.96.0.1") && remembered());
        run("nft add element ip kube-proxy service-ips '{ 10.96.0.2 . tcp . 80 : 7:7 }'");
        let ports = json!([{"name": "p", "port": 80, "protocol": "TCP"}]);
        service(&mut first, named("next"), json!({"clusterIPs": ["10.96.0.2"], "ports": ports}));
        slice(&mut first, "next", json!({"endpoints": [{"addresses": [pod]}]}));
        first.commit().unwrap_err();
        first.commit().unwrap();
        assert!(is_served("10.96.0.2") && remembered(), "after a refusal");
        sticky(&mut first, &[&pod, "10.244.0.77"]);
        first.commit().unwrap();
        sticky(&mut first, &[&pod]);
        first.commit().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(1_100));
        assert!(first.is_intact());
        let mut successor = agent(ProxyMode::Nftables);
        sticky(&mut successor, &[&pod]);
        successor.commit().unwrap();
        assert!(is_served("10.96.0.1") && remembered(), "after a restart");
    });
}

/// Without CAP_NET_ADMIN the message says what is missing, and a retry comes later.
#[test]
fn without_permission_the_message_says_what_is_missing() {
    if std::env::var_os("ROADSTEAD_POWERLESS").is_some() {
        let mut agent = agent(ProxyMode::Nftables);
        good(&mut agent, "10.244.0.2");
        let error = agent.commit().unwrap_err();
        assert!(error.remedy().unwrap().contains("CAP_NET_ADMIN"), "{error:?}");
        return;
    }
    laboratory(|| {
        let test = "without_permission_the_message_says_what_is_missing";
        let this = std::env::current_exe().unwrap();
        let output = try_run(&format!(
            "ROADSTEAD_POWERLESS=1 setpriv --bounding-set=-net_admin --inh-caps=-net_admin \
             {} --exact {test} --nocapture",
            this.display()
        ));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stdout));
    });
}
