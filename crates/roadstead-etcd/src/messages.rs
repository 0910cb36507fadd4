//! The messages of etcd's API, version 3, as far as we use them. The numbers are etcd's
//! (`api/etcdserverpb/rpc.proto`); fields that we do not need are left out, on both sides.

use bytes::Bytes;
use prost::{Message, Oneof};

/// What every answer tells of the member that gave it.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Header {
    /// Which cluster.
    #[prost(uint64, tag = "1")]
    pub cluster_id: u64,
    /// Which of its members.
    #[prost(uint64, tag = "2")]
    pub member_id: u64,
    /// The newest revision then.
    #[prost(int64, tag = "3")]
    pub revision: i64,
}

/// A key with its value.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct KeyValue {
    /// The key.
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    /// The revision of the write that made it what it is.
    #[prost(int64, tag = "3")]
    pub mod_revision: i64,
    /// How often it was written since it was created.
    #[prost(int64, tag = "4")]
    pub version: i64,
    /// The value.
    #[prost(bytes = "bytes", tag = "5")]
    pub value: Bytes,
    /// The lease with which it ends, or 0.
    #[prost(int64, tag = "6")]
    pub lease: i64,
}

/// Asks for the keys from `key` up to `range_end`, or for `key` alone.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RangeRequest {
    /// The first key.
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    /// The first key that is not wanted any more; a zero byte: there is none.
    #[prost(bytes = "bytes", tag = "2")]
    pub range_end: Bytes,
    /// No more keys than that; 0: as many as there are.
    #[prost(int64, tag = "3")]
    pub limit: i64,
    /// As it was then; 0: as it is.
    #[prost(int64, tag = "4")]
    pub revision: i64,
    /// Whether the member may answer by itself, with what may be old.
    #[prost(bool, tag = "7")]
    pub serializable: bool,
    /// Whether values are left out.
    #[prost(bool, tag = "8")]
    pub keys_only: bool,
    /// Whether only the number of keys is wanted.
    #[prost(bool, tag = "9")]
    pub count_only: bool,
}

/// Keys.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RangeResponse {
    /// Who answers, and when.
    #[prost(message, optional, tag = "1")]
    pub header: Option<Header>,
    /// In order.
    #[prost(message, repeated, tag = "2")]
    pub kvs: Vec<KeyValue>,
    /// Whether there are others.
    #[prost(bool, tag = "3")]
    pub more: bool,
    /// How many there are in all.
    #[prost(int64, tag = "4")]
    pub count: i64,
}

/// Writes a key.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct PutRequest {
    /// The key.
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    /// Its value.
    #[prost(bytes = "bytes", tag = "2")]
    pub value: Bytes,
    /// The lease with which it ends, or 0.
    #[prost(int64, tag = "3")]
    pub lease: i64,
}

/// Removes a key.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct DeleteRangeRequest {
    /// The key.
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
}

/// One operation of a transaction.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct TxnOperation {
    /// What it does.
    #[prost(oneof = "Act", tags = "1, 2, 3")]
    pub act: Option<Act>,
}

/// What an operation does.
#[derive(Clone, PartialEq, Eq, Oneof)]
pub enum Act {
    /// Reads.
    #[prost(message, tag = "1")]
    Range(RangeRequest),
    /// Writes.
    #[prost(message, tag = "2")]
    Put(PutRequest),
    /// Removes.
    #[prost(message, tag = "3")]
    Delete(DeleteRangeRequest),
}

/// What came of one operation.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Outcome {
    /// What was read, if it read.
    #[prost(message, optional, tag = "1")]
    pub range: Option<RangeResponse>,
}

