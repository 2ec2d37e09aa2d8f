//! People: who may answer a wait, what an answer leaves behind, claims, the list of waits, and the timeline.

use std::time::Duration;

use serde_json::{Value, json};
use stepwell::core::Definition;
use stepwell::core::graph::WaitKind;
use stepwell::core::spec::{ChildRule, Place, Spec, Transition, Wait};
use stepwell::flow::{CreateAnswerLink, FlowError, Resume};
use stepwell::store::{AuditRow, Status};
use stepwell::testing::TestEngine;
use stepwell::{
    ActionError, Actor, AnswerWait, Command, Cx, Engine, EngineError, Grants, ListWaits, Operator,
    Permission, Run, Schedule, Signal, Signalled, Start, TimelineItem, WaitId,
};

use crate::flows::flows;
use crate::kit::{self, audit, history, soon, status, waits_of};

/// A wait that the managers and ann may answer.
fn approval() -> Wait {
    Wait {
        signal: Some("OK".into()),
        prompt: Some(json!({"title": "Approve it", "description": "please"})),
        form: Some(json!({"type": "object", "properties": {"yes": {"type": "boolean"}}})),
        answerers: vec!["role:manager".to_owned(), "user:ann".to_owned()],
        ..Wait::default()
    }
}

/// Two approvals, one after the other, with the same signal.
fn desk() -> Definition {
    let spec = Spec::new("desk").place("first", Place::Wait(approval()));
    let spec = spec.place("second", Place::Wait(approval())).end("done").signal("OK").initial("first");
    spec.auto("on", "first", "second").auto("end", "second", "done").build().unwrap()
}

fn manage(id: &str) -> Actor {
    Actor::new(id, [Permission::View, Permission::Manage])
}

fn ann() -> Actor {
    Actor::new("apikey:ann", [Permission::Answer]).with_user("ann")
}

fn manager() -> Actor {
    manage("apikey:max").with_role("manager")
}

async fn begun(engine: &TestEngine) -> Run {
    let run = engine.start(Start::new("desk")).await.unwrap();
    engine.settle().await;
    run
}

/// Returns the id of the only open wait of a run.
async fn open(engine: &Engine, run: &Run) -> WaitId {
    let open = waits_of(engine, run.id()).await;
    assert_eq!(open.len(), 1);
    WaitId { run: run.id(), activation: open[0].wait.activation }
}

fn yes() -> AnswerWait {
    AnswerWait { input: json!({"yes": true}), ..AnswerWait::default() }
}

async fn rows_of(engine: &Engine, operation: &str) -> Vec<AuditRow> {
    let rows = audit(engine).await.into_iter().map(|(_, row)| row);
    rows.filter(|row| row.operation == operation).collect()
}

fn detail(row: &AuditRow) -> Value {
    serde_json::from_slice(&row.detail).unwrap()
}

/// G2: of all callers, only those that the wait names may answer, by signal or by the wait.
#[tokio::test]
async fn only_named_callers_answer() {
    let engine = kit::start(|builder| builder.workflow(desk())).await.unwrap();
    let run = begun(&engine).await;
    let first = open(&engine, &run).await;
    let joe = engine.acting(manage("apikey:joe").with_role("clerk").with_user("joe"));
    let plain = joe.signal(run.id(), Signal::new("OK")).await;
    let named = joe.signal(run.id(), Signal::new("OK").answering(first.activation)).await;
    let by_wait = joe.answer_wait(first, yes()).await.map(|done| done.value);
    for refused in [plain.map(drop), named.map(drop), by_wait] {
        match refused.unwrap_err() {
            EngineError::NotAnAnswerer { actor, wait, answerers } => {
                assert_eq!((actor.as_str(), wait), ("apikey:joe", first));
                assert_eq!(answerers, ["role:manager", "user:ann"]);
            }
            other => panic!("{other}"),
        }
    }
    assert_eq!((history(&engine, run.id()).await.len(), open(&engine, &run).await), (1, first));
    soon(engine.acting(ann()).answer_wait(first, yes())).await.unwrap();
    engine.settle().await;
    let by_signal = engine.acting(manager()).signal(run.id(), Signal::new("OK")).await.unwrap();
    assert_eq!(by_signal, Signalled::Consumed);
    engine.settle().await;
    assert_eq!(status(&run).await, Status::Completed);
    let resolved = history(&engine, run.id()).await.into_iter().map(|(entry, _)| entry);
    let actors: Vec<_> = resolved.filter_map(|entry| entry.actor).collect();
    assert_eq!(actors, ["apikey:ann", "apikey:max"]);
    let rows = rows_of(&engine, "run.answer").await;
    let actors: Vec<_> = rows.iter().filter_map(|row| row.actor.as_deref()).collect();
    assert_eq!(actors, ["apikey:ann", "apikey:max"]);
    assert_eq!(detail(&rows[0])["wait"], first.to_string());
}

