//! Workflows: what a tenant's catalogue has, and which version of each new runs get.

mod draft;
mod version;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use stepwell::catalogue::{Activated, Listed};
use stepwell::core::{Name, Timestamp};
use stepwell::data::List;
use stepwell::{Catalogue, CatalogueError, Permission};

use super::call::{Call, Json, Nothing};
use super::reply::Reply;
use super::route::{Describing, Route, get, post};
use super::shapes::{Instant, Listing, Page};
use crate::routes::problem::Problem;

/// A workflow.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct OfWorkflow {
    /// Its name.
    #[schemars(length(min = 1, max = 256))]
    name: String,
}

/// Which workflows.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ListWorkflows {
    /// Whose name begins with this text, taken literally.
    #[schemars(length(max = 256))]
    prefix: Option<String>,
    /// How many rows at most.
    #[schemars(range(min = 1, max = 200))]
    limit: Option<u32>,
    /// Where the part before ended.
    cursor: Option<String>,
}

/// A workflow of the catalogue.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct WorkflowShown {
    /// Its name.
    #[schemars(with = "String")]
    name: Name,
    /// How many versions were published; 0 = it is only a draft yet.
    versions: u32,
    /// The highest number.
    #[serde(skip_serializing_if = "Option::is_none")]
    newest: Option<u32>,
    /// The version that new runs get; absent if it cannot be started.
    #[serde(skip_serializing_if = "Option::is_none")]
    active: Option<u32>,
    /// No new runs are begun, and nothing is published.
    archived: bool,
    /// Somebody is working on it.
    draft: bool,
    /// When this was last changed.
    #[schemars(with = "Instant")]
    updated_at: Timestamp,
}

impl From<Listed> for WorkflowShown {
    fn from(listed: Listed) -> Self {
        let Listed { name, versions, newest, active, is_archived, has_draft, at } = listed;
        let (archived, draft, updated_at) = (is_archived, has_draft, at);
        WorkflowShown { name, versions, newest, active, archived, draft, updated_at }
    }
}

/// Which version new runs are to get.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ActivateVersion {
    /// Its number.
    version: u32,
}

/// What new runs of a workflow get.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct WorkflowActivated {
    /// The workflow.
    #[schemars(with = "String")]
    name: Name,
    /// The version that new runs get; absent if it cannot be started.
    #[serde(skip_serializing_if = "Option::is_none")]
    active: Option<u32>,
    /// It was another before.
    changed: bool,
}

impl From<Activated> for WorkflowActivated {
    fn from(activated: Activated) -> Self {
        let Activated { name, active, is_changed } = activated;
        WorkflowActivated { name, active, changed: is_changed }
    }
}

pub(super) fn routes() -> Vec<Route> {
    let (view, publish) = (Permission::View, Permission::Publish);
    let switched = |describing: Describing| describing.ok::<WorkflowActivated>("What new runs get now.");
    let mut routes = vec![
        get("/v1/workflows", "listWorkflows", view, "Lists workflows, in the order of their names.")
            .ok::<Page<WorkflowShown>>("Workflows.")
            .leads("/v1/workflows/{name}", "name", "/items/0/name")
            .to(list),
        get("/v1/workflows/{name}", "showWorkflow", view, "Shows a workflow.")
            .ok::<WorkflowShown>("The workflow.")
            .to(show),
        switched(post(
            "/v1/workflows/{name}/activate",
            "activateVersion",
            publish,
            "New runs get this version.",
        ))
        .to(activate),
        switched(post(
            "/v1/workflows/{name}/deactivate",
            "deactivateWorkflow",
            publish,
            "No new runs are begun until a version is activated.",
        ))
        .to(|call| switch(call, async |catalogue, name| catalogue.deactivate(name).await)),
        switched(post(
            "/v1/workflows/{name}/archive",
            "archiveWorkflow",
            publish,
            "Puts a workflow away: no new runs are begun and nothing is published.",
        ))
        .to(|call| switch(call, async |catalogue, name| catalogue.archive(name).await)),
        switched(post(
            "/v1/workflows/{name}/restore",
            "restoreWorkflow",
            publish,
            "Takes a workflow out of the archive; the version that was active is active again.",
        ))
        .to(|call| switch(call, async |catalogue, name| catalogue.restore(name).await)),
    ];
    routes.extend(draft::routes());
    routes.extend(version::routes());
    routes
}

async fn list(call: Call<Nothing, ListWorkflows>) -> Result<Reply, Problem> {
    let catalogue = call.engine().catalogue();
    let ListWorkflows { prefix, limit, cursor } = call.query;
    let listing = Listing::of(limit, cursor);
    let list =
        List { prefix: prefix.unwrap_or_default(), limit: Some(listing.limit()), cursor: listing.cursor() };
    Reply::ok(&Page::of(catalogue.workflows(list).await?, WorkflowShown::from))
}

async fn show(call: Call<OfWorkflow>) -> Result<Reply, Problem> {
    let listed = call.engine().catalogue().workflow(call.path.name.as_str()).await?;
    Reply::ok(&WorkflowShown::from(listed))
}

async fn activate(call: Call<OfWorkflow, Nothing, Json<ActivateVersion>>) -> Result<Reply, Problem> {
    let catalogue = call.engine().catalogue();
    let activated = catalogue.activate(call.path.name, call.body.0.version).await?;
    Reply::ok(&WorkflowActivated::from(activated))
}

async fn switch(
    call: Call<OfWorkflow>,
    change: impl AsyncFn(Catalogue, String) -> Result<Activated, CatalogueError>,
) -> Result<Reply, Problem> {
    let catalogue = call.engine().catalogue();
    let activated = change(catalogue, call.path.name).await?;
    Reply::ok(&WorkflowActivated::from(activated))
}
