//! Built-in actions of every engine, apart from the data actions: workflows, signals, events, log and plain data.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use stepwell_core::time::{duration_ms, missing_unit};
use stepwell_core::{RunId, Timestamp};

use crate::action::ActionError;
use crate::actor::Permission;
use crate::cx::Cx;
use crate::engine::Builder;
use crate::events::Event;
use crate::flow::Outgoing;
use crate::start::{Start, no_input};

/// A workflow to run as a child.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Call {
    /// Name of the workflow.
    workflow: String,
    /// Input of the child run. Default: an empty object.
    #[serde(default = "no_input")]
    input: Value,
}

async fn call(cx: Cx, call: Call) -> Result<Value, ActionError> {
    cx.start_child(Start::new(call.workflow.as_str()).input(&call.input))?;
    Ok(Value::Null)
}

/// A workflow to start as a separate run.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct StartInput {
    /// Name of the workflow.
    workflow: String,
    /// Input of the new run. Default: an empty object.
    #[serde(default = "no_input")]
    input: Value,
    /// Idempotency key: the same key returns the same run.
    #[serde(default)]
    key: Option<String>,
    /// Start time (RFC 3339). Default: now.
    #[serde(default)]
    at: Option<String>,
}

/// The run that was started.
#[derive(Debug, Serialize, JsonSchema)]
struct StartOutput {
    /// Id of the run.
    run: String,
}

async fn start(cx: Cx, input: StartInput) -> Result<StartOutput, ActionError> {
    let mut start = Start::new(input.workflow.as_str()).input(&input.input);
    if let Some(at) = &input.at {
        let wrong =
            || invalid(format!("`at` must be an instant such as `2030-01-31T12:00:00Z` (got `{at}`)"));
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
    /// Id of the run.
    run: String,
    /// Name of the signal.
    signal: String,
    /// Payload of the signal. Default: null.
    #[serde(default)]
    payload: Value,
}

/// Confirms that the action was executed.
#[derive(Debug, Serialize, JsonSchema)]
struct Done {
    /// True; a failure is an error instead.
    done: bool,
}

async fn signal(cx: Cx, input: SignalInput) -> Result<Done, ActionError> {
    let run: RunId = input.run.parse().map_err(|_| invalid(format!("`{}` is not a run id", input.run)))?;
    cx.signal(run, input.signal.as_str(), &input.payload)?;
    Ok(Done { done: true })
}

/// An event to emit.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct EmitInput {
    /// Name of the event.
    name: String,
    /// Payload of the event. Default: null.
    #[serde(default)]
    data: Value,
    /// Id of the event at its source. An event with the same source and id is the same event. Default: derived from
    /// the step.
    #[serde(default)]
    id: Option<String>,
    /// Source of the event. Default: the workflow.
    #[serde(default)]
    source: Option<String>,
    /// Subject of the event at its source.
    #[serde(default)]
    subject: Option<String>,
    /// Time in seconds for which runs that start to wait later still receive the event.
    #[serde(default)]
    ttl_seconds: Option<u64>,
}

/// The event that was accepted.
#[derive(Debug, Serialize, JsonSchema)]
struct EmitOutput {
    /// Id of the event.
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
    if let Some(seconds) = input.ttl_seconds {
        event = event.ttl(Duration::from_secs(seconds));
    }
    Ok(EmitOutput { event: cx.emit(event).await?.to_string() })
}

/// Severity of a log entry.
#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Level {
    /// Details that help with debugging.
    Debug,
    /// Information about normal operation.
    #[default]
    Info,
    /// A problem that needs attention.
    Warn,
    /// An error that needs a fix.
    Error,
}

/// An entry for the log.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct LogInput {
    /// Text of the log entry.
    message: String,
    /// Severity of the entry. Default: `info`.
    #[serde(default)]
    level: Level,
    /// Data to log with the message. Default: null.
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

/// The strategy for the state of a flow from its next pause on.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct UseStrategyInput {
    /// Name of a registered strategy, or `durable`.
    strategy: String,
}

async fn use_strategy(cx: Cx, input: UseStrategyInput) -> Result<Done, ActionError> {
    cx.use_strategy(input.strategy)?;
    Ok(Done { done: true })
}

