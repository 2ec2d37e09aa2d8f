//! Bundles: exported from one engine and imported into another completely or not at all.

use stepwell::catalogue::{Absent, Export, ExportVersion, Import, ImportOutcome, Publish};
use stepwell::core::document::Bundle;
use stepwell::data::KeyList;
use stepwell::{CatalogueError, Engine};

use super::{answer, audited, engine, publish, result, wrong};
use crate::kit::other_tenant;

const TWO: &str = "\
apiVersion: stepwell/v1
kind: Bundle
items:
  - { name: a, steps: [{ id: say, type: control.return, value: 1 }] }
  - apiVersion: stepwell/v1
    kind: Workflow
    metadata: { name: b }
    spec:
      steps: [{ id: say, type: control.return, value: 2 }]
";

fn activated() -> Import {
    Import { activate: true, ..Import::default() }
}

async fn outcomes(engine: &Engine, text: &str, import: Import) -> Vec<(String, ImportOutcome, u32)> {
    let imported = engine.catalogue().import(text, import).await.unwrap();
    imported.iter().map(|one| (one.name.to_string(), one.outcome, one.version)).collect()
}

fn told(name: &str, outcome: ImportOutcome, version: u32) -> (String, ImportOutcome, u32) {
    (name.to_owned(), outcome, version)
}

#[tokio::test]
async fn importing_a_bundle_twice_changes_nothing() {
    let engine = engine().await;
    let new = vec![told("a", ImportOutcome::New, 1), told("b", ImportOutcome::New, 1)];
    let dry = Import { dry_run: true, ..activated() };
    assert_eq!(outcomes(&engine, TWO, dry).await, new);
    assert!(
        engine.catalogue().workflows(KeyList::default()).await.unwrap().items.is_empty(),
        "nothing was written"
    );
    assert_eq!(outcomes(&engine, TWO, activated()).await, new);
    assert_eq!((result(&engine, "a").await, result(&engine, "b").await), (1.into(), 2.into()));
    let rows = (audited(&engine, "a").await.len(), audited(&engine, "b").await.len());
    let unchanged = vec![told("a", ImportOutcome::Unchanged, 1), told("b", ImportOutcome::Unchanged, 1)];
    assert_eq!(outcomes(&engine, TWO, activated()).await, unchanged);
    assert_eq!((audited(&engine, "a").await.len(), audited(&engine, "b").await.len()), rows);
    let other = TWO.replace("value: 2", "value: 3");
    let one = vec![told("a", ImportOutcome::Unchanged, 1), told("b", ImportOutcome::NewVersion, 2)];
    assert_eq!(outcomes(&engine, &other, activated()).await, one);
    assert_eq!(result(&engine, "b").await, 3);
}

#[tokio::test]
async fn a_bundle_with_a_problem_is_not_imported() {
    let engine = engine().await;
    let broken =
        TWO.replace("id: say, type: control.return, value: 2", "id: say, type: control.retrun, value: 2");
    let refused = engine.catalogue().import(&broken, activated()).await.unwrap_err();
    let problems = wrong(refused);
    assert!(
        problems.iter().any(|(line, why)| *line == 9 && why.contains("`control.return`")),
        "{problems:?}"
    );
    let miscalled = TWO.replace(
        "id: say, type: control.return, value: 2",
        "id: n, type: action.call, action: store.increment, input: {}",
    );
    let problems = wrong(engine.catalogue().import(&miscalled, activated()).await.unwrap_err());
    assert!(problems.iter().all(|(line, _)| *line == 9), "{problems:?}");
    let reserved = TWO.replace("name: b", "name: stepwell.b");
    let problems = wrong(engine.catalogue().import(&reserved, activated()).await.unwrap_err());
    assert_eq!((problems.len(), problems[0].0), (1, 7));
    assert!(engine.catalogue().workflows(KeyList::default()).await.unwrap().items.is_empty());
    assert!(audited(&engine, "a").await.is_empty());
}

#[tokio::test]
async fn an_archived_workflow_refuses_the_whole_bundle() {
    let engine = engine().await;
    publish(&engine, "b", &answer("7")).await;
    engine.catalogue().archive("b").await.unwrap();
    let refused = engine.catalogue().import(TWO, activated()).await;
    assert!(matches!(refused, Err(CatalogueError::Archived(_))), "{refused:?}");
    assert!(engine.catalogue().version("a", 1).await.is_err());
}

#[tokio::test]
async fn an_exported_bundle_imports_into_another_tenant() {
    let engine = engine().await;
    publish(&engine, "a", &answer("1")).await;
    publish(&engine, "b", &answer("2")).await;
    engine.catalogue().publish("b", Publish::text(answer("3"))).await.unwrap();
    publish(&engine, "c", &answer("4")).await;
    engine.catalogue().archive("c").await.unwrap();
    let bundle = engine.catalogue().export(Export::all()).await.unwrap();
    let text = bundle.to_yaml();
    assert_eq!(Bundle::read(&text).unwrap().items().len(), 2, "archived workflows are left out");
    let unchanged = vec![told("a", ImportOutcome::Unchanged, 1), told("b", ImportOutcome::NewVersion, 3)];
    let dry = Import { dry_run: true, ..Import::default() };
    assert_eq!(outcomes(&engine, &text, dry).await, unchanged, "the active version of b was exported");
    let other = engine.for_tenant(other_tenant());
    let new = vec![told("a", ImportOutcome::New, 1), told("b", ImportOutcome::New, 1)];
    assert_eq!(outcomes(&other, &text, activated()).await, new);
    assert_eq!((result(&other, "a").await, result(&other, "b").await), (1.into(), 2.into()));
    let newest =
        engine.catalogue().export(Export::of(["b", "c"]).which(ExportVersion::Newest)).await.unwrap();
    let values: Vec<_> = newest.items().iter().map(|one| one.value()["steps"][0]["value"].clone()).collect();
    assert_eq!(values, [3, 4]);
    let none = engine.catalogue().export(Export::of(["c"])).await;
    assert!(matches!(none, Err(CatalogueError::NotFound { absent: Absent::Version, .. })), "{none:?}");
    let none = engine.catalogue().export(Export::of(["x"])).await;
    assert!(matches!(none, Err(CatalogueError::NotFound { absent: Absent::Workflow, .. })), "{none:?}");
}
