//! Shared helpers for tests of actions: scripted actions, gates, a process that can be frozen, and cells.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use serde_json::{Value, json};
use stepwell::core::spec::{ActionSpec, Transition};
use stepwell::core::{Definition, RunId, Snapshot, Spec, Timestamp};
use stepwell::engine::Builder;
use stepwell::host::{BoxFuture, Spawn};
use stepwell::store::{
    CellFilter, CellKey, CellOp, CellQuery, CellWrite, HistoryQuery, Loaded, Precondition, Space, Store, Ttl,
    ValueType,
};
use stepwell::testing::TestEngine;
use stepwell::{ActionError, Cx, Engine, Host, ManualClock};
use tokio::sync::Semaphore;

use crate::kit::LEASE_MS;

/// The result of an action in these tests.
pub(crate) type Given = Result<Value, ActionError>;

/// A workflow with one automatic transition, `work`, from `todo` to `done`; its action is called `work`.
pub(crate) fn job(how: impl FnOnce(Transition) -> Transition) -> Definition {
    job_spec(how).build().unwrap()
}

/// The same workflow as [`job`], before it is built.
pub(crate) fn job_spec(how: impl FnOnce(Transition) -> Transition) -> Spec {
    let work = Transition::new("work", "todo", "done").action("work");
    Spec::new("job").step("todo").end("done").transition(how(work))
}

/// A workflow whose signal `GO` leads from `open` to `done` through the action `work`, whose result is `worked`.
pub(crate) fn desk(how: impl FnOnce(Transition) -> Transition) -> Definition {
    desk_spec(how).build().unwrap()
}

/// The same workflow as [`desk`], before it is built.
pub(crate) fn desk_spec(how: impl FnOnce(Transition) -> Transition) -> Spec {
    let work = Transition::new("work", "open", "done").on_signal("GO").action_with(saved("work", "worked"));
    let output = json!({"$expr": "context.worked"});
    Spec::new("desk").step("open").end_with("done", output).signal("GO").transition(how(work))
}

/// Two branches: `left` runs the action `work`, `right` waits for `NEXT`; both are joined before the end.
pub(crate) fn pair() -> Spec {
    Spec::new("pair")
        .fork("split", ["left", "right"])
        .step("left")
        .step("right")
        .join("both", stepwell::core::spec::Quorum::All, ["left", "right"])
        .end("done")
        .signal("NEXT")
        .transition(Transition::new("work", "left", "both").action("work"))
        .on_signal("next", "right", "NEXT", "both")
        .auto("finish", "both", "done")
}

/// An action whose output is saved in a field of the context.
pub(crate) fn saved(name: &str, field: &str) -> ActionSpec {
    ActionSpec { name: name.into(), input: Value::Null, save_as: Some(field.to_owned()), version: None }
}

/// The context that an action saw in one call.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Call {
    pub(crate) at: Timestamp,
    pub(crate) attempt: u32,
    pub(crate) payload: Value,
    pub(crate) context: Value,
    pub(crate) transition: String,
    pub(crate) key: String,
}

/// An action that returns prepared answers in order, repeats the last one, and records its calls.
#[derive(Clone)]
pub(crate) struct Script {
    answers: Arc<Mutex<VecDeque<Given>>>,
    calls: Arc<Mutex<Vec<Call>>>,
}

impl Script {
    pub(crate) fn new(answers: impl IntoIterator<Item = Given>) -> Self {
        Script { answers: Arc::new(Mutex::new(answers.into_iter().collect())), calls: Arc::default() }
    }

    /// A script that always succeeds.
    pub(crate) fn good() -> Self {
        Script::new([Ok(Value::Null)])
    }

    /// A script that fails this many times and then succeeds.
    pub(crate) fn failing(times: usize) -> Self {
        let failed = (1..=times).map(|number| Err(ActionError::new("busy", format!("failure {number}"))));
        Script::new(failed.chain([Ok(json!("done"))]))
    }

