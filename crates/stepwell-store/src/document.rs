//! Documents: what a run shows besides its state, each visible from one of the run's versions to another.
//!
//! A document is written by the commit that gives its run a version, and takes effect at that version. What was visible
//! at an earlier version stays in the rows, so that a run's documents can be read as they were.

use bytes::Bytes;
use stepwell_core::{LimitExceeded, Limits, Name, RunId, Timestamp};

use crate::store::{StoreError, bad_cursor};

/// One change to a run's documents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DocumentWrite {
    /// The run whose document it is; the commit must give it a version.
    pub run: RunId,
    /// The document's key: 1 to 256 characters. A run has at most one visible document under a key.
    pub key: String,
    /// What to do.
    pub op: DocumentOp,
}

/// What to do with a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DocumentOp {
    /// Shows this under the key from now on, in place of what was there.
    Put {
        /// What type of document it is.
        kind: Name,
        /// The document (JSON).
        body: Bytes,
        /// What it can be found by besides its type.
        tags: Vec<String>,
    },
    /// Shows nothing under the key from now on.
    Remove,
}

/// A document as listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// The run.
    pub run: RunId,
    /// Its key.
    pub key: String,
    /// What type of document it is.
    pub kind: Name,
    /// The document (JSON).
    pub body: Bytes,
    /// What it can be found by besides its type.
    pub tags: Vec<String>,
    /// The first version of the run that shows it.
    pub visible_from: u64,
    /// The first version after that which does not; `None` = the newest still shows it.
    pub visible_to: Option<u64>,
    /// When it was written.
    pub at: Timestamp,
}

impl Document {
    /// Whether the run shows it at a version; `None` = now.
    pub fn visible_at(&self, version: Option<u64>) -> bool {
        match version {
            None => self.visible_to.is_none(),
            Some(at) => self.visible_from <= at && self.visible_to.is_none_or(|to| to > at),
        }
    }
}

/// A document's row. (run, key, first version) is unique.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DocumentRow {
    /// The document.
    pub document: Document,
    /// Its place among the documents that were written at the same version.
    pub ordinal: u64,
}

impl DocumentRow {
    /// Its place in the order in which the run's documents were written.
    pub fn place(&self) -> (u64, u64) {
        (self.document.visible_from, self.ordinal)
    }

    /// The cursor of a listing that has come to it.
    pub fn cursor(&self) -> String {
        place_cursor((self.document.visible_from, self.ordinal))
    }
}

/// The cursor of a listing that has come to this place.
pub fn place_cursor((version, ordinal): (u64, u64)) -> String {
    format!("{version}:{ordinal}")
}

/// Reads what [`DocumentRow::cursor`] wrote.
pub fn read_place(cursor: Option<&str>) -> Result<Option<(u64, u64)>, StoreError> {
    let Some(cursor) = cursor else { return Ok(None) };
    let read = || {
        let (version, ordinal) = cursor.split_once(':')?;
        Some((version.parse().ok()?, ordinal.parse().ok()?))
    };
    read().map(Some).ok_or_else(|| bad_cursor(cursor))
}

/// From this version on a run shows nothing that it showed under this key before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DocumentEnd {
    /// The run.
    pub run: RunId,
    /// The key; there may be nothing under it.
    pub key: String,
    /// The version.
    pub version: u64,
}

/// Which of a run's documents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DocumentQuery {
    /// The run.
    pub run: RunId,
    /// Those it showed at this version; `None` = those it shows now. A version older than the oldest that is left of
    /// the run's history shows only what later ones show too.
    pub at: Option<u64>,
    /// Under this key.
    pub key: Option<String>,
    /// Of this type.
    pub kind: Option<Name>,
    /// With this tag.
    pub tag: Option<String>,
    /// How many at most.
    pub limit: u32,
    /// Where to begin.
    pub cursor: Option<String>,
}

impl DocumentQuery {
    /// Whether it asks for this document; where to begin is another matter.
    pub fn wants(&self, document: &Document) -> bool {
        let DocumentQuery { run, at, key, kind, tag, limit: _, cursor: _ } = self;
        document.run == *run
            && document.visible_at(*at)
            && key.as_ref().is_none_or(|key| document.key == *key)
            && kind.as_ref().is_none_or(|kind| document.kind == *kind)
            && tag.as_ref().is_none_or(|tag| document.tags.contains(tag))
    }
}

/// Why a document cannot be written.
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
    /// About how many rows and bytes it writes.
    pub(crate) fn size_hint(&self) -> (usize, usize) {
        match &self.op {
            // What it replaces is a row too.
            DocumentOp::Put { kind: _, body, tags } => {
                (2, body.len() + tags.iter().map(String::len).sum::<usize>())
            }
            DocumentOp::Remove => (1, 0),
        }
    }

    /// Refuses a key that is none.
    pub(crate) fn check_key(&self, limits: &Limits) -> Result<(), DocumentError> {
        if self.key.is_empty() {
            return Err(DocumentError::EmptyKey);
        }
        let exceeded = |exceeded| DocumentError::TooLarge(Box::new(exceeded));
        limits.key_chars("the key", self.key.chars().count()).map_err(exceeded)
    }

    /// The row it comes to at a version; `None` if it only ends what was there.
    pub(crate) fn row(self, version: u64, ordinal: u64, at: Timestamp) -> Option<DocumentRow> {
        let DocumentWrite { run, key, op } = self;
        let DocumentOp::Put { kind, body, tags } = op else { return None };
        let document = Document { run, key, kind, body, tags, visible_from: version, visible_to: None, at };
        Some(DocumentRow { document, ordinal })
    }
}
