//! The kinds of others that Roadstead can make known: CustomResourceDefinitions, written here.

use serde_json::Value;

/// The kinds of the Prometheus operator that its users write: ServiceMonitor and PrometheusRule.
///
/// # Panics
///
/// Never: a test reads them.
pub fn prometheus_operator() -> Vec<Value> {
    let text = include_str!("../data/definitions.yaml");
    serde_saphyr::from_str(text).expect("the file was read by a test")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_are_there() {
        let definitions = prometheus_operator();
        let names: Vec<_> =
            definitions.iter().map(|own| own["metadata"]["name"].as_str().unwrap()).collect();
        let want =
            ["servicemonitors.monitoring.coreos.com", "prometheusrules.monitoring.coreos.com"];
        assert_eq!(names, want);
        // What is written once is there wherever it is named.
        let of = |own: &Value, path: &str| {
            let root = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties";
            own.pointer(&format!("{root}{path}")).unwrap().clone()
        };
        let duration = of(&definitions[0], "/endpoints/items/properties/scrapeTimeout");
        assert_eq!(of(&definitions[1], "/groups/items/properties/interval"), duration);
        assert_eq!(duration["type"], "string");
    }
}
