//! What is wrong with a PriorityLevelConfiguration, in the words of Kubernetes.

use roadstead_schema::invalid::Causes;
use roadstead_schema::json::Pointer;
use serde_json::Value;

use super::bootstrap;

/// More queues than anybody can want.
const QUEUES: i64 = 10_000_000;

/// How much chance there is in the number that a flow's hand is dealt by.
const HASH_BITS: i64 = 60;

/// Says what is wrong with a level, but for its status.
pub(super) fn validate(level: &Value, causes: &mut Causes) {
    let (name, spec) = (level.text("/metadata/name"), &level["spec"]);
    let kind = spec.text("/type");
    if (name == "exempt") != (kind == "Exempt") {
        let why = "must be 'Exempt' if and only if `name` is 'exempt'";
        causes.invalid("spec.type", &spec["type"], why);
    }
    match kind {
        "Exempt" => {
            if spec.has("/limited") {
                causes.forbidden("spec.limited", "must be nil if the type is not Limited");
            }
            validate_shares(&spec["exempt"], "spec.exempt", causes);
        }
        "Limited" => {
            if spec.has("/exempt") {
                causes.forbidden("spec.exempt", "must be nil if the type is Limited");
            }
            match spec.has("/limited") {
                true => validate_limited(&spec["limited"], causes),
                false => {
                    causes.required("spec.limited", "must not be empty when type is Limited");
                }
            }
        }
        "" => causes.required("spec.type", ""),
        _ => causes.unsupported("spec.type", &spec["type"], &["Exempt", "Limited"]),
    }
    validate_fixed(name, spec, causes);
}

/// What the server depends on stays as it is.
fn validate_fixed(name: &str, spec: &Value, causes: &mut Causes) {
    let Some(fixed) = bootstrap::mandatory_level(name) else { return };
    if name != "exempt" {
        if fixed["spec"] != *spec {
            causes.invalid("spec", spec, format!("spec of '{name}' must equal the fixed value"));
        }
        return;
    }
    let mut own = spec.clone();
    own["exempt"] = fixed["spec"]["exempt"].clone();
    if own != fixed["spec"] {
        let why = "spec of 'exempt' except the 'spec.exempt' field must equal the fixed value";
        causes.invalid("spec", spec, why);
    }
}

fn validate_shares(part: &Value, field: &str, causes: &mut Causes) {
    if part.int("/nominalConcurrencyShares") < 0 {
        let place = format!("{field}.nominalConcurrencyShares");
        causes.invalid(place, &part["nominalConcurrencyShares"], "must be a non-negative integer");
    }
    if !(0..=100).contains(&part.int("/lendablePercent")) {
        let place = format!("{field}.lendablePercent");
        causes.invalid(place, &part["lendablePercent"], "must be between 0 and 100, inclusive");
    }
}

fn validate_limited(limited: &Value, causes: &mut Causes) {
    let field = "spec.limited";
    validate_shares(limited, field, causes);
    let (response, at) = (&limited["limitResponse"], "spec.limited.limitResponse");
    match (response.text("/type"), response.has("/queuing")) {
        ("Reject", true) => causes.forbidden(
            format!("{at}.queuing"),
            "must be nil if limited.limitResponse.type is not Limited",
        ),
        ("Queue", true) => validate_queuing(&response["queuing"], causes),
        ("Queue", false) => causes.required(
            format!("{at}.queuing"),
            "must not be empty if limited.limitResponse.type is Limited",
        ),
        ("Reject", false) => {}
        ("", _) => causes.required(format!("{at}.type"), ""),
        _ => causes.unsupported(format!("{at}.type"), &response["type"], &["Queue", "Reject"]),
    }
    if limited.int("/borrowingLimitPercent") < 0 {
        let why = "if specified, must be a non-negative integer";
        causes.invalid(
            format!("{field}.borrowingLimitPercent"),
            &limited["borrowingLimitPercent"],
            why,
        );
    }
}

fn validate_queuing(queuing: &Value, causes: &mut Causes) {
    let (queues, hand) = (queuing.int("/queues"), queuing.int("/handSize"));
    let mut odd = |field: &str, why: &str| {
        let place = format!("spec.limited.limitResponse.queuing.{field}");
        causes.invalid(place, &queuing[field], why);
    };
    if queuing.int("/queueLengthLimit") <= 0 {
        odd("queueLengthLimit", "must be positive");
    }
    if queues <= 0 {
        odd("queues", "must be positive");
    } else if queues > QUEUES {
        odd("queues", &format!("must not be greater than {QUEUES}"));
    }
    if hand <= 0 {
        odd("handSize", "must be positive");
    } else if hand > queues {
        odd("handSize", &format!("should not be greater than queues ({queues})"));
    } else if needed_bits(queues, hand) > HASH_BITS {
        let why = format!(
            "required entropy bits of deckSize {queues} and handSize {hand} should not be greater \
             than {HASH_BITS}"
        );
        odd("handSize", &why);
    }
}

/// How much chance it takes to deal a hand.
fn needed_bits(queues: i64, hand: i64) -> i64 {
    // Both are positive, and less than 2³².
    ((queues as f64).log2() * hand as f64).ceil() as i64
}
