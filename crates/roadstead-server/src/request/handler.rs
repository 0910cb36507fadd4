//! What can be asked of objects: one method for each verb and subresource.

use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Method, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use serde_json::{Value, json};

use crate::api::Api;
use crate::error::ApiError;
use crate::identity::audit::Annotations;
use crate::identity::authorize::Authorizer;
use crate::identity::user::User;
use crate::kinds::{Access, Subresource, admission, unenforced};
use crate::objects::delete::{self, Deleted, Deletion};
use crate::objects::patch::{self, Patch};
use crate::objects::scale::ReplicaPaths;
use crate::objects::write::{self, Changed, Owner, Writable, Written};
use crate::reading::filter::Filter;
use crate::reading::view::View;
use crate::reading::{object, read, watch};
use crate::registry::Resource;
use crate::request::body::{self, Document};
use crate::request::path::ResourcePath;
use crate::request::query::Query;
use crate::transport::farewell::Endless;
use crate::transport::response::{Body, ok, respond, warn};
use crate::transport::rotation::Flow;

/// A request about objects that may be answered, with its body.
pub(crate) struct Handler<'a> {
    pub(crate) api: &'a Arc<Api>,
    pub(crate) user: &'a User,
    pub(crate) resource: &'a Arc<Resource>,
    pub(crate) path: &'a ResourcePath,
    pub(crate) query: &'a Query,
    /// The form of the answer.
    pub(crate) view: View,
    /// The form of the body.
    pub(crate) media_type: &'a str,
    /// What the client calls itself: the owner of what it writes.
    pub(crate) manager: String,
    pub(crate) body: Bytes,
    /// The work that the answer takes.
    pub(crate) flow: &'a Arc<Flow>,
}

