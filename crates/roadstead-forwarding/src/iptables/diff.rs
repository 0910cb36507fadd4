//! From what the kernel holds to what it should hold, by the smallest input for
//! `iptables-restore --noflush`.
//!
//! A chain whose text is right is not mentioned. So one endpoint more or less rewrites the chain
//! that picks and makes or deletes one other, however many Services there are.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::mem;
use std::sync::Arc;

use super::compile::{Context, GUARD, fixed_chains, hooks, last_rules, shared_chains};
use super::listing::Listing;
use super::model::{ChainName, Hook, Program, Rule, TableName};
use super::names::is_per_service;
use super::print;
use super::service::{Shared, compile_port};
use crate::node_network::NodeNetwork;
use crate::service::{IpFamily, ServicePortName};
use crate::table::ForwardingTable;

type Texts = BTreeMap<(TableName, ChainName), Vec<String>>;

/// Input for `iptables-restore --noflush`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restore {
    tables: BTreeMap<TableName, Section>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Section {
    /// Chains to make, or to empty if they are there.
    declare: Vec<ChainName>,
    lines: Vec<String>,
    /// Chains to delete, once nothing leads to them.
    delete: Vec<ChainName>,
}

impl Restore {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.tables.is_empty()
    }

    /// How many tables are written to; the kernel takes each of them as a whole.
    pub fn tables(&self) -> u32 {
        u32::try_from(self.tables.len()).unwrap_or(u32::MAX)
    }

    /// How many chains and rules are written or deleted.
    pub fn operations(&self) -> usize {
        let count = |s: &Section| s.declare.len() + s.lines.len();
        self.tables.values().map(count).sum()
    }

    /// Whether a chain is deleted.
    pub fn deletes(&self, table: TableName, chain: &str) -> bool {
        self.tables.get(&table).is_some_and(|section| section.delete.iter().any(|c| **c == *chain))
    }

    /// How many rules are written to a table.
    pub fn rules(&self, table: TableName) -> usize {
        self.tables.get(&table).map_or(0, |section| section.lines.len())
    }

    /// Makes a chain hold these rules.
    pub(crate) fn write(&mut self, table: TableName, chain: &ChainName, rules: &[String]) {
        let section = self.tables.entry(table).or_default();
        section.declare.push(chain.clone());
        let line = |rule: &String| format!("-A {chain} {rule}").trim_end().to_owned();
        section.lines.extend(rules.iter().map(line));
    }

    /// Deletes a chain.
    pub(crate) fn delete(&mut self, table: TableName, chain: &ChainName) {
        let section = self.tables.entry(table).or_default();
        section.declare.push(chain.clone());
        section.delete.push(chain.clone());
    }

    /// Puts a rule in front of one of the kernel's chains.
    pub(crate) fn insert(&mut self, table: TableName, chain: &str, rule: &str) {
        let section = self.tables.entry(table).or_default();
        section.lines.push(format!("-I {chain} {rule}"));
    }

    /// Takes a rule out of one of the kernel's chains.
    pub(crate) fn withdraw(&mut self, table: TableName, chain: &str, rule: &str) {
        let section = self.tables.entry(table).or_default();
        section.lines.push(format!("-D {chain} {rule}"));
    }
}

impl fmt::Display for Restore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (table, section) in &self.tables {
            writeln!(f, "*{table}")?;
            section.declare.iter().try_for_each(|chain| writeln!(f, ":{chain} - [0:0]"))?;
            section.lines.iter().try_for_each(|line| writeln!(f, "{line}"))?;
            section.delete.iter().try_for_each(|chain| writeln!(f, "-X {chain}"))?;
            writeln!(f, "COMMIT")?;
        }
        Ok(())
    }
}

/// What the kernel holds of ours.
#[derive(Debug)]
pub struct Layout {
    family: IpFamily,
    node_network: NodeNetwork,
    large: bool,
    ports: BTreeMap<Arc<ServicePortName>, PortTexts>,
    chains: Texts,
    /// How many rules these are, by table.
    counts: BTreeMap<TableName, usize>,
}

/// What a service port has in the kernel.
#[derive(Debug, Default)]
struct PortTexts {
    shared: Vec<(Shared, String)>,
    own: BTreeSet<ChainName>,
}

