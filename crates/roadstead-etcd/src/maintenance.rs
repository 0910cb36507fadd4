//! What operators ask of a cluster, and of each of its members: how it is, and to be made well again.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use roadstead_grpc::conversation::Conversation;
use roadstead_grpc::service_address::ServiceAddress;
use roadstead_grpc::status::Code;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{self, Instant};

use crate::client::Client;
use crate::failure::Failure;
use crate::member::Lane;
use crate::messages::{
    AlarmRequest, AlarmResponse, CompactionRequest, DefragmentRequest, HeaderResponse,
    MemberListRequest, MemberListResponse, SnapshotRequest, SnapshotResponse, StatusRequest,
    StatusResponse,
};

/// The alarm that a member raises when its file is as large as it may be.
pub const NO_SPACE: i32 = 1;
/// How long a member may take to say how it is.
const SHORT: Duration = Duration::from_secs(2);
/// No page of metrics is longer.
const LONGEST_PAGE: u64 = 16 << 20;
/// How long it may take until a snapshot begins.
const BEGINNING: Duration = Duration::from_secs(30);

/// A member's file, piece by piece.
#[derive(Debug)]
pub struct MemberSnapshot(Conversation<SnapshotResponse>);

impl MemberSnapshot {
    /// The next piece, and how many bytes come after it; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<(Bytes, u64)>, Failure> {
        match self.0.next().await {
            Ok(piece) => Ok(Some((piece.blob, piece.remaining_bytes))),
            Err(status) if status.code == Code::Canceled => Ok(None),
            Err(status) => Err(Failure::of(&status)),
        }
    }
}

impl Client {
    /// What the members are called here, in the order of their endpoints.
    pub fn endpoints(&self) -> Vec<String> {
        self.members.iter().map(ToString::to_string).collect()
    }

    /// How each of the members is, in the order of their endpoints.
    pub async fn status(&self) -> Vec<Result<StatusResponse, Failure>> {
        let mut all = Vec::new();
        for member in &self.members {
            let method = "/etcdserverpb.Maintenance/Status";
            let channel = member.channel(Lane::Read);
            let found = channel.call(method, &StatusRequest {}, SHORT).await;
            all.push(found.map_err(|status| Failure::of(&status)));
        }
        all
    }

    /// Who is in the cluster.
    pub async fn cluster(&self, deadline: Instant) -> Result<MemberListResponse, Failure> {
        let request = MemberListRequest {};
        self.repeat(Lane::Read, "Cluster/MemberList", &request, (deadline, None)).await
    }

    /// The alarms that there are.
    pub async fn alarms(&self, deadline: Instant) -> Result<AlarmResponse, Failure> {
        let request = AlarmRequest::default();
        self.repeat(Lane::Read, "Maintenance/Alarm", &request, (deadline, None)).await
    }

    /// Ends an alarm of a member; returns those that are left.
    pub async fn disarm(
        &self,
        member_id: u64,
        alarm: i32,
        deadline: Instant,
    ) -> Result<AlarmResponse, Failure> {
        let request = AlarmRequest { action: 2, member_id, alarm };
        self.repeat(Lane::Read, "Maintenance/Alarm", &request, (deadline, None)).await
    }

    /// Forgets what was overwritten up to a revision, and waits until it is gone from the disk of the member
    /// that is asked.
    pub async fn compact_thoroughly(
        &self,
        revision: i64,
        limit: Duration,
    ) -> Result<HeaderResponse, Failure> {
        let request = CompactionRequest { revision, physical: true };
        let deadline = Instant::now() + limit;
        self.repeat(Lane::Read, "KV/Compact", &request, (deadline, Some(limit))).await
    }

    /// How large a member's file may become, as its metrics say; for versions that tell nowhere else.
    pub async fn quota(&self, at: usize) -> Option<u64> {
        let page = page(self.members[at].pages(), "/metrics");
        time::timeout(SHORT, page).await.ok()?.ok().and_then(|page| quota_in(&page))
    }

    /// Has a member give back to its disk what is free in its file. It answers nobody meanwhile.
    pub async fn defragment(&self, at: usize, limit: Duration) -> Result<HeaderResponse, Failure> {
        let channel = self.members[at].channel(Lane::Read);
        let method = "/etcdserverpb.Maintenance/Defragment";
        let done = channel.call(method, &DefragmentRequest {}, limit).await;
        done.map_err(|status| Failure::of(&status))
    }

    /// Everything that a member has.
    pub async fn snapshot(&self, at: usize) -> Result<MemberSnapshot, Failure> {
        let channel = self.members[at].channel(Lane::Read);
        let method = "/etcdserverpb.Maintenance/Snapshot";
        let begun = channel.listen(method, &SnapshotRequest {}, BEGINNING).await;
        begun.map(MemberSnapshot).map_err(|status| Failure::of(&status))
    }
}

/// A page of a member, with its head.
async fn page(address: &ServiceAddress, path: &str) -> io::Result<String> {
    let mut stream = address.dial().await?;
    let request = format!("GET {path} HTTP/1.0\r\nHost: etcd\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    stream.flush().await?;
    let mut bytes = Vec::new();
    let read = stream.take(LONGEST_PAGE).read_to_end(&mut bytes).await;
    // Some hang up without saying so.
    match bytes.is_empty() {
        true => read.map(|_| String::new()),
        false => Ok(String::from_utf8_lossy(&bytes).into_owned()),
    }
}

/// The quota, in the text of metrics.
fn quota_in(page: &str) -> Option<u64> {
    let value =
        |line: &str| line.strip_prefix("etcd_server_quota_backend_bytes ")?.trim().parse().ok();
    page.lines().find_map(value).map(|bytes: f64| bytes as u64)
}

#[test]
fn quotas_in_metrics() {
    for (page, want) in [
        (
            "# HELP etcd_server_quota_backend_bytes Current\netcd_server_quota_backend_bytes 2.147483648e+09\n",
            Some(2 << 30),
        ),
        ("etcd_server_quota_backend_bytes 1.6777216e+07\r\nother 1\n", Some(16 << 20)),
        ("etcd_server_quota_backend_bytes_total 7\n", None),
        ("", None),
    ] {
        assert_eq!(quota_in(page), want, "{page}");
    }
}
