//! Requests that are handed on to pods.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONNECTION, UPGRADE};
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1 as client;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use roadstead_server::config::Services;
use roadstead_testkit::netns::{laboratory, run};
use rustls::pki_types::PrivatePkcs8KeyDer;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio_rustls::TlsAcceptor;

use crate::server::Server;

const DEFAULT: &str = "/api/v1/namespaces/default";

/// The address of the pod, which is no loopback: those are refused.
const POD: &str = "10.244.0.1";

/// A program in a pod: tells what it was asked, moves `/old` to `/new`, and repeats what it hears at
/// `/echo`, be it in the body or after an upgrade.
async fn program() -> u16 {
    let listener = TcpListener::bind((POD, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let served =
                http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(answer));
            tokio::spawn(served.with_upgrades());
        }
    });
    port
}

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    if request.uri().path() == "/echo" {
        return Ok(echo(request).await);
    }
    let token = request.headers().contains_key("authorization");
    let text = format!("{} {} token={token}", request.method(), request.uri());
    let response = match request.uri().path() {
        "/old" => Response::builder().status(302).header("location", "/new"),
        _ => Response::builder().header("x-own", "yes"),
    };
    Ok(response.body(Full::new(Bytes::from(text))).unwrap())
}

async fn echo(mut request: Request<Incoming>) -> Response<Full<Bytes>> {
    if !request.headers().contains_key(UPGRADE) {
        let body = request.into_body().collect().await.unwrap().to_bytes();
        return Response::new(Full::new(body));
    }
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let (mut reader, mut writer) = tokio::io::split(TokioIo::new(upgrade.await.unwrap()));
        tokio::io::copy(&mut reader, &mut writer).await.unwrap();
        writer.shutdown().await.unwrap();
    });
    let response = Response::builder().status(101).header(UPGRADE, "echo");
    response.header(CONNECTION, "Upgrade").body(Full::default()).unwrap()
}

#[test]
fn a_pod_is_reached_through_the_server() {
    laboratory(|| {
        run("ip link add bridge0 type bridge && ip link set bridge0 up");
        run(&format!("ip address add {POD}/24 dev bridge0"));
        Runtime::new().unwrap().block_on(ask_a_pod());
    });
}

async fn ask_a_pod() {
    let server = Server::new().await;
    let port = program().await;
    let pod = json!({"metadata": {"name": "web"}, "spec": {"containers": [
        {"name": "c", "image": "i", "ports": [{"name": "http", "containerPort": port}]}]}});
    let made = server.ask(&format!("POST {DEFAULT}/pods"), pod).await;
    assert_eq!(made.code, 201, "{made:?}");
    let early = server.ask(&format!("GET {DEFAULT}/pods/web/proxy/"), "").await;
    assert_eq!(early.code, 400, "it has no address yet");
    let place = |ip: &str| json!({"status": {"podIP": ip, "podIPs": [{"ip": ip}]}});
    for (address, why) in [
        ("127.0.0.1", "127.0.0.1 is not the address of a pod"),
        ("169.254.169.254", "169.254.169.254 is not the address of a pod"),
        ("10.96.0.1", "10.96.0.1 is in a range of Services"),
        ("192.0.2.7", "192.0.2.7 is not in a range of pods"),
        // No Node has said yet where its pods are.
        (POD, "10.244.0.1 is not in a range of pods"),
    ] {
        server.ask(&format!("PATCH {DEFAULT}/pods/web/status"), place(address)).await;
        let refused = server.ask(&format!("GET {DEFAULT}/pods/web/proxy/"), "").await;
        let words = format!("address not allowed: {why}");
        assert_eq!((refused.code, &refused.body["message"]), (400, &json!(words)));
    }
    let node = json!({"metadata": {"name": "n1"}, "spec": {"podCIDR": "10.244.0.0/24",
        "podCIDRs": ["10.244.0.0/24"]}});
    let made = server.ask("POST /api/v1/nodes", node).await;
    assert_eq!(made.code, 201, "{made:?}");
    server.ask(&format!("PATCH {DEFAULT}/pods/web/status"), place(POD)).await;
    let cases = [
        ("GET", "web/proxy/a/b?c=d", 200, "GET /a/b?c=d token=false".to_owned()),
        ("POST", "web:http/proxy/", 200, "POST / token=false".to_owned()),
        ("GET", &format!("web:{port}/proxy/"), 200, "GET / token=false".to_owned()),
        ("GET", "web/proxy/old", 302, "GET /old token=false".to_owned()),
        ("GET", "web/proxy", 301, String::new()),
    ];
    for (method, path, code, text) in cases {
        let answer = server.ask(&format!("{method} {DEFAULT}/pods/{path}"), "").await;
        assert_eq!((answer.code, answer.text), (code, text), "{path}");
    }
    // More than any object may have.
    let much = "x".repeat(5 << 20);
    let answer = server.ask(&format!("PUT {DEFAULT}/pods/web/proxy/echo"), &much).await;
    assert!(answer.code == 200 && answer.text == much, "bodies are handed on as they come");
    upgrade(&server, "web").await;
    encrypted(&server).await;
}

