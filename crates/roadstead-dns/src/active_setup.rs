//! The configuration in use, with what goes with each block of its rules: the servers that are asked,
//! the questions to them that are under way, and what they said.
//!
//! A new configuration begins with nothing, so what comes late for the old one reaches nobody who asks
//! under the new one.

use std::sync::Arc;

use roadstead_dns_core::cache::AnswerCaches;
use roadstead_dns_core::message::{HEADER_LENGTH, read_name};
use roadstead_dns_core::setup::{Block, Setup};
use roadstead_zone::name::{Name, find_suffix};

use crate::chance;
use crate::flights::Flights;
use crate::metrics::CountedZones;
use crate::upstream::Upstreams;

/// A configuration, and what came of it so far.
#[derive(Debug)]
pub(crate) struct ActiveSetup {
    /// What is done with which names.
    pub setup: Setup,
    /// What others said.
    pub answers: AnswerCaches,
    blocks: Box<[ActiveBlock]>,
    /// All zones with the numbers by which they are counted, the longest first.
    counted: Box<[(Name, usize)]>,
}

#[derive(Debug)]
struct ActiveBlock {
    upstreams: Box<[Arc<Upstreams>]>,
    flights: Arc<Flights>,
}

impl ActiveSetup {
    /// Takes a configuration into use.
    pub(crate) fn new(setup: Setup, zones: &CountedZones) -> Arc<Self> {
        let upstreams = |block: &Block| {
            let groups = block.forwards.iter().map(|forward| forward.upstreams.clone());
            groups.map(|group| Arc::new(Upstreams::new(group))).collect()
        };
        let active =
            |block: &Block| ActiveBlock { upstreams: upstreams(block), flights: Arc::default() };
        let number = |zone: &Name| (zone.clone(), zones.number(&format!("{zone}.")));
        let mut counted: Vec<_> =
            setup.blocks().iter().flat_map(Block::zones).map(number).collect();
        counted.sort_by_key(|(zone, _)| std::cmp::Reverse(zone.wire().len()));
        Arc::new(Self {
            counted: counted.into(),
            answers: AnswerCaches::new(&setup, chance::number()),
            blocks: setup.blocks().iter().map(active).collect(),
            setup,
        })
    }

    /// The number by which a query is counted.
    pub(crate) fn counted_zone(&self, query: &[u8]) -> usize {
        // Nearly everybody has rules for the root and for nothing else.
        if let [(zone, number)] = &*self.counted
            && zone.wire() == [0]
        {
            return *number;
        }
        let Some((name, _)) = read_name(query, HEADER_LENGTH) else {
            return CountedZones::others();
        };
        let name = name.wire().to_ascii_lowercase();
        let within = |(zone, _): &&(Name, usize)| find_suffix(&name, zone.wire()).is_some();
        self.counted.iter().find(within).map_or_else(CountedZones::others, |(_, number)| *number)
    }

    /// The servers that one of a block's forwards names.
    pub(crate) fn forward(&self, block: &Block, number: usize) -> &Arc<Upstreams> {
        &self.blocks[block.number()].upstreams[number]
    }

    /// The questions that are under way by the rules of a block.
    pub(crate) fn flights(&self, block: &Block) -> &Arc<Flights> {
        &self.blocks[block.number()].flights
    }

    /// All servers.
    pub(crate) fn upstreams(&self) -> impl Iterator<Item = &Arc<Upstreams>> {
        self.blocks.iter().flat_map(|block| &block.upstreams)
    }
}