/// A condition of a transaction. It compares the revision of a key (0: there is none), or, if that is
/// `None`, its version.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Compare {
    /// 0: is equal.
    #[prost(int32, tag = "1")]
    pub result: i32,
    /// 0: its version; 2: its revision.
    #[prost(int32, tag = "2")]
    pub target: i32,
    /// The key.
    #[prost(bytes = "bytes", tag = "3")]
    pub key: Bytes,
    /// The version to compare with.
    #[prost(int64, optional, tag = "4")]
    pub version: Option<i64>,
    /// The revision to compare with.
    #[prost(int64, optional, tag = "6")]
    pub mod_revision: Option<i64>,
}

impl Compare {
    /// The key was last written at this revision; 0: there is none.
    pub fn at_revision(key: Bytes, revision: i64) -> Self {
        Self { target: 2, key, mod_revision: Some(revision), ..Self::default() }
    }

    /// The key was written so often since it was created; 0: there is none.
    pub fn written_times(key: Bytes, version: i64) -> Self {
        Self { target: 0, key, version: Some(version), ..Self::default() }
    }
}

/// Several operations that happen together or not at all.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct TxnRequest {
    /// Conditions.
    #[prost(message, repeated, tag = "1")]
    pub compare: Vec<Compare>,
    /// What happens if all of them hold,
    #[prost(message, repeated, tag = "2")]
    pub success: Vec<TxnOperation>,
    /// and if not.
    #[prost(message, repeated, tag = "3")]
    pub failure: Vec<TxnOperation>,
}

impl TxnRequest {
    /// How many bytes it has on its way.
    pub fn size(&self) -> usize {
        self.encoded_len()
    }
}

/// What came of a transaction.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct TxnResponse {
    /// Who answers; its revision is that of the transaction, if that has written anything.
    #[prost(message, optional, tag = "1")]
    pub header: Option<Header>,
    /// Whether all conditions held.
    #[prost(bool, tag = "2")]
    pub succeeded: bool,
    /// One for each operation.
    #[prost(message, repeated, tag = "3")]
    pub responses: Vec<Outcome>,
}

/// Forgets what was overwritten up to a revision.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct CompactionRequest {
    /// Which.
    #[prost(int64, tag = "1")]
    pub revision: i64,
    /// Whether to wait until it is gone from the disk as well.
    #[prost(bool, tag = "2")]
    pub physical: bool,
}

/// An answer that says only when.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct HeaderResponse {
    /// Who answers, and when.
    #[prost(message, optional, tag = "1")]
    pub header: Option<Header>,
}

/// What is said in a watch.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct WatchRequest {
    /// Begins it.
    #[prost(message, optional, tag = "1")]
    pub create: Option<WatchCreate>,
}

/// Which changes are wanted.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct WatchCreate {
    /// The first key.
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    /// As in [`RangeRequest`].
    #[prost(bytes = "bytes", tag = "2")]
    pub range_end: Bytes,
    /// The first revision that is wanted.
    #[prost(int64, tag = "3")]
    pub start_revision: i64,
    /// Whether a long answer may come in pieces.
    #[prost(bool, tag = "8")]
    pub fragment: bool,
}

/// What is told in a watch.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct WatchResponse {
    /// Who answers, and when.
    #[prost(message, optional, tag = "1")]
    pub header: Option<Header>,
    /// Whether it has begun with this.
    #[prost(bool, tag = "3")]
    pub created: bool,
    /// Whether it ends with this,
    #[prost(bool, tag = "4")]
    pub canceled: bool,
    /// because everything up to this revision is forgotten, if that is not 0,
    #[prost(int64, tag = "5")]
    pub compact_revision: i64,
    /// or for this reason.
    #[prost(string, tag = "6")]
    pub cancel_reason: String,
    /// Whether other pieces follow.
    #[prost(bool, tag = "7")]
    pub fragment: bool,
    /// In the order of their revisions.
    #[prost(message, repeated, tag = "11")]
    pub events: Vec<KeyEvent>,
}

