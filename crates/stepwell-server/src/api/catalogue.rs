//! Routes of workflow documents outside the catalogue: validate, simulate and test them, and export and import bundles.

use std::time::Duration;

use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use stepwell::catalogue::{Export, ExportVersion, Import, ImportOutcome, Imported};
use stepwell::core::document::{BUNDLE_TIMES, Case, MAX_BYTES};
use stepwell::core::{Limits, Name, Timestamp, WorkflowSource};
use stepwell::simulate::{Bounds, TestReport};
use stepwell::{Permission, Simulation};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::call::{Call, Json, Nothing, Written};
use super::errors::wrong_document;
use super::reply::{Format, Reply};
use super::route::{Route, get, post};
use super::shapes::{DocumentProblem, Instant};
use crate::routes::problem::Problem;

/// Permits for concurrent simulations of all tenants. Each simulation runs on a separate thread.
static SIMULATIONS: Semaphore = Semaphore::const_new(4);
/// Maximum number of steps and maximum time of a simulation.
const BOUNDS: Bounds = Bounds { steps: 2_000, time: Duration::from_secs(10) };
/// Maximum size of a run's state, of a payload and of a cell in a simulation, in bytes.
const SIMULATED_BYTES: u64 = 64 * 1024;
/// Maximum number of test cases per request.
const CASES: usize = 100;
/// Maximum time for all test cases of a document.
const CASES_TIME: Duration = Duration::from_secs(30);

/// Query parameter of a validation.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ValidateDocument {
    /// Name of the workflow, 1 to 256 characters. Used only if the document does not state a name.
    #[schemars(length(min = 1, max = 256))]
    name: Option<String>,
}

/// Result of validating a workflow document.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct ValidationResult {
    /// True if the document can be published.
    valid: bool,
    /// Errors that prevent publishing.
    problems: Vec<DocumentProblem>,
    /// Doubts about a valid document: actions, guards and strategies that this server lacks, error codes that nothing
    /// raises, loops over a first page only, and settings without an effect.
    warnings: Vec<DocumentProblem>,
}

/// Request to run a workflow document without side effects.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct SimulateDocument {
    /// Text of the workflow document, as YAML or JSON.
    document: String,
    /// Name of the workflow, 1 to 256 characters. Used only if the document does not state a name.
    #[schemars(length(min = 1, max = 256))]
    name: Option<String>,
    /// Input of the run, any JSON value. It replaces the input or event of the test case.
    input: Option<Value>,
    /// Name of a test case in the document that supplies the mocks, the given data and the events.
    case: Option<String>,
}

/// Request to run the test cases of a workflow document.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct TestDocument {
    /// Text of the workflow document with its test cases, as YAML or JSON.
    document: String,
    /// Name of the workflow, 1 to 256 characters. Used only if the document does not state a name.
    #[schemars(length(min = 1, max = 256))]
    name: Option<String>,
    /// Name of the only test case to run. Default: all test cases.
    case: Option<String>,
}

/// Result of a simulated run.
#[derive(JsonSchema)]
#[schemars(rename = "Simulated")]
#[expect(dead_code, reason = "only its schema is used")]
struct SimulatedShape {
    /// Name of the workflow.
    workflow: String,
    /// State at the end: `completed`, `failed`, `waiting` or `cancelled`.
    outcome: String,
    /// Output of the run; absent if it has not completed.
    result: Option<Value>,
    /// Error of the run, with `code` and `message`; absent if it has not failed.
    error: Option<Map<String, Value>>,
    /// Steps that the run waits at.
    waits: Vec<String>,
    /// Simulated time at the end of the run.
    #[schemars(with = "Instant")]
    now: Timestamp,
    /// Variables of the run at the end, by name.
    vars: Map<String, Value>,
    /// The steps that the run executed, in order, with input and output.
    steps: Vec<Map<String, Value>>,
    /// Keys of the data store that the run changed.
    store: Vec<Map<String, Value>>,
    /// Links that the run created.
    links: Vec<Map<String, Value>>,
    /// Coverage of the document by the run.
    coverage: CoverageShape,
}

/// Coverage of a document by runs.
#[derive(JsonSchema)]
#[schemars(rename = "Coverage")]
#[expect(dead_code, reason = "only its schema is used")]
struct CoverageShape {
    /// Coverage of the steps.
    steps: TallyShape,
    /// Coverage of the branches of decisions.
    branches: TallyShape,
    /// Steps and branches that no run reached, with step, branch (`way`) and line.
    uncovered: Vec<Map<String, Value>>,
}

/// Number of covered items and of all items.
#[derive(JsonSchema)]
#[schemars(rename = "Tally")]
#[expect(dead_code, reason = "only its schema is used")]
struct TallyShape {
    /// Number of items that a run reached.
    covered: usize,
    /// Number of items in the document.
    total: usize,
}

/// Result of the test cases of a document.
#[derive(Debug, Serialize)]
struct Tested {
    passed: bool,
    #[serde(flatten)]
    report: TestReport,
}

