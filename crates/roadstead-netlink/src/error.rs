//! Why the kernel did not do as told.

use std::io;

/// Why the kernel did not do as told. Nothing has changed then.
#[derive(Debug, thiserror::Error)]
pub enum NetlinkError {
    /// The socket failed.
    #[error("netlink socket")]
    Socket(#[source] io::Error),
    /// The whole batch must fit into the send buffer.
    #[error(
        "a batch of {length} bytes exceeds the send buffer: CAP_NET_ADMIN is missing in the \
             first user namespace, or net.core.wmem_max is too small"
    )]
    TooLong {
        /// How long the batch was.
        length: usize,
    },
    /// The kernel refused a message of a batch.
    #[error("the kernel refused nftables message {kind} ({position} of the batch)")]
    Refused {
        /// The number within nftables, as in `linux/netfilter/nf_tables.h`.
        kind: u16,
        /// The number of the message in its batch.
        position: u32,
        /// The reason.
        source: io::Error,
    },
    /// The kernel refused a single request.
    #[error("the kernel refused the request")]
    Declined(#[source] io::Error),
    /// The batch was sent, but the kernel did not say that it is done.
    #[error("the kernel did not acknowledge the batch")]
    Unacknowledged,
}

impl NetlinkError {
    /// What the kernel said, if it said no.
    pub fn refusal(&self) -> Option<&io::Error> {
        match self {
            NetlinkError::Refused { source, .. } | NetlinkError::Declined(source) => Some(source),
            _ => None,
        }
    }
}

/// What is left of it is the reason.
impl From<NetlinkError> for io::Error {
    fn from(error: NetlinkError) -> Self {
        match error {
            NetlinkError::Socket(source)
            | NetlinkError::Refused { source, .. }
            | NetlinkError::Declined(source) => source,
            other => io::Error::other(other),
        }
    }
}