impl Layout {
    /// Takes over what a predecessor left; returns what is still to be done.
    pub fn adopt(table: &ForwardingTable, listing: &Listing) -> (Self, Restore) {
        let mut restore = Restore::default();
        write_hooks(table.family(), &hooks(), listing, &mut restore);
        let ours = |table, chain: &str| is_ours(table, chain) || is_guard(table, chain);
        let chains = listing.chains.iter().filter(|((table, chain), _)| ours(*table, chain));
        let mut layout = Self {
            family: table.family(),
            node_network: table.node_network().clone(),
            large: Context::of(table).large,
            ports: BTreeMap::new(),
            chains: chains.map(|(key, rules)| (key.clone(), rules.clone())).collect(),
            counts: BTreeMap::new(),
        };
        for ((table, _), rules) in &layout.chains {
            *layout.counts.entry(*table).or_default() += rules.len();
        }
        layout.rewrite(table, &mut restore);
        (layout, restore)
    }

    /// Brings the changed service ports up to date; returns what the kernel must do for it.
    pub fn update(
        &mut self,
        table: &ForwardingTable,
        changed: impl IntoIterator<Item = Arc<ServicePortName>>,
    ) -> Restore {
        let mut restore = Restore::default();
        let context = Context::of(table);
        if self.large != context.large || self.node_network != *table.node_network() {
            self.large = context.large;
            self.node_network = table.node_network().clone();
            self.rewrite(table, &mut restore);
            return restore;
        }
        let mut touched = Texts::new();
        let mut gone = BTreeSet::new();
        let mut shared = BTreeSet::new();
        for name in changed {
            let before = self.ports.remove(&name).unwrap_or_default();
            let (now, own) = self.texts(table, &context, &name);
            gone.extend(before.own.difference(&now.own).cloned());
            touched.extend(own);
            if before.shared != now.shared {
                shared.extend(before.shared.iter().chain(&now.shared).map(|(chain, _)| *chain));
            }
            if table.get(&name).is_some() {
                self.ports.insert(name, now);
            }
        }
        touched.extend(shared.into_iter().map(|chain| self.shared_chain(chain, &context)));
        self.apply(touched, gone.into_iter().map(|chain| (TableName::Nat, chain)), &mut restore);
        restore
    }

    /// Whether the kernel still has all that it should have of ours.
    pub fn is_intact(&self, listing: &Listing) -> bool {
        let mut missing = Restore::default();
        write_hooks(self.family, &hooks(), listing, &mut missing);
        missing.is_empty()
            && self
                .chains
                .iter()
                .all(|(key, rules)| listing.chains.get(key).is_some_and(|found| found == rules))
    }

    /// How many rules of ours a table has.
    pub fn rules(&self, table: TableName) -> usize {
        self.counts.get(&table).copied().unwrap_or(0)
    }

    /// All our chains with the texts of their rules, as the kernel now has them.
    pub fn chains(&self) -> &BTreeMap<(TableName, ChainName), Vec<String>> {
        &self.chains
    }

    /// Compiles everything anew, and writes what differs.
    fn rewrite(&mut self, table: &ForwardingTable, restore: &mut Restore) {
        let context = Context::of(table);
        let text = |rules: Vec<Rule>| texts(self.family, &rules);
        let fixed = fixed_chains(&context).into_iter();
        let mut wanted: Texts = fixed.map(|(key, rules)| (key, text(rules))).collect();
        self.ports.clear();
        for (name, _) in table.iter() {
            let (port, own) = self.texts(table, &context, name);
            wanted.extend(own);
            self.ports.insert(name.clone(), port);
        }
        wanted.extend(Shared::ALL.map(|chain| self.shared_chain(chain, &context)));
        // The kubelet may have put the guard there, and may rely on it.
        if let Some(((table, chain), rules)) =
            self.chains.iter().find(|(key, _)| is_guard(key.0, &key.1))
            && let Some(ours) = wanted.get_mut(&(*table, chain.clone()))
            && ours.iter().all(|rule| rules.contains(rule))
        {
            ours.clone_from(rules);
        }
        let goes =
            |key: &&(TableName, ChainName)| !wanted.contains_key(*key) && !is_guard(key.0, &key.1);
        let gone: Vec<_> = self.chains.keys().filter(goes).cloned().collect();
        self.apply(wanted, gone, restore);
    }

