//! The GET requests of probes and hooks: no proxy, no second request on a connection, no look at
//! certificates, and redirects only within the same host.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONNECTION, HOST, LOCATION, USER_AGENT};
use http::uri::Authority;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use roadstead_pod::probe::{HttpGet, Outcome, Scheme};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time;
use tokio_rustls::TlsConnector;
use tokio_util::task::AbortOnDropHandle;

use super::{Failure, MOST_OUTPUT, dial_failure};

const MOST_REDIRECTS: usize = 10;

/// An answer that came in time.
pub(crate) struct Answer {
    code: u16,
    body: Vec<u8>,
}

impl Answer {
    /// What a probe makes of it.
    pub(super) fn outcome(&self) -> Outcome {
        match self.code {
            300..400 => Outcome::Warning(format!(
                "Probe terminated redirects, Response body: {}",
                String::from_utf8_lossy(&self.body)
            )),
            200..300 => Outcome::Success,
            code => Outcome::Failure(format!("HTTP probe failed with statuscode: {code}")),
        }
    }
}

/// Who asks, which servers are told.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Asker {
    Probe,
    Hook,
}

impl Asker {
    fn name(self) -> &'static str {
        match self {
            Asker::Probe => "kube-probe/1.37",
            Asker::Hook => "kube-lifecycle/1.37",
        }
    }
}

/// Asks, and follows redirects; `address` is the pod's.
pub(crate) async fn get(
    asker: Asker,
    request: &HttpGet,
    address: IpAddr,
    limit: Duration,
) -> Result<Answer, Failure> {
    let mut target = Target::of(request, address);
    let mut url = target.url();
    let ask = Ask { asker, headers: &request.headers };
    match time::timeout(limit, follow(&mut target, &mut url, ask)).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(failure)) => {
            Err(Failure { message: format!("Get {url:?}: {}", failure.message), ..failure })
        }
        Err(_) => Err(Failure::new(format!(
            "Get {url:?}: context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
        ))),
    }
}

/// What is said besides where.
#[derive(Clone, Copy)]
struct Ask<'a> {
    asker: Asker,
    headers: &'a [(String, String)],
}

async fn follow(target: &mut Target, url: &mut String, ask: Ask<'_>) -> Result<Answer, Failure> {
    for _ in 0..MOST_REDIRECTS {
        let (response, _connection) = send(target, ask).await?;
        let code = response.status().as_u16();
        let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
        let next = location
            .filter(|_| matches!(code, 301..=303 | 307 | 308))
            .and_then(|location| target.resolve(location))
            .filter(|next| next.host == target.host);
        match next {
            Some(next) => {
                *url = next.url();
                *target = next;
            }
            None => return Ok(Answer { code, body: read(response.into_body()).await }),
        }
    }
    Err(Failure::new(format!("stopped after {MOST_REDIRECTS} redirects")))
}

/// Reads the beginning; what comes after it is nobody's concern.
async fn read(mut body: Incoming) -> Vec<u8> {
    let mut text = Vec::new();
    while text.len() < MOST_OUTPUT
        && let Some(Ok(frame)) = body.frame().await
    {
        text.extend_from_slice(frame.data_ref().unwrap_or(&Bytes::new()));
    }
    text.truncate(MOST_OUTPUT);
    text
}

/// Where a request goes.
#[derive(Clone, Debug, PartialEq)]
struct Target {
    scheme: Scheme,
    host: String,
    port: u16,
    path: String,
}

impl Target {
    fn of(request: &HttpGet, address: IpAddr) -> Self {
        let own = || match address {
            IpAddr::V4(address) => address.to_string(),
            IpAddr::V6(address) => format!("[{address}]"),
        };
        Self {
            scheme: request.scheme,
            host: request.host.clone().unwrap_or_else(own),
            port: request.port,
            path: request.path.clone(),
        }
    }

    fn authority(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    fn url(&self) -> String {
        format!("{}://{}{}", self.scheme.name(), self.authority(), self.path)
    }

    /// Where a redirect leads; `None` if that is no place we know how to go to.
    fn resolve(&self, location: &str) -> Option<Self> {
        let location = location.split('#').next().unwrap_or_default();
        let (scheme, rest) = match location.split_once("://") {
            Some(("http", rest)) => (Scheme::Http, Some(rest)),
            Some(("https", rest)) => (Scheme::Https, Some(rest)),
            Some((other, _)) if other.bytes().all(|byte| byte.is_ascii_alphabetic()) => {
                return None;
            }
            _ => (self.scheme, location.strip_prefix("//")),
        };
        let Some(rest) = rest else {
            let (directory, _) = self.path.split('?').next()?.rsplit_once('/')?;
            let path = match location.starts_with('/') {
                true => location.to_owned(),
                false => format!("{directory}/{location}"),
            };
            return Some(Self { path, ..self.clone() });
        };
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let authority: Authority = rest[..end].parse().ok()?;
        let path = match &rest[end..] {
            path if path.starts_with('/') => path.to_owned(),
            query => format!("/{query}"),
        };
        let usual = if scheme == Scheme::Https { 443 } else { 80 };
        let port = authority.port_u16().unwrap_or(usual);
        Some(Self { scheme, host: authority.host().to_owned(), port, path })
    }
}

type Connection = AbortOnDropHandle<()>;

/// Sends one request; the connection must be kept for as long as the body is read.
async fn send(target: &Target, ask: Ask<'_>) -> Result<(Response<Incoming>, Connection), Failure> {
    let address = target.authority();
    let stream = TcpStream::connect(&address).await;
    let stream = stream.map_err(|error| dial_failure(&address, &error))?;
    match target.scheme {
        Scheme::Http => exchange(stream, target, ask).await,
        Scheme::Https => {
            let broken = |error: &dyn std::error::Error| Failure::new(error.to_string());
            let name = target.host.trim_matches(['[', ']']).to_owned();
            let name = ServerName::try_from(name).map_err(|error| broken(&error))?;
            let connector = TlsConnector::from(tls().map_err(|error| broken(&error))?);
            let stream = connector.connect(name, stream).await.map_err(|error| broken(&error))?;
            exchange(stream, target, ask).await
        }
    }
}

async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    target: &Target,
    ask: Ask<'_>,
) -> Result<(Response<Incoming>, Connection), Failure> {
    let request = request(target, ask).map_err(|error| Failure::new(error.to_string()))?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
    let connection = AbortOnDropHandle::new(tokio::spawn(async move {
        let _ = connection.await;
    }));
    let response = sender.send_request(request).await.map_err(broken)?;
    Ok((response, connection))
}

