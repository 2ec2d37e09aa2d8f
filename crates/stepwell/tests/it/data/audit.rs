//! The audit trail of the data: one row per write, which never expires, under seals that reveal changes.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use stepwell::core::Spec;
use stepwell::core::spec::Transition;
use stepwell::data::{AuditFault, Changes, Increment, NewLink, Verified};
use stepwell::store::{AuditRow, CommitId, Entity, Store};
use stepwell::testing::{BEGINS, TestEngine};
use stepwell::{ActionError, Actor, Cx, ManualClock, Permission, Start, new_run_id};
use stepwell_sqlite::SqliteStore;
use stepwell_sqlite::rusqlite::Connection;
use tempfile::TempDir;

use super::{DAY, call, chain, run_of, tick, trail, trail_of_commits};
use crate::kit::{self, eventually, other_tenant};
use crate::world::job;

/// The operation and the subject of each row.
fn told(rows: &[AuditRow]) -> Vec<(String, String)> {
    rows.iter().map(|row| (row.operation.clone(), row.subject.clone())).collect()
}

fn pair(operation: &str, subject: impl Into<String>) -> (String, String) {
    (operation.to_owned(), subject.into())
}

fn thing(id: &str) -> Entity {
    Entity::new("a thing", id)
}

#[tokio::test]
async fn every_write_to_a_key_is_audited() {
    let engine = kit::start(|builder| builder).await.unwrap();
    let kv = engine.kv("my ns");
    kv.set("a:b", 1).await.unwrap();
    tick(&engine);
    kv.increment("a:b", 1).await.unwrap();
    tick(&engine);
    kv.delete("a:b").await.unwrap();
    kv.delete("a:b").await.unwrap();
    engine.write(Changes::new().check("my ns", "a:b", 0)).await.unwrap();
    kv.get("a:b").await.unwrap();
    let (rows, subject) = (trail(&engine).await, "store:my%20ns:a%3Ab");
    let expected = ["set", "increment", "delete"].map(|word| pair(&format!("store.{word}"), subject));
    assert_eq!(told(&rows), expected, "operations without effect are not audited");
    assert!(rows.iter().all(|row| row.actor.is_none() && row.run.is_none()));
    let details: Vec<Value> = rows.iter().map(|row| serde_json::from_slice(&row.detail).unwrap()).collect();
    assert_eq!(details, [json!({"revision": 1}), json!({"revision": 2}), json!({"revision": 3})]);
}

#[tokio::test]
async fn every_written_or_deleted_link_is_audited() {
    let engine = kit::start(|builder| builder).await.unwrap();
    let links = engine.links("l");
    links.upsert(NewLink::new(thing("1"), thing("2"))).await.unwrap();
    tick(&engine);
    links.upsert(NewLink::new(thing("1"), thing("2"))).await.unwrap();
    tick(&engine);
    links.upsert(NewLink::new(thing("1"), thing("3")).relation("r/s")).await.unwrap();
    tick(&engine);
    links.delete(Some(thing("1")), None, None).await.unwrap();
    links.delete(Some(thing("1")), None, None).await.unwrap();
    let rows = trail(&engine).await;
    let (edge, other) = ("link:l:a%20thing:1:a%20thing:2:related", "link:l:a%20thing:1:a%20thing:3:r%2Fs");
    let expected = [
        pair("links.upsert", edge),
        pair("links.upsert", edge),
        pair("links.upsert", other),
        pair("links.delete", edge),
        pair("links.delete", other),
    ];
    assert_eq!(told(&rows), expected);
    let detail = |row: &AuditRow| serde_json::from_slice::<Value>(&row.detail).unwrap();
    assert_eq!((detail(&rows[0]), detail(&rows[1])), (json!({"created": true}), json!({"created": false})));
}

