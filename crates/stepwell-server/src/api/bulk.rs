//! Routes of bulk commands: one command for many runs, executed in the background.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use stepwell::bulk::{self, BulkResultQuery};
use stepwell::core::{Mapping, RunId, Timestamp};
use stepwell::{BulkCommand, BulkTarget, BulkView, Engine, Operator, Permission};

use super::Server;
use super::call::{Call, Json, Nothing, OptionalBody};
use super::reply::Reply;
use super::route::{Needs, Route, get, post};
use super::runs::{BulkFilter, CommandReason, RunFailure, Waiting, wait_of};
use super::shapes::{Id, Instant, Listing, Page, Span, named, span};
use crate::routes::problem::Problem;

/// Path parameter that selects a bulk command.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct BulkPath {
    /// Id of the bulk command, a UUID.
    #[schemars(with = "Id")]
    bulk: RunId,
}

/// A command that can be executed on many runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
enum BulkKind {
    Retry,
    Cancel,
    Suspend,
    Resume,
    Migrate,
    Signal,
    Delete,
}

/// Request to execute a command on many runs.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct StartBulk {
    /// The command to execute on each run.
    command: BulkKind,
    /// Ids of the runs. Either `runs` or `filter` is required.
    #[schemars(with = "Option<Vec<Id>>")]
    runs: Option<Vec<RunId>>,
    /// Selects the runs by conditions. Runs created after the start of the bulk command are not touched.
    filter: Option<BulkFilter>,
    /// Reason for the command, recorded in the audit trail of each run.
    #[schemars(length(max = 1000))]
    reason: Option<String>,
    /// Maximum number of runs. Default: the limit `bulk_runs`.
    #[schemars(range(min = 1))]
    most: Option<u64>,
    /// True = only report what the command would do to each run. Default: false.
    #[serde(default)]
    dry_run: bool,
    /// `migrate` only, required: number of the target workflow version.
    to_version: Option<u32>,
    /// `migrate` only: renamed places, as a map from the old to the new name.
    places: Option<BTreeMap<String, String>>,
    /// `migrate` only: new data of the run, a value with expressions on `context`. Default: the data stays unchanged.
    context: Option<Value>,
    /// `signal` only, required: name of the signal.
    #[schemars(length(min = 1, max = 256))]
    signal: Option<String>,
    /// `signal` only: payload of the signal, any JSON value. Default: null.
    #[serde(default, deserialize_with = "named")]
    payload: Option<Value>,
    /// `signal` only: true = skip runs that do not accept the signal now. Default: false, which buffers it.
    strict: Option<bool>,
    /// `signal` only: time for which the signal is buffered in a run that does not accept it now.
    #[schemars(with = "Option<Span>")]
    ttl: Option<String>,
}

/// Status of a bulk command. `completed` and `cancelled` are final.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
enum BulkStatus {
    Running,
    Cancelling,
    Completed,
    Cancelled,
    Failed,
}

impl From<stepwell::BulkStatus> for BulkStatus {
    fn from(status: stepwell::BulkStatus) -> Self {
        match status {
            stepwell::BulkStatus::Running => BulkStatus::Running,
            stepwell::BulkStatus::Cancelling => BulkStatus::Cancelling,
            stepwell::BulkStatus::Completed => BulkStatus::Completed,
            stepwell::BulkStatus::Cancelled => BulkStatus::Cancelled,
            stepwell::BulkStatus::Failed => BulkStatus::Failed,
        }
    }
}

/// Outcome of a bulk command on one run.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
enum BulkOutcome {
    Done,
    Failed,
    Skipped,
}

impl From<bulk::BulkOutcome> for BulkOutcome {
    fn from(outcome: bulk::BulkOutcome) -> Self {
        match outcome {
            bulk::BulkOutcome::Done => BulkOutcome::Done,
            bulk::BulkOutcome::Failed => BulkOutcome::Failed,
            bulk::BulkOutcome::Skipped => BulkOutcome::Skipped,
        }
    }
}

impl From<BulkOutcome> for bulk::BulkOutcome {
    fn from(outcome: BulkOutcome) -> Self {
        match outcome {
            BulkOutcome::Done => bulk::BulkOutcome::Done,
            BulkOutcome::Failed => bulk::BulkOutcome::Failed,
            BulkOutcome::Skipped => bulk::BulkOutcome::Skipped,
        }
    }
}

