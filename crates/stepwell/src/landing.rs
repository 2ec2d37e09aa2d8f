//! An action has come back: its result is decided on and committed, on the newest state of the run.

use std::sync::Arc;

use stepwell_core::dispatch::Retrial;
use stepwell_core::snapshot::ActivationId;
use stepwell_core::{
    ActionCall, Change, DecideError, Decision, Event, Failure, Outcome, Rejected, Snapshot, Timestamp,
    dispatch,
};
use stepwell_store::{CellError, CellWrite, KeyWrite, Parent, Refused, StoreError, TenantScope};

use crate::cx::Staged;
use crate::data::changes::WRITE;
use crate::engine::Inner;
use crate::error::EngineError;
use crate::fills::number;
use crate::flow::sent_mark;
use crate::hold::{Flow, Hold, Landed};
use crate::ledger::Stopped;
use crate::post::Says;
use crate::standing::{Along, Move, Standing};
use crate::start::{OWN_START, START};
use crate::turn::{By, MAX_TRIES, Turnless};

/// Why a result cannot be taken as it is.
pub(crate) enum Unfit {
    /// It never can.
    Failed(Failure),
    /// Something it has staged cannot be done.
    Refused(Refused),
    /// The store cannot now.
    Store(StoreError),
}

impl From<Failure> for Unfit {
    fn from(failure: Failure) -> Self {
        Unfit::Failed(failure)
    }
}

impl From<StoreError> for Unfit {
    fn from(error: StoreError) -> Self {
        Unfit::Store(error)
    }
}

impl Hold {
    /// Decides on an action's result and commits it. If the run has moved, it is decided again on the newer state; if it
    /// is no longer current there, it is discarded.
    pub(crate) async fn landed(&mut self, landed: Landed) -> Flow {
        self.arrived(landed.call.activation);
        let edition = self.standing.definition().hash();
        let mut failure = landed.result.as_ref().err().cloned();
        for attempt in 0..MAX_TRIES {
            if self.standing.definition().hash() != edition {
                return Flow::Look;
            }
            let next = match &failure {
                None => self.landing().succeeded(&landed).await,
                Some(failure) => self.landing().failed(&landed, failure).map_err(Unfit::Failed),
            };
            let next = match next {
                Ok(Some(next)) => next,
                Ok(None) => return Flow::Look,
                Err(Unfit::Failed(unfit)) => {
                    failure = Some(unfit);
                    continue;
                }
                Err(Unfit::Refused(refused)) => {
                    if self.is_made_again(&landed, &refused).await {
                        return Flow::Look;
                    }
                    failure = Some(refusal(&refused));
                    continue;
                }
                Err(Unfit::Store(error)) => match self.come_to_nothing(Turnless::Store(error)).await {
                    Flow::Look => continue,
                    other => return other,
                },
            };
            let staged = landed.result.as_ref().ok().filter(|_| failure.is_none());
            let is_foreseen = staged.is_some_and(|(_, staged)| next.along.cells != staged.cells);
            let by = By::Owner;
            match self.inner.turn(self.scope, &self.standing, next, &self.flying(), by).await {
                Ok(turned) => return self.turned(turned),
                // Somebody has used a key meanwhile: this try is discarded, and the next one finds what is under it.
                Err(Turnless::Refused(Refused::Done { operation, .. }))
                    if operation == START || operation == OWN_START || operation == WRITE =>
                {
                    return Flow::Look;
                }
                // What was foreseen has come to something else: it is foreseen again.
                Err(Turnless::Refused(Refused::Cell { error: CellError::Conflict { .. }, .. }))
                    if is_foreseen =>
                {
                    self.inner.pause_after(attempt).await;
                }
                // What it made of a value was made of an old one: this try is discarded, and the next one reads it again.
                Err(Turnless::Refused(refused)) if self.is_made_again(&landed, &refused).await => {
                    return Flow::Look;
                }
                Err(Turnless::Refused(refused)) if failure.is_none() => failure = Some(refusal(&refused)),
                Err(Turnless::Undecidable(error)) if failure.is_none() => {
                    failure = Some(invalid(&error));
                }
                Err(turnless) => match self.come_to_nothing(turnless).await {
                    Flow::Look => {}
                    other => return other,
                },
            }
        }
        tracing::warn!(run = %self.standing.run(), "a result could not be committed: the run moved every time");
        Flow::Look
    }

    fn landing(&self) -> Landing<'_> {
        Landing { inner: &self.inner, scope: self.scope, standing: &self.standing, before: None }
    }

    /// An update was lost to somebody else's, and may be made again.
    async fn is_made_again(&mut self, landed: &Landed, refused: &Refused) -> bool {
        let Ok((_, staged)) = &landed.result else { return false };
        let Refused::Cell { operation, error: CellError::Conflict { .. }, .. } = refused else {
            return false;
        };
        let Some(most) = staged.updates.get(operation) else { return false };
        let lost = self.lost_updates.entry(landed.call.activation).or_default();
        *lost += 1;
        let attempt = *lost;
        if attempt >= *most {
            self.lost_updates.remove(&landed.call.activation);
            return false;
        }
        self.inner.pause_after(attempt).await;
        true
    }
}

