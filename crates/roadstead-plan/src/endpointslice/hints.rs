//! Which zone or node an endpoint is meant for.
//!
//! `trafficDistribution` (KEP-4444, KEP-3015) hints at the endpoint's own place. The older
//! `topology-mode: Auto` (KEP-2433) shares endpoints out to zones in proportion to their CPUs, and
//! gives up, saying why, when that would overload one of them.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointHints, EndpointSlice, ForNode, ForZone};

/// A zone may carry this much more than its share.
const OVERLOAD: f64 = 1.2;
const ZONE: &str = "topology.kubernetes.io/zone";
const MODE: &str = "service.kubernetes.io/topology-mode";
const OLD_MODE: &str = "service.kubernetes.io/topology-aware-hints";
const CONTROL_PLANE: [&str; 2] =
    ["node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"];

/// What a Service asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Nothing.
    Off,
    /// Endpoints serve their own zone.
    SameZone,
    /// Endpoints serve their own node, and else their zone.
    SameNode,
    /// Zones get endpoints in proportion to their CPUs.
    Auto,
}

impl Mode {
    /// What this Service asks for.
    pub fn of(service: &Service) -> Self {
        let annotations = service.metadata.annotations.as_ref();
        let annotation = |name| annotations.and_then(|all| all.get(name)).map(String::as_str);
        if matches!(annotation(OLD_MODE).or(annotation(MODE)), Some("Auto" | "auto")) {
            return Self::Auto;
        }
        let spec = service.spec.as_ref();
        match spec.and_then(|spec| spec.traffic_distribution.as_deref()) {
            Some("PreferClose" | "PreferSameZone") => Self::SameZone,
            Some("PreferSameNode") => Self::SameNode,
            _ => Self::Off,
        }
    }
}

/// What the nodes say about zones.
#[derive(Clone, Debug, PartialEq)]
pub enum Topology {
    /// A node does not say where it is or how big it is.
    Unknown,
    /// The share of each zone in all CPUs.
    Shares(BTreeMap<String, f64>),
}

impl Default for Topology {
    fn default() -> Self {
        Self::Shares(BTreeMap::new())
    }
}

impl Topology {
    /// Adds up the nodes that are ready and not set aside for the control plane.
    pub fn of<'a>(nodes: impl Iterator<Item = &'a Node>) -> Self {
        let mut zones: BTreeMap<String, f64> = BTreeMap::new();
        for node in nodes.filter(|node| takes_part(node)) {
            let labels = node.metadata.labels.as_ref();
            let zone = labels.and_then(|labels| labels.get(ZONE)).filter(|zone| !zone.is_empty());
            let status = node.status.as_ref();
            let cpu = status.and_then(|s| s.allocatable.as_ref()).and_then(|a| a.get("cpu"));
            match (zone, cpu.and_then(|cpu| processors(&cpu.0)).filter(|cpu| *cpu > 0.0)) {
                (Some(zone), Some(cpu)) => *zones.entry(zone.clone()).or_default() += cpu,
                _ => return Self::Unknown,
            }
        }
        let total: f64 = zones.values().sum();
        zones.values_mut().for_each(|share| *share /= total);
        Self::Shares(zones)
    }
}

fn takes_part(node: &Node) -> bool {
    let labels = node.metadata.labels.as_ref();
    let set_aside = |label: &&str| labels.is_some_and(|labels| labels.contains_key(*label));
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    let mut ready = conditions.into_iter().flatten().filter(|c| c.type_ == "Ready");
    !CONTROL_PLANE.iter().any(set_aside) && ready.any(|c| c.status == "True")
}

/// `2`, `1500m`.
fn processors(text: &str) -> Option<f64> {
    match text.strip_suffix('m') {
        Some(thousandths) => thousandths.parse::<f64>().ok().map(|n| n / 1000.0),
        None => text.parse().ok(),
    }
}

/// What to tell the user about hints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// Hints are there now.
    Enabled,
    /// Hints are not, or no longer, there.
    Disabled(String),
}

