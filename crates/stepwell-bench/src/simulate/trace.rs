//! The trace of a simulation: its last lines for reports, and a hash to compare two runs of a seed.

use std::collections::VecDeque;
use std::fmt;

/// Number of lines in a report.
const SHOWN: usize = 50;

/// The recorded lines of a simulation and their hash.
#[derive(Debug)]
pub(crate) struct Trace {
    hash: u64,
    newest: VecDeque<String>,
    /// Prints every line immediately.
    aloud: bool,
}

impl Trace {
    pub(crate) fn new(aloud: bool) -> Self {
        Trace { hash: 0xCBF2_9CE4_8422_2325, newest: VecDeque::with_capacity(SHOWN), aloud }
    }

    /// Adds a line; the time is in microseconds.
    pub(crate) fn line(&mut self, now: i64, what: fmt::Arguments<'_>) {
        let line = format!("{:>7}.{:03} {what}", now / 1_000, now % 1_000);
        // FNV-1a.
        for byte in line.bytes() {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3);
        }
        if self.aloud {
            println!("{line}");
        }
        if self.newest.len() == SHOWN {
            self.newest.pop_front();
        }
        self.newest.push_back(line);
    }

    /// Returns the last lines, at most 50.
    pub(crate) fn newest(&self) -> Vec<String> {
        self.newest.iter().cloned().collect()
    }

    /// Returns the hash of all lines. Equal traces have equal hashes.
    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }
}
