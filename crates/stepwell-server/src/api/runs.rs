//! Runs: started, looked at, signalled, and what an operator does to them.

mod command;
mod follow;
mod record;
mod view;

use std::time::Duration;

use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use stepwell::core::shadow::ShadowValue;
use stepwell::core::{Name, RunId, Timestamp};
use stepwell::registry::OWN;
use stepwell::store::{HistoryQuery, HistoryRow, RunQuery, WaitQuery, WaitsOf};
use stepwell::{Engine, Permission, Run, Signal, Signalled, Start};

use super::Server;
use super::call::{Call, Json, Nothing, Payload};
use super::patience::preferred_wait;
use super::reply::Reply;
use super::route::{Route, get, post};
use super::shapes::{Condition, Id, InstantGiven, Listing, Page, RunStatus, Span, named, span};
use crate::routes::problem::Problem;
use view::{Checkpoint, CheckpointState, RunRow, RunShown, Wait};

/// Which run.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct OfRun {
    /// The run's id.
    #[schemars(with = "Id")]
    pub(super) run: RunId,
}

/// A run that is to begin.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct StartRun {
    /// The workflow's name.
    #[schemars(length(min = 1, max = 256))]
    workflow: String,
    /// What it is given: `null` is something, and nothing is an empty object.
    #[serde(default, deserialize_with = "named")]
    input: Option<Value>,
    /// The id it is to have; without this the server makes one.
    #[schemars(with = "Option<Id>")]
    id: Option<RunId>,
    /// When it is to begin; without this at once.
    #[schemars(with = "Option<InstantGiven>")]
    at: Option<Timestamp>,
    /// When it is cancelled if it has not ended.
    #[schemars(with = "Option<InstantGiven>")]
    deadline: Option<Timestamp>,
    /// If a run was started with this `Idempotency-Key` before, it gets this signal instead; otherwise the new run begins with it.
    signal: Option<FirstSignal>,
}

/// A signal that a run begins with.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct FirstSignal {
    /// Its name.
    #[schemars(length(min = 1, max = 256))]
    name: String,
    /// What it brings.
    #[serde(default)]
    payload: Option<Value>,
    /// The same id is the same signal, for the life of the run.
    #[schemars(length(min = 1, max = 255))]
    id: Option<String>,
}

/// A run that has begun.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct RunStarted {
    /// The run.
    #[schemars(with = "Id")]
    id: RunId,
    /// It is new: nobody had started it with the same key before.
    created: bool,
    /// The run as it stands, if it was waited for.
    #[serde(skip_serializing_if = "Option::is_none")]
    run: Option<RunShown>,
}

/// How long to wait for a run.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Waiting {
    /// Wait for the run's end, or until it stands still with an error, for at most so long.
    #[schemars(with = "Option<Span>")]
    wait: Option<String>,
}

/// Which runs.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ListRuns {
    /// Of this workflow.
    #[schemars(length(min = 1, max = 256))]
    workflow: Option<String>,
    /// Doing so.
    status: Option<RunStatus>,
    /// Children of this run.
    #[schemars(with = "Option<Id>")]
    parent: Option<RunId>,
    /// Whose shadow column holds this: `name=value`. Numbers, `true` and `false` are meant as such, and as texts in quotes.
    #[serde(default, rename = "where")]
    #[schemars(with = "Vec<Condition>")]
    columns: Vec<String>,
    /// How many rows at most.
    #[schemars(range(min = 1, max = 200))]
    limit: Option<u32>,
    /// Where the part before ended.
    cursor: Option<String>,
}

/// Which part of a run's history.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ListHistory {
    /// From this version on; what `nextCursor` of the part before says.
    #[schemars(range(max = 9_007_199_254_740_991u64))]
    cursor: Option<u64>,
    /// How many rows at most.
    #[schemars(range(min = 1, max = 200))]
    limit: Option<u32>,
}

/// A version of a run.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct OfVersion {
    /// The run's id.
    #[schemars(with = "Id")]
    run: RunId,
    /// The version.
    #[schemars(range(max = 9_007_199_254_740_991u64))]
    version: u64,
}

/// Which open waits.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ListWaits {
    /// Of this run.
    #[schemars(with = "Option<Id>")]
    run: Option<RunId>,
    /// How many rows at most.
    #[schemars(range(min = 1, max = 200))]
    limit: Option<u32>,
    /// Where the part before ended.
    cursor: Option<String>,
}

/// A signal to a run.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct OfSignal {
    /// The run's id.
    #[schemars(with = "Id")]
    run: RunId,
    /// The signal's name.
    #[schemars(length(min = 1, max = 256))]
    name: String,
}

/// How a signal is sent.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct SendSignal {
    /// Refuse it if nothing takes it now, instead of keeping it.
    strict: Option<bool>,
    /// How long it is kept if nothing takes it now.
    #[schemars(with = "Option<Span>")]
    keep_for: Option<String>,
    /// It answers this wait and no other: the `activation` of an open wait. If that was answered before, it is refused.
    for_wait: Option<u64>,
}

