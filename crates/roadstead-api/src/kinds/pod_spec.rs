//! The part that pods and the templates of pods share.

mod amounts;
mod env_files;
mod restarts;

use std::collections::BTreeSet;

use roadstead_schema::invalid::Causes;
use roadstead_schema::json::{Pointer, child, children, default_blank, default_to};
use serde_json::{Value, json};

use crate::kinds::port_fields;
use crate::names;

/// Fills in what the author of a pod, or of a template, left out.
pub(super) fn default(spec: &mut Value) {
    // One is another name of the other.
    let names = [spec.text("/serviceAccountName"), spec.text("/serviceAccount")];
    let name = names.into_iter().find(|name| !name.is_empty()).map(str::to_owned);
    if let Some(name) = name {
        spec["serviceAccountName"] = name.as_str().into();
        spec["serviceAccount"] = name.into();
    }
    default_blank(spec, "restartPolicy", "Always");
    default_blank(spec, "dnsPolicy", "ClusterFirst");
    default_blank(spec, "schedulerName", "default-scheduler");
    default_to(spec, "terminationGracePeriodSeconds", 30);
    child(spec, "securityContext");
    for list in ["initContainers", "containers"] {
        for container in children(spec, list) {
            child(container, "resources");
            default_container(container);
        }
    }
    children(spec, "ephemeralContainers").for_each(default_container);
    children(spec, "volumes").for_each(default_volume);
}

/// Fills in what only pods get, and not the templates of pods.
pub(super) fn default_pod(spec: &mut Value) {
    if spec.int("/terminationGracePeriodSeconds") < 0 {
        spec["terminationGracePeriodSeconds"] = 1.into();
    }
    default_to(spec, "enableServiceLinks", true);
    let host_network = spec.flag("/hostNetwork");
    for list in ["initContainers", "containers"] {
        for container in children(spec, list) {
            request_limits(child(container, "resources"));
            for port in children(container, "ports").filter(|_| host_network) {
                let number = port["containerPort"].clone();
                default_blank(port, "hostPort", number);
            }
        }
    }
}

/// Who says only how much it may take at most asks for as much.
fn request_limits(resources: &mut Value) {
    let limits: Vec<_> =
        resources.fields("/limits").map(|(name, value)| (name.to_owned(), value.clone())).collect();
    for (name, limit) in limits {
        default_to(child(resources, "requests"), &name, limit);
    }
}

fn default_container(container: &mut Value) {
    default_blank(container, "terminationMessagePath", "/dev/termination-log");
    default_blank(container, "terminationMessagePolicy", "File");
    let policy = pull_policy(container.text("/image"));
    default_blank(container, "imagePullPolicy", policy);
    for port in children(container, "ports") {
        default_blank(port, "protocol", "TCP");
    }
    for variable in children(container, "env") {
        if let Some(source) = variable.get_mut("valueFrom") {
            default_source(source);
        }
    }
    for probe in ["readinessProbe", "livenessProbe", "startupProbe"] {
        let Some(probe) = container.get_mut(probe).filter(|probe| probe.is_object()) else {
            continue;
        };
        default_blank(probe, "timeoutSeconds", 1);
        default_blank(probe, "periodSeconds", 10);
        default_blank(probe, "successThreshold", 1);
        default_blank(probe, "failureThreshold", 3);
        default_handler(probe);
    }
    for hook in ["postStart", "preStop"] {
        container.pointer_mut(&format!("/lifecycle/{hook}")).map(default_handler);
    }
}

/// How a container is asked, or told, something.
fn default_handler(handler: &mut Value) {
    if let Some(http) = handler.get_mut("httpGet").filter(|http| http.is_object()) {
        default_blank(http, "path", "/");
        default_blank(http, "scheme", "HTTP");
    }
    if let Some(grpc) = handler.get_mut("grpc").filter(|grpc| grpc.is_object()) {
        default_to(grpc, "service", "");
    }
}

/// Where the value of a variable, or of a file, comes from.
fn default_source(source: &mut Value) {
    if let Some(field) = source.get_mut("fieldRef").filter(|field| field.is_object()) {
        default_blank(field, "apiVersion", "v1");
    }
    if let Some(field) = source.get_mut("resourceFieldRef").filter(|field| field.is_object()) {
        default_blank(field, "divisor", "0");
    }
    if let Some(file) = source.get_mut("fileKeyRef").filter(|file| file.is_object()) {
        default_to(file, "optional", false);
    }
}

/// What files have whose author does not say who may read them.
const MODE: i64 = 0o644;

