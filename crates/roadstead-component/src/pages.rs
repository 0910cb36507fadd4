//! The little HTTP server beside a component: health, readiness, metrics, and its state.
//!
//! Every component has one, on a port that the operator chooses; what it answers under which path
//! is up to the component.

use std::convert::Infallible;
use std::future::ready;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Serialize;
use tokio::net::TcpListener;
use tracing::debug;

/// The content type of a metrics page in the text format that Prometheus reads.
const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// How long a client may take to send its request line and headers.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// What is answered to a GET.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The HTTP status code.
    pub code: u16,
    /// The content type of the body.
    pub content_type: &'static str,
    /// The body.
    pub body: String,
}

impl Page {
    /// A page of plain text.
    pub fn text(code: u16, body: impl Into<String>) -> Self {
        Self { code, content_type: "text/plain; charset=utf-8", body: body.into() }
    }

    /// A page of metrics.
    pub fn metrics(body: String) -> Self {
        Self { code: 200, content_type: METRICS_TYPE, body }
    }

    /// What a component knows and does at this moment, for people who look for a mistake: the page
    /// `/debug/state`.
    pub fn state(state: &impl Serialize) -> Self {
        match serde_json::to_string_pretty(state) {
            Ok(body) => Self { code: 200, content_type: "application/json", body: body + "\n" },
            Err(error) => Self::text(500, format!("the state cannot be shown: {error}\n")),
        }
    }
}

/// Answers GET requests on `listener` until dropped: `page` gets the path, `None` is a 404.
///
/// Connections end with the future, so that a stopped component leaves nothing behind.
pub async fn serve<F>(listener: TcpListener, page: F)
where
    F: Fn(&str) -> Option<Page> + Send + Sync + 'static,
{
    serve_slowly(listener, move |path| ready(page(path))).await;
}

/// The same, where a page may have to be waited for.
pub async fn serve_slowly<F, A>(listener: TcpListener, page: F)
where
    F: Fn(&str) -> A + Send + Sync + 'static,
    A: Future<Output = Option<Page>> + Send + 'static,
{
    let page = Arc::new(page);
    let mut connections = tokio::task::JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => {
                    connections.spawn(converse(stream, peer, page.clone()));
                }
                Err(error) => {
                    debug!(%error, "accepting a connection failed");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn converse<F, A>(stream: tokio::net::TcpStream, peer: SocketAddr, page: Arc<F>)
where
    F: Fn(&str) -> A + Send + Sync + 'static,
    A: Future<Output = Option<Page>> + Send + 'static,
{
    let service = service_fn(move |request: Request<Incoming>| {
        let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
        let asked = is_read.then(|| page(request.uri().path()));
        async move { Ok::<_, Infallible>(answer(asked).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = connection.await {
        debug!(%peer, %error, "connection for pages ended");
    }
}

/// The answer to who asked for a page, or for something else.
async fn answer<A>(asked: Option<A>) -> Response<Full<Bytes>>
where
    A: Future<Output = Option<Page>>,
{
    let page = match asked {
        Some(page) => page.await.unwrap_or_else(|| Page::text(404, "404 page not found\n")),
        None => Page::text(405, "only GET is answered here\n"),
    };
    let mut response = Response::new(Full::new(Bytes::from(page.body)));
    *response.status_mut() =
        StatusCode::from_u16(page.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(page.content_type));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    async fn exchange(address: SocketAddr, request: &str) -> String {
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn answers_what_it_knows_and_refuses_the_rest() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(serve(listener, |path| match path {
            "/healthz" => Some(Page::text(503, "not yet")),
            _ => None,
        }));
        let cases = [
            ("GET /healthz", "HTTP/1.1 503 ", "not yet"),
            ("GET /other", "HTTP/1.1 404 ", "not found"),
            ("POST /healthz", "HTTP/1.1 405 ", "only GET"),
        ];
        for (line, status, body) in cases {
            let request = format!("{line} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
            let answer = exchange(address, &request).await;
            assert!(answer.starts_with(status) && answer.contains(body), "{line}: {answer}");
        }
        server.abort();
    }
}