impl Handler<'_> {
    /// Answers the request by the function for its method and subresource.
    pub(crate) async fn answer(&self, method: &Method) -> Result<Response<Body>, ApiError> {
        let method = method.as_str();
        if self.resource.info().review {
            return self.review(method);
        }
        admission::check(self, method)?;
        if let Some(answer) = self.resource.strategy.answer(self, method) {
            return answer.await;
        }
        match method {
            "POST" => self.query.check_options("CreateOptions")?,
            "PUT" => self.query.check_options("UpdateOptions")?,
            "PATCH" => self.query.check_options("PatchOptions")?,
            "DELETE" => self.query.check_options("DeleteOptions")?,
            _ => {}
        }
        match self.resource.subresource(&self.path.subresource) {
            None => self.answer_main(method).await,
            Some(subresource) => self.answer_below(subresource, method).await,
        }
    }

    /// Answers a request about the objects themselves.
    async fn answer_main(&self, method: &str) -> Result<Response<Body>, ApiError> {
        match (method, &*self.path.name) {
            ("GET", _) if self.query.flag("watch") => self.watch().await,
            ("GET", "") => read::list(self).await,
            ("GET", _) => self.get().await,
            ("POST", "") => self.create().await,
            ("PUT", name) if !name.is_empty() => self.replace(Writable::Main).await,
            ("PATCH", name) if !name.is_empty() => self.patch(Writable::Main).await,
            ("DELETE", "") => self.delete_many().await,
            ("DELETE", _) => self.delete().await,
            _ => Err(ApiError::method_not_allowed()),
        }
    }

    /// Answers a request about something below an object.
    async fn answer_below(
        &self,
        subresource: &Subresource,
        method: &str,
    ) -> Result<Response<Body>, ApiError> {
        let verb = match method {
            "GET" => "get",
            "POST" => "create",
            "PUT" => "update",
            "PATCH" => "patch",
            _ => "",
        };
        match (subresource.access, verb) {
            _ if !subresource.verbs.contains(&verb) => Err(ApiError::method_not_allowed()),
            (Access::Part(_), "get") => self.get().await,
            (Access::Part(part), "update") => self.replace(part).await,
            (Access::Part(part), _) => self.patch(part).await,
            (Access::Scale, "get") => {
                read::be_fresh(&self.api.storage.store, self.query).await?;
                self.get_scale()
            }
            (Access::Scale, "update") => self.replace_scale().await,
            (Access::Scale, _) => self.patch_scale().await,
            (Access::Call(call), _) => call(self).await,
            (Access::Connect(_), _) => Err(ApiError::method_not_allowed()),
        }
    }

    async fn get(&self) -> Result<Response<Body>, ApiError> {
        read::be_fresh(&self.api.storage.store, self.query).await?;
        let entry = read::entry(&self.api.storage, self.resource, self.path)?;
        Ok(self.view.answer(self.resource, entry, self.flow))
    }

    async fn watch(&self) -> Result<Response<Body>, ApiError> {
        read::be_fresh(&self.api.storage.store, self.query).await?;
        let watch = read::watch(self)?;
        let watching = self.api.metrics.watching(self.path);
        let frames = watch::lines(watch).map(move |line| {
            let _until_the_end = &watching;
            Ok(Frame::data(line))
        });
        let mut response = Response::new(BodyExt::boxed_unsync(StreamBody::new(frames)));
        let media_type = HeaderValue::from_static("application/json");
        response.headers_mut().insert(CONTENT_TYPE, media_type);
        response.extensions_mut().insert(Endless);
        Ok(response)
    }

    /// The write that the client asks for.
    pub(crate) fn context(&self) -> write::Context<'_> {
        write::Context {
            api: self.api,
            resource: self.resource,
            namespace: &self.path.namespace,
            subresource: &self.path.subresource,
            user: Some(self.user),
            dry_run: self.query.dry_run(),
            owner: Owner::Manager(&self.manager),
        }
    }

    /// Server-side apply: creates the object, or merges what the client wants into it.
    async fn apply(&self, part: Writable) -> Result<Response<Body>, ApiError> {
        let Document { value: config, duplicates } = body::yaml(&self.body)?;
        let context = write::Context { owner: Owner::Applied, ..self.context() };
        let apply = |live: Option<&Value>| {
            let mut object = patch::apply(self, part, live, config.clone())?;
            let warnings = self.decode(&mut object, &duplicates)?;
            Ok(Changed { object, warnings })
        };
        let change = |old: &Value| apply(Some(old));
        let written = match write::update(&context, &self.path.name, part, change).await {
            Err(error) if error.reason == "NotFound" && part == Writable::Main => {
                self.check_creation()?;
                write::create(&context, apply(None)?).await?
            }
            other => other?,
        };
        Ok(self.wrote(written))
    }

    fn decode(&self, object: &mut Value, duplicates: &[String]) -> Result<Vec<String>, ApiError> {
        body::decode_as(self, object, duplicates)
    }

    /// The object in the body, decoded as the kind of the path.
    pub(crate) fn object(&self) -> Result<Changed, ApiError> {
        let Document { value: mut object, duplicates } =
            body::document(self.media_type, &self.body)?;
        let warnings = self.decode(&mut object, &duplicates)?;
        Ok(Changed { object, warnings })
    }

    /// The body as something that is only sent, and never stored.
    pub(crate) fn typed(&self, type_name: &str) -> Result<Value, ApiError> {
        body::typed(type_name, self.media_type, &self.body)
    }

    /// A question: answered, not stored.
    fn review(&self, method: &str) -> Result<Response<Body>, ApiError> {
        if method != "POST" {
            return Err(ApiError::method_not_allowed());
        }
        let mut review = self.object()?.object;
        review["status"] = self.resource.strategy.review(self, &review);
        Ok(respond(StatusCode::CREATED, review.to_string()))
    }

    fn check_creation(&self) -> Result<(), ApiError> {
        Authorizer::new(&self.api.identity.rbac, self.user)
            .creation(self.path, self.resource.info())
    }

    async fn create(&self) -> Result<Response<Body>, ApiError> {
        Ok(self.wrote(write::create(&self.context(), self.object()?).await?))
    }

    async fn replace(&self, part: Writable) -> Result<Response<Body>, ApiError> {
        // It is read again only if somebody else writes meanwhile.
        let mut sent = Some(self.object()?);
        let change = |_: &Value| sent.take().map_or_else(|| self.object(), Ok);
        let written = write::update(&self.context(), &self.path.name, part, change).await;
        let creates = self.resource.info().create_on_update && part == Writable::Main;
        match written {
            Err(error) if error.reason == "NotFound" && creates => {
                self.check_creation()?;
                self.create().await
            }
            written => Ok(self.wrote(written?)),
        }
    }

    async fn patch(&self, part: Writable) -> Result<Response<Body>, ApiError> {
        if self.media_type.starts_with("application/apply-patch+yaml") {
            return self.apply(part).await;
        }
        let (patch, duplicates) = Patch::read(self.media_type, &self.body)?;
        let change = |old: &Value| {
            let mut object = patch.apply(self.resource, old)?;
            let warnings = self.decode(&mut object, &duplicates)?;
            Ok(Changed { object, warnings })
        };
        let written = write::update(&self.context(), &self.path.name, part, change).await?;
        Ok(self.wrote(written))
    }

    fn get_scale(&self) -> Result<Response<Body>, ApiError> {
        let entry = read::entry(&self.api.storage, self.resource, self.path)?;
        Ok(ok(self.places()?.scale_of(&object::value(&entry)).to_string()))
    }

    async fn replace_scale(&self) -> Result<Response<Body>, ApiError> {
        let wanted = self.typed("io.k8s.api.autoscaling.v1.Scale")?;
        let places = self.places()?;
        self.scale(|old| places.scaled(old, &wanted)).await
    }

    async fn patch_scale(&self) -> Result<Response<Body>, ApiError> {
        let (patch, _) = Patch::read(self.media_type, &self.body)?;
        let places = self.places()?;
        self.scale(|old| {
            let mut wanted = places.scale_of(old);
            wanted["metadata"].as_object_mut().map(|metadata| metadata.remove("resourceVersion"));
            let wanted = match &patch {
                Patch::Json(_) => patch.apply(self.resource, &wanted)?,
                Patch::Merge(patch) | Patch::Strategic(patch) => {
                    roadstead_patch::merge(&mut wanted, patch)
                        .map_err(|error| ApiError::bad_request(error.to_string()))?;
                    wanted
                }
            };
            places.scaled(old, &wanted)
        })
        .await
    }

    async fn scale(
        &self,
        change: impl Fn(&Value) -> Result<Value, ApiError>,
    ) -> Result<Response<Body>, ApiError> {
        let change = |old: &Value| change(old).map(Changed::from);
        let written =
            write::update(&self.context(), &self.path.name, Writable::Main, change).await?;
        Ok(ok(self.places()?.scale_of(&object::value(&written.entry)).to_string()))
    }

    fn places(&self) -> Result<ReplicaPaths, ApiError> {
        self.resource.scale().ok_or_else(ApiError::no_such_path)
    }

    fn delete_options(&self) -> Result<delete::Options, ApiError> {
        let mut options = match self.body.is_empty() {
            true => Value::Null,
            false => self.typed("io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions")?,
        };
        if !self.query.get("gracePeriodSeconds").is_empty() {
            options["gracePeriodSeconds"] = self.query.number("gracePeriodSeconds")?.into();
        }
        if !self.query.get("propagationPolicy").is_empty() {
            options["propagationPolicy"] = self.query.get("propagationPolicy").into();
        }
        delete::Options::read(&options, self.query.dry_run())
    }

    async fn delete(&self) -> Result<Response<Body>, ApiError> {
        let options = self.delete_options()?;
        let ResourcePath { namespace, name, .. } = self.path;
        let key = self.resource.key(namespace, name);
        if self.api.storage.is_unreadable(&key).is_some() {
            let authorizer = Authorizer::new(&self.api.identity.rbac, self.user);
            authorizer.unsafe_deletion(self.path, self.resource.info())?;
        }
        Ok(match self.deletion(namespace, name).run(&options).await? {
            Deleted::Going(entry) => ok(self.resource.served(&entry)),
            Deleted::Gone(object) if self.resource.info().delete_returns_object => {
                ok(object.to_string())
            }
            Deleted::Gone(object) => ok(delete::success(self.resource, &object).to_string()),
        })
    }

    fn deletion<'a>(&'a self, namespace: &'a str, name: &'a str) -> Deletion<'a> {
        Deletion { api: self.api, resource: self.resource, namespace, name }
    }

    async fn delete_many(&self) -> Result<Response<Body>, ApiError> {
        let options = self.delete_options()?;
        let filter = Filter::new(self.resource, &self.path.namespace, "", self.query)?;
        self.api.storage.store.fresh().await?;
        self.api.storage.check_readable(self.resource, filter.prefix())?;
        let found = self.api.storage.store.list(&self.resource.bucket, filter.prefix(), None)?;
        for entry in &found.entries {
            if !filter.matches(&entry.key.path, &entry.value) {
                continue;
            }
            let (namespace, name) = entry.key.path.split_once('/').unwrap_or(("", &entry.key.path));
            match self.deletion(namespace, name).run(&options).await {
                Err(error) if error.reason != "NotFound" => return Err(error),
                _ => {}
            }
        }
        let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {},
            "status": "Success", "details": {"kind": self.resource.info().plural}});
        Ok(ok(status.to_string()))
    }

    pub(crate) fn wrote(&self, written: Written) -> Response<Body> {
        let code = if written.created { StatusCode::CREATED } else { StatusCode::OK };
        let body = match (self.view, written.created && self.query.has("dryRun")) {
            // What was not written has no version.
            (View::Object, true) => {
                let mut object = self.resource.value(&written.entry);
                object["metadata"].as_object_mut().map(|m| m.remove("resourceVersion"));
                object.to_string().into()
            }
            (view, _) => view.one(self.resource, &written.entry, jiff::Timestamp::now()),
        };
        let mut response = respond(code, body);
        if !written.audit.is_empty() {
            response.extensions_mut().insert(Annotations(written.audit.clone()));
        }
        let object = || self.resource.value(&written.entry);
        let unenforced = match &*self.path.subresource {
            "" => unenforced::warnings(self.api.neighbours(), self.resource.info(), object),
            _ => Vec::new(),
        };
        for warning in written.warnings.iter().chain(&unenforced) {
            warn(&mut response, warning);
        }
        response
    }
}
