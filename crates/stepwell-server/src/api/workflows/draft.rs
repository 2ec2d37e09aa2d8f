//! Drafts: what somebody is working on, with a revision that every change has to name.

use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use stepwell::catalogue::{Draft, Publish};
use stepwell::core::{Name, Timestamp};
use stepwell::{CatalogueError, Permission};

use super::OfWorkflow;
use super::version::{VersionPublished, published};
use crate::api::call::{Call, Json, Nothing, Written};
use crate::api::reply::Reply;
use crate::api::route::{Route, delete, get, post, put};
use crate::api::shapes::{Instant, segment};
use crate::routes::problem::Problem;

/// A draft without its text.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct DraftKept {
    /// The workflow it is to become.
    #[schemars(with = "String")]
    name: Name,
    /// What the next change names, so that it does not overwrite another one.
    revision: u64,
    /// Who has written it.
    #[serde(skip_serializing_if = "Option::is_none")]
    updated_by: Option<String>,
    /// When.
    #[schemars(with = "Instant")]
    updated_at: Timestamp,
}

/// A draft.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct DraftShown {
    /// Whose it is, and when it was written.
    #[serde(flatten)]
    kept: DraftKept,
    /// The text as it was written, sound or not.
    text: String,
}

impl From<Draft> for DraftShown {
    fn from(draft: Draft) -> Self {
        let Draft { name, text, revision, by, at } = draft;
        DraftShown { kept: DraftKept { name, revision, updated_by: by, updated_at: at }, text }
    }
}

/// How a draft is published.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PublishDraft {
    /// The revision that was read.
    #[schemars(range(max = 9_007_199_254_740_991u64))]
    revision: u64,
    /// New runs get it from then on.
    #[serde(default)]
    activate: bool,
    /// What is to be remembered with it.
    #[schemars(length(max = 1000))]
    note: Option<String>,
}

pub(super) fn routes() -> Vec<Route> {
    let (view, publish) = (Permission::View, Permission::Publish);
    let path = "/v1/workflows/{name}/draft";
    vec![
        get(path, "showDraft", view, "Shows the draft of a workflow.")
            .notes("`ETag` is its revision.")
            .ok::<DraftShown>("The draft.")
            .to(show),
        put(path, "putDraft", publish, "Keeps a text as the draft of a workflow, whatever is wrong with it.")
            .notes("A draft that is there is only changed with `If-Match`: 428 without it, 412 if it is at another revision. `If-None-Match: *` asks that there be none.")
            .checks_tag_or_new()
            .gives::<DraftKept>(StatusCode::CREATED, "There was none before.")
            .ok::<DraftKept>("It is kept in place of the one before.")
            .to(keep),
        delete(path, "deleteDraft", publish, "Throws the draft of a workflow away.")
            .notes("This needs `If-Match`: 428 without it, 412 if the draft is at another revision.")
            .checks_tag()
            .gives_nothing("It is gone.")
            .to(remove),
        post("/v1/workflows/{name}/publish", "publishDraft", publish, "Publishes the draft of a workflow as its next version.")
            .notes("The draft is gone then. Mistakes in it are 422 `invalidDocument`.")
            .gives::<VersionPublished>(StatusCode::CREATED, "The version was made.")
            .ok::<VersionPublished>("The newest version says the same.")
            .to(publish_draft),
    ]
}

async fn show(call: Call<OfWorkflow>) -> Result<Reply, Problem> {
    let draft = call.engine().catalogue().draft(call.path.name.as_str()).await?;
    let revision = draft.revision;
    Ok(Reply::ok(&DraftShown::from(draft))?.tagged(revision))
}

async fn keep(call: Call<OfWorkflow, Nothing, Written>) -> Result<Reply, Problem> {
    let (catalogue, expected) = (call.engine().catalogue(), call.expected()?);
    call.server.room_for_workflow(call.caller.scope(), &call.path.name).await?;
    let (name, Written(text)) = (call.path.name, call.body);
    let path = format!("/v1/workflows/{}/draft", segment(&name));
    let revision = expected.unwrap_or(0);
    let draft = catalogue.put_draft(name, text, revision).await;
    let draft = draft.map_err(|error| unnamed(expected, error))?;
    let (status, tag) = (if revision == 0 { StatusCode::CREATED } else { StatusCode::OK }, draft.revision);
    let reply = Reply::json(status, &DraftShown::from(draft).kept)?.tagged(tag);
    Ok(if revision == 0 { reply.at(&path) } else { reply })
}

async fn remove(call: Call<OfWorkflow>) -> Result<Reply, Problem> {
    let expected = call.seen()?;
    let removed =
        call.engine().catalogue().delete_draft(call.path.name.as_str(), expected.unwrap_or(0)).await;
    removed.map_err(|error| unnamed(expected, error))?;
    Ok(Reply::nothing())
}

/// Why a draft was not changed; who has not named a revision has to.
fn unnamed(expected: Option<u64>, error: CatalogueError) -> Problem {
    match (expected, error) {
        (None, CatalogueError::Conflict { what, revision, exists: true }) => {
            let detail =
                format!("There is {what} at revision {revision}: read it, and name that with `If-Match`.");
            let problem = Problem::new(StatusCode::PRECONDITION_REQUIRED, "preconditionRequired", detail);
            problem.param("revision", revision)
        }
        (_, error) => error.into(),
    }
}

async fn publish_draft(call: Call<OfWorkflow, Nothing, Json<PublishDraft>>) -> Result<Reply, Problem> {
    let catalogue = call.engine().catalogue();
    let Json(PublishDraft { revision, activate, note }) = call.body;
    let publish = note.into_iter().fold(Publish::draft(revision), Publish::note);
    let publish = if activate { publish.activate() } else { publish };
    published(catalogue.publish(call.path.name, publish).await?)
}
