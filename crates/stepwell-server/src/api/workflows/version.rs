//! Routes of workflow versions, which never change after they are published: publish, list, show, compare and draw.

use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use stepwell::catalogue::{Publish, Published, Version};
use stepwell::core::graph::Graph;
use stepwell::core::{Name, Timestamp};
use stepwell::{Catalogue, Permission};

use super::WorkflowPath;
use crate::api::call::{Call, Written};
use crate::api::graph::{self, Picture};
use crate::api::reply::{Format, Reply};
use crate::api::route::{Route, get, post};
use crate::api::shapes::{DocumentProblem, Instant, Listing, Page, segment};
use crate::routes::problem::Problem;

/// Path parameters that select a version of a workflow.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct VersionPath {
    /// Name of the workflow, 1 to 256 characters.
    #[schemars(length(min = 1, max = 256))]
    name: String,
    /// Number of the version.
    number: u32,
}

/// Query parameters for publishing a version.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PublishVersion {
    /// True = new runs use the version from now on. Default: false.
    activate: Option<bool>,
    /// Note stored with the version, at most 1,000 characters.
    #[schemars(length(max = 1000))]
    note: Option<String>,
    /// True = publish even if steps call actions that this server does not know. Default: false.
    allow_unknown_actions: Option<bool>,
}

/// Query parameter for showing a version.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ShowVersion {
    /// Format of the document. Default: `json`.
    format: Option<Format>,
}

/// Query parameters that select the two versions to compare.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct DiffVersions {
    /// Number of the earlier version.
    from: u32,
    /// Number of the later version.
    to: u32,
}

/// Query parameters of a workflow's graph.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct DrawWorkflow {
    /// Number of the version to draw. Default: the active version, or else the newest.
    version: Option<u32>,
    /// Format of the graph. Default: `json`.
    format: Option<Picture>,
}

/// Result of publishing a version.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct VersionPublished {
    /// Name of the workflow.
    #[schemars(with = "String")]
    name: Name,
    /// Number of the version.
    version: u32,
    /// Hash of the definition that runs of this version are pinned to.
    hash: String,
    /// True if the version is new; false if the newest version has the same content.
    created: bool,
    /// True if new runs use this version.
    active: bool,
    /// Actions, guards and strategies that this server lacks to run it. Another process may have them.
    warnings: Vec<DocumentProblem>,
}

/// A published version of a workflow.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct VersionRow {
    /// Number of the version.
    version: u32,
    /// Hash of the definition that runs of this version are pinned to.
    hash: String,
    /// Actor that published the version; absent if none is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    published_by: Option<String>,
    /// Time at which the version was published.
    #[schemars(with = "Instant")]
    published_at: Timestamp,
    /// Note stored with the version; absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
    /// True if new runs use this version.
    active: bool,
}

impl From<Version> for VersionRow {
    fn from(row: Version) -> Self {
        let Version { version, hash, by, at, note, is_active } = row;
        let (hash, published_by, published_at, active) = (hash.to_string(), by, at, is_active);
        VersionRow { version, hash, published_by, published_at, note, active }
    }
}

/// A difference between two documents.
#[derive(JsonSchema)]
#[schemars(rename = "Difference")]
#[expect(dead_code, reason = "only its schema is used")]
struct DifferenceShape {
    /// `added`, `removed`, `moved`, `changed`, `typeChanged`, or `more` with the number of further differences in `to`.
    kind: String,
    /// Part that differs: `document`, `step`, `place` or `transition`.
    subject: String,
    /// Id of the step, place or transition; absent if it has none.
    id: Option<String>,
    /// JSON pointer, relative to a changed step, place or transition, and to the document for other differences.
    pointer: String,
    /// Old value, or the old position of a moved part.
    from: Option<Value>,
    /// New value, or the new position of a moved part.
    to: Option<Value>,
}

