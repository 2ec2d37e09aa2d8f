//! Reads rows one by one: an unreadable row is reported, and the other rows are returned.

use stepwell_store::{BadRow, Listing, Page, Seen, StoreError};
use tokio_postgres::Row;

use crate::error::Failure;
use crate::rows::Read;

/// Builds a page of a listing from its rows, of which there may be one more than the page has.
pub(crate) fn page<T>(
    rows: &[Row],
    of: Listing<'_>,
    limit: u32,
    cursor: impl Fn(&Row) -> Read<String>,
    read: impl Fn(&Row) -> Read<T>,
) -> Read<Page<T>> {
    Ok(Page::sorted(all(rows, of, cursor, read)?, limit)?)
}

/// Reads all rows. An unreadable row becomes an error entry.
pub(crate) fn all<T>(
    rows: &[Row],
    of: Listing<'_>,
    cursor: impl Fn(&Row) -> Read<String>,
    read: impl Fn(&Row) -> Read<T>,
) -> Read<Vec<Seen<T>>> {
    rows.iter().map(|row| read_listed(of, cursor(row).ok(), read(row))).collect()
}

/// Returns one row. An unreadable row becomes an error entry; a failure of the database is an error.
pub(crate) fn read_listed<T>(of: Listing<'_>, cursor: Option<String>, read: Read<T>) -> Read<Seen<T>> {
    match read {
        Ok(value) => Ok((cursor, Ok(value))),
        Err(failure) => {
            let why = unreadable_reason(&failure).ok_or(failure)?;
            let bad = of.bad(cursor.as_deref(), why);
            Ok((cursor, Err(bad)))
        }
    }
}

/// Returns the reason that a row is unreadable; `None` if the database failed instead.
fn unreadable_reason(failure: &Failure) -> Option<String> {
    match failure {
        Failure::Store(StoreError::Corrupt(why)) => Some(why.clone()),
        Failure::Store(StoreError::Bad(row)) => Some(row.why.clone()),
        _ => None,
    }
}

/// Adds the row's name to the error if a single row that was looked up is unreadable.
pub(crate) fn named<T>(read: Read<T>, row: impl FnOnce(String) -> BadRow) -> Read<T> {
    read.map_err(|failure| match unreadable_reason(&failure) {
        Some(why) => StoreError::Bad(row(why)).into(),
        None => failure,
    })
}
