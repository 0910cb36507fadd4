//! Putting endpoints into slices with few writes.
//!
//! Existing slices keep what they hold. New endpoints go first into slices that must be written
//! anyway; what is left goes into one more slice, old or new. Slices are never rebalanced: a write
//! costs every watcher, a half-empty slice costs nobody. (KEP-0752.)

use std::collections::BTreeMap;

use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};

use super::desired::Candidate;

/// The slices to write for one family and one set of ports.
#[derive(Debug, Default)]
pub(crate) struct Packed<'a> {
    /// The endpoints of new slices.
    pub create: Vec<Vec<Endpoint>>,
    /// Slices with their new endpoints.
    pub update: Vec<(&'a EndpointSlice, Vec<Endpoint>)>,
    /// Slices that are right.
    pub untouched: Vec<&'a EndpointSlice>,
    /// Slices with nothing left in them.
    pub delete: Vec<&'a EndpointSlice>,
    /// How many endpoints came.
    pub added: usize,
    /// How many endpoints went.
    pub removed: usize,
}

/// The candidates by pod, and which of them have found their place.
struct Wanted<'a> {
    all: Vec<Candidate<'a>>,
    by_pod: BTreeMap<&'a str, usize>,
    placed: Vec<bool>,
}

/// What becomes of an existing slice.
enum Fate {
    Empty,
    Right,
    Changed(Vec<Endpoint>),
}

/// Packs `wanted` into slices of at most `max`, given the slices that exist.
pub(super) fn pack<'a>(
    existing: &[&'a EndpointSlice],
    wanted: Vec<Candidate<'_>>,
    max: usize,
    is_dressed: impl Fn(&EndpointSlice) -> bool,
) -> Packed<'a> {
    let max = max.max(1);
    let mut packed = Packed::default();
    let by_pod = wanted.iter().enumerate().map(|(index, c)| (c.pod.name(), index)).collect();
    let placed = vec![false; wanted.len()];
    let mut wanted = Wanted { all: wanted, by_pod, placed };
    for &slice in existing {
        let (fate, removed) = wanted.judge(slice, is_dressed(slice), max);
        packed.removed += removed;
        match fate {
            Fate::Empty => packed.delete.push(slice),
            Fate::Right => packed.untouched.push(slice),
            Fate::Changed(endpoints) => packed.update.push((slice, endpoints)),
        }
    }
    let mut left = wanted.left();
    packed.added = left.len();
    fill(&mut packed.update, &mut left, max);
    while left.len() >= max {
        let rest = left.split_off(max);
        packed.create.push(std::mem::replace(&mut left, rest));
    }
    if !left.is_empty() {
        // The untouched slice that is fullest among those where all that is left fits.
        let room = packed.untouched.iter().enumerate();
        let room = room.filter(|(_, slice)| size(slice) + left.len() <= max);
        match room.max_by_key(|(index, slice)| (size(slice), usize::MAX - index)) {
            Some((index, _)) => {
                let slice = packed.untouched.remove(index);
                let mut held = slice.endpoints.clone().unwrap_or_default();
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

fn size(slice: &EndpointSlice) -> usize {
    slice.endpoints.as_ref().map_or(0, Vec::len)
}

impl Wanted<'_> {
    /// What stays in a slice, in its newest form, and how many of its endpoints go.
    fn judge(&mut self, slice: &EndpointSlice, is_dressed: bool, max: usize) -> (Fate, usize) {
        let held = slice.endpoints.as_deref().unwrap_or_default();
        let mut stays: Vec<(&Endpoint, usize)> = Vec::with_capacity(held.len());
        for endpoint in held {
            let name = endpoint.target_ref.as_ref().and_then(|target| target.name.as_deref());
            let found = name.and_then(|name| self.by_pod.get(name)).copied();
            let found = found.filter(|&i| !self.placed[i] && self.all[i].is(endpoint));
            // A slice that is over a new, lower limit gives up what is too much.
            if let Some(index) = found.filter(|_| stays.len() < max) {
                self.placed[index] = true;
                stays.push((endpoint, index));
            }
        }
        let removed = held.len() - stays.len();
        if stays.is_empty() {
            return (Fate::Empty, removed);
        }
        let is_true =
            |(endpoint, index): &(&Endpoint, usize)| self.all[*index].is_described_by(endpoint);
        if is_dressed && removed == 0 && stays.iter().all(is_true) {
            return (Fate::Right, 0);
        }
        let newest = stays.iter().map(|stay| match is_true(stay) {
            true => stay.0.clone(),
            false => self.all[stay.1].to_endpoint(),
        });
        (Fate::Changed(newest.collect()), removed)
    }

    /// What has found no place yet.
    fn left(&self) -> Vec<Endpoint> {
        let all = self.all.iter().zip(&self.placed);
        all.filter(|(_, placed)| !**placed).map(|(candidate, _)| candidate.to_endpoint()).collect()
    }
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

fn sort(endpoints: &mut [Endpoint]) {
    endpoints.sort_by(|a, b| a.addresses.cmp(&b.addresses));
}