impl Note {
    /// The Service no longer asks for hints.
    pub fn ended() -> Self {
        Self::Disabled("Topology Aware Hints has been disabled".into())
    }
}

/// The slices of one family after packing.
#[derive(Debug, Default)]
pub struct Slices<'a> {
    /// To be created.
    pub create: Vec<EndpointSlice>,
    /// To be replaced.
    pub update: Vec<EndpointSlice>,
    /// Right, as far as packing is concerned.
    pub untouched: Vec<&'a EndpointSlice>,
}

impl Slices<'_> {
    fn all(&self) -> impl Iterator<Item = &EndpointSlice> {
        let written = self.create.iter().chain(&self.update);
        written.chain(self.untouched.iter().copied())
    }

    /// Gives every endpoint its hints; untouched slices that had others must be written.
    fn rewrite(&mut self, hints: impl Fn(&Endpoint) -> Option<EndpointHints>) {
        let apply = |slice: &mut EndpointSlice| {
            for endpoint in slice.endpoints.iter_mut().flatten() {
                endpoint.hints = hints(endpoint);
            }
        };
        self.create.iter_mut().for_each(apply);
        self.update.iter_mut().for_each(apply);
        let is_right = |slice: &&EndpointSlice| {
            slice.endpoints.iter().flatten().all(|endpoint| hints(endpoint) == endpoint.hints)
        };
        let (right, wrong): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.untouched).into_iter().partition(is_right);
        self.untouched = right;
        for slice in wrong {
            let mut slice = slice.clone();
            apply(&mut slice);
            self.update.push(slice);
        }
    }
}

/// Gives the endpoints of one family their hints; `had` says whether there were any before.
pub(crate) fn assign(
    mode: Mode,
    topology: &Topology,
    had: bool,
    slices: &mut Slices<'_>,
) -> Option<Note> {
    match mode {
        Mode::Off => {
            slices.rewrite(|_| None);
            had.then(Note::ended)
        }
        Mode::SameZone | Mode::SameNode => {
            slices.rewrite(|endpoint| match is_ready(endpoint) {
                true => own_place(endpoint, mode),
                false => endpoint.hints.clone(),
            });
            None
        }
        Mode::Auto => match share_out(topology, slices) {
            Ok(zones) => {
                slices.rewrite(|endpoint| {
                    let zone = zones.get(endpoint.addresses.first()?)?;
                    is_ready(endpoint).then(|| for_zone(zone))
                });
                (!had).then_some(Note::Enabled)
            }
            Err(why) => {
                slices.rewrite(|_| None);
                Some(Note::Disabled(why))
            }
        },
    }
}

fn is_ready(endpoint: &Endpoint) -> bool {
    endpoint.conditions.as_ref().and_then(|conditions| conditions.ready) != Some(false)
}

fn for_zone(zone: &str) -> EndpointHints {
    EndpointHints { for_zones: Some(vec![ForZone { name: zone.to_owned() }]), for_nodes: None }
}

fn own_place(endpoint: &Endpoint, mode: Mode) -> Option<EndpointHints> {
    let zone = endpoint.zone.as_deref().filter(|zone| !zone.is_empty());
    let node = endpoint.node_name.as_deref().filter(|_| mode == Mode::SameNode);
    let for_zones = zone.map(|zone| vec![ForZone { name: zone.to_owned() }]);
    let for_nodes = node.map(|node| vec![ForNode { name: node.to_owned() }]);
    (for_zones.is_some() || for_nodes.is_some()).then_some(EndpointHints { for_zones, for_nodes })
}

/// How many endpoints a zone should, must and may have.
#[derive(Debug)]
struct Share {
    desired: f64,
    maximum: usize,
}

