//! Event: something worth telling about another object. Core `v1` and `events.k8s.io/v1` are two
//! views of one object, kept in the form of the core group.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::age::age_of;
use crate::invalid::Causes;
use crate::kind::{Column, Info, Kind, name_cell};
use crate::look::Look;

/// The Event of the core group.
pub struct Event;

/// The Event of the group `events.k8s.io`.
pub struct NewEvent;

static INFO: Info =
    Info { short_names: &["ev"], ..Info::new("", "v1", "Event", "events", "event") };

impl Kind for Event {
    fn info(&self) -> &'static Info {
        &INFO
    }

    fn columns(&self) -> &'static [Column] {
        const {
            &[
                Column::text("Last Seen"),
                Column::text("Type"),
                Column::text("Reason"),
                Column::text("Object"),
                Column::wide("Subobject"),
                Column::wide("Source"),
                Column::text("Message"),
                Column::wide("First Seen"),
                Column { name: "Count", ty: "integer", wide: true },
                Column::wide("Name"),
            ]
        }
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let first = [object.text("/firstTimestamp"), object.text("/eventTime")];
        let first = first.into_iter().find(|t| !t.is_empty()).unwrap_or("");
        let last = [object.text("/series/lastObservedTime"), object.text("/lastTimestamp")];
        let last = last.into_iter().find(|t| !t.is_empty()).unwrap_or(first);
        let source = [object.text("/source/component"), object.text("/reportingComponent")];
        let source = source.into_iter().find(|t| !t.is_empty()).unwrap_or("");
        let about = object.text("/involvedObject/kind").to_lowercase();
        vec![
            json!(age_of(last, now)),
            object["type"].clone(),
            object["reason"].clone(),
            json!(format!("{about}/{}", object.text("/involvedObject/name"))),
            json!(object.text("/involvedObject/fieldPath")),
            json!(source),
            json!(object.text("/message").trim()),
            json!(age_of(first, now)),
            json!(object.int("/series/count").max(object.int("/count")).max(1)),
            name_cell(object),
        ]
    }

    fn selectable(&self) -> &'static [(&'static str, &'static str)] {
        &[
            ("involvedObject.kind", "/involvedObject/kind"),
            ("involvedObject.namespace", "/involvedObject/namespace"),
            ("involvedObject.name", "/involvedObject/name"),
            ("involvedObject.uid", "/involvedObject/uid"),
            ("involvedObject.apiVersion", "/involvedObject/apiVersion"),
            ("involvedObject.resourceVersion", "/involvedObject/resourceVersion"),
            ("involvedObject.fieldPath", "/involvedObject/fieldPath"),
            ("reason", "/reason"),
            ("reportingComponent", "/reportingComponent"),
            ("source", "/source/component|/reportingComponent"),
            ("type", "/type"),
        ]
    }
}

static NEW_INFO: Info = Info {
    short_names: &["ev"],
    stored_group: "",
    ..Info::new("events.k8s.io", "v1", "Event", "events", "event")
};

/// What the core group calls a field, and what the newer group calls it.
const NAMES: [(&str, &str); 7] = [
    ("message", "note"),
    ("involvedObject", "regarding"),
    ("reportingComponent", "reportingController"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
];

impl Kind for NewEvent {
    fn info(&self) -> &'static Info {
        &NEW_INFO
    }

    fn validate(&self, object: &Value, old: Option<&Value>, causes: &mut Causes) {
        // Recorders of the old style may still update what they made.
        if old.is_some() || !object.text("/deprecatedFirstTimestamp").is_empty() {
            return;
        }
        if object.text("/eventTime").is_empty() {
            causes.required("eventTime", "");
        }
        for field in ["reportingController", "reportingInstance", "action", "reason"] {
            if object.text(&format!("/{field}")).is_empty() {
                causes.required(field, "");
            }
        }
        if !["Normal", "Warning"].contains(&object.text("/type")) {
            causes.invalid("type", &object["type"], "has invalid value: ");
        }
    }

    fn show(&self, object: &mut Value) {
        rename(object, NAMES);
    }

    fn store(&self, object: &mut Value) {
        rename(object, NAMES.map(|(old, new)| (new, old)));
    }

    fn columns(&self) -> &'static [Column] {
        Event.columns()
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        Event.cells(object, now)
    }

    fn selectable(&self) -> &'static [(&'static str, &'static str)] {
        &[
            ("regarding.kind", "/involvedObject/kind"),
            ("regarding.namespace", "/involvedObject/namespace"),
            ("regarding.name", "/involvedObject/name"),
            ("regarding.uid", "/involvedObject/uid"),
            ("regarding.apiVersion", "/involvedObject/apiVersion"),
            ("regarding.resourceVersion", "/involvedObject/resourceVersion"),
            ("regarding.fieldPath", "/involvedObject/fieldPath"),
            ("reason", "/reason"),
            ("reportingController", "/reportingComponent"),
            ("type", "/type"),
        ]
    }
}

fn rename(object: &mut Value, names: [(&str, &str); 7]) {
    let Value::Object(fields) = object else { return };
    for (old, new) in names {
        if let Some(value) = fields.remove(old) {
            fields.insert(new.to_owned(), value);
        }
    }
}

#[test]
fn the_two_views_hold_the_same() {
    let core = json!({"metadata": {"name": "web.1"}, "message": "hello", "count": 2,
        "involvedObject": {"kind": "Pod", "name": "web"}, "source": {"component": "kubelet"},
        "reason": "Started", "type": "Normal", "series": {"count": 3}});
    let new = json!({"metadata": {"name": "web.1"}, "note": "hello", "deprecatedCount": 2,
        "regarding": {"kind": "Pod", "name": "web"}, "deprecatedSource": {"component": "kubelet"},
        "reason": "Started", "type": "Normal", "series": {"count": 3}});
    let mut object = core.clone();
    NewEvent.show(&mut object);
    assert_eq!(object, new);
    NewEvent.store(&mut object);
    assert_eq!(object, core);
}
