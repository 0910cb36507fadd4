//! Reads the part of CoreDNS' configuration language that clusters use.
//!
//! `parse` makes a tree of directives, `read` gives each its meaning. What is not understood is
//! refused with its line, because a rule that is silently left out is worse than none.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use roadstead_zone::name::Name;
use roadstead_zone::settings::ZoneSettings;

use self::parse::Directive;
use crate::setup::{
    Block, CacheRule, CacheScope, Forward, HostsTable, Log, LoggedEnd, Rewrite, Setup, Transfer,
};
use crate::upstream::{UpstreamGroup, UpstreamOptions, UpstreamPolicy};

mod import;
mod kubernetes;
mod parse;
mod template;

/// What is wrong with a configuration, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct CorefileError {
    /// Counted from 1.
    pub line: usize,
    /// What is wrong.
    pub reason: String,
}

type CorefileResult<T> = Result<T, CorefileError>;

/// How the cluster is reached whose names are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterAccess {
    /// Where the configuration says so.
    pub line: usize,
    /// The kubeconfig, as it is written there.
    pub kubeconfig: String,
    /// The context in it; `None` is the current one.
    pub context: Option<String>,
}

/// The meaning of a configuration.
#[derive(Debug)]
pub struct Corefile {
    /// What is done with which names.
    pub setup: Setup,
    /// The cluster's zone; `None` if it is not served.
    pub settings: Option<ZoneSettings>,
    /// The cluster, if the configuration says which.
    pub cluster: Option<ClusterAccess>,
    /// Which Services are served, as a selector.
    pub service_selector: Option<String>,
    /// Which namespaces are served, as a selector.
    pub namespace_selector: Option<String>,
    /// The port to listen on.
    pub port: u16,
    /// The addresses to listen on; all if there are none.
    pub bind: Vec<IpAddr>,
    /// Where to say that the server lives.
    pub health: Option<SocketAddr>,
    /// Where to say that the server is ready.
    pub ready: Option<SocketAddr>,
    /// Where to show what was counted.
    pub metrics: Option<SocketAddr>,
}

/// Where this machine says what it is called.
const HOST_NAME: &str = "/proc/sys/kernel/hostname";

/// What a configuration may refer to.
#[derive(Clone, Copy)]
pub struct CorefileEnvironment<'a> {
    /// How files are read, such as `/etc/resolv.conf`. A path that ends in `/` is read as the names of
    /// what is in that folder, one per line.
    pub file: &'a dyn Fn(&str) -> io::Result<String>,
    /// The value of a variable; empty if there is none.
    pub variable: &'a dyn Fn(&str) -> String,
}

impl<'a> CorefileEnvironment<'a> {
    /// Only files, and no variables.
    pub fn files(file: &'a dyn Fn(&str) -> io::Result<String>) -> Self {
        Self { file, variable: &|_| String::new() }
    }
}

/// Reads a configuration.
pub fn read(
    text: &str,
    compat: bool,
    environment: &CorefileEnvironment<'_>,
) -> CorefileResult<Corefile> {
    let setup = Setup { coredns_compat: compat, ..Setup::default() };
    let mut reader = CorefileReader {
        file: environment.file,
        port: None,
        corefile: Corefile {
            setup,
            settings: None,
            cluster: None,
            service_selector: None,
            namespace_selector: None,
            port: 53,
            bind: Vec::new(),
            health: None,
            ready: None,
            metrics: None,
        },
    };
    let blocks = import::expand(parse::parse(text, environment.variable)?, environment)?;
    if blocks.is_empty() {
        return Err(CorefileError { line: 1, reason: "there is no server block".into() });
    }
    for block in &blocks {
        reader.block(block)?;
    }
    let mut corefile = reader.corefile;
    corefile.port = reader.port.unwrap_or(53);
    if let Some(settings) = &mut corefile.settings {
        settings.coredns_compat = compat;
    }
    Ok(corefile)
}

struct CorefileReader<'a> {
    file: &'a dyn Fn(&str) -> io::Result<String>,
    port: Option<u16>,
    corefile: Corefile,
}

