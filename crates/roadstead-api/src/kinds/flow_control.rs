//! FlowSchema and PriorityLevelConfiguration: whose requests are served before whose.
//!
//! A FlowSchema says which requests belong to which priority level, and how the flows in them are told
//! apart; a PriorityLevelConfiguration says how much of the server a level has. Every cluster has some of
//! both (`bootstrap`).

use roadstead_schema::invalid::Causes;
use roadstead_schema::json::{Pointer, child, default_to};
use serde_json::Value;

use crate::kinds::plain::{PlainKind, cluster, shown};
use crate::table::{AGE, Cell, Column, NAME};

pub mod bootstrap;
mod level;
mod schema;

/// The group of both kinds.
pub const GROUP: &str = "flowcontrol.apiserver.k8s.io";

/// Both kinds, in the order of discovery.
pub(super) static ALL: [PlainKind; 2] = [
    PlainKind {
        default: |schema| {
            let spec = child(schema, "spec");
            if spec.int("/matchingPrecedence") == 0 {
                spec["matchingPrecedence"] = 1000.into();
            }
        },
        check: |schema, _, causes| {
            schema::validate(schema, causes);
            validate_status(schema, causes);
        },
        ..shown(
            cluster(GROUP, "FlowSchema", "flowschemas", "flowschema").with_only_status(),
            &[
                NAME,
                (
                    Column::text("PriorityLevel"),
                    Cell::Plain("/spec/priorityLevelConfiguration/name"),
                ),
                (Column::text("MatchingPrecedence"), Cell::Int("/spec/matchingPrecedence")),
                (Column::text("DistinguisherMethod"), Cell::Text("/spec/distinguisherMethod/type")),
                AGE,
                (Column::text("MissingPL"), Cell::Made(missing)),
            ],
        )
    },
    PlainKind {
        default: default_level,
        check: |level, _, causes| {
            level::validate(level, causes);
            validate_status(level, causes);
        },
        ..shown(
            cluster(
                GROUP,
                "PriorityLevelConfiguration",
                "prioritylevelconfigurations",
                "prioritylevelconfiguration",
            )
            .with_only_status(),
            &[
                NAME,
                (Column::text("Type"), Cell::Plain("/spec/type")),
                (
                    Column::text("NominalConcurrencyShares"),
                    Cell::MadeOrNone(|level| {
                        amount(level, "/spec/limited/nominalConcurrencyShares")
                    }),
                ),
                (Column::text("Queues"), Cell::MadeOrNone(|level| queuing(level, "queues"))),
                (Column::text("HandSize"), Cell::MadeOrNone(|level| queuing(level, "handSize"))),
                (
                    Column::text("QueueLengthLimit"),
                    Cell::MadeOrNone(|level| queuing(level, "queueLengthLimit")),
                ),
                AGE,
            ],
        )
    },
];

/// Whether the level of a schema is missing; `?` as long as nobody has looked.
fn missing(schema: &Value) -> String {
    let mut conditions = schema.list("/status/conditions").iter();
    let dangling = conditions.find(|condition| condition["type"] == "Dangling");
    dangling.map_or("?", |condition| condition.text("/status")).to_owned()
}

fn amount(level: &Value, pointer: &str) -> String {
    level.pointer(pointer).filter(|value| value.is_i64()).map_or_else(String::new, Value::to_string)
}

fn queuing(level: &Value, field: &str) -> String {
    amount(level, &format!("/spec/limited/limitResponse/queuing/{field}"))
}

fn default_level(level: &mut Value) {
    let spec = child(level, "spec");
    if let Some(exempt) = spec.get_mut("exempt").filter(|exempt| exempt.is_object()) {
        default_to(exempt, "nominalConcurrencyShares", 0);
        default_to(exempt, "lendablePercent", 0);
    }
    if let Some(limited) = spec.get_mut("limited").filter(|limited| limited.is_object()) {
        default_to(limited, "nominalConcurrencyShares", 30);
        default_to(limited, "lendablePercent", 0);
        let queuing = limited.pointer_mut("/limitResponse/queuing");
        if let Some(queuing) = queuing.filter(|queuing| queuing.is_object()) {
            for (field, value) in [("handSize", 8), ("queues", 64), ("queueLengthLimit", 50)] {
                if queuing.int(&format!("/{field}")) == 0 {
                    queuing[field] = value.into();
                }
            }
        }
    }
}

fn validate_status(object: &Value, causes: &mut Causes) {
    let conditions = object.list("/status/conditions");
    for (index, condition) in conditions.iter().enumerate() {
        let field = format!("status.conditions[{index}].type");
        if conditions[..index].iter().any(|other| other["type"] == condition["type"]) {
            causes.duplicate(&field, &condition["type"]);
        }
        if condition.text("/type").is_empty() {
            causes.required(&field, "");
        }
    }
}

#[cfg(test)]
mod tests;
