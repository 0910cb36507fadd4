//! A list as it goes over the wire: piece by piece, each made when the one before has been sent.
//!
//! A client may take its time to read a list of all objects, and there may be many such clients.
//! What each of them holds up is the references to the objects that it has not read yet, and one
//! piece. Large objects are not copied into it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::vec;

use bytes::{BufMut, Bytes, BytesMut};
use futures::stream;
use http::Response;
use http::header::{CONTENT_TYPE, HeaderValue};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use jiff::Timestamp;
use roadstead_store::entry::Entry;

use crate::reading::view::View;
use crate::registry::Resource;
use crate::transport::response::{Body, ok};
use crate::transport::rotation::{Flow, TURN};

/// A piece ends when it reaches this size,
const PIECE: usize = 60 << 10;
/// and usually fits into this room.
const ROOM: usize = 64 << 10;
/// Bytes that are fewer are copied.
const SMALL: usize = 16 << 10;
/// Lists up to this size are sent as one piece,
const WHOLE: usize = 128 << 10;

/// Marks answers that come in pieces and have an end, unlike watches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InPieces;

/// What is ready to be sent.
#[derive(Default)]
pub(crate) struct Ready {
    done: VecDeque<Bytes>,
    open: BytesMut,
}

impl Ready {
    /// Adds a copy of something small.
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        if self.open.capacity() == 0 {
            self.open.reserve(ROOM);
        }
        self.open.put_slice(bytes);
    }

    /// Adds something that may be large.
    pub(crate) fn share(&mut self, mut bytes: Bytes) {
        if bytes.len() <= SMALL {
            return self.put(&bytes);
        }
        self.close();
        while !bytes.is_empty() {
            let size = bytes.len().min(ROOM);
            self.done.push_back(bytes.split_to(size));
        }
    }

    /// What is there is a piece.
    fn close(&mut self) {
        if !self.open.is_empty() {
            self.done.push_back(std::mem::take(&mut self.open).freeze());
        }
    }
}

/// What is left to be sent of a list.
pub(crate) struct Listing {
    pub(crate) resource: Arc<Resource>,
    /// In which form.
    pub(crate) view: View,
    /// For ages in tables.
    pub(crate) now: Timestamp,
    /// Before the first object.
    pub(crate) head: String,
    /// The objects.
    pub(crate) entries: vec::IntoIter<Arc<Entry>>,
    /// After the last object.
    pub(crate) tail: &'static str,
}

struct Sending {
    listing: Listing,
    ready: Ready,
    begun: bool,
    ended: bool,
}

impl Listing {
    /// The list as an answer: at once if it is short.
    pub(crate) fn answer(self, flow: &Arc<Flow>) -> Response<Body> {
        let entries = self.entries.as_slice().iter();
        let size: usize = entries.map(|entry| entry.value.len() + 40).sum();
        let whole = if self.is_hard() { TURN } else { WHOLE };
        let mut sending =
            Sending { listing: self, ready: Ready::default(), begun: false, ended: false };
        if size <= whole {
            let mut all = BytesMut::with_capacity(size + 256);
            while let Some(piece) = sending.next() {
                all.put_slice(&piece);
            }
            return ok(all.freeze());
        }
        let frames = stream::unfold((sending, flow.clone()), |(mut sending, flow)| async move {
            let (piece, sending) = if sending.is_hard() {
                flow.work(move || (sending.next(), sending)).await
            } else {
                flow.turn().await;
                (sending.next(), sending)
            };
            Some((Ok(Frame::data(piece?)), (sending, flow)))
        });
        let mut response = Response::new(BodyExt::boxed_unsync(StreamBody::new(frames)));
        let media_type = HeaderValue::from_static("application/json");
        response.headers_mut().insert(CONTENT_TYPE, media_type);
        response.extensions_mut().insert(InPieces);
        response
    }

    /// Whether the next object has to be read to be written.
    fn is_hard(&self) -> bool {
        let first = self.entries.as_slice().first();
        first.is_some_and(|entry| self.view.is_hard(&self.resource, entry))
    }
}

impl Sending {
    fn is_hard(&self) -> bool {
        self.ready.done.is_empty() && self.listing.is_hard()
    }

    /// The next piece.
    fn next(&mut self) -> Option<Bytes> {
        if self.ready.done.is_empty() && !self.ended {
            self.fill();
            self.ready.close();
        }
        self.ready.done.pop_front()
    }

