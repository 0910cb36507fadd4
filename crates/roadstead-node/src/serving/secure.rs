//! The agent's own port, for whoever is not in our process: the API servers of others, and those who
//! gather metrics. Strangers are asked who they are, and what they may is asked of the API server.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::authentication::v1::UserInfo;
use kube::Client;
use rustls::RootCertStore;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::access::{Gatekeeper, holder};
use super::{Caller, PodServer};

/// Who has not finished the handshake by then has no business here.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How many may be here whom nobody has let in yet; more wait.
const MOST: usize = 1024;
/// And of one address; more are turned away, so that there is room for others.
const MOST_OF_ONE: usize = 64;
/// After an error of the whole port, such as too few descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Where strangers reach the agent, and how it knows them.
#[derive(Clone, Debug)]
pub struct SecurePort {
    /// Usually port 10250 of all addresses.
    pub listen: SocketAddr,
    /// What the agent shows, and whose certificates it believes.
    pub tls: Arc<rustls::ServerConfig>,
}

/// What a port is made of, as it is in files.
#[derive(Clone)]
pub struct TlsFiles {
    /// The certificate that is shown, and those between it and its authority.
    pub certificate: Vec<u8>,
    /// Its key.
    pub key: Vec<u8>,
    /// Whose certificates are believed.
    pub client_ca: Vec<u8>,
}

impl SecurePort {
    /// A port that shows a certificate from files.
    pub fn with_files(listen: SocketAddr, files: &TlsFiles) -> Result<Self, String> {
        let pem = |error: pem::Error| error.to_string();
        let all = |text| CertificateDer::pem_slice_iter(text).collect::<Result<Vec<_>, _>>();
        let key = PrivateKeyDer::from_pem_slice(&files.key).map_err(pem)?;
        let mut roots = RootCertStore::empty();
        for authority in all(&files.client_ca).map_err(pem)? {
            roots.add(authority).map_err(|error| error.to_string())?;
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone())
            .allow_unauthenticated()
            .build()
            .map_err(|error| error.to_string())?;
        let tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_client_cert_verifier(verifier)
            .with_single_cert(all(&files.certificate).map_err(pem)?, key)
            .map_err(|error| error.to_string())?;
        Ok(Self { listen, tls: Arc::new(tls) })
    }
}

/// Serves strangers until `stop`.
pub(crate) async fn run(
    (server, client): (PodServer, Client),
    (listener, port): (TcpListener, SecurePort),
    stop: CancellationToken,
) {
    let mut tls = rustls::ServerConfig::clone(&port.tls);
    // Upgrades are of HTTP/1.1 only.
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    let tls = TlsAcceptor::from(Arc::new(tls));
    let gatekeeper = Gatekeeper::new(client, server.node.clone());
    let lobby = Lobby::default();
    let mut connections = JoinSet::new();
    loop {
        let accept = async {
            let room = lobby.room.clone().acquire_owned().await.expect("it is never closed");
            (room, listener.accept().await)
        };
        tokio::select! {
            () = stop.cancelled() => return connections.shutdown().await,
            (room, accepted) = accept => match accepted {
                Ok((stream, from)) => {
                    if let Some(place) = lobby.enter(from.ip(), room) {
                        let gatekeeper = gatekeeper.clone().holding(place);
                        let served = serve(server.clone(), gatekeeper, tls.clone(), stream);
                        connections.spawn(served);
                    }
                }
                Err(error) => {
                    debug!(%error, "cannot accept a connection");
                    time::sleep(PAUSE).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Where strangers wait until somebody lets them in.
#[derive(Clone)]
struct Lobby {
    room: Arc<Semaphore>,
    present: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

impl Default for Lobby {
    fn default() -> Self {
        Self { room: Arc::new(Semaphore::new(MOST)), present: Arc::default() }
    }
}

/// A stranger's place, which is free again when this goes.
pub(super) struct Place {
    _room: OwnedSemaphorePermit,
    address: IpAddr,
    present: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

impl Lobby {
    /// A place, unless there are too many of the same address.
    fn enter(&self, address: IpAddr, room: OwnedSemaphorePermit) -> Option<Place> {
        let mut present = self.present.lock().unwrap_or_else(PoisonError::into_inner);
        let count = present.entry(address).or_default();
        if *count >= MOST_OF_ONE {
            return None;
        }
        *count += 1;
        Some(Place { _room: room, address, present: self.present.clone() })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut present = self.present.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = present.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                present.remove(&self.address);
            }
        }
    }
}

async fn serve(server: PodServer, gatekeeper: Gatekeeper, tls: TlsAcceptor, stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    let Ok(Ok(stream)) = time::timeout(HANDSHAKE, tls.accept(stream)).await else { return };
    let certificate = stream.get_ref().1.peer_certificates().and_then(|all| all.first());
    let user: Option<UserInfo> = certificate.and_then(holder);
    server.serve_to(stream, Caller::Stranger(Box::new((gatekeeper, user)))).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_fills_the_lobby_alone() {
        let lobby = Lobby::default();
        let enter = |address: [u8; 4]| {
            lobby.enter(address.into(), lobby.room.clone().try_acquire_owned().unwrap())
        };
        let crowd: Vec<_> = (0..MOST).map(|_| enter([192, 0, 2, 1])).collect();
        assert_eq!(crowd.iter().flatten().count(), MOST_OF_ONE);
        let other = enter([192, 0, 2, 2]);
        assert!(other.is_some());
        drop((crowd, other));
        assert!(lobby.present.lock().unwrap().is_empty());
        assert_eq!(lobby.room.available_permits(), MOST);
    }
}
