//! Plans the next step of a run from its snapshot, inbox, ledger, in-flight actions and the current time.
//!
//! Planning reads nothing else, apart from the named guards that it evaluates. After a crash the same rows give the
//! same plan, so no job queue and no timer table need repair.

use std::collections::BTreeSet;

use serde_json::json;
use stepwell_core::dispatch::RetryRequest;
use stepwell_core::graph::awaited_event;
use stepwell_core::snapshot::{Activation, ActivationId};
use stepwell_core::spec::Firing;
use stepwell_core::{
    ActionCall, Cause, Change, Decision, Failure, Input, Refusal, Rejected, Timestamp, dispatch,
};
use stepwell_store::{AuditRow, Status};

use crate::admission::{self, Admission, AdmissionState, Verdict};
use crate::answering::{Accepted, REFUSED, run_actor, wait_of};
use crate::apply_outcome::{failed, interrupted};
use crate::engine::Options;
use crate::events::ask::must_fetch_events;
use crate::inbox::{InboxMessage, MessageBody};
use crate::ledger::{Attempts, Ledger, QueuedTask, Stopped, TaskLease};
use crate::loaded_run::{InFlightActions, LoadedRun, PendingCommit, activations_moved_by};
use crate::registry::Registry;
use crate::remote;
use crate::run_driver::timeout_failure;

/// The next step of a run.
pub(crate) enum NextStep {
    /// Commit this change; it needs no action.
    Commit(Box<PendingCommit>),
    /// Run an action, then commit its outcome.
    RunAction(Box<PlannedAction>),
    /// Ask the store for events that arrived before this wait was committed. The commit that opened the wait must be
    /// durable first.
    FetchEarlierEvents(ActivationId),
    /// Admit runs: the run is a gate and has messages, or it is time for the next run.
    Admit,
    /// Tell the children of the cancelled run, in batches.
    CancelChildren,
    /// Do nothing until the wake-up time or the next message.
    Sleep(Idle),
}

/// An action call that is ready to run.
pub(crate) struct PlannedAction {
    pub(crate) call: ActionCall,
    /// Sequence number of the inbox message that triggered the call.
    pub(crate) message: Option<u64>,
    /// Number of this attempt, counted from 1.
    pub(crate) attempt: u32,
}

/// The status and wake-up time of a run with nothing to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Idle {
    pub(crate) status: Status,
    pub(crate) wake: Option<Timestamp>,
}

/// The inputs of the planner.
pub(crate) struct Planner<'a> {
    pub(crate) registry: &'a Registry,
    pub(crate) loaded_run: &'a LoadedRun,
    pub(crate) in_flight: &'a InFlightActions,
    pub(crate) now: Timestamp,
    pub(crate) options: &'a Options,
    /// Queues actions that are not registered here for remote workers. False for runs in memory, which remote workers
    /// cannot find.
    pub(crate) queues_remote: bool,
}

