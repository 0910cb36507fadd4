//! Pods: time to go, and what there is below them. Their account and their priority are those of admission
//! plugins.

use roadstead_api::kinds::pod;
use roadstead_schema::json::{Pointer, child};
use serde_json::Value;

use crate::error::ApiError;
use crate::kinds::admission::AdmissionPlugin;
use crate::kinds::{Access, GroupVersionKind, Strategy, Subresource, proxy};
use crate::objects::write::{Context, Writable};

pub(super) mod account;
mod binding;
mod eviction;
mod options;
pub(super) mod priority;
pub(super) mod resize;
mod streams;

pub(super) struct Pods;

impl Strategy for Pods {
    fn subresources(&self) -> &'static [Subresource] {
        const {
            &[
                Subresource {
                    name: "proxy",
                    kind: Some(GroupVersionKind::new("", "v1", "PodProxyOptions")),
                    verbs: proxy::VERBS,
                    access: Access::Connect(proxy::pod),
                },
                Subresource::part("ephemeralcontainers", Writable::Field("ephemeralContainers")),
                Subresource::part(pod::RESIZE, Writable::Chosen(pod::RESIZE)),
                Subresource {
                    name: "binding",
                    kind: Some(GroupVersionKind::new("", "v1", "Binding")),
                    verbs: &["create"],
                    access: Access::Call(binding::bind),
                },
                Subresource {
                    name: "eviction",
                    kind: Some(GroupVersionKind::new("policy", "v1", "Eviction")),
                    verbs: &["create"],
                    access: Access::Call(eviction::evict),
                },
                Subresource {
                    name: "log",
                    kind: None,
                    verbs: &["get"],
                    access: Access::Connect(streams::log),
                },
                Subresource {
                    name: "exec",
                    kind: streams::options_kind("PodExecOptions"),
                    verbs: streams::VERBS,
                    access: Access::Connect(streams::exec),
                },
                Subresource {
                    name: "attach",
                    kind: streams::options_kind("PodAttachOptions"),
                    verbs: streams::VERBS,
                    access: Access::Connect(streams::attach),
                },
                Subresource {
                    name: "portforward",
                    kind: streams::options_kind("PodPortForwardOptions"),
                    verbs: streams::VERBS,
                    access: Access::Connect(streams::port_forward),
                },
            ]
        }
    }

    /// Only pods take time to go, and only those that a node may be running.
    fn grace(&self, pod: &Value, asked: Option<i64>) -> i64 {
        let finished = ["Succeeded", "Failed"].contains(&pod.text("/status/phase"));
        if pod.text("/spec/nodeName").is_empty() || finished {
            return 0;
        }
        asked.unwrap_or_else(|| pod.int("/spec/terminationGracePeriodSeconds")).max(0)
    }
}

/// Pods stay for a while on a node that does not answer.
pub(super) struct DefaultTolerations;

impl AdmissionPlugin for DefaultTolerations {
    fn admit(
        &self,
        context: &Context<'_>,
        _old: Option<&Value>,
        new: &mut Value,
    ) -> Result<(), ApiError> {
        if context.subresource.is_empty() {
            pod::tolerate_lost_nodes(child(new, "spec"));
        }
        Ok(())
    }
}

fn refusal(context: &Context<'_>, pod: &Value, why: &str) -> ApiError {
    ApiError::forbidden_object(context.resource.info(), pod.text("/metadata/name"), why)
}