impl CorefileReader<'_> {
    fn block(&mut self, directive: &Directive) -> CorefileResult<()> {
        let mut block = Block { fixed_order: true, ..Block::default() };
        for word in &directive.words {
            let (zone, port) = self.zone_and_port(directive, word)?;
            if self.port.replace(port).is_some_and(|known| known != port) {
                return Err(directive.wrong("all server blocks must have the same port"));
            }
            if self.corefile.setup.blocks.iter().any(|block| block.zones.contains(&zone)) {
                return Err(directive.wrong(format!("zone {word} is there twice")));
            }
            block.zones.push(zone);
        }
        for plugin in &directive.body {
            self.plugin(plugin, &mut block)?;
        }
        for plugin in directive.body.iter().filter(|plugin| plugin.name() == "k8s_external") {
            self.outside(plugin, &mut block)?;
        }
        self.corefile.setup.add(block);
        Ok(())
    }

    /// `example.org:53`, `.`, `dns://example.org`.
    fn zone_and_port(&self, directive: &Directive, word: &str) -> CorefileResult<(Name, u16)> {
        let rest = word.strip_prefix("dns://").unwrap_or(word);
        if rest.contains("://") {
            return Err(directive.wrong(format!("{word}: only plain DNS is served")));
        }
        let (zone, port) = match rest.rsplit_once(':') {
            None => (rest, 53),
            Some((zone, port)) => {
                let port =
                    port.parse().map_err(|_| directive.wrong(format!("{word}: not a port")))?;
                (zone, port)
            }
        };
        Ok((directive.zone(zone)?, port))
    }

    fn plugin(&mut self, directive: &Directive, block: &mut Block) -> CorefileResult<()> {
        let corefile = &mut self.corefile;
        match directive.name() {
            // Errors are always logged, with less noise than a setting could choose.
            "errors" => {}
            "log" => block.logs.push(log(directive)?),
            "health" => {
                corefile.health = Some(directive.address(8080)?);
                corefile.setup.lame_duck = lame_duck(directive)?;
            }
            "ready" => corefile.ready = Some(directive.address(8181)?),
            "prometheus" => corefile.metrics = Some(directive.address(9153)?),
            // The guard is always on; a loop takes an upstream out rather than the process down.
            "loop" => {}
            // Changes are always looked for.
            "reload" => {}
            // Replies are short, ANY gets one kind (RFC 8482), there is a socket per processor, and
            // nobody waits for ever: all of that is always so.
            "minimal" | "any" | "multisocket" | "cancel" => {}
            "autopath" => autopath(directive)?,
            // Without a text of its own it is the machine's name.
            "nsid" => {
                let host = || (self.file)(HOST_NAME).unwrap_or_default().trim().to_owned();
                let text = directive.words[1..].join(" ");
                corefile.setup.identity = if text.is_empty() { host() } else { text };
            }
            "bufsize" => {
                let size = directive.words.get(1).map_or(Ok(1232), |word| word.parse());
                let size = size.ok().filter(|size| (512..=4096).contains(size));
                let wrong = || directive.wrong("bufsize must be between 512 and 4096");
                corefile.setup.udp_size = size.ok_or_else(wrong)?;
            }
            // It depends on another one, which may come later.
            "k8s_external" => {}
            "bind" => corefile.bind.extend(bind(directive)?),
            "transfer" => block.transfers.push(transfer(directive, &block.zones)?),
            "template" => block.templates.push(template::read(directive, &block.zones)?),
            "loadbalance" => block.fixed_order = !load_balance(directive)?,
            "cache" => cache(directive, block)?,
            "hosts" => block.hosts = Some(self.hosts(directive, &block.zones)?),
            "rewrite" => block.rewrites.push(rewrite(directive)?),
            "forward" => block.forwards.extend(self.forward(directive)?),
            "kubernetes" => {
                let (settings, fall_through) = self.kubernetes(directive, &block.zones)?;
                if self.corefile.settings.replace(settings).is_some() {
                    return Err(directive.wrong("only one kubernetes zone is served"));
                }
                block.kubernetes = Some(fall_through);
            }
            other => return Err(directive.wrong(format!("unknown plugin {other:?}"))),
        }
        Ok(())
    }

    /// `hosts [FILE [ZONE...]] { ADDRESS NAME..., ttl, no_reverse, fallthrough }`.
    fn hosts(&self, directive: &Directive, zones: &[Name]) -> CorefileResult<HostsTable> {
        let given = directive.words.iter().skip(2).map(|zone| directive.zone(zone));
        let given: Vec<Name> = given.collect::<CorefileResult<_>>()?;
        let zones = if given.is_empty() { zones } else { &given };
        let mut hosts = HostsTable { lifetime: 3600, ..HostsTable::default() };
        let mut reverse = true;
        for entry in &directive.body {
            match entry.name() {
                "fallthrough" => hosts.fall_through = Some(entry.fall_through(zones)?),
                "ttl" => hosts.lifetime = entry.number()?,
                "no_reverse" => reverse = false,
                "reload" => {}
                first if first.parse::<IpAddr>().is_ok() => hosts.read_line(&entry.words.join(" ")),
                other => return Err(entry.wrong(format!("hosts: unknown option {other:?}"))),
            }
        }
        // Without a table of its own it is the machine's.
        let path = directive.words.get(1).map_or("/etc/hosts", String::as_str);
        if directive.words.len() > 1 || hosts.addresses.is_empty() {
            let text = (self.file)(path).map_err(|e| directive.wrong(format!("{path}: {e}")))?;
            text.lines().for_each(|line| hosts.read_line(line));
        }
        if !reverse {
            hosts.names = BTreeMap::new();
        }
        hosts.zones = given;
        Ok(hosts)
    }

    /// `forward ZONE SERVER|FILE...`. A file may name no server, on a machine that is not connected yet:
    /// then there is nobody to ask.
    fn forward(&self, directive: &Directive) -> CorefileResult<Option<Forward>> {
        let [_, from, to @ ..] = directive.words.as_slice() else {
            return Err(directive.wrong("forward needs a zone and upstreams"));
        };
        let mut servers = Vec::new();
        for word in to {
            servers.extend(self.upstream(directive, word)?);
        }
        if to.is_empty() || servers.len() > 15 {
            return Err(directive.wrong("forward needs between 1 and 15 upstreams"));
        }
        // As CoreDNS.
        let mut options =
            UpstreamOptions { policy: UpstreamPolicy::Random, ..UpstreamOptions::default() };
        let mut except = Vec::new();
        for option in &directive.body {
            match option.name() {
                "except" => {
                    for zone in &option.words[1..] {
                        except.push(option.zone(zone)?);
                    }
                }
                "force_tcp" => options.force_tcp = true,
                "prefer_udp" | "expire" | "health_check" | "failfast_all_unhealthy_upstreams" => {}
                "max_fails" => options.max_fails = option.number()?,
                "max_concurrent" => options.most = option.number()?,
                "read_timeout" => options.timeout = option.duration()?,
                "policy" => {
                    options.policy = match option.only()? {
                        "random" => UpstreamPolicy::Random,
                        "round_robin" => UpstreamPolicy::RoundRobin,
                        "sequential" => UpstreamPolicy::Sequential,
                        // Ours alone.
                        "quickest" => UpstreamPolicy::Quickest,
                        other => return Err(option.wrong(format!("policy {other}: unknown"))),
                    }
                }
                other => return Err(option.wrong(format!("forward: unknown option {other:?}"))),
            }
        }
        let from = directive.zone(from)?;
        let upstreams = UpstreamGroup { addresses: servers, options };
        Ok((!upstreams.addresses.is_empty()).then_some(Forward { from, except, upstreams }))
    }

    /// An address, or a file in the form of resolv.conf.
    fn upstream(&self, directive: &Directive, word: &str) -> CorefileResult<Vec<SocketAddr>> {
        if word.starts_with("tls://") || word.starts_with("https://") || word.starts_with("quic://")
        {
            return Err(directive.wrong(format!("{word}: only plain DNS is spoken to upstreams")));
        }
        let plain = word.strip_prefix("dns://").unwrap_or(word);
        if let Ok(address) = plain.parse::<IpAddr>() {
            return Ok(vec![(address, 53).into()]);
        }
        if let Ok(address) = plain.parse::<SocketAddr>() {
            return Ok(vec![address]);
        }
        let text = (self.file)(plain).map_err(|e| directive.wrong(format!("{plain}: {e}")))?;
        Ok(name_servers(&text))
    }
}

