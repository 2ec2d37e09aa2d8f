//! Drafts: any text is accepted, and a save needs the current revision.

use stepwell::catalogue::Publish;
use stepwell::data::KeyList;
use stepwell::{CatalogueError, EngineError, Permission};

use super::{answer, audited, engine, publish, somebody, wrong};
use crate::kit::other_tenant;

#[tokio::test]
async fn saving_a_draft_needs_its_current_revision() {
    let engine = engine().await;
    let catalogue = engine.catalogue();
    let first = catalogue.put_draft("greet", "one", 0).await.unwrap();
    let taken = catalogue.put_draft("greet", "another", 0).await;
    assert!(
        matches!(&taken, Err(CatalogueError::Conflict { revision, exists: true, .. }) if *revision == first.revision),
        "{taken:?}"
    );
    let second = catalogue.put_draft("greet", "two", first.revision).await.unwrap();
    let late = catalogue.put_draft("greet", "three", first.revision).await.unwrap_err();
    assert_eq!(
        late.to_string(),
        "the draft of `greet` changed: it is at revision 2. Read it again and retry"
    );
    assert_eq!(catalogue.draft("greet").await.unwrap(), second);
    let late = catalogue.delete_draft("greet", first.revision).await;
    assert!(matches!(late, Err(CatalogueError::Conflict { revision: 2, .. })), "{late:?}");
    catalogue.delete_draft("greet", second.revision).await.unwrap();
    let gone = catalogue.put_draft("greet", "three", second.revision).await;
    assert!(matches!(gone, Err(CatalogueError::Conflict { exists: false, .. })), "{gone:?}");
    let again = catalogue.put_draft("greet", "three", 0).await.unwrap();
    assert!(again.revision > second.revision, "revisions are never reused");
}

#[tokio::test]
async fn an_invalid_draft_is_saved_and_all_problems_are_reported() {
    let engine = engine().await;
    let catalogue = engine.catalogue();
    let text =
        "steps:\n  - { id: a, type: control.retrun }\n  - { id: b, type: vars.set, valuse: { x: 1 } }\n";
    let draft = catalogue.put_draft("broken", text, 0).await.unwrap();
    assert_eq!(catalogue.draft("broken").await.unwrap().text, text);
    let checked = catalogue.check_draft("broken").await.unwrap();
    let lines: Vec<_> = checked.problems.iter().map(|problem| problem.at.line).collect();
    assert!(!checked.is_sound() && lines.contains(&2) && lines.contains(&3), "{checked:?}");
    let refused = catalogue.publish("broken", Publish::draft(draft.revision)).await.unwrap_err();
    let told = wrong(refused);
    assert!(
        told.iter().any(|(line, why)| *line == 2 && why.contains("did you mean `control.return`?")),
        "{told:?}"
    );
    assert_eq!(catalogue.draft("broken").await.unwrap(), draft, "a refused publish changes nothing");
}

#[tokio::test]
async fn bad_calls_are_problems_and_unknown_actions_are_warnings() {
    let engine = engine().await;
    let text = "steps:\n  - { id: a, type: action.call, action: store.incremnt, input: {} }\n";
    let checked = engine.catalogue().check(Some("count"), text).unwrap();
    assert!(checked.is_sound() && checked.warnings[0].at.line == 2, "{checked:?}");
    assert!(checked.warnings[0].message.contains("did you mean `store.increment`?"), "{checked:?}");
    let refused = wrong(engine.catalogue().publish("count", Publish::text(text)).await.unwrap_err());
    assert!(refused[0].0 == 2 && refused[0].1.contains("`allowUnknownActions`"), "{refused:?}");
    let allowed = Publish::text(text).allow_unknown_actions();
    let published = engine.catalogue().publish("count", allowed).await.unwrap();
    assert_eq!(published.warnings, checked.warnings, "another process may have the action");
    let text = text.replace("incremnt", "increment");
    let checked = engine.catalogue().check(Some("count"), &text).unwrap();
    assert!(
        !checked.is_sound() && checked.problems.iter().all(|problem| problem.at.line == 2),
        "{checked:?}"
    );
    assert!(engine.catalogue().publish("count", Publish::text(text)).await.is_err());
}

#[tokio::test]
async fn a_draft_that_is_too_large_is_refused() {
    let engine = engine().await;
    let long = "x".repeat(256 * 1024);
    let refused = engine.catalogue().put_draft("long", long, 0).await.unwrap_err();
    assert!(
        matches!(&refused, CatalogueError::Engine(EngineError::Limit(limit)) if limit.limit == "cell_bytes")
    );
    assert!(
        refused.to_string().starts_with("the draft of `long` exceeds the limit `cell_bytes`: 262"),
        "{refused}"
    );
    assert!(engine.catalogue().draft("long").await.is_err());
}

#[tokio::test]
async fn an_unknown_name_is_reported_with_a_suggestion() {
    let engine = engine().await;
    let catalogue = engine.catalogue();
    catalogue.put_draft("invoice", "text", 0).await.unwrap();
    publish(&engine, "refund", &answer("1")).await;
    let told = catalogue.draft("invioce").await.unwrap_err().to_string();
    assert_eq!(told, "there is no draft of `invioce` (did you mean `invoice`?)");
    let told = catalogue.archive("refnud").await.unwrap_err().to_string();
    assert_eq!(told, "there is no published workflow `refnud` (did you mean `refund`?)");
    let told = catalogue.activate("refund", 3).await.unwrap_err().to_string();
    assert_eq!(told, "there is no version 3 of workflow `refund`; existing versions: 1");
    let told = engine.start(stepwell::Start::new("refnud")).await.unwrap_err().to_string();
    assert!(told.contains("did you mean `refund`?"), "{told}");
}