/// G2: an administrator answers for others only with a reason, which is audited.
#[tokio::test]
async fn an_administrator_needs_a_reason() {
    let engine = kit::start(|builder| builder.workflow(desk())).await.unwrap();
    let run = begun(&engine).await;
    let first = open(&engine, &run).await;
    let admin = engine.acting(Actor::new("apikey:root", [Permission::Admin]));
    for reason in [None, Some(" ".to_owned())] {
        let refused = admin.answer_wait(first, AnswerWait { reason, ..yes() }).await;
        assert!(matches!(refused, Err(EngineError::NotAnAnswerer { .. })), "{refused:?}");
    }
    let reason = Some("ann is ill".to_owned());
    admin.answer_wait(first, AnswerWait { reason, ..yes() }).await.unwrap();
    let rows = rows_of(&engine, "run.answer").await;
    assert_eq!(rows[0].actor.as_deref(), Some("apikey:root"));
    assert_eq!(detail(&rows[0])["reason"], "ann is ill");
    assert_eq!(detail(&rows[0])["for"], json!(["role:manager", "user:ann"]));
    let no_admin = engine.acting(manage("apikey:joe"));
    let second = open(&engine, &run).await;
    let reason = Some("I want to".to_owned());
    assert!(no_admin.answer_wait(second, AnswerWait { reason, ..yes() }).await.is_err());
}

/// G3: a second answer names the first, whichever way the first came, and does not answer the next wait.
#[tokio::test]
async fn second_answer_names_the_first_by_any_path() {
    let engine = kit::start(|builder| builder.workflow(desk())).await.unwrap();
    let run = begun(&engine).await;
    let first = open(&engine, &run).await;
    let max = engine.acting(manager());
    max.signal(run.id(), Signal::new("OK").with(&json!({"yes": true}))).await.unwrap();
    engine.settle().await;
    let second = open(&engine, &run).await;
    assert_ne!(first, second);
    let late = engine.acting(ann()).answer_wait(first, yes()).await;
    match late.unwrap_err() {
        EngineError::AlreadyAnswered { first, .. } => {
            assert_eq!((first.signal.as_str(), first.by.as_deref()), ("OK", Some("apikey:max")));
        }
        other => panic!("{other}"),
    }
    let again = max.answer_wait(first, yes()).await.unwrap();
    assert!(!again.is_new, "the same answer of the same caller");
    assert!(
        max.answer_wait(first, AnswerWait::default()).await.is_err(),
        "another answer of the same caller"
    );
    let never = WaitId { activation: 999, ..first };
    assert_eq!(max.answer_wait(never, yes()).await.unwrap_err(), EngineError::NoWait(never));
    assert_eq!(open(&engine, &run).await, second, "the next wait is still open");
    let unfit =
        max.answer_wait(second, AnswerWait { input: json!({"yes": 7}), ..AnswerWait::default() }).await;
    assert!(matches!(unfit, Err(EngineError::Refused(_))), "{unfit:?}");
    let unknown = AnswerWait { outcome: Some("NO".into()), ..yes() };
    assert!(matches!(max.answer_wait(second, unknown).await, Err(EngineError::Invalid(_))));
}

/// G3: a repeated idempotency key gets the first result, also after the wait is over.
#[tokio::test]
async fn a_repeated_key_is_one_answer() {
    let engine = kit::start(|builder| builder.workflow(desk())).await.unwrap();
    let run = begun(&engine).await;
    let first = open(&engine, &run).await;
    let ann = engine.acting(ann());
    let keyed = AnswerWait { key: Some("k".to_owned()), ..yes() };
    assert!(ann.answer_wait(first, keyed.clone()).await.unwrap().is_new);
    assert!(!ann.answer_wait(first, keyed.clone()).await.unwrap().is_new);
    engine.settle().await;
    assert!(!ann.answer_wait(first, keyed.clone()).await.unwrap().is_new);
    let other = AnswerWait { input: json!({"yes": false}), ..keyed };
    assert!(ann.answer_wait(first, other).await.is_err());
    assert_eq!(rows_of(&engine, "run.answer").await.len(), 1);
}

