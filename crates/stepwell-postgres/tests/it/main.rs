//! Tests of the PostgreSQL store: the suite for all backends, random scripts against the reference model, and tests
//! that need a shared server.
#![allow(clippy::unwrap_used)]

mod citus;
mod counted;
mod group;
mod lost;
mod migrations;
mod network;
mod own;
mod raw;
mod recorded;
mod several;
mod silent;
mod status;
mod view;
mod wall;

mod asked;
#[path = "../../src/citus_rules.rs"]
mod citus_rules;

use std::sync::OnceLock;

use stepwell_postgres::cluster::Cluster;
use stepwell_postgres::test_schema::TestSchema;
use stepwell_postgres::{Options, PostgresStore};
use stepwell_store::MemoryStore;
use stepwell_store::suite::{Fresh, script};

async fn test_schema() -> TestSchema {
    TestSchema::shared().await.unwrap()
}

/// Returns the throwaway server that all tests share, also if the tests run on an external one. For tests that need its
/// superuser.
async fn cluster() -> &'static Cluster {
    static CLUSTER: OnceLock<Cluster> = OnceLock::new();
    let start = || CLUSTER.get_or_init(|| Cluster::shared().unwrap());
    tokio::task::spawn_blocking(start).await.unwrap()
}

async fn open() -> PostgresStore {
    test_schema().await.open().await.unwrap()
}

async fn memory_store() -> Fresh {
    Fresh::new(MemoryStore::new())
}

async fn postgres_store() -> Fresh {
    let (store, lease) = TestSchema::open_recycled(|options| options).await.unwrap();
    Fresh::with_guard(store, lease)
}

stepwell_store::conformance!(postgres, postgres_store);

/// Opens a store that uses the statements for tenants spread over nodes, without such nodes.
async fn spread_store() -> Fresh {
    let spread = |options| Options { spread: true, ..options };
    let (store, lease) = TestSchema::open_recycled(spread).await.unwrap();
    Fresh::with_guard(store, lease)
}

stepwell_store::conformance!(spread, spread_store);

#[test]
fn random_scripts_agree_with_the_reference_model() {
    let tally = script::differential(60, memory_store, postgres_store);
    assert!(tally.values().sum::<usize>() > 400, "{tally:?}");
}

#[test]
fn random_scripts_agree_where_tenants_are_spread() {
    let tally = script::differential(25, memory_store, spread_store);
    assert!(tally.values().sum::<usize>() > 150, "{tally:?}");
}
