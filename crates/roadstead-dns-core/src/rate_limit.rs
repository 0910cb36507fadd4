//! How many replies strangers get, so that nobody can use us to flood a third party.
//!
//! Whoever is on a network of private addresses is no stranger, for that is where most pods and
//! nodes are; nor is whoever the cluster knows, or the operator. The others share a budget per
//! network. Beyond it most queries get nothing, and some get a reply that is no longer than the
//! query and says to come back over TCP, where addresses cannot be forged.

use std::hash::BuildHasher;
use std::net::IpAddr;
use std::time::Instant;

use ipnet::IpNet;

use crate::secret::Secret;

const BUCKETS: usize = 4096;
/// How many replies per second strangers get unless the operator says otherwise.
pub const USUAL_RATE: u32 = 100;

/// What to do with a stranger's query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RateVerdict {
    /// Answer.
    Answer,
    /// Say that the answer is too long.
    Truncate,
    /// Say nothing.
    Drop,
}

/// What strangers get, and who is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RateLimits {
    /// Replies per second for each network of strangers; 0 is without limit.
    pub rate: u32,
    /// Public networks of our own.
    pub friends: Vec<IpNet>,
}

/// The budgets as one thread sees them.
#[derive(Debug)]
pub struct RateLimiter {
    limits: RateLimits,
    secret: Secret,
    buckets: Box<[Bucket]>,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    network: u64,
    /// In thousandths of a reply.
    tokens: u64,
    since: Instant,
    refused: u32,
}

impl RateLimiter {
    /// Full budgets for all; clients do not know the seed.
    pub fn new(limits: RateLimits, seed: u64, now: Instant) -> Self {
        let bucket = Bucket { network: 0, tokens: 0, since: now, refused: 0 };
        Self { limits, secret: Secret(seed), buckets: vec![bucket; BUCKETS].into() }
    }

    /// Decides about one query. Whether the cluster knows the address is only asked about those who
    /// would be strangers.
    pub fn check(
        &mut self,
        peer: IpAddr,
        now: Instant,
        known: impl FnOnce() -> bool,
    ) -> RateVerdict {
        if self.limits.rate == 0 || !self.is_stranger(peer) || known() {
            return RateVerdict::Answer;
        }
        let network = self.secret.hash_one(network(peer));
        let slot = usize::try_from(network % BUCKETS as u64).unwrap_or(0);
        let bucket = &mut self.buckets[slot];
        let full = u64::from(self.limits.rate) * 1000;
        if bucket.network != network {
            *bucket = Bucket { network, tokens: full, since: now, refused: 0 };
        }
        let elapsed = now.saturating_duration_since(bucket.since).as_millis();
        let earned =
            u64::try_from(elapsed).unwrap_or(u64::MAX).saturating_mul(self.limits.rate.into());
        if earned > 0 {
            bucket.tokens = bucket.tokens.saturating_add(earned).min(full);
            bucket.since = now;
        }
        if bucket.tokens >= 1000 {
            bucket.tokens -= 1000;
            return RateVerdict::Answer;
        }
        bucket.refused = bucket.refused.wrapping_add(1);
        if bucket.refused.is_multiple_of(4) { RateVerdict::Truncate } else { RateVerdict::Drop }
    }

    fn is_stranger(&self, peer: IpAddr) -> bool {
        is_public(peer) && !self.limits.friends.iter().any(|network| network.contains(&peer))
    }
}

/// Forged addresses come by the network.
fn network(peer: IpAddr) -> u64 {
    match peer {
        IpAddr::V4(address) => u64::from(u32::from(address) >> 8),
        IpAddr::V6(address) => u64::try_from(u128::from(address) >> 72).unwrap_or(0) | 1 << 63,
    }
}

fn is_public(peer: IpAddr) -> bool {
    match peer {
        IpAddr::V4(address) => {
            let [first, second, ..] = address.octets();
            let shared = first == 100 && (64..128).contains(&second);
            !(address.is_private() || address.is_loopback() || address.is_link_local() || shared)
        }
        IpAddr::V6(address) => {
            !(address.is_loopback() || address.is_unique_local() || address.is_unicast_link_local())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn limiter(rate: u32) -> RateLimiter {
        let friends = vec!["203.0.113.0/25".parse().unwrap(), "2001:db8:1::/48".parse().unwrap()];
        RateLimiter::new(RateLimits { rate, friends }, 1, Instant::now())
    }

    #[test]
    fn strangers() {
        let limiter = limiter(1);
        for (address, stranger) in [
            ("10.1.2.3", false),
            ("127.0.0.1", false),
            ("192.168.1.1", false),
            ("100.64.0.1", false),
            ("fd00::1", false),
            ("198.51.100.7", true),
            ("2001:db8::1", true),
            ("203.0.113.127", false),
            ("203.0.113.128", true),
            ("2001:db8:1::1", false),
        ] {
            assert_eq!(limiter.is_stranger(address.parse().unwrap()), stranger, "{address}");
        }
    }

    #[test]
    fn a_network_has_a_budget() {
        let mut limiter = limiter(10);
        let start = Instant::now();
        let mut count = |last: u8, after: u64| {
            let now = start + Duration::from_secs(after);
            let peer = IpAddr::from([198, 51, 100, last]);
            let verdicts: Vec<_> = (0..100).map(|_| limiter.check(peer, now, || false)).collect();
            let count = |wanted| verdicts.iter().filter(|verdict| **verdict == wanted).count();
            (count(RateVerdict::Answer), count(RateVerdict::Truncate), count(RateVerdict::Drop))
        };
        assert_eq!(count(1, 0), (10, 22, 68), "a second's worth, then silence");
        assert_eq!(count(2, 0).0, 0, "neighbours share");
        assert_eq!(count(3, 1).0, 10, "a second later");
        let peer = IpAddr::from([10, 0, 0, 1]);
        assert!(
            (0..100).all(|_| limiter.check(peer, start, || false) == RateVerdict::Answer),
            "no stranger"
        );
        let peer = IpAddr::from([198, 51, 100, 1]);
        assert!(
            (0..100).all(|_| limiter.check(peer, start, || true) == RateVerdict::Answer),
            "a known one"
        );
    }
}