#[tokio::test]
async fn every_write_to_a_slot_is_audited() {
    let engine = kit::start(|builder| builder).await.unwrap();
    let slot = engine.state().execution::<Value>(new_run_id(), "all");
    slot.set(&json!(1)).await.unwrap();
    slot.increment(1).await.unwrap();
    slot.decrement(1).await.unwrap();
    slot.delete().await.unwrap();
    slot.merge(json!({"a": 1})).await.unwrap();
    slot.update(|_| json!([])).await.unwrap();
    slot.append(1).await.unwrap();
    slot.remove_first::<Value>().await.unwrap();
    slot.remove_last::<Value>().await.unwrap();
    slot.get().await.unwrap();
    let mut rows = trail(&engine).await;
    rows.sort_by_key(|row| serde_json::from_slice::<Value>(&row.detail).unwrap()["revision"].as_u64());
    let words =
        ["set", "increment", "increment", "delete", "merge", "set", "append", "remove_first", "remove_last"];
    let expected = words.map(|word| pair(&format!("state.{word}"), slot.address()));
    assert_eq!(told(&rows), expected);
    tick(&engine);
    engine.state().workflow::<i64>("my flow", "a").set(&1).await.unwrap();
    let last = pair("state.set", "state:workflow-scope:default:my%20flow:a");
    assert_eq!(told(&trail(&engine).await)[9], last);
}

#[tokio::test]
async fn writes_of_a_run_are_audited_with_run_and_publisher() {
    let act = |cx: Cx| async move {
        cx.kv("n").set("a", 1)?;
        cx.workflow_scope::<i64>("s").increment(1)?;
        cx.links("n").upsert(NewLink::new(thing("1"), thing("2")))?;
        Ok::<_, ActionError>(())
    };
    let engine = kit::start(|builder| builder.workflow(job(|work| work)).action("work", act)).await.unwrap();
    let one = engine.start(Start::new("job")).await.unwrap();
    engine.settle().await;
    let rows = trail(&engine).await;
    assert_eq!(rows.len(), 3);
    assert!(rows.iter().all(|row| row.run == Some(one.id()) && row.actor.is_none()), "{rows:?}");
    let commits: Vec<_> = trail_of_commits(&engine).await.into_iter().map(|(commit, _)| commit).collect();
    let steps = kit::history(&engine, one.id()).await;
    assert!(commits.iter().all(|commit| *commit == steps[1].1), "in the commit of the step");
    tick(&engine);
    let publisher = Actor::new("ada", Permission::ALL);
    engine.acting(publisher).register(chain("mine", vec![call("work", Value::Null, "out")])).unwrap();
    let two = engine.start(Start::new("mine")).await.unwrap();
    engine.settle().await;
    let rows = trail(&engine).await.split_off(3);
    assert_eq!(rows.len(), 3);
    let is_hers = |row: &AuditRow| row.run == Some(two.id()) && row.actor.as_deref() == Some("ada");
    assert!(rows.iter().all(is_hers), "{rows:?}");
}

#[tokio::test]
async fn audit_rows_and_data_outlive_the_run() {
    let input = json!({"namespace": "n", "key": "a", "value": 1});
    let work = Transition::new("work", "a", "b").action_with(call("store.set", input, "out"));
    let short = Spec::new("short").step("a").end("b").transition(work).build().unwrap();
    let (engine, run) = run_of(short, &json!({})).await;
    let before = trail(&engine).await;
    assert_eq!((before.len(), before[0].run), (1, Some(run.id())));
    engine.advance(40 * DAY).await;
    assert!(engine.store().load(engine.scope(), run.id()).await.unwrap().is_none(), "the run is gone");
    assert_eq!(trail(&engine).await, before);
    let entry = engine.kv("n").get("a").await.unwrap().unwrap();
    assert_eq!((entry.value, entry.created_by_run), (json!(1), Some(run.id())));
    engine.kv("n").set("a", 2).await.unwrap();
    assert_eq!(engine.kv("n").get("a").await.unwrap().unwrap().created_by_run, Some(run.id()));
    assert!(engine.verify_audit().await.unwrap().is_sound());
}

async fn verified(engine: &TestEngine) -> Verified {
    engine.verify_audit().await.unwrap()
}

