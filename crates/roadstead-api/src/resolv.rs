//! A pod's resolv.conf, composed from its DNS policy, the cluster's and the node's.
//!
//! The node agent writes it; the DNS server knows from it which names a pod will try.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;

const MOST_NAMESERVERS: usize = 3;
const MOST_SEARCHES: usize = 32;
const MOST_SEARCH_CHARACTERS: usize = 2048;
const LONGEST_NAME: usize = 253;
/// Resolvers take a higher number for this one.
const MOST_DOTS: usize = 15;

/// The lines of a resolv.conf that matter to a resolver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResolvConf {
    /// Whom to ask.
    pub nameservers: Vec<String>,
    /// What to put behind a name, one after the other.
    pub searches: Vec<String>,
    /// Such as `ndots:5`.
    pub options: Vec<String>,
}

/// What the cluster offers.
#[derive(Clone, Debug)]
pub struct ClusterDns {
    /// Where its name server is.
    pub server: IpAddr,
    /// What all its names end in.
    pub domain: String,
}

impl ResolvConf {
    /// Reads a file; what has no meaning is passed over.
    pub fn parse(text: &str) -> Self {
        let mut conf = Self::default();
        for line in text.lines() {
            let line = line.split(['#', ';']).next().unwrap_or_default();
            let mut words = line.split_whitespace().map(str::to_owned);
            match words.next().as_deref() {
                Some("nameserver") => conf.nameservers.extend(words.next()),
                // The last of these lines wins.
                Some("search" | "domain") => conf.searches = words.collect(),
                Some("options") => conf.options.extend(words),
                _ => {}
            }
        }
        conf
    }

    /// How many dots a name must have to be asked for as it is first.
    pub fn dots(&self) -> usize {
        let last = self.options.iter().rev().find_map(|option| option.strip_prefix("ndots:"));
        last.and_then(|text| text.parse().ok()).unwrap_or(1).min(MOST_DOTS)
    }

    /// For how long a resolver asks about one name, at most, if there is one server.
    pub fn patience(&self) -> Duration {
        let option = |name| self.options.iter().rev().find_map(|one| one.strip_prefix(name));
        let number = |name, usual| option(name).and_then(|text| text.parse().ok()).unwrap_or(usual);
        Duration::from_secs(number("timeout:", 5_u64).saturating_mul(number("attempts:", 2_u64)))
    }
}

impl fmt::Display for ResolvConf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.searches.is_empty() {
            writeln!(f, "search {}", self.searches.join(" "))?;
        }
        for server in &self.nameservers {
            writeln!(f, "nameserver {server}")?;
        }
        if !self.options.is_empty() {
            writeln!(f, "options {}", self.options.join(" "))?;
        }
        Ok(())
    }
}

/// Returns the pod's resolv.conf, and a note for each thing that had to be left out.
pub fn compose(pod: &Pod, cluster: &ClusterDns, node: &ResolvConf) -> (ResolvConf, Vec<String>) {
    let spec = pod.spec.clone().unwrap_or_default();
    let on_host = spec.host_network.unwrap_or(false);
    let mut conf = match spec.dns_policy.as_deref().unwrap_or("ClusterFirst") {
        "None" => ResolvConf::default(),
        "ClusterFirstWithHostNet" => of_cluster(pod, cluster, node),
        "ClusterFirst" if !on_host => of_cluster(pod, cluster, node),
        _ => node.clone(),
    };
    if let Some(extra) = spec.dns_config {
        conf.nameservers.extend(extra.nameservers.into_iter().flatten());
        conf.searches.extend(extra.searches.into_iter().flatten());
        for option in extra.options.into_iter().flatten() {
            let name = option.name.unwrap_or_default();
            conf.options.retain(|known| option_name(known) != name);
            conf.options.push(match option.value {
                Some(value) => format!("{name}:{value}"),
                None => name,
            });
        }
    }
    without_repeats(&mut conf.nameservers);
    without_repeats(&mut conf.searches);
    let notes = limit(&mut conf);
    (conf, notes)
}

fn of_cluster(pod: &Pod, cluster: &ClusterDns, node: &ResolvConf) -> ResolvConf {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
    let domain = &cluster.domain;
    let own = [format!("{namespace}.svc.{domain}"), format!("svc.{domain}"), domain.clone()];
    ResolvConf {
        nameservers: vec![cluster.server.to_string()],
        searches: own.into_iter().chain(node.searches.iter().cloned()).collect(),
        options: vec!["ndots:5".into()],
    }
}

