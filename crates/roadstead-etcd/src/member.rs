//! One member of the cluster, with the connections to it.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use roadstead_grpc::channel::GrpcChannel;
use roadstead_grpc::service_address::ServiceAddress;
use tokio::time::Instant;

/// No answer is longer. (A page of objects is cut by whoever asks for it.)
const LONGEST: usize = 64 << 20;
/// How long a member is left alone after a failure, at first and at most.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(15));

/// For what a connection is, so that what is long does not stand in the way of what is urgent.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Lane {
    Write,
    Read,
    Watch,
}

/// A member.
#[derive(Debug)]
pub(crate) struct Member {
    target: ServiceAddress,
    /// The same, for what is no gRPC.
    pages: ServiceAddress,
    channels: [GrpcChannel; 3],
    health: Mutex<Health>,
}

/// Until when it is left alone, and for how long after the next failure.
#[derive(Clone, Copy, Debug)]
struct Health {
    rests_until: Option<Instant>,
    pause: Duration,
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.target.fmt(f)
    }
}

impl Member {
    pub(crate) fn new(target: &ServiceAddress, pages: ServiceAddress) -> Self {
        let channels = [(); 3].map(|()| GrpcChannel::to(target.clone(), LONGEST));
        let target = target.clone();
        let health = Mutex::new(Health { rests_until: None, pause: PAUSE.0 });
        Self { target, pages, channels, health }
    }

    pub(crate) fn channel(&self, lane: Lane) -> &GrpcChannel {
        &self.channels[lane as usize]
    }

    /// Where its pages are.
    pub(crate) fn pages(&self) -> &ServiceAddress {
        &self.pages
    }

    /// Until when it is to be avoided, if it is.
    pub(crate) fn rests_until(&self, now: Instant) -> Option<Instant> {
        self.health().rests_until.filter(|until| *until > now)
    }

    pub(crate) fn answered(&self) {
        *self.health() = Health { rests_until: None, pause: PAUSE.0 };
    }

    pub(crate) fn failed(&self, now: Instant) {
        let mut health = self.health();
        // Many fail together with the connection that they share: that is one failure.
        if health.rests_until.is_none_or(|until| until <= now) {
            *health = Health {
                rests_until: Some(now + health.pause),
                pause: (health.pause * 2).min(PAUSE.1),
            };
        }
    }

    fn health(&self) -> std::sync::MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
