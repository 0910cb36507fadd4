//! FlowSchemas and PriorityLevelConfigurations: what every cluster has of them is kept as it is meant to be,
//! and a schema says whether its level exists, as soon as either is written.

use futures::FutureExt;
use futures::future::try_join_all;
use jiff::Timestamp;
use roadstead_api::kinds::flow_control::GROUP;
use roadstead_api::kinds::flow_control::bootstrap::{self, LEVELS, SCHEMAS, SystemObject};
use roadstead_plan::flow_control::maintain;
use roadstead_schema::json::Pointer;
use roadstead_store::transaction::Transaction;
use serde_json::Value;
use tracing::warn;

use crate::api::Api;
use crate::error::ApiError;
use crate::kinds::{Afterwards, Strategy};
use crate::objects::delete::{self, Deletion};
use crate::objects::write::{self, Context, REALLY, Writable, seconds};
use crate::reading::object;
use crate::registry::Resource;

/// By which the server owns what it keeps, and what it says about schemas.
const PRODUCER: &str = "api-priority-and-fairness-config-producer-v1";
const CONSUMER: &str = "api-priority-and-fairness-config-consumer-v1";

pub(super) struct FlowSchemas;

impl Strategy for FlowSchemas {
    fn complete(
        &self,
        context: &Context<'_>,
        _old: Option<&Value>,
        new: &mut Value,
        transaction: Transaction,
    ) -> Result<Transaction, ApiError> {
        let level = new.text("/spec/priorityLevelConfiguration/name");
        let exists = exists(context.api, level);
        if let Some(status) = maintain::status(new, exists, &seconds(Timestamp::now())) {
            new["status"] = status;
        }
        Ok(transaction)
    }
}

pub(super) struct PriorityLevels;

impl Strategy for PriorityLevels {
    fn committed<'a>(&self, api: &'a Api) -> Option<Afterwards<'a>> {
        Some(say_all(api).map(Ok).boxed())
    }

    fn removed<'a>(&self, api: &'a Api, _resource: &'a Resource) -> Option<Afterwards<'a>> {
        Some(say_all(api).map(Ok).boxed())
    }
}

/// Whether there is a level of this name; the mandatory ones are there in any case.
fn exists(api: &Api, level: &str) -> bool {
    let registry = api.registry();
    bootstrap::mandatory_level(level).is_some()
        || registry
            .find(GROUP, "v1", LEVELS)
            .is_some_and(|kind| api.storage.store.get(&kind.key("", level)).is_some())
}

/// Makes what every cluster has, brings it up to date, and removes what it has no longer.
pub(crate) async fn ensure(api: &Api) -> Result<(), ApiError> {
    let system = bootstrap::objects();
    // A schema says whether its level exists.
    for plural in [LEVELS, SCHEMAS] {
        let own = system.iter().filter(|one| one.plural == plural);
        try_join_all(own.map(|one| ensure_one(api, one))).await?;
    }
    for plural in [SCHEMAS, LEVELS] {
        remove_left_over(api, &system, plural).await?;
    }
    say_all(api).await;
    Ok(())
}

async fn ensure_one(api: &Api, system: &SystemObject) -> Result<(), ApiError> {
    let registry = api.registry();
    let resource = registry.find(GROUP, "v1", system.plural).ok_or_else(ApiError::no_such_path)?;
    let context = Context::own(api, resource, "", PRODUCER);
    let name = system.object.text("/metadata/name");
    let Some(current) = api.storage.object(resource, "", name) else {
        let mut object = system.object.clone();
        object["apiVersion"] = resource.info().api_version().into();
        object["kind"] = resource.info().kind.into();
        return match write::create(&context, object).await {
            Err(error) if error.reason == "AlreadyExists" => Ok(()),
            result => result.map(drop),
        };
    };
    if maintain::revised(system, &current).is_none() {
        return Ok(());
    }
    let change =
        |now: &Value| Ok(maintain::revised(system, now).unwrap_or_else(|| now.clone()).into());
    if let Err(error) = write::update(&context, name, Writable::Main, change).await {
        warn!(object = name, error = %error.message, "cannot bring a system object up to date");
    }
    Ok(())
}

async fn remove_left_over(
    api: &Api,
    system: &[SystemObject],
    plural: &str,
) -> Result<(), ApiError> {
    let registry = api.registry();
    let resource = registry.find(GROUP, "v1", plural).ok_or_else(ApiError::no_such_path)?;
    for entry in api.storage.store.list(&resource.bucket, "", None)?.entries {
        let object = object::value(&entry);
        if !maintain::is_left_over(system, plural, &object) {
            continue;
        }
        let name = object.text("/metadata/name");
        let options = delete::Options::read(&Value::Null, REALLY)?;
        if let Err(error) = (Deletion { api, resource, namespace: "", name }).run(&options).await {
            warn!(object = name, error = %error.message, "cannot remove what nobody needs");
        }
    }
    Ok(())
}

/// Says in every schema whether its level exists.
async fn say_all(api: &Api) {
    if let Err(error) = try_say_all(api).await {
        warn!(error = %error.message, "cannot say in FlowSchemas whether their levels exist");
    }
}

async fn try_say_all(api: &Api) -> Result<(), ApiError> {
    let registry = api.registry();
    let resource = registry.find(GROUP, "v1", SCHEMAS).ok_or_else(ApiError::no_such_path)?;
    let context = Context { subresource: "status", ..Context::own(api, resource, "", CONSUMER) };
    for entry in api.storage.store.list(&resource.bucket, "", None)?.entries {
        let status_of = |schema: &Value| {
            let level = schema.text("/spec/priorityLevelConfiguration/name");
            maintain::status(schema, exists(api, level), &seconds(Timestamp::now()))
        };
        let schema = object::value(&entry);
        if status_of(&schema).is_none() {
            continue;
        }
        let change = |now: &Value| {
            let mut new = now.clone();
            if let Some(status) = status_of(now) {
                new["status"] = status;
            }
            Ok(new.into())
        };
        let name = schema.text("/metadata/name");
        match write::update(&context, name, Writable::Status, change).await {
            Err(error) if error.reason != "NotFound" => return Err(error),
            _ => {}
        }
    }
    Ok(())
}
