//! Versions: published once and never changed, compared and drawn.

use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use stepwell::catalogue::{Publish, Published, Version};
use stepwell::core::graph::Graph;
use stepwell::core::{Name, Timestamp};
use stepwell::{Catalogue, Permission};

use super::OfWorkflow;
use crate::api::call::{Call, Written};
use crate::api::graph::{self, Picture};
use crate::api::reply::{Format, Reply};
use crate::api::route::{Route, get, post};
use crate::api::shapes::{DocumentProblem, Instant, Listing, Page, segment};
use crate::routes::problem::Problem;

/// A version of a workflow.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct OfVersion {
    /// The workflow's name.
    #[schemars(length(min = 1, max = 256))]
    name: String,
    /// The version's number.
    number: u32,
}

/// How a document is published.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PublishVersion {
    /// New runs get it from then on.
    activate: Option<bool>,
    /// What is to be remembered with it.
    #[schemars(length(max = 1000))]
    note: Option<String>,
}

/// How a version is shown.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ShowVersion {
    /// As JSON unless this says otherwise.
    format: Option<Format>,
}

/// Which versions are compared.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct DiffVersions {
    /// The one before.
    from: u32,
    /// The one after.
    to: u32,
}

/// What is drawn, and how.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct DrawWorkflow {
    /// The version; without this the one that new runs get, or else the newest.
    version: Option<u32>,
    /// As JSON unless this says otherwise.
    format: Option<Picture>,
}

/// What was published.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct VersionPublished {
    /// The workflow.
    #[schemars(with = "String")]
    name: Name,
    /// The version's number.
    version: u32,
    /// The hash of the definition that runs of it are pinned to.
    hash: String,
    /// It was made just now; otherwise the newest version says the same.
    created: bool,
    /// It is the version that new runs get.
    active: bool,
    /// What this server lacks to run it. Another process may have it.
    warnings: Vec<DocumentProblem>,
}

/// A published version.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct VersionRow {
    /// Its number.
    version: u32,
    /// The hash of the definition that runs of it are pinned to.
    hash: String,
    /// Who has published it.
    #[serde(skip_serializing_if = "Option::is_none")]
    published_by: Option<String>,
    /// When.
    #[schemars(with = "Instant")]
    published_at: Timestamp,
    /// What is remembered with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
    /// It is the version that new runs get.
    active: bool,
}

impl From<Version> for VersionRow {
    fn from(row: Version) -> Self {
        let Version { version, hash, by, at, note, is_active } = row;
        let (hash, published_by, published_at, active) = (hash.to_string(), by, at, is_active);
        VersionRow { version, hash, published_by, published_at, note, active }
    }
}

/// One thing that differs between two documents.
#[derive(JsonSchema)]
#[schemars(rename = "Difference")]
#[expect(dead_code, reason = "only its schema is used")]
struct DifferenceShape {
    /// `added`, `removed`, `moved`, `changed`, `typeChanged`, or `more`: then `to` says how many there are besides.
    kind: String,
    /// `document`, `step`, `place` or `transition`.
    subject: String,
    /// The id of the step, place or transition, if it has one.
    id: Option<String>,
    /// A JSON pointer: inside of the step, place or transition if that has changed, in the document otherwise.
    pointer: String,
    /// What was there; of something that has moved, where it was.
    from: Option<Value>,
    /// What is there; of something that has moved, where it is.
    to: Option<Value>,
}

