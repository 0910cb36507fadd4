use k8s_openapi::api::core::v1::ObjectReference;
use serde_json::json;

use super::*;
use crate::pod_view::{NamedPort, Phase};

/// `1+2-3:http` is a subset with ready and waiting addresses, and its ports by name.
fn subset(text: &str) -> EndpointSubset {
    let (addresses, ports) = text.split_once(':').unwrap();
    let (mut ready, mut waiting) = (Vec::new(), Vec::new());
    let mut words = addresses.split_inclusive(['+', '-']).peekable();
    let mut sign = '+';
    for word in &mut words {
        let next = word.chars().last().filter(|c| ['+', '-'].contains(c));
        let ip = word.trim_end_matches(['+', '-']);
        if !ip.is_empty() {
            let address = EndpointAddress {
                ip: format!("10.0.0.{ip}"),
                target_ref: Some(ObjectReference { uid: Some(ip.into()), ..Default::default() }),
                ..Default::default()
            };
            if sign == '+' { &mut ready } else { &mut waiting }.push(address);
        }
        sign = next.unwrap_or('+');
    }
    let ports = ports.split(',').filter(|name| !name.is_empty()).map(|name| EndpointPort {
        name: Some(name.into()),
        port: 80,
        ..Default::default()
    });
    let some = |list: Vec<EndpointAddress>| Some(list).filter(|list| !list.is_empty());
    EndpointSubset {
        addresses: some(ready),
        not_ready_addresses: some(waiting),
        ports: Some(ports.collect::<Vec<_>>()).filter(|ports| !ports.is_empty()),
    }
}

fn show(subsets: &[EndpointSubset]) -> String {
    let short = |list: &Option<Vec<EndpointAddress>>, sign: &str| {
        let list = list.iter().flatten();
        list.map(|a| format!("{sign}{}", a.ip.trim_start_matches("10.0.0."))).collect::<String>()
    };
    let words = subsets.iter().map(|subset| {
        let ports: Vec<_> =
            subset.ports.iter().flatten().map(|p| p.name.clone().unwrap_or_default()).collect();
        let (ready, waiting) = (&subset.addresses, &subset.not_ready_addresses);
        format!("{}{}:{}", short(ready, "+"), short(waiting, "-"), ports.join(","))
    });
    words.collect::<Vec<_>>().join(" ")
}

#[test]
fn the_one_form_of_subsets() {
    let cases = [
        ("same port, two subsets", "1:a 2:a", "+1+2:a"),
        ("same addresses, two subsets", "1+2:a 2+1:b", "+1+2:a,b"),
        ("order of texts", "2+10+101:a", "+10+101+2:a"),
        ("not ready wins", "1+2:a -2:a", "+1-2:a"),
        ("split by port", "1+2:h,m 3:g,m", "+3:g +1+2:h +1+2+3:m"),
        ("ready and waiting are part of the group", "1+2:a 1-2:b", "+1+2:a +1-2:b"),
        ("no port", "1: 2:", "+1+2:"),
        ("twice the same", "1+1:a,a", "+1:a"),
        ("nothing", "", ""),
    ];
    for (name, given, want) in cases {
        let given: Vec<_> = given.split_whitespace().map(subset).collect();
        let packed = repack(given);
        assert_eq!(show(&packed), want, "{name}");
        assert_eq!(repack(packed.clone()), packed, "{name}: a second time");
    }
}

#[test]
fn no_more_than_fits() {
    let cases = [
        ("fits", 4, "1+2-3:a", "+1+2-3:a", false),
        ("ready first", 2, "1+2-3:a", "+1+2:a", true),
        ("some waiting", 3, "1+2-3-4:a", "+1+2-3:a", true),
        ("in proportion", 3, "1+2+3+4:a 5+6:b", "+1+2:a +5:b", true),
        ("ready everywhere before waiting anywhere", 3, "1+2-3:a 4-5:b", "+1+2:a +4:b", true),
    ];
    for (name, capacity, given, want, cut) in cases {
        let given: Vec<_> = given.split_whitespace().map(subset).collect();
        let (subsets, truncated) = truncate(given, capacity);
        assert_eq!((show(&subsets).as_str(), truncated), (want, cut), "{name}");
    }
}

fn service(more: serde_json::Value) -> Service {
    let mut service = json!({"metadata": {"name": "web", "namespace": "ns", "uid": "s"},
        "spec": {"clusterIP": "10.96.0.5", "ports": [{"port": 80, "targetPort": 8080}]}});
    json_merge(&mut service, more);
    serde_json::from_value(service).unwrap()
}

fn json_merge(into: &mut serde_json::Value, from: serde_json::Value) {
    match (into, from) {
        (serde_json::Value::Object(into), serde_json::Value::Object(from)) => {
            for (key, value) in from {
                json_merge(into.entry(key).or_insert(json!(null)), value);
            }
        }
        (into, from) => *into = from,
    }
}

