//! Retry policies. The delays depend only on the policy and the number of the retry.

use serde::{Deserialize, Serialize};

use crate::codes;
use crate::ids::Name;
use crate::refusal::Failure;

/// Default delay before the first retry, in milliseconds.
pub const DEFAULT_DELAY_MS: u64 = 1_000;
/// Default maximum delay between two attempts, in milliseconds.
pub const DEFAULT_MAX_DELAY_MS: u64 = 30_000;

/// The retry policy for a transition's action. By default there are no retries: the run stays in its place, with the
/// error.
///
/// A retry runs the action again in the current place. With `target`, a retry is a change of the run instead. The
/// activation leaves its place and enters the target, with its branch, loop position and locals. The history entry of
/// that change is `__retry:<transition>`. From there the run continues as the definition says; its route may also
/// bypass the failed transition.
///
/// The activation counts these retries per transition. They count against `attempts` until the transition succeeds or
/// goes to `place`, so that a run cannot go back endlessly. A manual retry stays in the current place, even if there
/// is a target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Retry {
    /// Maximum number of retries after the first attempt.
    #[serde(default)]
    pub attempts: u32,
    /// Delay before the first retry, in milliseconds.
    #[serde(default = "default_delay")]
    pub delay_ms: u64,
    /// Growth of the delay from retry to retry.
    #[serde(default)]
    pub backoff: Backoff,
    /// Maximum delay, in milliseconds.
    #[serde(default = "default_max_delay")]
    pub max_delay_ms: u64,
    /// The place entered when all retries have failed. Without it, the run stays in its place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<Name>,
    /// The step or wait that a retry goes back to, in the same branch and loop. Without it, a retry stays in the
    /// current place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<Name>,
    /// Codes of the failures that are retried. Without it, all failures are retried unless they are final.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_on: Option<Vec<String>>,
}

/// The growth of the delay between attempts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Backoff {
    /// The delay stays the same.
    Fixed,
    /// The delay doubles with each retry.
    #[default]
    Exponential,
}

impl Default for Retry {
    fn default() -> Self {
        Retry {
            attempts: 0,
            delay_ms: DEFAULT_DELAY_MS,
            backoff: Backoff::default(),
            max_delay_ms: DEFAULT_MAX_DELAY_MS,
            place: None,
            target: None,
            retry_on: None,
        }
    }
}

impl Retry {
    /// Returns the delay before the k-th retry (counted from 1) in milliseconds, or `None` if the policy allows fewer
    /// than k retries.
    pub fn delay_before(&self, k: u32) -> Option<u64> {
        if k == 0 || k > self.attempts {
            return None;
        }
        let grown = match self.backoff {
            Backoff::Fixed => self.delay_ms,
            Backoff::Exponential => {
                let factor = 1_u64.checked_shl(k - 1).unwrap_or(u64::MAX);
                self.delay_ms.saturating_mul(factor)
            }
        };
        Some(grown.min(self.max_delay_ms))
    }

    /// Returns true if the failure may be retried. A final failure is retried only if its HTTP status is listed.
    pub fn covers(&self, failure: &Failure) -> bool {
        match &self.retry_on {
            None => !failure.is_final,
            Some(listed) if failure.is_final => codes::lists_status(listed, failure),
            Some(listed) => codes::lists(listed, failure),
        }
    }
}

fn default_delay() -> u64 {
    DEFAULT_DELAY_MS
}

fn default_max_delay() -> u64 {
    DEFAULT_MAX_DELAY_MS
}

#[cfg(test)]
mod tests {
    use super::{Backoff, Retry};
    use crate::refusal::Failure;

    #[test]
    fn delays_double_up_to_the_maximum() {
        let retry = Retry { attempts: 7, ..Retry::default() };
        let pauses: Vec<_> = (0..=8).map(|k| retry.delay_before(k)).collect();
        let expected = [1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000].map(Some);
        assert_eq!(pauses[0], None);
        assert_eq!(pauses[1..8], expected);
        assert_eq!(pauses[8], None);
    }

    #[test]
    fn fixed_delay_is_capped_and_large_numbers_do_not_overflow() {
        let fixed = Retry { attempts: 2, delay_ms: 90_000, backoff: Backoff::Fixed, ..Retry::default() };
        assert_eq!(fixed.delay_before(1), Some(30_000));
        let many = Retry { attempts: u32::MAX, ..Retry::default() };
        assert_eq!(many.delay_before(u32::MAX), Some(30_000));
    }

    #[test]
    fn only_listed_codes_that_are_not_final_are_retried() {
        let retry = Retry { attempts: 1, retry_on: Some(vec!["timeout".into()]), ..Retry::default() };
        let failure = |code: &str| Failure::new(code, "it failed");
        assert!(retry.covers(&failure("timeout")));
        assert!(!retry.covers(&failure("timeout").non_retryable()));
        assert!(!retry.covers(&failure("other")));
        assert!(Retry::default().covers(&failure("other")));
    }
}
