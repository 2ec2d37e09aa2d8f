//! What is to happen next to a run: read off its snapshot, its inbox, its ledger and the time, and nothing else.

use std::collections::BTreeSet;

use serde_json::json;
use stepwell_core::dispatch::Retrial;
use stepwell_core::graph::awaited_event;
use stepwell_core::snapshot::{Activation, ActivationId};
use stepwell_core::spec::Firing;
use stepwell_core::{
    ActionCall, Cause, Change, Decision, Event, Failure, Refusal, Rejected, Timestamp, dispatch,
};
use stepwell_store::{AuditRow, Status};

use crate::events::ask::has_to_ask;
use crate::hold::too_late;
use crate::landing::failed;
use crate::ledger::{Lease, Ledger, Posted, Stopped, Tries};
use crate::post::{Letter, Says};
use crate::registry::Registry;
use crate::remote;
use crate::standing::{Flying, Move, Standing, moved_by};

/// What is to happen next to a run.
pub(crate) enum Next {
    /// Something to commit.
    Move(Box<Move>),
    /// An action to run.
    Act(Box<Act>),
    /// A wait has to ask the store for events, when what led to it is committed.
    Ask(ActivationId),
    /// The run is cancelled, and its children have to hear of it.
    TellChildren,
    /// Nothing, until then or until something comes.
    Rest(Rest),
}

/// An action to run.
pub(crate) struct Act {
    pub(crate) call: ActionCall,
    /// The message that triggered it.
    pub(crate) message: Option<u64>,
    /// Which try it is, counted from 1.
    pub(crate) attempt: u32,
}

/// How a run is doing while nothing happens to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rest {
    pub(crate) status: Status,
    pub(crate) wake: Option<Timestamp>,
}

/// Everything a look takes into account.
pub(crate) struct Look<'a> {
    pub(crate) registry: &'a Registry,
    pub(crate) standing: &'a Standing,
    pub(crate) flying: &'a Flying,
    pub(crate) now: Timestamp,
    pub(crate) max_crashes: u32,
    pub(crate) signal_kept_ms: u64,
    /// What is not registered here is done by workers elsewhere: the run can wait for them.
    pub(crate) posts: bool,
}

