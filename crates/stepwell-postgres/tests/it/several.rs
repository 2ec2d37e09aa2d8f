//! Several processes on one database: what one alone, whose commits of a tenant go one after the other, cannot show.

use std::sync::Arc;

use stepwell_postgres::ground::Ground;
use stepwell_store::suite::{Shared, ask, bounded, links, make, seals};

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
            let twin = stepwell_store::Commit { links, ..make.write([make::increment("count", 1)]) };
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
