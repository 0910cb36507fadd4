//! Verdicts by table, and whole clusters by chance.

use super::*;
use serde_json::json;

mod clusters;

/// `set owner=deploy!,other leaving finalizer=orphan`: deploy waits for set, other does not.
/// `set@shop` is in that namespace; `owner=deploy:web` has that uid and another name.
fn metadata(text: &str) -> ObjectMeta {
    let mut words = text.split_whitespace();
    let first = words.next().unwrap();
    let (uid, namespace) = first.split_once('@').map_or((first, None), |(u, n)| (u, Some(n)));
    let mut value = json!({"uid": uid, "name": uid, "namespace": namespace});
    for word in words {
        match word.split_once('=') {
            Some(("owner", owners)) => {
                let owners = owners.split(',').map(|owner| {
                    let plain = owner.trim_end_matches('!');
                    let (uid, name) = plain.split_once(':').unwrap_or((plain, plain));
                    json!({"apiVersion": "v1", "kind": "K", "name": name, "uid": uid,
                        "blockOwnerDeletion": owner.ends_with('!')})
                });
                value["ownerReferences"] = owners.collect();
            }
            Some(("finalizer", name)) => value["finalizers"] = json!([name]),
            _ => value["deletionTimestamp"] = json!("2020-01-01T00:00:00Z"),
        }
    }
    serde_json::from_value(value).unwrap()
}

fn graph(objects: &[&str]) -> Graph<()> {
    let mut graph = Graph::default();
    objects.iter().for_each(|text| {
        graph.observe((), metadata(text));
    });
    graph
}

/// A verdict in short.
fn shown(verdict: &Verdict) -> String {
    let uids = |owners: &[OwnerReference]| {
        owners.iter().map(|owner| owner.uid.clone()).collect::<Vec<_>>().join(",")
    };
    match verdict {
        Verdict::Keep => "keep".into(),
        Verdict::Delete { unless, policy } => {
            format!("delete {policy:?} unless={}", uids(unless))
        }
        Verdict::RemoveOwners { waiting, unknown } => {
            format!("shed {} unknown={}", waiting.join(","), uids(unknown))
        }
        Verdict::Orphan(dependents) => format!("release {}", dependents.join(",")),
        Verdict::RemoveFinalizer(finalizer) => format!("let go {finalizer}"),
    }
}

#[test]
fn verdicts() {
    const B: &str = "b leaving finalizer=foregroundDeletion";
    let cases: [(&[&str], &str, &str); 23] = [
        (&["a"], "a", "keep"),
        (&["a owner=b", "b"], "a", "keep"),
        (&["a owner=b"], "a", "delete Background unless=b"),
        (&["a owner=b finalizer=orphan"], "a", "delete Orphan unless=b"),
        (&["a owner=b leaving", "b"], "a", "keep"),
        (&["a owner=b,c", "b"], "a", "shed  unknown=c"),
        // An owner that goes last.
        (&["a owner=b!", B], "a", "delete Background unless="),
        (&["a owner=b!", "c owner=a", B], "a", "delete Foreground unless="),
        (&["a owner=b!,d", B], "a", "delete Background unless=d"),
        (&["a owner=b!,d", B, "d"], "a", "shed b unknown="),
        // It may yet leave its dependents behind.
        (&["a owner=b!,d", B, "d leaving"], "a", "shed b unknown="),
        (&["c owner=b! leaving", B], "b", "keep"),
        (&["a owner=b", B], "b", "let go foregroundDeletion"),
        (&[B], "b", "let go foregroundDeletion"),
        (&["a owner=b", "b leaving finalizer=orphan"], "b", "release a"),
        (&["b leaving finalizer=orphan"], "b", "let go orphan"),
        // Circles.
        (&["b owner=b! leaving finalizer=foregroundDeletion"], "b", "let go foregroundDeletion"),
        (
            &[
                "a owner=c! leaving finalizer=foregroundDeletion",
                "b owner=a! leaving finalizer=foregroundDeletion",
                "c owner=b! leaving finalizer=foregroundDeletion",
            ],
            "b",
            "let go foregroundDeletion",
        ),
        (
            &[
                "a owner=b! leaving finalizer=foregroundDeletion",
                "b owner=a! leaving finalizer=foregroundDeletion",
                "c owner=b! leaving finalizer=example.com/hold",
            ],
            "a",
            "keep",
        ),
        (
            &[
                "a owner=b! leaving finalizer=foregroundDeletion",
                "b owner=a! leaving finalizer=foregroundDeletion",
                "c leaving finalizer=foregroundDeletion",
                "b2 owner=c! leaving finalizer=foregroundDeletion",
                "a owner=b!,b2! leaving finalizer=foregroundDeletion",
            ],
            "c",
            "keep",
        ),
        // What is not theirs.
        (
            &["a@red owner=b!", "b@blue leaving finalizer=foregroundDeletion"],
            "b",
            "let go foregroundDeletion",
        ),
        (&["a@red owner=b", "b@blue"], "a", "delete Background unless=b"),
        (&["a owner=b:other", "b"], "a", "delete Background unless=b"),
    ];
    for (objects, uid, want) in cases {
        assert_eq!(shown(&graph(objects).verdict(uid)), want, "{uid} of {objects:?}");
    }
}

#[test]
fn losing_an_owner_makes_suspects() {
    let mut graph = graph(&["deploy", "set owner=deploy", "pod owner=set"]);
    assert_eq!(graph.observe((), metadata("set owner=deploy")), ["deploy", "set"]);
    assert_eq!(graph.observe((), metadata("pod")), ["set"], "it was its owner");
    graph.observe((), metadata("pod owner=set"));
    assert_eq!(graph.forget("deploy"), ["set"]);
    assert_eq!(graph.with_unknown_owners(), ["set"]);
    let waiting = metadata("set owner=deploy leaving finalizer=foregroundDeletion");
    assert_eq!(graph.observe((), waiting.clone()), ["deploy", "pod", "set"], "it begins to wait");
    assert_eq!(graph.observe((), waiting), ["deploy", "set"]);
    assert_eq!(graph.forget("set"), ["pod", "deploy"]);
    assert!(matches!(graph.verdict("pod"), Verdict::Delete { .. }));
}
