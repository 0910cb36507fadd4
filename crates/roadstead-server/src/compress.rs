//! Long answers are compressed for clients that understand it.

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::Response;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, HeaderValue, VARY};
use http::request::Parts;
use http_body::Body as _;
use http_body_util::{BodyExt, Full};
use std::io::Write;

use crate::http::Body;

/// Shorter answers are not worth it (upstream's threshold).
const THRESHOLD: u64 = 128 * 1024;

/// Compresses the answer if it is long, complete, and the client wants it.
pub fn maybe(request: &Parts, response: Response<Body>) -> Response<Body> {
    let accepts = request.headers.get(ACCEPT_ENCODING).and_then(|value| value.to_str().ok());
    let wanted =
        accepts.is_some_and(|text| text.split(',').any(|word| word.trim().starts_with("gzip")));
    // Only complete bodies know their size: watches are never compressed.
    let long = response.body().size_hint().exact().is_some_and(|size| size > THRESHOLD);
    if !wanted || !long {
        return response;
    }
    let (mut parts, mut body) = response.into_parts();
    let Some(bytes) = whole(&mut body) else { return Response::from_parts(parts, body) };
    let mut encoder = GzEncoder::new(Vec::with_capacity(bytes.len() / 8), Compression::fast());
    let packed = encoder.write_all(&bytes).and_then(|()| encoder.finish());
    let Ok(packed) = packed else {
        return Response::from_parts(parts, Full::new(bytes).boxed_unsync());
    };
    parts.headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    parts.headers.insert(VARY, HeaderValue::from_static("Accept-Encoding"));
    Response::from_parts(parts, Full::new(Bytes::from(packed)).boxed_unsync())
}

/// The content of a body that is there already.
fn whole(body: &mut Body) -> Option<Bytes> {
    let frame = futures::FutureExt::now_or_never(body.frame())??;
    frame.ok()?.into_data().ok()
}
