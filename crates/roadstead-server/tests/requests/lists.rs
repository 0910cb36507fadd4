//! Pages of lists, also when the state of the first page is gone.

use std::time::Duration;

use roadstead_store::store::{Options, Store};
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
    assert!(rest.body["metadata"]["continue"].is_string());
}

#[tokio::test]
async fn a_token_that_is_none_is_refused() {
    let server = Server::new().await;
    for token in ["x", "e30", "eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6LTUsInN0YXJ0IjoiIn0"] {
        let answer = server.ask(&format!("GET {MAPS}?limit=2&continue={token}"), "").await;
        assert_eq!((answer.code, &answer.body["reason"]), (400, &json!("BadRequest")), "{token}");
    }
}
