//! Every row of the documents' table, typed as the documents type it, in one go: 33 commands, 7 on the node
//! and in pods, 51 manifests, 19 statements. `docs/seeds.md` says which row is where, and walls look after it.
//!
//! One cluster for each mode of the proxy in which it begins; on the way it is switched to the others.

mod documents;
mod end;
mod endpoint;
mod endpoint_commands;
mod ledger;
mod mapping;
mod modes;
mod outside;
mod owners;
mod scale;
mod script;
mod service;
mod typing;
mod versus;

use roadstead_testkit::netns::laboratory_of;

use self::ledger::Story;
use self::typing::Reader;
use crate::images::{LAYER, up_with_images_and};

const IMAGES: [&str; 3] = ["nginx", "busybox", "bootcamp"];

/// What the documents do not say: who has the labels that they speak of.
const BEFORE: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: my-nginx}
spec:
  replicas: 2
  selector: {matchLabels: {run: my-nginx}}
  template:
    metadata: {labels: {run: my-nginx}}
    spec: {containers: [{name: nginx, image: 'nginx:1.19'}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web-server}
spec:
  replicas: 2
  selector: {matchLabels: {app: web-server}}
  template:
    metadata: {labels: {app: web-server}}
    spec:
      containers:
      - name: web
        image: docker.io/hhitzhl/kubernetes-bootcamp:v1
        readinessProbe: {httpGet: {path: /, port: 8080}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: my-app}
spec:
  replicas: 2
  selector: {matchLabels: {app: my-app}}
  template:
    metadata: {labels: {app: my-app}}
    spec: {containers: [{name: app, image: 'docker.io/hhitzhl/kubernetes-bootcamp:v1'}]}
---
apiVersion: v1
kind: Pod
metadata: {name: test-pod}
spec: {containers: [{name: c, image: roadstead/echo}]}
";

#[test]
fn every_row_in_nftables_mode() {
    laboratory_of(LAYER, || play("nftables"));
}

#[test]
fn every_row_in_iptables_mode() {
    laboratory_of(LAYER, || play("iptables"));
}

fn play(mode: &str) {
    outside::make();
    let flags = format!("--service-cidr 172.16.0.0/16 --proxy-mode {mode}");
    let mut roadstead = up_with_images_and(&IMAGES, &flags);
    let reader = Reader::new(&roadstead);
    prepare(&reader);
    let mut story = Story::new(reader);
    service::play(&mut story);
    if mode == "iptables" {
        service::host_checks(&mut story);
    }
    mapping::play(&mut story);
    versus::play(&mut story);
    endpoint::play(&mut story);
    endpoint_commands::play(&mut story);
    owners::play(&mut story);
    modes::play(&mut story, mode);
    scale::play(&mut story);
    end::starts_again(&mut story, &mut roadstead);
    end::nothing_is_left(&story.reader);
    let version = story.reader.types("kubectl version --client -o json").ok();
    let version: serde_json::Value = serde_json::from_str(&version).unwrap();
    let version = &version["clientVersion"]["gitVersion"];
    story.ends(&format!("the documents from mode {mode} on, by kubectl {version}"));
}

/// The namespaces and pods that the documents take for granted.
fn prepare(reader: &Reader) {
    for namespace in ["week", "monitoring", "production"] {
        reader.types(&format!("kubectl create ns {namespace}")).ok();
    }
    reader.applies_text(BEFORE).ok();
    modes::proxy_pod(reader, "");
    for name in ["my-nginx", "web-server", "my-app"] {
        reader.types(&format!("kubectl rollout status deployment/{name} --timeout=120s")).ok();
    }
    reader.types("kubectl wait pod/test-pod --for=condition=Ready --timeout=60s").ok();
}
