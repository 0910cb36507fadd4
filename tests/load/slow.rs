//! Many clients that are slow, silent or do not read: the memory of the real binary stays bounded,
//! and it gives back what they made it use.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ListParams, PostParams};
use kube::client::ConfigExt;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client};
use roadstead_testkit::kubectl::eventually;
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpSocket;
use tokio::time;
use tokio_rustls::TlsConnector;

const CLIENTS: usize = 500;
/// What a client may make the server hold, whatever it does.
const EACH: usize = 160 << 10;
const OBJECTS: usize = 60;
const OBJECT: usize = 100 << 10;

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Server {
    fn start(kubeconfig: &Path) -> Self {
        let server = Command::new(env!("CARGO_BIN_EXE_roadstead"))
            .args(["apiserver", "--ephemeral", "--listen", "127.0.0.1:0", "--kubeconfig-out"])
            .arg(kubeconfig)
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let ready = || kubeconfig.exists();
        eventually("the server is ready", Duration::from_secs(20), ready, |ready| *ready);
        Self(server)
    }

    /// The resident memory in bytes.
    fn memory(&self) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().strip_suffix(" kB").unwrap().parse::<usize>().unwrap() << 10
    }
}

/// What a slow client does before it stops.
#[derive(Clone, Copy)]
enum Slow {
    /// It connects.
    Silent,
    /// It completes the handshake.
    Mute,
    /// It sends the beginning of an object.
    Writer,
    /// It asks for all objects, and does not read them.
    Reader,
}

/// Opens a connection; dropping the result closes it.
async fn connect(config: &kube::Config, slow: Slow) -> Box<dyn Send> {
    let address = config.cluster_url.authority().unwrap().as_str().parse().unwrap();
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let stream = socket.connect(address).await.unwrap();
    if let Slow::Silent = slow {
        return Box::new(stream);
    }
    let mut tls = config.rustls_client_config().unwrap();
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    let name = config.cluster_url.host().unwrap().to_owned().try_into().unwrap();
    let mut stream = TlsConnector::from(Arc::new(tls)).connect(name, stream).await.unwrap();
    let path = "/api/v1/namespaces/default/configmaps";
    let sent = match slow {
        Slow::Silent | Slow::Mute => String::new(),
        Slow::Reader => format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n"),
        Slow::Writer => format!(
            "POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n\
             Content-Length: 200000\r\n\r\n{{\"data\":{{\"a\":\"{}",
            "x".repeat(50_000)
        ),
    };
    stream.write_all(sent.as_bytes()).await.unwrap();
    stream.flush().await.unwrap();
    Box::new(stream)
}

#[tokio::test]
async fn slow_clients_leave_memory_flat() {
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = directory.path().join("kubeconfig");
    let server = Server::start(&kubeconfig);
    let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
    let options = KubeConfigOptions::default();
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await.unwrap();
    let maps = Api::<ConfigMap>::default_namespaced(Client::try_from(config.clone()).unwrap());
    for number in 0..OBJECTS {
        let object = json!({"metadata": {"name": format!("m{number}")},
            "data": {"filler": "x".repeat(OBJECT)}});
        let object = serde_json::from_value(object).unwrap();
        maps.create(&PostParams::default(), &object).await.unwrap();
    }
    assert_eq!(maps.list(&ListParams::default()).await.unwrap().items.len(), OBJECTS);
    let before = server.memory();

    let mut clients = Vec::new();
    for number in 0..CLIENTS {
        let slow = [Slow::Silent, Slow::Mute, Slow::Writer, Slow::Reader][number % 4];
        clients.push(connect(&config, slow).await);
    }
    let mut most = 0;
    for _ in 0..20 {
        time::sleep(Duration::from_millis(100)).await;
        most = server.memory().max(most);
    }
    let grown = most.saturating_sub(before);
    assert!(grown < CLIENTS * EACH, "{} bytes for each client", grown / CLIENTS);
    // Others are served meanwhile.
    assert_eq!(maps.list(&ListParams::default()).await.unwrap().items.len(), OBJECTS);

    drop(clients);
    let memory = || server.memory().saturating_sub(before);
    eventually("memory is given back", Duration::from_secs(10), memory, |more| *more < 16 << 20);
}
