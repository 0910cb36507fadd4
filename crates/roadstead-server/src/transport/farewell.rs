//! How a server takes its leave: nobody who has asked for something goes without an answer, and not all
//! clients come to the other servers at the same moment.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http_body::Frame;
use http_body_util::BodyExt;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use crate::transport::response::Body;

/// So many clients a second are sent to the other servers, if that does not take too long.
const A_SECOND: u32 = 500;
const LONGEST_SPREAD: Duration = Duration::from_secs(5);
/// How long what clients have asked for may take, if they have somewhere to go afterwards.
const GRACE: Duration = Duration::from_secs(10);
/// And if this is the only server: they come back to it, the sooner the better.
const GRACE_ALONE: Duration = Duration::from_millis(300);
/// A client of HTTP/1 hears of it with its next answer. One that asks for nothing for so long is not waited for.
const IDLE: Duration = Duration::from_millis(500);

/// The order of events after a server was asked to stop, when `/readyz` fails already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Farewell {
    /// So long everything goes on, for load balancers that ask now and then.
    pub(crate) delay: Duration,
    /// Then clients are sent away, one after the other, over this time. New ones still get an answer.
    pub(crate) spread: Duration,
    /// What a client has asked for may take so long from the moment when it was sent away.
    pub(crate) grace: Duration,
    /// How much of that is for clients who can only be told with an answer.
    pub(crate) idle: Duration,
}

impl Farewell {
    /// How to leave, with so many connections, whether or not there are other servers.
    pub(crate) fn plan(others: bool, delay: Duration, connections: usize) -> Self {
        if !others {
            let (spread, idle) = (Duration::ZERO, Duration::ZERO);
            return Self { delay, spread, grace: GRACE_ALONE, idle };
        }
        let connections = u32::try_from(connections).unwrap_or(u32::MAX);
        let spread = Duration::from_secs(1).saturating_mul(connections) / A_SECOND;
        Self { delay, spread: spread.min(LONGEST_SPREAD), grace: GRACE, idle: IDLE }
    }

    /// When a connection is told, from the beginning of the spread: whatever their numbers, few are told at the
    /// same moment.
    pub(crate) fn turn(&self, number: u32) -> Duration {
        // The golden section: each number is far from those shortly before it.
        let place = number.wrapping_mul(0x9E37_79B9);
        self.spread.mul_f64(f64::from(place) / f64::from(u32::MAX))
    }
}

/// Marks an answer that has no end of its own, such as a watch: it ends when its client is sent away, and the
/// client goes on elsewhere.
#[derive(Clone, Copy)]
pub(crate) struct Endless;

/// The answer, which ends properly when the client is sent away if it would not end otherwise.
pub(crate) fn ending(response: Response<Body>, leaves: &Arc<CancellationToken>) -> Response<Body> {
    match response.extensions().get::<Endless>() {
        None => response,
        Some(_) => response.map(|body| {
            let left = Box::pin(CancellationToken::clone(leaves).cancelled_owned());
            Ending { body, left }.boxed_unsync()
        }),
    }
}

struct Ending {
    body: Body,
    left: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl http_body::Body for Ending {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        // What is there to be told is told first, so that the client goes on from there.
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            return Poll::Ready(frame);
        }
        ready!(self.left.as_mut().poll(context));
        Poll::Ready(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_servers_leave() {
        let seconds = Duration::from_secs;
        // Others, the operator's delay, connections; spread and grace in milliseconds.
        for (others, delay, connections, want) in [
            (false, 0, 100, (0, 300)),
            (false, 5, 100, (0, 300)),
            (true, 0, 0, (0, 10_000)),
            (true, 0, 5, (10, 10_000)),
            (true, 3, 1000, (2000, 10_000)),
            (true, 0, 1_000_000, (5000, 10_000)),
        ] {
            let plan = Farewell::plan(others, seconds(delay), connections);
            let found = (plan.spread.as_millis(), plan.grace.as_millis());
            assert_eq!(found, want, "{others} {delay} {connections}");
            assert_eq!(plan.delay, seconds(delay));
        }
    }

    #[test]
    fn clients_leave_one_after_the_other() {
        let plan = Farewell::plan(true, Duration::ZERO, 2000);
        let mut turns: Vec<_> = (0..2000).map(|number| plan.turn(number)).collect();
        turns.sort();
        assert!(turns[0] < Duration::from_millis(10) && turns[1999] <= plan.spread);
        let gaps = turns.windows(2).map(|pair| pair[1] - pair[0]);
        let widest = gaps.max().unwrap();
        assert!(widest < Duration::from_millis(10), "{widest:?}");
    }

    #[tokio::test]
    async fn endless_answers_end_after_what_is_to_be_told() {
        let leaves = Arc::new(CancellationToken::new());
        let lines = futures::stream::iter([Ok(Frame::data(Bytes::from_static(b"line")))]);
        let lines = futures::StreamExt::chain(lines, futures::stream::pending());
        let mut watch =
            Response::new(BodyExt::boxed_unsync(http_body_util::StreamBody::new(lines)));
        watch.extensions_mut().insert(Endless);
        leaves.cancel();
        let told = ending(watch, &leaves).into_body().collect().await.unwrap().to_bytes();
        assert_eq!(told, "line");
    }
}
