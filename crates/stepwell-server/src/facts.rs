//! Measurements of this process's store for the doctor: sizes, free disk space and fsyncs per second.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use stepwell::store::Store;
use stepwell_server::api::{StoreInfo, StoreInfoSource};
use stepwell_sqlite::{FsyncRate, SqliteStore};

use crate::start::{Opened, sqlite_path};

/// Duration of one fsync measurement.
const MEASURED: Duration = Duration::from_millis(250);
/// Time for which a measurement is reused, so that frequent queries do not slow the store down.
const GOOD_FOR: Duration = Duration::from_secs(60);

type Rate = Arc<Mutex<Option<(Instant, FsyncRate)>>>;

/// Returns the function with which the API measures the store.
pub(crate) fn of(opened: &Opened, url: &str) -> StoreInfoSource {
    match opened {
        Opened::Sqlite(store) => {
            let (store, rate, path) = (store.clone(), Rate::default(), sqlite_path(url).unwrap_or_default());
            Arc::new(move || {
                let (store, rate, path) = (store.clone(), rate.clone(), path.clone());
                Box::pin(async move { of_sqlite(&store, path, rate).await })
            })
        }
        Opened::Postgres(store) => {
            let store = store.clone();
            Arc::new(move || {
                let store = store.clone();
                Box::pin(async move {
                    let status = store.status().await.map_err(|error| error.to_string())?;
                    Ok(StoreInfo {
                        kind: format!("postgres {}", status.server),
                        schema: Some(status.schema.0),
                        bytes: Some(status.database_bytes),
                        ..StoreInfo::default()
                    })
                })
            })
        }
    }
}

async fn of_sqlite(store: &SqliteStore, path: PathBuf, rate: Rate) -> Result<StoreInfo, String> {
    let said = |error: &dyn std::fmt::Display| error.to_string();
    let sizes = store.sizes().await.map_err(|error| said(&error))?;
    let schema = store.migrate().await.map_err(|error| said(&error))?;
    let measured =
        tokio::task::spawn_blocking(move || measured(&path, &rate)).await.map_err(|error| said(&error))?;
    let (free_bytes, rate) = measured?;
    Ok(StoreInfo {
        kind: "sqlite".to_owned(),
        schema: Some(schema.0),
        bytes: Some(sizes.file_bytes),
        log_bytes: Some(sizes.log_bytes),
        free_bytes,
        fsyncs_per_second: Some(rate.per_second.round()),
        fsync_p50_us: Some(rate.p50_us),
        fsync_p99_us: Some(rate.p99_us),
    })
}

fn measured(path: &Path, rate: &Rate) -> Result<(Option<u64>, FsyncRate), String> {
    let folder = folder(path);
    let mut known = rate.lock().unwrap_or_else(PoisonError::into_inner);
    let fresh = known.filter(|(at, _)| at.elapsed() < GOOD_FOR).map(|(_, rate)| rate);
    let rate = match fresh {
        Some(rate) => rate,
        None => stepwell_sqlite::fsync_rate(&folder, MEASURED).map_err(|error| error.to_string())?,
    };
    if fresh.is_none() {
        *known = Some((Instant::now(), rate));
    }
    Ok((free(&folder), rate))
}

/// Returns the directory of a file; `.` for a bare file name.
pub(crate) fn folder(path: &Path) -> PathBuf {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new(".")).to_path_buf()
}

/// Returns the free bytes on the disk of a directory, not counting blocks reserved for root.
pub(crate) fn free(folder: &Path) -> Option<u64> {
    let found = rustix::fs::statvfs(folder).ok()?;
    Some(found.f_bavail.saturating_mul(found.f_frsize))
}
