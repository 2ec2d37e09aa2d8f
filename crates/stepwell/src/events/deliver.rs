//! Delivery of an event: starts workflows and wakes runs, a bounded number per commit, each exactly once.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use stepwell_core::expr::Expr;
use stepwell_core::graph::{AwaitedEvent, open_waits};
use stepwell_core::limits::json_bytes;
use stepwell_core::retry::Retry;
use stepwell_core::spec::{Guard, Transition, TriggerKind};
use stepwell_core::topic::{after, name_range, topic};
use stepwell_core::trigger::{Filtered, Occurrence, TriggerMatch};
use stepwell_core::{Definition, Input, Name, Refusal, Rejected, RunId, Snapshot, Spec, dispatch};
use stepwell_store::{Record, RecordQuery, StoreError, TenantScope, WaitFilter, WaitQuery, WaitRow};

use super::index::{column, says};
use super::log::trigger_column;
use super::{StoredEvent, WORKFLOW};
use crate::action::ActionError;
use crate::cx::Cx;
use crate::engine::{Builder, Inner};
use crate::error::EngineError;
use crate::inbox::MessageBody;
use crate::pause::{PauseOf, Paused};
use crate::registry::Workflow;
use crate::start::{OWN_START, Start, run_of};

const DELIVER: &str = "stepwell.event.deliver";
/// Sorts after a topic and before all others that begin with it.
const NEXT: char = '\u{1}';
/// Maximum number of runs started or woken in one commit.
const AT_ONCE: usize = 100;
/// Maximum number of triggers evaluated in one commit, also if they start nothing.
const MAX_TRIGGERS_PER_COMMIT: usize = 500;
/// Number of trigger outcomes that keep the values that the filter has read. Later ones drop them.
const MAX_DETAILED: usize = 200;
/// Maximum length of a stored error, in characters.
const MAX_ERROR: usize = 500;
/// Maximum number of payload bytes sent in one commit. A single run may get more.
const MAX_PAYLOAD_BYTES_PER_COMMIT: usize = 1_024 * 1_024;

/// An event being delivered: the state of its run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Delivery {
    pub(crate) event: StoredEvent,
    /// Outcome at each trigger.
    #[serde(default)]
    pub(crate) triggers: Vec<TriggerOutcome>,
    /// Number of waiting runs that the event was sent to.
    #[serde(default)]
    pub(crate) sent: u64,
    /// Number of waiting runs whose filter did not match.
    #[serde(default)]
    pub(crate) filtered_out: u64,
    #[serde(default)]
    at: At,
    /// Another commit is needed.
    #[serde(default)]
    more: bool,
}

/// Progress of a delivery.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct At {
    /// Workflow and id of the last trigger that was evaluated. Triggers are evaluated in this order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    trigger: Option<(Name, Name)>,
    /// First topic of waits that is still to be examined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    from: Option<String>,
    /// Topic whose waits are partly done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    topic: Option<String>,
    /// Cursor within the waits of `topic`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    after: Option<String>,
    /// All waiting runs have been sent the event.
    #[serde(default)]
    is_told: bool,
}

/// The outcome of an event at a trigger.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TriggerOutcome {
    pub workflow: Name,
    /// Id of the trigger.
    pub trigger: Name,
    /// Version of the workflow that was evaluated.
    pub version: u32,
    #[serde(flatten)]
    pub result: TriggerResult,
}

/// The outcome of an event at a trigger.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum TriggerResult {
    /// The event started a run.
    Started { run: RunId },
    /// An earlier event with the same deduplication key started a run.
    Deduplicated { run: RunId },
    /// The trigger's filter did not match.
    Filtered(Filtered),
    /// The trigger could not start a run.
    Refused { error: String },
    /// The trigger is paused.
    Paused(Paused),
}

