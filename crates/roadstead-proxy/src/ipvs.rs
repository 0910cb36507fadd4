//! The IPVS data plane: virtual servers over generic netlink, the addresses they are dialled by on
//! a link of their own, ipsets, and a few iptables rules around them.
//!
//! A destination that goes gets no new connection at once, but keeps those it has: its weight is
//! 0 until the last one has ended.

pub(crate) mod data_plane;
mod leave;
pub(crate) mod link;
mod servers;
mod sets;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use roadstead_forwarding::iptables::diff::install;
use roadstead_forwarding::iptables::listing::Listing;
use roadstead_forwarding::ipvs::diff::{Delta, Layout};
use roadstead_forwarding::ipvs::model::{
    Program, Scheduler, Server, SetName, Settings, Timeouts, Virtual,
};
use roadstead_forwarding::service::{IpFamily, Protocol, ServicePortName};
use roadstead_forwarding::table::ForwardingTable;
use tracing::debug;

use self::link::Links;
use self::servers::Servers;
use self::sets::Sets;
use crate::conntrack::Conntrack;
use crate::data_plane::Committed;
use crate::iptables::command::{IptablesError, Programs};
use crate::iptables::signs_of_life;
use crate::sysctl;

/// A destination with this weight gets its share of connections.
const SERVING: u32 = 1;
/// A destination with this weight gets no new ones.
const DRAINING: u32 = 0;

/// So many servers, or elements of sets, are looked at closely each time.
const AT_ONCE: usize = 500;

/// How often the rules are compared as a whole.
const FULL_COMPARISON: Duration = Duration::from_secs(3600);

/// What the operator wants of IPVS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IpvsOptions {
    /// How destinations are chosen.
    pub scheduler: Scheduler,
    /// How long idle connections are kept.
    pub timeouts: Timeouts,
    /// Whether the node answers ARP only for addresses of the link that is asked. Load balancers
    /// that announce virtual addresses themselves need it.
    pub strict_arp: bool,
    /// Virtual servers with such addresses are somebody else's, and stay.
    pub excluded: Vec<IpNet>,
}

impl IpvsOptions {
    /// Whether a virtual server is none of our business.
    fn excludes(&self, server: &Server) -> bool {
        self.excluded.iter().any(|network| network.contains(&server.address))
    }
}

