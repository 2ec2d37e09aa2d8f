//! Schedules: a workflow that is started by itself, each firing once.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use stepwell::core::spec::Transition;
use stepwell::core::{Definition, Spec};
use stepwell::cron::{Missed, Overlap};
use stepwell::store::{RunQuery, Status, Store};
use stepwell::testing::{BEGINS, TestEngine};
use stepwell::{EngineError, ManualClock, Schedule};

use crate::kit::ground;

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
    let query = RunQuery { workflow: Some("report".into()), limit: 100, ..RunQuery::default() };
    let page = engine.store().runs(engine.scope(), query).await.unwrap();
    page.items.iter().map(|run| run.status).collect()
}

#[tokio::test]
async fn a_schedule_starts_its_workflow_at_each_firing_once() {
    let (store, clock) = ground().await;
    let engine = engine(&store, &clock).await;
    let hourly = Schedule::new("hourly", "0 * * * *", "report").input(json!({"for": "mia@example.com"}));
    engine.put_schedule(hourly.clone()).await.unwrap();
    engine.advance(HOUR / 2).await;
    assert_eq!(reports(&engine).await.len(), 0, "its time has not come");
    engine.advance(3 * HOUR).await;
    assert_eq!(reports(&engine).await.len(), 3);
    let stands = engine.schedule("hourly").await.unwrap().unwrap();
    assert_eq!((stands.fired, stands.skipped, stands.schedule), (3, 0, hourly));
    assert_eq!(stands.next, BEGINS.plus_ms(4 * 3_600_000));
    let last = engine.run(stands.last_run.unwrap()).view().await.unwrap();
    assert_eq!(last.snapshot.context(), &json!({"for": "mia@example.com"}));
}

#[tokio::test]
async fn what_was_missed_in_an_outage_is_made_up_for_as_the_schedule_says() {
    for (missed, expected) in [(Missed::Skip, 0), (Missed::Once, 1), (Missed::All, 5)] {
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
        assert_eq!(reports(&second).await.len(), expected + 1, "{missed:?}: and it goes on");
    }
}

#[tokio::test]
async fn while_the_last_run_is_going_the_next_is_started_or_skipped() {
    for (overlap, expected) in [(Overlap::Start, (4, 0)), (Overlap::Skip, (2, 2))] {
        let (store, clock) = ground().await;
        let engine = engine(&store, &clock).await;
        engine.put_schedule(Schedule::new("hourly", "0 * * * *", "report").overlap(overlap)).await.unwrap();
        engine.advance(4 * HOUR + HOUR / 2).await;
        let stands = engine.schedule("hourly").await.unwrap().unwrap();
        assert_eq!((stands.fired, stands.skipped), expected, "{overlap:?}");
    }
}

#[tokio::test]
async fn a_schedule_can_be_changed_switched_off_and_put_again() {
    let (store, clock) = ground().await;
    let engine = engine(&store, &clock).await;
    let run = engine.put_schedule(Schedule::new("it", "0 * * * *", "report")).await.unwrap();
    engine.advance(HOUR).await;
    let daily = Schedule::new("it", "30 12 * * *", "report");
    assert_eq!(engine.put_schedule(daily.clone()).await.unwrap(), run, "the same name is the same schedule");
    engine.advance(11 * HOUR).await;
    assert_eq!(reports(&engine).await.len(), 1, "the old plan no longer holds");
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

#[tokio::test]
async fn a_schedule_that_cannot_be_is_refused_with_the_reason() {
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
    assert!(engine.remove_schedule("nobody").await.is_err());
    assert_eq!(engine.schedules().await.unwrap(), Vec::new());
}
