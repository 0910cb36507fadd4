//! How the agents of nodes are reached: whoever wants to look into a pod is passed on to the agent of its
//! node, which speaks HTTP/1.1 by the paths of a kubelet.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::HOST;
use http::{Request, Response};
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use roadstead_schema::json::Pointer;
use rustls::pki_types::ServerName;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time;
use tokio_rustls::TlsConnector;

use crate::identity::authority::{Authority, IdentityError};

/// How much may be under way to an agent in this process, in each direction.
const PIPE: usize = 64 << 10;

/// How long an agent may take to accept a connection.
const ACCEPT: Duration = Duration::from_secs(10);

/// The agent of a node that runs in this process, and so needs neither a port nor a certificate.
#[derive(Clone, Debug)]
pub struct LocalAgent {
    node: String,
    accept: mpsc::Sender<DuplexStream>,
}

impl LocalAgent {
    /// The agent of that node takes its connections from the other end of `accept`.
    pub fn new(node: impl Into<String>, accept: mpsc::Sender<DuplexStream>) -> Self {
        Self { node: node.into(), accept }
    }

    /// Whether it is the agent of that node.
    pub(crate) fn serves(&self, node: &str) -> bool {
        self.node == node
    }

    /// A new connection.
    pub(crate) async fn connect(&self) -> io::Result<DuplexStream> {
        let (ours, theirs) = tokio::io::duplex(PIPE);
        match time::timeout(ACCEPT, self.accept.send(theirs)).await {
            Ok(Ok(())) => Ok(ours),
            Ok(Err(_)) => Err(io::Error::other("it does not run any more")),
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

/// Bytes to and from an agent.
pub(crate) trait AgentStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> AgentStream for S {}

/// What the agent at the other end shows under a path.
pub(crate) async fn get(
    stream: Box<dyn AgentStream>,
    path: &str,
) -> io::Result<Response<Incoming>> {
    let handshake = http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(io::Error::other)?;
    // It ends with the answer, or with whoever waits for it.
    tokio::spawn(connection);
    let request = Request::get(path).header(HOST, "node").body(Empty::<Bytes>::new());
    let answer = sender.send_request(request.map_err(io::Error::other)?);
    time::timeout(ACCEPT, answer).await?.map_err(io::Error::other)
}

/// The agents of other nodes, which have certificates of the cluster.
pub struct RemoteAgents(Arc<Authority>);

/// Whom agents know the API server as. The policy of the cluster lets it do everything with nodes, and
/// nothing else: whoever writes Nodes must not gain by where they lead.
const OWN_NAME: &str = "kube-apiserver-kubelet-client";

impl RemoteAgents {
    /// Those whose certificates are of this authority.
    pub fn new(authority: Arc<Authority>) -> Self {
        Self(authority)
    }

    /// A new connection to the agent of that Node.
    pub(crate) async fn connect(&self, node: &Value) -> io::Result<Box<dyn AgentStream>> {
        let address = address_of(node).map_err(io::Error::other)?;
        let tls = self.tls().map_err(io::Error::other)?;
        let connected = async {
            let stream = TcpStream::connect(address).await?;
            let name = ServerName::IpAddress(address.ip().into());
            TlsConnector::from(tls).connect(name, stream).await
        };
        Ok(Box::new(time::timeout(ACCEPT, connected).await??))
    }

    /// With a certificate that is as fresh as the connection.
    fn tls(&self) -> Result<Arc<rustls::ClientConfig>, IdentityError> {
        self.0.client_tls(&self.0.client(OWN_NAME, "system:kubelet-api-clients")?)
    }
}

/// Where a Node says which port its agent has.
pub(crate) const PORT: &str = "/status/daemonEndpoints/kubeletEndpoint/Port";

/// Where the agent of a Node is, by what the Node says.
fn address_of(node: &Value) -> Result<SocketAddr, String> {
    let port = u16::try_from(node.int(PORT)).ok().filter(|port| *port > 0);
    let port = port.ok_or("it opens no port")?;
    let addresses = node.list("/status/addresses").iter();
    let mut known: Vec<(usize, IpAddr)> = addresses
        .filter_map(|address| {
            let kinds = ["InternalIP", "ExternalIP"];
            let rank = kinds.iter().position(|kind| *kind == address.text("/type"))?;
            Some((rank, address.text("/address").parse().ok()?))
        })
        .collect();
    known.sort_by_key(|(rank, _)| *rank);
    let ip = known.first().ok_or("it has no address")?.1.to_canonical();
    let link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    // Nobody may send the server to itself.
    match ip.is_loopback() || ip.is_unspecified() || ip.is_multicast() || link_local {
        true => Err(format!("{ip} is not the address of a node")),
        false => Ok(SocketAddr::new(ip, port)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn where_agents_are() {
        let node = |addresses: &[(&str, &str)], port: u32| {
            let addresses: Vec<_> = addresses
                .iter()
                .map(|(kind, address)| json!({"type": kind, "address": address}))
                .collect();
            json!({"status": {"addresses": addresses,
                "daemonEndpoints": {"kubeletEndpoint": {"Port": port}}}})
        };
        let both = [("Hostname", "n"), ("ExternalIP", "192.0.2.9"), ("InternalIP", "10.0.0.9")];
        let cases = [
            (node(&both, 10250), Ok("10.0.0.9:10250")),
            (node(&both[..2], 7), Ok("192.0.2.9:7")),
            (node(&both[..1], 7), Err("it has no address")),
            (node(&both, 0), Err("it opens no port")),
            (node(&both, 70_000), Err("it opens no port")),
            (json!({}), Err("it opens no port")),
            (
                node(&[("InternalIP", "127.0.0.1")], 6443),
                Err("127.0.0.1 is not the address of a node"),
            ),
            (
                node(&[("InternalIP", "::ffff:127.0.0.1")], 6443),
                Err("127.0.0.1 is not the address of a node"),
            ),
            (
                node(&[("InternalIP", "169.254.169.254")], 80),
                Err("169.254.169.254 is not the address of a node"),
            ),
        ];
        for (node, want) in cases {
            let found = address_of(&node).map(|address| address.to_string());
            assert_eq!(found, want.map(str::to_owned).map_err(str::to_owned), "{node}");
        }
    }
}
