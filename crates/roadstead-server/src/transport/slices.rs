//! A long answer that is there already, sent slice by slice: others get their turn in between.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use http_body_util::{BodyExt, Full};

use crate::transport::response::Body;
use crate::transport::rotation::TURN;

/// Bytes as a body.
pub(crate) fn body(bytes: Bytes) -> Body {
    match bytes.len() > TURN {
        true => Slices { bytes, rests: false }.boxed_unsync(),
        false => Full::new(bytes).boxed_unsync(),
    }
}

struct Slices {
    bytes: Bytes,
    /// Whether it is somebody else's turn.
    rests: bool,
}

impl http_body::Body for Slices {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.bytes.is_empty() {
            return Poll::Ready(None);
        }
        self.rests = !self.rests;
        if !self.rests {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let size = self.bytes.len().min(TURN);
        Poll::Ready(Some(Ok(Frame::data(self.bytes.split_to(size)))))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.len() as u64)
    }
}

#[tokio::test]
async fn slices_are_the_whole() {
    for size in [0, 1, TURN, TURN + 1, 3 * TURN] {
        let bytes: Bytes = (0..size).map(|number| (number % 251) as u8).collect();
        let sliced = body(bytes.clone());
        assert_eq!(http_body::Body::size_hint(&sliced).exact(), Some(size as u64));
        assert_eq!(sliced.collect().await.unwrap().to_bytes(), bytes);
    }
}