/// The servers in a resolv.conf.
pub fn name_servers(text: &str) -> Vec<SocketAddr> {
    let words = text.lines().filter_map(|line| line.trim().strip_prefix("nameserver"));
    let first = words.filter_map(|rest| rest.split_whitespace().next());
    first.filter_map(|word| word.parse::<IpAddr>().ok()).map(|ip| (ip, 53).into()).collect()
}

/// `lameduck 5s` in `health`.
fn lame_duck(directive: &Directive) -> CorefileResult<Duration> {
    let mut time = Duration::ZERO;
    for option in &directive.body {
        match option.name() {
            "lameduck" => time = option.duration()?,
            other => return Err(option.wrong(format!("health: unknown option {other:?}"))),
        }
    }
    Ok(time)
}

/// Searches are completed by ourselves, for those whose list is known.
fn autopath(directive: &Directive) -> CorefileResult<()> {
    match directive.words.last().map(String::as_str) {
        Some("@kubernetes") => Ok(()),
        _ => Err(directive.wrong("only `autopath @kubernetes` is understood")),
    }
}

/// `log [ZONE...] [FORMAT] { class success|denial|error|all... }`. There is one format.
fn log(directive: &Directive) -> CorefileResult<Log> {
    let mut zones = &directive.words[1..];
    if let [names @ .., last] = zones
        && last.contains('{')
    {
        zones = names;
    }
    let given = zones.iter().map(|zone| directive.zone(zone));
    let mut log = Log { zones: given.collect::<CorefileResult<_>>()?, ends: Vec::new() };
    if log.zones.is_empty() {
        log.zones.push(directive.zone(".")?);
    }
    let mut all = false;
    for option in &directive.body {
        if option.name() != "class" {
            return Err(option.wrong(format!("log: unknown option {:?}", option.name())));
        }
        for word in &option.words[1..] {
            match word.as_str() {
                "all" => all = true,
                "success" => log.ends.push(LoggedEnd::Success),
                "denial" => log.ends.push(LoggedEnd::Denial),
                "error" => log.ends.push(LoggedEnd::Error),
                other => return Err(option.wrong(format!("log: unknown class {other:?}"))),
            }
        }
    }
    log.ends.retain(|_| !all);
    Ok(log)
}