/// G3: a signal for a wait with answerers is never buffered for a caller; the embedding program may still buffer.
#[tokio::test]
async fn an_answer_is_never_buffered_for_a_caller() {
    let engine = kit::start(|builder| builder.workflow(desk())).await.unwrap();
    let run = begun(&engine).await;
    engine.operate(run.id(), Command::Suspend, &Operator::default()).await.unwrap();
    let max = engine.acting(manager());
    let refused = max.signal(run.id(), Signal::new("OK")).await;
    assert!(matches!(refused, Err(EngineError::WrongStatus { .. })), "{refused:?}");
    let start = Start::new("desk").key("k");
    assert!(matches!(max.start_or_signal(start, Signal::new("OK")).await, Err(EngineError::Invalid(_))));
    assert_eq!(run.view().await.unwrap().buffered_signals, 0);
    assert_eq!(run.signal(Signal::new("OK")).await.unwrap(), Signalled::Buffered);
    engine.operate(run.id(), Command::Resume, &Operator::default()).await.unwrap();
    engine.settle().await;
    assert_eq!(history(&engine, run.id()).await.len(), 3);
}

/// G2: another run cannot answer for a person. Its signal is dropped, and the audit trail has it.
#[tokio::test]
async fn a_run_does_not_answer_for_people() {
    let push = |cx: Cx, input: Value| async move {
        let run = input["run"].as_str().and_then(|run| run.parse().ok());
        cx.signal(run.unwrap(), "OK", &json!({"yes": true}))?;
        Ok::<_, ActionError>(())
    };
    let step = Transition::new("go", "a", "b").action("push").input(json!({"$expr": "context"}));
    let pusher = Spec::new("pusher").step("a").end("b").transition(step).initial("a").build().unwrap();
    let engine =
        kit::start(|builder| builder.workflow(desk()).workflow(pusher).action("push", push)).await.unwrap();
    let run = begun(&engine).await;
    let other = engine.start(Start::new("pusher").input(&json!({"run": run.id()}))).await.unwrap();
    engine.settle().await;
    assert_eq!(status(&other).await, Status::Completed);
    assert_eq!((history(&engine, run.id()).await.len(), run.view().await.unwrap().buffered_signals), (1, 0));
    let by = format!("run:{}", other.id());
    for operation in ["run.signal", "signal.refused"] {
        let rows = rows_of(&engine, operation).await;
        assert_eq!(rows.iter().map(|row| row.actor.as_deref()).collect::<Vec<_>>(), [Some(by.as_str())]);
    }
}

/// A claim keeps the others out until it lapses, is released, or an administrator gives a reason.
#[tokio::test]
async fn a_claim_keeps_others_out_until_it_lapses() {
    let engine = kit::start(|builder| builder.workflow(desk())).await.unwrap();
    let run = begun(&engine).await;
    let first = open(&engine, &run).await;
    let (max, ann) = (engine.acting(manager()), engine.acting(ann()));
    let hour = Duration::from_secs(3_600);
    let claim = max.claim_wait(first, hour, None).await.unwrap();
    assert_eq!((claim.by.as_str(), claim.until), ("apikey:max", engine.now().plus_ms(3_600_000)));
    let shown = ann.show_wait(first).await.unwrap();
    assert_eq!(shown.claim, Some((claim.by.clone(), claim.until)));
    let by_signal = ann.answer_wait(first, yes()).await.map(drop);
    let by_claim = ann.claim_wait(first, hour, None).await.map(drop);
    for refused in [by_signal, by_claim, ann.release_wait(first, None).await] {
        let expected = EngineError::Claimed { wait: first, by: claim.by.clone(), until: claim.until };
        assert_eq!(refused.unwrap_err(), expected);
    }
    assert!(max.claim_wait(first, Duration::from_millis(1), None).await.is_err());
    assert!(engine.claim_wait(first, hour, None).await.is_err(), "the program is no person");
    max.release_wait(first, None).await.unwrap();
    assert_eq!(ann.show_wait(first).await.unwrap().claim, None);
    max.claim_wait(first, hour, None).await.unwrap();
    engine.advance(hour).await;
    assert_eq!(ann.show_wait(first).await.unwrap().claim, None, "it has lapsed by time alone");
    ann.claim_wait(first, hour, None).await.unwrap();
    let admin = engine.acting(Actor::new("apikey:root", [Permission::Admin]));
    admin.release_wait(first, Some("ann has left".to_owned())).await.unwrap();
    max.answer_wait(first, yes()).await.unwrap();
    let gone = ann.claim_wait(first, hour, None).await.unwrap_err();
    assert!(matches!(gone, EngineError::AlreadyAnswered { .. }), "{gone}");
    let rows = rows_of(&engine, "wait.release").await;
    assert_eq!(detail(&rows[1])["from"], "apikey:ann");
    assert_eq!(detail(&rows[1])["reason"], "ann has left");
    assert_eq!(rows_of(&engine, "wait.claim").await.len(), 3);
}