fn default_volume(volume: &mut Value) {
    let named =
        |volume: &Value| volume.fields("").any(|(name, own)| name != "name" && !own.is_null());
    if !named(volume) {
        volume["emptyDir"] = json!({});
    }
    for source in ["secret", "configMap", "downwardAPI", "projected"] {
        if let Some(source) = volume.get_mut(source).filter(|source| source.is_object()) {
            default_to(source, "defaultMode", MODE);
        }
    }
    if let Some(path) = volume.get_mut("hostPath").filter(|path| path.is_object()) {
        default_to(path, "type", "");
    }
    let image = volume.text("/image/reference").to_owned();
    if let Some(own) = volume.get_mut("image").filter(|own| own.is_object()) {
        default_blank(own, "pullPolicy", pull_policy(&image));
    }
    if let Some(files) = volume.get_mut("downwardAPI") {
        children(files, "items").for_each(default_source);
    }
    if let Some(disk) = volume.get_mut("iscsi").filter(|disk| disk.is_object()) {
        default_blank(disk, "iscsiInterface", "default");
    }
    let Some(projected) = volume.get_mut("projected") else { return };
    for source in children(projected, "sources") {
        if let Some(token) = source.get_mut("serviceAccountToken").filter(|own| own.is_object()) {
            default_to(token, "expirationSeconds", 3600);
        }
        if let Some(files) = source.get_mut("downwardAPI") {
            children(files, "items").for_each(default_source);
        }
    }
}

fn pull_policy(image: &str) -> &'static str {
    if is_latest(image) { "Always" } else { "IfNotPresent" }
}

/// No tag and no digest means `latest`.
fn is_latest(image: &str) -> bool {
    let name = image.rsplit('/').next().unwrap_or("");
    !name.contains('@') && name.split_once(':').is_none_or(|(_, tag)| tag == "latest")
}

/// Says what is wrong with a pod.
pub(super) fn validate(spec: &Value, field: &str, causes: &mut Causes) {
    if spec.list("/containers").is_empty() {
        causes.required(format!("{field}.containers"), "");
    }
    let policy = &spec["restartPolicy"];
    if !["Always", "OnFailure", "Never"].contains(&policy.as_str().unwrap_or("")) {
        let supported = ["Always", "OnFailure", "Never"];
        causes.unsupported(format!("{field}.restartPolicy"), policy, &supported);
    }
    let mut seen = BTreeSet::new();
    for list in ["initContainers", "containers"] {
        for (index, container) in spec.list(&format!("/{list}")).iter().enumerate() {
            let field = format!("{field}.{list}[{index}]");
            validate_container(container, &field, &mut seen, causes);
            amounts::validate(container, &field, causes);
            restarts::validate(container, &field, policy, causes);
        }
    }
    env_files::validate(spec, field, causes);
    validate_own_users(spec, field, causes);
    let lasting = seen.clone();
    for (index, container) in spec.list("/ephemeralContainers").iter().enumerate() {
        let field = format!("{field}.ephemeralContainers[{index}]");
        validate_container(container, &field, &mut seen, causes);
        validate_ephemeral(container, &field, &lasting, causes);
    }
}

/// Who has users of its own has not the node's processes and messages.
fn validate_own_users(spec: &Value, field: &str, causes: &mut Causes) {
    if spec["hostUsers"] != false {
        return;
    }
    for (name, shown) in
        [("hostNetwork", "hostNetwork"), ("hostPID", "HostPID"), ("hostIPC", "HostIPC")]
    {
        if spec[name] == true {
            causes.forbidden(format!("{field}.{shown}"), "when `hostUsers` is false");
        }
    }
}

/// What belongs to a workload is not for a container that only looks at one.
fn validate_ephemeral(
    container: &Value,
    field: &str,
    lasting: &BTreeSet<&str>,
    causes: &mut Causes,
) {
    let target = container.text("/targetContainerName");
    if !target.is_empty() && !lasting.contains(target) {
        causes.not_found(format!("{field}.targetContainerName"), &json!(target));
    }
    let forbidden = [
        "ports",
        "resources",
        "livenessProbe",
        "readinessProbe",
        "startupProbe",
        "lifecycle",
        "resizePolicy",
        "restartPolicy",
        "restartPolicyRules",
    ];
    let why = "cannot be set for an Ephemeral Container";
    for name in forbidden {
        let empty = match &container[name] {
            Value::Null => true,
            Value::Array(items) => items.is_empty(),
            Value::Object(fields) => fields.is_empty() && name == "resources",
            _ => false,
        };
        if !empty {
            causes.forbidden(format!("{field}.{name}"), why);
        }
    }
    for (index, mount) in container.list("/volumeMounts").iter().enumerate() {
        for name in ["subPath", "subPathExpr"] {
            if !mount[name].as_str().unwrap_or("").is_empty() {
                causes.forbidden(format!("{field}.volumeMounts[{index}].{name}"), why);
            }
        }
    }
}

