//! Whether a pod can be on a node: all rules that must hold, in upstream's order; the first that does
//! not hold says why.

use std::collections::BTreeMap;

use roadstead_api::node_affinity::NodeTraits;

use super::affinity::Company;
use super::needs::Needs;
use super::occupancy::Occupancy;
use super::placed::PlacedPod;
use super::ports::NodePortUse;
use super::reasons::{Diagnosis, Obstacle};
use super::room::Amount;
use super::spread::Spread;
use super::taints::untolerated;
use super::volumes::VolumeNeeds;
use crate::persistentvolume::reaches;

/// Everything that must hold for one pod, with numbers that are made once for all nodes.
#[derive(Debug)]
pub(super) struct Rules<'a> {
    pub(super) needs: Needs<'a>,
    volumes: &'a VolumeNeeds<'a>,
    company: Company,
    spread: Spread,
    reserved: BTreeMap<usize, (Amount, Vec<NodePortUse>)>,
}

/// What all nodes say.
pub(super) struct Answers {
    pub(super) feasible: Vec<usize>,
    /// Nodes on which there would be room if pods went.
    pub(super) helpable: Vec<usize>,
    pub(super) diagnosis: Diagnosis,
}

impl<'a> Rules<'a> {
    pub(super) fn new(
        needs: Needs<'a>,
        volumes: &'a VolumeNeeds<'a>,
        cluster: &mut Occupancy,
    ) -> Self {
        let mut reserved: BTreeMap<usize, (Amount, Vec<NodePortUse>)> = BTreeMap::new();
        for (slot, pod) in cluster.reserved(&needs.key, needs.priority) {
            let (amount, ports) = reserved.entry(slot).or_default();
            amount.add(&pod.amount);
            ports.extend(pod.ports.iter().cloned());
        }
        let company = Company::of(&needs, cluster);
        let spread = Spread::of(&needs, cluster);
        Self { needs, volumes, company, spread, reserved }
    }

    /// Asks all nodes, or those that the pod names.
    pub(super) fn ask(&self, cluster: &Occupancy) -> Answers {
        let mut diagnosis = Diagnosis::of(cluster.nodes());
        let (mut feasible, mut helpable) = (Vec::new(), Vec::new());
        let aims = self.needs.aims();
        let candidates: Vec<usize> = match &aims {
            Some(names) => names.iter().filter_map(|name| cluster.table.find(name)).collect(),
            None => cluster.table.all().map(|(slot, _, _)| slot).collect(),
        };
        diagnosis.note(&Obstacle::NodeAffinity, cluster.nodes() - candidates.len());
        for slot in candidates {
            let obstacles = self.obstacles(slot, &[], cluster);
            if obstacles.is_empty() {
                feasible.push(slot);
                continue;
            }
            obstacles.iter().for_each(|obstacle| diagnosis.note(obstacle, 1));
            if !obstacles.iter().any(Obstacle::is_final) {
                helpable.push(slot);
            }
        }
        Answers { feasible, helpable, diagnosis }
    }

    /// What keeps the pod from a node that these pods have left.
    pub(super) fn obstacles<'c>(
        &'c self,
        slot: usize,
        gone: &[&PlacedPod],
        cluster: &'c Occupancy,
    ) -> Vec<Obstacle<'c>> {
        let needs = &self.needs;
        let Some(node) = &cluster.table.slots[slot].state else {
            return vec![Obstacle::NodeAffinity];
        };
        let first = (node.is_unschedulable && !needs.bears_cordon)
            .then_some(Obstacle::Unschedulable)
            .or_else(|| untolerated(needs.tolerations, node))
            .or_else(|| (!needs.wants(node)).then_some(Obstacle::NodeAffinity))
            .or_else(|| self.is_taken(slot, gone, cluster).then_some(Obstacle::Ports));
        if let Some(first) = first {
            return vec![first];
        }
        let lacks = self.lacks(slot, gone, cluster);
        if !lacks.is_empty() {
            return lacks;
        }
        let last = self
            .is_out_of_reach(node.traits())
            .then_some(Obstacle::Volume)
            .or_else(|| self.volumes.choose(node.traits()).is_none().then_some(Obstacle::NoVolume))
            .or_else(|| self.spread.obstacle(slot, gone, cluster))
            .or_else(|| self.company.obstacle(slot, gone, cluster));
        last.into_iter().collect()
    }

    fn lacks<'c>(
        &'c self,
        slot: usize,
        gone: &[&PlacedPod],
        cluster: &'c Occupancy,
    ) -> Vec<Obstacle<'c>> {
        let (place, asks) = (&cluster.table.slots[slot], &self.needs.amount);
        let Some(node) = &place.state else { return Vec::new() };
        let reserved = self.reserved.get(&slot);
        if gone.is_empty() && reserved.is_none() {
            return node.room.lacks(asks, &place.used);
        }
        let mut there = place.used_without(gone);
        if let Some((reserved, _)) = reserved {
            there.add(reserved);
        }
        node.room.lacks(asks, &there)
    }

    fn is_taken(&self, slot: usize, gone: &[&PlacedPod], cluster: &Occupancy) -> bool {
        let wanted = &self.needs.ports;
        if wanted.is_empty() {
            return false;
        }
        let free = |port: &&NodePortUse| gone.iter().any(|pod| pod.ports.contains(port));
        let there = cluster.table.slots[slot].ports.iter().filter(|port| !free(port));
        let reserved = self.reserved.get(&slot).into_iter().flat_map(|(_, ports)| ports);
        let mut taken = there.chain(reserved);
        taken.any(|taken| wanted.iter().any(|port| port.excludes(taken)))
    }

    fn is_out_of_reach(&self, node: NodeTraits<'_>) -> bool {
        self.volumes.bound.iter().any(|volume| !reaches(volume, node))
    }
}
