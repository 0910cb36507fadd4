//! What the server does with which names: the configuration, made ready for use.
//!
//! A setup is immutable; a reload makes another one, and queries that are under way finish with
//! the one they began with.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use regex::{Captures, Regex};
use roadstead_zone::name::{Name, find_suffix};
use roadstead_zone::record_type::RecordType;

use crate::reply::ResponseCode;
use crate::upstream::UpstreamGroup;

/// Everything that can be configured about answering.
#[derive(Debug)]
pub struct Setup {
    pub(crate) blocks: Vec<Block>,
    /// The longest reply over UDP.
    pub udp_size: u16,
    /// Whether to answer as CoreDNS does where that differs from the RFCs.
    pub coredns_compat: bool,
    /// How long to go on answering when told to stop.
    pub lame_duck: Duration,
    /// Who we are, for clients that ask (NSID); nobody if empty.
    pub identity: String,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            blocks: Vec::new(),
            udp_size: 1232,
            coredns_compat: false,
            lame_duck: Duration::ZERO,
            identity: String::new(),
        }
    }
}

/// The rules for some zones.
#[derive(Debug, Default)]
pub struct Block {
    pub(crate) number: usize,
    /// The zones, in small letters.
    pub(crate) zones: Vec<Name>,
    /// Names that are other names, and whether the next rule is about the other name then.
    pub(crate) rewrites: Vec<(Rewrite, bool)>,
    /// Answers that are made from the question alone.
    pub(crate) templates: Vec<Template>,
    /// Addresses from a table.
    pub(crate) hosts: Option<HostsTable>,
    /// Whether the cluster's names are here, and below which zones the next in line is asked
    /// about those that do not exist.
    pub(crate) kubernetes: Option<FallThrough>,
    /// Whom to ask about the rest; the longest zone decides.
    pub forwards: Vec<Forward>,
    /// Who gets copies of which zones.
    pub(crate) transfers: Vec<Transfer>,
    /// How answers of others are remembered; `None` if they are not.
    pub(crate) cache: Option<CacheScope>,
    /// Whether the order of addresses stays as it is.
    pub(crate) fixed_order: bool,
    /// Which queries are logged.
    pub(crate) logs: Vec<Log>,
}

/// Some queries that are logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Log {
    /// Those about names in these zones.
    pub zones: Vec<Name>,
    /// Those that end like this; all if there are none.
    pub ends: Vec<LoggedEnd>,
}

/// How a query ended, as far as logs are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoggedEnd {
    /// With an answer.
    Success,
    /// There is no such name, or nothing of that type.
    Denial,
    /// In any other way.
    Error,
}

impl LoggedEnd {
    /// How a reply ends a query.
    pub fn of(reply: &[u8]) -> Self {
        match (reply.get(3).map(|flags| flags & 0x0f), reply.get(6..8)) {
            (Some(0), Some([0, 0])) | (Some(3), _) => Self::Denial,
            (Some(0), _) => Self::Success,
            _ => Self::Error,
        }
    }
}

/// Below which zones a missing name is left to the next in line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FallThrough {
    /// The zones.
    pub zones: Vec<Name>,
}

impl FallThrough {
    /// Whether that is so for a name.
    pub(crate) fn covers(&self, name: &[u8]) -> bool {
        self.zones.iter().any(|zone| find_suffix(name, zone.wire()).is_some())
    }
}

/// Whom to ask about a zone.
#[derive(Debug)]
pub struct Forward {
    /// The zone.
    pub from: Name,
    /// Zones within it that are not passed on.
    pub except: Vec<Name>,
    /// The servers.
    pub upstreams: UpstreamGroup,
}

/// Who gets copies of some zones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Transfer {
    /// The zones.
    pub zones: Vec<Name>,
    /// Who; `None` is everybody.
    pub to: Option<Vec<IpAddr>>,
}

impl Transfer {
    /// Whether somebody may have a zone.
    pub(crate) fn allows(&self, zone: &[u8], peer: IpAddr) -> bool {
        let known = self.zones.iter().any(|own| find_suffix(zone, own.wire()).is_some());
        known && self.to.as_ref().is_none_or(|all| all.contains(&peer.to_canonical()))
    }
}