/// What comes of an action's result, on the state that it meets.
#[derive(Clone, Copy)]
pub(crate) struct Landing<'a> {
    pub(crate) inner: &'a Arc<Inner>,
    pub(crate) scope: TenantScope,
    pub(crate) standing: &'a Standing,
    /// What steps before it have written that are committed together with it; `None` = it has a commit of its own.
    pub(crate) before: Option<&'a [CellWrite]>,
}

impl Landing<'_> {
    /// What a result comes to: `None` = it is no longer wanted; an error is why it cannot be taken as it is.
    pub(crate) async fn succeeded(self, landed: &Landed) -> Result<Option<Move>, Unfit> {
        let Ok((output, staged)) = &landed.result else { return Ok(None) };
        let has_moved = landed.cx.snapshot().version() != self.standing.snapshot.version();
        let (context, session) = landed.cx.patches(staged, has_moved);
        let outcome = Outcome {
            context,
            whole: staged.context.clone().filter(|_| !has_moved),
            session,
            locals: staged.locals.clone(),
            output: output.clone(),
            children: staged.children.len() as u32,
            duration_us: landed.duration_us,
        };
        let mut event = Event::ActionDone { call: landed.call.clone(), outcome };
        let mut foreseen = None;
        if self.is_foreseen(&event, staged, landed) {
            let before = self.before.unwrap_or_default();
            let (output, cells) = self.inner.foresee(self.scope, output, staged, before).await?;
            if let Event::ActionDone { outcome, .. } = &mut event {
                outcome.output = output;
            }
            foreseen = Some(cells);
        }
        self.mark_sent(&mut event, staged);
        let change = match self.decide(&event) {
            Ok(Decision::Change(change)) => change,
            Ok(_) | Err(Rejected::Refused(_)) => return Ok(None),
            Err(Rejected::Undecidable(error)) => {
                return Err(invalid(&error).into());
            }
        };
        let mut along = self.along(staged, landed, &change).await?;
        match foreseen {
            Some(cells) => along.cells = cells,
            None => along.fills = self.fills(staged, landed),
        }
        let stopped = change.stopped.clone();
        let mut next = Move::change(change, self.standing).taking(landed.message);
        next.ledger.stopped = stands(self.standing, stopped, None, self.inner.host.now());
        next.along = along;
        Ok(Some(next))
    }

    /// The activation to which a link is sent out is told so.
    fn mark_sent(&self, event: &mut Event, staged: &Staged) {
        if staged.outgoing.is_none() || self.before.is_some() {
            return;
        }
        let Ok(Decision::Change(change)) = self.decide(event) else { return };
        if let (Some((key, mark)), Event::ActionDone { outcome, .. }) =
            (sent_mark(self.standing, &change.snapshot), event)
        {
            outcome.locals.insert(key.to_owned(), mark);
        }
    }

    /// What a failed try comes to.
    pub(crate) fn failed(self, landed: &Landed, failure: &Failure) -> Result<Option<Move>, Failure> {
        Ok(failed(self.standing, &landed.call, landed.message, failure, self.inner.host.now()))
    }

    pub(crate) fn decide(&self, event: &Event) -> Result<Decision, Rejected> {
        let answers = stepwell_core::Answers::none();
        dispatch(self.standing.definition(), &self.standing.snapshot, event, &answers, self.inner.host.now())
    }

    /// What an action has staged, as it goes into the commit of its result.
    async fn along(self, staged: &Staged, landed: &Landed, change: &Change) -> Result<Along, Unfit> {
        let expires = self.inner.host.now().plus_ms(self.inner.options.signal_kept_ms);
        let publisher = self.standing.workflow.publisher();
        let mut along = Along {
            cells: staged.cells.clone(),
            links: staged.links.clone(),
            actor: publisher.map(|actor| actor.id.clone()),
            keys: staged.keys.iter().map(|(key, ops)| with_numbers(key, ops, staged)).collect(),
            documents: staged.documents.clone(),
            send: staged.posts.clone(),
            shadows: staged.shadows.clone(),
            ..Along::default()
        };
        for (run, name, payload) in &staged.signals {
            self.inner.is_open(self.scope, *run).await.map_err(cannot_signal)?;
            let says = Says::Signal { name: name.clone(), payload: payload.clone() };
            let mut send = says.to(*run);
            send.message.expires_at = Some(expires);
            along.send.push(send);
        }
        let waits = waits_for_children(&self.standing.snapshot, &change.snapshot);
        for (number, (start, id)) in staged.children.iter().zip(&landed.children).enumerate() {
            let parent = Parent { run: self.standing.run(), activation: waits, child: number as u32 };
            let id = start.id.unwrap_or(*id);
            let fresh = self.inner.fresh(self.scope, start, id, Some((parent, self.standing.root))).await;
            fresh.map_err(cannot_start)?.goes_along(&mut along);
        }
        for (id, start) in &staged.starts {
            along.keys.extend(start.key_for(*id));
            let fresh = self.inner.fresh(self.scope, start, *id, None).await;
            fresh.map_err(cannot_start)?.goes_along(&mut along);
        }
        along.definitions.dedup_by(|a, b| Arc::ptr_eq(a, b));
        // In a flow it is sent out where that rests next.
        if let (Some(outgoing), None) = (&staged.outgoing, self.before) {
            let flows = self.inner.flows.get().ok_or_else(|| {
                Failure::new("cannotSend", "there are no outlets: build the engine's flows").finally()
            })?;
            let now = self.inner.host.now();
            let sent = flows.sent_out(self.scope, outgoing, self.standing, &change.snapshot, now)?;
            along.handles.push(sent);
        }
        Ok(along)
    }
}

