//! Cluster addresses and node ports, taken and given back in the transaction that writes the
//! Service: no crash can leak one or give it out twice.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::IpAddr;

use bytes::Bytes;
use jiff::Timestamp;
use roadstead_api::invalid::Causes;
use roadstead_api::look::Look;
use roadstead_plan::alloc;
use roadstead_store::entry::Key;
use roadstead_store::transaction::Transaction;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::api::Api;
use crate::error::ApiError;
use crate::object;
use crate::registry::Resource;

/// Where the store keeps IPAddress objects.
const ADDRESSES: &str = "ipaddresses.networking.k8s.io";
/// Where the store keeps taken node ports; the value is the Service.
const NODE_PORTS: &str = "nodeports";

/// Completes a Service with addresses and ports, and the transaction with what keeps them.
/// Objects of other kinds need nothing.
pub fn complete(
    api: &Api,
    resource: &Resource,
    old: Option<&Value>,
    new: &mut Value,
    transaction: Transaction,
    dry_run: bool,
) -> Result<Transaction, ApiError> {
    if resource.bucket != "services" {
        return Ok(transaction);
    }
    if let Some(old) = old {
        carry_over(old, new);
    }
    let mut causes = Causes::default();
    families(new);
    let transaction = addresses(api, old, new, transaction, dry_run, &mut causes);
    let transaction = ports(api, old, new, transaction, &mut causes);
    if causes.0.is_empty() {
        return Ok(transaction);
    }
    Err(ApiError::invalid(resource.info(), new.text("/metadata/name"), &causes.0))
}

/// Gives back what a Service holds when it is deleted.
pub fn release(resource: &Resource, object: &Value, transaction: Transaction) -> Transaction {
    if resource.bucket != "services" {
        return transaction;
    }
    let transaction =
        held_addresses(object).into_iter().fold(transaction, |t, ip| t.delete(address_key(ip)));
    held_ports(object).into_iter().fold(transaction, |t, port| t.delete(port_key(port)))
}

/// What the client left out stays as it was, so that the same manifest can be applied again.
fn carry_over(old: &Value, new: &mut Value) {
    let (was, is) = (old.text("/spec/type").to_owned(), new.text("/spec/type").to_owned());
    if is == "ExternalName" {
        if was != is {
            for field in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
                if new["spec"][field] == old["spec"][field] {
                    remove(new, field);
                }
            }
        }
        return;
    }
    if was != "ExternalName" {
        for field in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
            let unset = new["spec"][field].is_null() || new["spec"][field] == json!("");
            if unset && old["spec"].get(field).is_some() {
                new["spec"][field] = old["spec"][field].clone();
            }
        }
    }
    if is == "ClusterIP" && was != is {
        // Whatever only made sense for the old type goes, unless the client wants it anew.
        for field in
            ["externalTrafficPolicy", "healthCheckNodePort", "allocateLoadBalancerNodePorts"]
        {
            if new["spec"][field] == old["spec"][field] {
                remove(new, field);
            }
        }
        let before: BTreeSet<_> = held_ports(old);
        for port in new["spec"]["ports"].as_array_mut().into_iter().flatten() {
            if u16::try_from(port.int("/nodePort")).is_ok_and(|port| before.contains(&port)) {
                port.as_object_mut().map(|fields| fields.remove("nodePort"));
            }
        }
        new["status"]["loadBalancer"] = json!({});
        return;
    }
    if is != "ClusterIP" {
        let before = old.list("/spec/ports").to_vec();
        for port in new["spec"]["ports"].as_array_mut().into_iter().flatten() {
            let same = before.iter().find(|was| was.text("/name") == port.text("/name"));
            if let Some(same) = same
                && port.int("/nodePort") == 0
                && same.int("/nodePort") != 0
            {
                port["nodePort"] = same["nodePort"].clone();
            }
        }
    }
}

/// The fields about address families of a single-stack IPv4 cluster.
fn families(new: &mut Value) {
    let spec = &mut new["spec"];
    if spec.text("/type") == "ExternalName" {
        return;
    }
    if spec.text("/clusterIP").is_empty() && !spec.list("/clusterIPs").is_empty() {
        spec["clusterIP"] = spec["clusterIPs"][0].clone();
    }
    if !spec.text("/clusterIP").is_empty() && spec.list("/clusterIPs").is_empty() {
        spec["clusterIPs"] = json!([spec["clusterIP"]]);
    }
    if spec.text("/ipFamilyPolicy").is_empty() {
        // A headless Service without selector may get addresses of either family by hand.
        let free = spec.text("/clusterIP") == "None" && !spec.has("/selector");
        spec["ipFamilyPolicy"] = if free { "RequireDualStack" } else { "SingleStack" }.into();
        if free && spec.list("/ipFamilies").is_empty() {
            spec["ipFamilies"] = json!(["IPv4", "IPv6"]);
        }
    }
    if spec.list("/ipFamilies").is_empty() {
        spec["ipFamilies"] = json!(["IPv4"]);
    }
}

