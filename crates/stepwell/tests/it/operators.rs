//! Operator commands: each is one audited commit on the version the operator saw, or changes nothing.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};
use stepwell::core::retry::Retry;
use stepwell::core::spec::{ChildRule, Place, Quorum, Transition, Wait};
use stepwell::core::{Definition, Name, RunId, Spec};
use stepwell::engine::Builder;
use stepwell::store::{Commit, DocumentQuery, Loaded, RunQuery, Status, Store};
use stepwell::testing::TestEngine;
use stepwell::{
    ActionError, Command, Cx, EngineError, Host, Operator, Run, RunError, Signal, Signalled, Start,
};
use tokio::sync::Semaphore;

use crate::kit::{
    self, Watched, audit, context, error_code, ground, history, history_actions, other_tenant, places,
    settle, soon, status, version, waits_of,
};
use crate::world::Ice;

/// The behaviour of a clerk's action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mood {
    Does,
    Fails,
    Takes,
}

/// An action that reviews claims: it succeeds, fails, or waits until the test lets it continue.
#[derive(Clone)]
struct Clerk(Arc<Desk>);

struct Desk {
    mood: Mutex<Mood>,
    door: Semaphore,
    seen: Mutex<Vec<Cx>>,
}

impl Clerk {
    fn new(mood: Mood) -> Self {
        Clerk(Arc::new(Desk { mood: Mutex::new(mood), door: Semaphore::new(0), seen: Mutex::default() }))
    }

    fn is(&self, mood: Mood) {
        *self.0.mood.lock().unwrap() = mood;
    }

    fn lets_go(&self) {
        self.0.door.add_permits(1);
    }

    /// The contexts of all calls so far, in order.
    fn seen(&self) -> Vec<Cx> {
        self.0.seen.lock().unwrap().clone()
    }

    fn payloads(&self) -> Vec<Value> {
        self.seen().iter().map(|cx| cx.payload().clone()).collect()
    }

    async fn review(self, cx: Cx) -> Result<String, ActionError> {
        self.0.seen.lock().unwrap().push(cx.clone());
        let mood = *self.0.mood.lock().unwrap();
        cx.update_state(|state: &mut Value| state["reviewed"] = json!(true))?;
        match mood {
            Mood::Does => {}
            Mood::Fails => return Err(ActionError::new("illegible", "the form cannot be read")),
            Mood::Takes => self.0.door.acquire().await.map(tokio::sync::SemaphorePermit::forget)?,
        }
        Ok("reviewed".to_owned())
    }
}

/// A claim is filed, reviewed on a signal, and paid on another one.
fn claim() -> Spec {
    let context = json!({
        "type": "object",
        "properties": {"sum": {"type": "integer", "minimum": 0}},
        "required": ["sum"],
    });
    let review = Transition::new("review", "filed", "approved").on_signal("REVIEW").action("review");
    Spec::new("claim")
        .context_schema(context)
        .step("filed")
        .wait("approved", "PAY")
        .end_with("paid", json!({"sum": {"$expr": "context.sum"}}))
        .end("withdrawn")
        .signal("REVIEW")
        .signal("PAY")
        .signal("WITHDRAW")
        .transition(review)
        .on_signal("withdraw", "filed", "WITHDRAW", "withdrawn")
        .auto("pay", "approved", "paid")
}

/// The same claim with an automatic review.
fn automatic() -> Definition {
    Spec::new("automatic")
        .step("filed")
        .wait("approved", "PAY")
        .end("paid")
        .signal("PAY")
        .transition(Transition::new("review", "filed", "approved").action("review"))
        .auto("pay", "approved", "paid")
        .build()
        .unwrap()
}

fn office(clerk: &Clerk) -> impl FnOnce(Builder) -> Builder + use<> {
    let clerk = clerk.clone();
    let review = move |cx: Cx| clerk.clone().review(cx);
    move |builder| builder.workflow(claim().build().unwrap()).workflow(automatic()).action("review", review)
}

struct Office {
    engine: TestEngine,
    watched: Arc<Watched>,
    clerk: Clerk,
    ice: Ice,
}

impl Office {
    async fn open(mood: Mood) -> Self {
        Self::open_with(mood, |builder| builder).await
    }

    async fn open_with(mood: Mood, more: impl FnOnce(Builder) -> Builder) -> Self {
        let (store, clock) = ground().await;
        let (watched, clerk) = (Watched::new(store), Clerk::new(mood));
        let (build, ice) = (office(&clerk), Ice::default());
        let host = Host { spawn: Arc::new(ice.clone()), ..Host::system() };
        let host = host.with_clock(Arc::new(clock.clone()));
        let build = |builder: Builder| more(build(builder.host(host)));
        let engine = TestEngine::start_on(watched.clone(), clock, build).await.unwrap();
        Office { engine, watched, clerk, ice }
    }

    async fn start(&self, workflow: &str) -> Run {
        let run = self.engine.start(Start::new(workflow).input(&json!({"sum": 100}))).await.unwrap();
        self.engine.settle().await;
        run
    }

    /// A claim that was signalled for review.
    async fn reviewed(&self) -> Run {
        let run = self.start("claim").await;
        run.signal(Signal::new("REVIEW").with("please")).await.unwrap();
        self.engine.settle().await;
        run
    }

    /// Runs a command and checks that it is one commit, with one audit row, on the version that was seen.
    async fn command(&self, run: &Run, command: Command) -> Commit {
        self.engine.settle().await;
        // Nothing runs between the command and the checks of its effects.
        self.ice.freeze();
        let seen = version(run).await;
        let by = Operator {
            actor: Some("ada".to_owned()),
            seen: Some(seen),
            reason: Some("the customer called".to_owned()),
            ..Operator::default()
        };
        self.watched.commits();
        self.engine.operate(run.id(), command.clone(), &by).await.unwrap();
        let mut commits = self.watched.commits();
        assert_eq!(commits.len(), 1, "{command:?} is one commit");
        let commit = commits.remove(0);
        let step = commit.step.as_ref().unwrap();
        assert_eq!((step.head.run, step.head.version, commit.audit.len()), (run.id(), seen, 1));
        let row = audit(&self.engine).await.into_iter().find(|(id, _)| *id == commit.id).unwrap().1;
        let mut word = serde_json::to_value(&command).unwrap();
        if let Command::Patch { fields } = &command {
            // The audit trail outlives the run, so it has no values.
            word["fields"] = patched(fields, "").into();
        }
        assert_eq!(row.operation, format!("run.{}", word["command"].as_str().unwrap()));
        assert_eq!((row.actor.as_deref(), row.run), (Some("ada"), Some(run.id())));
        let detail: Value = serde_json::from_slice(&row.detail).unwrap();
        assert_eq!(detail, json!({"seen": seen, "reason": "the customer called", "detail": word}));
        // The same commit creates the version, if there is one.
        let grows = matches!(command, Command::Patch { .. } | Command::Move { .. } | Command::Cancel);
        assert_eq!(!step.next.is_empty(), grows);
        let newest = history(&self.engine, run.id()).await.pop().unwrap();
        assert_eq!(newest.1 == commit.id, grows);
        assert_eq!(version(run).await, seen + u64::from(grows));
        self.ice.thaw();
        commit
    }

