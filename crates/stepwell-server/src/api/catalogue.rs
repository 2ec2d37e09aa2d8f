//! Documents that are in no catalogue yet, or taken from one to another: checked, tried out, exported and imported.

use std::time::Duration;

use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use stepwell::catalogue::{Export, Import, Imported, Outcome, Which};
use stepwell::core::document::{BUNDLE_TIMES, Case, MAX_BYTES};
use stepwell::core::{Document, Limits, Name, Timestamp};
use stepwell::simulate::{Bounds, TestReport};
use stepwell::{Permission, Simulation};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::call::{Call, Json, Nothing, Written};
use super::errors::wrong_document;
use super::reply::{Format, Reply};
use super::route::{Route, get, post};
use super::shapes::{DocumentProblem, Instant};
use crate::routes::problem::Problem;

/// Simulations that go on at a time, whoever has asked for them: each has a thread of its own.
static SIMULATIONS: Semaphore = Semaphore::const_new(4);
/// How much a simulation may do.
const BOUNDS: Bounds = Bounds { steps: 2_000, time: Duration::from_secs(10) };
/// Bytes of a run's state, and of everything else that a simulation keeps many of.
const SIMULATED_BYTES: u64 = 64 * 1024;
/// Test cases that are run at once.
const CASES: usize = 100;
/// How long all cases of a document may take.
const CASES_TIME: Duration = Duration::from_secs(30);

/// How a document is checked.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ValidateDocument {
    /// What the workflow is called if the document does not say so itself.
    #[schemars(length(min = 1, max = 256))]
    name: Option<String>,
}

/// What was found in a document.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct DocumentChecked {
    /// It can be published.
    valid: bool,
    /// What keeps it from being published.
    problems: Vec<DocumentProblem>,
    /// What this server lacks to run it. Another process may have it.
    warnings: Vec<DocumentProblem>,
}

/// A document that is run with no side effects.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct SimulateDocument {
    /// The document, as YAML or JSON.
    document: String,
    /// What the workflow is called if the document does not say so itself.
    #[schemars(length(min = 1, max = 256))]
    name: Option<String>,
    /// What the run is started with.
    input: Option<Value>,
    /// Takes mocks, what is given and what happens from the test case of this name.
    case: Option<String>,
}

/// A document whose test cases are run.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct TestDocument {
    /// The document with its test cases, as YAML or JSON.
    document: String,
    /// What the workflow is called if the document does not say so itself.
    #[schemars(length(min = 1, max = 256))]
    name: Option<String>,
    /// Only the case of this name.
    case: Option<String>,
}

/// What a simulated run came to, as the simulator itself says it.
#[derive(JsonSchema)]
#[schemars(rename = "Simulated")]
#[expect(dead_code, reason = "only its schema is used")]
struct SimulatedShape {
    /// The workflow.
    workflow: String,
    /// `completed`, `failed`, `waiting` or `cancelled`.
    outcome: String,
    /// Its result.
    result: Option<Value>,
    /// Why it has failed: code and message.
    error: Option<Map<String, Value>>,
    /// The steps that it stands at.
    waits: Vec<String>,
    /// What the clock shows in the end.
    #[schemars(with = "Instant")]
    now: Timestamp,
    /// Its variables.
    vars: Map<String, Value>,
    /// Every step it came to, in order, with its input and output.
    steps: Vec<Map<String, Value>>,
    /// Keys of the data store that are not what they were.
    store: Vec<Map<String, Value>>,
    /// Links that were not there before.
    links: Vec<Map<String, Value>>,
    /// What of the document it came to.
    coverage: CoverageShape,
}

/// What of a document runs came to.
#[derive(JsonSchema)]
#[schemars(rename = "Coverage")]
#[expect(dead_code, reason = "only its schema is used")]
struct CoverageShape {
    /// Steps.
    steps: TallyShape,
    /// Ways out of decisions.
    branches: TallyShape,
    /// What no run came to: the step, the way, and the line.
    uncovered: Vec<Map<String, Value>>,
}

/// How many of how many.
#[derive(JsonSchema)]
#[schemars(rename = "Tally")]
#[expect(dead_code, reason = "only its schema is used")]
struct TallyShape {
    /// So many were come to.
    covered: usize,
    /// So many there are.
    total: usize,
}

/// What the test cases of a document came to.
#[derive(Debug, Serialize)]
struct Tested {
    passed: bool,
    #[serde(flatten)]
    report: TestReport,
}

/// What the test cases of a document came to, as the simulator itself says it.
#[derive(JsonSchema)]
#[schemars(rename = "Tested")]
#[expect(dead_code, reason = "only its schema is used")]
struct TestedShape {
    /// Every case came as it expects.
    passed: bool,
    /// The workflow.
    workflow: String,
    /// Each case.
    cases: Vec<CaseShape>,
    /// What of the document they came to, all together.
    coverage: CoverageShape,
}