/// Result of a bulk command on one run.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct BulkResult {
    /// Id of the run, a UUID.
    #[schemars(with = "Id")]
    run: RunId,
    /// `done` = executed, or executable in a dry run; `skipped` = the command does not apply to the run any more.
    outcome: BulkOutcome,
    /// Reason why the command was not executed; absent if it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
}

impl From<bulk::BulkResult> for BulkResult {
    fn from(result: bulk::BulkResult) -> Self {
        BulkResult { run: result.run, outcome: result.outcome.into(), detail: result.detail }
    }
}

/// A bulk command and its progress.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct BulkShape {
    /// Id of the bulk command, a UUID.
    #[schemars(with = "Id")]
    id: RunId,
    /// The command that is executed on each run.
    command: BulkKind,
    /// Current status. `failed` = an error has stopped it; a retry of the run with this id continues it.
    status: BulkStatus,
    /// Number of selected runs, at most `most`; absent until they are counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    total: Option<u64>,
    /// Number of runs that the command was executed on, or could be in a dry run.
    done: u64,
    /// Number of runs that the command failed on.
    failed: u64,
    /// Number of runs that the command did not apply to any more.
    skipped: u64,
    /// True if no run is changed.
    dry_run: bool,
    /// Maximum number of runs.
    most: u64,
    /// Number of runs that were named by id; absent with a filter.
    #[serde(skip_serializing_if = "Option::is_none")]
    runs: Option<usize>,
    /// Conditions that select the runs; absent if they were named by id.
    #[serde(skip_serializing_if = "Option::is_none")]
    filter: Option<Value>,
    /// Reason that was given at the start.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// Id of the actor who started it; absent for the embedding program.
    #[serde(skip_serializing_if = "Option::is_none")]
    actor: Option<String>,
    /// Time of the start.
    #[schemars(with = "Instant")]
    started_at: Timestamp,
    /// Time of the end; absent before it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Instant>")]
    ended_at: Option<Timestamp>,
    /// Id of the run that was processed last; absent before the first one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Id>")]
    last_run: Option<RunId>,
    /// The latest failures, at most ten, oldest first. The results have all of them.
    failures: Vec<BulkResult>,
    /// Error that stopped the bulk command; absent if none did.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<RunFailure>,
}

impl From<BulkView> for BulkShape {
    fn from(view: BulkView) -> Self {
        let (runs, filter) = match view.target {
            BulkTarget::Runs(runs) => (Some(runs.len()), None),
            BulkTarget::Filter(filter) => (None, serde_json::to_value(filter).ok()),
        };
        BulkShape {
            id: view.id,
            command: match view.command {
                BulkCommand::Retry => BulkKind::Retry,
                BulkCommand::Cancel => BulkKind::Cancel,
                BulkCommand::Suspend => BulkKind::Suspend,
                BulkCommand::Resume => BulkKind::Resume,
                BulkCommand::Migrate { .. } => BulkKind::Migrate,
                BulkCommand::Signal { .. } => BulkKind::Signal,
                BulkCommand::Delete => BulkKind::Delete,
            },
            status: view.status.into(),
            total: view.total,
            done: view.done,
            failed: view.failed,
            skipped: view.skipped,
            dry_run: view.is_dry,
            most: view.most,
            runs,
            filter,
            reason: view.reason,
            actor: view.actor,
            started_at: view.started_at,
            ended_at: view.ended_at,
            last_run: view.last_run,
            failures: view.failures.into_iter().map(BulkResult::from).collect(),
            error: view.error.map(RunFailure::from),
        }
    }
}

/// Filter and page of the results of a bulk command.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ListResults {
    /// Lists only results with this outcome.
    outcome: Option<BulkOutcome>,
    /// Maximum number of rows, 1 to 200. Default: 50.
    #[schemars(range(min = 1, max = 200))]
    limit: Option<u32>,
    /// The `nextCursor` of the previous page.
    cursor: Option<String>,
}

