//! Remembers which queries of the runner failed, so that a database node that is down delays only its own tenants.

use std::collections::BTreeMap;

use stepwell_core::Timestamp;
use stepwell_store::TenantId;

/// Pause after the second failure in a row, in milliseconds. It doubles with every further failure.
const FIRST_PAUSE_MS: u64 = 1_000;
/// Maximum pause, in milliseconds.
const LONGEST_PAUSE_MS: u64 = 30_000;

/// The queries that failed when they were last sent.
#[derive(Default)]
pub(crate) struct Outage {
    list: Failures,
    tenants: BTreeMap<TenantId, Failures>,
}

/// The failures in a row of one query.
#[derive(Default)]
struct Failures {
    count: u32,
    retry_at: Option<Timestamp>,
}

impl Failures {
    fn may_retry(&self, now: Timestamp) -> bool {
        self.retry_at.is_none_or(|at| at <= now)
    }

    /// Counts a failure. The first one causes no pause: most failures are over at once.
    fn add(&mut self, now: Timestamp) {
        let doubled = self.count.checked_sub(1).map(|times| FIRST_PAUSE_MS << times.min(16));
        self.retry_at = doubled.map(|pause| now.plus_ms(pause.min(LONGEST_PAUSE_MS)));
        self.count = self.count.saturating_add(1);
    }
}

impl Outage {
    /// Returns true if the tenants with due runs should be listed now.
    pub(crate) fn may_list(&self, now: Timestamp) -> bool {
        self.list.may_retry(now)
    }

    /// Records that the list needed every node and got its answer: no node is down.
    pub(crate) fn end(&mut self) {
        *self = Outage::default();
    }

    pub(crate) fn list_failed(&mut self, now: Timestamp) {
        self.list.add(now);
    }

    /// Returns true if runs of the tenant should be claimed now.
    pub(crate) fn may_claim(&self, tenant: TenantId, now: Timestamp) -> bool {
        self.tenants.get(&tenant).is_none_or(|failures| failures.may_retry(now))
    }

    pub(crate) fn claim_failed(&mut self, tenant: TenantId, now: Timestamp) {
        self.tenants.entry(tenant).or_default().add(now);
    }

    pub(crate) fn claim_succeeded(&mut self, tenant: TenantId) {
        self.tenants.remove(&tenant);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_limit() {
        let (mut failures, now) = (Failures::default(), Timestamp::from_millis(0));
        let pauses = (0..9).map(|_| {
            failures.add(now);
            failures.retry_at.map_or(0, |at| at.ms_since(now))
        });
        assert!(pauses.eq([0, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000, 30_000]));
    }
}
