//! Measures how long commits take: `commit_latency SERVICES ENDPOINTS`.
//!
//! Run it as root in a network namespace of its own, for example with `unshare -n`: it replaces
//! the table `ip kube-proxy`, and deletes it at the end.

use std::collections::BTreeSet;
use std::env;
use std::io::{self, Write};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use roadstead_api::key::ObjectKey;
use roadstead_forwarding::node_network::{DetectLocal, NodeNetwork};
use roadstead_forwarding::service::{
    IpFamily, Locality, Protocol, ServicePort, ServicePortName, Target,
};
use roadstead_forwarding::table::ForwardingTable;
use roadstead_proxy::nft::NftPlane;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = env::args().skip(1).map(|text| text.parse::<u32>());
    let services = arguments.next().transpose()?.unwrap_or(1000);
    let endpoints = arguments.next().transpose()?.unwrap_or(2);
    let detect_local = DetectLocal::Networks(vec!["10.0.0.0/8".parse()?]);
    let node_network = NodeNetwork { detect_local, ..NodeNetwork::default() };
    let mut bench = Bench {
        plane: NftPlane::open(IpFamily::V4)?,
        table: ForwardingTable::new(IpFamily::V4, &node_network),
    };
    for n in 0..services {
        bench.set(n, (0..endpoints).map(|slot| n * endpoints + slot));
    }
    let started = Instant::now();
    bench.plane.commit(&bench.table, Default::default())?;
    report("everything", vec![started.elapsed()])?;
    let own = |n: u32| (0..endpoints).map(move |slot| n * endpoints + slot);
    let sample = || (0..1000).map(move |i| i * 7919 % services);
    let fresh = services * endpoints;
    report(
        "one endpoint replaced",
        bench.each(sample(), |n| own(n).skip(1).chain([fresh + n]).collect())?,
    )?;
    report("put back", bench.each(sample(), |n| own(n).collect())?)?;
    report("one endpoint added", bench.each(sample(), |n| own(n).chain([fresh + n]).collect())?)?;
    report("one endpoint removed", bench.each(sample(), |n| own(n).collect())?)?;
    bench.plane.remove()?;
    Ok(())
}

struct Bench {
    plane: NftPlane,
    table: ForwardingTable,
}

impl Bench {
    fn set(
        &mut self,
        n: u32,
        targets: impl Iterator<Item = u32>,
    ) -> BTreeSet<Arc<ServicePortName>> {
        let target = |n: u32| Target {
            address: Ipv4Addr::from(0x0a00_0000 + n).into(),
            port: 8080,
            locality: Locality::Elsewhere,
        };
        let name = ServicePortName {
            namespace: "default".into(),
            name: format!("service-{n}"),
            port: "http".into(),
            protocol: Protocol::Tcp,
        };
        let port = ServicePort {
            port: 80,
            cluster_ips: vec![Ipv4Addr::from(0xac10_0000 + n).into()],
            cluster: targets.map(target).collect(),
            ..ServicePort::default()
        };
        let key = ObjectKey::new("default", name.name.clone());
        self.table.replace(&key, vec![(name, port)])
    }

    fn each(
        &mut self,
        services: impl Iterator<Item = u32>,
        targets: impl Fn(u32) -> Vec<u32>,
    ) -> Result<Vec<Duration>, Box<dyn std::error::Error>> {
        let mut times = Vec::new();
        for n in services {
            let started = Instant::now();
            let changed = self.set(n, targets(n).into_iter());
            self.plane.commit(&self.table, changed)?;
            times.push(started.elapsed());
        }
        Ok(times)
    }
}

fn report(what: &str, mut times: Vec<Duration>) -> io::Result<()> {
    times.sort();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100];
    writeln!(io::stdout(), "{what:24} p50 {:>12?}  p99 {:>12?}", at(50), at(99))
}
