//! Drafts of workflows. A change to an existing draft must name its revision.

use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use stepwell::catalogue::{Draft, Publish};
use stepwell::core::{Name, Timestamp};
use stepwell::{CatalogueError, Permission};

use super::WorkflowPath;
use super::version::{VersionPublished, published};
use crate::api::call::{Call, Json, Nothing, Written};
use crate::api::reply::Reply;
use crate::api::route::{Route, delete, get, post, put};
use crate::api::shapes::{DocumentProblem, Instant, segment};
use crate::routes::problem::Problem;

/// A draft of a workflow, without its text.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct DraftSummary {
    /// Name of the workflow.
    #[schemars(with = "String")]
    name: Name,
    /// Revision of the draft. The next change sends it in `If-Match`, so that it does not overwrite another change.
    revision: u64,
    /// Actor that wrote the draft; absent if none is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    updated_by: Option<String>,
    /// Time at which the draft was written.
    #[schemars(with = "Instant")]
    updated_at: Timestamp,
}

/// A draft of a workflow.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct DraftView {
    /// Workflow, revision, author and time of the draft.
    #[serde(flatten)]
    kept: DraftSummary,
    /// Text of the draft, unchanged and not validated.
    text: String,
}

impl From<Draft> for DraftView {
    fn from(draft: Draft) -> Self {
        let Draft { name, text, revision, by, at } = draft;
        DraftView { kept: DraftSummary { name, revision, updated_by: by, updated_at: at }, text }
    }
}

/// Request to publish a draft.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PublishDraft {
    /// Revision of the draft to publish. Refused if the draft has changed since.
    #[schemars(range(max = 9_007_199_254_740_991u64))]
    revision: u64,
    /// True = new runs use the version from now on. Default: false.
    #[serde(default)]
    activate: bool,
    /// Note stored with the version, at most 1,000 characters.
    #[schemars(length(max = 1000))]
    note: Option<String>,
    /// True = publish even if steps call actions that this server does not know. Default: false.
    #[serde(default)]
    allow_unknown_actions: bool,
}

/// A draft that was stored, and what a validation of it finds.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct DraftStored {
    /// Workflow, revision, author and time of the draft.
    #[serde(flatten)]
    kept: DraftSummary,
    /// True if the draft can be published.
    valid: bool,
    /// Errors that prevent publishing.
    problems: Vec<DocumentProblem>,
    /// Doubts about a valid draft, such as actions that this server does not know.
    warnings: Vec<DocumentProblem>,
}

pub(super) fn routes() -> Vec<Route> {
    let (view, publish) = (Permission::View, Permission::Publish);
    let path = "/v1/workflows/{name}/draft";
    vec![
        get(path, "showDraft", view, "Show the draft of a workflow.")
            .notes("`ETag` is the draft's revision.")
            .ok::<DraftView>("The draft.")
            .to(show),
        put(path, "putDraft", publish, "Store a text as the draft of a workflow, also if it is not valid.")
            .notes("To replace an existing draft, send its revision in `If-Match`: a 428 without it, a 412 if the revision has changed. `If-None-Match: *` requires that there is no draft.")
            .checks_tag_or_new()
            .gives::<DraftStored>(StatusCode::CREATED, "The draft was created.")
            .ok::<DraftStored>("The draft was replaced.")
            .to(keep),
        delete(path, "deleteDraft", publish, "Delete the draft of a workflow.")
            .notes("Send the draft's revision in `If-Match`: a 428 without it, a 412 if the revision has changed.")
            .checks_tag()
            .gives_nothing("The draft is deleted.")
            .to(remove),
        post("/v1/workflows/{name}/publish", "publishDraft", publish, "Publish the draft of a workflow as its next version.")
            .notes("Publishing deletes the draft. Errors in the draft are a 422 `invalidDocument`.")
            .gives::<VersionPublished>(StatusCode::CREATED, "The version was created.")
            .ok::<VersionPublished>("The newest version has the same content.")
            .to(publish_draft),
    ]
}

async fn show(call: Call<WorkflowPath>) -> Result<Reply, Problem> {
    let draft = call.engine().catalogue().draft(call.path.name.as_str()).await?;
    let revision = draft.revision;
    Ok(Reply::ok(&DraftView::from(draft))?.tagged(revision))
}

async fn keep(call: Call<WorkflowPath, Nothing, Written>) -> Result<Reply, Problem> {
    let (catalogue, expected) = (call.engine().catalogue(), call.expected()?);
    call.server.check_workflow_quota(call.caller.scope(), &call.path.name).await?;
    let (name, Written(text)) = (call.path.name, call.body);
    let path = format!("/v1/workflows/{}/draft", segment(&name));
    let revision = expected.unwrap_or(0);
    let draft = catalogue.put_draft(name, text, revision).await;
    let draft = draft.map_err(|error| unnamed(expected, error))?;
    let (status, tag) = (if revision == 0 { StatusCode::CREATED } else { StatusCode::OK }, draft.revision);
    let checked = catalogue.check(Some(&draft.name), &draft.text)?;
    let stored = DraftStored {
        kept: DraftView::from(draft).kept,
        valid: checked.is_sound(),
        problems: DocumentProblem::all(checked.problems),
        warnings: DocumentProblem::all(checked.warnings),
    };
    let reply = Reply::json(status, &stored)?.tagged(tag);
    Ok(if revision == 0 { reply.at(&path) } else { reply })
}

async fn remove(call: Call<WorkflowPath>) -> Result<Reply, Problem> {
    let expected = call.seen()?;
    let removed =
        call.engine().catalogue().delete_draft(call.path.name.as_str(), expected.unwrap_or(0)).await;
    removed.map_err(|error| unnamed(expected, error))?;
    Ok(Reply::nothing())
}

/// Converts an error of a change to a draft. A conflict without `If-Match` becomes a 428 that names the revision.
fn unnamed(expected: Option<u64>, error: CatalogueError) -> Problem {
    match (expected, error) {
        (None, CatalogueError::Conflict { what, revision, exists: true }) => {
            let detail =
                format!("Revision {revision} of {what} exists: read it, then send it in `If-Match`.");
            let problem = Problem::new(StatusCode::PRECONDITION_REQUIRED, "preconditionRequired", detail);
            problem.param("revision", revision)
        }
        (_, error) => error.into(),
    }
}

async fn publish_draft(call: Call<WorkflowPath, Nothing, Json<PublishDraft>>) -> Result<Reply, Problem> {
    let catalogue = call.engine().catalogue();
    let Json(PublishDraft { revision, activate, note, allow_unknown_actions }) = call.body;
    let publish = note.into_iter().fold(Publish::draft(revision), Publish::note);
    let publish = if allow_unknown_actions { publish.allow_unknown_actions() } else { publish };
    let publish = if activate { publish.activate() } else { publish };
    published(catalogue.publish(call.path.name, publish).await?)
}
