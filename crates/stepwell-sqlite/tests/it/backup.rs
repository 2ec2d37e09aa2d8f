//! Backups: consistent under load, complete or absent, and without blocking commits.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rusqlite::Connection;
use stepwell_sqlite::{
    BackupError, BackupProgress, Existing, OpenError, SqliteStore, backup_file, check, restore,
};
use stepwell_store::suite::{ask, make};
use stepwell_store::{Commit, HistoryQuery, StoreError};

use crate::victim::{self, Victim};

/// Returns the sorted names of the files in a directory.
pub(crate) fn files(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Opens a store with this many mebibytes of foreign data in it.
fn large(path: &Path, mebibytes: u32) -> SqliteStore {
    let store = SqliteStore::open(path).unwrap();
    let other = Connection::open(path).unwrap();
    other.execute_batch("create table ballast (x blob)").unwrap();
    let mut insert = other.prepare("insert into ballast values (randomblob(1048576))").unwrap();
    (0..mebibytes).for_each(|_| assert_eq!(insert.execute([]).unwrap(), 1));
    store
}

/// Starts runs, each in its own commit.
pub(crate) async fn start_runs(store: &SqliteStore, numbers: std::ops::RangeInclusive<u128>) {
    let make = make::Make::new();
    for number in numbers {
        ask::started(store, make.create(make::new_run(make::run(number)))).await;
    }
}

/// Advances a run in an endless loop and increments a cell in the same commits. Stores the last acknowledged version in
/// `acknowledged`.
async fn keep_moving(store: Arc<SqliteStore>, number: u128, acknowledged: Arc<AtomicU64>) {
    let make = make::Make::new();
    let mut head = ask::started(&*store, make.create(make::new_run(make::run(number)))).await;
    for done in 1.. {
        let id = stepwell_store::CommitId(uuid::Uuid::from_u128(number << 64 | u128::from(done)));
        let cells = vec![make::increment(&number.to_string(), 1)];
        let commit = make.step(make::step(&head, &done.to_string()));
        head = ask::moved(&*store, Commit { id, cells, ..commit }).await;
        acknowledged.store(done, Ordering::SeqCst);
    }
}

/// Every step of the copy waits until each run has advanced again. A copy that restarts after a commit would never end.
/// If commits waited for the copy, neither would make progress.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backup_under_load_is_a_consistent_snapshot() {
    let folder = tempfile::tempdir().unwrap();
    let (path, to) = (folder.path().join("runs.sqlite"), folder.path().join("backup.sqlite"));
    let store = Arc::new(large(&path, 12));
    let acknowledged: Vec<_> = (0..4).map(|_| Arc::new(AtomicU64::new(0))).collect();
    let movers = acknowledged.iter().enumerate();
    let movers: Vec<_> = movers
        .map(|(number, done)| tokio::spawn(keep_moving(store.clone(), number as u128 + 1, done.clone())))
        .collect();
    let versions = |of: &[Arc<AtomicU64>]| -> Vec<u64> {
        of.iter().map(|version| version.load(Ordering::SeqCst)).collect()
    };
    while versions(&acknowledged).contains(&0) {
        tokio::task::yield_now().await;
    }
    let before = versions(&acknowledged);
    let watched = acknowledged.clone();
    let (mut seen, mut done) = (before.clone(), 0);
    let (step, mut steps) = tokio::sync::mpsc::unbounded_channel();
    let all_moved = move |progress: BackupProgress| {
        let began = std::time::Instant::now();
        while versions(&watched).iter().zip(&seen).any(|(now, then)| now <= then) {
            assert!(began.elapsed() < Duration::from_secs(60), "commits wait for the backup");
            std::thread::yield_now();
        }
        seen = versions(&watched);
        assert!(progress.done > done, "the copy has restarted");
        done = progress.done;
        step.send(progress).unwrap();
    };
    let backup = store.backup(&to, Existing::Refuse, all_moved).await.unwrap();
    movers.iter().for_each(tokio::task::JoinHandle::abort);
    let mut count = 0;
    while steps.recv().await.is_some() {
        count += 1;
    }
    assert!(count >= 12, "{count}");
    assert_eq!(backup.bytes, std::fs::metadata(&to).unwrap().len());
    assert_eq!(check(&to).unwrap().problems, Vec::<String>::new());

    let copy = folder.path().join("copy.sqlite");
    restore(&to, &copy, Existing::Refuse, |_| ()).unwrap();
    let copy = SqliteStore::open(&copy).unwrap();
    for (number, before) in (1..=4_u128).zip(before) {
        let head = ask::load(&copy, make::run(number)).await.head;
        assert!(head.version >= before, "run {number} was at {before} and is at {}", head.version);
        let counted = ask::get(&copy, &number.to_string()).await.and_then(|cell| cell.value);
        assert_eq!(counted, Some(head.version.into()), "the two are written together");
        let query = HistoryQuery { run: make::run(number), from: 0, with_state: true, limit: 200 };
        let history = ask::all_history(&copy, make::ME, query).await;
        assert_eq!(history.len() as u64, head.version + 1);
        let make = make::Make::new();
        ask::moved(&copy, make.step(make::step(&head, "goes on"))).await;
    }
}

