//! Pods in numbers.

use k8s_openapi::api::core::v1::{
    Container, ContainerStateTerminated, ContainerStatus, Pod, PodSpec, PodStatus,
    ResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use roadstead_api::quantity;

use super::family::{Family, Measured, Samples, row};

/// In the order of upstream.
const PHASES: [&str; 5] = ["Pending", "Succeeded", "Failed", "Unknown", "Running"];

impl Measured for Pod {
    const NAME: &'static str = "pod";
    const HAS_UID: bool = true;
    const FAMILIES: &'static [Family<Self>] = &[
        row("kube_pod_info", "Information about a pod", info),
        row("kube_pod_created", "When it was created, in seconds since 1970", |pod, out| {
            out.moment(pod.metadata.creation_timestamp.as_ref());
        }),
        row("kube_pod_deletion_timestamp", "When it is to be gone", |pod, out| {
            out.moment(pod.metadata.deletion_timestamp.as_ref());
        }),
        row("kube_pod_start_time", "When its node took it, in seconds since 1970", |pod, out| {
            out.moment(status(pod).and_then(|status| status.start_time.as_ref()));
        }),
        row("kube_pod_ips", "An address of it", ips),
        row("kube_pod_owner", "Whose pod it is", owners),
        row("kube_pod_status_phase", "The phase that it is in", phases),
        row("kube_pod_status_ready", "Whether it is ready", |pod, out| {
            condition(pod, "Ready", out);
        }),
        row("kube_pod_status_scheduled", "Whether it has a node", |pod, out| {
            condition(pod, "PodScheduled", out);
        }),
        row("kube_pod_container_info", "Information about a container", containers),
        row("kube_pod_container_status_ready", "Whether it is ready", |pod, out| {
            each(pod, out, |status| Some(status.ready));
        }),
        row("kube_pod_container_status_running", "Whether it runs", |pod, out| {
            each(pod, out, |status| Some(status.state.as_ref()?.running.is_some()));
        }),
        row("kube_pod_container_status_waiting", "Whether it waits", |pod, out| {
            each(pod, out, |status| Some(status.state.as_ref()?.waiting.is_some()));
        }),
        row("kube_pod_container_status_waiting_reason", "Why it waits", |pod, out| {
            reasons(pod, out, |own| own.state.as_ref()?.waiting.as_ref()?.reason.as_deref());
        }),
        row("kube_pod_container_status_terminated", "Whether it has ended", |pod, out| {
            each(pod, out, |status| Some(status.state.as_ref()?.terminated.is_some()));
        }),
        row("kube_pod_container_status_terminated_reason", "Why it has ended", |pod, out| {
            reasons(pod, out, |own| ended(own.state.as_ref()?.terminated.as_ref()?));
        }),
        row(
            "kube_pod_container_status_last_terminated_reason",
            "Why it ended before",
            |pod, out| {
                reasons(pod, out, |own| ended(own.last_state.as_ref()?.terminated.as_ref()?));
            },
        ),
        row("kube_pod_container_status_restarts_total", "How often it was started again", restarts),
        row("kube_pod_container_resource_requests", "What it asks for", |pod, out| {
            resources(pod, out, |own| own.requests.as_ref());
        }),
        row("kube_pod_container_resource_limits", "What it may use", |pod, out| {
            resources(pod, out, |own| own.limits.as_ref());
        }),
    ];
}

fn spec(pod: &Pod) -> Option<&PodSpec> {
    pod.spec.as_ref()
}

fn status(pod: &Pod) -> Option<&PodStatus> {
    pod.status.as_ref()
}

fn info(pod: &Pod, out: &mut Samples) {
    let (spec, status) = (spec(pod), status(pod));
    let owners = pod.metadata.owner_references.iter().flatten();
    let owner = { owners }.find(|owner| owner.controller == Some(true));
    let host_network = spec.and_then(|spec| spec.host_network).unwrap_or(false);
    let of_spec = |part: fn(&PodSpec) -> &Option<String>| {
        spec.and_then(|spec| part(spec).as_deref()).unwrap_or_default()
    };
    let of_status = |part: fn(&PodStatus) -> &Option<String>| {
        status.and_then(|status| part(status).as_deref()).unwrap_or_default()
    };
    let labels = [
        ("host_ip", of_status(|status| &status.host_ip)),
        ("pod_ip", of_status(|status| &status.pod_ip)),
        ("node", of_spec(|spec| &spec.node_name)),
        ("created_by_kind", owner.map(|owner| owner.kind.as_str()).unwrap_or_default()),
        ("created_by_name", owner.map(|owner| owner.name.as_str()).unwrap_or_default()),
        ("priority_class", of_spec(|spec| &spec.priority_class_name)),
        ("host_network", if host_network { "true" } else { "false" }),
    ];
    out.add(&labels, 1.0);
}

