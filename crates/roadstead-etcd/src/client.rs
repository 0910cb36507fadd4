//! Asking a cluster: whichever of its members answers.
//!
//! Reads are asked again, of somebody else, until a deadline. Writes are attempted once: whether an
//! attempt that failed may be made again, only its author knows, who is told whether it may have been
//! carried out ([`Failure`]).

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prost::Message;
use roadstead_grpc::conversation::Conversation;
use roadstead_grpc::status::{Code, Status};
use rustls::ClientConfig;
use tokio::time::{self, Instant};

use crate::failure::Failure;
use crate::member::{Lane, Member};
use crate::member_url::MemberUrl;
use crate::messages::{
    CompactionRequest, HeaderResponse, LeaseGrantRequest, LeaseRequest, LeaseResponse,
    RangeRequest, RangeResponse, TxnRequest, TxnResponse, WatchCreate, WatchRequest, WatchResponse,
};
use crate::pace::Pace;

/// Between two attempts when all members have failed.
const BREATH: Duration = Duration::from_millis(50);
/// How long the beginning of a watch may take.
const OPENING: Duration = Duration::from_secs(2);
/// What may take long: compactions, pages.
const LONG: Duration = Duration::from_secs(10);

/// A cluster.
#[derive(Debug)]
pub struct Client {
    pub(crate) members: Vec<Member>,
    /// The member that is asked first.
    preferred: AtomicUsize,
    pace: Mutex<Pace>,
}

/// Where it is.
impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<_> = self.members.iter().map(ToString::to_string).collect();
        f.write_str(&all.join(", "))
    }
}

/// Changes of keys as they happen.
#[derive(Debug)]
pub struct Watch(Conversation<WatchResponse>);

impl Watch {
    /// What happened next. Safe to drop at any moment.
    pub async fn next(&mut self) -> Result<WatchResponse, Failure> {
        self.0.next().await.map_err(|status| Failure::of(&status))
    }
}

impl Client {
    /// Does not connect yet. The configuration is for those of the endpoints that need TLS.
    pub fn new(endpoints: &[MemberUrl], mut tls: ClientConfig) -> Self {
        let pages = Arc::new(tls.clone());
        tls.alpn_protocols = vec![b"h2".to_vec()];
        let tls = Arc::new(tls);
        let member =
            |endpoint: &MemberUrl| Member::new(&endpoint.target(&tls), endpoint.target(&pages));
        let members = endpoints.iter().map(member);
        let preferred = AtomicUsize::new(0);
        Self { members: members.collect(), preferred, pace: Mutex::default() }
    }

    /// Reads keys.
    pub async fn range(
        &self,
        request: &RangeRequest,
        deadline: Instant,
    ) -> Result<RangeResponse, Failure> {
        // What is not about a single key may be long.
        let long = !request.range_end.is_empty() && !request.count_only;
        self.repeat(Lane::Read, "KV/Range", request, (deadline, long.then_some(LONG))).await
    }

    /// Tries to carry out a transaction, once.
    pub async fn txn(&self, request: &TxnRequest) -> Result<TxnResponse, Failure> {
        self.attempt(Lane::Write, "KV/Txn", request, None).await
    }

    /// Forgets the past.
    pub async fn compact(&self, request: &CompactionRequest) -> Result<HeaderResponse, Failure> {
        self.attempt(Lane::Read, "KV/Compact", request, Some(LONG)).await
    }

    /// Makes a lease. Of one that was made without our being told, nobody knows: it ends by itself.
    pub async fn grant(&self, seconds: i64, deadline: Instant) -> Result<LeaseResponse, Failure> {
        let request = LeaseGrantRequest { ttl: seconds };
        self.repeat(Lane::Read, "Lease/LeaseGrant", &request, (deadline, None)).await
    }

    /// Renews a lease; returns how many seconds it has, 0 if it has ended.
    pub async fn keep_alive(&self, id: i64, deadline: Instant) -> Result<i64, Failure> {
        loop {
            let renewed = self.renew(id).await;
            match renewed {
                Err(failure) if failure.is_passing() && Instant::now() < deadline => {
                    time::sleep(BREATH).await;
                }
                other => return other,
            }
        }
    }

    /// Ends a lease, and all keys with it.
    pub async fn revoke(&self, id: i64, deadline: Instant) -> Result<HeaderResponse, Failure> {
        let request = LeaseRequest { id };
        self.repeat(Lane::Read, "Lease/LeaseRevoke", &request, (deadline, None)).await
    }

