//! The key-value store from outside of runs: revisions, times to live, listings, and batches.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};
use stepwell::core::Limits;
use stepwell::data::{Changes, Increment, KeyList, Namespace, NewLink, Set};
use stepwell::store::{Direction, Entity, ValueType};
use stepwell::testing::{BEGINS, TestEngine};
use stepwell::{DataError, Engine};

use super::DAY;
use crate::kit::{self, audit, other_tenant, soon};

async fn engine() -> TestEngine {
    kit::start(|builder| builder).await.unwrap()
}

const SECOND: Duration = Duration::from_secs(1);

/// The keys of a namespace with this prefix.
async fn keys(engine: &Engine, namespace: &str, prefix: &str) -> Vec<String> {
    let list = KeyList { prefix: prefix.to_owned(), limit: Some(200), cursor: None };
    let page = engine.kv(namespace).list(list).await.unwrap();
    page.items.into_iter().map(|entry| entry.key).collect()
}

fn conflict(error: &DataError) -> (u64, bool) {
    match error {
        DataError::Conflict { revision, exists, .. } => (*revision, *exists),
        other => panic!("{other:?} is no conflict"),
    }
}

#[tokio::test]
async fn an_entry_has_value_type_revision_and_expiry() {
    let engine = engine().await;
    let kv = engine.kv("test");
    assert_eq!(kv.get("a").await.unwrap(), None);
    kv.set("a", Value::Null).await.unwrap();
    let entry = kv.get("a").await.unwrap().unwrap();
    assert_eq!((entry.value, entry.value_type, entry.revision), (Value::Null, ValueType::Json, 1));
    assert_eq!((entry.expires_at, entry.created_by_run), (None, None));
    assert_eq!((entry.created_at, entry.updated_at), (BEGINS, BEGINS));
    engine.advance(SECOND).await;
    let set = Set::new("text").value_type(ValueType::String).ttl(2 * SECOND);
    kv.set_with("a", set).await.unwrap();
    let entry = kv.get("a").await.unwrap().unwrap();
    assert_eq!(entry.parse::<String>().unwrap(), "text");
    assert_eq!(entry.parse::<i64>().unwrap_err().code(), "invalid");
    assert_eq!((entry.value_type, entry.revision), (ValueType::String, 2));
    assert_eq!(entry.expires_at, Some(BEGINS.plus_ms(3_000)));
    assert_eq!((entry.created_at, entry.updated_at), (BEGINS, BEGINS.plus_ms(1_000)));
}

/// A revision identifies one value of a key and is never used again.
#[tokio::test]
async fn revisions_start_at_1_and_are_never_reused() {
    let engine = engine().await;
    let kv = engine.kv("test");
    let written = kv.set("a", 1).await.unwrap();
    assert_eq!((written.revision, written.created), (1, true));
    let written = kv.set("a", 1).await.unwrap();
    assert_eq!((written.revision, written.created), (2, false), "the same value is a write too");
    assert!(kv.delete("a").await.unwrap());
    assert!(!kv.delete("a").await.unwrap());
    let written = kv.set_with("a", Set::new(1).ttl(SECOND)).await.unwrap();
    assert_eq!((written.revision, written.created), (4, true), "a delete counts, deleting nothing does not");
    engine.advance(SECOND).await;
    let written = kv.set_with("a", Set::new(1).ttl(SECOND)).await.unwrap();
    assert_eq!((written.revision, written.created), (5, true), "expiry is no write");
    engine.advance(3 * DAY).await;
    let sum = kv.increment("a", 1).await.unwrap();
    assert_eq!((sum.value, sum.revision), (1.into(), 6), "also after cleanup");
}

