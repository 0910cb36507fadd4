//! Somebody who may run commands in pods and reach their ports, and does not keep to the protocols.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use roadstead_streams::spdy::frame::{Encoder, Frame, Headers};
use roadstead_testkit::kubectl::{Kubectl, eventually};
use roadstead_testkit::netns::laboratory;

use crate::attacks;
use crate::process::Roadstead;

const SECOND: Duration = Duration::from_secs(1);
const DEFAULT: &str = "/api/v1/namespaces/default/pods/echo";

/// kubectl knows the way through TLS; what goes through it is ours.
struct Door(Child);

impl Door {
    fn open(kubectl: &Kubectl) -> Self {
        // It keeps us from pods unless it is told not to.
        let mut command = kubectl.command("proxy --port=8001 --reject-paths='^$'");
        let door = Self(command.stdout(Stdio::null()).spawn().unwrap());
        eventually(
            "the door opens",
            20 * SECOND,
            || TcpStream::connect("127.0.0.1:8001").is_ok(),
            |opened| *opened,
        );
        door
    }

    /// A connection that is a WebSocket.
    fn socket(path: &str, protocol: &str) -> TcpStream {
        let mut stream = TcpStream::connect("127.0.0.1:8001").unwrap();
        stream.set_read_timeout(Some(20 * SECOND)).unwrap();
        stream.set_write_timeout(Some(3 * SECOND)).unwrap();
        let request = format!(
            "GET {DEFAULT}/{path} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n\
             Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
             Sec-WebSocket-Protocol: {protocol}\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        assert!(head.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&head));
        stream
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const TUNNEL: &str = "SPDY/3.1+portforward.k8s.io";

/// A binary message; its mask changes nothing.
fn message(payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u64).to_be_bytes();
    [&[0x82, 0x80 | 127], &length[..], &[0; 4], payload].concat()
}

fn streams(encoder: &mut Encoder, numbers: impl Iterator<Item = u32>) -> BytesMut {
    let mut bytes = BytesMut::new();
    for number in numbers {
        for (stream, kind) in [(number * 4 + 1, "error"), (number * 4 + 3, "data")] {
            let rows = [("streamtype", kind), ("port", "8080"), ("requestid", &number.to_string())];
            let headers = rows.map(|(name, value)| (name.to_owned(), value.to_owned()));
            let headers = Headers::from(headers);
            encoder.encode(&Frame::SynStream { stream, fin: false, headers }, &mut bytes);
        }
    }
    bytes
}

/// In megabytes.
fn memory(roadstead: &Roadstead) -> u64 {
    let text = fs::read_to_string(format!("/proc/{}/status", roadstead.pid())).unwrap();
    let line = text.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

/// Others are answered, by the API server and by the agent.
fn nobody_else_notices(kubectl: &Kubectl) {
    let begin = Instant::now();
    kubectl.run("get pod echo");
    assert_eq!(kubectl.run("exec echo -- curl -s 127.0.0.1:8080"), "echo\n");
    assert!(begin.elapsed() < 20 * SECOND, "{:?}", begin.elapsed());
}

/// Whether the other side has ended the connection, whatever it still had to say.
fn is_ended(stream: &mut TcpStream) -> bool {
    let mut buffer = [0; 4096];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return true,
            Err(_) => return false,
        }
    }
}

/// Writes until the other side takes no more; how much it took.
fn pours(stream: &mut TcpStream, piece: &[u8], most: usize) -> usize {
    let (mut taken, mut at) = (0, 0);
    while taken < most {
        match stream.write(&piece[at..]) {
            Ok(count) => {
                taken += count;
                at = (at + count) % piece.len();
            }
            Err(error) if [ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&error.kind()) => {
                break;
            }
            Err(error) => panic!("after {taken} bytes: {error}"),
        }
    }
    taken
}

#[test]
fn a_hostile_user_of_pods_hinders_nobody() {
    laboratory(|| {
        let roadstead = Roadstead::up();
        let kubectl = roadstead.kubectl();
        kubectl.run("run echo --image=roadstead/echo:latest");
        kubectl.run("wait --for=condition=Ready pod/echo --timeout=60s");
        nobody_else_notices(&kubectl);
        let _door = Door::open(&kubectl);
        let before = memory(&roadstead);
        let kept = [many_streams().unwrap(), nothing_is_read(), an_endless_message()];
        nobody_else_notices(&kubectl);
        let grown = memory(&roadstead).saturating_sub(before);
        eprintln!("it grew by {grown} MB");
        assert!(grown < 64, "{grown} MB");
        frames_that_are_none();
        drop(kept);
        nobody_else_notices(&kubectl);
        // Nothing of it is left.
        let open = || fs::read_dir(format!("/proc/{}/fd", roadstead.pid())).unwrap().count();
        eventually("descriptors are free again", 30 * SECOND, open, |count| *count < 200);
        attacks::refused(8);
    });
}

/// Thousands of connections to a port over one, and nobody reads what comes of them.
fn many_streams() -> io::Result<TcpStream> {
    let mut socket = Door::socket("portforward", TUNNEL);
    let mut encoder = Encoder::default();
    for begin in (0..3000).step_by(100) {
        let opened = streams(&mut encoder, begin..begin + 100);
        socket.write_all(&message(&opened))?;
    }
    Ok(socket)
}

/// Asks a server for more and more, and reads nothing: what waits is bounded.
fn nothing_is_read() -> TcpStream {
    let mut socket = Door::socket("portforward", TUNNEL);
    let mut encoder = Encoder::default();
    socket.write_all(&message(&streams(&mut encoder, 0..1))).unwrap();
    let payload = "GET / HTTP/1.1\r\nHost: x\r\n\r\n".repeat(2000);
    let mut bytes = BytesMut::new();
    let payload = Bytes::from(payload);
    encoder.encode(&Frame::Data { stream: 3, fin: false, payload }, &mut bytes);
    pours(&mut socket, &message(&bytes), 200 << 20);
    socket
}

/// One message that never ends, to a command that does not read.
fn an_endless_message() -> TcpStream {
    let path = "exec?command=sleep&command=1000&stdin=true&stdout=true";
    let mut socket = Door::socket(path, "v5.channel.k8s.io");
    // As long as can be said.
    let mut head = vec![0x82, 0x80 | 127];
    head.extend_from_slice(&(u64::MAX >> 1).to_be_bytes());
    head.extend_from_slice(&[0; 4]);
    socket.write_all(&head).unwrap();
    let taken = pours(&mut socket, &[0; 1 << 16], 200 << 20);
    assert!(taken < 100 << 20, "{taken} bytes were taken for somebody who reads none");
    socket
}

/// What cannot be understood ends the connection.
fn frames_that_are_none() {
    let exec = "exec?command=sleep&command=1000&stdin=true&stdout=true";
    let cases: [(&str, &str, &str, Vec<u8>); 5] = [
        ("longer than any", exec, "v5.channel.k8s.io", [&[0x82, 0xff][..], &[0xff; 12]].concat()),
        ("not masked", exec, "v5.channel.k8s.io", vec![0x82, 1, 0]),
        ("no such channel", exec, "v5.channel.k8s.io", message(b"\x09x")),
        ("not SPDY", "portforward", TUNNEL, message(b"\x80\x02\x00\x01aaaaaaaaaaaa")),
        ("long headers", "portforward", TUNNEL, message(b"\x80\x03\x00\x01\x00\xff\xff\xff")),
    ];
    for (name, path, protocol, bytes) in cases {
        let mut socket = Door::socket(path, protocol);
        socket.write_all(&bytes).unwrap();
        assert!(is_ended(&mut socket), "{name}");
    }
}