    async fn loaded(&self, run: RunId) -> Loaded {
        self.engine.store().load(self.engine.scope(), run).await.unwrap().unwrap()
    }
}

fn patch(fields: Value) -> Command {
    Command::Patch { fields }
}

fn to(place: &str) -> Command {
    Command::Move { activation: None, to: place.into() }
}

fn every_command() -> Vec<Command> {
    let mut all = vec![Command::Retry, Command::Dismiss, Command::Cancel, Command::Suspend, Command::Resume];
    all.extend([patch(json!({"sum": 7})), to("filed")]);
    all
}

#[tokio::test]
async fn retry_repeats_the_failed_transition_with_its_payload() {
    let office = Office::open(Mood::Fails).await;
    let run = office.reviewed().await;
    assert_eq!((status(&run).await, error_code(&run).await.as_deref()), (Status::Failed, Some("illegible")));
    office.command(&run, Command::Retry).await;
    office.engine.settle().await;
    assert_eq!((status(&run).await, version(&run).await), (Status::Failed, 0));
    office.clerk.is(Mood::Does);
    office.command(&run, Command::Retry).await;
    office.engine.settle().await;
    assert_eq!((status(&run).await, places(&run).await), (Status::Waiting, vec!["approved".into()]));
    assert_eq!(office.clerk.payloads(), vec![json!("please"); 3]);
    assert_eq!(history_actions(&office.engine, run.id()).await, ["__start", "REVIEW"]);
}

#[tokio::test]
async fn retry_skips_the_retry_delay() {
    let retry = Retry { attempts: 3, delay_ms: 30_000, ..Retry::default() };
    let mut spec = claim();
    spec.transitions[0].retry = Some(retry);
    let office = Office::open_with(Mood::Fails, |builder| builder.workflow(spec.build().unwrap())).await;
    let run = office.reviewed().await;
    assert_eq!((status(&run).await, office.clerk.seen().len()), (Status::Running, 1));
    office.clerk.is(Mood::Does);
    office.command(&run, Command::Retry).await;
    office.engine.settle().await;
    assert_eq!((status(&run).await, office.clerk.seen().len()), (Status::Waiting, 2));
}

#[tokio::test]
async fn dismiss_lets_the_next_signal_through() {
    let office = Office::open(Mood::Fails).await;
    let run = office.reviewed().await;
    assert_eq!(run.signal(Signal::new("WITHDRAW")).await.unwrap(), Signalled::Buffered);
    office.command(&run, Command::Dismiss).await;
    office.engine.settle().await;
    assert_eq!((status(&run).await, office.clerk.seen().len()), (Status::Completed, 1));
    assert_eq!(history_actions(&office.engine, run.id()).await, ["__start", "WITHDRAW"]);
}

#[tokio::test]
async fn dismissed_signal_can_be_sent_again() {
    let office = Office::open(Mood::Fails).await;
    let run = office.reviewed().await;
    office.command(&run, Command::Dismiss).await;
    office.engine.settle().await;
    let view = run.view().await.unwrap();
    assert_eq!((view.status, view.has_error(), view.buffered_signals), (Status::Waiting, false, 0));
    assert_eq!(view.ledger.attempts, []);
    office.clerk.is(Mood::Does);
    run.signal(Signal::new("REVIEW").with("again")).await.unwrap();
    office.engine.settle().await;
    assert_eq!(office.clerk.payloads(), [json!("please"), json!("again")]);
    assert_eq!(places(&run).await, [Name::from("approved")]);
}

/// A claim with two buffered signals, of which the first has failed. A signal stays in the inbox until its transition
/// is done or dismissed.
async fn kept_and_failed() -> (Office, Run) {
    let office = Office::open(Mood::Fails).await;
    let run = office.start("claim").await;
    office.command(&run, Command::Suspend).await;
    for payload in ["first", "second"] {
        assert_eq!(run.signal(Signal::new("REVIEW").with(payload)).await.unwrap(), Signalled::Buffered);
    }
    office.command(&run, Command::Resume).await;
    office.engine.settle().await;
    assert_eq!((status(&run).await, office.clerk.payloads()), (Status::Failed, vec![json!("first")]));
    assert_eq!(run.view().await.unwrap().buffered_signals, 2);
    (office, run)
}

#[tokio::test]
async fn failed_buffered_signal_is_retried_with_its_payload() {
    let (office, run) = kept_and_failed().await;
    office.clerk.is(Mood::Does);
    office.command(&run, Command::Retry).await;
    office.engine.settle().await;
    assert_eq!(office.clerk.payloads(), [json!("first"), json!("first")]);
    assert_eq!(
        (places(&run).await, run.view().await.unwrap().buffered_signals),
        (vec!["approved".into()], 1)
    );
}

#[tokio::test]
async fn dismiss_removes_a_failed_buffered_signal() {
    let (office, run) = kept_and_failed().await;
    office.clerk.is(Mood::Does);
    office.command(&run, Command::Dismiss).await;
    office.engine.settle().await;
    assert_eq!(office.clerk.payloads(), [json!("first"), json!("second")]);
    assert_eq!(
        (places(&run).await, run.view().await.unwrap().buffered_signals),
        (vec!["approved".into()], 0)
    );
}

