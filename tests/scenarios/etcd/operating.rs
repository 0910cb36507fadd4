//! `roadstead etcd`: an etcd that is full is healed, and nothing is lost; what is in one is listed before it
//! is taken over; objects go from a data directory into etcd, and back.

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use bytes::Bytes;
use roadstead_etcd::client::Client;
use roadstead_etcd::member_url::MemberUrl;
use roadstead_etcd::messages::{
    Act, DeleteRangeRequest, PutRequest, RangeRequest, TxnOperation, TxnRequest,
};
use roadstead_etcd::tls::EtcdTls;
use roadstead_testkit::etcd::Etcd;
use roadstead_testkit::kubectl::eventually;
use roadstead_testkit::netns::is_left_out;
use serde_json::Value;

use super::{SOON, map, server, value};
use crate::process::Roadstead;

/// `roadstead etcd WHAT`.
fn etcd_command(etcd: &Etcd, what: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_roadstead"));
    command.arg("etcd").args(what.split(' ')).args(["--etcd-servers", &etcd.urls().join(",")]);
    command.output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

#[track_caller]
fn succeeds(etcd: &Etcd, what: &str) -> String {
    let output = etcd_command(etcd, what);
    assert!(output.status.success(), "{what}: {}", said(&output));
    said(&output)
}

#[track_caller]
fn fails(etcd: &Etcd, what: &str) -> String {
    let output = etcd_command(etcd, what);
    assert!(!output.status.success(), "{what}: {}", said(&output));
    said(&output)
}

/// Asks etcd itself.
fn ask<T>(etcd: &Etcd, question: impl AsyncFnOnce(&Client) -> T) -> T {
    let urls: Vec<_> = etcd.urls().iter().map(|url| MemberUrl::parse(url).unwrap()).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = Client::new(&urls, EtcdTls::default().read().unwrap());
        question(&client).await
    })
}

/// Writes keys below `/registry/`, or removes those without a value.
fn write(etcd: &Etcd, all: &[(&str, &[u8])]) {
    let operation = |(key, value): &(&str, &[u8])| {
        let key = Bytes::from(format!("/registry/{key}"));
        let act = match value.is_empty() {
            true => Act::Delete(DeleteRangeRequest { key }),
            false => Act::Put(PutRequest { key, value: Bytes::copy_from_slice(value), lease: 0 }),
        };
        TxnOperation { act: Some(act) }
    };
    let success = all.iter().map(operation).collect();
    let txn = TxnRequest { success, ..TxnRequest::default() };
    ask(etcd, async |client| client.txn(&txn).await.unwrap());
}

/// How many keys there are below `/registry/`.
fn keys(etcd: &Etcd, below: &str) -> i64 {
    let request = RangeRequest {
        key: Bytes::from(format!("/registry/{below}/")),
        range_end: Bytes::from(format!("/registry/{below}0")),
        count_only: true,
        ..RangeRequest::default()
    };
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    ask(etcd, async |client| client.range(&request, deadline).await.unwrap().count)
}

#[test]
fn an_etcd_that_is_full() {
    if is_left_out("L5") {
        return;
    }
    let quota = ["--quota-backend-bytes".to_owned(), (16 << 20).to_string()];
    let Some(etcd) = Etcd::start_with(1, &quota, "http") else { return };
    let server = server(&etcd, None);
    let kubectl = server.kubectl();
    kubectl.run("create service nodeport s --tcp=80");
    let large = server.directory().join("large");
    std::fs::write(&large, vec![b'x'; 900_000]).unwrap();
    let create = |number: usize| {
        let from = format!("--from-file=a={}", large.display());
        kubectl.try_run(&format!("create configmap m{number} {from}"))
    };
    let made = (0..30).take_while(|number| create(*number).status.success()).count();
    assert!((5..25).contains(&made), "{made} fit into 16 MiB");
    let path = "/api/v1/namespaces/default/configmaps";
    let refused =
        kubectl.fails(&format!("create -v=8 configmap more --from-file=a={}", large.display()));
    for words in ["503", "database space exceeded", "roadstead etcd heal"] {
        assert!(
            refused.contains(words),
            "{words}: {}",
            &refused[refused.len().saturating_sub(2000)..]
        );
    }
    // What there is can be read, and what is deleted goes, with all that it holds.
    assert!(kubectl.run("get --raw /readyz").contains("ok"));
    assert!(kubectl.run(&format!("get --raw {path}/m0?resourceVersion=0")).contains("xxx"));
    kubectl.run("delete configmap m0 m1 m2");
    kubectl.run("delete service s");
    let told = fails(&etcd, "check");
    assert!(told.contains("NOSPACE") && told.contains("% of the quota of 16 MiB"), "{told}");
    let healed = succeeds(&etcd, "heal");
    for step in ["forgetting what was overwritten", "defragmenting", "ending the alarm NOSPACE"] {
        assert!(healed.contains(step), "{step}: {healed}");
    }
    assert_eq!(value(&kubectl, &format!("m{}", made - 1)).len(), 900_000);
    kubectl.run("create configmap small --from-literal=a=b");
    assert!(create(0).status.success());
    let names = kubectl.run("get configmaps -o name");
    let left = names.lines().filter(|name| name.contains("configmap/m")).count();
    assert_eq!(left, made - 2, "{names}");
    let sound = succeeds(&etcd, "check");
    assert!(!sound.contains("NOSPACE"), "{sound}");
    assert!(succeeds(&etcd, "heal").contains("there is no alarm NOSPACE"));
}

