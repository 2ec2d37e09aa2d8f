//! Routes of a run's documents, graph, test case export and diff.

use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use stepwell::Permission;
use stepwell::core::patch::Patch;
use stepwell::core::{Name, Snapshot, Timestamp};
use stepwell::store::{Document, DocumentQuery, HistoryRow};

use super::{RunPath, checkpoint};
use crate::api::call::Call;
use crate::api::graph::{self, Picture};
use crate::api::reply::{Format, Reply};
use crate::api::route::{Route, get};
use crate::api::shapes::{Instant, Listing, Page};
use crate::routes::problem::Problem;

/// Maximum number of versions of an exported run. The export reads the state of every version.
const EXPORTED_VERSIONS: u64 = 1_000;

/// Filter and page of a listing of a run's documents.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ListDocuments {
    /// Lists the documents that were visible at this version. Default: those visible now.
    #[schemars(range(max = 9_007_199_254_740_991u64))]
    version: Option<u64>,
    /// Lists only the document with this key.
    #[schemars(length(min = 1, max = 256))]
    key: Option<String>,
    /// Lists only documents of this type.
    #[schemars(length(min = 1, max = 256))]
    kind: Option<String>,
    /// Lists only documents with this tag.
    tag: Option<String>,
    /// Maximum number of rows, 1 to 200. Default: 50.
    #[schemars(range(min = 1, max = 200))]
    limit: Option<u32>,
    /// The `nextCursor` of the previous page.
    cursor: Option<String>,
}

/// A document of a run.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct RunDocument {
    /// Key of the document. At each version, a run shows at most one document per key.
    key: String,
    /// Name of the document's type.
    #[schemars(with = "String")]
    kind: Name,
    /// Content of the document, any JSON value.
    body: Value,
    /// Tags that a listing can filter by.
    tags: Vec<String>,
    /// First version of the run in which the document is visible.
    visible_from: u64,
    /// First later version in which the document is not visible any more. Absent while it is visible.
    #[serde(skip_serializing_if = "Option::is_none")]
    visible_to: Option<u64>,
    /// Time at which the document was written.
    #[schemars(with = "Instant")]
    at: Timestamp,
}

impl RunDocument {
    pub(super) fn of(document: Document) -> Result<Self, Problem> {
        let Document { run: _, key, kind, body, tags, visible_from, visible_to, at } = document;
        let body = serde_json::from_slice(&body).map_err(|error| Problem::internal(&error))?;
        Ok(RunDocument { key, kind, body, tags, visible_from, visible_to, at })
    }
}

/// Query parameter of a run's graph.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct DrawRun {
    /// Format of the graph. Default: `json`.
    format: Option<Picture>,
}

/// Query parameters of a run's export.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ExportRun {
    /// Name of the test case. Default: `run` and the run's id.
    #[schemars(length(min = 1, max = 256))]
    name: Option<String>,
    /// Format of the test case. Default: `json`.
    format: Option<Format>,
}

/// Query parameters that select the two versions to compare.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct DiffRun {
    /// The earlier version of the comparison.
    #[schemars(range(max = 9_007_199_254_740_991u64))]
    from: u64,
    /// The later version of the comparison. Default: the newest.
    #[schemars(range(max = 9_007_199_254_740_991u64))]
    to: Option<u64>,
}

/// Changes of a run's data between two versions.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct RunDiff {
    /// The earlier version of the comparison.
    from: u64,
    /// The later version of the comparison.
    to: u64,
    /// Changes as in JSON Patch (RFC 6902). A list is replaced as a whole.
    changes: Vec<RunChange>,
}

/// One change of a run's data.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct RunChange {
    /// Operation on the field: `add`, `remove` or `replace`.
    op: ChangeOp,
    /// JSON pointer to the field.
    path: String,
    /// New value; absent if the field was removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<Value>,
    /// Old value; absent if the field was added.
    #[serde(skip_serializing_if = "Option::is_none")]
    old_value: Option<Value>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
enum ChangeOp {
    Add,
    Remove,
    Replace,
}

