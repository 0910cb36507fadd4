//! A server that plays a script, and what the watcher makes of it.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use super::*;
use http::{Request, Response};
use serde_json::json;

type Script = Arc<Mutex<VecDeque<(u16, String)>>>;

/// A client whose requests are noted and answered from the script, one body each.
fn client(script: Script, asked: Arc<Mutex<Vec<String>>>) -> Client {
    let service = tower::service_fn(move |request: Request<Body>| {
        asked.lock().unwrap().push(request.uri().query().unwrap_or_default().to_owned());
        let next = script.lock().unwrap().pop_front();
        async move {
            // With the script at its end, nothing more ever comes.
            let Some((code, body)) = next else { return std::future::pending().await };
            let response = Response::builder().status(code).body(Body::from(body.into_bytes()));
            Ok::<_, Infallible>(response.unwrap())
        }
    });
    Client::new(service, "default")
}

fn object(name: &str, version: u64) -> serde_json::Value {
    json!({"metadata": {"name": name, "resourceVersion": version.to_string()}})
}

fn line(kind: &str, object: serde_json::Value) -> String {
    format!("{}\n", json!({"type": kind, "object": object}))
}

fn initial_end(version: u64) -> String {
    let annotations = json!({"k8s.io/initial-events-end": "true"});
    let metadata = json!({"resourceVersion": version.to_string(), "annotations": annotations});
    line("BOOKMARK", json!({"metadata": metadata}))
}

/// What is said, in short; each object's version is reported back as the informer does.
async fn play(script: Vec<(u16, String)>) -> (String, Vec<String>) {
    let asked: Arc<Mutex<Vec<String>>> = Arc::default();
    let script = Arc::new(Mutex::new(VecDeque::from(script)));
    let mut watcher =
        Watcher::new(client(script, Arc::clone(&asked)), "/things", Selection::default());
    let mut words = Vec::new();
    while let Ok(said) = tokio::time::timeout(Duration::from_secs(60), watcher.next()).await {
        let (word, object) = match said {
            RawEvent::Start => ("start".to_owned(), None),
            RawEvent::Complete(_) => ("complete".to_owned(), None),
            RawEvent::Object(object) => ("+".to_owned(), Some(object)),
            RawEvent::Deleted(object) => ("-".to_owned(), Some(object)),
        };
        let Some(object) = object else {
            words.push(word);
            continue;
        };
        let object: serde_json::Value = serde_json::from_str(object.get()).unwrap();
        watcher.reached(object["metadata"]["resourceVersion"].as_str().unwrap().to_owned());
        words.push(format!("{word}{}", object["metadata"]["name"].as_str().unwrap()));
    }
    let asked = asked.lock().unwrap().clone();
    (words.join(" "), asked)
}

fn version_asked(query: &str) -> String {
    let of = |name: &str| {
        let pair = query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
        pair.unwrap_or("-").to_owned()
    };
    match of("sendInitialEvents").as_str() {
        "true" => "stream".into(),
        _ if of("watch") == "true" => format!("watch@{}", of("resourceVersion")),
        _ => format!("list+{}", of("continue")),
    }
}

#[tokio::test(start_paused = true)]
async fn tells_everything_once_whatever_the_server_does() {
    let first = || line("ADDED", object("a", 3)) + &initial_end(7);
    let gone = || line("ERROR", json!({"kind": "Status", "code": 410, "message": "too old"}));
    let invalid = || json!({"kind": "Status", "code": 422, "message": "not allowed"}).to_string();
    let page = |names: &[&str], token: &str| {
        let items: Vec<_> = names.iter().map(|name| object(name, 3)).collect();
        let metadata = json!({"resourceVersion": "9", "continue": token});
        json!({"metadata": metadata, "items": items}).to_string()
    };
    let cases = [
        (
            "a watch that ends is resumed after the last object",
            vec![(200, first() + &line("MODIFIED", object("b", 8))), (200, String::new())],
            "start +a complete +b",
            "stream watch@8 watch@8",
        ),
        (
            "with nothing new, after the bookmark",
            vec![(200, first()), (200, line("DELETED", object("a", 11)))],
            "start +a complete -a",
            "stream watch@7 watch@11",
        ),
        (
            "a state that breaks off is told again from the start",
            vec![(200, line("ADDED", object("a", 3))), (200, first())],
            "start +a start +a complete",
            "stream stream watch@7",
        ),
        (
            "too old to resume",
            vec![(200, first()), (200, gone()), (200, first())],
            "start +a complete start +a complete",
            "stream watch@7 stream watch@7",
        ),
        (
            "a server without streamed lists is asked for pages",
            vec![(422, invalid()), (200, page(&["a", "b"], "t")), (200, page(&["c"], ""))],
            "start +a +b +c complete",
            "stream list+- list+t watch@9",
        ),
        (
            "and so is one whose storage cannot do it",
            vec![(500, json!({"code": 500}).to_string()), (200, page(&["a"], ""))],
            "start +a complete",
            "stream list+- watch@9",
        ),
        (
            "a token that expires starts the list anew",
            vec![
                (422, invalid()),
                (200, page(&["a"], "t")),
                (410, json!({"code": 410}).to_string()),
                (200, page(&["a"], "")),
            ],
            "start +a start +a complete",
            "stream list+- list+t list+- watch@9",
        ),
        (
            "failures are retried",
            vec![(429, "oops".into()), (503, String::new()), (200, first())],
            "start +a complete",
            "stream stream stream watch@7",
        ),
        (
            "a damaged line breaks the watch, not the watcher",
            vec![(200, first() + "{\"type\":\"ADD"), (200, "nonsense\n".into())],
            "start +a complete",
            "stream watch@7 watch@7",
        ),
    ];
    for (name, script, said, requests) in cases {
        let (words, asked) = play(script).await;
        let asked: Vec<_> = asked.iter().map(|query| version_asked(query)).collect();
        assert_eq!((words.as_str(), asked.join(" ").as_str()), (said, requests), "{name}");
    }
}

#[tokio::test]
async fn lines_are_found_across_frames() {
    let frames = ["{\"a\"", ":1}\n{\"b\":2}\n{", "\"c\":3}\n"];
    let frames =
        frames.map(|frame| Ok::<_, Infallible>(http_body::Frame::data(Bytes::from(frame))));
    let body = http_body_util::StreamBody::new(futures::stream::iter(frames));
    let mut lines = Lines::new(body);
    for want in ["{\"a\":1}", "{\"b\":2}", "{\"c\":3}"] {
        assert_eq!(lines.next().await.ok().unwrap(), want);
    }
    assert!(matches!(lines.next().await, Err(End::Closed)));
}
