//! Delivers an event: it starts workflows and wakes runs, a bounded number in each commit, each exactly once.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use stepwell_core::expr::Expr;
use stepwell_core::graph::AwaitedEvent;
use stepwell_core::limits::json_bytes;
use stepwell_core::retry::Retry;
use stepwell_core::spec::{Guard, StartOn, Transition};
use stepwell_core::starter::{Filtered, Occurrence, Starting};
use stepwell_core::topic::{after, of_name, topic};
use stepwell_core::{Definition, Event, Name, Refusal, Rejected, RunId, Snapshot, Spec, dispatch};
use stepwell_store::{Record, RecordQuery, WaitQuery, WaitRow, WaitsOf};

use super::index::{column, says};
use super::log::trigger_column;
use super::{Kept, WORKFLOW};
use crate::action::ActionError;
use crate::cx::Cx;
use crate::engine::Builder;
use crate::error::EngineError;
use crate::post::Says;
use crate::registry::Workflow;
use crate::start::{OWN_START, Start, run_of};

const DELIVER: &str = "stepwell.event.deliver";
/// Runs that are started or woken in one commit.
const AT_ONCE: usize = 100;
/// Triggers that are asked in one commit, also if they start nothing.
const ASKED_AT_ONCE: usize = 500;
/// So many triggers are kept with everything that their filters have read.
const MAX_DETAILED: usize = 200;
/// Characters of an error that are kept.
const MAX_ERROR: usize = 500;
/// Bytes that are sent in one commit, unless a single run gets more.
const BYTES_AT_ONCE: usize = 1_024 * 1_024;

/// An event on its way: the state of its run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Delivery {
    /// The event.
    pub(crate) event: Kept,
    /// What triggers have made of it.
    #[serde(default)]
    pub(crate) triggers: Vec<Outcome>,
    /// Runs it was sent to.
    #[serde(default)]
    pub(crate) sent: u64,
    /// Runs whose filter did not take it.
    #[serde(default)]
    pub(crate) passed_over: u64,
    /// How far it has come.
    #[serde(default)]
    at: At,
    /// There is more to do.
    #[serde(default)]
    more: bool,
}

/// How far the delivery of an event has come.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct At {
    /// Triggers up to this one have been asked: its workflow and its id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    trigger: Option<(Name, Name)>,
    /// It goes on with waits from this topic on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    from: Option<String>,
    /// In the middle of the waits for this topic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    topic: Option<String>,
    /// After this one of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    after: Option<String>,
    /// Everybody who waited has been told.
    #[serde(default)]
    is_told: bool,
}

/// What a trigger has made of an event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Outcome {
    /// The workflow.
    pub workflow: Name,
    /// Its trigger.
    pub trigger: Name,
    /// The edition of the workflow.
    pub version: u32,
    /// What came of it.
    #[serde(flatten)]
    pub came_to: CameTo,
}

/// What came of an event at a trigger.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum CameTo {
    /// A run was started.
    Started {
        /// The run.
        run: RunId,
    },
    /// A run that another event has started is there for the same key.
    Deduplicated {
        /// The run.
        run: RunId,
    },
    /// Its filter said no.
    Filtered(Filtered),
    /// No run could be started.
    Refused {
        /// Why.
        error: String,
    },
}

impl CameTo {
    /// Leaves out what is too long to be kept, the more so the more there is of it.
    fn shorten(&mut self, before: usize) {
        match self {
            CameTo::Filtered(filtered) if before >= MAX_DETAILED => filtered.values.clear(),
            CameTo::Refused { error } if error.chars().count() > MAX_ERROR => {
                *error = error.chars().take(MAX_ERROR).chain("…".chars()).collect();
            }
            _ => {}
        }
    }

    /// The word for it.
    pub fn word(&self) -> &'static str {
        match self {
            CameTo::Started { .. } => "started",
            CameTo::Deduplicated { .. } => "deduplicated",
            CameTo::Filtered(_) => "filtered",
            CameTo::Refused { .. } => "refused",
        }
    }
}

impl Delivery {
    pub(crate) fn new(event: Kept) -> Self {
        let (at, triggers) = (At::default(), Vec::new());
        Delivery { event, triggers, sent: 0, passed_over: 0, at, more: false }
    }

    pub(crate) fn read(snapshot: &Snapshot) -> Result<Self, EngineError> {
        Delivery::deserialize(snapshot.context())
            .map_err(|error| EngineError::Unreadable { run: snapshot.instance_id(), why: error.to_string() })
    }
}

