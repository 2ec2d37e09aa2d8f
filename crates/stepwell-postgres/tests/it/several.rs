//! Several processes on one database. One process alone cannot show these conflicts, because it applies the commits of
//! a tenant one after the other.

use std::sync::Arc;

use stepwell_postgres::test_schema::TestSchema;
use stepwell_store::suite::{Shared, ask, bounded, links, make, seals};
use stepwell_store::{Commit, CommitError, Refused};

/// Opens four stores on one schema, one for each process.
async fn stores(test_schema: &TestSchema) -> Vec<Shared> {
    let mut stores: Vec<Shared> = Vec::new();
    for _ in 0..4 {
        stores.push(Arc::new(test_schema.open().await.unwrap()));
    }
    stores
}

/// Two processes must not both report that they created the same edge, or both count the same deletion.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_link_writes_match_their_answers() {
    let test_schema = crate::test_schema().await;
    bounded(async { links::contended(&stores(&test_schema).await).await }).await;
}

/// A process lists unsealed rows, and another process seals them. The first must not seal the same rows again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_sealing_seals_each_row_once() {
    let test_schema = crate::test_schema().await;
    bounded(async { seals::contended(&stores(&test_schema).await).await }).await;
}

/// When the answer to a commit is lost and it is sent to another process, it must not be applied twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_only_commit_sent_to_several_processes_is_applied_once() {
    let test_schema = crate::test_schema().await;
    bounded(async {
        let stores = stores(&test_schema).await;
        let make = make::Make::new();
        for round in 1..=10 {
            let links = vec![make::upsert(round, make::edge("a/1", "r", &format!("b/{round}")))];
            let twin = Commit { links, ..make.write([make::increment("count", 1)]) };
            let mut tasks = tokio::task::JoinSet::new();
            for store in stores.iter().cycle().take(12) {
                let (store, twin) = (store.clone(), twin.clone());
                tasks.spawn(async move { store.commit(make::ME, twin).await.is_ok() });
            }
            let applied = tasks.join_all().await.into_iter().filter(|applied| *applied).count();
            assert_eq!(applied, 1, "round {round}");
            let count = ask::get(&stores[0], "count").await.unwrap().value;
            assert_eq!(count, Some(round.into()));
        }
    })
    .await;
}

/// Sends commits that change the same handle to several processes at once. Returns the number of applied commits.
async fn at_once(stores: &[Shared], commits: impl Iterator<Item = Commit>) -> usize {
    let mut tasks = tokio::task::JoinSet::new();
    for (store, commit) in stores.iter().cycle().zip(commits) {
        let store = store.clone();
        tasks.spawn(async move { store.commit(make::ME, commit).await });
    }
    let is_done = |result: &Result<_, CommitError>| match result {
        Ok(_) => true,
        Err(CommitError::Refused(Refused::Handle { .. })) => false,
        Err(other) => panic!("{other}"),
    };
    tasks.join_all().await.iter().filter(|result| is_done(result)).count()
}

/// Two processes must not both create the same handle, both reserve it or both use it up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_one_of_several_concurrent_handle_writes_wins() {
    let test_schema = crate::test_schema().await;
    bounded(async {
        let stores = stores(&test_schema).await;
        let make = make::Make::new();
        let many = |write: &dyn Fn(u32) -> _| (0..12).map(|n| make.handle([write(n)])).collect::<Vec<_>>();
        for number in 1..=10 {
            let put = many(&|_| make::put_handle(make::flow(number)));
            assert_eq!(at_once(&stores, put.into_iter()).await, 1, "put {number}");
            let own = many(&|n| make::own(number, 1, make::process(n.into())));
            assert_eq!(at_once(&stores, own.into_iter()).await, 1, "reserved {number}");
            let used = many(&|_| make::delete_handle(number, 2));
            assert_eq!(at_once(&stores, used.into_iter()).await, 1, "used up {number}");
            assert_eq!(ask::handle(&stores[0], number).await, None);
        }
    })
    .await;
}