#[tokio::test]
async fn drafts_and_workflows_are_listed_page_by_page() {
    let engine = engine().await;
    let catalogue = engine.catalogue();
    for name in ["a", "b", "c"] {
        catalogue.put_draft(name, answer("1"), 0).await.unwrap();
    }
    publish(&engine, "b", &answer("2")).await;
    publish(&engine, "d", &answer("2")).await;
    let part = KeyList { limit: Some(2), ..KeyList::default() };
    let first = catalogue.drafts(part.clone()).await.unwrap();
    let names: Vec<_> = first.items.iter().map(|draft| draft.name.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
    let rest = catalogue.drafts(KeyList { cursor: first.next, ..part }).await.unwrap();
    assert_eq!((rest.items[0].name.as_str(), rest.items.len(), rest.next), ("c", 1, None));
    let all = catalogue.workflows(KeyList::default()).await.unwrap().items;
    let told: Vec<_> = all.iter().map(|one| (one.name.as_str(), one.versions, one.has_draft)).collect();
    assert_eq!(told, [("a", 0, true), ("b", 1, true), ("c", 0, true), ("d", 1, false)]);
    catalogue.delete_draft("a", 1).await.unwrap();
    assert_eq!(catalogue.workflows(KeyList::default()).await.unwrap().items.len(), 3);
}

#[tokio::test]
async fn changing_the_catalogue_needs_the_publish_permission() {
    let engine = engine().await;
    publish(&engine, "greet", &answer("1")).await;
    let viewer = engine.acting(somebody([Permission::View, Permission::Read, Permission::Manage]));
    let catalogue = viewer.catalogue();
    let denied = |error: CatalogueError| matches!(error, CatalogueError::Engine(EngineError::Denied { .. }));
    assert!(denied(catalogue.put_draft("x", "text", 0).await.unwrap_err()));
    assert!(denied(catalogue.publish("x", Publish::text(answer("1"))).await.unwrap_err()));
    assert!(denied(catalogue.archive("greet").await.unwrap_err()));
    assert!(denied(catalogue.import("kind: Bundle\nitems: []", Default::default()).await.unwrap_err()));
    assert!(catalogue.version("greet", 1).await.is_ok());
    let publisher = engine.acting(somebody([Permission::Publish]));
    assert!(denied(publisher.catalogue().version("greet", 1).await.unwrap_err()));
    // The data API does not give access either.
    let slot = viewer.state().workflow::<serde_json::Value>("stepwell.catalogue", "workflow/greet");
    assert!(slot.set(&serde_json::json!({})).await.is_err() && slot.get().await.is_err());
    assert!(slot.update(|_| serde_json::json!({})).await.is_err());
}

#[tokio::test]
async fn every_catalogue_change_is_audited_with_its_actor() {
    let engine = engine().await;
    let ann = engine.acting(somebody([Permission::Publish, Permission::View]));
    let catalogue = ann.catalogue();
    let draft = catalogue.put_draft("greet", answer("1"), 0).await.unwrap();
    let publish = Publish::draft(draft.revision).activate().note("the first");
    catalogue.publish("greet", publish).await.unwrap();
    catalogue.deactivate("greet").await.unwrap();
    catalogue.activate("greet", 1).await.unwrap();
    catalogue.archive("greet").await.unwrap();
    catalogue.restore("greet").await.unwrap();
    let words = ["draft", "publish", "deactivate", "activate", "archive", "restore"];
    let by = Some("ann@example.com".to_owned());
    let mut expected: Vec<_> = words.iter().map(|word| (format!("workflow.{word}"), by.clone())).collect();
    let mut rows = audited(&engine, "greet").await;
    // All rows have the same timestamp, so their order is undefined.
    rows.sort();
    expected.sort();
    assert_eq!(rows, expected);
    let version = catalogue.version("greet", 1).await.unwrap().about;
    assert_eq!((version.by, version.note.as_deref()), (by, Some("the first")));
    assert!(catalogue.draft("greet").await.is_err(), "publishing removes the draft");
}

#[tokio::test]
async fn drafts_and_workflows_are_hidden_from_other_tenants() {
    let engine = engine().await;
    engine.catalogue().put_draft("secret", "text", 0).await.unwrap();
    publish(&engine, "greet", &answer("1")).await;
    let other = engine.for_tenant(other_tenant());
    let catalogue = other.catalogue();
    assert!(catalogue.draft("secret").await.is_err() && catalogue.version("greet", 1).await.is_err());
    assert!(catalogue.workflows(KeyList::default()).await.unwrap().items.is_empty());
    let told = other.start(stepwell::Start::new("greet")).await.unwrap_err();
    assert!(matches!(&told, EngineError::UnknownWorkflow { hint, .. } if !hint.contains("greet")), "{told}");
    assert!(catalogue.archive("greet").await.is_err());
    publish(&other, "greet", &answer("2")).await;
    assert_eq!(super::result(&engine, "greet").await, 1);
    assert_eq!(super::result(&other, "greet").await, 2);
}
