//! Why a question has no answer, and whether it was carried out all the same.

use roadstead_grpc::status::{Code, Status};

/// Why a question has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// Nobody could be asked, or whoever was asked has done nothing and may do it when asked again.
    #[error("{0}")]
    Nothing(String),
    /// It was asked, and no answer came: it may have been carried out, or still be.
    #[error("{0}")]
    Unknown(String),
    /// There is no room: etcd's alarm `NOSPACE`.
    #[error("{0}")]
    NoSpace(String),
    /// It is too large, or has too many operations.
    #[error("{0}")]
    TooLarge(String),
    /// What was asked for is forgotten.
    #[error("{0}")]
    Compacted(String),
    /// etcd refuses, and would again.
    #[error("{0}")]
    Refused(String),
}

impl Failure {
    /// What a failed call means. etcd's words are part of its API: its own clients know errors by them.
    pub(crate) fn of(status: &Status) -> Self {
        let text = status.message.clone();
        let says = |words: &str| text.contains(words);
        match status.code {
            Code::ResourceExhausted if says("database space exceeded") => Self::NoSpace(text),
            Code::ResourceExhausted if says("too many requests") => Self::Nothing(text),
            Code::ResourceExhausted | Code::InvalidArgument
                if says("too large")
                    || says("too long")
                    || says("too many operations")
                    || says("larger than max") =>
            {
                Self::TooLarge(text)
            }
            Code::OutOfRange if says("compacted") => Self::Compacted(text),
            Code::Unavailable if says("no leader") || says("not serving") => Self::Nothing(text),
            Code::Unavailable
            | Code::DeadlineExceeded
            | Code::Canceled
            | Code::Unknown
            | Code::Internal
            | Code::Aborted
            | Code::DataLoss => Self::Unknown(text),
            _ => Self::Refused(text),
        }
    }

    /// Whether it makes sense to ask again, or somebody else.
    pub fn is_passing(&self) -> bool {
        matches!(self, Self::Nothing(_) | Self::Unknown(_))
    }

    /// Whether the lease that a key was to end with has ended.
    pub fn is_about_leases(&self) -> bool {
        matches!(self, Self::Refused(text) if text.contains("requested lease not found"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failures_mean() {
        let cases = [
            (Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded", "NoSpace"),
            (Code::ResourceExhausted, "etcdserver: too many requests", "Nothing"),
            (Code::InvalidArgument, "etcdserver: request is too large", "TooLarge"),
            (Code::InvalidArgument, "etcdserver: too many operations in txn request", "TooLarge"),
            (Code::ResourceExhausted, "the answer is too long", "TooLarge"),
            (
                Code::OutOfRange,
                "etcdserver: mvcc: required revision has been compacted",
                "Compacted",
            ),
            (Code::Unavailable, "etcdserver: no leader", "Nothing"),
            (Code::Unavailable, "etcdserver: leader changed", "Unknown"),
            (Code::Unavailable, "etcdserver: request timed out", "Unknown"),
            (Code::DeadlineExceeded, "no answer", "Unknown"),
            (Code::PermissionDenied, "etcdserver: permission denied", "Refused"),
            (Code::InvalidArgument, "etcdserver: duplicate key given in txn request", "Refused"),
        ];
        for (code, message, want) in cases {
            let found = Failure::of(&Status { code, message: message.to_owned() });
            assert!(format!("{found:?}").starts_with(want), "{message}: {found:?}");
        }
    }
}
