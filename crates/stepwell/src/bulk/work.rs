//! Executes bulk commands. Each commit records the results of a batch and chooses the next one. A batch is applied only
//! after its choice is committed, so a batch that is applied again after a crash has the same runs.

use std::sync::Arc;

use futures_util::{StreamExt, TryStreamExt, stream};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use stepwell_core::retry::Retry;
use stepwell_core::spec::{Guard, Transition};
use stepwell_core::{Definition, Failure, Refusal, RunId, Snapshot, Spec, Timestamp};
use stepwell_store::{Refused, RunFilter, RunQuery, StoreError};

use super::results::{KIND, document_key};
use super::{
    BulkCommand, BulkOutcome, BulkPart, BulkResult, BulkStatus, BulkTarget, BulkView, WORKFLOW, cancel_key,
};
use crate::action::ActionError;
use crate::actor::Actor;
use crate::cx::Cx;
use crate::data::kv::one;
use crate::delete::DeleteRun;
use crate::engine::Builder;
use crate::error::EngineError;
use crate::host::BoxFuture;
use crate::operate::Operator;
use crate::registry::OWN;
use crate::signal::Signal;

const WORK: &str = "stepwell.bulk.work";
/// Number of runs in a batch.
const BATCH: usize = 50;
/// Number of runs that are processed at the same time.
const AT_A_TIME: usize = 25;
/// Number of runs that are read at once to count them.
const COUNTED_AT_ONCE: u32 = 200;
/// Maximum number of pages of runs that one commit reads.
const PAGES_PER_COMMIT: usize = 25;
/// Number of failures that the state holds.
const FAILURES: usize = 10;
/// Maximum length of a stored reason, in characters.
const MAX_DETAIL: usize = 500;

/// A bulk command in progress: the state of its run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct State {
    command: BulkCommand,
    target: BulkTarget,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    most: u64,
    is_dry: bool,
    /// The caller, whose permissions were checked at the start. `None`: the embedding program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    actor: Option<Actor>,
    started: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ended: Option<Timestamp>,
    /// Number of selected runs; `None` until all are counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    total: Option<u64>,
    counted: u64,
    done: u64,
    failed: u64,
    skipped: u64,
    /// Number of runs that were chosen so far.
    chosen: u64,
    /// The runs of the next batch, not applied yet.
    batch: Vec<RunId>,
    /// Number of batches with results.
    pub(super) batches: u64,
    /// Position in the listing of the filter's runs, first for counting, then for choosing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cursor: Option<String>,
    /// All runs have been chosen.
    is_chosen: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last_run: Option<RunId>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    failures: Vec<BulkResult>,
    pub(super) is_over: bool,
    pub(super) is_cancelled: bool,
}

impl State {
    pub(super) fn new(
        command: BulkCommand,
        target: BulkTarget,
        reason: Option<String>,
        most: u64,
        is_dry: bool,
        actor: Option<Actor>,
        started: Timestamp,
    ) -> Self {
        State {
            command,
            target,
            reason,
            most,
            is_dry,
            actor,
            started,
            ended: None,
            total: None,
            counted: 0,
            done: 0,
            failed: 0,
            skipped: 0,
            chosen: 0,
            batch: Vec::new(),
            batches: 0,
            cursor: None,
            is_chosen: false,
            last_run: None,
            failures: Vec::new(),
            is_over: false,
            is_cancelled: false,
        }
    }

    pub(super) fn read(snapshot: &Snapshot) -> Result<Self, EngineError> {
        State::deserialize(snapshot.context())
            .map_err(|error| EngineError::Unreadable { run: snapshot.instance_id(), why: error.to_string() })
    }

