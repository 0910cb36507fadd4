//! What is sent in a call: one question, or some with time between them.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame};
use tokio::sync::mpsc;

/// How many questions may wait until the peer takes them.
const WAITING: usize = 4;

/// The body of a call.
#[derive(Debug)]
pub(crate) struct Questions {
    first: Option<Bytes>,
    /// `None`: there is only one. It ends when the sender is gone.
    more: Option<mpsc::Receiver<Bytes>>,
}

impl Questions {
    pub(crate) fn one(question: Bytes) -> Self {
        Self { first: Some(question), more: None }
    }

    /// The first, and others whenever they come.
    pub(crate) fn several(first: Bytes) -> (Self, mpsc::Sender<Bytes>) {
        let (sender, more) = mpsc::channel(WAITING);
        (Self { first: Some(first), more: Some(more) }, sender)
    }
}

impl Body for Questions {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        let Some(more) = &mut self.more else { return Poll::Ready(None) };
        more.poll_recv(context).map(|question| question.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_none() && self.more.is_none()
    }
}
