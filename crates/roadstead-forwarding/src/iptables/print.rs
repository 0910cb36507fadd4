//! Rules as text: exactly what `iptables-save` prints, which `iptables-restore` accepts.
//!
//! Because both are the same text, what the kernel has can be compared with what it should have
//! line by line, and `render` shows what a listing will show.

use std::fmt::{self, Display, Write};

use super::model::{Field, Match, Program, Rule, Sense, TableName, TrackedState, Verdict};
use crate::service::IpFamily;

/// A rule of an address family as text, without the chain it is in.
pub fn rule(family: IpFamily, rule: &Rule) -> String {
    let mut words = Words(String::with_capacity(160));
    // The kernel's rule begins with the addresses; the listing shows them first.
    for rank in 0..4 {
        rule.matches.iter().filter(|m| header_rank(m) == Some(rank)).for_each(|m| words.header(m));
    }
    rule.matches
        .iter()
        .filter(|m| header_rank(m).is_none())
        .for_each(|m| words.extension(family, m));
    words.verdict(family, &rule.verdict);
    words.0
}

/// A rule with its chain, as a line of a listing.
pub fn line(family: IpFamily, chain: &str, of: &Rule) -> String {
    let text = rule(family, of);
    if text.is_empty() { format!("-A {chain}") } else { format!("-A {chain} {text}") }
}

fn header_rank(of: &Match) -> Option<u8> {
    match of {
        Match::Source(..) => Some(0),
        Match::Destination(..) => Some(1),
        Match::Input(..) => Some(2),
        Match::Protocol(_) => Some(3),
        _ => None,
    }
}

struct Words(String);

impl Words {
    fn add(&mut self, word: impl Display) {
        if !self.0.is_empty() {
            self.0.push(' ');
        }
        write!(self.0, "{word}").expect("strings take everything");
    }

    fn sensed(&mut self, sense: Sense, text: impl Display) {
        if sense == Sense::IsNot {
            self.add("!");
        }
        self.add(text);
    }

    fn header(&mut self, of: &Match) {
        match of {
            Match::Source(network, sense) => self.sensed(*sense, format_args!("-s {network}")),
            Match::Destination(network, sense) => self.sensed(*sense, format_args!("-d {network}")),
            Match::Input(name, sense) => self.sensed(*sense, format_args!("-i {name}")),
            Match::Protocol(protocol) => self.add(format_args!("-p {protocol}")),
            _ => {}
        }
    }

    fn extension(&mut self, family: IpFamily, of: &Match) {
        match of {
            Match::Comment(text) => {
                self.add(format_args!("-m comment --comment {}", Quoted(shorten(text))));
            }
            Match::Port(protocol, port) => self.add(format_args!("-m {protocol} --dport {port}")),
            Match::Transport(protocol) => self.add(format_args!("-m {protocol}")),
            Match::SourceLocal => self.add("-m addrtype --src-type LOCAL"),
            Match::DestinationLocal => self.add("-m addrtype --dst-type LOCAL"),
            Match::State(state) => {
                self.add(format_args!("-m conntrack --ctstate {}", Named(*state)))
            }
            Match::Marked(bit, sense) => {
                self.add("-m mark");
                self.sensed(*sense, format_args!("--mark {bit:#x}/{bit:#x}"));
            }
            Match::OneIn(count) => self.add(format_args!(
                "-m statistic --mode random --probability {}",
                probability(*count)
            )),
            Match::SeenWithin(list, seconds) => self.add(format_args!(
                "-m recent --rcheck --seconds {seconds} --reap --name {list} --mask {} --rsource",
                all_ones(family)
            )),
            Match::Remember(list) => self.add(format_args!(
                "-m recent --set --name {list} --mask {} --rsource",
                all_ones(family)
            )),
            Match::Virtual(address, protocol, port) => self.add(format_args!(
                "-m ipvs --vproto {} --vaddr {} --vport {port}",
                protocol.number(),
                ipnet::IpNet::from(*address)
            )),
            Match::Uninvited => self.add("-m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT"),
            Match::Count(name) => self.add(format_args!("-m nfacct --nfacct-name {name}")),
            Match::InSet(set, fields, sense) => {
                let word = |field: &Field| if *field == Field::Source { "src" } else { "dst" };
                let fields: Vec<_> = fields.iter().map(word).collect();
                self.add("-m set");
                self.sensed(*sense, format_args!("--match-set {set} {}", fields.join(",")));
            }
            Match::Source(..) | Match::Destination(..) | Match::Input(..) | Match::Protocol(_) => {}
        }
    }

