//! `metrics.k8s.io`: what nodes and pods use, for `kubectl top`. Nothing is stored: whoever asks is answered
//! by what the agents of the nodes have measured, in the form of metrics-server.

use std::collections::BTreeMap;
use std::sync::Arc;

use http::Response;
use http_body_util::{BodyExt, Limited};
use jiff::{SignedDuration, Timestamp};
use roadstead_api::selector::{FieldCondition, Selector};
use roadstead_schema::json::Pointer;
use serde_json::{Value, json};
use tracing::warn;

use crate::api::Api;
use crate::error::ApiError;
use crate::kinds::custom_resource::{self, Custom};
use crate::kinds::{Answer, Strategy};
use crate::node_agents;
use crate::reading::object;
use crate::reading::view::View;
use crate::request::handler::Handler;
use crate::transport::response::{Body, ok};

/// Measurements of a node are no longer than this.
const LONGEST: usize = 64 << 20;

/// Where the store would keep them.
pub(super) const NODES: &str = "nodes.metrics.k8s.io";
pub(super) const PODS: &str = "pods.metrics.k8s.io";

/// Kinds that are measured when somebody asks.
pub(super) struct Measured;

impl Strategy for Measured {
    fn verbs(&self) -> Option<&'static [&'static str]> {
        Some(&["get", "list"])
    }

    fn answer<'a>(&self, handler: &'a Handler<'a>, method: &str) -> Option<Answer<'a>> {
        let reads = method == "GET" && !handler.query.flag("watch");
        Some(match (reads, handler.resource.info().namespaced) {
            (false, _) => Box::pin(async { Err(ApiError::method_not_allowed()) }),
            (true, true) => Box::pin(pods(handler)),
            (true, false) => Box::pin(nodes(handler)),
        })
    }
}

/// The kinds, described in the way of kinds that users define.
pub(crate) fn kinds() -> Vec<Arc<Custom>> {
    let usage = json!({"type": "object", "additionalProperties": {"type": "string"}});
    let common = json!({"apiVersion": {"type": "string"}, "kind": {"type": "string"},
        "metadata": {"type": "object"}, "timestamp": {"type": "string", "format": "date-time"},
        "window": {"type": "string"}});
    let container = json!({"type": "object",
        "properties": {"name": {"type": "string"}, "usage": usage}});
    let define = |kind: &str, plural: &str, scope: &str, field: &str, schema: Value| {
        let mut properties = common.clone();
        properties[field] = schema;
        let definition = json!({"spec": {"group": "metrics.k8s.io", "scope": scope,
            "names": {"kind": kind, "plural": plural, "singular": ""},
            "versions": [{"name": "v1beta1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": properties}}}]}});
        custom_resource::read(definition.to_string().as_bytes())
    };
    let containers = json!({"type": "array", "items": container});
    [
        define("NodeMetrics", "nodes", "Cluster", "usage", usage.clone()),
        define("PodMetrics", "pods", "Namespaced", "containers", containers),
    ]
    .concat()
}

/// What the agents of these nodes have measured; of those that do not answer, nothing.
async fn summaries(api: &Api, nodes: impl Iterator<Item = String>) -> BTreeMap<String, Value> {
    let mut found = BTreeMap::new();
    for node in nodes {
        if found.contains_key(&node) {
            continue;
        }
        let summary = match summary(api, &node).await {
            Ok(summary) => summary,
            Err(error) => {
                warn!(node, error, "cannot ask the agent of a node what it has measured");
                Value::Null
            }
        };
        found.insert(node, summary);
    }
    found
}

async fn summary(api: &Api, node: &str) -> Result<Value, String> {
    let agent = api.agent(node).await?;
    let response = node_agents::get(agent, "/stats/summary").await;
    let response = response.map_err(|error| error.to_string())?;
    let status = response.status();
    let body = Limited::new(response.into_body(), LONGEST).collect().await;
    let body = body.map_err(|error| error.to_string())?.to_bytes();
    match status.is_success() {
        true => serde_json::from_slice(&body).map_err(|error| error.to_string()),
        false => Err(String::from_utf8_lossy(&body).into_owned()),
    }
}

async fn nodes(handler: &Handler<'_>) -> Result<Response<Body>, ApiError> {
    let wanted = Wanted::of(handler, "nodes")?;
    let names = wanted.objects.iter().map(|node| node.text("/metadata/name").to_owned());
    let summaries = summaries(handler.api, names).await;
    let items = wanted.objects.iter().filter_map(|node| {
        let measured = &summaries.get(node.text("/metadata/name"))?["node"];
        let sample = Sample::of(measured)?;
        let mut item = wanted.item(node, sample.at, sample.window);
        item["usage"] = sample.usage();
        Some(item)
    });
    wanted.answer(handler, items.collect())
}

async fn pods(handler: &Handler<'_>) -> Result<Response<Body>, ApiError> {
    let wanted = Wanted::of(handler, "pods")?;
    let names = wanted.objects.iter().map(|pod| pod.text("/spec/nodeName").to_owned());
    let summaries = summaries(handler.api, names.filter(|name| !name.is_empty())).await;
    // Those that a node runs by itself have another uid there than here.
    let by_name: BTreeMap<_, _> = summaries
        .values()
        .flat_map(|summary| summary.list("/pods"))
        .map(|pod| ((pod.text("/podRef/namespace"), pod.text("/podRef/name")), pod))
        .collect();
    let items = wanted.objects.iter().filter_map(|pod| {
        let measured =
            by_name.get(&(pod.text("/metadata/namespace"), pod.text("/metadata/name")))?;
        let containers = measured.list("/containers").iter();
        let samples: Option<Vec<_>> =
            containers.map(|one| Some((one.text("/name"), Sample::of(one)?))).collect();
        // A pod of which one container has not been watched for long enough is not there yet.
        let samples = samples.filter(|samples| !samples.is_empty())?;
        let (at, window) = samples.iter().map(|(_, sample)| (sample.at, sample.window)).max()?;
        let mut item = wanted.item(pod, at, window);
        let containers =
            samples.iter().map(|(name, sample)| json!({"name": name, "usage": sample.usage()}));
        item["containers"] = containers.collect::<Vec<_>>().into();
        Some(item)
    });
    wanted.answer(handler, items.collect())
}