#[tokio::test]
async fn large_backup_reports_progress() {
    let folder = tempfile::tempdir().unwrap();
    let store = large(&folder.path().join("runs.sqlite"), 5);
    let (say, said) = std::sync::mpsc::channel();
    let progress = move |progress| say.send(progress).unwrap();
    let backup = store.backup(folder.path().join("backup"), Existing::Refuse, progress).await.unwrap();
    let said: Vec<BackupProgress> = said.iter().collect();
    let total = said[0].total;
    assert!(said.len() >= 6 && said.iter().all(|progress| progress.total == total), "{said:?}");
    assert!(said.windows(2).all(|pair| pair[0].done < pair[1].done), "{said:?}");
    assert_eq!(said.last().unwrap().done, total);
    assert!(backup.bytes >= total * 4096 && total * 4096 > 5 << 20);
}

/// The backup ends with a checksum after its pages, which SQLite must leave alone as long as nothing is written.
#[tokio::test]
async fn backup_can_be_read_and_opened_as_a_database() {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(folder.path().join("runs.sqlite")).unwrap();
    start_runs(&store, 1..=3).await;
    let to = folder.path().join("backup.sqlite");
    store.backup(&to, Existing::Refuse, |_| ()).await.unwrap();
    drop(store);
    let reading = Connection::open_with_flags(&to, rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
    assert_eq!(reading.query_row("select count(*) from runs", [], |row| row.get::<_, i64>(0)), Ok(3));
    assert_eq!(files(folder.path()), ["backup.sqlite", "runs.sqlite", "runs.sqlite.lock"]);
    drop(reading);
    let opened = SqliteStore::open(&to).unwrap();
    assert_eq!(std::fs::metadata(&to).unwrap().len() % 4096, 0, "the checksum must be removed");
    start_runs(&opened, 4..=40).await;
    drop(opened);
    assert_eq!(check(&to).unwrap().problems, Vec::<String>::new());
    assert_eq!(check(&to).unwrap().rows["runs"], 40);
}

#[tokio::test]
async fn existing_file_stays_unless_replacing_is_allowed() {
    let folder = tempfile::tempdir().unwrap();
    let (path, to) = (folder.path().join("runs.sqlite"), folder.path().join("backup.sqlite"));
    let store = SqliteStore::open(&path).unwrap();
    std::fs::write(&to, "a letter").unwrap();
    let error = store.backup(&to, Existing::Refuse, |_| ()).await.unwrap_err();
    assert!(matches!(&error, BackupError::Exists { .. }), "{error}");
    assert!(error.to_string().contains("choose another name"), "{error}");
    assert_eq!(std::fs::read_to_string(&to).unwrap(), "a letter");
    store.backup(&to, Existing::Replace, |_| ()).await.unwrap();
    assert!(check(&to).unwrap().is_sound());

    let error = store.backup(&path, Existing::Replace, |_| ()).await.unwrap_err();
    assert!(error.to_string().contains("the database itself"), "{error}");
    let other = SqliteStore::open(folder.path().join("other.sqlite")).unwrap();
    let error =
        store.backup(folder.path().join("other.sqlite"), Existing::Replace, |_| ()).await.unwrap_err();
    assert!(error.to_string().contains("-wal"), "{error}");
    drop(other);
    let nowhere = folder.path().join("nowhere").join("backup.sqlite");
    let error = store.backup(&nowhere, Existing::Refuse, |_| ()).await.unwrap_err();
    assert!(error.to_string().contains("nowhere"), "{error}");
    drop(store);
    let left = ["backup.sqlite", "other.sqlite", "other.sqlite.lock", "runs.sqlite", "runs.sqlite.lock"];
    assert_eq!(files(folder.path()), left);
}

/// SQLite would apply a stray log with the backup's name to the backup when it is opened.
#[tokio::test]
async fn backup_target_with_a_stray_log_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(folder.path().join("runs.sqlite")).unwrap();
    for ending in ["-wal", "-journal"] {
        let to = folder.path().join(format!("backup{ending}"));
        std::fs::write(&to, "of another time").unwrap();
        let error = store.backup(folder.path().join("backup"), Existing::Replace, |_| ()).await.unwrap_err();
        assert!(error.to_string().contains(ending), "{error}");
        std::fs::remove_file(&to).unwrap();
    }
    store.backup(folder.path().join("backup"), Existing::Refuse, |_| ()).await.unwrap();
}

