//! Rows that exist but cannot be read. Each is reported by itself, so that it does not hide readable rows.

use std::fmt;

use stepwell_core::RunId;

use crate::cell::encoded;
use crate::store::{Page, StoreError, page_rows};

/// A row that exists but cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadRow {
    /// The table it is in.
    pub table: &'static str,
    /// The row's key within the tenant.
    pub key: String,
    /// The run that the row belongs to, if it belongs to one.
    pub run: Option<RunId>,
    /// The reason it cannot be read, for people to read.
    pub why: String,
}

impl fmt::Display for BadRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "row `{}` of table `{}`: {}", self.key, self.table, self.why)
    }
}

impl std::error::Error for BadRow {}

impl BadRow {
    /// Reports a run's own row.
    pub fn run(run: RunId, why: String) -> Self {
        BadRow { table: "runs", key: run.to_string(), run: Some(run), why }
    }
}

/// A description of the rows of a listing, used to name an unreadable row.
#[derive(Debug, Clone, Copy)]
pub struct Listing<'a> {
    pub table: &'static str,
    /// Prefix of a row's key, placed before its cursor.
    pub within: &'a str,
    /// The run that all rows belong to, if they belong to one.
    pub run: Option<RunId>,
}

impl Listing<'_> {
    /// Describes rows whose cursor is their key.
    pub fn of(table: &'static str) -> Listing<'static> {
        Listing { table, within: "", run: None }
    }

    /// Describes rows of one run.
    pub fn of_run(table: &'static str, run: RunId) -> Listing<'static> {
        Listing { table, within: "", run: Some(run) }
    }

    /// Reports that the row at this cursor cannot be read. Cursors of runs, waits and handles begin with the run's id.
    /// A cursor of checkpoints is the version after the row's. The key of a cell is its address.
    pub fn bad(&self, cursor: Option<&str>, why: String) -> BadRow {
        let with_run = cursor.filter(|_| matches!(self.table, "runs" | "waits" | "handles"));
        let begins = with_run.and_then(|cursor| cursor.split(':').next()?.parse().ok());
        let own = cursor.map(|cursor| match (self.table, cursor.parse::<u64>()) {
            ("checkpoints", Ok(next)) => next.saturating_sub(1).to_string(),
            ("cells", _) => encoded(cursor),
            _ => cursor.to_owned(),
        });
        let key = match (self.run, own) {
            (Some(run), Some(own)) => format!("{run}:{own}"),
            (Some(run), None) => run.to_string(),
            (None, own) => format!("{}{}", self.within, own.as_deref().unwrap_or("?")),
        };
        BadRow { table: self.table, key, run: self.run.or(begins), why }
    }
}

/// A row as it was read: its cursor, if that is readable, and its content.
pub type Seen<T> = (Option<String>, Result<T, BadRow>);

impl<T> Page<T> {
    /// Builds a page of at most `limit` rows from up to one row more. Unreadable rows go to [`Page::bad`].
    ///
    /// Fails if another page follows but no row of this page has a readable cursor.
    pub fn sorted(mut rows: Vec<Seen<T>>, limit: u32) -> Result<Self, StoreError> {
        let most = page_rows(limit);
        let more = rows.len() > most;
        rows.truncate(most);
        let next = rows.iter().rev().find_map(|(cursor, _)| cursor.clone());
        let page = Page::all(rows);
        match (more, next, page.bad.first()) {
            (false, ..) => Ok(page),
            (true, None, Some(row)) => Err(StoreError::Bad(row.clone())),
            (true, next, _) => Ok(Page { next, ..page }),
        }
    }

    /// Builds one page of all rows. Unreadable rows go to [`Page::bad`].
    pub fn all(rows: Vec<Seen<T>>) -> Self {
        let (mut items, mut bad) = (Vec::with_capacity(rows.len()), Vec::new());
        for (_, row) in rows {
            match row {
                Ok(item) => items.push(item),
                Err(row) => bad.push(row),
            }
        }
        Page { items, next: None, bad }
    }
}
