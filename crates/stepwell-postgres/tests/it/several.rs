//! Several processes on one database: what one alone, whose commits of a tenant go one after the other, cannot show.

use std::sync::Arc;

use stepwell_postgres::ground::Ground;
use stepwell_store::suite::{Shared, ask, bounded, links, make, seals};
use stepwell_store::{Commit, CommitError, Refused};

/// As many stores as there would be processes, on one schema.
async fn stores(ground: &Ground) -> Vec<Shared> {
    let mut stores: Vec<Shared> = Vec::new();
    for _ in 0..4 {
        stores.push(Arc::new(ground.open().await.unwrap()));
    }
    stores
}

/// The accident: two look for an edge, neither finds it, and both say that they created it; or both delete it, and both
/// count it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn links_written_by_several_processes_at_once_are_what_each_was_told() {
    let ground = crate::ground().await;
    bounded(async { links::contended(&stores(&ground).await).await }).await;
}

/// The accident: one process lists what is to be sealed, another seals it, and the first then follows the other's
/// seal with one over the same rows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_processes_that_seal_at_once_seal_each_row_once() {
    let ground = crate::ground().await;
    bounded(async { seals::contended(&stores(&ground).await).await }).await;
}

/// The accident: the answer to a commit is lost, another process is asked the same, and both do it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_data_only_commit_sent_to_several_processes_is_applied_once() {
    let ground = crate::ground().await;
    bounded(async {
        let stores = stores(&ground).await;
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

/// How many of many that ask several processes the same of a handle, each in a commit of its own, are told that it is done.
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

/// The accident: two look for a handle, neither finds it, and both put it; or both reserve it, or use it up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_several_processes_that_write_a_handle_at_once_one_does() {
    let ground = crate::ground().await;
    bounded(async {
        let stores = stores(&ground).await;
        let make = make::Make::new();
        let many = |write: &dyn Fn(u32) -> _| (0..12).map(|n| make.handle([write(n)])).collect::<Vec<_>>();
        for number in 1..=10 {
            let put = many(&|_| make::rest(make::flow(number)));
            assert_eq!(at_once(&stores, put.into_iter()).await, 1, "put {number}");
            let own = many(&|n| make::own(number, 1, make::process(n.into())));
            assert_eq!(at_once(&stores, own.into_iter()).await, 1, "reserved {number}");
            let used = many(&|_| make::use_up(number, 2));
            assert_eq!(at_once(&stores, used.into_iter()).await, 1, "used up {number}");
            assert_eq!(ask::handle(&stores[0], number).await, None);
        }
    })
    .await;
}
