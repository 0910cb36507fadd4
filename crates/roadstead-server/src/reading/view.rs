//! How the client wants to see objects: whole, as table rows, or only their metadata.

use std::sync::Arc;

use bytes::Bytes;
use http::Response;
use jiff::Timestamp;
use roadstead_api::kind::Kind;
use roadstead_store::entry::{Entry, Revision};
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::reading::listing::{Listing, Ready};
use crate::reading::object;
use crate::registry::Resource;
use crate::transport::response::{Body, ok};
use crate::transport::rotation::{Flow, TURN};

/// One of the forms in which we can write objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum View {
    /// The object itself.
    Object,
    /// Rows and columns, as `kubectl get` asks for.
    Table(Include),
    /// `PartialObjectMetadata`.
    Metadata,
}

/// What a table row carries besides its cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Include {
    /// Nothing.
    None,
    /// The metadata of the object.
    Metadata,
    /// The whole object.
    Object,
}

impl View {
    /// Chooses the first form of the `Accept` header that we can write.
    pub(crate) fn choose(accept: &str, include_object: &str) -> Result<Self, ApiError> {
        let include = match include_object {
            "None" => Include::None,
            "Object" => Include::Object,
            _ => Include::Metadata,
        };
        if accept.trim().is_empty() {
            return Ok(Self::Object);
        }
        let choices = accept.split(',').filter_map(|choice| {
            let mut parts = choice.split(';').map(str::trim);
            let media = parts.next().unwrap_or("");
            let shape = parts.find_map(|part| part.strip_prefix("as="));
            match (media, shape) {
                ("application/json", Some("Table")) => Some(Self::Table(include)),
                (
                    "application/json",
                    Some("PartialObjectMetadata" | "PartialObjectMetadataList"),
                ) => Some(Self::Metadata),
                ("application/json" | "application/yaml" | "application/*" | "*/*", None) => {
                    Some(Self::Object)
                }
                _ => None,
            }
        });
        choices.into_iter().next().ok_or_else(ApiError::not_acceptable)
    }

    /// The object itself, if the client takes it: the answer to a question has no other form.
    pub(crate) fn plain(accept: &str) -> Result<Self, ApiError> {
        let plain: Vec<_> = accept.split(',').filter(|choice| !choice.contains("as=")).collect();
        match plain.is_empty() {
            true => Err(ApiError::not_acceptable()),
            false => Self::choose(&plain.join(","), ""),
        }
    }

    /// One object as the answer to a request about it.
    pub(crate) fn one(self, resource: &Resource, entry: &Entry, now: Timestamp) -> Bytes {
        match self {
            Self::Object => resource.served(entry),
            Self::Metadata => metadata(&resource.value(entry)).to_string().into(),
            Self::Table(include) => {
                let version = entry.revision;
                let rows = vec![row(resource, entry, include, now)];
                table(&*resource.kind, rows, json!({"resourceVersion": version.to_string()})).into()
            }
        }
    }

    /// One object as the answer to whoever wants to read it.
    pub(crate) fn answer(
        self,
        resource: &Arc<Resource>,
        entry: Arc<Entry>,
        flow: &Arc<Flow>,
    ) -> Response<Body> {
        let now = Timestamp::now();
        if entry.value.len() <= TURN {
            return ok(self.one(resource, &entry, now));
        }
        let (head, tail) = match self {
            Self::Object | Self::Metadata => (String::new(), ""),
            Self::Table(_) => {
                let metadata = json!({"resourceVersion": entry.revision.to_string()});
                (table_head(&*resource.kind, &metadata), "]}")
            }
        };
        let (resource, entries) = (resource.clone(), vec![entry].into_iter());
        Listing { resource, view: self, now, head, entries, tail }.answer(flow)
    }

    /// Several objects as the answer to a list.
    pub(crate) fn many(
        self,
        resource: &Arc<Resource>,
        list: Listed,
        flow: &Arc<Flow>,
    ) -> Response<Body> {
        let info = resource.info();
        let metadata = list.metadata();
        let head = match self {
            Self::Table(_) => table_head(&*resource.kind, &metadata),
            Self::Metadata => format!(
                "{{\"kind\":\"PartialObjectMetadataList\",\"apiVersion\":\"meta.k8s.io/v1\",\
                 \"metadata\":{metadata},\"items\":["
            ),
            Self::Object => format!(
                "{{\"kind\":\"{}List\",\"apiVersion\":\"{}\",\"metadata\":{metadata},\"items\":[",
                info.kind,
                info.api_version(),
            ),
        };
        let (resource, now) = (resource.clone(), Timestamp::now());
        let entries = list.entries.into_iter();
        Listing { resource, view: self, now, head, entries, tail: "]}" }.answer(flow)
    }

    /// Whether an object has to be read whole to be written in this form.
    pub(crate) fn is_hard(self, resource: &Resource, entry: &Entry) -> bool {
        matches!(self, Self::Table(_)) || resource.converts(&entry.value)
    }

