//! Variables from files of a pod's volumes: which files may be named.

use roadstead_schema::invalid::Causes;
use roadstead_schema::json::Pointer;
use serde_json::{Value, json};

use crate::names;

const NAME: &str = "a valid environment variable name must consist only of printable ASCII \
    characters other than '='";

/// Says what is wrong with the files that variables of a pod's containers are from.
pub(super) fn validate(spec: &Value, field: &str, causes: &mut Causes) {
    let volumes = spec.list("/volumes");
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        for (index, container) in spec.list(&format!("/{list}")).iter().enumerate() {
            for (number, variable) in container.list("/env").iter().enumerate() {
                let Some(file) = variable.pointer("/valueFrom/fileKeyRef") else { continue };
                if !file.is_object() {
                    continue;
                }
                let field = format!("{field}.{list}[{index}].env[{number}].valueFrom.fileKeyRef");
                validate_file(file, &field, causes);
                validate_volume(file.text("/volumeName"), volumes, &field, causes);
            }
        }
    }
}

fn validate_file(file: &Value, field: &str, causes: &mut Causes) {
    let is_good = |c: char| matches!(c, ' '..='~') && c != '=';
    match file.text("/key") {
        "" => causes.required(format!("{field}.key"), ""),
        key if !key.chars().all(is_good) => {
            causes.invalid(format!("{field}.key"), &json!(key), NAME);
        }
        _ => {}
    }
    match file.text("/volumeName") {
        "" => causes.required(format!("{field}.volumeName"), ""),
        name => names::check(names::label, format!("{field}.volumeName"), name, causes),
    }
    match file.text("/path") {
        "" => causes.required(format!("{field}.path"), ""),
        path if path.split('/').any(|part| part == "..") => {
            causes.invalid(format!("{field}.path"), &json!(path), "must not contain '..'");
        }
        _ => {}
    }
}

/// Nobody but the pod's containers writes to an emptyDir.
fn validate_volume(name: &str, volumes: &[Value], field: &str, causes: &mut Causes) {
    let field = format!("{field}.volumeName");
    match volumes.iter().find(|volume| volume.text("/name") == name) {
        None => causes.not_found(field, &json!(name)),
        Some(volume) if !volume["emptyDir"].is_object() => {
            causes.invalid(field, &json!(name), "referenced volume must be of type emptyDir");
        }
        Some(_) => {}
    }
}

#[test]
fn files_that_may_be_named() {
    let field = "spec.containers[0].env[0].valueFrom.fileKeyRef";
    for (file, want) in [
        (json!({"volumeName": "v", "path": "a/b", "key": "A b"}), ""),
        (json!({"volumeName": "v", "path": "/a..b", "key": "A"}), ""),
        (json!({"volumeName": "v", "path": "a/../../b", "key": "A"}), "path"),
        (json!({"volumeName": "v", "path": "a", "key": "A=B"}), "key"),
        (json!({"volumeName": "v", "path": "a", "key": "\u{e9}"}), "key"),
        (json!({"volumeName": "h", "path": "a", "key": "A"}), "volumeName"),
        (json!({"volumeName": "w", "path": "a", "key": "A"}), "volumeName"),
        (json!({"volumeName": "v"}), "key path"),
    ] {
        let spec = json!({
            "volumes": [{"name": "v", "emptyDir": {}}, {"name": "h", "hostPath": {"path": "/"}}],
            "containers": [{"env": [{"name": "X", "valueFrom": {"fileKeyRef": file}}]}]});
        let mut causes = Causes::default();
        validate(&spec, "spec", &mut causes);
        let found: Vec<_> = causes.0.iter().map(|cause| cause.field.as_str()).collect();
        let want: Vec<_> = want.split_whitespace().map(|one| format!("{field}.{one}")).collect();
        assert_eq!(found, want, "{file}");
    }
}
