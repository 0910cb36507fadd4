//! Putting endpoints into slices with few writes.
//!
//! Existing slices keep what they hold. New endpoints go first into slices that must be written
//! anyway; what is left goes into one more slice, old or new. Slices are never rebalanced: a write
//! costs every watcher, a half-empty slice costs nobody. (KEP-0752.)

use std::collections::BTreeMap;

use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};

/// The slices to write for one family and one set of ports.
#[derive(Debug, Default)]
pub struct Packed<'a> {
    /// The endpoints of new slices.
    pub create: Vec<Vec<Endpoint>>,
    /// Slices with their new endpoints.
    pub update: Vec<(&'a EndpointSlice, Vec<Endpoint>)>,
    /// Slices with nothing left in them.
    pub delete: Vec<&'a EndpointSlice>,
}

/// Packs `wanted` into slices of at most `max`, given the slices that exist.
pub fn pack<'a>(
    existing: &[&'a EndpointSlice],
    wanted: Vec<Endpoint>,
    max: usize,
    is_dressed: impl Fn(&EndpointSlice) -> bool,
) -> Packed<'a> {
    let mut packed = Packed::default();
    let mut untouched = Vec::new();
    let mut wanted: BTreeMap<_, _> = wanted.into_iter().map(|e| (identity(&e), e)).collect();
    for &slice in existing {
        let (kept, changed) = keep(slice, &mut wanted);
        if kept.is_empty() {
            packed.delete.push(slice);
        } else if changed || !is_dressed(slice) {
            packed.update.push((slice, kept));
        } else {
            untouched.push((slice, kept));
        }
    }
    let mut left: Vec<_> = wanted.into_values().collect();
    fill(&mut packed.update, &mut left, max);
    while left.len() >= max.max(1) {
        let rest = left.split_off(max.max(1));
        packed.create.push(std::mem::replace(&mut left, rest));
    }
    if !left.is_empty() {
        // The untouched slice that is fullest among those where all that is left fits.
        let room = untouched.iter().enumerate();
        let room = room.filter(|(_, (_, held))| held.len() + left.len() <= max);
        match room.max_by_key(|(index, (_, held))| (held.len(), usize::MAX - index)) {
            Some((index, _)) => {
                let (slice, mut held) = untouched.swap_remove(index);
                held.append(&mut left);
                packed.update.push((slice, held));
            }
            None => packed.create.push(left),
        }
    }
    packed.create.iter_mut().for_each(|endpoints| sort(endpoints));
    packed.update.iter_mut().for_each(|(_, endpoints)| sort(endpoints));
    packed
}

/// What stays in a slice, in its newest form, and whether that differs from what is there.
fn keep(slice: &EndpointSlice, wanted: &mut BTreeMap<Identity, Endpoint>) -> (Vec<Endpoint>, bool) {
    let mut changed = false;
    let mut kept = Vec::new();
    for endpoint in slice.endpoints.iter().flatten() {
        match wanted.remove(&identity(endpoint)) {
            Some(newest) => {
                changed |= newest != *endpoint;
                kept.push(newest);
            }
            None => changed = true,
        }
    }
    (kept, changed)
}

/// Fills slices that are written anyway, the fullest first.
fn fill(slices: &mut [(&EndpointSlice, Vec<Endpoint>)], left: &mut Vec<Endpoint>, max: usize) {
    let mut order: Vec<_> = (0..slices.len()).collect();
    order.sort_by_key(|&index| std::cmp::Reverse(slices[index].1.len()));
    for index in order {
        let room = max.saturating_sub(slices[index].1.len()).min(left.len());
        slices[index].1.extend(left.drain(..room));
    }
}

/// What makes two endpoints the same one: the rest are attributes that may change.
type Identity = (Vec<String>, Option<String>, Option<(Option<String>, Option<String>)>);

fn identity(endpoint: &Endpoint) -> Identity {
    let target = endpoint.target_ref.as_ref();
    let target = target.map(|target| (target.namespace.clone(), target.name.clone()));
    (endpoint.addresses.clone(), endpoint.hostname.clone(), target)
}

fn sort(endpoints: &mut [Endpoint]) {
    endpoints.sort_by(|a, b| a.addresses.cmp(&b.addresses));
}