    pub(super) fn view(self, id: RunId, status: BulkStatus, error: Option<Failure>) -> BulkView {
        BulkView {
            id,
            command: self.command,
            target: self.target,
            reason: self.reason,
            actor: self.actor.map(|actor| actor.id),
            most: self.most,
            is_dry: self.is_dry,
            status,
            started_at: self.started,
            ended_at: self.ended,
            total: self.total,
            done: self.done,
            failed: self.failed,
            skipped: self.skipped,
            last_run: self.last_run,
            failures: self.failures,
            error,
        }
    }

    /// Adds the results of a batch.
    fn record(&mut self, results: &[BulkResult]) {
        for result in results {
            match result.outcome {
                BulkOutcome::Done => self.done += 1,
                BulkOutcome::Skipped => self.skipped += 1,
                BulkOutcome::Failed => {
                    self.failed += 1;
                    self.failures.push(result.clone());
                }
            }
        }
        let old = self.failures.len().saturating_sub(FAILURES);
        self.failures.drain(..old);
        self.last_run = self.batch.last().copied().or(self.last_run);
        self.batch.clear();
        self.batches += 1;
    }
}

/// Registers the workflow and the action.
pub(super) fn equip(builder: Builder) -> Builder {
    builder.own_workflow(definition()).action(WORK, work)
}

fn definition() -> Definition {
    // Retry without a limit: while the store is unavailable, the bulk command waits.
    let retry = Retry { attempts: u32::MAX, ..Retry::default() };
    let is = |field: &str| Guard::Expr(format!("context.{field}"));
    let not = |guard: Guard| Guard::Not(Box::new(guard));
    let spec = Spec::new(WORKFLOW)
        .initial("chosen")
        .step("chosen")
        .step("recorded")
        .end("completed")
        .end("cancelled")
        .transition(Transition::new("work", "chosen", "recorded").action(WORK).retry(retry))
        .transition(Transition::new("again", "recorded", "chosen").guard(not(is("isOver"))))
        .transition(
            Transition::new("complete", "recorded", "completed")
                .guard(Guard::And(vec![is("isOver"), not(is("isCancelled"))])),
        )
        .transition(
            Transition::new("cancel", "recorded", "cancelled")
                .guard(Guard::And(vec![is("isOver"), is("isCancelled")])),
        );
    spec.build().expect("the workflow of bulk commands is valid: every engine's tests build it")
}

/// Applies the chosen batch, and chooses the next one.
async fn work(cx: Cx) -> Result<Value, ActionError> {
    let mut state: State = cx.state()?;
    // The first attempt has not touched the batch. A later one finishes what an earlier one may have begun.
    if cx.attempt() == 1 && is_asked_to_stop(&cx).await? {
        state.batch.clear();
    }
    if !state.batch.is_empty() {
        let results = apply(&cx, &state).await?;
        cx.put_document(document_key(state.batches), KIND, &results, &[])?;
        state.record(&results);
    }
    if is_asked_to_stop(&cx).await? {
        (state.is_over, state.is_cancelled) = (true, true);
    } else if state.total.is_none() {
        count(&cx, &mut state).await?;
    } else {
        choose(&cx, &mut state).await?;
        state.is_over = state.batch.is_empty() && state.is_chosen;
    }
    state.ended = state.is_over.then(|| cx.now());
    cx.set_state(&state)?;
    Ok(Value::Null)
}

async fn is_asked_to_stop(cx: &Cx) -> Result<bool, ActionError> {
    let query = one(cancel_key(cx.run()), cx.now(), false);
    Ok(!cx.store().cells(cx.scope(), query).await?.items.is_empty())
}

/// Counts the selected runs, a bounded number per commit.
async fn count(cx: &Cx, state: &mut State) -> Result<(), ActionError> {
    let filter = match &state.target {
        BulkTarget::Runs(runs) => {
            state.total = Some((runs.len() as u64).min(state.most));
            return Ok(());
        }
        BulkTarget::Filter(filter) => filter.clone(),
    };
    for _ in 0..PAGES_PER_COMMIT {
        let cursor = state.cursor.take();
        let query = query(state, &filter, COUNTED_AT_ONCE, cursor);
        let page = cx.store().runs(cx.scope(), query).await?;
        let old = page.items.iter().filter(|run| run.created_at <= state.started);
        state.counted = state.most.min(state.counted + old.count() as u64);
        state.cursor = page.next;
        if state.cursor.is_none() || state.counted == state.most {
            (state.total, state.cursor) = (Some(state.counted), None);
            return Ok(());
        }
    }
    Ok(())
}