/// A10: open waits are listed by due time, with title, form and answerers, and filtered.
#[tokio::test]
async fn waits_are_listed_by_due_time_and_filtered() {
    let timed = |name: &str, ms: u64, wait: Wait| {
        let late = Transition::new("late", "open", "done").after_ms(ms);
        let spec = Spec::new(name).place("open", Place::Wait(wait)).end("done").signal("OK").initial("open");
        spec.auto("go", "open", "done").transition(late).build().unwrap()
    };
    let plain = Wait { signal: Some("OK".into()), ..Wait::default() };
    let other = Wait { answerers: vec!["user:eve".to_owned()], ..plain.clone() };
    let build = |builder: stepwell::Builder| {
        let builder = builder.workflow(desk()).workflow(timed("late", 90_000, approval()));
        builder.workflow(timed("soon", 30_000, approval())).workflow(timed("plain", 10_000, plain.clone()))
    };
    let engine =
        kit::start(|builder| build(builder).workflow(timed("eve", 20_000, other.clone()))).await.unwrap();
    for workflow in ["desk", "late", "soon", "plain", "eve"] {
        engine.start(Start::new(workflow)).await.unwrap();
    }
    engine.settle().await;
    let list = async |engine: &Engine, query: ListWaits| {
        let (mut found, mut cursor) = (Vec::new(), None);
        loop {
            let page = engine.list_waits(ListWaits { limit: 2, cursor, ..query.clone() }).await.unwrap();
            found.extend(page.items);
            cursor = page.next;
            if cursor.is_none() {
                return found;
            }
        }
    };
    let names = async |engine: &Engine, query: ListWaits| {
        let found = list(engine, query).await;
        found.iter().map(|wait| wait.workflow.to_string()).collect::<Vec<_>>().join(" ")
    };
    let all = ListWaits::default();
    assert_eq!(names(&engine, all.clone()).await, "plain eve soon late desk");
    let first = &list(&engine, ListWaits { workflow: Some("soon".into()), ..all.clone() }).await[0];
    assert_eq!((first.title.as_deref(), first.kind), (Some("Approve it"), WaitKind::Task));
    assert_eq!((first.due, first.outcomes[0].as_str()), (Some(engine.now().plus_ms(30_000)), "OK"));
    assert!(first.form.is_some() && first.prompt.is_some() && first.answerers.len() == 2);
    let before = ListWaits { due_before: Some(engine.now().plus_ms(30_000)), ..all.clone() };
    assert_eq!(names(&engine, before).await, "plain eve");
    let signals = ListWaits { kind: Some(WaitKind::Signal), ..all.clone() };
    assert_eq!(names(&engine, signals).await, "plain");
    let eve = ListWaits { answerers: Some(vec!["user:eve".parse().unwrap()]), ..all.clone() };
    assert_eq!(names(&engine, eve.clone()).await, "eve");
    let own = engine.acting(ann());
    assert_eq!(names(&own, all.clone()).await, "soon late desk", "only the waits that name the caller");
    assert!(matches!(own.list_waits(eve).await, Err(EngineError::Denied { .. })));
    let plain = list(&engine, ListWaits { workflow: Some("plain".into()), ..all.clone() }).await[0].id;
    assert!(matches!(own.show_wait(plain).await, Err(EngineError::NotAnAnswerer { .. })));
    assert!(matches!(own.answer_wait(plain, yes()).await, Err(EngineError::Denied { .. })));
    let reader = engine.acting(Actor::new("apikey:x", [Permission::Read]));
    assert!(reader.list_waits(all).await.is_err());
}