    fn fill(&mut self) {
        let Listing { resource, view, now, head, entries, tail } = &mut self.listing;
        self.ready.put(std::mem::take(head).as_bytes());
        let mut read = 0;
        while self.ready.done.is_empty() && self.ready.open.len() < PIECE && read < TURN {
            let Some(entry) = entries.next() else {
                self.ready.put(tail.as_bytes());
                self.ended = true;
                return;
            };
            if std::mem::replace(&mut self.begun, true) {
                self.ready.put(b",");
            }
            if view.is_hard(resource, &entry) {
                read += entry.value.len();
            }
            view.write(resource, &entry, *now, &mut self.ready);
        }
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use roadstead_store::entry::{Key, Revision};
    use roadstead_store::kv::Store;
    use serde_json::Value;

    use super::*;
    use crate::identity::user::User;
    use crate::reading::view::{Include, Listed};
    use crate::registry::Catalog;
    use crate::transport::rotation::Rotation;

    fn entry(number: usize, size: usize) -> Arc<Entry> {
        let value = format!(
            "{{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"metadata\":{{\"name\":\"m{number}\",\
             \"labels\":{{\"}}\\\"\":\"{{\"}}}},\"data\":{{\"text\":\"{}\"}}}}",
            "x".repeat(size)
        );
        let key = Key::new("configmaps", format!("default/m{number}"));
        Arc::new(Entry { key, value: value.into(), revision: Revision(7) })
    }

    /// A list of objects of a size in a form: the JSON, and in how many pieces it came.
    async fn listed(count: usize, size: usize, view: View) -> (Value, usize) {
        let registry = Catalog::new(Store::memory()).now();
        let entries = (0..count).map(|number| entry(number, size)).collect();
        let list = Listed { entries, revision: Revision(9), next: String::new(), remaining: None };
        let turns = Rotation::new(1);
        let flow = turns.of(&User::new("jane", vec![]));
        let mut body = view.many(registry.core("configmaps"), list, &flow).into_body();
        let (mut text, mut found) = (Vec::new(), 0);
        while let Some(Ok(frame)) = body.frame().await {
            let data = frame.into_data().unwrap();
            assert!(data.len() <= 2 * ROOM, "a piece of {} bytes", data.len());
            text.extend_from_slice(&data);
            found += 1;
        }
        (serde_json::from_slice(&text).unwrap(), found)
    }

    #[tokio::test]
    async fn a_list_is_the_same_in_one_piece_and_in_many() {
        // How many objects, how large, and how many pieces.
        let cases = [
            ("none", 0, 0, 1..=1),
            ("small", 10, 100, 1..=1),
            ("many", 1_000, 1_000, 15..=30),
            ("large", 3, 100_000, 6..=16),
            ("huge", 1, 3_000_000, 40..=60),
        ];
        let views = [
            View::Object,
            View::Metadata,
            View::Table(Include::None),
            View::Table(Include::Object),
        ];
        for (name, count, size, pieces) in cases {
            for view in views {
                let (list, found) = listed(count, size, view).await;
                if view == View::Object {
                    assert!(pieces.contains(&found), "{name}: {found} pieces");
                }
                assert_eq!(list["metadata"]["resourceVersion"], "9");
                let field = if matches!(view, View::Table(_)) { "rows" } else { "items" };
                let items = list[field].as_array().unwrap();
                assert_eq!(items.len(), count, "{name} as {view:?}");
                for (number, item) in items.iter().enumerate() {
                    let object = match view {
                        View::Table(Include::None) => {
                            assert_eq!(item["cells"][0], format!("m{number}"));
                            continue;
                        }
                        View::Table(_) => &item["object"],
                        _ => item,
                    };
                    assert_eq!(object["metadata"]["name"], format!("m{number}"), "{name}");
                    assert_eq!(object["metadata"]["resourceVersion"], "7", "{name}");
                    assert_eq!(object["metadata"]["labels"]["}\""], "{", "{name}");
                }
            }
        }
    }

    #[tokio::test]
    async fn tables_of_large_objects_come_row_by_row() {
        let (_, pieces) = listed(12, 200_000, View::Table(Include::Metadata)).await;
        assert!(pieces >= 12, "{pieces} pieces");
    }
}
