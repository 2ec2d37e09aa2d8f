//! A connection as Stepwell needs it: durable, in WAL mode, every setting read back.

use std::path::Path;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use crate::error::{OpenError, store_error};
use crate::names::beside;

/// The first SQLite without the bug that could lose commits when the log was reset.
const NEEDED: (i32, &str) = (3_051_003, "3.51.3");

/// Only the migrations and backups of other programs can hold a lock; nobody waits longer than this for them.
const BUSY: Duration = Duration::from_secs(10);

/// Refuses a SQLite library that can lose data.
pub(crate) fn check_library() -> Result<(), OpenError> {
    if rusqlite::version_number() >= NEEDED.0 {
        return Ok(());
    }
    Err(OpenError::TooOld { found: rusqlite::version().to_owned(), needed: NEEDED.1.to_owned() })
}

/// The writer's connection; creates the file.
pub(crate) fn writing(path: &Path, cache_kib: u32) -> Result<Connection, OpenError> {
    let flags =
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = open(path, flags)?;
    set(&connection, "page_size", "4096")?;
    set(&connection, "journal_mode", "wal")?;
    set(&connection, "synchronous", "2")?;
    // Checkpoints are made beside the commits, not after one of them.
    set(&connection, "wal_autocheckpoint", "0")?;
    shared(&connection, cache_kib)?;
    Ok(connection)
}

/// A connection for the thread that empties the log.
pub(crate) fn checkpointing(path: &Path) -> Result<Connection, OpenError> {
    let connection = open(path, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    set(&connection, "synchronous", "2")?;
    Ok(connection)
}

/// A reader's connection.
pub(crate) fn reading(path: &Path, cache_kib: u32) -> Result<Connection, OpenError> {
    let connection = open(path, OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    set(&connection, "query_only", "1")?;
    shared(&connection, cache_kib)?;
    Ok(connection)
}

/// A connection that looks at a file which may be nobody's, and leaves nothing behind that was not there.
pub(crate) fn looking(path: &Path) -> Result<Connection, OpenError> {
    // A connection that may write takes the log away that it has to make to read; of a log that is there already it is
    // not the one to decide.
    let has_log = beside(path, "-wal").exists();
    let mode = if has_log { OpenFlags::SQLITE_OPEN_READ_ONLY } else { OpenFlags::SQLITE_OPEN_READ_WRITE };
    let connection = open(path, mode | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    set(&connection, "query_only", "1")?;
    Ok(connection)
}

/// A connection to a file that nobody changes, whatever lies beside it.
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

/// A connection that fills an empty file: what is in it counts only once it is whole and brought to disk.
pub(crate) fn filling(path: &Path) -> Result<Connection, OpenError> {
    let connection = owning(path)?;
    set(&connection, "journal_mode", "off")?;
    set(&connection, "synchronous", "0")?;
    Ok(connection)
}

/// A connection beside which there is no other, in this program or another.
pub(crate) fn owning(path: &Path) -> Result<Connection, OpenError> {
    let connection = open(path, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    // Whoever has it open does not go away soon.
    connection.busy_timeout(Duration::from_secs(1)).map_err(|error| store_error(&error))?;
    set(&connection, "locking_mode", "exclusive")?;
    Ok(connection)
}

fn open(path: &Path, flags: OpenFlags) -> Result<Connection, OpenError> {
    let wrong = |error: rusqlite::Error| OpenError::File {
        path: path.display().to_string(),
        reason: format!("the database cannot be opened: {error}"),
    };
    let connection = Connection::open_with_flags(path, flags).map_err(wrong)?;
    connection.busy_timeout(BUSY).map_err(wrong)?;
    // Plans do not depend on the values that are bound: otherwise SQLite prepares a statement anew each time it is run.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map_err(wrong)?;
    connection.set_prepared_statement_cache_capacity(64);
    Ok(connection)
}

fn shared(connection: &Connection, cache_kib: u32) -> Result<(), OpenError> {
    set(connection, "cache_size", &format!("-{cache_kib}"))?;
    set(connection, "temp_store", "2")
}

/// Sets a pragma and reads it back: SQLite ignores what it cannot do without a word.
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

/// Most pragmas answer nothing when they are set.
fn no_answer(error: rusqlite::Error) -> rusqlite::Result<()> {
    match error {
        rusqlite::Error::QueryReturnedNoRows => Ok(()),
        other => Err(other),
    }
}