#[tokio::test]
async fn a_conditional_set_needs_the_current_revision() {
    let engine = engine().await;
    let kv = engine.kv("test");
    let at = |revision| Set::new(revision).if_revision(revision);
    assert_eq!(conflict(&kv.set_with("a", at(1)).await.unwrap_err()), (0, false), "N on an absent key");
    assert_eq!(kv.set_with("a", at(0)).await.unwrap().revision, 1);
    assert_eq!(conflict(&kv.set_with("a", at(0)).await.unwrap_err()), (1, true));
    assert_eq!(conflict(&kv.set_with("a", at(2)).await.unwrap_err()), (1, true));
    assert_eq!(kv.set_with("a", at(1)).await.unwrap().revision, 2);
    kv.delete("a").await.unwrap();
    assert_eq!(conflict(&kv.set_with("a", at(3)).await.unwrap_err()), (3, false), "nothing is at 3");
    assert_eq!(kv.set_with("a", at(0)).await.unwrap().revision, 4, "deleted is absent");
    kv.set_with("a", Set::new(1).ttl(SECOND)).await.unwrap();
    engine.advance(SECOND).await;
    assert_eq!(conflict(&kv.set_with("a", at(5)).await.unwrap_err()), (5, false), "expired is absent");
    let error = kv.set_with("a", at(5)).await.unwrap_err();
    assert_eq!(error.code(), "conflict");
    assert_eq!(kv.set_with("a", at(0)).await.unwrap().revision, 6);
}

#[tokio::test]
async fn a_set_without_a_ttl_clears_it_unless_kept() {
    let engine = engine().await;
    let kv = engine.kv("test");
    let ends = async |key: &str| kv.get(key).await.unwrap().unwrap().expires_at;
    kv.set_with("a", Set::new(1).ttl(10 * SECOND)).await.unwrap();
    engine.advance(SECOND).await;
    kv.set_with("a", Set::new(2).keep_ttl()).await.unwrap();
    assert_eq!(ends("a").await, Some(BEGINS.plus_ms(10_000)), "the original expiry, not a new one");
    kv.increment("a", 1).await.unwrap();
    assert_eq!(ends("a").await, Some(BEGINS.plus_ms(10_000)), "an increment keeps it");
    kv.set("a", 4).await.unwrap();
    assert_eq!(ends("a").await, None);
    kv.set_with("a", Set::new(5).keep_ttl()).await.unwrap();
    assert_eq!(ends("a").await, None);
    kv.set_with("b", Set::new(1).ttl(SECOND)).await.unwrap();
    engine.advance(SECOND).await;
    kv.set_with("b", Set::new(2).keep_ttl()).await.unwrap();
    assert_eq!(ends("b").await, None, "an expired key has no TTL to keep");
    let none = kv.set_with("c", Set::new(1).ttl(Duration::ZERO)).await.unwrap_err();
    assert!(matches!(none, DataError::Invalid(_)));
    assert_eq!(kv.get("c").await.unwrap(), None);
}

/// Expired keys look the same before and after cleanup.
#[tokio::test]
async fn an_expired_key_is_absent_on_every_path() {
    let engine = engine().await;
    let kv = engine.kv("test");
    for key in ["get", "set", "increment", "delete", "list"] {
        kv.set_with(key, Set::new(10).ttl(10 * SECOND)).await.unwrap();
    }
    let all = Namespace { namespace: "test".to_owned(), count: 5 };
    engine.advance(Duration::from_millis(9_999)).await;
    assert_eq!(kv.get("get").await.unwrap().unwrap().value, json!(10));
    assert_eq!(keys(&engine, "test", "").await.len(), 5);
    assert_eq!(engine.kv_namespaces(None, None).await.unwrap().items, [all]);
    engine.advance(Duration::from_millis(1)).await;
    assert_eq!(kv.get("get").await.unwrap(), None);
    assert_eq!(keys(&engine, "test", "").await, [""; 0]);
    assert_eq!(engine.kv_namespaces(None, None).await.unwrap().items, []);
    assert!(!kv.delete("delete").await.unwrap());
    let written = kv.set("set", 1).await.unwrap();
    assert_eq!((written.revision, written.created), (2, true));
    let sum = kv.increment("increment", 1).await.unwrap();
    assert_eq!((sum.value, sum.revision), (1.into(), 2), "the expired value is ignored");
    assert_eq!(kv.get("increment").await.unwrap().unwrap().expires_at, None);
    assert_eq!(keys(&engine, "test", "").await, ["increment", "set"]);
}