fn addresses(
    api: &Api,
    old: Option<&Value>,
    new: &mut Value,
    mut transaction: Transaction,
    dry_run: bool,
    causes: &mut Causes,
) -> Transaction {
    let range = api.config.service_range;
    let before = old.map(held_addresses).unwrap_or_default();
    let kind = new.text("/spec/type");
    if kind != "ExternalName" && new.text("/spec/clusterIP").is_empty() {
        let taken = |ip: IpAddr| api.store.get(&address_key(ip)).is_some();
        let picked = match dry_run {
            true => Some(alloc::nth(range, 0)),
            false => alloc::cluster_ip(range, taken, seed()),
        };
        let Some(address) = picked else {
            causes.invalid(
                "spec.clusterIPs",
                &json!([]),
                "failed to allocate a serviceIP: range is full",
            );
            return transaction;
        };
        new["spec"]["clusterIP"] = address.to_string().into();
        new["spec"]["clusterIPs"] = json!([address.to_string()]);
    }
    let after = held_addresses(new);
    for &address in after.difference(&before).filter(|_| !dry_run) {
        let key = address_key(address);
        let fail = |why: &str| format!("failed to allocate IP {address}: {why}");
        if !alloc::may_be_allocated(range, address) {
            let why = fail("the provided network does not match the current range");
            causes.invalid("spec.clusterIPs", &new["spec"]["clusterIPs"], why);
        } else if api.store.get(&key).is_some() {
            let why = fail("provided IP is already allocated");
            causes.invalid("spec.clusterIPs", &new["spec"]["clusterIPs"], why);
        } else {
            let taken = address_object(address, new);
            transaction = transaction.expect(key.clone(), None).put(key, object::encode(&taken));
        }
    }
    before.difference(&after).fold(transaction, |t, &ip| t.delete(address_key(ip)))
}

fn ports(
    api: &Api,
    old: Option<&Value>,
    new: &mut Value,
    mut transaction: Transaction,
    causes: &mut Causes,
) -> Transaction {
    let before = old.map(held_ports).unwrap_or_default();
    let kind = new.text("/spec/type").to_owned();
    let wanted = kind == "NodePort"
        || (kind == "LoadBalancer" && new.flag("/spec/allocateLoadBalancerNodePorts"));
    let mut chosen = held_ports(new);
    if wanted {
        for index in 0..new.list("/spec/ports").len() {
            if new["spec"]["ports"][index].int("/nodePort") != 0 {
                continue;
            }
            // Ports of the same number, as for TCP and UDP, share one.
            let number = new["spec"]["ports"][index].int("/port");
            let mut twins = new.list("/spec/ports").iter().filter(|p| p.int("/port") == number);
            let shared = twins.find_map(|p| Some(p.int("/nodePort")).filter(|&port| port != 0));
            let taken =
                |port: u16| chosen.contains(&port) || api.store.get(&port_key(port)).is_some();
            let picked = shared.or_else(|| alloc::node_port(taken, seed()).map(i64::from));
            let Some(port) = picked else {
                let field = format!("spec.ports[{index}].nodePort");
                causes.invalid(field, &json!(0), "failed to allocate a nodePort: range is full");
                return transaction;
            };
            new["spec"]["ports"][index]["nodePort"] = port.into();
            chosen.extend(u16::try_from(port).ok());
        }
    }
    if kind == "ClusterIP" || kind == "ExternalName" {
        return before.into_iter().fold(transaction, |t, port| t.delete(port_key(port)));
    }
    let after = held_ports(new);
    let owner = format!("{}/{}", new.text("/metadata/namespace"), new.text("/metadata/name"));
    for (index, port) in new.list("/spec/ports").iter().enumerate() {
        let Ok(number) = u16::try_from(port.int("/nodePort")) else { continue };
        let field = format!("spec.ports[{index}].nodePort");
        if number == 0 || before.contains(&number) {
            continue;
        }
        if !alloc::NODE_PORTS.contains(&number) {
            let range = "provided port is not in the valid range. The range of valid ports is \
                30000-32767";
            causes.invalid(field, &json!(number), range);
        } else if api.store.get(&port_key(number)).is_some() {
            causes.invalid(field, &json!(number), "provided port is already allocated");
        } else {
            let key = port_key(number);
            transaction =
                transaction.expect(key.clone(), None).put(key, Bytes::from(owner.clone()));
        }
    }
    before.difference(&after).fold(transaction, |t, &port| t.delete(port_key(port)))
}

fn held_addresses(service: &Value) -> BTreeSet<IpAddr> {
    let addresses = service.list("/spec/clusterIPs").iter();
    addresses.filter_map(|address| address.as_str()?.parse().ok()).collect()
}

fn held_ports(service: &Value) -> BTreeSet<u16> {
    let ports = service.list("/spec/ports").iter();
    ports.filter_map(|p| u16::try_from(p.int("/nodePort")).ok()).filter(|&p| p != 0).collect()
}

fn address_key(address: IpAddr) -> Key {
    Key::new(ADDRESSES, format!("/{address}"))
}

fn port_key(port: u16) -> Key {
    Key::new(NODE_PORTS, port.to_string())
}

fn address_object(address: IpAddr, service: &Value) -> Value {
    let family = if address.is_ipv4() { "IPv4" } else { "IPv6" };
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "IPAddress",
        "metadata": {
            "name": address.to_string(),
            "uid": Uuid::new_v4().to_string(),
            "creationTimestamp": crate::write::seconds(Timestamp::now()),
            "labels": {
                "ipaddress.kubernetes.io/ip-family": family,
                "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io",
            },
        },
        "spec": {"parentRef": {
            "group": "",
            "resource": "services",
            "namespace": service["metadata"]["namespace"],
            "name": service["metadata"]["name"],
        }},
    })
}

fn remove(object: &mut Value, field: &str) {
    object["spec"].as_object_mut().map(|fields| fields.remove(field));
}

fn seed() -> u64 {
    RandomState::new().build_hasher().finish()
}