    /// Writes one object of a list.
    pub(crate) fn write(self, resource: &Resource, entry: &Entry, now: Timestamp, out: &mut Ready) {
        match self {
            Self::Object => write_object(resource, entry, out),
            Self::Metadata if resource.converts(&entry.value) => {
                out.share(metadata(&resource.value(entry)).to_string().into());
            }
            Self::Metadata => write_metadata(entry, out),
            Self::Table(include) => {
                let cells = Value::from(resource.cells(entry, now));
                out.put(b"{\"cells\":");
                out.share(cells.to_string().into());
                if include != Include::None {
                    out.put(b",\"object\":");
                }
                match include {
                    Include::None => {}
                    Include::Metadata => write_metadata(entry, out),
                    Include::Object => write_object(resource, entry, out),
                }
                out.put(b"}");
            }
        }
    }

    /// One object inside a watch event. Only the first event of a table carries its columns.
    pub(crate) fn watched(
        self,
        resource: &Resource,
        entry: &Entry,
        first: bool,
        now: Timestamp,
    ) -> Bytes {
        match self {
            Self::Object => resource.served(entry),
            Self::Metadata => metadata(&resource.value(entry)).to_string().into(),
            Self::Table(include) => {
                let rows = vec![row(resource, entry, include, now)];
                let version = entry.revision.to_string();
                let mut table =
                    table_value(&*resource.kind, rows, json!({"resourceVersion": version}));
                if !first {
                    table["columnDefinitions"] = json!([]);
                }
                table.to_string().into()
            }
        }
    }

    /// The `kind` and `apiVersion` of objects in this form, for bookmarks.
    pub(crate) fn type_meta(self, kind: &dyn Kind) -> (String, String) {
        match self {
            Self::Object => (kind.info().kind.to_owned(), kind.info().api_version()),
            Self::Metadata => ("PartialObjectMetadata".into(), "meta.k8s.io/v1".into()),
            Self::Table(_) => ("Table".into(), "meta.k8s.io/v1".into()),
        }
    }
}

/// What a list found.
pub(crate) struct Listed {
    /// The objects.
    pub(crate) entries: Vec<Arc<Entry>>,
    /// When all of them were true.
    pub(crate) revision: Revision,
    /// Where the next page begins; empty on the last.
    pub(crate) next: String,
    /// How many objects follow on further pages, where that is known.
    pub(crate) remaining: Option<usize>,
}

impl Listed {
    fn metadata(&self) -> Value {
        let mut metadata = json!({"resourceVersion": self.revision.to_string()});
        if !self.next.is_empty() {
            metadata["continue"] = self.next.clone().into();
        }
        if let Some(remaining) = self.remaining {
            metadata["remainingItemCount"] = remaining.into();
        }
        metadata
    }
}

fn write_object(resource: &Resource, entry: &Entry, out: &mut Ready) {
    let value = match resource.converts(&entry.value) {
        true => resource.shown(&entry.value).into_owned().into(),
        false => entry.value.clone(),
    };
    let (before, after) = object::parts(&value, value.len());
    out.share(before);
    out.put(object::version(entry.revision, &after).as_bytes());
    out.share(after);
}

/// As [`metadata`], without reading the rest of the object.
fn write_metadata(entry: &Entry, out: &mut Ready) {
    out.put(
        b"{\"kind\":\"PartialObjectMetadata\",\"apiVersion\":\"meta.k8s.io/v1\",\"metadata\":{",
    );
    let (_, after) = object::parts(&entry.value, object::end_of_metadata(&entry.value));
    out.put(object::version(entry.revision, &after).as_bytes());
    out.share(after);
    out.put(b"}");
}

fn metadata(object: &Value) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
        "metadata": object["metadata"]})
}

fn row(resource: &Resource, entry: &Entry, include: Include, now: Timestamp) -> Value {
    let cells = resource.cells(entry, now);
    match include {
        Include::None => json!({"cells": cells}),
        Include::Metadata => json!({"cells": cells, "object": metadata(&object::value(entry))}),
        Include::Object => json!({"cells": cells, "object": resource.value(entry)}),
    }
}

fn table(kind: &dyn Kind, rows: Vec<Value>, metadata: Value) -> String {
    table_value(kind, rows, metadata).to_string()
}

fn table_value(kind: &dyn Kind, rows: Vec<Value>, metadata: Value) -> Value {
    json!({"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
        "columnDefinitions": columns(kind), "rows": rows})
}

/// A table up to its first row.
fn table_head(kind: &dyn Kind, metadata: &Value) -> String {
    let columns = Value::from(columns(kind));
    format!(
        "{{\"kind\":\"Table\",\"apiVersion\":\"meta.k8s.io/v1\",\"metadata\":{metadata},\
         \"columnDefinitions\":{columns},\"rows\":["
    )
}

fn columns(kind: &dyn Kind) -> Vec<Value> {
    let columns = kind.columns().into_iter().map(|column| {
        let format = if column.name == "Name" { "name" } else { "" };
        json!({"name": column.name, "type": column.ty, "format": format, "description": "",
            "priority": i32::from(column.wide)})
    });
    columns.collect()
}

#[test]
fn the_first_form_we_can_write_wins() {
    let cases = [
        ("", "Object"),
        ("application/json", "Object"),
        ("application/vnd.kubernetes.protobuf,application/json", "Object"),
        ("application/vnd.kubernetes.protobuf, */*", "Object"),
        ("application/json;as=Table;v=v1;g=meta.k8s.io,application/json", "Table(Metadata)"),
        ("application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1", "Metadata"),
        ("text/html", "error"),
    ];
    for (accept, want) in cases {
        let got = View::choose(accept, "").map_or("error".to_owned(), |view| format!("{view:?}"));
        assert_eq!(got, want, "{accept}");
    }
}
