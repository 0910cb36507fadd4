//! What can be asked of objects: one method for each verb and subresource.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures::StreamExt;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use serde_json::{Value, json};

use crate::about::About;
use crate::api::{Api, User};
use crate::body::Document;
use crate::delete::{self, Deleted};
use crate::error::ApiError;
use crate::http::{Body, ok, respond, warn};
use crate::patch::{self, Patch};
use crate::registry::Resource;
use crate::request::{Query, Target};
use crate::scale::Places;
use crate::turns::Flow;
use crate::view::View;
use crate::write::{Owner, Part, Written};
use crate::{
    authorize, bind, body, certificates, cleanup, custom, evict, object, read, reviews, unenforced,
    unreadable, watch, write,
};

/// Containers that are added to a running pod to look at it.
const EPHEMERAL: &str = "ephemeralcontainers";

/// A request about objects, taken apart.
pub struct Call<'a> {
    /// The server.
    pub api: &'a Arc<Api>,
    /// Who asks.
    pub user: &'a User,
    /// For which kind.
    pub resource: &'a Resource,
    /// The path.
    pub target: Target<'a>,
    /// The query.
    pub query: Query,
    /// The form of the answer.
    pub view: View,
    /// The form of the body.
    pub media_type: &'a str,
    /// What the client calls itself: the owner of what it writes.
    pub manager: String,
    /// The body.
    pub body: Bytes,
    /// The work that the answer takes.
    pub flow: &'a Arc<Flow>,
}

