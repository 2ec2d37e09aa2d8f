//! Routes of actions: list the actions that steps can call, and register those of remote workers.

use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use stepwell::{ActionInfo, Engine, Permission, RemoteAction, store};

use super::call::{Call, Nothing, OptionalBody};
use super::reply::Reply;
use super::route::{Route, delete, get, put};
use super::shapes::Page;
use crate::routes::problem::Problem;

/// An action that steps of workflows can call.
#[derive(JsonSchema)]
#[schemars(rename = "Action", rename_all = "camelCase")]
#[expect(dead_code, reason = "only its schema is used")]
struct ActionShape {
    /// Name of the action, by which steps call it.
    name: String,
    /// Description of the action, for people.
    about: String,
    /// Version of the action, counted from 1.
    version: u32,
    /// JSON Schema of the input, with hints for editors under `x-workflow-editor`.
    input: Value,
    /// JSON Schema of the output.
    output: Value,
    /// True if the action changes data, in Stepwell or in another system.
    has_side_effects: bool,
    /// Permission that the publisher of a workflow needs for its steps to call the action; absent if none.
    permission: Option<String>,
    /// Key of the action's label in the translations of a designer.
    label_key: String,
    /// Group that the action is listed in.
    group: String,
    /// Name of the action's icon.
    icon: String,
    /// True if remote workers run the action.
    remote: bool,
    /// JSON pointers to the parts of the input that may contain secrets; each includes everything below it.
    secret_fields: Vec<String>,
    /// True if the action only makes changes to data, so that remote workers can make them with a result.
    stageable: bool,
    /// Codes of the errors that the action itself raises; absent if it may raise any code.
    codes: Option<Vec<String>>,
}

/// Path parameter that selects an action.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ActionPath {
    /// Name of the action, 1 to 256 characters.
    #[schemars(length(min = 1, max = 256))]
    name: String,
}

/// Description of an action that remote workers run.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PutAction {
    /// Description of the action, for people. Default: empty.
    #[serde(default)]
    #[schemars(length(max = 2000))]
    about: String,
    /// Version of the action. Default: 1.
    #[schemars(range(min = 1))]
    version: Option<u32>,
    /// JSON Schema of the input. Other calls are rejected when a workflow is published, and fail when it runs.
    input: Option<Value>,
    /// JSON Schema of the output. A result that does not match it fails the attempt.
    output: Option<Value>,
    /// Group that the action is listed in. Default: the part of its name before the dot.
    #[schemars(length(min = 1, max = 100))]
    group: Option<String>,
    /// JSON pointers to the parts of the input that may contain secrets. Default: none may.
    #[serde(default)]
    #[schemars(length(max = 100))]
    secret_fields: Vec<String>,
}

pub(super) fn routes() -> Vec<Route> {
    let (view, publish) = (Permission::View, Permission::Publish);
    vec![
        get("/v1/actions", "listActions", view, "List the actions that steps can call, with the schemas of their input and output.")
            .ok::<Page<ActionShape>>("All actions, by name.")
            .to(list),
        get("/v1/actions/{name}", "showAction", view, "Show an action.").ok::<ActionShape>("The action.").to(show),
        put("/v1/actions/{name}", "putAction", publish, "Register an action that remote workers run.")
            .notes("Replaces a remote action of the same name. Names of the server's own actions are reserved. Workers get their tasks with `POST /v1/tasks/poll`.")
            .ok::<ActionShape>("The action.")
            .to(put_action),
        delete("/v1/actions/{name}", "deleteAction", publish, "Delete an action of remote workers.")
            .notes("Tasks that are already queued stay and can be completed. Runs that reach the action later wait until it is registered again.")
            .gives_nothing("The action is deleted.")
            .to(delete_action),
    ]
}

/// Returns the actions of the server and of the tenant's workers, by name.
async fn all(engine: &Engine) -> Result<store::Page<ActionInfo>, Problem> {
    let mut all = engine.actions();
    let remote = engine.catalogue().actions().await?;
    Ok(remote.over(|remote| {
        all.extend(remote.iter().map(RemoteAction::info));
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }))
}

async fn list(call: Call) -> Result<Reply, Problem> {
    Reply::ok(&Page::of(all(&call.engine()).await?, |action| action))
}

async fn show(call: Call<ActionPath>) -> Result<Reply, Problem> {
    let name = &call.path.name;
    let found = all(&call.engine()).await?.items.into_iter().find(|action| action.name.as_str() == name);
    let found = found.ok_or_else(|| {
        Problem::new(StatusCode::NOT_FOUND, "noAction", format!("There is no action `{name}`."))
    })?;
    Reply::ok(&found)
}

async fn put_action(call: Call<ActionPath, Nothing, OptionalBody<PutAction>>) -> Result<Reply, Problem> {
    let engine = call.engine();
    let OptionalBody(PutAction { about, version, input, output, group, secret_fields }) = call.body;
    let action = RemoteAction {
        about,
        version: version.unwrap_or(1),
        input,
        output,
        group,
        secret_fields,
        ..RemoteAction::new(call.path.name.as_str())
    };
    let info = action.info();
    engine.catalogue().put_action(action).await?;
    Reply::ok(&info)
}

async fn delete_action(call: Call<ActionPath>) -> Result<Reply, Problem> {
    call.engine().catalogue().delete_action(call.path.name.as_str()).await?;
    Ok(Reply::nothing())
}
