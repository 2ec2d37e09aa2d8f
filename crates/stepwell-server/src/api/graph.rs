//! Graphs of workflows, as JSON for programs and as Mermaid text.

use schemars::JsonSchema;
use serde::Deserialize;
use stepwell::core::graph::Graph;

use super::reply::Reply;
use super::route::Describing;
use crate::routes::problem::Problem;

/// Content type of Mermaid text.
const MERMAID: &str = "text/plain; charset=utf-8";

/// Format of a graph. Default: `json`.
#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "GraphFormat")]
pub(super) enum Picture {
    #[default]
    Json,
    Mermaid,
}

/// Graph of a workflow: places and the edges between them.
#[derive(JsonSchema)]
#[schemars(rename = "Graph")]
#[expect(dead_code, reason = "only its schema is used")]
struct GraphShape {
    /// Name of the workflow.
    workflow: String,
    /// Places of the workflow.
    nodes: Vec<NodeShape>,
    /// Edges between the places.
    edges: Vec<EdgeShape>,
}

/// A place of a workflow.
#[derive(JsonSchema)]
#[schemars(rename = "GraphNode")]
#[expect(dead_code, reason = "only its schema is used")]
struct NodeShape {
    /// Name of the place.
    id: String,
    /// Kind of place: `step`, `wait`, `fork`, `join`, `loop`, `catch` or `end`.
    kind: String,
    /// True if runs start at this place.
    initial: bool,
    /// Status of the place in the run; absent for a workflow.
    status: Option<PlaceStatus>,
    /// Number of the run's activations at the place; absent for a workflow.
    activations: Option<usize>,
}

/// Status of a place in a run.
#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase")]
#[expect(dead_code, reason = "only its schema is used")]
enum PlaceStatus {
    Idle,
    Active,
    Waiting,
    Completed,
}

/// An edge between two places.
#[derive(JsonSchema)]
#[schemars(rename = "GraphEdge")]
#[expect(dead_code, reason = "only its schema is used")]
struct EdgeShape {
    /// Name of the transition; absent for a fork's branch and for an edge after a failure.
    transition: Option<String>,
    /// Name of the place that the edge starts at.
    from: String,
    /// Name of the place that the edge ends at.
    to: String,
    /// Kind of edge: `auto`, `signal`, `timer`, `branch`, `round`, `after`, `error` or `retry`.
    kind: String,
    /// Label of the edge, for people; absent if it has none.
    label: Option<String>,
}

/// Declares the responses of a route that returns a graph.
pub(super) fn gives(describing: Describing) -> Describing {
    describing.ok::<GraphShape>("The graph.").gives_text(MERMAID, "The graph as Mermaid text.")
}

/// Creates the reply with a graph, in the requested format. Default: JSON.
pub(super) fn drawn(graph: &Graph, format: Option<Picture>) -> Result<Reply, Problem> {
    match format.unwrap_or_default() {
        Picture::Json => Reply::ok(graph),
        Picture::Mermaid => Ok(Reply::text(MERMAID, graph.to_mermaid())),
    }
}
