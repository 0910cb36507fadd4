//! A ServiceMonitor, and the jobs that it means.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::Deserialize;
use serde_json::{Value, json};

use super::endpoint::Endpoint;
use super::relabel::{self, Rules};
use super::{Discovery, Metadata, targets};

/// A ServiceMonitor, as far as it is understood.
#[derive(Debug, Deserialize)]
pub(super) struct ServiceMonitor {
    pub(super) metadata: Metadata,
    pub(super) spec: Spec,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Spec {
    #[serde(default)]
    pub(super) selector: LabelSelector,
    #[serde(default)]
    namespace_selector: NamespaceSelector,
    #[serde(default)]
    endpoints: Vec<Endpoint>,
    pub(super) job_label: Option<String>,
    #[serde(default)]
    pub(super) target_labels: Vec<String>,
    #[serde(default)]
    pub(super) pod_target_labels: Vec<String>,
    sample_limit: Option<u64>,
    target_limit: Option<u64>,
    label_limit: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct NamespaceSelector {
    #[serde(default)]
    any: bool,
    #[serde(default)]
    match_names: Vec<String>,
}

impl ServiceMonitor {
    /// The namespaces that it looks into; none are all. Nobody's choice is its own.
    pub(super) fn namespaces(&self) -> Vec<&str> {
        let chosen = &self.spec.namespace_selector;
        match (chosen.any, chosen.match_names.as_slice()) {
            (true, _) => Vec::new(),
            (false, []) => vec![&self.metadata.namespace],
            (false, names) => names.iter().map(String::as_str).collect(),
        }
    }

    /// One job for each of its endpoints.
    pub(super) fn jobs(&self, discovery: Discovery<'_>, notes: &mut Vec<String>) -> Vec<Value> {
        let Metadata { namespace, name } = &self.metadata;
        let jobs = self.spec.endpoints.iter().enumerate().map(|(index, endpoint)| {
            let mut job = json!({"job_name": format!("serviceMonitor/{namespace}/{name}/{index}")});
            endpoint.describe(&mut job);
            let left_out = endpoint.left_out().into_iter();
            notes.extend(left_out.map(|field| {
                format!("ServiceMonitor {namespace}/{name}: {field} is left out, write it yourself")
            }));
            for (field, limit) in [
                ("sample_limit", self.spec.sample_limit),
                ("target_limit", self.spec.target_limit),
                ("label_limit", self.spec.label_limit),
            ] {
                if let Some(limit) = limit {
                    job[field] = limit.into();
                }
            }
            let mut rules = Rules::default();
            relabel::of_selector(&self.spec.selector, &mut rules);
            relabel::of_endpoint(endpoint, &mut rules);
            relabel::of_labels(self, endpoint, &mut rules);
            rules.0.extend(endpoint.relabelings());
            job["relabel_configs"] = rules.0.into();
            match discovery {
                Discovery::Kubernetes(kubeconfig) => {
                    job["kubernetes_sd_configs"] = json!([self.question(kubeconfig)]);
                }
                Discovery::Static(cluster) => {
                    job["static_configs"] = targets::find(self, cluster).into();
                }
            }
            job
        });
        jobs.collect()
    }

    /// What Prometheus asks the API server for.
    fn question(&self, kubeconfig: Option<&str>) -> Value {
        let mut question = json!({"role": "endpointslice"});
        let namespaces = self.namespaces();
        if !namespaces.is_empty() {
            question["namespaces"] = json!({"names": namespaces});
        }
        if let Some(file) = kubeconfig {
            question["kubeconfig_file"] = file.into();
        }
        question
    }
}