    /// A script that always fails.
    pub(crate) fn bad() -> Self {
        Script::new([Err(ActionError::new("busy", "the line is engaged"))])
    }

    pub(crate) fn calls(&self) -> Vec<Call> {
        self.calls.lock().unwrap().clone()
    }

    /// The delays between consecutive attempts, in milliseconds.
    pub(crate) fn pauses(&self) -> Vec<u64> {
        let at: Vec<_> = self.calls().iter().map(|call| call.at).collect();
        at.windows(2).map(|pair| pair[1].ms_since(pair[0])).collect()
    }

    pub(crate) fn action(&self) -> impl Fn(Cx) -> BoxFuture<Given> + Send + Sync + use<> {
        let script = self.clone();
        move |cx: Cx| {
            let script = script.clone();
            Box::pin(async move { script.play(&cx) })
        }
    }

    fn play(&self, cx: &Cx) -> Given {
        self.calls.lock().unwrap().push(Call {
            at: cx.now(),
            attempt: cx.attempt(),
            payload: cx.payload().clone(),
            context: cx.snapshot().context().clone(),
            transition: cx.transition().to_string(),
            key: cx.idempotency_key(),
        });
        let mut answers = self.answers.lock().unwrap();
        match answers.len() {
            0 => Ok(Value::Null),
            1 => answers[0].clone(),
            _ => answers.pop_front().unwrap(),
        }
    }
}

/// A gate that actions wait at until the test opens it, with counters.
#[derive(Clone)]
pub(crate) struct Gate(Arc<Gated>);

struct Gated {
    doors: Semaphore,
    began: AtomicUsize,
    inside: AtomicUsize,
    most: AtomicUsize,
    dropped: AtomicUsize,
}

impl Gate {
    pub(crate) fn new() -> Self {
        let zero = || AtomicUsize::new(0);
        let doors = Semaphore::new(0);
        Gate(Arc::new(Gated { doors, began: zero(), inside: zero(), most: zero(), dropped: zero() }))
    }

    /// Lets `many` waiting actions pass.
    pub(crate) fn open(&self, many: usize) {
        self.0.doors.add_permits(many);
    }

    /// The number of actions that have reached the gate.
    pub(crate) fn began(&self) -> usize {
        self.0.began.load(Ordering::SeqCst)
    }

    /// The number of actions that wait at the gate.
    pub(crate) fn inside(&self) -> usize {
        self.0.inside.load(Ordering::SeqCst)
    }

    /// The highest number of actions that waited at the same time.
    pub(crate) fn most(&self) -> usize {
        self.0.most.load(Ordering::SeqCst)
    }

    /// The number of actions that were dropped while they waited.
    pub(crate) fn dropped(&self) -> usize {
        self.0.dropped.load(Ordering::SeqCst)
    }

    /// Waits until the gate is opened.
    pub(crate) async fn pass(&self) {
        self.0.began.fetch_add(1, Ordering::SeqCst);
        let now = self.0.inside.fetch_add(1, Ordering::SeqCst) + 1;
        self.0.most.fetch_max(now, Ordering::SeqCst);
        let mut waits = AtGate { gate: self.clone(), passed: false };
        self.0.doors.acquire().await.unwrap().forget();
        waits.passed = true;
    }

    /// An action that only waits at the gate.
    pub(crate) fn action(&self) -> impl Fn(Cx) -> BoxFuture<Given> + Send + Sync + use<> {
        self.and(|_: &Cx| Ok(Value::Null))
    }

    /// An action that waits at the gate and then runs `then`.
    pub(crate) fn and<F>(&self, then: F) -> impl Fn(Cx) -> BoxFuture<Given> + Send + Sync + use<F>
    where
        F: Fn(&Cx) -> Given + Send + Sync + 'static,
    {
        let (gate, then) = (self.clone(), Arc::new(then));
        move |cx: Cx| {
            let (gate, then) = (gate.clone(), then.clone());
            Box::pin(async move {
                gate.pass().await;
                then(&cx)
            })
        }
    }
}

