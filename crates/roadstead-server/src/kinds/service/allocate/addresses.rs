//! Which addresses a Service gets.

use std::net::IpAddr;
use std::time::Instant;

use roadstead_api::ip::{self, Family};
use roadstead_api::kinds::service::{families, is_headless};
use roadstead_plan::alloc;
use roadstead_schema::invalid::Causes;
use roadstead_schema::json::Pointer;
use serde_json::{Value, json};

use super::metrics::{Counters, Scope};
use super::{Allocation, Source, address_key, seed};
use crate::error::ApiError;
use crate::kinds::service_cidr::{KnownRanges, Range};

/// Fills in the addresses of a Service whose families are settled. Returns where they come from.
pub(super) fn allocate(
    allocation: &Allocation<'_>,
    service: &mut Value,
) -> Result<Vec<Source>, ApiError> {
    let spec = &service["spec"];
    let wanted = families::families_of(spec);
    let Some(first) = first_missing(allocation.old.map(|old| &old["spec"]), spec, wanted.len())
    else {
        return Ok(Vec::new());
    };
    let mut addresses: Vec<_> = spec.list("/clusterIPs").to_vec();
    addresses.resize(wanted.len().max(addresses.len()), "".into());
    let known = allocation.network.ranges.now();
    let mut sources = Vec::new();
    for (index, &family) in wanted.iter().enumerate().skip(first) {
        let named = addresses[index].as_str().unwrap_or("").to_owned();
        if named.is_empty() {
            let (address, source) = counted_pick(allocation, &known, family)
                .ok_or_else(|| full(service.text("/metadata/name")))?;
            addresses[index] = address.to_string().into();
            sources.push(source);
        } else {
            match counted_claim(allocation, &known, &named) {
                Ok(source) => sources.push(source),
                Err(why) => {
                    let mut causes = Causes::default();
                    let why = format!("failed to allocate IP {named}: {why}");
                    causes.invalid("spec.clusterIPs", &json!(addresses), why);
                    allocation.refuse(service, &causes)?;
                }
            }
        }
    }
    service["spec"]["clusterIP"] = addresses[0].clone();
    service["spec"]["clusterIPs"] = addresses.into();
    Ok(sources)
}

/// From which position on addresses are missing: all of a Service that had none, the second of one
/// that asks for it now. Whatever else an update does to addresses is refused later.
fn first_missing(old: Option<&Value>, new: &Value, wanted: usize) -> Option<usize> {
    if new.text("/type") == "ExternalName" || is_headless(new) || families::is_left_alone(old, new)
    {
        return None;
    }
    let Some(old) = old.filter(|old| old.text("/type") != "ExternalName") else { return Some(0) };
    let grows = old.list("/ipFamilies").len() == 1 && wanted == 2;
    (!is_headless(old) && grows).then_some(1)
}

fn counted_pick(
    allocation: &Allocation<'_>,
    known: &KnownRanges,
    family: Family,
) -> Option<(IpAddr, Source)> {
    let began = Instant::now();
    let picked = pick(allocation, known, family);
    let range = |range: &&Range| match picked {
        Some((address, _)) => range.net.contains(&address),
        None => range.family() == family,
    };
    if let Some(counters) = counters(allocation) {
        let net = known.ready.iter().find(range).map(|range| range.net);
        counters.address(net, Scope::Dynamic, began, picked.is_some());
    }
    picked
}

fn counted_claim(
    allocation: &Allocation<'_>,
    known: &KnownRanges,
    named: &str,
) -> Result<Source, &'static str> {
    let began = Instant::now();
    let claimed = claim(allocation, known, named);
    let address = ip::parse(named);
    let range = |range: &&Range| address.is_some_and(|address| range.net.contains(&address));
    if let Some(counters) = counters(allocation) {
        let net = known.ready.iter().find(range).map(|range| range.net);
        counters.address(net, Scope::Static, began, claimed.is_ok());
    }
    claimed
}

/// A dry run is not counted.
fn counters<'a>(allocation: &Allocation<'a>) -> Option<&'a Counters> {
    (!allocation.dry_run).then_some(allocation.counters)
}

/// Any free address of a family.
fn pick(
    allocation: &Allocation<'_>,
    known: &KnownRanges,
    family: Family,
) -> Option<(IpAddr, Source)> {
    let store = allocation.store;
    let taken = |address: IpAddr| store.get(&address_key(address)).is_some();
    known.ready.iter().filter(|range| range.family() == family).find_map(|range| {
        let address = match allocation.dry_run {
            // An address that nobody can have.
            true => Some(range.net.network()),
            false => alloc::cluster_ip(range.net, taken, seed()),
        };
        Some((address?, range.source()))
    })
}

/// A certain address.
fn claim(
    allocation: &Allocation<'_>,
    known: &KnownRanges,
    named: &str,
) -> Result<Source, &'static str> {
    let address = ip::parse(named);
    let range = known
        .ready
        .iter()
        .find(|range| address.is_some_and(|ip| alloc::may_be_allocated(range.net, ip)));
    let (Some(address), Some(range)) = (address, range) else {
        return Err("the provided network does not match the current range");
    };
    if !allocation.dry_run && allocation.store.get(&address_key(address)).is_some() {
        return Err("provided IP is already allocated");
    }
    Ok(range.source())
}

fn full(name: &str) -> ApiError {
    let message = format!("failed to allocate a serviceIP for Service {name:?}: range is full");
    ApiError::internal(message)
}
