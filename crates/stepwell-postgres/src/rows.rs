//! Converts rows to values and back.

use bytes::Bytes;
use serde_json::Value;
use stepwell_core::{DefinitionHash, Name, RunId, Timestamp};
use stepwell_store::delta;
use stepwell_store::document::DocumentRow;
use stepwell_store::plan::KeyRow;
use stepwell_store::{
    Cell, CellKey, Chain, CommitId, Document, KeyLifetime, Listing, Loaded, Parent, ProcessId, RunRow, Space,
    StoreError, StoredDefinition, StoredMessage, StoredWait, ValueType, WaitRow,
};
use tokio_postgres::Row;
use tokio_postgres::types::FromSql;
use uuid::Uuid;

use crate::error::Failure;

/// The result of reading from a row or from the database.
pub(crate) type Read<T> = Result<T, Failure>;

/// Converts a counter for a signed column. Counters start at 0 and never reach the sign bit. A larger number, which
/// only a caller can make up, becomes the maximum and stays greater than every stored counter.
pub(crate) fn int(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Converts an optional time to microseconds.
pub(crate) fn time(at: Option<Timestamp>) -> Option<i64> {
    at.map(Timestamp::micros)
}

/// Encodes places as a JSON list.
pub(crate) fn places(places: &[Name]) -> String {
    serde_json::to_string(places).expect("names are text")
}

/// Encodes the tags of a document as a JSON list.
pub(crate) fn tags(tags: &[String]) -> String {
    serde_json::to_string(tags).expect("tags are text")
}

pub(crate) fn get<'a, T: FromSql<'a>>(row: &'a Row, column: usize) -> Read<T> {
    Ok(row.try_get(column)?)
}

/// Reads a run's row; the id is the first column.
pub(crate) fn run(row: &Row) -> Read<RunRow> {
    let parent = match get::<Option<Uuid>>(row, 15)? {
        None => None,
        Some(run) => {
            Some(Parent { run: RunId::new(run), activation: unsigned(row, 16)?, child: small(row, 17)? })
        }
    };
    Ok(RunRow {
        run: run_id(row, 0)?,
        workflow: name(row, 1)?,
        definition: hash(row, 2)?,
        revision: unsigned(row, 3)?,
        version: unsigned(row, 4)?,
        fence: unsigned(row, 5)?,
        owner: get::<Option<Uuid>>(row, 6)?.map(ProcessId),
        status: read(row, 7, |text| text.parse().ok())?,
        places: read(row, 8, |text| serde_json::from_str(text).ok())?,
        wake: instant(row, 9)?,
        inbox_seq: unsigned(row, 10)?,
        inbox_len: unsigned(row, 11)?,
        chain: Chain { base: unsigned(row, 12)?, bytes: unsigned(row, 13)? },
        ledger: optional_bytes(row, 14)?,
        parent,
        root: run_id(row, 18)?,
        created_at: at(row, 19)?,
        updated_at: at(row, 20)?,
        error: get(row, 21)?,
    })
}

/// Reads a loaded run: its row, the stored states that its state is built from, and its inbox.
pub(crate) fn loaded(row: &Row) -> Read<Loaded> {
    let known = run(row)?;
    let bodies: Option<Vec<&[u8]>> = get(row, 22)?;
    let state = match delta::read(bodies.unwrap_or_default()) {
        Ok(state) => state,
        Err(error) => {
            let bad = Listing::of_run("checkpoints", known.run).bad(None, error.to_string());
            return Ok(known.damaged(bad));
        }
    };
    let seqs: Option<Vec<i64>> = get(row, 23)?;
    let inbox = match seqs {
        None => Vec::new(),
        Some(seqs) => {
            let (topics, bodies): (Vec<String>, Vec<&[u8]>) = (get(row, 24)?, get(row, 25)?);
            let (received, expires): (Vec<i64>, Vec<Option<i64>>) = (get(row, 26)?, get(row, 27)?);
            let texts = topics.into_iter().zip(bodies);
            let times = received.into_iter().zip(expires);
            let message =
                |(seq, ((topic, body), (received, expires))): (i64, ((String, &[u8]), _))| StoredMessage {
                    seq: seq as u64,
                    topic,
                    body: Bytes::copy_from_slice(body),
                    received_at: Timestamp::from_micros(received),
                    expires_at: Option::map(expires, Timestamp::from_micros),
                };
            seqs.into_iter().zip(texts.zip(times)).map(message).collect()
        }
    };
    Ok(known.loaded(state, inbox))
}

pub(crate) fn wait(row: &Row) -> Read<WaitRow> {
    Ok(WaitRow {
        run: run_id(row, 0)?,
        wait: StoredWait {
            activation: unsigned(row, 1)?,
            place: name(row, 2)?,
            since: at(row, 3)?,
            until: instant(row, 4)?,
            detail: bytes(row, 5)?,
            topic: row.try_get(6)?,
            due: instant(row, 7)?,
        },
    })
}

/// Reads a document of the given run; the row does not contain the run.
pub(crate) fn document(row: &Row, run: RunId) -> Read<DocumentRow> {
    let document = Document {
        run,
        key: get(row, 0)?,
        kind: name(row, 1)?,
        body: bytes(row, 2)?,
        tags: read(row, 3, |text| serde_json::from_str(text).ok())?,
        visible_from: unsigned(row, 4)?,
        visible_to: get::<Option<i64>>(row, 5)?.map(|version| version as u64),
        at: at(row, 6)?,
    };
    Ok(DocumentRow { document, ordinal: unsigned(row, 7)? })
}

pub(crate) fn definition(row: &Row) -> Read<StoredDefinition> {
    Ok(StoredDefinition {
        hash: hash(row, 0)?,
        workflow: name(row, 1)?,
        version: small(row, 2)?,
        body: bytes(row, 3)?,
        publisher: get(row, 4)?,
    })
}

/// Reads JSON from a text column.
pub(crate) fn json(row: &Row, column: usize) -> Read<serde_json::Value> {
    serde_json::from_str(get(row, column)?).map_err(|_| unreadable(column))
}

/// Reads a cell of the given space and owner. Column `from` has the key, and the other columns follow. If the value is
/// unreadable, [`Cell::damage`] is set.
pub(crate) fn cell(row: &Row, from: usize, space: Space, owner: &str) -> Read<Cell> {
    let (text, word): (Option<&str>, &str) = (get(row, from + 1)?, get(row, from + 2)?);
    let value = text.map(serde_json::from_str).transpose();
    let (value, value_type, damage) = match (value, ValueType::from_word(word)) {
        (Ok(value), Some(value_type)) => (value, value_type, None),
        (Ok(_), None) => (Some(Value::Null), ValueType::Json, Some(format!("`{word}` is not a value type"))),
        (Err(error), _) => (Some(Value::Null), ValueType::Json, Some(error.to_string())),
    };
    Ok(Cell {
        key: CellKey { space, owner: owner.to_owned(), key: get(row, from)? },
        value,
        value_type,
        revision: unsigned(row, from + 3)?,
        expires_at: instant(row, from + 4)?,
        created_at: at(row, from + 5)?,
        updated_at: at(row, from + 6)?,
        created_by: get::<Option<Uuid>>(row, from + 7)?.map(RunId::new),
        damage,
    })
}

/// Reads a cell whose value is needed. If the value is unreadable, the error names the cell.
pub(crate) fn whole_cell(row: &Row, from: usize, space: Space, owner: &str) -> Read<Cell> {
    cell(row, from, space, owner)?.whole().map_err(|row| StoreError::Bad(row).into())
}

/// Reads the record of an idempotency key.
pub(crate) fn key(row: &Row, operation: &str, key: &str) -> Read<KeyRow> {
    let run: Option<Uuid> = get(row, 4)?;
    let lifetime = match (instant(row, 3)?, run) {
        (Some(until), Some(run)) => KeyLifetime::UntilWithRun(until, RunId::new(run)),
        (Some(until), None) => KeyLifetime::Until(until),
        (None, Some(run)) => KeyLifetime::WithRun(RunId::new(run)),
        (None, None) => return Err(unreadable(3)),
    };
    let request: &[u8] = get(row, 0)?;
    Ok(KeyRow {
        operation: operation.to_owned(),
        key: key.to_owned(),
        request: request.try_into().map_err(|_| unreadable(0))?,
        answer: bytes(row, 1)?,
        results: optional_bytes(row, 2)?,
        lifetime,
        commit: CommitId(get(row, 5)?),
    })
}

/// Returns the lifetime of an idempotency key as its two columns.
pub(crate) fn lifetime(lifetime: KeyLifetime) -> (Option<i64>, Option<Uuid>) {
    (lifetime.until().map(Timestamp::micros), lifetime.run().map(RunId::uuid))
}

pub(crate) fn run_id(row: &Row, column: usize) -> Read<RunId> {
    Ok(RunId::new(get(row, column)?))
}

pub(crate) fn unsigned(row: &Row, column: usize) -> Read<u64> {
    Ok(get::<i64>(row, column)? as u64)
}

/// Reads a time from a column in microseconds.
pub(crate) fn at(row: &Row, column: usize) -> Read<Timestamp> {
    Ok(Timestamp::from_micros(get(row, column)?))
}

/// Reads an optional time from a column in microseconds.
pub(crate) fn instant(row: &Row, column: usize) -> Read<Option<Timestamp>> {
    Ok(get::<Option<i64>>(row, column)?.map(Timestamp::from_micros))
}

pub(crate) fn bytes(row: &Row, column: usize) -> Read<Bytes> {
    Ok(Bytes::copy_from_slice(get(row, column)?))
}

pub(crate) fn optional_bytes(row: &Row, column: usize) -> Read<Option<Bytes>> {
    Ok(get::<Option<&[u8]>>(row, column)?.map(Bytes::copy_from_slice))
}

pub(crate) fn name(row: &Row, column: usize) -> Read<Name> {
    Ok(Name::from(get::<&str>(row, column)?))
}

/// Reads the hash of a definition. Fails if it does not have 32 bytes.
pub(crate) fn hash(row: &Row, column: usize) -> Read<DefinitionHash> {
    let bytes: &[u8] = get(row, column)?;
    Ok(DefinitionHash::from_bytes(bytes.try_into().map_err(|_| unreadable(column))?))
}

fn small(row: &Row, column: usize) -> Read<u32> {
    u32::try_from(get::<i64>(row, column)?).map_err(|_| unreadable(column))
}

/// Reads a text column and parses it.
pub(crate) fn read<T>(row: &Row, column: usize, parse: impl FnOnce(&str) -> Option<T>) -> Read<T> {
    parse(get(row, column)?).ok_or_else(|| unreadable(column))
}

pub(crate) fn unreadable(column: usize) -> Failure {
    let what = format!("column {column} of a row has a value that this version does not know");
    StoreError::Corrupt(what).into()
}