struct AtGate {
    gate: Gate,
    passed: bool,
}

impl Drop for AtGate {
    fn drop(&mut self) {
        self.gate.0.inside.fetch_sub(1, Ordering::SeqCst);
        if !self.passed {
            self.gate.0.dropped.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// A process that can be frozen: none of its tasks advances until it is thawed.
#[derive(Clone, Default)]
pub(crate) struct Ice(Arc<Frozen>);

#[derive(Default)]
struct Frozen {
    is: AtomicBool,
    wakers: Mutex<Vec<Waker>>,
}

impl Ice {
    pub(crate) fn freeze(&self) {
        self.0.is.store(true, Ordering::SeqCst);
    }

    pub(crate) fn thaw(&self) {
        self.0.is.store(false, Ordering::SeqCst);
        let wakers = std::mem::take(&mut *self.0.wakers.lock().unwrap());
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Spawn for Ice {
    fn spawn(&self, task: BoxFuture<()>) {
        tokio::spawn(OnIce { ice: self.clone(), task });
    }
}

struct OnIce {
    ice: Ice,
    task: BoxFuture<()>,
}

impl Future for OnIce {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.ice.0.is.load(Ordering::SeqCst) {
            self.ice.0.wakers.lock().unwrap().push(context.waker().clone());
            return Poll::Pending;
        }
        self.task.as_mut().poll(context)
    }
}

/// An engine whose process can be frozen; the others notice after [`LEASE_MS`].
pub(crate) async fn freezable(
    store: Arc<dyn Store>,
    clock: &ManualClock,
    build: impl FnOnce(Builder) -> Builder,
) -> (TestEngine, Ice) {
    let ice = Ice::default();
    let host = Host { spawn: Arc::new(ice.clone()), ..Host::system() };
    let host = host.with_clock(Arc::new(clock.clone()));
    let build = |builder: Builder| build(builder.host(host).with(|options| options.lease_ms = LEASE_MS));
    (TestEngine::start_on(store, clock.clone(), build).await.unwrap(), ice)
}

/// The row of a run and everything that is loaded with it.
pub(crate) async fn row(engine: &Engine, run: RunId) -> Loaded {
    engine.store().load(engine.scope(), run).await.unwrap().unwrap()
}

/// The snapshots of a run, from version 0 on.
pub(crate) async fn states(engine: &Engine, run: RunId) -> Vec<Snapshot> {
    let query = HistoryQuery { run, from: 0, with_state: true, limit: 1_000 };
    let page = engine.store().history(engine.scope(), query).await.unwrap();
    page.items.iter().map(|row| serde_json::from_slice(row.state.as_ref().unwrap()).unwrap()).collect()
}

/// The key of a cell in the key-value store.
pub(crate) fn cell_key(key: &str) -> CellKey {
    CellKey { space: Space::Kv, owner: "test".to_owned(), key: key.to_owned() }
}

/// Sets a cell of the key-value store.
pub(crate) fn put(key: &str, value: Value) -> CellWrite {
    let op = CellOp::Set { value, value_type: ValueType::Json, ttl: Ttl::Forever };
    CellWrite { key: cell_key(key), op, expect: Precondition::Anything, initial: None, by: None }
}

/// Adds 1 to a cell of the key-value store.
pub(crate) fn increment(key: &str) -> CellWrite {
    let op = CellOp::Increment { by: 1.into() };
    CellWrite { key: cell_key(key), op, expect: Precondition::Anything, initial: None, by: None }
}

/// The value of a cell of the key-value store.
pub(crate) async fn cell(engine: &Engine, key: &str) -> Option<Value> {
    let CellKey { space, owner, key } = cell_key(key);
    let filter = CellFilter::Key(key);
    let query =
        CellQuery { space, owner, filter, now: engine.now(), include_deleted: false, limit: 1, cursor: None };
    let page = engine.store().cells(engine.scope(), query).await.unwrap();
    page.items.into_iter().next().and_then(|cell| cell.value)
}
