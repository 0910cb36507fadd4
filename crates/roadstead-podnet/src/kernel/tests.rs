//! With a real kernel, in a laboratory.

use roadstead_testkit::netns::{laboratory, run};

use super::*;
use crate::plan::{Local, PodNetworkMode, plan};

fn network(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn machine() {
    run("ip link add up0 type veth peer name up1 && ip link set up1 up && ip link set up0 up");
    run("ip address add 192.0.2.1/24 dev up0 && ip address add fd00:9::1/64 dev up0 nodad");
    run("ip link add other0 type veth peer name other1 && ip link set other0 up");
    run("ip route add 10.244.9.0/24 dev other0");
}

fn wanted(kernel: &mut Kernel, mode: PodNetworkMode, peers: &[crate::peer::Peer]) -> Wanted {
    let pods = vec![network("10.244.0.0/24"), network("fd00:244::/64")];
    let local = Local {
        name: "n1".into(),
        mode,
        cluster: vec![network("10.244.0.0/16"), network("fd00:244::/48")],
        networks: kernel.networks(&pods).unwrap(),
        hardware: [2, 0x52, 10, 244, 0, 0],
        pods,
    };
    plan(&local, peers)
}

fn peer(name: &str, number: u8, address: &str, six: &str) -> crate::peer::Peer {
    let address: IpAddr = address.parse().unwrap();
    crate::peer::Peer {
        name: name.into(),
        pods: vec![
            network(&format!("10.244.{number}.0/24")),
            network(&format!("fd00:244:0:{number}::/64")),
        ],
        addresses: vec![address, six.parse().unwrap()],
        tunnel: Some(crate::peer::TunnelEnd { hardware: [2, 0x52, 10, 244, number, 0], address }),
        ..crate::peer::Peer::default()
    }
}

#[test]
fn the_kernel_is_as_wanted_and_then_as_before() {
    laboratory(|| {
        machine();
        let before = run("ip route; ip -6 route; ip link show type vxlan");
        let mut kernel = Kernel::open().unwrap();
        let peers =
            [peer("n2", 1, "192.0.2.2", "fd00:9::2"), peer("n3", 2, "198.51.100.3", "fd00:8::3")];
        let pods = [network("10.244.0.0/24"), network("fd00:244::/64")];
        let own = Tunnel {
            from: "192.0.2.1".parse().unwrap(),
            hardware: [2, 0x52, 10, 244, 0, 0],
            pods: &pods,
        };
        let all = wanted(&mut kernel, PodNetworkMode::Auto, &peers);
        assert!(all.notes.is_empty(), "{:?}", all.notes);
        assert!(kernel.apply(&all, &own).unwrap() > 0);
        assert_eq!(kernel.apply(&all, &own).unwrap(), 0, "nothing is written twice");
        let routes = run("ip route");
        for line in [
            "10.244.1.0/24 via 192.0.2.2 dev up0 proto 114",
            "10.244.2.0/24 via 10.244.2.0 dev roadstead-vx proto 114",
            "unreachable 10.244.0.0/16 proto 114",
        ] {
            assert!(routes.contains(line), "{line}: {routes}");
        }
        let six = run("ip -6 route");
        for line in [
            "fd00:244:0:1::/64 via fd00:9::2 dev up0",
            "fd00:244:0:2::/64 via fd00:244:0:2:: dev roadstead-vx",
        ] {
            assert!(six.contains(line), "{line}: {six}");
        }
        let ends = run("bridge fdb show dev roadstead-vx");
        assert!(ends.contains("02:52:0a:f4:02:00 dst 198.51.100.3 self permanent"), "{ends}");
        let link = run("ip -d link show roadstead-vx");
        for word in ["vxlan id 1", "dstport 8472", "nolearning", "mtu 1450", "local 192.0.2.1"] {
            assert!(link.contains(word), "{word}: {link}");
        }

        // Somebody takes away what is ours.
        run("ip route del 10.244.1.0/24 && ip neigh flush dev roadstead-vx nud permanent");
        assert!(kernel.apply(&all, &own).unwrap() >= 2);
        run("ip link del roadstead-vx");
        assert!(kernel.apply(&all, &own).unwrap() > 0);
        assert!(run("ip route").contains("10.244.2.0/24 via 10.244.2.0 dev roadstead-vx"));

        // A node goes, and its tunnel with it; the other moves.
        let peers = [peer("n2", 1, "192.0.2.7", "fd00:9::7")];
        let fewer = wanted(&mut kernel, PodNetworkMode::Auto, &peers);
        kernel.apply(&fewer, &own).unwrap();
        let routes = run("ip route; ip link");
        assert!(
            routes.contains("10.244.1.0/24 via 192.0.2.7") && !routes.contains("roadstead-vx"),
            "{routes}"
        );
        kernel.remove_all().unwrap();
        assert_eq!(run("ip route; ip -6 route; ip link show type vxlan"), before);
    });
}

#[test]
fn what_is_somebody_elses_stays() {
    laboratory(|| {
        machine();
        run("ip link add roadstead-vx type vxlan id 7 dstport 4789");
        run("ip route add 10.244.1.0/24 via 192.0.2.99");
        let before = run("ip route; ip link");
        let mut kernel = Kernel::open().unwrap();
        let pods = [network("10.244.0.0/24")];
        let own = Tunnel {
            from: "192.0.2.1".parse().unwrap(),
            hardware: [2, 0x52, 10, 244, 0, 0],
            pods: &pods,
        };
        let all =
            wanted(&mut kernel, PodNetworkMode::Vxlan, &[peer("n2", 1, "192.0.2.2", "fd00:9::2")]);
        assert!(matches!(kernel.apply(&all, &own), Err(KernelError::ForeignLink)));
        let routes =
            wanted(&mut kernel, PodNetworkMode::Routes, &[peer("n2", 1, "192.0.2.2", "fd00:9::2")]);
        kernel.apply(&routes, &own).unwrap();
        assert!(
            run("ip route").contains("10.244.1.0/24 via 192.0.2.99"),
            "it stays, and counts first"
        );
        kernel.remove_all().unwrap();
        assert_eq!(run("ip route; ip link"), before);
    });
}
