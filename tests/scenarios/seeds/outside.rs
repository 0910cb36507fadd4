//! The machines that the documents call external: 192.168.1.100 and others, outside of the cluster.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread;

use roadstead_testkit::netns::{inside, run};

/// Where somebody answers, in the words of the documents.
const ANSWER: [&str; 5] = [
    "192.168.1.100:3306",
    "192.168.1.100:80",
    "192.168.1.101:80",
    "10.244.2.5:8080",
    "10.244.1.25:8080",
];

/// Makes them, in the namespace `outside`. Whoever calls hears which of them it was.
pub(super) fn make() {
    run("ip netns add outside && ip link add outside0 type veth peer name eth0 netns outside");
    run("ip address add 192.168.7.1/24 dev outside0 && ip link set outside0 up");
    run("ip -n outside address add 192.168.7.2/24 dev eth0 && ip -n outside link set eth0 up");
    run("ip -n outside link set lo up");
    // The way back to pods, but none to Services: nobody outside knows of them.
    run("ip -n outside route add 10.244.0.0/24 via 192.168.7.1");
    let mut addresses: Vec<_> = ANSWER.iter().filter_map(|at| at.split(':').next()).collect();
    addresses.dedup();
    for address in addresses {
        run(&format!("ip -n outside address add {address}/32 dev lo"));
        run(&format!("ip route add {address}/32 via 192.168.7.2"));
    }
    for at in ANSWER {
        let listener = inside("outside", || TcpListener::bind(at).unwrap());
        thread::spawn(move || answer(&listener, at));
    }
}

fn answer(listener: &TcpListener, at: &str) {
    for stream in listener.incoming() {
        let Ok(mut stream) = stream else { continue };
        let body = format!("served by {at}\n");
        let _ = stream.read(&mut [0; 4096]);
        let _ = write!(
            stream,
            "HTTP/1.0 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        );
    }
}
