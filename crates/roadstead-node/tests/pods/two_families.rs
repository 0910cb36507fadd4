//! Pods with addresses of IPv6, alone and beside IPv4.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use roadstead_node::config::Config;
use roadstead_node::runtime::ContainerRuntime;
use roadstead_node::runtime::builtin::{BuiltinRuntime, cleanup};
use roadstead_pod::addresses::Addresses;
use roadstead_pod::host_ports::{HostPort, TransportProtocol};
use roadstead_pod::pod_name::NetworkMode;
use roadstead_pod::sandbox::SandboxOrder;
use roadstead_testkit::netns::{inside, run, try_run};

use super::{container_config, exec, executable, in_laboratory, name};

fn with_ranges(config: Config, pods: &str, services: &str, own: &str) -> Config {
    let nets = |text: &str| text.split(',').map(|net| net.parse().unwrap()).collect();
    let internal_ips = own.parse().unwrap();
    Config { pod_cidrs: nets(pods), service_cidrs: nets(services), internal_ips, ..config }
}

fn dual(config: Config) -> Config {
    let own = "192.0.2.1,2001:db8::1";
    with_ranges(config, "10.244.0.0/24,fd00:244::/64", "10.96.0.0/12,fd00:96::/112", own)
}

/// The node has a way out: to the namespace `outside`, where 2001:db8::2 is.
fn make_outside() {
    run("ip netns add outside && ip link add eth0 type veth peer name eth0 netns outside");
    run("ip address add 2001:db8::1/64 dev eth0 nodad && ip link set eth0 up");
    run("ip -n outside address add 2001:db8::2/64 dev eth0 nodad");
    run("ip -n outside link set eth0 up && ip -n outside link set lo up");
}

async fn start_at(runtime: &BuiltinRuntime, pod: &str, host_ports: Vec<HostPort>) -> Addresses {
    let order = SandboxOrder { host_ports, ..NetworkMode::Own.into() };
    let addresses = runtime.create_sandbox(&name(pod), order).await.unwrap();
    runtime.start(container_config(pod, "main", &[])).await.unwrap();
    addresses
}

/// What whoever listens there says; nothing if nobody does.
fn ask(address: IpAddr, port: u16) -> String {
    let try_it = || -> std::io::Result<String> {
        let address = SocketAddr::new(address, port);
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text.rsplit("\r\n\r\n").next().unwrap_or_default().trim().to_owned())
    };
    try_it().unwrap_or_default()
}