/// What became of a signal.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct SignalSent {
    /// It has moved the run or begun an action, or it is kept until something takes it.
    outcome: SignalOutcome,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
enum SignalOutcome {
    Taken,
    Kept,
}

pub(super) fn routes() -> Vec<Route> {
    let (view, manage) = (Permission::View, Permission::Manage);
    let mut routes = vec![
        post("/v1/runs", "startRun", manage, "Starts a run.")
            .notes("With an `Idempotency-Key` the same key gives the same run for as long as the run is kept. With `wait` the answer has the run as it stands then, which needs `workflow:view` too.")
            .keyed()
            .gives::<RunStarted>(StatusCode::CREATED, "The run has begun.")
            .gives::<RunStarted>(StatusCode::OK, "It had begun before, with the same key.")
            .leads("/v1/runs/{run}", "run", "/id")
            .leads("/v1/state/execution/{run}", "run", "/id")
            .to(start),
        get("/v1/runs", "listRuns", view, "Lists runs, newest first.")
            .notes("Runs of the engine's own workflows (`stepwell.…`: schedules, events) are listed only where that workflow is named.")
            .ok::<Page<RunRow>>("Runs.")
            .leads("/v1/runs/{run}", "run", "/items/0/id")
            .to(list),
        get("/v1/runs/{run}", "showRun", view, "Shows a run.")
            .notes("`ETag` is its version. With `wait` it is answered when the run has ended or stands still with an error, or when the time is over.")
            .ok::<RunShown>("The run.")
            .to(show),
        get("/v1/runs/{run}/history", "listHistory", view, "Lists a run's checkpoints, oldest first.")
            .ok::<Page<Checkpoint>>("Checkpoints.")
            .leads("/v1/runs/{run}/versions/{version}", "version", "/items/0/version")
            .to(history),
        get("/v1/runs/{run}/versions/{version}", "showRunVersion", view, "Shows a run as it was at a version.")
            .ok::<CheckpointState>("The checkpoint, with the state.")
            .to(version),
        get("/v1/runs/{run}/events", "followRun", view, "Follows a run: server-sent events, one per checkpoint.")
            .notes("The id of an event is the version; `Last-Event-ID` goes on after one. The stream ends when the run has.")
            .gives_text("text/event-stream", "Events `checkpoint` with the history entry, and `status`.")
            .to(follow::follow),
        post("/v1/runs/{run}/signals/{name}", "signalRun", manage, "Signals a run; the body is what the signal brings.")
            .notes("`Idempotency-Key` is the signal's id: the same id is the same signal for the life of the run.")
            .keyed()
            .ok::<SignalSent>("What became of it.")
            .to(signal),
        get("/v1/waits", "listWaits", view, "Lists what runs wait for.").ok::<Page<Wait>>("Open waits.").to(waits),
    ];
    routes.extend(command::routes());
    routes.extend(record::routes());
    routes
}

async fn start(call: Call<Nothing, Waiting, Json<StartRun>>) -> Result<Reply, Problem> {
    let (engine, key) = (call.engine(), call.key()?);
    let wait = wait_of(&call, call.query.wait.as_deref())?;
    if wait.is_some() {
        call.caller.may(Permission::View.into())?;
    }
    let Json(StartRun { workflow, input, id, at, deadline, signal }) = call.body;
    let mut start = Start::new(workflow.as_str());
    if let Some(input) = &input {
        start = start.input(input);
    }
    start = id.into_iter().fold(start, Start::id);
    start = at.into_iter().fold(start, Start::at);
    start = deadline.into_iter().fold(start, Start::deadline);
    start = key.iter().fold(start, |start, key| start.key(key.as_str()));
    call.server.room_for_run(call.caller.scope(), key.as_deref()).await?;
    let started = match signal {
        None => engine.start_once(start).await?,
        Some(_) if key.is_none() => {
            let detail =
                "A run that begins with a signal needs an `Idempotency-Key`, by which it is found again.";
            return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "keyMissing", detail));
        }
        Some(first) => {
            let signal = Signal::new(first.name.as_str()).with(&first.payload);
            let signal = first.id.into_iter().fold(signal, Signal::id);
            engine.start_or_signal(start, signal).await?
        }
    };
    let id = started.run.id();
    let run = match wait {
        Some(wait) => Some(shown_after(&call.server, &started.run, wait).await?),
        None => None,
    };
    let status = if started.is_new { StatusCode::CREATED } else { StatusCode::OK };
    let reply = Reply::json(status, &RunStarted { id, created: started.is_new, run })?;
    Ok(reply.at(&format!("/v1/runs/{id}")).replayed(!started.is_new))
}

async fn list(call: Call<Nothing, ListRuns>) -> Result<Reply, Problem> {
    let engine = call.engine();
    let ListRuns { workflow, status, parent, columns, limit, cursor } = call.query;
    let shadows = columns.iter().map(|column| condition(column)).collect::<Result<_, _>>()?;
    let listing = Listing::of(limit, cursor);
    let query = RunQuery {
        workflow: workflow.map(Name::from),
        without: Some(OWN.to_owned()),
        status: status.map(Into::into),
        parent,
        shadows,
        limit: listing.limit(),
        cursor: listing.cursor(),
    };
    Reply::ok(&Page::of(engine.runs(query).await?, RunRow::from))
}

