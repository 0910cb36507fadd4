//! What the agent serves to the API server, over HTTP in memory.

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use roadstead_node::serving::{KnownPods, PodServer};
use serde_json::json;
use tokio::task::JoinSet;

use super::images::{shell, with_image};
use super::*;

/// The pod `one`, known to a server, and the connections to it.
pub(super) struct Asked {
    pods: KnownPods,
    server: PodServer,
    connections: JoinSet<()>,
}

impl Asked {
    pub(super) fn new(runtime: &Arc<BuiltinRuntime>) -> Self {
        let pods = KnownPods::default();
        let server = PodServer::new(pods.clone(), runtime.clone());
        let asked = Self { pods, server, connections: JoinSet::new() };
        asked.status(json!({}));
        asked
    }

    /// The API says this about the pod.
    fn status(&self, status: serde_json::Value) {
        let pod = json!({
            "metadata": {"namespace": "default", "name": "one", "uid": "uid-of-one"},
            "spec": {"containers": [{"name": "main"}, {"name": "other"}]},
            "status": status,
        });
        self.pods.set(Arc::new(serde_json::from_value(pod).unwrap()));
    }

    async fn get(&mut self, path: &str) -> Response<Incoming> {
        self.send(Request::get(path).body(Empty::new()).unwrap()).await
    }

    pub(super) async fn send(&mut self, request: Request<Empty<Bytes>>) -> Response<Incoming> {
        let (ours, theirs) = tokio::io::duplex(4096);
        self.connections.spawn(self.server.clone().serve(theirs));
        let (mut sender, connection) = http1::handshake(TokioIo::new(ours)).await.unwrap();
        self.connections.spawn(async { drop(connection.with_upgrades().await) });
        sender.send_request(request).await.unwrap()
    }

    /// Its status and all that it says.
    pub(super) async fn answer(&mut self, path: &str) -> (u16, String) {
        let response = self.get(path).await;
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.into()).unwrap())
    }

    /// Nothing is left of the connections when the clients are gone.
    pub(super) async fn end(mut self) {
        let all_end = async { while self.connections.join_next().await.is_some() {} };
        tokio::time::timeout(Duration::from_secs(30), all_end).await.expect("connections end");
    }
}

/// The text of the next frame.
async fn next(response: &mut Response<Incoming>) -> Option<String> {
    let frame = tokio::time::timeout(Duration::from_secs(30), response.frame()).await.unwrap();
    Some(String::from_utf8(frame?.unwrap().into_data().unwrap().into()).unwrap())
}

const LOGS: &str = "/containerLogs/default/one/main";

#[test]
fn logs_are_served() {
    with_image(async |_, runtime, image| {
        let mut asked = Asked::new(runtime);
        let creating = "container \"main\" in pod \"one\" is waiting to start: ContainerCreating";
        assert_eq!(asked.answer(LOGS).await, (400, creating.into()));
        asked.status(json!({"containerStatuses": [{"name": "main", "image": "x", "imageID": "",
            "ready": false, "restartCount": 0,
            "state": {"waiting": {"reason": "ErrImagePull"}}}]}));
        let pulling =
            "container \"main\" in pod \"one\" is waiting to start: image can't be pulled";
        assert_eq!(asked.answer(LOGS).await, (400, pulling.into()));
        let missing = (404, "pod not found".to_owned());
        assert_eq!(asked.answer("/containerLogs/default/two/main").await, missing);
        let invalid = (400, "container x is not valid for pod one".to_owned());
        assert_eq!(asked.answer("/containerLogs/default/one/x").await, invalid);

        runtime.start(shell(&image, "main", "echo a; echo b >&2; echo c")).await.unwrap();
        runtime.wait(&name("one"), "main").await;
        let all = asked.answer(LOGS).await;
        assert_eq!((all.0, all.1.len()), (200, 6), "{all:?}");
        let (_, last) = asked.answer(&format!("{LOGS}?tailLines=1&follow=true")).await;
        assert!(all.1.ends_with(&last) && last.len() == 2, "{last}");
        assert_eq!(asked.answer(&format!("{LOGS}?limitBytes=3")).await.1, all.1[..3]);
        let (_, timed) = asked.answer(&format!("{LOGS}?timestamps=true")).await;
        let (time, _) = timed.split_once(' ').unwrap();
        assert_eq!((timed.len(), time.len(), &time[19..20]), (6 + 3 * 31, 30, "."), "{timed}");
        assert_eq!(asked.answer(&format!("{LOGS}?sinceTime=2999-01-01T00:00:00Z")).await.1, "");
        for (stream, want) in [("Stdout", "a\nc\n"), ("Stderr", "b\n"), ("All", all.1.as_str())] {
            let said = asked.answer(&format!("{LOGS}?stream={stream}")).await;
            assert_eq!(said, (200, want.to_owned()), "{stream}");
        }
        let wrong = (400, "invalid value \"many\" of tailLines".to_owned());
        assert_eq!(asked.answer(&format!("{LOGS}?tailLines=many")).await, wrong);
        let none = "previous terminated container \"main\" in pod \"one\" not found";
        assert_eq!(asked.answer(&format!("{LOGS}?previous=true")).await, (400, none.into()));

        let again = shell(&image, "main", "echo again");
        runtime.start(ContainerConfig { restarts: 1, ..again }).await.unwrap();
        runtime.wait(&name("one"), "main").await;
        assert_eq!(asked.answer(LOGS).await, (200, "again\n".into()));
        assert_eq!(asked.answer(&format!("{LOGS}?previous=true")).await, all);
        asked.end().await;
    });
}

#[test]
fn a_log_is_followed_to_its_end() {
    with_image(async |_, runtime, image| {
        let mut asked = Asked::new(runtime);
        let line = "echo a; while ! ls /srv/go; do sleep 0.05; done 2>/dev/null; echo b";
        runtime.start(shell(&image, "main", line)).await.unwrap();
        let mut response = asked.get(&format!("{LOGS}?follow=true")).await;
        assert_eq!(next(&mut response).await.as_deref(), Some("a\n"));
        // Somebody who goes away is not waited for.
        let left = asked.get(&format!("{LOGS}?follow=true")).await;
        drop(left);
        let order = roadstead_node::runtime::exec::ExecOrder {
            command: ["touch", "/srv/go"].map(str::to_owned).into(),
            ..Default::default()
        };
        runtime.exec(&name("one"), "main", order).await.unwrap().output(0).await;
        let mut rest = String::new();
        while let Some(text) = next(&mut response).await {
            rest += &text;
        }
        assert_eq!(rest, "/srv/go\nb\n");
        drop(response);
        asked.end().await;
    });
}