#[tokio::test]
async fn run_can_be_cancelled_in_any_active_status() {
    for state in ["waiting", "failed", "suspended", "pending", "running"] {
        let mood = if state == "running" { Mood::Takes } else { Mood::Fails };
        let office = Office::open(mood).await;
        let run = match state {
            "failed" | "running" => office.reviewed().await,
            "pending" => {
                let start = Start::new("claim").input(&json!({"sum": 1})).after(Duration::from_secs(60));
                office.engine.start(start).await.unwrap()
            }
            _ => office.start("claim").await,
        };
        if state == "suspended" {
            office.command(&run, Command::Suspend).await;
        }
        if state != "running" {
            assert_eq!(status(&run).await.as_str(), state);
        }
        office.command(&run, Command::Cancel).await;
        assert_eq!(status(&run).await, Status::Cancelled, "{state}");
        office.engine.settle().await;
        assert!(office.clerk.seen().iter().all(Cx::is_over), "{state}");
        assert!(matches!(soon(run.result()).await, Err(RunError::Cancelled(_))));
        assert_eq!((version(&run).await, waits_of(&office.engine, run.id()).await), (1, vec![]));
        let view = run.view().await.unwrap();
        assert_eq!((view.owner, view.wake, view.has_error()), (None, None, false), "{state}");
        assert_eq!(history_actions(&office.engine, run.id()).await, ["__start", "__operator:cancel"]);
    }
}

#[tokio::test]
async fn result_of_a_cancelled_runs_action_is_discarded() {
    let office = Office::open(Mood::Takes).await;
    let run = office.reviewed().await;
    office.command(&run, Command::Cancel).await;
    office.clerk.lets_go();
    office.engine.settle().await;
    assert_eq!((status(&run).await, version(&run).await), (Status::Cancelled, 1));
    assert_eq!(context(&run).await, json!({"sum": 100}));
    // Anything the action stages now is refused.
    assert!(office.clerk.seen()[0].set_local("late", &1).is_err());
}

#[tokio::test]
async fn suspended_run_does_nothing_until_resumed() {
    let office = Office::open(Mood::Does).await;
    let run = office.start("claim").await;
    office.command(&run, Command::Suspend).await;
    assert_eq!(status(&run).await, Status::Suspended);
    for payload in ["first", "second"] {
        assert_eq!(run.signal(Signal::new("REVIEW").with(payload)).await.unwrap(), Signalled::Buffered);
    }
    assert_eq!(run.signal(Signal::new("PAY")).await.unwrap(), Signalled::Buffered);
    office.engine.advance(Duration::from_secs(3_600)).await;
    assert_eq!(
        (status(&run).await, version(&run).await, office.clerk.seen().len()),
        (Status::Suspended, 0, 0)
    );
    office.command(&run, Command::Resume).await;
    office.engine.settle().await;
    assert_eq!(status(&run).await, Status::Completed);
    assert_eq!(office.clerk.payloads(), [json!("first")]);
    assert_eq!(
        history_actions(&office.engine, run.id()).await,
        ["__start", "REVIEW", "__resolve_wait:approved", "__auto:pay"]
    );
}

#[tokio::test]
async fn timer_due_while_suspended_fires_on_resume() {
    let definition = Spec::new("reminder")
        .step("asleep")
        .end("awake")
        .transition(Transition::new("wake", "asleep", "awake").after_ms(60_000))
        .build()
        .unwrap();
    let office = Office::open_with(Mood::Does, |builder| builder.workflow(definition)).await;
    let run = office.engine.start(Start::new("reminder")).await.unwrap();
    office.command(&run, Command::Suspend).await;
    office.engine.advance(Duration::from_secs(90)).await;
    assert_eq!(status(&run).await, Status::Suspended);
    office.command(&run, Command::Resume).await;
    office.engine.settle().await;
    assert_eq!(status(&run).await, Status::Completed);
}

#[tokio::test]
async fn resumed_run_returns_to_its_earlier_status() {
    let office = Office::open(Mood::Fails).await;
    let failed = office.reviewed().await;
    let start = Start::new("claim").input(&json!({"sum": 1})).after(Duration::from_secs(60));
    let pending = office.engine.start(start).await.unwrap();
    let waiting = office.start("claim").await;
    for (run, was) in [(failed, Status::Failed), (pending, Status::Pending), (waiting, Status::Waiting)] {
        assert_eq!(status(&run).await, was);
        office.command(&run, Command::Suspend).await;
        office.engine.settle().await;
        assert_eq!(status(&run).await, Status::Suspended);
        office.command(&run, Command::Resume).await;
        office.engine.settle().await;
        assert_eq!(status(&run).await, was);
    }
}

#[tokio::test]
async fn retry_of_a_suspended_run_waits_for_resume() {
    let office = Office::open(Mood::Fails).await;
    let run = office.reviewed().await;
    office.command(&run, Command::Suspend).await;
    office.clerk.is(Mood::Does);
    office.command(&run, Command::Retry).await;
    office.engine.settle().await;
    assert_eq!((status(&run).await, office.clerk.seen().len()), (Status::Suspended, 1));
    office.command(&run, Command::Resume).await;
    office.engine.settle().await;
    assert_eq!((status(&run).await, places(&run).await), (Status::Waiting, vec!["approved".into()]));
}

#[tokio::test]
async fn suspended_run_finishes_its_action_and_starts_none() {
    let office = Office::open(Mood::Takes).await;
    let run = office.reviewed().await;
    assert_eq!(run.signal(Signal::new("PAY")).await.unwrap(), Signalled::Buffered);
    office.command(&run, Command::Suspend).await;
    office.engine.settle().await;
    assert_eq!(status(&run).await, Status::Suspended);
    assert!(!office.clerk.seen()[0].is_over());
    office.clerk.lets_go();
    office.engine.settle().await;
    let view = run.view().await.unwrap();
    assert_eq!((view.status, view.snapshot.version(), view.owner), (Status::Suspended, 1, None));
    assert_eq!(view.snapshot.context()["reviewed"], json!(true));
    office.command(&run, Command::Resume).await;
    office.engine.settle().await;
    assert_eq!(status(&run).await, Status::Completed);
}

#[tokio::test]
async fn patch_sets_fields_and_removes_null_ones() {
    let office = Office::open(Mood::Does).await;
    let run = office.start("claim").await;
    office.command(&run, patch(json!({"note": {"by": "ada", "text": "urgent"}, "sum": 50}))).await;
    office.command(&run, patch(json!({"note": {"text": null, "seen": true}}))).await;
    assert_eq!(context(&run).await, json!({"sum": 50, "note": {"by": "ada", "seen": true}}));
    office.command(&run, patch(json!({"note": null}))).await;
    assert_eq!(context(&run).await, json!({"sum": 50}));
    assert_eq!((status(&run).await, places(&run).await), (Status::Waiting, vec!["filed".into()]));
    assert_eq!(history_actions(&office.engine, run.id()).await[1..], ["__operator:patch"; 3]);
}

