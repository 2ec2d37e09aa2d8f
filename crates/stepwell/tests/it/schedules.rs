//! Schedules: they start a workflow at planned times, each firing once.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use stepwell::core::spec::Transition;
use stepwell::core::{Definition, Spec};
use stepwell::cron::{MissedFirings, Overlap};
use stepwell::store::{RunFilter, RunQuery, Status, Store};
use stepwell::testing::{BEGINS, TestEngine};
use stepwell::{EngineError, ManualClock, Operator, PlacedSchedule, RunNow, Schedule};

use crate::kit::{eventually, ground};

const HOUR: Duration = Duration::from_secs(3_600);

/// A run that takes 90 minutes.
fn report() -> Definition {
    Spec::new("report")
        .initial("writing")
        .step("writing")
        .end("written")
        .transition(Transition::new("done", "writing", "written").after_ms(90 * 60_000))
        .build()
        .unwrap()
}

async fn engine(store: &Arc<dyn Store>, clock: &ManualClock) -> TestEngine {
    TestEngine::start_on(store.clone(), clock.clone(), |engine| engine.workflow(report())).await.unwrap()
}

async fn reports(engine: &TestEngine) -> Vec<Status> {
    let query = RunQuery { filter: RunFilter::of("report"), limit: 100, ..RunQuery::default() };
    let page = engine.store().runs(engine.scope(), query).await.unwrap();
    page.items.iter().map(|run| run.status).collect()
}

#[tokio::test]
async fn schedule_starts_its_workflow_once_per_firing() {
    let (store, clock) = ground().await;
    let engine = engine(&store, &clock).await;
    let hourly = Schedule::new("hourly", "0 * * * *", "report").input(json!({"for": "mia@example.com"}));
    engine.put_schedule(hourly.clone()).await.unwrap();
    engine.advance(HOUR / 2).await;
    assert_eq!(reports(&engine).await.len(), 0, "it is not due yet");
    engine.advance(3 * HOUR).await;
    assert_eq!(reports(&engine).await.len(), 3);
    let stands = engine.schedule("hourly").await.unwrap().unwrap();
    assert_eq!((stands.fired, stands.skipped, stands.schedule), (3, 0, hourly));
    assert_eq!(stands.next, BEGINS.plus_ms(4 * 3_600_000));
    let last = engine.run(stands.last_run.unwrap()).view().await.unwrap();
    assert_eq!(last.snapshot.context(), &json!({"for": "mia@example.com"}));
}

/// B12: a pause is visible at once, survives a restart, and its firings are not made up for.
#[tokio::test]
async fn paused_schedule_starts_nothing_until_it_is_resumed() {
    let (store, clock) = ground().await;
    let first = engine(&store, &clock).await;
    first
        .put_schedule(Schedule::new("hourly", "0 * * * *", "report").missed(MissedFirings::All))
        .await
        .unwrap();
    let paused = first
        .pause_schedule("hourly", &Operator { reason: Some("holidays".to_owned()), ..Operator::named("ann") })
        .await
        .unwrap();
    assert_eq!((paused.by.as_deref(), paused.reason.as_deref()), (Some("ann"), Some("holidays")));
    assert_eq!(first.schedule("hourly").await.unwrap().unwrap().paused, Some(paused.clone()));
    first.advance(2 * HOUR).await;
    drop(first);
    let second = engine(&store, &clock).await;
    second.advance(2 * HOUR).await;
    assert_eq!(reports(&second).await.len(), 0);
    let now = second.run_schedule("hourly", RunNow::new().key("k")).await.unwrap();
    let again = second.run_schedule("hourly", RunNow::new().key("k")).await.unwrap();
    assert_eq!((now.is_new, again.is_new, now.run.id()), (true, false, again.run.id()));
    second.resume_schedule("hourly", &Operator::named("ann")).await.unwrap();
    second.settle().await;
    let stands = second.schedule("hourly").await.unwrap().unwrap();
    assert_eq!((reports(&second).await.len(), stands.fired, stands.paused), (1, 0, None));
    second.advance(HOUR).await;
    assert_eq!(reports(&second).await.len(), 2);
}

