//! Reading the body of a request from a client that may be slow, greedy or gone.
//!
//! A request whose body is on its way takes no place among those under way, so that clients who send
//! slowly keep nobody out; and all bodies together are bounded, so that many who send much
//! cannot fill the memory.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty};
use tokio::time;

use crate::error::ApiError;
use crate::request::body::LIMIT;

/// How much all bodies that are being read may take together.
const TOGETHER: usize = 64 << 20;

/// How long clients may take.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// For the handshake, for the headers, and between two pieces of a body.
    pub silence: Duration,
    /// For a whole body.
    pub body: Duration,
    /// Before a client that does not read what we send is cut.
    pub unread: Duration,
    /// Before a client of whom nobody knows who it is, and who asks for nothing, is sent away.
    pub stranger: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self { silence: seconds(10), body: seconds(60), unread: seconds(60), stranger: seconds(60) }
    }
}

/// What may still come of a refused request is taken from the line up to this size, so that its sender
/// hears the refusal.
const DISCARDED: usize = 256 << 10;

/// The body of a request, before anybody reads it.
pub(crate) type RequestBody = UnsyncBoxBody<Bytes, Box<dyn std::error::Error + Send + Sync>>;

/// A body of any kind; one that is empty takes no room.
pub(crate) fn boxed<B>(body: B) -> RequestBody
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    match body.is_end_stream() {
        true => Empty::new().map_err(|never| match never {}).boxed_unsync(),
        false => body.map_err(Into::into).boxed_unsync(),
    }
}

/// Reads what comes, up to a bound, and forgets it.
pub(crate) async fn discard(mut body: RequestBody, timeouts: Timeouts) {
    let mut size = 0;
    let end = time::Instant::now() + timeouts.silence;
    while size <= DISCARDED {
        let Ok(Some(Ok(frame))) = time::timeout_at(end, body.frame()).await else { return };
        size += frame.data_ref().map_or(0, Bytes::len);
    }
}

/// How much the bodies that are being read take.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bodies(Arc<AtomicUsize>);

/// A body, and its share of what all bodies may take.
#[derive(Debug, Default)]
pub(crate) struct Received {
    /// The content.
    pub(crate) bytes: Bytes,
    _share: Share,
}

#[derive(Debug, Default)]
struct Share {
    all: Bodies,
    size: usize,
}

impl Share {
    fn grow(&mut self, size: usize) -> Result<(), ApiError> {
        self.size += size;
        let before = self.all.0.fetch_add(size, Ordering::Relaxed);
        if before + size > TOGETHER {
            let why = "too many large requests are being received, please try again later";
            return Err(ApiError::too_many_requests(why, 1));
        }
        Ok(())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.all.0.fetch_sub(self.size, Ordering::Relaxed);
    }
}

impl Bodies {
    /// Reads a body to its end.
    pub(crate) async fn receive<B>(&self, body: B, timeouts: Timeouts) -> Result<Received, ApiError>
    where
        B: http_body::Body<Data = Bytes> + Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let mut body = pin!(body);
        let mut pieces = Pieces::default();
        let mut share = Share { all: self.clone(), size: 0 };
        let mut size = 0;
        let end = time::Instant::now() + timeouts.body;
        loop {
            let limit = end.min(time::Instant::now() + timeouts.silence);
            let frame = time::timeout_at(limit, body.frame()).await;
            let Some(frame) = frame.map_err(|_| ApiError::timeout())? else { break };
            let frame = frame.map_err(|error| {
                let error = error.into();
                ApiError::bad_request(format!("the body could not be read: {error}"))
            })?;
            let Ok(data) = frame.into_data() else { continue };
            size += data.len();
            match size {
                _ if size <= LIMIT => {
                    share.grow(data.len())?;
                    pieces.push(data);
                }
                // A client that is still sending would not hear the answer: let it finish, if it
                // does so in reasonable time.
                _ if size <= 8 * LIMIT => pieces = Pieces::default(),
                _ => break,
            }
        }
        match size > LIMIT {
            true => Err(ApiError::too_large(LIMIT)),
            false => Ok(Received { bytes: pieces.into_bytes(), _share: share }),
        }
    }
}

/// What has been read of a body: most come in one piece, which is not copied.
#[derive(Default)]
struct Pieces {
    first: Bytes,
    all: BytesMut,
}

impl Pieces {
    fn push(&mut self, data: Bytes) {
        if self.first.is_empty() && self.all.is_empty() {
            self.first = data;
            return;
        }
        self.all.extend_from_slice(&std::mem::take(&mut self.first));
        self.all.extend_from_slice(&data);
    }

    fn into_bytes(self) -> Bytes {
        if self.all.is_empty() { self.first } else { self.all.freeze() }
    }
}

#[cfg(test)]
mod tests {
    use futures::{StreamExt, stream};
    use http_body::Frame;
    use http_body_util::StreamBody;

    use super::*;

    /// A body of pieces of this size, each after a pause.
    fn pieces(
        count: usize,
        size: usize,
        pause: Duration,
    ) -> impl http_body::Body<Data = Bytes, Error = std::io::Error> + Send {
        let pieces = stream::iter(0..count).then(move |_| async move {
            time::sleep(pause).await;
            Ok(Frame::data(Bytes::from(vec![0; size])))
        });
        StreamBody::new(pieces)
    }

    #[tokio::test(start_paused = true)]
    async fn slow_and_large_bodies() {
        let second = Duration::from_secs(1);
        // Number of pieces, their size, the pause before each, what comes of it.
        let cases = [
            ("nothing", 0, 0, second, "0 bytes"),
            ("small", 3, 10, second, "30 bytes"),
            ("just right", 3, 1 << 20, second, "3145728 bytes"),
            ("too large", 4, 1 << 20, second, "413 RequestEntityTooLarge"),
            ("endless", 1 << 20, 1 << 20, Duration::ZERO, "413 RequestEntityTooLarge"),
            ("silent", 3, 1, 11 * second, "504 Timeout"),
            ("a byte at a time", 100, 1, 9 * second, "504 Timeout"),
        ];
        let bodies = Bodies::default();
        for (name, count, size, pause, want) in cases {
            let received = bodies.receive(pieces(count, size, pause), Timeouts::default()).await;
            let got = match received {
                Ok(received) => format!("{} bytes", received.bytes.len()),
                Err(error) => format!("{} {}", error.code.as_u16(), error.reason),
            };
            assert_eq!(got, want, "{name}");
            assert_eq!(bodies.0.load(Ordering::Relaxed), 0, "{name}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn all_together_are_bounded() {
        let bodies = Bodies::default();
        let receive = || {
            let body = pieces(3, 1 << 20, Duration::from_secs(1));
            bodies.receive(body, Timeouts::default())
        };
        let results = futures::future::join_all((0..30).map(|_| receive())).await;
        let refused = results.iter().filter_map(|result| result.as_ref().err()).count();
        assert!((1..=10).contains(&refused), "{refused} of 30 were refused");
        drop(results);
        assert!(receive().await.is_ok());
    }
}
