//! One file per kind. A new kind is a file here and a line in [`all`].

use crate::kind::Kind;

mod autoscaler;
mod cells;
pub mod certificate_request;
mod config_map;
mod contents;
mod custom_resource_definition;
mod deployment;
mod endpoint_slice;
mod endpoints;
mod event;
mod ip_address;
mod lease;
mod limits;
mod namespace;
mod network_policy;
mod node;
pub mod pod;
mod pod_spec;
mod rbac;
mod replica_set;
mod review;
mod secret;
pub mod service;
mod service_account;
pub mod service_cidr;
mod stored;
mod workloads;

/// Every kind we serve, in the order of discovery: the core group first.
pub fn all() -> Vec<&'static dyn Kind> {
    let mut all: Vec<&'static dyn Kind> = vec![
        &config_map::ConfigMap,
        &endpoints::Endpoints,
        &event::Event,
        &namespace::Namespace,
        &node::Node,
        &pod::Pod,
        &secret::Secret,
        &service_account::ServiceAccount,
        &service::Service,
        &deployment::Deployment,
        &replica_set::ReplicaSet,
        &lease::Lease,
        &endpoint_slice::EndpointSlice,
        &ip_address::IpAddress,
        &service_cidr::ServiceCidr,
        &custom_resource_definition::CustomResourceDefinition,
        &event::NewEvent,
        &autoscaler::Autoscaler,
        &autoscaler::OldAutoscaler,
    ];
    all.extend(workloads::ALL.iter().map(|kind| kind as &dyn Kind));
    all.extend(stored::ALL.iter().map(|kind| kind as &dyn Kind));
    all.extend(review::ALL.iter().map(|kind| kind as &dyn Kind));
    all
}
