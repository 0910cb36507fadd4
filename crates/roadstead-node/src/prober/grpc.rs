//! The question of `grpc.health.v1.Health/Check`, over HTTP/2 without TLS: one message of one field
//! there, and one back.

use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::{HeaderMap, Request};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use roadstead_pod::status::minutes_and_seconds;
use tokio::net::TcpStream;
use tokio::time;
use tokio_util::task::AbortOnDropHandle;

use super::Failure;

/// Nobody needs more to say how he is.
const MOST: usize = 4096;
/// How often somebody who does not answer is tried within one attempt.
const AGAIN: Duration = Duration::from_millis(50);
const UNIMPLEMENTED: u32 = 12;

/// Asks how the service is.
pub(super) async fn check(address: &str, service: &str, limit: Duration) -> Result<(), Failure> {
    let within = minutes_and_seconds(limit.as_secs());
    let end = time::Instant::now() + limit;
    let Ok(stream) = time::timeout_at(end, connect(address)).await else {
        return Err(Failure::new(format!(
            "timeout: failed to connect service {address:?} within {within}: context deadline exceeded"
        )));
    };
    match time::timeout_at(end, ask(stream, address, service)).await {
        Ok(Ok(answer)) => answer.verdict(),
        Ok(Err(error)) => Err(Failure::new(format!(
            "error: health rpc probe failed: rpc error: code = Unavailable desc = {error}"
        ))),
        Err(_) => {
            Err(Failure::new(format!("timeout: health rpc did not complete within {within}")))
        }
    }
}

/// Until somebody listens there.
async fn connect(address: &str) -> TcpStream {
    loop {
        match TcpStream::connect(address).await {
            Ok(stream) => return stream,
            Err(_) => time::sleep(AGAIN).await,
        }
    }
}

struct Answer {
    /// The number of gRPC, and what goes with it.
    status: Option<(u32, String)>,
    /// The message, with its length before it.
    message: BytesMut,
}

impl Answer {
    fn verdict(&self) -> Result<(), Failure> {
        match &self.status {
            Some((0, _)) => match serving_status(&self.message) {
                "SERVING" => Ok(()),
                other => Err(Failure::new(format!("service unhealthy (responded with {other:?})"))),
            },
            Some((UNIMPLEMENTED, why)) => Err(Failure::new(format!(
                "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): {why}"
            ))),
            Some((code, why)) => Err(Failure::new(format!(
                "error: health rpc probe failed: rpc error: code = {} desc = {why}",
                code_name(*code)
            ))),
            None => Err(Failure::new("error: health rpc probe failed: rpc error: code = Unknown desc = the server speaks no gRPC".into())),
        }
    }
}

