//! A flow goes on, inline, to its next pause or its end. Nothing is written meanwhile: what its steps have staged is gathered,
//! and goes into the one commit that lets the flow rest.

use std::sync::Arc;

use stepwell_core::schema::Misfit;
use stepwell_core::{
    ActionCall, Decision, Entry, Event, Failure, Refusal, Rejected, Snapshot, Timestamp, dispatch,
};
use stepwell_store::{CellError, Chain, Head, KeyWrite, Refused, Status, StoreError, TenantScope};

use super::outlet::Outgoing;
use crate::action::UNFIT;
use crate::cx::{Before, Op, Rests};
use crate::data::changes::WRITE;
use crate::engine::Inner;
use crate::error::EngineError;
use crate::hold::{Landed, fly};
use crate::landing::{Landing, Unfit};
use crate::ledger::Ledger;
use crate::look::{Act, Next};
use crate::registry::Workflow;
use crate::standing::{Along, Move, Standing};

/// Why a pass came to no pause. Nothing has happened.
#[derive(Debug)]
pub(crate) enum Passless {
    /// What was given is wrong.
    Unfit(Vec<Misfit>),
    /// A step has failed.
    Failed(Failure),
    /// Something that was read has changed since: the pass is to be made again.
    Again,
    /// The flow says no.
    Refused(Refusal),
    /// The store or the engine cannot.
    Engine(EngineError),
}

impl From<StoreError> for Passless {
    fn from(error: StoreError) -> Self {
        Passless::Engine(error.into())
    }
}

impl From<EngineError> for Passless {
    fn from(error: EngineError) -> Self {
        Passless::Engine(error)
    }
}

/// A flow in hand, between two pauses.
pub(crate) struct Pass<'a> {
    inner: &'a Arc<Inner>,
    scope: TenantScope,
    pub(crate) standing: Standing,
    /// How the flow came to where it is.
    pub(crate) entry: Option<Entry>,
    /// What its steps have staged.
    pub(crate) along: Along,
    /// Where it rests from its next pause on, if that changes.
    pub(crate) swap: Option<String>,
    /// What is sent out at its next pause.
    pub(crate) outgoing: Option<Outgoing>,
    /// Keys of changes that happen once, and which changes of the whole pass those are.
    once: Vec<(KeyWrite, Vec<Op>)>,
    moves: usize,
    /// Something has run that may have been seen outside.
    has_acted: bool,
}

/// The flow as it stands in hand.
pub(crate) fn standing_of(workflow: Arc<Workflow>, snapshot: Arc<Snapshot>, now: Timestamp) -> Standing {
    let run = snapshot.instance_id();
    let head = Head {
        run,
        revision: 0,
        version: snapshot.version(),
        fence: 0,
        owner: None,
        status: Status::Running,
        wake: Some(now),
        inbox_seen: 0,
        state: bytes::Bytes::new(),
        chain: Chain::default(),
    };
    Standing {
        head,
        workflow,
        snapshot,
        ledger: Ledger::default(),
        inbox: Vec::new(),
        parent: None,
        root: run,
        suspended: false,
    }
}

impl<'a> Pass<'a> {
    pub(crate) fn new(inner: &'a Arc<Inner>, scope: TenantScope, standing: Standing) -> Self {
        Pass {
            inner,
            scope,
            standing,
            entry: None,
            along: Along::default(),
            swap: None,
            outgoing: None,
            once: Vec::new(),
            moves: 0,
            has_acted: false,
        }
    }

    /// Something comes from outside. Gives the action that it begins, if it does.
    pub(crate) async fn offer(&mut self, event: &Event) -> Result<Option<Box<ActionCall>>, Passless> {
        let (registry, standing) = (&self.inner.registry, &self.standing);
        let answers = registry.answer(&standing.workflow, &standing.snapshot, event).await;
        let answers = answers.map_err(|error| Passless::Engine(error.into()))?;
        let now = self.inner.host.now();
        match dispatch(standing.definition(), &standing.snapshot, event, &answers, now) {
            Ok(Decision::Change(change)) => {
                let stopped = change.stopped.clone();
                let next = Move::change(change, standing);
                self.moved(next)?;
                stopped.map_or(Ok(None), |failure| Err(Passless::Failed(failure)))
            }
            Ok(Decision::Act(call)) => Ok(Some(Box::new(call))),
            Ok(Decision::Retry { .. } | Decision::Stop(_)) => Ok(None),
            Err(Rejected::Refused(Refusal::PayloadUnfit { misfits, .. })) => Err(Passless::Unfit(misfits)),
            Err(Rejected::Refused(refusal)) => Err(Passless::Refused(refusal)),
            Err(Rejected::Undecidable(error)) => Err(Passless::Engine(error.into())),
        }
    }