fn option_name(option: &str) -> &str {
    option.split(':').next().unwrap_or_default()
}

fn without_repeats(list: &mut Vec<String>) {
    let mut seen = Vec::new();
    list.retain(|entry| {
        let is_new = !seen.contains(entry);
        if is_new {
            seen.push(entry.clone());
        }
        is_new
    });
}

fn limit(conf: &mut ResolvConf) -> Vec<String> {
    let mut notes = Vec::new();
    if conf.nameservers.len() > MOST_NAMESERVERS {
        conf.nameservers.truncate(MOST_NAMESERVERS);
        notes.push(format!(
            "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: {}",
            conf.nameservers.join(" ")
        ));
    }
    let before = conf.searches.len();
    conf.searches.retain(|name| name.len() <= LONGEST_NAME);
    conf.searches.truncate(MOST_SEARCHES);
    while conf.searches.join(" ").len() > MOST_SEARCH_CHARACTERS {
        conf.searches.pop();
    }
    if conf.searches.len() < before {
        notes.push(format!(
            "Search Line limits were exceeded, some search paths have been omitted, the applied search line is: {}",
            conf.searches.join(" ")
        ));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn conf(spec: serde_json::Value) -> (String, usize) {
        let mut spec = spec;
        spec["containers"] = json!([]);
        let pod = json!({"metadata": {"namespace": "week"}, "spec": spec});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let cluster = ClusterDns { server: [10, 96, 0, 10].into(), domain: "cluster.local".into() };
        let node = "nameserver 192.0.2.53 # comment\ndomain old\nsearch lan\noptions edns0\n";
        let (conf, notes) = compose(&pod, &cluster, &ResolvConf::parse(node));
        (conf.to_string().trim_end().replace('\n', " | "), notes.len())
    }

    #[test]
    fn policies() {
        let cluster = "search week.svc.cluster.local svc.cluster.local cluster.local lan | \
                       nameserver 10.96.0.10 | options ndots:5";
        let node = "search lan | nameserver 192.0.2.53 | options edns0";
        let cases = [
            ("the default", json!({}), cluster),
            ("cluster first", json!({"dnsPolicy": "ClusterFirst"}), cluster),
            ("the node's", json!({"dnsPolicy": "Default"}), node),
            ("host network", json!({"hostNetwork": true}), node),
            (
                "host network, cluster first",
                json!({"hostNetwork": true, "dnsPolicy": "ClusterFirstWithHostNet"}),
                cluster,
            ),
            (
                "none",
                json!({"dnsPolicy": "None", "dnsConfig": {"nameservers": ["192.0.2.1"]}}),
                "nameserver 192.0.2.1",
            ),
            (
                "merged, last option wins, nothing twice",
                json!({"dnsPolicy": "Default", "dnsConfig": {
                    "nameservers": ["192.0.2.53", "192.0.2.1"], "searches": ["lan", "example.com"],
                    "options": [{"name": "ndots", "value": "2"}, {"name": "ndots", "value": "1"},
                                {"name": "edns0"}]}}),
                "search lan example.com | nameserver 192.0.2.53 | nameserver 192.0.2.1 | \
                 options ndots:1 edns0",
            ),
        ];
        for (name, spec, want) in cases {
            assert_eq!(conf(spec), (want.into(), 0), "{name}");
        }
    }

    #[test]
    fn limits() {
        let many = |count: usize, length: usize| -> Vec<String> {
            (0..count).map(|i| format!("{i:0>length$}")).collect()
        };
        let with = |servers: Vec<String>, searches: Vec<String>| {
            let config = json!({"nameservers": servers, "searches": searches});
            let (text, notes) = conf(json!({"dnsPolicy": "None", "dnsConfig": config}));
            (text.matches("nameserver").count(), text.matches(' ').count(), notes)
        };
        assert_eq!(with(many(4, 1), vec![]).0, 3);
        assert_eq!(with(vec![], many(33, 10)), (0, 32, 1));
        assert_eq!(with(vec![], many(20, 200)), (0, 10, 1), "2048 characters");
        assert_eq!(with(vec![], vec!["a".repeat(254), "b".into()]), (0, 1, 1));
    }
}
