//! Actions that every engine has, beside those of the data store: other workflows, the log, and plain data.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use stepwell_core::{RunId, Timestamp};

use crate::action::ActionError;
use crate::actor::Permission;
use crate::cx::Cx;
use crate::engine::Builder;
use crate::events::Event;
use crate::start::{Start, no_input};

/// A workflow to be run and waited for.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Call {
    /// The workflow's name.
    workflow: String,
    /// What it is started with; an empty object if nothing is named.
    #[serde(default = "no_input")]
    input: Value,
}

async fn call(cx: Cx, call: Call) -> Result<Value, ActionError> {
    cx.start_child(Start::new(call.workflow.as_str()).input(&call.input))?;
    Ok(Value::Null)
}

/// A workflow to be started.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct StartInput {
    /// The workflow's name.
    workflow: String,
    /// What it is started with; an empty object if nothing is named.
    #[serde(default = "no_input")]
    input: Value,
    /// The same key gives the same run.
    #[serde(default)]
    key: Option<String>,
    /// When it begins (RFC 3339); without it at once.
    #[serde(default)]
    at: Option<String>,
}

/// A run that was started.
#[derive(Debug, Serialize, JsonSchema)]
struct StartOutput {
    /// Its id.
    run: String,
}

async fn start(cx: Cx, input: StartInput) -> Result<StartOutput, ActionError> {
    let mut start = Start::new(input.workflow.as_str()).input(&input.input);
    if let Some(at) = &input.at {
        let wrong = || invalid(format!("`at` is an instant such as `2030-01-31T12:00:00Z`, not `{at}`"));
        start = start.at(at.parse::<Timestamp>().map_err(|_| wrong())?);
    }
    let run = match input.key {
        Some(key) => cx.start_once(start.key(key)).await?,
        None => cx.start(start)?,
    };
    Ok(StartOutput { run: run.to_string() })
}

/// A signal to another run.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SignalInput {
    /// The run's id.
    run: String,
    /// The signal's name.
    signal: String,
    /// What it brings.
    #[serde(default)]
    payload: Value,
}

/// Nothing to say.
#[derive(Debug, Serialize, JsonSchema)]
struct Done {
    /// It is done.
    done: bool,
}

async fn signal(cx: Cx, input: SignalInput) -> Result<Done, ActionError> {
    let run: RunId =
        input.run.parse().map_err(|_| invalid(format!("`{}` is not the id of a run", input.run)))?;
    cx.signal(run, input.signal.as_str(), &input.payload)?;
    Ok(Done { done: true })
}

/// Something that has happened.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct EmitInput {
    /// The event's name.
    name: String,
    /// What it brings.
    #[serde(default)]
    data: Value,
    /// Its id at its source: an event of the same source and id is the same event. Without it the step gives it one.
    #[serde(default)]
    id: Option<String>,
    /// Where it comes from; without it the workflow.
    #[serde(default)]
    source: Option<String>,
    /// What it is about, at its source.
    #[serde(default)]
    subject: Option<String>,
    /// How many seconds it waits for runs that come to wait for it.
    #[serde(default)]
    kept_seconds: Option<u64>,
}

/// An event that was accepted.
#[derive(Debug, Serialize, JsonSchema)]
struct EmitOutput {
    /// By which it is found.
    event: String,
}

async fn emit(cx: Cx, input: EmitInput) -> Result<EmitOutput, ActionError> {
    let mut event = Event::new(input.name.as_str()).with(&input.data);
    if let Some(id) = input.id {
        event = event.id(id);
    }
    if let Some(source) = input.source {
        event = event.source(source);
    }
    if let Some(subject) = input.subject {
        event = event.subject(subject);
    }
    if let Some(seconds) = input.kept_seconds {
        event = event.kept_for(Duration::from_secs(seconds));
    }
    Ok(EmitOutput { event: cx.emit(event).await?.to_string() })
}

/// How much something in the log matters.
#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Level {
    /// For whoever looks for a mistake.
    Debug,
    /// As it should be.
    #[default]
    Info,
    /// Not as it should be.
    Warn,
    /// Wrong.
    Error,
}

/// Something for the log.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct LogInput {
    /// What is to be said.
    message: String,
    /// How much it matters.
    #[serde(default)]
    level: Level,
    /// What belongs to it.
    #[serde(default)]
    data: Value,
}

async fn log(cx: Cx, input: LogInput) -> Result<Done, ActionError> {
    let LogInput { message, level, data } = input;
    let (run, workflow, trace) = (cx.run(), cx.workflow(), cx.root().uuid());
    let trace = trace.simple();
    match level {
        Level::Debug => tracing::debug!(%run, %workflow, traceId = %trace, %data, "{message}"),
        Level::Info => tracing::info!(%run, %workflow, traceId = %trace, %data, "{message}"),
        Level::Warn => tracing::warn!(%run, %workflow, traceId = %trace, %data, "{message}"),
        Level::Error => tracing::error!(%run, %workflow, traceId = %trace, %data, "{message}"),
    }
    Ok(Done { done: true })
}

async fn transform(_: Cx, input: Value) -> Result<Value, ActionError> {
    Ok(input)
}

/// Where a flow rests from its next pause on.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RestInput {
    /// The name of a strategy, or `durable`.
    strategy: String,
}

async fn rest(cx: Cx, input: RestInput) -> Result<Done, ActionError> {
    cx.rest_in(input.strategy)?;
    Ok(Done { done: true })
}

fn invalid(why: String) -> ActionError {
    ActionError::new("invalidInput", why).finally()
}

/// Registers the actions.
pub(crate) fn equip(builder: Builder) -> Builder {
    builder
        .described("workflow.call", "Runs another workflow; a step of its own waits for the result.", call)
        .described("workflow.start", "Starts another workflow and does not wait for it.", start)
        .described("workflow.signal", "Sends a signal to another run.", signal)
        .described(
            "event.emit",
            "Says that something has happened: it starts workflows and wakes runs.",
            emit,
        )
        .described("log", "Writes to the log.", log)
        .described("transform", "Gives its input back: data in another shape.", transform)
        .described("flow.rest", "Has the flow rest elsewhere from its next pause on.", rest)
        .describe("workflow.call", |info| {
            info.group("workflow").icon("git-fork").permission(Permission::Manage)
        })
        .describe("workflow.start", |info| info.group("workflow").icon("play").permission(Permission::Manage))
        .describe("workflow.signal", |info| {
            info.group("workflow").icon("bell").permission(Permission::Manage)
        })
        .describe("event.emit", |info| info.group("workflow").icon("radio").permission(Permission::Manage))
        .describe("log", |info| info.group("data").icon("file-text"))
        .describe("transform", |info| info.group("data").icon("shuffle").without_side_effects())
        .describe("flow.rest", |info| info.group("flow").icon("pause"))
}
