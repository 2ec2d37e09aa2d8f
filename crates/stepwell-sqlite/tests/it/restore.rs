//! Restores: only from an undamaged file, never over a database in use, and the old database is kept.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rusqlite::Connection;
use stepwell_core::Timestamp;
use stepwell_sqlite::{BackupError, Existing, OpenError, SqliteStore, backup_file, check, restore};
use stepwell_store::suite::{ask, make};
use stepwell_store::{Claim, DueTenant, Heartbeat, NewRun, Store};

use crate::backup::{files, start_runs};
use crate::check::damage;
use crate::victim::{self, Victim};

/// Reads all files of a directory except lock files.
fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let names = files(folder).into_iter().filter(|name| !name.ends_with(".lock"));
    names.map(|name| (name.clone(), std::fs::read(folder.join(name)).unwrap())).collect()
}

/// Creates a backup with runs 1 to 3, and its source database `runs.sqlite`, which also has run 4.
async fn one_of_each(folder: &Path) -> (PathBuf, PathBuf) {
    let (path, backup) = (folder.join("runs.sqlite"), folder.join("backup.sqlite"));
    let store = SqliteStore::open(&path).unwrap();
    start_runs(&store, 1..=3).await;
    store.backup(&backup, Existing::Refuse, |_| ()).await.unwrap();
    start_runs(&store, 4..=4).await;
    (path, backup)
}

async fn has_runs(path: &Path) -> u128 {
    let store = SqliteStore::open(path).unwrap();
    let mut count = 0;
    while ask::find(&store, make::run(count + 1)).await.is_some() {
        count += 1;
    }
    count
}

#[tokio::test]
async fn restore_replaces_the_database_and_keeps_the_old_one() {
    let folder = tempfile::tempdir().unwrap();
    let (path, backup) = one_of_each(folder.path()).await;
    let error = restore(&backup, &path, Existing::Refuse, |_| ()).unwrap_err();
    assert!(matches!(&error, BackupError::Exists { .. }), "{error}");
    assert_eq!(has_runs(&path).await, 4);

    let mut progress = Vec::new();
    let restored = restore(&backup, &path, Existing::Replace, |at| progress.push(at)).unwrap();
    assert_eq!(restored.schema.0, 1);
    assert!(progress.last().is_some_and(|last| last.done == last.total), "{progress:?}");
    assert_eq!(has_runs(&path).await, 3);
    let previous = restored.previous.unwrap();
    assert_eq!(has_runs(&previous).await, 4);

    let elsewhere = folder.path().join("elsewhere.sqlite");
    assert_eq!(restore(&backup, &elsewhere, Existing::Refuse, |_| ()).unwrap().previous, None);
    assert_eq!(has_runs(&elsewhere).await, 3);
    assert!(check(&elsewhere).unwrap().is_sound());
}

/// The log is next to the file and not next to the link, so the lock and the restored file must be there as well.
#[cfg(unix)]
#[tokio::test]
async fn restore_through_a_symlink_replaces_the_real_file() {
    let folder = tempfile::tempdir().unwrap();
    let (path, backup) = one_of_each(folder.path()).await;
    let elsewhere = tempfile::tempdir().unwrap();
    let link = elsewhere.path().join("link.sqlite");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let store = SqliteStore::open(&link).unwrap();
    assert!(matches!(SqliteStore::open(&path), Err(OpenError::InUse { .. })));
    assert!(restore(&backup, &path, Existing::Replace, |_| ()).is_err());
    drop(store);
    let previous = restore(&backup, &link, Existing::Replace, |_| ()).unwrap().previous.unwrap();
    assert_eq!(files(elsewhere.path()), ["link.sqlite"]);
    assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!((has_runs(&link).await, has_runs(&path).await, has_runs(&previous).await), (3, 3, 4));
}

/// The processes that ran when the backup was made cannot continue their runs.
#[tokio::test]
async fn processes_of_a_restored_database_have_expired() {
    let folder = tempfile::tempdir().unwrap();
    let (path, backup) = (folder.path().join("runs.sqlite"), folder.path().join("backup.sqlite"));
    let beat = |number| Heartbeat { process: make::process(number), now: make::at(0), lease_ms: 3_600_000 };
    {
        let store = SqliteStore::open(&path).unwrap();
        store.heartbeat(beat(1)).await.unwrap();
        let owner = Some(make::process(1));
        let new = NewRun { owner, wake: Some(make::at(99)), ..make::new_run(make::run(1)) };
        ask::started(&store, make::Make::new().create(new)).await;
        store.backup(&backup, Existing::Refuse, |_| ()).await.unwrap();
    }
    restore(&backup, &path, Existing::Replace, |_| ()).unwrap();
    let store = SqliteStore::open(&path).unwrap();
    let expired = store.heartbeat(beat(2)).await.unwrap().expired;
    assert_eq!(expired, [make::process(1)]);
    let due = DueTenant { tenant: make::ME.tenant(), at: Timestamp::MIN };
    assert_eq!(store.due(expired.clone()).await.unwrap(), [due]);
    assert_eq!(
        ask::taken(&store, Claim { expired, ..ask::claim(make::process(2), 0) }).await,
        [make::run(1)]
    );
}