/// In the words that people search for, as far as there are such.
fn broken(error: hyper::Error) -> Failure {
    let cause = std::error::Error::source(&error).and_then(|cause| cause.downcast_ref());
    Failure::new(match cause {
        Some(cause) if io::Error::kind(cause) == io::ErrorKind::ConnectionReset => {
            "read: connection reset by peer".into()
        }
        _ if error.is_incomplete_message() || error.is_canceled() => "EOF".into(),
        _ if error.is_parse() => "malformed HTTP response".into(),
        _ => error.to_string(),
    })
}

fn request(target: &Target, ask: Ask<'_>) -> Result<Request<Empty<Bytes>>, http::Error> {
    let given = ask.headers;
    let mut headers = HeaderMap::new();
    headers.insert(HOST, HeaderValue::try_from(target.authority())?);
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    headers.insert(USER_AGENT, HeaderValue::from_static(ask.asker.name()));
    headers.insert(ACCEPT, HeaderValue::from_static("*/*"));
    for name in [HOST, USER_AGENT, ACCEPT] {
        if given.iter().any(|(own, _)| own.eq_ignore_ascii_case(name.as_str())) {
            headers.remove(name);
        }
    }
    for (name, value) in given {
        let name = HeaderName::try_from(name)?;
        // To give an empty one is how a probe asks for none.
        if !(value.is_empty() && [USER_AGENT, ACCEPT].contains(&name)) {
            headers.append(name, HeaderValue::try_from(value)?);
        }
    }
    let mut request = Request::get(target.path.as_str()).body(Empty::new())?;
    *request.headers_mut() = headers;
    Ok(request)
}

fn tls() -> Result<Arc<ClientConfig>, rustls::Error> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let schemes = provider.signature_verification_algorithms.supported_schemes();
    let config =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let config = config.dangerous().with_custom_certificate_verifier(Arc::new(AnyServer(schemes)));
    Ok(Arc::new(config.with_no_client_auth()))
}

/// A probe asks whether somebody answers, not who.
#[derive(Debug)]
struct AnyServer(Vec<SignatureScheme>);

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_redirects_lead() {
        let target = Target {
            scheme: Scheme::Http,
            host: "10.0.0.5".into(),
            port: 8080,
            path: "/a/b?c".into(),
        };
        for (location, want) in [
            ("/x", "http://10.0.0.5:8080/x"),
            ("x", "http://10.0.0.5:8080/a/x"),
            ("//other/x", "http://other:80/x"),
            ("https://10.0.0.5/x#y", "https://10.0.0.5:443/x"),
            ("http://10.0.0.5:81", "http://10.0.0.5:81/"),
            ("http://10.0.0.5?q", "http://10.0.0.5:80/?q"),
            ("/x?to=http://other/", "http://10.0.0.5:8080/x?to=http://other/"),
            ("ftp://10.0.0.5/", "nowhere"),
            ("http://", "nowhere"),
        ] {
            let found = target.resolve(location);
            let found = found.map_or("nowhere".into(), |found| found.url());
            assert_eq!(found, want, "{location}");
        }
    }

    #[test]
    fn headers() {
        let target = Target { scheme: Scheme::Http, host: "h".into(), port: 80, path: "/".into() };
        for (given, want) in [
            (&[][..], "host: h:80|connection: close|user-agent: kube-probe/1.37|accept: */*"),
            (
                &[("Host", "x"), ("user-agent", "y")],
                "connection: close|accept: */*|host: x|user-agent: y",
            ),
            (&[("User-Agent", ""), ("Accept", "")], "host: h:80|connection: close"),
            (
                &[("X-A", ""), ("X-A", "b")],
                "host: h:80|connection: close|user-agent: kube-probe/1.37|accept: */*|x-a: |x-a: b",
            ),
        ] {
            let given: Vec<_> =
                given.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
            let ask = Ask { asker: Asker::Probe, headers: &given };
            let request = request(&target, ask).unwrap();
            let words = request.headers().iter();
            let mut words: Vec<_> =
                words.map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
            let mut want: Vec<_> = want.split('|').collect();
            words.sort();
            want.sort_unstable();
            assert_eq!(words, want, "{given:?}");
        }
    }
}
