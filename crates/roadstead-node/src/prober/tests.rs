use super::*;

use futures::future::BoxFuture;
use roadstead_pod::addresses::Addresses;
use roadstead_pod::container_config::ContainerConfig;
use roadstead_pod::facts::{Exit, StartedContainer};
use roadstead_pod::probe::{HttpGet, Scheme, Thresholds};
use roadstead_pod::recovery::RecoveredPod;
use roadstead_pod::sandbox::SandboxOrder;
use roadstead_pod::volumes::PodVolume;
use roadstead_pod::volumes::payload::Payload;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::config::NodeError;
use crate::runtime::{StartError, Stop};

/// A runtime that runs nothing.
struct Nothing;

impl ContainerRuntime for Nothing {
    fn recovered(&self) -> Vec<RecoveredPod> {
        vec![]
    }

    fn create_sandbox<'a>(
        &'a self,
        _: &'a PodName,
        _: SandboxOrder,
    ) -> BoxFuture<'a, Result<Addresses, NodeError>> {
        Box::pin(std::future::pending())
    }

    fn prepare_volume<'a>(
        &'a self,
        _: &'a PodName,
        _: PodVolume,
        _: Option<Payload>,
    ) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(std::future::pending())
    }

    fn start(&self, _: ContainerConfig) -> BoxFuture<'_, Result<StartedContainer, StartError>> {
        Box::pin(std::future::pending())
    }

    fn wait(&self, _: &PodName, _: &str) -> BoxFuture<'static, Exit> {
        Box::pin(std::future::pending())
    }

    fn stop(&self, _: &PodName, _: &str, _: Stop) {}

    fn remove_sandbox<'a>(&'a self, _: &'a PodName) -> BoxFuture<'a, Result<(), NodeError>> {
        Box::pin(std::future::pending())
    }

    fn remove<'a>(&'a self, _: &'a PodName) -> BoxFuture<'a, Result<(), NodeError>> {
        Box::pin(std::future::pending())
    }
}

/// A server that gives each connection the next of these answers, in which `PORT` is its own.
async fn server(answers: &'static [&'static str]) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        for answer in answers {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut buffer = [0; 1024];
            let _ = stream.read(&mut buffer).await;
            let answer = answer.replace("PORT", &port.to_string());
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    port
}

fn assignment(check: Check) -> Assignment {
    let schedule = Schedule {
        initial_delay: Duration::ZERO,
        period: Duration::from_secs(1),
        timeout: Duration::from_millis(500),
        thresholds: Thresholds { success: 1, failure: 3 },
    };
    let target = Target {
        runtime: Arc::new(Nothing),
        pod: PodName { namespace: "default".into(), name: "web".into(), uid: "u".into() },
        container: "a".into(),
        address: [127, 0, 0, 1].into(),
    };
    let first_at = Timestamp::now();
    Assignment {
        target,
        id: "id".into(),
        kind: Kind::Readiness,
        check: Ok(check),
        schedule,
        first_at,
    }
}

fn http(port: u16) -> Check {
    let path = "/healthz".into();
    Check::Http(HttpGet { scheme: Scheme::Http, host: None, port, path, headers: vec![] })
}

const ELSEWHERE: &str =
    "HTTP/1.1 302 Found\r\nLocation: http://other/\r\nContent-Length: 2\r\n\r\nhi";
const HERE: &str = "HTTP/1.1 307 Again\r\nLocation: http://127.0.0.1:PORT/x\r\n\r\n";

#[tokio::test]
async fn http_answers() {
    let cases: [(&'static [&'static str], &str); 8] = [
        (&["HTTP/1.1 200 OK\r\n\r\n"], "fine"),
        (&[HERE, "HTTP/1.1 200 OK\r\n\r\n"], "fine"),
        (&[HERE, "HTTP/1.1 404 None\r\n\r\n"], "failed: HTTP probe failed with statuscode: 404"),
        (&[ELSEWHERE], "warning: Probe terminated redirects, Response body: hi"),
        (&[HERE; 10], "failed: Get \"http://127.0.0.1:PORT/x\": stopped after 10 redirects"),
        (&["HTTP/1.1 500 Oops\r\n\r\nsecret"], "failed: HTTP probe failed with statuscode: 500"),
        (&["nonsense\n"], "failed: Get \"http://127.0.0.1:PORT/healthz\": malformed HTTP response"),
        (&[""], "failed: Get \"http://127.0.0.1:PORT/healthz\": EOF"),
    ];
    for (answers, want) in cases {
        let port = server(answers).await;
        let found = match attempt(&assignment(http(port))).await {
            Ok(Outcome::Success) => "fine".into(),
            Ok(Outcome::Warning(what)) => format!("warning: {what}"),
            Ok(Outcome::Failure(what)) => format!("failed: {what}"),
            Ok(Outcome::Error(what)) => format!("error: {what}"),
            Err(failure) => format!("failed: {}", failure.message),
        };
        assert_eq!(found, want.replace("PORT", &port.to_string()), "{answers:?}");
    }
}

#[tokio::test]
async fn nobody_answers() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = silent.local_addr().unwrap().port();
    let late = attempt(&assignment(http(port))).await.unwrap_err().message;
    let want = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)";
    assert_eq!(late, format!("Get \"http://127.0.0.1:{port}/healthz\": {want}"));
    drop(silent);
    let refused = format!("dial tcp 127.0.0.1:{port}: connect: connection refused");
    let found = attempt(&assignment(http(port))).await.unwrap_err().message;
    assert_eq!(found, format!("Get \"http://127.0.0.1:{port}/healthz\": {refused}"));
    let tcp = Check::Tcp { host: None, port };
    assert_eq!(attempt(&assignment(tcp)).await.unwrap_err().message, refused);
}

#[tokio::test]
async fn a_command_that_cannot_start_is_an_error() {
    let check = Check::Exec { command: vec!["true".into()] };
    let found = attempt(&assignment(check)).await.unwrap();
    assert_eq!(found, Outcome::Error("this runtime runs no commands in containers".into()));
}

#[tokio::test]
async fn a_port_that_opens_late_is_not_a_failure() {
    let port = server(&[]).await;
    time::sleep(Duration::from_millis(10)).await;
    let (send, mut reports) = mpsc::channel(4);
    let probing = tokio::spawn(run(assignment(Check::Tcp { host: None, port }), send));
    time::sleep(Duration::from_millis(100)).await;
    let _listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
    let report = reports.recv().await.unwrap();
    assert_eq!(report.outcome, Outcome::Success);
    probing.abort();
}

#[tokio::test]
async fn nobody_asks_for_certificates() {
    let made = rcgen::generate_simple_self_signed(["somebody.else".to_owned()]).unwrap();
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key.into())
        .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let mut stream = acceptor.accept(stream).await.unwrap();
        let mut buffer = [0; 1024];
        let _ = stream.read(&mut buffer).await;
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
        let _ = stream.shutdown().await;
    });
    let Check::Http(plain) = http(port) else { panic!() };
    let secure = Check::Http(HttpGet { scheme: Scheme::Https, ..plain });
    assert_eq!(attempt(&assignment(secure)).await.unwrap(), Outcome::Success);
}