/// `7` is ready, `7=waiting`, `7=going`, `7=gone`.
fn pod(word: &str) -> PodView {
    let (number, state) = word.split_once('=').unwrap_or((word, "ready"));
    let mut pod: PodView =
        serde_json::from_value(json!({"metadata": {"name": format!("p{number}"),
        "namespace": "ns", "uid": number}, "spec": {"nodeName": "n"}}))
        .unwrap();
    pod.addresses = vec![
        format!("10.0.0.{number}").parse().unwrap(),
        format!("fd00::{number}").parse().unwrap(),
    ];
    pod.ready = state != "waiting";
    pod.phase = if state == "gone" { Phase::Failed } else { Phase::Running };
    if state == "going" {
        pod.metadata.deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::UNIX_EPOCH));
    }
    pod.ports = vec![NamedPort { name: "http".into(), protocol: "TCP".into(), number: 8000 }];
    pod
}

fn sync(service: &Service, pods: &str, existing: Option<&Endpoints>) -> EndpointsPlan {
    let pods: Vec<_> = pods.split_whitespace().map(pod).collect();
    plan(service, &pods.iter().collect::<Vec<_>>(), existing, None)
}

fn created(service: &Service, pods: &str) -> Endpoints {
    match sync(service, pods, None) {
        EndpointsPlan::Create(made) => made,
        other => panic!("{other:?}"),
    }
}

#[test]
fn which_pods_are_listed() {
    let plain = service(json!({}));
    let all = service(json!({"spec": {"publishNotReadyAddresses": true}}));
    let cases = [
        ("ready and waiting", &plain, "2 1 3=waiting", "+1+2-3:"),
        ("leaving and gone are not", &plain, "1 2=going 3=gone", "+1:"),
        ("unless all are published", &all, "1 2=going 3=waiting 4=gone", "+1+2+3:"),
        ("none", &plain, "", ""),
    ];
    for (name, service, pods, want) in cases {
        let made = created(service, pods);
        assert_eq!(show(made.subsets.as_deref().unwrap_or_default()), want, "{name}");
        assert_eq!(sync(service, pods, Some(&made)), EndpointsPlan::Keep, "{name}: again");
    }
    let second = service(json!({"spec": {"ipFamilies": ["IPv6", "IPv4"]}}));
    let made = created(&second, "1");
    assert_eq!(made.subsets.unwrap()[0].addresses.as_ref().unwrap()[0].ip, "fd00::1");
}

#[test]
fn labels_marks_and_annotations() {
    let mut web = service(json!({"metadata": {"labels": {"team": "a"}},
        "spec": {"clusterIP": "None"}}));
    let made = created(&web, "1");
    let labels = made.metadata.labels.as_ref().unwrap();
    let labels: Vec<_> = labels.iter().map(|(k, v)| format!("{k}={v}")).collect();
    let want = [
        "endpoints.kubernetes.io/managed-by=endpoint-controller",
        "service.kubernetes.io/headless=",
        "team=a",
    ];
    assert_eq!(labels, want);
    let mut edited = made.clone();
    edited.metadata.labels.as_mut().unwrap().insert("mine".into(), "x".into());
    edited.metadata.annotations = Some([("note".to_owned(), "stays".to_owned())].into());
    let EndpointsPlan::Replace(again) = sync(&web, "1", Some(&edited)) else { panic!("no write") };
    assert_eq!(again.metadata.labels, made.metadata.labels, "others are replaced");
    assert_eq!(again.metadata.annotations.unwrap()["note"], "stays");
    web.metadata.labels = None;
    assert_ne!(sync(&web, "1", Some(&made)), EndpointsPlan::Keep);
}

#[test]
fn a_cut_off_object_is_written_once() {
    let web = service(json!({}));
    let pods: Vec<_> = (0..1100u32)
        .map(|n| {
            let mut pod = pod(if n < 1000 { "1" } else { "1=waiting" });
            pod.metadata.uid = Some(n.to_string());
            pod.addresses = vec![std::net::Ipv4Addr::from(0x0a00_0000 + n).into()];
            pod
        })
        .collect();
    let pods: Vec<_> = pods.iter().collect();
    let EndpointsPlan::Create(made) = plan(&web, &pods, None, None) else { panic!("not made") };
    let subset = &made.subsets.as_ref().unwrap()[0];
    assert_eq!(subset.addresses.as_ref().unwrap().len(), 1000);
    assert_eq!(subset.not_ready_addresses, None);
    assert_eq!(made.metadata.annotations.as_ref().unwrap()[OVER_CAPACITY], "truncated");
    assert_eq!(plan(&web, &pods, Some(&made), None), EndpointsPlan::Keep);
    let EndpointsPlan::Replace(small) = plan(&web, &pods[..5], Some(&made), None) else {
        panic!("not replaced")
    };
    assert_eq!(small.metadata.annotations, None);
}
