//! Ports of the node that lead to pods.

use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use roadstead_node::runtime::ContainerRuntime;
use roadstead_node::runtime::builtin::{BuiltinRuntime, cleanup};
use roadstead_pod::host_ports::{HostPort, TransportProtocol};
use roadstead_pod::pod_name::NetworkMode;
use roadstead_pod::sandbox::SandboxOrder;
use roadstead_testkit::netns::{inside, run, try_run};

use super::{container_config, exec, executable, fetch, in_laboratory, name};

const NODE: [u8; 4] = [192, 0, 2, 1];

/// The node has a way out: to the namespace `outside`, where 192.0.2.2 is.
fn make_outside() {
    run("ip netns add outside && ip link add eth0 type veth peer name eth0 netns outside");
    run("ip address add 192.0.2.1/24 dev eth0 && ip link set eth0 up");
    run("ip -n outside address add 192.0.2.2/24 dev eth0 && ip -n outside link set eth0 up");
    run("ip -n outside link set lo up");
}

fn host_port(port: u16, address: Option<[u8; 4]>) -> HostPort {
    let address = address.map(IpAddr::from);
    HostPort { address, protocol: TransportProtocol::Tcp, port, container_port: 8080 }
}

fn order(ports: &[HostPort]) -> SandboxOrder {
    SandboxOrder { host_ports: ports.to_vec(), ..NetworkMode::Own.into() }
}

async fn start_at(runtime: &BuiltinRuntime, pod: &str, ports: &[HostPort]) -> IpAddr {
    let address = runtime.create_sandbox(&name(pod), order(ports)).await.unwrap().first;
    runtime.start(container_config(pod, "main", &[])).await.unwrap();
    fetch(address, "/");
    address
}

/// What whoever listens there says; nothing if nobody does.
fn ask(address: impl Into<IpAddr>, port: u16) -> String {
    let try_it = || -> std::io::Result<String> {
        let address = (address.into(), port).into();
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text.rsplit("\r\n\r\n").next().unwrap_or_default().trim().to_owned())
    };
    try_it().unwrap_or_default()
}

#[test]
fn host_ports_lead_to_pods() {
    in_laboratory(async |config| {
        make_outside();
        let runtime = BuiltinRuntime::start(&config, executable()).await.unwrap();
        // Besides what guards the links of all pods.
        let tables = || run("nft list tables | grep -v roadstead-links || true");
        assert_eq!(tables(), "", "nothing before it is needed");
        let ports = [host_port(8000, None), host_port(8001, Some([127, 0, 0, 1]))];
        let one = start_at(&runtime, "one", &ports).await;
        let two = start_at(&runtime, "two", &[host_port(8001, Some(NODE))]).await;

        assert_eq!(inside("outside", || ask(NODE, 8000)), "one", "from outside");
        assert_eq!(inside("outside", || ask(NODE, 8001)), "two", "by this address");
        assert_eq!(ask(NODE, 8000), "one", "from the node");
        assert_eq!(ask([127, 0, 0, 1], 8000), "one", "by loopback");
        assert_eq!(ask([127, 0, 0, 1], 8001), "one", "by loopback alone");
        assert_eq!(ask([10, 244, 0, 1], 8000), "one", "by the bridge");
        for (from, to) in [("two", "192.0.2.1:8000"), ("one", "192.0.2.1:8000")] {
            let (_, text) = exec(&runtime, from, &["curl", "-s", "-m", "2", to]).await;
            assert_eq!(text, "one\n", "from pod {from}");
        }

        let mark = run("nft list table ip roadstead-hostports | grep comment | head -1");
        assert!(mark.contains("the host ports of roadstead"), "{mark}");
        runtime.remove(&name("one")).await.unwrap();
        assert_eq!((ask(NODE, 8000), ask(NODE, 8001)), (String::new(), "two".into()));
        let successor = start_at(&runtime, "successor", &[host_port(8000, None)]).await;
        assert_ne!(one, successor);
        assert_eq!(ask(NODE, 8000), "successor");
        runtime.remove(&name("successor")).await.unwrap();
        runtime.remove(&name("two")).await.unwrap();
        assert_eq!(tables(), "");
        let localnet = run("cat /proc/sys/net/ipv4/conf/roadstead0/route_localnet");
        assert_eq!((localnet.as_str(), two), ("0", [10, 244, 0, 3].into()));
        drop(runtime);
        cleanup(&config).await.unwrap();
    });
}

#[test]
fn a_host_port_is_one_pods() {
    in_laboratory(async |config| {
        make_outside();
        let runtime = BuiltinRuntime::start(&config, executable()).await.unwrap();
        start_at(&runtime, "one", &[host_port(8000, None)]).await;
        let refuse = async |pod: &str, port| {
            let refused = runtime.create_sandbox(&name(pod), order(&[port])).await;
            refused.unwrap_err().to_string()
        };
        let taken = refuse("two", host_port(8000, Some(NODE))).await;
        assert_eq!(
            taken,
            "host TCP port 8000 of 192.0.2.1 is taken: another pod of this node has it"
        );
        let process = TcpListener::bind("127.0.0.1:8022").unwrap();
        let taken = refuse("three", host_port(8022, None)).await;
        assert_eq!(taken, "host TCP port 8022 is taken: a process of the node has it");
        drop(process);
        start_at(&runtime, "three", &[host_port(8022, None)]).await;
        TcpListener::bind("0.0.0.0:8022").expect_err("a pod has it");
        // Another protocol is another port, and the answer is that of the pod.
        let udp = HostPort { protocol: TransportProtocol::Udp, ..host_port(8022, None) };
        runtime.create_sandbox(&name("four"), order(&[udp])).await.unwrap();
        UdpSocket::bind("0.0.0.0:8022").expect_err("a pod has it");
        drop(runtime);
        cleanup(&config).await.unwrap();
    });
}

