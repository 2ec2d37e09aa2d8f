//! Observers: they receive every observation once, whatever happens to a run, and none of its data.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use stepwell::core::retry::Retry;
use stepwell::core::spec::{ChildRule, Place, Transition, Wait};
use stepwell::core::{Definition, Failure, RunId, Spec};
use stepwell::observe::{NoResult, SpanId};
use stepwell::store::Status;
use stepwell::testing::TestEngine;
use stepwell::{
    ActionError, Command, Cx, EngineError, Observation, Observer, Operator, Poll, RemoteAction, Signal, Start,
};

use crate::kit::{LEASE_MS, ground, settle, start_killable};

/// Counts observations by a label for each, and keeps the ids of spans.
#[derive(Default)]
struct Listener {
    seen: Mutex<BTreeMap<String, usize>>,
    spans: Mutex<Vec<(RunId, SpanId)>>,
    is_traced: bool,
}

impl Listener {
    fn times(&self, word: &str) -> usize {
        self.seen.lock().unwrap().get(word).copied().unwrap_or(0)
    }

    #[track_caller]
    fn has(&self, expected: &[(&str, usize)]) {
        for (word, times) in expected {
            assert_eq!(self.times(word), *times, "{word} in {:?}", self.seen.lock().unwrap());
        }
    }
}

impl Observer for Listener {
    fn observe(&self, observation: &Observation<'_>) {
        let word = match observation {
            Observation::Started { of, .. } => format!("started {}", of.workflow),
            Observation::Committed { of, before, after, .. } if before != after => {
                format!("{} is {}", of.workflow, after.as_str())
            }
            Observation::Committed { .. } => "run committed".to_owned(),
            Observation::ActionBegan { of, tried } => {
                self.spans.lock().unwrap().push((of.root, tried.span));
                format!("{} begins, try {}", tried.action, tried.attempt)
            }
            Observation::ActionEnded { tried, result, .. } => match result {
                Ok(()) => format!("{} done", tried.action),
                Err(NoResult::Failed(failure)) => format!("{} failed: {}", tried.action, failure.code),
                Err(NoResult::TimedOut) => format!("{} timed out", tried.action),
                Err(NoResult::Dropped) => format!("{} dropped", tried.action),
            },
            Observation::Signalled { value, .. } => format!("signal {value:?}"),
            Observation::SignalRefused => "signal refused".to_owned(),
            Observation::RunClaimed { late } => format!("claimed {} s late", late.as_secs()),
            Observation::StoreCommit { refused: Some(why), .. } => format!("not committed: {why}"),
            Observation::StoreCommit { .. } => "store committed".to_owned(),
            Observation::ProcessesExpired { processes } => format!("{processes} expired"),
            _ => return,
        };
        *self.seen.lock().unwrap().entry(word).or_default() += 1;
    }

    fn is_traced(&self, _: RunId) -> bool {
        self.is_traced
    }
}

fn listened(listener: &Arc<Listener>) -> Arc<dyn Observer> {
    listener.clone()
}

/// A parcel that waits to be packed.
fn parcel() -> Definition {
    let spec = Spec::new("parcel").wait("table", "PACKED").end("packed").signal("PACKED");
    spec.auto("put", "table", "packed").build().unwrap()
}

/// An order that waits for its parcel.
fn order() -> Definition {
    let rule = Wait { children: Some(ChildRule::All), ..Wait::default() };
    Spec::new("order")
        .step("open")
        .place("packing", Place::Wait(rule))
        .end("sent")
        .transition(Transition::new("split", "open", "packing").action("split"))
        .auto("send", "packing", "sent")
        .build()
        .unwrap()
}

async fn split(cx: Cx) -> Result<String, ActionError> {
    cx.start_child(Start::new("parcel"))?;
    Ok(cx.traceparent())
}

#[tokio::test]
async fn run_tree_is_observed_once_from_start_to_end() {
    let listener = Arc::new(Listener { is_traced: true, ..Listener::default() });
    let build = |engine: stepwell::Builder| {
        engine.observer(listened(&listener)).workflow(parcel()).workflow(order()).action("split", split)
    };
    let engine = TestEngine::start(build).await.unwrap();
    let run = engine.start(Start::new("order")).await.unwrap();
    engine.settle().await;
    listener.has(&[
        ("started order", 1),
        ("started parcel", 1),
        ("split begins, try 1", 1),
        ("split done", 1),
        ("order is waiting", 1),
        ("order is completed", 0),
    ]);
    let (root, _) = listener.spans.lock().unwrap()[0];
    assert_eq!(root, run.id(), "the trace has the id of the root");
    let query = stepwell::store::RunQuery {
        filter: stepwell::store::RunFilter {
            parent: Some(run.id()),
            ..stepwell::store::RunFilter::default()
        },
        limit: 9,
        ..Default::default()
    };
    let child = engine.store().runs(engine.scope(), query).await.unwrap().items[0].run;
    engine.signal(child, Signal::new("PACKED")).await.unwrap();
    engine.settle().await;
    assert_eq!(run.view().await.unwrap().status, Status::Completed);
    listener.has(&[("signal Consumed", 1), ("parcel is completed", 1), ("order is completed", 1)]);
    let refused = engine.signal(child, Signal::new("PACKED")).await.unwrap_err();
    assert!(matches!(refused, EngineError::Refused(_)), "{refused}");
    listener.has(&[("signal refused", 1), ("signal Consumed", 1)]);
}

/// A task whose action behaves as its data says.
fn task() -> Definition {
    let retry = Retry { attempts: 1, ..Retry::default() };
    Spec::new("task")
        .wait("ready", "GO")
        .step("working")
        .end("done")
        .signal("GO")
        .auto("go", "ready", "working")
        .transition(Transition::new("work", "working", "done").action("work").timeout_ms(5_000).retry(retry))
        .build()
        .unwrap()
}

