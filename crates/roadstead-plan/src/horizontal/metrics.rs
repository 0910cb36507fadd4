//! The metrics of an autoscaler: what each of them proposes, and which proposal counts.

use k8s_openapi::api::autoscaling::v2::{
    ContainerResourceMetricStatus, HorizontalPodAutoscaler, MetricSpec, MetricStatus, MetricTarget,
    MetricValueStatus, ResourceMetricStatus,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use roadstead_api::quantity::exact;

use super::conditions::Conditions;
use super::measured::samples;
use super::replicas::{Calculation, Load, Tolerance};
use super::{Note, Seen};

/// What all metrics together come to.
pub(super) struct Proposals {
    /// The number of replicas and the metric that wants it; or why there is none.
    pub(super) outcome: Result<(i32, String), String>,
    /// What was measured, in the order of the metrics.
    pub(super) metrics: Vec<MetricStatus>,
}

/// What one metric proposes.
struct Proposal {
    replicas: i32,
    name: String,
    status: MetricStatus,
}

/// Why one metric proposes nothing.
struct Failure {
    reason: &'static str,
    /// The sentence that its kind of metric begins with.
    beginning: String,
    why: String,
}

/// The largest proposal counts. If one metric is unknown, the others do not make the number smaller.
pub(super) fn propose(
    scaler: &HorizontalPodAutoscaler,
    seen: &Seen<'_>,
    conditions: &mut Conditions,
) -> (Proposals, Vec<Note>) {
    let specs = scaler.spec.metrics.as_deref().unwrap_or_default();
    let (mut notes, mut statuses) = (Vec::new(), Vec::new());
    let (mut best, mut first): (Option<(i32, String)>, Option<Failure>) = (None, None);
    let mut invalid = 0;
    for spec in specs {
        match of(spec, scaler, seen) {
            Ok(Proposal { replicas, name, status }) => {
                statuses.push(status);
                if best.as_ref().is_none_or(|(most, _)| replicas > *most) {
                    best = Some((replicas, name));
                }
            }
            Err(failure) => {
                notes.push((true, failure.reason, failure.why.clone()));
                let type_ = spec.type_.clone();
                statuses.push(MetricStatus { type_, ..Default::default() });
                invalid += 1;
                first.get_or_insert(failure);
            }
        }
    }
    let outcome = match (best, first) {
        (Some((replicas, name)), first) if first.is_none() || replicas >= seen.replicas => {
            let text = "the HPA was able to successfully calculate a replica count from";
            conditions.set("ScalingActive", true, "ValidMetricFound", format!("{text} {name}"));
            Ok((replicas, name))
        }
        (_, Some(Failure { reason, beginning, why })) => {
            let text = format!("the HPA was unable to compute the replica count: {why}");
            conditions.set("ScalingActive", false, reason, text);
            let all = specs.len();
            Err(format!(
                "invalid metrics ({invalid} invalid out of {all}), first error is: {beginning}: {why}"
            ))
        }
        (_, None) => Err("invalid metrics (0 invalid out of 0)".to_owned()),
    };
    (Proposals { outcome, metrics: statuses }, notes)
}

fn of(
    spec: &MetricSpec,
    scaler: &HorizontalPodAutoscaler,
    seen: &Seen<'_>,
) -> Result<Proposal, Failure> {
    if let (Some(own), "Resource") = (&spec.resource, spec.type_.as_str()) {
        let (reason, kind) = ("FailedGetResourceMetric", "resource");
        let beginning = format!("failed to get {} {kind} metric value", own.name);
        let found = resource(scaler, seen, (&own.name, None), &own.target);
        let (replicas, name, current) = found.map_err(|why| Failure { reason, beginning, why })?;
        let status = ResourceMetricStatus { name: own.name.clone(), current };
        let resource = Some(status);
        let status = MetricStatus { type_: spec.type_.clone(), resource, ..Default::default() };
        return Ok(Proposal { replicas, name, status });
    }
    if let (Some(own), "ContainerResource") = (&spec.container_resource, spec.type_.as_str()) {
        let (reason, kind) = ("FailedGetContainerResourceMetric", "container");
        let beginning = format!("failed to get {} {kind} metric value", own.name);
        let found = resource(scaler, seen, (&own.name, Some(&own.container)), &own.target);
        let (replicas, name, current) = found.map_err(|why| Failure { reason, beginning, why })?;
        let status = ContainerResourceMetricStatus {
            name: own.name.clone(),
            container: own.container.clone(),
            current,
        };
        let type_ = spec.type_.clone();
        let container_resource = Some(status);
        let status = MetricStatus { type_, container_resource, ..Default::default() };
        return Ok(Proposal { replicas, name, status });
    }
    Err(of_others(spec, scaler, seen))
}

/// What is proposed by the use of a resource, by whole pods or by one container of each.
fn resource(
    scaler: &HorizontalPodAutoscaler,
    seen: &Seen<'_>,
    (name, container): (&str, Option<&str>),
    target: &MetricTarget,
) -> Result<(i32, String, MetricValueStatus), String> {
    let namespace = scaler.metadata.namespace.as_deref().unwrap_or("");
    let calculation = Calculation {
        seen,
        resource: name,
        container,
        tolerance: Tolerance::of(scaler.spec.behavior.as_ref()),
    };
    let kind = if container.is_some() { "container resource" } else { "resource" };
    let wanted = target.average_value.as_ref();
    if let Some(wanted) = wanted.and_then(|wanted| exact::Quantity::parse(&wanted.0)) {
        let failed = |why| format!("failed to get {name} usage: {why}");
        let samples = samples(&seen.measured, namespace, name, container).map_err(failed)?;
        let load = Load::Amount(wanted.in_thousandths());
        let found = calculation.replicas(&samples, load).map_err(failed)?;
        let current = MetricValueStatus {
            average_value: Some(quantity(found.average)),
            ..Default::default()
        };
        return Ok((found.replicas, format!("{name} {kind}"), current));
    }
    let Some(percent) = target.average_utilization else {
        return Err(
            "invalid resource metric source: neither an average utilization target nor an \
            average value (usage) target was set"
                .to_owned(),
        );
    };
    let failed = |why| format!("failed to get {name} utilization: {why}");
    let samples = samples(&seen.measured, namespace, name, container).map_err(failed)?;
    let found = calculation.replicas(&samples, Load::Percent(percent)).map_err(failed)?;
    let current = MetricValueStatus {
        average_utilization: found.percent,
        average_value: Some(quantity(found.average)),
        value: None,
    };
    Ok((found.replicas, format!("{name} {kind} utilization (percentage of request)"), current))
}

fn quantity(thousandths: i64) -> Quantity {
    Quantity(exact::Quantity::thousandths(thousandths).to_string())
}

/// Metrics that other APIs have, which nobody here serves.
fn of_others(spec: &MetricSpec, scaler: &HorizontalPodAutoscaler, seen: &Seen<'_>) -> Failure {
    let namespace = scaler.metadata.namespace.as_deref().unwrap_or("");
    let custom = |name: &str, about: String| {
        let why = match seen.adapters.contains(&CUSTOM) {
            true => format!("{CUSTOM} is served, but this controller does not read it"),
            false => format!("no custom metrics API ({CUSTOM}) registered"),
        };
        let from = "unable to fetch metrics from custom metrics API";
        format!("unable to get metric {name}: {about}{from}: {why}")
    };
    if let (Some(own), "Pods") = (&spec.pods, spec.type_.as_str()) {
        let (reason, beginning) =
            ("FailedGetPodsMetric", "failed to get pods metric value".to_owned());
        return Failure { reason, beginning, why: custom(&own.metric.name, String::new()) };
    }
    if let (Some(own), "Object") = (&spec.object, spec.type_.as_str()) {
        let (kind, name) = (&own.described_object.kind, &own.described_object.name);
        let why = custom(&own.metric.name, format!("{kind} on {namespace} {name}/"));
        let beginning = "failed to get object metric value".to_owned();
        return Failure { reason: "FailedGetObjectMetric", beginning, why };
    }
    if let (Some(own), "External") = (&spec.external, spec.type_.as_str()) {
        let name = &own.metric.name;
        let why = match seen.adapters.contains(&EXTERNAL) {
            true => format!("{EXTERNAL} is served, but this controller does not read it"),
            false => format!(
                "unable to fetch metrics from external metrics API: the server could not find the \
                 requested resource (get {name}.{EXTERNAL})"
            ),
        };
        let selector = own.metric.selector.as_ref().map_or("nil".to_owned(), shown);
        let why = format!("unable to get external metric {namespace}/{name}/{selector}: {why}");
        let beginning = format!("failed to get {name} external metric value");
        return Failure { reason: "FailedGetExternalMetric", beginning, why };
    }
    let why = format!("unknown metric source type {:?}", spec.type_);
    Failure { reason: "InvalidMetricSourceType", beginning: why.clone(), why }
}

const CUSTOM: &str = "custom.metrics.k8s.io";
const EXTERNAL: &str = "external.metrics.k8s.io";

/// A selector as Go prints it.
fn shown(selector: &k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector) -> String {
    let labels = selector.match_labels.iter().flatten();
    let labels: String = labels.map(|(key, value)| format!("{key}: {value},")).collect();
    format!(
        "&LabelSelector{{MatchLabels:map[string]string{{{labels}}},\
         MatchExpressions:[]LabelSelectorRequirement{{}},}}"
    )
}
