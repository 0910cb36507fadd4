//! The service below `kube::Client`: sends each request to one of the servers, and to another one if that is of
//! use.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures::stream;
use http::header::{HOST, RETRY_AFTER};
use http::request::Parts;
use http::uri::{Authority, Scheme, Uri};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Body as _, Incoming};
use kube::client::Body;
use tokio::task::spawn_blocking;
use tokio::time;
use tower::Service;
use tracing::{debug, info, warn};

use super::Server;
use super::archive::{Archive, LONGEST_ANSWER, Question};
use super::choice::Choice;
use super::known::{Answer, AnswerBody, BoxedError, Servers};
use super::link::{End, Link, Linking, Patience, Tls, described, link, single};

/// How often a node that is offline looks for a server.
const LOOK: Duration = Duration::from_millis(500);
/// So many requests share a connection, watches included. Servers allow 100 and more; who has others waits for none.
const SHARE: usize = 64;

/// Sends each request to one of the servers.
#[derive(Clone)]
pub(super) struct Balancer(Arc<Shared>);

impl Balancer {
    pub(super) fn new(servers: Arc<Servers>, tls: Tls, archive: Option<Arc<Archive>>) -> Self {
        let (begin, state) = (Instant::now(), Mutex::default());
        Self(Arc::new(Shared { servers, tls, archive, begin, state }))
    }
}

struct Shared {
    servers: Arc<Servers>,
    tls: Tls,
    archive: Option<Arc<Archive>>,
    begin: Instant,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    choice: Choice,
    links: BTreeMap<(Server, usize), Shareable>,
    /// The server of which the log has said that requests go there.
    named: Option<Server>,
}

/// A connection, and who uses it: each request, until its answer has ended, holds one of these.
#[derive(Clone)]
struct Shareable {
    linking: Linking,
    users: Arc<()>,
    /// We need it no more: its end says nothing about the server.
    given_up: Arc<AtomicBool>,
}

impl Shareable {
    fn count(&self) -> usize {
        Arc::strong_count(&self.users) - 1
    }
}

/// Why a request has no answer.
struct Failure {
    error: BoxedError,
    /// The server has not seen it.
    is_unsent: bool,
}

impl Service<Request<Body>> for Balancer {
    type Response = Answer;
    type Error = BoxedError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxedError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxedError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.0.clone().answer(request))
    }
}

impl Shared {
    /// The answer of a server or, if there is none, what was answered before.
    async fn answer(self: Arc<Self>, request: Request<Body>) -> Result<Answer, BoxedError> {
        let is_question = request.method() == Method::GET;
        let question = self.archive.as_ref().filter(|_| is_question);
        let question =
            question.and_then(|archive| Some((archive.clone(), Question::of(request.uri())?)));
        let Some((archive, question)) = question else { return self.send(request).await };
        if self.servers.is_offline()
            && let Some(known) = archive.recall(&question)
        {
            return Ok(self.servers.tell(&question, known));
        }
        match self.clone().send(request).await {
            Ok(answer) if !cannot_work(&answer) => Ok(keep(archive, question, answer).await),
            outcome => match archive.recall(&question) {
                Some(known) => {
                    self.go_offline(&archive);
                    Ok(self.servers.tell(&question, known))
                }
                None => outcome,
            },
        }
    }

    /// From now on nobody waits for servers, until one says that it is ready.
    fn go_offline(self: &Arc<Self>, archive: &Archive) {
        if !self.servers.goes_offline(archive.state_of()) {
            return;
        }
        let shared = self.clone();
        tokio::spawn(async move {
            loop {
                time::sleep(LOOK).await;
                let request = Request::get("/readyz").body(Body::empty());
                let Ok(request) = request else { return };
                if shared
                    .clone()
                    .send(request)
                    .await
                    .is_ok_and(|answer| answer.status().is_success())
                {
                    return shared.servers.is_back();
                }
            }
        });
    }

