//! Clients: those who write, each to objects of its own, and the one who watches.

use std::sync::{Arc, Mutex};

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use serde_json::json;

use crate::record::{Record, state};

/// How many write at the same time.
pub(crate) const WRITERS: u64 = 8;
/// How many objects each has.
const OBJECTS: u64 = 5;

/// Creates, replaces, patches and deletes until the server is gone.
pub(crate) async fn write(writer: u64, maps: Api<ConfigMap>, record: Arc<Mutex<Record>>) {
    for turn in 0.. {
        let name = format!("map-{writer}-{}", turn % OBJECTS);
        let (before, number) = {
            let mut record = record.lock().unwrap();
            (record.state(&name), record.fresh())
        };
        let deletes = before.is_some() && number % 5 == 0;
        let wanted = (!deletes).then_some(number);
        record.lock().unwrap().sent(&name, wanted);
        let filler = "x".repeat((number % 13 * 400) as usize);
        let mut map = json!({"metadata": {"name": name},
            "data": {"number": number.to_string(), "filler": filler}});
        if let (Some((revision, _)), true) = (before, number % 2 == 0) {
            map["metadata"]["resourceVersion"] = revision.to_string().into();
        }
        let typed = || serde_json::from_value::<ConfigMap>(map.clone()).unwrap();
        let outcome = match before {
            _ if deletes => maps.delete(&name, &DeleteParams::default()).await.map(|_| None),
            None => maps.create(&PostParams::default(), &typed()).await.map(Some),
            Some(_) if number % 2 == 0 => {
                maps.replace(&name, &PostParams::default(), &typed()).await.map(Some)
            }
            Some(_) => {
                maps.patch(&name, &PatchParams::default(), &Patch::Merge(&map)).await.map(Some)
            }
        };
        match outcome {
            Ok(written) => {
                let state = written.map(|map| state(&map).expect("an answer has its revision"));
                assert_eq!(state.map(|state| state.1), wanted);
                record.lock().unwrap().acknowledged(&name, state);
            }
            // Nobody else writes to this object.
            Err(kube::Error::Api(refused)) => panic!("{name} at {before:?}: {refused}"),
            Err(_) => return,
        }
    }
}

/// Watches from where the last watch ended until the server is gone.
pub(crate) async fn watch(maps: Api<ConfigMap>, record: Arc<Mutex<Record>>) {
    let resume = record.lock().unwrap().resume();
    let events = maps.watch(&WatchParams::default(), &resume.to_string()).await;
    let Ok(events) = events else { return };
    let mut events = events.boxed();
    while let Ok(Some(event)) = events.try_next().await {
        let mut record = record.lock().unwrap();
        match event {
            WatchEvent::Added(map) | WatchEvent::Modified(map) => record.watched(&map, false),
            WatchEvent::Deleted(map) => record.watched(&map, true),
            WatchEvent::Bookmark(_) => {}
            WatchEvent::Error(error) => panic!("the watch cannot resume from {resume}: {error}"),
        }
    }
}
