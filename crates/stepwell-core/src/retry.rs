//! Retry policies. A delay depends only on the policy, the number of the retry and, with jitter, on the run and its
//! activation.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest, Sha256};

use crate::codes;
use crate::ids::{Name, RunId};
use crate::refusal::Failure;
use crate::snapshot::ActivationId;
use crate::time::Timestamp;

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
    /// Growth of an exponential delay per retry.
    #[serde(default, skip_serializing_if = "Factor::is_default")]
    pub factor: Factor,
    /// Spread of the delay.
    #[serde(default, skip_serializing_if = "Jitter::is_none")]
    pub jitter: Jitter,
    /// Time after the start of the first attempt, in milliseconds. No retry starts later. Default: unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget_ms: Option<u64>,
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

/// The growth of an exponential delay per retry, with a precision of 0.001.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Factor(u32);

impl Factor {
    /// The smallest and the largest factor, in thousandths.
    const LIMITS: (u32, u32) = (1_000, 100_000);

    /// Creates a factor from 1 to 100. Returns `None` for any other number.
    pub fn new(factor: f64) -> Option<Self> {
        let thousandths = (factor * 1_000.0).round();
        let (least, most) = (f64::from(Self::LIMITS.0), f64::from(Self::LIMITS.1));
        // The number is at most 100,000, so the conversion loses nothing.
        (least..=most).contains(&thousandths).then_some(Factor(thousandths as u32))
    }

    /// Returns the factor as a number.
    pub fn get(self) -> f64 {
        f64::from(self.0) / 1_000.0
    }

    pub(crate) fn is_default(&self) -> bool {
        *self == Factor::default()
    }
}

impl Default for Factor {
    fn default() -> Self {
        Factor(2_000)
    }
}

impl Serialize for Factor {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.get())
    }
}

impl<'de> Deserialize<'de> for Factor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let factor = f64::deserialize(deserializer)?;
        let wrong = || serde::de::Error::custom(format!("`factor` must be between 1 and 100 (got {factor})"));
        Factor::new(factor).ok_or_else(wrong)
    }
}

/// The spread of the delays, so that many runs do not retry at the same moment.
///
/// A delay is not random: it follows from the run, the activation and the number of the retry. So a decision that is
/// made again gives the same time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Jitter {
    #[default]
    None,
    /// Between zero and the delay.
    Full,
    /// Between half of the delay and the delay.
    Equal,
    /// At most this percentage below or above the delay, 1 to 100.
    Percent(u32),
}

impl Jitter {
    pub(crate) fn is_none(&self) -> bool {
        *self == Jitter::None
    }

    /// Returns the smallest and the largest delay.
    fn range(self, delay_ms: u64) -> (u64, u64) {
        match self {
            Jitter::None => (delay_ms, delay_ms),
            Jitter::Full => (0, delay_ms),
            Jitter::Equal => (delay_ms / 2, delay_ms),
            Jitter::Percent(percent) => {
                let part = u128::from(delay_ms) * u128::from(percent) / 100;
                let part = u64::try_from(part).unwrap_or(u64::MAX);
                (delay_ms.saturating_sub(part), delay_ms.saturating_add(part))
            }
        }
    }
}

