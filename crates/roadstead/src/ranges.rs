//! Whether pods, Services, load balancers and this machine get in each other's way: an address leads
//! to one place only.

use std::net::{IpAddr, Ipv4Addr};

use anyhow::bail;
use ipnet::{IpNet, Ipv4Net};
use roadstead_plan::loadbalancer::Range;
use roadstead_podnet::plan::ROUTE_PRIORITY;

/// Where the kernel lists the routes of our network namespace.
const ROUTES: &str = "/proc/self/net/route";

/// The ranges that an operator chooses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ranges<'a> {
    /// `--cluster-cidr`.
    pub pods: &'a [IpNet],
    /// `--service-cidr`.
    pub services: &'a [IpNet],
    /// `--load-balancer-pool`.
    pub pool: &'a [Range],
}

/// A route that the machine has already.
#[derive(Clone, Debug, PartialEq)]
struct OwnRoute {
    link: String,
    to: Ipv4Net,
}

impl Ranges<'_> {
    fn named(&self) -> impl Iterator<Item = (&'static str, IpNet)> {
        let services = self.services.iter().map(|range| ("--service-cidr", *range));
        services.chain(self.pods.iter().map(|range| ("--cluster-cidr", *range)))
    }

    /// Refuses ranges that overlap, and those that an address of this machine is in.
    pub(crate) fn check(&self, machine: &[IpAddr]) -> anyhow::Result<()> {
        for pods in self.pods {
            if let Some(services) = self.services.iter().find(|range| overlap(range, pods)) {
                bail!("--service-cidr {services} and --cluster-cidr {pods} overlap");
            }
        }
        for (flag, range) in self.named() {
            if let Some(machine) = machine.iter().find(|machine| range.contains(*machine)) {
                bail!(
                    "this machine's own address {machine} is in {flag} {range}; choose another range"
                );
            }
            if let Some(taken) = self.pool.iter().find(|own| own.meets(range)) {
                bail!(
                    "--load-balancer-pool {taken} and {flag} {range} overlap; load balancers need \
                     addresses of their own"
                );
            }
        }
        Ok(())
    }

    /// What to say about the routes that the machine has already, except those of our own bridge.
    pub(crate) fn warnings(&self, bridge: &str) -> Vec<String> {
        // What cannot be read is no reason not to start.
        let routes = routes(&std::fs::read_to_string(ROUTES).unwrap_or_default());
        self.hidden(&routes, bridge)
    }

    fn hidden(&self, routes: &[OwnRoute], bridge: &str) -> Vec<String> {
        let foreign =
            routes.iter().filter(|route| route.link != bridge && route.to.prefix_len() > 0);
        let mut warnings = Vec::new();
        for OwnRoute { link, to } in foreign {
            for (flag, range) in self.named().filter(|(_, range)| overlap(range, &(*to).into())) {
                warnings.push(format!(
                    "this machine has a route to {to} by {link}, and {flag} {range} overlaps with \
                     it: some machines there cannot be reached from here any more. If they matter, \
                     choose another {flag}"
                ));
            }
        }
        warnings
    }
}

fn overlap(one: &IpNet, other: &IpNet) -> bool {
    one.contains(other) || other.contains(one)
}

/// Reads `/proc/net/route`: addresses are hexadecimal, in the order of this machine's bytes.
fn routes(table: &str) -> Vec<OwnRoute> {
    let rows = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    let address = |text: &str| {
        u32::from_str_radix(text, 16).ok().map(|bits| Ipv4Addr::from(bits.to_ne_bytes()))
    };
    let own = ROUTE_PRIORITY.to_string();
    let routes = rows.filter(|row| row.get(6) != Some(&&*own)).filter_map(|row| {
        let mask = address(row.get(7)?)?;
        let to = Ipv4Net::with_netmask(address(row.get(1)?)?, mask).ok()?;
        Some(OwnRoute { link: (*row.first()?).to_owned(), to })
    });
    routes.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nets(text: &str) -> Vec<IpNet> {
        text.split(',').map(|net| net.parse().unwrap()).collect()
    }

    #[test]
    fn ranges_that_do_not_get_in_each_others_way() {
        for (pods, services, pool, machine, want) in [
            ("10.244.0.0/16", "10.96.0.0/12", "", "192.0.2.7", ""),
            ("10.244.0.0/16", "10.96.0.0/12,fd00::/112", "192.0.2.0/28", "192.0.2.7", ""),
            ("10.244.0.0/16,fd01::/56", "10.96.0.0/12,fd00::/112", "", "2001:db8::7", ""),
            ("10.244.0.0/16,fd00::/56", "10.96.0.0/12,fd00::/112", "", "192.0.2.7", "overlap"),
            ("10.244.0.0/16,fd01::/56", "10.96.0.0/12", "", "fd01::7", "in --cluster-cidr"),
            ("10.244.0.0/16", "10.244.0.0/16", "", "192.0.2.7", "overlap"),
            ("10.244.0.0/16", "fd00::/112,10.244.0.0/16", "", "192.0.2.7", "overlap"),
            ("10.0.0.0/8", "10.96.0.0/12", "", "192.0.2.7", "overlap"),
            ("10.96.3.0/24", "10.96.0.0/12", "", "192.0.2.7", "overlap"),
            ("10.244.0.0/16", "10.96.0.0/12", "", "10.244.3.7", "in --cluster-cidr"),
            ("10.244.0.0/16", "10.96.0.0/12", "", "10.100.0.1", "in --service-cidr"),
            ("10.244.0.0/16", "10.96.0.0/12", "10.96.1.1", "192.0.2.7", "and --service-cidr"),
            (
                "10.244.0.0/16",
                "10.96.0.0/12",
                "10.243.0.0-10.245.0.0",
                "192.0.2.7",
                "--load-balancer-pool 10.243.0.0-10.245.0.0 and --cluster-cidr",
            ),
        ] {
            let services = nets(services);
            let pool: Vec<Range> = pool
                .split(',')
                .filter(|own| !own.is_empty())
                .map(|own| own.parse().unwrap())
                .collect();
            let ranges = Ranges { pods: &nets(pods), services: &services, pool: &pool };
            let checked = ranges.check(&[machine.parse().unwrap()]);
            let said = checked.err().map(|error| error.to_string()).unwrap_or_default();
            assert!(said.contains(want) && said.is_empty() == want.is_empty(), "{said}");
        }
    }

    #[test]
    fn routes_that_would_be_hidden() {
        let table = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\n\
            eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\n\
            eth0\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\n\
            tun0\t0000600A\t00000000\t0001\t0\t0\t0\t0000FFFF\n\
            roadstead0\t0000F40A\t00000000\t0001\t0\t0\t0\t00FFFFFF\n\
            eth0\t0001F40A\t020200C0\t0003\t0\t0\t8472\t00FFFFFF\n";
        if cfg!(target_endian = "big") {
            return;
        }
        let routes = routes(table);
        assert_eq!(
            routes[2],
            OwnRoute { link: "tun0".into(), to: "10.96.0.0/16".parse().unwrap() }
        );
        let services = nets("10.96.0.0/12");
        let ranges = Ranges { pods: &nets("10.244.0.0/16"), services: &services, pool: &[] };
        let warnings = ranges.hidden(&routes, "roadstead0");
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].contains("10.96.0.0/16 by tun0, and --service-cidr"), "{warnings:?}");
    }
}