/// `transfer [ZONE...] { to ADDRESS|* ... }`. Nobody is told of changes.
fn transfer(directive: &Directive, zones: &[Name]) -> CorefileResult<Transfer> {
    let given = directive.words[1..].iter().map(|zone| directive.zone(zone));
    let mut transfer =
        Transfer { zones: given.collect::<CorefileResult<_>>()?, to: Some(Vec::new()) };
    if transfer.zones.is_empty() {
        transfer.zones = zones.to_vec();
    }
    for option in &directive.body {
        if option.name() != "to" {
            return Err(option.wrong(format!("transfer: unknown option {:?}", option.name())));
        }
        for word in &option.words[1..] {
            let address = word.parse().or_else(|_| word.parse().map(|a: SocketAddr| a.ip()));
            match (address, &mut transfer.to) {
                (_, to) if word == "*" => *to = None,
                (Ok(address), Some(to)) => to.push(address),
                (Ok(_), None) => {}
                (Err(_), _) => return Err(option.wrong(format!("{word}: not an address"))),
            }
        }
    }
    Ok(transfer)
}

fn bind(directive: &Directive) -> CorefileResult<Vec<IpAddr>> {
    if !directive.body.is_empty() {
        return Err(directive.wrong("bind: options are not understood"));
    }
    let address = |word: &String| {
        let wrong = || directive.wrong(format!("bind {word}: not an address"));
        word.parse().map_err(|_| wrong())
    };
    directive.words[1..].iter().map(address).collect()
}

fn load_balance(directive: &Directive) -> CorefileResult<bool> {
    match directive.words.get(1).map_or("round_robin", String::as_str) {
        "round_robin" => Ok(true),
        other => Err(directive.wrong(format!("loadbalance {other}: unknown policy"))),
    }
}