    /// What is to happen next; an action is given to whoever may have to reserve the flow before it runs.
    pub(crate) async fn next(&mut self) -> Result<Option<Box<ActionCall>>, Passless> {
        loop {
            let now = self.inner.host.now();
            match self.inner.look_in_memory(&self.standing, now).await {
                Next::Move(next) => {
                    let stopped = next.ledger.stopped.clone();
                    self.moved(*next)?;
                    if let Some(stopped) = stopped {
                        return Err(Passless::Failed(stopped.error));
                    }
                }
                Next::Act(act) => {
                    let Act { call, .. } = *act;
                    return Ok(Some(Box::new(call)));
                }
                Next::Ask(_) | Next::TellChildren | Next::Rest(_) => return Ok(None),
            }
        }
    }

    /// Runs an action and takes its result.
    pub(crate) async fn act(&mut self, call: ActionCall) -> Result<(), Passless> {
        let keys = self.once.iter().map(|(key, _)| key).chain(&self.along.keys).cloned().collect();
        let before = Arc::new(Before { cells: self.along.cells.clone(), keys });
        let is_first = !std::mem::replace(&mut self.has_acted, true);
        let rests = Rests::Flow(before.clone());
        let flight = fly(self.inner, self.scope, &self.standing, call, None, 1, rests);
        let landed = tokio::select! {
            biased;
            landed = Box::pin(flight) => landed,
            // Out of patience: what runs is dropped, and nothing has happened.
            () = self.inner.over() => return Err(Passless::Engine(EngineError::Stopped)),
        };
        let landing = Landing {
            inner: self.inner,
            scope: self.scope,
            standing: &self.standing,
            before: Some(&before.cells),
        };
        let failure = match &landed.result {
            Ok((_, staged)) => {
                let (swap, outgoing) = (staged.swap.clone(), staged.outgoing.clone());
                match landing.succeeded(&landed).await {
                    Ok(Some(next)) => {
                        self.swap = swap.or(self.swap.take());
                        self.outgoing = outgoing.or(self.outgoing.take());
                        return self.took(next);
                    }
                    Ok(None) => return Ok(()),
                    Err(Unfit::Failed(failure)) => failure,
                    Err(Unfit::Refused(refused)) => return Err(again(refused)),
                    Err(Unfit::Store(error)) => return Err(error.into()),
                }
            }
            Err(failure) => failure.clone(),
        };
        // Only what the input led to can be the input's fault.
        if is_first && failure.code == UNFIT {
            return Err(Passless::Unfit(failure.errors));
        }
        self.failed(&landed, failure)
    }

    fn failed(&mut self, landed: &Landed, failure: Failure) -> Result<(), Passless> {
        let landing =
            Landing { inner: self.inner, scope: self.scope, standing: &self.standing, before: None };
        match landing.failed(landed, &failure) {
            Ok(Some(next)) if next.change.is_some() => self.took(next),
            _ => Err(Passless::Failed(failure)),
        }
    }

    fn took(&mut self, next: Move) -> Result<(), Passless> {
        let stopped = next.ledger.stopped.clone();
        self.moved(next)?;
        stopped.map_or(Ok(()), |stopped| Err(Passless::Failed(stopped.error)))
    }

    fn moved(&mut self, next: Move) -> Result<(), Passless> {
        let Move { change, ledger, takes: _, suspend: _, repin: _, in_order: _, along } = next;
        self.moves += 1;
        let limits = self.inner.limits();
        limits.flow_moves("the flow between two pauses", self.moves).map_err(EngineError::from)?;
        self.standing.ledger = ledger;
        if let Some(change) = change {
            self.standing.snapshot = Arc::new(change.snapshot);
            self.entry = Some(change.entry);
        }
        self.gather(along);
        Ok(())
    }

    /// What a step has staged comes behind what was staged before; so do the numbers of its changes.
    fn gather(&mut self, mut along: Along) {
        let (cells, links, own) = (self.along.cells.len(), self.along.links.len(), along.cells.len());
        let place = |number: usize| match number.checked_sub(own) {
            None => Op::Cell(cells + number),
            Some(number) => Op::Link(links + number),
        };
        let keys = std::mem::take(&mut along.keys);
        let (once, others): (Vec<_>, Vec<_>) = keys.into_iter().partition(|key| key.operation == WRITE);
        along.keys = others;
        for key in once {
            let numbers: Vec<usize> = serde_json::from_slice(&key.answer).unwrap_or_default();
            self.once.push((key, numbers.into_iter().map(place).collect()));
        }
        self.along.extend(along);
    }

    /// Everything its steps have staged, as it goes into the commit that lets the flow rest.
    pub(crate) fn staged(&mut self) -> Along {
        let mut along = std::mem::take(&mut self.along);
        let cells = along.cells.len();
        for (key, ops) in std::mem::take(&mut self.once) {
            let number = |op: &Op| match op {
                Op::Cell(number) => *number,
                Op::Link(number) => cells + *number,
            };
            let numbers: Vec<usize> = ops.iter().map(number).collect();
            let answer = serde_json::to_vec(&numbers).expect("numbers are plain data").into();
            along.keys.push(KeyWrite { answer, ..key });
        }
        along
    }
}

/// What was read has changed since, or what was staged cannot be done at all.
fn again(refused: Refused) -> Passless {
    match refused {
        Refused::Cell { error: CellError::Conflict { .. }, .. } => Passless::Again,
        refused => Passless::Failed(Failure::new("refused", refused.to_string()).finally()),
    }
}
