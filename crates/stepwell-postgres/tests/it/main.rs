//! The PostgreSQL store: the suite every backend passes, the random scripts against the reference model, and what only a
//! server that others use too can show.
#![allow(clippy::unwrap_used)]

mod counted;
mod group;
mod lost;
mod migrations;
mod network;
mod own;
mod raw;
mod several;
mod status;
mod view;
mod wall;

mod asked;

use stepwell_postgres::ground::Ground;
use stepwell_postgres::{Options, PostgresStore};
use stepwell_store::MemoryStore;
use stepwell_store::suite::{Fresh, script};

async fn ground() -> Ground {
    Ground::shared().await.unwrap()
}

async fn open() -> PostgresStore {
    ground().await.open().await.unwrap()
}

async fn memory_store() -> Fresh {
    Fresh::new(MemoryStore::new())
}

async fn postgres_store() -> Fresh {
    let (store, lease) = Ground::open_recycled(|options| options).await.unwrap();
    Fresh::keeping(store, lease)
}

stepwell_store::conformance!(postgres, postgres_store);

/// The statements for tenants that are spread over nodes, where they are not.
async fn spread_store() -> Fresh {
    let spread = |options| Options { spread: true, ..options };
    let (store, lease) = Ground::open_recycled(spread).await.unwrap();
    Fresh::keeping(store, lease)
}

stepwell_store::conformance!(spread, spread_store);

#[test]
fn random_scripts_get_the_same_answers_as_from_the_reference_model() {
    let tally = script::differential(60, memory_store, postgres_store);
    assert!(tally.values().sum::<usize>() > 400, "{tally:?}");
}

#[test]
fn random_scripts_get_the_same_answers_where_tenants_are_spread() {
    let tally = script::differential(25, memory_store, spread_store);
    assert!(tally.values().sum::<usize>() > 150, "{tally:?}");
}
