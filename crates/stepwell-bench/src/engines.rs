//! Engines on a store, opened and closed as a program would.

use std::sync::Arc;
use std::time::Duration;

use stepwell::Engine;
use stepwell::engine::Builder;
use stepwell_sqlite::SqliteStore;
use stepwell_store::Store;

use crate::site::Place;

/// The store in a place, with its defaults.
pub(crate) async fn open(place: &Place) -> Result<Arc<dyn Store>, String> {
    match place {
        Place::Sqlite(path) => Ok(Arc::new(SqliteStore::open(path).map_err(|error| error.to_string())?)),
        Place::Postgres(ground) => Ok(Arc::new(ground.open().await.map_err(|error| error.to_string())?)),
    }
}

/// For engines that are killed again and again: how many kills hit the same step depends on the speed of the machine, so no
/// number of them stops a run.
pub(crate) fn tolerant(builder: Builder) -> Builder {
    builder.with(|options| options.max_crashes = 10_000)
}

/// Stops an engine and waits until the store is let go of, which is when the last task that holds on to the engine ends.
pub(crate) async fn close(engine: Engine) {
    engine.stop(Duration::from_secs(5)).await;
    let store = Arc::downgrade(engine.store());
    drop(engine);
    for _ in 0..500 {
        if store.strong_count() == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
