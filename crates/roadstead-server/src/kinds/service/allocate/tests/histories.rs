//! Whatever is written, by however many at once: what is taken is what Services hold.

use proptest::prelude::*;

use super::*;

/// One request.
#[derive(Clone, Debug)]
struct Step {
    method: &'static str,
    name: usize,
    spec: Value,
    dry_run: bool,
}

fn spec() -> impl Strategy<Value = Value> {
    let kind = prop::sample::select(vec![
        json!({}),
        json!({"type": "ClusterIP"}),
        json!({"type": "NodePort"}),
        json!({"type": "LoadBalancer"}),
        json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local"}),
        json!({"type": "LoadBalancer", "allocateLoadBalancerNodePorts": false}),
        json!({"type": "ExternalName", "externalName": "a.b"}),
        json!({"clusterIP": "None"}),
        json!({"type": "Wrong"}),
    ]);
    let family = prop::sample::select(vec![
        json!({}),
        json!({}),
        json!({"ipFamilyPolicy": "SingleStack"}),
        json!({"ipFamilyPolicy": "PreferDualStack"}),
        json!({"ipFamilyPolicy": "RequireDualStack"}),
        json!({"ipFamilies": ["IPv6"]}),
        json!({"clusterIP": "10.96.0.5"}),
        json!({"clusterIP": "fd00:96::5"}),
        json!({"clusterIP": "10.99.0.5"}),
    ]);
    let port = (0u16..3, prop::option::of(30_000u16..30_006), any::<bool>()).prop_map(
        |(number, node, udp)| {
            let mut port = json!({"name": format!("p{number}"), "port": 80 + number,
                "protocol": if udp { "UDP" } else { "TCP" }});
            if let Some(node) = node {
                port["nodePort"] = node.into();
            }
            port
        },
    );
    let ports = prop::option::weighted(0.7, prop::collection::vec(port, 0..3));
    (kind, family, ports).prop_map(|(kind, family, ports)| {
        let mut spec = kind;
        spec.as_object_mut().unwrap().extend(family.as_object().unwrap().clone());
        if let Some(ports) = ports {
            spec["ports"] = ports.into();
        }
        spec
    })
}

fn step() -> impl Strategy<Value = Step> {
    let method = prop::sample::select(vec!["POST", "POST", "PUT", "PATCH", "PATCH", "DELETE"]);
    (method, 0usize..4, spec(), prop::bool::weighted(0.1))
        .prop_map(|(method, name, spec, dry_run)| Step { method, name, spec, dry_run })
}

async fn take(cluster: &Cluster, step: &Step) {
    let (name, dry_run) =
        (format!("s{}", step.name), if step.dry_run { "?dryRun=All" } else { "" });
    let path = match step.method {
        "POST" => format!("{PATH}{dry_run}"),
        _ => format!("{PATH}/{name}{dry_run}"),
    };
    let body = match step.method {
        "DELETE" => Value::Null,
        "PATCH" => json!({"spec": step.spec}),
        _ => service(&name, step.spec.clone()),
    };
    let answer = cluster.call(step.method, &path, body).await;
    let known = [200, 201, 404, 409, 422, 500];
    assert!(known.contains(&answer.code), "{step:?}: {answer:?}");
    if answer.code == 500 {
        let message = answer.body.text("/message");
        assert!(message.contains("failed to allocate"), "{step:?}: {answer:?}");
    }
}

async fn small() -> Arc<Cluster> {
    let services = Services { node_ports: 30_000..=30_007, ..Services::default() };
    let ranges = "10.96.0.0/28,fd00:96::/125";
    Arc::new(Cluster::over(Store::memory(), ranges, services).await)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn one_writer(steps in prop::collection::vec(step(), 1..60)) {
        run(async {
            let cluster = small().await;
            for step in &steps {
                take(&cluster, step).await;
                cluster.check();
            }
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    #[test]
    fn many_writers(writers in prop::collection::vec(prop::collection::vec(step(), 20), 4)) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build();
        runtime.unwrap().block_on(async {
            let cluster = small().await;
            let tasks: Vec<_> = writers
                .into_iter()
                .map(|steps| {
                    let cluster = cluster.clone();
                    tokio::spawn(async move {
                        for step in &steps {
                            take(&cluster, step).await;
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await.unwrap();
            }
            cluster.check();
        });
    }
}
