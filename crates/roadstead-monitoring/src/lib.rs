//! What monitoring is told about a cluster, and what it is asked to look at.
//!
//! `objects` is the objects in numbers, under kube-state-metrics' names. `prometheus` makes of
//! ServiceMonitors and PrometheusRules the configuration that they mean, `definitions` are the kinds of
//! these two. Who watches, serves and writes files is elsewhere.

#![cfg_attr(test, allow(clippy::disallowed_methods))]

pub mod definitions;
pub mod objects;
pub mod prometheus;