/// Asks until somebody answers: a server needs a moment to open its port.
fn answer(address: IpAddr, port: u16) -> String {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let found = ask(address, port);
        if !found.is_empty() || Instant::now() > until {
            return found;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn pods_have_addresses_of_both_families() {
    in_laboratory(async |config| {
        let config = dual(config);
        let runtime = BuiltinRuntime::start(&config, executable()).await.unwrap();
        let one = start_at(&runtime, "one", vec![]).await;
        let two = start_at(&runtime, "two", vec![]).await;
        assert_eq!(one.to_string(), "10.244.0.2,fd00:244::2");
        assert_eq!(two.to_string(), "10.244.0.3,fd00:244::3");
        for address in one.iter() {
            assert_eq!(answer(address, 8080), "one", "from the node to {address}");
        }
        // At once: nobody waits for the kernel to find out whether others have these addresses.
        for target in [format!("{}:8080", two.first), format!("[{}]:8080", two.six().unwrap())] {
            let began = Instant::now();
            let (code, text) = exec(&runtime, "one", &["curl", "-s", &target]).await;
            assert_eq!((code, text.as_str()), (0, "two\n"), "from pod to pod, {target}");
            eprintln!("{target} answered in {:?}", began.elapsed());
        }
        let state =
            run("nsenter --net=/run/state/netns/roadstead-uid-of-one ip -6 address show dev eth0");
        assert!(state.contains("fd00:244::2/128") && !state.contains("tentative"), "{state}");
        let route = run("ip -6 route get fd00:96::1");
        assert!(route.contains("dev roadstead0 src fd00:244::1"), "{route}");
        drop(runtime);

        // The next agent knows both; a pod of the time when the node had one family keeps its one.
        let runtime = BuiltinRuntime::start(&config, executable()).await.unwrap();
        let mut found: Vec<_> = runtime.recovered().iter().map(|pod| pod.addresses).collect();
        found.sort_by_key(|found| found.map(|found| found.first));
        assert_eq!(found, [Some(one), Some(two)]);
        drop(runtime);
        cleanup(&config).await.unwrap();
        let left = run("ip -6 route; ip -6 address; ip link; nft list ruleset");
        assert!(!left.contains("fd00") && !left.contains("roadstead"), "{left}");
    });
}

#[test]
fn pods_may_have_ipv6_alone() {
    in_laboratory(async |config| {
        make_outside();
        let config = with_ranges(config, "fd00:244::/64", "fd00:96::/112", "2001:db8::1");
        let runtime = BuiltinRuntime::start(&config, executable()).await.unwrap();
        let port = HostPort {
            address: None,
            protocol: TransportProtocol::Tcp,
            port: 8000,
            container_port: 8080,
        };
        let one = start_at(&runtime, "one", vec![port]).await;
        assert_eq!(one.to_string(), "fd00:244::2");
        assert_eq!(answer(one.first, 8080), "one");
        let inside_pod =
            run("nsenter --net=/run/state/netns/roadstead-uid-of-one ip -4 address show dev eth0");
        assert!(!inside_pod.contains("inet"), "{inside_pod}");
        assert_eq!(answer("2001:db8::1".parse().unwrap(), 8000), "one", "by the port of the node");
        drop(runtime);
        cleanup(&config).await.unwrap();
    });
}

#[test]
fn host_ports_have_both_families() {
    in_laboratory(async |config| {
        make_outside();
        let config = dual(config);
        let runtime = BuiltinRuntime::start(&config, executable()).await.unwrap();
        let port = |port, address: Option<&str>| HostPort {
            address: address.map(|text| text.parse().unwrap()),
            protocol: TransportProtocol::Tcp,
            port,
            container_port: 8080,
        };
        let ports = vec![port(8000, None), port(8001, Some("2001:db8::1"))];
        let one = start_at(&runtime, "one", ports).await;
        answer(one.first, 8080);
        let node: IpAddr = "2001:db8::1".parse().unwrap();
        let from_outside =
            |port: u16| inside("outside", move || ask("2001:db8::1".parse().unwrap(), port));
        for (asked, want) in [
            (ask(node, 8000), "one"),
            (ask([127, 0, 0, 1].into(), 8000), "one"),
            (ask(node, 8001), "one"),
            (ask([127, 0, 0, 1].into(), 8001), ""),
            (from_outside(8000), "one"),
            (from_outside(8001), "one"),
            (from_outside(8002), ""),
        ] {
            assert_eq!(asked, want);
        }
        let (_, text) = exec(&runtime, "one", &["curl", "-s", "[2001:db8::1]:8000"]).await;
        assert_eq!(text, "one\n", "a pod reaches itself by a port of its node");
        // The port is the pod's in both families: no process of the node gets it.
        assert!(std::net::TcpListener::bind("[::]:8000").is_err());
        assert!(try_run("nft list table ip6 roadstead-hostports").status.success());
        runtime.remove(&name("one")).await.unwrap();
        assert_eq!(from_outside(8000), "");
        assert!(!try_run("nft list table ip6 roadstead-hostports").status.success());
        drop(runtime);
        cleanup(&config).await.unwrap();
    });
}

#[test]
fn what_somebody_removes_of_ipv6_comes_back() {
    in_laboratory(async |config| {
        let config = dual(config);
        let runtime = BuiltinRuntime::start(&config, executable()).await.unwrap();
        let one = start_at(&runtime, "one", vec![]).await;
        let six = IpAddr::from(one.six().unwrap());
        assert_eq!(answer(six, 8080), "one");
        let breaking = async {
            for command in [
                "ip -6 address del fd00:244::1/64 dev roadstead0",
                "ip -6 route del fd00:96::/112",
                "ip link del roadstead0",
            ] {
                run(command);
                let until = Instant::now() + Duration::from_secs(20);
                let whole = || {
                    ask(six, 8080) == "one"
                        && run("ip -6 route get fd00:96::1 || true").contains("src fd00:244::1")
                };
                while !whole() {
                    assert!(Instant::now() < until, "{command}");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        };
        tokio::select! {
            () = runtime.maintain() => unreachable!("it goes on"),
            () = breaking => {}
        }
        drop(runtime);
        cleanup(&config).await.unwrap();
    });
}