/// What a failed try comes to; `None` = it is no longer wanted.
pub(crate) fn failed(
    standing: &Standing,
    call: &ActionCall,
    message: Option<u64>,
    failure: &Failure,
    now: Timestamp,
) -> Option<Move> {
    let tries = standing.ledger.of(call.activation).filter(|tries| tries.transition == call.transition);
    let retries = tries.map_or(0, |tries| tries.retries);
    let event = Event::ActionFailed { call: call.clone(), failure: failure.clone(), retries };
    let answers = stepwell_core::Answers::none();
    let decision = match dispatch(standing.definition(), &standing.snapshot, &event, &answers, now) {
        Ok(decision) => decision,
        Err(Rejected::Refused(_)) => return None,
        Err(Rejected::Undecidable(error)) => Decision::Stop(Failure::new("undecidable", error.to_string())),
    };
    let mut ledger = standing.ledger.clone();
    let tries = ledger.failed(&Retrial::of(call), message, now, failure.clone());
    tries.by_hand = false;
    tries.next = None;
    match decision {
        Decision::Change(change) => {
            let stopped = change.stopped.clone();
            ledger.prune(&change.snapshot);
            ledger.stopped = stands(standing, stopped, None, now);
            Some(Move { ledger, ..Move::change(change, standing) }.taking(message))
        }
        Decision::Retry { retry, at } => {
            tries.retries = retry;
            tries.next = Some(at);
            Some(Move::note(ledger))
        }
        Decision::Stop(error) => {
            ledger.stopped = stands(standing, Some(error), Some(call.activation), now);
            Some(Move::note(ledger))
        }
        Decision::Act(_) => None,
    }
}

/// Why the run stands still from here on; an older reason stays.
fn stands(
    standing: &Standing,
    error: Option<Failure>,
    activation: Option<ActivationId>,
    at: Timestamp,
) -> Option<Stopped> {
    let known = standing.ledger.stopped.clone();
    known.or_else(|| error.map(|error| Stopped { at, error, activation }))
}

/// The record of a key says which of the commit's results are those of its changes.
fn with_numbers(key: &KeyWrite, ops: &[crate::cx::Op], staged: &Staged) -> KeyWrite {
    let numbers: Vec<_> = ops.iter().map(|op| number(*op, staged)).collect();
    let answer = serde_json::to_vec(&numbers).expect("numbers are plain data").into();
    KeyWrite { answer, ..key.clone() }
}

/// A result that cannot be taken is the action's failure; what has a code of its own keeps it.
pub(crate) fn invalid(error: &DecideError) -> Failure {
    match error {
        DecideError::Raised(failure) => failure.clone(),
        other => Failure::new("invalidResult", other.to_string()).finally(),
    }
}

fn cannot_signal(error: EngineError) -> Unfit {
    match error {
        EngineError::Store(error) => Unfit::Store(error),
        other => Failure::new("cannotSignal", other.to_string()).finally().into(),
    }
}

fn cannot_start(error: EngineError) -> Unfit {
    match error {
        // What the name stands for could not be read: that is no fault of the action's.
        EngineError::Store(error) => Unfit::Store(error),
        other => Failure::new("cannotStart", other.to_string()).finally().into(),
    }
}

/// The activation that waits for the children a change starts; 0 = none does.
fn waits_for_children(before: &Snapshot, after: &Snapshot) -> ActivationId {
    let new = after.activations().iter().filter(|activation| before.activation(activation.id).is_none());
    new.filter(|activation| activation.children.is_some()).map(|activation| activation.id).next().unwrap_or(0)
}

/// A commit that cannot be done is the action's failure. Only room in an inbox may come back by waiting.
pub(crate) fn refusal(refused: &Refused) -> Failure {
    let code = match refused {
        Refused::Cell { error: CellError::Conflict { .. }, .. } => "conflict",
        _ => "refused",
    };
    let failure = Failure::new(code, refused.to_string());
    match refused {
        Refused::InboxFull { .. } | Refused::NoTarget { .. } => failure,
        _ => failure.finally(),
    }
}