impl Look<'_> {
    /// What is to happen next.
    pub(crate) async fn next(&self) -> Next {
        if let Some(next) = self.commands().await {
            return next;
        }
        if let Some(next) = self.expired() {
            return next;
        }
        if let Some(rest) = self.standing_still() {
            return Next::Rest(rest);
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
        if let Some(next) = self.automatic().await {
            return next;
        }
        if let Some(next) = self.events() {
            return next;
        }
        if let Some(next) = self.kept_and_due().await {
            return next;
        }
        Next::Rest(self.rest())
    }

    /// What happens to a run however it is doing: its cancellation, by its parent or by its deadline.
    async fn commands(&self) -> Option<Next> {
        let Standing { snapshot, ledger, inbox, .. } = self.standing;
        if snapshot.is_terminal() {
            return (!ledger.cancelling.is_empty()).then_some(Next::TellChildren);
        }
        let cancel = inbox.iter().find(|letter| letter.says == Says::Cancel);
        let overdue = ledger.deadline.is_some_and(|deadline| deadline <= self.now);
        if cancel.is_none() && !overdue {
            return None;
        }
        let word = if cancel.is_some() { "__parent:cancel" } else { "__deadline" };
        match self.decide(&Event::Cancelled).await {
            Ok(Decision::Change(mut change)) => {
                change.entry.action = word.to_owned();
                let mut cancelled = Move::change(change, self.standing);
                cancelled.ledger.cancel(self.standing.run());
                Some(moved(cancelled.taking(cancel.map(|letter| letter.seq))))
            }
            _ => None,
        }
    }

    /// Signals that nobody has taken in time.
    fn expired(&self) -> Option<Next> {
        let over = |letter: &&Letter| {
            letter.expires_at.is_some_and(|expires| expires <= self.now) && !self.is_in_use(letter.seq)
        };
        if self.standing.snapshot.is_terminal() {
            return None;
        }
        self.standing.inbox.iter().find(over).map(|letter| self.dropped(letter, Some("signal.expired")))
    }

    /// When the next kept signal expires.
    fn expiry(&self) -> Option<Timestamp> {
        let expires = self.standing.inbox.iter().filter_map(|letter| letter.expires_at);
        expires.filter(|at| *at > self.now).min()
    }

    /// How a run is doing that nothing moves by itself.
    fn standing_still(&self) -> Option<Rest> {
        let Standing { snapshot, ledger, suspended, .. } = self.standing;
        let wake = earliest([ledger.deadline, self.expiry()]);
        if snapshot.is_terminal() {
            let cancelled = matches!(snapshot.finished(), Some(stepwell_core::snapshot::Finished::Cancelled));
            let status = if cancelled { Status::Cancelled } else { Status::Completed };
            return Some(Rest { status, wake: None });
        }
        if *suspended {
            return Some(Rest { status: Status::Suspended, wake });
        }
        if ledger.stopped.is_some() {
            return Some(Rest { status: Status::Failed, wake });
        }
        if self.standing.is_pending(self.now) {
            let starts = Some(snapshot.created_at());
            return Some(Rest { status: Status::Pending, wake: earliest([starts, wake]) });
        }
        None
    }

    /// Children that have ended.
    async fn children(&self) -> Option<Next> {
        for letter in &self.standing.inbox {
            let Says::Child { activation, child, end } = &letter.says else { continue };
            let event = Event::ChildDone { activation: *activation, child: *child, end: end.clone() };
            let next = match self.decide(&event).await {
                Ok(decision) => self.decided(decision, Some(letter.seq)),
                Err(Rejected::Refused(_)) => Some(self.dropped(letter, None)),
                Err(Rejected::Undecidable(error)) => Some(self.stopped(undecidable(&error), None)),
            };
            if next.is_some() {
                return next;
            }
        }
        None
    }

    /// Tasks that have taken too long, or whose worker was not heard of in time.
    fn tasks(&self) -> Option<Next> {
        for tries in &self.standing.ledger.tries {
            let Some(lease) = tries.lease().filter(|lease| lease.ends() <= self.now) else { continue };
            let call = remote::call_of(self.standing, tries, self.now);
            if lease.deadline.is_none_or(|deadline| deadline > self.now) {
                return Some(self.lapsed(tries, &call));
            }
            let failure = too_late(call.timeout_ms);
            let next = failed(self.standing, &call, tries.message, &failure, self.now);
            return Some(moved(next.unwrap_or_else(|| self.forgotten(tries.activation))));
        }
        None
    }

    /// A worker was not heard of in time: its task is given to another, unless that has happened too often.
    fn lapsed(&self, tries: &Tries, call: &ActionCall) -> Next {
        let mut ledger = self.standing.ledger.clone();
        let lapses = ledger.deaths.entry(tries.activation).or_default();
        *lapses = lapses.saturating_add(1);
        let lapses = *lapses;
        if lapses >= self.max_crashes {
            let who = format!("its worker was not heard of {lapses} times");
            return self.crashed(ledger, call, tries.message, &who);
        }
        for known in ledger.tries.iter_mut().filter(|known| known.activation == tries.activation) {
            known.posted.iter_mut().for_each(|posted| posted.lease = None);
        }
        moved(Move::note(ledger))
    }

    /// Failed transitions whose next try is due.
    async fn retries(&self) -> Option<Next> {
        for tries in &self.standing.ledger.tries {
            let due = tries.next.is_some_and(|next| next <= self.now);
            if !due || self.flying.contains_key(&tries.activation) {
                continue;
            }
            let event = Event::Retried { retrial: self.standing.retrial(tries), by_hand: tries.by_hand };
            match self.decide(&event).await {
                Ok(Decision::Act(call)) => return Some(self.act(call, tries.message)),
                Ok(Decision::Change(change)) => return Some(self.way_back(change, tries)),
                Ok(_) => {}
                Err(Rejected::Refused(_)) => return Some(moved(self.forgotten(tries.activation))),
                Err(Rejected::Undecidable(error)) => {
                    return Some(self.stopped(undecidable(&error), Some(tries.activation)));
                }
            }
        }
        None
    }

    /// What was tried is not wanted any more.
    fn forgotten(&self, activation: ActivationId) -> Move {
        let mut ledger = self.standing.ledger.clone();
        ledger.tries.retain(|other| other.activation != activation);
        Move::note(ledger)
    }

    /// A retry goes back to an earlier place. What triggered the transition is kept for when the run comes to it again.
    fn way_back(&self, change: Box<Change>, tries: &Tries) -> Next {
        let mut back = Move::change(change, self.standing);
        if let (None, Cause::Signal(name)) = (tries.message, &tries.cause) {
            let says = Says::Signal { name: name.clone(), payload: tries.payload.clone() };
            back.along.send.push(says.kept(self.standing.run(), self.now.plus_ms(self.signal_kept_ms)));
        }
        moved(back)
    }

    /// Automatic transitions of activations for which nothing runs.
    async fn automatic(&self) -> Option<Next> {
        let snapshot = &self.standing.snapshot;
        if self.standing.definition().spec().firing == Firing::All || self.is_idle() {
            return self.offer(&Event::advance(), None, &mut BTreeSet::new()).await;
        }
        for activation in snapshot.activations().iter().filter(|activation| !self.is_busy(activation.id)) {
            let event = Event::Advanced { activation: Some(activation.id) };
            if let Some(next) = self.offer(&event, None, &mut BTreeSet::new()).await {
                return Some(next);
            }
        }
        None
    }

    fn is_idle(&self) -> bool {
        self.flying.is_empty() && !self.standing.ledger.tries.iter().any(Tries::is_under_way)
    }

    /// Something runs for it, or its next try has a time of its own.
    fn is_busy(&self, activation: ActivationId) -> bool {
        self.flying.contains_key(&activation)
            || self.standing.ledger.of(activation).is_some_and(Tries::is_under_way)
    }

    /// Waits that have to ask for events, or to which some were sent.
    fn events(&self) -> Option<Next> {
        let Standing { workflow, snapshot, inbox, ledger, .. } = self.standing;
        let waits = |id: ActivationId| {
            snapshot.activation(id).filter(|one| awaited_event(&workflow.definition, one).is_some())
        };
        for letter in inbox {
            if let Says::Event { activation, .. } = &letter.says
                && waits(*activation).is_none()
            {
                return Some(self.dropped(letter, None));
            }
        }
        if !workflow.has_events {
            return None;
        }
        let engaged = self.engaged();
        let is_sent = |id: ActivationId| {
            inbox
                .iter()
                .any(|letter| matches!(&letter.says, Says::Event { activation, .. } if *activation == id))
        };
        let has_to = |one: &&Activation| {
            awaited_event(&workflow.definition, one).is_some()
                && !engaged.contains(&one.id)
                && (is_sent(one.id) || has_to_ask(ledger, one, self.now))
        };
        snapshot.activations().iter().find(has_to).map(|one| Next::Ask(one.id))
    }

    /// Kept signals and due timers, in the order in which they came.
    async fn kept_and_due(&self) -> Option<Next> {
        let mut timers: Vec<_> = Vec::new();
        for activation in self.standing.snapshot.activations() {
            if let Some(due) = activation.due().filter(|due| *due <= self.now) {
                timers.push((due, activation.id));
            }
        }
        timers.sort_unstable();
        let mut timers = timers.into_iter().peekable();
        let mut engaged = self.engaged();
        for letter in &self.standing.inbox {
            let Says::Signal { name, payload } = &letter.says else { continue };
            while let Some((_, activation)) = timers.next_if(|(due, _)| *due < letter.at) {
                let event = Event::TimerFired { activation };
                if let Some(next) = self.offer(&event, None, &mut engaged).await {
                    return Some(next);
                }
            }
            if self.is_in_use(letter.seq) {
                continue;
            }
            let event = Event::Signalled { signal: name.clone(), payload: payload.clone() };
            if let Some(next) = self.offer(&event, Some(letter), &mut engaged).await {
                return Some(next);
            }
        }
        for (_, activation) in timers {
            if let Some(next) = self.offer(&Event::TimerFired { activation }, None, &mut engaged).await {
                return Some(next);
            }
        }
        None
    }

    /// Activations for which something from outside is being dealt with: what came later waits for it.
    fn engaged(&self) -> BTreeSet<ActivationId> {
        let flying = self.flying.iter().filter(|(_, flight)| !flight.is_automatic).map(|(id, _)| *id);
        let tried = self.standing.ledger.tries.iter().map(|tries| tries.activation);
        flying.chain(tried.filter(|id| self.standing.is_tried_again(*id))).collect()
    }

    /// An action runs, is tried again, or has failed for good because of this message.
    fn is_in_use(&self, seq: u64) -> bool {
        self.flying.values().any(|flight| flight.message == Some(seq))
            || self.standing.ledger.tries.iter().any(|tries| tries.message == Some(seq))
    }

    /// Offers an event; what refuses it does so without consequence. If it has to wait for an activation, so does whatever
    /// comes after it for the same one.
    async fn offer(
        &self,
        event: &Event,
        letter: Option<&Letter>,
        engaged: &mut BTreeSet<ActivationId>,
    ) -> Option<Next> {
        match self.decide(event).await {
            Ok(Decision::Act(call)) if engaged.contains(&call.activation) => None,
            Ok(Decision::Act(call)) if self.is_busy(call.activation) => {
                engaged.insert(call.activation);
                None
            }
            Ok(Decision::Change(change))
                if moved_by(&self.standing.snapshot, &change).any(|id| engaged.contains(&id)) =>
            {
                None
            }
            Ok(decision) => self.decided(decision, letter.map(|letter| letter.seq)),
            Err(Rejected::Undecidable(error)) => Some(self.stopped(undecidable(&error), None)),
            Err(Rejected::Refused(Refusal::UnknownSignal { .. } | Refusal::PayloadUnfit { .. })) => {
                letter.map(|letter| self.dropped(letter, Some("signal.unfit")))
            }
            Err(Rejected::Refused(_)) => None,
        }
    }

    fn decided(&self, decision: Decision, message: Option<u64>) -> Option<Next> {
        match decision {
            Decision::Change(change) => {
                let stopped = change.stopped.clone();
                let mut next = Move::change(change, self.standing).taking(message);
                next.ledger.stopped = stopped.map(|error| Stopped { at: self.now, error, activation: None });
                Some(moved(next))
            }
            Decision::Act(call) if self.is_busy(call.activation) => None,
            Decision::Act(call) => Some(self.act(call, message)),
            Decision::Retry { .. } | Decision::Stop(_) => None,
        }
    }

    fn act(&self, call: ActionCall, message: Option<u64>) -> Next {
        let crashes = self.standing.ledger.deaths.get(&call.activation).copied().unwrap_or(0);
        if crashes >= self.max_crashes {
            let who = format!("the process died {crashes} times");
            return self.crashed(self.standing.ledger.clone(), &call, message, &who);
        }
        if self.posts && !self.registry.actions.contains_key(&call.action) {
            return self.posted(&call, message);
        }
        let attempt = attempt_of(self.standing, &call);
        Next::Act(Box::new(Act { call, message, attempt }))
    }

    /// The action is for a worker elsewhere, and the run rests meanwhile.
    fn posted(&self, call: &ActionCall, message: Option<u64>) -> Next {
        let mut ledger = self.standing.ledger.clone();
        let tries = ledger.tried(&Retrial::of(call), message);
        tries.next = None;
        tries.posted = Some(Box::new(Posted { action: call.action.clone(), at: self.now, lease: None }));
        moved(Move::note(ledger))
    }

    /// An action under which somebody has died too often is not tried again.
    fn crashed(&self, mut ledger: Ledger, call: &ActionCall, message: Option<u64>, who: &str) -> Next {
        let text = format!(
            "{who} while `{}` ran for transition `{}`; it is not tried again by itself",
            call.action, call.transition
        );
        let error = Failure::new("crashed", text).finally();
        ledger.failed(&Retrial::of(call), message, self.now, error.clone());
        self.stop_with(ledger, error, Some(call.activation))
    }

    /// A message that nobody takes.
    fn dropped(&self, letter: &Letter, recorded: Option<&str>) -> Next {
        let mut note = Move::note(self.standing.ledger.clone()).taking(Some(letter.seq));
        if let (Some(operation), Says::Signal { name, .. }) = (recorded, &letter.says) {
            note.along.audit.push(AuditRow {
                operation: operation.to_owned(),
                subject: name.to_string(),
                actor: None,
                run: Some(self.standing.run()),
                detail: json!({"received": letter.at, "expires": letter.expires_at}).to_string().into(),
            });
        }
        moved(note)
    }

    fn stopped(&self, error: Failure, activation: Option<ActivationId>) -> Next {
        self.stop_with(self.standing.ledger.clone(), error, activation)
    }

    fn stop_with(&self, mut ledger: Ledger, error: Failure, activation: Option<ActivationId>) -> Next {
        ledger.stopped = Some(Stopped { at: self.now, error, activation });
        moved(Move::note(ledger))
    }

    fn rest(&self) -> Rest {
        let Standing { snapshot, ledger, .. } = self.standing;
        let going = !self.flying.is_empty() || ledger.tries.iter().any(Tries::is_under_way);
        let status = if going { Status::Running } else { Status::Waiting };
        let tries = ledger.tries.iter().filter(|tries| !self.flying.contains_key(&tries.activation));
        let retry = tries.filter_map(|tries| tries.next).min();
        let lease = ledger.tries.iter().filter_map(Tries::lease).map(Lease::ends).min();
        let wake = earliest([snapshot.next_due(self.now), retry, lease, self.expiry(), ledger.deadline]);
        Rest { status, wake }
    }

    async fn decide(&self, event: &Event) -> Result<Decision, Rejected> {
        let Standing { workflow, snapshot, .. } = self.standing;
        let answers = self.registry.answer(workflow, snapshot, event).await?;
        dispatch(&workflow.definition, snapshot, event, &answers, self.now)
    }
}

fn moved(next: Move) -> Next {
    Next::Move(Box::new(next))
}

/// Which try of a call the next one is, counted from 1.
pub(crate) fn attempt_of(standing: &Standing, call: &ActionCall) -> u32 {
    let tries = standing.ledger.of(call.activation).filter(|tries| tries.transition == call.transition);
    let crashes = standing.ledger.deaths.get(&call.activation).copied().unwrap_or(0);
    // Retries that went back to an earlier place are counted by the activation.
    let activation = standing.snapshot.activation(call.activation);
    let back = activation.and_then(|activation| activation.retried.get(&call.transition)).copied();
    let failed = tries.map_or(0, |tries| tries.failed).saturating_add(back.unwrap_or(0));
    failed.saturating_add(crashes).saturating_add(1)
}

fn undecidable(error: &stepwell_core::DecideError) -> Failure {
    error.failure()
}

fn earliest<const N: usize>(times: [Option<Timestamp>; N]) -> Option<Timestamp> {
    times.into_iter().flatten().min()
}
