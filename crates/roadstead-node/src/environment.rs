//! A container's environment variables, host name and hosts file: pure.

use std::fmt::Write;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Container, EnvVar, ObjectFieldSelector, Pod};

/// The addresses that a container can learn about.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Addresses {
    pub(crate) pod: IpAddr,
    pub(crate) host: IpAddr,
}

/// Returns what the container declares, after the variables about Services, which it may replace;
/// or what about it is wrong.
pub(crate) fn environment(
    pod: &Pod,
    container: &Container,
    addresses: Addresses,
    links: &[(String, String)],
) -> Result<Vec<(String, String)>, String> {
    if container.env_from.as_ref().is_some_and(|sources| !sources.is_empty()) {
        return Err("envFrom is not supported yet".into());
    }
    let mut variables = links.to_vec();
    for variable in container.env.iter().flatten() {
        let value = value(pod, variable, addresses)?;
        let value = expand(&value, &variables);
        variables.retain(|(name, _)| *name != variable.name);
        variables.push((variable.name.clone(), value));
    }
    Ok(variables)
}

/// Adds what the image and the runtime give; `$(NAME)` does not see these.
pub(crate) fn with_defaults(
    pod: &Pod,
    mut variables: Vec<(String, String)>,
) -> Vec<(String, String)> {
    for (name, value) in [("PATH", "/bin"), ("HOME", "/"), ("HOSTNAME", &hostname(pod))] {
        if !variables.iter().any(|(known, _)| known == name) {
            variables.push((name.to_owned(), value.to_owned()));
        }
    }
    variables
}

/// Replaces `$(NAME)` by the variable's value; `$$` stands for `$`, and unknown names stay.
pub(crate) fn expand(text: &str, variables: &[(String, String)]) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
        } else if let Some((name, after)) =
            rest.strip_prefix('(').and_then(|inner| inner.split_once(')'))
        {
            match variables.iter().find(|(known, _)| known == name) {
                Some((_, value)) => out.push_str(value),
                None => drop(write!(out, "$({name})")),
            }
            rest = after;
        } else {
            out.push('$');
        }
    }
    out + rest
}

fn value(pod: &Pod, variable: &EnvVar, addresses: Addresses) -> Result<String, String> {
    let Some(source) = &variable.value_from else {
        return Ok(variable.value.clone().unwrap_or_default());
    };
    match &source.field_ref {
        Some(field) => field_value(pod, field, addresses),
        None => Err(format!("env {}: only value and fieldRef are supported yet", variable.name)),
    }
}

fn field_value(
    pod: &Pod,
    field: &ObjectFieldSelector,
    addresses: Addresses,
) -> Result<String, String> {
    let (meta, spec) = (&pod.metadata, pod.spec.as_ref());
    let path = field.field_path.as_str();
    if let Some((map, key)) = path.strip_suffix("']").and_then(|path| path.split_once("['")) {
        let map = match map {
            "metadata.labels" => &meta.labels,
            "metadata.annotations" => &meta.annotations,
            _ => return Err(format!("fieldPath {path:?} is not supported")),
        };
        return Ok(map.as_ref().and_then(|map| map.get(key)).cloned().unwrap_or_default());
    }
    let text = match path {
        "metadata.name" => meta.name.clone(),
        "metadata.namespace" => meta.namespace.clone(),
        "metadata.uid" => meta.uid.clone(),
        "spec.nodeName" => spec.and_then(|spec| spec.node_name.clone()),
        "spec.serviceAccountName" => spec.and_then(|spec| spec.service_account_name.clone()),
        "status.podIP" | "status.podIPs" => Some(addresses.pod.to_string()),
        "status.hostIP" | "status.hostIPs" => Some(addresses.host.to_string()),
        _ => return Err(format!("fieldPath {path:?} is not supported")),
    };
    Ok(text.unwrap_or_default())
}

/// The pod's own name within its network: at most 63 characters, as the kernel and DNS allow.
pub(crate) fn hostname(pod: &Pod) -> String {
    let chosen = pod.spec.as_ref().and_then(|spec| spec.hostname.clone());
    let mut name = chosen.or_else(|| pod.metadata.name.clone()).unwrap_or_default();
    name.truncate(63);
    name.trim_end_matches(['-', '.']).to_owned()
}

/// Returns the pod's /etc/hosts.
pub(crate) fn hosts_file(pod: &Pod, address: IpAddr, cluster_domain: &str) -> String {
    let hostname = hostname(pod);
    let spec = pod.spec.as_ref();
    let mut text = String::from(
        "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n",
    );
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let name = match spec.and_then(|spec| spec.subdomain.as_deref()) {
        Some(subdomain) => {
            format!("{hostname}.{subdomain}.{namespace}.svc.{cluster_domain}\t{hostname}")
        }
        None => hostname,
    };
    let _ = writeln!(text, "{address}\t{name}");
    for alias in spec.into_iter().flat_map(|spec| spec.host_aliases.iter().flatten()) {
        let names = alias.hostnames.iter().flatten().cloned().collect::<Vec<_>>();
        let _ = writeln!(text, "{}\t{}", alias.ip, names.join("\t"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const ADDRESSES: Addresses = Addresses {
        pod: IpAddr::V4(std::net::Ipv4Addr::new(10, 244, 0, 2)),
        host: IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1)),
    };

    fn pod() -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "web-1", "namespace": "week", "labels": {"app": "web"}},
            "spec": {"nodeName": "n1", "subdomain": "sub", "containers": [{"name": "a", "env": [
                {"name": "PLAIN", "value": "x"},
                {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                {"name": "LABEL", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['app']"}}},
                {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                {"name": "JOINED", "value": "$(NAME):$(PLAIN) $(NOBODY) $$(PLAIN)"},
                {"name": "LINKED", "value": "$(WEB_PORT) $(PATH)"},
                {"name": "DB_PORT", "value": "was $(DB_PORT)"},
            ]}]},
        }))
        .unwrap()
    }

    #[test]
    fn variables() {
        let pod = pod();
        let container = &pod.spec.as_ref().unwrap().containers[0];
        let links = [("WEB_PORT", "1"), ("DB_PORT", "2")];
        let links = links.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let found = environment(&pod, container, ADDRESSES, &links).unwrap();
        let found = with_defaults(&pod, found);
        let get = |name: &str| &found.iter().find(|(known, _)| known == name).unwrap().1;
        let cases = [
            ("HOSTNAME", "web-1"),
            ("NAME", "web-1"),
            ("LABEL", "web"),
            ("IP", "10.244.0.2"),
            ("JOINED", "web-1:x $(NOBODY) $(PLAIN)"),
            ("WEB_PORT", "1"),
            ("LINKED", "1 $(PATH)"),
            ("DB_PORT", "was 2"),
            ("PATH", "/bin"),
        ];
        for (name, want) in cases {
            assert_eq!(get(name), want, "{name}");
        }
    }

    #[test]
    fn what_we_cannot_give_is_refused() {
        let mut pod = pod();
        let env = json!([{"name": "S", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]);
        let container = &mut pod.spec.as_mut().unwrap().containers[0];
        container.env = serde_json::from_value(env).unwrap();
        let container = container.clone();
        let error = environment(&pod, &container, ADDRESSES, &[]).unwrap_err();
        assert_eq!(error, "env S: only value and fieldRef are supported yet");
    }

    #[test]
    fn hosts() {
        let text = hosts_file(&pod(), ADDRESSES.pod, "cluster.local");
        assert!(text.ends_with("10.244.0.2\tweb-1.sub.week.svc.cluster.local\tweb-1\n"), "{text}");
    }
}
