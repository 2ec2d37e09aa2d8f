//! Routes of a tenant's workflows: list, show, activate, deactivate, archive and restore them.

mod draft;
pub(in crate::api) mod limits;
mod version;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use stepwell::catalogue::{Activated, WorkflowSummary};
use stepwell::core::{Name, Timestamp};
use stepwell::data::KeyList;
use stepwell::{Catalogue, CatalogueError, Permission};

use super::call::{Call, Json, Nothing};
use super::reply::Reply;
use super::route::{Describing, Route, get, post};
use super::shapes::{Instant, Listing, Page};
use crate::routes::problem::Problem;

/// Path parameter that selects a workflow.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct WorkflowPath {
    /// Name of the workflow, 1 to 256 characters.
    #[schemars(length(min = 1, max = 256))]
    name: String,
}

/// Filter and page of a listing of workflows.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ListWorkflows {
    /// Lists only workflows whose name starts with this text, without wildcards.
    #[schemars(length(max = 256))]
    prefix: Option<String>,
    /// Maximum number of rows, 1 to 200. Default: 50.
    #[schemars(range(min = 1, max = 200))]
    limit: Option<u32>,
    /// The `nextCursor` of the previous page.
    cursor: Option<String>,
}

/// A workflow of the catalogue.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct WorkflowView {
    /// Name of the workflow.
    #[schemars(with = "String")]
    name: Name,
    /// Number of published versions; 0 = there is only a draft.
    versions: u32,
    /// Highest version number; absent if no version is published.
    #[serde(skip_serializing_if = "Option::is_none")]
    newest: Option<u32>,
    /// Number of the version that new runs use; absent if the workflow cannot be started.
    #[serde(skip_serializing_if = "Option::is_none")]
    active: Option<u32>,
    /// True if the workflow is archived: it refuses new runs and new versions.
    archived: bool,
    /// True if the workflow has a draft.
    draft: bool,
    /// Time at which the catalogue entry was last changed.
    #[schemars(with = "Instant")]
    updated_at: Timestamp,
}

impl From<WorkflowSummary> for WorkflowView {
    fn from(listed: WorkflowSummary) -> Self {
        let WorkflowSummary { name, versions, newest, active, is_archived, has_draft, at } = listed;
        let (archived, draft, updated_at) = (is_archived, has_draft, at);
        WorkflowView { name, versions, newest, active, archived, draft, updated_at }
    }
}

/// Request to activate a version of a workflow.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ActivateVersion {
    /// Number of the version that new runs use from now on.
    version: u32,
}

/// Version that new runs of a workflow use.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct WorkflowActivated {
    /// Name of the workflow.
    #[schemars(with = "String")]
    name: Name,
    /// Number of the version that new runs use; absent if the workflow cannot be started.
    #[serde(skip_serializing_if = "Option::is_none")]
    active: Option<u32>,
    /// True if the request changed the active version.
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
    let switched =
        |describing: Describing| describing.ok::<WorkflowActivated>("The version that new runs use now.");
    let mut routes = vec![
        get("/v1/workflows", "listWorkflows", view, "List workflows by name.")
            .ok::<Page<WorkflowView>>("Workflows.")
            .links_to("/v1/workflows/{name}", "name", "/items/0/name")
            .to(list),
        get("/v1/workflows/{name}", "showWorkflow", view, "Show a workflow.")
            .ok::<WorkflowView>("The workflow.")
            .to(show),
        switched(post(
            "/v1/workflows/{name}/activate",
            "activateVersion",
            publish,
            "Activate a version: new runs use it from now on.",
        ))
        .to(activate),
        switched(post(
            "/v1/workflows/{name}/deactivate",
            "deactivateWorkflow",
            publish,
            "Deactivate a workflow: new runs are refused until a version is activated.",
        ))
        .to(|call| switch(call, async |catalogue, name| catalogue.deactivate(name).await)),
        switched(post(
            "/v1/workflows/{name}/archive",
            "archiveWorkflow",
            publish,
            "Archive a workflow: new runs and new versions are refused until it is restored.",
        ))
        .to(|call| switch(call, async |catalogue, name| catalogue.archive(name).await)),
        switched(post(
            "/v1/workflows/{name}/restore",
            "restoreWorkflow",
            publish,
            "Restore an archived workflow. The version that was active becomes active again.",
        ))
        .to(|call| switch(call, async |catalogue, name| catalogue.restore(name).await)),
    ];
    routes.extend(draft::routes());
    routes.extend(limits::routes());
    routes.extend(version::routes());
    routes
}

async fn list(call: Call<Nothing, ListWorkflows>) -> Result<Reply, Problem> {
    let catalogue = call.engine().catalogue();
    let ListWorkflows { prefix, limit, cursor } = call.query;
    let listing = Listing::of(limit, cursor);
    let list = KeyList {
        prefix: prefix.unwrap_or_default(),
        limit: Some(listing.limit()),
        cursor: listing.cursor(),
    };
    Reply::ok(&Page::of(catalogue.workflows(list).await?, WorkflowView::from))
}

async fn show(call: Call<WorkflowPath>) -> Result<Reply, Problem> {
    let listed = call.engine().catalogue().workflow(call.path.name.as_str()).await?;
    Reply::ok(&WorkflowView::from(listed))
}

async fn activate(call: Call<WorkflowPath, Nothing, Json<ActivateVersion>>) -> Result<Reply, Problem> {
    let catalogue = call.engine().catalogue();
    let activated = catalogue.activate(call.path.name, call.body.0.version).await?;
    Reply::ok(&WorkflowActivated::from(activated))
}

async fn switch(
    call: Call<WorkflowPath>,
    change: impl AsyncFn(Catalogue, String) -> Result<Activated, CatalogueError>,
) -> Result<Reply, Problem> {
    let catalogue = call.engine().catalogue();
    let activated = change(catalogue, call.path.name).await?;
    Reply::ok(&WorkflowActivated::from(activated))
}