#[test]
fn an_etcd_before_it_is_taken_over() {
    if is_left_out("L5") {
        return;
    }
    let Some(etcd) = Etcd::start(1) else { return };
    let server = server(&etcd, None);
    server.kubectl().apply(&map("ours", "a"));
    let sound = succeeds(&etcd, "check");
    assert!(sound.contains("configmaps") && sound.contains("  nothing"), "{sound}");
    assert!(sound.contains("etcd 3.") && sound.contains("% of the quota of 2048 MiB"), "{sound}");

    let theirs: [(&str, &[u8]); 5] = [
        ("secrets/default/hidden", b"k8s:enc:aescbc:v1:key:x"),
        ("configmaps/default/damaged", b"k8s\0damaged"),
        ("resourceslices/n1", b"k8s\0anything"),
        ("validatingwebhookconfigurations/guard", b"{\"metadata\":{}}"),
        (
            "apiregistration.k8s.io/apiservices/v1beta1.metrics.k8s.io",
            b"{\"apiVersion\":\"apiregistration.k8s.io/v1\",\"kind\":\"APIService\",\"metadata\":{\"name\":\
            \"v1beta1.metrics.k8s.io\"},\"spec\":{\"service\":{\"namespace\":\"kube-system\",\"name\":\"m\"}}}",
        ),
    ];
    write(&etcd, &theirs);
    let before = keys(&etcd, "configmaps");
    let told = fails(&etcd, "check");
    for line in [
        "1 encrypted by kube-apiserver",
        "default/damaged: ",
        "resourceslices",
        "ValidatingWebhookConfiguration guard",
        "APIService v1beta1.metrics.k8s.io: served by the Service kube-system/m",
    ] {
        assert!(told.contains(line), "{line}: {told}");
    }
    assert_eq!(keys(&etcd, "configmaps"), before, "nothing is changed");
    write(&etcd, &theirs.map(|(key, _)| (key, &b""[..])));
    succeeds(&etcd, "check");
}

#[test]
fn all_of_etcd_in_a_file() {
    if is_left_out("L5") {
        return;
    }
    let Some(etcd) = Etcd::start(1) else { return };
    write(&etcd, &[("configmaps/default/a", &vec![b'x'; 300_000])]);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("snapshot.db");
    let command = format!("snapshot {}", file.display());
    assert!(succeeds(&etcd, &command).contains("its SHA-256 is right"));
    // As etcdutl finds it: pages of the database, and 32 bytes after them, which are their sum.
    let bytes = std::fs::read(&file).unwrap();
    assert!(bytes.len() > 300_000 && bytes.len() % 512 == 32, "{}", bytes.len());
    let (database, sum) = bytes.split_at(bytes.len() - 32);
    let path = directory.path().join("database");
    std::fs::write(&path, database).unwrap();
    let output = Command::new("sha256sum").arg(&path).output().unwrap();
    let hex: String = sum.iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(String::from_utf8_lossy(&output.stdout).starts_with(&hex));
    // It replaces nothing, and leaves nothing half done.
    assert!(fails(&etcd, &command).contains("is there already"));
    let names: Vec<_> = std::fs::read_dir(directory.path()).unwrap().collect();
    assert_eq!(names.len(), 2, "{names:?}");
}