impl TriggerResult {
    /// Drops details to bound the size of the state: `before` is the number of outcomes stored so far.
    fn shorten(&mut self, before: usize) {
        match self {
            TriggerResult::Filtered(filtered) if before >= MAX_DETAILED => filtered.values.clear(),
            TriggerResult::Refused { error } if error.chars().count() > MAX_ERROR => {
                *error = error.chars().take(MAX_ERROR).chain("…".chars()).collect();
            }
            _ => {}
        }
    }

    /// Returns the name of the outcome, as used in JSON.
    pub fn word(&self) -> &'static str {
        match self {
            TriggerResult::Started { .. } => "started",
            TriggerResult::Deduplicated { .. } => "deduplicated",
            TriggerResult::Filtered(_) => "filtered",
            TriggerResult::Refused { .. } => "refused",
            TriggerResult::Paused(_) => "paused",
        }
    }
}

impl Delivery {
    pub(crate) fn new(event: StoredEvent) -> Self {
        let (at, triggers) = (At::default(), Vec::new());
        Delivery { event, triggers, sent: 0, filtered_out: 0, at, more: false }
    }

    pub(crate) fn read(snapshot: &Snapshot) -> Result<Self, EngineError> {
        Delivery::deserialize(snapshot.context())
            .map_err(|error| EngineError::Unreadable { run: snapshot.instance_id(), why: error.to_string() })
    }
}

/// Registers the workflow and the action that deliver events.
pub(super) fn equip(builder: Builder) -> Builder {
    builder.own_workflow(definition()).action(DELIVER, deliver)
}

fn definition() -> Definition {
    // Retry without a limit: the event is stored, so nothing is lost while the store is unavailable.
    let retry = Retry { attempts: u32::MAX, ..Retry::default() };
    let more = || Guard::Expr("context.more".to_owned());
    let spec = Spec::new(WORKFLOW)
        .initial("accepted")
        .step("accepted")
        .step("counted")
        .end("delivered")
        .transition(Transition::new("deliver", "accepted", "counted").action(DELIVER).retry(retry))
        .transition(Transition::new("again", "counted", "accepted").guard(more()))
        .transition(Transition::new("done", "counted", "delivered").guard(Guard::Not(Box::new(more()))));
    spec.build().expect("the workflow of events is valid: every engine's tests build it")
}

/// Delivers the event to as many runs as one commit allows: first to waiting runs, then to triggers. The two share no
/// commit, so that a faulty trigger does not delay waiting runs.
async fn deliver(cx: Cx) -> Result<Value, ActionError> {
    let mut state: Delivery = cx.state()?;
    let bytes = json_bytes(&state.event.data).max(1);
    let remaining = AT_ONCE.min(MAX_PAYLOAD_BYTES_PER_COMMIT / bytes).max(1);
    let before = state.sent;
    if state.event.only.is_none() && !state.at.is_told {
        state.at.is_told = wake_all(&cx, &mut state, remaining).await? > 0;
    }
    let is_over = state.event.only.is_some() || state.at.is_told;
    state.more = match is_over && state.sent == before {
        true => start_all(&cx, &mut state, remaining).await? == 0,
        false => true,
    };
    cx.set_state(&state)?;
    Ok(Value::Null)
}