/// Every engine delivers events.
pub(super) fn equip(builder: Builder) -> Builder {
    builder.workflow(definition()).action(DELIVER, deliver)
}

fn definition() -> Definition {
    // A store that is away comes back; meanwhile nothing is lost.
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
    spec.build().expect("the workflow of events is sound: every engine's tests build it")
}

/// Delivers the event to as many as one commit takes: first to those who wait, then to triggers. The two share no commit, so
/// that whatever is wrong with triggers keeps nobody waiting.
async fn deliver(cx: Cx) -> Result<Value, ActionError> {
    let mut state: Delivery = cx.state()?;
    let bytes = json_bytes(&state.event.data).max(1);
    let room = AT_ONCE.min(BYTES_AT_ONCE / bytes).max(1);
    let before = state.sent;
    if state.event.only.is_none() && !state.at.is_told {
        state.at.is_told = wake_all(&cx, &mut state, room).await? > 0;
    }
    let is_over = state.event.only.is_some() || state.at.is_told;
    state.more = match is_over && state.sent == before {
        true => start_all(&cx, &mut state, room).await? == 0,
        false => true,
    };
    cx.set_state(&state)?;
    Ok(Value::Null)
}

/// Asks the triggers, in the order of their workflows' names; gives how much room is left.
async fn start_all(cx: &Cx, state: &mut Delivery, mut room: usize) -> Result<usize, ActionError> {
    let (mut bytes, mut asked) = (0, 0);
    // Reload: another process may have published a trigger before this event was accepted.
    cx.inner().catalogues.read_again(cx.scope().tenant());
    let mut workflows = cx.inner().triggered(cx.scope()).await?;
    workflows.sort_by(|a, b| a.definition.name().cmp(b.definition.name()));
    for workflow in &workflows {
        let definition = &workflow.definition;
        let mut starters: Vec<_> = definition.starters().iter().enumerate().collect();
        starters.sort_by(|(_, a), (_, b)| a.id.cmp(&b.id));
        for (index, starter) in starters {
            let here = (definition.name().clone(), starter.id.clone());
            let concerned = match &state.event.only {
                Some(only) => *only == here && matches!(starter.on, StartOn::Webhook(_)),
                None => starter.on.event() == Some(&state.event.name),
            };
            if !concerned || state.at.trigger.as_ref().is_some_and(|asked| *asked >= here) {
                continue;
            }
            if room == 0 || bytes >= BYTES_AT_ONCE || asked >= ASKED_AT_ONCE {
                return Ok(0);
            }
            asked += 1;
            let (mut came_to, brought) = ask(cx, workflow, index, &here, &state.event).await?;
            bytes += brought;
            room -= usize::from(matches!(came_to, CameTo::Started { .. }));
            came_to.shorten(state.triggers.len());
            cx.shade(column(trigger_column(&here.0, &here.1), came_to.word().to_owned()))?;
            let (version, (workflow, trigger)) = (definition.version(), here.clone());
            state.triggers.push(Outcome { workflow, trigger, version, came_to });
            state.at.trigger = Some(here);
        }
    }
    Ok(room)
}

/// Has a trigger start a run, if the event concerns it.
async fn ask(
    cx: &Cx,
    workflow: &Workflow,
    index: usize,
    (name, trigger): &(Name, Name),
    event: &Kept,
) -> Result<(CameTo, usize), ActionError> {
    let meta = event.meta();
    let occurrence = Occurrence { data: &event.data, meta: &meta, now: cx.now() };
    let (input, key) = match workflow.definition.starting(index, occurrence) {
        Ok(Starting::Begins { input, key }) => (input, key),
        Ok(Starting::Filtered(filtered)) => return Ok((CameTo::Filtered(filtered), 0)),
        Err(error) => return Ok((CameTo::Refused { error: error.to_string() }, 0)),
    };
    let bytes = json_bytes(&input);
    let mut start = Start::new(name.clone()).input(&input).pinned(workflow.definition.hash());
    if let Some(key) = key {
        let key = format!("trigger:{}", topic(&format!("{name}\u{1f}{trigger}"), None, Some(&key)));
        let query = RecordQuery::Key { operation: OWN_START.to_owned(), key: key.clone(), now: cx.now() };
        let known = cx.store().records(cx.scope(), query).await?.items.into_iter().next();
        if let Some(Record::Key(record)) = known {
            return Ok((CameTo::Deduplicated { run: run_of(record.answer.as_ref())? }, 0));
        }
        start = start.engine_key(key).whatever();
    }
    // One that cannot begin is not to hold the others up.
    let run = RunId::new(cx.new_id());
    match cx.inner().fresh(cx.scope(), &start, run, None).await {
        Err(EngineError::Store(error)) => return Err(error.into()),
        Err(error) => return Ok((CameTo::Refused { error: error.to_string() }, 0)),
        Ok(_) => cx.stage_start(run, start)?,
    }
    Ok((CameTo::Started { run }, bytes))
}

