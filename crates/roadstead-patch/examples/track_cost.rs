//! Measures what keeping `managedFields` costs a write: run it with `--release`.

#![allow(clippy::disallowed_methods, reason = "a measurement reads the clock")]

use std::hint::black_box;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use roadstead_patch::apply::managers::Manager;
use roadstead_patch::apply::track::track;
use roadstead_patch::apply::typing::Typing;
use roadstead_patch::apply::{Part, Request, apply};
use roadstead_schema::types::Schema;
use serde_json::{Value, json};

/// Others may use the machine: the best of many short batches is the cost of the work itself.
const BATCHES: usize = 50;
const ROUNDS: u32 = 40;

fn main() -> io::Result<()> {
    let schema = Schema::kubernetes();
    let of = |group, kind| Typing::known(schema, schema.of_kind(group, "v1", kind).expect("known"));
    let mut changed = service();
    changed["spec"]["ports"][3]["targetPort"] = 9999.into();
    changed["metadata"]["labels"]["version"] = "2".into();
    measure("Service, 2 kB, port and label changed", of("", "Service"), service(), &changed)?;
    measure("Service, 2 kB, unchanged", of("", "Service"), service(), &service())?;
    for count in [10, 100, 1000] {
        let mut changed = slice(count);
        changed["endpoints"][count / 2]["conditions"]["ready"] = false.into();
        let name = format!("EndpointSlice, {count} endpoints, one changed");
        measure(&name, of("discovery.k8s.io", "EndpointSlice"), slice(count), &changed)?;
    }
    let mut many = service();
    many["spec"]["ports"] = (1..=1000).map(|port| json!({"port": port})).collect();
    let mut changed = many.clone();
    changed["spec"]["ports"][500]["name"] = "x".into();
    measure("Service, 1,000 ports, one changed", of("", "Service"), many, &changed)
}

fn service() -> Value {
    let ports = (80..90).map(|port| {
        json!({"name": format!("port-{port}"), "port": port, "protocol": "TCP",
            "targetPort": port + 8000, "nodePort": 30000 + port})
    });
    let labels = (0..8).map(|n| (format!("example.com/label-{n}"), json!("some-value")));
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "web", "namespace": "default",
            "uid": "5f8a2a0e-7a52-4a52-9d1c-3f3d9b9d6a11", "resourceVersion": "1234",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": labels.collect::<serde_json::Map<_, _>>(),
            "annotations": {"example.com/note": "x".repeat(400)}},
        "spec": {"type": "LoadBalancer", "clusterIP": "10.96.0.17", "clusterIPs": ["10.96.0.17"],
            "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack", "sessionAffinity": "None",
            "internalTrafficPolicy": "Cluster", "externalTrafficPolicy": "Cluster",
            "allocateLoadBalancerNodePorts": true, "selector": {"app": "web"},
            "ports": ports.collect::<Vec<_>>()},
        "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1", "ipMode": "VIP"}]}},
    })
}

fn slice(count: usize) -> Value {
    let endpoint = |n: usize| {
        json!({"addresses": [format!("10.244.{}.{}", n / 250, n % 250)],
            "conditions": {"ready": true, "serving": true, "terminating": false},
            "nodeName": "node-1", "zone": "a",
            "targetRef": {"kind": "Pod", "name": format!("web-{n}"), "namespace": "default",
                "uid": format!("5f8a2a0e-7a52-4a52-9d1c-{n:012}")}})
    };
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": "web-abcde", "namespace": "default", "generateName": "web-",
            "labels": {"kubernetes.io/service-name": "web"}, "resourceVersion": "12"},
        "endpoints": (0..count).map(endpoint).collect::<Vec<_>>(),
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
    })
}

fn measure(name: &str, typing: Typing<'_>, mut old: Value, new: &Value) -> io::Result<()> {
    let version = new["apiVersion"].as_str().unwrap_or_default();
    let manager = |name, time| Manager { name, api_version: version, subresource: "", time };
    track(typing, None, &mut old, &manager("creator", "2026-01-01T00:00:00Z"));
    let mut new = new.clone();
    new["metadata"]["managedFields"] = old["metadata"]["managedFields"].clone();
    let size = new.to_string().len();
    let tracked = best(&new, |mut input| {
        let manager = manager("controller", "2026-01-02T00:00:00Z");
        track(typing, Some(black_box(&old)), &mut input, &manager);
        input
    });

    let mut config = new;
    if let Value::Object(metadata) = &mut config["metadata"] {
        metadata.retain(|name, _| ["name", "namespace", "labels"].contains(&name.as_str()));
    }
    let request = Request {
        manager: manager("applier", "2026-01-02T00:00:00Z"),
        force: true,
        part: Part::Main,
    };
    let applied = best(&config, |config| {
        apply(typing, Some(black_box(&old)), config, &request).unwrap_or_default()
    });
    let mut out = io::stdout().lock();
    writeln!(out, "{name}: {size} bytes, track {tracked:?}, apply {applied:?}")
}

fn best(input: &Value, work: impl Fn(Value) -> Value) -> Duration {
    let batch = |_| {
        let inputs: Vec<_> = (0..ROUNDS).map(|_| input.clone()).collect();
        let mut outputs = Vec::with_capacity(inputs.len());
        let started = Instant::now();
        outputs.extend(inputs.into_iter().map(|input| work(black_box(input))));
        let elapsed = started.elapsed();
        black_box(outputs);
        elapsed / ROUNDS
    };
    (0..BATCHES).map(batch).min().unwrap_or_default()
}
