//! How much of a run's history may go at a time: never what a state that stays is built on.

/// The versions a run has checkpoints of; there are no gaps between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Versions {
    /// The first.
    pub oldest: u64,
    /// The last.
    pub newest: u64,
}

/// How far one batch goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// The oldest version that stays: what is older goes.
    pub oldest: u64,
    /// Another batch may take more.
    pub more: bool,
}

/// Finds out what may go so that the newest `keep` versions stay, and at least one.
///
/// `base_of` says which version's whole state a version builds on. A batch ends where a chain of deltas does, so that
/// every state that is left can be read; so it is at most `limit` checkpoints, or one chain if that is longer.
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
    // The first version whose chain begins after the oldest one ends the search: no further away than a chain is long.
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

    /// Version 10 and on, chains that begin where told.
    fn base_of(whole: &[bool], version: u64) -> Option<u64> {
        let index = usize::try_from(version.checked_sub(10)?).unwrap();
        let chain = whole.get(..=index)?;
        Some(10 + chain.iter().rposition(|whole| *whole).unwrap_or(0) as u64)
    }

    proptest! {
        #[test]
        fn batches_end_at_whole_states_and_come_to_an_end(
            whole in proptest::collection::vec(any::<bool>(), 1..40),
            keep in 0_u64..50,
            limit in 1_u32..20,
        ) {
            let newest = 9 + whole.len() as u64;
            let kept = newest.saturating_sub(keep.saturating_sub(1)).max(10);
            let mut oldest = 10;
            loop {
                let Ok(next) = cut(Versions { oldest, newest }, keep, limit, |v| Ok::<_, Infallible>(base_of(&whole, v)));
                assert_eq!(base_of(&whole, next.oldest), Some(next.oldest), "what is left begins with a whole state");
                assert!(next.oldest <= kept);
                if next.oldest - oldest > u64::from(limit) {
                    let between = (oldest + 1..next.oldest).map(|version| base_of(&whole, version));
                    assert!(between.into_iter().all(|base| base == Some(oldest)), "only one chain is more than the limit");
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
    fn without_a_limit_there_is_nothing_to_take_and_more_is_left() {
        let versions = Versions { oldest: 10, newest: 12 };
        let base = |v| Ok::<_, Infallible>(Some(v));
        assert_eq!(cut(versions, 1, 0, base), Ok(Cut { oldest: 10, more: true }));
        assert_eq!(cut(versions, u64::MAX, 0, base), Ok(Cut { oldest: 10, more: false }));
    }
}
