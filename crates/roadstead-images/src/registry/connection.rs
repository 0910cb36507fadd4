//! One request to a registry: connection, redirects, time limits.

use std::future::Future;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode, header};
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::error::PullError;
use super::hosts::Server;

const CONNECT: Duration = Duration::from_secs(10);
const ANSWER: Duration = Duration::from_secs(30);
const MOST_REDIRECTS: usize = 5;

/// Where a request goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Location {
    pub(super) tls: bool,
    pub(super) authority: String,
    /// With its query.
    pub(super) path: String,
}

impl Location {
    pub(super) fn on(server: &Server, path: &str) -> Self {
        let path = format!("{}{path}", server.prefix);
        Self { tls: server.tls, authority: server.authority.clone(), path }
    }

    /// Reads a URL; one without a host is on the same server.
    pub(super) fn parse(url: &str, from: &Location) -> Option<Self> {
        let (tls, rest) = match url.split_once("://") {
            Some(("https", rest)) => (true, rest),
            Some(("http", rest)) => (false, rest),
            Some(_) => return None,
            None if url.starts_with('/') && !url.starts_with("//") => {
                return Some(Self { path: url.to_owned(), ..from.clone() });
            }
            None => return None,
        };
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let path = match path.chars().next() {
            None => "/".to_owned(),
            Some('/') => path.to_owned(),
            Some(_) => format!("/{path}"),
        };
        let is_plain = !authority.is_empty() && !authority.contains('@');
        // From an encrypted place nobody leads us into the open.
        (is_plain && (tls || !from.tls)).then(|| Self {
            tls,
            authority: authority.to_owned(),
            path,
        })
    }

    fn host(&self) -> &str {
        let without_port = match self.authority.rsplit_once(':') {
            Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
            _ => &self.authority,
        };
        without_port.trim_start_matches('[').trim_end_matches(']')
    }

    fn port(&self) -> u16 {
        let port = self.authority.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
        port.unwrap_or(if self.tls { 443 } else { 80 })
    }
}

/// Makes connections, with the certificates that this machine trusts.
#[derive(Clone)]
pub(super) struct Connector {
    machine: Arc<ClientConfig>,
}

impl Connector {
    pub(super) fn new() -> Result<Self, PullError> {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        Ok(Self { machine: Arc::new(trusting(roots)?) })
    }

    /// Asks, and follows redirects. `ca_file` holds only for the server itself.
    pub(super) async fn get(
        &self,
        location: &Location,
        ca_file: Option<&Path>,
        headers: &HeaderMap,
    ) -> Result<Response<Incoming>, PullError> {
        let mut headers = headers.clone();
        let mut here = location.clone();
        for _ in 0..=MOST_REDIRECTS {
            let same_server = here.authority == location.authority;
            if !same_server {
                headers.remove(header::AUTHORIZATION);
            }
            let response = self.ask(&here, ca_file.filter(|_| same_server), &headers).await?;
            let Some(next) = redirect(&response, &here)? else { return Ok(response) };
            here = next;
        }
        Err(unavailable(&here, "it redirects in a circle"))
    }

    async fn ask(
        &self,
        location: &Location,
        ca_file: Option<&Path>,
        headers: &HeaderMap,
    ) -> Result<Response<Incoming>, PullError> {
        let address = (location.host(), location.port());
        let stream = within(CONNECT, location, TcpStream::connect(address)).await?;
        if !location.tls {
            return exchange(stream, location, headers).await;
        }
        let config = match ca_file {
            None => self.machine.clone(),
            Some(path) => Arc::new(trusting(from_file(path)?)?),
        };
        let name = ServerName::try_from(location.host().to_owned())
            .map_err(|error| unavailable(location, &error.to_string()))?;
        let handshake = TlsConnector::from(config).connect(name, stream);
        exchange(within(CONNECT, location, handshake).await?, location, headers).await
    }
}