/// A change of a key.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct KeyEvent {
    /// 0: it was written; 1: it was removed.
    #[prost(int32, tag = "1")]
    pub kind: i32,
    /// The key after it.
    #[prost(message, optional, tag = "2")]
    pub kv: Option<KeyValue>,
}

/// Asks for a lease.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct LeaseGrantRequest {
    /// How many seconds it lasts unless it is renewed.
    #[prost(int64, tag = "1")]
    pub ttl: i64,
}

/// Names a lease: to renew it or to end it.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct LeaseRequest {
    /// Which.
    #[prost(int64, tag = "1")]
    pub id: i64,
}

/// A lease.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct LeaseResponse {
    /// Who answers, and when.
    #[prost(message, optional, tag = "1")]
    pub header: Option<Header>,
    /// Which.
    #[prost(int64, tag = "2")]
    pub id: i64,
    /// How many seconds are left; 0: it has ended.
    #[prost(int64, tag = "3")]
    pub ttl: i64,
}

/// Asks how a member is.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct StatusRequest {}

/// How a member is.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct StatusResponse {
    /// Who answers, and when.
    #[prost(message, optional, tag = "1")]
    pub header: Option<Header>,
    /// Its version.
    #[prost(string, tag = "2")]
    pub version: String,
    /// How large its file is.
    #[prost(int64, tag = "3")]
    pub db_size: i64,
    /// Who leads.
    #[prost(uint64, tag = "4")]
    pub leader: u64,
    /// What is wrong with it.
    #[prost(string, repeated, tag = "8")]
    pub errors: Vec<String>,
    /// How much of its file is in use.
    #[prost(int64, tag = "9")]
    pub db_size_in_use: i64,
    /// Whether it only learns yet.
    #[prost(bool, tag = "10")]
    pub is_learner: bool,
    /// How large its file may become; 0 from versions before 3.6, which do not say.
    #[prost(int64, tag = "12")]
    pub db_size_quota: i64,
}

/// Asks for alarms, or ends one.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct AlarmRequest {
    /// 0: tells them; 2: ends one.
    #[prost(int32, tag = "1")]
    pub action: i32,
    /// Of which member, to end it.
    #[prost(uint64, tag = "2")]
    pub member_id: u64,
    /// Which one: 1 is `NOSPACE`.
    #[prost(int32, tag = "3")]
    pub alarm: i32,
}

/// The alarms that there are.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct AlarmResponse {
    /// Who answers, and when.
    #[prost(message, optional, tag = "1")]
    pub header: Option<Header>,
    /// All of them.
    #[prost(message, repeated, tag = "2")]
    pub alarms: Vec<Alarm>,
}

/// An alarm.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Alarm {
    /// Of which member.
    #[prost(uint64, tag = "1")]
    pub member_id: u64,
    /// Which one: 1 is `NOSPACE`.
    #[prost(int32, tag = "2")]
    pub alarm: i32,
}

/// Asks for everything that a member has.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct SnapshotRequest {}

/// A piece of a member's file.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct SnapshotResponse {
    /// How many bytes come after it.
    #[prost(uint64, tag = "2")]
    pub remaining_bytes: u64,
    /// The piece.
    #[prost(bytes = "bytes", tag = "3")]
    pub blob: Bytes,
}

/// Asks a member to give back to its disk what is free in its file.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct DefragmentRequest {}

/// Asks who is in the cluster.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct MemberListRequest {}

/// Who is in the cluster.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct MemberListResponse {
    /// Who answers, and when.
    #[prost(message, optional, tag = "1")]
    pub header: Option<Header>,
    /// All of them.
    #[prost(message, repeated, tag = "2")]
    pub members: Vec<ClusterMember>,
}

/// A member as the cluster knows it.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ClusterMember {
    /// Which.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// What its operator calls it.
    #[prost(string, tag = "2")]
    pub name: String,
    /// Where clients reach it, as it says.
    #[prost(string, repeated, tag = "4")]
    pub client_urls: Vec<String>,
}