    /// Asks one server after the other until one answers.
    async fn send(self: Arc<Self>, request: Request<Body>) -> Result<Answer, BoxedError> {
        let (parts, body) = request.into_parts();
        let (mut body, mut tried) = (Some(body), Vec::new());
        let mut outcome = Err("no API server is known".into());
        while let Some(server) = self.choose(&tried) {
            let Some(own) = body.take() else { break };
            body = own.try_clone();
            match self.ask(&server, addressed(&parts, own, &server)?).await {
                Ok(answer) => {
                    let is_good = !cannot_work(&answer);
                    outcome = Ok(answer);
                    if is_good {
                        self.worked(&server);
                        break;
                    }
                    self.failed(&server, "it cannot work at the moment");
                }
                Err(Failure { error, is_unsent }) => {
                    self.failed(&server, &described(&*error));
                    outcome = Err(error);
                    // Who asks may ask anybody; who changes something must not do it twice.
                    if !is_unsent && !matches!(parts.method, Method::GET | Method::HEAD) {
                        break;
                    }
                }
            }
            tried.push(server);
        }
        outcome
    }

    /// Asks one server. A connection that turns out to be over is made anew, once.
    async fn ask(
        self: &Arc<Self>,
        server: &Server,
        mut request: Request<Body>,
    ) -> Result<Answer, Failure> {
        let unsent = |error: BoxedError| Failure { error, is_unsent: true };
        for is_last in [false, true] {
            let Shareable { linking, users, .. } = self.link_to(server);
            let link = linking.await.map_err(|error| unsent(Box::new(error)))?;
            let Link::Shared(mut sender) = link else { break };
            if let Err(error) = sender.ready().await {
                if is_last {
                    return Err(unsent(error.into()));
                }
                self.forget(&users);
                continue;
            }
            match sender.try_send_request(request).await {
                Ok(answer) => return Ok(received(answer, users)),
                Err(mut refused) => match refused.take_message() {
                    Some(back) if !is_last => {
                        request = back;
                        self.forget(&users);
                    }
                    back => {
                        let error = refused.into_error().into();
                        return Err(Failure { error, is_unsent: back.is_some() });
                    }
                },
            }
        }
        let sender = single(server, &self.tls, self.patience()).await;
        let mut sender = sender.map_err(|error| unsent(error.into()))?;
        let asked = sender.try_send_request(with_host(request, server)).await;
        asked.map(|answer| received(answer, Arc::default())).map_err(|mut refused| Failure {
            is_unsent: refused.take_message().is_some(),
            error: refused.into_error().into(),
        })
    }

    /// Nobody begins anything on this connection any more.
    fn forget(&self, users: &Arc<()>) {
        self.lock().links.retain(|_, present| !Arc::ptr_eq(&present.users, users));
    }

    /// A connection to a server that has room, and may have to be made first.
    fn link_to(self: &Arc<Self>, server: &Server) -> Shareable {
        let mut state = self.lock();
        let mut number = 0;
        loop {
            let place = (server.clone(), number);
            match state.links.get(&place).filter(|present| !is_over(&present.linking)) {
                Some(full) if full.count() >= SHARE => number += 1,
                Some(present) => return present.clone(),
                None => {
                    let made = self.begin_link(server);
                    state.links.insert(place, made.clone());
                    return made;
                }
            }
        }
    }

    fn begin_link(self: &Arc<Self>, server: &Server) -> Shareable {
        let (shared, own) = (Arc::downgrade(self), server.clone());
        let given_up = Arc::new(AtomicBool::new(false));
        let is_given_up = given_up.clone();
        let ended = move |end| match (shared.upgrade(), end) {
            (Some(shared), _) if is_given_up.load(Ordering::Relaxed) => drop(shared),
            (Some(shared), End::Farewell) => shared.sent_away(&own),
            (Some(shared), End::Broken(why)) => shared.failed(&own, &why),
            (None, _) => {}
        };
        let linking = link(server.clone(), self.tls.clone(), self.patience(), ended);
        Shareable { linking, users: Arc::default(), given_up }
    }

    fn patience(&self) -> Patience {
        let is_alone = self.servers.all().len() < 2;
        match &self.archive {
            _ if !is_alone => Patience::SHORT,
            Some(archive) if archive.is_of_use() => Patience::WITH_ARCHIVE,
            _ => Patience::LONG,
        }
    }

