//! Rows that are there and cannot be read: each is told of by itself, and hides nothing else.

use std::fmt;

use stepwell_core::RunId;

use crate::store::{Page, StoreError, page_rows};

/// A row that is there and cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadRow {
    /// The table it is in.
    pub table: &'static str,
    /// Which row, by its key within the tenant.
    pub key: String,
    /// The run whose it is.
    pub run: Option<RunId>,
    /// What is wrong with it.
    pub why: String,
}

impl fmt::Display for BadRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "row `{}` of table `{}`: {}", self.key, self.table, self.why)
    }
}

impl std::error::Error for BadRow {}

impl BadRow {
    /// A run's own row.
    pub fn run(run: RunId, why: String) -> Self {
        BadRow { table: "runs", key: run.to_string(), run: Some(run), why }
    }
}

/// What the rows of a listing are, for when one of them cannot be read.
#[derive(Debug, Clone, Copy)]
pub struct Listing<'a> {
    /// The table.
    pub table: &'static str,
    /// What comes before a row's cursor in its key.
    pub within: &'a str,
    /// The run whose they are, where it is one run's.
    pub run: Option<RunId>,
}

impl Listing<'_> {
    /// Rows whose cursor is their key.
    pub fn of(table: &'static str) -> Listing<'static> {
        Listing { table, within: "", run: None }
    }

    /// Rows of one run.
    pub fn of_run(table: &'static str, run: RunId) -> Listing<'static> {
        Listing { table, within: "", run: Some(run) }
    }

    /// The row at this cursor cannot be read. Some cursors begin with the id of the run whose row it is.
    pub fn bad(&self, cursor: Option<&str>, why: String) -> BadRow {
        let with_run = cursor.filter(|_| matches!(self.table, "runs" | "waits" | "handles"));
        let begins = with_run.and_then(|cursor| cursor.split(':').next()?.parse().ok());
        let key = match (self.run, cursor) {
            (Some(run), Some(cursor)) => format!("{run}:{cursor}"),
            (Some(run), None) => run.to_string(),
            (None, cursor) => format!("{}{}", self.within, cursor.unwrap_or("?")),
        };
        BadRow { table: self.table, key, run: self.run.or(begins), why }
    }
}

/// A row as it was read: where the listing goes on after it, as far as that can be told, and what is in it.
pub type Seen<T> = (Option<String>, Result<T, BadRow>);

impl<T> Page<T> {
    /// A page of at most `limit` rows out of one row more than that, as far as they can be read.
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

    /// All rows, as far as they can be read.
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