/// Result of the test cases of a document.
#[derive(JsonSchema)]
#[schemars(rename = "Tested")]
#[expect(dead_code, reason = "only its schema is used")]
struct TestedShape {
    /// True if every test case passed.
    passed: bool,
    /// Name of the workflow.
    workflow: String,
    /// Result of each test case.
    cases: Vec<CaseShape>,
    /// Coverage of the document by all test cases together.
    coverage: CoverageShape,
}

/// Result of one test case.
#[derive(JsonSchema)]
#[schemars(rename = "CaseReport")]
#[expect(dead_code, reason = "only its schema is used")]
struct CaseShape {
    /// Name of the test case.
    name: String,
    /// Line of the test case in the document, counted from 1.
    line: usize,
    /// True if all expectations of the test case are met.
    passed: bool,
    /// Expectations that are not met, one text each.
    failures: Vec<String>,
}

/// Query parameters of an export.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ExportWorkflows {
    /// Names of the workflows to export. Default: all workflows.
    #[serde(default)]
    name: Vec<String>,
    /// Version to export of each workflow. Default: `active`.
    which: Option<WhichVersion>,
    /// Format of the bundle. Default: `json`.
    format: Option<Format>,
}

/// Version of a workflow to export.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
enum WhichVersion {
    /// The version that new runs use. Workflows that cannot be started are omitted.
    Active,
    /// The version with the highest number.
    Newest,
}

/// Query parameters of an import.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ImportWorkflows {
    /// True = new runs use the imported versions from now on. Default: false.
    activate: Option<bool>,
    /// True = report the result, but write nothing. Default: false.
    dry_run: Option<bool>,
    /// Note stored with each new version, at most 1,000 characters.
    #[schemars(length(max = 1000))]
    note: Option<String>,
    /// True = import even if steps call actions that this server does not know. Default: false.
    allow_unknown_actions: Option<bool>,
}

/// Result of an import.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct WorkflowsImported {
    /// True if nothing was written.
    dry_run: bool,
    /// Result for each workflow of the bundle.
    items: Vec<WorkflowImported>,
}

/// Result of the import of one workflow. For a dry run, the predicted result.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct WorkflowImported {
    /// Name of the workflow.
    #[schemars(with = "String")]
    name: Name,
    /// Effect on the workflow: `new`, `newVersion` or `unchanged`.
    outcome: ImportOutcomeShape,
    /// Number of the imported version, or of the newest version if nothing changed.
    version: u32,
    /// Hash of the definition that runs of this version are pinned to.
    hash: String,
    /// True if the import made this version the one that new runs use.
    activated: bool,
    /// Actions, guards and strategies that this server lacks to run it. Another process may have them.
    warnings: Vec<DocumentProblem>,
}

/// Effect of an import on one workflow.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
enum ImportOutcomeShape {
    /// The workflow had no published version.
    New,
    /// The import added a version.
    NewVersion,
    /// The newest version has the same content.
    Unchanged,
}

impl From<Imported> for WorkflowImported {
    fn from(imported: Imported) -> Self {
        let Imported { name, outcome, version, hash, is_activated, warnings } = imported;
        let outcome = match outcome {
            ImportOutcome::New => ImportOutcomeShape::New,
            ImportOutcome::NewVersion => ImportOutcomeShape::NewVersion,
            ImportOutcome::Unchanged => ImportOutcomeShape::Unchanged,
        };
        let (hash, warnings) = (hash.to_string(), DocumentProblem::all(warnings));
        WorkflowImported { name, outcome, version, hash, activated: is_activated, warnings }
    }
}

pub(super) fn routes() -> Vec<Route> {
    let (view, publish) = (Permission::View, Permission::Publish);
    vec![
        post("/v1/catalogue/validate", "validateDocument", view, "Validate a workflow document, sent as the body.")
            .ok::<ValidationResult>("Errors and warnings. A document without errors can be published.")
            .to(validate),
        post("/v1/catalogue/simulate", "simulateDocument", publish, "Run a workflow document without side effects and show the input and output of each step.")
            .notes("Calls without a mock return null and are marked. Limits: 2,000 steps, 10 seconds and 64 KiB of state.")
            .ok::<SimulatedShape>("Result of the simulated run.")
            .to(simulate),
        post("/v1/catalogue/test", "testDocument", publish, "Run the test cases of a workflow document, without side effects.")
            .notes("Limits: 100 test cases per request and 30 seconds in total.")
            .ok::<TestedShape>("Result of each test case.")
            .to(test),
        get("/v1/catalogue/export", "exportWorkflows", view, "Export workflows as one bundle.")
            .ok::<Map<String, Value>>("The bundle.")
            .or_yaml::<Map<String, Value>>("The bundle as YAML.")
            .to(export),
        post("/v1/catalogue/import", "importWorkflows", publish, "Publish all workflows of a bundle, sent as the body, or none.")
            .notes("Importing the same bundle again changes nothing. An error in any workflow is a 422 `invalidDocument`.")
            .body_bytes(MAX_BYTES * BUNDLE_TIMES)
            .ok::<WorkflowsImported>("Result for each workflow; the predicted result for a dry run.")
            .to(import),
    ]
}

