//! How often a tenant may ask: an average and a burst, for each tenant by itself.

use std::num::NonZeroU32;

use axum::http::StatusCode;
use governor::clock::{Clock, DefaultClock};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use stepwell::store::TenantId;

use crate::routes::problem::Problem;

/// Holds tenants to their pace.
pub(crate) struct Pace(Option<DefaultKeyedRateLimiter<TenantId>>);

impl Pace {
    /// So many requests per second on average, so many at once; 0 per second = any number.
    pub(crate) fn new(per_second: u32, burst: u32) -> Self {
        let burst = NonZeroU32::new(burst).unwrap_or(NonZeroU32::MIN);
        let quota = NonZeroU32::new(per_second).map(|rate| Quota::per_second(rate).allow_burst(burst));
        Pace(quota.map(RateLimiter::keyed))
    }

    /// Another request of this tenant.
    pub(crate) fn admit(&self, tenant: TenantId) -> Result<(), Problem> {
        let Some(limiter) = &self.0 else { return Ok(()) };
        limiter.check_key(&tenant).map_err(|not_until| {
            let wait = not_until.wait_time_from(DefaultClock::default().now());
            let detail = "Too many requests. Wait, and ask again.";
            Problem::new(StatusCode::TOO_MANY_REQUESTS, "tooManyRequests", detail).later(wait.as_secs() + 1)
        })
    }
}
