//! `services/NAME/proxy` and `pods/NAME/proxy`: plain HTTP requests that the API server hands on to
//! a pod. Upgrades and HTTPS to the pod are refused.

use std::net::IpAddr;
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt, future};
use http::header::{
    AUTHORIZATION, CONNECTION, HOST, HeaderMap, HeaderName, HeaderValue, LOCATION,
    TRANSFER_ENCODING, UPGRADE,
};
use http::request::Parts;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, BodyStream, Full, StreamBody};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use roadstead_api::look::Look;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time;
use uuid::Uuid;

use crate::api::Api;
use crate::error::ApiError;
use crate::http::{Body, respond};
use crate::object;
use crate::registry::Resource;
use crate::request::Target;

/// How long a pod may take to accept a connection.
const PATIENCE: Duration = Duration::from_secs(10);

/// And how long until it begins to answer.
const HEAD: Duration = Duration::from_secs(60);

/// Headers that are about one connection only, or about the API server.
const OURS: [HeaderName; 5] = [AUTHORIZATION, CONNECTION, HOST, TRANSFER_ENCODING, UPGRADE];

/// The name in the path: `[SCHEME:]NAME[:PORT]`.
#[derive(Debug, PartialEq, Eq)]
struct Wanted<'a> {
    scheme: &'a str,
    name: &'a str,
    port: &'a str,
}

impl<'a> Wanted<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        match text.split(':').collect::<Vec<_>>()[..] {
            [name] => Some(Self { scheme: "", name, port: "" }),
            [name, port] => Some(Self { scheme: "", name, port }),
            [scheme @ ("" | "http" | "https"), name, port] => Some(Self { scheme, name, port }),
            _ => None,
        }
    }
}

/// Hands a request on, and the answer back.
pub async fn answer(
    api: &Api,
    resource: &Resource,
    target: &Target<'_>,
    parts: &Parts,
    body: Bytes,
) -> Result<Response<Body>, ApiError> {
    let Some(wanted) = Wanted::parse(target.name) else {
        return Err(ApiError::bad_request(format!(
            "invalid {} request {:?}",
            target.plural, target.name
        )));
    };
    if wanted.scheme == "https" || parts.headers.contains_key(UPGRADE) {
        let message = "only plain HTTP requests are handed on to pods";
        return Err(ApiError::not_implemented(message));
    }
    let address = match target.plural {
        "services" => endpoint(api, resource, target.namespace, &wanted)?,
        "pods" => pod(api, resource, target.namespace, &wanted)?,
        _ => return Err(ApiError::no_such_path()),
    };
    let prefix = parts.uri.path().strip_suffix(target.rest).unwrap_or("");
    if target.rest.is_empty() {
        // So that relative links in the answer lead to the same place.
        return Ok(redirect(&format!("{}/", parts.uri.path()), parts.uri.query()));
    }
    let failed = |error: &dyn std::fmt::Display| {
        ApiError::unavailable(format!("error trying to reach service: {error}"))
    };
    let stream = time::timeout(PATIENCE, TcpStream::connect(&address)).await;
    let stream = stream.map_err(|_| failed(&format!("dial tcp {address}: i/o timeout")))?;
    let stream = stream.map_err(|error| failed(&format!("dial tcp {address}: {error}")))?;
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| failed(&error))?;
    // It ends with the answer, or with whoever waits for it.
    tokio::spawn(connection);
    let request = onward(parts, target.rest, &address, prefix, body)?;
    let response = time::timeout(HEAD, sender.send_request(request)).await;
    let response = response.map_err(|_| failed(&"net/http: timeout awaiting response headers"))?;
    let response = response.map_err(|error| failed(&error))?;
    Ok(back(response, prefix, &address))
}

fn redirect(path: &str, query: Option<&str>) -> Response<Body> {
    let query = query.map(|query| format!("?{query}")).unwrap_or_default();
    let mut response = respond(StatusCode::MOVED_PERMANENTLY, "");
    if let Ok(location) = HeaderValue::from_str(&format!("{path}{query}")) {
        response.headers_mut().insert(LOCATION, location);
    }
    response
}

