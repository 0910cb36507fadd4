//! A list as it goes over the wire: piece by piece, each made when the one before has been sent.
//!
//! A client may take its time to read a list of all objects, and there may be many such clients.
//! What each of them holds up is the references to the objects that it has not read yet, and one
//! piece.

use std::sync::Arc;
use std::vec;

use bytes::{BufMut, Bytes, BytesMut};
use futures::stream;
use http::Response;
use http::header::{CONTENT_TYPE, HeaderValue};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use roadstead_store::entry::Entry;

use crate::http::{Body, ok};
use crate::object;
use crate::registry::Resource;

/// A piece ends with the object that reaches this size,
const PIECE: usize = 60 << 10;
/// and usually fits into this room.
const ROOM: usize = 64 << 10;
/// Lists up to this size are sent as one piece.
const WHOLE: usize = 128 << 10;

/// Marks answers that come in pieces and have an end, unlike watches.
#[derive(Clone, Copy, Debug)]
pub struct InPieces;

/// What is left to be sent of a list.
pub struct Listing {
    resource: Resource,
    entries: vec::IntoIter<Arc<Entry>>,
    head: Bytes,
    done: bool,
}

impl Listing {
    /// A list that begins with `head`, up to and including the bracket before the first object.
    pub fn new(resource: &Resource, head: Bytes, entries: Vec<Arc<Entry>>) -> Self {
        let (resource, entries) = (resource.clone(), entries.into_iter());
        Self { resource, entries, head, done: false }
    }

    /// The list as an answer.
    pub fn answer(self) -> Response<Body> {
        let size: usize = self.entries.as_slice().iter().map(|entry| entry.value.len() + 40).sum();
        if size <= WHOLE {
            let mut whole = BytesMut::with_capacity(size + 256);
            self.for_each(|piece| whole.put_slice(&piece));
            return ok(whole.freeze());
        }
        let frames = stream::iter(self.map(|piece| Ok(Frame::data(piece))));
        let mut response = Response::new(BodyExt::boxed_unsync(StreamBody::new(frames)));
        let media_type = HeaderValue::from_static("application/json");
        response.headers_mut().insert(CONTENT_TYPE, media_type);
        response.extensions_mut().insert(InPieces);
        response
    }
}

impl Iterator for Listing {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        if self.done {
            return None;
        }
        let mut piece = BytesMut::with_capacity(ROOM);
        piece.put_slice(&std::mem::take(&mut self.head));
        while piece.len() < PIECE {
            let Some(entry) = self.entries.next() else {
                piece.put_slice(b"]}");
                self.done = true;
                break;
            };
            let shown = self.resource.shown(&entry.value);
            object::splice(&mut piece, &shown, entry.revision);
            if !self.entries.as_slice().is_empty() {
                piece.put_u8(b',');
            }
        }
        Some(piece.freeze())
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use roadstead_store::entry::{Key, Revision};
    use roadstead_store::store::Store;
    use serde_json::Value;

    use super::*;
    use crate::registry::Catalog;

    #[tokio::test]
    async fn a_list_is_the_same_in_one_piece_and_in_many() {
        let registry = Catalog::new(Store::memory()).now();
        let resource = registry.core("configmaps");
        let entry = |number: usize, size: usize| {
            let value = format!(
                "{{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"metadata\":{{\"name\":\"m{number}\"}},\
                 \"data\":{{\"a\":\"{}\"}}}}",
                "x".repeat(size)
            );
            let key = Key::new("configmaps", format!("default/m{number}"));
            Arc::new(Entry { key, value: value.into(), revision: Revision(7) })
        };
        // How many objects of which size, and in how many pieces they come.
        let cases = [
            ("nothing", 0, 0, 1..=1),
            ("one", 1, 10, 1..=1),
            ("some", 100, 1000, 1..=1),
            ("many", 1000, 1000, 15..=20),
            ("large", 3, 100_000, 3..=4),
        ];
        for (name, count, size, pieces) in cases {
            let entries = (0..count).map(|number| entry(number, size)).collect();
            let answer = Listing::new(resource, "{\"items\":[".into(), entries).answer();
            let mut body = answer.into_body();
            let (mut text, mut found) = (Vec::new(), 0);
            while let Some(Ok(frame)) = body.frame().await {
                text.extend_from_slice(&frame.into_data().unwrap());
                found += 1;
            }
            assert!(pieces.contains(&found), "{name}: {found} pieces");
            let list: Value = serde_json::from_slice(&text).unwrap();
            let items = list["items"].as_array().unwrap();
            let expected: Vec<_> = (0..count).map(|number| format!("m{number}")).collect();
            let names: Vec<_> =
                items.iter().map(|item| item["metadata"]["name"].as_str().unwrap()).collect();
            assert_eq!(names, expected, "{name}");
            assert!(items.iter().all(|item| item["metadata"]["resourceVersion"] == "7"), "{name}");
        }
    }
}