    fn texts(
        &self,
        table: &ForwardingTable,
        context: &Context<'_>,
        name: &ServicePortName,
    ) -> (PortTexts, Texts) {
        let Some(port) = table.get(name) else { return Default::default() };
        let rules = compile_port(context, name, port, &table.frontends_of(name));
        let shared = rules.shared.iter().map(|(chain, rule)| (*chain, self.text(rule))).collect();
        let own = rules.own.keys().cloned().collect();
        let chains = rules.own.into_iter();
        let chains =
            chains.map(|(chain, rules)| ((TableName::Nat, chain), texts(self.family, &rules)));
        (PortTexts { shared, own }, chains.collect())
    }

    fn text(&self, rule: &Rule) -> String {
        print::rule(self.family, rule)
    }

    /// A chain that all service ports share, from what they have in it.
    fn shared_chain(
        &self,
        chain: Shared,
        context: &Context<'_>,
    ) -> ((TableName, ChainName), Vec<String>) {
        let entries = self.ports.values().flat_map(|port| &port.shared);
        let mut rules: Vec<_> =
            entries.filter(|(of, _)| *of == chain).map(|(_, text)| text.clone()).collect();
        let last = last_rules(chain, self.family, context);
        rules.extend(last.iter().map(|rule| self.text(rule)));
        let (table, name) = chain.place();
        ((table, name.into()), rules)
    }

    fn apply(
        &mut self,
        wanted: Texts,
        gone: impl IntoIterator<Item = (TableName, ChainName)>,
        restore: &mut Restore,
    ) {
        for ((table, chain), rules) in wanted {
            let key = (table, chain);
            if self.chains.get(&key) != Some(&rules) {
                restore.write(table, &key.1, &rules);
                let count = self.counts.entry(table).or_default();
                *count += rules.len();
                *count -= self.chains.insert(key, rules).map_or(0, |before| before.len());
            }
        }
        for key in gone {
            if let Some(rules) = self.chains.remove(&key) {
                *self.counts.entry(key.0).or_default() -= rules.len();
                restore.delete(key.0, &key.1);
            }
        }
    }
}

/// Makes the jumps that are missing.
fn write_hooks(family: IpFamily, hooks: &[Hook], listing: &Listing, restore: &mut Restore) {
    for hook in hooks {
        let text = print::rule(family, &hook.rule);
        if !listing.rules(hook.table, hook.from).contains(&text) {
            restore.insert(hook.table, hook.from, &text);
        }
    }
}

/// Makes the kernel hold a program of which it has `listing`; chains that are not in the program
/// stay as they are.
pub fn install(program: &Program, listing: &Listing) -> Restore {
    let mut restore = Restore::default();
    write_hooks(program.family, &program.hooks, listing, &mut restore);
    for ((table, chain), rules) in &program.chains {
        let rules = texts(program.family, rules);
        let same = listing.chains.get(&(*table, chain.clone())) == Some(&rules);
        if !same {
            restore.write(*table, chain, &rules);
        }
    }
    restore
}

/// What a removal leaves alone, because another mode uses it.
pub struct Kept {
    /// Whether a chain stays.
    pub is_kept: fn(TableName, &str) -> bool,
    /// The jumps that stay.
    pub hooks: Vec<Hook>,
}

impl Kept {
    /// Nothing stays.
    pub fn nothing() -> Self {
        Self { is_kept: |_, _| false, hooks: Vec::new() }
    }

    /// All that this mode uses stays.
    pub fn ours() -> Self {
        Self {
            is_kept: |table, chain| is_ours(table, chain) || is_guard(table, chain),
            hooks: hooks(),
        }
    }
}

/// Deletes everything of ours that a listing shows, and the jumps to it.
pub fn removal(family: IpFamily, listing: &Listing, kept: &Kept) -> Restore {
    let kubelet = listing.has(TableName::Mangle, "KUBE-KUBELET-CANARY");
    let ours = |table, chain: &str| is_ours(table, chain) || (!kubelet && is_guard(table, chain));
    remove(family, listing, ours, kept)
}