#[tokio::test]
async fn patch_that_violates_the_schema_is_refused() {
    let office = Office::open(Mood::Does).await;
    let run = office.start("claim").await;
    let before = office.loaded(run.id()).await;
    for fields in [json!({"sum": -1}), json!({"sum": null}), json!({"sum": "much"}), json!(5), json!(null)] {
        let error =
            office.engine.operate(run.id(), patch(fields), &Operator::named("ada")).await.unwrap_err();
        assert!(matches!(error, EngineError::Undecidable(_)), "{error}");
        assert!(error.to_string().contains("schema"), "{error}");
    }
    assert_eq!((office.loaded(run.id()).await, audit(&office.engine).await), (before, vec![]));
}

#[tokio::test]
async fn patch_that_opens_a_guard_lets_the_run_continue() {
    let definition = Spec::new("gate")
        .step("closed")
        .end("through")
        .transition(Transition::new("pass", "closed", "through").when("context.open"))
        .build()
        .unwrap();
    let office = Office::open_with(Mood::Does, |builder| builder.workflow(definition)).await;
    let run = office.engine.start(Start::new("gate").input(&json!({"open": false}))).await.unwrap();
    office.engine.settle().await;
    assert_eq!(status(&run).await, Status::Waiting);
    office.command(&run, patch(json!({"open": true}))).await;
    office.engine.settle().await;
    assert_eq!(status(&run).await, Status::Completed);
}

#[tokio::test]
async fn patched_failed_run_stays_failed_until_retry() {
    let office = Office::open(Mood::Fails).await;
    let run = office.reviewed().await;
    office.command(&run, patch(json!({"sum": 1}))).await;
    office.engine.settle().await;
    assert_eq!((status(&run).await, office.clerk.seen().len()), (Status::Failed, 1));
    office.clerk.is(Mood::Does);
    office.command(&run, Command::Retry).await;
    office.engine.settle().await;
    assert_eq!(office.clerk.seen()[1].snapshot().context()["sum"], json!(1));
    assert_eq!(context(&run).await, json!({"sum": 1, "reviewed": true}));
}

#[tokio::test]
async fn patch_and_concurrent_action_are_merged() {
    let office = Office::open(Mood::Takes).await;
    let run = office.reviewed().await;
    office.command(&run, patch(json!({"sum": 7}))).await;
    office.engine.settle().await;
    office.clerk.lets_go();
    office.engine.settle().await;
    assert_eq!(context(&run).await, json!({"sum": 7, "reviewed": true}));
    assert_eq!((version(&run).await, places(&run).await), (2, vec!["approved".into()]));
    assert_eq!(office.clerk.seen().len(), 1, "the action did not run again");
}

#[tokio::test]
async fn run_can_be_moved_to_a_place() {
    let office = Office::open(Mood::Does).await;
    let run = office.start("claim").await;
    office.command(&run, to("approved")).await;
    office.engine.settle().await;
    assert_eq!((status(&run).await, places(&run).await), (Status::Waiting, vec!["approved".into()]));
    let waits = waits_of(&office.engine, run.id()).await;
    assert_eq!(waits.iter().map(|row| row.wait.place.as_str()).collect::<Vec<_>>(), ["approved"]);
    run.signal(Signal::new("PAY")).await.unwrap();
    office.engine.settle().await;
    assert_eq!(soon(run.result()).await.unwrap(), json!({"sum": 100}));
    assert_eq!(history_actions(&office.engine, run.id()).await[1], "__operator:move");
}

#[tokio::test]
async fn move_to_an_end_place_completes_the_run() {
    let office = Office::open(Mood::Fails).await;
    let run = office.reviewed().await;
    office.command(&run, to("paid")).await;
    assert_eq!(status(&run).await, Status::Completed);
    assert_eq!(soon(run.result()).await.unwrap(), json!({"sum": 100}));
}

#[tokio::test]
async fn moved_failed_run_continues() {
    let office = Office::open(Mood::Fails).await;
    let run = office.start("automatic").await;
    assert_eq!(status(&run).await, Status::Failed);
    office.command(&run, to("approved")).await;
    office.engine.settle().await;
    assert_eq!((status(&run).await, run.view().await.unwrap().has_error()), (Status::Waiting, false));
    // The run can also be moved back to the place where it failed. It starts a new attempt there.
    office.clerk.is(Mood::Does);
    office.command(&run, to("filed")).await;
    office.engine.settle().await;
    assert_eq!((places(&run).await, office.clerk.seen()[1].attempt()), (vec!["approved".into()], 1));
}

#[tokio::test]
async fn move_ends_the_running_action() {
    let office = Office::open(Mood::Takes).await;
    let run = office.reviewed().await;
    office.command(&run, to("approved")).await;
    office.engine.settle().await;
    assert!(office.clerk.seen()[0].is_over());
    office.clerk.lets_go();
    office.engine.settle().await;
    let view = run.view().await.unwrap();
    assert_eq!((view.status, view.snapshot.version(), view.owner), (Status::Waiting, 1, None));
    assert_eq!(context(&run).await, json!({"sum": 100}));
}

#[tokio::test]
async fn one_activation_can_be_moved_alone() {
    let spec = Spec::new("pair")
        .fork("open", ["left", "right"])
        .step("left")
        .wait("right", "RIGHT")
        .wait("right_too", "RIGHT")
        .join("both", Quorum::All, ["left", "right", "right_too"])
        .end("done")
        .signal("RIGHT")
        .transition(Transition::new("from_left", "left", "both").action("review"))
        .auto("from_right", "right", "both")
        .auto("from_right_too", "right_too", "both")
        .auto("on", "both", "done");
    let mut spec = spec;
    spec.transitions.push(Transition::new("aside", "right", "right_too").when("false"));
    let office = Office::open_with(Mood::Takes, |builder| builder.workflow(spec.build().unwrap())).await;
    let run = office.start("pair").await;
    let snapshot = run.view().await.unwrap().snapshot;
    let right = snapshot.activations().iter().find(|a| a.place == "right").unwrap().id;
    office.command(&run, Command::Move { activation: Some(right), to: "right_too".into() }).await;
    office.engine.settle().await;
    assert_eq!(places(&run).await, ["left", "right_too"].map(Name::from));
    assert!(!office.clerk.seen()[0].is_over(), "the action of the other branch continues");
    office.clerk.lets_go();
    run.signal(Signal::new("RIGHT")).await.unwrap();
    office.engine.settle().await;
    assert_eq!(status(&run).await, Status::Completed);
}