/// What a test case came to.
#[derive(JsonSchema)]
#[schemars(rename = "CaseReport")]
#[expect(dead_code, reason = "only its schema is used")]
struct CaseShape {
    /// Its name.
    name: String,
    /// The line it stands in.
    line: usize,
    /// Everything came as it expects.
    passed: bool,
    /// What did not.
    failures: Vec<String>,
}

/// What is exported.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ExportWorkflows {
    /// Only workflows of these names; without this all of them.
    #[serde(default)]
    name: Vec<String>,
    /// Which version of each; the active one unless this says otherwise.
    which: Option<WhichVersion>,
    /// As JSON unless this says otherwise.
    format: Option<Format>,
}

/// Which version of a workflow.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
enum WhichVersion {
    /// The one that new runs get; workflows that cannot be started are left out.
    Active,
    /// The one with the highest number.
    Newest,
}

/// How a bundle is imported.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ImportWorkflows {
    /// New runs get what was imported from then on.
    activate: Option<bool>,
    /// Nothing is written: it is only said what would be.
    dry_run: Option<bool>,
    /// What is to be remembered with each new version.
    #[schemars(length(max = 1000))]
    note: Option<String>,
}

/// What an import came to.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct WorkflowsImported {
    /// Nothing was written.
    dry_run: bool,
    /// Each workflow of the bundle.
    items: Vec<WorkflowImported>,
}

/// What the import of one workflow came to, or would.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct WorkflowImported {
    /// The workflow.
    #[schemars(with = "String")]
    name: Name,
    /// What was done.
    outcome: ImportOutcome,
    /// The version that it is.
    version: u32,
    /// The hash of the definition that runs of it are pinned to.
    hash: String,
    /// New runs get it, and did not before.
    activated: bool,
    /// What this server lacks to run it. Another process may have it.
    warnings: Vec<DocumentProblem>,
}

/// What the import of a workflow comes to.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
enum ImportOutcome {
    /// It was not there before.
    New,
    /// It has another version.
    NewVersion,
    /// The newest version says the same.
    Unchanged,
}

impl From<Imported> for WorkflowImported {
    fn from(imported: Imported) -> Self {
        let Imported { name, outcome, version, hash, is_activated, warnings } = imported;
        let outcome = match outcome {
            Outcome::New => ImportOutcome::New,
            Outcome::NewVersion => ImportOutcome::NewVersion,
            Outcome::Unchanged => ImportOutcome::Unchanged,
        };
        let (hash, warnings) = (hash.to_string(), DocumentProblem::all(warnings));
        WorkflowImported { name, outcome, version, hash, activated: is_activated, warnings }
    }
}

pub(super) fn routes() -> Vec<Route> {
    let (view, publish) = (Permission::View, Permission::Publish);
    vec![
        post("/v1/catalogue/validate", "validateDocument", view, "Says everything that is wrong with a document; the body is the document.")
            .ok::<DocumentChecked>("What is wrong with it: nothing, if it can be published.")
            .to(validate),
        post("/v1/catalogue/simulate", "simulateDocument", publish, "Runs a document with no side effects, and shows each step's input and output.")
            .notes("Calls that nobody has mocked give null, and are marked. It is ended after 2,000 steps or 10 seconds, and its state has at most 64 KiB.")
            .ok::<SimulatedShape>("What the run came to.")
            .to(simulate),
        post("/v1/catalogue/test", "testDocument", publish, "Runs the test cases of a document, with no side effects.")
            .notes("At most 100 cases are run at once, within 30 seconds.")
            .ok::<TestedShape>("What the cases came to.")
            .to(test),
        get("/v1/catalogue/export", "exportWorkflows", view, "Gives workflows as one document.")
            .ok::<Map<String, Value>>("The bundle.")
            .or_yaml::<Map<String, Value>>("The bundle as YAML.")
            .to(export),
        post("/v1/catalogue/import", "importWorkflows", publish, "Publishes everything in a bundle, or nothing; the body is the bundle.")
            .notes("To import the same twice changes nothing. Mistakes in any of it are 422 `invalidDocument`.")
            .body_bytes(MAX_BYTES * BUNDLE_TIMES)
            .ok::<WorkflowsImported>("What the import of each workflow came to, or would.")
            .to(import),
    ]
}

async fn validate(call: Call<Nothing, ValidateDocument, Written>) -> Result<Reply, Problem> {
    let catalogue = call.engine().catalogue();
    catalogue.refresh().await?;
    let checked = catalogue.check(call.query.name.as_deref(), &call.body.0)?;
    Reply::ok(&DocumentChecked {
        valid: checked.is_sound(),
        problems: DocumentProblem::all(checked.problems),
        warnings: DocumentProblem::all(checked.warnings),
    })
}

