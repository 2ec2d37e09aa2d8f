//! Measures what a commit has to wait for: the number of pages per second that can be written and synced.

use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::error::OpenError;
use crate::names::file_error;
use crate::partial::Partial;

const PAGE: usize = 4096;
/// Length of the file in pages. Like the write-ahead log of a database in use, the file has its full length before the
/// measurement and is overwritten from its beginning. So each sync writes pages and not a new file size.
const PAGES: u64 = 1_000;

/// The speed at which a disk writes and syncs single pages.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FsyncRate {
    /// Synced pages per second, one after the other. This is the maximum rate of transactions, each with up to
    /// [`Options::batch`](crate::Options::batch) commits.
    pub per_second: f64,
    /// Median time to write and sync a page, in microseconds.
    pub p50_us: u64,
    /// 99th percentile of the time to write and sync a page, in microseconds.
    pub p99_us: u64,
}

/// Writes and syncs single pages of a temporary file in `folder` for the given period, and removes the file.
///
/// Blocks the calling thread meanwhile, and slows down commits in the same file system.
pub fn fsync_rate(folder: impl AsRef<Path>, period: Duration) -> Result<FsyncRate, OpenError> {
    let folder = folder.as_ref();
    let mut file = Partial::sibling(&folder.join("stepwell-fsync"))?;
    let took = measure(&mut file, period);
    let took =
        took.map_err(|error| file_error(folder, &format!("cannot write and sync a file in it: {error}")))?;
    Ok(rate(took))
}

fn measure(partial: &mut Partial, period: Duration) -> io::Result<Vec<Duration>> {
    let (file, page) = (&mut partial.file, [0x5a; PAGE]);
    for _ in 0..PAGES {
        file.write_all(&page)?;
    }
    file.sync_all()?;
    let (began, mut took) = (Instant::now(), Vec::new());
    loop {
        let before = Instant::now();
        file.seek(SeekFrom::Start(took.len() as u64 % PAGES * PAGE as u64))?;
        file.write_all(&page)?;
        file.sync_data()?;
        took.push(before.elapsed());
        if began.elapsed() >= period {
            return Ok(took);
        }
    }
}

fn rate(mut took: Vec<Duration>) -> FsyncRate {
    took.sort_unstable();
    let seconds = took.iter().sum::<Duration>().as_secs_f64();
    let within = |percent: usize| {
        let last = (took.len() * percent).div_ceil(100).max(1) - 1;
        took.get(last).map_or(0, |took| took.as_micros() as u64)
    };
    FsyncRate { per_second: took.len() as f64 / seconds.max(1e-9), p50_us: within(50), p99_us: within(99) }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{FsyncRate, fsync_rate, rate};

    #[test]
    fn fsync_measurement_leaves_the_directory_unchanged() {
        let folder = tempfile::tempdir().unwrap();
        let found = fsync_rate(folder.path(), Duration::from_millis(20)).unwrap();
        assert!(found.per_second > 0.0 && found.p50_us <= found.p99_us, "{found:?}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        let error = fsync_rate(folder.path().join("nowhere"), Duration::ZERO).unwrap_err();
        assert!(error.to_string().contains("nowhere"), "{error}");
    }

    #[test]
    fn percentiles_are_computed_from_sorted_times() {
        let took = (1..=100).rev().map(Duration::from_millis).collect();
        let FsyncRate { per_second, p50_us, p99_us } = rate(took);
        assert_eq!((p50_us, p99_us), (50_000, 99_000));
        assert!((per_second - 100.0 / 5.05).abs() < 1e-6, "{per_second}");
        assert_eq!(rate(vec![Duration::from_micros(7)]).p99_us, 7);
    }
}
