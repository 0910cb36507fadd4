//! A server whose users have tokens, and its clients down to the connection.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use roadstead_testkit::kubectl::eventually;
use roadstead_testkit::netns::run;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use tokio::net::TcpSocket;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// A running API server. The token of a user is its name; `root` may do everything.
pub(crate) struct Server {
    child: Child,
    address: SocketAddr,
    tls: Arc<ClientConfig>,
    directory: tempfile::TempDir,
}

impl Server {
    /// Starts one that may open so many files. `ROADSTEAD_BINARY` is another program than the one
    /// that was built with the tests.
    pub(crate) fn start(files: u32, users: &[&str]) -> Self {
        Self::launch(files, users, &["--ephemeral"])
    }

    /// Starts one whose authority is on disk.
    pub(crate) fn durable(files: u32, users: &[&str]) -> Self {
        Self::launch(files, users, &[])
    }

    fn launch(files: u32, users: &[&str], flags: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name).display().to_string();
        let users = users.iter().map(|name| match name.starts_with("system:node:") {
            true => format!("{name},{name},{name},system:nodes\n"),
            false => format!("{name},{name},{name}\n"),
        });
        let tokens = users.collect::<String>() + "root,root,root,\"system:masters\"\n";
        std::fs::write(path("tokens"), tokens).unwrap();
        let log = std::fs::File::create(path("log")).unwrap();
        let own = env!("CARGO_BIN_EXE_roadstead").to_owned();
        let child = Command::new("prlimit")
            .arg(format!("--nofile={files}:{files}"))
            .arg(std::env::var("ROADSTEAD_BINARY").unwrap_or(own))
            .args(["apiserver", "--listen", "127.0.0.1:0", "--kubeconfig-out"])
            .args([&path("kubeconfig"), "--token-auth-file", &path("tokens")])
            .args(["--data-dir", &path("data")])
            .args(flags)
            .stderr(log)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let said = || std::fs::read_to_string(path("log")).unwrap();
        let ready = |log: &String| log.contains("ready in");
        eventually("the server is ready", Duration::from_secs(30), said, ready);
        let config = std::fs::read_to_string(path("kubeconfig")).unwrap();
        let field = |name: &str| {
            let line = config.lines().find(|line| line.trim().starts_with(name)).unwrap();
            line.split_once(": ").unwrap().1.trim().to_owned()
        };
        let authority = run(&format!("echo {} | base64 -d", field("certificate-authority-data")));
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(authority.as_bytes()).unwrap()).unwrap();
        let tls = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        let address = field("server").trim_start_matches("https://").parse().unwrap();
        Self { child, address, tls: Arc::new(tls), directory }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// The resident memory in megabytes.
    pub(crate) fn memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() >> 10
    }

    pub(crate) fn door(&self) -> Door {
        Door { address: self.address, tls: self.tls.clone() }
    }

    /// A door for somebody who has a certificate of the cluster's own authority.
    pub(crate) fn door_with_certificate(&self, subject: &str) -> Door {
        let place = self.directory.path().display();
        run(&format!(
            "cd {place} && openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes \
             -keyout own.key -out own.csr -subj '{subject}' 2>/dev/null && printf \
             'extendedKeyUsage=clientAuth' > own.ext && openssl x509 -req -in own.csr -extfile own.ext \
             -CA data/pki/ca.crt -CAkey data/pki/ca.key -CAcreateserial -days 1 -out own.crt 2>/dev/null"
        ));
        let read = |name: &str| std::fs::read(self.directory.path().join(name)).unwrap();
        let certificate = CertificateDer::from_pem_slice(&read("own.crt")).unwrap();
        let key = PrivateKeyDer::from_pem_slice(&read("own.key")).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(&read("data/pki/ca.crt")).unwrap()).unwrap();
        let tls = ClientConfig::builder().with_root_certificates(roots);
        let tls = tls.with_client_auth_cert(vec![certificate], key).unwrap();
        Door { address: self.address, tls: Arc::new(tls) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where clients come in.
#[derive(Clone)]
pub(crate) struct Door {
    address: SocketAddr,
    tls: Arc<ClientConfig>,
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

impl Door {
    async fn connect(
        &self,
        from: IpAddr,
        protocol: &[u8],
    ) -> Result<TlsStream<tokio::net::TcpStream>, Failure> {
        let socket = TcpSocket::new_v4()?;
        socket.bind((from, 0).into())?;
        let stream = socket.connect(self.address).await?;
        stream.set_nodelay(true)?;
        let mut tls = ClientConfig::clone(&self.tls);
        tls.alpn_protocols = vec![protocol.to_vec()];
        let name = ServerName::try_from("127.0.0.1")?;
        Ok(TlsConnector::from(Arc::new(tls)).connect(name, stream).await?)
    }

    /// A connection of a user.
    pub(crate) async fn enter(&self, user: &str) -> Result<Client, Failure> {
        let stream = self.connect([127, 0, 0, 1].into(), b"http/1.1").await?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(Client { sender, user: user.to_owned() })
    }

    /// Somebody over HTTP/2, a stranger if without name, who asks once how we are and then only
    /// answers pings, until the result is dropped.
    pub(crate) async fn lurk(
        &self,
        from: IpAddr,
        user: &str,
    ) -> Result<http2::SendRequest<Full<Bytes>>, Failure> {
        let stream = self.connect(from, b"h2").await?;
        let (mut sender, connection) =
            http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        let mut request = Request::builder().uri(format!("https://{}/healthz", self.address));
        if !user.is_empty() {
            request = request.header("authorization", format!("Bearer {user}"));
        }
        let response = sender.send_request(request.body(Full::default())?).await?;
        response.into_body().collect().await?;
        Ok(sender)
    }
}

/// A user on a connection of its own.
pub(crate) struct Client {
    sender: http1::SendRequest<Full<Bytes>>,
    user: String,
}

impl Client {
    pub(crate) async fn send(
        &mut self,
        request: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> Result<Response<Incoming>, Failure> {
        let (method, path) = request.split_once(' ').unwrap();
        let mut request = Request::builder().method(method).uri(path).header("host", "x");
        if !self.user.is_empty() {
            request = request.header("authorization", format!("Bearer {}", self.user));
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.sender.ready().await?;
        Ok(self.sender.send_request(request.body(Full::new(body))?).await?)
    }

    /// The code and the length of an answer, of which only a piece is in memory.
    pub(crate) async fn read(
        &mut self,
        request: &str,
        headers: &[(&str, &str)],
    ) -> Result<(StatusCode, usize), Failure> {
        let response = self.send(request, headers, Bytes::new()).await?;
        let (code, mut body, mut size) = (response.status(), response.into_body(), 0);
        while let Some(frame) = body.frame().await {
            size += frame?.data_ref().map_or(0, Bytes::len);
        }
        Ok((code, size))
    }

    /// Sends JSON; the code and what came back.
    pub(crate) async fn post(&mut self, path: &str, body: &Value) -> (u16, Bytes) {
        let headers = [("content-type", "application/json")];
        let response = self.send(&format!("POST {path}"), &headers, body.to_string().into()).await;
        let response = response.unwrap();
        let code = response.status().as_u16();
        (code, response.into_body().collect().await.unwrap().to_bytes())
    }

    /// Gives users a ClusterRole, in a namespace or ("") everywhere.
    pub(crate) async fn bind(&mut self, role: &str, namespace: &str, users: &[&str]) {
        let group = "rbac.authorization.k8s.io";
        let place = match namespace {
            "" => "clusterrolebindings".to_owned(),
            namespace => format!("namespaces/{namespace}/rolebindings"),
        };
        let subjects: Vec<_> = users
            .iter()
            .map(|user| BTreeMap::from([("apiGroup", group), ("kind", "User"), ("name", user)]))
            .collect();
        let binding = json!({"metadata": {"generateName": "b-"}, "subjects": subjects,
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role}});
        let (code, said) = self.post(&format!("/apis/{group}/v1/{place}"), &binding).await;
        assert_eq!(code, 201, "{}", String::from_utf8_lossy(&said));
    }
}