/// `name=value`.
pub(super) fn condition(text: &str) -> Result<(Name, ShadowValue), Problem> {
    let wrong = || Problem::bad("badParameter", format!("`{text}` is not a condition: write `name=value`."));
    let (name, value) = text.split_once('=').filter(|(name, _)| !name.is_empty()).ok_or_else(wrong)?;
    let value = match serde_json::from_str(value) {
        Ok(Value::Number(number)) => number.as_f64().map(ShadowValue::Number).ok_or_else(wrong)?,
        Ok(Value::Bool(is)) => ShadowValue::Boolean(is),
        Ok(Value::String(text)) => ShadowValue::Text(text),
        _ => ShadowValue::Text(value.to_owned()),
    };
    Ok((name.into(), value))
}

async fn show(call: Call<OfRun, Waiting>) -> Result<Reply, Problem> {
    let run = call.engine().run(call.path.run);
    let wait = wait_of(&call, call.query.wait.as_deref())?;
    let shown = shown_after(&call.server, &run, wait.unwrap_or_default()).await?;
    let version = shown.version;
    Ok(Reply::ok(&shown)?.tagged(version))
}

/// How long the request wants to wait, in its query or as a preference, and no longer than allowed.
pub(super) fn wait_of<P, Q, B>(
    call: &Call<P, Q, B>,
    asked: Option<&str>,
) -> Result<Option<Duration>, Problem> {
    let asked = asked.map(span).transpose()?;
    Ok(asked.or_else(|| preferred_wait(&call.headers)).map(|wait| wait.min(call.server.options.max_wait)))
}

/// The run, when it has ended or stands still with an error, or when the time is over.
async fn shown_after(server: &Server, run: &Run, wait: Duration) -> Result<RunShown, Problem> {
    if !wait.is_zero() {
        let _waits = server.telemetry.requests().wait();
        // How it ended is in the view.
        tokio::select! {
            _ = tokio::time::timeout(wait, run.result()) => {}
            () = server.stopping() => {}
        }
    }
    Ok(RunShown::of(run.view().await?))
}

async fn history(call: Call<OfRun, ListHistory>) -> Result<Reply, Problem> {
    let engine = call.engine();
    let limit = Listing::of(call.query.limit, None).limit();
    let query =
        HistoryQuery { run: call.path.run, from: call.query.cursor.unwrap_or(0), with_state: false, limit };
    let page = engine.store().history(engine.scope(), query).await?;
    if page.items.is_empty() && page.bad.is_empty() {
        // A run that is not there is another answer than one without newer checkpoints.
        engine.run(call.path.run).view().await?;
    }
    let shown = page.items.iter().map(Checkpoint::of).collect::<Result<Vec<_>, _>>()?;
    Reply::ok(&Page::of(page.over(|_| shown), |checkpoint| checkpoint))
}

async fn version(call: Call<OfVersion>) -> Result<Reply, Problem> {
    let OfVersion { run, version } = call.path;
    Reply::ok(&CheckpointState::of(&checkpoint(&call.engine(), run, version).await?)?)
}

/// A checkpoint of a run, with the state.
async fn checkpoint(engine: &Engine, run: RunId, version: u64) -> Result<HistoryRow, Problem> {
    let query = HistoryQuery { run, from: version, with_state: true, limit: 1 };
    let row = engine.store().history(engine.scope(), query).await?.items.pop();
    row.filter(|row| row.version == version).ok_or_else(|| {
        let detail = format!("Run {run} has no checkpoint of version {version} any more, or not yet.");
        Problem::new(StatusCode::NOT_FOUND, "noVersion", detail)
    })
}

async fn signal(call: Call<OfSignal, SendSignal, Payload>) -> Result<Reply, Problem> {
    let engine = call.engine();
    let mut signal = Signal::new(call.path.name.as_str()).with(&call.body.0);
    if let Some(key) = call.key()? {
        signal = signal.id(key);
    }
    if call.query.strict == Some(true) {
        signal = signal.strict();
    }
    if let Some(keep_for) = &call.query.keep_for {
        signal = signal.kept_for(span(keep_for)?);
    }
    if let Some(wait) = call.query.for_wait {
        signal = signal.answering(wait);
    }
    let done = engine.signal_once(call.path.run, signal).await?;
    let outcome = match done.came_to {
        Signalled::Taken => SignalOutcome::Taken,
        Signalled::Kept => SignalOutcome::Kept,
    };
    Ok(Reply::ok(&SignalSent { outcome })?.replayed(!done.is_new))
}

async fn waits(call: Call<Nothing, ListWaits>) -> Result<Reply, Problem> {
    let engine = call.engine();
    let listing = Listing::of(call.query.limit, call.query.cursor);
    let of = call.query.run.map_or(WaitsOf::All, WaitsOf::Run);
    let query = WaitQuery { of, limit: listing.limit(), cursor: listing.cursor() };
    let page = engine.store().waits(engine.scope(), query).await?;
    Reply::ok(&Page::of(page, Wait::of))
}
