//! Connections to ports of pods, as the clients of `port-forward` ask for them.

use std::io::Write;
use std::net::TcpListener;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::images::{shell, with_image};
use super::serving::Asked;
use super::serving_exec::{hear, say, websocket_to};
use super::*;

#[test]
fn ports_are_those_of_the_pod() {
    with_image(async |_, runtime, image| {
        let line = "httpd -p '[::1]:7001'; nc -ll -p 7000 -e cat";
        runtime.start(shell(&image, "main", line)).await.unwrap();
        let dial = async |pod: &str, port: u16| {
            let dialed = runtime.dial(&name(pod), port).await;
            dialed.map_err(|error| error.to_string())
        };
        let deadline = Instant::now() + Duration::from_secs(20);
        let mut stream = loop {
            match dial("one", 7000).await {
                Ok(stream) => break stream,
                Err(error) => assert!(Instant::now() < deadline, "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        stream.write_all(b"hello").await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer, "hello", "the other half stays open");
        assert!(dial("one", 7001).await.unwrap().peer_addr().unwrap().is_ipv6());
        // What the node has on its own loopback is not the pod's, unless it is in the node's network.
        let node = TcpListener::bind("127.0.0.1:7002").unwrap();
        let refused = "failed to connect to localhost:7002, \
             IPv4: dial tcp 127.0.0.1:7002: connect: connection refused, \
             IPv6: dial tcp [::1]:7002: connect: connection refused";
        assert_eq!(dial("one", 7002).await.unwrap_err(), refused);
        runtime.create_sandbox(&name("host"), NetworkMode::Host.into()).await.unwrap();
        let mut stream = dial("host", 7002).await.unwrap();
        node.accept().unwrap().0.write_all(b"node").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer, "node");
        for gone in ["host", "one"] {
            runtime.remove_sandbox(&name(gone)).await.unwrap();
            assert_eq!(dial(gone, 7002).await.unwrap_err(), "the pod is not running", "{gone}");
        }
        assert_eq!(dial("nobody", 7002).await.unwrap_err(), "the pod is not running");
    });
}

#[test]
fn ports_over_old_websockets() {
    with_image(async |_, runtime, image| {
        let mut asked = Asked::new(runtime);
        let path = "/portForward/default/one";
        let plain = (400, "Upgrade request required".to_owned());
        assert_eq!(asked.answer(path).await, plain);
        let line = "nc -ll -p 7000 -e echo hi";
        runtime.start(shell(&image, "main", line)).await.unwrap();
        until_it_listens(runtime, 7000).await;
        let protocol = "v4.channel.k8s.io";
        let mut socket =
            websocket_to(&mut asked, &format!("{path}?port=7000&port=9"), protocol).await;
        say(&mut socket, 0x82, b"\x00x").await;
        // Nothing in this protocol says that a connection has ended, so we say that we go.
        tokio::time::sleep(Duration::from_millis(300)).await;
        say(&mut socket, 0x88, b"\x03\xe8").await;
        let (channels, _) = hear(&mut socket).await;
        assert_eq!(channels[&0], "\x58\x1bhi\n", "its port, and what it says");
        let why = "\x09\x00error forwarding port 9 to pod one, uid uid-of-one: failed to connect";
        assert!(channels[&3].starts_with(why), "{channels:?}");
        drop(socket);
        asked.end().await;
    });
}

async fn until_it_listens(runtime: &BuiltinRuntime, port: u16) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while let Err(error) = runtime.dial(&name("one"), port).await {
        assert!(Instant::now() < deadline, "{error}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
