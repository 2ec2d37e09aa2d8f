//! A database node that is down, as on a Citus cluster: calls about its tenants fail, and calls that span tenants fail.
//! The tenants of other nodes are served. Also heartbeats that fail for a long time.

use std::time::Duration;

use serde_json::json;
use stepwell::core::Spec;
use stepwell::core::spec::Transition;
use stepwell::store::{Status, TenantId, TenantScope};
use stepwell::testing::{BEGINS, TestEngine};
use stepwell::{ActionError, Builder, Cx, Start};
use uuid::Uuid;

use crate::isolation::undriven;
use crate::kit::{LEASE_MS, Watched, after_s, ground, other_tenant, start_killable, status};
use crate::world::{Gate, job};

const SECOND: Duration = Duration::from_secs(1);

fn third_tenant() -> TenantScope {
    TenantScope::trusted(TenantId::new(Uuid::from_u128(3)))
}

/// Registers the workflow `job`, and polls every ten seconds.
fn worker(builder: Builder) -> Builder {
    let work = async |_: Cx| Ok::<_, ActionError>(json!("done"));
    builder.workflow(job(|work| work)).action("work", work).with(|options| options.poll_ms = 10_000)
}

#[tokio::test]
async fn tenants_of_other_nodes_are_served_while_a_node_is_down() {
    let (inner, clock) = ground().await;
    let store = Watched::new(inner);
    let build = |builder| worker(builder).with(|options| options.poll_ms = 1_000);
    let (engine, _tasks) = start_killable(store.clone(), &clock, build).await;
    let theirs = engine.for_tenant(other_tenant());
    let start = || Start::new("job").at(after_s(60));
    let (ours, other) = (engine.start(start()).await.unwrap(), theirs.start(start()).await.unwrap());
    engine.settle().await;
    store.nodes_down([other_tenant()]);
    store.spanning();
    engine.advance(61 * SECOND).await;
    assert_eq!(status(&ours).await, Status::Completed);
    // A run that is started in between is found too, and the failing list is not requested every second.
    let later = engine.start(Start::new("job").at(after_s(90))).await.unwrap();
    engine.advance(59 * SECOND).await;
    assert_eq!(status(&later).await, Status::Completed);
    let spanning = store.spanning();
    assert!((3..20).contains(&spanning), "{spanning} lists in two minutes");
    store.nodes_down([]);
    assert_eq!(status(&other).await, Status::Pending);
    engine.advance(60 * SECOND).await;
    assert_eq!(status(&other).await, Status::Completed, "its node is back");
}

#[tokio::test]
async fn runs_of_a_crashed_process_are_continued_while_a_node_is_down() {
    let (inner, clock) = ground().await;
    let gate = Gate::new();
    let action = gate.action();
    let gated = |builder: Builder| builder.workflow(job(|work| work)).action("work", action);
    let (first, tasks) = start_killable(inner.clone(), &clock, gated).await;
    let run = first.start(Start::new("job")).await.unwrap().id();
    first.settle().await;
    assert_eq!(gate.inside(), 1);
    tasks.kill().await;
    let store = Watched::new(inner);
    let (second, _tasks) = start_killable(store.clone(), &clock, worker).await;
    store.nodes_down([other_tenant()]);
    second.advance(2 * Duration::from_millis(LEASE_MS)).await;
    assert_eq!(status(&second.run(run)).await, Status::Completed);
}

/// A past bug: a process did not start while the node of its own tenant was down.
#[tokio::test]
async fn engine_starts_while_the_node_of_its_tenant_is_down() {
    let (inner, clock) = ground().await;
    let (first, tasks) = start_killable(inner.clone(), &clock, worker).await;
    let theirs = first.for_tenant(other_tenant());
    let start = || Start::new("job").at(after_s(60));
    let ours = first.start(start()).await.unwrap().id();
    let other = theirs.start(start()).await.unwrap().id();
    first.settle().await;
    tasks.kill().await;
    let store = Watched::new(inner);
    store.nodes_down([TenantScope::single()]);
    // An action that may be one of remote workers, which are in the catalogue of the tenant.
    let pay = Transition::new("pay", "open", "paid").action("pay.charge");
    let payment = Spec::new("payment").step("open").end("paid").transition(pay).build().unwrap();
    let build = |builder: Builder| worker(builder).workflow(payment);
    let (second, _tasks) = start_killable(store.clone(), &clock, build).await;
    let theirs = second.for_tenant(other_tenant());
    second.advance(70 * SECOND).await;
    assert_eq!(status(&theirs.run(other)).await, Status::Completed);
    store.nodes_down([]);
    second.advance(60 * SECOND).await;
    assert_eq!(status(&second.run(ours)).await, Status::Completed);
}

/// A past bug: maintenance ended when the tenants could not be listed, before it looked for runs without a driver and
/// updated schedules.
#[tokio::test]
async fn maintenance_continues_while_tenants_cannot_be_listed() {
    let (inner, clock) = ground().await;
    let store = Watched::new(inner);
    let nightly = "
metadata: { name: nightly }
spec:
  trigger: { id: night, type: schedule, cron: '30 2 * * *' }
  steps: [{ id: done, type: control.return }]
";
    let nightly = stepwell::core::WorkflowSource::read(nightly, None).unwrap().definition().clone();
    let build = |builder: Builder| {
        worker(builder)
            .workflow(nightly)
            .with(|options| (options.lease_ms, options.maintenance_interval_ms) = (60_000, 600_000))
    };
    let engine = TestEngine::start_on(store.clone(), clock, build).await.unwrap();
    let theirs = engine.for_tenant(other_tenant());
    let run = undriven(&engine, &theirs).await;
    store.nodes_down([third_tenant()]);
    engine.advance(500 * SECOND).await;
    assert_eq!(status(&run).await, Status::Running);
    assert_eq!(theirs.schedule("nightly/night").await.unwrap(), None);
    engine.advance(200 * SECOND).await;
    assert_eq!(status(&run).await, Status::Completed, "the run without a driver is found");
    assert!(theirs.schedule("nightly/night").await.unwrap().is_some(), "the schedule is planned");
    assert_eq!(engine.maintenance().rounds, 0, "not all tenants are maintained");
    store.nodes_down([]);
    engine.advance(600 * SECOND).await;
    assert_eq!(engine.maintenance().rounds, 1);
}

/// A past bug: after a lost lease the heartbeat was repeated every millisecond.
#[tokio::test]
async fn heartbeats_back_off_after_a_lost_lease() {
    let (inner, clock) = ground().await;
    let store = Watched::new(inner);
    let (engine, _tasks) = start_killable(store.clone(), &clock, worker).await;
    let third = LEASE_MS / 3;
    store.heartbeats();
    store.fail_heartbeats();
    engine.advance(Duration::from_millis(LEASE_MS + 8 * third)).await;
    let beats: Vec<u64> = store.heartbeats().iter().map(|at| at.ms_since(BEGINS)).collect();
    // Within the lease, every third of it. The lease is lost at its end, and then the pauses double up to a third.
    let pauses = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_024, 2_048, 4_096, third, third, third];
    let mut wanted = vec![third, 2 * third, 3 * third];
    pauses.iter().for_each(|pause| wanted.push(wanted.last().unwrap() + pause));
    assert_eq!(beats[..wanted.len()], wanted);
    assert!(beats.len() < 30, "{beats:?}");
}
