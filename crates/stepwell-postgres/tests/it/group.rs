//! Group commit: a commit that fails does not affect the others in its batch.

use std::sync::Arc;

use futures_util::future::join_all;
use stepwell_postgres::test_schema::TestSchema;
use stepwell_postgres::{Options, PostgresStore};
use stepwell_store::suite::{ask, make};
use stepwell_store::{
    Commit, CommitError, Committed, HandleRow, HandleWrite, Head, HistoryQuery, Record, RecordQuery, Refused,
    ShadowWrite, Store, StoreError,
};

use crate::raw::{client, soon};

/// Opens a store with one committer. Commits that one thread queues before the committer runs go in one batch.
async fn store() -> (TestSchema, PostgresStore) {
    let test_schema = crate::test_schema().await;
    let options = Options { committers: 1, ..test_schema.options() };
    let store = PostgresStore::open_with(test_schema.engine(), options).await.unwrap();
    (test_schema, store)
}

async fn begun(store: &PostgresStore, make: &make::Make, runs: u128) -> Vec<Head> {
    let all = (1..=runs).map(|n| ask::started(store, make.create(make::new_run(make::run(n)))));
    soon(join_all(all)).await
}

async fn together(store: &PostgresStore, commits: Vec<Commit>) -> Vec<Result<Committed, CommitError>> {
    soon(join_all(commits.into_iter().map(|commit| store.commit(make::ME, commit)))).await
}

/// Sends many commits at once, some of them on a stale head. Each gets its own answer.
#[tokio::test]
async fn conflict_refuses_only_the_conflicting_commit() {
    let (_test_schema, store) = store().await;
    let make = make::Make::new();
    let heads = begun(&store, &make, 40).await;
    for head in heads.iter().step_by(2) {
        ask::moved(&store, make.step(make::step(head, "elsewhere"))).await;
    }
    let commits = heads.iter().map(|head| make.step(make::step(head, "here"))).collect();
    for (number, result) in together(&store, commits).await.into_iter().enumerate() {
        match result {
            Ok(committed) => assert_eq!((number % 2, committed.head.unwrap().version), (1, 1)),
            Err(CommitError::Refused(Refused::Moved { .. })) => assert_eq!(number % 2, 0),
            Err(other) => panic!("{other}"),
        }
    }
}

/// A past bug: a checkpoint that exists already (a database restored by hand) makes PostgreSQL itself refuse a row in
/// the middle of a batch. All other commits of the batch were reported as failed.
#[tokio::test]
async fn existing_checkpoint_fails_only_that_commit() {
    let (test_schema, store) = store().await;
    let make = make::Make::new();
    let heads = begun(&store, &make, 40).await;
    let broken = heads[7].run;
    let admin = client(&test_schema, test_schema.admin()).await;
    let sql = "insert into checkpoints (tenant, run, version, base, commit_id, at, body, entry)
               select tenant, run, version + 1, base, commit_id, at, body, entry
                 from checkpoints where run = $1";
    assert_eq!(admin.execute(sql, &[&broken.uuid()]).await.unwrap(), 1);
    let commits = heads.iter().map(|head| make.step(make::step(head, "on"))).collect();
    for (head, result) in heads.iter().zip(together(&store, commits).await) {
        if head.run == broken {
            let error = result.unwrap_err();
            assert!(matches!(&error, CommitError::Store(StoreError::Invalid(_))), "{error}");
        } else {
            assert_eq!(result.unwrap().head.unwrap().version, 1);
        }
    }
    assert_eq!(ask::load(&store, broken).await.head.version, 0);
}

/// A step on a missing run fails the whole statement, but must not fail the other commits.
#[tokio::test]
async fn step_on_a_missing_run_does_not_fail_its_batch() {
    let (_test_schema, store) = store().await;
    let make = make::Make::new();
    let heads = begun(&store, &make, 40).await;
    let nowhere = Head { run: make::run(99), ..heads[0].clone() };
    let mut commits: Vec<_> = heads.iter().map(|head| make.step(make::step(head, "on"))).collect();
    commits.insert(20, make.step(make::step(&nowhere, "on")));
    let mut results = together(&store, commits).await;
    let missing = results.remove(20).unwrap_err();
    assert_eq!(missing, CommitError::Refused(Refused::NoRun { run: nowhere.run }));
    for result in results {
        assert_eq!(result.unwrap().head.unwrap().version, 1);
    }
    assert!(ask::find(&store, nowhere.run).await.is_none(), "and the step has not created a run");
}