/// Evaluates the triggers, ordered by workflow name and trigger id. Returns the number of runs that the commit still
/// has room for; 0 if it is full.
async fn start_all(cx: &Cx, state: &mut Delivery, mut remaining: usize) -> Result<usize, ActionError> {
    let (mut bytes, mut asked, mut pauses) = (0, 0, None);
    // Reload: another process may have published a trigger before this event was accepted.
    cx.inner().catalogues.read_again(cx.scope().tenant());
    // An unreadable workflow is logged. Its triggers do not see this event.
    let mut workflows = cx.inner().triggered(cx.scope()).await?.items;
    workflows.sort_by(|a, b| a.definition.name().cmp(b.definition.name()));
    for workflow in &workflows {
        let definition = &workflow.definition;
        let mut triggers: Vec<_> = definition.triggers().iter().enumerate().collect();
        triggers.sort_by(|(_, a), (_, b)| a.id.cmp(&b.id));
        for (index, trigger) in triggers {
            let here = (definition.name().clone(), trigger.id.clone());
            let concerned = match &state.event.only {
                Some(only) => *only == here && matches!(trigger.on, TriggerKind::Webhook(_)),
                None => trigger.on.event() == Some(&state.event.name),
            };
            if !concerned || state.at.trigger.as_ref().is_some_and(|asked| *asked >= here) {
                continue;
            }
            if remaining == 0 || bytes >= MAX_PAYLOAD_BYTES_PER_COMMIT || asked >= MAX_TRIGGERS_PER_COMMIT {
                return Ok(0);
            }
            asked += 1;
            if pauses.is_none() {
                pauses = Some(cx.inner().pauses(cx.scope()).await?);
            }
            let paused = pauses.as_ref().and_then(|pauses| pauses.of(&PauseOf::trigger(&here.0, trigger)));
            let (mut result, brought) = match paused {
                Some(paused) => (TriggerResult::Paused(paused.clone()), 0),
                None => ask(cx, workflow, index, &here, &state.event).await?,
            };
            bytes += brought;
            remaining -= usize::from(matches!(result, TriggerResult::Started { .. }));
            result.shorten(state.triggers.len());
            cx.set_shadow(column(trigger_column(&here.0, &here.1), result.word().to_owned()))?;
            let (version, (workflow, trigger)) = (definition.version(), here.clone());
            state.triggers.push(TriggerOutcome { workflow, trigger, version, result });
            state.at.trigger = Some(here);
        }
    }
    Ok(remaining)
}

/// Evaluates one trigger and starts a run if it matches. Returns the outcome and the size of the input in bytes.
async fn ask(
    cx: &Cx,
    workflow: &Workflow,
    index: usize,
    (name, trigger): &(Name, Name),
    event: &StoredEvent,
) -> Result<(TriggerResult, usize), ActionError> {
    let meta = event.meta();
    let occurrence = Occurrence { data: &event.data, meta: &meta, now: cx.now() };
    let (input, key) = match workflow.definition.match_trigger(index, occurrence) {
        Ok(TriggerMatch::Starts { input, key }) => (input, key),
        Ok(TriggerMatch::Filtered(filtered)) => return Ok((TriggerResult::Filtered(filtered), 0)),
        Err(error) => return Ok((TriggerResult::Refused { error: error.to_string() }, 0)),
    };
    let bytes = json_bytes(&input);
    let mut start = Start::new(name.clone()).input(&input).pinned(workflow.definition.hash());
    start = start.by(Some(format!("event:{}", cx.run())));
    if let Some(key) = key {
        let key = format!("trigger:{}", topic(&format!("{name}\u{1f}{trigger}"), None, Some(&key)));
        let query = RecordQuery::Key { operation: OWN_START.to_owned(), key: key.clone(), now: cx.now() };
        let known = cx.store().records(cx.scope(), query).await?.items.into_iter().next();
        if let Some(Record::Key(record)) = known {
            return Ok((TriggerResult::Deduplicated { run: run_of(record.answer.as_ref())? }, 0));
        }
        start = start.engine_key(key).ignore_input();
    }
    // A start that is refused must not delay the others.
    let run = RunId::new(cx.new_id());
    match cx.inner().fresh(cx.scope(), &start, run, None).await {
        Err(EngineError::Store(error)) => return Err(error.into()),
        Err(error) => return Ok((TriggerResult::Refused { error: error.to_string() }, 0)),
        Ok(_) => cx.stage_start(run, start)?,
    }
    Ok((TriggerResult::Started { run }, bytes))
}

