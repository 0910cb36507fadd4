//! Reads Kubernetes objects from text, and writes them: each kind is compiled once, here.
//!
//! The code that reads a pod is as long as everything that may be in one. Each crate that reads one with a
//! function of its own gets a copy of that, and another one for each form in which JSON comes. So there is
//! one form, text, and the code is in this crate, which is compiled to be small: those that use it find it
//! done (`docs/adr/0252-objects-are-read-in-one-place.md`). It leaves to others what objects mean.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests read files and clocks"))]

use k8s_openapi::api::apps::v1::{
    ControllerRevision, DaemonSet, Deployment, ReplicaSet, StatefulSet,
};
use k8s_openapi::api::authentication::v1::TokenReview;
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{
    ConfigMap, Endpoints, Namespace, Node, PersistentVolume, PersistentVolumeClaim,
    PersistentVolumeClaimStatus, Pod, PodTemplateSpec, ReplicationController, ResourceQuota,
    Secret, Service, ServiceAccount,
};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::{NetworkPolicy, ServiceCIDR};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::storage::v1::StorageClass;
use serde_json::{Result, Value};

/// What is read and written here.
pub trait Typed: Sized {
    /// Reads it from JSON.
    fn from_text(text: &str) -> Result<Self>;

    /// Writes it as JSON.
    fn to_text(&self) -> Result<String>;

    /// Reads it from a value, by way of text.
    fn from_value(value: &Value) -> Result<Self> {
        Self::from_text(&value.to_string()).map_err(|error| without_place(&error))
    }

    /// Writes it as a value, by way of text.
    fn to_value(&self) -> Result<Value> {
        serde_json::from_str(&self.to_text()?)
    }
}

/// A value has no lines.
fn without_place(error: &serde_json::Error) -> serde_json::Error {
    let text = error.to_string();
    let end = text.rfind(" at line ").unwrap_or(text.len());
    serde::de::Error::custom(&text[..end])
}

macro_rules! typed {
    ($($kind:ty),* $(,)?) => {$(
        impl Typed for $kind {
            fn from_text(text: &str) -> Result<Self> {
                serde_json::from_str(text)
            }

            fn to_text(&self) -> Result<String> {
                serde_json::to_string(self)
            }
        }
    )*};
}

typed!(
    CertificateSigningRequest,
    ConfigMap,
    ControllerRevision,
    CronJob,
    DaemonSet,
    Deployment,
    EndpointSlice,
    Endpoints,
    HorizontalPodAutoscaler,
    Job,
    Lease,
    Namespace,
    NetworkPolicy,
    Node,
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeClaimStatus,
    Pod,
    PodDisruptionBudget,
    PodTemplateSpec,
    ReplicaSet,
    ReplicationController,
    ResourceQuota,
    Secret,
    Service,
    ServiceAccount,
    ServiceCIDR,
    StatefulSet,
    StorageClass,
    SubjectAccessReview,
    TokenReview,
);

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_go_both_ways() {
        let value = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"},
            "spec": {"containers": [{"name": "\u{e9}\u{0}", "ports": [{"containerPort": 1}]}]}});
        let pod = Pod::from_value(&value).unwrap();
        let directly: Pod = serde_json::from_value(value.clone()).unwrap();
        assert_eq!(pod, directly);
        assert_eq!(pod.to_value().unwrap(), value);
        let wrong = json!({"spec": {"containers": 1}});
        let directly = serde_json::from_value::<Pod>(wrong.clone()).unwrap_err();
        assert_eq!(Pod::from_value(&wrong).unwrap_err().to_string(), directly.to_string());
    }
}