/// Chooses the runs of the next batch. It may be empty although more follow, because one commit reads a bounded number
/// of runs.
async fn choose(cx: &Cx, state: &mut State) -> Result<(), ActionError> {
    let room = |state: &State| {
        let left = usize::try_from(state.most - state.chosen).unwrap_or(usize::MAX);
        BATCH.min(left).saturating_sub(state.batch.len())
    };
    match state.target.clone() {
        BulkTarget::Runs(runs) => {
            let from = usize::try_from(state.chosen).unwrap_or(usize::MAX);
            state.batch = runs.into_iter().skip(from).take(room(state)).collect();
            state.is_chosen = state.batch.is_empty();
        }
        BulkTarget::Filter(filter) => {
            for _ in 0..PAGES_PER_COMMIT {
                let room = room(state);
                if room == 0 || state.is_chosen {
                    break;
                }
                let cursor = state.cursor.take();
                let query = query(state, &filter, room as u32, cursor);
                let page = cx.store().runs(cx.scope(), query).await?;
                let old = page.items.iter().filter(|run| run.created_at <= state.started);
                state.batch.extend(old.map(|run| run.run));
                state.is_chosen = page.next.is_none();
                state.cursor = page.next;
            }
        }
    }
    state.chosen += state.batch.len() as u64;
    state.is_chosen |= state.chosen >= state.most;
    Ok(())
}

/// Applies the command to the runs of the batch. An unavailable store fails the whole batch, which is then applied
/// again.
async fn apply(cx: &Cx, state: &State) -> Result<Vec<BulkResult>, ActionError> {
    let part = BulkPart { id: cx.run(), batch: state.batches };
    let all = state.batch.iter().map(|run| -> BoxFuture<Result<BulkResult, EngineError>> {
        let (cx, command, run) = (cx.clone(), state.command.clone(), *run);
        let by = Operator {
            actor: state.actor.as_ref().map(|actor| actor.id.clone()),
            reason: state.reason.clone(),
            bulk: Some(part),
            ..Operator::default()
        };
        let (actor, is_dry) = (state.actor.clone(), state.is_dry);
        Box::pin(async move {
            let applied = match is_dry {
                true => check(&cx, &command, run, actor, &by).await,
                false => execute(&cx, &command, run, actor, by).await,
            };
            result(run, applied)
        })
    });
    let all: Vec<_> = all.collect();
    Ok(stream::iter(all).buffered(AT_A_TIME).try_collect().await?)
}

/// Executes the command on one run, once per bulk command.
async fn execute(
    cx: &Cx,
    command: &BulkCommand,
    run: RunId,
    actor: Option<Actor>,
    by: Operator,
) -> Result<(), EngineError> {
    let (inner, scope) = (cx.inner(), cx.scope());
    if let Some(command) = command.plain() {
        return inner.operate(scope, run, &command, &by).await.map(drop);
    }
    match command {
        BulkCommand::Migrate { version, mapping } => {
            inner.migrate(scope, run, *version, mapping, &by, false).await.map(drop)
        }
        BulkCommand::Delete => inner.delete_once(scope, run, &by).await,
        BulkCommand::Signal { .. } => {
            let signal = signal(command, actor, &by);
            inner.signal(scope, run, &signal).await.map(drop)
        }
        _ => Ok(()),
    }
}