#[tokio::test]
async fn an_increment_of_an_absent_key_gives_initial_plus_by() {
    let engine = engine().await;
    let kv = engine.kv("test");
    let sum = kv.increment("a", 3).await.unwrap();
    assert_eq!((sum.value, sum.revision), (3.into(), 1));
    let more = || Increment::by(-2).initial(100);
    assert_eq!(kv.increment_with("b", more()).await.unwrap().value, 98.into());
    assert_eq!(kv.increment_with("b", more()).await.unwrap().value, 96.into());
    kv.delete("b").await.unwrap();
    assert_eq!(kv.increment_with("b", more()).await.unwrap().value, 98.into(), "also after a delete");
    assert_eq!(kv.increment("c", 0.5).await.unwrap().value.as_f64(), Some(0.5));
    assert_eq!(kv.increment("d", u64::MAX).await.unwrap().value, u64::MAX.into());
    assert_eq!(kv.increment("d", 1).await.unwrap_err().code(), "invalid", "it does not fit");
    assert_eq!(kv.get("d").await.unwrap().unwrap().value, json!(u64::MAX), "exact to 64 bits");
}

#[tokio::test]
async fn incrementing_a_non_number_is_refused() {
    let engine = engine().await;
    let kv = engine.kv("test");
    for value in [json!("1"), json!(null), json!([1]), json!({}), json!(true)] {
        kv.set_with("a", Set::new(&value).ttl(10 * SECOND)).await.unwrap();
        let before = kv.get("a").await.unwrap();
        let error = kv.increment("a", 1).await.unwrap_err();
        assert!(matches!(error, DataError::Invalid(_)), "{value}: {error:?}");
        assert_eq!(kv.get("a").await.unwrap(), before);
    }
    assert_eq!(audit(&engine).await.len(), 5, "refused writes are not audited");
}

#[tokio::test]
async fn concurrent_increments_are_all_counted() {
    let engine = engine().await;
    let kv = engine.kv("test");
    let sums = soon(join_all((0..40).map(|_| kv.increment("a", 1)))).await;
    let mut sums: Vec<_> = sums.into_iter().map(|sum| sum.unwrap().value.as_i64().unwrap()).collect();
    sums.sort_unstable();
    assert_eq!(sums, (1..=40).collect::<Vec<_>>());
    assert_eq!(kv.get("a").await.unwrap().unwrap().revision, 40);
}

#[tokio::test]
async fn only_one_concurrent_conditional_create_succeeds() {
    let engine = engine().await;
    let kv = engine.kv("test");
    let sets = (0..10).map(|at| kv.set_with("a", Set::new(at).if_revision(0)));
    let done = soon(join_all(sets)).await;
    assert_eq!(done.iter().filter(|done| done.is_ok()).count(), 1);
    assert!(done.iter().filter_map(|done| done.as_ref().err()).all(|error| error.code() == "conflict"));
    assert_eq!(kv.get("a").await.unwrap().unwrap().revision, 1);
}

#[tokio::test]
async fn a_prefix_is_matched_literally() {
    let engine = engine().await;
    let odd = ["a%b", "a_b", "a'b", "a\"b", "a\\b", "aéb", "a😀b", "a*b", "a?b", "a[b"];
    let kv = engine.kv("it's 100% _odd_ é");
    for key in odd.iter().copied().chain(["axb", "a", "ab", "A%b", "b%"]) {
        kv.set(key, 1).await.unwrap();
    }
    for key in odd {
        let prefix: String = key.chars().take(2).collect();
        assert_eq!(keys(&engine, kv.namespace(), &prefix).await, [key], "{prefix}");
        assert_eq!(kv.get(key).await.unwrap().unwrap().key, key);
    }
    assert_eq!(keys(&engine, kv.namespace(), "A").await, ["A%b"], "case counts");
    assert_eq!(keys(&engine, kv.namespace(), "%").await, [""; 0]);
    assert_eq!(keys(&engine, kv.namespace(), "").await.len(), 15);
    let namespaces = engine.kv_namespaces(None, None).await.unwrap().items;
    assert_eq!((namespaces[0].namespace.as_str(), namespaces[0].count), (kv.namespace(), 15));
}

