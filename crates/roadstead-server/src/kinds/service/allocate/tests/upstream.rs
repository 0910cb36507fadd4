//! We answer as upstream does: requests with the answers of a real kube-apiserver, which
//! `scripts/record-services` has recorded.

use super::*;

/// Where we knowingly answer otherwise, and why.
const MEANT: [(&str, &str); 4] = [
    ("no name", "the missing name is what is wrong, not an address"),
    ("dry outside", "the same words as without dry run"),
    ("dup np", "422 with the field; upstream answers 500 without a reason"),
    ("sc add", "a range is ready at once; upstream waits for its controller manager"),
];

/// What of an object is compared.
const KEPT: [&str; 7] = ["kind", "spec", "status", "subsets", "addressType", "endpoints", "ports"];

/// Whether the value is as recorded; `*` stands for what the server may choose.
fn is_as_recorded(recorded: &Value, found: &Value) -> bool {
    match (recorded, found) {
        (Value::String(any), found) if any == "*" => !found.is_null(),
        (Value::Array(recorded), Value::Array(found)) => {
            let mut pairs = recorded.iter().zip(found);
            recorded.len() == found.len() && pairs.all(|(r, f)| is_as_recorded(r, f))
        }
        (Value::Object(recorded), Value::Object(found)) => {
            recorded.keys().eq(found.keys())
                && recorded.iter().all(|(key, value)| is_as_recorded(value, &found[key]))
        }
        _ => recorded == found,
    }
}

async fn clean(cluster: &Cluster) {
    let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
    let endpoints = "/api/v1/namespaces/default/endpoints";
    for path in [PATH, endpoints, slices, RANGES] {
        cluster.call("DELETE", &format!("{path}/web"), Value::Null).await;
    }
    cluster.call("DELETE", &format!("{ADDRESSES}/10.96.9.9"), Value::Null).await;
}

/// The difference between the recorded answer and ours, if there is one.
fn difference(case: &Value, answer: &Answer) -> Option<String> {
    let warnings: Vec<_> =
        case.list("/warnings").iter().filter_map(Value::as_str).map(str::to_owned).collect();
    let same = answer.code == case["code"].as_u64().map_or(0, |code| code as u16)
        && answer.warnings == warnings
        && match case.get("object") {
            Some(object) => KEPT.iter().all(|key| is_as_recorded(&object[key], &answer.body[key])),
            None => answer.body["message"] == case["message"],
        };
    (!same).then(|| format!("recorded {case}\n   found {} {:?}", answer.body, answer.warnings))
}

#[test]
fn upstream() {
    let cases: Vec<Value> =
        include_str!("upstream.jsonl").lines().map(|line| line.parse().unwrap()).collect();
    let mut wrong = Vec::new();
    run(async {
        let cluster = Cluster::with("10.96.0.0/16,fd00:96::/112").await;
        for case in &cases {
            clean(&cluster).await;
            let mut answer = None;
            for step in case.list("/steps") {
                let call = cluster.call(step.text("/0"), step.text("/1"), step[2].clone());
                answer = Some(call.await);
            }
            cluster.check();
            let name = case.text("/name");
            let meant = MEANT.iter().any(|(meant, _)| *meant == name);
            let found = difference(case, &answer.unwrap());
            assert!(found.is_some() || !meant, "{name}: no difference any more");
            wrong.extend(found.filter(|_| !meant));
        }
    });
    assert!(cases.len() > 200, "only {} cases", cases.len());
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}
