//! A connection to a service, made when it is needed and again when it has gone.

use std::io;
use std::path::Path;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::sync::{Mutex, mpsc};
use tokio::time;

use crate::conversation::Conversation;
use crate::frame;
use crate::questions::Questions;
use crate::service_address::ServiceAddress;
use crate::status::{Code, Status};

/// No answer is longer, as with others' clients.
const LONGEST: usize = 16 << 20;
/// How much of an answer may be on its way, so that a long one does not wait for us at every step.
const WINDOW: u32 = 4 << 20;

/// Asks a service.
#[derive(Debug)]
pub struct GrpcChannel {
    target: ServiceAddress,
    longest: usize,
    /// `None` before the first question. All questions share one connection.
    connection: Mutex<Option<SendRequest<Questions>>>,
}

impl GrpcChannel {
    /// To a socket of the file system. Does not connect yet.
    pub fn new(socket: &Path) -> Self {
        Self::to(ServiceAddress::Socket(socket.to_owned()), LONGEST)
    }

    /// To anywhere, where no answer may have more bytes than that. Does not connect yet.
    pub fn to(target: ServiceAddress, longest: usize) -> Self {
        Self { target, longest, connection: Mutex::new(None) }
    }

    /// Connects if need be. If this fails, nothing was asked.
    pub async fn connect(&self, limit: Duration) -> Result<(), Status> {
        let late = || Status::new(Code::Unavailable, format!("{}: no answer", self.target));
        time::timeout(limit, self.connected()).await.map_err(|_| late())?.map(|_| ())
    }

    /// Forgets the connection: the next question makes another one.
    pub async fn forget(&self) {
        *self.connection.lock().await = None;
    }

    /// Asks one question, such as `/runtime.v1.RuntimeService/Version`, and waits that long for the answer.
    pub async fn call<A: Message + Default>(
        &self,
        method: &str,
        question: &impl Message,
        limit: Duration,
    ) -> Result<A, Status> {
        let body = frame::encode(question);
        let late = || format!("no answer to {method} within {limit:?}");
        match time::timeout(limit, self.ask(method, body)).await {
            Ok(answer) => frame::decode(answer?),
            Err(_) => Err(Status::new(Code::DeadlineExceeded, late())),
        }
    }

    /// Begins a conversation with a first question, if the service answers at all within the limit.
    pub async fn converse<A: Message + Default>(
        &self,
        method: &str,
        first: &impl Message,
        limit: Duration,
    ) -> Result<Conversation<A>, Status> {
        let (questions, more) = Questions::several(frame::encode(first));
        let late = || format!("no answer to {method} within {limit:?}");
        match time::timeout(limit, self.send(method, questions)).await {
            Ok(answer) => Ok(Conversation::new(answer?, more, self.longest)),
            Err(_) => Err(Status::new(Code::DeadlineExceeded, late())),
        }
    }

    /// Asks one question that is answered in many pieces, if the service begins to answer within the limit.
    pub async fn listen<A: Message + Default>(
        &self,
        method: &str,
        question: &impl Message,
        limit: Duration,
    ) -> Result<Conversation<A>, Status> {
        let body = Questions::one(frame::encode(question));
        let late = || format!("no answer to {method} within {limit:?}");
        match time::timeout(limit, self.send(method, body)).await {
            // Nobody listens to what might be said besides.
            Ok(answer) => Ok(Conversation::new(answer?, mpsc::channel(1).0, self.longest)),
            Err(_) => Err(Status::new(Code::DeadlineExceeded, late())),
        }
    }

    async fn ask(&self, method: &str, body: Bytes) -> Result<Bytes, Status> {
        // Whoever does not want the answer any more drops this, and the peer is told.
        read(self.send(method, Questions::one(body)).await?, self.longest).await
    }

    async fn send(&self, method: &str, body: Questions) -> Result<Response<Incoming>, Status> {
        let mut connection = self.connected().await?;
        let request = Request::post(format!("{}{method}", self.target.origin()))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(body)
            .map_err(|error| Status::new(Code::Internal, error.to_string()))?;
        connection.send_request(request).await.map_err(Status::unavailable)
    }

