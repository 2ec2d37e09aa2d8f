//! Permissions on data: external callers need their own, and runs need those of the workflow's publisher.

use serde_json::{Value, json};
use stepwell::core::Definition;
use stepwell::core::spec::ActionSpec;
use stepwell::data::links::LinkListing;
use stepwell::data::{Changes, KeyList, Lookup, NewLink, Set};
use stepwell::engine::Builder;
use stepwell::store::{Entity, Status};
use stepwell::testing::TestEngine;
use stepwell::{ActionError, Actor, Cx, DataError, Engine, EngineError, Permission, Run, Start, new_run_id};

use super::{call, chain, tick, trail};
use crate::kit::{self, context, error_code, ground, status};
use crate::world::cell_key;

async fn engine() -> TestEngine {
    kit::start(|builder| builder).await.unwrap()
}

fn actor(permissions: impl IntoIterator<Item = Permission>) -> Actor {
    Actor::new("ada", permissions)
}

fn all_but(permission: Permission) -> Actor {
    actor(Permission::ALL.into_iter().filter(|one| *one != permission))
}

/// The permission that an error names as missing.
fn needs<T>(result: Result<T, DataError>) -> Option<Permission> {
    match result {
        Ok(_) => None,
        Err(DataError::Engine(EngineError::Denied { actor, permission })) => {
            assert_eq!(actor, "ada");
            Some(permission)
        }
        Err(other) => panic!("{other:?} is no denial"),
    }
}

fn task(id: &str) -> Entity {
    Entity::new("task", id)
}

/// The missing permission that each reading call reports.
async fn reads(engine: &Engine) -> Vec<Option<Permission>> {
    let (kv, links, state) = (engine.kv("n"), engine.links("n"), engine.state());
    let slot = state.workflow::<i64>("w", "a");
    vec![
        needs(kv.get("a").await),
        needs(kv.list(KeyList::default()).await),
        needs(kv.watch("a").map(drop)),
        needs(engine.kv_namespaces(None, None).await),
        needs(slot.get().await),
        needs(slot.watch().map(drop)),
        needs(state.execution::<i64>(new_run_id(), "a").get().await),
        needs(links.lookup(Lookup::of(task("1"))).await),
        needs(links.list(LinkListing::default(), None, None).await),
        needs(links.types(None, None).await),
        needs(links.relations(None, None).await),
        needs(engine.link_namespaces(None, None).await),
    ]
}

/// The missing permission that each writing call reports.
async fn writes(engine: &Engine) -> Vec<Option<Permission>> {
    let (kv, links, state) = (engine.kv("n"), engine.links("n"), engine.state());
    let run = new_run_id();
    let list = state.execution::<Value>(run, "list").initial(json!([1, 2]));
    let slot = state.workflow::<Value>("w", "a");
    vec![
        needs(kv.set("a", 1).await),
        needs(kv.set_with("a", Set::new(1)).await),
        needs(kv.increment("a", 1).await),
        needs(kv.delete("a").await),
        needs(engine.write(Changes::new().check("n", "none", 0)).await),
        needs(engine.write(Changes::new()).await),
        needs(slot.set(&json!(1)).await),
        needs(slot.increment(1).await),
        needs(slot.decrement(1).await),
        needs(slot.delete().await),
        needs(slot.merge(json!({"a": 1})).await),
        needs(list.append(1).await),
        needs(list.remove_first::<Value>().await),
        needs(list.remove_last::<Value>().await),
        needs(links.upsert(NewLink::new(task("1"), task("2"))).await),
        needs(links.delete(Some(task("1")), None, None).await),
    ]
}

#[tokio::test]
async fn every_read_needs_the_read_permission() {
    let engine = engine().await;
    let denied = engine.acting(all_but(Permission::Read));
    let all = reads(&denied).await;
    assert!(all.iter().all(|needed| *needed == Some(Permission::Read)), "{all:?}");
    let allowed = engine.acting(actor([Permission::Read]));
    let all = reads(&allowed).await;
    assert!(all.iter().all(Option::is_none), "{all:?}");
    let update = denied.state().workflow::<i64>("w", "a").update(|_| 1).await;
    assert_eq!(needs(update), Some(Permission::Read), "an update reads too");
    let error = denied.kv("n").get("a").await.unwrap_err();
    assert_eq!((error.code(), error.to_string().contains("workflow:read")), ("denied", true), "{error}");
}

