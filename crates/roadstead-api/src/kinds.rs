//! One file per kind, and a line in [`all`] for each. Kinds without rules of their own are rows in
//! `plain.rs`.

use crate::kind::Kind;
use crate::kinds::plain::PlainKind;

mod autoscaler;
mod cells;
pub mod certificate_request;
mod config_map;
mod contents;
mod cron_job;
mod custom_resource_definition;
mod daemon_set;
mod deployment;
mod endpoint_slice;
mod endpoints;
mod event;
pub mod flow_control;
mod ip_address;
mod job;
mod lease;
mod limit_range;
mod namespace;
mod network_policy;
mod node;
mod plain;
pub mod pod;
mod pod_spec;
mod port_fields;
mod priority_class;
mod rbac;
mod replica_set;
mod replication_controller;
mod resource_names;
mod resource_quota;
mod review;
mod secret;
pub mod service;
mod service_account;
pub mod service_cidr;
mod stateful_set;
mod workload;

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
        &replication_controller::KIND,
        &stateful_set::KIND,
        &daemon_set::KIND,
        &job::KIND,
        &cron_job::KIND,
        &limit_range::KIND,
        &resource_quota::KIND,
    ];
    let mut add =
        |kinds: &'static [PlainKind]| all.extend(kinds.iter().map(|kind| kind as &dyn Kind));
    add(&plain::CORE);
    add(&plain::NETWORKING);
    add(std::slice::from_ref(&network_policy::KIND));
    add(&rbac::ALL);
    add(&plain::POLICY);
    add(std::slice::from_ref(&priority_class::KIND));
    add(&plain::STORAGE);
    add(std::slice::from_ref(&certificate_request::KIND));
    add(&plain::NODE);
    add(&flow_control::ALL);
    all.extend(review::ALL.iter().map(|kind| kind as &dyn Kind));
    all
}