#[tokio::test]
async fn invalid_move_is_refused_with_the_reason() {
    let wait = Place::Wait(Wait { children: Some(ChildRule::All), ..Wait::default() });
    let spec = claim().place("below", wait).auto("down", "approved", "below").auto("up", "below", "paid");
    let office = Office::open_with(Mood::Does, |builder| builder.workflow(spec.build().unwrap())).await;
    let run = office.start("claim").await;
    let before = office.loaded(run.id()).await;
    let unknown = Command::Move { activation: Some(99), to: "approved".into() };
    for (command, says) in
        [(to("aproved"), "did you mean `approved`"), (to("below"), "children"), (unknown, "activation 99")]
    {
        let error = office.engine.operate(run.id(), command, &Operator::named("ada")).await.unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
    }
    assert_eq!((office.loaded(run.id()).await, audit(&office.engine).await), (before, vec![]));
}

#[tokio::test]
async fn command_invalid_in_the_current_status_changes_nothing() {
    use Command::{Dismiss, Resume, Retry, Suspend};
    for (state, commands) in [
        ("waiting", vec![Retry, Dismiss, Resume]),
        ("suspended", vec![Retry, Dismiss, Suspend]),
        ("failed", vec![Resume]),
        ("failed by itself", vec![Resume, Dismiss]),
        ("running", vec![Retry, Dismiss, Resume]),
        ("completed", every_command()),
        ("cancelled", every_command()),
    ] {
        let office = Office::open(if state == "running" { Mood::Takes } else { Mood::Fails }).await;
        let run = match state {
            "failed" | "running" => office.reviewed().await,
            "failed by itself" => office.start("automatic").await,
            _ => office.start("claim").await,
        };
        match state {
            "suspended" => drop(office.command(&run, Suspend).await),
            "completed" => drop(office.command(&run, to("paid")).await),
            "cancelled" => drop(office.command(&run, Command::Cancel).await),
            _ => {}
        }
        office.engine.settle().await;
        let before = (office.loaded(run.id()).await, audit(&office.engine).await);
        for command in commands {
            let result = office.engine.operate(run.id(), command.clone(), &Operator::named("ada")).await;
            let error = result.expect_err(&format!("{command:?} on a run that is {state}"));
            assert!(matches!(error, EngineError::WrongStatus { .. } | EngineError::Invalid(_)), "{error:?}");
            office.engine.settle().await;
            let after = (office.loaded(run.id()).await, audit(&office.engine).await);
            assert_eq!(after, before, "{command:?} on a run that is {state}");
        }
    }
}

#[tokio::test]
async fn result_stays_failed_after_a_refused_command() {
    let office = Office::open(Mood::Fails).await;
    let run = office.reviewed().await;
    assert!(matches!(soon(run.result()).await, Err(RunError::Failed { .. })));
    for command in [Command::Resume, patch(json!({"sum": -1})), to("nowhere")] {
        assert!(office.engine.operate(run.id(), command, &Operator::default()).await.is_err());
        assert!(matches!(soon(run.result()).await, Err(RunError::Failed { .. })));
    }
}

#[tokio::test]
async fn command_on_another_version_changes_nothing() {
    for command in every_command() {
        let office = Office::open(Mood::Fails).await;
        let run = office.reviewed().await;
        office.command(&run, patch(json!({"note": 1}))).await;
        if command == Command::Resume {
            office.command(&run, Command::Suspend).await;
        }
        let before = (office.loaded(run.id()).await, audit(&office.engine).await);
        for seen in [0, 2] {
            let by = Operator::named("ada").seen(seen);
            let error = office.engine.operate(run.id(), command.clone(), &by).await.unwrap_err();
            assert_eq!(error, EngineError::VersionMoved { run: run.id(), seen, actual: 1 }, "{command:?}");
        }
        office.engine.settle().await;
        assert_eq!((office.loaded(run.id()).await, audit(&office.engine).await), before, "{command:?}");
    }
}

#[tokio::test]
async fn one_of_many_commands_on_the_same_version_wins() {
    let office = Office::open(Mood::Does).await;
    let run = office.start("claim").await;
    let by: Vec<_> = (0..20).map(|number| Operator::named(format!("clerk {number}")).seen(0)).collect();
    let all = by.iter().map(|by| office.engine.operate(run.id(), patch(json!({"by": by.actor})), by));
    let done: Vec<_> = join_all(all).await.into_iter().filter(Result::is_ok).collect();
    assert_eq!((done.len(), version(&run).await, audit(&office.engine).await.len()), (1, 1, 1));
    let actor = audit(&office.engine).await[0].1.actor.clone();
    assert_eq!(context(&run).await["by"], json!(actor));
    // Without a precondition all of the patches apply.
    let fields = |number: usize| patch(json!({format!("note {number}"): number}));
    let nobody = Operator::default();
    let all = (0..20).map(|number| office.engine.operate(run.id(), fields(number), &nobody));
    assert!(join_all(all).await.iter().all(Result::is_ok));
    assert_eq!((version(&run).await, audit(&office.engine).await.len()), (21, 21));
}

#[tokio::test]
async fn command_on_unknown_or_foreign_run_is_not_found() {
    let office = Office::open(Mood::Does).await;
    let run = office.start("claim").await;
    let theirs = office.engine.for_tenant(other_tenant());
    for command in every_command() {
        let by = Operator::default();
        let error = office.engine.operate(RunId::nil(), command.clone(), &by).await.unwrap_err();
        assert_eq!(error, EngineError::NoRun(RunId::nil()));
        assert_eq!(theirs.operate(run.id(), command, &by).await.unwrap_err(), EngineError::NoRun(run.id()));
    }
    assert_eq!(
        theirs.fork(run.id(), 0, &Operator::default()).await.unwrap_err(),
        EngineError::NoRun(run.id())
    );
    assert_eq!((version(&run).await, audit(&office.engine).await, audit(&theirs).await), (0, vec![], vec![]));
}

