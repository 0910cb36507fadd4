//! How much a container asks for, and how much it may take.

use roadstead_schema::invalid::Causes;
use roadstead_schema::json::Pointer;
use serde_json::Value;

use crate::quantity;

/// Says what is wrong with the amounts of one container: nobody asks for more than it may take.
pub(super) fn validate(container: &Value, field: &str, causes: &mut Causes) {
    let resources = &container["resources"];
    for amounts in ["limits", "requests"] {
        for (name, amount) in resources.fields(&format!("/{amounts}")) {
            let number = amount.as_str().and_then(quantity::read);
            if number.is_some_and(|number| number < 0.0) {
                let field = format!("{field}.resources.{amounts}[{name}]");
                causes.invalid(field, amount, "must be greater than or equal to 0");
            }
        }
    }
    for (name, request) in resources.fields("/requests") {
        let limit = &resources["limits"][name];
        let number = |amount: &Value| amount.as_str().and_then(quantity::read);
        if let (Some(asked), Some(most)) = (number(request), number(limit))
            && asked > most
        {
            let limit = limit.as_str().unwrap_or_default();
            let detail = format!("must be less than or equal to {name} limit of {limit}");
            causes.invalid(format!("{field}.resources.requests"), request, detail);
        }
    }
}

#[test]
fn amounts_that_make_sense() {
    use serde_json::json;
    for (request, limit, want) in [
        ("1", "1", ""),
        ("500m", "1", ""),
        ("0", "0", ""),
        (
            "2",
            "1500m",
            "c.resources.requests: Invalid value: \"2\": must be less than or equal to cpu limit of 1500m",
        ),
        (
            "-1",
            "1",
            "c.resources.requests[cpu]: Invalid value: \"-1\": must be greater than or equal to 0",
        ),
    ] {
        let container = json!({"resources": {"requests": {"cpu": request, "memory": "1Gi"},
                                             "limits": {"cpu": limit}}});
        let mut causes = Causes::default();
        validate(&container, "c", &mut causes);
        let found: Vec<_> = causes.0.iter().map(ToString::to_string).collect();
        assert_eq!(found.join("; "), want, "{request} {limit}");
    }
}
