//! Restoring: only what is whole, never over a database in use, and the one that was there stays.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rusqlite::Connection;
use stepwell_core::Timestamp;
use stepwell_sqlite::{BackupError, Existing, OpenError, SqliteStore, backup_file, check, restore};
use stepwell_store::suite::{ask, make};
use stepwell_store::{Beat, Claim, Due, NewRun, Store};

use crate::backup::{files, start_runs};
use crate::check::damage;
use crate::victim::{self, Victim};

/// Everything in a folder but locks.
fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let names = files(folder).into_iter().filter(|name| !name.ends_with(".lock"));
    names.map(|name| (name.clone(), std::fs::read(folder.join(name)).unwrap())).collect()
}

/// A backup with run 1 to 3, and the database `runs.sqlite` that it was made of, which has run 4 besides.
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
async fn the_backup_takes_the_place_and_the_database_that_was_there_is_kept() {
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
    let kept = restored.kept.unwrap();
    assert_eq!(has_runs(&kept).await, 4);

    let elsewhere = folder.path().join("elsewhere.sqlite");
    assert_eq!(restore(&backup, &elsewhere, Existing::Refuse, |_| ()).unwrap().kept, None);
    assert_eq!(has_runs(&elsewhere).await, 3);
    assert!(check(&elsewhere).unwrap().is_sound());
}

/// A log lies beside the file and not beside the link; the lock and the restored file have to lie there as well.
#[cfg(unix)]
#[tokio::test]
async fn a_database_that_is_reached_by_a_link_stays_where_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let (path, backup) = one_of_each(folder.path()).await;
    let elsewhere = tempfile::tempdir().unwrap();
    let link = elsewhere.path().join("link.sqlite");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let store = SqliteStore::open(&link).unwrap();
    assert!(matches!(SqliteStore::open(&path), Err(OpenError::InUse { .. })));
    assert!(restore(&backup, &path, Existing::Replace, |_| ()).is_err());
    drop(store);
    let kept = restore(&backup, &link, Existing::Replace, |_| ()).unwrap().kept.unwrap();
    assert_eq!(files(elsewhere.path()), ["link.sqlite"]);
    assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!((has_runs(&link).await, has_runs(&path).await, has_runs(&kept).await), (3, 3, 4));
}

/// Those who ran when the backup was made are not there to go on.
#[tokio::test]
async fn every_process_that_a_restored_database_knows_is_dead_and_its_runs_are_due() {
    let folder = tempfile::tempdir().unwrap();
    let (path, backup) = (folder.path().join("runs.sqlite"), folder.path().join("backup.sqlite"));
    let beat = |number| Beat { process: make::process(number), now: make::at(0), lease_ms: 3_600_000 };
    {
        let store = SqliteStore::open(&path).unwrap();
        store.beat(beat(1)).await.unwrap();
        let owner = Some(make::process(1));
        let new = NewRun { owner, wake: Some(make::at(99)), ..make::new_run(make::run(1)) };
        ask::started(&store, make::Make::new().create(new)).await;
        store.backup(&backup, Existing::Refuse, |_| ()).await.unwrap();
    }
    restore(&backup, &path, Existing::Replace, |_| ()).unwrap();
    let store = SqliteStore::open(&path).unwrap();
    let dead = store.beat(beat(2)).await.unwrap().dead;
    assert_eq!(dead, [make::process(1)]);
    let due = Due { tenant: make::ME.tenant(), at: Timestamp::MIN };
    assert_eq!(store.due(dead.clone()).await.unwrap(), [due]);
    assert_eq!(ask::taken(&store, Claim { dead, ..ask::claim(make::process(2), 0) }).await, [make::run(1)]);
}

#[tokio::test]
async fn a_database_in_use_is_not_replaced() {
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

/// A shell for SQLite that was left open would take the restored database's log away when it is closed, by its name.
#[test]
fn a_database_that_any_other_program_has_open_is_not_replaced() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    if let Some(folder) = victim::is_me() {
        let shell = Connection::open(folder.join("runs.sqlite")).unwrap();
        shell.query_row("select count(*) from runs", [], |_| Ok(())).unwrap();
        victim::wait_to_be_killed();
    }
    let folder = tempfile::tempdir().unwrap();
    let (path, backup) = runtime.block_on(one_of_each(folder.path()));
    let test = "restore::a_database_that_any_other_program_has_open_is_not_replaced";
    let shell = Victim::start(test, folder.path());
    let before = contents(folder.path());
    let error = restore(&backup, &path, Existing::Replace, |_| ()).unwrap_err();
    assert!(error.to_string().contains("another program"), "{error}");
    assert_eq!(contents(folder.path()), before);
    shell.kill();
    restore(&backup, &path, Existing::Replace, |_| ()).unwrap();
    assert_eq!(runtime.block_on(has_runs(&path)), 3);
}

