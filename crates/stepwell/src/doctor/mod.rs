//! Explains what is stuck and why: a bounded look at everything that may need somebody, each finding with what to do next.
//!
//! Nothing is written, and unless it is asked for nothing is read that grows with what is well: listings go by indexes of what needs somebody or is
//! due, and stop after so many rows. What was not looked at to its end says so.

mod beside;
mod finding;
mod one;
mod rows;
mod runs;

use std::collections::{BTreeMap, BTreeSet};

use stepwell_core::Timestamp;
use stepwell_store::{ProcessId, Record, RecordQuery};

pub use finding::{Example, Finding, Kind, Remedy, Severity};
pub use one::{Awaited, KeptMessage, Owner, RunDiagnosis};

use crate::actor::Permission;
use crate::engine::Engine;
use crate::error::EngineError;
use finding::Findings;

/// How far a doctor looks, and what counts as late. Every field has a default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnose {
    /// Rows of each kind that are looked at.
    pub limit: u32,
    /// Examples of each finding.
    pub examples: u32,
    /// What is due for longer than this is late.
    pub late_ms: u64,
    /// A step that takes longer than this takes long.
    pub long_ms: u64,
    /// Who has waited for longer than this has waited for very long.
    pub old_ms: u64,
    /// So many deaths under one step are worth a word.
    pub deaths: u32,
    /// So many failed tries of one step are worth a word.
    pub failures: u32,
    /// An inbox that is this full, in percent, is nearly full.
    pub inbox_percent: u64,
    /// Runs that are due within this time are looked at as well.
    pub soon_ms: u64,
    /// Everything that the tenant has is read, to find what cannot be: that takes as long as there is much.
    pub deep: bool,
}

impl Default for Diagnose {
    fn default() -> Self {
        Diagnose {
            limit: 200,
            examples: 5,
            late_ms: 60_000,
            long_ms: 3_600_000,
            old_ms: 30 * 24 * 3_600_000,
            deaths: 2,
            failures: 5,
            inbox_percent: 80,
            soon_ms: 3_600_000,
            deep: false,
        }
    }
}

/// What a doctor has looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Looked {
    /// What.
    pub at: &'static str,
    /// How many rows.
    pub rows: u64,
    /// Those were all; if not, the limit was reached and there are more.
    pub is_all: bool,
}

/// A process that is known to the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessSeen {
    /// The process.
    pub process: ProcessId,
    /// It counts as living.
    pub lives: bool,
    /// Until when, by its last heartbeat.
    pub lives_until: Timestamp,
    /// It is this one.
    pub is_this: bool,
}

/// What a doctor has found.
#[derive(Debug, Clone, PartialEq)]
pub struct Diagnosis {
    /// The engine's time.
    pub at: Timestamp,
    /// What was found, the worst first.
    pub findings: Vec<Finding>,
    /// What was looked at, and how far.
    pub looked: Vec<Looked>,
    /// The processes that the store knows.
    pub processes: Vec<ProcessSeen>,
    /// Runs that this process works on at most; 0 = none.
    pub max_runs: usize,
    /// Runs that this process has room for now.
    pub free: usize,
    /// By how many milliseconds the engine's clock is ahead of this computer's, because it follows the database's.
    pub clock_ahead_ms: Option<i64>,
}

impl Diagnosis {
    /// Nothing is stuck.
    pub fn is_healthy(&self) -> bool {
        self.findings.iter().all(|finding| finding.severity < Severity::Error)
    }
}

/// One look at everything, while it is under way.
struct Doctor<'a> {
    engine: &'a Engine,
    options: &'a Diagnose,
    now: Timestamp,
    findings: Findings,
    looked: BTreeMap<&'static str, (u64, bool)>,
    processes: Vec<ProcessSeen>,
    /// Rows that cannot be read and were told of.
    told: BTreeSet<(&'static str, String)>,
}

/// Processes that are listed.
const PROCESSES: u32 = 200;

impl Engine {
    /// Looks for whatever of the tenant's is stuck or will be, and for why. It changes nothing.
    pub async fn diagnose(&self, options: &Diagnose) -> Result<Diagnosis, EngineError> {
        self.permit(Permission::View)?;
        let mut doctor = Doctor::new(self, options).await?;
        doctor.failed().await?;
        doctor.suspended().await?;
        doctor.due().await?;
        doctor.at_work().await?;
        doctor.waits().await?;
        doctor.schedules().await?;
        doctor.handles().await?;
        doctor.audit().await?;
        if options.deep {
            doctor.read_all().await?;
        }
        doctor.host();
        let looked = doctor.looked.into_iter();
        Ok(Diagnosis {
            at: doctor.now,
            findings: doctor.findings.done(),
            looked: looked.map(|(at, (rows, is_all))| Looked { at, rows, is_all }).collect(),
            processes: doctor.processes,
            max_runs: self.inner.options.max_runs,
            free: self.inner.room.free(),
            clock_ahead_ms: self.inner.host.clock.ahead_ms(),
        })
    }
}

impl<'a> Doctor<'a> {
    async fn new(engine: &'a Engine, options: &'a Diagnose) -> Result<Self, EngineError> {
        let now = engine.now();
        let query = RecordQuery::Processes { limit: PROCESSES };
        let known = engine.store().records(engine.scope(), query).await?;
        let dead = engine.inner.dead();
        let seen = known.items.into_iter().filter_map(|record| match record {
            Record::Process { process, lives_until } => Some(ProcessSeen {
                process,
                lives: lives_until > now && !dead.contains(&process),
                lives_until,
                is_this: engine.inner.goes_by(process),
            }),
            _ => None,
        });
        Ok(Doctor {
            engine,
            options,
            now,
            findings: Findings::new(options.examples),
            looked: BTreeMap::new(),
            processes: seen.collect(),
            told: BTreeSet::new(),
        })
    }

    /// Some rows were looked at.
    fn looked(&mut self, at: &'static str, rows: usize, is_all: bool) {
        let known = self.looked.entry(at).or_insert((0, true));
        known.0 += rows as u64;
        known.1 &= is_all;
    }

    fn lives(&self, process: ProcessId) -> bool {
        self.processes.iter().any(|seen| seen.process == process && seen.lives)
    }

    /// It has been so for longer than is late.
    fn is_late(&self, since: Timestamp) -> bool {
        self.now.ms_since(since) > self.options.late_ms
    }
}
