//! A process works on a run that it owns: it commits what can be decided, runs the actions that are due, and lets go
//! of the run when there is nothing more to do.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use futures_util::future::{AbortHandle, Abortable, FutureExt};
use serde_json::Value;
use stepwell_core::snapshot::ActivationId;
use stepwell_core::{ActionCall, Cause, Failure, RunId, Timestamp};
use stepwell_store::{Page, ProcessId, RunQuery, RunSummary, Status, StoreError, TenantScope};
use tokio::sync::Notify;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

use crate::cx::{Cx, Rests, Staged};
use crate::engine::Inner;
use crate::host::BoxFuture;
use crate::ledger::{Stopped, Untold};
use crate::look::{Act, Next, Rest};
use crate::observe::{self, TIMEOUT};
use crate::post::Says;
use crate::registry::said;
use crate::room::Pass;
use crate::secrets;
use crate::standing::{Flight, Flying, Move, Standing};
use crate::turn::{By, Turned, Turnless};

/// Children that are told of a cancellation in one commit.
const TOLD_AT_ONCE: u32 = 200;
/// How long what a look found holds.
const FRESH_MS: u64 = 5;

/// Works on a run that this process owns, beside the caller, to its rest.
pub(crate) fn hold(inner: Arc<Inner>, scope: TenantScope, standing: Standing, pass: Pass) {
    let spawn = inner.host.spawn.clone();
    spawn.spawn(Box::pin(Hold::new(inner, scope, standing, Some(pass)).run(None)));
}

/// The same, while the caller waits.
pub(crate) async fn inline(inner: &Arc<Inner>, scope: TenantScope, standing: Standing, next: Option<Next>) {
    Box::pin(Hold::new(inner.clone(), scope, standing, None).run(next)).await;
}

/// A process's work on one run.
pub(crate) struct Hold {
    pub(crate) inner: Arc<Inner>,
    pub(crate) scope: TenantScope,
    pub(crate) me: ProcessId,
    fence: u64,
    pub(crate) standing: Standing,
    /// Results of spawned actions. Created with the first one: most actions complete on their first poll.
    landings: Option<(UnboundedSender<Landed>, UnboundedReceiver<Landed>)>,
    flying: BTreeMap<ActivationId, InFlight>,
    told: Arc<Notify>,
    /// How long the store is given before it is asked again; it grows while the store cannot.
    pause_ms: u64,
    /// When what is next was looked for.
    looked: Timestamp,
    /// How often in a row an action's update was lost to somebody else's.
    pub(crate) lost_updates: BTreeMap<ActivationId, u32>,
    _pass: Option<Pass>,
}

/// An action that runs.
struct InFlight {
    known: Flight,
    abort: AbortHandle,
}

/// An action that has come back.
pub(crate) struct Landed {
    pub(crate) call: ActionCall,
    pub(crate) message: Option<u64>,
    pub(crate) result: Result<(Value, Staged), Failure>,
    pub(crate) cx: Cx,
    pub(crate) duration_us: u64,
    /// Ids for the children it starts, the same however often its result is decided on.
    pub(crate) children: Vec<RunId>,
}

/// Where the work goes from here.
pub(crate) enum Flow {
    /// Look what is next.
    Look,
    /// This is next.
    Next(Next),
    /// Nothing is, for this process.
    End,
}

impl Hold {
    pub(crate) fn new(inner: Arc<Inner>, scope: TenantScope, standing: Standing, pass: Option<Pass>) -> Self {
        let told = Arc::new(Notify::new());
        let me = standing.head.owner.unwrap_or_else(|| inner.process());
        let looked = inner.host.now();
        inner.held(scope.run(standing.run()), me, standing.head.fence, told.clone());
        Hold {
            me,
            fence: standing.head.fence,
            inner,
            scope,
            standing,
            landings: None,
            flying: BTreeMap::new(),
            told,
            pause_ms: 0,
            looked,
            lost_updates: BTreeMap::new(),
            _pass: pass,
        }
    }

