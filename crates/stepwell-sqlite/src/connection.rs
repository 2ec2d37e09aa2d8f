//! Opens connections with the settings that Stepwell needs: durable, in WAL mode. Every setting is read back.

use std::path::Path;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use crate::error::{OpenError, store_error};
use crate::names::sibling;

/// The first SQLite version without the bug that could lose commits when the write-ahead log was reset.
const NEEDED: (i32, &str) = (3_051_003, "3.51.3");

/// Maximum time to wait for a lock. Only migrations, and backups by other programs, hold one.
const BUSY: Duration = Duration::from_secs(10);

/// Rejects a version of the SQLite library that can lose data.
pub(crate) fn check_library() -> Result<(), OpenError> {
    if rusqlite::version_number() >= NEEDED.0 {
        return Ok(());
    }
    Err(OpenError::TooOld { found: rusqlite::version().to_owned(), needed: NEEDED.1.to_owned() })
}

/// Opens the writer's connection. Creates the file if it does not exist.
pub(crate) fn writing(path: &Path, cache_kib: u32) -> Result<Connection, OpenError> {
    let flags =
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = open(path, flags)?;
    set(&connection, "page_size", "4096")?;
    set(&connection, "journal_mode", "wal")?;
    set(&connection, "synchronous", "2")?;
    // The write-ahead log is copied in the background, not by the commit that makes it too long.
    set(&connection, "wal_autocheckpoint", "0")?;
    shared(&connection, cache_kib)?;
    Ok(connection)
}

/// Opens a connection for the thread that copies the write-ahead log into the database.
pub(crate) fn checkpointing(path: &Path) -> Result<Connection, OpenError> {
    let connection = open(path, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    set(&connection, "synchronous", "2")?;
    Ok(connection)
}

/// Opens a read-only connection for a reader thread.
pub(crate) fn reading(path: &Path, cache_kib: u32) -> Result<Connection, OpenError> {
    let connection = open(path, OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    set(&connection, "query_only", "1")?;
    shared(&connection, cache_kib)?;
    Ok(connection)
}

/// Opens a connection that reads a file which may have no owner, and leaves no new files behind.
pub(crate) fn read_only(path: &Path) -> Result<Connection, OpenError> {
    // Reading needs a write-ahead log. A connection that may write removes the log it has to create for that. A log
    // that exists already must stay, so the connection is read-only then.
    let has_log = sibling(path, "-wal").exists();
    let mode = if has_log { OpenFlags::SQLITE_OPEN_READ_ONLY } else { OpenFlags::SQLITE_OPEN_READ_WRITE };
    let connection = open(path, mode | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    set(&connection, "query_only", "1")?;
    Ok(connection)
}

/// Opens a connection to a file that does not change. Files next to it, such as a log, are ignored.
pub(crate) fn sealed(path: &Path) -> Result<Connection, OpenError> {
    let mut address = "file:".to_owned();
    for byte in path.as_os_str().as_encoded_bytes() {
        match byte {
            b'/' | b'.' | b'-' | b'_' | b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' => {
                address.push(char::from(*byte));
            }
            other => address.push_str(&format!("%{other:02x}")),
        }
    }
    address.push_str("?immutable=1");
    let flags =
        OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_URI;
    open(Path::new(&address), flags)
}

/// Opens a connection that fills an empty file, without a journal and without fsync. The file counts only once it is
/// complete and synced.
pub(crate) fn filling(path: &Path) -> Result<Connection, OpenError> {
    let connection = owning(path)?;
    set(&connection, "journal_mode", "off")?;
    set(&connection, "synchronous", "0")?;
    Ok(connection)
}

/// Opens a connection in exclusive locking mode: no other connection, in this program or another, may use the file.
pub(crate) fn owning(path: &Path) -> Result<Connection, OpenError> {
    let connection = open(path, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    // Another program that has the file open will not close it soon, so a long wait is no use.
    connection.busy_timeout(Duration::from_secs(1)).map_err(|error| store_error(&error))?;
    set(&connection, "locking_mode", "exclusive")?;
    Ok(connection)
}

fn open(path: &Path, flags: OpenFlags) -> Result<Connection, OpenError> {
    let file_error = |error: rusqlite::Error| OpenError::File {
        path: path.display().to_string(),
        reason: format!("cannot open the database: {error}"),
    };
    let connection = Connection::open_with_flags(path, flags).map_err(file_error)?;
    connection.busy_timeout(BUSY).map_err(file_error)?;
    // Query plans must not depend on bound values: otherwise SQLite prepares a statement again each time it is run.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map_err(file_error)?;
    connection.set_prepared_statement_cache_capacity(64);
    Ok(connection)
}

fn shared(connection: &Connection, cache_kib: u32) -> Result<(), OpenError> {
    set(connection, "cache_size", &format!("-{cache_kib}"))?;
    set(connection, "temp_store", "2")
}

/// Sets a pragma and reads it back, because SQLite silently ignores a value that it cannot apply.
pub(crate) fn set(connection: &Connection, pragma: &str, wanted: &str) -> Result<(), OpenError> {
    let failed = |error: rusqlite::Error| OpenError::Store(store_error(&error));
    connection
        .pragma_update_and_check(None, pragma, wanted, |_| Ok(()))
        .or_else(no_answer)
        .map_err(failed)?;
    let found: rusqlite::types::Value =
        connection.pragma_query_value(None, pragma, |row| row.get(0)).map_err(failed)?;
    let found = match found {
        rusqlite::types::Value::Integer(number) => number.to_string(),
        rusqlite::types::Value::Text(text) => text,
        other => format!("{other:?}"),
    };
    if found == wanted {
        return Ok(());
    }
    Err(OpenError::Setting { pragma: pragma.to_owned(), wanted: wanted.to_owned(), found })
}

/// Accepts a missing answer: most pragmas return no row when they are set.
fn no_answer(error: rusqlite::Error) -> rusqlite::Result<()> {
    match error {
        rusqlite::Error::QueryReturnedNoRows => Ok(()),
        other => Err(other),
    }
}
