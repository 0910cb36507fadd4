//! A watch that goes on where it was when its connection ends.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::Method;
use http_body_util::BodyExt;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time;

use crate::connection::{Call, Connection};
use crate::mirror::Seen;

/// A line of a watch.
#[derive(Deserialize)]
pub(crate) struct Line<'a> {
    #[serde(rename = "type")]
    pub(crate) kind: &'a str,
    #[serde(borrow)]
    pub(crate) object: &'a RawValue,
}

/// What looks at what a watch tells.
pub(crate) trait Watcher: Send {
    /// An event; bookmarks among them.
    fn tell(&mut self, line: &Line<'_>);
    /// Everything up to this version has been told.
    fn version(&self) -> u64;
    /// Its place is forgotten, or the server cannot go on: what it knows is no longer true.
    fn lost(&mut self, why: &str);
}

/// Watches until the task is aborted.
pub(crate) async fn follow(connection: Arc<Connection>, path: String, mut watcher: impl Watcher) {
    loop {
        let join = if path.contains('?') { '&' } else { '?' };
        let version = watcher.version();
        let path =
            format!("{path}{join}watch=1&allowWatchBookmarks=true&resourceVersion={version}");
        if let Err(error) = read(&connection, path, &mut watcher).await {
            watcher.lost(&error.to_string());
            time::sleep(Duration::from_millis(100)).await;
        }
    }
}

async fn read(
    connection: &Connection,
    path: String,
    watcher: &mut impl Watcher,
) -> anyhow::Result<()> {
    let response = connection.send(&Call::new(Method::GET, path)).await?;
    anyhow::ensure!(response.status().is_success(), "a watch is refused: {}", response.status());
    let (mut body, mut rest) = (response.into_body(), BytesMut::new());
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        rest.extend_from_slice(&data);
        while let Some(line) = line(&mut rest) {
            let line: Line<'_> = serde_json::from_slice(&line)?;
            anyhow::ensure!(line.kind != "ERROR", "{}", line.object);
            watcher.tell(&line);
        }
    }
    Ok(())
}

/// The first whole line.
fn line(bytes: &mut BytesMut) -> Option<Bytes> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    Some(bytes.split_to(end + 1).freeze())
}

/// A list: its version, and its items.
pub(crate) async fn list(connection: &Connection, path: &str) -> anyhow::Result<(u64, Vec<Seen>)> {
    #[derive(Deserialize)]
    struct Metadata {
        #[serde(rename = "resourceVersion")]
        version: String,
    }
    #[derive(Deserialize)]
    struct List<'a> {
        metadata: Metadata,
        #[serde(borrow)]
        items: Vec<&'a RawValue>,
    }
    let body = connection.must(&Call::new(Method::GET, path)).await?;
    let list: List<'_> = serde_json::from_slice(&body)?;
    let items = list.items.iter().filter_map(|item| Seen::read(item.get())).collect();
    Ok((list.metadata.version.parse()?, items))
}

#[test]
fn lines_come_in_pieces() {
    let mut bytes = BytesMut::from(&b"a\nb"[..]);
    assert_eq!(line(&mut bytes).as_deref(), Some(&b"a\n"[..]));
    assert_eq!(line(&mut bytes), None);
    bytes.extend_from_slice(b"c\n\n");
    assert_eq!(line(&mut bytes).as_deref(), Some(&b"bc\n"[..]));
    assert_eq!(line(&mut bytes).as_deref(), Some(&b"\n"[..]));
}