/// Chooses the zone of each ready endpoint, by its address.
fn share_out(topology: &Topology, slices: &Slices<'_>) -> Result<BTreeMap<String, String>, String> {
    let ready =
        |slice: &EndpointSlice| slice.endpoints.iter().flatten().filter(|e| is_ready(e)).count();
    let count = slices.all().map(ready).sum();
    let shares = shares(topology, count)?;
    let mut zones: BTreeMap<String, String> = BTreeMap::new();
    let mut counts: BTreeMap<&str, usize> = shares.keys().map(|zone| (&**zone, 0)).collect();
    let mut movable: Vec<&EndpointSlice> = slices.create.iter().chain(&slices.update).collect();
    for slice in &slices.untouched {
        match kept(slice, &shares, &counts) {
            Some(hints) => {
                for (address, zone) in hints {
                    *counts.get_mut(zone).expect("kept zones are known") += 1;
                    zones.insert(address.to_owned(), zone.to_owned());
                }
            }
            None => movable.push(slice),
        }
    }
    let mut free: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for endpoint in
        movable.iter().flat_map(|s| s.endpoints.iter().flatten()).filter(|e| is_ready(e))
    {
        let zone = endpoint.zone.as_deref().filter(|zone| !zone.is_empty());
        let zone = zone.ok_or("One or more endpoints do not have a zone specified")?;
        *counts.entry(zone).or_default() += 1;
        free.entry(zone).or_default().extend(endpoint.addresses.first().map(String::as_str));
    }
    balance(&shares, &mut counts, &mut free);
    for (zone, addresses) in free {
        zones.extend(addresses.into_iter().map(|address| (address.to_owned(), zone.to_owned())));
    }
    if zones.is_empty() {
        return Err("No hints allocated for zones".into());
    }
    Ok(zones)
}

fn shares(topology: &Topology, count: usize) -> Result<BTreeMap<String, Share>, String> {
    let Topology::Shares(zones) = topology else {
        return Err("Insufficient Node information: allocatable CPU or zone not specified on one \
            or more nodes"
            .into());
    };
    let here = format!("({count} endpoints, {} zones)", zones.len());
    if zones.len() < 2 {
        return Err("Nodes only ready in one zone".into());
    }
    if zones.len() > count {
        return Err(format!("Insufficient number of endpoints {here}"));
    }
    let minimum = |share: f64| (share * count as f64 / OVERLOAD).ceil() as usize;
    let total: usize = zones.values().map(|share| minimum(*share)).sum();
    if total > count {
        return Err(format!(
            "Unable to allocate minimum required endpoints to each zone without exceeding \
             overload threshold {here}"
        ));
    }
    let share = |share: f64| Share {
        desired: share * count as f64,
        maximum: minimum(share) + (count - total),
    };
    Ok(zones.iter().map(|(zone, part)| (zone.clone(), share(*part))).collect())
}

/// The hints of an untouched slice, if all of them may stay.
fn kept<'a>(
    slice: &'a EndpointSlice,
    shares: &BTreeMap<String, Share>,
    counts: &BTreeMap<&str, usize>,
) -> Option<Vec<(&'a str, &'a str)>> {
    let mut hints = Vec::new();
    let mut more: BTreeMap<&str, usize> = BTreeMap::new();
    for endpoint in slice.endpoints.iter().flatten().filter(|e| is_ready(e)) {
        let given = endpoint.hints.as_ref().and_then(|hints| hints.for_zones.as_ref())?;
        let [zone] = given.as_slice() else { return None };
        let share = shares.get(&zone.name)?;
        let number = more.entry(&zone.name).or_default();
        *number += 1;
        if counts.get(&*zone.name).copied().unwrap_or(0) + *number > share.maximum {
            return None;
        }
        hints.push((endpoint.addresses.first()?.as_str(), zone.name.as_str()));
    }
    Some(hints)
}

