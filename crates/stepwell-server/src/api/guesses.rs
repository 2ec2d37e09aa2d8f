//! Credentials that are not good: how many of them may come from an address before it has to wait.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use axum::http::{HeaderMap, StatusCode};

use crate::routes::problem::Problem;

/// How long a guess counts.
const WINDOW: Duration = Duration::from_secs(60);
/// Addresses that are remembered at a time; those beyond that share one place.
const ADDRESSES: usize = 10_000;

/// How long a credential that was good is looked at, whoever else guesses at the same address.
const GOOD_FOR: Duration = Duration::from_secs(3_600);
/// Credentials that were good which are remembered at a time.
const CREDENTIALS: usize = 10_000;

/// Counts guesses by where they come from.
pub(crate) struct Guesses {
    /// How many within a minute; 0 = any number.
    max: u32,
    by: Mutex<HashMap<IpAddr, Counted>>,
    /// When credentials were last good, by their hashes: whoever shares an address with somebody who guesses is not locked out.
    good: RwLock<HashMap<u64, Instant>>,
    hasher: RandomState,
}

#[derive(Clone, Copy)]
struct Counted {
    since: Instant,
    guesses: u32,
}

impl Guesses {
    pub(crate) fn new(max: u32) -> Self {
        Guesses { max, by: Mutex::default(), good: RwLock::default(), hasher: RandomState::new() }
    }

    /// Lets somebody try a credential, unless too many from there were not good and this one is new.
    pub(crate) fn admit(&self, from: Option<IpAddr>, credential: &str) -> Result<(), Problem> {
        let (Some(from), true) = (from, self.max > 0) else { return Ok(()) };
        let known = {
            let by = self.by();
            by.get(&network(from)).or_else(|| by.get(&OTHERS)).copied()
        };
        match known.filter(|known| known.guesses >= self.max && known.since.elapsed() < WINDOW) {
            None => Ok(()),
            Some(_) if self.was_good(credential) => Ok(()),
            Some(known) => {
                let wait = WINDOW.saturating_sub(known.since.elapsed());
                let detail = "Too many credentials from your address were not good. Wait, and try again.";
                let problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, "tooManyRequests", detail);
                Err(problem.later(wait.as_secs() + 1))
            }
        }
    }

    fn was_good(&self, credential: &str) -> bool {
        let good = self.good.read().unwrap_or_else(PoisonError::into_inner);
        good.get(&self.hasher.hash_one(credential)).is_some_and(|at| at.elapsed() < GOOD_FOR)
    }

    /// A credential was good.
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

    /// A credential from there was not good.
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
        let known = by.entry(from).or_insert(Counted { since: now, guesses: 0 });
        if known.since.elapsed() >= WINDOW {
            *known = Counted { since: now, guesses: 0 };
        }
        known.guesses = known.guesses.saturating_add(1);
    }

    fn by(&self) -> MutexGuard<'_, HashMap<IpAddr, Counted>> {
        self.by.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Stands for all addresses that there is no room for.
const OTHERS: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);

/// What one somebody has of addresses: of version 6 that is 64 bits of them.
pub(crate) fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address => address,
    }
}

/// Where a request comes from: the other end of the connection, or whom a proxy that is trusted has it from.
pub(crate) fn origin(peer: Option<IpAddr>, headers: &HeaderMap, proxies: &[IpAddr]) -> Option<IpAddr> {
    let mut from = peer?.to_canonical();
    // Each proxy has put at the end whom it has the request from; what is before that anybody may have said.
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

    use super::{ADDRESSES, Guesses, network, origin};

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn only_what_a_trusted_proxy_says_is_believed() {
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
    fn who_guesses_too_often_waits_and_others_do_not() {
        let guesses = Guesses::new(3);
        let (bad, good) = (Some(ip("2001:db8::1")), Some(ip("2001:db8:0:1::1")));
        for _ in 0..3 {
            guesses.admit(bad, "guess").unwrap();
            guesses.count(bad);
        }
        guesses.remember(good, "good");
        let refused = guesses.admit(Some(ip("2001:db8::ffff")), "guess").unwrap_err();
        guesses.admit(bad, "good").unwrap();
        assert_eq!(refused.status.as_u16(), 429);
        assert!((1..=60).contains(&refused.retry_after_s.unwrap()), "{refused:?}");
        guesses.admit(good, "guess").unwrap();
        Guesses::new(0).count(bad);
        assert_eq!(network(ip("::ffff:192.0.2.1")), ip("192.0.2.1"));
    }

    #[test]
    fn addresses_do_not_fill_the_memory() {
        let guesses = Guesses::new(1);
        for n in 0..u32::try_from(ADDRESSES).unwrap() + 500 {
            guesses.count(Some(std::net::Ipv4Addr::from(n).into()));
        }
        assert!(guesses.by().len() <= ADDRESSES + 1);
        assert!(
            guesses.admit(Some(ip("203.0.113.200")), "x").is_err(),
            "those there is no room for share a place"
        );
    }
}