async fn work(cx: Cx) -> Result<(), ActionError> {
    let how: serde_json::Value = cx.state()?;
    match (how["how"].as_str().unwrap_or_default(), cx.attempt()) {
        ("sticks", _) => std::future::pending().await,
        ("fails", 1) => Err(ActionError::new("broken", "the text with the data")),
        _ => Ok(()),
    }
}

#[tokio::test]
async fn failed_timed_out_and_dropped_attempts_are_distinguished() {
    let listener = Arc::new(Listener::default());
    let build = |engine: stepwell::Builder| {
        engine.observer(listened(&listener)).workflow(task()).action("work", work)
    };
    let engine = TestEngine::start(build).await.unwrap();
    let begun = async |how: &str| {
        let run = engine.start(Start::new("task").input(&json!({"how": how}))).await.unwrap();
        engine.signal(run.id(), Signal::new("GO")).await.unwrap();
        engine.settle().await;
        run
    };
    begun("fails").await;
    engine.advance(Duration::from_secs(60)).await;
    listener.has(&[
        ("work begins, try 1", 1),
        ("work failed: broken", 1),
        ("work begins, try 2", 1),
        ("work done", 1),
        ("task is completed", 1),
    ]);
    begun("sticks").await;
    engine.advance(Duration::from_secs(120)).await;
    listener.has(&[("work timed out", 2), ("task is failed", 1)]);
    let stuck = begun("sticks").await;
    engine.operate(stuck.id(), Command::Cancel, &Operator::default()).await.unwrap();
    engine.settle().await;
    listener.has(&[("work dropped", 1), ("task is cancelled", 1)]);
    let later = engine.start(Start::new("task").after(Duration::from_secs(600))).await.unwrap();
    engine.signal(later.id(), Signal::new("GO")).await.unwrap();
    listener.has(&[("signal Buffered", 1)]);
}

#[tokio::test]
async fn takeover_after_a_crash_is_observed() {
    let (store, clock) = ground().await;
    let (first, second) = (Arc::new(Listener::default()), Arc::new(Listener::default()));
    let with = |listener: &Arc<Listener>| {
        let listener = listened(listener);
        move |engine: stepwell::Builder| engine.observer(listener).workflow(task()).action("work", work)
    };
    let (engine, tasks) = start_killable(store.clone(), &clock, with(&first)).await;
    let run = engine.start(Start::new("task").input(&json!({"how": "sticks"}))).await.unwrap();
    engine.signal(run.id(), Signal::new("GO")).await.unwrap();
    settle(&[&engine]).await;
    first.has(&[("work begins, try 1", 1)]);
    tasks.kill().await;
    first.has(&[("work dropped", 1)]);
    let (other, _tasks) = start_killable(store, &clock, with(&second)).await;
    other.advance(Duration::from_millis(LEASE_MS * 2)).await;
    second.has(&[("1 expired", 1), ("work begins, try 2", 1)]);
    let traces = |listener: &Listener| listener.spans.lock().unwrap().clone();
    let ids = [traces(&first), traces(&second)].concat();
    assert!(ids.len() >= 2 && ids.iter().all(|(root, _)| *root == run.id()), "{ids:?}");
    let mut spans: Vec<_> = ids.iter().map(|(_, span)| span.number()).collect();
    spans.sort_unstable();
    spans.dedup();
    assert_eq!(spans.len(), ids.len(), "every attempt has its own span");
}

#[tokio::test]
async fn remote_attempts_are_observed_once_when_they_end() {
    let listener = Arc::new(Listener::default());
    let engine = TestEngine::start(|engine| engine.observer(listened(&listener))).await.unwrap();
    engine.catalogue().put_action(RemoteAction::new("work")).await.unwrap();
    let retried = Retry { attempts: 1, ..Retry::default() };
    engine.register(crate::world::job(|work| work.retry(retried))).unwrap();
    engine.start(Start::new("job")).await.unwrap();
    engine.settle().await;
    let asked = || Poll::new("ann", ["work"]);
    let first = engine.tasks().poll(asked()).await.unwrap().remove(0);
    listener.has(&[("work begins, try 1", 0)]);
    engine.tasks().fail(first.id, first.fence, Failure::new("down", "it is down")).await.unwrap();
    engine.advance(Duration::from_secs(2)).await;
    let second = engine.tasks().poll(asked()).await.unwrap().remove(0);
    for _ in 0..2 {
        engine.tasks().complete(second.id, second.fence, json!("done")).await.unwrap();
    }
    let told =
        [("work begins, try 1", 1), ("work failed: down", 1), ("work begins, try 2", 1), ("work done", 1)];
    listener.has(&told);
}

/// An observer that panics on every call.
struct Clumsy;

impl Observer for Clumsy {
    fn observe(&self, _: &Observation<'_>) {
        panic!("told");
    }

    fn is_traced(&self, _: RunId) -> bool {
        panic!("asked");
    }
}

#[tokio::test]
async fn panicking_observer_does_not_stop_a_run() {
    let work = |cx: Cx| async move { Ok::<_, ActionError>(cx.traceparent()) };
    let job = crate::world::job(|work| work);
    let build =
        |engine: stepwell::Builder| engine.workflow(job).action("work", work).observer(Arc::new(Clumsy));
    let engine = crate::kit::start(build).await.unwrap();
    let run = engine.start(Start::new("job")).await.unwrap();
    engine.settle().await;
    assert_eq!(run.view().await.unwrap().status, Status::Completed);
}