fn ips(pod: &Pod, out: &mut Samples) {
    for ip in status(pod).and_then(|status| status.pod_ips.as_ref()).into_iter().flatten() {
        let family = if ip.ip.contains(':') { "6" } else { "4" };
        out.add(&[("ip", &ip.ip), ("ip_family", family)], 1.0);
    }
}

/// Nobody's pods say so with empty labels.
fn owners(pod: &Pod, out: &mut Samples) {
    let owners = pod.metadata.owner_references.as_deref().unwrap_or_default();
    for owner in owners {
        let is_controller = if owner.controller == Some(true) { "true" } else { "false" };
        let labels = [
            ("owner_kind", owner.kind.as_str()),
            ("owner_name", owner.name.as_str()),
            ("owner_is_controller", is_controller),
        ];
        out.add(&labels, 1.0);
    }
    if owners.is_empty() {
        let labels = [("owner_kind", ""), ("owner_name", ""), ("owner_is_controller", "")];
        out.add(&labels, 1.0);
    }
}

fn phases(pod: &Pod, out: &mut Samples) {
    let Some(own) = status(pod).and_then(|status| status.phase.as_deref()) else { return };
    for phase in PHASES {
        out.add(&[("phase", phase)], f64::from(u8::from(phase == own)));
    }
}

fn condition(pod: &Pod, kind: &str, out: &mut Samples) {
    let conditions = status(pod).and_then(|status| status.conditions.as_ref());
    let own = conditions.into_iter().flatten().find(|condition| condition.type_ == kind);
    if let Some(own) = own {
        out.condition(&[], "condition", &own.status);
    }
}

fn statuses(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    status(pod).and_then(|status| status.container_statuses.as_ref()).into_iter().flatten()
}

fn containers(pod: &Pod, out: &mut Samples) {
    let specs = || spec(pod).into_iter().flat_map(|spec| spec.containers.iter());
    for own in statuses(pod) {
        let spec = specs().find(|container| container.name == own.name);
        let labels = [
            ("container", own.name.as_str()),
            ("image_spec", spec.and_then(|spec| spec.image.as_deref()).unwrap_or_default()),
            ("image", own.image.as_str()),
            ("image_id", own.image_id.as_str()),
            ("container_id", own.container_id.as_deref().unwrap_or_default()),
        ];
        out.add(&labels, 1.0);
    }
}

fn each(pod: &Pod, out: &mut Samples, is_so: fn(&ContainerStatus) -> Option<bool>) {
    for own in statuses(pod) {
        let is_so = is_so(own).unwrap_or(false);
        out.add(&[("container", &own.name)], f64::from(u8::from(is_so)));
    }
}

fn reasons(pod: &Pod, out: &mut Samples, reason: fn(&ContainerStatus) -> Option<&str>) {
    for own in statuses(pod) {
        if let Some(reason) = reason(own) {
            out.add(&[("container", &own.name), ("reason", reason)], 1.0);
        }
    }
}

fn ended(own: &ContainerStateTerminated) -> Option<&str> {
    own.reason.as_deref()
}

fn restarts(pod: &Pod, out: &mut Samples) {
    for own in statuses(pod) {
        out.add(&[("container", &own.name)], f64::from(own.restart_count));
    }
}

type Amounts = std::collections::BTreeMap<String, Quantity>;

fn resources(pod: &Pod, out: &mut Samples, of: fn(&ResourceRequirements) -> Option<&Amounts>) {
    let node = spec(pod).and_then(|spec| spec.node_name.as_deref()).unwrap_or_default();
    let containers = spec(pod).into_iter().flat_map(|spec| spec.containers.iter());
    for Container { name, resources, .. } in containers {
        for (resource, amount) in resources.as_ref().and_then(of).into_iter().flatten() {
            let Some(value) = quantity::read(&amount.0) else { continue };
            let labels = [
                ("container", name.as_str()),
                ("node", node),
                ("resource", &resource.replace(['.', '/', '-'], "_")),
                ("unit", unit(resource)),
            ];
            out.add(&labels, value);
        }
    }
}

fn unit(resource: &str) -> &'static str {
    match resource {
        "cpu" => "core",
        "memory" | "ephemeral-storage" | "storage" => "byte",
        other if other.starts_with("hugepages-") => "byte",
        _ => "integer",
    }
}