    /// Follows keys.
    pub async fn watch(&self, create: WatchCreate) -> Result<Watch, Failure> {
        let question = WatchRequest { create: Some(create) };
        let (at, member) = self.member();
        let channel = member.channel(Lane::Watch);
        let begun = async {
            // A watch comes after one that has failed: of its connection we know nothing good.
            channel.forget().await;
            channel.connect(self.limit()).await?;
            channel.converse("/etcdserverpb.Watch/Watch", &question, OPENING).await
        };
        self.judge(at, begun.await).map(Watch).map_err(|status| Failure::of(&status))
    }

    /// One attempt after the other, until the deadline.
    pub(crate) async fn repeat<A: Message + Default>(
        &self,
        lane: Lane,
        method: &str,
        question: &impl Message,
        (deadline, limit): (Instant, Option<Duration>),
    ) -> Result<A, Failure> {
        loop {
            let failure = match self.attempt(lane, method, question, limit).await {
                Err(failure) if failure.is_passing() => failure,
                other => return other,
            };
            if Instant::now() + BREATH >= deadline {
                return Err(failure);
            }
            if self.member().1.rests_until(Instant::now()).is_some() {
                time::sleep(BREATH).await;
            }
        }
    }

    async fn attempt<A: Message + Default>(
        &self,
        lane: Lane,
        method: &str,
        question: &impl Message,
        limit: Option<Duration>,
    ) -> Result<A, Failure> {
        let (at, member) = self.member();
        let channel = member.channel(lane);
        let short = limit.is_none();
        let limit = limit.unwrap_or_else(|| self.limit());
        if let Err(status) = self.judge(at, channel.connect(limit).await) {
            return Err(Failure::Nothing(status.message));
        }
        let begin = Instant::now();
        let answer = channel.call(&format!("/etcdserverpb.{method}"), question, limit).await;
        if is_late(&answer) && member.rests_until(Instant::now()).is_none() {
            // The connection may be one that nobody is at the other end of.
            channel.forget().await;
        }
        if short && (answer.is_ok() || is_late(&answer)) {
            let mut pace = self.pace.lock().unwrap_or_else(PoisonError::into_inner);
            *pace = pace.took(begin.elapsed());
        }
        self.judge(at, answer).map_err(|status| Failure::of(&status))
    }

    async fn renew(&self, id: i64) -> Result<i64, Failure> {
        let (at, member) = self.member();
        let (channel, limit) = (member.channel(Lane::Read), self.limit().max(LONG / 10));
        let renewed = async {
            channel.connect(limit).await?;
            let method = "/etcdserverpb.Lease/LeaseKeepAlive";
            let request = LeaseRequest { id };
            let mut kept = channel.converse::<LeaseResponse>(method, &request, limit).await?;
            let late = Status { code: Code::DeadlineExceeded, message: "no answer".to_owned() };
            time::timeout(limit, kept.next()).await.unwrap_or(Err(late))
        };
        let renewed = self.judge(at, renewed.await);
        renewed.map(|lease| lease.ttl).map_err(|status| Failure::of(&status))
    }

    /// Who is asked: the preferred one, or the first after it that is not known to have failed. If all
    /// have, the one that may be asked again first.
    fn member(&self) -> (usize, &Member) {
        let (now, count) = (Instant::now(), self.members.len());
        let first = self.preferred.load(Ordering::Relaxed);
        let all = (0..count).map(|step| (first + step) % count);
        let at = all.min_by_key(|at| self.members[*at].rests_until(now)).unwrap_or(0);
        (at, &self.members[at])
    }

    /// Remembers what an answer says of the member that gave it.
    fn judge<T>(&self, at: usize, answer: Result<T, Status>) -> Result<T, Status> {
        match &answer {
            Err(status) if Failure::of(status).is_passing() => {
                self.members[at].failed(Instant::now());
                let _ = self.preferred.compare_exchange(
                    at,
                    (at + 1) % self.members.len(),
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                );
            }
            _ => self.members[at].answered(),
        }
        answer
    }

    fn limit(&self) -> Duration {
        self.pace.lock().unwrap_or_else(PoisonError::into_inner).limit()
    }
}

fn is_late<A>(answer: &Result<A, Status>) -> bool {
    matches!(answer, Err(status) if status.code == Code::DeadlineExceeded)
}
