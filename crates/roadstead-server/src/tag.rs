//! Entity tags: a client that has a document already need not read it again.

use std::hash::{DefaultHasher, Hash, Hasher};

use http::header::{CACHE_CONTROL, ETAG, HeaderMap, HeaderValue, IF_NONE_MATCH, VARY};
use http::{Response, StatusCode};
use http_body_util::{BodyExt, Full};

use crate::http::Body;

/// Puts a tag on a document, or says that the client has it.
pub async fn answer(headers: &HeaderMap, response: Response<Body>) -> Response<Body> {
    let (mut parts, body) = response.into_parts();
    let bytes = body.collect().await.unwrap_or_else(|never| match never {}).to_bytes();
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    let tag = format!("\"{:016X}\"", hasher.finish());
    let known = headers.get(IF_NONE_MATCH).and_then(|value| value.to_str().ok()).unwrap_or("");
    let is_known = known.split(',').any(|known| known.trim() == tag);
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        parts.headers.insert(ETAG, tag);
    }
    parts.headers.insert(VARY, HeaderValue::from_static("Accept"));
    parts.headers.insert(CACHE_CONTROL, HeaderValue::from_static("public"));
    if is_known {
        parts.status = StatusCode::NOT_MODIFIED;
        return Response::from_parts(parts, Full::default().boxed_unsync());
    }
    Response::from_parts(parts, Full::new(bytes).boxed_unsync())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_has_it_need_not_read_it() {
        let document = |text: &'static str| Response::new(Full::from(text).boxed_unsync());
        let first = answer(&HeaderMap::new(), document("a")).await;
        let tag = first.headers()[ETAG].clone();
        let headers: HeaderMap = [(IF_NONE_MATCH, tag)].into_iter().collect();
        for (text, code) in [("a", StatusCode::NOT_MODIFIED), ("b", StatusCode::OK)] {
            assert_eq!(answer(&headers, document(text)).await.status(), code, "{text}");
        }
    }
}