#[tokio::test]
async fn missed_firings_follow_the_schedules_policy() {
    for (missed, expected) in [(MissedFirings::Skip, 0), (MissedFirings::Once, 1), (MissedFirings::All, 5)] {
        let (store, clock) = ground().await;
        let first = engine(&store, &clock).await;
        first.put_schedule(Schedule::new("hourly", "0 * * * *", "report").missed(missed)).await.unwrap();
        first.settle().await;
        drop(first);
        clock.set(BEGINS.plus_ms(5 * 3_600_000 + 1_800_000));
        let second = engine(&store, &clock).await;
        second.settle().await;
        assert_eq!(reports(&second).await.len(), expected, "{missed:?}");
        second.advance(HOUR / 2).await;
        assert_eq!(reports(&second).await.len(), expected + 1, "{missed:?}: the schedule continues");
    }
}

#[tokio::test]
async fn overlapping_firing_is_started_or_skipped() {
    for (overlap, starts) in [(Overlap::Start, &[1, 2, 3, 4][..]), (Overlap::Skip, &[1, 3])] {
        let (store, clock) = ground().await;
        let engine = engine(&store, &clock).await;
        engine.put_schedule(Schedule::new("hourly", "0 * * * *", "report").overlap(overlap)).await.unwrap();
        // Advances half an hour at a time and lets each step finish: a late firing would be skipped here, and a report
        // that begins to sleep late would end late.
        for halves in 1..=9 {
            engine.advance(HOUR / 2).await;
            let ended = starts.iter().filter(|hour| 2 * **hour + 3 <= halves).count();
            eventually(async || {
                engine.settle().await;
                let stands = engine.schedule("hourly").await.unwrap().unwrap();
                let reports = reports(&engine).await;
                let count = |wanted| reports.iter().filter(|status| **status == wanted).count();
                let (done, asleep) = (count(Status::Completed), count(Status::Waiting));
                stands.fired + stands.skipped == halves / 2 && done == ended && done + asleep == reports.len()
            })
            .await;
        }
        let stands = engine.schedule("hourly").await.unwrap().unwrap();
        let fired = starts.len() as u64;
        assert_eq!((stands.fired, stands.skipped), (fired, 4 - fired), "{overlap:?}");
    }
}

#[tokio::test]
async fn schedule_can_be_changed_disabled_and_put_again() {
    let (store, clock) = ground().await;
    let engine = engine(&store, &clock).await;
    let PlacedSchedule { run, next } =
        engine.put_schedule(Schedule::new("it", "0 * * * *", "report")).await.unwrap();
    assert_eq!(next, engine.schedule("it").await.unwrap().unwrap().next);
    engine.advance(HOUR).await;
    let daily = Schedule::new("it", "30 12 * * *", "report");
    assert_eq!(
        engine.put_schedule(daily.clone()).await.unwrap().run,
        run,
        "the same name is the same schedule"
    );
    engine.advance(11 * HOUR).await;
    assert_eq!(reports(&engine).await.len(), 1, "the old schedule is replaced");
    engine.advance(HOUR).await;
    assert_eq!(reports(&engine).await.len(), 2);
    engine.remove_schedule("it").await.unwrap();
    engine.advance(48 * HOUR).await;
    assert_eq!(reports(&engine).await.len(), 2);
    assert!(engine.schedule("it").await.unwrap().unwrap().is_off);
    engine.put_schedule(daily).await.unwrap();
    engine.advance(24 * HOUR).await;
    assert_eq!(reports(&engine).await.len(), 3);
    assert_eq!(engine.schedules().await.unwrap().len(), 1);
}

/// Regression: the second of two requests to disable a schedule disabled it again after it had been put again.
#[tokio::test]
async fn schedule_disabled_twice_is_enabled_when_put_again() {
    let (store, clock) = ground().await;
    let engine = engine(&store, &clock).await;
    let hourly = || Schedule::new("hourly", "0 * * * *", "report");
    engine.put_schedule(hourly()).await.unwrap();
    for _ in 0..2 {
        engine.remove_schedule("hourly").await.unwrap();
        engine.settle().await;
    }
    engine.put_schedule(hourly()).await.unwrap();
    engine.advance(HOUR).await;
    assert!(!engine.schedule("hourly").await.unwrap().unwrap().is_off);
    assert_eq!(reports(&engine).await.len(), 1);
}

