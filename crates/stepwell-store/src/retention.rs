//! Computes how much of a run's history one batch can remove. It never removes a state that a remaining state builds
//! on.

/// The versions of a run that have checkpoints. There are no gaps between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Versions {
    pub oldest: u64,
    pub newest: u64,
}

/// The extent of one batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// The oldest version that stays. All older ones are removed.
    pub oldest: u64,
    /// True if another batch may remove more.
    pub more: bool,
}

/// Computes one batch such that the newest `keep` versions stay, and at least one.
///
/// `base_of` returns the version whose full state a version builds on. A batch ends at the end of a chain of deltas, so
/// that every remaining state can be read. It has at most `limit` checkpoints, or one chain if that is longer.
pub fn cut<E>(
    versions: Versions,
    keep: u64,
    limit: u32,
    mut base_of: impl FnMut(u64) -> Result<Option<u64>, E>,
) -> Result<Cut, E> {
    let Versions { oldest, newest } = versions;
    let nothing = Cut { oldest, more: false };
    let kept = newest.saturating_sub(keep.saturating_sub(1));
    if kept <= oldest {
        return Ok(nothing);
    }
    let Some(end) = base_of(kept)?.filter(|end| *end > oldest) else { return Ok(nothing) };
    if limit == 0 {
        return Ok(Cut { oldest, more: true });
    }
    // The search ends at the first version whose chain begins after `oldest`, so it is no longer than one chain.
    for version in oldest.saturating_add(limit.into())..end {
        if let Some(base) = base_of(version)?.filter(|base| *base > oldest) {
            return Ok(Cut { oldest: base, more: true });
        }
    }
    Ok(Cut { oldest: end, more: false })
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use proptest::prelude::{any, proptest};

    use super::{Cut, Versions, cut};

    /// Versions start at 10. `whole` marks the versions that begin a chain.
    fn base_of(whole: &[bool], version: u64) -> Option<u64> {
        let index = usize::try_from(version.checked_sub(10)?).unwrap();
        let chain = whole.get(..=index)?;
        Some(10 + chain.iter().rposition(|whole| *whole).unwrap_or(0) as u64)
    }

    proptest! {
        #[test]
        fn batches_end_at_full_states_and_terminate(
            whole in proptest::collection::vec(any::<bool>(), 1..40),
            keep in 0_u64..50,
            limit in 1_u32..20,
        ) {
            let newest = 9 + whole.len() as u64;
            let kept = newest.saturating_sub(keep.saturating_sub(1)).max(10);
            let mut oldest = 10;
            loop {
                let Ok(next) = cut(Versions { oldest, newest }, keep, limit, |v| Ok::<_, Infallible>(base_of(&whole, v)));
                assert_eq!(base_of(&whole, next.oldest), Some(next.oldest), "the remaining versions begin with a full state");
                assert!(next.oldest <= kept);
                if next.oldest - oldest > u64::from(limit) {
                    let between = (oldest + 1..next.oldest).map(|version| base_of(&whole, version));
                    assert!(between.into_iter().all(|base| base == Some(oldest)), "only a single chain may exceed the limit");
                }
                assert!(!next.more || next.oldest > oldest);
                oldest = next.oldest;
                if !next.more {
                    break;
                }
            }
            assert_eq!(oldest, base_of(&whole, kept).unwrap());
        }
    }

    #[test]
    fn a_zero_limit_removes_nothing() {
        let versions = Versions { oldest: 10, newest: 12 };
        let base = |v| Ok::<_, Infallible>(Some(v));
        assert_eq!(cut(versions, 1, 0, base), Ok(Cut { oldest: 10, more: true }));
        assert_eq!(cut(versions, u64::MAX, 0, base), Ok(Cut { oldest: 10, more: false }));
    }
}
