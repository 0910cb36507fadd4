//! Kinds of others that the API server makes known at its start.

use clap::{Parser, ValueEnum};
use serde_json::Value;

/// Which kinds.
#[derive(Clone, Debug, Parser)]
pub(crate) struct DefinitionArgs {
    /// Make kinds of others known at the start, unless they are already: prometheus-operator stands for
    /// ServiceMonitor and PrometheusRule. Nothing acts on them; `roadstead prometheus` says what they mean.
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    install_crds: Vec<Definitions>,
}

/// Kinds that belong together.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Definitions {
    /// ServiceMonitor and PrometheusRule.
    PrometheusOperator,
}

impl DefinitionArgs {
    /// The CustomResourceDefinitions.
    pub(crate) fn objects(&self) -> Vec<Value> {
        let of = |definitions: &Definitions| match definitions {
            Definitions::PrometheusOperator => {
                roadstead_monitoring::definitions::prometheus_operator()
            }
        };
        self.install_crds.iter().flat_map(of).collect()
    }
}