#[test]
fn pods_do_not_reach_the_nodes_loopback() {
    in_laboratory(async |config| {
        make_outside();
        let runtime = BuiltinRuntime::start(&config, executable()).await.unwrap();
        let secret = TcpListener::bind("127.0.0.1:9999").unwrap();
        let served = std::thread::spawn(move || {
            while let Ok((mut stream, _)) = secret.accept() {
                let _ = stream.read(&mut [0; 512]);
                let _ = stream.write_all(b"HTTP/1.0 200 OK\r\n\r\nsecret");
            }
        });
        start_at(&runtime, "one", &[host_port(8000, None)]).await;
        assert_eq!(ask([127, 0, 0, 1], 9999), "secret");
        // Root in a pod may route what it likes through its gateway.
        let namespace = "nsenter --net=/run/state/netns/roadstead-uid-of-one";
        run(&format!("{namespace} sysctl -qw net.ipv4.conf.all.route_localnet=1"));
        run(&format!("{namespace} ip rule add pref 1 to 127.0.0.1 lookup 7"));
        run(&format!("{namespace} ip rule add pref 2 lookup local"));
        run(&format!("{namespace} ip rule del pref 0"));
        run(&format!("{namespace} ip route add 127.0.0.1 via 10.244.0.1 dev eth0 onlink table 7"));
        let leak = try_run(&format!("{namespace} curl -s -m 1 127.0.0.1:9999"));
        assert_eq!(String::from_utf8_lossy(&leak.stdout), "");
        // The way is there: only the guard is in it.
        run("nft flush chain ip roadstead-hostports guard");
        let open = try_run(&format!("{namespace} curl -s -m 1 127.0.0.1:9999"));
        assert_eq!(String::from_utf8_lossy(&open.stdout), "secret", "the test cannot fail");
        drop((runtime, served));
        cleanup(&config).await.unwrap();
    });
}

#[test]
fn host_ports_heal_and_outlive_the_agent() {
    in_laboratory(async |config| {
        make_outside();
        let runtime = BuiltinRuntime::start(&config, executable()).await.unwrap();
        start_at(&runtime, "one", &[host_port(8000, None)]).await;
        let hurt = async {
            for harm in [
                "nft delete table ip roadstead-hostports",
                "nft flush chain ip roadstead-hostports ports",
                "nft flush ruleset",
                "nft delete table ip roadstead-hostports; ip link del roadstead0",
            ] {
                tokio::time::sleep(Duration::from_millis(100)).await;
                run(harm);
                assert_eq!(ask(NODE, 8000), "", "{harm}");
                tokio::time::sleep(Duration::from_millis(1500)).await;
                assert_eq!(ask(NODE, 8000), "one", "{harm} is not healed");
                assert_eq!(ask([127, 0, 0, 1], 8000), "one", "{harm} is not healed");
            }
        };
        tokio::select! {
            () = runtime.maintain() => panic!("it gave up"),
            () = hurt => {}
        }
        drop(runtime);
        assert_eq!(ask(NODE, 8000), "one", "without an agent");
        run("nft flush ruleset");
        let runtime = BuiltinRuntime::start(&config, executable()).await.unwrap();
        assert_eq!(ask(NODE, 8000), "one", "the next agent heals");
        let again = runtime.create_sandbox(&name("two"), order(&[host_port(8000, None)])).await;
        again.expect_err("it is still taken");
        drop(runtime);
        cleanup(&config).await.unwrap();
        assert_eq!(run("nft list tables"), "");
    });
}

#[test]
fn udp_flows_follow_their_host_port() {
    in_laboratory(async |config| {
        make_outside();
        let runtime = BuiltinRuntime::start(&config, executable()).await.unwrap();
        let udp = HostPort { protocol: TransportProtocol::Udp, ..host_port(8053, None) };
        let client = inside("outside", || UdpSocket::bind("192.0.2.2:5000").unwrap());
        client.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        for pod in ["one", "two"] {
            // A flow that began when nobody had the port.
            client.send_to(b"early", ("192.0.2.1", 8053)).unwrap();
            runtime.create_sandbox(&name(pod), order(&[udp])).await.unwrap();
            let path = format!("/run/state/netns/roadstead-uid-of-{pod}");
            run(&format!("ln -sf {path} /run/netns/{pod}"));
            let server = inside(pod, || UdpSocket::bind("0.0.0.0:8080").unwrap());
            server.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
            client.send_to(b"question", ("192.0.2.1", 8053)).unwrap();
            let mut buffer = [0; 32];
            let (length, from) = server.recv_from(&mut buffer).expect(pod);
            assert_eq!(
                (&buffer[..length], from),
                (&b"question"[..], "192.0.2.2:5000".parse().unwrap())
            );
            server.send_to(b"answer", from).unwrap();
            let (length, from) = client.recv_from(&mut buffer).expect(pod);
            assert_eq!(
                (&buffer[..length], from.to_string()),
                (&b"answer"[..], "192.0.2.1:8053".into())
            );
            runtime.remove(&name(pod)).await.unwrap();
        }
        drop(runtime);
        cleanup(&config).await.unwrap();
    });
}