/// Why IPVS could not be brought up to date.
#[derive(Debug, thiserror::Error)]
pub enum IpvsError {
    /// The kernel has none.
    #[error("the kernel has no IPVS (module ip_vs)")]
    Missing(#[source] io::Error),
    /// The kernel has it, but not all that belongs to it.
    #[error("the kernel lacks {part}, which mode ipvs needs")]
    Lacks {
        /// What it lacks.
        part: String,
        /// How that shows.
        source: io::Error,
    },
    /// The kernel refused something.
    #[error("cannot {what}")]
    Refused {
        /// What was to be done.
        what: String,
        /// Why it was not.
        source: io::Error,
    },
    /// The rules around it could not be written.
    #[error(transparent)]
    Rules(#[from] IptablesError),
}

/// One address family of IPVS, and what we know to be in it.
#[derive(Debug)]
pub struct IpvsPlane {
    family: IpFamily,
    options: IpvsOptions,
    servers: Servers,
    sets: Sets,
    links: Links,
    programs: Programs,
    /// `None` if we cannot know, so that the next commit looks first.
    layout: Option<Layout>,
    draining: BTreeSet<(Server, SocketAddr)>,
    inspection: Inspection,
    conntrack: Conntrack,
}

/// How far the checks have come, which look at a part of everything at a time.
#[derive(Debug)]
struct Inspection {
    /// The last server that was looked at closely.
    server: Option<Server>,
    /// How many sets were filled again so far.
    sets: usize,
    /// When the rules were last compared as a whole.
    compared: Instant,
}

impl Default for Inspection {
    fn default() -> Self {
        Self { server: None, sets: 0, compared: Instant::now() }
    }
}

impl IpvsPlane {
    /// Connects to the kernel's IPVS; makes nothing yet.
    pub fn open(family: IpFamily, options: IpvsOptions) -> Result<Self, IpvsError> {
        Ok(Self {
            family,
            options,
            servers: Servers::open().map_err(IpvsError::Missing)?,
            sets: Sets::open(family).map_err(IpvsError::Missing)?,
            links: Links::open().map_err(IpvsError::Missing)?,
            programs: Programs::find(family),
            layout: None,
            draining: BTreeSet::new(),
            inspection: Inspection::default(),
            conntrack: Conntrack::default(),
        })
    }

    /// Tries out whatever else the kernel may lack, and leaves nothing behind.
    pub fn try_out(&mut self) -> Result<(), IpvsError> {
        let scheduler = self.options.scheduler;
        let server = Server {
            // Set aside for examples, so nobody else's.
            address: match self.family {
                IpFamily::V4 => Ipv4Addr::new(192, 0, 2, 1).into(),
                IpFamily::V6 => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(),
            },
            protocol: Protocol::Tcp,
            port: 1,
        };
        let settings = Settings { scheduler, persistence: None };
        let served = self.servers.add(&server, &settings);
        served
            .and_then(|()| self.servers.delete(&server))
            .needing(|| format!("the scheduler {}", scheduler.name()))?;
        for set in SetName::ALL {
            self.sets.try_out(set).needing(|| format!("ipsets of type {}", set.kind().text()))?;
        }
        self.links.try_out().needing(|| "links of type dummy".into())
    }

    /// Makes the kernel carry the table, in which `changed` are the service ports that differ
    /// from the last commit.
    pub fn commit(
        &mut self,
        table: &ForwardingTable,
        changed: BTreeSet<Arc<ServicePortName>>,
    ) -> Result<Committed, IpvsError> {
        // Taken out first: after a failure we do not know what the kernel has.
        let known = self.layout.take();
        let whole = known.is_none();
        let link = self.links.ensure().doing("make the link kube-ipvs0")?;
        let mut attempt = Attempt::default();
        let (layout, delta) = match known {
            Some(mut layout) => {
                let delta = layout.update(table, changed);
                (layout, delta)
            }
            None => {
                let layout = Layout::new(table, self.options.scheduler);
                let wanted = layout.program();
                let before = self.read(link, &wanted)?;
                self.lay_ground(&wanted, &mut attempt)?;
                (layout, Delta::between(&before, &wanted))
            }
        };
        attempt.count(self.carry_out(link, &delta));
        let operations = attempt.end()?;
        self.layout = Some(layout);
        Ok(Committed { whole, operations })
    }

    /// First what is new, then what changes, then what goes: nobody falls into a gap. What the
    /// kernel refuses of one Service keeps no other from being served.
    fn carry_out(&mut self, link: u32, delta: &Delta) -> Result<usize, IpvsError> {
        let family = self.family;
        let mut attempt = Attempt::default();
        for (set, entry) in &delta.add {
            let what = || format!("add {entry} to {}", set.text(family));
            attempt.note(self.sets.add(*set, entry).doing(what));
        }
        if let Some((before, after)) = &delta.rules {
            let restore = install(after, &Listing::parse(&before.to_string()));
            let restored = self.programs.restore(&restore.to_string());
            attempt.count(restored.map(|()| restore.operations()).map_err(IpvsError::from));
        }
        for (server, (before, after)) in &delta.servers {
            if let Some(after) = after {
                self.change_server(server, before.as_ref(), after, &mut attempt);
            }
        }
        for address in &delta.add_addresses {
            let what = || format!("add {address} to kube-ipvs0");
            attempt.note(self.links.add(link, *address).doing(what));
        }
        for address in &delta.delete_addresses {
            attempt
                .note(self.links.delete(link, *address).doing(|| format!("take {address} away")));
        }
        for (server, _) in delta.servers.iter().filter(|(_, (_, after))| after.is_none()) {
            attempt.note(self.servers.delete(server).doing(|| format!("delete {server:?}")));
            self.draining.retain(|(of, _)| of != server);
        }
        for (set, entry) in &delta.delete {
            let what = || format!("delete {entry} from {}", set.text(family));
            attempt.note(self.sets.delete(*set, entry).doing(what));
        }
        attempt.end()
    }

    /// Looks whether the kernel still has everything, and deletes destinations that have drained.
    pub fn check(&mut self) -> Result<bool, IpvsError> {
        let Some(layout) = &self.layout else { return Ok(true) };
        let listed = self.servers.list(self.family).doing("list virtual servers")?;
        let found: BTreeSet<_> = listed.into_iter().map(|(server, _)| server).collect();
        let servers = layout.servers().all(|server| found.contains(server));
        if !servers || !self.has_addresses()? || !self.has_rules()? || !self.look_closer()? {
            self.layout = None;
            return Ok(false);
        }
        self.refill_sets()?;
        self.finish_draining()?;
        Ok(true)
    }

    /// Whether our link has all virtual addresses.
    fn has_addresses(&mut self) -> Result<bool, IpvsError> {
        let Some(layout) = &self.layout else { return Ok(true) };
        let Some(link) = self.links.find().doing("find the link kube-ipvs0")? else {
            return Ok(false);
        };
        let found = self.links.addresses(self.family, link).doing("list addresses")?.ours;
        Ok(layout.addresses().all(|address| found.contains(address)))
    }

    /// Whether there are signs of our rules; every now and then, whether all are there.
    fn has_rules(&mut self) -> Result<bool, IpvsError> {
        if self.inspection.compared.elapsed() < FULL_COMPARISON {
            return Ok(signs_of_life(&self.programs)?);
        }
        self.inspection.compared = Instant::now();
        let Some(layout) = &self.layout else { return Ok(true) };
        Ok(install(layout.rules(), &self.programs.list()?).is_empty())
    }

    /// Compares the destinations of some servers, and others the next time.
    fn look_closer(&mut self) -> Result<bool, IpvsError> {
        let Some(layout) = &self.layout else { return Ok(true) };
        let next = layout.servers_after(self.inspection.server, AT_ONCE);
        // After the last one comes the first again.
        self.inspection.server =
            next.last().filter(|_| next.len() == AT_ONCE).map(|(server, _)| *server);
        for (server, wanted) in next {
            let found = self.destinations(&server)?.into_iter();
            let serving = found.filter(|destination| destination.weight != DRAINING);
            if serving.map(|destination| destination.target).collect::<BTreeSet<_>>() != wanted {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Fills some sets again, in case somebody has changed them, and others the next time.
    fn refill_sets(&mut self) -> Result<(), IpvsError> {
        let Some(layout) = &self.layout else { return Ok(()) };
        let mut filled = 0;
        for _ in SetName::ALL {
            let set = SetName::ALL[self.inspection.sets % SetName::ALL.len()];
            self.inspection.sets += 1;
            let entries = layout.entries_of(set);
            let what = || format!("fill the ipset {}", set.text(self.family));
            self.sets.replace(set, &entries).doing(what)?;
            filled += entries.len();
            if filled >= AT_ONCE {
                break;
            }
        }
        Ok(())
    }

    /// What a predecessor left, so that taking over disturbs nobody. Destinations that it was
    /// draining go on draining.
    fn read(&mut self, link: u32, wanted: &Program) -> Result<Program, IpvsError> {
        set_sysctls(self.options.strict_arp);
        self.servers.set_timeouts(&self.options.timeouts).doing("set timeouts")?;
        let addresses = self.links.addresses(self.family, link).doing("list addresses")?.ours;
        let mut found = BTreeMap::new();
        for (server, settings) in self.servers.list(self.family).doing("list virtual servers")? {
            if self.options.excludes(&server) && !wanted.servers.contains_key(&server) {
                continue;
            }
            let mut targets = BTreeSet::new();
            for destination in self.destinations(&server)? {
                let target = destination.target;
                if destination.weight == DRAINING {
                    self.draining.insert((server, target));
                } else {
                    targets.insert(target);
                }
            }
            found.insert(server, (settings, targets));
        }
        let rules = Program { servers: found, addresses, ..wanted.clone() };
        Ok(rules)
    }

    /// When nothing is known each set is replaced as a whole, and then the rules, which refer to
    /// them.
    fn lay_ground(&mut self, wanted: &Program, attempt: &mut Attempt) -> Result<(), IpvsError> {
        for (set, entries) in &wanted.sets {
            let name = set.text(self.family);
            let filled = self.sets.replace(*set, entries);
            let filled = filled.doing(|| format!("fill the ipset {name}"));
            attempt.count(filled.map(|()| entries.len()));
        }
        let restore = install(&wanted.rules, &self.programs.list()?);
        if !restore.is_empty() {
            let restored = self.programs.restore(&restore.to_string());
            attempt.count(restored.map(|()| restore.operations()).map_err(IpvsError::from));
        }
        Ok(())
    }

    /// Makes a server or changes it, with its destinations.
    fn change_server(
        &mut self,
        server: &Server,
        before: Option<&Virtual>,
        (settings, targets): &Virtual,
        attempt: &mut Attempt,
    ) {
        let what = || format!("set up the virtual server {server:?}");
        match before {
            None => attempt.note(self.servers.add(server, settings).doing(what)),
            Some((known, _)) if known != settings => {
                attempt.note(self.servers.set(server, settings).doing(what));
            }
            Some(_) => {}
        }
        let none = BTreeSet::new();
        let had = before.map_or(&none, |(_, targets)| targets);
        for target in targets.difference(had) {
            attempt.note(self.add_destination(server, *target));
        }
        for target in had.difference(targets) {
            attempt.note(self.withdraw(server, *target));
        }
    }

    /// A target that has been away, but not long enough to drain, serves again.
    fn add_destination(&mut self, server: &Server, target: SocketAddr) -> Result<(), IpvsError> {
        let what = || format!("add the destination {target} to {server:?}");
        if self.draining.remove(&(*server, target)) {
            self.servers.set_weight(server, target, SERVING).doing(what)
        } else {
            self.servers.add_destination(server, target, SERVING).doing(what)
        }
    }

    /// TCP connections may end in peace; the other protocols have none.
    fn withdraw(&mut self, server: &Server, target: SocketAddr) -> Result<(), IpvsError> {
        let what = || format!("withdraw the destination {target} from {server:?}");
        if server.protocol == Protocol::Tcp {
            self.draining.insert((*server, target));
            self.servers.set_weight(server, target, DRAINING).doing(what)
        } else {
            self.servers.delete_destination(server, target).doing(what)
        }
    }

    fn finish_draining(&mut self) -> Result<(), IpvsError> {
        let servers: BTreeSet<_> = self.draining.iter().map(|(server, _)| *server).collect();
        for server in servers {
            for destination in self.destinations(&server)? {
                let key = (server, destination.target);
                if destination.connections == 0 && self.draining.remove(&key) {
                    debug!(target = %destination.target, "has drained");
                    self.servers
                        .delete_destination(&server, destination.target)
                        .doing(|| format!("delete the destination {}", destination.target))?;
                }
            }
        }
        Ok(())
    }

    fn destinations(&mut self, server: &Server) -> Result<Vec<servers::Destination>, IpvsError> {
        self.servers.destinations(server).doing(|| format!("list destinations of {server:?}"))
    }
}

/// Many steps, of which some may fail: how many were taken, and the first error.
#[derive(Default)]
struct Attempt {
    steps: usize,
    failure: Option<IpvsError>,
}

impl Attempt {
    fn note(&mut self, outcome: Result<(), IpvsError>) {
        self.count(outcome.map(|()| 1));
    }

    fn count(&mut self, outcome: Result<usize, IpvsError>) {
        match outcome {
            Ok(steps) => self.steps += steps,
            Err(error) if self.failure.is_some() => debug!(%error, "refused, too"),
            Err(error) => self.failure = Some(error),
        }
    }

    fn end(self) -> Result<usize, IpvsError> {
        self.failure.map_or(Ok(self.steps), Err)
    }
}

/// Says what was to be done when something failed.
trait Doing<T> {
    fn doing<W: What>(self, what: W) -> Result<T, IpvsError>;
    /// The same when something was tried out: it fails where the kernel lacks that part.
    fn needing(self, part: impl FnOnce() -> String) -> Result<T, IpvsError>;
}

impl<T> Doing<T> for io::Result<T> {
    fn doing<W: What>(self, what: W) -> Result<T, IpvsError> {
        self.map_err(|source| IpvsError::Refused { what: what.text(), source })
    }

    fn needing(self, part: impl FnOnce() -> String) -> Result<T, IpvsError> {
        self.map_err(|source| match source.kind() {
            io::ErrorKind::PermissionDenied => {
                IpvsError::Refused { what: format!("try out {}", part()), source }
            }
            _ => IpvsError::Lacks { part: part(), source },
        })
    }
}

/// A text, or something that makes one when it is needed.
trait What {
    fn text(self) -> String;
}

impl What for &str {
    fn text(self) -> String {
        self.to_owned()
    }
}

impl<F: FnOnce() -> String> What for F {
    fn text(self) -> String {
        self()
    }
}

/// The settings that IPVS needs to work with masquerading. Where they cannot be set we go on.
fn set_sysctls(strict_arp: bool) {
    sysctl::apply([
        ("net/ipv4/vs/conntrack", "1"),
        ("net/ipv4/vs/expire_nodest_conn", "1"),
        ("net/ipv4/vs/expire_quiescent_template", "1"),
        ("net/ipv4/ip_forward", "1"),
    ]);
    if strict_arp {
        sysctl::apply([
            ("net/ipv4/conf/all/arp_ignore", "1"),
            ("net/ipv4/conf/all/arp_announce", "2"),
        ]);
    }
}