#[tokio::test]
async fn schedules_are_listed_in_pages() {
    let (store, clock) = ground().await;
    let engine = engine(&store, &clock).await;
    for name in ["a", "b", "c"] {
        engine.put_schedule(Schedule::new(name, "0 * * * *", "report")).await.unwrap();
    }
    let first = engine.schedules_page(2, None).await.unwrap();
    let rest = engine.schedules_page(2, first.next.clone()).await.unwrap();
    assert_eq!((first.items.len(), rest.items.len(), rest.next.as_deref()), (2, 1, None));
    // Runs of the same millisecond have no defined order.
    let mut names: Vec<_> =
        first.items.iter().chain(&rest.items).map(|one| one.schedule.name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["a", "b", "c"]);
}

#[tokio::test]
async fn invalid_schedule_is_refused_with_the_reason() {
    let (store, clock) = ground().await;
    let engine = engine(&store, &clock).await;
    for (wrong, part) in [
        (Schedule::new("a", "61 * * * *", "report"), "61"),
        (Schedule::new("b", "0 * * * *", "reprt"), "reprt"),
        (Schedule::new("c", "0 * * * *", "report").time_zone("Europe/Berln"), "Europe/Berlin"),
        (Schedule::new("", "0 * * * *", "report"), "name"),
    ] {
        let Err(EngineError::Invalid(why)) = engine.put_schedule(wrong).await else { panic!("{part}") };
        assert!(why.contains(part), "{why}");
    }
    assert_eq!(engine.remove_schedule("nobody").await, Err(EngineError::NoSchedule("nobody".to_owned())));
    assert_eq!(engine.schedules().await.unwrap(), Vec::new());
}

fn nightly(cron: &str, version: u32) -> Definition {
    let text = format!(
        "
metadata: {{ name: nightly, version: {version} }}
spec:
  trigger: {{ id: night, type: schedule, cron: '{cron}', timezone: Europe/Vienna, missed: skip, input: {{ n: 1 }} }}
  steps: [{{ id: done, type: control.return, value: {{ $expr: payload.n }} }}]
"
    );
    stepwell::core::WorkflowSource::read(&text, None).unwrap().definition().clone()
}

/// F1, B12: a schedule trigger of a document becomes a schedule as soon as the workflow can be started.
#[tokio::test]
async fn schedule_trigger_becomes_a_schedule() {
    let (store, clock) = ground().await;
    let build = |engine: stepwell::Builder| engine.workflow(nightly("30 2 * * *", 1));
    let first = TestEngine::start_on(store.clone(), clock.clone(), build).await.unwrap();
    let planned = first.schedule("nightly/night").await.unwrap().unwrap();
    assert_eq!(
        (planned.schedule.time_zone.as_str(), planned.schedule.missed),
        ("Europe/Vienna", MissedFirings::Skip)
    );
    // Half past two in Vienna is half past one in UTC.
    assert_eq!(planned.next, BEGINS.plus_ms(90 * 60_000));
    first.advance(24 * HOUR).await;
    assert_eq!(crate::kit::runs_of(&first, "nightly").await.len(), 1);
    drop(first);
    // Another version has other times; an older version that is still registered changes nothing.
    let build = |engine: stepwell::Builder| engine.workflow(nightly("0 5 * * *", 2));
    let second = TestEngine::start_on(store.clone(), clock.clone(), build).await.unwrap();
    second.settle().await;
    let build = |engine: stepwell::Builder| engine.workflow(nightly("30 2 * * *", 1));
    let older = TestEngine::start_on(store, clock, build).await.unwrap();
    older.settle().await;
    let stands = second.schedule("nightly/night").await.unwrap().unwrap();
    assert_eq!((stands.schedule.cron.as_str(), stands.fired), ("0 5 * * *", 1));
}

