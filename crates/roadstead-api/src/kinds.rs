//! One file per kind. A new kind is a file here and a line in [`all`].

use crate::kind::Kind;

mod config_map;
mod deployment;
mod endpoint_slice;
mod endpoints;
mod event;
mod ip_address;
mod lease;
mod namespace;
mod node;
mod pod;
mod pod_spec;
mod replica_set;
mod secret;
mod service;
mod service_account;

/// Every kind we serve, in the order of discovery.
pub fn all() -> &'static [&'static dyn Kind] {
    &[
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
    ]
}
