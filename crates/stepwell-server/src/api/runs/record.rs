//! What a run leaves behind: its documents, its picture, what changed in it, and a test case made of it.

use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use stepwell::Permission;
use stepwell::core::patch::Patch;
use stepwell::core::{Name, Snapshot, Timestamp};
use stepwell::store::{Document, DocumentQuery, HistoryRow};

use super::{OfRun, checkpoint};
use crate::api::call::Call;
use crate::api::graph::{self, Picture};
use crate::api::reply::{Format, Reply};
use crate::api::route::{Route, get};
use crate::api::shapes::{Instant, Listing, Page};
use crate::routes::problem::Problem;

/// Versions that a run has at most that is made a test case: all of its states are read for that.
const EXPORTED_VERSIONS: u64 = 1_000;

/// Which documents of a run.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ListDocuments {
    /// Those it showed at this version; without this those it shows now.
    #[schemars(range(max = 9_007_199_254_740_991u64))]
    version: Option<u64>,
    /// Under this key.
    #[schemars(length(min = 1, max = 256))]
    key: Option<String>,
    /// Of this type.
    #[schemars(length(min = 1, max = 256))]
    kind: Option<String>,
    /// With this tag.
    tag: Option<String>,
    /// How many rows at most.
    #[schemars(range(min = 1, max = 200))]
    limit: Option<u32>,
    /// Where the part before ended.
    cursor: Option<String>,
}

/// A document that a run shows.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct RunDocument {
    /// Its key: a run shows one document at most under it.
    key: String,
    /// What type of document it is.
    #[schemars(with = "String")]
    kind: Name,
    /// The document.
    body: Value,
    /// What it can be found by besides its type.
    tags: Vec<String>,
    /// The first version of the run that shows it.
    visible_from: u64,
    /// The first version after that which does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    visible_to: Option<u64>,
    /// When it was written.
    #[schemars(with = "Instant")]
    at: Timestamp,
}

impl RunDocument {
    fn of(document: Document) -> Result<Self, Problem> {
        let Document { run: _, key, kind, body, tags, visible_from, visible_to, at } = document;
        let body = serde_json::from_slice(&body).map_err(|error| Problem::internal(&error))?;
        Ok(RunDocument { key, kind, body, tags, visible_from, visible_to, at })
    }
}

/// How a run is drawn.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct DrawRun {
    /// As JSON unless this says otherwise.
    format: Option<Picture>,
}

/// How a run is exported.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ExportRun {
    /// What the test case is called.
    #[schemars(length(min = 1, max = 256))]
    name: Option<String>,
    /// As JSON unless this says otherwise.
    format: Option<Format>,
}

/// Which versions of a run are compared.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct DiffRun {
    /// The one before.
    #[schemars(range(max = 9_007_199_254_740_991u64))]
    from: u64,
    /// The one after; without this the newest.
    #[schemars(range(max = 9_007_199_254_740_991u64))]
    to: Option<u64>,
}

/// What changed of a run's data between two versions.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct RunDiff {
    /// The version before.
    from: u64,
    /// The version after.
    to: u64,
    /// What leads from the one to the other, in the words of JSON Patch (RFC 6902); a list is replaced whole.
    changes: Vec<RunChange>,
}

/// One change of a run's data.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct RunChange {
    /// What happened to the field.
    op: ChangeOp,
    /// A JSON pointer to it.
    path: String,
    /// What it is now.
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<Value>,
    /// What it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    was: Option<Value>,
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
        get("/v1/runs/{run}/documents", "listDocuments", read, "Lists the documents of a run, in the order in which they were written.")
            .ok::<Page<RunDocument>>("Documents.")
            .to(documents),
        graph::gives(get("/v1/runs/{run}/graph", "drawRun", view, "Draws a run's workflow, with how the run stands.")).to(draw),
        get("/v1/runs/{run}/export", "exportRun", view, "Gives a run as a test case: what it was started with, what its calls came to, and what came of it.")
            .notes("Put into the `tests` of its document, the case passes. A run with more than 1,000 versions, or that an operator has changed, is 422.")
            .ok::<Map<String, Value>>("The test case, as documents have them.")
            .or_yaml::<Map<String, Value>>("The test case as YAML.")
            .to(export),
        get("/v1/runs/{run}/diff", "diffRun", view, "Says what changed of a run's data between two versions.")
            .ok::<RunDiff>("The changes.")
            .to(diff),
    ]
}

async fn documents(call: Call<OfRun, ListDocuments>) -> Result<Reply, Problem> {
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

async fn draw(call: Call<OfRun, DrawRun>) -> Result<Reply, Problem> {
    graph::drawn(&call.engine().run(call.path.run).graph().await?, call.query.format)
}

async fn export(call: Call<OfRun, ExportRun>) -> Result<Reply, Problem> {
    let run = call.engine().run(call.path.run);
    let version = run.view().await?.snapshot.version();
    if version > EXPORTED_VERSIONS {
        let detail = format!(
            "Run {} has {version} versions; one that is made a test case has at most {EXPORTED_VERSIONS}.",
            run.id()
        );
        let problem = Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "limit", detail);
        return Err(problem.param("limit", "versions").param("max", EXPORTED_VERSIONS));
    }
    let name = call.query.name.unwrap_or_else(|| format!("run {}", run.id()));
    Reply::document(&json!(run.as_test_case(name).await?), call.query.format)
}

async fn diff(call: Call<OfRun, DiffRun>) -> Result<Reply, Problem> {
    let (engine, run) = (call.engine(), call.path.run);
    let newest = engine.run(run).view().await?.snapshot.version();
    let (from, to) = (call.query.from, call.query.to.unwrap_or(newest));
    let before = context(&checkpoint(&engine, run, from).await?)?;
    let after = context(&checkpoint(&engine, run, to).await?)?;
    let patch = Patch::between(&before, &after);
    let changes = patch.edits().map(|(path, value)| {
        let was = path.iter().try_fold(&before, |at, key| at.get(key)).cloned();
        let op = match (&was, value) {
            (_, None) => ChangeOp::Remove,
            (None, Some(_)) => ChangeOp::Add,
            (Some(_), Some(_)) => ChangeOp::Replace,
        };
        RunChange { op, path: pointer(path), value: value.cloned(), was }
    });
    Reply::ok(&RunDiff { from, to, changes: changes.collect() })
}

/// The data of a run at a checkpoint.
fn context(row: &HistoryRow) -> Result<Value, Problem> {
    let state = row.state.as_deref().unwrap_or_default();
    let snapshot: Snapshot = serde_json::from_slice(state).map_err(|error| Problem::internal(&error))?;
    Ok(snapshot.context().clone())
}

fn pointer(path: &[String]) -> String {
    path.iter().map(|key| format!("/{}", key.replace('~', "~0").replace('/', "~1"))).collect()
}
