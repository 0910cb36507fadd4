//! Long answers are compressed for clients that understand it.

use std::io::Write;
use std::sync::Arc;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures::stream;
use http::Response;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, HeaderValue, VARY};
use http::request::Parts;
use http_body::{Body as _, Frame};
use http_body_util::{BodyExt, StreamBody};

use crate::reading::listing::InPieces;
use crate::transport::response::Body;
use crate::transport::rotation::{Flow, TURN};

/// Shorter answers are not worth it (upstream's threshold).
const THRESHOLD: u64 = 128 * 1024;

/// Compresses the answer if it is long, has an end, and the client wants it.
pub(crate) fn maybe(request: &Parts, flow: &Arc<Flow>, response: Response<Body>) -> Response<Body> {
    let accepts = request.headers.get(ACCEPT_ENCODING).and_then(|value| value.to_str().ok());
    let wanted =
        accepts.is_some_and(|text| text.split(',').any(|word| word.trim().starts_with("gzip")));
    let in_pieces = response.extensions().get::<InPieces>().is_some();
    // Other bodies that do not know their size are watches: they are never compressed.
    let long = response.body().size_hint().exact().is_some_and(|size| size > THRESHOLD);
    if !wanted || !(long || in_pieces) {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    parts.headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    parts.headers.insert(VARY, HeaderValue::from_static("Accept-Encoding"));
    Response::from_parts(parts, packed(body, flow.clone()))
}

/// What is being compressed.
struct Packing {
    body: Body,
    /// What has been taken from the body, and waits for its turn.
    rest: Bytes,
    /// `None` at the end.
    encoder: Option<GzEncoder<Vec<u8>>>,
    flow: Arc<Flow>,
}

impl Packing {
    async fn next(&mut self) -> Option<Bytes> {
        while let Some(mut encoder) = self.encoder.take() {
            while self.rest.is_empty() {
                let Some(Ok(frame)) = self.body.frame().await else {
                    let finish = move || encoder.finish().expect("memory takes all bytes");
                    return Some(self.flow.work(finish).await.into());
                };
                self.rest = frame.into_data().unwrap_or_default();
            }
            let piece = self.rest.split_to(self.rest.len().min(TURN));
            let work = move || {
                encoder.write_all(&piece).expect("memory takes all bytes");
                let out = std::mem::take(encoder.get_mut());
                (encoder, out)
            };
            let (encoder, out) = self.flow.work(work).await;
            self.encoder = Some(encoder);
            if !out.is_empty() {
                return Some(out.into());
            }
        }
        None
    }
}

/// The body, compressed while it is sent.
fn packed(body: Body, flow: Arc<Flow>) -> Body {
    let encoder = Some(GzEncoder::new(Vec::new(), Compression::fast()));
    let packing = Packing { body, rest: Bytes::new(), encoder, flow };
    let frames = stream::unfold(packing, |mut packing| async move {
        let piece = packing.next().await?;
        Some((Ok(Frame::data(piece)), packing))
    });
    BodyExt::boxed_unsync(StreamBody::new(frames))
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;
    use crate::identity::user::User;
    use crate::transport::rotation::Rotation;

    #[tokio::test]
    async fn pieces_are_compressed_as_one() {
        let piece = |number: usize| Bytes::from(number.to_string().repeat(1000));
        let frames = stream::iter((0..100).map(move |number| Ok(Frame::data(piece(number)))));
        let body = StreamBody::new(frames).boxed_unsync();
        let flow = Rotation::new(1).of(&User::component());
        let packed = packed(body, flow).collect().await.unwrap().to_bytes();
        let mut text = Vec::new();
        flate2::read::GzDecoder::new(&packed[..]).read_to_end(&mut text).unwrap();
        assert_eq!(text, (0..100).flat_map(piece).collect::<Vec<_>>());
        assert!(packed.len() < text.len() / 10, "{} of {}", packed.len(), text.len());
    }
}