/// Sends the event to the runs that wait for it. Returns the number of runs that the commit still has room for; 0 if it
/// is full.
async fn wake_all(cx: &Cx, state: &mut Delivery, mut remaining: usize) -> Result<usize, ActionError> {
    while remaining > 0 {
        let Some(topic) = next_topic(cx, state).await? else { return Ok(remaining) };
        let of = WaitFilter::Topic(topic.clone());
        let query = WaitQuery { of, limit: remaining as u32, cursor: state.at.after.clone() };
        let page = cx.store().waits(cx.scope(), query).await?;
        for row in &page.bad {
            tracing::error!(%row, "a wait is unreadable, so its run does not get the event");
        }
        for row in &page.items {
            remaining -= 1;
            // A wait that opened after the event expired does not get it.
            let is_in_time = row.wait.since < state.event.until;
            if is_in_time && concerns(cx, row, &state.event).await? {
                let says = MessageBody::Event {
                    activation: row.wait.activation,
                    event: cx.run(),
                    name: state.event.name.clone(),
                    accepted: state.event.accepted,
                    payload: state.event.data.clone(),
                };
                cx.post(says.to(row.run))?;
                state.sent += 1;
            } else {
                state.filtered_out += 1;
            }
        }
        match page.next {
            Some(next) => (state.at.topic, state.at.after) = (Some(topic), Some(next)),
            None => {
                (state.at.topic, state.at.after) = (None, None);
                state.at.from = after(&topic);
            }
        }
    }
    Ok(0)
}

/// Returns the next topic of waits that match the event: the one that is partly done, or the next one that has waits.
async fn next_topic(cx: &Cx, state: &mut Delivery) -> Result<Option<String>, ActionError> {
    if let Some(topic) = &state.at.topic {
        return Ok(Some(topic.clone()));
    }
    let event = &state.event;
    let (first, before) = name_range(&event.name);
    let mut from = state.at.from.take().unwrap_or(first);
    let found = loop {
        let Some(first) = cx.inner().first_wait(cx.scope(), &from, &before).await? else { break None };
        let known = first.topic.clone();
        let group = after(&known).unwrap_or_else(|| before.clone());
        // Every wait with the same expression gives the same answer, so one readable wait is enough.
        let wait = match first.row.as_ref().and_then(awaited) {
            Some(wait) => Some(wait),
            None => representative(cx, &known, &group).await?,
        };
        let wanted = wait.and_then(|wait| match (&wait.of, &wait.key) {
            (_, None) => Some(known.clone()),
            (None, Some(_)) => event.key.as_ref().map(|key| topic(&event.name, None, Some(key))),
            (Some(of), Some(_)) => {
                let says = Expr::parse(of).ok().and_then(|of| says(&of, &event.data))?;
                Some(topic(&event.name, Some(of), Some(&says)))
            }
        });
        // Smaller topics with the same correlation expression are already done.
        match wanted {
            Some(wanted) if wanted >= from => break Some(wanted),
            _ => from = group,
        }
    };
    state.at.from = Some(from);
    Ok(found)
}

/// Returns the event that the waits of a group are for: those with topics from `first` to before `group_end`, which
/// have the same correlation expression. Waits whose stored detail cannot be read are skipped, if another one has the
/// same expression.
async fn representative(cx: &Cx, first: &str, group_end: &str) -> Result<Option<AwaitedEvent>, ActionError> {
    let mut known = first.to_owned();
    loop {
        let mut cursor = None;
        loop {
            let query = WaitQuery { of: WaitFilter::Topic(known.clone()), limit: AT_ONCE as u32, cursor };
            let page = cx.store().waits(cx.scope(), query).await?;
            for row in &page.items {
                if let Some(wait) = awaited(row) {
                    return Ok(Some(wait));
                }
                tracing::error!(run = %row.run, "the stored detail of a wait is unreadable");
                if let Some(wait) = awaited_by_run(cx, row.run, &known).await? {
                    return Ok(Some(wait));
                }
            }
            for row in &page.bad {
                tracing::error!(%row, "a wait is unreadable");
                let Some(run) = row.run else { continue };
                if let Some(wait) = awaited_by_run(cx, run, &known).await? {
                    return Ok(Some(wait));
                }
            }
            match page.next {
                Some(next) => cursor = Some(next),
                None => break,
            }
        }
        let following = format!("{known}{NEXT}");
        match cx.inner().first_wait(cx.scope(), &following, group_end).await? {
            Some(next) => known = next.topic,
            None => return Ok(None),
        }
    }
}