/// How answers of others are remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheRule {
    /// The longest time for answers.
    pub success: Duration,
    /// The longest time for the absence of answers.
    pub denial: Duration,
    /// For how long an answer may be used after its time if no better one can be had.
    pub stale: Duration,
}

impl CacheRule {
    /// For those that are not remembered: they hold for as long as they say.
    pub const NONE: Self = Self {
        success: Duration::from_secs(u32::MAX as u64),
        denial: Duration::from_secs(u32::MAX as u64),
        stale: Duration::ZERO,
    };
}

impl Default for CacheRule {
    fn default() -> Self {
        Self {
            success: Duration::from_secs(3600),
            denial: Duration::from_secs(1800),
            stale: Duration::from_secs(3600),
        }
    }
}

/// Which answers of others are remembered, and how.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CacheScope {
    /// How.
    pub rule: CacheRule,
    /// In which zones they are remembered; in all if there are none.
    pub zones: Vec<Name>,
    /// In which zones they are not, either the absence of answers or answers.
    pub disabled: Vec<(bool, Name)>,
}

/// An answer that is made from the question alone.
#[derive(Clone, Debug)]
pub(crate) struct Template {
    /// For names in these zones.
    pub zones: Vec<Name>,
    /// For this type; `None` is any.
    pub kind: Option<RecordType>,
    /// For names that one of these describes; if there are none, for all.
    pub patterns: Vec<Regex>,
    /// Addresses, and how long clients may remember them.
    pub answers: Vec<(u32, IpAddr)>,
    /// The code of the reply.
    pub code: ResponseCode,
    /// What becomes of names that are not described; `None`: they do not exist.
    pub fall_through: Option<FallThrough>,
}

impl Template {
    /// What it has to say about a name in wire form and small letters: addresses and a code.
    /// `None` leaves it to the next in line.
    pub(crate) fn apply(
        &self,
        name: &[u8],
        kind: RecordType,
    ) -> Option<(&[(u32, IpAddr)], ResponseCode)> {
        let within = self.zones.iter().any(|zone| find_suffix(name, zone.wire()).is_some());
        if !within || self.kind.is_some_and(|own| own != kind) {
            return None;
        }
        let described = self.patterns.is_empty() || {
            let text = Name::from_wire(name)?.to_string();
            self.patterns.iter().any(|pattern| pattern.is_match(&text))
        };
        match &self.fall_through {
            _ if described => Some((&self.answers, self.code)),
            Some(fall_through) if fall_through.covers(name) => None,
            _ => Some((&[], ResponseCode::NoName)),
        }
    }
}

/// A table of addresses, as in `/etc/hosts`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HostsTable {
    /// For names in these zones; all if there are none. Addresses are looked up whatever their zone.
    pub zones: Vec<Name>,
    /// Addresses by name in wire form and small letters.
    pub addresses: BTreeMap<Box<[u8]>, Vec<IpAddr>>,
    /// Names by address, the first one only.
    pub names: BTreeMap<IpAddr, Name>,
    /// How long clients may remember them.
    pub lifetime: u32,
    /// What becomes of names that are not in the table; `None`: they do not exist.
    pub fall_through: Option<FallThrough>,
}

impl HostsTable {
    /// Takes in one line; comments and nonsense are passed over.
    pub(crate) fn read_line(&mut self, line: &str) {
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_whitespace();
        let Some(Ok(address)) = words.next().map(str::parse::<IpAddr>) else { return };
        for name in words.filter_map(Name::parse) {
            let known = self.addresses.entry(name.to_lowercase().wire().into()).or_default();
            if !known.contains(&address) {
                known.push(address);
            }
            self.names.entry(address).or_insert(name);
        }
    }
}

/// A name that is another name.
#[derive(Clone, Debug)]
pub(crate) enum Rewrite {
    /// Exactly this one.
    Exact(Name, Name),
    /// All that begin with this text.
    Prefix(String, String),
    /// All that end with this text.
    Suffix(String, String),
    /// All that contain this text.
    Substring(String, String),
    /// All that this expression describes; in the other name `{1}` stands for its first group.
    Regex(Regex, String),
}

