//! Measures the share of the machine that other programs used during a run.

use std::fs;

/// Processor counters at one time, in clock ticks. `None` if the system does not provide them.
pub(crate) struct Load(Option<Ticks>);

#[derive(Clone, Copy, Debug, PartialEq)]
struct Ticks {
    /// Ticks of all processors, idle or not.
    all: u64,
    /// Ticks spent on any program of this machine, or taken by the host of a virtual machine.
    busy: u64,
    /// Ticks spent on this process and its descendants.
    own: u64,
}

/// Share below which the load of others counts as zero. Servers outlive the test that started them, so their time looks
/// like that of other programs.
const OURS_ALL_THE_SAME: f64 = 0.15;

impl Load {
    pub(crate) fn now() -> Load {
        let read = |path| fs::read_to_string(path).ok();
        Load(read("/proc/stat").zip(read("/proc/self/stat")).and_then(|(all, own)| Ticks::read(&all, &own)))
    }

    /// Returns the share of the machine, from 0 to 1, that other programs have used since `self`.
    pub(crate) fn taken_by_others(&self) -> f64 {
        match (self.0, Load::now().0) {
            (Some(then), Some(now)) => now.taken_by_others(then),
            _ => 0.0,
        }
    }
}

impl Ticks {
    fn read(all: &str, own: &str) -> Option<Ticks> {
        let numbers = |text: &str| text.split_whitespace().map_while(|word| word.parse().ok()).collect();
        let counters: Vec<u64> = numbers(all.lines().next()?.strip_prefix("cpu ")?);
        // user, nice, system, idle, iowait, irq, softirq, steal; guest time is included in user.
        let counters = counters.get(..8)?;
        let all: u64 = counters.iter().sum();
        // The name is the second field, in parentheses; the times of the process and its descendants are fields 14 to
        // 17.
        let times: Vec<&str> = own.rsplit_once(')')?.1.split_whitespace().collect();
        let own = times.get(11..15)?.iter().filter_map(|word| word.parse::<u64>().ok()).sum();
        Some(Ticks { all, busy: all - counters[3] - counters[4], own })
    }

    fn taken_by_others(self, then: Ticks) -> f64 {
        let since = |now: u64, then: u64| now.saturating_sub(then) as f64;
        let all = since(self.all, then.all);
        if all <= 0.0 {
            return 0.0;
        }
        let others = (since(self.busy, then.busy) - since(self.own, then.own)) / all;
        if others < OURS_ALL_THE_SAME { 0.0 } else { others.min(1.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticks(all: &str, own: u64) -> Ticks {
        let stat = format!("7 (x y) S 1 2 3 4 5 6 7 8 9 10 {own} 0 0 0 20 0");
        Ticks::read(&format!("cpu  {all} 0 0\ncpu0 1"), &stat).unwrap()
    }

    #[test]
    fn the_counters_are_read() {
        assert_eq!(ticks("10 1 5 80 4 0 0 2", 9), Ticks { all: 102, busy: 18, own: 9 });
        assert_eq!(Ticks::read("garbage", "7 (x) S"), None);
    }

    #[test]
    fn load_of_other_programs_is_separated() {
        let then = ticks("0 0 0 0 0 0 0 0", 0);
        assert_eq!(ticks("100 0 0 0 0 0 0 0", 50).taken_by_others(then), 0.5);
        assert_eq!(ticks("100 0 0 0 0 0 0 0", 90).taken_by_others(then), 0.0);
        assert_eq!(then.taken_by_others(then), 0.0);
    }

    /// The time of a child counts after it has been waited for.
    #[test]
    fn child_time_counts_as_ours() {
        let before = Load::now();
        let spin = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
        std::process::Command::new("sh").args(["-c", spin]).status().unwrap();
        let (Some(then), Some(now)) = (before.0, Load::now().0) else { return };
        assert!(now.own > then.own, "{then:?} {now:?}");
    }
}