/// The growth of the delay between attempts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Backoff {
    /// The delay stays the same.
    Fixed,
    /// The delay grows by the factor of the policy with each retry.
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
            factor: Factor::default(),
            jitter: Jitter::default(),
            budget_ms: None,
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
            Backoff::Exponential => self.grown(k),
        };
        Some(grown.min(self.max_delay_ms))
    }

    /// Returns the exponential delay before the k-th retry, at most the maximum delay.
    fn grown(&self, k: u32) -> u64 {
        const UNIT: u128 = 1_000_000;
        let (most, mut delay) = (u128::from(self.max_delay_ms) * UNIT, u128::from(self.delay_ms) * UNIT);
        if self.factor.0 <= 1_000 || delay == 0 {
            return self.delay_ms;
        }
        for _ in 1..k {
            if delay >= most {
                break;
            }
            delay = delay * u128::from(self.factor.0) / 1_000;
        }
        u64::try_from(delay / UNIT).unwrap_or(u64::MAX)
    }

    /// Returns the delay before the k-th retry of an activation in milliseconds, with jitter.
    pub fn jittered_delay(&self, k: u32, run: RunId, activation: ActivationId) -> Option<u64> {
        let delay = self.delay_before(k)?;
        let (least, most) = self.jitter.range(delay);
        if least == most {
            return Some(delay);
        }
        let seed = Sha256::digest(format!("{run}:{activation}:{k}"));
        let mut number = [0; 8];
        number.copy_from_slice(&seed[..8]);
        let width = u128::from(most - least) + 1;
        let part = (width * u128::from(u64::from_be_bytes(number))) >> 64;
        let part = u64::try_from(part).unwrap_or(u64::MAX);
        Some(least.saturating_add(part).min(self.max_delay_ms))
    }

    /// Returns true if a retry at `next` starts within the budget that begins with the first attempt.
    pub fn is_within_budget(&self, first: Timestamp, next: Timestamp) -> bool {
        self.budget_ms.is_none_or(|budget| next <= first.plus_ms(budget))
    }

    /// Returns true if the policy has a setting that an expression for the delay cannot express.
    pub(crate) fn needs_timer(&self) -> bool {
        !self.factor.is_default() || !self.jitter.is_none() || self.budget_ms.is_some()
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
    use super::{Backoff, Factor, Jitter, Retry};
    use crate::ids::RunId;
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

    #[test]
    fn delays_grow_by_the_factor_of_the_policy() {
        let grows = |factor| {
            let factor = Factor::new(factor).unwrap();
            let retry = Retry { attempts: 9, factor, max_delay_ms: 10_000, ..Retry::default() };
            (1..=5).filter_map(|k| retry.delay_before(k)).collect::<Vec<_>>()
        };
        assert_eq!(grows(1.5), [1_000, 1_500, 2_250, 3_375, 5_062]);
        assert_eq!(grows(1.0), [1_000; 5]);
        assert_eq!(grows(100.0), [1_000, 10_000, 10_000, 10_000, 10_000]);
        assert_eq!([0.9, 100.1, f64::NAN, -1.0].map(Factor::new), [None; 4]);
        let tiny = Retry {
            attempts: u32::MAX,
            delay_ms: 1,
            factor: Factor::new(1.001).unwrap(),
            ..Retry::default()
        };
        assert_eq!(tiny.delay_before(u32::MAX), Some(30_000));
    }

    #[test]
    fn jitter_stays_in_its_range_and_follows_from_the_run() {
        let run = RunId::nil();
        for (jitter, least, most) in
            [(Jitter::Full, 0, 8_000), (Jitter::Equal, 4_000, 8_000), (Jitter::Percent(25), 6_000, 10_000)]
        {
            let retry =
                Retry { attempts: 9, delay_ms: 8_000, backoff: Backoff::Fixed, jitter, ..Retry::default() };
            let delays: Vec<_> = (0..200).filter_map(|id| retry.jittered_delay(1, run, id)).collect();
            assert!(delays.iter().all(|delay| (least..=most).contains(delay)), "{delays:?}");
            let spread = delays.iter().max().unwrap() - delays.iter().min().unwrap();
            assert!(spread > (most - least) * 9 / 10, "{jitter:?}: {spread}");
            assert_eq!(retry.jittered_delay(1, run, 7), retry.jittered_delay(1, run, 7));
            assert_ne!(retry.jittered_delay(1, run, 7), retry.jittered_delay(2, run, 7));
        }
    }

    #[test]
    fn settings_at_their_defaults_are_not_written() {
        let written = serde_json::to_value(Retry { attempts: 3, ..Retry::default() }).unwrap();
        let fields: Vec<_> = written.as_object().unwrap().keys().cloned().collect();
        assert_eq!(fields, ["attempts", "backoff", "delayMs", "maxDelayMs"]);
        let full = Retry {
            factor: Factor::new(1.5).unwrap(),
            jitter: Jitter::Percent(20),
            budget_ms: Some(9),
            ..Retry::default()
        };
        let written = serde_json::to_value(&full).unwrap();
        assert_eq!((&written["factor"], &written["jitter"]["percent"]), (&1.5.into(), &20.into()));
        assert_eq!(serde_json::from_value::<Retry>(written).unwrap(), full);
    }
}
