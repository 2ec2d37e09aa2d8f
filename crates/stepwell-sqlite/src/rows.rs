//! Converts rows to values and back.

use bytes::Bytes;
use rusqlite::Row;
use rusqlite::types::Type;
use stepwell_core::{DefinitionHash, Name, RunId, Timestamp};
use stepwell_store::document::DocumentRow;
use stepwell_store::plan::KeyRow;
use stepwell_store::{
    Cell, CellKey, Chain, CommitId, Document, KeyLifetime, Parent, ProcessId, RunRow, Space,
    StoredDefinition, StoredMessage, StoredWait, ValueType, WaitRow,
};
use uuid::Uuid;

/// Converts a counter for a signed column. Counters start at 0 and never reach the sign bit. A larger number, which
/// only a caller can make up, becomes the maximum and stays greater than every stored counter.
pub(crate) fn int(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Converts an optional time to microseconds.
pub(crate) fn time(at: Option<Timestamp>) -> Option<i64> {
    at.map(Timestamp::micros)
}

pub(crate) fn id(id: Option<Uuid>) -> Option<[u8; 16]> {
    id.map(Uuid::into_bytes)
}

/// Encodes places as a JSON list.
pub(crate) fn places(places: &[Name]) -> String {
    serde_json::to_string(places).expect("names are text")
}

/// Encodes the tags of a document as a JSON list.
pub(crate) fn tags(tags: &[String]) -> String {
    serde_json::to_string(tags).expect("tags are text")
}

/// Encodes ids as a parameter for `json_each`: a JSON list of hex texts.
pub(crate) fn hex_list(ids: impl IntoIterator<Item = impl AsRef<[u8]>>) -> String {
    let hex = |id: &[u8]| id.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let all: Vec<_> = ids.into_iter().map(|id| hex(id.as_ref())).collect();
    serde_json::to_string(&all).expect("hex digits are text")
}

/// Reads a run's row; the id is the first column.
pub(crate) fn run(row: &Row<'_>) -> rusqlite::Result<RunRow> {
    let parent_run: Option<[u8; 16]> = row.get(15)?;
    let parent = match parent_run {
        None => None,
        Some(run) => Some(Parent {
            run: RunId::new(Uuid::from_bytes(run)),
            activation: unsigned(row, 16)?,
            child: row.get(17)?,
        }),
    };
    Ok(RunRow {
        run: run_id(row, 0)?,
        workflow: Name::from(row.get::<_, String>(1)?),
        definition: DefinitionHash::from_bytes(row.get(2)?),
        revision: unsigned(row, 3)?,
        version: unsigned(row, 4)?,
        fence: unsigned(row, 5)?,
        owner: row.get::<_, Option<[u8; 16]>>(6)?.map(|owner| ProcessId(Uuid::from_bytes(owner))),
        status: read(row, 7, |text: String| text.parse().ok())?,
        places: read(row, 8, |text: String| serde_json::from_str(&text).ok())?,
        wake: instant(row, 9)?,
        inbox_seq: unsigned(row, 10)?,
        inbox_len: unsigned(row, 11)?,
        chain: Chain { base: unsigned(row, 12)?, bytes: unsigned(row, 13)? },
        ledger: row.get::<_, Option<Vec<u8>>>(14)?.map(Bytes::from),
        parent,
        root: run_id(row, 18)?,
        created_at: Timestamp::from_micros(row.get(19)?),
        updated_at: Timestamp::from_micros(row.get(20)?),
        error: row.get(21)?,
    })
}

pub(crate) fn message(row: &Row<'_>) -> rusqlite::Result<StoredMessage> {
    Ok(StoredMessage {
        seq: unsigned(row, 0)?,
        topic: row.get(1)?,
        body: bytes(row, 2)?,
        received_at: Timestamp::from_micros(row.get(3)?),
        expires_at: instant(row, 4)?,
    })
}

pub(crate) fn wait(row: &Row<'_>) -> rusqlite::Result<WaitRow> {
    Ok(WaitRow {
        run: run_id(row, 0)?,
        wait: StoredWait {
            activation: unsigned(row, 1)?,
            place: Name::from(row.get::<_, String>(2)?),
            since: Timestamp::from_micros(row.get(3)?),
            until: instant(row, 4)?,
            detail: bytes(row, 5)?,
            topic: row.get(6)?,
            due: instant(row, 7)?,
        },
    })
}

/// Reads a document of the given run; the row does not contain the run.
pub(crate) fn document(row: &Row<'_>, run: RunId) -> rusqlite::Result<DocumentRow> {
    let document = Document {
        run,
        key: row.get(0)?,
        kind: Name::from(row.get::<_, String>(1)?),
        body: bytes(row, 2)?,
        tags: read(row, 3, |text: String| serde_json::from_str(&text).ok())?,
        visible_from: unsigned(row, 4)?,
        visible_to: row.get::<_, Option<i64>>(5)?.map(|version| version as u64),
        at: Timestamp::from_micros(row.get(6)?),
    };
    Ok(DocumentRow { document, ordinal: unsigned(row, 7)? })
}

pub(crate) fn definition(row: &Row<'_>) -> rusqlite::Result<StoredDefinition> {
    Ok(StoredDefinition {
        hash: DefinitionHash::from_bytes(row.get(0)?),
        workflow: Name::from(row.get::<_, String>(1)?),
        version: row.get(2)?,
        body: bytes(row, 3)?,
        publisher: row.get(4)?,
    })
}

/// Reads JSON from a text column.
pub(crate) fn json(row: &Row<'_>, column: usize) -> rusqlite::Result<serde_json::Value> {
    read(row, column, |text: String| serde_json::from_str(&text).ok())
}

/// Reads a cell of the given space and owner. If its value is unreadable, [`Cell::damage`] is set.
pub(crate) fn cell(row: &Row<'_>, space: Space, owner: &str) -> rusqlite::Result<Cell> {
    let content = || {
        let value = match row.get::<_, Option<String>>(1)? {
            Some(text) => Some(serde_json::from_str(&text).map_err(|_| unreadable(1))?),
            None => None,
        };
        Ok((value, read(row, 2, |word: String| ValueType::from_word(&word))?))
    };
    let content: rusqlite::Result<_> = content();
    let damage = content.as_ref().err().map(ToString::to_string);
    let (value, value_type) = content.unwrap_or((Some(serde_json::Value::Null), ValueType::Json));
    Ok(Cell {
        key: CellKey { space, owner: owner.to_owned(), key: row.get(0)? },
        value,
        value_type,
        revision: unsigned(row, 3)?,
        expires_at: instant(row, 4)?,
        created_at: Timestamp::from_micros(row.get(5)?),
        updated_at: Timestamp::from_micros(row.get(6)?),
        created_by: row.get::<_, Option<[u8; 16]>>(7)?.map(|run| RunId::new(Uuid::from_bytes(run))),
        damage,
    })
}

/// Reads a cell whose value is needed. If the value is unreadable, the error names the cell.
pub(crate) fn whole_cell(row: &Row<'_>, space: Space, owner: &str) -> rusqlite::Result<Cell> {
    let cell = cell(row, space, owner)?;
    cell.whole().map_err(|row| rusqlite::Error::FromSqlConversionFailure(1, Type::Text, Box::new(row)))
}

/// Reads the record of an idempotency key.
pub(crate) fn key(row: &Row<'_>, operation: &str, key: &str) -> rusqlite::Result<KeyRow> {
    let run: Option<[u8; 16]> = row.get(4)?;
    let lifetime = match (instant(row, 3)?, run) {
        (Some(until), Some(run)) => KeyLifetime::UntilWithRun(until, RunId::new(Uuid::from_bytes(run))),
        (Some(until), None) => KeyLifetime::Until(until),
        (None, Some(run)) => KeyLifetime::WithRun(RunId::new(Uuid::from_bytes(run))),
        (None, None) => return Err(unreadable(3)),
    };
    Ok(KeyRow {
        operation: operation.to_owned(),
        key: key.to_owned(),
        request: row.get(0)?,
        answer: bytes(row, 1)?,
        results: row.get::<_, Option<Vec<u8>>>(2)?.map(Bytes::from),
        lifetime,
        commit: CommitId(Uuid::from_bytes(row.get(5)?)),
    })
}

/// Returns the lifetime of an idempotency key as its two columns.
pub(crate) fn lifetime(lifetime: KeyLifetime) -> (Option<i64>, Option<[u8; 16]>) {
    (lifetime.until().map(Timestamp::micros), lifetime.run().map(|run| run.uuid().into_bytes()))
}

pub(crate) fn run_id(row: &Row<'_>, column: usize) -> rusqlite::Result<RunId> {
    Ok(RunId::new(Uuid::from_bytes(row.get(column)?)))
}

pub(crate) fn unsigned(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    Ok(row.get::<_, i64>(column)? as u64)
}

/// Reads an optional time from a column in microseconds.
pub(crate) fn instant(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<Timestamp>> {
    Ok(row.get::<_, Option<i64>>(column)?.map(Timestamp::from_micros))
}

pub(crate) fn bytes(row: &Row<'_>, column: usize) -> rusqlite::Result<Bytes> {
    Ok(row.get::<_, Vec<u8>>(column)?.into())
}

/// Converts bytes to a parameter. An empty slice becomes an empty blob, not NULL.
pub(crate) fn blob(bytes: Option<&Bytes>) -> Option<&[u8]> {
    bytes.map(|bytes| &bytes[..])
}

pub(crate) fn read<T: rusqlite::types::FromSql, U>(
    row: &Row<'_>,
    column: usize,
    parse: impl FnOnce(T) -> Option<U>,
) -> rusqlite::Result<U> {
    parse(row.get(column)?).ok_or_else(|| unreadable(column))
}

fn unreadable(column: usize) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(
        column,
        Type::Text,
        "this version does not know the value".into(),
    )
}
