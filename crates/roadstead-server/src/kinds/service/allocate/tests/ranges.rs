//! Ranges that come and go.

use roadstead_store::entry::Key;
use roadstead_store::transaction::Transaction;

use super::*;

fn range(name: &str, ranges: Value) -> Value {
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
        "metadata": {"name": name}, "spec": {"cidrs": ranges}})
}

fn port() -> Value {
    json!({"ports": [{"port": 80}]})
}

fn at(address: &str) -> Value {
    json!({"ports": [{"port": 80}], "clusterIP": address})
}

#[test]
fn the_range_of_the_operator_is_an_object() {
    run(async {
        let store = Store::memory();
        let cluster = Cluster::over(store.clone(), "10.96.0.0/16", Services::default()).await;
        let path = format!("{RANGES}/kubernetes");
        let object = cluster.call("GET", &path, Value::Null).await.body;
        assert_eq!(object["spec"], json!({"cidrs": ["10.96.0.0/16"]}));
        let claims = "status/conditions/0/type=Ready status/conditions/0/status=True \
            metadata/finalizers/0=networking.k8s.io/service-cidr-finalizer";
        check_claims("kubernetes", &object, claims);
        // A server with a second family adds it.
        let dual = "10.96.0.0/16,fd00:96::/112";
        let cluster = Cluster::over(store.clone(), dual, Services::default()).await;
        let object = cluster.call("GET", &path, Value::Null).await.body;
        assert_eq!(object["spec"], json!({"cidrs": ["10.96.0.0/16", "fd00:96::/112"]}));
        check_claims("kubernetes", &object, claims);
        // A server with another range does not take it away from the Services that have addresses.
        let cluster = Cluster::over(store, "10.97.0.0/16", Services::default()).await;
        let object = cluster.call("GET", &path, Value::Null).await.body;
        assert_eq!(object["spec"], json!({"cidrs": ["10.96.0.0/16", "fd00:96::/112"]}));
    });
}

#[test]
fn more_room_counts_at_once() {
    run(async {
        let cluster = Cluster::with("10.96.0.0/30").await;
        assert_eq!(cluster.create("a", port()).await.said(), "ok");
        assert!(cluster.create("b", port()).await.said().ends_with("range is full"));
        let more = range("more", json!(["10.97.0.0/24"]));
        assert_eq!(cluster.call("POST", RANGES, more).await.said(), "ok");
        let answer = cluster.create("b", port()).await;
        assert!(answer.body.text("/spec/clusterIP").starts_with("10.97.0."), "{answer:?}");
        assert_eq!(cluster.create("c", at("10.97.0.9")).await.said(), "ok");
        cluster.check();
    });
}

#[test]
fn a_range_stays_until_its_addresses_are_free() {
    run(async {
        let cluster = Cluster::with("10.96.0.0/24").await;
        cluster.call("POST", RANGES, range("more", json!(["10.97.0.0/24"]))).await;
        assert_eq!(cluster.create("a", at("10.97.0.9")).await.said(), "ok");
        let path = format!("{RANGES}/more");
        let answer = cluster.call("DELETE", &path, Value::Null).await;
        assert_eq!(answer.code, 200);
        let object = cluster.call("GET", &path, Value::Null).await.body;
        check_claims(
            "waiting",
            &object,
            "metadata/deletionTimestamp=* status/conditions/0/status=False \
             status/conditions/0/reason=Terminating",
        );
        assert_eq!(
            object.text("/status/conditions/0/message"),
            "There are still IPAddresses referencing the ServiceCIDR, please remove them or create \
             a new ServiceCIDR"
        );
        // Nobody gets an address from it any more.
        assert_eq!(
            cluster.create("b", at("10.97.0.10")).await.said(),
            "spec.clusterIPs: Invalid value: [\"10.97.0.10\"]: failed to allocate IP 10.97.0.10: \
             the provided network does not match the current range"
        );
        let change = json!({"spec": {"type": "ExternalName", "externalName": "a.b"}});
        cluster.call("PATCH", &format!("{PATH}/a"), change).await;
        assert_eq!(cluster.call("GET", &path, Value::Null).await.code, 404);
        cluster.check();
    });
}

