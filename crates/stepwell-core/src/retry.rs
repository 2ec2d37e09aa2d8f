//! When a failed try is tried again: pure arithmetic on the policy and the number of the retry.

use serde::{Deserialize, Serialize};

use crate::ids::Name;

/// Milliseconds before the first retry unless the policy says otherwise.
pub const DEFAULT_DELAY_MS: u64 = 1_000;
/// The longest pause between two tries unless the policy says otherwise.
pub const DEFAULT_MAX_DELAY_MS: u64 = 30_000;
/// How long a transition's action may take unless it says otherwise; 0 disables.
pub const DEFAULT_TIMEOUT_MS: u64 = 5 * 60 * 1_000;

/// What happens when a transition's action fails. The default is no retry: the run stays, with its error.
///
/// A retry runs the action again where the run is. With `target` it is a change of the run instead: the activation
/// leaves its place and enters the target, with its branch, loop position and locals, and the history calls that
/// `__retry:<transition>`. From there the run goes on as the definition says, also past the failed transition if
/// its way leads elsewhere. How often a transition was retried so is kept with the activation and counts against
/// `attempts` until the transition succeeds or goes to `place`; so the way back cannot be taken without end. A retry
/// by hand stays where the run is, whatever the target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Retry {
    /// Retries after the first try.
    #[serde(default)]
    pub attempts: u32,
    /// The pause before the first retry.
    #[serde(default = "default_delay")]
    pub delay_ms: u64,
    /// How the pause grows.
    #[serde(default)]
    pub backoff: Backoff,
    /// No pause is longer than this.
    #[serde(default = "default_max_delay")]
    pub max_delay_ms: u64,
    /// Where the run goes when the retries are spent; without it the run stays where it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<Name>,
    /// The step or wait from which a retry begins again, in the same branch and loop; without it, where the run is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<Name>,
    /// Only failures with one of these codes are retried; without it, all that are not final.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_on: Option<Vec<String>>,
}

/// How the pause between tries grows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Backoff {
    /// The same pause each time.
    Fixed,
    /// Twice as long each time.
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
    /// The pause before the k-th retry (k from 1), or `None` when k retries are more than allowed.
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

    /// Whether a failure with this code may be tried again at all.
    pub fn covers(&self, code: &str, is_final: bool) -> bool {
        !is_final && self.retry_on.as_ref().is_none_or(|codes| codes.iter().any(|listed| listed == code))
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

    #[test]
    fn pauses_double_up_to_the_cap_and_end_with_the_attempts() {
        let retry = Retry { attempts: 7, ..Retry::default() };
        let pauses: Vec<_> = (0..=8).map(|k| retry.delay_before(k)).collect();
        let expected = [1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000].map(Some);
        assert_eq!(pauses[0], None);
        assert_eq!(pauses[1..8], expected);
        assert_eq!(pauses[8], None);
    }

    #[test]
    fn a_fixed_pause_is_capped_too_and_a_huge_retry_number_does_not_overflow() {
        let fixed = Retry { attempts: 2, delay_ms: 90_000, backoff: Backoff::Fixed, ..Retry::default() };
        assert_eq!(fixed.delay_before(1), Some(30_000));
        let many = Retry { attempts: u32::MAX, ..Retry::default() };
        assert_eq!(many.delay_before(u32::MAX), Some(30_000));
    }

    #[test]
    fn only_listed_codes_that_are_not_final_are_covered() {
        let retry = Retry { attempts: 1, retry_on: Some(vec!["timeout".into()]), ..Retry::default() };
        assert!(retry.covers("timeout", false));
        assert!(!retry.covers("timeout", true));
        assert!(!retry.covers("other", false));
        assert!(Retry::default().covers("other", false));
    }
}