    pub(crate) async fn run(mut self, mut next: Option<Next>) {
        loop {
            let head = &self.standing.head;
            let mine = head.owner == Some(self.me) && head.fence == self.fence && self.inner.goes_by(self.me);
            if !mine {
                break;
            }
            if self.inner.is_abandoned() {
                // Out of patience: what runs is dropped, and the run is let go of.
                self.drop_flights();
            }
            self.inner.beat_pulse();
            let now = self.inner.host.now();
            let todo = match next.take() {
                // What was decided before a commit that took long is decided again: its times would be old.
                Some(next) if now.ms_since(self.looked) < FRESH_MS => next,
                _ => self.inner.look(&self.standing, &self.flying(), now).await,
            };
            let flow = match todo {
                Next::Act(_) if self.inner.is_stopping() => self.wind_down().await,
                // Others may call a process dead whose lease has run out: it begins nothing.
                Next::Act(_) if now >= self.inner.lease_until() => {
                    self.pause().await;
                    Flow::Look
                }
                Next::Act(act) => self.launch(*act).await,
                Next::Move(next) => self.commit(*next).await,
                Next::Ask(wait) => self.ask(wait).await,
                Next::TellChildren => self.tell_children().await,
                Next::Rest(rest) => self.rest(rest).await,
            };
            match flow {
                Flow::Look => {}
                Flow::Next(follows) => next = Some(follows),
                Flow::End => break,
            }
        }
        let wake = self.standing.head.wake.filter(|_| self.standing.head.owner.is_none());
        let (inner, scope, standing) = (self.inner.clone(), self.scope, self.standing.clone());
        let told = self.told.clone();
        drop(self);
        // What it was told after it had let go of the run is for whoever comes next.
        let told = told.notified().now_or_never().map(|()| inner.host.now());
        inner.look_at(told.or(wake));
        inner.recent.put(scope, standing);
    }

    pub(crate) fn flying(&self) -> Flying {
        self.flying.iter().map(|(activation, flight)| (*activation, flight.known)).collect()
    }

    /// Starts an action. That it is tried is on record already: this process owns the run.
    async fn launch(&mut self, act: Act) -> Flow {
        let Act { call, message, attempt } = act;
        let activation = call.activation;
        let known = Flight { message, is_automatic: call.cause == Cause::Auto };
        let rests = if self.inner.is_stateless { Rests::Nowhere } else { Rests::Durable };
        let mut flight =
            Box::pin(fly(&self.inner, self.scope, &self.standing, call, message, attempt, rests));
        // Many actions have nothing to wait for: those are over before anything is set up for waiting.
        if let Poll::Ready(landed) = polled(&mut flight).await {
            return self.landed(landed).await;
        }
        // Spawned, so that it is polled while this task awaits the store. An unpolled action could hold a place in the
        // connection pool's queue and deadlock the process.
        let (landed, _) = self.landings.get_or_insert_with(mpsc::unbounded_channel);
        let (landed, (abort, registration)) = (landed.clone(), AbortHandle::new_pair());
        self.flying.insert(activation, InFlight { known, abort });
        self.inner.host.spawn.spawn(Box::pin(async move {
            if let Ok(back) = Abortable::new(flight, registration).await {
                // The receiver is gone if the run moved on.
                let _ = landed.send(back);
            }
        }));
        Flow::Look
    }

    /// Asks for the events that a wait is for, and commits what comes of it.
    async fn ask(&mut self, wait: ActivationId) -> Flow {
        match self.inner.ask(self.scope, &self.standing, wait).await {
            Ok(next) => self.commit(next).await,
            Err(error) => {
                tracing::warn!(run = %self.standing.run(), %error, "a wait could not ask for its events");
                self.pause().await;
                if self.inner.is_stopping() { Flow::End } else { self.reload().await }
            }
        }
    }

