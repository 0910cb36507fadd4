//! `nslookup NAME [SERVER]`, with the output of busybox.
#![allow(clippy::print_stdout)]

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::lookup::{Missing, Resolver};
use super::message::{Data, Kind};

const TIMEOUT: Duration = Duration::from_secs(5);

pub(super) fn main(arguments: &[String]) -> i32 {
    let (name, server) = match arguments {
        [name] => (name, None),
        [name, server] => (name, Some(server)),
        _ => {
            eprintln!("Usage: nslookup HOST [DNS_SERVER]");
            return 1;
        }
    };
    let mut resolver = Resolver::of_system(TIMEOUT);
    if let Some(server) = server {
        match resolver.addresses(server) {
            Ok(found) => {
                resolver.servers =
                    found.into_iter().map(|address| SocketAddr::new(address, 53)).collect();
            }
            Err(_) => {
                println!("nslookup: bad address '{server}'");
                return 1;
            }
        }
    }
    let Some(first) = resolver.servers.first() else {
        println!("nslookup: no name server in /etc/resolv.conf");
        return 1;
    };
    println!("Server:\t\t{}\nAddress:\t{first}\n", first.ip());
    look_up(&resolver, name)
}

fn look_up(resolver: &Resolver, name: &str) -> i32 {
    let asked = match name.parse::<IpAddr>() {
        Ok(address) => (reverse(address), vec![Kind::Ptr]),
        Err(_) => (name.to_owned(), vec![Kind::A, Kind::Aaaa]),
    };
    match resolver.records(&asked.0, &asked.1) {
        Ok((_, records)) => {
            for (name, data) in records {
                match data {
                    Data::Address(address) => println!("Name:\t{name}\nAddress: {address}"),
                    Data::Alias(target) => println!("{name}\tcanonical name = {target}"),
                    Data::Pointer(target) => println!("{name}\tname = {target}"),
                }
            }
            println!();
            0
        }
        Err(Missing::NoSuchName { asked, code }) => {
            let why = match code {
                0 => "Parse error".to_owned(),
                2 => "SERVFAIL".to_owned(),
                3 => "NXDOMAIN".to_owned(),
                5 => "REFUSED".to_owned(),
                code => format!("code {code}"),
            };
            match code {
                0 => println!("*** Can't find {asked}: No answer\n"),
                _ => println!("** server can't find {asked}: {why}\n"),
            }
            1
        }
        Err(Missing::NoAnswer) => {
            println!(";; connection timed out; no servers could be reached\n");
            1
        }
    }
}

/// The name under which an address is looked up; absolute, because no search applies to it.
fn reverse(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => {
            let [a, b, c, d] = address.octets();
            format!("{d}.{c}.{b}.{a}.in-addr.arpa.")
        }
        IpAddr::V6(address) => {
            let nibbles = address.octets().into_iter().rev().flat_map(|b| [b & 0xf, b >> 4]);
            nibbles.map(|nibble| format!("{nibble:x}.")).collect::<String>() + "ip6.arpa."
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reverse_names() {
        assert_eq!(reverse([10, 96, 0, 1].into()), "1.0.96.10.in-addr.arpa.");
        let v6 = reverse("fd00::1".parse().unwrap());
        assert!(v6.starts_with("1.0.0.") && v6.ends_with("0.0.d.f.ip6.arpa."), "{v6}");
    }
}