async fn validate(call: Call<Nothing, ValidateDocument, Written>) -> Result<Reply, Problem> {
    let catalogue = call.engine().catalogue();
    catalogue.refresh().await?;
    let checked = catalogue.check(call.query.name.as_deref(), &call.body.0)?;
    Reply::ok(&ValidationResult {
        valid: checked.is_sound(),
        problems: DocumentProblem::all(checked.problems),
        warnings: DocumentProblem::all(checked.warnings),
    })
}

/// Returns the size limits of simulations.
fn limits() -> Limits {
    Limits {
        snapshot_bytes: SIMULATED_BYTES,
        payload_bytes: SIMULATED_BYTES,
        cell_bytes: SIMULATED_BYTES,
        ..Limits::default()
    }
}

fn simulation(document: &WorkflowSource) -> Simulation {
    Simulation::of(document).bounds(BOUNDS).limits(limits())
}

/// Acquires a permit for a simulation, or answers 503 if all are taken.
fn permit() -> Result<SemaphorePermit<'static>, Problem> {
    SIMULATIONS.try_acquire().map_err(|_| {
        let detail = "The maximum number of concurrent simulations is reached. Retry in a moment.";
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", detail).later(1)
    })
}

fn no_case(document: &WorkflowSource, name: &str) -> Problem {
    let names: Vec<_> = document.cases().iter().map(|case| format!("`{}`", case.name)).collect();
    let there = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    let detail = format!("The document has no test case `{name}`. Its test cases: {there}.");
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "noCase", detail)
}

async fn simulate(call: Call<Nothing, Nothing, Json<SimulateDocument>>) -> Result<Reply, Problem> {
    let Json(SimulateDocument { document, name, input, case }) = call.body;
    let document =
        WorkflowSource::read(&document, name.as_deref()).map_err(|wrong| wrong_document(&wrong))?;
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
    let (simulation, permit) = (simulation(&document), permit()?);
    // A client that disconnects does not release the permit: the simulation continues until it ends.
    let simulated = tokio::spawn(async move {
        let simulated = simulation.run(&case).await;
        drop(permit);
        simulated
    });
    Reply::ok(&simulated.await.map_err(|error| Problem::internal(&error))??)
}

async fn test(call: Call<Nothing, Nothing, Json<TestDocument>>) -> Result<Reply, Problem> {
    let Json(TestDocument { document, name, case }) = call.body;
    let document =
        WorkflowSource::read(&document, name.as_deref()).map_err(|wrong| wrong_document(&wrong))?;
    let is_asked = |one: &&Case| case.as_ref().is_none_or(|name| one.name == *name);
    let cases: Vec<_> = document.cases().iter().filter(is_asked).cloned().collect();
    if let (Some(name), true) = (&case, cases.is_empty()) {
        return Err(no_case(&document, name));
    }
    if cases.len() > CASES {
        let detail = format!("The document has {} test cases; the maximum is {CASES}.", cases.len());
        let problem = Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "limit", detail);
        return Err(problem.param("limit", "cases").param("max", CASES));
    }
    let (simulation, permit) = (simulation(&document), permit()?);
    let tested = tokio::spawn(async move {
        let tested = tokio::time::timeout(CASES_TIME, simulation.test_all(&cases)).await;
        drop(permit);
        tested
    });
    let tested = tested.await.map_err(|error| Problem::internal(&error))?;
    let mut report = tested.map_err(|_| {
        let detail = format!("The test cases took longer than {} seconds.", CASES_TIME.as_secs());
        Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "endless", detail)
    })?;
    // The report omits the steps of each case. Simulate the case to see them.
    report.cases.iter_mut().for_each(|case| case.simulated = None);
    Reply::ok(&Tested { passed: report.passed(), report })
}

async fn export(call: Call<Nothing, ExportWorkflows>) -> Result<Reply, Problem> {
    let catalogue = call.engine().catalogue();
    let ExportWorkflows { name, which, format } = call.query;
    let export = if name.is_empty() { Export::all() } else { Export::of(name) };
    let export = export.which(match which {
        None | Some(WhichVersion::Active) => ExportVersion::Active,
        Some(WhichVersion::Newest) => ExportVersion::Newest,
    });
    Reply::document(&catalogue.export(export).await?.to_value(), format)
}

async fn import(call: Call<Nothing, ImportWorkflows, Written>) -> Result<Reply, Problem> {
    let catalogue = call.engine().catalogue();
    let ImportWorkflows { activate, dry_run, note, allow_unknown_actions } = call.query;
    let (activate, dry_run) = (activate.unwrap_or(false), dry_run.unwrap_or(false));
    let allow_unknown_actions = allow_unknown_actions.unwrap_or(false);
    let import = Import { activate, dry_run, note, allow_unknown_actions };
    let imported = catalogue.import(&call.body.0, import).await?;
    let items = imported.into_iter().map(WorkflowImported::from).collect();
    Reply::ok(&WorkflowsImported { dry_run, items })
}