fn snapshot(arguments: &[&str], paths: &[(&str, &Path)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_roadstead"));
    command.arg("snapshot").args(arguments);
    for (flag, path) in paths {
        command.arg(flag).arg(path);
    }
    command.output().unwrap()
}

#[test]
fn from_a_directory_into_etcd_and_back() {
    if is_left_out("L5") {
        return;
    }
    let Some(etcd) = Etcd::start(1) else { return };
    let mut first = Roadstead::durable_apiserver();
    let kubectl = first.kubectl();
    kubectl.apply(&map("kept", "v1"));
    kubectl.run("create service nodeport s --tcp=80 --node-port=30123");
    let uid = kubectl.run("get configmap kept -o jsonpath='{.metadata.uid}'");
    let data = first.directory().join("data");
    let copy = format!("copy --data-dir {}", data.display());
    assert!(fails(&etcd, &copy).contains("stop the server"), "it is in use");
    first.stop();
    let young = fails(&etcd, &copy);
    assert!(young.contains("--bump-revision") && young.contains("--mark-compacted"), "{young}");
    assert_eq!(keys(&etcd, "configmaps"), 0, "nothing was written");
    let copied = succeeds(&etcd, &format!("{copy} --accept-relist"));
    assert!(copied.contains("objects of"), "{copied}");
    assert!(fails(&etcd, &copy).contains("has"), "a second time there is something");

    // Behind etcd, with the same authority: the same objects, and the port is still taken.
    let second = server(&etcd, Some(&first));
    let kubectl = second.kubectl();
    assert_eq!(value(&kubectl, "kept"), "v1");
    assert_eq!(kubectl.run("get configmap kept -o jsonpath='{.metadata.uid}'"), uid);
    let taken = "create service nodeport t --tcp=80 --node-port=30123";
    assert!(kubectl.fails(taken).contains("provided port is already allocated"));
    assert_eq!(keys(&etcd, "ranges/roadstead-nodeports"), 0);
    kubectl.apply(&map("kept", "v2"));
    kubectl.run("create service nodeport u --tcp=80 --node-port=30124");

    // And back, through a snapshot of the server.
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("snapshot");
    let elsewhere = second.directory().join("data");
    let path = file.display().to_string();
    let without = snapshot(&["save", &path], &[("--data-dir", &elsewhere)]);
    assert!(said(&without).contains("--kubeconfig says how to reach it"), "{}", said(&without));
    let saved = snapshot(
        &["save", &path],
        &[("--data-dir", &elsewhere), ("--kubeconfig", &second.kubeconfig())],
    );
    assert!(saved.status.success(), "{}", said(&saved));
    let data = directory.path().join("data");
    let restored = snapshot(&["restore", &path], &[("--data-dir", &data)]);
    assert!(restored.status.success(), "{}", said(&restored));
    let third = Roadstead::start_in(directory, "apiserver --listen 127.0.0.1:0");
    let kubectl = third.kubectl();
    assert_eq!(value(&kubectl, "kept"), "v2");
    assert_eq!(kubectl.run("get configmap kept -o jsonpath='{.metadata.uid}'"), uid);
    for port in [30123, 30124] {
        let taken = format!("create service nodeport t --tcp=80 --node-port={port}");
        assert!(kubectl.fails(&taken).contains("provided port is already allocated"), "{port}");
    }
    kubectl.run("delete service u");
    kubectl.run("create service nodeport t --tcp=80 --node-port=30124");
}

#[test]
fn ports_that_a_server_has_left() {
    if is_left_out("L5") {
        return;
    }
    let Some(etcd) = Etcd::start(1) else { return };
    // Port 30000 is taken, and nobody has it: as a kube-apiserver leaves it that was killed in between.
    let left = br#"{"kind":"RangeAllocation","apiVersion":"v1","metadata":{},"range":"30000-32767","data":"AQ=="}"#;
    write(&etcd, &[("ranges/servicenodeports", left)]);
    let server = server(&etcd, None);
    let kubectl = server.kubectl();
    let create = "create service nodeport s --tcp=80 --node-port=30000";
    eventually("it is given back", SOON, || kubectl.try_run(create).status.success(), |ok| *ok);
    let bits = RangeRequest {
        key: Bytes::from_static(b"/registry/ranges/servicenodeports"),
        ..RangeRequest::default()
    };
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    let found = ask(&etcd, async |client| client.range(&bits, deadline).await.unwrap());
    let stored: Value = serde_json::from_slice(&found.kvs[0].value).unwrap();
    assert_eq!((&stored["range"], &stored["data"]), (&"30000-32767".into(), &"AQ==".into()));
}
