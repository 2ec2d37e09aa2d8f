//! Documents: typed records of a run, each visible in a range of the run's versions.
//!
//! A document is written by a commit that creates a version of its run, and is visible from that version on. Replaced
//! and removed documents stay in the table, so that the documents of an earlier version can be read.

use bytes::Bytes;
use stepwell_core::{LimitExceeded, Limits, Name, RunId, Timestamp};

use crate::store::{StoreError, bad_cursor};

/// One change to a run's documents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DocumentWrite {
    /// The run of the document. The commit must create a version of it.
    pub run: RunId,
    /// The document's key: 1 to 256 characters. A run has at most one visible document under a key.
    pub key: String,
    pub op: DocumentOp,
}

/// A change to one document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DocumentOp {
    /// Makes this document visible under the key, in place of the previous one.
    Put {
        /// The type of the document.
        kind: Name,
        /// The content of the document (JSON).
        body: Bytes,
        /// Labels to find the document by, in addition to its type.
        tags: Vec<String>,
    },
    /// Ends the visibility of the document under the key.
    Remove,
}

/// A document as listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    pub run: RunId,
    pub key: String,
    /// The type of the document.
    pub kind: Name,
    /// The content of the document (JSON).
    pub body: Bytes,
    /// Labels to find the document by, in addition to its type.
    pub tags: Vec<String>,
    /// The first version that shows it.
    pub visible_from: u64,
    /// The first later version that does not show it; `None` = the newest version shows it.
    pub visible_to: Option<u64>,
    /// The time of the commit that wrote it.
    pub at: Timestamp,
}

impl Document {
    /// Returns true if the document is visible at this version; `None` = the newest version.
    pub fn visible_at(&self, version: Option<u64>) -> bool {
        match version {
            None => self.visible_to.is_none(),
            Some(at) => self.visible_from <= at && self.visible_to.is_none_or(|to| to > at),
        }
    }
}

/// The stored row of a document. Run, key and `visible_from` together are unique.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DocumentRow {
    pub document: Document,
    /// Index among the documents written by the same commit.
    pub ordinal: u64,
}

impl DocumentRow {
    /// Returns the sort key of the listing: the order in which the run's documents were written.
    pub fn place(&self) -> (u64, u64) {
        (self.document.visible_from, self.ordinal)
    }

    /// Returns the cursor after this document.
    pub fn cursor(&self) -> String {
        place_cursor((self.document.visible_from, self.ordinal))
    }
}

/// Returns the cursor after this sort key.
pub fn place_cursor((version, ordinal): (u64, u64)) -> String {
    format!("{version}:{ordinal}")
}

/// Parses a cursor of [`DocumentRow::cursor`].
pub fn read_place(cursor: Option<&str>) -> Result<Option<(u64, u64)>, StoreError> {
    let Some(cursor) = cursor else { return Ok(None) };
    let read = || {
        let (version, ordinal) = cursor.split_once(':')?;
        Some((version.parse().ok()?, ordinal.parse().ok()?))
    };
    read().map(Some).ok_or_else(|| bad_cursor(cursor))
}

/// The end of a document's visibility at a version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DocumentEnd {
    pub run: RunId,
    /// The key. There may be no document under it.
    pub key: String,
    /// The first version that does not show the document.
    pub version: u64,
}

/// A query for documents of a run. A document must match every field that is set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DocumentQuery {
    pub run: RunId,
    /// Documents visible at this version; `None` = at the newest version.
    ///
    /// For a version that has been removed from the history, only documents that a remaining version shows are found.
    pub at: Option<u64>,
    pub key: Option<String>,
    /// The type of the document.
    pub kind: Option<Name>,
    /// One of the document's tags.
    pub tag: Option<String>,
    /// Maximum number of documents; see [`page_rows`](crate::store::page_rows).
    pub limit: u32,
    /// [`Page::next`](crate::Page::next) of the previous page; `None` = the first page.
    pub cursor: Option<String>,
}

impl DocumentQuery {
    /// Returns true if the document matches. Ignores `cursor` and `limit`.
    pub fn matches(&self, document: &Document) -> bool {
        let DocumentQuery { run, at, key, kind, tag, limit: _, cursor: _ } = self;
        document.run == *run
            && document.visible_at(*at)
            && key.as_ref().is_none_or(|key| document.key == *key)
            && kind.as_ref().is_none_or(|kind| document.kind == *kind)
            && tag.as_ref().is_none_or(|tag| document.tags.contains(tag))
    }
}

/// The reason a document cannot be written.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum DocumentError {
    /// The key is too long.
    #[error(transparent)]
    TooLarge(Box<LimitExceeded>),
    /// The key is empty.
    #[error("the key is empty")]
    EmptyKey,
}

impl DocumentWrite {
    /// Returns the approximate number of rows and bytes that it writes.
    pub(crate) fn size_hint(&self) -> (usize, usize) {
        match &self.op {
            // The replaced document's row is written too.
            DocumentOp::Put { kind: _, body, tags } => {
                (2, body.len() + tags.iter().map(String::len).sum::<usize>())
            }
            DocumentOp::Remove => (1, 0),
        }
    }

    /// Rejects an empty or too long key.
    pub(crate) fn check_key(&self, limits: &Limits) -> Result<(), DocumentError> {
        if self.key.is_empty() {
            return Err(DocumentError::EmptyKey);
        }
        let exceeded = |exceeded| DocumentError::TooLarge(Box::new(exceeded));
        limits.key_chars("the key", self.key.chars().count()).map_err(exceeded)
    }

    /// Returns the row to insert at this version; `None` for a removal.
    pub(crate) fn row(self, version: u64, ordinal: u64, at: Timestamp) -> Option<DocumentRow> {
        let DocumentWrite { run, key, op } = self;
        let DocumentOp::Put { kind, body, tags } = op else { return None };
        let document = Document { run, key, kind, body, tags, visible_from: version, visible_to: None, at };
        Some(DocumentRow { document, ordinal })
    }
}
