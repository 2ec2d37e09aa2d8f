//! Auth throttle: limits the failed authentication attempts from one address.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use axum::http::{HeaderMap, StatusCode};

use crate::routes::problem::Problem;

/// Time for which failed attempts are counted.
const WINDOW: Duration = Duration::from_secs(60);
/// Maximum number of addresses tracked. Further addresses share one counter.
const ADDRESSES: usize = 10_000;

/// Time for which a credential that was valid is still checked while its address is throttled.
const GOOD_FOR: Duration = Duration::from_secs(3_600);
/// Maximum number of valid credentials remembered.
const CREDENTIALS: usize = 10_000;

/// The counters of failed authentication attempts, by address.
pub(crate) struct AuthThrottle {
    /// Maximum number of failed attempts per minute; 0 = unlimited.
    max: u32,
    by: Mutex<HashMap<IpAddr, Counted>>,
    /// Time of the last success, by the credential's hash. A client that shares its address with an attacker is not
    /// locked out.
    good: RwLock<HashMap<u64, Instant>>,
    hasher: RandomState,
}

#[derive(Clone, Copy)]
struct Counted {
    since: Instant,
    failures: u32,
}

impl AuthThrottle {
    pub(crate) fn new(max: u32) -> Self {
        AuthThrottle { max, by: Mutex::default(), good: RwLock::default(), hasher: RandomState::new() }
    }

    /// Rejects an attempt if the address has too many failed ones, unless the credential was valid recently.
    pub(crate) fn admit(&self, from: Option<IpAddr>, credential: &str) -> Result<(), Problem> {
        let (Some(from), true) = (from, self.max > 0) else { return Ok(()) };
        let known = {
            let by = self.by();
            by.get(&network(from)).or_else(|| by.get(&OTHERS)).copied()
        };
        match known.filter(|known| known.failures >= self.max && known.since.elapsed() < WINDOW) {
            None => Ok(()),
            Some(_) if self.was_good(credential) => Ok(()),
            Some(known) => {
                let wait = WINDOW.saturating_sub(known.since.elapsed());
                let detail = "Too many failed authentication attempts from this address. Wait, then retry.";
                let problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, "tooManyRequests", detail);
                Err(problem.later(wait.as_secs() + 1))
            }
        }
    }

    fn was_good(&self, credential: &str) -> bool {
        let good = self.good.read().unwrap_or_else(PoisonError::into_inner);
        good.get(&self.hasher.hash_one(credential)).is_some_and(|at| at.elapsed() < GOOD_FOR)
    }

    /// Remembers a valid credential.
    pub(crate) fn remember(&self, from: Option<IpAddr>, credential: &str) {
        if from.is_none() || self.max == 0 {
            return;
        }
        let hash = self.hasher.hash_one(credential);
        let is_fresh = |at: &Instant| at.elapsed() < GOOD_FOR / 2;
        if self.good.read().unwrap_or_else(PoisonError::into_inner).get(&hash).is_some_and(is_fresh) {
            return;
        }
        let mut good = self.good.write().unwrap_or_else(PoisonError::into_inner);
        if good.len() >= CREDENTIALS {
            good.retain(|_, at| at.elapsed() < GOOD_FOR);
        }
        if good.len() < CREDENTIALS {
            good.insert(hash, Instant::now());
        }
    }

    /// Counts a failed attempt from an address.
    pub(crate) fn count(&self, from: Option<IpAddr>) {
        let (Some(from), true) = (from, self.max > 0) else { return };
        let mut by = self.by();
        let mut from = network(from);
        if !by.contains_key(&from) && by.len() >= ADDRESSES {
            by.retain(|_, known| known.since.elapsed() < WINDOW);
            if by.len() >= ADDRESSES {
                from = OTHERS;
            }
        }
        let now = Instant::now();
        let known = by.entry(from).or_insert(Counted { since: now, failures: 0 });
        if known.since.elapsed() >= WINDOW {
            *known = Counted { since: now, failures: 0 };
        }
        known.failures = known.failures.saturating_add(1);
    }

    fn by(&self) -> MutexGuard<'_, HashMap<IpAddr, Counted>> {
        self.by.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Key of the counter that all addresses beyond the maximum share.
