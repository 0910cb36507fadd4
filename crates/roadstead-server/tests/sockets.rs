//! Clients that are slow, silent, half gone or do not listen, over real sockets.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use roadstead_server::api::Api;
use roadstead_server::bootstrap;
use roadstead_server::config::Config;
use roadstead_server::identity::authority::Authority;
use roadstead_server::identity::token_file::TokenFile;
use roadstead_server::identity::tokens::Tokens;
use roadstead_server::transport::receive::Timeouts;
use roadstead_server::transport::serve::{self, SecureServing};
use roadstead_store::kv::Store;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket};
use tokio::time;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::CancellationToken;

type Stream = TlsStream<tokio::net::TcpStream>;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const SILENCE: Duration = Duration::from_millis(300);

struct Server {
    address: std::net::SocketAddr,
    authority: Authority,
    stop: CancellationToken,
}

impl Server {
    async fn start() -> Self {
        let authority = Authority::ephemeral().unwrap();
        let pair = authority.server(vec!["127.0.0.1".into()]).unwrap();
        let known = TokenFile::parse("sesame,admin,1,\"system:masters\"\n").unwrap();
        let tokens = Tokens::ephemeral().unwrap().with_known(known);
        let range = "10.96.0.0/16".parse().unwrap();
        let config = Config { service_range: range, advertise: None, audit: None };
        let api = Api::new(Store::memory(), config, tokens);
        bootstrap::run(&api).await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let timeouts = Timeouts {
            silence: SILENCE,
            body: 2 * SILENCE,
            unread: 2 * SILENCE,
            stranger: 3 * SILENCE,
        };
        let tls = authority.tls(&pair).unwrap();
        let serving = SecureServing { listener, tls, timeouts, shutdown_delay: Duration::ZERO };
        let stop = CancellationToken::new();
        tokio::spawn(serve::run(api, serving, stop.clone()));
        Self { address, authority, stop }
    }

    async fn connect(&self, protocols: &[&str]) -> Stream {
        let mut roots = RootCertStore::empty();
        let pem = self.authority.certificate().as_bytes();
        roots.add(CertificateDer::from_pem_slice(pem).unwrap()).unwrap();
        let mut config =
            ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        let stream = socket.connect(self.address).await.unwrap();
        let name = ServerName::try_from("127.0.0.1").unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap()
    }

    /// Sends the head of a request, and as much of the body as is given.
    async fn ask(&self, line: &str, length: usize, body: &str) -> Stream {
        let mut stream = self.connect(&[]).await;
        let head = format!(
            "{line} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer sesame\r\n\
             Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        stream
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Reads until the server closes the connection, which it must do before long.
async fn rest(mut stream: Stream) -> String {
    let mut text = Vec::new();
    let end = time::timeout(20 * SILENCE, stream.read_to_end(&mut text)).await;
    // A connection that is cut has no proper end.
    let _ = end.expect("the server ends the connection");
    String::from_utf8_lossy(&text).into_owned()
}

#[tokio::test]
async fn nobody_waits_for_the_silent() {
    let server = Server::start().await;
    let mut unfinished = server.connect(&[]).await;
    unfinished.write_all(b"GET /api/v1/pods HTTP/1.1\r\nHost: x\r\nX-Slow").await.unwrap();
    let mut half_gone = server.ask(&format!("POST {MAPS}"), 100, "{").await;
    half_gone.get_mut().0.shutdown().await.unwrap();
    // What the client did, and what it hears before the connection ends.
    let cases = [
        ("says nothing", server.connect(&[]).await, ""),
        ("says nothing in HTTP/2", server.connect(&["h2"]).await, ""),
        ("stops within a header", unfinished, ""),
        ("stops within the body", server.ask(&format!("POST {MAPS}"), 100, "{").await, "504"),
        ("goes within the body", half_gone, "400"),
    ];
    for (name, stream, want) in cases {
        let heard = rest(stream).await;
        let heard = heard.split(' ').nth(1).unwrap_or("");
        assert_eq!(heard, want, "{name}");
    }
    let stream = server.ask("GET /readyz", 0, "").await;
    assert!(rest(stream).await.contains("200 OK"), "others are served");
}

#[tokio::test]
async fn strangers_who_ask_for_nothing_are_sent_away() {
    let server = Server::start().await;
    // With a token, and without; both answer pings.
    for (token, stays) in [("sesame", true), ("", false), ("wrong", false)] {
        let stream = TokioIo::new(server.connect(&["h2"]).await);
        let (mut sender, connection) =
            http2::handshake::<_, _, Full<Bytes>>(TokioExecutor::new(), stream).await.unwrap();
        let connection = tokio::spawn(connection);
        let mut request = Request::builder().uri("https://x/healthz");
        if !token.is_empty() {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let request = request.body(Full::default()).unwrap();
        let answer = sender.send_request(request).await.unwrap();
        assert_eq!(answer.status() == 200, token != "wrong", "{token:?}");
        time::sleep(8 * SILENCE).await;
        assert_eq!(connection.is_finished(), !stays, "{token:?}");
    }
}

#[tokio::test]
async fn who_does_not_listen_is_cut() {
    let server = Server::start().await;
    let deaf = server.ask(&format!("GET {MAPS}?watch=1"), 0, "").await;
    let watches = async || {
        let text = rest(server.ask("GET /metrics", 0, "").await).await;
        let line = text.lines().find(|line| line.starts_with("apiserver_longrunning_requests{"));
        line.map_or(0, |line| line.rsplit(' ').next().unwrap().parse::<u32>().unwrap())
    };
    let begin = Instant::now();
    while watches().await == 0 {
        assert!(begin.elapsed() < 20 * SILENCE, "the watch begins");
    }
    // More than all buffers on the way take.
    let filler = "x".repeat(500_000);
    for number in 0..12 {
        let body =
            format!("{{\"metadata\":{{\"name\":\"m{number}\"}},\"data\":{{\"a\":\"{filler}\"}}}}");
        let answer = rest(server.ask(&format!("POST {MAPS}"), body.len(), &body).await).await;
        assert!(answer.contains("201 Created"), "writers do not wait: {}", &answer[..80]);
    }
    let begin = Instant::now();
    while watches().await > 0 {
        assert!(begin.elapsed() < 60 * SILENCE, "the watch is cut");
    }
    drop(deaf);
}
