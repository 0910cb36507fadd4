//! One write to the API, as data.
//!
//! A controller plans writes and a runner sends them, so no code per kind is needed in between:
//! the body is bytes, the answer is text, and only the cache that takes it in knows the type.

use std::borrow::Cow;

use hyper::header::{ACCEPT, CONTENT_TYPE};
use hyper::{Method, Request};
use k8s_openapi::Resource;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, Preconditions};
use kube::Client;
use kube::core::ApiResource;
use roadstead_api::key::ObjectKey;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Where objects of a kind live.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collection {
    /// The group and version, as objects name them.
    pub api_version: Cow<'static, str>,
    /// The kind of the objects.
    pub kind: Cow<'static, str>,
    /// The last part of the address.
    pub plural: Cow<'static, str>,
}

impl Collection {
    /// Where the objects of a type live.
    pub const fn of<K: Resource>() -> Self {
        Self {
            api_version: Cow::Borrowed(K::API_VERSION),
            kind: Cow::Borrowed(K::KIND),
            plural: Cow::Borrowed(K::URL_PATH_SEGMENT),
        }
    }

    /// Where the objects of a kind live that the server tells of.
    pub fn of_resource(resource: &ApiResource) -> Self {
        Self {
            api_version: resource.api_version.clone().into(),
            kind: resource.kind.clone().into(),
            plural: resource.plural.clone().into(),
        }
    }
}

/// What is done to the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// It is made.
    Create,
    /// It is replaced; a stale resource version is refused.
    Replace,
    /// Parts of it are changed.
    Patch,
    /// It is deleted.
    Delete,
}

/// One write.
#[derive(Clone, Debug, PartialEq)]
pub struct Write {
    /// What is done.
    pub verb: Verb,
    /// To an object of which kind.
    pub collection: Collection,
    /// Which object; a created object may have no name yet.
    pub key: ObjectKey,
    /// The part of the object, or "".
    pub subresource: &'static str,
    /// Which object of that name, if that was said.
    pub uid: Option<String>,
    /// Whether it is no failure if the object is gone or has changed meanwhile: we hear of it.
    pub only_if_unchanged: bool,
    content_type: &'static str,
    body: Vec<u8>,
}

const JSON: &str = "application/json";

impl Write {
    /// Creates an object.
    pub fn create<K: Resource + Serialize>(namespace: &str, object: &K) -> Self {
        Self::new(Verb::Create, Collection::of::<K>(), ObjectKey::new(namespace, ""), object)
    }

    /// Creates an object that is only known as JSON.
    pub fn create_value(collection: Collection, namespace: &str, object: &Value) -> Self {
        Self::new(Verb::Create, collection, ObjectKey::new(namespace, ""), object)
    }

    /// Creates a part of an object that exists, such as its binding to a node.
    pub fn create_part(
        collection: Collection,
        key: ObjectKey,
        subresource: &'static str,
        part: &Value,
    ) -> Self {
        Self { subresource, ..Self::new(Verb::Create, collection, key, part) }
    }

    /// Replaces an object.
    pub fn replace<K: Resource + Serialize>(key: ObjectKey, object: &K) -> Self {
        Self::new(Verb::Replace, Collection::of::<K>(), key, object)
    }

    /// Replaces the status of an object.
    pub fn replace_status<K: Resource + Serialize>(key: ObjectKey, object: &K) -> Self {
        Self { subresource: "status", ..Self::replace(key, object) }
    }

    /// Changes parts of an object by a merge patch.
    pub fn merge(collection: Collection, key: ObjectKey, patch: &Value) -> Self {
        let content_type = "application/merge-patch+json";
        Self { content_type, ..Self::new(Verb::Patch, collection, key, patch) }
    }

    /// Changes parts of an object by a strategic merge patch.
    pub fn strategic(collection: Collection, key: ObjectKey, patch: &Value) -> Self {
        let content_type = "application/strategic-merge-patch+json";
        Self { content_type, ..Self::new(Verb::Patch, collection, key, patch) }
    }

    /// The same write to a part of the object.
    pub fn to(self, subresource: &'static str) -> Self {
        Self { subresource, ..self }
    }

    /// The same write, and never mind if somebody else was faster.
    pub fn only_if_unchanged(self) -> Self {
        Self { only_if_unchanged: true, ..self }
    }

