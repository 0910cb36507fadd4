//! A call in which both sides say something as long as they like.

use std::marker::PhantomData;

use bytes::{Bytes, BytesMut};
use http::Response;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use prost::Message;
use tokio::sync::mpsc;

use crate::frame;
use crate::status::{Code, Status};

/// The answers as they come. The call ends when this is dropped.
#[derive(Debug)]
pub struct Conversation<A> {
    body: Incoming,
    /// What has come of the next answers.
    bytes: BytesMut,
    longest: usize,
    status: Option<Result<(), Status>>,
    more: mpsc::Sender<Bytes>,
    answer: PhantomData<fn() -> A>,
}

impl<A: Message + Default> Conversation<A> {
    pub(crate) fn new(
        response: Response<Incoming>,
        more: mpsc::Sender<Bytes>,
        longest: usize,
    ) -> Self {
        let status = Status::of(response.headers());
        let (body, bytes) = (response.into_body(), BytesMut::new());
        Self { body, bytes, longest, status, more, answer: PhantomData }
    }

    /// Says something more.
    pub async fn say(&self, question: &impl Message) -> Result<(), Status> {
        let gone = |_| Status::new(Code::Unavailable, "the conversation is over");
        self.more.send(frame::encode(question)).await.map_err(gone)
    }

    /// The next answer. Safe to drop at any moment: nothing is skipped. The end is an error, too: of
    /// whoever hung up, or [`Code::Canceled`] if the service has nothing more to say.
    pub async fn next(&mut self) -> Result<A, Status> {
        loop {
            if let Some(message) = frame::take(&mut self.bytes, self.longest)? {
                return frame::message(message);
            }
            let Some(frame) = self.body.frame().await else {
                let over = || Status::new(Code::Canceled, "the service has ended the conversation");
                return Err(self.status.take().and_then(Result::err).unwrap_or_else(over));
            };
            let frame = frame.map_err(Status::unavailable)?;
            if let Some(data) = frame.data_ref() {
                self.bytes.extend_from_slice(data);
            }
            self.status = frame.trailers_ref().and_then(Status::of).or(self.status.take());
        }
    }
}
