//! How often a tenant may ask: an average and a burst, for each tenant by itself.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError};

use axum::http::StatusCode;
use governor::clock::{Clock, DefaultClock};
use governor::{DefaultDirectRateLimiter, DefaultKeyedRateLimiter, Quota, RateLimiter};
use stepwell::store::TenantId;

use crate::routes::problem::Problem;

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
        admitted.map_err(|not_until| {
            let wait = not_until.wait_time_from(DefaultClock::default().now());
            let detail = "Too many requests. Wait, and ask again.";
            Problem::new(StatusCode::TOO_MANY_REQUESTS, "tooManyRequests", detail).later(wait.as_secs() + 1)
        })
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
