//! What is counted, under upstream's names.

use super::*;

#[test]
fn every_allocation_is_counted() {
    run(async {
        let cluster = Cluster::with("10.96.0.0/24,fd00:96::/120").await;
        let port = |node: u16| json!([{"port": 80, "nodePort": node}]);
        let steps = [
            ("any", json!({"ports": [{"port": 80}]}), 201),
            ("certain", json!({"clusterIP": "10.96.0.50", "ports": [{"port": 80}]}), 201),
            ("taken", json!({"clusterIP": "10.96.0.50", "ports": [{"port": 80}]}), 422),
            ("any-port", json!({"type": "NodePort", "ports": [{"port": 80}]}), 201),
            ("certain-port", json!({"type": "NodePort", "ports": port(30080)}), 201),
            ("taken-port", json!({"type": "NodePort", "ports": port(30080)}), 422),
        ];
        for (name, spec, want) in steps {
            assert_eq!(cluster.create(name, spec).await.code, want, "{name}");
        }
        let trial = service("trial", json!({"type": "NodePort", "ports": [{"port": 80}]}));
        cluster.call("POST", &format!("{PATH}?dryRun=All"), trial).await;
        let text = cluster.api.metrics.text(&cluster.api);
        let (ip, port) =
            ("kube_apiserver_clusterip_allocator", "kube_apiserver_nodeport_allocator");
        // The Service kubernetes is the other static one.
        let want = [
            format!("{ip}_allocation_total{{cidr=\"10.96.0.0/24\",scope=\"dynamic\"}} 4"),
            format!("{ip}_allocation_total{{cidr=\"10.96.0.0/24\",scope=\"static\"}} 2"),
            format!("{ip}_allocation_errors_total{{cidr=\"10.96.0.0/24\",scope=\"static\"}} 1"),
            format!("{ip}_allocation_duration_seconds_count{{cidr=\"10.96.0.0/24\"}} 7"),
            format!("{ip}_allocated_ips{{cidr=\"10.96.0.0/24\"}} 5"),
            format!("{ip}_available_ips{{cidr=\"10.96.0.0/24\"}} 249"),
            format!("{ip}_available_ips{{cidr=\"fd00:96::/120\"}} 255"),
            format!("{port}_allocation_total{{scope=\"dynamic\"}} 1"),
            format!("{port}_allocation_total{{scope=\"static\"}} 1"),
            format!("{port}_allocation_errors_total{{scope=\"static\"}} 1"),
            format!("{port}_allocated_ports 2"),
            format!("{port}_available_ports 2766"),
            "apiserver_clusterip_repair_reconcile_errors_total 0".into(),
            "apiserver_nodeport_repair_reconcile_errors_total 0".into(),
        ];
        for line in want {
            assert!(text.lines().any(|found| found == line), "{line} is not in {text}");
        }
    });
}
