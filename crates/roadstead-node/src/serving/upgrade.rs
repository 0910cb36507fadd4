//! Connections that stop being HTTP: what the client asks for, and the answer.

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::header::{CONNECTION, HeaderName, HeaderValue, SEC_WEBSOCKET_ACCEPT};
use hyper::header::{SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, UPGRADE};
use hyper::{Request, Response, StatusCode};
use roadstead_streams::protocol::listed;

use super::{Body, Refusal};

const VERSION: HeaderName = HeaderName::from_static("x-stream-protocol-version");
const ACCEPTED: HeaderName = HeaderName::from_static("x-accepted-stream-protocol-versions");
const SPDY: &str = "SPDY/3.1";
/// RFC 6455, 1.3.
const WEBSOCKET: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// What the client wants to speak, and in which versions.
#[derive(Debug, PartialEq)]
pub(super) enum Upgrade {
    WebSocket { accept: String, asked: Vec<String> },
    Spdy { asked: Vec<String> },
}

impl Upgrade {
    pub(super) fn of<B>(request: &Request<B>) -> Result<Self, Refusal> {
        let all = |name: &HeaderName| -> Vec<String> {
            let values = request.headers().get_all(name).iter();
            let values = values.filter_map(|value| value.to_str().ok());
            listed(values).into_iter().map(str::to_owned).collect()
        };
        let wanted = all(&UPGRADE);
        let wants = |name: &str| wanted.iter().any(|one| one.eq_ignore_ascii_case(name));
        if wants("websocket") {
            let key = request.headers().get(SEC_WEBSOCKET_KEY);
            let key =
                key.ok_or_else(|| Refusal::bad("\"Sec-WebSocket-Key\" header is required"))?;
            let text = [key.as_bytes(), WEBSOCKET.as_bytes()].concat();
            let accept = STANDARD.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, &text));
            return Ok(Self::WebSocket { accept, asked: all(&SEC_WEBSOCKET_PROTOCOL) });
        }
        if !wants(SPDY) {
            return Err(Refusal::bad("Upgrade request required"));
        }
        match all(&VERSION) {
            asked if asked.is_empty() => Err(Refusal::bad(
                "unable to upgrade: \"X-Stream-Protocol-Version\" header is required",
            )),
            asked => Ok(Self::Spdy { asked }),
        }
    }

    pub(super) fn asked(&self) -> Vec<&str> {
        let (Self::WebSocket { asked, .. } | Self::Spdy { asked }) = self;
        asked.iter().map(String::as_str).collect()
    }

    /// The answer that ends HTTP, with the version that was chosen.
    pub(super) fn accepted(&self, version: Option<&'static str>) -> Response<Body> {
        let mut response = empty(StatusCode::SWITCHING_PROTOCOLS);
        let headers = response.headers_mut();
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        let name = match self {
            Self::WebSocket { accept, .. } => {
                headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
                let accept = HeaderValue::from_str(accept).expect("base64 is fit for headers");
                headers.insert(SEC_WEBSOCKET_ACCEPT, accept);
                SEC_WEBSOCKET_PROTOCOL
            }
            Self::Spdy { .. } => {
                headers.insert(UPGRADE, HeaderValue::from_static(SPDY));
                VERSION
            }
        };
        if let Some(version) = version {
            headers.insert(name, HeaderValue::from_static(version));
        }
        response
    }

    /// The answer if none of the versions is known.
    pub(super) fn refused(&self, known: impl Iterator<Item = &'static str>) -> Response<Body> {
        let mut response = empty(StatusCode::FORBIDDEN);
        for version in known {
            response.headers_mut().append(ACCEPTED, HeaderValue::from_static(version));
        }
        response
    }
}

fn empty(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Empty::<Bytes>::new().boxed_unsync());
    *response.status_mut() = status;
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn upgrade(headers: &[(&str, &str)]) -> Result<Upgrade, String> {
        let request = Request::get("/");
        let request =
            headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        Upgrade::of(&request.body(()).unwrap()).map_err(|refusal| refusal.1)
    }

    #[test]
    fn upgrades() {
        // The key and its answer are those of RFC 6455.
        let key = ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
        let socket = upgrade(&[
            ("upgrade", "WebSocket"),
            key,
            ("sec-websocket-protocol", "v5.channel.k8s.io, v4.channel.k8s.io"),
        ]);
        let asked = ["v5.channel.k8s.io", "v4.channel.k8s.io"].map(str::to_owned).to_vec();
        let accept = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=".to_owned();
        assert_eq!(socket, Ok(Upgrade::WebSocket { accept, asked }));
        let version = ("x-stream-protocol-version", "v4.channel.k8s.io");
        let spdy = upgrade(&[("upgrade", "SPDY/3.1"), version]);
        assert_eq!(spdy, Ok(Upgrade::Spdy { asked: vec!["v4.channel.k8s.io".to_owned()] }));
        for refused in
            [&[][..], &[version], &[("upgrade", "SPDY/3.1")], &[("upgrade", "websocket")]]
        {
            assert!(upgrade(refused).is_err(), "{refused:?}");
        }
    }
}