fn redirect(response: &Response<Incoming>, from: &Location) -> Result<Option<Location>, PullError> {
    let moved = [301, 302, 303, 307, 308].map(|code| StatusCode::from_u16(code).ok());
    if !moved.contains(&Some(response.status())) {
        return Ok(None);
    }
    let to = response.headers().get(header::LOCATION).and_then(|value| value.to_str().ok());
    let to = to.and_then(|url| Location::parse(url, from));
    to.map(Some).ok_or_else(|| unavailable(from, "it redirects to where we do not go"))
}

async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    location: &Location,
    headers: &HeaderMap,
) -> Result<Response<Incoming>, PullError> {
    let shaken = http1::handshake(TokioIo::new(stream));
    let (mut sender, connection) = within(CONNECT, location, shaken).await?;
    // It ends when the response has been read or dropped.
    tokio::spawn(connection);
    let mut request = Request::get(&location.path)
        .header(header::HOST, &location.authority)
        .header(header::USER_AGENT, concat!("roadstead/", env!("CARGO_PKG_VERSION")))
        .body(Empty::<Bytes>::new())
        .map_err(|error| unavailable(location, &error.to_string()))?;
    request.headers_mut().extend(headers.clone());
    within(ANSWER, location, sender.send_request(request)).await
}

async fn within<T, E: std::fmt::Display>(
    time: Duration,
    location: &Location,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, PullError> {
    match tokio::time::timeout(time, work).await {
        Ok(done) => done.map_err(|error| unavailable(location, &error.to_string())),
        Err(_) => Err(unavailable(location, "it does not answer")),
    }
}

pub(super) fn unavailable(location: &Location, why: &str) -> PullError {
    let scheme = if location.tls { "https" } else { "http" };
    let path = location.path.split('?').next().unwrap_or_default();
    PullError::Unavailable(format!("Get \"{scheme}://{}{path}\": {why}", location.authority))
}

fn from_file(path: &Path) -> Result<RootCertStore, PullError> {
    let wrong = |why: String| PullError::Unavailable(format!("{}: {why}", path.display()));
    let certificates =
        CertificateDer::pem_file_iter(path).map_err(|error| wrong(error.to_string()))?;
    let mut roots = RootCertStore::empty();
    for certificate in certificates {
        let certificate = certificate.map_err(|error| wrong(error.to_string()))?;
        roots.add(certificate).map_err(|error| wrong(error.to_string()))?;
    }
    Ok(roots)
}

fn trusting(roots: RootCertStore) -> Result<ClientConfig, PullError> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| PullError::Unavailable(io::Error::other(error).to_string()))?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_a_redirect_leads() {
        let from = Location { tls: true, authority: "a.example".into(), path: "/v2/x".into() };
        let cases = [
            ("https://b.example/blob?sig=1", Some(("b.example", "/blob?sig=1"))),
            ("/v2/y", Some(("a.example", "/v2/y"))),
            ("https://b.example:8443", Some(("b.example:8443", "/"))),
            ("https://b.example?x=1", Some(("b.example", "/?x=1"))),
            ("http://b.example/in-the-open", None),
            ("https://user@b.example/", None),
            ("//b.example/", None),
            ("file:///etc/passwd", None),
            ("", None),
        ];
        for (url, want) in cases {
            let found = Location::parse(url, &from);
            let found = found.as_ref().map(|to| (to.authority.as_str(), to.path.as_str()));
            assert_eq!(found, want, "{url}");
        }
    }

    #[test]
    fn hosts_and_ports() {
        let cases = [
            ("a.example", true, "a.example", 443),
            ("a.example:5000", true, "a.example", 5000),
            ("127.0.0.1", false, "127.0.0.1", 80),
            ("[::1]:5000", false, "::1", 5000),
            ("[::1]", false, "::1", 80),
        ];
        for (authority, tls, host, port) in cases {
            let location = Location { tls, authority: authority.into(), path: String::new() };
            assert_eq!((location.host(), location.port()), (host, port), "{authority}");
        }
    }
}