#[tokio::test]
async fn command_reaches_an_action_in_another_process() {
    let (store, clock) = ground().await;
    let clerk = Clerk::new(Mood::Takes);
    let a = TestEngine::start_on(store.clone(), clock.clone(), office(&clerk)).await.unwrap();
    let build = office(&clerk);
    let b =
        TestEngine::start_on(store, clock, |builder| build(builder).with(|o| o.max_runs = 0)).await.unwrap();
    let input = json!({"sum": 100});
    for command in [Command::Cancel, to("approved")] {
        let run = a.start(Start::new("automatic").input(&input)).await.unwrap();
        settle(&[&a, &b]).await;
        let cx = clerk.seen().pop().unwrap();
        assert_eq!((cx.run(), cx.is_over()), (run.id(), false));
        b.operate(run.id(), command, &Operator::named("ada")).await.unwrap();
        settle(&[&a, &b]).await;
        assert!(cx.is_over());
        assert_eq!(run.view().await.unwrap().owner, None);
    }
}

async fn documents_of(engine: &TestEngine, run: RunId) -> Vec<String> {
    let query = DocumentQuery { run, at: None, key: None, kind: None, tag: None, limit: 10, cursor: None };
    let page = engine.store().documents(engine.scope(), query).await.unwrap();
    page.items.into_iter().map(|document| document.key).collect()
}

/// A file that gets a document with every `ADD`, and can be closed.
async fn filed() -> (TestEngine, Run) {
    let definition = Spec::new("file")
        .step("open")
        .end("closed")
        .signal("ADD")
        .signal("CLOSE")
        .transition(Transition::new("add", "open", "open").on_signal("ADD").action("add"))
        .on_signal("close", "open", "CLOSE", "closed")
        .build()
        .unwrap();
    let add = |cx: Cx| async move {
        let key = cx.payload().as_str().unwrap_or_default().to_owned();
        cx.put_document(key.clone(), "note", &1, &[])?;
        cx.update_state(|state: &mut Value| state["last"] = json!(key))
    };
    let engine = kit::start(|builder| builder.workflow(definition).action("add", add)).await.unwrap();
    let run = engine.start(Start::new("file")).await.unwrap();
    for key in ["a", "b", "c"] {
        run.signal(Signal::new("ADD").with(key)).await.unwrap();
        engine.settle().await;
    }
    (engine, run)
}

#[tokio::test]
async fn run_can_be_forked_from_any_checkpoint() {
    let (engine, run) = filed().await;
    run.signal(Signal::new("CLOSE")).await.unwrap();
    engine.settle().await;
    let before = engine.store().load(engine.scope(), run.id()).await.unwrap();
    for (version, keys) in [(0, vec![]), (1, vec!["a"]), (2, vec!["a", "b"]), (3, vec!["a", "b", "c"])] {
        let by = Operator { reason: Some("once more".to_owned()), ..Operator::named("ada").seen(4) };
        let forked = engine.fork(run.id(), version, &by).await.unwrap();
        engine.settle().await;
        let view = forked.view().await.unwrap();
        assert_eq!((view.status, view.snapshot.version()), (Status::Waiting, version));
        assert_eq!(view.snapshot.context()["last"], json!(keys.last()));
        assert_eq!(documents_of(&engine, forked.id()).await, keys);
        let trail = history(&engine, forked.id()).await;
        assert_eq!((trail[0].0.action.as_str(), trail[0].0.version), ("__operator:fork", version));
        // One commit: the fork and its row in the audit trail.
        let row = audit(&engine).await.into_iter().find(|(commit, _)| *commit == trail[0].1).unwrap().1;
        assert_eq!((row.operation.as_str(), row.run), ("run.fork", Some(run.id())));
        assert_eq!(row.actor.as_deref(), Some("ada"));
        let detail: Value = serde_json::from_slice(&row.detail).unwrap();
        assert_eq!(detail["detail"], json!({"version": version, "into": forked.id()}));
        // The fork continues by itself, and the original run is unchanged.
        forked.signal(Signal::new("ADD").with("d")).await.unwrap();
        engine.settle().await;
        assert_eq!(documents_of(&engine, forked.id()).await, [&keys[..], &["d"]].concat());
    }
    assert_eq!(engine.store().load(engine.scope(), run.id()).await.unwrap(), before);
    assert_eq!(documents_of(&engine, run.id()).await, ["a", "b", "c"]);
}

#[tokio::test]
async fn invalid_fork_is_refused_with_the_reason() {
    let (engine, run) = filed().await;
    run.signal(Signal::new("CLOSE")).await.unwrap();
    engine.settle().await;
    let by = Operator::named("ada");
    let ended = engine.fork(run.id(), 4, &by).await.unwrap_err();
    assert!(ended.to_string().contains("ended"), "{ended}");
    let missing = engine.fork(run.id(), 5, &by).await.unwrap_err();
    assert!(missing.to_string().contains("no checkpoint of version 5"), "{missing}");
    let moved = engine.fork(run.id(), 1, &by.clone().seen(3)).await.unwrap_err();
    assert_eq!(moved, EngineError::VersionMoved { run: run.id(), seen: 3, actual: 4 });
    assert_eq!(engine.fork(RunId::nil(), 0, &by).await.unwrap_err(), EngineError::NoRun(RunId::nil()));
    assert_eq!((crate::kit::runs_of(&engine, "file").await.len(), audit(&engine).await.len()), (1, 0));
}

#[tokio::test]
async fn fork_starts_the_work_of_its_checkpoint() {
    let office = Office::open(Mood::Fails).await;
    let run = office.start("automatic").await;
    assert_eq!(status(&run).await, Status::Failed);
    office.clerk.is(Mood::Does);
    let forked = office.engine.fork(run.id(), 0, &Operator::default()).await.unwrap();
    office.engine.settle().await;
    assert_eq!((status(&forked).await, places(&forked).await), (Status::Waiting, vec!["approved".into()]));
    assert_eq!(status(&run).await, Status::Failed);
    let waits = waits_of(&office.engine, forked.id()).await;
    assert_eq!(waits.iter().map(|row| row.wait.place.as_str()).collect::<Vec<_>>(), ["approved"]);
}

