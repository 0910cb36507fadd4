//! A private network laboratory: tests that need a kernel run in namespaces of their own.
//!
//! The test re-runs itself under `unshare` as root of a fresh user, network, mount and process
//! namespace. It needs no privileges, cannot touch the machine's own network, and everything it
//! leaves behind (links, rules, processes) disappears with it.

use std::fs::File;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::process::{Command, Output};
use std::{env, thread};

use rustix::fd::AsFd;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Set inside the laboratory, to the name of the test that runs there.
const INSIDE: &str = "ROADSTEAD_LAB";
/// A comma-separated list of test layers to leave out, for machines that cannot run them.
const SKIP: &str = "ROADSTEAD_SKIP";

/// Runs the body of the calling test in a laboratory of its own, as part of layer L4.
///
/// Call it as the only statement of a `#[test]`. Where the kernel forbids user namespaces the test
/// fails and says so; `ROADSTEAD_SKIP=L4` leaves the layer out knowingly.
pub fn laboratory(body: impl FnOnce()) {
    laboratory_of("L4", body);
}

/// Like [`laboratory`], for a test of another layer.
pub fn laboratory_of(layer: &str, body: impl FnOnce()) {
    laboratory_with(layer, &["--user", "--map-root-user"], body);
}

/// Like [`laboratory_of`], with all users of the machine: only the machine's own root can have one.
pub fn laboratory_of_users(layer: &str, body: impl FnOnce()) {
    if env::var_os(INSIDE).is_none() && is_left_out("users") {
        return;
    }
    assert!(
        rustix::process::getuid().is_root(),
        "users cannot run here: whoever runs the tests is not root \
         (set {SKIP}=users to leave these tests out)"
    );
    laboratory_with(layer, &[], body);
}

fn laboratory_with(layer: &str, users: &[&str], body: impl FnOnce()) {
    if env::var_os(INSIDE).is_some() {
        run("mount -t tmpfs tmpfs /run && mkdir -p /run/netns && ip link set lo up");
        return body();
    }
    if is_left_out(layer) {
        return;
    }
    let thread = thread::current();
    let test = thread.name().expect("tests run on named threads");
    let possible = Command::new("unshare").args(["-Urnm", "true"]).status();
    assert!(
        possible.is_ok_and(|status| status.success()),
        "{layer} cannot run here: unprivileged user namespaces are not allowed \
         (set {SKIP}={layer} to leave the layer out)"
    );
    let status = Command::new("unshare")
        .args(users)
        .args("--net --mount --pid --fork --kill-child --mount-proc".split(' '))
        .arg(env::current_exe().expect("a test knows its own path"))
        .args(["--exact", test, "--nocapture", "--include-ignored"])
        .env(INSIDE, test)
        .status()
        .expect("unshare has just worked");
    assert!(status.success(), "{test} failed in its laboratory");
}

/// Whether the person who runs the tests has left a layer out; says so.
pub fn is_left_out(layer: &str) -> bool {
    let left_out = env::var(SKIP).is_ok_and(|layers| layers.split(',').any(|name| name == layer));
    if left_out {
        eprintln!("{layer} left out, because {SKIP} says so");
    }
    left_out
}

/// Runs a shell command, which must succeed; returns what it printed.
#[track_caller]
pub fn run(command: &str) -> String {
    let output = try_run(command);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "`{command}` failed: {stdout}\n{stderr}");
    stdout
}

/// Runs a shell command and returns whatever came of it.
pub fn try_run(command: &str) -> Output {
    Command::new("sh").args(["-c", command]).output().expect("sh is on every machine")
}

/// Runs `body` on a thread of its own inside a network namespace; returns what it returns.
///
/// Sockets opened there stay in that namespace, wherever they are used afterwards.
pub fn inside<T: Send>(namespace: &str, body: impl FnOnce() -> T + Send) -> T {
    let path = format!("/run/netns/{namespace}");
    let file = File::open(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
                .expect("we are root in our laboratory");
            body()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Turns the laboratory itself into a node: a router with a bridge for its pods.
///
/// The node is 10.244.0.1 and fd00:244::1 to its pods; to a machine outside, the namespace
/// `outside` with 192.168.7.2 and fd00:7::2, it is 192.168.7.1 and fd00:7::1 and the way to
/// everything.
pub fn make_node() {
    for setting in [
        "ipv4/ip_forward=1",
        "ipv4/conf/all/send_redirects=0",
        "ipv4/conf/default/send_redirects=0",
        "ipv6/conf/all/forwarding=1",
    ] {
        let (name, value) = setting.split_once('=').expect("written that way");
        run(&format!("echo {value} > /proc/sys/net/{name}"));
    }
    run("ip link add bridge0 type bridge && ip link set bridge0 up");
    run("ip address add 10.244.0.1/24 dev bridge0");
    run("ip address add fd00:244::1/64 dev bridge0 nodad");
    // A real node has a default route, without which it could not even try to reach a ClusterIP.
    run("ip route add default via 10.244.0.254");
    run("ip route add default via fd00:244::fe");
    run("ip netns add outside && ip link add outside0 type veth peer name eth0 netns outside");
    run("ip address add 192.168.7.1/24 dev outside0 && ip link set outside0 up");
    run("ip address add fd00:7::1/64 dev outside0 nodad");
    run("ip -n outside address add 192.168.7.2/24 dev eth0 && ip -n outside link set eth0 up");
    run("ip -n outside address add fd00:7::2/64 dev eth0 nodad");
    run("ip -n outside link set lo up && ip -n outside route add default via 192.168.7.1");
    run("ip -n outside route add default via fd00:7::1");
}

/// Adds a pod to the node: the namespace `pod-N` with the addresses 10.244.0.N and fd00:244::N
/// (N written in hexadecimal there).
///
/// The pod sends everything through the node, so translated answers pass it on their way back
/// even when both ends are on the same bridge.
pub fn make_pod(number: u8) -> (String, Ipv4Addr, Ipv6Addr) {
    let name = format!("pod-{number}");
    let v4 = Ipv4Addr::new(10, 244, 0, number);
    let v6 = Ipv6Addr::new(0xfd00, 0x244, 0, 0, 0, 0, 0, number.into());
    run(&format!("ip netns add {name}"));
    // Nobody may tell the pod of a shorter way than the one through the node.
    let redirects = "/proc/sys/net/ipv6/conf/default/accept_redirects";
    run(&format!("ip netns exec {name} sh -c 'echo 0 > {redirects}'"));
    run(&format!("ip link add veth{number} type veth peer name eth0 netns {name}"));
    run(&format!("ip link set veth{number} master bridge0 up"));
    // Where br_netfilter is active, a pod that calls itself through its Service comes back out of
    // the port it went in by. Every network plugin allows that.
    run(&format!("ip link set veth{number} type bridge_slave hairpin on"));
    run(&format!("ip -n {name} address add {v4}/32 dev eth0"));
    run(&format!("ip -n {name} address add {v6}/128 dev eth0 nodad"));
    run(&format!("ip -n {name} link set eth0 up && ip -n {name} link set lo up"));
    for gateway in ["10.244.0.1", "fd00:244::1"] {
        run(&format!("ip -n {name} route add {gateway} dev eth0"));
        run(&format!("ip -n {name} route add default via {gateway} dev eth0"));
    }
    (name, v4, v6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_laboratory_has_a_network_of_its_own() {
        laboratory(|| {
            assert_eq!(run("ip -br link | wc -l").trim(), "1", "only lo: {}", run("ip -br link"));
            run("ip netns add pod && ip netns exec pod true");
        });
    }
}
