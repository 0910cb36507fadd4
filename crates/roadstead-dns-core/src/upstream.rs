//! Other servers, as far as they can be spoken of without asking them: who they are, what the operator
//! chose about them, how a question to them is put (`question`), spelled (`letters`) and repeated
//! (`rounds`), and why nobody may have answered.

use std::net::SocketAddr;
use std::time::Duration;

pub mod letters;
pub mod question;
pub mod rounds;

/// Which server is asked first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UpstreamPolicy {
    /// The quickest.
    #[default]
    Quickest,
    /// Any.
    Random,
    /// Each in turn.
    RoundRobin,
    /// In the order given.
    Sequential,
}

/// What the operator chooses about asking others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamOptions {
    /// Who is asked first.
    pub policy: UpstreamPolicy,
    /// How long one server may take. All together get twice as long: clients give up after five
    /// seconds, and should hear before that that there is no answer.
    pub timeout: Duration,
    /// After how many failures in a row a server is left alone; 0 is never.
    pub max_fails: u32,
    /// How many questions may wait at a time, of which no client may have all; 0 is without limit.
    pub most: usize,
    /// Whether to use TCP always.
    pub force_tcp: bool,
}

impl Default for UpstreamOptions {
    fn default() -> Self {
        Self {
            policy: UpstreamPolicy::default(),
            timeout: Duration::from_secs(2),
            max_fails: 2,
            most: 1000,
            force_tcp: false,
        }
    }
}

/// Servers that know the same, and how they are asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamGroup {
    /// Where they are.
    pub addresses: Vec<SocketAddr>,
    /// What the operator chose.
    pub options: UpstreamOptions,
}

impl UpstreamGroup {
    /// Asked in the usual way.
    pub fn new(addresses: Vec<SocketAddr>) -> Self {
        Self { addresses, options: UpstreamOptions::default() }
    }
}

/// Why nobody answered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UpstreamFailure {
    /// Too many questions wait already.
    #[error("too many questions wait for other servers")]
    Busy,
    /// Too many questions of that client wait already.
    #[error("too many of your questions wait for other servers")]
    Share,
    /// None of the servers answered.
    #[error("no answer from {0}")]
    Silent(String),
    /// The servers lead back to us.
    #[error("the upstream {0} leads back to this server")]
    Loop(SocketAddr),
}
