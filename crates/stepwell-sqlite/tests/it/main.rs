//! Tests of the SQLite store: the suite for all backends, random scripts against the reference model, and tests that
//! need a database on disk.
#![allow(clippy::unwrap_used)]

mod backup;
mod check;
mod disk;
mod files;
mod group;
mod own;
mod restore;
mod victim;
mod view;

use stepwell_sqlite::SqliteStore;
use stepwell_store::MemoryStore;
use stepwell_store::suite::{Fresh, script};

async fn memory_store() -> Fresh {
    Fresh::new(MemoryStore::new())
}

async fn sqlite_store() -> Fresh {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(folder.path().join("runs.sqlite")).unwrap();
    Fresh::with_guard(store, folder)
}

stepwell_store::conformance!(sqlite, sqlite_store);

#[test]
fn random_scripts_agree_with_the_reference_model() {
    let tally = script::differential(150, memory_store, sqlite_store);
    assert!(tally.values().sum::<usize>() > 1_000, "{tally:?}");
}
