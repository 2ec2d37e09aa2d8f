//! Documents of a run as workflow actions: `document.*`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use stepwell_core::Name;
use stepwell_store::{BadRow, Document, DocumentQuery, Page};

use crate::action::{ActionError, ActionInfo};
use crate::cx::Cx;
use crate::data::kv::page;
use crate::engine::Builder;

/// Input of `document.put`, which replaces a document with the same key.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct PutInput {
    /// Key of the document: 1 to 256 characters (limit `key_chars`). A document with the same key is replaced.
    key: String,
    /// Kind of the document. The body must match the schema that the workflow declares for this kind.
    kind: String,
    /// Content of the document: any JSON.
    body: Value,
    /// Labels to find the document by. Default: none.
    #[serde(default)]
    tags: Vec<String>,
}

/// The document as it was put.
#[derive(Debug, Serialize, JsonSchema)]
struct PutOutput {
    /// Key of the document.
    key: String,
}

async fn put(cx: Cx, input: PutInput) -> Result<PutOutput, ActionError> {
    let PutInput { key, kind, body, tags } = input;
    let tags: Vec<_> = tags.iter().map(String::as_str).collect();
    cx.put_document(key.as_str(), kind.as_str(), &body, &tags)?;
    Ok(PutOutput { key })
}

/// Selects a document of the run.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct OneDocument {
    /// Key of the document, 1 to 256 characters.
    key: String,
}

/// A document of the run, if it exists.
#[derive(Debug, Default, Serialize, JsonSchema)]
struct GetOutput {
    /// `false` if the run has no document with this key.
    found: bool,
    /// Kind of the document, or `null` if there is none.
    kind: Option<String>,
    /// Content of the document, or `null` if there is none.
    body: Value,
    /// Labels of the document.
    tags: Vec<String>,
    /// Time at which the document was put (RFC 3339), or `null` if there is none.
    put_at: Option<String>,
}

async fn get(cx: Cx, input: OneDocument) -> Result<GetOutput, ActionError> {
    let query = DocumentQuery { key: Some(input.key), limit: 1, ..anything(&cx) };
    let Some(document) = cx.documents(query).await?.items.pop() else { return Ok(GetOutput::default()) };
    Ok(GetOutput {
        found: true,
        kind: Some(document.kind.to_string()),
        body: body(&document)?,
        tags: document.tags,
        put_at: Some(document.at.to_string()),
    })
}

fn anything(cx: &Cx) -> DocumentQuery {
    DocumentQuery { run: cx.run(), at: None, key: None, kind: None, tag: None, limit: 1, cursor: None }
}

fn body(document: &Document) -> Result<Value, ActionError> {
    serde_json::from_slice(&document.body).map_err(|error| {
        let why = format!("the body of document `{}` cannot be read: {error}", document.key);
        ActionError::new("unreadable", why).non_retryable()
    })
}

/// Selects one page of the run's documents, in the order in which they were put.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ListInput {
    /// Only documents of this kind.
    #[serde(default)]
    kind: Option<String>,
    /// Only documents with this label.
    #[serde(default)]
    tag: Option<String>,
    /// Page size, 1 to 200. Default: 50.
    #[serde(default)]
    limit: Option<u32>,
    /// `next_cursor` of the previous page. Default: the first page.
    #[serde(default)]
    cursor: Option<String>,
}

/// A document of the run in a listing.
#[derive(Debug, Serialize, JsonSchema)]
struct Item {
    /// Key of the document.
    key: String,
    /// Kind of the document.
    kind: String,
    /// Content of the document: any JSON.
    body: Value,
    /// Labels of the document.
    tags: Vec<String>,
    /// Time at which the document was put (RFC 3339).
    put_at: String,
}

/// One page of the run's documents.
#[derive(Debug, Serialize, JsonSchema)]
struct ListOutput {
    /// Documents of this page, in the order in which they were put.
    items: Vec<Item>,
    /// Cursor of the next page; absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
    /// Keys of unreadable rows, which are left out of the page.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    unreadable: Vec<String>,
}

async fn list(cx: Cx, input: ListInput) -> Result<ListOutput, ActionError> {
    let ListInput { kind, tag, limit, cursor } = input;
    let kind = kind.as_deref().map(Name::from);
    let limit = page(cx.limits(), limit)?;
    let query = DocumentQuery { kind, tag, limit, cursor, ..anything(&cx) };
    let Page { items, next, bad } = cx.documents(query).await?;
    let item = |document: Document| {
        let (body, put_at) = (body(&document)?, document.at.to_string());
        Ok(Item { key: document.key, kind: document.kind.to_string(), body, tags: document.tags, put_at })
    };
    let items = items.into_iter().map(item).collect::<Result<_, ActionError>>()?;
    let key = |row: BadRow| row.key;
    Ok(ListOutput { items, next_cursor: next, unreadable: bad.into_iter().map(key).collect() })
}

/// Confirms that the document is gone.
#[derive(Debug, Serialize, JsonSchema)]
struct RemoveOutput {
    /// `false` if the run had no document with this key.
    removed: bool,
}

async fn remove(cx: Cx, input: OneDocument) -> Result<RemoveOutput, ActionError> {
    let query = DocumentQuery { key: Some(input.key.clone()), ..anything(&cx) };
    let removed = !cx.documents(query).await?.items.is_empty();
    cx.remove_document(input.key)?;
    Ok(RemoveOutput { removed })
}

/// Registers the `document.*` actions, which every engine has.
pub(crate) fn equip(builder: Builder) -> Builder {
    builder
        .described("document.put", "Puts a document of the run.", put)
        .described("document.get", "Reads a document of the run.", get)
        .described("document.list", "Lists the documents of the run.", list)
        .described("document.remove", "Removes a document of the run.", remove)
        .describe("document.put", |info| hinted(info).stageable().codes(CODES))
        .describe("document.get", |info| hinted(info).without_side_effects().codes(CODES))
        .describe("document.list", |info| hinted(info).without_side_effects().codes(CODES))
        .describe("document.remove", |info| hinted(info).stageable().codes(CODES))
}

/// Codes of the errors of these actions.
const CODES: [&str; 5] = ["conflict", "invalid", "invalidDocument", "unknownDocument", "unreadable"];

fn hinted(info: ActionInfo) -> ActionInfo {
    info.hint("body", json!({ "widget": "json" })).icon("file-text")
}
