//! The database file: its lock, its settings, a newer schema, and the files that are left when it is closed.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use rusqlite::Connection;
use stepwell_core::{RunId, Timestamp};
use stepwell_sqlite::{OpenError, SqliteStore};
use stepwell_store::suite::{ask, make};
use stepwell_store::{Claim, DueTenant, Heartbeat, NewRun, Store, StoreError};

#[test]
fn second_owner_gets_a_clear_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("runs.sqlite");
    let first = SqliteStore::open(&path).unwrap();
    let error = SqliteStore::open(&path).unwrap_err();
    let OpenError::InUse { holder, .. } = &error else { panic!("{error}") };
    assert_eq!(*holder, format!("process {}", std::process::id()));
    assert!(error.to_string().contains("stop it, or use another file"), "{error}");
    drop(first);
    SqliteStore::open(&path).unwrap();
}

/// A lock that outlives its process would have to be removed by hand.
#[test]
fn lock_of_a_killed_process_is_released() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("runs.sqlite");
    drop(SqliteStore::open(&path).unwrap());
    let lock = folder.path().join("runs.sqlite.lock");
    // `-o`: `flock` keeps the lock itself and does not pass it on to the shell, which ends with its input.
    let mut holder = Command::new("flock")
        .arg("-o")
        .arg(&lock)
        .args(["sh", "-c", "echo held; read line"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    BufReader::new(holder.stdout.take().unwrap()).read_line(&mut said).unwrap();
    assert_eq!(said, "held\n");
    assert!(matches!(SqliteStore::open(&path), Err(OpenError::InUse { .. })));
    holder.kill().unwrap();
    holder.wait().unwrap();
    SqliteStore::open(&path).unwrap();
}

#[test]
fn missing_directory_is_named_in_the_error() {
    let folder = tempfile::tempdir().unwrap();
    let error = SqliteStore::open(folder.path().join("nowhere").join("runs.sqlite")).unwrap_err();
    assert!(error.to_string().contains("nowhere"), "{error}");
}

#[test]
fn file_that_is_not_a_database_is_refused_and_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("runs.sqlite");
    let text = "this is a letter to my aunt, not a database, and it is longer than a header. ".repeat(20);
    std::fs::write(&path, &text).unwrap();
    assert!(SqliteStore::open(&path).is_err());
    assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
}

#[test]
fn settings_make_commits_durable() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("runs.sqlite");
    let store = SqliteStore::open(&path).unwrap();
    let connection = Connection::open(&path).unwrap();
    let mode: String = connection.pragma_query_value(None, "journal_mode", |row| row.get(0)).unwrap();
    assert_eq!(mode, "wal");
    assert!(rusqlite::version_number() >= 3_051_003, "{}", rusqlite::version());
    drop(store);
}

/// SQLite ignores a setting that it cannot apply, without an error. An example is WAL mode on some file systems.
#[test]
fn setting_that_is_not_applied_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("runs.sqlite");
    let connection = Connection::open(&path).unwrap();
    connection
        .execute_batch("pragma page_size = 8192; create table other (x); insert into other values (1);")
        .unwrap();
    drop(connection);
    let error = SqliteStore::open(&path).unwrap_err();
    let OpenError::Setting { pragma, wanted, found } = &error else { panic!("{error}") };
    assert_eq!((pragma.as_str(), wanted.as_str(), found.as_str()), ("page_size", "4096", "8192"));
}

#[test]
fn newer_schema_is_refused_and_nothing_is_changed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("runs.sqlite");
    drop(SqliteStore::open(&path).unwrap());
    let connection = Connection::open(&path).unwrap();
    connection
        .execute("insert into stepwell_migrations (version, name, checksum) values (99, 'future', x'00')", [])
        .unwrap();
    drop(connection);
    let before = std::fs::read(&path).unwrap();
    let error = SqliteStore::open(&path).unwrap_err();
    assert!(matches!(&error, OpenError::Store(StoreError::Schema(_))), "{error}");
    assert!(error.to_string().contains("99"), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

/// Otherwise the runs of a killed process would wait until its lease of an hour has expired.
#[tokio::test]
async fn opening_a_file_expires_all_earlier_processes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("runs.sqlite");
    let beat = |number| Heartbeat { process: make::process(number), now: make::at(0), lease_ms: 3_600_000 };
    let make = make::Make::new();
    {
        let store = SqliteStore::open(&path).unwrap();
        assert_eq!(store.heartbeat(beat(1)).await.unwrap().expired, []);
        assert_eq!(store.heartbeat(beat(2)).await.unwrap().expired, [], "a second one in the same program");
        for (number, owner) in [(1, 1), (2, 9)] {
            let owner = Some(make::process(owner));
            let new = NewRun { owner, wake: Some(make::at(99)), ..make::new_run(make::run(number)) };
            ask::started(&store, make.create(new)).await;
        }
    }
    let store = SqliteStore::open(&path).unwrap();
    let expired = store.heartbeat(beat(3)).await.unwrap().expired;
    assert_eq!(
        expired,
        [make::process(1), make::process(9)],
        "those that own runs, even the one without a heartbeat"
    );
    assert_eq!(store.heartbeat(beat(4)).await.unwrap().expired, expired, "the living stay alive");
    let due = DueTenant { tenant: make::ME.tenant(), at: Timestamp::MIN };
    assert_eq!(store.due(expired.clone()).await.unwrap(), [due]);
    let claim = Claim { expired, ..ask::claim(make::process(3), 0) };
    assert_eq!(ask::taken(&store, claim).await, [make::run(1), make::run(2)]);
    assert_eq!(store.heartbeat(beat(4)).await.unwrap().expired, []);
}

#[tokio::test]
async fn closing_keeps_commits_and_removes_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("runs.sqlite");
    let run = RunId::new(uuid::Uuid::from_u128(5));
    let make = make::Make::new();
    let head = {
        let store = SqliteStore::open(&path).unwrap();
        let head = ask::started(&store, make.create(make::new_run(run))).await;
        ask::moved(&store, make.step(make::step(&head, "again"))).await
    };
    assert!(!folder.path().join("runs.sqlite-wal").exists());
    let store = SqliteStore::open(&path).unwrap();
    assert_eq!(ask::load(&store, run).await.head, head);
    assert_eq!(store.migrate().await.unwrap().0, 1);
}
