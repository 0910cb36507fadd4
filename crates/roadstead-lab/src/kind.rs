//! The kinds that lessons speak of.

use serde::Deserialize;

/// A kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub enum LessonKind {
    /// A Service.
    Service,
    /// The addresses of a Service, in the old form.
    Endpoints,
    /// The addresses of a Service.
    EndpointSlice,
    /// Pods that are alike.
    Deployment,
    /// A pod.
    Pod,
}

impl LessonKind {
    /// Its group, its name and that of many of it.
    pub fn names(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Service => ("", "Service", "services"),
            Self::Endpoints => ("", "Endpoints", "endpoints"),
            Self::EndpointSlice => ("discovery.k8s.io", "EndpointSlice", "endpointslices"),
            Self::Deployment => ("apps", "Deployment", "deployments"),
            Self::Pod => ("", "Pod", "pods"),
        }
    }

    /// The kind with that name.
    pub fn of(name: &str) -> Option<Self> {
        let all =
            [Self::Service, Self::Endpoints, Self::EndpointSlice, Self::Deployment, Self::Pod];
        all.into_iter().find(|kind| kind.names().1 == name)
    }
}
