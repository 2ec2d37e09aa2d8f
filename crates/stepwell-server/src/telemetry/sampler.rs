//! Which traces are written down, as `OTEL_TRACES_SAMPLER` says it.
//!
//! A run's trace has the id of its tree's root, and whether it is written is told from that id alone: every process comes
//! to the same answer, and a trace is whole or not there.

use uuid::Uuid;

/// Which traces are written down.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampler {
    /// This part of them.
    ratio: f64,
    /// What a caller says of its own trace is followed.
    follows_callers: bool,
}

impl Default for Sampler {
    /// All of them, but those that a caller does not write either.
    fn default() -> Self {
        Sampler { ratio: 1.0, follows_callers: true }
    }
}

/// The bits of an id that are chance in every kind of UUID that the engine makes: before them, ids of one millisecond count up.
const CHANCE: u64 = (1 << 32) - 1;

impl Sampler {
    /// Reads `OTEL_TRACES_SAMPLER` and `OTEL_TRACES_SAMPLER_ARG`.
    pub fn read(name: &str, ratio: f64) -> Result<Self, String> {
        if !(0.0..=1.0).contains(&ratio) {
            return Err(format!("`{ratio}` is no part of all traces: write a number from 0 to 1"));
        }
        let (name, follows_callers) = match name.strip_prefix("parentbased_") {
            Some(name) => (name, true),
            None => (name, false),
        };
        let ratio = match name {
            "always_on" => 1.0,
            "always_off" => 0.0,
            "traceidratio" => ratio,
            _ => {
                let known = "always_on, always_off or traceidratio, also with parentbased_ before it";
                return Err(format!("there is no sampler `{name}`: write {known}"));
            }
        };
        Ok(Sampler { ratio, follows_callers })
    }

    /// Whether a trace is written; `caller` is what whoever began it says.
    pub(crate) fn samples(self, trace: Uuid, caller: Option<bool>) -> bool {
        match caller {
            Some(says) if self.follows_callers => says,
            _ => ((trace.as_u64_pair().1 & CHANCE) as f64) < self.ratio * (CHANCE as f64 + 1.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::Sampler;

    #[test]
    fn the_same_part_is_written_everywhere() {
        let half = Sampler::read("traceidratio", 0.5).unwrap();
        let ids: Vec<_> = (0..2_000).map(|_| Uuid::now_v7()).collect();
        let written = ids.iter().filter(|id| half.samples(**id, None)).count();
        assert!((800..1_200).contains(&written), "{written}");
        assert!(ids.iter().all(|id| half.samples(*id, None) == half.samples(*id, Some(true))));
        let all = Sampler::read("parentbased_always_on", 1.0).unwrap();
        assert_eq!(all, Sampler::default());
        assert!(all.samples(ids[0], None) && !all.samples(ids[0], Some(false)));
        let none = Sampler::read("parentbased_always_off", 1.0).unwrap();
        assert!(!none.samples(ids[0], None) && none.samples(ids[0], Some(true)));
        assert!(ids.iter().all(|id| Sampler::read("always_on", 0.0).unwrap().samples(*id, None)));
        assert!(Sampler::read("sometimes", 1.0).unwrap_err().contains("traceidratio"));
        assert!(Sampler::read("traceidratio", 1.5).is_err());
    }
}
