//! Looking at a database: what is in it, what is wrong with it, and that looking leaves no trace.

use std::collections::BTreeMap;
use std::path::Path;

use rusqlite::Connection;
use stepwell_sqlite::{Existing, SqliteStore, backup_file, check};

use crate::backup::{files, start_runs};
use crate::victim::{self, Victim};

fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    files(folder).into_iter().map(|name| (name.clone(), std::fs::read(folder.join(name)).unwrap())).collect()
}

/// Spoils the first page of a table.
pub(crate) fn damage(path: &Path) {
    let root = "select rootpage from sqlite_schema where name = 'runs'";
    let page: u32 = Connection::open(path).unwrap().query_row(root, [], |row| row.get(0)).unwrap();
    let mut bytes = std::fs::read(path).unwrap();
    bytes[(page as usize - 1) * 4096..][..200].fill(0x5a);
    std::fs::write(path, bytes).unwrap();
}

#[tokio::test]
async fn a_sound_database_is_described_while_it_is_in_use_and_afterwards() {
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
async fn what_is_not_stepwells_is_listed_and_what_is_missing_or_changed_is_a_problem() {
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
            "a row of `lines` refers to a row of `shop_orders` that is not there",
            "the index `inbox_by_seq` is not as Stepwell makes it",
            "the index `runs_due` is missing",
        ]
    );
}

#[tokio::test]
async fn damage_is_found_in_a_database_and_every_changed_byte_in_a_backup() {
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
    assert_eq!(report.problems, ["it is not what was backed up, by the sum at its end"]);

    damage(&path);
    let report = check(&path).unwrap();
    assert!(!report.is_sound() && report.schema.is_some(), "{report:?}");

    std::fs::write(&path, "a letter to my aunt").unwrap();
    let error = check(&path).unwrap_err();
    assert!(error.to_string().contains("not a SQLite database"), "{error}");
}

/// A process that closes a file loses the locks that it has on it, also those that SQLite holds for a connection of the
/// same process. After that anybody could take the database away from a store that has it open.
#[test]
fn looking_at_a_database_that_this_process_has_open_leaves_it_its_locks() {
    let alone = |path: &Path| {
        let other = Connection::open(path).unwrap();
        other.busy_timeout(std::time::Duration::ZERO).unwrap();
        other.execute_batch("pragma locking_mode = exclusive; begin exclusive; commit")
    };
    if let Some(folder) = victim::is_me() {
        assert!(alone(&folder.join("runs.sqlite")).is_err());
        victim::wait_to_be_killed();
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("runs.sqlite");
    let store = SqliteStore::open(&path).unwrap();
    check(&path).unwrap();
    backup_file(&path, folder.path().join("backup.sqlite"), Existing::Refuse, |_| ()).unwrap();
    let test = "check::looking_at_a_database_that_this_process_has_open_leaves_it_its_locks";
    Victim::start(test, folder.path()).kill();
    drop(store);
    alone(&path).unwrap();
}
