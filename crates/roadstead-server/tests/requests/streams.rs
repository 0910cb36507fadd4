//! Requests to look into a pod, which are handed on to the agent of its node.

use std::convert::Infallible;

use bytes::Bytes;
use http::header::{CONNECTION, UPGRADE};
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1 as client;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use roadstead_server::identity::user::User;
use roadstead_server::node_agents::LocalAgent;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;

use crate::server::Server;

const DEFAULT: &str = "/api/v1/namespaces/default";

/// An agent that tells what it was asked, refuses the log of a container called `late`, and repeats what
/// it hears after an upgrade.
fn agent() -> LocalAgent {
    let (send, mut receive) = mpsc::channel(4);
    let answer = |mut request: Request<Incoming>| async move {
        let headers = request.headers();
        let secrets = ["authorization", "cookie", "impersonate-user"];
        assert!(!secrets.iter().any(|name| headers.contains_key(*name)), "{headers:?}");
        if headers.contains_key(UPGRADE) {
            let protocol = headers["x-stream-protocol-version"].clone();
            let upgrade = hyper::upgrade::on(&mut request);
            let asked = format!("{} {}\n", request.method(), request.uri());
            tokio::spawn(async move {
                let (mut reader, mut writer) =
                    tokio::io::split(TokioIo::new(upgrade.await.unwrap()));
                writer.write_all(asked.as_bytes()).await.unwrap();
                tokio::io::copy(&mut reader, &mut writer).await.unwrap();
                writer.shutdown().await.unwrap();
            });
            let response = Response::builder().status(101).header(UPGRADE, "SPDY/3.1");
            let response = response.header("x-stream-protocol-version", protocol);
            let response = response.header(CONNECTION, "Upgrade").body(Full::default());
            return Ok::<_, Infallible>(response.unwrap());
        }
        let late = request.uri().path().ends_with("/late");
        let text = match late {
            true => "container \"late\" in pod \"web\" is waiting to start: PodInitializing".into(),
            false => format!("{} {}", request.method(), request.uri()),
        };
        let response = Response::builder().status(if late { 400 } else { 200 });
        Ok(response.body(Full::new(Bytes::from(text))).unwrap())
    };
    tokio::spawn(async move {
        while let Some(stream) = receive.recv().await {
            let served =
                http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(answer));
            tokio::spawn(served.with_upgrades());
        }
    });
    LocalAgent::new("n1", send)
}

async fn server() -> Server {
    let server = Server::new().await;
    server.set_local_agent(agent());
    for (name, node, containers) in
        [("web", "n1", "c late"), ("one", "n1", "c"), ("far", "n2", "c"), ("new", "", "c")]
    {
        let containers: Vec<_> =
            containers.split(' ').map(|name| json!({"name": name, "image": "i"})).collect();
        let pod = json!({"metadata": {"name": name},
            "spec": {"nodeName": node, "containers": containers}});
        let made = server.ask(&format!("POST {DEFAULT}/pods"), pod).await;
        assert_eq!(made.code, 201, "{made:?}");
    }
    server
}

