//! Requests that are handed on to pods.

use std::convert::Infallible;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use roadstead_server::api::Services;
use roadstead_testkit::netns::{laboratory, run};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use crate::server::Server;

const DEFAULT: &str = "/api/v1/namespaces/default";

/// The address of the pod, which is no loopback: those are refused.
const POD: &str = "10.244.0.1";

/// A program in a pod: tells what it was asked, and moves `/old` to `/new`.
async fn program() -> u16 {
    let listener = TcpListener::bind((POD, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let answer = |request: Request<Incoming>| async move {
        let token = request.headers().contains_key("authorization");
        let text = format!("{} {} token={token}", request.method(), request.uri());
        let response = match request.uri().path() {
            "/old" => Response::builder().status(302).header("location", "/new"),
            _ => Response::builder().header("x-own", "yes"),
        };
        Ok::<_, Infallible>(response.body(Full::new(Bytes::from(text))).unwrap())
    };
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let served =
                http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(answer));
            tokio::spawn(served);
        }
    });
    port
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
        ("https:web:80/proxy/", 501, "only plain HTTP requests are handed on to pods"),
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
