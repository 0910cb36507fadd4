//! Commands over upgraded connections, as the clients of Kubernetes speak them.

use bytes::{Bytes, BytesMut};
use http_body_util::Empty;
use hyper::Request;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use roadstead_streams::spdy::frame::{Decoder, Encoder, Frame, Headers};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::images::{shell, with_image};
use super::serving::Asked;
use super::*;

const EXEC: &str = "/exec/default/one/main";

pub(super) type Socket = TokioIo<Upgraded>;

async fn upgrade(asked: &mut Asked, path: &str, headers: &[(&str, &str)]) -> Socket {
    let request = Request::get(path).header("connection", "Upgrade");
    let request =
        headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    let response = asked.send(request.body(Empty::new()).unwrap()).await;
    assert_eq!(response.status().as_u16(), 101);
    TokioIo::new(hyper::upgrade::on(response).await.unwrap())
}

async fn websocket(asked: &mut Asked, query: &str) -> Socket {
    let protocols = "v5.channel.k8s.io,v4.channel.k8s.io";
    websocket_to(asked, &format!("{EXEC}?{query}"), protocols).await
}

pub(super) async fn websocket_to(asked: &mut Asked, path: &str, protocols: &str) -> Socket {
    let headers = [
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ("sec-websocket-protocol", protocols),
    ];
    upgrade(asked, path, &headers).await
}

/// A short frame; its mask changes nothing.
pub(super) async fn say(socket: &mut Socket, first: u8, payload: &[u8]) {
    let frame = [&[first, 0x80 | payload.len() as u8, 0, 0, 0, 0], payload].concat();
    socket.write_all(&frame).await.unwrap();
}

/// The frames until the server closes: what came on each channel, and the pongs.
pub(super) async fn hear(socket: &mut Socket) -> (BTreeMap<u8, String>, usize) {
    let (mut channels, mut pongs) = (BTreeMap::<u8, String>::new(), 0);
    loop {
        let mut head = [0; 2];
        socket.read_exact(&mut head).await.unwrap();
        let length = match head[1] {
            126 => usize::from(socket.read_u16().await.unwrap()),
            127 => socket.read_u64().await.unwrap() as usize,
            length => length.into(),
        };
        let mut payload = vec![0; length];
        socket.read_exact(&mut payload).await.unwrap();
        match head[0] & 0x0f {
            8 => return (channels, pongs),
            10 => pongs += 1,
            _ => {
                *channels.entry(payload[0]).or_default() +=
                    std::str::from_utf8(&payload[1..]).unwrap()
            }
        }
    }
}

fn status(channels: &BTreeMap<u8, String>) -> Value {
    serde_json::from_str(&channels[&3]).unwrap()
}

#[test]
fn commands_over_websockets() {
    with_image(async |_, runtime, image| {
        let mut asked = Asked::new(runtime);
        let missing = (500, "container not found (\"main\")".to_owned());
        assert_eq!(asked.answer(&format!("{EXEC}?command=true&output=1")).await, missing);
        runtime.start(shell(&image, "main", "sleep 60")).await.unwrap();
        let plain = (400, "Upgrade request required".to_owned());
        assert_eq!(asked.answer(&format!("{EXEC}?command=true&output=1")).await, plain);

        let line = "command=sh&command=-c&command=cat;echo+oops+%3E%262;exit+7";
        let mut socket = websocket(&mut asked, &format!("{line}&input=1&output=1&error=1")).await;
        say(&mut socket, 0x82, b"\x00hello ").await;
        say(&mut socket, 0x89, b"there?").await;
        say(&mut socket, 0x82, b"\x00world").await;
        say(&mut socket, 0x82, b"\xff\x00").await;
        let (channels, pongs) = hear(&mut socket).await;
        assert_eq!((channels[&1].as_str(), channels[&2].as_str()), ("hello world", "oops\n"));
        assert_eq!(pongs, 1);
        assert_eq!(status(&channels)["reason"], "NonZeroExitCode");
        assert_eq!(status(&channels)["details"]["causes"][0]["message"], "7");
        drop(socket);

        let mut socket = websocket(&mut asked, "command=nothing&output=1").await;
        let failed = status(&hear(&mut socket).await.0);
        let message = failed["message"].as_str().unwrap();
        assert!(message.starts_with("error executing command in container: "), "{message}");
        assert_eq!(failed["reason"], "InternalError");
        drop(socket);

        // A terminal of the size that the client says; all that was printed comes before the end.
        let tty = "command=sh&command=-c&input=1&output=1&tty=1&command=\
                   until+stty+size%7Cgrep+-q+50.132;do+sleep+0.05;done;stty+size;read+x;echo+$x";
        let mut socket = websocket(&mut asked, tty).await;
        say(&mut socket, 0x82, b"\x04{\"Width\":132,\"Height\":50}").await;
        say(&mut socket, 0x82, b"\x00go\n").await;
        let (channels, _) = hear(&mut socket).await;
        assert!(
            channels[&1].contains("50 132\r\n") && channels[&1].ends_with("go\r\n"),
            "{channels:?}"
        );
        assert_eq!(status(&channels), json!({"metadata": {}, "status": "Success"}));
        drop(socket);

        // Somebody who goes away leaves nothing open here.
        let mut socket = websocket(&mut asked, "command=cat&input=1&output=1").await;
        say(&mut socket, 0x82, b"\x00x").await;
        drop(socket);
        asked.end().await;
    });
}

#[test]
fn commands_over_spdy() {
    with_image(async |_, runtime, image| {
        let mut asked = Asked::new(runtime);
        runtime.start(shell(&image, "main", "sleep 60")).await.unwrap();
        let headers = [("upgrade", "SPDY/3.1"), ("x-stream-protocol-version", "v4.channel.k8s.io")];
        let path = format!("{EXEC}?command=cat&input=1&output=1");
        let mut socket = upgrade(&mut asked, &path, &headers).await;
        let (mut encoder, mut bytes) = (Encoder::default(), BytesMut::new());
        for (stream, kind) in [(1, "error"), (3, "stdin"), (5, "stdout")] {
            let headers = Headers::from([("streamtype".to_owned(), kind.to_owned())]);
            encoder.encode(&Frame::SynStream { stream, fin: false, headers }, &mut bytes);
        }
        let payload = Bytes::from_static(b"hello");
        encoder.encode(&Frame::Data { stream: 3, fin: true, payload }, &mut bytes);
        socket.write_all(&bytes).await.unwrap();
        let (mut decoder, mut heard) = (Decoder::default(), BTreeMap::<u32, Vec<u8>>::new());
        let mut buffer = vec![0; 4096];
        let mut gone = false;
        while !gone {
            let count = socket.read(&mut buffer).await.unwrap();
            assert!(count > 0, "it ends with a word");
            decoder.push(&buffer[..count]);
            while let Some(frame) = decoder.next_frame().unwrap() {
                match frame {
                    Frame::Data { stream, payload, .. } => {
                        heard.entry(stream).or_default().extend_from_slice(&payload);
                    }
                    Frame::GoAway { .. } => gone = true,
                    _ => {}
                }
            }
        }
        assert_eq!(heard[&5], b"hello");
        let status: Value = serde_json::from_slice(&heard[&1]).unwrap();
        assert_eq!(status["status"], "Success");
        drop(socket);
        asked.end().await;
    });
}