fn validate_container<'a>(
    container: &'a Value,
    field: &str,
    seen: &mut BTreeSet<&'a str>,
    causes: &mut Causes,
) {
    let name = container.text("/name");
    if name.is_empty() {
        causes.required(format!("{field}.name"), "");
    } else {
        names::check(names::label, format!("{field}.name"), name, causes);
        if !seen.insert(name) {
            causes.duplicate(format!("{field}.name"), &json!(name));
        }
    }
    if container.text("/image").trim().is_empty() {
        causes.required(format!("{field}.image"), "");
    }
    for (index, port) in container.list("/ports").iter().enumerate() {
        let field = format!("{field}.ports[{index}]");
        let number = port.int("/containerPort");
        if number == 0 {
            causes.required(format!("{field}.containerPort"), "");
        } else {
            port_fields::number(port, "containerPort", &field, causes);
        }
        if port.has("/name") {
            names::check(names::port, format!("{field}.name"), port.text("/name"), causes);
        }
        port_fields::protocol(port, &field, causes);
    }
}

#[test]
fn what_is_left_out_is_filled_in() {
    let filled = |name: &str, value: Value, pod: bool| {
        let mut spec = json!({name: value});
        default(&mut spec);
        if pod {
            default_pod(&mut spec);
        }
        spec[name].take()
    };
    let volumes = json!([{"name": "a"}, {"name": "b", "secret": {}}, {"name": "c",
        "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}, {"downwardAPI": {"items":
            [{"path": "p", "fieldRef": {"fieldPath": "metadata.name"}}]}}]}},
        {"name": "d", "hostPath": {"path": "/"}}, {"name": "e", "image": {"reference": "i"}}]);
    let want = json!([{"name": "a", "emptyDir": {}},
        {"name": "b", "secret": {"defaultMode": 420}},
        {"name": "c", "projected": {"defaultMode": 420, "sources": [
            {"serviceAccountToken": {"path": "t", "expirationSeconds": 3600}},
            {"downwardAPI": {"items": [{"path": "p",
                "fieldRef": {"fieldPath": "metadata.name", "apiVersion": "v1"}}]}}]}},
        {"name": "d", "hostPath": {"path": "/", "type": ""}},
        {"name": "e", "image": {"reference": "i", "pullPolicy": "Always"}}]);
    assert_eq!(filled("volumes", volumes, false), want);
    // A container, the fields that are of interest, and what they are of a pod and of a template.
    let cases = [
        (
            json!({"env": [{"name": "a", "valueFrom": {"fieldRef": {"fieldPath": "f"}}}]}),
            "/env/0/valueFrom/fieldRef/apiVersion",
            json!("v1"),
            json!("v1"),
        ),
        (
            json!({"env": [{"name": "a", "valueFrom": {"resourceFieldRef": {"resource": "r"}}}]}),
            "/env/0/valueFrom/resourceFieldRef/divisor",
            json!("0"),
            json!("0"),
        ),
        (
            json!({"resources": {"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "1"}}}),
            "/resources/requests",
            json!({"cpu": "1", "memory": "1Gi"}),
            json!({"cpu": "1"}),
        ),
        (
            json!({"livenessProbe": {"grpc": {"port": 1}, "periodSeconds": 0}}),
            "/livenessProbe/periodSeconds",
            json!(10),
            json!(10),
        ),
        (
            json!({"livenessProbe": {"grpc": {"port": 1}}}),
            "/livenessProbe/grpc/service",
            json!(""),
            json!(""),
        ),
        (
            json!({"lifecycle": {"preStop": {"httpGet": {"port": 1}}}}),
            "/lifecycle/preStop/httpGet/path",
            json!("/"),
            json!("/"),
        ),
        (
            json!({"imagePullPolicy": "", "image": "i:1"}),
            "/imagePullPolicy",
            json!("IfNotPresent"),
            json!("IfNotPresent"),
        ),
    ];
    for (container, place, in_pod, in_template) in cases {
        for (pod, want) in [(true, in_pod), (false, in_template)] {
            let found = filled("containers", json!([container]), pod);
            assert_eq!(found[0].pointer(place), Some(&want), "{place} {pod}");
        }
    }
    let mut spec = json!({"hostNetwork": true, "serviceAccount": "web",
        "containers": [{"ports": [{"containerPort": 80}]}]});
    default(&mut spec);
    assert_eq!(spec["serviceAccountName"], "web");
    assert_eq!(spec.pointer("/containers/0/ports/0/hostPort"), None, "of a template");
    default_pod(&mut spec);
    assert_eq!(spec.pointer("/containers/0/ports/0/hostPort"), Some(&json!(80)));
}

#[test]
fn latest_means_no_tag() {
    let cases = [
        ("nginx", true),
        ("nginx:latest", true),
        ("nginx:1.19", false),
        ("localhost:5000/nginx", true),
        ("nginx@sha256:abc", false),
    ];
    for (image, want) in cases {
        assert_eq!(is_latest(image), want, "{image}");
    }
}