/// Whether a chain is the guard, which the kubelet may have put there as well.
fn is_guard(table: TableName, chain: &str) -> bool {
    table == TableName::Filter && chain == GUARD
}

/// Whether a chain belongs to this mode.
fn is_ours(table: TableName, chain: &str) -> bool {
    shared_chains().any(|shared| shared == (table, chain))
        || (table == TableName::Nat && is_per_service(chain))
}

/// Deletes the chains that are ours, and the jumps to them from chains that are not.
pub fn remove(
    family: IpFamily,
    listing: &Listing,
    is_ours: impl Fn(TableName, &str) -> bool,
    kept: &Kept,
) -> Restore {
    let mut restore = Restore::default();
    let stays: BTreeSet<_> = kept
        .hooks
        .iter()
        .map(|hook| (hook.table, hook.from, print::rule(family, &hook.rule)))
        .collect();
    for ((table, chain), rules) in &listing.chains {
        if (kept.is_kept)(*table, chain) {
            continue;
        }
        if is_ours(*table, chain) {
            restore.delete(*table, chain);
            continue;
        }
        for rule in rules {
            let target = rule.rsplit_once("-j ").map(|(_, target)| target.trim());
            let stays = stays.iter().any(|(t, c, r)| (*t, *c, r) == (*table, &**chain, rule));
            if target.is_some_and(|target| is_ours(*table, target)) && !stays {
                restore.withdraw(*table, chain, rule);
            }
        }
    }
    restore
}

fn texts(family: IpFamily, rules: &[Rule]) -> Vec<String> {
    rules.iter().map(|rule| print::rule(family, rule)).collect()
}

/// Does what `iptables-restore --noflush` would do, and refuses what it would refuse.
///
/// It is here, and not among the tests, because tests of other crates need it, too.
pub fn carry_out(kernel: &mut Listing, restore: &Restore) -> Result<(), String> {
    for (table, section) in &restore.tables {
        for chain in &section.declare {
            kernel.chains.insert((*table, chain.clone()), Vec::new());
        }
        for line in &section.lines {
            let mut words = line.splitn(3, ' ');
            let (Some(verb), Some(chain)) = (words.next(), words.next()) else {
                return Err(format!("cannot read {line}"));
            };
            let rule = words.next().unwrap_or_default().to_owned();
            let key = (*table, ChainName::from(chain));
            let rules =
                kernel.chains.get_mut(&key).ok_or_else(|| format!("no chain for {line}"))?;
            match verb {
                "-A" => rules.push(rule),
                "-I" => rules.insert(0, rule),
                "-D" => {
                    let at = rules.iter().position(|found| *found == rule);
                    rules.remove(at.ok_or_else(|| format!("no rule for {line}"))?);
                }
                _ => return Err(format!("cannot read {line}")),
            }
        }
        for chain in &section.delete {
            kernel.chains.remove(&(*table, chain.clone()));
        }
    }
    dangling(kernel).map_or(Ok(()), |jump| Err(format!("a jump leads nowhere: {jump}")))
}

fn dangling(kernel: &Listing) -> Option<String> {
    kernel.chains.iter().find_map(|((table, _), rules)| {
        let leads_nowhere = |rule: &&String| {
            let target = rule.rsplit_once("-j KUBE-").map(|(_, name)| format!("KUBE-{name}"));
            target.is_some_and(|target| !kernel.has(*table, &target))
        };
        rules.iter().find(leads_nowhere).cloned()
    })
}

/// The kernel's own chains, empty.
pub fn untouched() -> Listing {
    let chains = [
        (TableName::Nat, "PREROUTING"),
        (TableName::Nat, "INPUT"),
        (TableName::Nat, "OUTPUT"),
        (TableName::Nat, "POSTROUTING"),
        (TableName::Filter, "INPUT"),
        (TableName::Filter, "FORWARD"),
        (TableName::Filter, "OUTPUT"),
    ];
    let mut listing = Listing::default();
    for (table, chain) in chains {
        mem::take(listing.chains.entry((table, chain.into())).or_default());
    }
    listing
}