#[test]
fn a_range_goes_when_another_covers_it() {
    run(async {
        let cluster = Cluster::with("10.96.0.0/24").await;
        cluster.call("POST", RANGES, range("more", json!(["10.97.0.0/24"]))).await;
        cluster.create("a", at("10.97.0.9")).await;
        cluster.call("DELETE", &format!("{RANGES}/more"), Value::Null).await;
        cluster.call("POST", RANGES, range("large", json!(["10.97.0.0/16"]))).await;
        assert_eq!(cluster.call("GET", &format!("{RANGES}/more"), Value::Null).await.code, 404);
        // The one that covers it now is needed.
        cluster.call("DELETE", &format!("{RANGES}/large"), Value::Null).await;
        assert_eq!(cluster.call("GET", &format!("{RANGES}/large"), Value::Null).await.code, 200);
        // An empty one goes at once.
        cluster.call("POST", RANGES, range("empty", json!(["10.98.0.0/16"]))).await;
        cluster.call("DELETE", &format!("{RANGES}/empty"), Value::Null).await;
        assert_eq!(cluster.call("GET", &format!("{RANGES}/empty"), Value::Null).await.code, 404);
        cluster.check();
    });
}

#[test]
fn a_crash_does_not_keep_a_range_for_ever() {
    run(async {
        let store = Store::memory();
        let cluster = Cluster::over(store.clone(), "10.96.0.0/24", Services::default()).await;
        cluster.call("POST", RANGES, range("more", json!(["10.97.0.0/24"]))).await;
        cluster.create("a", at("10.97.0.9")).await;
        cluster.call("DELETE", &format!("{RANGES}/more"), Value::Null).await;
        // The Service goes behind the back of the server, as if it had died just after.
        let gone = Transaction::new()
            .delete(Key::new("services", "default/a"))
            .delete(Key::new("ipaddresses.networking.k8s.io", "/10.97.0.9"));
        store.commit(gone).await.unwrap();
        let cluster = Cluster::over(store, "10.96.0.0/24", Services::default()).await;
        assert_eq!(cluster.call("GET", &format!("{RANGES}/more"), Value::Null).await.code, 404);
    });
}

#[test]
fn what_another_version_left_behind_is_mended() {
    run(async {
        let cluster = Cluster::with("10.96.0.0/24").await;
        let spec = json!({"type": "NodePort", "clusterIP": "10.96.0.9",
            "ports": [{"port": 80, "nodePort": 30080}]});
        assert_eq!(cluster.create("web", spec).await.said(), "ok");
        let row = |bucket: &str, path: &str| Key::new(bucket, path);
        let stranger = json!({"metadata": {"name": "10.96.0.7",
                "labels": {"ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io"}},
            "spec": {"parentRef": {"resource": "services", "namespace": "x", "name": "y"}}});
        let damage = Transaction::new()
            .delete(row("ipaddresses.networking.k8s.io", "/10.96.0.9"))
            .put(row("ipaddresses.networking.k8s.io", "/10.96.0.7"), stranger.to_string().into())
            .delete(row("nodeports", "30080"))
            .put(row("nodeports", "30081"), "x/y".into());
        cluster.api.storage.store.commit(damage).await.unwrap();
        let found = repair::differences(&cluster.api).unwrap();
        let reasons: Vec<_> = found.iter().map(|found| found.reason).collect();
        assert_eq!(
            reasons,
            ["IPAddressNotAllocated", "PortNotHeld", "ClusterIPNotAllocated", "PortNotAllocated"]
        );
        repair::mend(&cluster.api, found).await;
        cluster.check();
    });
}