/// G1: every start, signal and command names its actor in the entry that it makes, and in the audit trail.
#[tokio::test]
async fn every_change_from_outside_names_its_actor() {
    let children = Wait { children: Some(ChildRule::All), ..Wait::default() };
    let parent = Spec::new("parent").step("a").place("b", Place::Wait(children)).end("c");
    let parent = parent.transition(Transition::new("ab", "a", "b").action("spawn")).auto("bc", "b", "c");
    let waits = Spec::new("waits").wait("a", "GO").end("b").signal("GO").auto("ab", "a", "b");
    let spawn = |cx: Cx| async move {
        for _ in 0..3 {
            cx.start_child(Start::new("waits"))?;
        }
        Ok::<_, ActionError>(())
    };
    let (parent, waits) = (parent.initial("a").build().unwrap(), waits.build().unwrap());
    let build = |builder: stepwell::Builder| builder.workflow(parent).workflow(waits).action("spawn", spawn);
    let engine = kit::start(build).await.unwrap();
    let joe = engine.acting(Actor::granted("apikey:joe", Grants::all()));
    let first = async |run| history(&engine, run).await.remove(0).0.actor;

    let run = joe.start(Start::new("waits")).await.unwrap();
    engine.settle().await;
    joe.signal(run.id(), Signal::new("GO")).await.unwrap();
    joe.operate(joe.start(Start::new("waits")).await.unwrap().id(), Command::Cancel, &Operator::default())
        .await
        .unwrap();
    let by_joe = rows_of(&engine, "run.start").await;
    assert_eq!(by_joe.iter().filter(|row| row.actor.as_deref() == Some("apikey:joe")).count(), 2);
    assert_eq!(rows_of(&engine, "run.signal").await.len(), 1);
    for (entry, _) in history(&engine, run.id()).await.iter().take(2) {
        assert_eq!(entry.actor.as_deref(), Some("apikey:joe"), "{entry:?}");
    }

    let parent = engine.start(Start::new("parent")).await.unwrap();
    engine.settle().await;
    assert_eq!(first(parent.id()).await, None, "the embedding program");
    let children = kit::children_of(&engine, parent.id()).await;
    for child in &children {
        assert_eq!(first(child.run).await, Some(format!("run:{}", parent.id())));
    }
    let rows = rows_of(&engine, "run.start").await;
    let fan_out: Vec<_> = rows.iter().filter(|row| row.run == Some(parent.id())).collect();
    assert_eq!((children.len(), fan_out.len()), (3, 1), "one row for all children");
    assert_eq!(detail(fan_out[0])["started"], 3);

    let schedule = Schedule::new("nightly", "0 0 * * *", "waits");
    engine.put_schedule(schedule).await.unwrap();
    engine.advance(Duration::from_secs(24 * 3_600)).await;
    let fired = kit::runs_of(&engine, "waits").await;
    let mut by_schedule = 0;
    for run in fired {
        by_schedule += usize::from(first(run.run).await.as_deref() == Some("schedule:nightly"));
    }
    assert_eq!(by_schedule, 1);
}

