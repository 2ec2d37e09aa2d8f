//! Opens stores and closes engines as a program would.

use std::sync::Arc;
use std::time::{Duration, Instant};

use stepwell::Engine;
use stepwell::engine::Builder;
use stepwell_sqlite::{OpenError, SqliteStore};
use stepwell_store::Store;

use crate::site::Place;

/// Maximum time until a store that this process has dropped has released its file.
const RELEASED: Duration = Duration::from_secs(10);

/// Opens the store of a place with its default options.
pub(crate) async fn open(place: &Place) -> Result<Arc<dyn Store>, String> {
    match place {
        Place::Sqlite(path) => {
            let began = Instant::now();
            loop {
                match SqliteStore::open(path) {
                    Ok(store) => return Ok(Arc::new(store)),
                    // The previous store is dropped, but its threads may not have ended yet.
                    Err(OpenError::InUse { .. }) if began.elapsed() < RELEASED => {
                        tokio::time::sleep(Duration::from_millis(10)).await;
                    }
                    Err(error) => return Err(error.to_string()),
                }
            }
        }
        Place::Postgres(test_schema) => {
            Ok(Arc::new(test_schema.open().await.map_err(|error| error.to_string())?))
        }
    }
}

/// Raises the crash limit for engines that are killed repeatedly. The number of kills that hit the same step depends on
/// the speed of the machine, so it must not fail a run.
pub(crate) fn tolerant(builder: Builder) -> Builder {
    builder.with(|options| options.max_crashes = 10_000)
}

/// Stops an engine and waits until its store is closed. That happens when the last task that references the engine
/// ends.
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