impl Call<'_> {
    /// Answers the request by the function for its method and subresource.
    pub async fn answer(&self, method: &str) -> Result<Response<Body>, ApiError> {
        if self.resource.info().review {
            return self.review(method);
        }
        match method {
            "POST" => self.query.check_options("CreateOptions")?,
            "PUT" => self.query.check_options("UpdateOptions")?,
            "PATCH" => self.query.check_options("PatchOptions")?,
            "DELETE" => self.query.check_options("DeleteOptions")?,
            _ => {}
        }
        match (method, self.target.name, self.target.subresource) {
            ("GET", "", _) if self.query.flag("watch") => self.watch(),
            ("GET", "", _) => read::list(self).await,
            ("GET", _, "") if self.query.flag("watch") => self.watch(),
            ("GET", _, "" | "status" | "approval" | EPHEMERAL) => self.get(),
            ("GET", _, "scale") => self.get_scale(),
            ("POST", "", _) => self.create().await,
            ("POST", _, "binding") => self.bind().await,
            ("POST", _, "token") => self.token(),
            ("POST", _, "eviction") => self.evict().await,
            ("PUT", _, "") => self.replace(Part::Main).await,
            ("PUT", _, "status" | "approval") => self.replace(Part::Status).await,
            ("PUT", _, EPHEMERAL) => self.replace(Part::Field("ephemeralContainers")).await,
            ("PUT", _, "scale") => self.replace_scale().await,
            ("PUT", _, "finalize") => self.finalize().await,
            ("PATCH", _, "") => self.patch(Part::Main).await,
            ("PATCH", _, "status" | "approval") => self.patch(Part::Status).await,
            ("PATCH", _, EPHEMERAL) => self.patch(Part::Field("ephemeralContainers")).await,
            ("PATCH", _, "scale") => self.patch_scale().await,
            ("DELETE", "", _) => self.delete_many().await,
            ("DELETE", _, "") => self.delete().await,
            _ => Err(ApiError::method_not_allowed()),
        }
    }

    fn get(&self) -> Result<Response<Body>, ApiError> {
        let entry = read::entry(self.api, self.resource, &self.target)?;
        Ok(self.view.answer(self.resource, entry, self.flow))
    }

    fn watch(&self) -> Result<Response<Body>, ApiError> {
        let watch = read::watch(self)?;
        let about = About {
            group: self.target.group.to_owned(),
            version: self.target.version.to_owned(),
            resource: self.target.plural.to_owned(),
            ..About::default()
        };
        let watching = self.api.metrics.watching(&about);
        let frames = watch::lines(watch).map(move |line| {
            let _until_the_end = &watching;
            Ok(Frame::data(line))
        });
        let mut response = Response::new(BodyExt::boxed_unsync(StreamBody::new(frames)));
        let media_type = HeaderValue::from_static("application/json");
        response.headers_mut().insert(CONTENT_TYPE, media_type);
        Ok(response)
    }

    /// Who writes: what the client calls itself.
    fn context(&self) -> Result<write::Context<'_>, ApiError> {
        Ok(write::Context {
            api: self.api,
            resource: self.resource,
            namespace: self.target.namespace,
            dry_run: self.query.dry_run(),
            owner: Owner::Manager(&self.manager, self.target.subresource),
        })
    }

    /// Server-side apply: creates the object, or merges what the client wants into it.
    async fn apply(&self, part: Part) -> Result<Response<Body>, ApiError> {
        let Document { value: config, duplicates } = body::yaml(&self.body)?;
        let context = write::Context { owner: Owner::Settled, ..self.context()? };
        let warnings = Mutex::new(Vec::new());
        let apply = |live: Option<&Value>| {
            let mut object = patch::apply(
                self.api,
                self.resource,
                &self.target,
                &self.query,
                live,
                config.clone(),
            )?;
            let found = self.decode(&mut object, &duplicates)?;
            self.check_escalation(live, &object)?;
            match live {
                Some(old) => self.confine(old, &mut object)?,
                None => certificates::sign_in(self.resource, self.user, &mut object)?,
            }
            *warnings.lock().expect("nobody panics with the warnings") = found;
            Ok(object)
        };
        let change = |old: &Value| apply(Some(old));
        let written = match write::update(&context, self.target.name, part, change).await {
            Err(error) if error.reason == "NotFound" && part == Part::Main => {
                self.check_creation()?;
                write::create(&context, apply(None)?).await?
            }
            other => other?,
        };
        let warnings = warnings.into_inner().expect("nobody panics with the warnings");
        Ok(self.wrote(written, warnings))
    }

    fn decode(&self, object: &mut Value, duplicates: &[String]) -> Result<Vec<String>, ApiError> {
        body::decode_as(self.api, self.resource, &self.query, object, duplicates)
    }

    /// The object in the body, decoded as the kind of the path.
    fn object(&self) -> Result<(Value, Vec<String>), ApiError> {
        let Document { mut value, duplicates } = body::document(self.media_type, &self.body)?;
        let warnings = self.decode(&mut value, &duplicates)?;
        Ok((value, warnings))
    }

    /// The body as something that is only sent, and never stored.
    fn typed(&self, type_name: &str) -> Result<Value, ApiError> {
        body::typed(self.api, type_name, self.media_type, &self.body)
    }

    /// A question: answered, not stored.
    fn review(&self, method: &str) -> Result<Response<Body>, ApiError> {
        if method != "POST" {
            return Err(ApiError::method_not_allowed());
        }
        let (review, _) = self.object()?;
        let (plural, namespace) = (self.target.plural, self.target.namespace);
        let answer = reviews::answer(self.api, self.user, plural, namespace, review);
        Ok(respond(StatusCode::CREATED, answer.to_string()))
    }

    /// A token for a service account.
    fn token(&self) -> Result<Response<Body>, ApiError> {
        let account = object::value(&*read::entry(self.api, self.resource, &self.target)?);
        let request = self.typed("io.k8s.api.authentication.v1.TokenRequest")?;
        let issued = self.api.tokens.issue(self.api, &account, request)?;
        Ok(respond(StatusCode::CREATED, issued.to_string()))
    }

    fn check_escalation(&self, old: Option<&Value>, new: &Value) -> Result<(), ApiError> {
        let Self { api, user, resource, target, .. } = self;
        authorize::escalation(api, user, resource, target.namespace, old, new)
    }

    /// Leaves of a change what its subresource may change.
    fn confine(&self, old: &Value, new: &mut Value) -> Result<(), ApiError> {
        let Self { api, user, resource, target, .. } = self;
        certificates::confine(api, user, resource, target.subresource, old, new)
    }

    fn check_creation(&self) -> Result<(), ApiError> {
        authorize::creation(self.api, self.user, self.resource, &self.target)
    }

    async fn create(&self) -> Result<Response<Body>, ApiError> {
        let (mut object, warnings) = self.object()?;
        self.check_escalation(None, &object)?;
        certificates::sign_in(self.resource, self.user, &mut object)?;
        let written = write::create(&self.context()?, object).await?;
        Ok(self.wrote(written, warnings))
    }

    async fn replace(&self, part: Part) -> Result<Response<Body>, ApiError> {
        let (object, warnings) = self.object()?;
        let change = |old: &Value| {
            self.check_escalation(Some(old), &object)?;
            let mut new = object.clone();
            self.confine(old, &mut new)?;
            Ok(new)
        };
        let context = self.context()?;
        let written = write::update(&context, self.target.name, part, change).await;
        let written = match written {
            Err(error)
                if error.reason == "NotFound"
                    && self.resource.info().create_on_update
                    && part == Part::Main =>
            {
                self.check_creation()?;
                self.check_escalation(None, &object)?;
                write::create(&context, object).await?
            }
            other => other?,
        };
        Ok(self.wrote(written, warnings))
    }

    async fn patch(&self, part: Part) -> Result<Response<Body>, ApiError> {
        if self.media_type.starts_with("application/apply-patch+yaml") {
            return self.apply(part).await;
        }
        let (patch, duplicates) = Patch::read(self.media_type, &self.body)?;
        let warnings = Mutex::new(Vec::new());
        let change = |old: &Value| {
            let mut new = patch.apply(self.api, self.resource, old)?;
            let found = self.decode(&mut new, &duplicates)?;
            self.check_escalation(Some(old), &new)?;
            self.confine(old, &mut new)?;
            *warnings.lock().expect("nobody panics with the warnings") = found;
            Ok(new)
        };
        let written = write::update(&self.context()?, self.target.name, part, change).await?;
        let warnings = warnings.into_inner().expect("nobody panics with the warnings");
        Ok(self.wrote(written, warnings))
    }

    fn get_scale(&self) -> Result<Response<Body>, ApiError> {
        let entry = read::entry(self.api, self.resource, &self.target)?;
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
                Patch::Json(_) => patch.apply(self.api, self.resource, &wanted)?,
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
        let written = write::update(&self.context()?, self.target.name, Part::Main, change).await?;
        Ok(ok(self.places()?.scale_of(&object::value(&written.entry)).to_string()))
    }

    fn places(&self) -> Result<Places, ApiError> {
        self.resource.scale().ok_or_else(ApiError::no_such_path)
    }

    /// Puts a pod onto a node.
    async fn bind(&self) -> Result<Response<Body>, ApiError> {
        let binding = self.typed("io.k8s.api.core.v1.Binding")?;
        let now = write::seconds(jiff::Timestamp::now());
        let info = self.resource.info();
        let change = |pod: &Value| bind::bound(info, pod, &binding, &now);
        write::update(&self.context()?, self.target.name, Part::Whole, change).await?;
        Ok(created())
    }

    /// Deletes a pod, unless a budget forbids it.
    async fn evict(&self) -> Result<Response<Body>, ApiError> {
        let eviction = self.typed("io.k8s.api.policy.v1.Eviction")?;
        let pod = object::value(&*read::entry(self.api, self.resource, &self.target)?);
        let Target { namespace, name, .. } = self.target;
        let options = delete::Options::read(&eviction["deleteOptions"], self.query.dry_run())?;
        evict::spend(self.api, namespace, &pod, options.dry_run).await?;
        delete::delete(self.api, self.resource, namespace, name, &options).await?;
        Ok(created())
    }

    /// Releases a namespace that is empty.
    async fn finalize(&self) -> Result<Response<Body>, ApiError> {
        let (wanted, warnings) = self.object()?;
        let change = |old: &Value| {
            let mut new = old.clone();
            new["spec"] = wanted["spec"].clone();
            new["metadata"]["deletionGracePeriodSeconds"] = 0.into();
            // Who names a revision has looked at that one.
            new["metadata"]["resourceVersion"] = wanted["metadata"]["resourceVersion"].clone();
            Ok(new)
        };
        let written =
            write::update(&self.context()?, self.target.name, Part::Whole, change).await?;
        Ok(self.wrote(written, warnings))
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
        let Target { namespace, name, .. } = self.target;
        let key = self.resource.key(namespace, name);
        if unreadable::is_unreadable(self.api, &key).is_some() {
            authorize::unsafe_deletion(self.api, self.user, self.resource, &self.target)?;
        }
        let deleted = delete::delete(self.api, self.resource, namespace, name, &options).await?;
        self.clean_up(name, &options).await?;
        Ok(match deleted {
            Deleted::Going(entry) => ok(self.resource.served(&entry)),
            Deleted::Gone(object) if self.resource.info().delete_returns_object => {
                ok(object.to_string())
            }
            Deleted::Gone(object) => ok(delete::success(self.resource, &object).to_string()),
        })
    }

    /// The objects of a custom kind go with its definition.
    async fn clean_up(&self, name: &str, options: &delete::Options) -> Result<(), ApiError> {
        match self.resource.bucket == custom::DEFINITIONS && !options.dry_run {
            true => cleanup::objects(self.api, name).await,
            false => Ok(()),
        }
    }

    async fn delete_many(&self) -> Result<Response<Body>, ApiError> {
        let options = self.delete_options()?;
        let filter =
            crate::filter::Filter::new(self.resource, self.target.namespace, "", &self.query)?;
        unreadable::check(self.api, self.resource, filter.prefix())?;
        let found = self.api.store.list(&self.resource.bucket, filter.prefix(), None)?;
        for entry in &found.entries {
            if !filter.matches(&entry.key.path, &entry.value) {
                continue;
            }
            let (namespace, name) = entry.key.path.split_once('/').unwrap_or(("", &entry.key.path));
            match delete::delete(self.api, self.resource, namespace, name, &options).await {
                Err(error) if error.reason == "NotFound" => {}
                result => {
                    result?;
                    self.clean_up(name, &options).await?;
                }
            }
        }
        let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {},
            "status": "Success", "details": {"kind": self.resource.info().plural}});
        Ok(ok(status.to_string()))
    }

    fn wrote(&self, written: Written, warnings: Vec<String>) -> Response<Body> {
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
        let object = || self.resource.value(&written.entry);
        let unenforced = match self.target.subresource {
            "" => unenforced::warnings(self.api.neighbours(), self.resource.info(), object),
            _ => Vec::new(),
        };
        for warning in warnings.iter().chain(&written.warnings).chain(&unenforced) {
            warn(&mut response, warning);
        }
        response
    }
}

/// The answer to what happens to a pod rather than makes an object.
fn created() -> Response<Body> {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {},
        "status": "Success", "code": 201});
    respond(StatusCode::CREATED, status.to_string())
}