#[tokio::test]
async fn cancelled_or_failed_backup_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let (path, to) = (folder.path().join("runs.sqlite"), folder.path().join("backup.sqlite"));
    let store = large(&path, 5);
    std::fs::write(&to, "an older one").unwrap();
    let (begun, wait) = tokio::sync::oneshot::channel();
    let (go_on, goes_on) = std::sync::mpsc::channel::<()>();
    let mut begun = Some(begun);
    let progress = move |_| {
        if let Some(begun) = begun.take() {
            begun.send(()).unwrap();
            // Blocks until the test drops its end of the channel.
            let _ = goes_on.recv();
        }
    };
    tokio::select! {
        done = store.backup(&to, Existing::Replace, progress) => panic!("{done:?}"),
        begun = wait => begun.unwrap(),
    }
    drop(go_on);
    let fails = |progress: BackupProgress| assert!(progress.done == progress.total, "half of it");
    let error = store.backup(&to, Existing::Replace, fails).await.unwrap_err();
    assert!(matches!(&error, BackupError::Open(OpenError::Store(StoreError::Unavailable(_)))), "{error}");
    start_runs(&store, 1..=2).await;
    // Dropping the store waits for both threads.
    drop(store);
    assert_eq!(files(folder.path()), ["backup.sqlite", "runs.sqlite", "runs.sqlite.lock"]);
    assert_eq!(std::fs::read_to_string(&to).unwrap(), "an older one");
}

#[test]
fn killed_backup_leaves_no_file_at_the_target() {
    let backed_up = |folder: &Path, progress: &mut dyn FnMut(BackupProgress)| {
        backup_file(folder.join("runs.sqlite"), folder.join("backup.sqlite"), Existing::Replace, progress)
    };
    if let Some(folder) = victim::victim_folder() {
        let result = backed_up(&folder, &mut |progress| {
            if progress.done * 2 > progress.total {
                victim::wait_to_be_killed();
            }
        });
        panic!("{result:?}");
    }
    let folder = tempfile::tempdir().unwrap();
    drop(large(&folder.path().join("runs.sqlite"), 5));
    for older in [None, Some("an older one")] {
        let to = folder.path().join("backup.sqlite");
        if let Some(text) = older {
            std::fs::write(&to, text).unwrap();
        }
        let test = "backup::killed_backup_leaves_no_file_at_the_target";
        Victim::start(test, folder.path()).kill();
        let partial = |name: &&String| name.starts_with("backup.sqlite.partial-");
        assert!(files(folder.path()).iter().any(|name| partial(&name)), "it was killed too late");
        assert_eq!(std::fs::read_to_string(&to).ok().as_deref(), older);
        backed_up(folder.path(), &mut |_| ()).unwrap();
        assert!(check(&to).unwrap().is_sound());
        assert!(!files(folder.path()).iter().any(|name| partial(&name)), "what was left is not cleared");
        std::fs::remove_file(&to).unwrap();
    }
}

/// Also covers a database whose process was killed, with commits that are only in the log. The log stays in place.
#[test]
fn database_open_in_another_process_is_backed_up_with_its_log() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    if let Some(folder) = victim::victim_folder() {
        let store = SqliteStore::open(folder.join("runs.sqlite")).unwrap();
        runtime.block_on(start_runs(&store, 1..=7));
        victim::wait_to_be_killed();
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("runs.sqlite");
    let test = "backup::database_open_in_another_process_is_backed_up_with_its_log";
    let owner = Victim::start(test, folder.path());
    let backed_up = |to: &str| {
        let to = folder.path().join(to);
        backup_file(&path, &to, Existing::Refuse, |_| ()).unwrap();
        check(&to).unwrap().rows["runs"]
    };
    assert_eq!(backed_up("living"), 7);
    assert_eq!(check(&path).unwrap().rows["runs"], 7);
    let error = SqliteStore::open(&path).unwrap_err();
    assert!(error.to_string().contains(&owner.id().to_string()), "it still owns the database: {error}");
    owner.kill();
    let log = std::fs::read(folder.path().join("runs.sqlite-wal")).unwrap();
    assert!(!log.is_empty());
    assert_eq!(backed_up("killed"), 7);
    assert_eq!(check(&path).unwrap().rows["runs"], 7);
    assert_eq!(std::fs::read(folder.path().join("runs.sqlite-wal")).unwrap(), log);
    let store = SqliteStore::open(&path).unwrap();
    assert!(runtime.block_on(ask::find(&store, make::run(7))).is_some());
}

#[cfg(unix)]
#[tokio::test]
async fn backup_has_the_permissions_of_the_database() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let (path, to) = (folder.path().join("runs.sqlite"), folder.path().join("backup.sqlite"));
    let store = SqliteStore::open(&path).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
    let folder_while = folder.path().to_owned();
    let (say, said) = std::sync::mpsc::channel();
    let look = move |_| {
        let partial = files(&folder_while).into_iter().find(|name| name.contains(".partial-")).unwrap();
        say.send(std::fs::metadata(folder_while.join(partial)).unwrap().permissions().mode()).unwrap();
    };
    store.backup(&to, Existing::Refuse, look).await.unwrap();
    assert!(said.iter().all(|mode| mode & 0o777 == 0o600));
    assert_eq!(std::fs::metadata(&to).unwrap().permissions().mode() & 0o777, 0o640);
}
