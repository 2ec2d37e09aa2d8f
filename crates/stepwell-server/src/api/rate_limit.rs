//! Rate limits: an average and a burst for each tenant, and separate limits for requests without a credential.

use std::collections::HashMap;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError};

use axum::http::StatusCode;
use governor::clock::{Clock, DefaultClock};
use governor::{DefaultDirectRateLimiter, DefaultKeyedRateLimiter, NotUntil, Quota, RateLimiter};
use stepwell::store::TenantId;

use super::auth_throttle::network;
use crate::routes::problem::Problem;

/// Maximum number of addresses and tenants tracked for requests without a credential.
const REMEMBERED: usize = 10_000;
/// Ratio between the limit of all requests without a credential and the limit of one address.
const TOGETHER: u32 = 10;

/// The rate limiter for tenants.
pub(crate) struct TenantRateLimiter {
    burst: NonZeroU32,
    /// Limiter of tenants without a rate of their own; `None` = unlimited.
    usual: Option<DefaultKeyedRateLimiter<TenantId>>,
    /// Limiters of tenants with a rate of their own, each with the rate it was created for.
    own: Mutex<HashMap<TenantId, (NonZeroU32, Arc<DefaultDirectRateLimiter>)>>,
}

impl TenantRateLimiter {
    /// Creates a limiter with an average rate per second and a burst. A rate of 0 = unlimited; a burst of 0 counts as
    /// 1.
    pub(crate) fn new(per_second: u32, burst: u32) -> Self {
        let burst = NonZeroU32::new(burst).unwrap_or(NonZeroU32::MIN);
        let quota = NonZeroU32::new(per_second).map(|rate| Quota::per_second(rate).allow_burst(burst));
        TenantRateLimiter { burst, usual: quota.map(RateLimiter::keyed), own: Mutex::default() }
    }

    /// Counts a request of a tenant and rejects it over the limit. `own` is the tenant's own rate; 0 = unlimited.
    pub(crate) fn admit(&self, tenant: TenantId, own: Option<u32>) -> Result<(), Problem> {
        let admitted = match (own.map(NonZeroU32::new), &self.usual) {
            (Some(Some(rate)), _) => self.own(tenant, rate).check(),
            (None, Some(usual)) => usual.check_key(&tenant),
            (Some(None), _) | (None, None) => Ok(()),
        };
        admitted.map_err(too_many)
    }

    /// Returns the limiter of a tenant's own rate, and replaces it if the rate has changed.
    fn own(&self, tenant: TenantId, rate: NonZeroU32) -> Arc<DefaultDirectRateLimiter> {
        let made = || (rate, Arc::new(RateLimiter::direct(Quota::per_second(rate).allow_burst(self.burst))));
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        let known = own.entry(tenant).or_insert_with(made);
        if known.0 != rate {
            *known = made();
        }
        known.1.clone()
    }
}

#[expect(clippy::needless_pass_by_value, reason = "the function is passed to `map_err`")]
fn too_many(not_until: NotUntil<<DefaultClock as Clock>::Instant>) -> Problem {
    let wait = not_until.wait_time_from(DefaultClock::default().now());
    let detail = "Too many requests. Wait, then retry.";
    Problem::new(StatusCode::TOO_MANY_REQUESTS, "tooManyRequests", detail).later(wait.as_secs() + 1)
}

/// Key that a request without a credential counts toward.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum AnonymousKey {
    Address(IpAddr),
    Tenant(TenantId),
    /// Shared by all addresses and tenants that come after the table is full.
    Others,
}

/// The rate limiter for requests without a credential: per address, per tenant they name, and in total.
pub(crate) struct AnonymousRateLimiter(
    Option<(DefaultKeyedRateLimiter<AnonymousKey>, DefaultDirectRateLimiter)>,
);

impl AnonymousRateLimiter {
    /// Creates a limiter with an average rate per second for each address and tenant. The burst is 5 times the rate.
    /// 0 = unlimited.
    pub(crate) fn new(per_second: u32) -> Self {
        let quota = |rate: u32| {
            let (rate, burst) = (NonZeroU32::new(rate)?, NonZeroU32::new(rate.saturating_mul(5))?);
            Some(Quota::per_second(rate).allow_burst(burst))
        };
        let (each, all) = (quota(per_second), quota(per_second.saturating_mul(TOGETHER)));
        AnonymousRateLimiter(
            each.zip(all).map(|(each, all)| (RateLimiter::keyed(each), RateLimiter::direct(all))),
        )
    }

    /// Counts a request and rejects it over the limit. An unknown address or tenant is not counted.
    pub(crate) fn admit(&self, from: Option<IpAddr>, tenant: Option<TenantId>) -> Result<(), Problem> {
        let Some((each, all)) = &self.0 else { return Ok(()) };
        if each.len() >= REMEMBERED {
            each.retain_recent();
        }
        let is_full = each.len() >= REMEMBERED;
        let whose = [from.map(network).map(AnonymousKey::Address), tenant.map(AnonymousKey::Tenant)];
        for whose in whose.into_iter().flatten() {
            each.check_key(if is_full { &AnonymousKey::Others } else { &whose }).map_err(too_many)?;
        }
        all.check().map_err(too_many)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use stepwell::store::TenantId;
    use uuid::Uuid;

    use super::{AnonymousRateLimiter, REMEMBERED};

    #[test]
    fn anonymous_requests_are_rate_limited() {
        let limiter = AnonymousRateLimiter::new(10);
        let admitted = |ask: &dyn Fn(u32) -> bool| (0..10_000).filter(|n| ask(*n)).count();
        let one = Some(Ipv4Addr::new(192, 0, 2, 1).into());
        let from_one =
            admitted(&|n| limiter.admit(one, Some(TenantId::new(Uuid::from_u128(n.into())))).is_ok());
        assert!((50..200).contains(&from_one), "one address, many tenants: {from_one}");
        let limiter = AnonymousRateLimiter::new(10);
        let tenant = Some(TenantId::new(Uuid::from_u128(7)));
        let to_one = admitted(&|n| limiter.admit(Some(Ipv4Addr::from(n).into()), tenant).is_ok());
        assert!((50..200).contains(&to_one), "one tenant, many addresses: {to_one}");
        let limiter = AnonymousRateLimiter::new(10);
        let all = admitted(&|n| limiter.admit(Some(Ipv4Addr::from(n).into()), None).is_ok());
        assert!((500..2_000).contains(&all), "all addresses together: {all}");
        let refused = (0..10_000).find_map(|_| limiter.admit(None, None).err()).unwrap();
        assert!(refused.retry_after_s.is_some());
        assert!(AnonymousRateLimiter::new(0).admit(None, None).is_ok());
    }

    #[test]
    fn tracked_addresses_are_bounded() {
        let limiter = AnonymousRateLimiter::new(1);
        for n in 0..u32::try_from(REMEMBERED).unwrap() + 500 {
            let _ = limiter.admit(Some(Ipv4Addr::from(n).into()), None);
        }
        assert!(limiter.0.unwrap().0.len() <= REMEMBERED + 1);
    }
}