#[tokio::test]
async fn fork_timers_fire_at_their_original_time() {
    let definition = Spec::new("reminder")
        .step("asleep")
        .end("awake")
        .transition(Transition::new("wake", "asleep", "awake").after_ms(60_000))
        .build()
        .unwrap();
    let office = Office::open_with(Mood::Does, |builder| builder.workflow(definition)).await;
    let run = office.engine.start(Start::new("reminder")).await.unwrap();
    office.engine.advance(Duration::from_secs(30)).await;
    let forked = office.engine.fork(run.id(), 0, &Operator::default()).await.unwrap();
    office.engine.cancel(run.id()).await.unwrap();
    office.engine.advance(Duration::from_secs(29)).await;
    assert_eq!(status(&forked).await, Status::Waiting);
    office.engine.advance(Duration::from_secs(1)).await;
    assert_eq!(status(&forked).await, Status::Completed);
}

/// Messages that no place takes now must not make the engine load a run repeatedly.
#[tokio::test]
async fn idle_run_with_buffered_signals_costs_nothing() {
    let office = Office::open(Mood::Fails).await;
    let (failed, suspended) = (office.reviewed().await, office.start("claim").await);
    office.command(&suspended, Command::Suspend).await;
    let start = Start::new("claim").input(&json!({"sum": 1})).after(Duration::from_secs(86_400));
    let pending = office.engine.start(start).await.unwrap();
    let waiting = office.start("claim").await;
    for run in [&failed, &suspended, &pending] {
        assert_eq!(run.signal(Signal::new("WITHDRAW")).await.unwrap(), Signalled::Buffered);
    }
    assert_eq!(waiting.signal(Signal::new("PAY")).await.unwrap(), Signalled::Buffered);
    office.engine.settle().await;
    office.watched.commits();
    office.watched.loads();
    office.engine.advance(Duration::from_secs(3_600)).await;
    assert_eq!((office.watched.commits(), office.watched.loads()), (vec![], 0));
}

#[tokio::test]
async fn run_with_many_documents_can_be_forked() {
    let definition =
        Spec::new("file").wait("open", "GO").step("filled").end("closed").signal("GO").signal("CLOSE");
    let definition = definition
        .transition(Transition::new("fill", "open", "filled").action("fill"))
        .on_signal("close", "filled", "CLOSE", "closed")
        .build()
        .unwrap();
    let fill = |cx: Cx| async move {
        (0..450).try_for_each(|number| cx.put_document(format!("{number:03}"), "note", &number, &[]))
    };
    let engine = kit::start(|b| b.workflow(definition).action("fill", fill)).await.unwrap();
    let run = engine.start(Start::new("file")).await.unwrap();
    run.signal(Signal::new("GO")).await.unwrap();
    engine.settle().await;
    let forked = engine.fork(run.id(), 2, &Operator::default()).await.unwrap();
    let query = DocumentQuery {
        run: forked.id(),
        at: None,
        key: None,
        kind: None,
        tag: None,
        limit: 1_000,
        cursor: None,
    };
    let found = engine.store().documents(engine.scope(), query).await.unwrap().items;
    assert_eq!(found.len(), 450);
    assert!(
        found.iter().zip(0..).all(|(document, number)| document.key == format!("{number:03}")),
        "in their order"
    );
}

/// Two reviewed branches: `left` on a signal, `right` by itself.
fn two_reviews() -> Spec {
    Spec::new("two")
        .fork("open", ["left", "right"])
        .step("left")
        .step("right")
        .join("both", Quorum::All, ["left", "right"])
        .end("done")
        .signal("GO")
        .transition(Transition::new("left_review", "left", "both").on_signal("GO").action("review"))
        .transition(Transition::new("right_review", "right", "both").action("take"))
        .auto("on", "both", "done")
}

/// Both reviews have failed, the left one first.
async fn both_failed() -> (Office, Run, Clerk) {
    let right = Clerk::new(Mood::Takes);
    let clerk = right.clone();
    let take = move |cx: Cx| {
        let clerk = clerk.clone();
        async move {
            clerk.clone().review(cx).await?;
            let fails = *clerk.0.mood.lock().unwrap() == Mood::Fails;
            if fails { Err(ActionError::new("torn", "the form was torn")) } else { Ok(()) }
        }
    };
    let build = |builder: Builder| builder.workflow(two_reviews().build().unwrap()).action("take", take);
    let office = Office::open_with(Mood::Fails, build).await;
    let run = office.engine.start(Start::new("two").input(&json!({"sum": 1}))).await.unwrap();
    office.engine.settle().await;
    run.signal(Signal::new("GO")).await.unwrap();
    office.engine.settle().await;
    assert_eq!((status(&run).await, error_code(&run).await.as_deref()), (Status::Failed, Some("illegible")));
    right.is(Mood::Fails);
    right.lets_go();
    office.engine.settle().await;
    assert_eq!((office.clerk.seen().len(), right.seen().len(), version(&run).await), (1, 1, 0));
    (office, run, right)
}

#[tokio::test]
async fn retry_repeats_every_failed_branch() {
    let (office, run, right) = both_failed().await;
    office.clerk.is(Mood::Does);
    right.is(Mood::Does);
    office.command(&run, Command::Retry).await;
    office.engine.settle().await;
    assert_eq!((office.clerk.seen().len(), right.seen().len()), (2, 2));
    assert_eq!(status(&run).await, Status::Completed);
}

#[tokio::test]
async fn dismissing_one_failed_branch_leaves_the_other_failed() {
    let (office, run, right) = both_failed().await;
    office.command(&run, Command::Dismiss).await;
    office.engine.settle().await;
    assert_eq!(right.seen().len(), 1, "nothing is retried automatically");
    assert_eq!((status(&run).await, error_code(&run).await.is_some()), (Status::Failed, true));
    right.is(Mood::Does);
    office.command(&run, Command::Retry).await;
    office.engine.settle().await;
    assert_eq!((right.seen().len(), office.clerk.seen().len()), (2, 1));
    assert_eq!(status(&run).await, Status::Waiting);
}

#[tokio::test]
async fn moving_one_failed_branch_leaves_the_other_failed() {
    let (office, run, right) = both_failed().await;
    let snapshot = run.view().await.unwrap().snapshot;
    let left = snapshot.activations().iter().find(|a| a.place == "left").unwrap().id;
    office.command(&run, Command::Move { activation: Some(left), to: "both".into() }).await;
    office.engine.settle().await;
    assert_eq!(right.seen().len(), 1, "nothing is retried automatically");
    assert_eq!(status(&run).await, Status::Failed);
    right.is(Mood::Does);
    office.command(&run, Command::Retry).await;
    office.engine.settle().await;
    assert_eq!(status(&run).await, Status::Completed);
}

