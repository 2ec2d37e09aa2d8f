//! The catalogue: drafts, published versions, what is started, and bundles.

mod bundles;
mod drafts;
mod starting;
mod versions;

use serde_json::Value;
use stepwell::catalogue::{Publish, Published};
use stepwell::testing::TestEngine;
use stepwell::{Actor, CatalogueError, Engine, Permission, Start};

use crate::kit;

/// A workflow that gives this answer at once.
fn answer(what: &str) -> String {
    format!("steps: [{{ id: say, type: control.return, value: {what} }}]")
}

/// An engine that brings no workflow along.
async fn engine() -> TestEngine {
    kit::start(|engine| engine).await.unwrap()
}

/// Somebody who may do this much and no more.
fn somebody(permissions: impl IntoIterator<Item = Permission>) -> Actor {
    Actor::new("ann@example.com", permissions)
}

async fn publish(engine: &Engine, name: &str, text: &str) -> Published {
    engine.catalogue().publish(name, Publish::text(text).activate()).await.unwrap()
}

/// Starts a workflow and gives its result.
async fn result(engine: &Engine, name: &str) -> Value {
    kit::soon(engine.start(Start::new(name)).await.unwrap().result()).await.unwrap()
}

/// The words of the audit trail for a subject.
async fn audited(engine: &Engine, subject: &str) -> Vec<(String, Option<String>)> {
    let rows = kit::audit(engine).await.into_iter().map(|(_, row)| row);
    rows.filter(|row| row.subject == subject).map(|row| (row.operation, row.actor)).collect()
}

/// What is wrong with a document that was refused.
fn wrong(refused: CatalogueError) -> Vec<(usize, String)> {
    match refused {
        CatalogueError::Wrong { problems } => {
            problems.into_iter().map(|problem| (problem.at.line, problem.message)).collect()
        }
        other => panic!("{other}"),
    }
}
