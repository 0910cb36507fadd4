//! Services written through the whole API server, over a store in memory.

use std::sync::Arc;

use bytes::Bytes;
use http::Request;
use http::header::{CONTENT_TYPE, WARNING};
use http_body_util::{BodyExt, Full};
use roadstead_schema::json::Pointer;
use roadstead_store::kv::Store;
use serde_json::{Value, json};

use super::repair;
use crate::api::Api;
use crate::bootstrap;
use crate::config::{Config, Services};
use crate::identity::tokens::Tokens;
use crate::identity::user::User;
use crate::request::chain::handle;

mod creations;
mod histories;
mod metrics;
mod ranges;
mod speed;
mod transitions;
mod upstream;

pub(super) const PATH: &str = "/api/v1/namespaces/default/services";
pub(super) const ADDRESSES: &str = "/apis/networking.k8s.io/v1/ipaddresses";
pub(super) const RANGES: &str = "/apis/networking.k8s.io/v1/servicecidrs";

/// A server under test.
pub(super) struct Cluster {
    pub(super) api: Arc<Api>,
}

/// What the server says.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) code: u16,
    pub(super) body: Value,
    pub(super) warnings: Vec<String>,
}

impl Cluster {
    /// A cluster with these service ranges, one or two, such as `10.96.0.0/16,fd00::/112`.
    pub(super) async fn with(ranges: &str) -> Self {
        Self::over(Store::memory(), ranges, Services::default()).await
    }

    pub(super) async fn over(store: Arc<Store>, ranges: &str, services: Services) -> Self {
        let mut ranges = ranges.split(',').map(|range| range.parse().unwrap());
        let config = Config { service_range: ranges.next().unwrap(), advertise: None, audit: None };
        let services = Services { second_range: ranges.next(), ..services };
        let tokens = Tokens::ephemeral().unwrap();
        let api = Api::with_services(store, config, services, tokens);
        bootstrap::run(&api).await.unwrap();
        Self { api }
    }

    pub(super) async fn call(&self, method: &str, path: &str, body: Value) -> Answer {
        let media = match method {
            "PATCH" => "application/merge-patch+json",
            _ => "application/json",
        };
        let bytes = if body.is_null() { Bytes::new() } else { body.to_string().into() };
        let request = Request::builder().method(method).uri(path).header(CONTENT_TYPE, media);
        let request = request.body(Full::new(bytes)).unwrap();
        let response = handle(self.api.clone(), User::component(), request).await;
        let code = response.status().as_u16();
        let warnings = response.headers().get_all(WARNING).iter();
        let warnings = warnings.map(|w| w.to_str().unwrap().replacen("299 - ", "", 1)).collect();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        Answer { code, body: serde_json::from_slice(&bytes).unwrap_or(Value::Null), warnings }
    }

    pub(super) async fn create(&self, name: &str, spec: Value) -> Answer {
        self.call("POST", PATH, service(name, spec)).await
    }

    pub(super) async fn get(&self, name: &str) -> Value {
        self.call("GET", &format!("{PATH}/{name}"), Value::Null).await.body
    }

    /// What is taken is what Services hold.
    pub(super) fn check(&self) {
        assert_eq!(repair::differences(&self.api).unwrap(), [], "taken and held differ");
    }
}

impl Answer {
    /// `ok`, or the message without the name of the object.
    pub(super) fn said(&self) -> String {
        match self.code {
            200 | 201 => "ok".to_owned(),
            _ => {
                let message = self.body.text("/message");
                let (_, rest) = message.split_once(" is invalid: ").unwrap_or(("", message));
                rest.to_owned()
            }
        }
    }
}

pub(super) fn service(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec})
}

/// Checks `/pointer=value` claims: `*` is anything, `-` is nothing, `a|b` either.
pub(super) fn check_claims(name: &str, object: &Value, claims: &str) {
    for claim in claims.split_whitespace() {
        let (pointer, want) = claim.split_once('=').unwrap();
        let found = match object.pointer(&format!("/{pointer}")) {
            None | Some(Value::Null) => "-".to_owned(),
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
        };
        let good = (want == "*" && found != "-") || want.split('|').any(|want| want == found);
        assert!(good, "{name}: {claim} is {found} in {object}");
    }
}

pub(super) fn run<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test)
}