#[tokio::test]
async fn a_listing_has_1_to_200_rows() {
    let engine = engine().await;
    let kv = engine.kv("test");
    let list = |limit| KeyList { limit, ..KeyList::default() };
    let set = |changes: Changes, at: usize| changes.set("test", format!("{at:03}"), at);
    engine.write((0..201).fold(Changes::new(), set)).await.unwrap();
    for limit in [0, 201, u32::MAX] {
        let error = kv.list(list(Some(limit))).await.unwrap_err();
        assert!(matches!(error, DataError::Invalid(_)), "{limit}: {error:?}");
        assert_eq!(engine.kv_namespaces(Some(limit), None).await.unwrap_err().code(), "invalid");
    }
    assert_eq!(kv.list(list(Some(200))).await.unwrap().items.len(), 200);
    assert_eq!(kv.list(list(Some(1))).await.unwrap().items.len(), 1);
    assert_eq!(kv.list(list(None)).await.unwrap().items.len(), 50);
}

#[tokio::test]
async fn a_cursor_keeps_its_position_while_keys_change() {
    let engine = engine().await;
    let kv = engine.kv("test");
    for key in ["b", "d", "f", "h", "other"] {
        kv.set(key, 1).await.unwrap();
    }
    let page = kv.list(KeyList { limit: Some(2), ..KeyList::default() }).await.unwrap();
    let names = |page: &stepwell::store::Page<stepwell::data::KeyEntry>| {
        page.items.iter().map(|entry| entry.key.clone()).collect::<Vec<_>>()
    };
    assert_eq!(names(&page), ["b", "d"]);
    // Changes behind the cursor do not move it, and changes ahead of it are seen.
    kv.set("a", 1).await.unwrap();
    kv.delete("d").await.unwrap();
    kv.delete("f").await.unwrap();
    kv.set("g", 1).await.unwrap();
    let list = KeyList { limit: Some(2), cursor: page.next, ..KeyList::default() };
    let page = kv.list(list).await.unwrap();
    assert_eq!(names(&page), ["g", "h"]);
    let page = kv.list(KeyList { limit: Some(2), cursor: page.next, ..KeyList::default() }).await.unwrap();
    assert_eq!((names(&page), page.next), (vec!["other".to_owned()], None));
    let bad = kv.list(KeyList { cursor: Some("no cursor of ours".to_owned()), ..KeyList::default() }).await;
    if let Err(error) = bad {
        assert_eq!(error.code(), "invalid", "{error:?}");
    }
}

#[tokio::test]
async fn namespaces_are_listed_with_their_live_key_count() {
    let engine = engine().await;
    for (namespace, key) in [("a", "1"), ("a", "2"), ("a", "3"), ("b", "1"), ("c", "1"), ("c", "2")] {
        engine.kv(namespace).set(key, 1).await.unwrap();
    }
    engine.kv("a").delete("1").await.unwrap();
    engine.kv("b").delete("1").await.unwrap();
    engine.kv("c").set_with("1", Set::new(1).ttl(SECOND)).await.unwrap();
    engine.state().workflow("w", "slot").set(&1).await.unwrap();
    let counts = async |limit, cursor| {
        let page = engine.kv_namespaces(limit, cursor).await.unwrap();
        let counts: Vec<_> = page.items.into_iter().map(|one| (one.namespace, one.count)).collect();
        (counts, page.next)
    };
    let named = |name: &str, count: u64| (name.to_owned(), count);
    assert_eq!(counts(None, None).await.0, [named("a", 2), named("c", 2)]);
    engine.advance(SECOND).await;
    let (first, next) = counts(Some(1), None).await;
    assert_eq!((first, next.is_some()), (vec![named("a", 2)], true));
    let (second, next) = counts(Some(1), next).await;
    assert_eq!((second, next), (vec![named("c", 1)], None));
    assert_eq!(engine.for_tenant(other_tenant()).kv_namespaces(None, None).await.unwrap().items, []);
}

