//! Actions: what steps of workflows can call, on this server and at workers elsewhere.

use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use stepwell::{ActionInfo, Engine, Permission, RemoteAction};

use super::call::{Call, Nothing, Perhaps};
use super::reply::Reply;
use super::route::{Route, delete, get, put};
use super::shapes::Page;
use crate::routes::problem::Problem;

/// An action, as the engine itself describes it.
#[derive(JsonSchema)]
#[schemars(rename = "Action", rename_all = "camelCase")]
#[expect(dead_code, reason = "only its schema is used")]
struct ActionShape {
    /// Its name.
    name: String,
    /// What it does.
    about: String,
    /// Which edition of it this is.
    version: u32,
    /// The JSON schema of its input, with hints for editors under `x-workflow-editor`.
    input: Value,
    /// The JSON schema of its output.
    output: Value,
    /// It changes something, here or outside.
    has_side_effects: bool,
    /// What whoever has published a workflow needs to be allowed for it to be called there.
    permission: Option<String>,
    /// The key under which a designer finds its label in its own languages.
    label_key: String,
    /// What it is listed with.
    group: String,
    /// The name of its icon.
    icon: String,
    /// Workers elsewhere do it.
    remote: bool,
    /// Where in its input secrets may stand: JSON pointers, each with everything below it.
    secret_fields: Vec<String>,
}

/// Which action.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct OfAction {
    /// Its name.
    #[schemars(length(min = 1, max = 256))]
    name: String,
}

/// An action that workers elsewhere do.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PutAction {
    /// What it does, for people.
    #[serde(default)]
    #[schemars(length(max = 2000))]
    about: String,
    /// Which edition of it this is; 1 unless this says otherwise.
    #[schemars(range(min = 1))]
    version: Option<u32>,
    /// JSON Schema of its input: calls that do not fit are refused when a workflow is published, and fail when it runs.
    input: Option<Value>,
    /// JSON Schema of its output: a result that does not fit is a failure.
    output: Option<Value>,
    /// What it is listed with; the part of its name before the dot unless this says otherwise.
    #[schemars(length(min = 1, max = 100))]
    group: Option<String>,
    /// Where in its input secrets may stand: JSON pointers, each with everything below it. Without any, none may.
    #[serde(default)]
    #[schemars(length(max = 100))]
    secret_fields: Vec<String>,
}

pub(super) fn routes() -> Vec<Route> {
    let (view, publish) = (Permission::View, Permission::Publish);
    vec![
        get("/v1/actions", "listActions", view, "Lists the actions that steps can call, with the schemas of what they take and give.")
            .ok::<Page<ActionShape>>("All actions, in the order of their names.")
            .to(list),
        get("/v1/actions/{name}", "showAction", view, "Shows an action.").ok::<ActionShape>("The action.").to(show),
        put("/v1/actions/{name}", "putAction", publish, "Makes an action known that workers elsewhere do.")
            .notes("Workers ask for what they are to do with `POST /v1/tasks/poll`. Names of the server's own actions cannot be taken.")
            .ok::<ActionShape>("The action.")
            .to(put_action),
        delete("/v1/actions/{name}", "deleteAction", publish, "Takes an action away that workers elsewhere do.")
            .notes("Tasks that are there stay and can be finished. Runs that come to the action later stay as they are until it is there again.")
            .gives_nothing("It is gone.")
            .to(delete_action),
    ]
}

/// Every action of the server and of the tenant's workers, in the order of their names.
async fn all(engine: &Engine) -> Result<Vec<ActionInfo>, Problem> {
    let mut all = engine.actions();
    let remote = engine.catalogue().actions().await?;
    all.extend(remote.iter().map(RemoteAction::info));
    all.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(all)
}

async fn list(call: Call) -> Result<Reply, Problem> {
    Reply::ok(&Page::only(all(&call.engine()).await?))
}

async fn show(call: Call<OfAction>) -> Result<Reply, Problem> {
    let name = &call.path.name;
    let found = all(&call.engine()).await?.into_iter().find(|action| action.name.as_str() == name);
    let found = found.ok_or_else(|| {
        Problem::new(StatusCode::NOT_FOUND, "noAction", format!("There is no action `{name}`."))
    })?;
    Reply::ok(&found)
}

async fn put_action(call: Call<OfAction, Nothing, Perhaps<PutAction>>) -> Result<Reply, Problem> {
    let engine = call.engine();
    let Perhaps(PutAction { about, version, input, output, group, secret_fields }) = call.body;
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

async fn delete_action(call: Call<OfAction>) -> Result<Reply, Problem> {
    call.engine().catalogue().delete_action(call.path.name.as_str()).await?;
    Ok(Reply::nothing())
}