/// Returns the refusal that the command would get on one run. Nothing is changed.
async fn check(
    cx: &Cx,
    command: &BulkCommand,
    run: RunId,
    actor: Option<Actor>,
    by: &Operator,
) -> Result<(), EngineError> {
    let (inner, scope) = (cx.inner(), cx.scope());
    if let Some(command) = command.plain() {
        return inner.check_command(scope, run, &command).await;
    }
    match command {
        BulkCommand::Migrate { version, mapping } => {
            let by = Operator { bulk: None, ..by.clone() };
            inner.migrate(scope, run, *version, mapping, &by, true).await.map(drop)
        }
        BulkCommand::Delete => {
            let wanted = DeleteRun::new(run).dry_run(true);
            inner.delete(scope, &wanted, by).await.map(drop)
        }
        BulkCommand::Signal { .. } => {
            let by = Operator { bulk: None, ..by.clone() };
            inner.preview(scope, run, &signal(command, actor, &by)).await.map(drop)
        }
        _ => Ok(()),
    }
}

/// Returns the signal for one run.
fn signal(command: &BulkCommand, actor: Option<Actor>, by: &Operator) -> Signal {
    let BulkCommand::Signal { name, payload, strict, ttl_ms } = command else {
        unreachable!("only a signal is sent as one: {command:?}");
    };
    let mut signal = Signal::new(name.clone()).with(payload);
    if *strict {
        signal = signal.strict();
    }
    if let Some(ttl_ms) = ttl_ms {
        signal = signal.ttl(std::time::Duration::from_millis(*ttl_ms));
    }
    signal = by.reason.iter().fold(signal, Signal::reason);
    signal = by.bulk.into_iter().fold(signal, Signal::part_of);
    signal.by(actor.map(Arc::new).as_ref())
}

/// Converts the result of a command. Only an error that concerns the store and not the run is an error here.
fn result(run: RunId, applied: Result<(), EngineError>) -> Result<BulkResult, EngineError> {
    let error = match applied {
        Ok(()) => return Ok(BulkResult { run, outcome: BulkOutcome::Done, detail: None }),
        Err(error) => error,
    };
    let outcome = match &error {
        EngineError::Store(StoreError::Unavailable(_) | StoreError::Full(_) | StoreError::Fatal(_))
        | EngineError::Unknown { .. }
        | EngineError::Stopped => return Err(error),
        EngineError::NoRun(_)
        | EngineError::WrongStatus { .. }
        | EngineError::Refused(
            Refusal::Terminal | Refusal::NoActiveSource { .. } | Refusal::GuardRejected { .. },
        ) => BulkOutcome::Skipped,
        EngineError::Commit(refused) if matches!(**refused, Refused::NoTarget { .. }) => BulkOutcome::Skipped,
        // An earlier batch of this bulk command has processed the run.
        EngineError::KeyReused { .. } => BulkOutcome::Skipped,
        _ => BulkOutcome::Failed,
    };
    let detail = match &error {
        EngineError::KeyReused { .. } => "this bulk command has already processed the run".to_owned(),
        error => error.to_string(),
    };
    let detail = match detail.char_indices().nth(MAX_DETAIL) {
        Some((end, _)) => format!("{}…", &detail[..end]),
        None => detail,
    };
    Ok(BulkResult { run, outcome, detail: Some(detail) })
}

/// Returns the query for a page of the selected runs. All pages of a bulk command have the same filter, so that their
/// cursors stay valid.
fn query(state: &State, filter: &RunFilter, limit: u32, cursor: Option<String>) -> RunQuery {
    let mut filter = filter.clone();
    filter.without_prefix = Some(OWN.to_owned());
    if filter.status.is_empty() {
        filter.status.extend(state.command.default_status());
    }
    // A bound in the future of the start includes the runs of its millisecond.
    let started = state.started.plus_ms(1);
    filter.created_before = Some(filter.created_before.map_or(started, |before| before.min(started)));
    RunQuery { filter, order: None, limit, cursor }
}
