//! Group commit: what goes wrong with one commit is not the others' affair.

use std::sync::Arc;

use futures_util::future::join_all;
use stepwell_postgres::ground::Ground;
use stepwell_postgres::{Options, PostgresStore};
use stepwell_store::suite::{ask, make};
use stepwell_store::{
    Commit, CommitError, Committed, HandleRow, HandleWrite, Head, HistoryQuery, Record, RecordQuery, Refused,
    ShadowWrite, Store, StoreError,
};

use crate::raw::{client, soon};

/// A store with one committer: whatever is asked for on one thread before it has its turn goes in one batch.
async fn store() -> (Ground, PostgresStore) {
    let ground = crate::ground().await;
    let options = Options { committers: 1, ..ground.options() };
    let store = PostgresStore::open_with(ground.engine(), options).await.unwrap();
    (ground, store)
}

async fn begun(store: &PostgresStore, make: &make::Make, runs: u128) -> Vec<Head> {
    let all = (1..=runs).map(|n| ask::started(store, make.create(make::new_run(make::run(n)))));
    soon(join_all(all)).await
}

async fn together(store: &PostgresStore, commits: Vec<Commit>) -> Vec<Result<Committed, CommitError>> {
    soon(join_all(commits.into_iter().map(|commit| store.commit(make::ME, commit)))).await
}

/// Many commits at once, some of them on a head that has moved: each gets its own answer.
#[tokio::test]
async fn a_conflict_leaves_out_that_one_commit_only() {
    let (_ground, store) = store().await;
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

/// The accident: a checkpoint that is there already (a database restored by hand) makes PostgreSQL itself
/// refuse a row in the middle of a batch. Everybody else in the batch was told that it failed.
#[tokio::test]
async fn a_checkpoint_that_is_there_already_leaves_out_that_one_commit_only() {
    let (ground, store) = store().await;
    let make = make::Make::new();
    let heads = begun(&store, &make, 40).await;
    let broken = heads[7].run;
    let admin = client(&ground, ground.admin()).await;
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

/// A step on a run that is not there fails the whole statement, and must not fail the others.
#[tokio::test]
async fn a_step_on_a_run_that_is_not_there_is_refused_and_the_others_of_its_batch_are_applied() {
    let (_ground, store) = store().await;
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
    assert!(ask::find(&store, nowhere.run).await.is_none(), "and no run has begun by that");
}

/// The accident: the row of a commit that was left out cannot be read, and the others of its batch, which are
/// in the database, are tried once more and told that they were refused.
#[tokio::test]
async fn a_row_that_cannot_be_read_is_the_affair_of_its_own_commit_only() {
    let (ground, store) = store().await;
    let make = make::Make::new();
    let heads = begun(&store, &make, 10).await;
    ask::moved(&store, make.step(make::step(&heads[3], "elsewhere"))).await;
    let admin = client(&ground, ground.admin()).await;
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
fn rest(row: HandleRow, shadows: Vec<ShadowWrite>) -> HandleWrite {
    HandleWrite { expected: None, ..make::rest_on(0, row, shadows) }
}

/// Each commit of a batch is decided on what those before it leave of a handle, and of its flow's columns the last word
/// counts.
#[tokio::test]
async fn handles_written_in_one_batch_are_what_the_last_commit_leaves() {
    let (_ground, store) = store().await;
    let make = make::Make::new();
    let moved = HandleRow { handle: make::hash(2), ..make::flow(1) };
    let commits = vec![
        make.handle([rest(make::flow(1), vec![make::shade("email", "ann"), make::shade("paid", true)])]),
        make.handle([rest(make::flow(1), Vec::new())]),
        make.handle([make::own(1, 1, make::process(1))]),
        make.handle([make::use_up(1, 2), rest(moved.clone(), vec![make::shade("total", 1)])]),
        make.handle([make::rest_on(1, moved, vec![make::unshade("email")])]),
        make.handle([rest(make::flow(3), vec![make::shade("email", "eve")])]),
        make.handle([make::use_up(3, 1)]),
        make.handle([rest(make::flow(3), vec![make::shade("total", 3)])]),
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
async fn commits_that_wait_when_the_store_is_closed_are_made() {
    let (ground, store) = store().await;
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
    let store = ground.open().await.unwrap();
    for number in 1..=200 {
        ask::load(&store, make::run(number)).await;
    }
}

/// No tenant waits for ever because others have more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tenants_at_once_are_all_served() {
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