#[tokio::test]
async fn a_key_and_a_namespace_have_1_to_256_characters() {
    let engine = engine().await;
    let long = |many: usize| "é".repeat(many);
    engine.kv(long(256)).set(&long(256), 1).await.unwrap();
    assert_eq!(keys(&engine, &long(256), "é").await, [long(256)]);
    for (namespace, key) in [(long(257), "k".to_owned()), (String::new(), "k".to_owned())] {
        assert_eq!(engine.kv(namespace).set(&key, 1).await.unwrap_err().code(), "invalid");
    }
    for key in [String::new(), long(257), "a\0".to_owned()] {
        assert_eq!(engine.kv("test").set(&key, 1).await.unwrap_err().code(), "invalid", "{key:?}");
        assert_eq!(engine.kv("test").increment(&key, 1).await.unwrap_err().code(), "invalid", "{key:?}");
    }
    assert_eq!(audit(&engine).await.len(), 1);
}

#[tokio::test]
async fn a_value_over_256_kib_is_refused() {
    let engine = engine().await;
    let kv = engine.kv("test");
    let most = Limits::default().cell_bytes as usize;
    let text = |bytes: usize| "x".repeat(bytes - 2);
    assert_eq!(most, 256 * 1_024);
    kv.set("a", text(most)).await.unwrap();
    let error = kv.set("a", text(most + 1)).await.unwrap_err();
    assert_eq!(error.code(), "invalid", "{error:?}");
    assert_eq!(kv.get("a").await.unwrap().unwrap().revision, 1);
    let changes = Changes::new().set("test", "first", 1).set("test", "b", text(most + 1));
    assert_eq!(engine.write(changes).await.unwrap_err().code(), "invalid");
    assert_eq!(kv.get("first").await.unwrap(), None);
    let (a, b) = (Entity::new("t", "1"), Entity::new("t", "2"));
    let link = |bytes: usize| NewLink::new(a.clone(), b.clone()).attributes(text(bytes));
    assert!(engine.links("test").upsert(link(most)).await.unwrap().created);
    assert_eq!(engine.links("test").upsert(link(most + 1)).await.unwrap_err().code(), "invalid");
    let slot = engine.state().workflow::<Value>("w", "a");
    slot.set(&json!([text(most - 2)])).await.unwrap();
    assert_eq!(slot.append(1).await.unwrap_err().code(), "invalid", "the resulting size counts");
}

#[tokio::test]
async fn the_value_size_limit_is_configurable() {
    let limits = Limits { cell_bytes: 10, ..Limits::default() };
    let store = kit::store_within(limits.clone()).await;
    let clock = stepwell::ManualClock::new(BEGINS);
    let build = |builder: stepwell::Builder| builder.with(|options| options.limits = limits);
    let engine = TestEngine::start_on(store, clock, build).await.unwrap();
    engine.kv("test").set("a", "12345678").await.unwrap();
    let error = engine.kv("test").set("a", "123456789").await.unwrap_err();
    assert!(error.to_string().contains("cell_bytes"), "{error}");
}

#[tokio::test]
async fn a_value_nested_too_deeply_is_refused() {
    let engine = engine().await;
    let deep = |levels: usize| (0..levels).fold(json!(1), |value, _| json!([value]));
    engine.kv("test").set("a", deep(64)).await.unwrap();
    assert_eq!(engine.kv("test").set("a", deep(65)).await.unwrap_err().code(), "invalid");
    assert_eq!(engine.kv("test").get("a").await.unwrap().unwrap().value, deep(64));
}

#[tokio::test]
async fn changes_are_one_commit_with_results_in_order() {
    let engine = engine().await;
    let thing = |id: &str| Entity::new("thing", id);
    let changes = Changes::new()
        .link("test", NewLink::new(thing("1"), thing("2")))
        .set("test", "a", 5)
        .increment("test", "a", Increment::by(2))
        .link("test", NewLink::new(thing("1"), thing("2")).attributes(json!({"b": 1})))
        .delete("test", "b")
        .check("test", "a", 2);
    let results = engine.write(changes).await.unwrap();
    let told: Vec<_> = results.iter().map(|result| (result.revision, result.created)).collect();
    assert_eq!(told, [(0, true), (1, true), (2, false), (0, false), (0, false), (2, false)]);
    assert_eq!(results[2].value, Some(json!(7)));
    assert_eq!(results[0].value, results[3].value, "the same link");
    let commits: Vec<_> = audit(&engine).await.into_iter().map(|(commit, _)| commit).collect();
    assert_eq!(commits.len(), 4);
    assert!(commits.iter().all(|commit| *commit == commits[0]), "one transaction");
    assert_eq!(engine.write(Changes::new()).await.unwrap(), [], "no changes give no results");
}