#[tokio::test]
async fn schedule_follows_the_active_published_version() {
    use stepwell::catalogue::Publish;
    let engine = crate::kit::start(|engine| engine).await.unwrap();
    let catalogue = engine.catalogue();
    let text = |cron: &str| {
        format!(
            "trigger: {{ id: t, type: schedule, cron: '{cron}' }}\nsteps: [{{ id: done, type: control.return }}]"
        )
    };
    catalogue.publish("hourly", Publish::text(text("0 * * * *"))).await.unwrap();
    assert_eq!(engine.schedule("hourly/t").await.unwrap(), None, "it is not active");
    catalogue.activate("hourly", 1).await.unwrap();
    engine.advance(2 * HOUR).await;
    assert_eq!(crate::kit::runs_of(&engine, "hourly").await.len(), 2);
    catalogue.publish("hourly", Publish::text(text("30 * * * *")).activate()).await.unwrap();
    engine.advance(HOUR).await;
    assert_eq!(crate::kit::runs_of(&engine, "hourly").await.len(), 3);
    for refused in [
        engine.remove_schedule("hourly/t").await,
        engine.put_schedule(Schedule::new("hourly/t", "0 1 * * *", "hourly")).await.map(drop),
    ] {
        let Err(EngineError::ManagedByTrigger { trigger, .. }) = refused else { panic!("{refused:?}") };
        assert_eq!(trigger.as_str(), "t", "the trigger owns this schedule");
    }
    catalogue.archive("hourly").await.unwrap();
    engine.settle().await;
    assert!(engine.schedule("hourly/t").await.unwrap().unwrap().is_off);
    engine.advance(3 * HOUR).await;
    assert_eq!(crate::kit::runs_of(&engine, "hourly").await.len(), 3);
    catalogue.restore("hourly").await.unwrap();
    engine.advance(HOUR).await;
    assert_eq!(crate::kit::runs_of(&engine, "hourly").await.len(), 4);
    // Publishing does not change a schedule that was put by hand.
    engine.put_schedule(Schedule::new("by-hand", "0 * * * *", "hourly")).await.unwrap();
    catalogue.archive("hourly").await.unwrap();
    assert!(!engine.schedule("by-hand").await.unwrap().unwrap().is_off);
}

#[tokio::test]
async fn invalid_cron_trigger_is_reported_with_its_line() {
    use stepwell::catalogue::{CatalogueError, Publish};
    let text =
        "triggers:\n  - { type: schedule, cron: '61 * * * *' }\nsteps: [{ id: done, type: control.return }]";
    let engine = crate::kit::start(|engine| engine).await.unwrap();
    let refused = engine.catalogue().publish("bad", Publish::text(text)).await.unwrap_err();
    let CatalogueError::Wrong { problems } = refused else { panic!("{refused}") };
    assert_eq!((problems[0].code.as_str(), problems[0].at.line), ("badTrigger", 2), "{problems:?}");
    let definition = stepwell::core::WorkflowSource::read(text, Some("bad")).unwrap().definition().clone();
    let refused = engine.register(definition).unwrap_err();
    assert!(refused.to_string().contains("trigger1"), "{refused}");
}

/// Regression: a schedule followed the highest version that ever existed.
#[tokio::test]
async fn reactivated_older_version_restores_its_schedule() {
    use stepwell::catalogue::Publish;
    let engine = crate::kit::start(|engine| engine).await.unwrap();
    let catalogue = engine.catalogue();
    let text = |cron: &str| {
        format!(
            "trigger: {{ id: t, type: schedule, cron: '{cron}' }}\nsteps: [{{ id: done, type: control.return }}]"
        )
    };
    catalogue.publish("timed", Publish::text(text("0 1 * * *")).activate()).await.unwrap();
    catalogue.publish("timed", Publish::text(text("0 2 * * *")).activate()).await.unwrap();
    let cron = async || engine.schedule("timed/t").await.unwrap().unwrap().schedule.cron;
    engine.settle().await;
    assert_eq!(cron().await, "0 2 * * *");
    catalogue.activate("timed", 1).await.unwrap();
    engine.settle().await;
    assert_eq!(cron().await, "0 1 * * *");
    catalogue.deactivate("timed").await.unwrap();
    catalogue.activate("timed", 1).await.unwrap();
    engine.settle().await;
    assert!(!engine.schedule("timed/t").await.unwrap().unwrap().is_off);
}

#[tokio::test]
async fn schedule_with_invalid_input_can_be_put_again() {
    let text = "
input: { type: object, required: [n] }
steps: [{ id: done, type: control.return }]
";
    let strict = stepwell::core::WorkflowSource::read(text, Some("strict")).unwrap().definition().clone();
    let engine = crate::kit::start(|engine| engine.workflow(strict)).await.unwrap();
    let hourly = |input: serde_json::Value| Schedule::new("hourly", "0 * * * *", "strict").input(input);
    engine.put_schedule(hourly(json!({}))).await.unwrap();
    engine.advance(HOUR).await;
    let stands = engine.schedule("hourly").await.unwrap().unwrap();
    assert_eq!((stands.fired, stands.skipped), (0, 1));
    assert!(stands.last_error.is_some_and(|error| error.contains('n')));
    engine.put_schedule(hourly(json!({"n": 1}))).await.unwrap();
    engine.advance(HOUR).await;
    assert_eq!(engine.schedule("hourly").await.unwrap().unwrap().fired, 1);
}