pub(super) fn routes() -> Vec<Route> {
    let (view, publish) = (Permission::View, Permission::Publish);
    vec![
        post("/v1/workflows/{name}/versions", "publishVersion", publish, "Publishes a document as the next version of a workflow; the body is the document.")
            .notes("A document that says the same as the newest version is that version. Mistakes in it are 422 `invalidDocument`: `errors` has line, column and message of each.")
            .gives::<VersionPublished>(StatusCode::CREATED, "The version was made.")
            .ok::<VersionPublished>("The newest version says the same.")
            .leads("/v1/workflows/{name}/versions/{number}", "number", "/version")
            .to(publish_text),
        get("/v1/workflows/{name}/versions", "listVersions", view, "Lists the versions of a workflow, in their order.")
            .ok::<Page<VersionRow>>("Versions.")
            .to(list),
        get("/v1/workflows/{name}/versions/{number}", "showVersion", view, "Gives the document of a version.")
            .notes("Comments and the order of fields are not kept.")
            .ok::<Map<String, Value>>("The document.")
            .or_yaml::<Map<String, Value>>("The document as YAML.")
            .to(show),
        get("/v1/workflows/{name}/diff", "diffVersions", view, "Compares two versions of a workflow.")
            .ok::<Page<DifferenceShape>>("What differs: nothing if both say the same, and at most 1,000 differences.")
            .to(diff),
        graph::gives(get("/v1/workflows/{name}/graph", "drawWorkflow", view, "Draws a workflow.")).to(draw),
    ]
}

/// What is answered to whoever has published something.
pub(super) fn published(published: Published) -> Result<Reply, Problem> {
    let Published { name, version, hash, is_new, is_active, warnings } = published;
    let path = format!("/v1/workflows/{}/versions/{version}", segment(&name));
    let (hash, warnings) = (hash.to_string(), DocumentProblem::all(warnings));
    let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
    let shown = VersionPublished { name, version, hash, created: is_new, active: is_active, warnings };
    Ok(Reply::json(status, &shown)?.at(&path))
}

async fn publish_text(call: Call<OfWorkflow, PublishVersion, Written>) -> Result<Reply, Problem> {
    call.server.room_for_workflow(call.caller.scope(), &call.path.name).await?;
    let catalogue = call.engine().catalogue();
    let PublishVersion { activate, note } = call.query;
    let publish = note.into_iter().fold(Publish::text(call.body.0), Publish::note);
    let publish = if activate == Some(true) { publish.activate() } else { publish };
    published(catalogue.publish(call.path.name, publish).await?)
}

async fn list(call: Call<OfWorkflow, Listing>) -> Result<Reply, Problem> {
    let (limit, cursor) = (Some(call.query.limit()), call.query.cursor());
    let page = call.engine().catalogue().versions(call.path.name.as_str(), limit, cursor).await?;
    Reply::ok(&Page::of(page, VersionRow::from))
}

async fn show(call: Call<OfVersion, ShowVersion>) -> Result<Reply, Problem> {
    let OfVersion { name, number } = &call.path;
    let edition = call.engine().catalogue().version(name.as_str(), *number).await?;
    Reply::document(edition.document(), call.query.format)
}

async fn diff(call: Call<OfWorkflow, DiffVersions>) -> Result<Reply, Problem> {
    let DiffVersions { from, to } = call.query;
    let catalogue = call.engine().catalogue();
    let items = catalogue.diff(call.path.name, from, to).await?;
    Reply::ok(&Page::only(items))
}

async fn draw(call: Call<OfWorkflow, DrawWorkflow>) -> Result<Reply, Problem> {
    let (catalogue, name) = (call.engine().catalogue(), call.path.name.as_str());
    let version = match call.query.version {
        Some(version) => version,
        None => current(&catalogue, name).await?,
    };
    let edition = catalogue.version(name, version).await?;
    graph::drawn(&Graph::of(&edition.definition), call.query.format)
}

/// The version that new runs get, or else the newest.
async fn current(catalogue: &Catalogue, name: &str) -> Result<u32, Problem> {
    let listed = catalogue.workflow(name).await?;
    listed.active.or(listed.newest).ok_or_else(|| {
        let detail = format!("Nothing of workflow `{name}` was published yet: it has only a draft.");
        Problem::new(StatusCode::NOT_FOUND, "noVersion", detail)
    })
}
