//! Group commit: a commit that fails does not affect the others in its batch.

use std::sync::Arc;

use stepwell_core::RunId;
use stepwell_sqlite::SqliteStore;
use stepwell_store::suite::{ask, make};
use stepwell_store::{CommitError, Refused, Store, StoreError};
use uuid::Uuid;

fn store() -> (tempfile::TempDir, Arc<SqliteStore>) {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(folder.path().join("runs.sqlite")).unwrap();
    (folder, Arc::new(store))
}

/// Sends many commits at once, some of them on a stale head. Each gets its own answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conflict_refuses_only_the_conflicting_commit() {
    let (_folder, store) = store();
    let make = make::Make::new();
    let mut commits = Vec::new();
    for number in 0..40_u128 {
        let run = RunId::new(Uuid::from_u128(number + 1));
        let head = ask::started(&*store, make.create(make::new_run(run))).await;
        if number % 2 == 0 {
            ask::moved(&*store, make.step(make::step(&head, "elsewhere"))).await;
        }
        commits.push((number, make.step(make::step(&head, "here"))));
    }
    let tasks: Vec<_> = commits
        .into_iter()
        .map(|(number, commit)| {
            let store = store.clone();
            tokio::spawn(async move { (number, store.commit(make::ME, commit).await) })
        })
        .collect();
    for task in tasks {
        let (number, result) = task.await.unwrap();
        match result {
            Ok(committed) => assert_eq!((number % 2, committed.head.unwrap().version), (1, 1)),
            Err(CommitError::Refused(Refused::Moved { .. })) => assert_eq!(number % 2, 0),
            Err(other) => panic!("{other}"),
        }
    }
}

/// A past bug: a checkpoint that exists already (a database restored by hand) makes SQLite itself refuse a row in the
/// middle of a batch. All other commits of the batch were reported as failed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn constraint_violation_fails_only_that_commit() {
    let (folder, store) = store();
    let make = make::Make::new();
    let mut heads = Vec::new();
    for number in 0..40_u128 {
        let run = RunId::new(Uuid::from_u128(number + 1));
        heads.push(ask::started(&*store, make.create(make::new_run(run))).await);
    }
    let broken = heads[7].run;
    let other = rusqlite::Connection::open(folder.path().join("runs.sqlite")).unwrap();
    let sql = "insert into checkpoints (tenant, run, version, base, commit_id, at, body, entry)
               select tenant, run, version + 1, base, commit_id, at, body, entry from checkpoints where run = ?1";
    assert_eq!(other.execute(sql, [broken.uuid().into_bytes()]).unwrap(), 1);
    drop(other);
    let tasks: Vec<_> = heads
        .iter()
        .map(|head| {
            let (store, run, commit) = (store.clone(), head.run, make.step(make::step(head, "on")));
            tokio::spawn(async move { (run, store.commit(make::ME, commit).await) })
        })
        .collect();
    for task in tasks {
        let (run, result) = task.await.unwrap();
        if run == broken {
            let error = result.unwrap_err();
            assert!(matches!(&error, CommitError::Store(StoreError::Invalid(_))), "{error}");
        } else {
            assert_eq!(result.unwrap().head.unwrap().version, 1);
        }
    }
    assert_eq!(ask::load(&*store, broken).await.head.version, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queued_commits_are_applied_before_the_store_closes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("runs.sqlite");
    let store = Arc::new(SqliteStore::open(&path).unwrap());
    let make = make::Make::new();
    let tasks: Vec<_> = (0..200_u128)
        .map(|number| {
            let run = RunId::new(Uuid::from_u128(number + 1));
            let (store, commit) = (store.clone(), make.create(make::new_run(run)));
            tokio::spawn(async move { (run, store.commit(make::ME, commit).await.is_ok()) })
        })
        .collect();
    drop(store);
    let mut committed = Vec::new();
    for task in tasks {
        let (run, ok) = task.await.unwrap();
        assert!(ok);
        committed.push(run);
    }
    let store = loop {
        // The last task may still be closing the store.
        match SqliteStore::open(&path) {
            Ok(store) => break store,
            Err(_) => tokio::task::yield_now().await,
        }
    };
    for run in committed {
        assert!(ask::find(&store, run).await.is_some());
    }
}

/// Under steady load the log would grow without limit if it could be emptied only when no commit is queued.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn write_ahead_log_stays_short_under_steady_load() {
    let (folder, store) = store();
    let make = make::Make::new();
    let text = "x".repeat(60_000);
    let mut tasks = Vec::new();
    let commits = 3_000_u128;
    let made: Vec<_> = (0..commits).map(|n| RunId::new(Uuid::from_u128(n + 1))).map(make::new_run).collect();
    for (number, mut new) in made.into_iter().enumerate() {
        // Random text does not compress: each commit writes about 15 pages.
        let mut seed = number as u64 + 1;
        let random: String = text
            .chars()
            .map(|_| {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                char::from(b'!' + (seed >> 40) as u8 % 90)
            })
            .collect();
        new.first.state = random.into_bytes().into();
        let (store, commit) = (store.clone(), make.create(new));
        tasks.push(tokio::spawn(async move { store.commit(make::ME, commit).await.map(drop) }));
        if tasks.len() == 32 {
            for task in tasks.drain(..) {
                task.await.unwrap().unwrap();
            }
        }
    }
    let log = std::fs::metadata(folder.path().join("runs.sqlite-wal")).unwrap().len();
    let written = commits as u64 * 60_000;
    assert!(log < written / 2, "the log has {log} of {written} bytes");
}
