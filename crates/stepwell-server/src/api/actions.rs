//! Actions: what steps of workflows can call on this server.

use schemars::JsonSchema;
use serde_json::Value;
use stepwell::Permission;

use super::call::Call;
use super::reply::Reply;
use super::route::{Route, get};
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
}

pub(super) fn routes() -> Vec<Route> {
    let about = "Lists the actions that steps can call, with the schemas of what they take and give.";
    vec![
        get("/v1/actions", "listActions", Permission::View, about)
            .ok::<Page<ActionShape>>("All actions, in the order of their names.")
            .to(list),
    ]
}

async fn list(call: Call) -> Result<Reply, Problem> {
    Reply::ok(&Page { items: call.engine().actions(), next_cursor: None })
}
