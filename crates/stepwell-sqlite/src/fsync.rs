//! Measures what a commit has to wait for: how often a second a page can be brought to disk.

use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::error::OpenError;
use crate::names::wrong;
use crate::partial::Partial;

const PAGE: usize = 4096;
/// As the log of a database that has been in use for a while, the file has its length already and is written anew from
/// its beginning: what is brought to disk is pages and not a new size.
const PAGES: u64 = 1_000;

/// How fast a disk brings a page to rest.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FsyncRate {
    /// How many, one after the other, in a second. At most so many transactions can be; each has up to
    /// [`Options::batch`](crate::Options::batch) commits.
    pub per_second: f64,
    /// Half of them take no longer than this.
    pub p50_us: u64,
    /// 99 of 100 take no longer than this.
    pub p99_us: u64,
}

/// Writes pages to a file of its own in a folder, brings each to disk, and takes the file away again. It blocks its thread
/// for that long, and makes commits in the same file system slower meanwhile.
pub fn fsync_rate(folder: impl AsRef<Path>, period: Duration) -> Result<FsyncRate, OpenError> {
    let folder = folder.as_ref();
    let mut file = Partial::beside(&folder.join("stepwell-fsync"))?;
    let took = measure(&mut file, period);
    let took =
        took.map_err(|error| wrong(folder, &format!("nothing can be brought to disk in it: {error}")))?;
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
    fn a_folder_is_measured_and_left_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let found = fsync_rate(folder.path(), Duration::from_millis(20)).unwrap();
        assert!(found.per_second > 0.0 && found.p50_us <= found.p99_us, "{found:?}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        let error = fsync_rate(folder.path().join("nowhere"), Duration::ZERO).unwrap_err();
        assert!(error.to_string().contains("nowhere"), "{error}");
    }

    #[test]
    fn half_take_no_longer_than_the_middle_one() {
        let took = (1..=100).rev().map(Duration::from_millis).collect();
        let FsyncRate { per_second, p50_us, p99_us } = rate(took);
        assert_eq!((p50_us, p99_us), (50_000, 99_000));
        assert!((per_second - 100.0 / 5.05).abs() < 1e-6, "{per_second}");
        assert_eq!(rate(vec![Duration::from_micros(7)]).p99_us, 7);
    }
}
