//! Trace sampling, configured like `OTEL_TRACES_SAMPLER`.
//!
//! The trace id of a run is the id of its tree's root, and the decision depends on that id alone. So every process
//! makes the same decision, and a trace is exported completely or not at all.

use uuid::Uuid;

/// Decides which traces are exported. The default exports all, except those that a caller does not sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampler {
    /// Fraction of traces that are exported, from 0 to 1.
    ratio: f64,
    /// The caller's decision applies to traces that a caller has started.
    follows_callers: bool,
}

impl Default for Sampler {
    fn default() -> Self {
        Sampler { ratio: 1.0, follows_callers: true }
    }
}

/// The bits of an id that are random in every UUID that the engine makes. Higher bits may be a counter within one
/// millisecond.
const CHANCE: u64 = (1 << 32) - 1;

impl Sampler {
    /// Parses the values of `OTEL_TRACES_SAMPLER` and `OTEL_TRACES_SAMPLER_ARG`.
    pub fn read(name: &str, ratio: f64) -> Result<Self, String> {
        if !(0.0..=1.0).contains(&ratio) {
            return Err(format!("the sampling ratio must be from 0 to 1 (got {ratio})"));
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
                let known =
                    "`always_on`, `always_off` or `traceidratio`, optionally with the prefix `parentbased_`";
                return Err(format!("unknown sampler `{name}`: use {known}"));
            }
        };
        Ok(Sampler { ratio, follows_callers })
    }

    /// Returns true if a trace is exported. `caller` is the caller's decision, if a caller started the trace.
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
    fn sampling_depends_on_the_trace_id_only() {
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