/// What was measured of a container or a node.
struct Sample {
    at: Timestamp,
    window: SignedDuration,
    nanocores: u64,
    working_set: u64,
}

impl Sample {
    /// `None` if it was not watched for long enough.
    fn of(measured: &Value) -> Option<Self> {
        let window = measured["cpu"]["windowNanoSeconds"].as_i64()?;
        Some(Self {
            at: measured.text("/cpu/time").parse().ok()?,
            window: SignedDuration::from_nanos(window),
            nanocores: measured["cpu"]["usageNanoCores"].as_u64()?,
            working_set: measured["memory"]["workingSetBytes"].as_u64()?,
        })
    }

    fn usage(&self) -> Value {
        let memory = format!("{}Ki", self.working_set.div_ceil(1024));
        json!({"cpu": format!("{}n", self.nanocores), "memory": memory})
    }
}

/// The objects that a request asks about.
struct Wanted {
    objects: Vec<Value>,
    kind: &'static str,
}

impl Wanted {
    fn of(handler: &Handler<'_>, plural: &str) -> Result<Self, ApiError> {
        let (path, registry) = (handler.path, handler.api.registry());
        let resource = registry.core(plural);
        let prefix = match &*path.name {
            "" => resource.prefix(&path.namespace),
            name => resource.key(&path.namespace, name).path.to_string(),
        };
        let labels = handler.query.labels()?;
        let fields = handler.query.fields()?;
        let found = handler.api.storage.store.list(&resource.bucket, &prefix, None)?;
        let objects = found.entries.iter().map(|entry| object::value(entry));
        let objects = objects.filter(|object| {
            (path.name.is_empty() || object.text("/metadata/name") == path.name)
                && has_labels(object, &labels)
                && fields.iter().all(|field| has_field(object, field))
        });
        Ok(Self { objects: objects.collect(), kind: handler.resource.info().kind })
    }

    fn item(&self, object: &Value, at: Timestamp, window: SignedDuration) -> Value {
        let metadata = &object["metadata"];
        let second = Timestamp::from_second(at.as_second()).unwrap_or(at);
        let mut own = json!({"name": metadata["name"], "creationTimestamp": second});
        for field in ["namespace", "labels"] {
            if let Some(value) = metadata.get(field) {
                own[field] = value.clone();
            }
        }
        let window = format!("{}s", window.as_millis() as f64 / 1e3);
        json!({"kind": self.kind, "apiVersion": "metrics.k8s.io/v1beta1", "metadata": own,
            "timestamp": second, "window": window})
    }

    fn answer(
        &self,
        handler: &Handler<'_>,
        mut items: Vec<Value>,
    ) -> Result<Response<Body>, ApiError> {
        let path = handler.path;
        let single = !path.name.is_empty();
        if single && items.is_empty() {
            return Err(missing(self.kind, path.namespace.as_ref(), path.name.as_ref()));
        }
        let list = json!({"kind": format!("{}List", self.kind),
            "apiVersion": "metrics.k8s.io/v1beta1", "metadata": {}});
        Ok(ok(match handler.view {
            View::Table(_) => table(&items).to_string(),
            _ if single => items.swap_remove(0).to_string(),
            _ => {
                let mut list = list;
                list["items"] = items.into();
                list.to_string()
            }
        }))
    }
}

/// In the words of metrics-server, which has other names for the kinds than their paths.
fn missing(kind: &str, namespace: &str, name: &str) -> ApiError {
    let name = match namespace {
        "" => name.to_owned(),
        namespace => format!("{namespace}/{name}"),
    };
    ApiError::not_found_by_name(&kind.to_lowercase(), "metrics.k8s.io", &name)
}

fn has_labels(object: &Value, labels: &Selector) -> bool {
    labels.matches(|label| object["metadata"]["labels"].get(label)?.as_str())
}

fn has_field(object: &Value, field: &FieldCondition) -> bool {
    let found = match field.label.as_str() {
        "metadata.name" => object.text("/metadata/name"),
        "metadata.namespace" => object.text("/metadata/namespace"),
        _ => "",
    };
    (found == field.value) == field.equal
}

/// Rows as metrics-server prints them: a pod's containers added up.
fn table(items: &[Value]) -> Value {
    let number = |text: &str, unit: &str| text.trim_end_matches(unit).parse::<u64>().unwrap_or(0);
    let rows = items.iter().map(|item| {
        let own = item.get("usage").into_iter();
        let usages = own.chain(item.list("/containers").iter().map(|one| &one["usage"]));
        let (cpu, memory) = usages.fold((0, 0), |(cpu, memory), usage| {
            (cpu + number(usage.text("/cpu"), "n"), memory + number(usage.text("/memory"), "Ki"))
        });
        json!({"object": {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
                "metadata": item["metadata"]},
            "cells": [item["metadata"]["name"], format!("{cpu}n"), format!("{memory}Ki"),
                item["window"]]})
    });
    let column = |name: &str, format: &str| json!({"name": name, "type": "string", "format": format, "description": "", "priority": 0});
    json!({"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": {},
        "columnDefinitions": [column("Name", "name"), column("cpu", ""), column("memory", ""),
            column("Window", "")],
        "rows": rows.collect::<Vec<_>>()})
}
