//! Shadow columns of published workflows: the catalogue selects the version that declares them.

use std::time::Duration;

use serde_json::{Value, json};
use stepwell::core::migrate::Mapping;
use stepwell::core::shadow::ShadowValue;
use stepwell::store::{Record, RecordQuery, RunFilter, RunQuery, ShadowFilter};
use stepwell::testing::TestEngine;
use stepwell::{Engine, Heal, Operator, Run, Signal, Start};

use super::{engine, publish};
use crate::kit::{ground, settle, soon};

/// The time after which every process knows a published version.
const KNOWN: Duration = Duration::from_secs(2);

/// An order in which `SET` replaces the address, with these columns.
fn order(columns: &[&str]) -> String {
    let column = |name: &&str| format!("\"{name}\": {{ \"path\": \"vars.{name}\", \"type\": \"string\" }}");
    let columns: Vec<_> = columns.iter().map(column).collect();
    format!(
        "spec:\n  shadows: {{ {} }}\n  steps:\n    - {{ id: first, type: vars.set, values: {{ city: {{ $expr: payload.city }} }} }}\n    \
         - {{ id: wait, type: wait.signal, signal: SET, saveAs: given }}\n    \
         - {{ id: second, type: vars.set, values: {{ city: {{ $expr: vars.given.city }} }} }}\n    \
         - {{ id: last, type: wait.signal, signal: END }}\n",
        columns.join(", ")
    )
}

async fn ordered(engine: &TestEngine, city: &str) -> Run {
    let run = engine.start(Start::new("order").input(&json!({"city": city}))).await.unwrap();
    engine.settle().await;
    run
}

/// The columns of a run by name, as JSON.
async fn held(engine: &Engine, run: &Run) -> Value {
    let page = engine.store().records(engine.scope(), RecordQuery::Shadows(run.id())).await.unwrap();
    let columns = page.items.into_iter().map(|record| match record {
        Record::Shadow(row) => match row.value {
            ShadowValue::Text(text) => (row.name.to_string(), Value::from(text)),
            other => panic!("{other:?} is not a text"),
        },
        other => panic!("{other:?} is not a shadow column"),
    });
    Value::Object(columns.collect())
}

/// Heals everything; returns the number of checked runs and of changed columns.
async fn healed(engine: &Engine) -> (u64, u64) {
    let mut heal = Heal::of("order");
    while soon(engine.heal(&mut heal)).await.unwrap() {}
    assert_eq!((heal.unreadable(), heal.missed()), (0, 0));
    (heal.runs(), heal.changed())
}

#[tokio::test]
async fn heal_fills_columns_of_a_newer_published_version() {
    let engine = engine().await;
    publish(&engine, "order", &order(&[])).await;
    let mut runs = Vec::new();
    for city in ["Bonn", "Ulm", "Bonn"] {
        runs.push(ordered(&engine, city).await);
    }
    publish(&engine, "order", &order(&["city"])).await;
    engine.advance(KNOWN).await;
    assert_eq!(healed(&engine).await, (3, 3));
    assert_eq!(held(&engine, &runs[1]).await, json!({"city": "Ulm"}));
    assert_eq!(healed(&engine).await, (3, 0));
    let shadows = vec![ShadowFilter::equals("city", "Bonn")];
    let query = RunQuery {
        filter: RunFilter { workflow: Some("order".into()), shadows, ..RunFilter::default() },
        ..RunQuery::default()
    };
    assert_eq!(engine.runs(query).await.unwrap().items.len(), 2);
}

#[tokio::test]
async fn steps_of_older_runs_write_the_columns_of_the_active_version() {
    let engine = engine().await;
    publish(&engine, "order", &order(&[])).await;
    let run = ordered(&engine, "Bonn").await;
    publish(&engine, "order", &order(&["city"])).await;
    run.signal(Signal::new("SET").with(&json!({"city": "Ulm"}))).await.unwrap();
    engine.settle().await;
    assert_eq!(held(&engine, &run).await, json!({"city": "Ulm"}));
    engine.advance(KNOWN).await;
    assert_eq!(healed(&engine).await, (1, 0));
}

#[tokio::test]
async fn process_that_never_loaded_the_definition_heals_its_runs() {
    let (store, clock) = ground().await;
    let one = TestEngine::start_on(store.clone(), clock.clone(), |engine| engine).await.unwrap();
    publish(&one, "order", &order(&[])).await;
    let run = ordered(&one, "Bonn").await;
    publish(&one, "order", &order(&["city"])).await;
    one.advance(KNOWN).await;
    let two = TestEngine::start_on(store, clock, |engine| engine).await.unwrap();
    assert_eq!(healed(&two).await, (1, 1));
    assert_eq!(held(&two, &run).await, json!({"city": "Bonn"}));
}

#[tokio::test]
async fn other_processes_write_new_columns_within_a_second() {
    let (store, clock) = ground().await;
    let one = TestEngine::start_on(store.clone(), clock.clone(), |engine| engine).await.unwrap();
    let two = TestEngine::start_on(store, clock, |engine| engine).await.unwrap();
    publish(&one, "order", &order(&[])).await;
    let run = ordered(&two, "Bonn").await;
    publish(&one, "order", &order(&["city"])).await;
    one.advance(KNOWN).await;
    assert_eq!(healed(&one).await, (1, 1));
    two.run(run.id()).signal(Signal::new("SET").with(&json!({"city": "Ulm"}))).await.unwrap();
    settle(&[&one, &two]).await;
    assert_eq!(held(&one, &run).await, json!({"city": "Ulm"}));
    assert_eq!(healed(&one).await, (1, 0));
}

/// B16: the columns of the target version are in the commit of the migration.
#[tokio::test]
async fn migration_fills_and_clears_columns() {
    let engine = engine().await;
    publish(&engine, "order", &order(&["given"])).await;
    let run = ordered(&engine, "Bonn").await;
    let new = order(&["city"]);
    engine.catalogue().publish("order", stepwell::catalogue::Publish::text(new)).await.unwrap();
    assert_eq!(held(&engine, &run).await, json!({}), "version 2 is not active");
    let by = Operator::default();
    engine.migrate(run.id(), 2, &Mapping::default(), &by, false).await.unwrap();
    assert_eq!(held(&engine, &run).await, json!({"city": "Bonn"}));
    engine.advance(KNOWN).await;
    assert_eq!(healed(&engine).await, (1, 0), "a run of a higher version keeps its columns");
}

#[tokio::test]
async fn lower_active_version_declares_the_columns_of_its_runs() {
    let engine = engine().await;
    publish(&engine, "order", &order(&["city"])).await;
    publish(&engine, "order", &order(&[])).await;
    let newer = ordered(&engine, "Ulm").await;
    engine.catalogue().activate("order", 1).await.unwrap();
    let older = ordered(&engine, "Bonn").await;
    engine.advance(KNOWN).await;
    assert_eq!(healed(&engine).await, (2, 0));
    assert_eq!(
        (held(&engine, &newer).await, held(&engine, &older).await),
        (json!({}), json!({"city": "Bonn"}))
    );
}