#[tokio::test]
async fn restore_over_an_open_database_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (path, backup) = one_of_each(folder.path()).await;
    let store = SqliteStore::open(&path).unwrap();
    let error = restore(&backup, &path, Existing::Replace, |_| ()).unwrap_err();
    assert!(matches!(&error, BackupError::Open(OpenError::InUse { .. })), "{error}");
    assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
    start_runs(&store, 5..=5).await;
    let error = restore(&path, folder.path().join("other"), Existing::Refuse, |_| ()).unwrap_err();
    assert!(error.to_string().contains("in use"), "a database in use is not a backup: {error}");
    drop(store);
    assert_eq!(has_runs(&path).await, 5);
}

/// A SQLite shell that was left open would remove the log of the restored database when it is closed, by its name.
#[test]
fn restore_is_refused_while_another_program_has_the_file_open() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    if let Some(folder) = victim::victim_folder() {
        let shell = Connection::open(folder.join("runs.sqlite")).unwrap();
        shell.query_row("select count(*) from runs", [], |_| Ok(())).unwrap();
        victim::wait_to_be_killed();
    }
    let folder = tempfile::tempdir().unwrap();
    let (path, backup) = runtime.block_on(one_of_each(folder.path()));
    let test = "restore::restore_is_refused_while_another_program_has_the_file_open";
    let shell = Victim::start(test, folder.path());
    let before = contents(folder.path());
    let error = restore(&backup, &path, Existing::Replace, |_| ()).unwrap_err();
    assert!(error.to_string().contains("another program"), "{error}");
    assert_eq!(contents(folder.path()), before);
    shell.kill();
    restore(&backup, &path, Existing::Replace, |_| ()).unwrap();
    assert_eq!(runtime.block_on(has_runs(&path)), 3);
}

/// SQLite would apply the log that a killed process left behind to the restored database, because it has the same name.
#[test]
fn old_log_is_never_applied_to_the_restored_database() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    if let Some(folder) = victim::victim_folder() {
        let store = SqliteStore::open(folder.join("runs.sqlite")).unwrap();
        runtime.block_on(start_runs(&store, 5..=9));
        victim::wait_to_be_killed();
    }
    for is_damaged in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let (path, backup) = runtime.block_on(one_of_each(folder.path()));
        let test = "restore::old_log_is_never_applied_to_the_restored_database";
        Victim::start(test, folder.path()).kill();
        let log = std::fs::read(folder.path().join("runs.sqlite-wal")).unwrap();
        assert!(!log.is_empty());
        if is_damaged {
            std::fs::write(&path, "not even a database any more".repeat(500)).unwrap();
        }
        let previous = restore(&backup, &path, Existing::Replace, |_| ()).unwrap().previous.unwrap();
        let log_of = |path: &Path| PathBuf::from(format!("{}-wal", path.display()));
        assert!(!log_of(&path).exists());
        if is_damaged {
            assert_eq!(std::fs::read(log_of(&previous)).unwrap(), log);
        } else {
            assert!(!log_of(&previous).exists(), "it is in the database now");
            assert_eq!(runtime.block_on(has_runs(&previous)), 9);
        }
        assert_eq!(runtime.block_on(has_runs(&path)), 3);
        assert!(check(&path).unwrap().is_sound());
    }
}

#[test]
fn restore_killed_while_copying_keeps_the_old_database() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    if let Some(folder) = victim::victim_folder() {
        let (backup, to) = (folder.join("backup.sqlite"), folder.join("runs.sqlite"));
        let result = restore(backup, to, Existing::Replace, |_| victim::wait_to_be_killed());
        panic!("{result:?}");
    }
    let folder = tempfile::tempdir().unwrap();
    let (path, backup) = runtime.block_on(one_of_each(folder.path()));
    let before = contents(folder.path());
    let test = "restore::restore_killed_while_copying_keeps_the_old_database";
    Victim::start(test, folder.path()).kill();
    let mut after = contents(folder.path());
    after.retain(|name, _| !name.contains(".partial-"));
    assert!(after == before);
    assert_eq!(runtime.block_on(has_runs(&path)), 4);
    restore(&backup, &path, Existing::Replace, |_| ()).unwrap();
    assert_eq!(runtime.block_on(has_runs(&path)), 3);
    assert!(
        !files(folder.path()).iter().any(|name| name.contains(".partial-")),
        "{:?}",
        files(folder.path())
    );
}