/// If the row of a refused commit is unreadable, the other commits of the batch are stored already. They must not be
/// retried and then reported as refused.
#[tokio::test]
async fn unreadable_row_fails_only_its_own_commit() {
    let (test_schema, store) = store().await;
    let make = make::Make::new();
    let heads = begun(&store, &make, 10).await;
    ask::moved(&store, make.step(make::step(&heads[3], "elsewhere"))).await;
    let admin = client(&test_schema, test_schema.admin()).await;
    let sql = "update runs set status = 'nonsense' where id = $1";
    assert_eq!(admin.execute(sql, &[&heads[3].run.uuid()]).await.unwrap(), 1);
    let commits = heads.iter().map(|head| make.step(make::step(head, "on"))).collect();
    for (number, result) in together(&store, commits).await.into_iter().enumerate() {
        match result {
            Ok(committed) => assert_eq!(committed.head.unwrap().version, 1, "{number}"),
            Err(error) => assert_eq!(number, 3, "{error}"),
        }
    }
}

/// A new handle, with shadow columns of its flow.
fn put_handle(row: HandleRow, shadows: Vec<ShadowWrite>) -> HandleWrite {
    HandleWrite { expected: None, ..make::put_handle_on(0, row, shadows) }
}

/// Each commit of a batch sees the changes of a handle by earlier commits. The last write of a flow's column counts.
#[tokio::test]
async fn last_commit_of_a_batch_decides_a_handle() {
    let (_test_schema, store) = store().await;
    let make = make::Make::new();
    let moved = HandleRow { handle: make::hash(2), ..make::flow(1) };
    let commits = vec![
        make.handle([put_handle(
            make::flow(1),
            vec![make::set_shadow("email", "ann"), make::set_shadow("paid", true)],
        )]),
        make.handle([put_handle(make::flow(1), Vec::new())]),
        make.handle([make::own(1, 1, make::process(1))]),
        make.handle([
            make::delete_handle(1, 2),
            put_handle(moved.clone(), vec![make::set_shadow("total", 1)]),
        ]),
        make.handle([make::put_handle_on(1, moved, vec![make::unset_shadow("email")])]),
        make.handle([put_handle(make::flow(3), vec![make::set_shadow("email", "eve")])]),
        make.handle([make::delete_handle(3, 1)]),
        make.handle([put_handle(make::flow(3), vec![make::set_shadow("total", 3)])]),
    ];
    let results = together(&store, commits.clone()).await;
    let taken = Refused::Handle { handle: make::hash(1), expected: None, actual: Some(1) };
    for (number, result) in results.into_iter().enumerate() {
        match number {
            1 => assert_eq!(result.unwrap_err(), CommitError::Refused(taken.clone())),
            _ => assert!(result.is_ok(), "{number}: {result:?}"),
        }
    }
    assert_eq!(ask::handle(&store, 1).await, None);
    let second = ask::handle(&store, 2).await.unwrap();
    assert_eq!((second.fence, second.commit, second.run), (2, commits[4].id, make::run(1)));
    let third = ask::handle(&store, 3).await.unwrap();
    assert_eq!((third.fence, third.commit), (1, commits[7].id));
    for (run, names) in [(1, vec!["paid", "total"]), (3, vec!["total"])] {
        let found = store.records(make::ME, RecordQuery::Shadows(make::run(run))).await.unwrap().items;
        let name = |record: &Record| match record {
            Record::Shadow(row) => row.name.to_string(),
            other => panic!("{other:?}"),
        };
        assert_eq!(found.iter().map(name).collect::<Vec<_>>(), names, "run {run}");
    }
}

#[tokio::test]
async fn queued_commits_are_applied_after_the_store_is_closed() {
    let (test_schema, store) = store().await;
    let (store, make) = (Arc::new(store), make::Make::new());
    let tasks: Vec<_> = (1..=200)
        .map(|number| {
            let (store, commit) = (store.clone(), make.create(make::new_run(make::run(number))));
            tokio::spawn(async move { store.commit(make::ME, commit).await })
        })
        .collect();
    drop(store);
    for task in tasks {
        soon(task).await.unwrap().unwrap();
    }
    let store = test_schema.open().await.unwrap();
    for number in 1..=200 {
        ask::load(&store, make::run(number)).await;
    }
}

/// A tenant must not wait endlessly because others have more commits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_concurrent_tenants_are_all_served() {
    let store = Arc::new(crate::open().await);
    let make = Arc::new(make::Make::new());
    let tasks: Vec<_> = (1..=200)
        .map(|number| {
            let (store, make) = (store.clone(), make.clone());
            tokio::spawn(async move {
                let scope = make::tenant(number);
                let start = make.create(make::new_run(make::run(1)));
                let mut head = store.commit(scope, start).await.unwrap().created.remove(0);
                for step in 1..5 {
                    let step = make.step(make::step(&head, &format!("{number} at {step}")));
                    head = store.commit(scope, step).await.unwrap().head.unwrap();
                }
                let all = HistoryQuery { run: head.run, from: 0, with_state: false, limit: 100 };
                (head.version, store.history(scope, all).await.unwrap().items.len())
            })
        })
        .collect();
    for task in tasks {
        assert_eq!(soon(task).await.unwrap(), (4, 5));
    }
}
