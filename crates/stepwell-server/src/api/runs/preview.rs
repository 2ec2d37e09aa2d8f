//! Routes that show what a run could do, without doing it: its transitions, and runs without a database.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use stepwell::core::Name;
use stepwell::core::dispatch::Available;
use stepwell::stateless::StatelessResult;
use stepwell::{Effect, Engine, Permission, Start, store};

use super::RunPath;
use super::record::RunDocument;
use super::view::RunFailure;
use crate::api::call::{Call, Json, Nothing};
use crate::api::reply::Reply;
use crate::api::route::{Route, get, post};
use crate::api::shapes::{Page, RunStatus, named};
use crate::routes::problem::Problem;

/// A transition that leaves a place of a run.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct AvailableTransition {
    /// Name of the transition.
    #[schemars(with = "String")]
    transition: Name,
    /// Name of the place that it leaves.
    #[schemars(with = "String")]
    from: Name,
    /// Name of the place that it enters.
    #[schemars(with = "String")]
    to: Name,
    /// Number of the activation that would take it.
    activation: u64,
    /// Name of the signal that fires it; absent if no signal does.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    signal: Option<Name>,
    /// Reason why it cannot fire now: an open wait, a timer that is not due, or the guard that is false. Absent if it
    /// can fire.
    #[serde(skip_serializing_if = "Option::is_none")]
    blocked_by: Option<String>,
}

impl From<Available> for AvailableTransition {
    fn from(found: Available) -> Self {
        let Available { activation, transition, from, to, signal, blocked_by } = found;
        AvailableTransition { transition, from, to, activation, signal, blocked_by }
    }
}

/// The effect that a signal would have.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) enum PredictedEffect {
    /// The history entry of the version that the run would get.
    Change(Value),
    /// The action that would start. The transition fires when the action succeeds.
    Action(PredictedCall),
}

/// An action that a signal would start.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct PredictedCall {
    /// Name of the transition that the action belongs to.
    #[schemars(with = "String")]
    transition: Name,
    /// Name of the action.
    #[schemars(with = "String")]
    action: Name,
    /// Input of the action. Secrets in it are not resolved.
    input: Value,
}

impl PredictedEffect {
    pub(super) fn of(effect: Effect) -> Result<Self, Problem> {
        Ok(match effect {
            Effect::Change(entry) => {
                let entry = serde_json::to_value(&*entry).map_err(|error| Problem::internal(&error))?;
                PredictedEffect::Change(entry)
            }
            Effect::Action(call) => PredictedEffect::Action(PredictedCall {
                transition: call.transition,
                action: call.action,
                input: call.input,
            }),
        })
    }
}

/// Request to run a workflow without a database.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RunStateless {
    /// Name of the workflow to run.
    #[schemars(length(min = 1, max = 256))]
    workflow: String,
    /// Input of the run; `null` is a valid input. Default: an empty object.
    #[serde(default, deserialize_with = "named")]
    input: Option<Value>,
}

/// Result of a run without a database.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct StatelessRun {
    /// Status of the run: `completed`, `failed`, or `waiting` at the first wait or timer.
    status: RunStatus,
    /// Names of the places the run is in.
    #[schemars(with = "Vec<String>")]
    places: Vec<Name>,
    /// Output of the run; present only if it has completed.
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<Value>,
    /// Error that stopped the run; absent if it is not stopped by one.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<RunFailure>,
    /// Complete state of the run, with its data and session slots.
    snapshot: Value,
    /// Documents that the run put.
    documents: Vec<RunDocument>,
    /// Entries of the run's history, oldest first.
    history: Vec<Value>,
}

impl StatelessRun {
    fn of(engine: &Engine, done: StatelessResult) -> Result<Self, Problem> {
        let StatelessResult { status, snapshot, result, error, documents, history } = done;
        let encoded = snapshot.encode(engine.limits()).map_err(|error| Problem::internal(&error))?;
        let json = |value: Result<Value, serde_json::Error>| value.map_err(|error| Problem::internal(&error));
        Ok(StatelessRun {
            status: status.into(),
            places: snapshot.current_places(),
            result,
            error: error.map(Into::into),
            snapshot: json(serde_json::from_slice(&encoded))?,
            documents: documents.into_iter().map(RunDocument::of).collect::<Result<_, _>>()?,
            history: history
                .iter()
                .map(|entry| json(serde_json::to_value(entry)))
                .collect::<Result<_, _>>()?,
        })
    }
}

pub(super) fn routes() -> Vec<Route> {
    vec![
        get("/v1/runs/{run}/transitions", "listTransitions", Permission::View, "List the transitions that leave the places of a run.")
            .notes("Guards are evaluated with a null payload. To see what a signal would do, send it with `dryRun=true`.")
            .ok::<Page<AvailableTransition>>("All transitions, in the order of the definition for each activation.")
            .to(transitions),
        post("/v1/stateless-runs", "runStateless", Permission::Manage, "Run a workflow without a database, to its end or to its first wait or timer.")
            .notes("Nothing is stored, so a response that is lost cannot be fetched again. Actions are called as in any run. A workflow that needs children or the data store is refused.")
            .ok::<StatelessRun>("State of the run at its end, or at its first wait or timer.")
            .to(run_stateless),
    ]
}

async fn transitions(call: Call<RunPath>) -> Result<Reply, Problem> {
    let found = call.engine().run(call.path.run).available().await?;
    let page = store::Page { items: found, next: None, bad: Vec::new() };
    Reply::ok(&Page::of(page, AvailableTransition::from))
}

async fn run_stateless(call: Call<Nothing, Nothing, Json<RunStateless>>) -> Result<Reply, Problem> {
    let engine = call.engine();
    let Json(RunStateless { workflow, input }) = call.body;
    let mut start = Start::new(workflow.as_str());
    if let Some(input) = &input {
        start = start.input(input);
    }
    let done = engine.run_stateless(start).await?;
    Reply::ok(&StatelessRun::of(&engine, done)?)
}