/// The request as the pod sees it.
fn onward(
    parts: &Parts,
    path: &str,
    address: &str,
    prefix: &str,
    body: Bytes,
) -> Result<Request<Full<Bytes>>, ApiError> {
    let query = parts.uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    let mut request = Request::builder().method(&parts.method).uri(format!("{path}{query}"));
    let host = parts.headers.get(HOST).cloned();
    if let Some(headers) = request.headers_mut() {
        let own = |name: &HeaderName| OURS.contains(name);
        let theirs = parts.headers.iter().filter(|(name, _)| !own(name));
        headers.extend(theirs.map(|(name, value)| (name.clone(), value.clone())));
        set(headers, HOST, address);
        set(headers, HeaderName::from_static("x-forwarded-proto"), "https");
        set(headers, HeaderName::from_static("x-forwarded-uri"), &format!("{prefix}{path}"));
        host.map(|host| headers.insert(HeaderName::from_static("x-forwarded-host"), host));
    }
    let request = request.body(Full::new(body));
    request.map_err(|error| ApiError::bad_request(format!("this cannot be handed on: {error}")))
}

fn set(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}

/// The answer as the client sees it: what the pod calls `/x` is below our path.
fn back(response: Response<hyper::body::Incoming>, prefix: &str, address: &str) -> Response<Body> {
    let (mut parts, body) = response.into_parts();
    parts.headers.remove(CONNECTION);
    parts.headers.remove(TRANSFER_ENCODING);
    let location = parts.headers.get(LOCATION).and_then(|value| value.to_str().ok());
    let moved = location.and_then(|location| {
        let own = location.strip_prefix(&format!("http://{address}")).unwrap_or(location);
        own.starts_with('/').then(|| format!("{prefix}{own}"))
    });
    if let Some(moved) = moved {
        set(&mut parts.headers, LOCATION, &moved);
    }
    // An answer that breaks off ends early, as it would without us.
    let frames = BodyStream::new(body).take_while(|frame| future::ready(frame.is_ok()));
    let frames = frames.filter_map(|frame| future::ready(frame.ok().map(Ok)));
    Response::from_parts(parts, BodyExt::boxed_unsync(StreamBody::new(frames)))
}

/// One of the ready pods behind a Service.
fn endpoint(
    api: &Api,
    services: &Resource,
    namespace: &str,
    wanted: &Wanted<'_>,
) -> Result<String, ApiError> {
    let name = wanted.name;
    let Some(entry) = api.store.get(&services.key(namespace, name)) else {
        return Err(ApiError::not_found(services.info(), name));
    };
    let service = object::value(&entry);
    let mut ports = service.list("/spec/ports").iter();
    let port = ports.find(|port| match wanted.port {
        "" => port.text("/name").is_empty(),
        port_name => port.text("/name") == port_name || port.int("/port").to_string() == port_name,
    });
    let missing = |words: String| Err(ApiError::unavailable(words));
    let port = match (port, wanted.port) {
        (Some(port), _) => port.text("/name"),
        // Endpoints may have ports that the Service has not.
        (None, "") => "",
        (None, number) if number.parse::<u16>().is_ok() => {
            return missing(format!("no service port {number} found for service {name:?}"));
        }
        (None, port_name) => port_name,
    };
    let registry = api.registry();
    let slices = registry.find("discovery.k8s.io", "v1", "endpointslices");
    let slices = slices.expect("slices are always served");
    let family = service.list("/spec/ipFamilies").first().and_then(Value::as_str).unwrap_or("IPv4");
    let found = api.store.list(&slices.bucket, &slices.prefix(namespace), None)?;
    let label = "kubernetes.io/service-name";
    let own = found.entries.iter().map(|entry| object::value(entry)).filter(|slice| {
        slice["metadata"]["labels"][label] == name && slice.text("/addressType") == family
    });
    let pods = registry.core("pods");
    let candidates = own.flat_map(|slice| reachable(api, pods, namespace, &slice, port));
    pick(candidates.collect()).ok_or_else(|| {
        ApiError::unavailable(format!("no endpoints available for service {name:?}"))
    })
}