async fn ask(stream: TcpStream, address: &str, service: &str) -> Result<Answer, hyper::Error> {
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
    let _connection = AbortOnDropHandle::new(tokio::spawn(async move {
        let _ = connection.await;
    }));
    let request = Request::post(format!("http://{address}/grpc.health.v1.Health/Check"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("user-agent", "kube-probe/1.37")
        .body(Full::new(question(service)))
        .expect("an address and a fixed path are a URL");
    let response = sender.send_request(request).await?;
    let mut status = status_of(response.headers());
    let mut body = response.into_body();
    let mut message = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame?;
        if let Some(data) = frame.data_ref()
            && message.len() + data.len() <= MOST
        {
            message.extend_from_slice(data);
        }
        status = frame.trailers_ref().and_then(status_of).or(status);
    }
    Ok(Answer { status, message })
}

/// A length, and the field `service` of number 1 if there is anything in it.
fn question(service: &str) -> Bytes {
    let mut field = BytesMut::new();
    if !service.is_empty() {
        field.put_u8(1 << 3 | 2);
        put_varint(&mut field, service.len());
        field.put_slice(service.as_bytes());
    }
    let mut message = BytesMut::new();
    message.put_u8(0);
    message.put_u32(u32::try_from(field.len()).unwrap_or(u32::MAX));
    message.put(field);
    message.freeze()
}

fn put_varint(out: &mut BytesMut, mut number: usize) {
    while number > 0x7f {
        out.put_u8((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    out.put_u8(number as u8);
}

/// The name of what field 1 says.
fn serving_status(message: &[u8]) -> &'static str {
    let mut rest = message;
    if rest.len() >= 5 {
        rest.advance(5);
    }
    match rest {
        [] | [0x08, 0, ..] => "UNKNOWN",
        [0x08, 1, ..] => "SERVING",
        [0x08, 2, ..] => "NOT_SERVING",
        [0x08, 3, ..] => "SERVICE_UNKNOWN",
        _ => "nonsense",
    }
}

fn status_of(headers: &HeaderMap) -> Option<(u32, String)> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let code = text("grpc-status")?.parse().ok()?;
    Some((code, text("grpc-message").unwrap_or_default().to_owned()))
}

fn code_name(code: u32) -> &'static str {
    const NAMES: [&str; 17] = [
        "OK",
        "Canceled",
        "Unknown",
        "InvalidArgument",
        "DeadlineExceeded",
        "NotFound",
        "AlreadyExists",
        "PermissionDenied",
        "ResourceExhausted",
        "FailedPrecondition",
        "Aborted",
        "OutOfRange",
        "Unimplemented",
        "Internal",
        "Unavailable",
        "DataLoss",
        "Unauthenticated",
    ];
    NAMES.get(code as usize).unwrap_or(&"Unknown")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    use http::{HeaderValue, Response};
    use http_body_util::StreamBody;
    use hyper::body::{Frame, Incoming};
    use hyper::service::service_fn;
    use tokio::net::TcpListener;

    /// A server that answers so to every question, and says what it was asked.
    async fn server(status: u8, trailers: &'static [(&'static str, &'static str)]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let answer = service_fn(move |request: Request<Incoming>| async move {
                assert_eq!(request.uri().path(), "/grpc.health.v1.Health/Check");
                let asked = request.into_body().collect().await.unwrap().to_bytes();
                assert_eq!(&asked[..], b"\0\0\0\0\x03\x0a\x01s");
                let message = Bytes::copy_from_slice(&[0, 0, 0, 0, 2, 8, status]);
                let mut map = HeaderMap::new();
                for (name, value) in trailers {
                    map.insert(*name, HeaderValue::from_static(value));
                }
                let frames = [Frame::data(message), Frame::trailers(map)];
                let frames = frames.map(Ok::<_, Infallible>);
                let body = StreamBody::new(futures::stream::iter(frames));
                Ok::<_, Infallible>(Response::new(body))
            });
            let served = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            let _ = served.serve_connection(TokioIo::new(stream), answer).await;
        });
        address
    }

    #[tokio::test]
    async fn answers() {
        let unimplemented = "error: this server does not implement the grpc health protocol \
            (grpc.health.v1.Health): unknown service";
        for (status, trailers, want) in [
            (1, &[("grpc-status", "0")][..], ""),
            (2, &[("grpc-status", "0")], "service unhealthy (responded with \"NOT_SERVING\")"),
            (0, &[("grpc-status", "12"), ("grpc-message", "unknown service")], unimplemented),
            (
                0,
                &[("grpc-status", "5")],
                "error: health rpc probe failed: rpc error: code = NotFound desc = ",
            ),
        ] {
            let address = server(status, trailers).await;
            let found = check(&address, "s", Duration::from_secs(5)).await;
            assert_eq!(found.err().map(|failure| failure.message).unwrap_or_default(), want);
        }
    }

    #[tokio::test]
    async fn nobody_is_there() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        drop(listener);
        let found = check(&address, "", Duration::from_secs(1)).await.err().unwrap();
        let want = format!(
            "timeout: failed to connect service \"{address}\" within 1s: context deadline exceeded"
        );
        assert_eq!(found.message, want);
    }
}
