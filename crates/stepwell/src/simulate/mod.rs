//! The simulator: runs a workflow with no side effects and shows each step's input and output, and runs the test cases that
//! a document brings.
//!
//! A run goes through the real engine, on a store in memory and a clock that stands still until something lets time pass.
//! What a step calls is answered by mocks; only actions that touch nothing but that store work for real. Nothing leaves the
//! process: no network, no secrets but made-up ones, no disk.

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
use stepwell_core::document::cases::{Case, GivenKey, GivenLink, Outcome};
use stepwell_core::document::{Document, Outline};
use stepwell_core::{Definition, Failure, Limits, Name, Timestamp};

use crate::error::EngineError;

pub use coverage::{Coverage, Tally, Uncovered};
pub use trace::{How, Step};

/// How much a simulation may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// How many steps: changes of the run and of others that it starts, and tries.
    pub steps: u64,
    /// How long it may take, by the computer's clock.
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
    document: Document,
    outline: Outline,
    others: Vec<Definition>,
    bounds: Bounds,
    limits: Limits,
}

impl Simulation {
    /// A simulation of a document.
    pub fn of(document: &Document) -> Self {
        let outline = document.outline();
        let (bounds, limits) = (Bounds::default(), Limits::default());
        Simulation { document: document.clone(), outline, others: Vec::new(), bounds, limits }
    }

    /// Another workflow, which really runs when it is called or started; without this it has to be mocked.
    #[must_use]
    pub fn with(mut self, other: Definition) -> Self {
        self.others.push(other);
        self
    }

    /// How much it may do.
    #[must_use]
    pub fn bounds(mut self, bounds: Bounds) -> Self {
        self.bounds = bounds;
        self
    }

    /// How large things may be in it.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Runs the workflow as a case says, whatever the case expects. A call that nobody has mocked gives null, and is marked.
    pub async fn run(&self, case: &Case) -> Result<Simulated, SimulationError> {
        self.simulate(case, false).await
    }

    /// Runs a case and says whether everything came as it expects. A call that nobody has mocked is a failure of the case.
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

    /// Runs cases, and says which steps and branches of the document no run of theirs came to.
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

    /// Runs it on a thread of its own, so that nothing else of the caller's has a part in it.
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
        heard.await.unwrap_or_else(|_| Err(SimulationError::Broken("it ended without a word".to_owned())))
    }
}

/// What a simulated run came to.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Simulated {
    /// The workflow.
    pub workflow: String,
    /// How it stands in the end.
    pub outcome: Outcome,
    /// Its result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
    /// Why it has failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
    /// The steps that it stands at.
    pub waits: Vec<String>,
    /// What the clock shows in the end.
    pub now: Timestamp,
    /// Its variables.
    pub vars: Map<String, Value>,
    /// Every step it came to, in order.
    pub steps: Vec<Step>,
    /// Keys of the data store that are not what they were.
    pub store: Vec<GivenKey>,
    /// Links that were not there before.
    pub links: Vec<GivenLink>,
    /// What of the document it came to.
    pub coverage: Coverage,
    #[serde(skip)]
    pub(crate) seen: Seen,
}

/// The places that runs entered and the transitions they went by.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Seen {
    pub(crate) entered: BTreeSet<Name>,
    pub(crate) fired: BTreeSet<Name>,
}

/// What a test case came to.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CaseReport {
    /// Its name.
    pub name: String,
    /// The line it stands in.
    pub line: usize,
    /// Everything came as it expects.
    pub passed: bool,
    /// What did not.
    pub failures: Vec<String>,
    /// The run, if there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub simulated: Option<Simulated>,
}

/// What the test cases of a document came to.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TestReport {
    /// The workflow.
    pub workflow: String,
    /// Each case.
    pub cases: Vec<CaseReport>,
    /// What of the document they came to, all together.
    pub coverage: Coverage,
}

impl TestReport {
    /// Every case came as it expects.
    pub fn passed(&self) -> bool {
        self.cases.iter().all(|case| case.passed)
    }
}

/// Why there is nothing to show of a simulation.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SimulationError {
    /// It did not come to an end or to rest.
    #[error("the simulation was ended after {steps} steps and {} ms: does a loop in it never end?", .time.as_millis())]
    Endless {
        /// How many steps there were.
        steps: u64,
        /// How long it took.
        time: Duration,
    },
    /// The engine did not take the workflow, or something that happens.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// What the case says cannot be used.
    #[error("{0}")]
    Case(String),
    /// The simulator itself failed.
    #[error("the simulator failed: {0}")]
    Broken(String),
}