#[tokio::test]
async fn every_write_needs_the_manage_permission() {
    let engine = engine().await;
    let denied = engine.acting(all_but(Permission::Manage));
    let all = writes(&denied).await;
    assert!(all.iter().all(|needed| *needed == Some(Permission::Manage)), "{all:?}");
    assert_eq!(needs(denied.state().workflow("w", "a").update(|_: Option<i64>| 1).await), {
        Some(Permission::Manage)
    });
    assert_eq!(trail(&engine).await, []);
    let allowed = engine.acting(actor([Permission::Manage]));
    let all = writes(&allowed).await;
    assert!(all.iter().all(Option::is_none), "{all:?}");
    let error = denied.kv("n").set("a", 1).await.unwrap_err();
    assert_eq!((error.code(), error.to_string().contains("workflow:manage")), ("denied", true), "{error}");
}

#[tokio::test]
async fn the_embedding_program_has_every_permission() {
    let engine = engine().await;
    assert!(reads(&engine).await.iter().chain(&writes(&engine).await).all(Option::is_none));
    assert_eq!(engine.actor(), None);
}

#[tokio::test]
async fn the_audit_trail_names_the_actor() {
    let engine = engine().await;
    engine.acting(actor(Permission::ALL)).kv("n").set("a", 1).await.unwrap();
    tick(&engine);
    engine.kv("n").set("a", 2).await.unwrap();
    tick(&engine);
    let named: Vec<_> = trail(&engine).await.into_iter().map(|row| row.actor).collect();
    assert_eq!(named, [Some("ada".to_owned()), None]);
    let slot = engine.acting(actor(Permission::ALL)).state().workflow::<i64>("w", "a");
    slot.update(|_| 1).await.unwrap();
    assert_eq!(trail(&engine).await.last().unwrap().actor.as_deref(), Some("ada"));
}

#[tokio::test]
async fn an_actor_keeps_its_permissions_in_another_tenant() {
    let engine = engine().await;
    let acting = engine.acting(actor([Permission::Read])).for_tenant(kit::other_tenant());
    assert_eq!(needs(acting.kv("n").set("a", 1).await), Some(Permission::Manage), "it is the same actor");
    assert_eq!(acting.actor().unwrap().id, "ada");
}

#[tokio::test]
async fn verifying_the_audit_trail_needs_the_admin_permission() {
    let engine = engine().await;
    let error = engine.acting(all_but(Permission::Admin)).verify_audit().await.unwrap_err();
    assert!(matches!(error, EngineError::Denied { permission: Permission::Admin, .. }));
    assert!(engine.acting(actor([Permission::Admin])).verify_audit().await.unwrap().is_sound());
}

#[tokio::test]
async fn registering_a_workflow_needs_the_publish_permission() {
    let engine = engine().await;
    let definition = chain("flow", vec![]);
    let error = engine.acting(all_but(Permission::Publish)).register(definition.clone()).unwrap_err();
    assert!(matches!(error, EngineError::Denied { permission: Permission::Publish, .. }));
    engine.acting(actor([Permission::Publish])).register(definition).unwrap();
}

/// Publishes a workflow with this one action as an actor, and runs it.
async fn published(engine: &TestEngine, name: &str, action: ActionSpec, by: Actor) -> Run {
    engine.acting(by).register(chain(name, vec![action])).unwrap();
    let run = engine.start(Start::new(name)).await.unwrap();
    engine.settle().await;
    run
}

fn write_actions() -> Vec<ActionSpec> {
    let (from, to) = (json!({"type": "t", "id": "1"}), json!({"type": "t", "id": "2"}));
    let key = json!({"namespace": "n", "key": "a"});
    let once = json!({"namespace": "n", "key": "a", "value": 1, "idempotency_key": "once"});
    vec![
        call("store.set", json!({"namespace": "n", "key": "a", "value": 1}), "out"),
        call("store.set", once, "out"),
        call("store.increment", key.clone(), "out"),
        call("store.delete", key, "out"),
        call("links.upsert", json!({"namespace": "n", "from": from, "to": to}), "out"),
        call("links.delete", json!({"namespace": "n", "from": from}), "out"),
    ]
}

