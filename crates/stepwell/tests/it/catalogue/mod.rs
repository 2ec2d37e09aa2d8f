//! The catalogue: drafts, published versions, the version that a start uses, and bundles.

mod bundles;
mod columns;
mod drafts;
mod starting;
mod versions;

use serde_json::Value;
use stepwell::catalogue::{Publish, Published};
use stepwell::testing::TestEngine;
use stepwell::{Actor, CatalogueError, Engine, Permission, Start};

use crate::kit;

/// A workflow that returns this answer at once.
fn answer(what: &str) -> String {
    format!("steps: [{{ id: say, type: control.return, value: {what} }}]")
}

/// An engine without built-in workflows.
async fn engine() -> TestEngine {
    kit::start(|engine| engine).await.unwrap()
}

/// An actor with exactly these permissions.
fn somebody(permissions: impl IntoIterator<Item = Permission>) -> Actor {
    Actor::new("ann@example.com", permissions)
}

async fn publish(engine: &Engine, name: &str, text: &str) -> Published {
    engine.catalogue().publish(name, Publish::text(text).activate()).await.unwrap()
}

/// Starts a workflow and returns its result.
async fn result(engine: &Engine, name: &str) -> Value {
    kit::soon(engine.start(Start::new(name)).await.unwrap().result()).await.unwrap()
}

/// Returns the operation and the actor of each audit row of a subject.
async fn audited(engine: &Engine, subject: &str) -> Vec<(String, Option<String>)> {
    let rows = kit::audit(engine).await.into_iter().map(|(_, row)| row);
    rows.filter(|row| row.subject == subject).map(|row| (row.operation, row.actor)).collect()
}

/// Returns the line and the message of each problem for which a document was refused.
fn wrong(refused: CatalogueError) -> Vec<(usize, String)> {
    match refused {
        CatalogueError::Wrong { problems } => {
            problems.into_iter().map(|problem| (problem.at.line, problem.message)).collect()
        }
        other => panic!("{other}"),
    }
}