    async fn connected(&self) -> Result<SendRequest<Questions>, Status> {
        let mut kept = self.connection.lock().await;
        if let Some(connection) = kept.as_ref().filter(|connection| !connection.is_closed()) {
            return Ok(connection.clone());
        }
        let failed =
            |error: io::Error| Status::new(Code::Unavailable, format!("{}: {error}", self.target));
        let stream = self.target.dial().await.map_err(failed)?;
        let mut builder = Builder::new(TokioExecutor::new());
        builder.initial_stream_window_size(WINDOW).initial_connection_window_size(WINDOW);
        let made = builder.handshake(TokioIo::new(stream)).await;
        let (connection, driver) = made.map_err(Status::unavailable)?;
        // It ends with the last of those who ask, or with the peer.
        tokio::spawn(async move {
            let _ = driver.await;
        });
        *kept = Some(connection.clone());
        Ok(connection)
    }
}

/// The bytes of the answer, if it says at its end that it is one.
async fn read(response: Response<Incoming>, longest: usize) -> Result<Bytes, Status> {
    let mut status = Status::of(response.headers());
    let http = response.status();
    let mut body = response.into_body();
    let mut bytes = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(Status::unavailable)?;
        if let Some(data) = frame.data_ref() {
            if bytes.len() + data.len() > longest {
                return Err(Status::too_long());
            }
            bytes.extend_from_slice(data);
        }
        status = frame.trailers_ref().and_then(Status::of).or(status);
    }
    let silent = || Status::new(Code::Unknown, format!("the answer says {http}, and no more"));
    status.unwrap_or_else(|| Err(silent())).map(|()| bytes.freeze())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    use futures::stream;
    use http::HeaderMap;
    use http_body_util::StreamBody;
    use hyper::body::Frame;
    use hyper::service::service_fn;
    use tokio::net::UnixListener;

    /// Answers every question with what was asked, or refuses, as the method says; one connection after the
    /// other, each for so many questions.
    async fn serve(listener: UnixListener) {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let answer = service_fn(|request: Request<Incoming>| async move {
                let refused = request.uri().path() == "/refuse";
                if request.uri().path() == "/wait" {
                    time::sleep(Duration::from_secs(60)).await;
                }
                let asked = request.into_body().collect().await.unwrap().to_bytes();
                let mut trailers = HeaderMap::new();
                trailers.insert("grpc-status", if refused { "12" } else { "0" }.parse().unwrap());
                trailers.insert("grpc-message", "not%20here".parse().unwrap());
                let frames = [Frame::data(asked), Frame::trailers(trailers)];
                let body = StreamBody::new(stream::iter(frames.map(Ok::<_, Infallible>)));
                Ok::<_, Infallible>(Response::new(body))
            });
            let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            let served = server.serve_connection(TokioIo::new(stream), answer);
            // The peer that is asked to be gone is.
            let _ = time::timeout(Duration::from_millis(300), served).await;
        }
    }

    #[tokio::test]
    async fn questions_and_answers() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("socket");
        let channel = GrpcChannel::new(&socket);
        let limit = Duration::from_secs(20);
        let question = "what?".to_owned();
        let ask = async |method: &str, limit| {
            let answer: Result<String, Status> = channel.call(method, &question, limit).await;
            answer
        };
        let nobody = ask("/repeat", limit).await.unwrap_err();
        assert_eq!(nobody.code, Code::Unavailable, "{nobody}");
        let server = tokio::spawn(serve(UnixListener::bind(&socket).unwrap()));
        assert_eq!(ask("/repeat", limit).await.as_deref(), Ok("what?"));
        let refused = ask("/refuse", limit).await.unwrap_err();
        assert_eq!(refused.to_string(), "rpc error: code = Unimplemented desc = not here");
        let late = ask("/wait", Duration::from_millis(50)).await.unwrap_err();
        assert_eq!(late.code, Code::DeadlineExceeded);
        // The peer goes, and comes again.
        for _ in 0..100 {
            time::sleep(Duration::from_millis(50)).await;
            if channel.connection.lock().await.as_ref().is_none_or(SendRequest::is_closed) {
                break;
            }
        }
        assert_eq!(ask("/repeat", limit).await.as_deref(), Ok("what?"));
        server.abort();
    }
}
