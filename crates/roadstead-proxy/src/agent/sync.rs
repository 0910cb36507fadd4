//! What must have been taken in once, as a whole, before anything is written.

use std::collections::BTreeSet;

use super::config::Config;

/// Something that the agent follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Source {
    Services,
    EndpointSlices,
    /// Our own Node.
    Node,
    AllNodes,
    ServiceCidrs,
}

/// The sources that are not known yet.
#[derive(Debug)]
pub(super) struct InitialSync {
    followed: BTreeSet<Source>,
    awaited: BTreeSet<Source>,
}

impl InitialSync {
    /// Nothing is known yet of all that is to be followed.
    pub(super) fn new(config: &Config) -> Self {
        let needs = &config.mode.kind().needs;
        let sources = [
            (Source::Services, true),
            (Source::EndpointSlices, true),
            (Source::Node, config.follow.node),
            (Source::AllNodes, config.follow.node && needs.all_nodes),
            (Source::ServiceCidrs, config.follow.service_networks),
        ];
        let followed = sources.into_iter().filter(|(_, follow)| *follow).map(|(source, _)| source);
        let followed: BTreeSet<_> = followed.collect();
        Self { awaited: followed.clone(), followed }
    }

    /// Whether a source is followed at all.
    pub(super) fn follows(&self, source: Source) -> bool {
        self.followed.contains(&source)
    }

    /// All that a source has is known.
    pub(super) fn note_synced(&mut self, source: Source) {
        self.awaited.remove(&source);
    }

    /// Whether everything is known.
    pub(super) fn is_done(&self) -> bool {
        self.awaited.is_empty()
    }
}
