//! The external effects of a test: a file to which every action appends one line, and the check of these lines.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;

use stepwell::Cx;
use stepwell_core::{Name, RunId};

/// A planted bug of the process under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Plant {
    /// Every call has its own idempotency key, instead of one key for all attempts of a step.
    FreshKeys,
    /// Some actions report success without having their effect.
    LostEffects,
    /// Runs are started without idempotency keys, so a restarted process starts them again.
    NoKeys,
}

/// The append-only file of effects.
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

    /// Appends the line of one effect in one write. The line starts with a line break too, so that a line truncated by
    /// a kill does not corrupt the next one.
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

/// The result of checking the file of effects. Each field is a count.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Complete lines in the file.
    pub(crate) effects: u64,
    /// Lines truncated by a kill.
    pub(crate) torn: u64,
    /// Effects of a step that already had one: its process died before the step was committed.
    pub(crate) repeated: u64,
    /// Repeated effects whose attempt number is not higher than that of the previous effect.
    pub(crate) uncounted: u64,
    /// Committed steps without an effect.
    pub(crate) missing: u64,
    /// Steps whose effects have different keys, and keys shared by several steps.
    pub(crate) wrong_keys: u64,
}

type Step = (RunId, Name);

/// Compares the effects with the committed steps.
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
    fn one_effect_per_step_is_clean() {
        let seen = checked(&["t0 a 1 x.", "t1 b 1 y."], &["t0", "t1"]);
        assert_eq!(seen, Seen { effects: 2, ..Seen::default() });
    }

    #[test]
    fn repeated_effect_needs_same_key_and_higher_attempt() {
        let seen = checked(&["t0 a 1 x.", "t0 a 2 y."], &["t0"]);
        assert_eq!(seen, Seen { effects: 2, repeated: 1, ..Seen::default() });
        assert_eq!(checked(&["t0 a 1 x.", "t0 a 1 y."], &["t0"]).uncounted, 1);
        assert_eq!(checked(&["t0 a 1 x.", "t0 b 2 y."], &["t0"]).wrong_keys, 1);
    }

    #[test]
    fn missing_shared_and_torn_effects_are_counted() {
        assert_eq!(checked(&["t0 a 1 x."], &["t0", "t1"]).missing, 1);
        assert_eq!(checked(&["t0 a 1 x.", "t1 a 1 y."], &["t0", "t1"]).wrong_keys, 1);
        let torn = checked(&["t0 a 1", "t0 a 1 x."], &["t0"]);
        assert_eq!(torn, Seen { effects: 1, torn: 1, ..Seen::default() });
    }
}