#[tokio::test]
async fn maintenance_seals_the_audit_trail() {
    let engine = kit::start(|builder| builder).await.unwrap();
    assert_eq!(verified(&engine).await, Verified::default(), "an empty trail is sound");
    let changes = Changes::new().set("n", "a", 1).increment("n", "b", Increment::by(1));
    engine.write(changes).await.unwrap();
    engine.kv("n").set("a", 2).await.unwrap();
    let before = verified(&engine).await;
    assert_eq!((before.sealed, before.unsealed, before.seals, before.head), (0, 3, 0, None));
    assert!(before.is_sound());
    engine.advance(DAY).await;
    let first = verified(&engine).await;
    assert_eq!((first.sealed, first.unsealed, first.seals, first.is_sound()), (3, 0, 1, true));
    engine.kv("n").delete("a").await.unwrap();
    let second = verified(&engine).await;
    assert_eq!((second.sealed, second.unsealed, second.seals), (3, 1, 1));
    assert_eq!(second.head, first.head);
    engine.advance(DAY).await;
    let third = verified(&engine).await;
    assert_eq!((third.sealed, third.unsealed, third.seals, third.is_sound()), (4, 0, 2, true));
    assert_ne!(third.head, first.head);
    engine.advance(3 * DAY).await;
    assert_eq!(verified(&engine).await, third, "without new rows there is no new seal");
}

#[tokio::test]
async fn each_tenant_has_its_own_trail_and_seals() {
    let engine = kit::start(|builder| builder).await.unwrap();
    let theirs = engine.for_tenant(other_tenant());
    engine.kv("n").set("a", 1).await.unwrap();
    theirs.kv("n").set("a", 1).await.unwrap();
    theirs.kv("n").set("a", 2).await.unwrap();
    engine.advance(DAY).await;
    let (ours, others) = (verified(&engine).await, theirs.verify_audit().await.unwrap());
    assert_eq!((ours.sealed, ours.seals, ours.is_sound()), (1, 1, true));
    assert_eq!((others.sealed, others.seals, others.is_sound()), (2, 1, true));
    assert_ne!(ours.head, others.head);
}

#[tokio::test]
async fn a_long_trail_is_verified_completely() {
    let engine = kit::start(|builder| builder).await.unwrap();
    let many = |changes: Changes, at: usize| changes.set("n", format!("{at}"), at);
    for _ in 0..2 {
        engine.write((0..1_200).fold(Changes::new(), many)).await.unwrap();
        engine.advance(DAY).await;
    }
    engine.write((0..1_200).fold(Changes::new(), many)).await.unwrap();
    let found = verified(&engine).await;
    assert_eq!((found.sealed, found.unsealed, found.is_sound()), (2_400, 1_200, true));
}

/// A database file that is tampered with while no process has it open.
struct Book(TempDir);

impl Book {
    /// Creates a trail with three rows under two seals, and one row that is not sealed yet.
    async fn written() -> (Self, Verified) {
        let book = Book(tempfile::tempdir().unwrap());
        let engine = book.open().await;
        engine.write(Changes::new().set("n", "a", 1).set("n", "b", 1)).await.unwrap();
        engine.advance(DAY).await;
        engine.kv("n").set("a", 2).await.unwrap();
        engine.advance(DAY).await;
        engine.kv("n").set("a", 3).await.unwrap();
        let found = verified(&engine).await;
        assert_eq!((found.sealed, found.unsealed, found.seals, found.is_sound()), (3, 1, 2, true));
        book.close(engine).await;
        (book, found)
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("runs.db")
    }

    async fn open(&self) -> TestEngine {
        let store: Arc<dyn Store> = Arc::new(SqliteStore::open(self.path()).unwrap());
        TestEngine::start_on(store, ManualClock::new(BEGINS), |builder| builder).await.unwrap()
    }

    async fn close(&self, engine: TestEngine) {
        engine.stop(Duration::ZERO).await;
        let store = Arc::downgrade(engine.store());
        drop(engine);
        eventually(async || store.strong_count() == 0).await;
    }

    /// The commits of the trail, in its order.
    async fn commits(&self) -> Vec<CommitId> {
        let engine = self.open().await;
        let commits = trail_of_commits(&engine).await.into_iter().map(|(commit, _)| commit).collect();
        self.close(engine).await;
        commits
    }

    /// Changes the database with SQL and returns what verification finds afterwards.
    async fn after(&self, sql: &str) -> Verified {
        let connection = Connection::open(self.path()).unwrap();
        connection.execute_batch(sql).unwrap();
        connection.close().unwrap();
        let engine = self.open().await;
        let found = verified(&engine).await;
        self.close(engine).await;
        found
    }
}

/// A condition for the row of this commit with this ordinal.
fn row(commit: CommitId, ordinal: u64) -> String {
    format!("hex(commit_id) = '{}' and ordinal = {ordinal}", commit.0.simple().to_string().to_uppercase())
}

