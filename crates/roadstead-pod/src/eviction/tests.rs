use super::*;
use serde_json::{Value, json};

fn pod(spec: Value) -> Pod {
    serde_json::from_value(json!({"metadata": {"name": "p", "uid": "u"}, "spec": spec})).unwrap()
}

#[test]
fn thresholds_as_text() {
    let usual = "memory.available<100Mi,nodefs.available<5%,nodefs.inodesFree<5%,\
                 imagefs.available<5%,imagefs.inodesFree<5%";
    assert_eq!(EvictionThresholds::default().to_string(), usual);
    assert_eq!(usual.parse(), Ok(EvictionThresholds::default()));
    assert_eq!("".parse::<EvictionThresholds>().unwrap().to_string(), "");
    for (text, want) in [
        ("memory.available", "\"memory.available\" is not SIGNAL<AMOUNT"),
        ("memory.free<1", "\"memory.free\" is none of memory.available,"),
        ("memory.available<x", "\"x\" is no amount"),
        ("nodefs.available<100%", "\"100%\" is no amount"),
    ] {
        let found = text.parse::<EvictionThresholds>().unwrap_err();
        assert!(found.starts_with(want), "{found}");
    }
}

#[test]
fn what_a_node_is_short_of() {
    let seen = |signal, available, capacity| Observation { signal, available, capacity };
    let thresholds = EvictionThresholds::default();
    let short = |observed: &[Observation]| {
        let short = thresholds.short_of(observed);
        short.iter().map(|one| one.signal).collect::<Vec<_>>()
    };
    let mib = 1 << 20;
    assert_eq!(short(&[seen(Signal::Memory, 100 * mib, 1000 * mib)]), []);
    assert_eq!(short(&[seen(Signal::Memory, 99 * mib, 1000 * mib)]), [Signal::Memory]);
    assert_eq!(
        short(&[seen(Signal::NodeFiles, 5, 100), seen(Signal::ImageFiles, 4, 100)]),
        [Signal::ImageFiles]
    );
    let both = [seen(Signal::NodeInodes, 4, 100), seen(Signal::Memory, 0, mib)];
    assert_eq!(short(&both), [Signal::Memory, Signal::NodeInodes], "memory first");
    assert_eq!(short(&[seen(Signal::NodeInodes, 0, 0)]), [], "not every disk counts files");
}

#[test]
fn conditions_stay_for_a_while() {
    let at = |second| Timestamp::from_second(second).unwrap();
    let short = [Shortage { signal: Signal::NodeInodes, threshold: 5, available: 1 }];
    let mut pressures = Pressures::default();
    for (second, short, want) in [
        (0, &[][..], &[][..]),
        (10, &short, &[Condition::DiskPressure]),
        (20, &[], &[Condition::DiskPressure]),
        (309, &[], &[Condition::DiskPressure]),
        (310, &[], &[]),
    ] {
        pressures.observe(short, at(second));
        assert_eq!(pressures.conditions(), want, "after {second} s");
    }
}

#[test]
fn who_goes_first() {
    // Reads `name:priority:usage/request`, and `!` for critical ones.
    let first = |text: &str| {
        let candidates: Vec<_> = text
            .split(' ')
            .map(|word| {
                let mut parts = word.trim_end_matches('!').split([':', '/']);
                let uid = parts.next().unwrap().to_owned();
                let mut number = || parts.next().unwrap().parse::<i64>().unwrap();
                Candidate {
                    uid,
                    priority: i32::try_from(number()).unwrap(),
                    usage: number().unsigned_abs(),
                    request: number().unsigned_abs(),
                    critical: word.ends_with('!'),
                }
            })
            .collect();
        first_to_go(&candidates).map(|found| found.uid.clone()).unwrap_or_default()
    };
    for (name, candidates, want) in [
        ("more than it asked for", "a:0:50/100 b:5:60/50", "b"),
        ("less important", "a:5:90/0 b:0:10/0", "b"),
        ("more beyond its request", "a:0:90/80 b:0:30/10", "b"),
        ("all within their requests", "a:0:10/100 b:0:10/50", "b"),
        ("not what the node needs", "a:0:90/0! b:9:1/100", "b"),
        ("nobody", "a:0:90/0!", ""),
    ] {
        assert_eq!(first(candidates), want, "{name}");
    }
}

#[test]
fn what_a_pod_is_told() {
    let shortage = Shortage { signal: Signal::Memory, threshold: 100 << 20, available: 80 << 20 };
    let pod = pod(json!({"containers": [
        {"name": "c"},
        {"name": "d", "resources": {"requests": {"memory": "1Gi"}}},
        {"name": "e"},
    ]}));
    let usages = BTreeMap::from([("c".to_owned(), 200 << 20), ("d".to_owned(), 300 << 20)]);
    assert_eq!(
        message(&shortage, &pod, &usages),
        "The node was low on resource: memory. Threshold quantity: 100Mi, available: 80Mi. \
         Container c was using 200Mi, request is 0, has larger consumption of memory. "
    );
    let shortage = Shortage { signal: Signal::NodeInodes, threshold: 2048, available: 1024 };
    assert_eq!(
        message(&shortage, &pod, &BTreeMap::new()),
        "The node was low on resource: inodes. Threshold quantity: 2048, available: 1024. "
    );
}

#[test]
fn limits_of_what_is_written() {
    let limit = |amount: &str| json!({"limits": {"ephemeral-storage": amount}});
    let one = pod(json!({"containers": [{"name": "c", "resources": limit("1Mi")}, {"name": "d"}],
    "volumes": [
        {"name": "v", "emptyDir": {"sizeLimit": "1Mi"}},
        {"name": "m", "emptyDir": {"sizeLimit": "1Ki", "medium": "Memory"}},
        {"name": "free", "emptyDir": {}},
    ]}));
    let all = pod(json!({"containers": [
        {"name": "c", "resources": limit("1Mi")}, {"name": "d", "resources": limit("1024Ki")}]}));
    let mib = 1 << 20;
    // Reads `c=1` as bytes of container c, `v:1` as those of volume v.
    let usage = |text: &str| {
        let mut usage = Consumption::default();
        for word in text.split_whitespace() {
            let (name, amount) = word.split_once(['=', ':']).unwrap();
            let amount = amount.parse::<u64>().unwrap() * mib / 4;
            let map = if word.contains('=') { &mut usage.containers } else { &mut usage.volumes };
            map.insert(name.to_owned(), amount);
        }
        usage
    };
    for (pod, used, want) in [
        (&one, "c=4 d=99 v:4 m:9 free:99", None),
        (&one, "c=4 v:5", Some("Usage of EmptyDir volume \"v\" exceeds the limit \"1Mi\". ")),
        (&one, "c=5", Some("Container c exceeded its local ephemeral storage limit \"1Mi\". ")),
        (&all, "c=4 d=4", None),
        (
            &all,
            "c=4 d=2 v:3",
            Some("Pod ephemeral local storage usage exceeds the total limit of containers 2Mi. "),
        ),
    ] {
        assert_eq!(beyond_limits(pod, &usage(used)).as_deref(), want, "{used}");
        assert!(limits_disk(pod));
    }
    assert!(!limits_disk(&pod(json!({"containers": [{"name": "c"}],
        "volumes": [{"name": "v", "emptyDir": {}}]}))));
}

#[test]
fn bytes_as_quantities() {
    for (amount, want) in
        [(0, "0"), (1, "1"), (1024, "1Ki"), (1536, "1536"), (100 << 20, "100Mi"), (5 << 40, "5Ti")]
    {
        assert_eq!(bytes(amount), want);
    }
}