#[tokio::test]
async fn failure_while_suspended_is_handled_on_resume() {
    for attempts in [0, 1] {
        let mut spec = claim();
        spec.transitions[0].retry = Some(Retry { attempts, ..Retry::default() });
        spec.transitions[0].timeout_ms = Some(10_000);
        let office = Office::open_with(Mood::Takes, |builder| builder.workflow(spec.build().unwrap())).await;
        let run = office.reviewed().await;
        office.command(&run, Command::Suspend).await;
        office.engine.advance(Duration::from_secs(3_600)).await;
        assert_eq!((status(&run).await, office.clerk.seen().len()), (Status::Suspended, 1));
        assert!(office.clerk.seen()[0].is_over(), "it timed out");
        office.clerk.is(Mood::Does);
        office.command(&run, Command::Resume).await;
        office.engine.settle().await;
        if attempts == 0 {
            assert_eq!(error_code(&run).await.as_deref(), Some("timeout"));
            office.command(&run, Command::Retry).await;
            office.engine.settle().await;
        }
        assert_eq!((places(&run).await, office.clerk.seen().len()), (vec!["approved".into()], 2));
    }
}

/// A process without the action and the guard accepts signals and commands; other processes do the work.
#[tokio::test]
async fn process_without_the_action_leaves_work_to_others() {
    let guarded = Spec::new("guarded")
        .step("closed")
        .end("through")
        .transition(
            Transition::new("pass", "closed", "through").guard(stepwell::core::spec::Guard::named("isOpen")),
        )
        .build()
        .unwrap();
    let (store, clock) = ground().await;
    let clerk = Clerk::new(Mood::Fails);
    let build = office(&clerk);
    let build = |builder: Builder| {
        let asks = |input: stepwell::registry::GuardInput| async move {
            input.snapshot.context()["open"] == json!(true)
        };
        build(builder).workflow(guarded).guard("isOpen", asks)
    };
    let able = TestEngine::start_on(store.clone(), clock.clone(), build).await.unwrap();
    let input = json!({"sum": 100});
    let signalled = able.start(Start::new("claim").input(&input)).await.unwrap();
    let failed = able.start(Start::new("automatic").input(&input)).await.unwrap();
    let gate = able.start(Start::new("guarded")).await.unwrap();
    able.settle().await;
    assert_eq!(status(&failed).await, Status::Failed);
    clerk.is(Mood::Does);
    let unable = TestEngine::start_on(store, clock, |builder| builder).await.unwrap();
    unable.settle().await;
    let by = Operator::default();
    unable.signal(signalled.id(), Signal::new("REVIEW").with("please")).await.unwrap();
    unable.operate(failed.id(), Command::Retry, &by).await.unwrap();
    unable.operate(gate.id(), patch(json!({"open": true})), &by).await.unwrap();
    settle(&[&unable, &able]).await;
    for run in [&signalled, &failed] {
        assert_eq!(run.view().await.unwrap().ledger.stopped, None);
        assert_eq!((status(run).await, places(run).await), (Status::Waiting, vec!["approved".into()]));
    }
    assert_eq!((error_code(&gate).await, status(&gate).await), (None, Status::Completed));
}

// A repeated key is the same command.

#[tokio::test]
async fn repeated_key_replays_the_command_in_any_status() {
    let office = Office::open(Mood::Does).await;
    let run = office.start("claim").await;
    let by = Operator::named("ada").seen(0).key("patch-1");
    let done = async |command: Command, by: &Operator| {
        office.engine.operate_once(run.id(), command, by).await.map(|done| done.is_new)
    };
    assert_eq!(done(patch(json!({"sum": 7})), &by).await, Ok(true));
    // Meanwhile the run is at another version, and later at its end.
    assert_eq!(done(patch(json!({"sum": 7})), &by).await, Ok(false));
    assert_eq!((version(&run).await, audit(&office.engine).await.len()), (1, 1));
    let other = done(patch(json!({"sum": 8})), &by).await.unwrap_err();
    assert!(matches!(&other, EngineError::KeyReused { key, .. } if key == "patch-1"), "{other}");
    // Keys of different commands are independent.
    let by = Operator::named("ada").key("patch-1");
    assert_eq!(done(Command::Cancel, &by).await, Ok(true));
    assert_eq!(done(Command::Cancel, &by).await, Ok(false));
    assert_eq!(done(patch(json!({"sum": 7})), &by.clone().seen(0)).await, Ok(false));
    let late = done(Command::Cancel, &by.key("another")).await.unwrap_err();
    assert!(matches!(late, EngineError::WrongStatus { .. }), "{late}");
    assert_eq!((version(&run).await, audit(&office.engine).await.len()), (2, 2));
}

#[tokio::test]
async fn concurrent_commands_with_one_key_apply_once() {
    let office = Office::open(Mood::Fails).await;
    let run = office.reviewed().await;
    let by = Operator::named("ada").key("once-more");
    let asked = join_all((0..8).map(|_| office.engine.operate_once(run.id(), Command::Retry, &by))).await;
    let new: Vec<_> = asked.into_iter().filter(|done| done.as_ref().unwrap().is_new).collect();
    office.engine.settle().await;
    assert_eq!((new.len(), office.clerk.seen().len()), (1, 2), "it was retried once");
}

#[tokio::test]
async fn repeated_key_returns_the_same_fork() {
    let office = Office::open(Mood::Does).await;
    let run = office.start("claim").await;
    let by = Operator::named("ada").seen(0).key("fork-1");
    let first = office.engine.fork_once(run.id(), 0, &by).await.unwrap();
    office.command(&run, Command::Cancel).await;
    let again = office.engine.fork_once(run.id(), 0, &by).await.unwrap();
    assert_eq!((first.is_new, again.is_new), (true, false));
    assert_eq!(first.value.id(), again.value.id());
    let other = office.engine.fork(run.id(), 1, &by).await.unwrap_err();
    assert!(matches!(other, EngineError::KeyReused { .. }), "{other}");
    assert_eq!(kit::runs(&office.engine, RunQuery::default()).await.len(), 2);
}

/// The pointers of the values in a merge patch.
fn patched(fields: &Value, pointer: &str) -> Vec<String> {
    match fields.as_object() {
        Some(fields) => {
            fields.iter().flat_map(|(name, value)| patched(value, &format!("{pointer}/{name}"))).collect()
        }
        None => vec![pointer.to_owned()],
    }
}