/// Nothing in a simulation may be larger.
fn limits() -> Limits {
    Limits {
        snapshot_bytes: SIMULATED_BYTES,
        payload_bytes: SIMULATED_BYTES,
        cell_bytes: SIMULATED_BYTES,
        ..Limits::default()
    }
}

fn simulation(document: &Document) -> Simulation {
    Simulation::of(document).bounds(BOUNDS).limits(limits())
}

/// Room for another simulation.
fn room() -> Result<SemaphorePermit<'static>, Problem> {
    SIMULATIONS.try_acquire().map_err(|_| {
        let detail = "As many simulations are going on as there is room for. Try again in a moment.";
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", detail).later(1)
    })
}

fn no_case(document: &Document, name: &str) -> Problem {
    let names: Vec<_> = document.cases().iter().map(|case| format!("`{}`", case.name)).collect();
    let there = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    let detail = format!("The document has no test case `{name}`; there are: {there}.");
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "noCase", detail)
}

async fn simulate(call: Call<Nothing, Nothing, Json<SimulateDocument>>) -> Result<Reply, Problem> {
    let Json(SimulateDocument { document, name, input, case }) = call.body;
    let document = Document::read(&document, name.as_deref()).map_err(|wrong| wrong_document(&wrong))?;
    let mut case = match case {
        None => Case::default(),
        Some(name) => {
            let found = document.cases().iter().find(|case| case.name == name).cloned();
            found.ok_or_else(|| no_case(&document, &name))?
        }
    };
    if input.is_some() {
        (case.input, case.event) = (input, None);
    }
    let (simulation, room) = (simulation(&document), room()?);
    // Whoever hangs up does not make room: it goes on until it is over.
    let simulated = tokio::spawn(async move {
        let simulated = simulation.run(&case).await;
        drop(room);
        simulated
    });
    Reply::ok(&simulated.await.map_err(|error| Problem::internal(&error))??)
}

async fn test(call: Call<Nothing, Nothing, Json<TestDocument>>) -> Result<Reply, Problem> {
    let Json(TestDocument { document, name, case }) = call.body;
    let document = Document::read(&document, name.as_deref()).map_err(|wrong| wrong_document(&wrong))?;
    let is_asked = |one: &&Case| case.as_ref().is_none_or(|name| one.name == *name);
    let cases: Vec<_> = document.cases().iter().filter(is_asked).cloned().collect();
    if let (Some(name), true) = (&case, cases.is_empty()) {
        return Err(no_case(&document, name));
    }
    if cases.len() > CASES {
        let detail = format!("The document has {} test cases; at most {CASES} are run at once.", cases.len());
        let problem = Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "limit", detail);
        return Err(problem.param("limit", "cases").param("max", CASES));
    }
    let (simulation, room) = (simulation(&document), room()?);
    let tested = tokio::spawn(async move {
        let tested = tokio::time::timeout(CASES_TIME, simulation.test_all(&cases)).await;
        drop(room);
        tested
    });
    let tested = tested.await.map_err(|error| Problem::internal(&error))?;
    let mut report = tested.map_err(|_| {
        let detail = format!("The test cases took longer than {} seconds.", CASES_TIME.as_secs());
        Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "endless", detail)
    })?;
    // What a case did step by step is looked at by simulating it.
    report.cases.iter_mut().for_each(|case| case.simulated = None);
    Reply::ok(&Tested { passed: report.passed(), report })
}

async fn export(call: Call<Nothing, ExportWorkflows>) -> Result<Reply, Problem> {
    let catalogue = call.engine().catalogue();
    let ExportWorkflows { name, which, format } = call.query;
    let export = if name.is_empty() { Export::all() } else { Export::of(name) };
    let export = export.which(match which {
        None | Some(WhichVersion::Active) => Which::Active,
        Some(WhichVersion::Newest) => Which::Newest,
    });
    Reply::document(&catalogue.export(export).await?.to_value(), format)
}

async fn import(call: Call<Nothing, ImportWorkflows, Written>) -> Result<Reply, Problem> {
    let catalogue = call.engine().catalogue();
    let ImportWorkflows { activate, dry_run, note } = call.query;
    let (activate, dry_run) = (activate.unwrap_or(false), dry_run.unwrap_or(false));
    let imported = catalogue.import(&call.body.0, Import { activate, dry_run, note }).await?;
    let items = imported.into_iter().map(WorkflowImported::from).collect();
    Reply::ok(&WorkflowsImported { dry_run, items })
}
