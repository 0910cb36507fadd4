use serde_json::json;

use super::*;
use crate::metadata;

fn said(name: &str, spec: Value, old: Option<&Value>) -> String {
    let object = json!({"metadata": {"name": name}, "spec": spec});
    let mut causes = Causes::default();
    metadata::validate(&INFO, &object, &mut causes);
    IpAddress.validate(&object, old, &mut causes);
    causes.0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

#[test]
fn mistakes() {
    let parent = |extra: Value| {
        let mut parent = json!({"resource": "services", "namespace": "default", "name": "web"});
        parent.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        json!({"parentRef": parent})
    };
    let good = || parent(json!({}));
    let cases = [
        ("10.96.0.9", good(), ""),
        ("fd00::9", good(), ""),
        (
            "web",
            good(),
            "metadata.name: Invalid value: \"web\": must be a valid IP address, (e.g. 10.9.8.7 or \
             2001:db8::ffff)",
        ),
        (
            "010.96.0.9",
            good(),
            "metadata.name: Invalid value: \"010.96.0.9\": must not have leading 0s",
        ),
        (
            "FD00::9",
            good(),
            "metadata.name: Invalid value: \"FD00::9\": must be in canonical form (\"fd00::9\")",
        ),
        ("10.96.0.9", json!({}), "spec.parentRef: Required value"),
        (
            "10.96.0.9",
            json!({"parentRef": {}}),
            "spec.parentRef.resource: Required value\nspec.parentRef.name: Required value",
        ),
        (
            "10.96.0.9",
            parent(json!({"name": "a/b"})),
            "spec.parentRef.name: Invalid value: \"a/b\": may not contain '/'",
        ),
    ];
    for (name, spec, want) in cases {
        assert_eq!(said(name, spec.clone(), None), want, "{name} {spec}");
    }
    let old = json!({"metadata": {"name": "10.96.0.9"}, "spec": good()});
    assert_eq!(said("10.96.0.9", good(), Some(&old)), "");
    assert_eq!(
        said("10.96.0.9", parent(json!({"name": "other"})), Some(&old)),
        "spec.parentRef: Invalid value: null: field is immutable"
    );
}