/// `cache [SECONDS] [ZONE...] { success, denial, serve_stale, disable success|denial [ZONE...] }`.
fn cache(directive: &Directive, block: &mut Block) -> CorefileResult<()> {
    let mut rule = CacheRule { stale: Duration::ZERO, ..CacheRule::default() };
    let mut zones = &directive.words[1..];
    if let Some(Ok(seconds)) = zones.first().map(|word| word.parse::<u64>()) {
        rule.success = Duration::from_secs(seconds);
        rule.denial = Duration::from_secs(seconds);
        zones = &zones[1..];
    }
    let zones = zones.iter().map(|zone| directive.zone(zone)).collect::<CorefileResult<_>>()?;
    let mut disabled = block.cache.take().map(|scope| scope.disabled).unwrap_or_default();
    for option in &directive.body {
        let longest = || match option.words.get(2..).unwrap_or_default() {
            [] => Ok(None),
            [word] => option.parse_duration(word).map(Some),
            _ => Err(option.wrong("cache: a shortest time is not understood")),
        };
        match option.name() {
            "success" => rule.success = longest()?.unwrap_or(rule.success),
            "denial" => rule.denial = longest()?.unwrap_or(rule.denial),
            "serve_stale" => {
                rule.stale = match option.words.get(1) {
                    None => Duration::from_secs(3600),
                    Some(word) => option.parse_duration(word)?,
                }
            }
            "disable" => disabled.extend(uncached(option, &block.zones)?),
            // Whether these are done is up to us: no answer differs, only how soon it comes.
            "prefetch" | "servfail" | "keepttl" => {}
            other => return Err(option.wrong(format!("cache: unknown option {other:?}"))),
        }
    }
    block.cache = Some(CacheScope { rule, zones, disabled });
    Ok(())
}

/// `disable success|denial [ZONE...]`. Names of the cluster are never remembered anyway.
fn uncached(option: &Directive, zones: &[Name]) -> CorefileResult<Vec<(bool, Name)>> {
    let absence = match option.words.get(1).map(String::as_str) {
        Some("success") => false,
        Some("denial") => true,
        _ => return Err(option.wrong("cache: disable needs success or denial")),
    };
    let given = option.words[2..].iter().map(|zone| option.zone(zone));
    let given: Vec<Name> = given.collect::<CorefileResult<_>>()?;
    let zones = if given.is_empty() { zones.to_vec() } else { given };
    Ok(zones.into_iter().map(|zone| (absence, zone)).collect())
}

/// How long an expression may become when it is compiled.
const REGEX_SIZE: usize = 1 << 20;

/// `rewrite [stop|continue] name KIND FROM TO [answer ...]`, or the same in a block.
fn rewrite(directive: &Directive) -> CorefileResult<(Rewrite, bool)> {
    let mut words: Vec<&str> = directive.words[1..].iter().map(String::as_str).collect();
    for line in &directive.body {
        words.extend(line.words.iter().map(String::as_str));
    }
    let mut words = words.into_iter().peekable();
    let goes_on = words.next_if(|word| matches!(*word, "stop" | "continue")) == Some("continue");
    if words.next() != Some("name") {
        return Err(directive.wrong("only `rewrite name` is understood"));
    }
    const KINDS: [&str; 5] = ["exact", "prefix", "suffix", "substring", "regex"];
    let kind = words.next_if(|word| KINDS.contains(word)).unwrap_or("exact");
    let (Some(from), Some(to)) = (words.next(), words.next()) else {
        return Err(directive.wrong("rewrite name needs two names"));
    };
    match (words.next(), words.next()) {
        // Answers always come under the name that was asked, which is what this is for.
        (None, _) | (Some("answer"), Some("auto" | "name")) => {}
        (Some("answer"), other) => {
            let other = other.unwrap_or_default();
            return Err(directive.wrong(format!("rewrite name: answer {other} is not understood")));
        }
        (Some(other), _) => {
            return Err(directive.wrong(format!("rewrite name: {other:?} is not understood")));
        }
    }
    if words.any(|word| word == "value") {
        return Err(directive.wrong("rewrite name: answer value is not understood"));
    }
    let (from_text, to_text) = (from.to_lowercase(), to.to_lowercase());
    let rule = match kind {
        "exact" => Rewrite::Exact(directive.zone(from)?, directive.zone(to)?),
        "prefix" => Rewrite::Prefix(from_text, to_text),
        "suffix" => Rewrite::Suffix(from_text, to_text),
        "substring" => Rewrite::Substring(from_text, to_text),
        _ => {
            // Small letters would change the meaning of classes such as \S.
            let mut regex = regex::RegexBuilder::new(from);
            let regex = regex.case_insensitive(true).size_limit(REGEX_SIZE).build();
            let regex = regex.map_err(|error| {
                let reason = error.to_string();
                let last = reason.lines().last().unwrap_or_default().trim_start_matches("error: ");
                directive.wrong(format!("{from} is no regular expression: {last}"))
            })?;
            Rewrite::Regex(regex, to_text)
        }
    };
    Ok((rule, goes_on))
}

#[cfg(test)]
mod tests;
