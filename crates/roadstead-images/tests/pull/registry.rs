//! A registry that behaves as a test wants.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures::StreamExt;
use http::{Request, Response, StatusCode, header};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use roadstead_images::digest::Digest;
use roadstead_images::manifest::{Manifest, Platform};
use tar::{Builder, EntryType, Header};
use tokio::net::TcpListener;

type Body = BoxBody<Bytes, std::io::Error>;

/// How the registry behaves.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Manner {
    #[default]
    Open,
    /// Wants `me` and `secret` with every request.
    Basic,
    /// Wants a token, which `me` and `secret` get.
    Bearer,
    /// Breaks every blob off in the middle, once.
    Torn,
    /// Redirects blobs to another server, which must not see the token.
    Redirecting(SocketAddr),
    /// Answers blobs with other bytes.
    Lying,
}

#[derive(Default)]
pub(crate) struct Registry {
    manner: Manner,
    own: Mutex<Option<SocketAddr>>,
    content: BTreeMap<String, Bytes>,
    pub requests: Mutex<Vec<String>>,
}

/// A layer with one file.
pub(crate) fn layer(name: &str, content: &str) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    let mut header = Header::new_gnu();
    header.set_entry_type(EntryType::Regular);
    header.set_mode(0o644);
    header.set_size(content.len() as u64);
    builder.append_data(&mut header, name, content.as_bytes()).unwrap();
    builder.into_inner().unwrap()
}

impl Registry {
    /// Serves one image of two layers as `app:v1`, inside an index.
    pub(crate) async fn start(manner: Manner) -> (SocketAddr, Arc<Self>) {
        let mut registry = Self { manner, ..Self::default() };
        let layers = [layer("a", &"a".repeat(100_000)), layer("b", "bee")];
        let diffs: Vec<_> = layers.iter().map(|layer| Digest::of(layer)).collect();
        let config = serde_json::json!({
            "architecture": Platform::own().architecture, "os": "linux",
            "config": {"Cmd": ["/a"]}, "rootfs": {"type": "layers", "diff_ids": diffs},
        });
        let config = registry.put("blobs", config.to_string().into_bytes());
        let layers = layers.map(|layer| registry.put("blobs", layer));
        let manifest = serde_json::to_vec(&Manifest::new(config, layers)).unwrap();
        let (digest, size) = registry.put("manifests", manifest);
        let index = serde_json::json!({"schemaVersion": 2, "manifests": [
            {"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": digest, "size": size,
             "platform": Platform::own()},
        ]});
        let index = Bytes::from(index.to_string());
        registry.content.insert("/v2/app/manifests/v1".to_owned(), index);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        *registry.own.lock().unwrap() = Some(address);
        let registry = Arc::new(registry);
        tokio::spawn(serve(listener, registry.clone()));
        (address, registry)
    }

    fn put(&mut self, kind: &str, bytes: Vec<u8>) -> (Digest, u64) {
        let (digest, size) = (Digest::of(&bytes), bytes.len() as u64);
        self.content.insert(format!("/v2/app/{kind}/{digest}"), bytes.into());
        (digest, size)
    }

    pub(crate) fn count(&self, part: &str) -> usize {
        self.requests.lock().unwrap().iter().filter(|path| path.contains(part)).count()
    }

    fn answer(&self, request: &Request<Incoming>) -> Response<Body> {
        let path = request.uri().path().to_owned();
        let authorization = request.headers().get(header::AUTHORIZATION);
        let authorization = authorization.and_then(|value| value.to_str().ok()).unwrap_or("");
        let seen = self.count(&path);
        self.requests.lock().unwrap().push(format!("{path} {authorization}"));
        // "me:secret"
        let is_me = authorization == "Basic bWU6c2VjcmV0";
        if path == "/token" {
            let token = if is_me { r#"{"token":"t1"}"# } else { r#"{"token":"stranger"}"# };
            return full(StatusCode::OK, Bytes::from_static(token.as_bytes()));
        }
        let own = self.own.lock().unwrap().expect("it is set before anybody asks");
        let challenge = match self.manner {
            Manner::Basic if !is_me => Some("Basic realm=\"r\"".to_owned()),
            Manner::Bearer if authorization != "Bearer t1" => Some(format!(
                "Bearer realm=\"http://{own}/token\",service=\"s\",scope=\"repository:app:pull\""
            )),
            _ => None,
        };
        if let Some(challenge) = challenge {
            let mut response = full(StatusCode::UNAUTHORIZED, Bytes::new());
            response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge.parse().unwrap());
            return response;
        }
        let Some(content) = self.content.get(&path) else {
            return full(StatusCode::NOT_FOUND, Bytes::new());
        };
        let is_blob = path.contains("/blobs/");
        match self.manner {
            Manner::Redirecting(to) if is_blob => {
                let mut response = full(StatusCode::TEMPORARY_REDIRECT, Bytes::new());
                let to = format!("http://{to}{path}");
                response.headers_mut().insert(header::LOCATION, to.parse().unwrap());
                response
            }
            Manner::Lying if is_blob => {
                full(StatusCode::OK, Bytes::from(vec![b'x'; content.len()]))
            }
            Manner::Torn if is_blob && seen == 0 => torn(content),
            _ => ranged(request, content),
        }
    }
}

fn full(status: StatusCode, bytes: Bytes) -> Response<Body> {
    let body = Full::new(bytes).map_err(|never: Infallible| match never {}).boxed();
    Response::builder().status(status).body(body).unwrap()
}

fn ranged(request: &Request<Incoming>, content: &Bytes) -> Response<Body> {
    let range = request.headers().get(header::RANGE).and_then(|value| value.to_str().ok());
    let from: Option<usize> =
        range.and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok());
    match from {
        Some(from) => full(StatusCode::PARTIAL_CONTENT, content.slice(from..)),
        None => full(StatusCode::OK, content.clone()),
    }
}

fn torn(content: &Bytes) -> Response<Body> {
    let half = content.slice(..content.len() / 2);
    let pieces = [Ok(Frame::data(half)), Err(std::io::Error::other("torn"))];
    let body = StreamBody::new(futures::stream::iter(pieces).then(|piece| async {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        piece
    }));
    Response::new(BodyExt::boxed(body))
}

async fn serve(listener: TcpListener, registry: Arc<Registry>) {
    while let Ok((stream, _)) = listener.accept().await {
        let registry = registry.clone();
        let service = service_fn(move |request| {
            let response = registry.answer(&request);
            async move { Ok::<_, Infallible>(response) }
        });
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    }
}