/// A message with the answer link of the next wait.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SendOutInput {
    /// Name of the outlet that sends the message.
    outlet: String,
    /// Recipient in the outlet's format, such as a mail address.
    to: String,
    /// Name of the outlet's template. Default: `default`.
    #[serde(default)]
    template: Option<String>,
    /// Data for the template. Default: null.
    #[serde(default)]
    data: Value,
    /// Outcomes that the link accepts. Default: all that the wait accepts. Only links to durable runs can be
    /// restricted.
    #[serde(default)]
    outcomes: Vec<String>,
    /// Lifetime of the link, such as `30m` or `P3D`. Default: that of the strategy.
    #[serde(default)]
    ttl: Option<String>,
}

/// The message is sent with the commit of the next wait.
#[derive(Debug, Serialize, JsonSchema)]
struct SendOutOutput {
    /// Name of the outlet.
    sent: String,
}

async fn send_out(cx: Cx, input: SendOutInput) -> Result<SendOutOutput, ActionError> {
    let SendOutInput { outlet, to, template, data, outcomes, ttl } = input;
    let mut outgoing = Outgoing::new(outlet.as_str(), to).data(data);
    if let Some(template) = template {
        outgoing = outgoing.template(template);
    }
    for outcome in outcomes {
        outgoing = outgoing.outcome(outcome);
    }
    if let Some(ttl) = ttl {
        let given = Value::String(ttl.clone());
        let wrong = || {
            let why = format!("`ttl` must be a duration such as `30m` or `P3D` (got `{ttl}`)");
            invalid(missing_unit("ttl: ", &given).unwrap_or(why))
        };
        let ms = duration_ms(&given).ok_or_else(wrong)?;
        outgoing = outgoing.ttl(Duration::from_millis(ms));
    }
    cx.send_out(outgoing)?;
    Ok(SendOutOutput { sent: outlet })
}

fn invalid(why: String) -> ActionError {
    ActionError::new("invalidInput", why).non_retryable()
}

/// Codes of the actions that start runs.
const STARTS: [&str; 3] = ["invalidStart", "invalid", "keyReused"];
/// Codes of actions that write data.
pub(crate) const WRITES: [&str; 3] = ["conflict", "invalid", "keyReused"];
/// Codes of actions that only read data.
pub(crate) const READS: [&str; 1] = ["invalid"];
/// The codes of an action that raises none.
const NO_CODES: [&str; 0] = [];

/// Registers the built-in actions.
pub(crate) fn equip(builder: Builder) -> Builder {
    builder
        .described(
            "workflow.call",
            "Runs another workflow as a child; the next step waits for its result.",
            call,
        )
        .described("workflow.start", "Starts another workflow and does not wait for it.", start)
        .described("workflow.signal", "Sends a signal to another run.", signal)
        .described("event.emit", "Emits an event, which starts workflows and wakes runs.", emit)
        .described("log", "Writes to the log.", log)
        .described("transform", "Returns its input, for example to reshape data with expressions.", transform)
        .described(
            "flow.useStrategy",
            "Changes where the flow keeps its state from its next pause on.",
            use_strategy,
        )
        .described(
            "flow.sendOut",
            "Sends the answer link of the next wait through an outlet; only this link resumes the flow.",
            send_out,
        )
        .describe("workflow.call", |info| {
            info.group("workflow").icon("git-fork").permission(Permission::Manage).stageable().codes(STARTS)
        })
        .describe("workflow.start", |info| {
            info.group("workflow").icon("play").permission(Permission::Manage).stageable().codes(STARTS)
        })
        .describe("workflow.signal", |info| {
            info.group("workflow").icon("bell").permission(Permission::Manage).stageable().codes(["invalid"])
        })
        .describe("event.emit", |info| {
            info.group("workflow").icon("radio").permission(Permission::Manage).stageable().codes(WRITES)
        })
        .describe("log", |info| info.group("data").icon("file-text").codes(NO_CODES))
        .describe("transform", |info| {
            info.group("data").icon("shuffle").without_side_effects().codes(NO_CODES)
        })
        .describe("flow.useStrategy", |info| {
            info.group("flow").icon("pause").codes(["unknownStrategy", "notAFlow", "needsDurableRun"])
        })
        .describe("flow.sendOut", |info| {
            let codes = ["unknownOutlet", "invalidOutgoing", "cannotSend", "notAFlow"];
            let more = ["outcomesNeedRun", "answerersNeedMessage", "invalid"];
            info.group("flow")
                .icon("send")
                .permission(Permission::Manage)
                .codes(codes.into_iter().chain(more))
        })
}