/// G2: an answer link for a wait with answerers is for one of them, and only that person gets its token.
#[tokio::test]
async fn a_link_belongs_to_one_answerer() {
    let engine = kit::start(|builder| builder.workflow(desk())).await.unwrap();
    let flows = flows(&engine, "durable");
    let run = begun(&engine).await;
    let first = open(&engine, &run).await;
    let link = async |actor: Actor, to: CreateAnswerLink| {
        let flows = flows.acting(actor);
        let created = soon(flows.create_answer_link(to)).await;
        created.map(|link| link.token.unwrap()).map_err(|error| error.to_string())
    };
    let to = || CreateAnswerLink::new(run.id());
    let clerk = || Actor::granted("apikey:clerk", [Permission::Manage].into());
    assert!(link(clerk(), to().answerer("user:ann")).await.unwrap_err().contains("may not answer"));
    assert!(link(clerk(), to().answerer("user:joe")).await.unwrap_err().contains("one of the answerers"));
    assert!(link(clerk(), to()).await.unwrap_err().contains("one of the answerers"));
    let token = link(clerk().with_user("ann"), to().answerer("user:ann")).await.unwrap();
    soon(flows.resume(Resume::new(&token).input(&json!({"yes": true})))).await.unwrap();
    engine.settle().await;
    assert_eq!(soon(flows.resume(Resume::new(&token))).await, Err(FlowError::Gone));
    let entry = history(&engine, run.id()).await[1].0.clone();
    let by = entry.actor.unwrap();
    assert!(by.starts_with("link:") && by.ends_with(":user:ann"), "{by}");
    let late = engine.acting(manager()).answer_wait(first, yes()).await;
    match late.unwrap_err() {
        EngineError::AlreadyAnswered { first, .. } => assert_eq!(first.by, Some(by)),
        other => panic!("{other}"),
    }
    let admin = Actor::granted("apikey:root", Grants::all());
    let token = link(admin, to().answerer("role:manager").reason("by phone")).await.unwrap();
    let second = open(&engine, &run).await;
    engine.acting(ann()).claim_wait(second, Duration::from_secs(60), None).await.unwrap();
    let busy = soon(flows.resume(Resume::new(&token).input(&json!({"yes": true})))).await;
    assert!(matches!(busy, Err(FlowError::Busy { retry_after_ms: 60_000 })), "{busy:?}");
}

/// G1: the timeline merges checkpoints, failed attempts and commands by time, in pages.
#[tokio::test]
async fn the_timeline_merges_entries_attempts_and_commands() {
    let fails = |cx: Cx| async move {
        match cx.attempt() {
            1 => Err(ActionError::new("broken", "it is broken")),
            _ => Ok(()),
        }
    };
    let work = Transition::new("work", "a", "b").action("fails");
    let spec = Spec::new("shaky").step("a").wait("b", "GO").end("c").signal("GO").transition(work);
    let shaky = spec.auto("end", "b", "c").initial("a").build().unwrap();
    let engine = kit::start(|builder| builder.workflow(shaky).action("fails", fails)).await.unwrap();
    let second = Duration::from_secs(1);
    let run = engine.start(Start::new("shaky")).await.unwrap();
    engine.settle().await;
    engine.advance(second).await;
    let by = Operator::named("ann");
    engine.operate(run.id(), Command::Retry, &by).await.unwrap();
    engine.settle().await;
    engine.advance(second).await;
    engine.operate(run.id(), Command::Suspend, &by).await.unwrap();
    engine.advance(second).await;
    engine.operate(run.id(), Command::Resume, &by).await.unwrap();
    engine.advance(second).await;
    engine.acting(manage("apikey:joe")).signal(run.id(), Signal::new("GO")).await.unwrap();
    engine.settle().await;
    let shown = |item: &TimelineItem| match item {
        TimelineItem::Entry { version, entry, .. } => {
            format!("{version} {} {}", entry.action, entry.actor.as_deref().unwrap_or("-"))
        }
        TimelineItem::Attempt(attempt) => format!("! {} {}", attempt.transition, attempt.error.code),
        TimelineItem::Command { row, .. } => {
            format!("{} {}", row.operation, row.actor.as_deref().unwrap_or("-"))
        }
    };
    let expected = [
        "0 __start -",
        "! work broken",
        "1 __auto:work -",
        "run.retry ann",
        "run.suspend ann",
        "run.resume ann",
        "2 __resolve_wait:b apikey:joe",
        "3 __auto:end -",
    ];
    for limit in [1, 2, 50] {
        let (mut all, mut from) = (Vec::new(), 0);
        loop {
            let page = engine.timeline(run.id(), from, limit).await.unwrap();
            all.extend(page.items.iter().map(shown));
            match page.next {
                Some(next) => from = next.parse().unwrap(),
                None => break,
            }
        }
        assert_eq!(all, expected, "pages of {limit}");
    }
    let other = engine.for_tenant(kit::other_tenant());
    assert!(matches!(other.timeline(run.id(), 0, 9).await, Err(EngineError::NoRun(_))));
}
