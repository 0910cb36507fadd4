//! How much room there is on a node, and how much of it a pod takes.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, ResourceRequirements};
use roadstead_api::quantity;
use roadstead_api::requests::Requests;

use super::reasons::Obstacle;

/// What one or several pods take of their node.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Amount {
    pub pods: u64,
    pub asked: Requests,
    /// For choosing among nodes that have enough.
    pub estimated: Requests,
    /// Everything else that is asked for, by name.
    pub devices: BTreeMap<String, u64>,
}

impl Amount {
    pub(super) fn add(&mut self, other: &Self) {
        self.pods += other.pods;
        self.asked = self.asked.plus(other.asked);
        self.estimated = self.estimated.plus(other.estimated);
        for (name, more) in &other.devices {
            let own = self.devices.entry(name.clone()).or_default();
            *own = own.saturating_add(*more);
        }
    }

    /// Whether something is so much that what is added to it is lost. Whoever takes away from this
    /// takes away from others, too.
    pub(super) fn is_saturated(&self) -> bool {
        let of = |all: Requests| [all.cpu, all.memory, all.storage];
        let all = of(self.asked).into_iter().chain(of(self.estimated));
        all.chain(self.devices.values().copied()).any(|amount| amount == u64::MAX)
    }

    pub(super) fn subtract(&mut self, other: &Self) {
        self.pods = self.pods.saturating_sub(other.pods);
        self.asked = self.asked.minus(other.asked);
        self.estimated = self.estimated.minus(other.estimated);
        for (name, less) in &other.devices {
            if let Some(own) = self.devices.get_mut(name) {
                *own = own.saturating_sub(*less);
            }
        }
        self.devices.retain(|_, amount| *amount > 0);
    }
}

/// What a node has for pods. A node that does not say how much it has of something is not held to it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Room {
    pub pods: Option<u64>,
    pub cpu: Option<u64>,
    pub memory: Option<u64>,
    pub storage: Option<u64>,
    devices: BTreeMap<String, u64>,
}

const KNOWN: [&str; 4] = ["pods", "cpu", "memory", "ephemeral-storage"];

impl Room {
    pub(super) fn of(node: &Node) -> Self {
        let allocatable = node.status.as_ref().and_then(|status| status.allocatable.clone());
        let Some(all) = allocatable else { return Self::default() };
        let count = |text: &str| quantity::read(text).unwrap_or(0.0).max(0.0) as u64;
        let devices = all.iter().filter(|(name, _)| !KNOWN.contains(&name.as_str()));
        let devices = devices.map(|(name, amount)| (name.clone(), count(&amount.0))).collect();
        let pods = all.get("pods").map(|amount| count(&amount.0));
        let [cpu, memory, storage] =
            ["cpu", "memory", "ephemeral-storage"].map(|name| all.contains_key(name));
        let requests = Some(all);
        let own = ResourceRequirements { requests, ..ResourceRequirements::default() };
        let own = Requests::of(Some(&own));
        Self {
            pods,
            cpu: cpu.then_some(own.cpu),
            memory: memory.then_some(own.memory),
            storage: storage.then_some(own.storage),
            devices,
        }
    }

    /// What there is too little of for one more pod, beside those that are there.
    pub(super) fn lacks<'a>(&self, asks: &'a Amount, there: &Amount) -> Vec<Obstacle<'a>> {
        let mut found = Vec::new();
        let mut check = |name: &'a str, asked: u64, used: u64, has: Option<u64>| {
            if let Some(has) = has.filter(|has| asked > 0 && used.saturating_add(asked) > *has) {
                found.push(Obstacle::Insufficient { name, ever: asked <= has });
            }
        };
        check(KNOWN[0], asks.pods, there.pods, self.pods);
        check(KNOWN[1], asks.asked.cpu, there.asked.cpu, self.cpu);
        check(KNOWN[2], asks.asked.memory, there.asked.memory, self.memory);
        check(KNOWN[3], asks.asked.storage, there.asked.storage, self.storage);
        for (name, asked) in &asks.devices {
            let used = there.devices.get(name).copied().unwrap_or(0);
            let has = self.devices.get(name).copied().unwrap_or(0);
            check(name, *asked, used, Some(has));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn amount(pods: u64, cpu: u64, devices: u64) -> Amount {
        let asked = Requests { cpu, ..Requests::default() };
        let devices =
            if devices > 0 { [("v.io/gpu".to_owned(), devices)].into() } else { BTreeMap::new() };
        Amount { pods, asked, estimated: asked, devices }
    }

    #[test]
    fn what_is_missing() {
        let devices = BTreeMap::from([("v.io/gpu".to_owned(), 2)]);
        let room = Room { pods: Some(3), cpu: Some(1000), devices, ..Room::default() };
        let cases = [
            (amount(1, 100, 0), amount(2, 900, 0), ""),
            (amount(1, 101, 0), amount(2, 900, 0), "Insufficient cpu"),
            (amount(1, 0, 0), amount(2, 5000, 0), ""),
            (amount(1, 0, 0), amount(3, 0, 0), "Too many pods"),
            (amount(1, 0, 1), amount(1, 0, 1), ""),
            (
                amount(1, 1, 2),
                amount(3, 1000, 1),
                "Too many pods; Insufficient cpu; Insufficient v.io/gpu",
            ),
            (amount(1, 1001, 0), amount(0, 0, 0), "Insufficient cpu"),
        ];
        for (asks, there, want) in cases {
            let found = room.lacks(&asks, &there);
            let found: Vec<_> = found.iter().map(ToString::to_string).collect();
            assert_eq!(found.join("; "), want, "{asks:?} {there:?}");
        }
        let never = amount(1, 1001, 0);
        assert!(room.lacks(&never, &Amount::default())[0].is_final(), "whoever goes");
        let mut sum = amount(1, 100, 1);
        sum.add(&amount(1, 50, 1));
        sum.subtract(&amount(1, 100, 1));
        assert_eq!(sum, amount(1, 50, 1));
        assert!(!sum.is_saturated());
        sum.add(&amount(1, u64::MAX, 0));
        assert!(sum.is_saturated());
    }
}
