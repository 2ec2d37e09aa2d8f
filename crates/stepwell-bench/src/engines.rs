//! Engines on a file, opened and closed as a program would.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use stepwell::Engine;
use stepwell_sqlite::SqliteStore;
use stepwell_store::Store;

/// The store in a file, with its defaults.
pub(crate) fn open(path: &Path) -> Result<Arc<dyn Store>, String> {
    Ok(Arc::new(SqliteStore::open(path).map_err(|error| error.to_string())?))
}

/// Stops an engine and waits until the file is let go of, which is when the last task that holds on to the engine ends.
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
