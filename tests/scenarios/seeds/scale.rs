//! What the documents say about many endpoints, with an API server and controllers alone: pods are made by hand.

use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use roadstead_testkit::kubectl::{Kubectl, eventually};
use serde_json::json;

use super::ledger::Story;
use super::typing::{PATIENCE, cells, row};
use crate::controllers::controllers;
use crate::dns::client;
use crate::process::Roadstead;

const ENDPOINTS: &str = "--controllers=endpoints,endpointslice";
const AT_ONCE: usize = 16;

pub(super) fn play(story: &mut Story) {
    let roadstead = Roadstead::apiserver();
    let kubectl = roadstead.kubectl();
    two_in_a_slice(story, &roadstead, &kubectl);
    let running = controllers(&roadstead, &[ENDPOINTS]);
    many(story, &roadstead, &kubectl);
    drop(running);
}

/// A Service that selects the pods with its own name.
fn service(kubectl: &Kubectl, name: &str) {
    kubectl.apply(&format!(
        "{{apiVersion: v1, kind: Service, metadata: {{name: {name}}}, spec: {{selector: {{app: {name}}}, \
         ports: [{{port: 80}}]}}}}"
    ));
}

/// Makes pods that are ready, with these addresses.
fn pods(roadstead: &Roadstead, app: &str, addresses: &[String]) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let client: Client = client(roadstead).await;
        let pods: Api<Pod> = Api::default_namespaced(client);
        let make = addresses.iter().map(|address| {
            let pods = pods.clone();
            async move {
                let name = format!("{app}-{}", address.replace('.', "-"));
                let pod = json!({"metadata": {"name": name, "labels": {"app": app}},
                    "spec": {"containers": [{"name": "c", "image": "x"}]}});
                let pod = serde_json::from_value(pod).unwrap();
                pods.create(&PostParams::default(), &pod).await.unwrap();
                let status = json!({"status": {"phase": "Running", "podIP": address,
                    "podIPs": [{"ip": address}], "conditions": [{"type": "Ready", "status": "True"}]}});
                let patch = Patch::Merge(&status);
                pods.patch_status(&name, &PatchParams::default(), &patch).await.unwrap();
            }
        });
        stream::iter(make).buffer_unordered(AT_ONCE).collect::<Vec<_>>().await;
    });
}

/// The listings of S2:64 and S2:77, where two endpoints fit into a slice.
fn two_in_a_slice(story: &mut Story, roadstead: &Roadstead, kubectl: &Kubectl) {
    let running = controllers(roadstead, &[ENDPOINTS, "--max-endpoints-per-slice=2"]);
    let addresses: Vec<_> = (5..=7).map(|last| format!("10.244.0.{last}")).collect();
    pods(roadstead, "nginx-service", &addresses);
    service(kubectl, "nginx-service");
    story.row("A9", |_| {
        let ask = || kubectl.run("get endpoints nginx-service");
        let listed = "10.244.0.5:80,10.244.0.6:80,10.244.0.7:80";
        eventually("three", PATIENCE, ask, |said| said.contains(listed));
        assert_eq!(row(&ask(), "nginx-service")[1], listed);
    });
    story.row("A15", |_| {
        let line = "get endpointslices -l kubernetes.io/service-name=nginx-service";
        let ask = || kubectl.run(line);
        let said = eventually("two slices", PATIENCE, ask, |said| said.lines().count() == 3);
        let mut rows = cells(&said);
        rows.remove(0);
        let mut held: Vec<_> = rows.iter().map(|row| (row[1], row[2], row[3])).collect();
        held.sort_by_key(|(.., addresses)| addresses.len());
        assert_eq!((held[0].0, held[0].1), ("IPv4", "80"));
        let counts: Vec<_> = held.iter().map(|(.., all)| all.split(',').count()).collect();
        assert_eq!(counts, [1, 2], "{said}");
        assert!(rows.iter().all(|row| row[0].starts_with("nginx-service-")), "{said}");
    });
    drop(running);
}

/// A name, a revision and a number of endpoints for each slice.
fn slices(kubectl: &Kubectl) -> Vec<(String, String, usize)> {
    let path = "{range .items[*]}{.metadata.name} {.metadata.resourceVersion} \
        {range .endpoints[*]}{.addresses[0]},{end}{\"\\n\"}{end}";
    let of = "endpointslices -l kubernetes.io/service-name=big";
    let said = kubectl.run(&format!("get {of} -o jsonpath='{path}'"));
    let slice = |line: &str| {
        let words: Vec<_> = line.split(' ').collect();
        (words[0].to_owned(), words[1].to_owned(), words[2].matches(',').count())
    };
    said.lines().filter(|line| !line.is_empty()).map(slice).collect()
}

fn total(slices: &[(String, String, usize)]) -> usize {
    slices.iter().map(|(.., count)| count).sum()
}

fn many(story: &mut Story, roadstead: &Roadstead, kubectl: &Kubectl) {
    let address = |n: usize| format!("10.9.{}.{}", n / 250, n % 250 + 1);
    let addresses: Vec<_> = (0..1001).map(address).collect();
    pods(roadstead, "big", &addresses);
    service(kubectl, "big");
    let all = || eventually("1,001", PATIENCE, || slices(kubectl), |found| total(found) == 1001);
    // A slice more when those that there are have a hundred.
    story.row("D9", |_| {
        let mut sizes: Vec<_> = all().iter().map(|(.., count)| *count).collect();
        sizes.sort_unstable();
        assert_eq!((sizes.len(), sizes[0]), (11, 1), "{sizes:?}");
        assert!(sizes[1..].iter().all(|size| *size == 100), "{sizes:?}");
    });
    story.row("D7", |_| {
        let mark = r"{.metadata.annotations.endpoints\.kubernetes\.io/over-capacity}";
        let ask = || kubectl.run(&format!("get endpoints big -o jsonpath='{mark}'"));
        eventually(
            "marked",
            PATIENCE,
            || kubectl.try_run("get endpoints big").status.success(),
            |there| *there,
        );
        assert_eq!(ask(), "truncated");
    });
    // "No hard limit" is wrong.
    story.row("D8", |_| {
        let addresses =
            kubectl.run("get endpoints big -o jsonpath='{.subsets[*].addresses[*].ip}'");
        assert_eq!(addresses.split(' ').count(), 1000);
        let said = kubectl.run("get endpoints big");
        assert!(row(&said, "big")[1].ends_with(" + 997 more..."), "{said}");
    });
    story.row("D19", |_| {
        let before = all();
        kubectl.run(&format!("delete pod big-{}", address(500).replace('.', "-")));
        let gone = |found: &Vec<_>| total(found) == 1000;
        let after = eventually("one less", PATIENCE, || slices(kubectl), gone);
        let written = |before: &Vec<_>, after: &Vec<(String, String, usize)>| {
            after.iter().filter(|slice| !before.contains(*slice)).count()
        };
        assert_eq!(written(&before, &after), 1);
        pods(roadstead, "big", &["10.8.0.1".into()]);
        let last =
            eventually("one more", PATIENCE, || slices(kubectl), |found| total(found) == 1001);
        assert_eq!(written(&after, &last), 1);
    });
}
