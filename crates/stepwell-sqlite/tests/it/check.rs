//! Checks of a database: its content, its problems, and that a check changes nothing.

use std::collections::BTreeMap;
use std::path::Path;

use rusqlite::Connection;
use stepwell_sqlite::{Existing, SqliteStore, backup_file, check};

use crate::backup::{files, start_runs};
use crate::victim::{self, Victim};

fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    files(folder).into_iter().map(|name| (name.clone(), std::fs::read(folder.join(name)).unwrap())).collect()
}

/// Damages the first page of the table `runs`.
pub(crate) fn damage(path: &Path) {
    let root = "select rootpage from sqlite_schema where name = 'runs'";
    let page: u32 = Connection::open(path).unwrap().query_row(root, [], |row| row.get(0)).unwrap();
    let mut bytes = std::fs::read(path).unwrap();
    bytes[(page as usize - 1) * 4096..][..200].fill(0x5a);
    std::fs::write(path, bytes).unwrap();
}

#[tokio::test]
async fn check_describes_a_sound_database_open_or_closed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("runs.sqlite");
    let store = SqliteStore::open(&path).unwrap();
    start_runs(&store, 1..=20).await;
    let open = store.check().await.unwrap();
    assert!(open.is_sound() && open.foreign.is_empty(), "{open:?}");
    assert_eq!(open.schema.map(|schema| schema.0), Some(1));
    assert_eq!((open.rows["runs"], open.rows["checkpoints"], open.rows["cells"]), (20, 20, 0));
    assert_eq!(open.rows.len(), 16);
    let sizes = store.sizes().await.unwrap();
    assert_eq!(sizes, open.sizes);
    assert_eq!(sizes.log_bytes, std::fs::metadata(folder.path().join("runs.sqlite-wal")).unwrap().len());
    assert!(sizes.log_bytes > 0 && sizes.page_bytes == 4096 && sizes.pages > 20, "{sizes:?}");
    assert_eq!(check(&path).unwrap().rows, open.rows, "the log is read too");
    drop(store);

    let before = contents(folder.path());
    let closed = check(&path).unwrap();
    let lock = |contents: &mut BTreeMap<_, _>| contents.remove("runs.sqlite.lock");
    let (mut before, mut after) = (before, contents(folder.path()));
    assert!(lock(&mut before).is_some() && lock(&mut after).is_some());
    assert!(after == before, "{:?}", after.keys());
    assert_eq!((closed.rows, closed.problems), (open.rows, open.problems));
    assert_eq!((closed.sizes.file_bytes, closed.sizes.log_bytes), (sizes.pages * 4096, 0));
}

#[tokio::test]
async fn check_reports_foreign_missing_and_changed_objects() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("runs.sqlite");
    let store = SqliteStore::open(&path).unwrap();
    let other = Connection::open(&path).unwrap();
    other
        .execute_batch(
            "create table shop_orders (id integer primary key);
             create view runs_of_shop as select 1;
             pragma foreign_keys = 0;
             create table lines (of integer references shop_orders);
             insert into lines values (7);
             drop index runs_due; drop index inbox_by_seq; create index inbox_by_seq on inbox (seq);",
        )
        .unwrap();
    let report = store.check().await.unwrap();
    assert_eq!(report.foreign, ["table lines", "view runs_of_shop", "table shop_orders"]);
    assert_eq!(
        report.problems,
        [
            "a row of `lines` refers to a missing row of `shop_orders`",
            "the index `inbox_by_seq` differs from Stepwell's schema",
            "the index `runs_due` is missing",
        ]
    );
}

#[tokio::test]
async fn check_finds_damage_and_changed_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let (path, backup) = (folder.path().join("runs.sqlite"), folder.path().join("backup.sqlite"));
    let store = SqliteStore::open(&path).unwrap();
    start_runs(&store, 1..=50).await;
    store.backup(&backup, Existing::Refuse, |_| ()).await.unwrap();
    drop(store);
    assert!(check(&backup).unwrap().is_sound());

    let mut bytes = std::fs::read(&backup).unwrap();
    let status = bytes.windows(7).rposition(|window| window == b"waiting").unwrap();
    bytes[status] ^= 1;
    std::fs::write(&backup, &bytes).unwrap();
    let report = check(&backup).unwrap();
    assert_eq!(report.problems, ["the backup was changed: its checksum does not match"]);

    damage(&path);
    let report = check(&path).unwrap();
    assert!(!report.is_sound() && report.schema.is_some(), "{report:?}");

    std::fs::write(&path, "a letter to my aunt").unwrap();
    let error = check(&path).unwrap_err();
    assert!(error.to_string().contains("not a SQLite database"), "{error}");
}

/// A process that closes a file loses all its locks on the file, including those that SQLite holds for a connection of
/// the same process. Then another program could lock the database although a store has it open.
#[test]
fn check_of_an_open_database_keeps_its_locks() {
    let alone = |path: &Path| {
        let other = Connection::open(path).unwrap();
        other.busy_timeout(std::time::Duration::ZERO).unwrap();
        other.execute_batch("pragma locking_mode = exclusive; begin exclusive; commit")
    };
    if let Some(folder) = victim::victim_folder() {
        assert!(alone(&folder.join("runs.sqlite")).is_err());
        victim::wait_to_be_killed();
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("runs.sqlite");
    let store = SqliteStore::open(&path).unwrap();
    check(&path).unwrap();
    backup_file(&path, folder.path().join("backup.sqlite"), Existing::Refuse, |_| ()).unwrap();
    let test = "check::check_of_an_open_database_keeps_its_locks";
    Victim::start(test, folder.path()).kill();
    drop(store);
    alone(&path).unwrap();
}
