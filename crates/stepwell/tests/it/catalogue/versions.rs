//! Published versions: they never change, and numbers are consecutive and unique.

use futures_util::future::join_all;
use serde_json::json;
use stepwell::catalogue::Publish;
use stepwell::testing::TestEngine;
use stepwell::{CatalogueError, Start};

use super::{answer, audited, engine, publish, result, wrong};
use crate::kit::{self, Fate, Watched, ground};

#[tokio::test]
async fn republishing_the_same_source_returns_the_same_version() {
    let engine = engine().await;
    let first = publish(&engine, "greet", &answer("1")).await;
    assert_eq!((first.version, first.is_new, first.is_active), (1, true, true));
    let rows = audited(&engine, "greet").await.len();
    let again = publish(&engine, "greet", &answer("1")).await;
    assert_eq!((again.version, again.hash, again.is_new), (1, first.hash, false));
    assert_eq!(audited(&engine, "greet").await.len(), rows, "nothing was changed");
    let second = publish(&engine, "greet", &answer("2")).await;
    assert_eq!((second.version, second.is_new), (2, true));
    // Publishing an old text again creates a new version; the versions between stay.
    let third = publish(&engine, "greet", &answer("1")).await;
    assert_eq!((third.version, third.is_new), (3, true));
    assert_ne!(third.hash, first.hash);
}

#[tokio::test]
async fn a_version_never_changes() {
    let engine = engine().await;
    publish(&engine, "greet", &answer("1")).await;
    let catalogue = engine.catalogue();
    let before = catalogue.version("greet", 1).await.unwrap();
    publish(&engine, "greet", &answer("2")).await;
    catalogue.deactivate("greet").await.unwrap();
    catalogue.archive("greet").await.unwrap();
    let after = catalogue.version("greet", 1).await.unwrap();
    assert_eq!(after.document(), before.document());
    assert_eq!((after.about.hash, after.about.at, after.definition.hash()), {
        let about = before.about;
        (about.hash, about.at, about.hash)
    });
    assert_eq!(after.document()["steps"][0]["value"], 1);
    assert_eq!(after.definition.version(), 1);
}

#[tokio::test]
async fn an_authors_version_number_is_used_if_it_is_higher() {
    let engine = engine().await;
    let numbered = |number: u32, what: &str| format!("version: {number}\n{}", answer(what));
    assert_eq!(publish(&engine, "greet", &numbered(7, "1")).await.version, 7);
    assert_eq!(publish(&engine, "greet", &numbered(3, "2")).await.version, 8);
    assert_eq!(publish(&engine, "greet", &numbered(12, "2")).await.version, 12);
    let all = engine.catalogue().versions("greet", None, None).await.unwrap().items;
    let told: Vec<_> = all.iter().map(|one| (one.version, one.is_active)).collect();
    assert_eq!(told, [(7, false), (8, false), (12, true)]);
    let listed = engine.catalogue().workflow("greet").await.unwrap();
    assert_eq!((listed.versions, listed.newest, listed.active), (3, Some(12), Some(12)));
}

#[tokio::test]
async fn publishing_under_another_name_is_refused() {
    let engine = engine().await;
    let text = format!("name: greet\n{}", answer("1"));
    let told = wrong(engine.catalogue().publish("hello", Publish::text(&text)).await.unwrap_err());
    assert_eq!((told.len(), told[0].0), (1, 1));
    assert!(told[0].1.contains("`greet`") && told[0].1.contains("`hello`"), "{told:?}");
    for name in ["stepwell.schedule", "", "__x", " x"] {
        let refused = engine.catalogue().publish(name, Publish::text(answer("1"))).await;
        assert!(matches!(refused, Err(CatalogueError::Invalid(_))), "{name}: {refused:?}");
    }
    // A document without a name gets the name it is published under.
    publish(&engine, "hello", &answer("1")).await;
    assert_eq!(engine.catalogue().version("hello", 1).await.unwrap().document()["name"], "hello");
}

#[tokio::test]
async fn workflows_with_a_common_prefix_have_their_own_versions() {
    let engine = engine().await;
    for name in ["a", "a/b", "a/0000000001"] {
        publish(&engine, name, &answer("1")).await;
    }
    publish(&engine, "a", &answer("2")).await;
    for (name, expected) in [("a", 2), ("a/b", 1), ("a/0000000001", 1)] {
        let versions = engine.catalogue().versions(name, None, None).await.unwrap().items;
        assert_eq!(versions.len(), expected, "{name}");
    }
}