pub(super) fn routes() -> Vec<Route> {
    let (view, read) = (Permission::View, Permission::Read);
    vec![
        get("/v1/runs/{run}/documents", "listDocuments", read, "List the documents of a run, in the order of their creation.")
            .ok::<Page<RunDocument>>("Documents.")
            .to(documents),
        graph::gives(get("/v1/runs/{run}/graph", "drawRun", view, "Draw the graph of a run's workflow with the state of the run.")).to(draw),
        get("/v1/runs/{run}/export", "exportRun", view, "Export a run as a test case, with its input, the results of its calls and its outcome.")
            .notes("The test case passes if it is added to the `tests` of the workflow document. A run with more than 1,000 versions or with changes by an operator is a 422.")
            .ok::<Map<String, Value>>("The test case, in the format of workflow documents.")
            .or_yaml::<Map<String, Value>>("The test case as YAML.")
            .to(export),
        get("/v1/runs/{run}/diff", "diffRun", view, "Show the changes of a run's data between two versions.")
            .ok::<RunDiff>("The changes.")
            .to(diff),
    ]
}

async fn documents(call: Call<RunPath, ListDocuments>) -> Result<Reply, Problem> {
    let run = call.engine().run(call.path.run);
    let ListDocuments { version, key, kind, tag, limit, cursor } = call.query;
    let listing = Listing::of(limit, cursor);
    let query = DocumentQuery {
        run: run.id(),
        at: version,
        key,
        kind: kind.map(Name::from),
        tag,
        limit: listing.limit(),
        cursor: listing.cursor(),
    };
    let page = run.documents(query).await?;
    let mut page = page;
    let items = std::mem::take(&mut page.items).into_iter().map(RunDocument::of);
    let items = items.collect::<Result<Vec<_>, _>>()?;
    Reply::ok(&Page::of(page.over(|_| items), |document| document))
}

async fn draw(call: Call<RunPath, DrawRun>) -> Result<Reply, Problem> {
    graph::drawn(&call.engine().run(call.path.run).graph().await?, call.query.format)
}

async fn export(call: Call<RunPath, ExportRun>) -> Result<Reply, Problem> {
    let run = call.engine().run(call.path.run);
    let version = run.view().await?.snapshot.version();
    if version > EXPORTED_VERSIONS {
        let detail = format!(
            "Run {} has {version} versions; a run can be exported with at most {EXPORTED_VERSIONS}.",
            run.id()
        );
        let problem = Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "limit", detail);
        return Err(problem.param("limit", "versions").param("max", EXPORTED_VERSIONS));
    }
    let name = call.query.name.unwrap_or_else(|| format!("run {}", run.id()));
    Reply::document(&json!(run.as_test_case(name).await?), call.query.format)
}

async fn diff(call: Call<RunPath, DiffRun>) -> Result<Reply, Problem> {
    let (engine, run) = (call.engine(), call.path.run);
    let newest = engine.run(run).view().await?.snapshot.version();
    let (from, to) = (call.query.from, call.query.to.unwrap_or(newest));
    let before = context(&checkpoint(&engine, run, from).await?)?;
    let after = context(&checkpoint(&engine, run, to).await?)?;
    let patch = Patch::between(&before, &after);
    let changes = patch.edits().map(|(path, value)| {
        let old_value = path.iter().try_fold(&before, |at, key| at.get(key)).cloned();
        let op = match (&old_value, value) {
            (_, None) => ChangeOp::Remove,
            (None, Some(_)) => ChangeOp::Add,
            (Some(_), Some(_)) => ChangeOp::Replace,
        };
        RunChange { op, path: pointer(path), value: value.cloned(), old_value }
    });
    Reply::ok(&RunDiff { from, to, changes: changes.collect() })
}

/// Reads the run's data from a checkpoint.
fn context(row: &HistoryRow) -> Result<Value, Problem> {
    let state = row.state.as_deref().unwrap_or_default();
    let snapshot: Snapshot = serde_json::from_slice(state).map_err(|error| Problem::internal(&error))?;
    Ok(snapshot.context().clone())
}

fn pointer(path: &[String]) -> String {
    path.iter().map(|key| format!("/{}", key.replace('~', "~0").replace('/', "~1"))).collect()
}
