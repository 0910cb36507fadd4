//! Long answers are compressed for clients that understand it.

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures::stream;
use http::Response;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, HeaderValue, VARY};
use http::request::Parts;
use http_body::{Body as _, Frame};
use http_body_util::{BodyExt, StreamBody};
use std::io::Write;

use crate::http::Body;
use crate::listing::InPieces;

/// Shorter answers are not worth it (upstream's threshold).
const THRESHOLD: u64 = 128 * 1024;

/// Compresses the answer if it is long, has an end, and the client wants it.
pub fn maybe(request: &Parts, response: Response<Body>) -> Response<Body> {
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
    Response::from_parts(parts, packed(body))
}

/// The body, compressed while it is sent.
fn packed(body: Body) -> Body {
    let encoder = GzEncoder::new(Vec::new(), Compression::fast());
    let frames = stream::unfold((body, Some(encoder)), |(mut body, encoder)| async move {
        let mut encoder = encoder?;
        while let Some(Ok(frame)) = body.frame().await {
            let Ok(data) = frame.into_data() else { continue };
            encoder.write_all(&data).expect("memory takes all bytes");
            let out = std::mem::take(encoder.get_mut());
            if !out.is_empty() {
                return Some((Ok(Frame::data(Bytes::from(out))), (body, Some(encoder))));
            }
        }
        let out = encoder.finish().expect("memory takes all bytes");
        Some((Ok(Frame::data(Bytes::from(out))), (body, None)))
    });
    StreamBody::new(frames).boxed_unsync()
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[tokio::test]
    async fn pieces_are_compressed_as_one() {
        let piece = |number: usize| Bytes::from(number.to_string().repeat(1000));
        let frames = stream::iter((0..100).map(move |number| Ok(Frame::data(piece(number)))));
        let body = StreamBody::new(frames).boxed_unsync();
        let packed = packed(body).collect().await.unwrap().to_bytes();
        let mut text = Vec::new();
        flate2::read::GzDecoder::new(&packed[..]).read_to_end(&mut text).unwrap();
        assert_eq!(text, (0..100).flat_map(piece).collect::<Vec<_>>());
        assert!(packed.len() < text.len() / 10, "{} of {}", packed.len(), text.len());
    }
}
