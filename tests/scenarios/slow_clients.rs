//! Hundreds of clients that send half a request and then nothing: memory stays flat, everybody else
//! is served, and in the end they are sent away.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use roadstead_testkit::netns::is_left_out;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::process::Roadstead;

const CLIENTS: usize = 500;
/// What each of them sends of its body, and how much more it promises.
const HALF: usize = 32 << 10;
const MEGABYTE: u64 = 1 << 20;

/// How much memory the process has, in bytes.
fn resident(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

/// A kubeconfig as a way to connect.
struct Access {
    connector: TlsConnector,
    address: String,
}

impl Access {
    fn read(roadstead: &Roadstead) -> Self {
        let config = roadstead.credentials();
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(&config.authority).unwrap()).unwrap();
        let chain = vec![CertificateDer::from_pem_slice(&config.certificate).unwrap()];
        let key = PrivateKeyDer::from_pem_slice(&config.key).unwrap();
        let tls = ClientConfig::builder().with_root_certificates(roots);
        let tls = tls.with_client_auth_cert(chain, key).unwrap();
        let address = config.server.trim_start_matches("https://").to_owned();
        Self { connector: TlsConnector::from(Arc::new(tls)), address }
    }

    async fn connect(&self) -> TlsStream<TcpStream> {
        let stream = TcpStream::connect(&self.address).await.unwrap();
        let name = ServerName::try_from("127.0.0.1").unwrap();
        self.connector.connect(name, stream).await.unwrap()
    }

    async fn post(&self, length: usize, body: &[u8]) -> TlsStream<TcpStream> {
        let mut stream = self.connect().await;
        let head = format!(
            "POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nHost: x\r\nConnection: \
             close\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(body).await.unwrap();
        stream
    }
}

#[test]
fn slow_clients_cost_little_and_hinder_nobody() {
    if is_left_out("L5") {
        return;
    }
    let roadstead = Roadstead::apiserver();
    tokio::runtime::Runtime::new().unwrap().block_on(story(&roadstead));
}

async fn story(roadstead: &Roadstead) {
    let access = Access::read(roadstead);
    let create = async |name: String| {
        let body = format!("{{\"metadata\":{{\"name\":\"{name}\"}}}}");
        let mut stream = access.post(body.len(), body.as_bytes()).await;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        let answer = String::from_utf8_lossy(&answer).into_owned();
        assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
    };
    create("warm-up".into()).await;
    let before = resident(roadstead.pid());
    let mut slow = Vec::new();
    let mut peaks = Vec::new();
    for wave in 0..3 {
        // Those of the wave before are gone, in the middle of their bodies.
        slow.clear();
        for _ in 0..CLIENTS {
            slow.push(access.post(2 * HALF, &vec![b' '; HALF]).await);
        }
        let begin = Instant::now();
        for number in 0..50 {
            create(format!("wave-{wave}-{number}")).await;
        }
        assert!(begin.elapsed() < Duration::from_secs(5), "others wait for {:?}", begin.elapsed());
        peaks.push(resident(roadstead.pid()));
    }
    let shown: Vec<_> = peaks.iter().map(|peak| peak / MEGABYTE).collect();
    eprintln!("{CLIENTS} slow clients: {} MB before, {shown:?} MB with them", before / MEGABYTE);
    // The halves themselves, and less than 150 KB for each connection; no more the next time.
    let most = (CLIENTS * (HALF + (150 << 10))) as u64;
    assert!(peaks.iter().all(|peak| *peak < before + most), "{shown:?}");
    for mut stream in slow {
        let mut answer = Vec::new();
        let end = time::timeout(Duration::from_secs(15), stream.read_to_end(&mut answer)).await;
        let _ = end.expect("they are sent away");
        let answer = String::from_utf8_lossy(&answer).into_owned();
        assert!(
            answer.contains("request did not complete within the allotted timeout"),
            "{answer}"
        );
    }
    create("afterwards".into()).await;
}
