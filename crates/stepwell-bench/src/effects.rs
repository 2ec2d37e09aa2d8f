//! The outside world of a test: a file to which every action appends a line, and what the lines must say in the end.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;

use stepwell::Cx;
use stepwell_core::{Name, RunId};

/// What a victim does wrong on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Plant {
    /// Every call has a key of its own, instead of one for all tries of a step.
    FreshKeys,
    /// Some actions say that they have had their effect and have not.
    LostEffects,
    /// Runs are started without keys: a restarted process starts them again.
    NoKeys,
}

/// The file of effects.
pub(crate) struct Effects {
    file: File,
    plant: Option<Plant>,
}

impl Effects {
    pub(crate) fn open(path: &Path, plant: Option<Plant>) -> Result<Effects, String> {
        let file =
            OpenOptions::new().append(true).create(true).open(path).map_err(|error| error.to_string())?;
        Ok(Effects { file, plant })
    }

    /// Has an effect: one line, in one write. A line begins with a line break too, so that one that was cut off by a
    /// kill does not spoil the next.
    pub(crate) fn have(&self, cx: &Cx) -> std::io::Result<()> {
        let token = stepwell::new_run_id();
        if self.plant == Some(Plant::LostEffects) && token.uuid().as_u128().is_multiple_of(16) {
            return Ok(());
        }
        let key = match self.plant {
            Some(Plant::FreshKeys) => stepwell::new_run_id().to_string(),
            _ => cx.idempotency_key(),
        };
        let line = format!("\n{} {} {key} {} {token}.\n", cx.run(), cx.transition(), cx.attempt());
        (&self.file).write_all(line.as_bytes())
    }
}

/// What the file says.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Lines that are whole.
    pub(crate) effects: u64,
    /// Lines that a kill has cut off.
    pub(crate) torn: u64,
    /// Effects of a step that has had one already: its process died before it was committed.
    pub(crate) repeated: u64,
    /// Repeated effects whose try has no higher number than the one before.
    pub(crate) uncounted: u64,
    /// Committed steps without an effect.
    pub(crate) missing: u64,
    /// Steps whose effects have different keys, and keys that several steps have.
    pub(crate) wrong_keys: u64,
}

/// An effect's step.
type Step = (RunId, Name);

/// Holds the effects against the steps that were committed.
pub(crate) fn check(text: &str, committed: &BTreeMap<RunId, BTreeSet<Name>>) -> Seen {
    let mut seen = Seen::default();
    let mut by_step: BTreeMap<Step, Vec<(&str, u64)>> = BTreeMap::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        match read(line) {
            Some((step, key, attempt)) => {
                seen.effects += 1;
                by_step.entry(step).or_default().push((key, attempt));
            }
            None => seen.torn += 1,
        }
    }
    let mut keys: BTreeMap<&str, BTreeSet<&Step>> = BTreeMap::new();
    for (step, effects) in &by_step {
        seen.repeated += effects.len() as u64 - 1;
        seen.uncounted += effects.windows(2).filter(|pair| pair[1].1 <= pair[0].1).count() as u64;
        let different: BTreeSet<&str> = effects.iter().map(|(key, _)| *key).collect();
        seen.wrong_keys += different.len() as u64 - 1;
        for key in different {
            keys.entry(key).or_default().insert(step);
        }
    }
    seen.wrong_keys += keys.values().map(|steps| steps.len() as u64 - 1).sum::<u64>();
    let steps = committed.iter().flat_map(|(run, steps)| steps.iter().map(|step| (*run, step.clone())));
    seen.missing = steps.filter(|step| !by_step.contains_key(step)).count() as u64;
    seen
}

fn read(line: &str) -> Option<(Step, &str, u64)> {
    let mut parts = line.strip_suffix('.')?.split(' ');
    let (run, step, key) = (parts.next()?.parse().ok()?, Name::from(parts.next()?), parts.next()?);
    let attempt = parts.next()?.parse().ok()?;
    parts.next()?;
    parts.next().is_none().then_some(((run, step), key, attempt))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: &str = "00000000-0000-0000-0000-000000000001";

    fn checked(lines: &[&str], committed: &[&str]) -> Seen {
        let text: String = lines.iter().map(|line| format!("\n{RUN} {line}\n")).collect();
        let run = RUN.parse().expect("a run's id");
        check(&text, &BTreeMap::from([(run, committed.iter().map(|step| Name::from(*step)).collect())]))
    }

    #[test]
    fn one_effect_for_each_step_is_clean() {
        let seen = checked(&["t0 a 1 x.", "t1 b 1 y."], &["t0", "t1"]);
        assert_eq!(seen, Seen { effects: 2, ..Seen::default() });
    }

    #[test]
    fn a_repeated_effect_has_the_same_key_and_a_higher_number() {
        let seen = checked(&["t0 a 1 x.", "t0 a 2 y."], &["t0"]);
        assert_eq!(seen, Seen { effects: 2, repeated: 1, ..Seen::default() });
        assert_eq!(checked(&["t0 a 1 x.", "t0 a 1 y."], &["t0"]).uncounted, 1);
        assert_eq!(checked(&["t0 a 1 x.", "t0 b 2 y."], &["t0"]).wrong_keys, 1);
    }

    #[test]
    fn what_is_missing_shared_or_torn_is_seen() {
        assert_eq!(checked(&["t0 a 1 x."], &["t0", "t1"]).missing, 1);
        assert_eq!(checked(&["t0 a 1 x.", "t1 a 1 y."], &["t0", "t1"]).wrong_keys, 1);
        let torn = checked(&["t0 a 1", "t0 a 1 x."], &["t0"]);
        assert_eq!(torn, Seen { effects: 1, torn: 1, ..Seen::default() });
    }
}
