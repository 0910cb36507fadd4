//! Where a service listens, and how it is reached.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

/// Where a service listens.
#[derive(Clone, Debug)]
pub enum ServiceAddress {
    /// A socket of the file system.
    Socket(PathBuf),
    /// A host and port, without encryption.
    Plain(String, u16),
    /// A host and port, with TLS. The configuration must offer `h2`.
    Secure(String, u16, Arc<ClientConfig>),
}

impl fmt::Display for ServiceAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(path) => write!(f, "{}", path.display()),
            Self::Plain(..) | Self::Secure(..) => f.write_str(&self.origin()),
        }
    }
}

/// A connection, of whatever kind.
pub trait Wire: AsyncRead + AsyncWrite + Send {}

impl<T: AsyncRead + AsyncWrite + Send> Wire for T {}

impl ServiceAddress {
    /// How questions name it.
    pub(crate) fn origin(&self) -> String {
        let bracketed =
            |host: &str| if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        match self {
            Self::Socket(_) => "http://localhost".to_owned(),
            Self::Plain(host, port) => format!("http://{}:{port}", bracketed(host)),
            Self::Secure(host, port, _) => format!("https://{}:{port}", bracketed(host)),
        }
    }

    /// A connection, over which nothing has been said yet.
    pub async fn dial(&self) -> io::Result<Pin<Box<dyn Wire>>> {
        match self {
            Self::Socket(path) => Ok(Box::pin(UnixStream::connect(path).await?)),
            Self::Plain(host, port) => Ok(Box::pin(tcp(host, *port).await?)),
            Self::Secure(host, port, config) => {
                let name = ServerName::try_from(host.clone())
                    .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
                let stream = tcp(host, *port).await?;
                Ok(Box::pin(TlsConnector::from(config.clone()).connect(name, stream).await?))
            }
        }
    }
}

async fn tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let stream = TcpStream::connect((host, port)).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}