#[tokio::test]
async fn logs_come_from_the_agent_of_the_pods_node() {
    let server = server().await;
    let cases = [
        (
            "one/log?tailLines=2&follow=true",
            200,
            "GET /containerLogs/default/one/c?tailLines=2&follow=true",
        ),
        ("web/log?container=c", 200, "GET /containerLogs/default/web/c"),
        ("new/log", 200, ""),
    ];
    for (path, code, text) in cases {
        let answer = server.ask(&format!("GET {DEFAULT}/pods/{path}"), "").await;
        assert_eq!((answer.code, &*answer.text), (code, text), "{path}");
    }
    let refused = [
        ("web/log", 400, "a container name must be specified for pod web, choose one of: [c late]"),
        ("web/log?container=x", 400, "container x is not valid for pod web"),
        (
            "web/log?container=late",
            400,
            "container \"late\" in pod \"web\" is waiting to start: PodInitializing",
        ),
        ("none/log", 404, "pods \"none\" not found"),
        (
            "one/log?tailLines=-1",
            422,
            "PodLogOptions \"one\" is invalid: tailLines: Invalid value: -1: must be greater than or \
             equal to 0",
        ),
        (
            "far/log",
            500,
            "Internal error occurred: error dialing backend: the agent of node \"n2\": \
             there is no such node",
        ),
        ("one/exec?command=ls&stdout=true", 400, "Upgrade request required"),
        ("one/portforward", 400, "Upgrade request required"),
    ];
    for (path, code, message) in refused {
        let answer = server.ask(&format!("GET {DEFAULT}/pods/{path}"), "").await;
        assert_eq!((answer.code, &answer.body["message"]), (code, &json!(message)), "{path}");
    }
}

#[tokio::test]
async fn a_connection_is_handed_on_to_the_agent() {
    let server = server().await;
    for (path, want) in [
        (
            "one/exec?command=sh&command=-c&stdin=true&stdout=true",
            "POST /exec/default/one/c?command=sh&command=-c&input=1&output=1\n",
        ),
        ("one/attach?stdout=true", "POST /attach/default/one/c?output=1\n"),
        ("one/portforward", "POST /portForward/default/one\n"),
    ] {
        let (mut sender, connection) =
            client::handshake::<_, Full<Bytes>>(TokioIo::new(server.connect())).await.unwrap();
        tokio::spawn(connection.with_upgrades());
        let request = Request::post(format!("{DEFAULT}/pods/{path}"));
        let request = request.header(UPGRADE, "SPDY/3.1").header(CONNECTION, "Upgrade");
        let request = request.header("x-stream-protocol-version", "v4.channel.k8s.io");
        let request = request.header("authorization", "Basic x").header("cookie", "x");
        let answer = sender.send_request(request.body(Full::default()).unwrap()).await.unwrap();
        assert_eq!(answer.status().as_u16(), 101, "{path}");
        assert_eq!(answer.headers()["x-stream-protocol-version"], "v4.channel.k8s.io");
        let mut stream = TokioIo::new(hyper::upgrade::on(answer).await.unwrap());
        stream.write_all(b"hello").await.unwrap();
        stream.shutdown().await.unwrap();
        let mut heard = String::new();
        stream.read_to_string(&mut heard).await.unwrap();
        assert_eq!(heard, format!("{want}hello"), "{path}");
    }
}

/// To run a command is not to read: who may only get `pods/exec` may not connect by GET either.
#[tokio::test]
async fn who_may_only_read_may_not_run_commands() {
    let server = server().await;
    let rules =
        json!([{"apiGroups": [""], "resources": ["pods/exec", "pods/log"], "verbs": ["get"]}]);
    let role = json!({"metadata": {"name": "reader"}, "rules": rules});
    let path = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    assert_eq!(server.ask(&format!("POST {path}/roles"), role).await.code, 201);
    let binding = json!({"metadata": {"name": "reader"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "eve"}]});
    assert_eq!(server.ask(&format!("POST {path}/rolebindings"), binding).await.code, 201);
    let eve = || User { name: "eve".into(), ..User::default() };
    let headers = [("upgrade", "websocket"), ("connection", "Upgrade")];
    let cases = [
        ("GET", "one/log", 200),
        ("GET", "one/exec?command=ls&stdout=true", 403),
        ("POST", "one/exec?command=ls&stdout=true", 403),
        ("GET", "one/attach?stdout=true", 403),
        ("POST", "one/portforward", 403),
    ];
    for (method, path, code) in cases {
        let request = format!("{method} {DEFAULT}/pods/{path}");
        let answer = server.ask_by(eve(), &headers, &request).await;
        assert_eq!(answer.code, code, "{path}: {answer:?}");
    }
}
