//! The cost of a Service does not grow with their number.

use std::time::{Duration, Instant};

use super::*;

async fn create(cluster: &Cluster, numbers: std::ops::Range<usize>) -> Duration {
    let begin = Instant::now();
    let count = numbers.len() as u32;
    for number in numbers {
        let spec = json!({"selector": {"app": "web"}, "ports": [{"port": 80}]});
        assert_eq!(cluster.create(&format!("s{number}"), spec).await.code, 201);
    }
    begin.elapsed() / count
}

/// `ROADSTEAD_SERVICES` says how many there are in the end.
#[test]
fn creating_is_flat() {
    let most = std::env::var("ROADSTEAD_SERVICES").ok().and_then(|text| text.parse().ok());
    let most = most.unwrap_or(3_000);
    run(async {
        let cluster = Cluster::with("10.96.0.0/12").await;
        let first = create(&cluster, 0..1_000).await;
        create(&cluster, 1_000..most - 1_000).await;
        let last = create(&cluster, most - 1_000..most).await;
        eprintln!("a Service among {most}: {last:?}; among 1000: {first:?}");
        assert!(last < first * 3, "{first:?} at first, {last:?} among {most}");
        cluster.check();
    });
}