#[tokio::test]
async fn a_changed_sealed_row_is_reported() {
    let columns = [
        "detail = cast('{\"revision\":9}' as blob)",
        "operation = 'store.delete'",
        "subject = 'store:n:c'",
        "actor = 'somebody else'",
        "at = at + 1",
        "run = randomblob(16)",
    ];
    for column in columns {
        let (book, _) = Book::written().await;
        let commits = book.commits().await;
        let found = book.after(&format!("update audit set {column} where {}", row(commits[0], 1))).await;
        assert_eq!(
            found.faults,
            [AuditFault::Changed { commit: commits[0], ordinal: 1, seal: 1 }],
            "{column}"
        );
        assert_eq!((found.sealed, found.unsealed), (2, 1));
    }
}

#[tokio::test]
async fn a_removed_sealed_row_is_reported() {
    let (book, _) = Book::written().await;
    let commits = book.commits().await;
    let found = book.after(&format!("delete from audit where {}", row(commits[2], 0))).await;
    assert_eq!(found.faults, [AuditFault::Removed { commit: commits[2], ordinal: 0, seal: 2 }]);
    assert!(!found.is_sound());
}

#[tokio::test]
async fn an_inserted_row_is_reported() {
    let (book, _) = Book::written().await;
    let commits = book.commits().await;
    let slip = format!(
        "insert into audit select tenant, commit_id, 7, at, operation, subject, actor, run, detail, null \
         from audit where {}",
        row(commits[0], 0)
    );
    let found = book.after(&slip).await;
    assert_eq!(found.faults, [AuditFault::Inserted { commit: commits[0], ordinal: 7 }]);
    let new = "insert into audit select tenant, x'000102030405060708090a0b0c0d0e0f', 0, at, operation, \
               subject, actor, run, detail, null from audit limit 1";
    let found = book.after(new).await;
    assert_eq!(found.faults.len(), 2, "{:?}", found.faults);
    assert!(found.faults.iter().all(|fault| matches!(fault, AuditFault::Inserted { .. })));
}

#[tokio::test]
async fn a_changed_seal_is_reported() {
    for column in ["at = at + 1", "previous_hash = randomblob(32)"] {
        let (book, _) = Book::written().await;
        let found = book.after(&format!("update seals set {column} where number = 2")).await;
        assert_eq!(found.faults, [AuditFault::Seal { number: 2 }], "{column}");
    }
    let (book, _) = Book::written().await;
    let found = book.after("update seals set hash = randomblob(32) where number = 1").await;
    assert_eq!(
        found.faults,
        [AuditFault::Seal { number: 1 }, AuditFault::Seal { number: 2 }],
        "and the seal after it"
    );
}

/// Changing a row and its hash in the seal also changes the seal's own hash, and then the hash of the next seal.
#[tokio::test]
async fn a_seal_over_other_rows_is_reported() {
    let (book, _) = Book::written().await;
    let commits = book.commits().await;
    let forged = format!(
        "delete from audit where {}; update seals set rows = x'' where number = 2",
        row(commits[2], 0)
    );
    let found = book.after(&forged).await;
    assert_eq!(found.faults, [AuditFault::Seal { number: 2 }]);
}

#[tokio::test]
async fn a_removed_seal_is_reported_with_its_rows() {
    let (book, before) = Book::written().await;
    let commits = book.commits().await;
    let found = book.after("delete from seals where number = 1").await;
    let slipped = |ordinal| AuditFault::Inserted { commit: commits[0], ordinal };
    assert_eq!(found.faults, [AuditFault::Seal { number: 1 }, slipped(0), slipped(1)]);
    assert_eq!(found.head, before.head);
}

/// The end of the trail is removed together with its seal: only a head stored outside the database reveals it.
#[tokio::test]
async fn a_truncated_trail_has_another_head() {
    let (book, before) = Book::written().await;
    let commits = book.commits().await;
    let found = book.after("delete from seals where number = 2").await;
    assert_eq!(found.faults, [AuditFault::Inserted { commit: commits[2], ordinal: 0 }]);
    let found = book.after(&format!("delete from audit where {}", row(commits[2], 0))).await;
    assert!(found.is_sound());
    assert_ne!(found.head, before.head);
}