pub(super) fn routes() -> Vec<Route> {
    let view = Permission::View;
    let any = || Needs::Any(&[Permission::Manage, Permission::Admin]);
    vec![
        post("/v1/bulk", "startBulk", any(), "Execute a command on many runs, given by their ids or by a filter.")
            .notes("Needs the permission of the command on a single run: `workflow:admin` for `migrate` and `delete`, or else `workflow:manage`. The bulk command is executed in the background, survives crashes, and executes exactly one audited command per run. A run that the command does not apply to any more is skipped. With `wait`, the response is sent when it ends, or when the time is over; that also requires `workflow:view`.")
            .keyed()
            .gives::<BulkShape>(StatusCode::ACCEPTED, "The bulk command was started.")
            .gives::<BulkShape>(StatusCode::OK, "The same key started the bulk command earlier.")
            .links_to("/v1/bulk/{bulk}", "bulk", "/id")
            .to(start),
        get("/v1/bulk", "listBulk", view, "List bulk commands, newest first.")
            .ok::<Page<BulkShape>>("Bulk commands.")
            .links_to("/v1/bulk/{bulk}", "bulk", "/items/0/id")
            .to(list),
        get("/v1/bulk/{bulk}", "showBulk", view, "Show a bulk command and its progress.")
            .notes("With `wait`, the response is sent when the bulk command ends or fails, or when the time is over.")
            .ok::<BulkShape>("The bulk command.")
            .to(show),
        get("/v1/bulk/{bulk}/results", "listBulkResults", view, "List the results of a bulk command so far, one per run.")
            .notes("A page may be short or empty although it has a `nextCursor`, because it reads a bounded number of results.")
            .ok::<Page<BulkResult>>("Results in the order of execution.")
            .to(results),
        post("/v1/bulk/{bulk}/cancel", "cancelBulk", any(), "Cancel a bulk command.")
            .notes("Commands that were executed stay executed. The current batch, at most 50 runs, is finished; the remaining runs are not touched. Needs the permission that the start needed.")
            .ok::<BulkShape>("The bulk command, `cancelling` or already `cancelled`.")
            .to(cancel),
    ]
}

/// Returns the command of a request, or a problem if a field is missing or belongs to another command.
fn command(body: &StartBulk) -> Result<BulkCommand, Problem> {
    let StartBulk { command, to_version, places, context, signal, payload, strict, ttl, .. } = body;
    let migrates =
        [("toVersion", to_version.is_some()), ("places", places.is_some()), ("context", context.is_some())];
    let signals = [
        ("signal", signal.is_some()),
        ("payload", payload.is_some()),
        ("strict", strict.is_some()),
        ("ttl", ttl.is_some()),
    ];
    let foreign = migrates.iter().filter(|_| *command != BulkKind::Migrate).map(|given| (given, "migrate"));
    let foreign =
        foreign.chain(signals.iter().filter(|_| *command != BulkKind::Signal).map(|given| (given, "signal")));
    if let Some(((name, _), of)) = foreign.into_iter().find(|((_, is_given), _)| *is_given) {
        return Err(unfit(format!("`{name}` is only for the command `{of}`: remove it.")));
    }
    Ok(match command {
        BulkKind::Retry => BulkCommand::Retry,
        BulkKind::Cancel => BulkCommand::Cancel,
        BulkKind::Suspend => BulkCommand::Suspend,
        BulkKind::Resume => BulkCommand::Resume,
        BulkKind::Delete => BulkCommand::Delete,
        BulkKind::Migrate => {
            let missing =
                || unfit("The command `migrate` needs `toVersion`, the number of the target version.");
            let version = to_version.ok_or_else(missing)?;
            let places = places.iter().flatten().map(|(from, to)| (from.as_str().into(), to.as_str().into()));
            let mapping = Mapping { places: places.collect(), context: context.clone() };
            BulkCommand::Migrate { version, mapping }
        }
        BulkKind::Signal => {
            let missing = || unfit("The command `signal` needs `signal`, the name of the signal.");
            BulkCommand::Signal {
                name: signal.as_deref().ok_or_else(missing)?.into(),
                payload: payload.clone().unwrap_or_default(),
                strict: strict.unwrap_or(false),
                ttl_ms: ttl.as_deref().map(ms).transpose()?,
            }
        }
    })
}

