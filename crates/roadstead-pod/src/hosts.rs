//! A pod's host name, and the hosts file of its containers: pure.

use std::fmt::Write;

use k8s_openapi::api::core::v1::{Pod, PodSpec};

use crate::addresses::Addresses;
use crate::pod_name::NetworkMode;

/// The kernel takes no longer host names.
const LONGEST: usize = 64;

/// What a pod is called in its network.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct HostName {
    /// The first part, at most 63 characters, as DNS allows.
    pub(crate) short: String,
    /// The whole name, if the pod has a domain.
    pub(crate) full: Option<String>,
}

/// Returns the pod's names.
pub(crate) fn host_name(pod: &Pod, cluster_domain: &str) -> HostName {
    let no_spec = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&no_spec);
    let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    if let Some(chosen) = given(&spec.hostname_override) {
        return HostName { short: chosen, full: None };
    }
    let chosen = given(&spec.hostname).or_else(|| pod.metadata.name.clone()).unwrap_or_default();
    let cut: String = chosen.chars().take(63).collect();
    let short = cut.trim_end_matches(['-', '.']).to_owned();
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let full = given(&spec.subdomain)
        .map(|subdomain| format!("{short}.{subdomain}.{namespace}.svc.{cluster_domain}"));
    HostName { short, full }
}

/// Returns what the kernel shall say that the pod is called.
pub fn kernel_name(pod: &Pod, cluster_domain: &str, node: &str) -> Result<String, String> {
    if NetworkMode::of(pod) == NetworkMode::Host {
        return Ok(node.to_owned());
    }
    let HostName { short, full } = host_name(pod, cluster_domain);
    let as_full = pod.spec.as_ref().and_then(|spec| spec.set_hostname_as_fqdn).unwrap_or_default();
    match full.filter(|_| as_full) {
        None => Ok(short),
        Some(full) if full.len() <= LONGEST => Ok(full),
        Some(full) => Err(format!(
            "failed to construct FQDN from pod hostname and cluster domain, FQDN {full} is too long ({LONGEST} characters is the max, {} characters requested)",
            full.len()
        )),
    }
}

/// Returns the pod's /etc/hosts; `node` is the node's own.
pub(crate) fn hosts_file(
    pod: &Pod,
    addresses: Addresses,
    cluster_domain: &str,
    node: &str,
) -> String {
    let mut text = String::new();
    if NetworkMode::of(pod) == NetworkMode::Host {
        text.push_str("# Kubernetes-managed hosts file (host network).\n");
        text.push_str(node);
    } else {
        text.push_str("# Kubernetes-managed hosts file.\n");
        for (address, names) in [
            ("127.0.0.1", "localhost"),
            ("::1", "localhost ip6-localhost ip6-loopback"),
            ("fe00::0", "ip6-localnet"),
            ("fe00::0", "ip6-mcastprefix"),
            ("fe00::1", "ip6-allnodes"),
            ("fe00::2", "ip6-allrouters"),
        ] {
            let _ = writeln!(text, "{address}\t{names}");
        }
        let HostName { short, full } = host_name(pod, cluster_domain);
        let name = full.map_or(short.clone(), |full| format!("{full}\t{short}"));
        for address in addresses.iter() {
            let _ = writeln!(text, "{address}\t{name}");
        }
    }
    let aliases = pod.spec.iter().flat_map(|spec| spec.host_aliases.iter().flatten());
    let aliases: Vec<_> = aliases.collect();
    if !aliases.is_empty() {
        text.push_str("\n# Entries added by HostAliases.\n");
    }
    for alias in aliases {
        let names = alias.hostnames.iter().flatten().cloned().collect::<Vec<_>>();
        let _ = writeln!(text, "{}\t{}", alias.ip, names.join("\t"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(name: &str, spec: &Value) -> Pod {
        let meta = json!({"name": name, "namespace": "week"});
        serde_json::from_value(json!({"metadata": meta, "spec": spec})).unwrap()
    }

    #[test]
    fn names() {
        let long = "x".repeat(62) + "-.y";
        let cut = "x".repeat(62);
        let wide = "y".repeat(40);
        let too_long = format!(
            "failed to construct FQDN from pod hostname and cluster domain, FQDN {wide}.sub.week.svc.cluster.local is too long (64 characters is the max, 67 characters requested)"
        );
        for (name, spec, want) in [
            ("web", json!({}), "web"),
            ("web", json!({"hostname": "h"}), "h"),
            (&long, json!({}), &cut),
            ("web", json!({"subdomain": "sub"}), "web"),
            (
                "web",
                json!({"subdomain": "sub", "setHostnameAsFQDN": true}),
                "web.sub.week.svc.cluster.local",
            ),
            ("web", json!({"setHostnameAsFQDN": true}), "web"),
            (&wide, json!({"subdomain": "sub", "setHostnameAsFQDN": true}), &too_long),
            ("web", json!({"hostnameOverride": "o.example"}), "o.example"),
            ("web", json!({"hostNetwork": true, "hostname": "h"}), "node-1"),
        ] {
            let found = kernel_name(&pod(name, &spec), "cluster.local", "node-1");
            assert_eq!(found.unwrap_or_else(|why| why), want, "{name} {spec}");
        }
    }

    #[test]
    fn hosts() {
        let addresses = "10.244.0.2,fd00::2".parse().unwrap();
        let spec = json!({"subdomain": "sub", "hostAliases":
            [{"ip": "192.0.2.9", "hostnames": ["a", "b"]}]});
        let text = hosts_file(&pod("web", &spec), addresses, "cluster.local", "");
        let want = "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n\
            ::1\tlocalhost ip6-localhost ip6-loopback\nfe00::0\tip6-localnet\n\
            fe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n\
            10.244.0.2\tweb.sub.week.svc.cluster.local\tweb\n\
            fd00::2\tweb.sub.week.svc.cluster.local\tweb\n\
            \n# Entries added by HostAliases.\n192.0.2.9\ta\tb\n";
        assert_eq!(text, want);
        let of_node = pod("web", &json!({"hostNetwork": true}));
        let text = hosts_file(&of_node, addresses, "cluster.local", "127.0.0.1 me\n");
        assert_eq!(text, "# Kubernetes-managed hosts file (host network).\n127.0.0.1 me\n");
    }
}
