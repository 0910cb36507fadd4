//! A component's metrics are made and registered in one line each.

use std::fmt::Debug;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode_registry;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry};

/// Makes metrics and registers them.
#[derive(Debug)]
pub struct Register<'a>(pub &'a mut Registry);

impl Register<'_> {
    /// A metric that starts at nothing: a counter, a gauge, or a family of them by labels.
    pub fn metric<M: Metric + Clone + Default>(&mut self, name: &str, help: &str) -> M {
        self.add(name, help, M::default())
    }

    /// Histograms by labels, each made by that function.
    pub fn histograms<L>(
        &mut self,
        name: &str,
        help: &str,
        make: fn() -> Histogram,
    ) -> Histograms<L>
    where
        L: Clone + Debug + Eq + std::hash::Hash + EncodeLabelSet + Send + Sync + 'static,
    {
        self.add(name, help, Family::new_with_constructor(make))
    }

    /// A metric that somebody else made.
    pub fn add<M: Metric + Clone>(&mut self, name: &str, help: &str, metric: M) -> M {
        self.0.register(name, help, metric.clone());
        metric
    }
}

/// A histogram for each set of labels.
pub type Histograms<L> = Family<L, Histogram, fn() -> Histogram>;

/// Everything that is registered, in the text format that Prometheus reads.
pub fn text(registry: &Registry) -> String {
    let mut text = String::new();
    encode_registry(&mut text, registry).expect("writing into a string cannot fail");
    text
}