impl Planner<'_> {
    /// Returns the next step.
    pub(crate) async fn next_step(&self) -> NextStep {
        if let Some(gate) = &self.loaded_run.ledger.gate {
            return admission::gate::next_step(self.loaded_run, gate, self.now);
        }
        if let Some(next) = self.cancellation().await {
            return next;
        }
        if let Some(next) = self.expired_signals() {
            return next;
        }
        if let Some(next) = self.admission().await {
            return next;
        }
        if let Some(rest) = self.idle_if_stopped() {
            return NextStep::Sleep(rest);
        }
        if let Some(next) = self.children().await {
            return next;
        }
        if let Some(next) = self.tasks() {
            return next;
        }
        if let Some(next) = self.retries().await {
            return next;
        }
        // Automatic transitions come before signals and timers, which are consumed in order of arrival.
        if let Some(next) = self.automatic().await {
            return next;
        }
        if let Some(next) = self.events() {
            return next;
        }
        if let Some(next) = self.signals_and_timers().await {
            return next;
        }
        NextStep::Sleep(self.idle())
    }

    /// Cancels the run if its parent was cancelled or its deadline has passed. Applies in every status, also to
    /// suspended and failed runs.
    async fn cancellation(&self) -> Option<NextStep> {
        let LoadedRun { snapshot, ledger, inbox, .. } = self.loaded_run;
        if snapshot.is_terminal() {
            return (!ledger.cancelling.is_empty()).then_some(NextStep::CancelChildren);
        }
        let cancel = inbox.iter().find(|message| message.body == MessageBody::Cancel);
        let overdue = ledger.deadline.is_some_and(|deadline| deadline <= self.now);
        if cancel.is_none() && !overdue {
            return None;
        }
        let word = if cancel.is_some() { "__parent:cancel" } else { "__deadline" };
        match self.decide(&Input::Cancelled).await {
            Ok(Decision::Change(mut change)) => {
                change.entry.action = word.to_owned();
                let parent = self.loaded_run.parent.as_ref().filter(|_| cancel.is_some());
                change.entry.actor = parent.map(|parent| run_actor(parent.run));
                let mut cancelled = PendingCommit::change(change, self.loaded_run);
                cancelled.ledger.cancel(self.loaded_run.run());
                Some(commit_step(cancelled.consuming(cancel.map(|message| message.seq))))
            }
            _ => None,
        }
    }

    /// Joins the queue of the first limit when the start time has come, and applies the answers of gates.
    async fn admission(&self) -> Option<NextStep> {
        let LoadedRun { snapshot, ledger, inbox, .. } = self.loaded_run;
        let admission = ledger.admission.as_ref().filter(|_| !snapshot.is_terminal())?;
        if admission.state == AdmissionState::Scheduled && snapshot.created_at() <= self.now {
            let mut ledger = ledger.clone();
            let joined = Admission {
                state: AdmissionState::Queued { limit: 0, since: self.now },
                ..admission.as_ref().clone()
            };
            ledger.admission = Some(Box::new(joined));
            let send = admission::join(&self.loaded_run.workflow, &ledger, self.now);
            let mut joins = PendingCommit::note(ledger);
            joins.extras.send.extend(send);
            return Some(commit_step(joins));
        }
        for message in inbox {
            let MessageBody::Admission { limit, request, verdict } = &message.body else { continue };
            let answers = admission.awaits(*limit, *request, *verdict);
            let word = match verdict {
                _ if !answers => return Some(self.dropped(message, None)),
                Verdict::Admitted => return self.admitted(message.seq).await,
                Verdict::Refused => "__limit:refused",
                Verdict::Superseded => "__limit:superseded",
            };
            let Ok(Decision::Change(mut change)) = self.decide(&Input::Cancelled).await else { continue };
            change.entry.action = word.to_owned();
            let mut cancelled = PendingCommit::change(change, self.loaded_run);
            cancelled.ledger.cancel(self.loaded_run.run());
            return Some(commit_step(cancelled.consuming(Some(message.seq))));
        }
        None
    }

    /// Lets the run pass a limit. A new run whose first place has a timer enters that place again when it begins: the
    /// timer does not count the time in the queue.
    async fn admitted(&self, message: u64) -> Option<NextStep> {
        let (admission, send) = admission::admitted(self.loaded_run, self.now)?;
        let begins = matches!(admission.state, AdmissionState::Admitted { .. });
        let again = admission::first_place_with_timer(self.loaded_run).filter(|_| begins);
        let entered = match again {
            Some(to) => self.decide(&Input::Moved { activation: None, to }).await.ok(),
            None => None,
        };
        let mut next = match entered {
            Some(Decision::Change(mut change)) => {
                change.entry.action = "__limit:admitted".to_owned();
                let stopped = change.stopped.clone();
                let mut next = PendingCommit::change(change, self.loaded_run);
                next.ledger.stopped = stopped.map(|error| Stopped { at: self.now, error, activation: None });
                next
            }
            _ => PendingCommit::note(self.loaded_run.ledger.clone()),
        };
        next.ledger.admission = Some(admission);
        next.extras.send = send;
        Some(commit_step(next.consuming(Some(message))))
    }

    /// Drops a signal that expired before anything consumed it.
    fn expired_signals(&self) -> Option<NextStep> {
        let over = |message: &&InboxMessage| {
            message.expires_at.is_some_and(|expires| expires <= self.now) && !self.is_in_use(message.seq)
        };
        if self.loaded_run.snapshot.is_terminal() {
            return None;
        }
        self.loaded_run.inbox.iter().find(over).map(|message| self.dropped(message, Some("signal.expired")))
    }

    /// Returns the time at which the next buffered signal expires.
    fn expiry(&self) -> Option<Timestamp> {
        let expires = self.loaded_run.inbox.iter().filter_map(|message| message.expires_at);
        expires.filter(|at| *at > self.now).min()
    }

    /// Returns the status of a run that makes no progress without outside action: ended, suspended, failed or not
    /// started yet.
    fn idle_if_stopped(&self) -> Option<Idle> {
        let LoadedRun { snapshot, ledger, suspended, .. } = self.loaded_run;
        let wake = earliest([ledger.deadline, self.expiry()]);
        if snapshot.is_terminal() {
            let cancelled = matches!(snapshot.finished(), Some(stepwell_core::snapshot::RunEnd::Cancelled));
            let status = if cancelled { Status::Cancelled } else { Status::Completed };
            return Some(Idle { status, wake: None });
        }
        if *suspended {
            return Some(Idle { status: Status::Suspended, wake });
        }
        // A failure stops the whole run. In-flight actions of other branches may finish and are committed.
        // Nothing else starts until an operator retries, dismisses, moves or cancels the run.
        if ledger.stopped.is_some() {
            return Some(Idle { status: Status::Failed, wake });
        }
        if self.loaded_run.is_pending(self.now) {
            let starts = Some(snapshot.created_at()).filter(|at| *at > self.now);
            return Some(Idle { status: Status::Pending, wake: earliest([starts, wake]) });
        }
        None
    }

    /// Applies messages about children that have ended.
    async fn children(&self) -> Option<NextStep> {
        for message in &self.loaded_run.inbox {
            let MessageBody::Child { activation, child, end } = &message.body else { continue };
            let event = Input::ChildDone { activation: *activation, child: *child, end: end.clone() };
            let next = match self.decide(&event).await {
                Ok(decision) => self.decided(decision, Some(message.seq)),
                Err(Rejected::Refused(_)) => Some(self.dropped(message, None)),
                Err(Rejected::Undecidable(error)) => Some(self.stopped(undecidable(&error), None)),
            };
            if next.is_some() {
                return next;
            }
        }
        None
    }

    /// Handles tasks of remote workers that timed out or whose lease expired.
    fn tasks(&self) -> Option<NextStep> {
        for attempts in &self.loaded_run.ledger.attempts {
            let Some(lease) = attempts.lease().filter(|lease| lease.ends() <= self.now) else { continue };
            let call = remote::call_of(self.loaded_run, attempts, self.now);
            if lease.deadline.is_none_or(|deadline| deadline > self.now) {
                return Some(self.lease_expired(attempts, &call));
            }
            let timeout_ms = call.timeout_ms.unwrap_or(self.options.action_timeout_ms);
            let failure = timeout_failure(timeout_ms);
            let next = failed(self.loaded_run, &call, attempts.message, &failure, self.now);
            return Some(commit_step(next.unwrap_or_else(|| self.forget_attempts(attempts.activation))));
        }
        None
    }

    /// Handles an expired lease: the task goes back to the queue, or the run stops if that has happened `max_crashes`
    /// times.
    fn lease_expired(&self, attempts: &Attempts, call: &ActionCall) -> NextStep {
        if self.is_at_most_once(call) {
            return self.interrupted(call, attempts.message, "the worker's lease expired");
        }
        let mut ledger = self.loaded_run.ledger.clone();
        let expired_leases = ledger.crashes.entry(attempts.activation).or_default();
        *expired_leases = expired_leases.saturating_add(1);
        let expired_leases = *expired_leases;
        if expired_leases >= self.options.max_crashes {
            let who = format!("the worker's lease expired {expired_leases} times");
            return self.crashed(ledger, call, attempts.message, &who);
        }
        for known in ledger.attempts.iter_mut().filter(|known| known.activation == attempts.activation) {
            known.queued.iter_mut().for_each(|queued| queued.lease = None);
        }
        commit_step(PendingCommit::note(ledger))
    }

    /// Retries failed transitions whose next attempt is due.
    async fn retries(&self) -> Option<NextStep> {
        for attempts in &self.loaded_run.ledger.attempts {
            let due = attempts.next.is_some_and(|next| next <= self.now);
            if !due || self.in_flight.contains_key(&attempts.activation) {
                continue;
            }
            let event = Input::Retried { retry: self.loaded_run.retry(attempts), manual: attempts.manual };
            match self.decide(&event).await {
                Ok(Decision::Act(call)) => return Some(self.act(call, attempts.message)),
                Ok(Decision::Change(change)) => return Some(self.retry_from_earlier_place(change, attempts)),
                Ok(_) => {}
                Err(Rejected::Refused(_)) => {
                    return Some(commit_step(self.forget_attempts(attempts.activation)));
                }
                Err(Rejected::Undecidable(error)) => {
                    return Some(self.stopped(undecidable(&error), Some(attempts.activation)));
                }
            }
        }
        None
    }

    /// Forgets the attempts of a transition that the run no longer waits for.
    fn forget_attempts(&self, activation: ActivationId) -> PendingCommit {
        let mut ledger = self.loaded_run.ledger.clone();
        ledger.attempts.retain(|other| other.activation != activation);
        PendingCommit::note(ledger)
    }

    /// Commits a retry that goes back to an earlier place. A signal that triggered the transition is buffered again,
    /// so that it is there when the run returns to the transition.
    fn retry_from_earlier_place(&self, change: Box<Change>, attempts: &Attempts) -> NextStep {
        let mut back = PendingCommit::change(change, self.loaded_run);
        if let (None, Cause::Signal(name)) = (attempts.message, &attempts.cause) {
            let (payload, by) = (attempts.payload.clone(), attempts.by.clone());
            let body = MessageBody::Signal { name: name.clone(), payload, by };
            back.extras
                .send
                .push(body.buffered(self.loaded_run.run(), self.now.plus_ms(self.options.signal_ttl_ms)));
        }
        commit_step(back)
    }

    /// Fires automatic transitions of activations without an action in flight.
    async fn automatic(&self) -> Option<NextStep> {
        let snapshot = &self.loaded_run.snapshot;
        if self.loaded_run.definition().spec().firing == Firing::All || self.is_idle() {
            return self.offer(&Input::advance(), None, &mut BTreeSet::new()).await;
        }
        for activation in snapshot.activations().iter().filter(|activation| !self.is_busy(activation.id)) {
            let event = Input::Advanced { activation: Some(activation.id) };
            if let Some(next) = self.offer(&event, None, &mut BTreeSet::new()).await {
                return Some(next);
            }
        }
        None
    }

    fn is_idle(&self) -> bool {
        self.in_flight.is_empty() && !self.loaded_run.ledger.attempts.iter().any(Attempts::is_under_way)
    }

    /// Returns true if an action is in flight for the activation, a retry of it is planned, or a remote worker has its
    /// task.
    fn is_busy(&self, activation: ActivationId) -> bool {
        self.in_flight.contains_key(&activation)
            || self.loaded_run.ledger.of(activation).is_some_and(Attempts::is_under_way)
    }

    /// Finds a wait that must fetch events: some were sent to it, or it has not asked the store yet. Drops events for
    /// waits that are over.
    fn events(&self) -> Option<NextStep> {
        let LoadedRun { workflow, snapshot, inbox, ledger, .. } = self.loaded_run;
        let waits = |id: ActivationId| {
            snapshot.activation(id).filter(|one| awaited_event(&workflow.definition, one).is_some())
        };
        for message in inbox {
            if let MessageBody::Event { activation, .. } = &message.body
                && waits(*activation).is_none()
            {
                return Some(self.dropped(message, None));
            }
        }
        if !workflow.has_events {
            return None;
        }
        let engaged = self.engaged();
        let is_sent = |id: ActivationId| {
            inbox.iter().any(
                |message| matches!(&message.body, MessageBody::Event { activation, .. } if *activation == id),
            )
        };
        let has_to = |one: &&Activation| {
            awaited_event(&workflow.definition, one).is_some()
                && !engaged.contains(&one.id)
                && (is_sent(one.id) || must_fetch_events(ledger, one, self.now))
        };
        snapshot.activations().iter().find(has_to).map(|one| NextStep::FetchEarlierEvents(one.id))
    }

    /// Offers buffered signals and due timers in order of time. An acknowledged signal must not be overtaken by a
    /// later one.
    async fn signals_and_timers(&self) -> Option<NextStep> {
        let mut timers: Vec<_> = Vec::new();
        for activation in self.loaded_run.snapshot.activations() {
            if let Some(due) = activation.due().filter(|due| *due <= self.now) {
                timers.push((due, activation.id));
            }
        }
        timers.sort_unstable();
        let mut timers = timers.into_iter().peekable();
        let mut engaged = self.engaged();
        for message in &self.loaded_run.inbox {
            let MessageBody::Signal { name, payload, .. } = &message.body else { continue };
            while let Some((_, activation)) = timers.next_if(|(due, _)| *due < message.at) {
                let event = Input::TimerFired { activation };
                if let Some(next) = self.offer(&event, None, &mut engaged).await {
                    return Some(next);
                }
            }
            if self.is_in_use(message.seq) {
                continue;
            }
            let event = Input::Signalled { signal: name.clone(), payload: payload.clone() };
            if let Some(next) = self.offer(&event, Some(message), &mut engaged).await {
                return Some(next);
            }
        }
        for (_, activation) in timers {
            if let Some(next) = self.offer(&Input::TimerFired { activation }, None, &mut engaged).await {
                return Some(next);
            }
        }
        None
    }

    /// Returns the activations that are busy with a signal, a timer or an event. Later ones must wait, so that the
    /// order of arrival holds.
    fn engaged(&self) -> BTreeSet<ActivationId> {
        // An automatic action is not protected: a transition without an action may leave the place meanwhile,
        // and the automatic action is dropped.
        let in_flight = self.in_flight.iter().filter(|(_, flight)| !flight.is_automatic).map(|(id, _)| *id);
        let tried = self.loaded_run.ledger.attempts.iter().map(|attempts| attempts.activation);
        in_flight.chain(tried.filter(|id| self.loaded_run.is_retry_pending(*id))).collect()
    }

    /// Returns true if an action runs, waits for a retry or has finally failed because of this message.
    fn is_in_use(&self, seq: u64) -> bool {
        self.in_flight.values().any(|flight| flight.message == Some(seq))
            || self.loaded_run.ledger.attempts.iter().any(|attempts| attempts.message == Some(seq))
    }

    /// Offers an input to the run. A refusal has no effect, except that a signal which can never fit is dropped. If
    /// the input must wait for a busy activation, later inputs for that activation wait too.
    async fn offer(
        &self,
        event: &Input,
        message: Option<&InboxMessage>,
        engaged: &mut BTreeSet<ActivationId>,
    ) -> Option<NextStep> {
        match self.decide(event).await {
            Ok(Decision::Act(call)) if engaged.contains(&call.activation) => None,
            Ok(Decision::Act(call)) if self.is_busy(call.activation) => {
                engaged.insert(call.activation);
                None
            }
            Ok(Decision::Change(change))
                if activations_moved_by(&self.loaded_run.snapshot, &change)
                    .any(|id| engaged.contains(&id)) =>
            {
                None
            }
            Ok(Decision::Change(change)) if self.may_not_answer(&change, message) => {
                message.map(|message| self.dropped(message, Some(REFUSED)))
            }
            Ok(decision) => self.accepted(event, decision, message),
            Err(Rejected::Undecidable(error)) => Some(self.stopped(undecidable(&error), None)),
            Err(Rejected::Refused(Refusal::UnknownSignal { .. } | Refusal::InvalidPayload { .. })) => {
                message.map(|message| self.dropped(message, Some("signal.invalid")))
            }
            Err(Rejected::Refused(_)) => None,
        }
    }

    /// Returns true if a buffered signal would answer a wait with answerers. Only the embedding program may do that
    /// with a signal that was not sent to that wait.
    fn may_not_answer(&self, change: &Change, message: Option<&InboxMessage>) -> bool {
        let Some(MessageBody::Signal { by: Some(_), .. }) = message.map(|message| &message.body) else {
            return false;
        };
        let LoadedRun { workflow, snapshot, .. } = self.loaded_run;
        let wait = |id| wait_of(&workflow.definition, snapshot, id);
        activations_moved_by(snapshot, change).filter_map(wait).any(|wait| !wait.answerers.is_empty())
    }

    /// Returns the step of a decision on an input. Records the sender of a buffered signal.
    fn accepted(
        &self,
        event: &Input,
        decision: Decision,
        message: Option<&InboxMessage>,
    ) -> Option<NextStep> {
        let mut next = self.decided(decision, message.map(|message| message.seq))?;
        let (NextStep::Commit(pending), Input::Signalled { signal, payload }) = (&mut next, event) else {
            return Some(next);
        };
        let by = match message.map(|message| &message.body) {
            Some(MessageBody::Signal { by, .. }) => by.as_deref(),
            _ => None,
        };
        Accepted { signal, payload, wait: None, by, at: self.now }.record_in(self.loaded_run, pending);
        Some(next)
    }

    fn decided(&self, decision: Decision, message: Option<u64>) -> Option<NextStep> {
        match decision {
            Decision::Change(change) => {
                let stopped = change.stopped.clone();
                let mut next = PendingCommit::change(change, self.loaded_run).consuming(message);
                next.ledger.stopped = stopped.map(|error| Stopped { at: self.now, error, activation: None });
                Some(commit_step(next))
            }
            Decision::Act(call) if self.is_busy(call.activation) => None,
            Decision::Act(call) => Some(self.act(call, message)),
            Decision::Retry { .. } | Decision::Stop(_) => None,
        }
    }

    fn act(&self, call: ActionCall, message: Option<u64>) -> NextStep {
        let crashes = self.loaded_run.ledger.crashes.get(&call.activation).copied().unwrap_or(0);
        if crashes > 0 && self.is_at_most_once(&call) {
            return self.interrupted(&call, message, "a process crashed");
        }
        if crashes >= self.options.max_crashes {
            let who = format!("the process crashed {crashes} times");
            return self.crashed(self.loaded_run.ledger.clone(), &call, message, &who);
        }
        if self.queues_remote && !self.registry.actions.contains_key(&call.action) {
            return self.queued(&call, message);
        }
        let attempt = attempt_of(self.loaded_run, &call);
        NextStep::RunAction(Box::new(PlannedAction { call, message, attempt }))
    }

    fn is_at_most_once(&self, call: &ActionCall) -> bool {
        self.loaded_run.definition().is_at_most_once(&call.transition)
    }

    /// Fails an attempt that may have begun and must not begin again.
    fn interrupted(&self, call: &ActionCall, message: Option<u64>, why: &str) -> NextStep {
        let next = interrupted(self.loaded_run, call, message, why, self.now);
        commit_step(next.unwrap_or_else(|| self.forget_attempts(call.activation)))
    }

    /// Queues the action for a remote worker; the run is idle meanwhile.
    fn queued(&self, call: &ActionCall, message: Option<u64>) -> NextStep {
        let mut ledger = self.loaded_run.ledger.clone();
        let attempts = ledger.tried(&RetryRequest::of(call), message);
        attempts.next = None;
        attempts.queued =
            Some(Box::new(QueuedTask { action: call.action.clone(), at: self.now, lease: None }));
        commit_step(PendingCommit::note(ledger))
    }

    /// Stops the run because processes or workers crashed too often during this action.
    fn crashed(&self, mut ledger: Ledger, call: &ActionCall, message: Option<u64>, who: &str) -> NextStep {
        let text = format!(
            "{who} while `{}` ran for transition `{}`; it is not retried automatically",
            call.action, call.transition
        );
        let error = Failure::new("crashed", text).non_retryable();
        ledger.failed(&RetryRequest::of(call), message, self.now, error.clone());
        self.stop_with(ledger, error, Some(call.activation))
    }

    /// Drops a message that has no recipient. If `recorded` is given and the message is a signal, the audit trail
    /// records it.
    fn dropped(&self, message: &InboxMessage, recorded: Option<&str>) -> NextStep {
        let mut note = PendingCommit::note(self.loaded_run.ledger.clone()).consuming(Some(message.seq));
        if let (Some(operation), MessageBody::Signal { name, by, .. }) = (recorded, &message.body) {
            note.extras.audit.push(AuditRow {
                operation: operation.to_owned(),
                subject: name.to_string(),
                actor: by.clone(),
                run: Some(self.loaded_run.run()),
                detail: json!({"received": message.at, "expires": message.expires_at}).to_string().into(),
            });
        }
        commit_step(note)
    }

    fn stopped(&self, error: Failure, activation: Option<ActivationId>) -> NextStep {
        self.stop_with(self.loaded_run.ledger.clone(), error, activation)
    }

    fn stop_with(&self, mut ledger: Ledger, error: Failure, activation: Option<ActivationId>) -> NextStep {
        ledger.stopped = Some(Stopped { at: self.now, error, activation });
        commit_step(PendingCommit::note(ledger))
    }

    fn idle(&self) -> Idle {
        let LoadedRun { snapshot, ledger, .. } = self.loaded_run;
        let going = !self.in_flight.is_empty() || ledger.attempts.iter().any(Attempts::is_under_way);
        let status = if going { Status::Running } else { Status::Waiting };
        let attempts =
            ledger.attempts.iter().filter(|attempts| !self.in_flight.contains_key(&attempts.activation));
        let retry = attempts.filter_map(|attempts| attempts.next).min();
        let lease = ledger.attempts.iter().filter_map(Attempts::lease).map(TaskLease::ends).min();
        let wake = earliest([snapshot.next_due(self.now), retry, lease, self.expiry(), ledger.deadline]);
        Idle { status, wake }
    }

    async fn decide(&self, event: &Input) -> Result<Decision, Rejected> {
        let LoadedRun { workflow, snapshot, .. } = self.loaded_run;
        let answers = self.registry.answer(workflow, snapshot, event).await?;
        dispatch(&workflow.definition, snapshot, event, &answers, self.now)
    }
}

fn commit_step(next: PendingCommit) -> NextStep {
    NextStep::Commit(Box::new(next))
}

/// Returns the number of the next attempt of a call, counted from 1.
pub(crate) fn attempt_of(loaded_run: &LoadedRun, call: &ActionCall) -> u32 {
    let attempts =
        loaded_run.ledger.of(call.activation).filter(|attempts| attempts.transition == call.transition);
    let crashes = loaded_run.ledger.crashes.get(&call.activation).copied().unwrap_or(0);
    // Retries that go back to an earlier place are counted in the activation.
    let activation = loaded_run.snapshot.activation(call.activation);
    let back = activation.and_then(|activation| activation.retried.get(&call.transition)).copied();
    let failed = attempts.map_or(0, |attempts| attempts.failed).saturating_add(back.unwrap_or(0));
    failed.saturating_add(crashes).saturating_add(1)
}

fn undecidable(error: &stepwell_core::DecideError) -> Failure {
    error.failure()
}

pub(crate) fn earliest<const N: usize>(times: [Option<Timestamp>; N]) -> Option<Timestamp> {
    times.into_iter().flatten().min()
}
