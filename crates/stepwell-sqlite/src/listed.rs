//! Rows read one by one: one that cannot be read is told of, and the others are given.

use rusqlite::types::Type;
use rusqlite::{Error, Params, Row, Statement};
use stepwell_store::{BadRow, Listing, Page, Seen, StoreError};

use crate::query::Read;
use crate::reader::ReadError;

/// A page of a listing out of the rows of a statement, which is asked for one row more than the page has.
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

/// The rows of a statement, as far as they can be read.
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
        all.push(seen(of, row, &cursor, |row| Ok(read(row)?))?);
    }
    Ok(all)
}

/// A row as far as it can be read.
pub(crate) fn seen<T>(
    of: Listing<'_>,
    row: &Row<'_>,
    cursor: impl FnOnce(&Row<'_>) -> rusqlite::Result<String>,
    read: impl FnOnce(&Row<'_>) -> Read<T>,
) -> Read<Seen<T>> {
    let cursor = cursor(row).ok();
    match read(row) {
        Ok(value) => Ok((cursor, Ok(value))),
        Err(error) => {
            let why = what_is_wrong(&error).ok_or(error)?;
            let bad = of.bad(cursor.as_deref(), why);
            Ok((cursor, Err(bad)))
        }
    }
}

/// What is wrong with a row; nothing if it is the database that could not.
pub(crate) fn what_is_wrong(error: &ReadError) -> Option<String> {
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

/// Names the row in the error of whoever needs just this one.
pub(crate) fn named<T>(
    found: rusqlite::Result<T>,
    row: impl FnOnce(String) -> BadRow,
) -> rusqlite::Result<T> {
    found.map_err(|error| match wrong_value(&error) {
        true => Error::FromSqlConversionFailure(0, Type::Null, Box::new(row(error.to_string()))),
        false => error,
    })
}

/// The row that [`named`] has put into an error.
pub(crate) fn named_in(error: &Error) -> Option<BadRow> {
    match error {
        Error::FromSqlConversionFailure(_, _, why) => why.downcast_ref::<BadRow>().cloned(),
        _ => None,
    }
}