/// Moves endpoints from the zone that has most too many to the one that lacks most.
fn balance<'a>(
    shares: &'a BTreeMap<String, Share>,
    counts: &mut BTreeMap<&'a str, usize>,
    free: &mut BTreeMap<&'a str, Vec<&'a str>>,
) {
    let surplus = |zone: &str, count: usize| {
        count as f64 - shares.get(zone).map_or(0.0, |share| share.desired)
    };
    loop {
        let givers =
            counts.iter().filter(|(zone, _)| free.get(**zone).is_some_and(|f| !f.is_empty()));
        let giver = givers
            .map(|(zone, count)| (surplus(zone, *count), *zone))
            .max_by(|a, b| a.0.total_cmp(&b.0));
        let takers = counts.iter().filter(|(zone, _)| shares.contains_key(**zone));
        let taker = takers
            .map(|(zone, count)| (-surplus(zone, *count), *zone))
            .max_by(|a, b| a.0.total_cmp(&b.0));
        let (Some((too_many, from)), Some((lacking, to))) = (giver, taker) else { return };
        let both_small = too_many < 1.0 && lacking < 1.0;
        if both_small || too_many < 0.5 || lacking < 0.5 || from == to {
            return;
        }
        let Some(moved) = free.get_mut(from).and_then(Vec::pop) else { return };
        free.entry(to).or_default().push(moved);
        *counts.entry(from).or_default() -= 1;
        *counts.entry(to).or_default() += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::discovery::v1::EndpointConditions;
    use serde_json::json;

    /// `a:4 b:2` are nodes in zones with CPUs; `-:2` is in none, `c!:2` is not ready.
    fn topology(text: &str) -> Topology {
        let nodes: Vec<Node> = text
            .split_whitespace()
            .map(|word| {
                let (zone, cpu) = word.split_once(':').unwrap();
                let ready = if zone.ends_with('!') { "False" } else { "True" };
                let zone = zone.trim_end_matches('!').replace('-', "");
                serde_json::from_value(json!({"metadata": {"labels": {ZONE: zone}},
                    "status": {"allocatable": {"cpu": cpu},
                        "conditions": [{"type": "Ready", "status": ready}]}}))
                .unwrap()
            })
            .collect();
        Topology::of(nodes.iter())
    }

    /// `a a>b c!` are endpoints in zones, one of them hinted at another, one not ready.
    fn slice(text: &str) -> EndpointSlice {
        let endpoints = text.split_whitespace().enumerate().map(|(number, word)| {
            let ready = !word.ends_with('!');
            let word = word.trim_end_matches('!');
            let (zone, hint) = word.split_once('>').map_or((word, None), |(z, h)| (z, Some(h)));
            Endpoint {
                addresses: vec![format!("10.0.0.{number}")],
                zone: Some(zone.to_owned()).filter(|zone| zone != "-"),
                node_name: Some(format!("n{number}")),
                hints: hint.map(for_zone),
                conditions: Some(EndpointConditions { ready: Some(ready), ..Default::default() }),
                ..Default::default()
            }
        });
        EndpointSlice { endpoints: Some(endpoints.collect()), ..Default::default() }
    }

    fn show(slices: &Slices<'_>) -> String {
        let endpoints = slices.all().flat_map(|slice| slice.endpoints.iter().flatten());
        let words = endpoints.map(|endpoint| {
            let zone = endpoint.zone.as_deref().unwrap_or("-");
            let hints = endpoint.hints.as_ref();
            let zones = hints.and_then(|h| h.for_zones.as_ref()).map(|z| format!(">{}", z[0].name));
            let nodes = hints.and_then(|h| h.for_nodes.as_ref()).map(|n| format!("@{}", n[0].name));
            format!("{zone}{}{}", zones.unwrap_or_default(), nodes.unwrap_or_default())
        });
        words.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn what_a_service_asks_for() {
        let cases = [
            (None, None, Mode::Off),
            (Some("PreferClose"), None, Mode::SameZone),
            (Some("PreferSameZone"), Some("Disabled"), Mode::SameZone),
            (Some("PreferSameNode"), None, Mode::SameNode),
            (Some("PreferSameNode"), Some("Auto"), Mode::Auto),
            (None, Some("auto"), Mode::Auto),
        ];
        for (distribution, annotation, want) in cases {
            let service: Service = serde_json::from_value(json!({
                "metadata": {"annotations": {MODE: annotation.unwrap_or("")}},
                "spec": {"trafficDistribution": distribution}}))
            .unwrap();
            assert_eq!(Mode::of(&service), want, "{distribution:?} {annotation:?}");
        }
    }

    #[test]
    fn own_place_hints() {
        let cases = [
            ("zones", Mode::SameZone, "a b - c!", "a>a b>b - c"),
            ("nodes", Mode::SameNode, "a - c!", "a>a@n0 -@n1 c"),
            ("not ready ones keep what they have", Mode::SameZone, "a>b!", "a>b"),
            ("off", Mode::Off, "a>a b>b", "a b"),
        ];
        for (name, mode, given, want) in cases {
            let mut slices = Slices { create: vec![slice(given)], ..Default::default() };
            assign(mode, &Topology::default(), false, &mut slices);
            assert_eq!(show(&slices), want, "{name}");
        }
    }

    #[test]
    fn only_wrong_slices_are_written() {
        let (right, wrong) = (slice("a>a b>b"), slice("a>b"));
        let mut slices = Slices { untouched: vec![&right, &wrong], ..Default::default() };
        assign(Mode::SameZone, &Topology::default(), true, &mut slices);
        assert_eq!((slices.untouched.len(), slices.update.len()), (1, 1));
        assert_eq!(show(&slices), "a>a a>a b>b");
    }

    #[test]
    fn zones_get_their_share() {
        let enabled = "Enabled";
        let few = "Insufficient number of endpoints (1 endpoints, 3 zones)";
        let tight = "Unable to allocate minimum required endpoints to each zone without exceeding \
                     overload threshold (4 endpoints, 3 zones)";
        let vague = "Insufficient Node information: allocatable CPU or zone not specified on one \
                     or more nodes";
        let nowhere = "One or more endpoints do not have a zone specified";
        let one = "Nodes only ready in one zone";
        let cases = [
            ("in place", "a:2 b:2", "a b", "a>a b>b", enabled),
            ("lopsided", "a:2 b:2", "a a a a", "a>a a>a a>b a>b", enabled),
            ("big zone", "a:6 b:2", "a b b b", "a>a b>b b>a b>a", enabled),
            ("milli", "a:1500m b:1500m", "a b", "a>a b>b", enabled),
            ("too few", "a:2 b:2 c:2", "a", "a", few),
            ("too tight", "a:2 b:2 c:2", "a b c a", "a b c a", tight),
            ("a vague node", "a:2 -:2", "a a", "a a", vague),
            ("an endpoint nowhere", "a:2 b:2", "a -", "a -", nowhere),
            ("one zone", "a:2 b!:2", "a a", "a a", one),
        ];
        for (name, nodes, given, want, told) in cases {
            let mut slices = Slices { create: vec![slice(given)], ..Default::default() };
            let note = assign(Mode::Auto, &topology(nodes), false, &mut slices);
            let note = match note {
                Some(Note::Enabled) => enabled.to_owned(),
                Some(Note::Disabled(why)) => why,
                None => String::new(),
            };
            assert_eq!((show(&slices), note.as_str()), (want.to_owned(), told), "{name}");
        }
    }

    #[test]
    fn hints_that_fit_stay_and_others_do_not() {
        let cases = [
            ("fits", "a:2 b:2", "a>a a>b", 0),
            ("unknown zone", "a:2 b:2", "a>a b>z", 1),
            ("incomplete", "a:2 b:2", "a>a b", 1),
            ("over the maximum", "a:2 b:2", "a>a a>a b>a b>a", 1),
        ];
        for (name, nodes, given, writes) in cases {
            let old = slice(given);
            let mut slices = Slices { untouched: vec![&old], ..Default::default() };
            assert_eq!(assign(Mode::Auto, &topology(nodes), true, &mut slices), None, "{name}");
            assert_eq!(slices.update.len(), writes, "{name}");
            let written = slices.update.clone();
            let mut again = Slices { untouched: written.iter().collect(), ..Default::default() };
            assign(Mode::Auto, &topology(nodes), true, &mut again);
            assert_eq!(again.update.len(), 0, "{name}: a second time");
        }
    }
}