    /// Nothing to decide: waits for its actions, or lets go of the run.
    async fn rest(&mut self, rest: Rest) -> Flow {
        if self.flying.is_empty() {
            // It was claimed, and there is nothing to do.
            return self.commit(Move::note(self.standing.ledger.clone())).await;
        }
        let clock = self.inner.host.clock.clone();
        let due = async move {
            match rest.wake {
                Some(wake) => clock.sleep_until(wake).await,
                None => std::future::pending().await,
            }
        };
        let landings = &mut self.landings;
        let landed = async {
            match landings {
                Some((_, landings)) => landings.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            landed = landed => match landed {
                Some(landed) if self.flying.contains_key(&landed.call.activation) => self.landed(landed).await,
                _ => Flow::Look,
            },
            () = self.told.notified() => self.reload().await,
            () = due => Flow::Look,
        }
    }

    /// The engine stops: no new action begins.
    async fn wind_down(&mut self) -> Flow {
        self.rest(Rest { status: self.standing.head.status, wake: None }).await
    }

    /// Commits a move that the run's state asked for.
    pub(crate) async fn commit(&mut self, next: Move) -> Flow {
        let by = By::Owner;
        let result = self.inner.turn(self.scope, &self.standing, next, &self.flying(), by).await;
        match result {
            Ok(turned) => self.turned(turned),
            Err(turnless) => self.come_to_nothing(turnless).await,
        }
    }

    /// Takes over what a turn came to; what runs for activations that are gone is dropped.
    pub(crate) fn turned(&mut self, turned: Turned) -> Flow {
        self.pause_ms = 0;
        self.lost_updates.clear();
        self.standing = turned.standing;
        self.looked = turned.at;
        self.drop_stale();
        Flow::Next(turned.next)
    }

    fn drop_stale(&mut self) {
        let snapshot = &self.standing.snapshot;
        self.flying.retain(|activation, flight| {
            let there = snapshot.activation(*activation).is_some();
            if !there {
                flight.abort.abort();
            }
            there
        });
    }

    fn drop_flights(&mut self) {
        self.flying.values().for_each(|flight| flight.abort.abort());
        self.flying.clear();
        self.landings = None;
    }

    /// Takes an action that has come back out of those that run.
    pub(crate) fn arrived(&mut self, activation: ActivationId) {
        self.flying.remove(&activation);
    }

    /// What to do when a turn came to nothing.
    pub(crate) async fn come_to_nothing(&mut self, turnless: Turnless) -> Flow {
        if let Some(failure) = turnless.failure() {
            return self.stop(failure).await;
        }
        match turnless {
            Turnless::Fenced => Flow::End,
            Turnless::Moved | Turnless::Refused(_) | Turnless::Undecidable(_) => self.reload().await,
            Turnless::Store(StoreError::Unavailable(_) | StoreError::Full(_)) => {
                self.pause().await;
                self.reload().await
            }
            Turnless::Store(error) => {
                tracing::error!(run = %self.standing.run(), %error, "the store has failed");
                Flow::End
            }
            Turnless::Engine(error) => {
                tracing::warn!(run = %self.standing.run(), %error, "a commit's outcome is not known yet");
                self.pause().await;
                self.reload().await
            }
        }
    }

    /// Gives the store time; each time in a row longer.
    async fn pause(&mut self) {
        self.pause_ms = (self.pause_ms * 2).clamp(50, 5_000);
        let until = self.inner.host.now().plus_ms(self.pause_ms);
        self.inner.host.clock.sleep_until(until).await;
    }

    /// The run stands still, with an error: what was decided on it cannot be written.
    async fn stop(&mut self, error: Failure) -> Flow {
        let mut ledger = self.standing.ledger.clone();
        tracing::error!(run = %self.standing.run(), %error, "what was decided on a run cannot be written");
        ledger.stopped = Some(Stopped { at: self.inner.host.now(), error, activation: None });
        let (note, flying) = (Move::note(ledger), self.flying());
        match self.inner.turn(self.scope, &self.standing, note, &flying, By::Owner).await {
            Ok(turned) => self.turned(turned),
            Err(Turnless::Moved) => self.reload().await,
            Err(_) => Flow::End,
        }
    }

    /// Reads the run again: somebody else has moved it, or may have.
    pub(crate) async fn reload(&mut self) -> Flow {
        let run = self.standing.run();
        let loaded = match self.inner.store.load(self.scope, run).await {
            Ok(Some(loaded)) => loaded,
            Ok(None) => return Flow::End,
            Err(StoreError::Unavailable(_)) => {
                self.pause().await;
                return Box::pin(self.reload()).await;
            }
            Err(error) => {
                tracing::error!(%run, %error, "a run cannot be read");
                return Flow::End;
            }
        };
        if loaded.head.owner != Some(self.me) || loaded.head.fence != self.fence {
            return Flow::End;
        }
        match self.inner.stand(self.scope, loaded).await {
            Ok(standing) => {
                if standing.definition().hash() != self.standing.definition().hash() {
                    // What runs was begun by another edition of the workflow.
                    self.drop_flights();
                }
                self.standing = standing;
            }
            Err(error) => {
                tracing::error!(%run, %error, "a run cannot be read");
                return Flow::End;
            }
        }
        self.drop_stale();
        Flow::Look
    }

    /// Tells what is below a cancelled run, so many in one commit, from where it left off. A child that has completed
    /// does not listen any more, but what is below it may still go on.
    async fn tell_children(&mut self) -> Flow {
        let mut ledger = self.standing.ledger.clone();
        let Some(Untold { parent, from }) = ledger.cancelling.pop() else { return Flow::Look };
        let page = match self.children_of(parent, TOLD_AT_ONCE, from).await {
            Ok(page) => page,
            Err(error) => return self.come_to_nothing(Turnless::Store(error)).await,
        };
        if page.next.is_some() {
            ledger.cancelling.push(Untold { parent, from: page.next });
        }
        let (ended, going): (Vec<_>, Vec<_>) = page.items.iter().partition(|child| child.status.is_final());
        for child in ended.iter().filter(|child| child.status == Status::Completed) {
            match self.children_of(child.run, 1, None).await {
                Ok(below) if below.items.is_empty() => {}
                Ok(_) => ledger.cancelling.push(Untold { parent: child.run, from: None }),
                Err(error) => return self.come_to_nothing(Turnless::Store(error)).await,
            }
        }
        let mut note = Move::note(ledger);
        note.along.send = going.iter().map(|child| Says::Cancel.to(child.run)).collect();
        self.commit(note).await
    }

    async fn children_of(
        &mut self,
        parent: RunId,
        limit: u32,
        cursor: Option<String>,
    ) -> Result<Page<RunSummary>, StoreError> {
        let query = RunQuery { parent: Some(parent), limit, cursor, ..RunQuery::default() };
        self.inner.store.runs(self.scope, query).await
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.drop_flights();
        self.inner.let_go(self.scope.run(self.standing.run()), &self.told);
    }
}

/// Runs an action: its panic is a failure, and so is taking longer than it may.
pub(crate) fn fly(
    inner: &Arc<Inner>,
    scope: TenantScope,
    standing: &Standing,
    call: ActionCall,
    message: Option<u64>,
    attempt: u32,
    rests: Rests,
) -> impl Future<Output = Landed> + Send + use<> {
    let host = inner.host.clone();
    let cx = Cx::new(inner, scope, standing, call.clone(), attempt, rests);
    let action = inner.registry.actions.get(&call.action).cloned();
    let secrets = inner.registry.secrets.clone();
    let secret_fields = inner.registry.secret_fields(&call.action).to_vec();
    let lists = inner.registry.lists.get(&call.action).cloned().unwrap_or_default();
    let permission = inner.registry.described.get(&call.action).and_then(|info| info.permission);
    async move {
        let began = host.now();
        let flight = observe::Flight::begin(&cx, began);
        let guard = CloseOnDrop(cx.clone());
        let work = {
            let (cx, mut input, name) = (cx.clone(), call.input.clone(), call.action.clone());
            async move {
                let Some(action) = action else {
                    let why = format!(
                        "no action `{name}` is registered here, and only a durable run waits for workers elsewhere"
                    );
                    return Err(Failure::new("unknownAction", why));
                };
                if let Some(permission) = permission {
                    cx.permit(permission).map_err(Failure::from)?;
                }
                crate::fit::as_lists(&mut input, &lists);
                let revealed =
                    secrets::reveal(secrets.as_ref(), scope, &name, &secret_fields, &mut input).await?;
                let work = AssertUnwindSafe(async { action(cx, input).await }).catch_unwind();
                let mut result = match work.await {
                    Ok(result) => result.map_err(Failure::from),
                    Err(panic) => Err(panicked(&*panic)),
                };
                match &mut result {
                    Ok(output) => revealed.hide(output),
                    Err(failure) => revealed.hide_failure(failure),
                }
                result
            }
        };
        let work = AssertUnwindSafe(work).catch_unwind();
        let done = match call.timeout_ms {
            0 => Some(work.await),
            ms => within(work, || host.clock.sleep_until(began.plus_ms(ms))).await,
        };
        let staged = cx.close();
        drop(guard);
        let result = match done {
            Some(Ok(Ok(output))) => Ok((output, staged.unwrap_or_default())),
            Some(Ok(Err(failure))) => Err(failure),
            Some(Err(panic)) => Err(panicked(&*panic)),
            None => Err(too_late(call.timeout_ms)),
        };
        let started = result.as_ref().map_or(0, |(_, staged)| staged.children.len());
        let children = (0..started).map(|_| RunId::new(host.ids.next())).collect();
        let duration_us = elapsed(began, host.now());
        flight.end(&result, duration_us);
        Landed { call, message, result, cx, duration_us, children }
    }
}

/// An action has taken longer than it may.
pub(crate) fn too_late(timeout_ms: u64) -> Failure {
    Failure::new(TIMEOUT, format!("the action took longer than {timeout_ms} ms"))
}

fn panicked(panic: &(dyn std::any::Any + Send)) -> Failure {
    Failure::new("panic", format!("the action panicked: {}", said(panic)))
}

/// Also an action that is dropped is over.
struct CloseOnDrop(Cx);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// What the work gives, unless the limit comes first; the limit is not set up for work that does not wait.
async fn within<T>(work: impl Future<Output = T>, limit: impl FnOnce() -> BoxFuture<()>) -> Option<T> {
    let mut work = pin!(work);
    if let Poll::Ready(done) = polled(&mut work).await {
        return Some(done);
    }
    tokio::select! {
        biased;
        done = work => Some(done),
        () = limit() => None,
    }
}

/// Asks a future once whether it is done.
async fn polled<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    poll_fn(|context| Poll::Ready(Pin::new(&mut *future).poll(context))).await
}

pub(crate) fn elapsed(began: Timestamp, now: Timestamp) -> u64 {
    now.micros().saturating_sub(began.micros()).max(0) as u64
}
