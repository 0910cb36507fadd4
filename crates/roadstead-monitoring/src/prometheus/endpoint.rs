//! One endpoint of a ServiceMonitor: what is scraped there, and how.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// What Prometheus calls what the operator calls otherwise, and takes as it is.
const FIELDS: [(&str, &str); 14] = [
    ("path", "metrics_path"),
    ("scheme", "scheme"),
    ("interval", "scrape_interval"),
    ("scrapeTimeout", "scrape_timeout"),
    ("honorLabels", "honor_labels"),
    ("honorTimestamps", "honor_timestamps"),
    ("params", "params"),
    ("proxyUrl", "proxy_url"),
    ("followRedirects", "follow_redirects"),
    ("enableHttp2", "enable_http2"),
    ("bearerTokenFile", "bearer_token_file"),
    ("trackTimestampsStaleness", "track_timestamps_staleness"),
    ("metricRelabelings", "metric_relabel_configs"),
    ("tlsConfig", "tls_config"),
];

/// What of `tlsConfig` names files and not Secrets.
const TLS_FIELDS: [(&str, &str); 5] = [
    ("caFile", "ca_file"),
    ("certFile", "cert_file"),
    ("keyFile", "key_file"),
    ("serverName", "server_name"),
    ("insecureSkipVerify", "insecure_skip_verify"),
];

/// Fields of a relabeling.
const RELABEL_FIELDS: [(&str, &str); 7] = [
    ("sourceLabels", "source_labels"),
    ("separator", "separator"),
    ("targetLabel", "target_label"),
    ("regex", "regex"),
    ("modulus", "modulus"),
    ("replacement", "replacement"),
    ("action", "action"),
];

/// What is read elsewhere.
const KNOWN: [&str; 4] = ["port", "targetPort", "relabelings", "filterRunning"];

/// One endpoint.
#[derive(Debug, Deserialize)]
pub(super) struct Endpoint(Map<String, Value>);

impl Endpoint {
    /// The name of a port of the Service.
    pub(super) fn port(&self) -> Option<&str> {
        self.0.get("port").and_then(Value::as_str).filter(|name| !name.is_empty())
    }

    /// A port of the pods.
    pub(super) fn target_port(&self) -> Option<IntOrString> {
        IntOrString::deserialize(self.0.get("targetPort")?).ok()
    }

    /// Whether pods that have ended are left alone.
    pub(super) fn only_running(&self) -> bool {
        self.0.get("filterRunning").and_then(Value::as_bool).unwrap_or(true)
    }

    /// How it is scraped.
    pub(super) fn describe(&self, job: &mut Value) {
        for (field, theirs) in FIELDS {
            let Some(value) = self.0.get(field) else { continue };
            job[theirs] = match field {
                "metricRelabelings" => renamed_list(value, &RELABEL_FIELDS),
                "tlsConfig" => renamed(value, &TLS_FIELDS),
                "scheme" => value.as_str().unwrap_or("http").to_lowercase().into(),
                _ => value.clone(),
            };
        }
    }

    /// What the user does to the labels of targets.
    pub(super) fn relabelings(&self) -> Vec<Value> {
        match self.0.get("relabelings").map(|all| renamed_list(all, &RELABEL_FIELDS)) {
            Some(Value::Array(all)) => all,
            _ => Vec::new(),
        }
    }

    /// What is in Secrets, or not known.
    pub(super) fn left_out(&self) -> Vec<String> {
        let is_known =
            |field: &str| FIELDS.iter().any(|(known, _)| *known == field) || KNOWN.contains(&field);
        let own = self.0.keys().filter(|field| !is_known(field)).cloned();
        let tls = self.0.get("tlsConfig").and_then(Value::as_object);
        let tls = tls.into_iter().flat_map(|tls| tls.keys());
        let secret = tls.filter(|field| !TLS_FIELDS.iter().any(|(known, _)| known == field));
        own.chain(secret.map(|field| format!("tlsConfig.{field}"))).collect()
    }
}

fn renamed(value: &Value, fields: &[(&str, &str)]) -> Value {
    let mut out = json!({});
    for (field, theirs) in fields {
        let Some(value) = value.get(field) else { continue };
        out[*theirs] = match *field {
            // The operator takes Replace as well as replace.
            "action" => value.as_str().unwrap_or_default().to_lowercase().into(),
            _ => value.clone(),
        };
    }
    out
}

fn renamed_list(value: &Value, fields: &[(&str, &str)]) -> Value {
    value.as_array().into_iter().flatten().map(|item| renamed(item, fields)).collect()
}
