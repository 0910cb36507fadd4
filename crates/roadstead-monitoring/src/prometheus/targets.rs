//! Targets as discovery would find them: the addresses of slices, with the labels that it would give them, so
//! that the same relabelling follows.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointPort, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use roadstead_api::selector::Selector;
use serde::Serialize;
use serde_json::{Value, json};

use super::TargetObjects;
use super::relabel::{META, sanitized};
use super::scrape::ServiceMonitor;

const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// The targets in the namespaces of a monitor, of Services that it selects.
pub(super) fn find(monitor: &ServiceMonitor, cluster: &TargetObjects) -> Vec<Value> {
    let namespaces = monitor.namespaces();
    let selector = Selector::from_object(&monitor.spec.selector);
    let is_meant = |service: &&Service| {
        let namespace = service.metadata.namespace.as_deref().unwrap_or("default");
        let is_there = namespaces.is_empty() || namespaces.contains(&namespace);
        is_there && selector.matches_labels(service.metadata.labels.as_ref())
    };
    let mut found = Vec::new();
    for service in cluster.services.iter().filter(is_meant) {
        for slice in cluster.slices.iter().filter(|slice| belongs_to(slice, &service.metadata)) {
            let place = Place { service, cluster };
            for port in slice.ports.iter().flatten() {
                let endpoints = slice.endpoints.iter().flatten();
                found.extend(endpoints.flat_map(|endpoint| place.targets(endpoint, port)));
            }
        }
    }
    // The same objects make the same text.
    found.sort_by_cached_key(Value::to_string);
    found
}

fn belongs_to(slice: &EndpointSlice, service: &ObjectMeta) -> bool {
    let labels = slice.metadata.labels.as_ref();
    let name = labels.and_then(|labels| labels.get(SERVICE_NAME));
    slice.metadata.namespace == service.namespace && name == service.name.as_ref()
}

/// Where targets are found.
#[derive(Clone, Copy)]
struct Place<'a> {
    service: &'a Service,
    cluster: &'a TargetObjects,
}

impl Place<'_> {
    /// An endpoint with one of its ports.
    fn targets(self, endpoint: &Endpoint, port: &EndpointPort) -> Vec<Value> {
        let Some(number) = port.port else { return Vec::new() };
        let labels = self.labels(endpoint, port, number);
        let targets = endpoint.addresses.iter().map(|address| match address.contains(':') {
            true => format!("[{address}]:{number}"),
            false => format!("{address}:{number}"),
        });
        targets.map(|target| json!({"targets": [target], "labels": labels})).collect()
    }

    fn labels(self, endpoint: &Endpoint, port: &EndpointPort, number: i32) -> Labels {
        let mut labels = Labels::default();
        let service = &self.service.metadata;
        labels.set("namespace", service.namespace.as_deref().unwrap_or("default"));
        labels.set("service_name", service.name.as_deref().unwrap_or_default());
        labels.copy("service", service);
        labels.set("endpointslice_port_name", port.name.as_deref().unwrap_or_default());
        let target = endpoint.target_ref.as_ref();
        let target = target.filter(|target| target.kind.as_deref() == Some("Pod"));
        if let Some(name) = target.and_then(|target| target.name.as_deref()) {
            labels.set("pod_name", name);
            labels.set("pod_node_name", endpoint.node_name.as_deref().unwrap_or_default());
            let mut pods = self.cluster.pods.iter();
            let is_it = |pod: &&Pod| {
                let metadata = &pod.metadata;
                metadata.name.as_deref() == Some(name) && metadata.namespace == service.namespace
            };
            if let Some(pod) = pods.find(is_it) {
                labels.describe(pod, number);
            }
        }
        labels
    }
}

/// Labels as discovery gives them.
#[derive(Default, Serialize)]
struct Labels(BTreeMap<String, String>);

impl Labels {
    fn set(&mut self, name: &str, value: &str) {
        if !value.is_empty() {
            self.0.insert(format!("{META}{name}"), value.to_owned());
        }
    }

    /// The labels of an object.
    fn copy(&mut self, kind: &str, metadata: &ObjectMeta) {
        for (name, value) in metadata.labels.iter().flatten() {
            let name = sanitized(name);
            self.set(&format!("{kind}_label_{name}"), value);
            self.set(&format!("{kind}_labelpresent_{name}"), "true");
        }
    }

    /// What is known of a pod, and of its port.
    fn describe(&mut self, pod: &Pod, number: i32) {
        self.copy("pod", &pod.metadata);
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        self.set("pod_phase", phase.unwrap_or_default());
        for container in pod.spec.iter().flat_map(|spec| &spec.containers) {
            let ports = container.ports.iter().flatten();
            if let Some(port) = { ports }.find(|port| port.container_port == number) {
                self.set("pod_container_name", &container.name);
                self.set("pod_container_port_name", port.name.as_deref().unwrap_or_default());
                self.set("pod_container_port_number", &number.to_string());
            }
        }
    }
}