#[tokio::test]
async fn restore_refuses_a_backup_with_a_changed_byte() {
    let folder = tempfile::tempdir().unwrap();
    let (path, backup) = one_of_each(folder.path()).await;
    let whole = std::fs::read(&backup).unwrap();
    let last = whole.len() - 1;
    let places = (0..last).step_by(whole.len() / 40).chain([18, 30, 99, last]);
    for place in places {
        let mut damaged = whole.clone();
        damaged[place] ^= 0x10;
        refused(&damaged, "", &backup, &path, &format!("byte {place}"));
    }
    for length in [last, whole.len() - 48, whole.len() / 2, 4096, 100] {
        // Without the checksum the file is still a complete database.
        if length != whole.len() - 48 {
            refused(&whole[..length], "", &backup, &path, &format!("{length} bytes"));
        }
    }
    std::fs::write(&backup, &whole).unwrap();
    restore(&backup, &path, Existing::Replace, |_| ()).unwrap();
}

/// Tries to restore a file with these bytes, and checks that the error contains these words and nothing has changed.
fn refused(bytes: &[u8], words: &str, backup: &Path, path: &Path, what: &str) {
    std::fs::write(backup, bytes).unwrap();
    let before = contents(path.parent().unwrap());
    let error = restore(backup, path, Existing::Replace, |_| ()).expect_err(what);
    assert!(matches!(&error, BackupError::Unusable { .. }), "{what}: {error}");
    assert!(error.to_string().contains(words), "{what}: {error}");
    assert!(contents(path.parent().unwrap()) == before, "{what}: something was touched");
}

/// A copy that was made by other means has no checksum, so SQLite's own check must find the damage.
#[tokio::test]
async fn plain_copy_is_restored_with_its_log() {
    let folder = tempfile::tempdir().unwrap();
    let (path, _) = one_of_each(folder.path()).await;
    let copy = folder.path().join("copy.sqlite");
    let store = SqliteStore::open(&path).unwrap();
    start_runs(&store, 5..=6).await;
    for ending in ["", "-wal"] {
        let name = |path: &Path| format!("{}{ending}", path.display());
        std::fs::copy(name(&path), name(&copy)).unwrap();
    }
    drop(store);
    let elsewhere = folder.path().join("elsewhere.sqlite");
    restore(&copy, &elsewhere, Existing::Refuse, |_| ()).unwrap();
    assert_eq!(has_runs(&elsewhere).await, 6);
    std::fs::remove_file(format!("{}-wal", copy.display())).unwrap();
    let _ = std::fs::remove_file(format!("{}-shm", copy.display()));

    std::fs::copy(&elsewhere, &copy).unwrap();
    damage(&copy);
    refused(&std::fs::read(&copy).unwrap(), "damaged", &copy, &path, "a page");
}

#[tokio::test]
async fn restore_names_the_problem_of_an_unsuitable_file() {
    let folder = tempfile::tempdir().unwrap();
    let (path, backup) = one_of_each(folder.path()).await;
    refused(
        "a letter to my aunt. ".repeat(99).as_bytes(),
        "not a SQLite database",
        &backup,
        &path,
        "a letter",
    );
    refused(b"", "not a Stepwell database", &backup, &path, "nothing");
    let other = folder.path().join("other");
    Connection::open(&other).unwrap().execute_batch("create table songs (title text)").unwrap();
    let bytes = std::fs::read(&other).unwrap();
    refused(&bytes, "not a Stepwell database", &backup, &path, "another program's database");

    let newer = folder.path().join("newer");
    drop(SqliteStore::open(&newer).unwrap());
    let future = "insert into stepwell_migrations (version, name, checksum) values (99, 'future', x'00')";
    Connection::open(&newer).unwrap().execute_batch(future).unwrap();
    let bytes = std::fs::read(&newer).unwrap();
    refused(&bytes, "schema version 99", &backup, &path, "a newer one");
    let error =
        backup_file(&newer, folder.path().join("newer.backup"), Existing::Refuse, |_| ()).unwrap_err();
    assert!(error.to_string().contains("use a newer Stepwell"), "{error}");

    let error = restore(folder.path().join("gone"), &path, Existing::Replace, |_| ()).unwrap_err();
    assert!(error.to_string().contains("gone"), "{error}");
    let error = restore(&path, &path, Existing::Replace, |_| ()).unwrap_err();
    assert!(error.to_string().contains("the backup itself"), "{error}");
    assert_eq!(has_runs(&path).await, 4);
}
