//! Workflows as pictures: JSON for programs that draw, Mermaid for everybody else.

use schemars::JsonSchema;
use serde::Deserialize;
use stepwell::core::graph::Graph;

use super::reply::Reply;
use super::route::Describing;
use crate::routes::problem::Problem;

/// What Mermaid is sent as.
const MERMAID: &str = "text/plain; charset=utf-8";

/// How a picture is given.
#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "GraphFormat")]
pub(super) enum Picture {
    #[default]
    Json,
    Mermaid,
}

/// Places and the ways between them.
#[derive(JsonSchema)]
#[schemars(rename = "Graph")]
#[expect(dead_code, reason = "only its schema is used")]
struct GraphShape {
    /// The workflow's name.
    workflow: String,
    /// The places.
    nodes: Vec<NodeShape>,
    /// The ways between them.
    edges: Vec<EdgeShape>,
}

/// A place.
#[derive(JsonSchema)]
#[schemars(rename = "GraphNode")]
#[expect(dead_code, reason = "only its schema is used")]
struct NodeShape {
    /// Its name.
    id: String,
    /// `step`, `wait`, `fork`, `join`, `loop`, `catch` or `end`.
    kind: String,
    /// A run begins here.
    initial: bool,
    /// What is going on there in a run.
    status: Option<PlaceStatus>,
    /// How many activations of a run are there.
    activations: Option<usize>,
}

/// What is going on at a place.
#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase")]
#[expect(dead_code, reason = "only its schema is used")]
enum PlaceStatus {
    Idle,
    Active,
    Waiting,
    Completed,
}

/// A way from one place to another.
#[derive(JsonSchema)]
#[schemars(rename = "GraphEdge")]
#[expect(dead_code, reason = "only its schema is used")]
struct EdgeShape {
    /// The transition; absent for a fork's branch or the way after a failure.
    transition: Option<String>,
    /// From here.
    from: String,
    /// To there.
    to: String,
    /// `auto`, `signal`, `timer`, `branch`, `round`, `after`, `error` or `retry`.
    kind: String,
    /// What a person reads on it.
    label: Option<String>,
}

/// The route gives pictures.
pub(super) fn gives(describing: Describing) -> Describing {
    describing.ok::<GraphShape>("The picture.").gives_text(MERMAID, "The picture as Mermaid.")
}

/// A picture, as it is asked for.
pub(super) fn drawn(graph: &Graph, format: Option<Picture>) -> Result<Reply, Problem> {
    match format.unwrap_or_default() {
        Picture::Json => Reply::ok(graph),
        Picture::Mermaid => Ok(Reply::text(MERMAID, graph.to_mermaid())),
    }
}
