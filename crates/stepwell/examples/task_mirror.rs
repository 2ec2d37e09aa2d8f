//! Two projects mirror each other's tasks. One workflow links each task to its copies. Another one, run much later,
//! finds them through the links, in both directions and in any number.
#![allow(clippy::print_stdout)]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use stepwell::core::spec::Transition;
use stepwell::core::{Definition, Spec};
use stepwell::store::{Direction, Entity, MemoryStore};
use stepwell::{ActionError, Cx, Engine, Start};

const MIRROR: &str = "project-task-mirror";

/// The tasks of both projects by id. Stands for an external API.
type Projects = Arc<Mutex<BTreeMap<String, String>>>;

/// The creation of a task in one project.
#[derive(Debug, Serialize, Deserialize)]
struct Created {
    task: String,
    name: String,
    /// Number of projects that mirror the task.
    copies: usize,
}

/// The new name of a task.
#[derive(Debug, Serialize, Deserialize)]
struct Updated {
    task: String,
    name: String,
    direction: String,
}

/// Creates the counterparts and links them. The links are committed with the step. If the process crashes before the
/// commit, the step is repeated, and the id of each counterpart prevents duplicates.
async fn copy(cx: Cx, projects: Projects) -> Result<Vec<String>, ActionError> {
    let Created { task, name, copies } = cx.state()?;
    let mut made = Vec::new();
    for number in 0..copies {
        let id = format!("{task}-copy-{number}");
        projects.lock().unwrap_or_else(std::sync::PoisonError::into_inner).insert(id.clone(), name.clone());
        let link = stepwell::data::NewLink::new(
            Entity::new("project_task", &task),
            Entity::new("project_task", &id),
        );
        cx.links(MIRROR).upsert(link.relation("mirrors").attributes(json!({"fields": ["name"]})))?;
        made.push(id);
    }
    Ok(made)
}

/// Renames all tasks that the task is linked to.
async fn follow(cx: Cx, projects: Projects) -> Result<usize, ActionError> {
    let Updated { task, name, direction } = cx.state()?;
    let direction = if direction == "reverse" { Direction::Reverse } else { Direction::Forward };
    let lookup = stepwell::data::Lookup::of(Entity::new("project_task", &task)).direction(direction);
    let found = cx.links(MIRROR).lookup(lookup).await?;
    let mut projects = projects.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    for counterpart in &found.items {
        projects.insert(counterpart.end.id().to_owned(), name.clone());
    }
    Ok(found.items.len())
}

fn one_step(name: &str, action: &str) -> Result<Definition, Box<dyn std::error::Error>> {
    let transition = Transition::new(action, "begun", "done").action(action).save_as("result");
    let output = json!({ "$expr": "context.result" });
    Ok(Spec::new(name)
        .initial("begun")
        .step("begun")
        .end_with("done", output)
        .transition(transition)
        .build()?)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let projects: Projects = Arc::default();
    let (in_copy, in_follow) = (projects.clone(), projects.clone());
    let engine = Engine::builder(Arc::new(MemoryStore::new()))
        .workflow(one_step("link-tasks", "copy")?)
        .workflow(one_step("mirror-task", "follow")?)
        .action("copy", move |cx: Cx| copy(cx, in_copy.clone()))
        .action("follow", move |cx: Cx| follow(cx, in_follow.clone()))
        .start()
        .await?;
    let run = async |workflow: &'static str, input: Value| -> Result<Value, Box<dyn std::error::Error>> {
        Ok(engine.start(Start::new(workflow).input(&input)).await?.result().await?)
    };

    let made = run("link-tasks", json!({"task": "a-1", "name": "Dig", "copies": 2})).await?;
    assert_eq!(made, json!(["a-1-copy-0", "a-1-copy-1"]));
    let renamed =
        run("mirror-task", json!({"task": "a-1", "name": "Dig deeper", "direction": "forward"})).await?;
    assert_eq!(renamed, 2, "one task, two counterparts");
    let nobody = run("mirror-task", json!({"task": "a-9", "name": "Alone", "direction": "forward"})).await?;
    assert_eq!(nobody, 0, "a task without links is not an error");
    let back =
        run("mirror-task", json!({"task": "a-1-copy-1", "name": "From below", "direction": "reverse"}))
            .await?;
    assert_eq!(back, 1);
    let projects = projects.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    assert_eq!((&projects["a-1-copy-0"][..], &projects["a-1"][..]), ("Dig deeper", "From below"));
    println!("{}", serde_json::to_string_pretty(&*projects)?);
    Ok(())
}
