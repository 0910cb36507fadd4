//! A stub resolver: names to addresses, by /etc/hosts and the servers in /etc/resolv.conf.

use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use super::message::{self, Data, Kind, Reply};
use roadstead_api::resolv::ResolvConf;

const ATTEMPTS: usize = 2;

/// Why a name has no address.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Missing {
    /// A server said that there is no such name, or none of this kind.
    NoSuchName { asked: String, code: u8 },
    /// No server answered.
    NoAnswer,
}

/// How to look names up.
#[derive(Clone, Debug)]
pub(super) struct Resolver {
    pub(super) servers: Vec<SocketAddr>,
    searches: Vec<String>,
    ndots: usize,
    timeout: Duration,
}

impl Resolver {
    /// As /etc/resolv.conf says.
    pub(super) fn of_system(timeout: Duration) -> Self {
        let text = fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
        Self::of(&ResolvConf::parse(&text), timeout)
    }

    fn of(conf: &ResolvConf, timeout: Duration) -> Self {
        let servers = conf.nameservers.iter().filter_map(|text| text.parse::<IpAddr>().ok());
        let mut ndots = conf.options.iter().filter_map(|option| option.strip_prefix("ndots:"));
        Self {
            servers: servers.map(|server| SocketAddr::new(server, 53)).collect(),
            searches: conf.searches.clone(),
            ndots: ndots.next_back().and_then(|count| count.parse().ok()).unwrap_or(1),
            timeout,
        }
    }

    /// The full names to try for a name as written, in order.
    pub(super) fn candidates(&self, name: &str) -> Vec<String> {
        if let Some(full) = name.strip_suffix('.') {
            return vec![full.to_owned()];
        }
        let searched = self.searches.iter().map(|suffix| format!("{name}.{suffix}"));
        let as_it_is = [name.to_owned()].into_iter();
        if name.matches('.').count() >= self.ndots {
            as_it_is.chain(searched).collect()
        } else {
            searched.chain(as_it_is).collect()
        }
    }

    /// Asks for the records of the first candidate that has any.
    pub(super) fn records(
        &self,
        name: &str,
        kinds: &[Kind],
    ) -> Result<(SocketAddr, Vec<(String, Data)>), Missing> {
        let mut missing = Missing::NoAnswer;
        for candidate in self.candidates(name) {
            let mut found = Vec::new();
            let mut by = None;
            for kind in kinds {
                let (server, reply) = self.ask(&candidate, *kind).ok_or(Missing::NoAnswer)?;
                by = Some(server);
                if reply.records.is_empty() {
                    missing = Missing::NoSuchName { asked: candidate.clone(), code: reply.code };
                }
                found.extend(
                    reply
                        .records
                        .into_iter()
                        .filter(|record| !found.contains(record))
                        .collect::<Vec<_>>(),
                );
            }
            if let (Some(server), false) = (by, found.is_empty()) {
                return Ok((server, found));
            }
        }
        Err(missing)
    }

    /// Returns the addresses of a host.
    pub(super) fn addresses(&self, host: &str) -> Result<Vec<IpAddr>, Missing> {
        if let Ok(address) = host.trim_matches(['[', ']']).parse() {
            return Ok(vec![address]);
        }
        let hosts = in_hosts(&fs::read_to_string("/etc/hosts").unwrap_or_default(), host);
        if !hosts.is_empty() {
            return Ok(hosts);
        }
        let (_, records) = self.records(host, &[Kind::A, Kind::Aaaa])?;
        Ok(records
            .into_iter()
            .filter_map(|(_, data)| match data {
                Data::Address(address) => Some(address),
                _ => None,
            })
            .collect())
    }

    fn ask(&self, name: &str, kind: Kind) -> Option<(SocketAddr, Reply)> {
        for attempt in 0..ATTEMPTS {
            for server in &self.servers {
                let id = rand_id(attempt);
                let Some(question) = message::question(id, name, kind) else {
                    return Some((*server, Reply { code: 3, ..Reply::default() }));
                };
                match self.over_udp(*server, id, &question) {
                    Some(reply) if reply.truncated => {
                        let full = self.over_tcp(*server, id, &question);
                        return Some((*server, full.unwrap_or(reply)));
                    }
                    Some(reply) => return Some((*server, reply)),
                    None => {}
                }
            }
        }
        None
    }

    fn over_udp(&self, server: SocketAddr, id: u16, question: &[u8]) -> Option<Reply> {
        let any = if server.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = UdpSocket::bind(any).ok()?;
        socket.connect(server).ok()?;
        socket.set_read_timeout(Some(self.timeout)).ok()?;
        socket.send(question).ok()?;
        let mut buffer = [0; 4096];
        loop {
            let length = socket.recv(&mut buffer).ok()?;
            if let Some(reply) = message::parse(id, &buffer[..length]) {
                return Some(reply);
            }
        }
    }

    fn over_tcp(&self, server: SocketAddr, id: u16, question: &[u8]) -> Option<Reply> {
        let mut stream = TcpStream::connect_timeout(&server, self.timeout).ok()?;
        stream.set_read_timeout(Some(self.timeout)).ok()?;
        let length = u16::try_from(question.len()).ok()?;
        stream.write_all(&[length.to_be_bytes().as_slice(), question].concat()).ok()?;
        let mut length = [0; 2];
        stream.read_exact(&mut length).ok()?;
        let mut reply = vec![0; u16::from_be_bytes(length).into()];
        stream.read_exact(&mut reply).ok()?;
        message::parse(id, &reply)
    }
}

/// Hard enough to guess for a client that asks once and uses a fresh port.
fn rand_id(attempt: usize) -> u16 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(attempt) as u16
}

fn in_hosts(text: &str, host: &str) -> Vec<IpAddr> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
    lines
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let address = words.next()?.parse().ok()?;
            words.any(|name| name.eq_ignore_ascii_case(host)).then_some(address)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candidates_follow_search_and_ndots() {
        let conf = "search week.svc.z svc.z\nnameserver 192.0.2.1\noptions ndots:2\n";
        let resolver = Resolver::of(&ResolvConf::parse(conf), Duration::ZERO);
        let cases = [
            ("web", "web.week.svc.z web.svc.z web"),
            ("web.week", "web.week.week.svc.z web.week.svc.z web.week"),
            ("a.b.c", "a.b.c a.b.c.week.svc.z a.b.c.svc.z"),
            ("web.", "web"),
        ];
        for (name, want) in cases {
            assert_eq!(resolver.candidates(name).join(" "), want, "{name}");
        }
        assert_eq!(resolver.servers, ["192.0.2.1:53".parse().unwrap()]);
    }

    #[test]
    fn hosts_file() {
        let text = "127.0.0.1 localhost\n192.0.2.7\tweb web.lan # ours\n";
        assert_eq!(in_hosts(text, "web.lan"), [IpAddr::from([192, 0, 2, 7])]);
        assert!(in_hosts(text, "ours").is_empty());
    }
}
