//! Pages of lists, also when the state of the first page is gone.

use std::time::Duration;

use roadstead_store::kv::{Options, Store};
use serde_json::{Value, json};

use crate::server::Server;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn names(list: &Value) -> String {
    let items = list["items"].as_array().unwrap().iter();
    items.map(|item| item["metadata"]["name"].as_str().unwrap()).collect::<Vec<_>>().join(" ")
}

#[tokio::test]
async fn an_expired_page_says_how_to_go_on() {
    let directory = tempfile::tempdir().unwrap();
    let mut options = Options::default();
    options.history.age = Duration::ZERO;
    options.history.events = 4;
    let store = Store::open(&directory.path().join("store"), options).unwrap();
    let server = Server::over(store).await;
    let create = async |name: &str| {
        let made = server.ask(&format!("POST {MAPS}"), json!({"metadata": {"name": name}})).await;
        assert_eq!(made.code, 201);
    };
    for name in ["a", "b", "c"] {
        create(name).await;
    }
    let first = server.ask(&format!("GET {MAPS}?limit=2"), "").await.body;
    assert_eq!(
        (names(&first), &first["metadata"]["remainingItemCount"]),
        ("a b".into(), &json!(1))
    );
    let next = first["metadata"]["continue"].as_str().unwrap();
    create("aa").await;
    create("d").await;
    let second = server.ask(&format!("GET {MAPS}?limit=2&continue={next}"), "").await;
    assert_eq!(names(&second.body), "c", "the second page is of the same moment as the first");

    for number in 0..20 {
        create(&format!("x{number}")).await;
    }
    let gone = server.ask(&format!("GET {MAPS}?limit=2&continue={next}"), "").await;
    assert_eq!((gone.code, &gone.body["reason"]), (410, &json!("Expired")), "{gone:?}");
    let words = "The provided continue parameter is too old to display a consistent list result.";
    assert!(gone.body["message"].as_str().unwrap().starts_with(words));
    let fresh = gone.body["metadata"]["continue"].as_str().unwrap();
    let rest = server.ask(&format!("GET {MAPS}?limit=2&continue={fresh}"), "").await;
    assert_eq!(names(&rest.body), "c d", "from the same place, as it is now");
    assert_eq!(rest.body["metadata"]["remainingItemCount"], 20, "nobody has seen aa");
    let next = rest.body["metadata"]["continue"].as_str().unwrap();
    let page = server.ask(&format!("GET {MAPS}?limit=5&continue={next}"), "").await.body;
    assert_eq!(page["metadata"]["remainingItemCount"], 15);
}

#[tokio::test]
async fn a_token_that_is_none_is_refused() {
    let server = Server::new().await;
    for token in ["x", "e30", "eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6LTUsInN0YXJ0IjoiIn0"] {
        let answer = server.ask(&format!("GET {MAPS}?limit=2&continue={token}"), "").await;
        assert_eq!((answer.code, &answer.body["reason"]), (400, &json!("BadRequest")), "{token}");
    }
}

#[tokio::test]
async fn options_that_do_not_go_together() {
    let server = Server::new().await;
    let list = "ListOptions.meta.k8s.io \"\" is invalid: resourceVersionMatch: Forbidden: \
        resourceVersionMatch is forbidden";
    let requires = "ListOptions.meta.k8s.io \"\" is invalid: resourceVersionMatch: Forbidden: \
        sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
    let cases = [
        ("resourceVersionMatch=Exact", format!("{list} unless resourceVersion is provided")),
        (
            "resourceVersionMatch=Odd&resourceVersion=1",
            "ListOptions.meta.k8s.io \"\" is invalid: resourceVersionMatch: Unsupported value: \
             \"Odd\": supported values: \"Exact\", \"NotOlderThan\", \"\""
                .to_owned(),
        ),
        (
            "sendInitialEvents=true",
            "ListOptions.meta.k8s.io \"\" is invalid: sendInitialEvents: Forbidden: \
             sendInitialEvents is forbidden for list"
                .to_owned(),
        ),
        ("watch=1&sendInitialEvents=true", requires.to_owned()),
        ("watch=1&sendInitialEvents=false", requires.to_owned()),
        (
            "watch=1&resourceVersionMatch=NotOlderThan",
            format!("{list} for watch unless sendInitialEvents is provided"),
        ),
    ];
    for (query, words) in cases {
        let answer = server.ask(&format!("GET {MAPS}?{query}"), "").await;
        assert_eq!((answer.code, &answer.body["message"]), (422, &json!(words)), "{query}");
    }
}

#[tokio::test]
async fn a_watch_may_leave_out_what_there_is() {
    let server = Server::new().await;
    server.ask(&format!("POST {MAPS}"), json!({"metadata": {"name": "a"}})).await;
    let cases = [
        ("watch=1&allowWatchBookmarks=1", "ADDED"),
        (
            "watch=1&allowWatchBookmarks=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan",
            "ADDED BOOKMARK",
        ),
        (
            "watch=1&allowWatchBookmarks=1&sendInitialEvents=false&resourceVersionMatch=NotOlderThan",
            "",
        ),
    ];
    for (query, want) in cases {
        let events = server.watch(&format!("{MAPS}?{query}")).await;
        let types: Vec<_> = events.iter().map(|(kind, _)| kind.as_str()).collect();
        assert_eq!(types.join(" "), want, "{query}");
    }
}