    fn verdict(&mut self, family: IpFamily, verdict: &Verdict) {
        match verdict {
            Verdict::Jump(chain) => self.add(format_args!("-j {chain}")),
            Verdict::Return => self.add("-j RETURN"),
            Verdict::Accept => self.add("-j ACCEPT"),
            Verdict::Drop => self.add("-j DROP"),
            Verdict::Reject => self.add(match family {
                IpFamily::V4 => "-j REJECT --reject-with icmp-port-unreachable",
                IpFamily::V6 => "-j REJECT --reject-with icmp6-port-unreachable",
            }),
            Verdict::Mark(bit) => self.add(format_args!("-j MARK --set-xmark {bit:#x}/{bit:#x}")),
            Verdict::Unmark(bit) => self.add(format_args!("-j MARK --set-xmark {bit:#x}/0x0")),
            Verdict::Masquerade => self.add("-j MASQUERADE --random-fully"),
            Verdict::Destination(target) => {
                self.add(format_args!("-j DNAT --to-destination {target}"));
            }
            Verdict::Nothing => {}
        }
    }
}

/// The chance of one in `count`, as the kernel keeps it: in units of 2⁻³¹.
///
/// kube-proxy asks for ten decimals, so 1/3 becomes 0.3333333333 first and 0.33333333349 then.
fn probability(count: u32) -> String {
    const UNITS: f64 = 2_147_483_648.0;
    let asked = (1e10 / f64::from(count)).round() / 1e10;
    format!("{:.11}", (asked * UNITS).round() / UNITS)
}

fn all_ones(family: IpFamily) -> &'static str {
    match family {
        IpFamily::V4 => "255.255.255.255",
        IpFamily::V6 => "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
    }
}

/// The kernel keeps 255 bytes of a comment, and iptables refuses a longer one. No valid names make
/// one.
fn shorten(text: &str) -> &str {
    const MOST: usize = 255;
    let end = (0..=MOST.min(text.len())).rev().find(|&end| text.is_char_boundary(end));
    &text[..end.unwrap_or(0)]
}

/// A comment is quoted when it is more than one plain word, as the listing does it. Names come from
/// others: no valid one has a line break, but one that had would end our rule and begin its own.
struct Quoted<'a>(&'a str);

impl Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        if !self.0.is_empty() && self.0.chars().all(plain) {
            return f.write_str(self.0);
        }
        f.write_char('"')?;
        for c in self.0.chars().filter(|c| !c.is_control()) {
            if matches!(c, '"' | '\\' | '\'') {
                f.write_char('\\')?;
            }
            f.write_char(c)?;
        }
        f.write_char('"')
    }
}

struct Named(TrackedState);

impl Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            TrackedState::New => "NEW",
            TrackedState::Invalid => "INVALID",
            TrackedState::Established => "RELATED,ESTABLISHED",
        })
    }
}

/// The program as a listing: tables in the order of `iptables-save`, our chains only.
impl Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for table in TableName::ALL {
            writeln!(f, "*{table}")?;
            for (name, _) in self.chains_of(table) {
                writeln!(f, ":{name} - [0:0]")?;
            }
            for hook in self.hooks.iter().rev().filter(|hook| hook.table == table) {
                writeln!(f, "{}", line(self.family, hook.from, &hook.rule))?;
            }
            for (name, rules) in self.chains_of(table) {
                for rule in rules {
                    writeln!(f, "{}", line(self.family, name, rule))?;
                }
            }
            writeln!(f, "COMMIT")?;
        }
        Ok(())
    }
}
