//! Rows read one by one: one that cannot be read is told of, and the others are given.

use stepwell_store::{BadRow, Listing, Page, Seen, StoreError};
use tokio_postgres::Row;

use crate::error::Failure;
use crate::rows::Read;

/// A page of a listing out of its rows, of which there is one more than the page has.
pub(crate) fn page<T>(
    rows: &[Row],
    of: Listing<'_>,
    limit: u32,
    cursor: impl Fn(&Row) -> Read<String>,
    read: impl Fn(&Row) -> Read<T>,
) -> Read<Page<T>> {
    Ok(Page::sorted(all(rows, of, cursor, read)?, limit)?)
}

/// Rows, as far as they can be read.
pub(crate) fn all<T>(
    rows: &[Row],
    of: Listing<'_>,
    cursor: impl Fn(&Row) -> Read<String>,
    read: impl Fn(&Row) -> Read<T>,
) -> Read<Vec<Seen<T>>> {
    rows.iter().map(|row| seen(of, cursor(row).ok(), read(row))).collect()
}

/// A row as far as it can be read.
pub(crate) fn seen<T>(of: Listing<'_>, cursor: Option<String>, read: Read<T>) -> Read<Seen<T>> {
    match read {
        Ok(value) => Ok((cursor, Ok(value))),
        Err(failure) => {
            let why = what_is_wrong(&failure).ok_or(failure)?;
            let bad = of.bad(cursor.as_deref(), why);
            Ok((cursor, Err(bad)))
        }
    }
}

/// What is wrong with a row; nothing if it is the database that could not.
fn what_is_wrong(failure: &Failure) -> Option<String> {
    match failure {
        Failure::Store(StoreError::Corrupt(why)) => Some(why.clone()),
        Failure::Store(StoreError::Bad(row)) => Some(row.why.clone()),
        _ => None,
    }
}

/// Names the row in the error of whoever needs just this one.
pub(crate) fn named<T>(read: Read<T>, row: impl FnOnce(String) -> BadRow) -> Read<T> {
    read.map_err(|failure| match what_is_wrong(&failure) {
        Some(why) => StoreError::Bad(row(why)).into(),
        None => failure,
    })
}