/// The same over TLS, with a certificate that nobody knows.
async fn encrypted(server: &Server) {
    let port = encrypted_program().await;
    let answer = server.ask(&format!("GET {DEFAULT}/pods/https:web:{port}/proxy/a?b=c"), "").await;
    assert_eq!((answer.code, answer.text.as_str()), (200, "GET /a?b=c token=false"));
    let answer = server.ask(&format!("GET {DEFAULT}/pods/web:{port}/proxy/"), "").await;
    assert_eq!(answer.code, 503, "plain is not what it speaks: {answer:?}");
    let answer = server.ask(&format!("GET {DEFAULT}/pods/https:web:/proxy/"), "").await;
    assert_eq!(answer.code, 503, "nor does the other speak TLS: {answer:?}");
    upgrade(server, &format!("https:web:{port}")).await;
}

async fn encrypted_program() -> u16 {
    let pair = rcgen::generate_simple_self_signed(vec!["nobody".to_owned()]).unwrap();
    let key = PrivatePkcs8KeyDer::from(pair.signing_key.serialize_der());
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![pair.cert.der().clone()], key.into())
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind((POD, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(stream) = acceptor.accept(stream).await else { continue };
            let served =
                http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(answer));
            tokio::spawn(served.with_upgrades());
        }
    });
    port
}

/// Talks with the pod both ways through an upgraded connection.
async fn upgrade(server: &Server, pod: &str) {
    let (mut sender, connection) =
        client::handshake::<_, Full<Bytes>>(TokioIo::new(server.connect())).await.unwrap();
    tokio::spawn(connection.with_upgrades());
    let request = Request::builder().uri(format!("{DEFAULT}/pods/{pod}/proxy/echo"));
    let request = request.header(UPGRADE, "echo").header(CONNECTION, "Upgrade");
    let answer = sender.send_request(request.body(Full::default()).unwrap()).await.unwrap();
    assert_eq!(
        (answer.status().as_u16(), &answer.headers()[UPGRADE]),
        (101, &"echo".parse().unwrap())
    );
    let mut stream = TokioIo::new(hyper::upgrade::on(answer).await.unwrap());
    let mut heard = [0; 5];
    for word in [b"hello", b"again"] {
        stream.write_all(word).await.unwrap();
        stream.read_exact(&mut heard).await.unwrap();
        assert_eq!(&heard, word);
    }
    stream.shutdown().await.unwrap();
    assert_eq!(stream.read(&mut heard).await.unwrap(), 0, "the end comes through, too");
}

#[tokio::test]
async fn a_service_without_pods_is_unavailable() {
    let server = Server::new().await;
    let service = json!({"metadata": {"name": "web"}, "spec": {"ports": [{"port": 80}]}});
    server.ask(&format!("POST {DEFAULT}/services"), service).await;
    // Hand-made endpoints are no pods: nobody makes the server talk to them.
    let slice = json!({"metadata": {"name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4", "ports": [{"port": 80}],
        "endpoints": [{"addresses": ["10.1.2.3"], "targetRef": {"kind": "Pod", "name": "none"}}]});
    let path = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
    assert_eq!(server.ask(&format!("POST {path}"), slice).await.code, 201);
    let cases = [
        ("web/proxy/metrics", 503, "no endpoints available for service \"web\""),
        ("web:80/proxy/", 503, "no endpoints available for service \"web\""),
        ("web:81/proxy/", 503, "no service port 81 found for service \"web\""),
        ("none/proxy/", 404, "services \"none\" not found"),
        ("https:web:80/proxy/", 503, "no endpoints available for service \"web\""),
    ];
    for (path, code, message) in cases {
        let answer = server.ask(&format!("GET {DEFAULT}/services/{path}"), "").await;
        assert_eq!((answer.code, &answer.body["message"]), (code, &json!(message)), "{path}");
    }
}

/// Endpoints of a Service are reached under the same rules, be the pod ever so much its own.
#[tokio::test]
async fn a_service_leads_to_pods_only() {
    let pod_ranges = vec!["10.244.0.0/16".parse().unwrap()];
    let server = Server::with_services(Services { pod_ranges, ..Services::default() }).await;
    let service = json!({"metadata": {"name": "web"}, "spec": {"ports": [{"port": 80}]}});
    server.ask(&format!("POST {DEFAULT}/services"), service).await;
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [
        {"name": "c", "image": "i"}]}});
    server.ask(&format!("POST {DEFAULT}/pods"), pod).await;
    let path = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
    for address in ["10.96.0.1", "192.0.2.7"] {
        let status = json!({"status": {"podIP": address, "podIPs": [{"ip": address}]}});
        server.ask(&format!("PATCH {DEFAULT}/pods/p/status"), status).await;
        let name = format!("web-{address}");
        let slice = json!({"addressType": "IPv4", "ports": [{"port": 80}],
            "metadata": {"name": name, "labels": {"kubernetes.io/service-name": "web"}},
            "endpoints": [{"addresses": [address], "targetRef": {"kind": "Pod", "name": "p"}}]});
        let made = server.ask(&format!("POST {path}"), slice).await;
        assert_eq!(made.code, 201, "{made:?}");
        let answer = server.ask(&format!("GET {DEFAULT}/services/web/proxy/"), "").await;
        let words = json!("no endpoints available for service \"web\"");
        assert_eq!((answer.code, &answer.body["message"]), (503, &words), "{address}");
    }
}