fn read_actions() -> Vec<ActionSpec> {
    let (from, namespace) = (json!({"type": "t", "id": "1"}), json!({"namespace": "n"}));
    vec![
        call("store.get", json!({"namespace": "n", "key": "a"}), "out"),
        call("store.list", namespace.clone(), "out"),
        call("store.list_namespaces", json!({}), "out"),
        call("links.lookup", json!({"namespace": "n", "from": from}), "out"),
        call("links.list", namespace.clone(), "out"),
        call("links.list_namespaces", json!({}), "out"),
        call("links.list_types", namespace.clone(), "out"),
        call("links.list_relations", namespace, "out"),
    ]
}

#[tokio::test]
async fn write_actions_need_the_publishers_manage_permission() {
    let engine = engine().await;
    for (at, action) in write_actions().into_iter().enumerate() {
        let denied = all_but(Permission::Manage);
        let run = published(&engine, &format!("denied {at}"), action.clone(), denied).await;
        assert_eq!(error_code(&run).await.as_deref(), Some("denied"), "{}", action.name);
        assert_eq!(status(&run).await, Status::Failed);
    }
    assert_eq!(trail(&engine).await, [], "nothing is written");
    for (at, action) in write_actions().into_iter().enumerate() {
        let allowed = actor([Permission::Publish, Permission::Manage]);
        let run = published(&engine, &format!("allowed {at}"), action, allowed).await;
        assert_eq!((status(&run).await, error_code(&run).await), (Status::Waiting, None));
    }
    let rows = trail(&engine).await;
    assert!(rows.len() >= 5 && rows.iter().all(|row| row.actor.as_deref() == Some("ada")), "{rows:?}");
}

#[tokio::test]
async fn read_actions_need_the_publishers_read_permission() {
    let engine = engine().await;
    for (at, action) in read_actions().into_iter().enumerate() {
        let denied = all_but(Permission::Read);
        let run = published(&engine, &format!("denied {at}"), action.clone(), denied).await;
        assert_eq!(error_code(&run).await.as_deref(), Some("denied"), "{}", action.name);
        let allowed = actor([Permission::Publish, Permission::Read]);
        let run = published(&engine, &format!("allowed {at}"), action, allowed).await;
        assert_eq!((status(&run).await, error_code(&run).await), (Status::Waiting, None));
    }
}

/// Tries every data operation of an action and returns the codes of the refusals.
async fn attempts(cx: Cx) -> Result<Value, ActionError> {
    let slot = cx.workflow_scope::<i64>("a");
    let link = NewLink::new(task("1"), task("2"));
    let once = Changes::new().set("n", "once", 1).once("once");
    let code = |error: ActionError| error.failure().code.clone();
    let refused = [
        slot.set(&1).map_err(code),
        slot.increment(1).map_err(code),
        cx.execution::<i64>("a").delete().map_err(code),
        slot.update(|_| 1).await.map(drop).map_err(code),
        cx.kv("n").set("a", 1).map_err(code),
        cx.kv("n").delete("a").map_err(code),
        cx.links("n").upsert(link).map_err(code),
        cx.links("n").delete(Some(task("1")), None, None).map_err(code),
        cx.stage_changes(Changes::new().set("n", "a", 1)).map(drop).map_err(code),
        cx.write_once(once).await.map(drop).map_err(code),
        cx.write(crate::world::put("a", json!(1))).map_err(code),
    ];
    cx.session::<i64>("own").set(&1)?;
    Ok(json!(refused.map(Result::err)))
}

fn trying(builder: Builder) -> Builder {
    builder.action("attempts", attempts)
}

fn tried() -> Definition {
    chain("tried", vec![call("attempts", Value::Null, "out")])
}

#[tokio::test]
async fn every_write_of_an_action_needs_the_publishers_permission() {
    let engine = kit::start(trying).await.unwrap();
    engine.acting(all_but(Permission::Manage)).register(tried()).unwrap();
    let run = engine.start(Start::new("tried")).await.unwrap();
    engine.settle().await;
    assert_eq!(context(&run).await["out"], json!(vec!["denied"; 11]));
    assert_eq!(trail(&engine).await, []);
    let session = run.view().await.unwrap().snapshot.session().clone();
    assert_eq!(session.get("own"), Some(&json!(1)), "session slots need no permission");
}

