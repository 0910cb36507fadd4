//! Event: something worth telling about another object. Core `v1` and `events.k8s.io/v1` are two
//! views of one object, kept in the form of the core group.

use jiff::Timestamp;
use roadstead_schema::age::age_of;
use roadstead_schema::invalid::Causes;
use roadstead_schema::json::Pointer;
use serde_json::Value;

use crate::kind::{Info, Kind};
use crate::table::{Cell, Column, ColumnCell};

/// The Event of the core group.
pub(super) struct Event;

/// The Event of the group `events.k8s.io`.
pub(super) struct NewEvent;

static INFO: Info =
    Info { short_names: &["ev"], ..Info::new("", "v1", "Event", "events", "event") };

impl Kind for Event {
    fn info(&self) -> &'static Info {
        &INFO
    }

    fn table(&self) -> &'static [ColumnCell] {
        const {
            &[
                (Column::text("Last Seen"), Cell::Timed(last_seen)),
                (Column::text("Type"), Cell::Value("/type")),
                (Column::text("Reason"), Cell::Value("/reason")),
                (Column::text("Object"), Cell::Made(about)),
                (Column::wide("Subobject"), Cell::Plain("/involvedObject/fieldPath")),
                (Column::wide("Source"), Cell::Made(source)),
                (Column::text("Message"), Cell::Made(|event| event.text("/message").trim().into())),
                (
                    Column::wide("First Seen"),
                    Cell::Timed(|event, now| age_of(first_time(event), now)),
                ),
                (Column { name: "Count", ty: "integer", wide: true }, Cell::Number(count)),
                (Column::wide("Name"), Cell::Name),
            ]
        }
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

/// The first of some texts that is there.
fn first_of(texts: [&str; 2]) -> &str {
    texts.into_iter().find(|text| !text.is_empty()).unwrap_or("")
}

fn first_time(event: &Value) -> &str {
    first_of([event.text("/firstTimestamp"), event.text("/eventTime")])
}

fn last_seen(event: &Value, now: Timestamp) -> String {
    let last = first_of([event.text("/series/lastObservedTime"), event.text("/lastTimestamp")]);
    age_of(first_of([last, first_time(event)]), now)
}

/// `pod/web-1`.
fn about(event: &Value) -> String {
    let kind = event.text("/involvedObject/kind").to_lowercase();
    format!("{kind}/{}", event.text("/involvedObject/name"))
}

fn source(event: &Value) -> String {
    first_of([event.text("/source/component"), event.text("/reportingComponent")]).into()
}

fn count(event: &Value) -> i64 {
    event.int("/series/count").max(event.int("/count")).max(1)
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

    fn table(&self) -> &'static [ColumnCell] {
        Event.table()
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
    use serde_json::json;
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
