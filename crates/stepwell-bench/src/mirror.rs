//! The `mirror` workload: runs two workflows that mirror tasks of one project in others, from their workflow documents.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use serde_json::{Value, json};
use stepwell::{ActionError, Cx, Engine, Start};
use stepwell_core::WorkflowSource;

use crate::StoreKind;
use crate::engines;
use crate::site::Site;

const LINK_SETUP: &str = include_str!("../../../examples/workflows/link-setup.yaml");
const MIRROR: &str = include_str!("../../../examples/workflows/task-mirror.yaml");

/// Options of the `mirror` workload.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Database to test on.
    #[arg(long, value_enum, default_value = "sqlite")]
    store: StoreKind,
    /// Number of tasks to mirror; each has up to three counterparts.
    #[arg(long, default_value_t = 400)]
    tasks: u64,
    /// Plants a bug: leaves out every other link. The workload must detect it.
    #[arg(long)]
    plant: bool,
    /// Mirrors 40 tasks only.
    #[arg(long)]
    short: bool,
    /// Accepted for uniformity; the output is always JSON.
    #[arg(long)]
    json: bool,
}

/// The updates that the other project received, by task.
type Told = Arc<Mutex<BTreeMap<String, Vec<Value>>>>;

pub(crate) fn run(options: &Options) -> Result<(), String> {
    let tasks = if options.short { 40 } else { options.tasks };
    let runtime = crate::runtime()?;
    let site = Site::new(options.store)?;
    let place = site.place(&runtime, "mirror")?;
    let begin = Instant::now();
    let mut line = runtime.block_on(async {
        let told: Told = Arc::default();
        let engine = open(engines::open(&place).await?, &told).await?;
        let line = follow(&engine, &told, tasks, options.plant).await;
        engines::close(engine).await;
        line
    })?;
    line["workload"] = "mirror".into();
    line["store"] = options.store.name().into();
    line["tasks"] = tasks.into();
    line["planted"] = options.plant.into();
    line["seconds"] = begin.elapsed().as_secs_f64().into();
    println!("{line}");
    let is_right = line["wrong"] == 0 && line["without_links_told"] == 0;
    if is_right { Ok(()) } else { Err("a counterpart did not receive the expected update".to_owned()) }
}

async fn open(store: Arc<dyn stepwell_store::Store>, told: &Told) -> Result<Engine, String> {
    // The reverse mirror is the same document with the other link direction.
    let reverse = MIRROR.replace("direction: \"forward\"", "direction: \"reverse\"");
    let mut builder = Engine::builder(store);
    for (name, text) in [("link-setup", LINK_SETUP), ("mirror", MIRROR), ("mirror-back", reverse.as_str())] {
        let document = WorkflowSource::read(text, Some(name)).map_err(|problems| problems.to_string())?;
        builder = builder.workflow(document.definition().clone());
    }
    let create = |_: Cx, input: Value| async move {
        let (project, name) = (&input["project_id"], &input["name"]);
        let id = format!("{}/{}", project.as_str().unwrap_or_default(), name.as_str().unwrap_or_default());
        Ok::<_, ActionError>(json!({ "task_id": id }))
    };
    let told = told.clone();
    let update = move |_: Cx, input: Value| {
        let told = told.clone();
        async move {
            let id = input["task_id"].as_str().unwrap_or_default().to_owned();
            told.lock().unwrap_or_else(PoisonError::into_inner).entry(id).or_default().push(input);
            Ok::<_, ActionError>(json!({ "updated": true }))
        }
    };
    let builder = builder.action("projects.create_task", create).action("projects.update_task", update);
    builder.start().await.map_err(|error| error.to_string())
}

async fn follow(engine: &Engine, told: &Told, tasks: u64, plant: bool) -> Result<Value, String> {
    let run = async |workflow: &str, input: Value| -> Result<(), String> {
        let run =
            engine.start(Start::new(workflow).input(&input)).await.map_err(|error| error.to_string())?;
        run.result().await.map(drop).map_err(|error| error.to_string())
    };
    let copies = |task: u64| task % 4;
    for task in 0..tasks {
        for copy in 0..copies(task) {
            if plant && (task + copy) % 2 == 0 {
                continue;
            }
            let made = json!({
                "task_id": format!("a/{task}"), "mirror_project_id": format!("b{copy}"), "name": format!("{task}")
            });
            run("link-setup", made).await?;
        }
    }
    for task in 0..tasks {
        let changes = json!({ "name": format!("Task {task}") });
        run("mirror", json!({ "task_id": format!("a/{task}"), "changes": changes })).await?;
    }
    let forward = std::mem::take(&mut *told.lock().unwrap_or_else(PoisonError::into_inner));
    let (mut wrong, mut expected) = (0_u64, BTreeSet::new());
    for task in 0..tasks {
        for copy in 0..copies(task) {
            let id = format!("b{copy}/{task}");
            let given = json!([{ "task_id": id, "name": format!("Task {task}") }]);
            wrong += u64::from(forward.get(&id).map(|calls| json!(calls)) != Some(given));
            expected.insert(id);
        }
    }
    let without_links = forward.keys().filter(|id| !expected.contains(*id)).count();
    let mut backward = 0_u64;
    for id in &expected {
        run("mirror-back", json!({ "task_id": id, "changes": { "description": "from there" } })).await?;
    }
    for calls in told.lock().unwrap_or_else(PoisonError::into_inner).values() {
        backward += calls.iter().filter(|call| call["description"] == json!("from there")).count() as u64;
    }
    wrong += (expected.len() as u64).abs_diff(backward);
    Ok(json!({
        "links": expected.len(), "told": forward.len(), "told_back": backward,
        "wrong": wrong, "without_links_told": without_links
    }))
}
