//! Diagnosis: finds runs, waits, schedules and handles that are stuck, and reports the cause and the next command for
//! each.
//!
//! A diagnosis writes nothing. By default it reads a bounded number of rows, through indexes of rows that are due or
//! need attention, so that its cost does not grow with healthy data. The result tells which listings were cut off at
//! the limit.

mod checks;
mod finding;
mod limits;
mod one;
mod rows;
mod runs;

use std::collections::{BTreeMap, BTreeSet};

use stepwell_core::Timestamp;
use stepwell_store::{BadRow, ProcessId, Record, RecordQuery};

pub use finding::{Example, Finding, FindingKind, Remedy, Severity};
pub use one::{AwaitedInput, BufferedMessage, Owner, RunDiagnosis};

use crate::actor::Permission;
use crate::engine::Engine;
use crate::error::EngineError;
use finding::Findings;

/// Options of a diagnosis: limits and thresholds. Every field has a default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnose {
    /// Maximum number of rows read per listing. Default: 200.
    pub limit: u32,
    /// Maximum number of examples per finding. Default: 5.
    pub examples: u32,
    /// Time in milliseconds after which due work is reported as late. Default: one minute.
    pub late_ms: u64,
    /// Duration in milliseconds after which a step is reported as long. Default: one hour.
    pub long_ms: u64,
    /// Age in milliseconds after which a wait is reported as old. Default: 30 days.
    pub old_ms: u64,
    /// Number of process crashes during one step that is reported. Default: 2.
    pub crashes: u32,
    /// Number of failed attempts of one step that is reported. Default: 5.
    pub failures: u32,
    /// Fill level in percent at which an inbox is reported as nearly full. Default: 80.
    pub inbox_percent: u64,
    /// Time in milliseconds: runs that become due within it are checked too. Default: one hour.
    pub soon_ms: u64,
    /// Read all rows of the tenant to find unreadable ones. The duration grows with the amount of data. Default:
    /// `false`.
    pub deep: bool,
    /// Unreadable rows that the caller has found in its own records. A deep diagnosis reports them too.
    pub unreadable: Vec<BadRow>,
}

impl Default for Diagnose {
    fn default() -> Self {
        Diagnose {
            limit: 200,
            examples: 5,
            late_ms: 60_000,
            long_ms: 3_600_000,
            old_ms: 30 * 24 * 3_600_000,
            crashes: 2,
            failures: 5,
            inbox_percent: 80,
            soon_ms: 3_600_000,
            deep: false,
            unreadable: Vec::new(),
        }
    }
}

/// A listing that the diagnosis has read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scanned {
    /// Name of the listing, for people.
    pub kind: &'static str,
    /// Number of rows read.
    pub rows: u64,
    /// `false` if the limit was reached, so that rows were left out.
    pub is_all: bool,
}

/// A process that has a lease in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessSeen {
    pub process: ProcessId,
    /// The lease has not expired.
    pub alive: bool,
    /// Expiry time of the lease, renewed by each heartbeat.
    pub lease_until: Timestamp,
    /// The process is the one that made this diagnosis.
    pub is_this: bool,
}

/// The result of a diagnosis.
#[derive(Debug, Clone, PartialEq)]
pub struct Diagnosis {
    /// Time of the diagnosis, by the engine's clock.
    pub at: Timestamp,
    /// Findings, most severe first.
    pub findings: Vec<Finding>,
    /// The listings that were read, each with its number of rows.
    pub scanned: Vec<Scanned>,
    /// Processes with a lease in the store, at most 200.
    pub processes: Vec<ProcessSeen>,
    /// Maximum number of runs that this process executes at a time; 0 for a process that executes none.
    pub max_runs: usize,
    /// Number of runs that this process can still take on.
    pub free: usize,
    /// Milliseconds by which the engine's clock is ahead of this computer's. `None`: the engine does not follow the
    /// database's clock.
    pub clock_ahead_ms: Option<i64>,
}

impl Diagnosis {
    /// Returns `true` if no finding has the severity [`Severity::Error`].
    pub fn is_healthy(&self) -> bool {
        self.findings.iter().all(|finding| finding.severity < Severity::Error)
    }
}

/// A diagnosis in progress.
struct Doctor<'a> {
    engine: &'a Engine,
    options: &'a Diagnose,
    now: Timestamp,
    findings: Findings,
    scanned: BTreeMap<&'static str, (u64, bool)>,
    processes: Vec<ProcessSeen>,
    /// Unreadable rows that are already reported, by table and key.
    told: BTreeSet<(&'static str, String)>,
}

/// Maximum number of processes listed.
const PROCESSES: u32 = 200;

impl Engine {
    /// Diagnoses the tenant: finds what is stuck or will be, and the cause. It changes nothing.
    pub async fn diagnose(&self, options: &Diagnose) -> Result<Diagnosis, EngineError> {
        self.permit(Permission::View)?;
        let mut doctor = Doctor::new(self, options).await?;
        doctor.failed().await?;
        doctor.suspended().await?;
        doctor.due().await?;
        doctor.at_work().await?;
        doctor.waits().await?;
        doctor.limits().await?;
        doctor.schedules().await?;
        doctor.pauses().await?;
        doctor.handles().await?;
        doctor.audit().await?;
        if options.deep {
            doctor.read_all().await?;
        }
        doctor.host();
        let scanned = doctor.scanned.into_iter();
        Ok(Diagnosis {
            at: doctor.now,
            findings: doctor.findings.done(),
            scanned: scanned.map(|(kind, (rows, is_all))| Scanned { kind, rows, is_all }).collect(),
            processes: doctor.processes,
            max_runs: self.inner.options.max_runs,
            free: self.inner.concurrency.free(),
            clock_ahead_ms: self.inner.host.clock.ahead_ms(),
        })
    }
}

impl<'a> Doctor<'a> {
    async fn new(engine: &'a Engine, options: &'a Diagnose) -> Result<Self, EngineError> {
        let now = engine.now();
        let query = RecordQuery::Processes { limit: PROCESSES };
        let known = engine.store().records(engine.scope(), query).await?;
        let expired = engine.inner.expired();
        let seen = known.items.into_iter().filter_map(|record| match record {
            Record::Process { process, lease_until } => Some(ProcessSeen {
                process,
                alive: lease_until > now && !expired.contains(&process),
                lease_until,
                is_this: engine.inner.uses_name(process),
            }),
            _ => None,
        });
        Ok(Doctor {
            engine,
            options,
            now,
            findings: Findings::new(options.examples),
            scanned: BTreeMap::new(),
            processes: seen.collect(),
            told: BTreeSet::new(),
        })
    }

    /// Records that rows of a listing were read.
    fn scanned(&mut self, kind: &'static str, rows: usize, is_all: bool) {
        let known = self.scanned.entry(kind).or_insert((0, true));
        known.0 += rows as u64;
        known.1 &= is_all;
    }

    fn is_alive(&self, process: ProcessId) -> bool {
        self.processes.iter().any(|seen| seen.process == process && seen.alive)
    }

    /// Returns `true` if `since` is longer ago than `late_ms`.
    fn is_late(&self, since: Timestamp) -> bool {
        self.now.ms_since(since) > self.options.late_ms
    }
}
