//! A damaged disk: bytes that rot, files that vanish, under a server or between two starts. The
//! store's own test (`crates/roadstead-store/src/log/disk/rot.rs`) tries every class of byte; here is what the
//! operator sees of it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use roadstead_testkit::kubectl::eventually;
use roadstead_testkit::netns::{is_left_out, try_run};

use crate::attacks;
use crate::process::Roadstead;

const BINARY: &str = env!("CARGO_BIN_EXE_roadstead");

fn store(roadstead: &Roadstead) -> PathBuf {
    roadstead.directory().join("data/store")
}

/// Starts a server on the same directory, which must refuse; returns what it said.
fn refused(roadstead: &Roadstead) -> String {
    let data = roadstead.directory().join("data");
    let out = roadstead.directory().join("refused.kubeconfig");
    let command = format!(
        "timeout 20 {BINARY} apiserver --listen 127.0.0.1:0 --data-dir {} --kubeconfig-out {}",
        data.display(),
        out.display()
    );
    let output = try_run(&command);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    attacks::refused(1);
    said
}

fn change(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(path).unwrap();
    change(&mut bytes);
    fs::write(path, bytes).unwrap();
}

#[test]
fn a_flipped_byte_of_a_value_is_refused_and_can_be_accepted() {
    if is_left_out("L5") {
        return;
    }
    let mut roadstead = Roadstead::durable_apiserver();
    let kubectl = roadstead.kubectl();
    for number in 0..5 {
        kubectl.run(&format!("create configmap w{number} --from-literal=a=MARKER00{number}"));
    }
    roadstead.stop();
    let tables = store(&roadstead).join("roadstead.redb");
    change(&tables, |bytes| {
        let text = b"MARKER003";
        let found = (0..bytes.len() - 9).filter(|&at| bytes[at..].starts_with(text));
        for at in found.collect::<Vec<_>>() {
            bytes[at + 8] = b'4';
        }
    });
    let said = refused(&roadstead);
    assert!(said.contains("configmaps/default/w3 at revision"), "{said}");
    assert!(said.contains("does not fit its checksum"), "{said}");
    assert!(said.contains("roadstead snapshot restore FILE --force --data-dir"), "{said}");
    assert!(said.contains("--accept-loss"), "{said}");
    let verified = try_run(&format!(
        "{BINARY} snapshot verify --data-dir {}",
        roadstead.directory().join("data").display()
    ));
    let said = String::from_utf8_lossy(&verified.stderr).into_owned();
    assert!(!verified.status.success() && said.contains("configmaps/default/w3"), "{said}");

    roadstead.start_with("--accept-loss");
    let names = roadstead.kubectl().run("get configmaps -o name");
    assert!(names.contains("w2") && names.contains("w4") && !names.contains("w3"), "{names}");
    assert!(roadstead.log().contains("accepted the loss"), "{}", roadstead.log());
}

#[test]
fn a_log_that_vanishes_between_two_starts() {
    if is_left_out("L5") {
        return;
    }
    let mut roadstead = Roadstead::durable_apiserver();
    roadstead.kubectl().run("create configmap there");
    roadstead.kill();
    let store = store(&roadstead);
    let all = ["roadstead.redb", "roadstead.ahead0", "roadstead.ahead1", "roadstead.mark"];
    for name in all {
        let (file, away) = (store.join(name), store.join("away"));
        fs::rename(&file, &away).unwrap();
        let said = refused(&roadstead);
        assert!(said.contains(name) && said.contains("is missing"), "{name}: {said}");
        assert!(said.contains("roadstead snapshot restore FILE"), "{name}: {said}");
        fs::rename(&away, &file).unwrap();
    }
    // All of them at once, as when a disk is not mounted: the certificates are still there.
    let away = store.with_extension("away");
    for made in [false, true] {
        fs::rename(&store, &away).unwrap();
        if made {
            fs::create_dir(&store).unwrap();
        }
        let said = refused(&roadstead);
        assert!(said.contains("roadstead.redb is gone"), "{said}");
        assert!(said.contains("roadstead snapshot restore FILE --force --data-dir"), "{said}");
        assert!(said.contains("--accept-loss"), "{said}");
        if made {
            fs::remove_dir(&store).unwrap();
        }
        fs::rename(&away, &store).unwrap();
    }
    roadstead.start_again();
    roadstead.kubectl().run("get configmap there");
    roadstead.stop();
    fs::remove_dir_all(&store).unwrap();
    roadstead.start_with("--accept-loss");
    roadstead.kubectl().fails("get configmap there");
    roadstead.start_again();
}

#[test]
fn files_that_are_removed_under_a_server() {
    if is_left_out("L5") {
        return;
    }
    let roadstead = Roadstead::durable_apiserver();
    let kubectl = roadstead.kubectl();
    kubectl.run("create configmap before");
    fs::remove_dir_all(store(&roadstead)).unwrap();
    let said = kubectl.fails("create configmap after");
    assert!(said.contains("the store is read-only since"), "{said}");
    assert!(said.contains("has been removed while the server has it open"), "{said}");
    let ready = || kubectl.fails("get --raw /readyz");
    eventually("it is not ready", Duration::from_secs(5), ready, |said| {
        said.contains("etcd failed") || said.contains("read-only")
    });
    // Reads go on.
    kubectl.run("get configmap before");
    attacks::refused(1);
}
