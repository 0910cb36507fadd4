//! Levels and flows with a clock.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use roadstead_plan::flow_control::classify::RequestTarget;
use roadstead_store::entry::Key;
use roadstead_store::transaction::Transaction;
use serde_json::{Value, json};

use super::*;

fn digest<'a>(user: &'a str, groups: &'a [String]) -> RequestDigest<'a> {
    let target =
        RequestTarget::Objects { group: "", plural: "pods", subresource: "", namespace: "n" };
    RequestDigest { user, groups, verb: "get", target }
}

async fn put(store: &Store, plural: &str, mut object: Value) {
    let name = object["metadata"]["name"].as_str().unwrap().to_owned();
    object["metadata"]["uid"] = format!("uid-of-{name}").into();
    let key = Key::new(format!("{plural}.{GROUP}"), format!("/{name}"));
    let transaction = Transaction::new().put(key, Bytes::from(object.to_string()));
    store.commit(transaction).await.unwrap();
}

async fn bootstrapped() -> Fairness {
    let store = Store::memory();
    for one in bootstrap::objects() {
        put(&store, one.plural, one.object).await;
    }
    Fairness::new(store)
}

/// A level of its own for one user.
async fn give_level(fairness: &Fairness, user: &str, response: Value) {
    let limited = json!({"nominalConcurrencyShares": 0, "borrowingLimitPercent": 0,
        "limitResponse": response});
    let level =
        json!({"metadata": {"name": "own"}, "spec": {"type": "Limited", "limited": limited}});
    put(&fairness.store, LEVELS, level).await;
    let rules = json!([{"subjects": [{"kind": "User", "user": {"name": user}}],
        "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"],
            "namespaces": ["*"], "clusterScope": true}]}]);
    let schema = json!({"metadata": {"name": "own"}, "spec": {"matchingPrecedence": 5,
        "priorityLevelConfiguration": {"name": "own"}, "rules": rules}});
    put(&fairness.store, SCHEMAS, schema).await;
}

const READ: Work = Work { seats: 1, writes: false };

async fn enter(fairness: &Fairness, user: &str) -> Result<Seats, Refusal> {
    let groups = ["system:authenticated".to_owned()];
    let digest = digest(user, &groups);
    let class = fairness.classify(&digest).unwrap();
    fairness.enter(&class, &digest, READ).await
}

fn metrics(fairness: &Fairness) -> String {
    let mut text = String::new();
    fairness.write_metrics(&mut text);
    text
}

#[tokio::test]
async fn a_user_with_a_level_of_their_own_is_refused_alone() {
    let fairness = bootstrapped().await;
    give_level(&fairness, "jane", json!({"type": "Reject"})).await;
    let first = enter(&fairness, "jane").await.ok().unwrap();
    assert_eq!(enter(&fairness, "jane").await.err(), Some(Refusal::ConcurrencyLimit));
    let others: Vec<_> = futures::future::join_all((0..20).map(|_| enter(&fairness, "bob"))).await;
    assert!(others.iter().all(Result::is_ok));
    assert_eq!(fairness.under_way(), [21, 0]);
    drop(first);
    assert!(enter(&fairness, "jane").await.is_ok());
    let text = metrics(&fairness);
    for line in [
        "apiserver_flowcontrol_rejected_requests_total{priority_level=\"own\",flow_schema=\"own\",reason=\"concurrency-limit\"} 1\n",
        "apiserver_flowcontrol_dispatched_requests_total{priority_level=\"own\",flow_schema=\"own\"} 2\n",
        "apiserver_flowcontrol_current_executing_requests{priority_level=\"global-default\",flow_schema=\"global-default\"} 20\n",
        "apiserver_flowcontrol_nominal_limit_seats{priority_level=\"system\"} 74\n",
        "apiserver_flowcontrol_current_limit_seats{priority_level=\"system\"} 62\n",
    ] {
        assert!(text.contains(line), "{line} is not in {text}");
    }
    drop(others);
    assert_eq!(fairness.under_way(), [0, 0]);
    // The level goes, and nobody is treated otherwise any more.
    let key = Key::new(format!("{LEVELS}.{GROUP}"), "/own");
    fairness.store.commit(Transaction::new().delete(key)).await.unwrap();
    let both = (enter(&fairness, "jane").await, enter(&fairness, "jane").await);
    assert!(both.0.is_ok() && both.1.is_ok());
}

#[tokio::test(start_paused = true)]
async fn who_waits_is_served_refused_in_time_or_leaves() {
    let fairness = bootstrapped().await;
    // As many as there are seats, by one user.
    let many: Vec<_> = futures::future::join_all((0..37).map(|_| enter(&fairness, "jane"))).await;
    assert!(many.iter().all(Result::is_ok));
    let count = |name: &str| {
        let line = format!(
            "apiserver_flowcontrol_{name}{{priority_level=\"global-default\",flow_schema=\"global-default\""
        );
        let text = metrics(&fairness);
        let lines = text.lines().filter(|known| known.starts_with(&line));
        lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum::<u64>()
    };
    let poll = |future: std::pin::Pin<&mut _>| -> Poll<Result<Seats, Refusal>> {
        Future::poll(future, &mut Context::from_waker(Waker::noop()))
    };
    {
        let mut leaves = pin!(enter(&fairness, "bob"));
        assert!(poll(leaves.as_mut()).is_pending());
        assert_eq!(count("current_inqueue_requests"), 1);
    }
    assert_eq!(count("current_inqueue_requests"), 0);
    let mut waits = pin!(enter(&fairness, "bob"));
    assert!(poll(waits.as_mut()).is_pending());
    drop(many);
    let Poll::Ready(Ok(served)) = poll(waits.as_mut()) else { panic!("there is a seat") };
    let rest: Vec<_> = futures::future::join_all((0..36).map(|_| enter(&fairness, "jane"))).await;
    let began = time::Instant::now();
    let late = enter(&fairness, "bob").await;
    assert_eq!(late.err(), Some(Refusal::TimeOut));
    assert!(began.elapsed() >= PATIENCE);
    drop((served, rest));
    assert!(count("rejected_requests_total") > 0);
    assert_eq!(count("current_inqueue_requests") + count("current_executing_requests"), 0);
    assert!(fairness.dump_levels().contains("global-default"), "{}", fairness.dump_levels());
}

#[tokio::test]
async fn without_objects_there_are_the_mandatory_ones() {
    let fairness = Fairness::new(Store::memory());
    let masters = ["system:masters".to_owned()];
    let class = fairness.classify(&digest("root", &masters)).unwrap();
    assert_eq!((&*class.schema.name, class.level.level.discipline), ("exempt", Discipline::Exempt));
    let class = fairness.classify(&digest("nobody", &[])).unwrap();
    assert_eq!((&*class.schema.name, class.level.limits.nominal), ("catch-all", SEATS));
    assert_eq!(class.uids(), [None, None]);
}

/// What the seats cost a request: printed, and bounded for a build that is not optimized.
#[tokio::test]
async fn a_free_seat_costs_little() {
    let fairness = bootstrapped().await;
    let groups = ["system:authenticated".to_owned()];
    let (began, rounds) = (Instant::now(), 5_000_u32);
    for _ in 0..rounds {
        let digest = digest("jane", &groups);
        let class = fairness.classify(&digest).unwrap();
        drop(fairness.enter(&class, &digest, READ).await.ok().unwrap());
    }
    let each = began.elapsed() / rounds;
    eprintln!("{each:?} for each request");
    assert!(each < Duration::from_micros(200), "{each:?}");
}