/// Returns the event with this topic that a run waits for, computed from the run's state.
async fn awaited_by_run(cx: &Cx, run: RunId, topic: &str) -> Result<Option<AwaitedEvent>, ActionError> {
    match cx.inner().load(cx.scope(), run).await {
        Ok(loaded_run) => {
            let open = open_waits(loaded_run.definition(), &loaded_run.snapshot).into_iter();
            Ok(open.filter_map(|wait| wait.event).find(|event| event.topic() == topic))
        }
        Err(EngineError::Store(error)) if !matches!(error, StoreError::Bad(_)) => Err(error.into()),
        // This run is unreadable too.
        Err(_) => Ok(None),
    }
}

/// The first wait within a range of topics.
pub(crate) struct FirstWait {
    pub(crate) topic: String,
    /// `None` if the wait cannot be read.
    pub(crate) row: Option<WaitRow>,
}

impl Inner {
    /// Returns the first wait in a range of topics, also if it cannot be read.
    pub(crate) async fn first_wait(
        &self,
        scope: TenantScope,
        from: &str,
        before: &str,
    ) -> Result<Option<FirstWait>, StoreError> {
        let of = WaitFilter::FirstTopic { from: from.to_owned(), before: before.to_owned() };
        let mut page = self.store.waits(scope, WaitQuery { of, limit: 1, cursor: None }).await?;
        match (page.items.pop(), page.next, page.bad.pop()) {
            (Some(row), ..) => {
                let topic = row.wait.topic.clone().unwrap_or_default();
                Ok(Some(FirstWait { topic, row: Some(row) }))
            }
            (None, Some(topic), _) => Ok(Some(FirstWait { topic, row: None })),
            // Its topic is unreadable too. An empty answer would hide all waits behind it.
            (None, None, Some(row)) => Err(StoreError::Bad(row)),
            (None, None, None) => Ok(None),
        }
    }
}

/// Reads the event that a wait is for from the wait's stored detail.
fn awaited(row: &WaitRow) -> Option<AwaitedEvent> {
    let detail: Value = serde_json::from_slice(&row.wait.detail).ok()?;
    AwaitedEvent::deserialize(detail.get("event")?).ok()
}

/// Returns `false` if the filter of a wait certainly does not match the event. The run decides when it consumes the
/// event.
async fn concerns(cx: &Cx, row: &WaitRow, event: &StoredEvent) -> Result<bool, ActionError> {
    if !awaited(row).is_some_and(|wait| wait.is_filtered) {
        return Ok(true);
    }
    let loaded_run = match cx.inner().load(cx.scope(), row.run).await {
        Ok(loaded_run) => loaded_run,
        Err(EngineError::NoRun(_)) => return Ok(false),
        // The run is unreadable here. A process that can read it decides.
        Err(_) => return Ok(true),
    };
    let says = Input::Answered {
        activation: row.wait.activation,
        signal: event.name.clone(),
        payload: event.data.clone(),
    };
    let answers = stepwell_core::Answers::none();
    let decided = dispatch(loaded_run.definition(), &loaded_run.snapshot, &says, &answers, cx.now());
    // After a refusal this wait is not offered the event again, even if the run's data changes.
    // Only a wait with a timeout queries the event once more, when the timeout has passed (`ask.rs`).
    Ok(!matches!(decided, Err(Rejected::Refused(Refusal::GuardRejected { .. }))))
}