/// A transfer between two accounts is written completely or not at all.
#[tokio::test]
async fn a_failed_check_writes_nothing() {
    let engine = engine().await;
    let kv = engine.kv("account");
    kv.set("from", 100).await.unwrap();
    let thing = |id: &str| Entity::new("thing", id);
    let moved = |revision: u64| {
        Changes::new()
            .increment("account", "from", Increment::by(-10))
            .increment("account", "to", Increment::by(10))
            .link("account", NewLink::new(thing("from"), thing("to")))
            .check("account", "rate", revision)
            .once(format!("transfer at {revision}"))
    };
    let error = engine.write(moved(3)).await.unwrap_err();
    assert_eq!(conflict(&error), (0, false));
    assert!(error.to_string().contains("rate"), "{error}");
    assert_eq!(kv.get("from").await.unwrap().unwrap().revision, 1);
    assert_eq!(kv.get("to").await.unwrap(), None);
    let lookup = stepwell::data::Lookup::of(thing("from")).direction(Direction::Either);
    assert_eq!(engine.links("account").lookup(lookup).await.unwrap().items, []);
    assert_eq!(audit(&engine).await.len(), 1);
    let error = engine.write(moved(3)).await.unwrap_err();
    assert_eq!(conflict(&error), (0, false), "its key is not consumed");
    engine.write(moved(0)).await.unwrap();
    assert_eq!(kv.get("from").await.unwrap().unwrap().value, json!(90));
    assert_eq!(kv.get("rate").await.unwrap(), None, "a check writes nothing");
}

#[tokio::test]
async fn no_key_of_another_tenant_is_read_written_or_counted() {
    let engine = engine().await;
    let theirs = engine.for_tenant(other_tenant());
    engine.kv("test").set("a", "ours").await.unwrap();
    assert_eq!(theirs.kv("test").get("a").await.unwrap(), None);
    assert_eq!(keys(&theirs, "test", "").await, [""; 0]);
    assert!(!theirs.kv("test").delete("a").await.unwrap());
    assert_eq!(theirs.kv("test").set_with("a", Set::new(1).if_revision(0)).await.unwrap().revision, 1);
    assert_eq!(theirs.kv("test").increment("b", 1).await.unwrap().value, 1.into());
    assert_eq!(engine.kv("test").get("a").await.unwrap().unwrap().value, json!("ours"));
    assert_eq!(engine.kv("test").get("b").await.unwrap(), None);
}

#[tokio::test]
async fn a_key_with_an_expired_tombstone_counts_as_never_written() {
    let kept = 2 * 86_400_000;
    let build = |builder: stepwell::Builder| {
        builder.with(|options| options.tombstone_retention_ms.extend([("short".to_owned(), kept)]))
    };
    let engine = kit::start(build).await.unwrap();
    for namespace in ["short", "long"] {
        let kv = engine.kv(namespace);
        kv.set("a", 1).await.unwrap();
        kv.delete("a").await.unwrap();
        kv.set_with("b", Set::new(1).ttl(SECOND)).await.unwrap();
    }
    engine.advance(DAY).await;
    assert_eq!(engine.kv("short").set("a", 1).await.unwrap().revision, 3, "the tombstone still counts");
    engine.kv("short").delete("a").await.unwrap();
    engine.advance(6 * DAY).await;
    assert_eq!(engine.kv("short").set("a", 1).await.unwrap().revision, 1);
    assert_eq!(engine.kv("short").set("b", 1).await.unwrap().revision, 1);
    assert_eq!(engine.kv("long").set("a", 1).await.unwrap().revision, 3);
    assert_eq!(engine.kv("long").set("b", 1).await.unwrap().revision, 2);
}
