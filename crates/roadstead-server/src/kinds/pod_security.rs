//! Pod Security: pods that the labels of their namespace do not allow are refused; whoever writes one, or a
//! workload that will make them, or makes the namespace stricter, hears of it.

use roadstead_api::pod_security::{Level, Modes, PodRules, refusal, stricter, warning};
use roadstead_schema::json::Pointer;
use serde_json::Value;

use crate::api::Api;
use crate::error::ApiError;
use crate::kinds::Notes;
use crate::kinds::admission::AdmissionPlugin;
use crate::objects::write::Context;
use crate::reading::object;

/// So many pods are looked at when a namespace is made stricter (upstream's number).
const PODS: usize = 3000;
/// In the annotations of the audit log.
const VIOLATIONS: &str = "pod-security.kubernetes.io/audit-violations";

/// The kinds that it is about: pods, where they are, and what makes them.
pub(super) const KINDS: &[&str] = &[
    "pods",
    "namespaces",
    "podtemplates",
    "replicationcontrollers",
    "daemonsets.apps",
    "deployments.apps",
    "replicasets.apps",
    "statefulsets.apps",
    "cronjobs.batch",
    "jobs.batch",
];

pub(super) struct PodSecurity;

impl AdmissionPlugin for PodSecurity {
    fn admit(
        &self,
        context: &Context<'_>,
        old: Option<&Value>,
        new: &mut Value,
    ) -> Result<(), ApiError> {
        match &*context.resource.bucket {
            "pods" => admit(context, old, new),
            "namespaces" => check_labels(context, old, new),
            _ => Ok(()),
        }
    }

    fn notes(&self, context: &Context<'_>, old: Option<&Value>, new: &Value) -> Notes {
        let template = match &*context.resource.bucket {
            "pods" => return pod_notes(context, old, new),
            "namespaces" => return namespace_notes(context, old, new),
            "podtemplates" => "/template",
            "cronjobs.batch" => "/spec/jobTemplate/spec/template",
            _ => "/spec/template",
        };
        match (context.subresource, new.pointer(template)) {
            ("", Some(template)) if template.is_object() => notes(context, template),
            _ => Notes::default(),
        }
    }
}

/// Refuses a pod that its namespace does not allow.
fn admit(context: &Context<'_>, old: Option<&Value>, new: &Value) -> Result<(), ApiError> {
    let rules = modes(context.api, context.namespace).enforce;
    if rules.level == Level::Privileged {
        return Ok(());
    }
    let Some(pod) = evaluated(context, old, new) else { return Ok(()) };
    let violations = rules.violations(&pod);
    if violations.is_empty() {
        return Ok(());
    }
    let names = [pod.text("/metadata/name"), pod.text("/metadata/generateName")];
    let name = names.into_iter().find(|name| !name.is_empty()).unwrap_or("Unknown");
    let why = refusal(&rules, &violations);
    Err(ApiError::forbidden_object(context.resource.info(), name, &why))
}

/// What is to be told about a pod that was written.
fn pod_notes(context: &Context<'_>, old: Option<&Value>, new: &Value) -> Notes {
    match evaluated(context, old, new) {
        Some(pod) => notes(context, &pod),
        None => Notes::default(),
    }
}

/// The pod as it will be, if a write changes anything that matters here: who writes one part of it says
/// nothing about the others.
fn evaluated(context: &Context<'_>, old: Option<&Value>, new: &Value) -> Option<Value> {
    let Some(old) = old else {
        let mut pod = new.clone();
        context.resource.kind.default(&mut pod);
        return Some(pod);
    };
    match context.subresource {
        "" => (images(old) != images(new)).then(|| new.clone()),
        "ephemeralcontainers" => {
            let mut pod = old.clone();
            pod["spec"]["ephemeralContainers"] = new["spec"]["ephemeralContainers"].clone();
            (images(old) != images(&pod)).then_some(pod)
        }
        _ => None,
    }
}

fn images(pod: &Value) -> Vec<(&str, &str)> {
    let lists = ["/spec/containers", "/spec/initContainers", "/spec/ephemeralContainers"];
    let all = lists.iter().flat_map(|list| pod.list(list));
    all.map(|container| (container.text("/name"), container.text("/image"))).collect()
}

fn notes(context: &Context<'_>, pod: &Value) -> Notes {
    let Modes { audit, warn, .. } = modes(context.api, context.namespace);
    let said = |rules: &PodRules| {
        let violations = rules.violations(pod);
        (!violations.is_empty()).then(|| warning(rules, &violations))
    };
    Notes {
        warnings: said(&warn).into_iter().collect(),
        audit: said(&audit).map(|violations| (VIOLATIONS, violations)).into_iter().collect(),
    }
}

/// The rules of a namespace.
fn modes(api: &Api, namespace: &str) -> Modes {
    let key = api.registry().core("namespaces").key("", namespace);
    let Some(entry) = api.storage.store.get(&key) else { return Modes::default() };
    // Few namespaces mention it, and only those need a closer look.
    let word = b"pod-security.kubernetes.io/";
    match entry.value.windows(word.len()).any(|part| part == word) {
        true => Modes::of_namespace(&object::value(&entry)).0,
        false => Modes::default(),
    }
}

/// Refuses labels of a namespace that make no sense, unless they were there before.
fn check_labels(context: &Context<'_>, old: Option<&Value>, new: &Value) -> Result<(), ApiError> {
    let causes = Modes::of_namespace(new).1;
    let known = old.map(|old| Modes::of_namespace(old).1).unwrap_or_default();
    match !context.subresource.is_empty() || causes.0.is_empty() || causes.0 == known.0 {
        true => Ok(()),
        false => {
            let name = new.text("/metadata/name");
            Err(ApiError::invalid(context.resource.info(), name, &causes.0))
        }
    }
}

/// Tells whoever makes a namespace stricter which of its pods would be refused now.
fn namespace_notes(context: &Context<'_>, old: Option<&Value>, new: &Value) -> Notes {
    let rules = Modes::of_namespace(new).0.enforce;
    let before = old.map(|old| Modes::of_namespace(old).0.enforce);
    let api = context.api;
    if !context.subresource.is_empty()
        || !before.is_some_and(|before| rules.may_refuse_more_than(&before))
    {
        return Notes::default();
    }
    let registry = api.registry();
    let pods = registry.core("pods");
    let name = new.text("/metadata/name");
    let Ok(found) = api.storage.store.list(&pods.bucket, &pods.prefix(name), None) else {
        let failed = "failed to list pods while checking new PodSecurity enforce level";
        return Notes { warnings: vec![failed.to_owned()], ..Notes::default() };
    };
    let some: Vec<_> = found.entries.iter().take(PODS).map(|entry| object::value(entry)).collect();
    let warnings = stricter(name, &rules, &some, found.entries.len());
    Notes { warnings, ..Notes::default() }
}