const OTHERS: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);

/// Returns the network that counts as one client: an IPv4 address, or a /64 network of IPv6.
pub(crate) fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address => address,
    }
}

/// Returns the client address: the peer of the connection, or the address that a trusted proxy reports.
pub(crate) fn origin(peer: Option<IpAddr>, headers: &HeaderMap, proxies: &[IpAddr]) -> Option<IpAddr> {
    let mut from = peer?.to_canonical();
    // Each proxy appends the address of its peer. Earlier entries come from the client and cannot be trusted.
    let said: Vec<&str> = headers
        .get_all("x-forwarded-for")
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .collect();
    for said in said.into_iter().rev() {
        if !proxies.contains(&from) {
            break;
        }
        match said.trim().parse::<IpAddr>() {
            Ok(before) => from = before.to_canonical(),
            Err(_) => break,
        }
    }
    Some(from)
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use axum::http::HeaderMap;

    use super::{ADDRESSES, AuthThrottle, network, origin};

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn forwarded_address_needs_a_trusted_proxy() {
        let mut headers = HeaderMap::new();
        headers.append("x-forwarded-for", "198.51.100.1, 203.0.113.9".parse().unwrap());
        headers.append("x-forwarded-for", "10.0.0.2".parse().unwrap());
        let from = |peer: &str, proxies: &[&str]| {
            let proxies: Vec<_> = proxies.iter().map(|proxy| ip(proxy)).collect();
            origin(Some(ip(peer)), &headers, &proxies).unwrap()
        };
        assert_eq!(from("10.0.0.1", &[]), ip("10.0.0.1"));
        assert_eq!(from("10.0.0.9", &["10.0.0.1"]), ip("10.0.0.9"));
        assert_eq!(from("10.0.0.1", &["10.0.0.1"]), ip("10.0.0.2"));
        assert_eq!(from("10.0.0.1", &["10.0.0.1", "10.0.0.2"]), ip("203.0.113.9"));
        assert_eq!(from("::ffff:10.0.0.1", &["10.0.0.1"]), ip("10.0.0.2"));
        assert_eq!(origin(None, &headers, &[]), None);
    }

    #[test]
    fn too_many_failed_attempts_block_only_that_network() {
        let throttle = AuthThrottle::new(3);
        let (bad, good) = (Some(ip("2001:db8::1")), Some(ip("2001:db8:0:1::1")));
        for _ in 0..3 {
            throttle.admit(bad, "guess").unwrap();
            throttle.count(bad);
        }
        throttle.remember(good, "good");
        let refused = throttle.admit(Some(ip("2001:db8::ffff")), "guess").unwrap_err();
        throttle.admit(bad, "good").unwrap();
        assert_eq!(refused.status.as_u16(), 429);
        assert!((1..=60).contains(&refused.retry_after_s.unwrap()), "{refused:?}");
        throttle.admit(good, "guess").unwrap();
        AuthThrottle::new(0).count(bad);
        assert_eq!(network(ip("::ffff:192.0.2.1")), ip("192.0.2.1"));
    }

    #[test]
    fn tracked_addresses_are_bounded() {
        let throttle = AuthThrottle::new(1);
        for n in 0..u32::try_from(ADDRESSES).unwrap() + 500 {
            throttle.count(Some(std::net::Ipv4Addr::from(n).into()));
        }
        assert!(throttle.by().len() <= ADDRESSES + 1);
        assert!(
            throttle.admit(Some(ip("203.0.113.200")), "x").is_err(),
            "addresses beyond the maximum share a counter"
        );
    }
}