    /// Deletes an object, if it still is the one with that uid.
    pub fn delete(collection: Collection, key: ObjectKey, uid: Option<&str>) -> Self {
        Self::delete_with(collection, key, uid, DeleteOptions::default())
    }

    /// Deletes an object without waiting for anything.
    pub fn delete_now(collection: Collection, key: ObjectKey, uid: Option<&str>) -> Self {
        let options = DeleteOptions { grace_period_seconds: Some(0), ..DeleteOptions::default() };
        Self::delete_with(collection, key, uid, options)
    }

    /// Deletes an object in a certain way, if it still is the one with that uid.
    pub fn delete_with(
        collection: Collection,
        key: ObjectKey,
        uid: Option<&str>,
        mut options: DeleteOptions,
    ) -> Self {
        let uid = uid.map(str::to_owned);
        options.api_version = Some("v1".to_owned());
        options.kind = Some("DeleteOptions".to_owned());
        if uid.is_some() {
            let conditions = options.preconditions.unwrap_or_default();
            options.preconditions = Some(Preconditions { uid: uid.clone(), ..conditions });
        }
        Self { uid, ..Self::new(Verb::Delete, collection, key, &options) }
    }

    /// What a write comes to whose object the server does not find: a deletion by somebody else.
    /// Nothing, if the write does not say which object of that name it meant.
    pub fn in_vain(&self) -> Option<Self> {
        let body: Value = serde_json::from_slice(&self.body).ok()?;
        let uid = self.uid.as_deref().or(body["metadata"]["uid"].as_str())?;
        Some(Self::delete(self.collection.clone(), self.key.clone(), Some(uid)))
    }

    fn new<B: Serialize>(verb: Verb, collection: Collection, key: ObjectKey, body: &B) -> Self {
        let body = serde_json::to_vec(body).expect("API objects can be written as JSON");
        Self {
            verb,
            collection,
            key,
            subresource: "",
            uid: None,
            only_if_unchanged: false,
            content_type: JSON,
            body,
        }
    }

    /// How many bytes are sent.
    pub fn size(&self) -> usize {
        self.body.len()
    }

    /// What is sent.
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// Where it is sent.
    pub fn path(&self) -> String {
        let Collection { api_version, plural, .. } = &self.collection;
        let root = if api_version.contains('/') { "/apis" } else { "/api" };
        let mut path = format!("{root}/{api_version}/");
        if !self.key.namespace.is_empty() {
            path += &format!("namespaces/{}/", self.key.namespace);
        }
        path += plural;
        for part in [self.key.name.as_str(), self.subresource] {
            if !part.is_empty() {
                path.push('/');
                path += part;
            }
        }
        path
    }

    /// Carries it out; returns the object as the server answers it.
    pub async fn send(&self, client: &Client) -> Result<String, kube::Error> {
        let method = match self.verb {
            Verb::Create => Method::POST,
            Verb::Replace => Method::PUT,
            Verb::Patch => Method::PATCH,
            Verb::Delete => Method::DELETE,
        };
        let request = Request::builder()
            .method(method)
            .uri(self.path())
            .header(ACCEPT, JSON)
            .header(CONTENT_TYPE, self.content_type)
            .body(self.body.clone())
            .map_err(kube::Error::HttpError)?;
        client.request_text(request).await
    }
}

/// Reads what is under a path into whatever part of it the caller cares about.
pub async fn read<T: DeserializeOwned>(client: &Client, path: &str) -> Result<T, kube::Error> {
    let request = Request::get(path).header(ACCEPT, JSON).body(Vec::new());
    let text = client.request_text(request.map_err(kube::Error::HttpError)?).await?;
    serde_json::from_str(&text).map_err(kube::Error::SerdeError)
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::{Node, Pod};
    use k8s_openapi::api::discovery::v1::EndpointSlice;
    use serde_json::json;

    #[test]
    fn where_writes_go() {
        let key = || ObjectKey::new("shop", "web");
        let cases = [
            (
                "a new object has no name in its address",
                Write::create("shop", &EndpointSlice::default()),
                "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices",
            ),
            (
                "a part of an object",
                Write::replace_status(key(), &Pod::default()),
                "/api/v1/namespaces/shop/pods/web/status",
            ),
            (
                "no namespace",
                Write::merge(Collection::of::<Node>(), ObjectKey::new("", "n"), &json!({})),
                "/api/v1/nodes/n",
            ),
        ];
        for (name, write, want) in cases {
            assert_eq!(write.path(), want, "{name}");
        }
    }
}