/// The accident: the log of the database that was killed lies there under its name, and SQLite applies it to whatever has
/// the database's name next.
#[test]
fn the_log_of_the_old_database_is_kept_with_it_and_never_applied_to_the_new_one() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    if let Some(folder) = victim::is_me() {
        let store = SqliteStore::open(folder.join("runs.sqlite")).unwrap();
        runtime.block_on(start_runs(&store, 5..=9));
        victim::wait_to_be_killed();
    }
    for is_damaged in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let (path, backup) = runtime.block_on(one_of_each(folder.path()));
        let test = "restore::the_log_of_the_old_database_is_kept_with_it_and_never_applied_to_the_new_one";
        Victim::start(test, folder.path()).kill();
        let log = std::fs::read(folder.path().join("runs.sqlite-wal")).unwrap();
        assert!(!log.is_empty());
        if is_damaged {
            std::fs::write(&path, "not even a database any more".repeat(500)).unwrap();
        }
        let kept = restore(&backup, &path, Existing::Replace, |_| ()).unwrap().kept.unwrap();
        let log_of = |path: &Path| PathBuf::from(format!("{}-wal", path.display()));
        assert!(!log_of(&path).exists());
        if is_damaged {
            assert_eq!(std::fs::read(log_of(&kept)).unwrap(), log);
        } else {
            assert!(!log_of(&kept).exists(), "it is in the database now");
            assert_eq!(runtime.block_on(has_runs(&kept)), 9);
        }
        assert_eq!(runtime.block_on(has_runs(&path)), 3);
        assert!(check(&path).unwrap().is_sound());
    }
}

#[test]
fn a_restore_that_is_killed_while_it_copies_leaves_the_old_database_as_it_was() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    if let Some(folder) = victim::is_me() {
        let (backup, to) = (folder.join("backup.sqlite"), folder.join("runs.sqlite"));
        let result = restore(backup, to, Existing::Replace, |_| victim::wait_to_be_killed());
        panic!("{result:?}");
    }
    let folder = tempfile::tempdir().unwrap();
    let (path, backup) = runtime.block_on(one_of_each(folder.path()));
    let before = contents(folder.path());
    let test = "restore::a_restore_that_is_killed_while_it_copies_leaves_the_old_database_as_it_was";
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
async fn a_backup_with_a_changed_byte_is_refused_and_nothing_is_touched() {
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
        // Without its sum alone it is still whole.
        if length != whole.len() - 48 {
            refused(&whole[..length], "", &backup, &path, &format!("{length} bytes"));
        }
    }
    std::fs::write(&backup, &whole).unwrap();
    restore(&backup, &path, Existing::Replace, |_| ()).unwrap();
}

/// Tries to restore a file with these bytes; what it says has to have those words in it.
fn refused(bytes: &[u8], words: &str, backup: &Path, path: &Path, what: &str) {
    std::fs::write(backup, bytes).unwrap();
    let before = contents(path.parent().unwrap());
    let error = restore(backup, path, Existing::Replace, |_| ()).expect_err(what);
    assert!(matches!(&error, BackupError::Unfit { .. }), "{what}: {error}");
    assert!(error.to_string().contains(words), "{what}: {error}");
    assert!(contents(path.parent().unwrap()) == before, "{what}: something was touched");
}

/// A copy that was made by other means has no sum: SQLite's own check has to find the damage.
#[tokio::test]
async fn a_plain_copy_is_restored_with_its_log_and_refused_if_it_is_damaged() {
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
async fn what_is_no_backup_of_this_program_is_refused_with_a_word_on_what_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let (path, backup) = one_of_each(folder.path()).await;
    refused(
        "a letter to my aunt. ".repeat(99).as_bytes(),
        "not a SQLite database",
        &backup,
        &path,
        "a letter",
    );
    refused(b"", "not a database of Stepwell's", &backup, &path, "nothing");
    let other = folder.path().join("other");
    Connection::open(&other).unwrap().execute_batch("create table songs (title text)").unwrap();
    let bytes = std::fs::read(&other).unwrap();
    refused(&bytes, "not a database of Stepwell's", &backup, &path, "somebody else's");

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