/// The endpoints of a slice that are pods of this namespace: nobody can make the API server talk to
/// any other address by writing it into a slice.
fn reachable(
    api: &Api,
    pods: &Resource,
    namespace: &str,
    slice: &Value,
    port: &str,
) -> Vec<String> {
    let mut ports = slice.list("/ports").iter();
    let number = ports.find(|own| own.text("/name") == port).map_or(0, |port| port.int("/port"));
    let ready = slice
        .list("/endpoints")
        .iter()
        .filter(|endpoint| number != 0 && endpoint["conditions"]["ready"] != false);
    let addresses = ready.filter_map(|endpoint| {
        let address = endpoint["addresses"][0].as_str()?;
        let reference = &endpoint["targetRef"];
        let entry = api.store.get(&pods.key(namespace, reference.text("/name")))?;
        let pod = object::value(&entry);
        let is_own = reference.text("/kind") == "Pod"
            && is_allowed(address)
            && pod.list("/status/podIPs").iter().any(|own| own.text("/ip") == address);
        is_own.then(|| join(address, number))
    });
    addresses.collect()
}

fn pick(mut candidates: Vec<String>) -> Option<String> {
    let (high, low) = Uuid::new_v4().as_u64_pair();
    let count = u64::try_from(candidates.len()).ok().filter(|count| *count > 0)?;
    let at = usize::try_from((high ^ low) % count).ok()?;
    Some(candidates.swap_remove(at))
}

/// A pod by its own address.
fn pod(
    api: &Api,
    pods: &Resource,
    namespace: &str,
    wanted: &Wanted<'_>,
) -> Result<String, ApiError> {
    let Some(entry) = api.store.get(&pods.key(namespace, wanted.name)) else {
        return Err(ApiError::not_found(pods.info(), wanted.name));
    };
    let pod = object::value(&entry);
    let containers = pod.list("/spec/containers").iter();
    let mut ports = containers.flat_map(|container| container.list("/ports"));
    let port = match wanted.port {
        "" => ports.next().map_or(80, |port| port.int("/containerPort")),
        text => match text.parse::<u16>() {
            Ok(number) => i64::from(number),
            Err(_) => {
                let named = ports.find(|port| port.text("/name") == text);
                named.map_or(0, |port| port.int("/containerPort"))
            }
        },
    };
    match (pod.text("/status/podIP"), port) {
        ("", _) => Err(ApiError::bad_request("address not allowed: the pod has none yet")),
        (address, _) if !is_allowed(address) => Err(ApiError::bad_request("address not allowed")),
        (_, 0) => Err(ApiError::bad_request(format!("there is no port {:?}", wanted.port))),
        (address, port) => Ok(join(address, port)),
    }
}

/// Whether an address can be a pod's: whoever may write the status of a pod must not reach what
/// listens only for this machine, or what the cloud tells it.
fn is_allowed(address: &str) -> bool {
    let Ok(address) = address.parse::<IpAddr>() else { return false };
    match address.to_canonical() {
        IpAddr::V4(v4) => {
            !(v4.is_loopback() || v4.is_link_local() || v4.is_unspecified() || v4.is_multicast())
        }
        IpAddr::V6(v6) => {
            let local = v6.is_unicast_link_local() || v6.is_multicast();
            !(v6.is_loopback() || v6.is_unspecified() || local)
        }
    }
}

fn join(address: &str, port: i64) -> String {
    match address.contains(':') {
        true => format!("[{address}]:{port}"),
        false => format!("{address}:{port}"),
    }
}

#[test]
fn names_in_the_path() {
    let show = |text| Wanted::parse(text).map(|w| [w.scheme, w.name, w.port].join("|"));
    let cases = [
        ("web", Some("|web|")),
        ("web:80", Some("|web|80")),
        ("web:http", Some("|web|http")),
        ("https:web:443", Some("https|web|443")),
        (":web:80", Some("|web|80")),
        ("ftp:web:21", None),
        ("a:b:c:d", None),
    ];
    for (text, want) in cases {
        assert_eq!(show(text).as_deref(), want, "{text}");
    }
}

#[test]
fn addresses_of_pods() {
    for good in ["10.0.0.1", "192.0.2.2", "fd00::1", "2001:db8::1"] {
        assert!(is_allowed(good), "{good}");
    }
    let bad = "127.0.0.1 127.9.9.9 0.0.0.0 169.254.169.254 ::1 :: fe80::1 ::ffff:127.0.0.1 \
        224.0.0.1 ff02::1 localhost 127.1";
    for bad in bad.split_whitespace() {
        assert!(!is_allowed(bad), "{bad}");
    }
}
