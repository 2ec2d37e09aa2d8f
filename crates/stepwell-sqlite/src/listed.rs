//! Reads rows one by one: an unreadable row is reported, and the other rows are returned.

use rusqlite::types::Type;
use rusqlite::{Error, Params, Row, Statement};
use stepwell_store::{BadRow, Listing, Page, Seen, StoreError};

use crate::query::Read;
use crate::reader::ReadError;

/// Builds a page of a listing. The statement must be limited to one row more than the page has.
pub(crate) fn page<T>(
    statement: &mut Statement<'_>,
    params: impl Params,
    of: Listing<'_>,
    limit: u32,
    cursor: impl Fn(&Row<'_>) -> rusqlite::Result<String>,
    read: impl Fn(&Row<'_>) -> rusqlite::Result<T>,
) -> Read<Page<T>> {
    Ok(Page::sorted(all(statement, params, of, cursor, read)?, limit)?)
}

/// Reads all rows of a statement. An unreadable row becomes an error entry.
pub(crate) fn all<T>(
    statement: &mut Statement<'_>,
    params: impl Params,
    of: Listing<'_>,
    cursor: impl Fn(&Row<'_>) -> rusqlite::Result<String>,
    read: impl Fn(&Row<'_>) -> rusqlite::Result<T>,
) -> Read<Vec<Seen<T>>> {
    let mut rows = statement.query(params)?;
    let mut all = Vec::new();
    while let Some(row) = rows.next()? {
        all.push(read_listed(of, row, &cursor, |row| Ok(read(row)?))?);
    }
    Ok(all)
}

/// Reads one row. An unreadable row becomes an error entry; a failure of the database is an error.
pub(crate) fn read_listed<T>(
    of: Listing<'_>,
    row: &Row<'_>,
    cursor: impl FnOnce(&Row<'_>) -> rusqlite::Result<String>,
    read: impl FnOnce(&Row<'_>) -> Read<T>,
) -> Read<Seen<T>> {
    let cursor = cursor(row).ok();
    match read(row) {
        Ok(value) => Ok((cursor, Ok(value))),
        Err(error) => {
            let why = unreadable_reason(&error).ok_or(error)?;
            let bad = of.bad(cursor.as_deref(), why);
            Ok((cursor, Err(bad)))
        }
    }
}

/// Returns the reason that a row is unreadable; `None` if the database failed instead.
pub(crate) fn unreadable_reason(error: &ReadError) -> Option<String> {
    match error {
        ReadError::Store(StoreError::Corrupt(why)) => Some(why.clone()),
        ReadError::Store(StoreError::Bad(row)) => Some(row.why.clone()),
        ReadError::Sql(error) => wrong_value(error).then(|| error.to_string()),
        ReadError::Store(_) => None,
    }
}

fn wrong_value(error: &Error) -> bool {
    matches!(
        error,
        Error::FromSqlConversionFailure(..)
            | Error::IntegralValueOutOfRange(..)
            | Error::InvalidColumnType(..)
            | Error::Utf8Error(..)
    )
}

/// Adds the row's name to the error if a single row that was looked up is unreadable.
pub(crate) fn named<T>(
    found: rusqlite::Result<T>,
    row: impl FnOnce(String) -> BadRow,
) -> rusqlite::Result<T> {
    found.map_err(|error| match wrong_value(&error) {
        true => Error::FromSqlConversionFailure(0, Type::Null, Box::new(row(error.to_string()))),
        false => error,
    })
}

/// Returns the row that [`named`] added to an error.
pub(crate) fn named_in(error: &Error) -> Option<BadRow> {
    match error {
        Error::FromSqlConversionFailure(_, _, why) => why.downcast_ref::<BadRow>().cloned(),
        _ => None,
    }
}