impl Rewrite {
    /// The other name, in small letters; `None` if the rule is about something else.
    pub(crate) fn apply(&self, name: &Name) -> Option<Name> {
        let text = name.to_string().to_lowercase();
        let new = match self {
            Rewrite::Exact(from, to) => {
                return (from.to_lowercase() == name.to_lowercase()).then(|| to.to_lowercase());
            }
            Rewrite::Prefix(from, to) => format!("{to}{}", text.strip_prefix(from.as_str())?),
            Rewrite::Suffix(from, to) => {
                format!("{}{to}", text.strip_suffix(dotted(from).as_str())?)
            }
            Rewrite::Substring(from, to) => {
                if !text.contains(from.as_str()) {
                    return None;
                }
                text.replace(from.as_str(), to)
            }
            Rewrite::Regex(from, to) => {
                // CoreDNS has them see the last dot; many are written without it.
                let short = text.strip_suffix('.').unwrap_or(&text);
                let found = from.captures(&text).or_else(|| from.captures(short))?;
                fill_in(to, &found)
            }
        };
        Name::parse(&new).map(|name| name.to_lowercase())
    }
}

/// Puts the groups that were found in the place of their numbers.
fn fill_in(template: &str, found: &Captures<'_>) -> String {
    let mut text = template.to_owned();
    for at in 0..found.len() {
        let group = found.get(at).map_or("", |group| group.as_str());
        text = text.replace(&format!("{{{at}}}"), group);
    }
    text
}

/// Names are compared with their last dot.
fn dotted(text: &str) -> String {
    if text.ends_with('.') { text.to_owned() } else { format!("{text}.") }
}

impl Setup {
    /// The usual: the cluster's zone, and everything else is asked of the upstreams.
    pub fn standard(upstreams: Option<UpstreamGroup>) -> Self {
        let root = Name::parse("").expect("the root is a name");
        let forward = |upstreams| Forward { from: root.clone(), except: Vec::new(), upstreams };
        let mut setup = Self::default();
        setup.add(Block {
            zones: vec![root.clone()],
            kubernetes: Some(FallThrough::default()),
            forwards: upstreams.map(forward).into_iter().collect(),
            cache: Some(CacheScope::default()),
            ..Block::default()
        });
        setup
    }

    /// Adds the rules for some zones; the longest zone that a name is in decides.
    pub fn add(&mut self, block: Block) {
        self.blocks.push(Block { number: self.blocks.len(), ..block });
    }

    /// All rules, by their numbers.
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// Whether any queries are logged.
    pub fn logs_some(&self) -> bool {
        self.blocks.iter().any(|block| !block.logs.is_empty())
    }

    /// Whether there is anybody else to ask.
    pub(crate) fn asks_others(&self) -> bool {
        self.blocks.iter().any(|block| !block.forwards.is_empty())
    }

    /// The rules for a name in wire form and small letters.
    pub fn block(&self, name: &[u8]) -> Option<&Block> {
        let length = |block: &Block| {
            let within = |zone: &&Name| find_suffix(name, zone.wire()).is_some();
            block.zones.iter().filter(within).map(|zone| zone.wire().len()).max()
        };
        if let [only] = self.blocks.as_slice() {
            return length(only).map(|_| only);
        }
        let found = self.blocks.iter().filter_map(|block| Some((length(block)?, block)));
        found.max_by_key(|(length, _)| *length).map(|(_, block)| block)
    }
}

impl Block {
    /// Its place among the others.
    pub fn number(&self) -> usize {
        self.number
    }

    /// The zones that its rules are for.
    pub fn zones(&self) -> &[Name] {
        &self.zones
    }

    /// The other name that a name stands for, if any.
    pub fn rewritten(&self, name: &[u8]) -> Option<Name> {
        if self.rewrites.is_empty() {
            return None;
        }
        let mut name = Name::from_wire(name)?;
        let mut changed = false;
        for (rule, goes_on) in &self.rewrites {
            let Some(new) = rule.apply(&name) else { continue };
            (name, changed) = (new, true);
            if !goes_on {
                break;
            }
        }
        changed.then_some(name)
    }

