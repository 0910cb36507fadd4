//! Event: something worth telling about another object.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::age::age_of;
use crate::kind::{Column, Info, Kind, name_cell};
use crate::look::Look;

pub struct Event;

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
        let last = object.text("/lastTimestamp");
        let last = if last.is_empty() { first } else { last };
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
            json!(object.int("/count").max(1)),
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
            ("source", "/source/component"),
            ("type", "/type"),
        ]
    }
}