#[tokio::test]
async fn concurrent_publishes_get_consecutive_versions() {
    let engine = engine().await;
    let each = (0..12).map(|number| {
        let engine = engine.engine().clone();
        async move { publish(&engine, "greet", &answer(&number.to_string())).await }
    });
    let published = join_all(each).await;
    let mut versions: Vec<_> = published.iter().map(|one| one.version).collect();
    versions.sort_unstable();
    assert_eq!(versions, (1..=12).collect::<Vec<_>>());
    for one in &published {
        let kept = engine.catalogue().version("greet", one.version).await.unwrap();
        assert_eq!(kept.about.hash, one.hash, "nothing was overwritten");
    }
    assert_eq!(engine.catalogue().workflow("greet").await.unwrap().versions, 12);
}

#[tokio::test]
async fn publishing_one_draft_twice_at_once_gives_one_version() {
    let engine = engine().await;
    let draft = engine.catalogue().put_draft("greet", answer("1"), 0).await.unwrap();
    let each = (0..2).map(|_| {
        let catalogue = engine.catalogue();
        async move { catalogue.publish("greet", Publish::draft(draft.revision)).await }
    });
    let came: Vec<_> = join_all(each).await;
    assert_eq!(came.iter().filter(|one| one.is_ok()).count(), 1, "{came:?}");
    assert_eq!(engine.catalogue().workflow("greet").await.unwrap().versions, 1);
}

#[tokio::test]
async fn a_lost_publish_answer_does_not_publish_twice() {
    let (store, clock) = ground().await;
    let watched = Watched::new(store);
    let engine = TestEngine::start_on(watched.clone(), clock, |engine| engine).await.unwrap();
    let mut lost = false;
    watched.rule(move |_| match std::mem::replace(&mut lost, true) {
        false => Fate::AnswerLost,
        true => Fate::Arrives,
    });
    assert_eq!(publish(&engine, "greet", &answer("1")).await.version, 1);
    assert_eq!(engine.catalogue().workflow("greet").await.unwrap().versions, 1);
    assert_eq!(result(&engine, "greet").await, 1);
}

#[tokio::test]
async fn publishing_is_one_commit() {
    let (store, clock) = ground().await;
    let watched = Watched::new(store);
    let engine = TestEngine::start_on(watched.clone(), clock, |engine| engine).await.unwrap();
    let draft = engine.catalogue().put_draft("greet", answer("1"), 0).await.unwrap();
    watched.commits();
    engine.catalogue().publish("greet", Publish::draft(draft.revision).activate()).await.unwrap();
    let commits = watched.commits();
    assert_eq!(commits.len(), 1);
    assert_eq!((commits[0].definitions.len(), commits[0].audit.len()), (1, 1));
    // If the commit never arrives, nothing of the version exists.
    let draft = engine.catalogue().put_draft("other", answer("1"), 0).await.unwrap();
    watched.rule(|_| Fate::Fails);
    assert!(engine.catalogue().publish("other", Publish::draft(draft.revision)).await.is_err());
    watched.rule(|_| Fate::Arrives);
    assert!(engine.catalogue().version("other", 1).await.is_err());
    assert_eq!(engine.catalogue().draft("other").await.unwrap(), draft);
}

#[tokio::test]
async fn two_versions_are_compared() {
    let engine = engine().await;
    publish(&engine, "greet", &answer("1")).await;
    publish(&engine, "greet", &answer("2")).await;
    let differences = engine.catalogue().diff("greet", 1, 2).await.unwrap();
    assert_eq!(differences.len(), 1);
    let told = serde_json::to_value(&differences[0]).unwrap();
    let expected = json!({
        "kind": "changed", "subject": "step", "id": "say", "pointer": "/value", "from": 1, "to": 2
    });
    assert_eq!(told, expected);
    assert!(engine.catalogue().diff("greet", 2, 2).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_run_has_the_permissions_of_its_publisher() {
    let engine = engine().await;
    let text = "steps:\n  - { id: n, type: action.call, action: store.increment, input: { namespace: n, key: n } }\n  - { type: control.return, value: { $expr: vars.n.value } }\n";
    // The same document, published by an actor without write permission, and in another tenant by an actor who has it.
    let limited = engine.acting(super::somebody([stepwell::Permission::Publish]));
    publish(&limited, "count", text).await;
    let other = engine.for_tenant(kit::other_tenant());
    publish(&other, "count", text).await;
    let run = engine.start(Start::new("count")).await.unwrap();
    assert!(kit::soon(run.result()).await.is_err());
    assert_eq!(kit::error_code(&run).await.as_deref(), Some("denied"));
    assert_eq!(result(&other, "count").await, 1);
}
