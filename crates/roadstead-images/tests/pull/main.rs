//! Images from a registry on loopback, which is open, guarded, torn, elsewhere or lying.

mod registry;

use std::fs;
use std::net::SocketAddr;
use std::sync::Arc;

use registry::{Manner, Registry};
use roadstead_images::reference::Reference;
use roadstead_images::registry::credentials::Keyring;
use roadstead_images::registry::error::PullError;
use roadstead_images::registry::hosts::{Hosts, Mirror};
use roadstead_images::registry::pull::Puller;
use roadstead_images::store::ImageStore;

struct Machine {
    _place: tempfile::TempDir,
    store: Arc<ImageStore>,
    puller: Puller,
    name: Reference,
}

fn machine(registry: SocketAddr) -> Machine {
    let place = tempfile::tempdir().unwrap();
    let store = Arc::new(ImageStore::open(place.path()).unwrap());
    let mut hosts = Hosts::default();
    let authority = registry.to_string();
    hosts.add(&authority, Mirror { url: format!("http://{authority}"), ca_file: None });
    let puller = Puller::new(store.clone(), hosts).unwrap();
    Machine { _place: place, store, puller, name: format!("{authority}/app:v1").parse().unwrap() }
}

fn keys(machine: &Machine, password: &str) -> Keyring {
    let mut keys = Keyring::default();
    let registry = &machine.name.registry;
    let json =
        format!(r#"{{"auths":{{"{registry}":{{"username":"me","password":"{password}"}}}}}}"#);
    keys.add(json.as_bytes()).unwrap();
    keys
}

async fn pulled(
    manner: Manner,
    password: Option<&str>,
) -> (Machine, Result<(), PullError>, Arc<Registry>) {
    let (address, registry) = Registry::start(manner).await;
    let machine = machine(address);
    let keys = password.map_or_else(Keyring::default, |password| keys(&machine, password));
    let result = machine.puller.pull(&machine.name, &keys).await.map(drop);
    (machine, result, registry)
}

#[tokio::test]
async fn an_image_comes_whole() {
    let cases = [
        ("open", Manner::Open, None),
        ("with a password", Manner::Basic, Some("secret")),
        ("with a token", Manner::Bearer, Some("secret")),
        ("torn in the middle", Manner::Torn, None),
    ];
    for (name, manner, password) in cases {
        let (machine, result, _) = pulled(manner, password).await;
        result.unwrap_or_else(|error| panic!("{name}: {}", error.in_full()));
        let image = machine.store.find(&machine.name).unwrap().expect(name);
        assert_eq!(fs::read(image.layers[0].join("a")).unwrap().len(), 100_000, "{name}");
        assert_eq!(fs::read_to_string(image.layers[1].join("b")).unwrap(), "bee", "{name}");
    }
}

#[tokio::test]
async fn what_is_here_is_not_fetched_again() {
    let (machine, result, registry) = pulled(Manner::Open, None).await;
    result.unwrap();
    let blobs = registry.count("/blobs/");
    machine.puller.pull(&machine.name, &Keyring::default()).await.unwrap();
    assert_eq!(registry.count("/blobs/"), blobs);
    assert_eq!(registry.count("/manifests/v1"), 2, "the tag is asked for each time");
}

#[tokio::test]
async fn many_who_want_the_same_fetch_it_once() {
    let (address, registry) = Registry::start(Manner::Open).await;
    let machine = machine(address);
    let keys = Keyring::default();
    let all = (0..5).map(|_| machine.puller.pull(&machine.name, &keys));
    for result in futures::future::join_all(all).await {
        result.unwrap();
    }
    assert_eq!(registry.count("/blobs/"), 3);
}

#[tokio::test]
async fn strangers_get_nothing() {
    for (manner, password) in [
        (Manner::Basic, None),
        (Manner::Basic, Some("wrong")),
        (Manner::Bearer, None),
        (Manner::Bearer, Some("wrong")),
    ] {
        let (machine, result, _) = pulled(manner, password).await;
        let error = result.unwrap_err();
        assert!(matches!(error, PullError::Unauthorized(_)), "{error:?}");
        assert!(error.to_string().contains("may require authorization"), "{error}");
        assert!(machine.store.find(&machine.name).unwrap().is_none());
    }
}

#[tokio::test]
async fn a_password_does_not_follow_a_redirect() {
    let (elsewhere, seen) = Registry::start(Manner::Open).await;
    let (address, _) = Registry::start(Manner::Redirecting(elsewhere)).await;
    let machine = machine(address);
    machine.puller.pull(&machine.name, &keys(&machine, "secret")).await.unwrap();
    assert_eq!(seen.count("/blobs/"), 3);
    assert!(seen.requests.lock().unwrap().iter().all(|request| request.ends_with(' ')));
}

#[tokio::test]
async fn lies_are_noticed_and_leave_nothing() {
    let (machine, result, _) = pulled(Manner::Lying, None).await;
    let error = result.unwrap_err();
    assert!(matches!(error, PullError::Image(_)), "{error:?}");
    assert!(error.to_string().contains("has digest"), "{error}");
    assert!(machine.store.find(&machine.name).unwrap().is_none());
}

#[tokio::test]
async fn who_lies_is_passed_over() {
    let (liar, asked) = Registry::start(Manner::Lying).await;
    let (honest, _) = Registry::start(Manner::Open).await;
    let silent: SocketAddr = "127.0.0.1:9".parse().unwrap();
    for (next, comes) in [(honest, true), (silent, false)] {
        let machine = machine(next);
        let mut hosts = Hosts::default();
        for address in [liar, next] {
            let url = format!("http://{address}");
            hosts.add(&next.to_string(), Mirror { url, ca_file: None });
        }
        let puller = Puller::new(machine.store.clone(), hosts).unwrap();
        let result = puller.pull(&machine.name, &Keyring::default()).await;
        assert!(asked.count("/blobs/") > 0);
        match result {
            Ok(image) => assert!(comes && image.layers[1].join("b").exists()),
            // What was wrong with the one that answered says more than the other's silence.
            Err(error) => assert!(!comes && error.to_string().contains("has digest"), "{error}"),
        }
    }
}

#[tokio::test]
async fn what_is_not_there() {
    let (address, _) = Registry::start(Manner::Open).await;
    let machine = machine(address);
    let missing: Reference = format!("{address}/app:v2").parse().unwrap();
    let error = machine.puller.pull(&missing, &Keyring::default()).await.unwrap_err();
    assert_eq!(error.to_string(), format!("manifest unknown: {address}/app:v2"));

    let nobody = "127.0.0.1:9";
    let mut hosts = Hosts::default();
    hosts.add(nobody, Mirror { url: format!("http://{nobody}"), ca_file: None });
    let puller = Puller::new(machine.store.clone(), hosts).unwrap();
    let reference: Reference = format!("{nobody}/app:v1").parse().unwrap();
    let error = puller.pull(&reference, &Keyring::default()).await.unwrap_err();
    assert!(matches!(error, PullError::Unavailable(_)), "{error:?}");
    assert!(
        error.to_string().starts_with("Get \"http://127.0.0.1:9/v2/app/manifests/v1\""),
        "{error}"
    );
}
