//! Which ports of the nodes a Service gets.

use std::collections::{BTreeMap, BTreeSet};

use roadstead_api::kinds::service::{is_on_nodes, needs_health_check, wants_node_ports};
use roadstead_plan::alloc;
use roadstead_schema::invalid::Causes;
use roadstead_schema::json::Pointer;
use serde_json::{Value, json};

use super::metrics::Scope;
use super::node_ports::NodePorts;
use super::{Allocation, seed};
use crate::error::ApiError;

/// Fills in the node ports of a Service, and the port of its health check.
pub(super) fn allocate(
    allocation: &Allocation<'_>,
    taken: &NodePorts<'_>,
    service: &mut Value,
) -> Result<(), ApiError> {
    let mut picker = Picker { allocation, taken, chosen: BTreeSet::new() };
    if is_on_nodes(&service["spec"]) {
        match allocation.old {
            None => picker.create(service)?,
            Some(old) => picker.update(old, service)?,
        }
    }
    let needed = allocation.old.is_some_and(|old| needs_health_check(&old["spec"]));
    if needs_health_check(&service["spec"]) && !needed {
        picker.health_check(&mut service["spec"])?;
    }
    Ok(())
}

/// Ports chosen for one Service, besides those that are taken.
struct Picker<'a> {
    allocation: &'a Allocation<'a>,
    taken: &'a NodePorts<'a>,
    chosen: BTreeSet<i64>,
}

impl Picker<'_> {
    /// Ports of the same number, as for TCP and UDP, share one node port.
    fn create(&mut self, service: &mut Value) -> Result<(), ApiError> {
        let wants = wants_node_ports(&service["spec"]);
        let mut shared: BTreeMap<i64, i64> = BTreeMap::new();
        for index in 0..service.list("/spec/ports").len() {
            let ports = service.list("/spec/ports");
            let (number, own) = (ports[index].int("/port"), ports[index].int("/nodePort"));
            if own == 0 && !wants {
                continue;
            }
            match shared.get(&number) {
                Some(&port) if own == 0 => set(service, index, port),
                Some(&port) if own != port => self.reserve(service, index, own)?,
                Some(_) => {}
                None => {
                    let twins = ports.iter().filter(|port| port.int("/port") == number);
                    let mut named = twins.map(|port| port.int("/nodePort"));
                    let named = named.find(|&port| port != 0);
                    let port = match named {
                        Some(port) => {
                            self.reserve(service, index, port)?;
                            port
                        }
                        None => self.next("a nodePort")?,
                    };
                    set(service, index, port);
                    shared.insert(number, port);
                }
            }
        }
        Ok(())
    }

    fn update(&mut self, old: &Value, service: &mut Value) -> Result<(), ApiError> {
        let wants = wants_node_ports(&service["spec"]);
        let before: BTreeSet<_> = match is_on_nodes(&old["spec"]) {
            true => old.list("/spec/ports").iter().map(|port| port.int("/nodePort")).collect(),
            false => BTreeSet::new(),
        };
        for index in 0..service.list("/spec/ports").len() {
            match service.list("/spec/ports")[index].int("/nodePort") {
                0 if wants => {
                    let port = self.next("a nodePort")?;
                    set(service, index, port);
                }
                0 => {}
                own if before.contains(&own) || self.chosen.contains(&own) => {}
                own => self.reserve(service, index, own)?,
            }
        }
        Ok(())
    }

    fn health_check(&mut self, spec: &mut Value) -> Result<(), ApiError> {
        let port = match spec.int("/healthCheckNodePort") {
            0 => self.next("a HealthCheck NodePort 0")?,
            own => {
                self.take(own).map_err(|why| {
                    let what = "failed to allocate requested HealthCheck NodePort";
                    ApiError::internal(format!("{what} {own}: {why}"))
                })?;
                own
            }
        };
        spec["healthCheckNodePort"] = port.into();
        Ok(())
    }

    /// A certain port, for the Service's port at `index`.
    fn reserve(&mut self, service: &Value, index: usize, port: i64) -> Result<(), ApiError> {
        let mut causes = Causes::default();
        if let Err(why) = self.take(port) {
            causes.invalid(format!("spec.ports[{index}].nodePort"), &json!(port), why);
        }
        self.allocation.refuse(service, &causes)
    }

    fn take(&mut self, port: i64) -> Result<(), String> {
        let taken = self.claim(port);
        self.count(Scope::Static, taken.is_ok());
        taken
    }

    fn count(&self, scope: Scope, found: bool) {
        if !self.allocation.dry_run {
            self.allocation.counters.port(scope, found);
        }
    }

    fn claim(&mut self, port: i64) -> Result<(), String> {
        let range = &self.allocation.network.services.node_ports;
        let number = u16::try_from(port).ok().filter(|number| range.contains(number));
        let Some(number) = number else {
            let (start, end) = (range.start(), range.end());
            return Err(format!(
                "provided port is not in the valid range. The range of valid ports is {start}-{end}"
            ));
        };
        if self.is_taken(number) {
            return Err("provided port is already allocated".to_owned());
        }
        self.chosen.insert(port);
        Ok(())
    }

    /// Any free port.
    fn next(&mut self, what: &str) -> Result<i64, ApiError> {
        let range = &self.allocation.network.services.node_ports;
        let port = match self.allocation.dry_run {
            // As upstream answers: a number that is easily told from a real one.
            true => Some(self.chosen.last().copied().unwrap_or(32_768) + 1),
            false => alloc::node_port(range, |port| self.is_taken(port), seed()).map(i64::from),
        };
        self.count(Scope::Dynamic, port.is_some());
        let port = port.ok_or_else(|| {
            ApiError::internal(format!("failed to allocate {what}: range is full"))
        })?;
        self.chosen.insert(port);
        Ok(port)
    }

    fn is_taken(&self, port: u16) -> bool {
        self.chosen.contains(&i64::from(port)) || self.taken.is_taken(port)
    }
}

fn set(service: &mut Value, index: usize, port: i64) {
    service["spec"]["ports"][index]["nodePort"] = port.into();
}
