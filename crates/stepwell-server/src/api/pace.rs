//! How often somebody may ask: an average and a burst, for each tenant by itself, and for those whom nobody knows.

use std::collections::HashMap;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError};

use axum::http::StatusCode;
use governor::clock::{Clock, DefaultClock};
use governor::{DefaultDirectRateLimiter, DefaultKeyedRateLimiter, NotUntil, Quota, RateLimiter};
use stepwell::store::TenantId;

use super::guesses::network;
use crate::routes::problem::Problem;

/// Addresses and tenants that are remembered at a time of those who ask without a credential.
const REMEMBERED: usize = 10_000;
/// How much more than one address all of them together may ask without a credential.
const TOGETHER: u32 = 10;

/// Holds tenants to their pace.
pub(crate) struct Pace {
    burst: NonZeroU32,
    /// The pace of those who have none of their own; `None` = any.
    usual: Option<DefaultKeyedRateLimiter<TenantId>>,
    /// Those who have their own, by the rate it was made for.
    own: Mutex<HashMap<TenantId, (NonZeroU32, Arc<DefaultDirectRateLimiter>)>>,
}

impl Pace {
    /// So many requests per second on average, so many at once; 0 per second = any number.
    pub(crate) fn new(per_second: u32, burst: u32) -> Self {
        let burst = NonZeroU32::new(burst).unwrap_or(NonZeroU32::MIN);
        let quota = NonZeroU32::new(per_second).map(|rate| Quota::per_second(rate).allow_burst(burst));
        Pace { burst, usual: quota.map(RateLimiter::keyed), own: Mutex::default() }
    }

    /// Another request of this tenant, which may have a rate of its own; 0 = any number.
    pub(crate) fn admit(&self, tenant: TenantId, own: Option<u32>) -> Result<(), Problem> {
        let admitted = match (own.map(NonZeroU32::new), &self.usual) {
            (Some(Some(rate)), _) => self.own(tenant, rate).check(),
            (None, Some(usual)) => usual.check_key(&tenant),
            (Some(None), _) | (None, None) => Ok(()),
        };
        admitted.map_err(too_many)
    }

    /// What holds a tenant to its own rate.
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

#[expect(clippy::needless_pass_by_value, reason = "it is an error that is mapped")]
fn too_many(not_until: NotUntil<<DefaultClock as Clock>::Instant>) -> Problem {
    let wait = not_until.wait_time_from(DefaultClock::default().now());
    let detail = "Too many requests. Wait, and ask again.";
    Problem::new(StatusCode::TOO_MANY_REQUESTS, "tooManyRequests", detail).later(wait.as_secs() + 1)
}

/// Whom a request without a credential counts for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Whose {
    Address(IpAddr),
    Tenant(TenantId),
    /// Those there is no room for.
    Others,
}

/// Holds those who ask without a credential to a pace: each address, each tenant that they name, and all of them together.
pub(crate) struct OpenPace(Option<(DefaultKeyedRateLimiter<Whose>, DefaultDirectRateLimiter)>);

impl OpenPace {
    /// So many requests per second of each on average; 0 = any number.
    pub(crate) fn new(per_second: u32) -> Self {
        let quota = |rate: u32| {
            let (rate, burst) = (NonZeroU32::new(rate)?, NonZeroU32::new(rate.saturating_mul(5))?);
            Some(Quota::per_second(rate).allow_burst(burst))
        };
        let (each, all) = (quota(per_second), quota(per_second.saturating_mul(TOGETHER)));
        OpenPace(each.zip(all).map(|(each, all)| (RateLimiter::keyed(each), RateLimiter::direct(all))))
    }

    /// Another request from an address that names a tenant, as far as that is known.
    pub(crate) fn admit(&self, from: Option<IpAddr>, tenant: Option<TenantId>) -> Result<(), Problem> {
        let Some((each, all)) = &self.0 else { return Ok(()) };
        if each.len() >= REMEMBERED {
            each.retain_recent();
        }
        let is_full = each.len() >= REMEMBERED;
        let whose = [from.map(network).map(Whose::Address), tenant.map(Whose::Tenant)];
        for whose in whose.into_iter().flatten() {
            each.check_key(if is_full { &Whose::Others } else { &whose }).map_err(too_many)?;
        }
        all.check().map_err(too_many)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use stepwell::store::TenantId;
    use uuid::Uuid;

    use super::{OpenPace, REMEMBERED};

    #[test]
    fn a_flood_of_those_whom_nobody_knows_is_bounded() {
        let pace = OpenPace::new(10);
        let admitted = |ask: &dyn Fn(u32) -> bool| (0..10_000).filter(|n| ask(*n)).count();
        let one = Some(Ipv4Addr::new(192, 0, 2, 1).into());
        let from_one = admitted(&|n| pace.admit(one, Some(TenantId::new(Uuid::from_u128(n.into())))).is_ok());
        assert!((50..200).contains(&from_one), "of one address, whatever tenants it names: {from_one}");
        let pace = OpenPace::new(10);
        let tenant = Some(TenantId::new(Uuid::from_u128(7)));
        let to_one = admitted(&|n| pace.admit(Some(Ipv4Addr::from(n).into()), tenant).is_ok());
        assert!((50..200).contains(&to_one), "for one tenant, from wherever: {to_one}");
        let pace = OpenPace::new(10);
        let all = admitted(&|n| pace.admit(Some(Ipv4Addr::from(n).into()), None).is_ok());
        assert!((500..2_000).contains(&all), "together: {all}");
        let refused = (0..10_000).find_map(|_| pace.admit(None, None).err()).unwrap();
        assert!(refused.retry_after_s.is_some());
        assert!(OpenPace::new(0).admit(None, None).is_ok());
    }

    #[test]
    fn addresses_do_not_fill_the_memory() {
        let pace = OpenPace::new(1);
        for n in 0..u32::try_from(REMEMBERED).unwrap() + 500 {
            let _ = pace.admit(Some(Ipv4Addr::from(n).into()), None);
        }
        assert!(pace.0.unwrap().0.len() <= REMEMBERED + 1);
    }
}
