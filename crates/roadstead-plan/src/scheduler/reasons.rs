//! Why a pod cannot be on a node, in upstream's words, and what may change it.

use std::collections::BTreeMap;
use std::fmt;

/// Why one node does not take a pod.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Obstacle<'a> {
    Unschedulable,
    Taint {
        key: &'a str,
        value: &'a str,
    },
    NodeAffinity,
    Ports,
    /// Of what there is too little, and whether there would be enough on an empty node.
    Insufficient {
        name: &'a str,
        ever: bool,
    },
    Volume,
    NoVolume,
    SpreadLabel,
    Spread,
    Affinity,
    AntiAffinity,
    OthersAntiAffinity,
}

impl Obstacle<'_> {
    /// Whether it stays, whichever pods go.
    pub(super) fn is_final(&self) -> bool {
        match self {
            Self::Unschedulable
            | Self::Taint { .. }
            | Self::NodeAffinity
            | Self::Volume
            | Self::NoVolume
            | Self::SpreadLabel
            | Self::Affinity => true,
            Self::Insufficient { ever, .. } => !ever,
            Self::Ports | Self::Spread | Self::AntiAffinity | Self::OthersAntiAffinity => false,
        }
    }

    /// After what it may be gone.
    fn ends_with(&self) -> Wakeups {
        let more = match self {
            Self::Insufficient { .. }
            | Self::Ports
            | Self::AntiAffinity
            | Self::OthersAntiAffinity => Wakeups::of(Occasion::PodGone),
            Self::Affinity => Wakeups::of(Occasion::PodPlaced),
            Self::Spread => Wakeups::of(Occasion::PodGone).or(Wakeups::of(Occasion::PodPlaced)),
            Self::Volume | Self::NoVolume => Wakeups::of(Occasion::VolumeChanged),
            Self::Unschedulable | Self::Taint { .. } | Self::NodeAffinity | Self::SpreadLabel => {
                Wakeups::default()
            }
        };
        more.or(Wakeups::of(Occasion::NodeChanged))
    }
}

impl fmt::Display for Obstacle<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = match self {
            Self::Unschedulable => "node(s) were unschedulable",
            Self::Taint { key, value } => {
                return write!(f, "node(s) had untolerated taint {{{key}: {value}}}");
            }
            Self::NodeAffinity => "node(s) didn't match Pod's node affinity/selector",
            Self::Ports => "node(s) didn't have free ports for the requested pod ports",
            Self::Insufficient { name: "pods", .. } => "Too many pods",
            Self::Insufficient { name, .. } => return write!(f, "Insufficient {name}"),
            Self::Volume => "node(s) had volume node affinity conflict",
            Self::NoVolume => "node(s) didn't find available persistent volumes to bind",
            Self::SpreadLabel => {
                "node(s) didn't match pod topology spread constraints (missing required label)"
            }
            Self::Spread => "node(s) didn't match pod topology spread constraints",
            Self::Affinity => "node(s) didn't match pod affinity rules",
            Self::AntiAffinity => "node(s) didn't match pod anti-affinity rules",
            Self::OthersAntiAffinity => "node(s) didn't satisfy existing pods anti-affinity rules",
        };
        f.write_str(words)
    }
}

/// Something that may help pods that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Occasion {
    /// A node came, or is different in something that is asked about.
    NodeChanged,
    /// A pod has left its node, or others do not see it any more.
    PodGone,
    /// A pod is on a node now, or has other labels.
    PodPlaced,
    /// A volume, a claim or a class has changed.
    VolumeChanged,
}

/// After what it is worth looking at a pod again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wakeups(u8);

impl Wakeups {
    pub(super) fn of(occasion: Occasion) -> Self {
        Self(1 << occasion as u8)
    }

    pub(super) fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether this is one of them.
    pub fn include(self, occasion: Occasion) -> bool {
        self.0 & Self::of(occasion).0 != 0
    }
}

/// What is the matter with all nodes together.
#[derive(Debug, Default)]
pub(super) struct Diagnosis {
    nodes: usize,
    reasons: BTreeMap<String, usize>,
    pub(super) wakeups: Wakeups,
}

impl Diagnosis {
    pub(super) fn of(nodes: usize) -> Self {
        let wakeups = Wakeups::of(Occasion::NodeChanged);
        Self { nodes, reasons: BTreeMap::new(), wakeups }
    }

    /// So many nodes have this in the way.
    pub(super) fn note(&mut self, obstacle: &Obstacle<'_>, nodes: usize) {
        self.wakeups = self.wakeups.or(obstacle.ends_with());
        self.say(obstacle.to_string(), nodes);
    }

    pub(super) fn say(&mut self, why: impl Into<String>, nodes: usize) {
        if nodes > 0 {
            *self.reasons.entry(why.into()).or_default() += nodes;
        }
    }
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut reasons: Vec<_> =
            self.reasons.iter().map(|(why, count)| format!("{count} {why}")).collect();
        reasons.sort();
        write!(f, "0/{} nodes are available: {}.", self.nodes, reasons.join(", "))
    }
}