fn ms(text: &str) -> Result<u64, Problem> {
    Ok(u64::try_from(span(text)?.as_millis()).unwrap_or(u64::MAX))
}

fn unfit(detail: impl Into<String>) -> Problem {
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", detail)
}

async fn start(call: Call<Nothing, Waiting, Json<StartBulk>>) -> Result<Reply, Problem> {
    let (engine, key) = (call.engine(), call.key()?);
    let wait = wait_of(&call, call.query.wait.as_deref())?;
    if wait.is_some() {
        call.caller.may(Permission::View.into())?;
    }
    let command = command(&call.body.0)?;
    let StartBulk { runs, filter, reason, most, dry_run, .. } = call.body.0;
    let mut bulk = match (runs, filter) {
        (Some(runs), None) => bulk::Bulk::runs(command, runs),
        (None, Some(filter)) => bulk::Bulk::filter(command, filter.filter()?),
        (Some(_), Some(_)) => {
            return Err(unfit("`runs` and `filter` are mutually exclusive: remove one of them."));
        }
        (None, None) => {
            return Err(unfit(
                "A bulk command needs runs: name their ids in `runs`, or conditions in `filter`.",
            ));
        }
    };
    bulk = reason.into_iter().fold(bulk, bulk::Bulk::reason);
    bulk = most.into_iter().fold(bulk, bulk::Bulk::most);
    bulk = key.into_iter().fold(bulk, bulk::Bulk::key);
    if dry_run {
        bulk = bulk.dry_run();
    }
    let started = engine.bulk(bulk).await?;
    let shown = shown_after(&call.server, &engine, started.value, wait.unwrap_or_default()).await?;
    let status = if started.is_new { StatusCode::ACCEPTED } else { StatusCode::OK };
    let reply = Reply::json(status, &shown)?;
    Ok(reply.at(&format!("/v1/bulk/{}", started.value)).replayed(!started.is_new))
}

/// Waits until the bulk command ends or fails, the time is over or the server stops. Then returns the bulk command.
async fn shown_after(
    server: &Server,
    engine: &Engine,
    id: RunId,
    wait: Duration,
) -> Result<BulkShape, Problem> {
    if !wait.is_zero() {
        let _waits = server.telemetry.requests().wait();
        let run = engine.run(id);
        // The result is ignored here because the view contains it.
        tokio::select! {
            _ = tokio::time::timeout(wait, run.result()) => {}
            () = server.stopping() => {}
        }
    }
    Ok(engine.bulk_view(id).await?.into())
}

async fn list(call: Call<Nothing, Listing>) -> Result<Reply, Problem> {
    let page = call.engine().bulks(call.query.limit(), call.query.cursor()).await?;
    Reply::ok(&Page::of(page, BulkShape::from))
}

async fn show(call: Call<BulkPath, Waiting>) -> Result<Reply, Problem> {
    let wait = wait_of(&call, call.query.wait.as_deref())?.unwrap_or_default();
    let engine = call.engine();
    // An unknown id is a 404 at once, and so is the id of another run.
    engine.bulk_view(call.path.bulk).await?;
    Reply::ok(&shown_after(&call.server, &engine, call.path.bulk, wait).await?)
}

async fn results(call: Call<BulkPath, ListResults>) -> Result<Reply, Problem> {
    let ListResults { outcome, limit, cursor } = &call.query;
    let listing = Listing::of(*limit, cursor.clone());
    let outcome = outcome.map(Into::into);
    let query = BulkResultQuery { outcome, limit: listing.limit(), cursor: listing.cursor() };
    let page = call.engine().bulk_results(call.path.bulk, query).await?;
    Reply::ok(&Page::of(page, BulkResult::from))
}

async fn cancel(call: Call<BulkPath, Waiting, OptionalBody<CommandReason>>) -> Result<Reply, Problem> {
    let wait = wait_of(&call, call.query.wait.as_deref())?.unwrap_or_default();
    let engine = call.engine();
    let by = Operator { reason: call.body.0.reason.clone(), ..Operator::default() };
    let view = engine.cancel_bulk(call.path.bulk, &by).await?;
    if wait.is_zero() {
        return Reply::ok(&BulkShape::from(view));
    }
    Reply::ok(&shown_after(&call.server, &engine, call.path.bulk, wait).await?)
}
