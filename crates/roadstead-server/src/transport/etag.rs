//! Entity tags: a client that has a document already need not read it again.

use std::hash::{DefaultHasher, Hash, Hasher};

use http::header::{CACHE_CONTROL, ETAG, HeaderMap, HeaderValue, IF_NONE_MATCH, VARY};
use http::{Response, StatusCode};
use http_body_util::{BodyExt, Full};

use crate::transport::response::Body;
use crate::transport::rotation::{Flow, TURN};
use crate::transport::slices;

/// Puts a tag on a document, or says that the client has it.
pub(crate) async fn answer(
    headers: &HeaderMap,
    flow: &Flow,
    response: Response<Body>,
) -> Response<Body> {
    let (mut parts, body) = response.into_parts();
    let bytes = body.collect().await.unwrap_or_else(|never| match never {}).to_bytes();
    let document = bytes.clone();
    let tag = match document.len() > TURN {
        true => flow.work(move || tag(&document)).await,
        false => tag(&document),
    };
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
    Response::from_parts(parts, slices::body(bytes))
}

fn tag(document: &[u8]) -> String {
    let mut hasher = DefaultHasher::new();
    document.hash(&mut hasher);
    format!("\"{:016X}\"", hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::user::User;
    use crate::transport::rotation::Rotation;

    #[tokio::test]
    async fn who_has_it_need_not_read_it() {
        let document = |text: &'static str| Response::new(Full::from(text).boxed_unsync());
        let flow = Rotation::new(1).of(&User::component());
        let first = answer(&HeaderMap::new(), &flow, document("a")).await;
        let tag = first.headers()[ETAG].clone();
        let headers: HeaderMap = [(IF_NONE_MATCH, tag)].into_iter().collect();
        for (text, code) in [("a", StatusCode::NOT_MODIFIED), ("b", StatusCode::OK)] {
            assert_eq!(answer(&headers, &flow, document(text)).await.status(), code, "{text}");
        }
    }
}
