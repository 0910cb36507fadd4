//! `services/NAME/proxy` and `pods/NAME/proxy`: plain HTTP requests that the API server hands on to
//! a pod. Upgrades and HTTPS to the pod are refused, and so are addresses that are no pod's
//! (`reach`).

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

mod reach;

use reach::Reach;

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
    let own: Vec<_> = own.collect();
    let reach = Reach::now(api)?;
    let pod = |name: &str| {
        let entry = api.store.get(&registry.core("pods").key(namespace, name))?;
        Some(object::value(&entry))
    };
    let candidates = own.iter().flat_map(|slice| reachable(&reach, pod, slice, port));
    pick(candidates.collect()).ok_or_else(|| {
        ApiError::unavailable(format!("no endpoints available for service {name:?}"))
    })
}

/// The endpoints of a slice that are pods of this namespace: nobody can make the API server talk to
/// any other address by writing it into a slice.
fn reachable(
    reach: &Reach,
    pod: impl Fn(&str) -> Option<Value>,
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
        let pod = pod(reference.text("/name"))?;
        let is_own = reference.text("/kind") == "Pod"
            && pod.list("/status/podIPs").iter().any(|own| own.text("/ip") == address);
        let address = reach.check(&pod, address).ok().filter(|_| is_own)?;
        Some(join(address, number))
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
    let address = match pod.text("/status/podIP") {
        "" => Err("the pod has none yet".to_owned()),
        address => Reach::now(api)?.check(&pod, address),
    };
    match (address, port) {
        (Err(why), _) => Err(ApiError::bad_request(format!("address not allowed: {why}"))),
        (_, 0) => Err(ApiError::bad_request(format!("there is no port {:?}", wanted.port))),
        (Ok(address), port) => Ok(join(address, port)),
    }
}

fn join(address: IpAddr, port: i64) -> String {
    match address {
        IpAddr::V6(address) => format!("[{address}]:{port}"),
        IpAddr::V4(address) => format!("{address}:{port}"),
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