#[tokio::test]
async fn every_read_of_an_action_needs_the_publishers_permission() {
    let look = |cx: Cx| async move {
        let code = |error: ActionError| error.failure().code.clone();
        let refused = [
            cx.workflow_scope::<i64>("a").get().await.map(drop).map_err(code),
            cx.execution::<i64>("a").update(|_| 1).await.map(drop).map_err(code),
            cx.kv("n").get("a").await.map(drop).map_err(code),
            cx.kv("n").list(KeyList::default()).await.map(drop).map_err(code),
            cx.links("n").lookup(Lookup::of(task("1"))).await.map(drop).map_err(code),
        ];
        Ok::<_, ActionError>(json!(refused.map(Result::err)))
    };
    let engine = kit::start(|builder| builder.action("look", look)).await.unwrap();
    let definition = chain("look", vec![call("look", Value::Null, "out")]);
    engine.acting(all_but(Permission::Read)).register(definition).unwrap();
    let run = engine.start(Start::new("look")).await.unwrap();
    engine.settle().await;
    assert_eq!(context(&run).await["out"], json!(vec!["denied"; 5]));
}

#[tokio::test]
async fn a_built_in_workflow_keeps_the_programs_permissions() {
    let engine = kit::start(|builder| trying(builder).workflow(tried())).await.unwrap();
    engine.acting(all_but(Permission::Manage)).register(tried()).unwrap();
    let run = engine.start(Start::new("tried")).await.unwrap();
    engine.settle().await;
    assert_eq!(context(&run).await["out"], json!(vec![Value::Null; 11]));
    assert!(trail(&engine).await.iter().all(|row| row.actor.is_none()));
}

#[test]
fn permissions_have_names_and_none_includes_another() {
    let names = [
        "workflow:view",
        "workflow:read",
        "workflow:manage",
        "workflow:publish",
        "workflow:answer",
        "workflow:admin",
    ];
    assert_eq!(Permission::ALL.map(Permission::as_str), names);
    for permission in Permission::ALL {
        assert_eq!(permission.as_str().parse::<Permission>().unwrap(), permission);
        let only = actor([permission]);
        assert!(Permission::ALL.iter().all(|one| only.may(*one) == (*one == permission)));
    }
    assert!("workflow:everything".parse::<Permission>().unwrap_err().contains("workflow:manage"));
}

/// The action reads a cell by its name.
#[tokio::test]
async fn reading_a_cell_needs_the_publishers_permission() {
    let look = |cx: Cx| async move { Ok::<_, ActionError>(cx.read(&cell_key("secret")).await?.is_some()) };
    let engine = kit::start(|builder| builder.action("look", look)).await.unwrap();
    engine.kv("test").set("secret", 1).await.unwrap();
    let definition = chain("look", vec![call("look", Value::Null, "out")]);
    engine.acting(all_but(Permission::Read)).register(definition).unwrap();
    let run = engine.start(Start::new("look")).await.unwrap();
    engine.settle().await;
    assert_eq!(error_code(&run).await.as_deref(), Some("denied"));
}

/// The process restarts, and the same actor publishes the same workflow again.
#[tokio::test]
async fn republishing_after_a_restart_keeps_the_permissions() {
    let (store, clock) = ground().await;
    let first = TestEngine::start_on(store.clone(), clock.clone(), trying).await.unwrap();
    first.acting(all_but(Permission::Manage)).register(tried()).unwrap();
    first.start(Start::new("tried")).await.unwrap();
    first.settle().await;
    first.stop(std::time::Duration::ZERO).await;
    drop(first);
    let second = TestEngine::start_on(store, clock, trying).await.unwrap();
    second.settle().await;
    second.acting(all_but(Permission::Manage)).register(tried()).unwrap();
    let run = second.start(Start::new("tried")).await.unwrap();
    second.settle().await;
    assert_eq!(context(&run).await["out"], json!(vec!["denied"; 11]));
}

/// Another process reads the definition from the store and continues the run.
#[tokio::test]
async fn publisher_permissions_apply_in_other_processes() {
    let (store, clock) = ground().await;
    let only_calls = |builder: Builder| trying(builder).with(|options| options.max_runs = 0);
    let first = TestEngine::start_on(store.clone(), clock.clone(), only_calls).await.unwrap();
    first.acting(all_but(Permission::Manage)).register(tried()).unwrap();
    let run = first.start(Start::new("tried")).await.unwrap().id();
    let second = TestEngine::start_on(store, clock, trying).await.unwrap();
    second.settle().await;
    let run = second.run(run);
    assert_eq!(status(&run).await, Status::Waiting);
    assert_eq!(context(&run).await["out"], json!(vec!["denied"; 11]));
}
