//! The simulator: runs a workflow without side effects, shows the input and output of each step, and runs a document's
//! test cases.
//!
//! A run goes through the real engine, with an in-memory store and a clock that advances only on demand. Mocks answer
//! the calls of steps; only actions that affect nothing but that store run for real. A simulation uses no network, no
//! disk and only made-up secrets.

mod check;
mod coverage;
mod drive;
mod export;
mod read;
mod script;
mod trace;

use std::collections::BTreeSet;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value};
use stepwell_core::document::cases::{Case, CaseOutcome, GivenKey, GivenLink};
use stepwell_core::document::{Outline, WorkflowSource};
use stepwell_core::{Definition, Failure, Limits, Name, Timestamp};

use crate::error::EngineError;

pub use coverage::{Coverage, CoverageCount, Uncovered};
pub use trace::{AnswerSource, SimulatedStep};

/// Limits of a simulation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Maximum number of steps: state changes of the run and its children, and attempts at actions. Default: 10,000.
    pub steps: u64,
    /// Maximum duration by the computer's clock. Default: 20 seconds.
    pub time: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Bounds { steps: 10_000, time: Duration::from_secs(20) }
    }
}

/// A workflow to be simulated.
#[derive(Debug, Clone)]
pub struct Simulation {
    document: WorkflowSource,
    outline: Outline,
    others: Vec<Definition>,
    bounds: Bounds,
    limits: Limits,
}

impl Simulation {
    /// Creates a simulation of a workflow document.
    pub fn of(document: &WorkflowSource) -> Self {
        let outline = document.outline();
        let (bounds, limits) = (Bounds::default(), Limits::default());
        Simulation { document: document.clone(), outline, others: Vec::new(), bounds, limits }
    }

    /// Adds another workflow, which runs when it is called or started. Workflows that are not added must be mocked.
    #[must_use]
    pub fn with(mut self, other: Definition) -> Self {
        self.others.push(other);
        self
    }

    /// Sets the limits of the simulation.
    #[must_use]
    pub fn bounds(mut self, bounds: Bounds) -> Self {
        self.bounds = bounds;
        self
    }

    /// Sets the size limits of the engine.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Runs the workflow with the inputs and mocks of a case and ignores its expectations. A call without a mock
    /// returns `null` and is marked.
    pub async fn run(&self, case: &Case) -> Result<Simulated, SimulationError> {
        self.simulate(case, false).await
    }

    /// Runs a case and checks its expectations. A call without a mock is a failure of the case.
    pub async fn test(&self, case: &Case) -> CaseReport {
        let (name, line) = (case.name.clone(), case.at.line);
        match self.simulate(case, true).await {
            Ok(simulated) => {
                let failures = check::failures(case, &simulated);
                CaseReport { name, line, passed: failures.is_empty(), failures, simulated: Some(simulated) }
            }
            Err(error) => {
                let failures = vec![error.to_string()];
                CaseReport { name, line, passed: false, failures, simulated: None }
            }
        }
    }

    /// Runs cases and reports the steps and branches of the document that none of them reached.
    pub async fn test_all(&self, cases: impl IntoIterator<Item = &Case>) -> TestReport {
        let mut reports = Vec::new();
        let mut seen = Seen::default();
        for case in cases {
            let report = self.test(case).await;
            if let Some(simulated) = &report.simulated {
                seen.entered.extend(simulated.seen.entered.iter().cloned());
                seen.fired.extend(simulated.seen.fired.iter().cloned());
            }
            reports.push(report);
        }
        let coverage = Coverage::of(&self.outline, &seen);
        TestReport { workflow: self.document.name().to_owned(), cases: reports, coverage }
    }

    /// Runs the simulation on a separate thread, isolated from the caller's runtime.
    async fn simulate(&self, case: &Case, is_strict: bool) -> Result<Simulated, SimulationError> {
        let (told, heard) = tokio::sync::oneshot::channel();
        let (simulation, case) = (self.clone(), case.clone());
        let work = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
            let result = match runtime {
                Ok(runtime) => runtime.block_on(drive::simulate(&simulation, &case, is_strict)),
                Err(error) => Err(SimulationError::Broken(error.to_string())),
            };
            let _ = told.send(result);
        };
        let thread = std::thread::Builder::new().name("stepwell-simulation".to_owned());
        thread.spawn(work).map_err(|error| SimulationError::Broken(error.to_string()))?;
        heard
            .await
            .unwrap_or_else(|_| Err(SimulationError::Broken("its thread ended without a result".to_owned())))
    }
}

/// The result of a simulated run.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Simulated {
    /// Name of the workflow.
    pub workflow: String,
    /// Status of the run at the end of the simulation.
    pub outcome: CaseOutcome,
    /// Result of the run, if it completed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
    /// Error of the run, if it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
    /// Steps that the run waits at.
    pub waits: Vec<String>,
    /// Simulated time at the end.
    pub now: Timestamp,
    /// Variables of the run at the end.
    pub vars: Map<String, Value>,
    /// Every step that the run reached, in order.
    pub steps: Vec<SimulatedStep>,
    /// Keys of the data store that were added or changed.
    pub store: Vec<GivenKey>,
    /// Links that were added.
    pub links: Vec<GivenLink>,
    /// Steps and branches of the document that the run reached.
    pub coverage: Coverage,
    #[serde(skip)]
    pub(crate) seen: Seen,
}

/// The places that runs entered and the transitions that they took.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Seen {
    pub(crate) entered: BTreeSet<Name>,
    pub(crate) fired: BTreeSet<Name>,
}

/// The result of a test case.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CaseReport {
    pub name: String,
    /// Line of the document in which the case begins.
    pub line: usize,
    /// All expectations were met.
    pub passed: bool,
    /// Expectations that were not met.
    pub failures: Vec<String>,
    /// The simulated run. `None` if it could not be started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub simulated: Option<Simulated>,
}

/// The result of a document's test cases.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TestReport {
    /// Name of the workflow.
    pub workflow: String,
    /// One report per case, in order.
    pub cases: Vec<CaseReport>,
    /// Steps and branches that at least one case reached.
    pub coverage: Coverage,
}

impl TestReport {
    /// Returns `true` if every case passed.
    pub fn passed(&self) -> bool {
        self.cases.iter().all(|case| case.passed)
    }
}

/// A simulation that gave no result.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SimulationError {
    /// The simulation exceeded its limits.
    #[error("the simulation was stopped after {steps} steps and {} ms: does a loop never end?", .time.as_millis())]
    Endless {
        /// Number of steps taken.
        steps: u64,
        /// Time taken, by the computer's clock.
        time: Duration,
    },
    /// The engine refused the workflow or an input of the case.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The case is invalid.
    #[error("{0}")]
    Case(String),
    /// The simulator failed internally.
    #[error("the simulator failed: {0}")]
    Broken(String),
}