    fn choose(&self, tried: &[Server]) -> Option<Server> {
        let known = self.servers.all();
        let now = self.begin.elapsed();
        let mut state = self.lock();
        let chosen = state.choice.choose(&known, tried, (now, chance()))?;
        // Whom we do not ask, we need not ping.
        state.links.retain(|(server, number), link| {
            let is_in_use = link.count() > 0 || *server == chosen && *number == 0;
            link.given_up.store(!is_in_use, Ordering::Relaxed);
            is_in_use && !is_over(&link.linking)
        });
        Some(chosen)
    }

    fn worked(&self, server: &Server) {
        let is_alone = self.servers.all().len() < 2;
        let mut state = self.lock();
        state.choice.worked(server);
        if !is_alone && state.named.as_ref() != Some(server) {
            info!(%server, "requests go to this API server");
            state.named = Some(server.clone());
        }
    }

    fn failed(&self, server: &Server, why: &str) {
        let now = self.begin.elapsed();
        let is_with_it = self.lock().choice.failed(server, now);
        match is_with_it && self.servers.all().len() > 1 {
            true => warn!(%server, why, "an API server fails; requests go to another one"),
            false => debug!(%server, why, "an API server fails"),
        }
    }

    fn sent_away(&self, server: &Server) {
        let now = self.begin.elapsed();
        self.lock().choice.sent_us_away(server, now);
        debug!(%server, "an API server has sent us away");
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The answer, which uses its connection until it has ended.
fn received(answer: Response<Incoming>, users: Arc<()>) -> Answer {
    answer.map(|body| {
        let body = body.map_err(move |error| {
            let _held = &users;
            error.into()
        });
        body.boxed_unsync()
    })
}

/// The answer, which the archive keeps, too.
async fn keep(archive: Arc<Archive>, question: Question, answer: Answer) -> Answer {
    if !answer.status().is_success() {
        return answer;
    }
    if question.is_watch {
        let Some(following) = archive.follow(&question) else { return answer };
        return answer.map(|body| {
            let told = body.map_frame(move |frame| {
                if let Some(data) = frame.data_ref() {
                    following.take(data);
                }
                frame
            });
            told.boxed_unsync()
        });
    }
    let size = answer.body().size_hint().exact().and_then(|size| usize::try_from(size).ok());
    if size.is_none_or(|size| size > LONGEST_ANSWER) {
        return answer;
    }
    let (parts, body) = answer.into_parts();
    let body: AnswerBody = match body.collect().await {
        Ok(all) => {
            let bytes = all.to_bytes();
            let kept = bytes.clone();
            let _ = spawn_blocking(move || archive.store(&question, &kept)).await;
            Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
        }
        Err(error) => StreamBody::new(stream::iter([Err(error)])).boxed_unsync(),
    };
    Response::from_parts(parts, body)
}

/// Whether a connection that was made can be used no more.
fn is_over(linking: &Linking) -> bool {
    linking.peek().is_some_and(|made| made.as_ref().map_or(true, Link::is_over))
}

/// A server that says so has done nothing, and others may be able to.
fn cannot_work(answer: &Answer) -> bool {
    answer.status() == StatusCode::SERVICE_UNAVAILABLE && answer.headers().contains_key(RETRY_AFTER)
}

/// The request, to a server.
fn addressed(parts: &Parts, body: Body, server: &Server) -> Result<Request<Body>, BoxedError> {
    let mut request = Request::new(body);
    *request.method_mut() = parts.method.clone();
    *request.headers_mut() = parts.headers.clone();
    let mut uri = parts.uri.clone().into_parts();
    uri.scheme = Some(Scheme::HTTPS);
    uri.authority = Some(Authority::try_from(server.authority())?);
    *request.uri_mut() = Uri::from_parts(uri)?;
    Ok(request)
}

/// The same as HTTP/1 says it.
fn with_host(mut request: Request<Body>, server: &Server) -> Request<Body> {
    if let Ok(host) = server.authority().parse() {
        request.headers_mut().insert(HOST, host);
    }
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    if let Ok(uri) = path.parse() {
        *request.uri_mut() = uri;
    }
    request
}

fn chance() -> u32 {
    let mut chance = [0; 4];
    // Without chance all go to the first one, which is no harm.
    let _ = aws_lc_rs::rand::fill(&mut chance);
    u32::from_le_bytes(chance)
}