pub(super) fn routes() -> Vec<Route> {
    let (view, publish) = (Permission::View, Permission::Publish);
    vec![
        post("/v1/workflows/{name}/versions", "publishVersion", publish, "Publish a workflow document, sent as the body, as the next version of a workflow.")
            .notes("A document with the same content as the newest version creates no version. Errors in the document are a 422 `invalidDocument` with line, column and message of each in `errors`.")
            .gives::<VersionPublished>(StatusCode::CREATED, "The version was created.")
            .ok::<VersionPublished>("The newest version has the same content.")
            .links_to("/v1/workflows/{name}/versions/{number}", "number", "/version")
            .to(publish_text),
        get("/v1/workflows/{name}/versions", "listVersions", view, "List the versions of a workflow, oldest first.")
            .ok::<Page<VersionRow>>("Versions.")
            .to(list),
        get("/v1/workflows/{name}/versions/{number}", "showVersion", view, "Show the document of a version.")
            .notes("Comments and the order of fields are not preserved.")
            .ok::<Map<String, Value>>("The document.")
            .or_yaml::<Map<String, Value>>("The document as YAML.")
            .to(show),
        get("/v1/workflows/{name}/diff", "diffVersions", view, "Compare two versions of a workflow.")
            .ok::<Page<DifferenceShape>>("Differences, at most 1,000; empty if both versions have the same content.")
            .to(diff),
        graph::gives(get("/v1/workflows/{name}/graph", "drawWorkflow", view, "Draw the graph of a workflow.")).to(draw),
    ]
}

/// Creates the reply for a published version.
pub(super) fn published(published: Published) -> Result<Reply, Problem> {
    let Published { name, version, hash, is_new, is_active, warnings } = published;
    let path = format!("/v1/workflows/{}/versions/{version}", segment(&name));
    let (hash, warnings) = (hash.to_string(), DocumentProblem::all(warnings));
    let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
    let shown = VersionPublished { name, version, hash, created: is_new, active: is_active, warnings };
    Ok(Reply::json(status, &shown)?.at(&path))
}

async fn publish_text(call: Call<WorkflowPath, PublishVersion, Written>) -> Result<Reply, Problem> {
    call.server.check_workflow_quota(call.caller.scope(), &call.path.name).await?;
    let catalogue = call.engine().catalogue();
    let PublishVersion { activate, note, allow_unknown_actions } = call.query;
    let publish = note.into_iter().fold(Publish::text(call.body.0), Publish::note);
    let publish = if allow_unknown_actions == Some(true) { publish.allow_unknown_actions() } else { publish };
    let publish = if activate == Some(true) { publish.activate() } else { publish };
    published(catalogue.publish(call.path.name, publish).await?)
}

async fn list(call: Call<WorkflowPath, Listing>) -> Result<Reply, Problem> {
    let (limit, cursor) = (Some(call.query.limit()), call.query.cursor());
    let page = call.engine().catalogue().versions(call.path.name.as_str(), limit, cursor).await?;
    Reply::ok(&Page::of(page, VersionRow::from))
}

async fn show(call: Call<VersionPath, ShowVersion>) -> Result<Reply, Problem> {
    let VersionPath { name, number } = &call.path;
    let version = call.engine().catalogue().version(name.as_str(), *number).await?;
    Reply::document(version.document(), call.query.format)
}

async fn diff(call: Call<WorkflowPath, DiffVersions>) -> Result<Reply, Problem> {
    let DiffVersions { from, to } = call.query;
    let catalogue = call.engine().catalogue();
    let items = catalogue.diff(call.path.name, from, to).await?;
    Reply::ok(&Page::only(items))
}

async fn draw(call: Call<WorkflowPath, DrawWorkflow>) -> Result<Reply, Problem> {
    let (catalogue, name) = (call.engine().catalogue(), call.path.name.as_str());
    let version = match call.query.version {
        Some(version) => version,
        None => current(&catalogue, name).await?,
    };
    let version = catalogue.version(name, version).await?;
    graph::drawn(&Graph::of(&version.definition), call.query.format)
}

/// Returns the number of the active version, or else of the newest.
async fn current(catalogue: &Catalogue, name: &str) -> Result<u32, Problem> {
    let listed = catalogue.workflow(name).await?;
    listed.active.or(listed.newest).ok_or_else(|| {
        let detail = format!("Workflow `{name}` has no published version, only a draft: publish it first.");
        Problem::new(StatusCode::NOT_FOUND, "noVersion", detail)
    })
}