/// Sends the event to the runs that wait for it; gives how much room is left.
async fn wake_all(cx: &Cx, state: &mut Delivery, mut room: usize) -> Result<usize, ActionError> {
    while room > 0 {
        let Some(topic) = next_topic(cx, state).await? else { return Ok(room) };
        let of = WaitsOf::Topic(topic.clone());
        let query = WaitQuery { of, limit: room as u32, cursor: state.at.after.clone() };
        let page = cx.store().waits(cx.scope(), query).await?;
        for row in &page.items {
            room -= 1;
            // A wait that opened when the event's time was over is not among those that it is for.
            let is_in_time = row.wait.since < state.event.until;
            if is_in_time && concerns(cx, row, &state.event).await? {
                let says = Says::Event {
                    activation: row.wait.activation,
                    event: cx.run(),
                    name: state.event.name.clone(),
                    accepted: state.event.accepted,
                    payload: state.event.data.clone(),
                };
                cx.post(says.to(row.run))?;
                state.sent += 1;
            } else {
                state.passed_over += 1;
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

/// The next topic of waits that the event concerns: the one it is in the middle of, or the next for which there are waits.
async fn next_topic(cx: &Cx, state: &mut Delivery) -> Result<Option<String>, ActionError> {
    if let Some(topic) = &state.at.topic {
        return Ok(Some(topic.clone()));
    }
    let event = &state.event;
    let (first, before) = of_name(&event.name);
    let mut from = state.at.from.take().unwrap_or(first);
    let found = loop {
        let of = WaitsOf::FirstTopic { from: from.clone(), before: before.clone() };
        let query = WaitQuery { of, limit: 1, cursor: None };
        let Some(row) = cx.store().waits(cx.scope(), query).await?.items.pop() else { break None };
        let known = row.wait.topic.clone().unwrap_or_default();
        let wanted = awaited(&row).and_then(|wait| match (&wait.of, &wait.key) {
            (_, None) => Some(known.clone()),
            (None, Some(_)) => event.key.as_ref().map(|key| topic(&event.name, None, Some(key))),
            (Some(of), Some(_)) => {
                let says = Expr::parse(of).ok().and_then(|of| says(&of, &event.data))?;
                Some(topic(&event.name, Some(of), Some(&says)))
            }
        });
        // What is asked the same way and comes before was asked already.
        match wanted {
            Some(wanted) if wanted >= from => break Some(wanted),
            _ => from = after(&known).unwrap_or_else(|| before.clone()),
        }
    };
    state.at.from = Some(from);
    Ok(found)
}

/// What a wait is for, as it is on record.
fn awaited(row: &WaitRow) -> Option<AwaitedEvent> {
    let detail: Value = serde_json::from_slice(&row.wait.detail).ok()?;
    AwaitedEvent::deserialize(detail.get("event")?).ok()
}

/// The filter of a wait takes the event, as far as that can be told now.
async fn concerns(cx: &Cx, row: &WaitRow, event: &Kept) -> Result<bool, ActionError> {
    if !awaited(row).is_some_and(|wait| wait.is_filtered) {
        return Ok(true);
    }
    let standing = match cx.inner().load(cx.scope(), row.run).await {
        Ok(standing) => standing,
        Err(EngineError::NoRun(_)) => return Ok(false),
        // Whoever can read it decides.
        Err(_) => return Ok(true),
    };
    let says = Event::Answered {
        activation: row.wait.activation,
        signal: event.name.clone(),
        payload: event.data.clone(),
    };
    let answers = stepwell_core::Answers::none();
    let decided = dispatch(standing.definition(), &standing.snapshot, &says, &answers, cx.now());
    Ok(!matches!(decided, Err(Rejected::Refused(Refusal::GuardSaidNo { .. }))))
}