    /// Whether a query about a name that ends like this is logged.
    pub fn logs(&self, name: &[u8], end: LoggedEnd) -> bool {
        let within = |zone: &Name| find_suffix(name, zone.wire()).is_some();
        let wants = |log: &Log| log.ends.is_empty() || log.ends.contains(&end);
        self.logs.iter().any(|log| wants(log) && log.zones.iter().any(within))
    }

    /// How an answer about a name is remembered; `None` if it is not.
    pub fn cache(&self, name: &[u8]) -> Option<CacheRule> {
        let within = |zone: &Name| find_suffix(name, zone.wire()).is_some();
        let scope = self.cache.as_ref()?;
        (scope.zones.is_empty() || scope.zones.iter().any(within)).then_some(scope.rule)
    }

    /// Whether nothing is remembered about an answer, or about the absence of one.
    pub fn forgets(&self, name: &[u8], absence: bool) -> bool {
        let within = |zone: &Name| find_suffix(name, zone.wire()).is_some();
        let mut disabled = self.cache.iter().flat_map(|scope| &scope.disabled);
        disabled.any(|(of, zone)| *of == absence && within(zone))
    }

    /// Which of the forwards is about a name.
    pub fn forward(&self, name: &[u8]) -> Option<usize> {
        let within = |zone: &Name| find_suffix(name, zone.wire()).is_some();
        let all = self.forwards.iter().enumerate();
        let fitting = all.filter(|(_, forward)| within(&forward.from));
        let (number, forward) = fitting.max_by_key(|(_, one)| one.from.wire().len())?;
        (!forward.except.iter().any(within)).then_some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rewriting() {
        let name = |text: &str| Name::parse(text).unwrap();
        let regex = |from: &str, to: &str| Rewrite::Regex(Regex::new(from).unwrap(), to.into());
        let cases = [
            ("exact", Rewrite::Exact(name("a.b"), name("c.d")), "A.b", "c.d."),
            ("not exact", Rewrite::Exact(name("a.b"), name("c.d")), "x.a.b", ""),
            ("prefix", Rewrite::Prefix("old-".into(), "new-".into()), "old-a.b", "new-a.b."),
            ("suffix", Rewrite::Suffix(".old.com".into(), ".b".into()), "a.old.com", "a.b."),
            ("no suffix", Rewrite::Suffix(".old.com".into(), ".b".into()), "a.old.com.x", ""),
            ("inside", Rewrite::Substring("dev".into(), "qa".into()), "a.dev.b", "a.qa.b."),
            ("described", regex(r"^(.*)\.(.*)\.old$", "{2}.{1}.new"), "A.b.old", "b.a.new."),
            ("described with the dot", regex(r"(.*)\.old\.$", "{1}.new"), "a.old", "a.new."),
            ("not described", regex(r"^(.*)\.old$", "{1}.new"), "a.old.b", ""),
            ("described, but no name", regex(r"^(.*)\.old$", "{1}..new"), "a.old", ""),
        ];
        for (what, rule, given, want) in cases {
            let got = rule.apply(&name(given)).map(|name| name.to_string()).unwrap_or_default();
            assert_eq!(got, want, "{what}");
        }
    }

    #[test]
    fn the_longest_zone_decides() {
        let block = |zones: &[&str]| Block {
            zones: zones.iter().map(|zone| Name::parse(zone).unwrap()).collect(),
            ..Block::default()
        };
        let setup = Setup {
            blocks: vec![block(&["."]), block(&["acme.local"]), block(&["eu.acme.local", "org"])],
            ..Setup::default()
        };
        for (name, want) in
            [("example.com", 0), ("x.acme.local", 1), ("eu.acme.local", 2), ("a.org", 2)]
        {
            let found = setup.block(Name::parse(name).unwrap().wire()).unwrap();
            assert!(std::ptr::eq(found, &raw const setup.blocks[want]), "{name}");
        }
    }
}
