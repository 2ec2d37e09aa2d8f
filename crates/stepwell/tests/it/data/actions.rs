//! The data store as workflow actions: their schemas, and their results in the context after a commit.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use stepwell::core::schema::Schema;
use stepwell::core::spec::{ActionSpec, Transition};
use stepwell::core::{Definition, Spec};
use stepwell::data::{Changes, Increment, NewLink, Set};
use stepwell::engine::Builder;
use stepwell::store::{Entity, ResultPart, Status};
use stepwell::testing::{BEGINS, TestEngine};
use stepwell::{ActionError, Cx, Engine, Run, Start};

use super::{call, chain, run_of};
use crate::kit::{
    self, Fate, LEASE_MS, Watched, context, error_code, ground, places, settle, soon, start_killable, status,
};
use crate::world::job_spec;

const NAMES: [&str; 27] = [
    "document.get",
    "document.list",
    "document.put",
    "document.remove",
    "links.delete",
    "links.list",
    "links.list_namespaces",
    "links.list_relations",
    "links.list_types",
    "links.lookup",
    "links.upsert",
    "state.append",
    "state.decrement",
    "state.delete",
    "state.get",
    "state.increment",
    "state.merge",
    "state.remove_first",
    "state.remove_last",
    "state.set",
    "state.update",
    "store.delete",
    "store.get",
    "store.increment",
    "store.list",
    "store.list_namespaces",
    "store.set",
];

#[tokio::test]
async fn actions_are_listed_with_descriptions_and_schemas() {
    let engine = kit::start(|builder| builder).await.unwrap();
    let mut actions = engine.actions();
    let others = [
        "event.emit",
        "flow.sendOut",
        "flow.useStrategy",
        "log",
        "transform",
        "workflow.call",
        "workflow.signal",
        "workflow.start",
    ];
    let all: Vec<_> = actions.iter().map(|action| action.name.to_string()).collect();
    assert!(others.iter().all(|name| all.contains(&(*name).to_owned())));
    actions.retain(|action| !others.contains(&action.name.as_str()));
    assert_eq!(actions.iter().map(|action| action.name.as_str()).collect::<Vec<_>>(), NAMES);
    for action in actions {
        assert!(action.about.ends_with('.'), "{}", action.name);
        for schema in [&action.input, &action.output] {
            assert_eq!(schema["type"], "object", "{}", action.name);
            for (name, field) in schema["properties"].as_object().unwrap() {
                let says = field.get("description").is_some();
                assert!(says, "{}: `{name}` has no description", action.name);
                let is_snake = name.chars().all(|one| one.is_ascii_lowercase() || one == '_');
                assert!(is_snake, "{}: `{name}`", action.name);
            }
        }
        assert_eq!(action.input["additionalProperties"], false, "{}", action.name);
    }
}

/// The schemas of an action's input and output.
fn schemas(engine: &Engine, name: &str) -> (Schema, Schema) {
    let info = engine.actions().into_iter().find(|action| action.name.as_str() == name).unwrap();
    (Schema::compile(&info.input).unwrap(), Schema::compile(&info.output).unwrap())
}

/// Runs one action in a separate run, and checks its input and output against its schemas.
async fn done(engine: &TestEngine, name: &str, input: Value) -> Value {
    let (takes, gives) = schemas(engine, name);
    assert_eq!(takes.check(&input), [], "{name} takes {input}");
    let work = Transition::new("work", "a", "b").action_with(call(name, input, "out"));
    let spec = Spec::new(format!("does {name}")).step("a").wait("b", "GO").end("c").signal("GO");
    let version = engine.now().micros() as u32;
    let definition = spec.version(version).transition(work).auto("end", "b", "c").build().unwrap();
    engine.register(definition.clone()).unwrap();
    let run = engine.start(Start::new(definition.name().clone())).await.unwrap();
    engine.settle().await;
    assert_eq!((status(&run).await, error_code(&run).await), (Status::Waiting, None), "{name}");
    // Another definition with the same name is another workflow version.
    engine.clock().set(engine.now().plus_ms(1));
    let output = context(&run).await["out"].clone();
    assert_eq!(gives.check(&output), [], "{name} gives {output}");
    output
}

#[tokio::test]
async fn key_actions_match_their_schemas() {
    let engine = kit::start(|builder| builder).await.unwrap();
    let key = |key: &str| json!({"namespace": "n", "key": key});
    let nothing =
        json!({"found": false, "value": null, "value_type": null, "revision": null, "expires_at": null});
    assert_eq!(done(&engine, "store.get", key("a")).await, nothing);
    let set = json!({"namespace": "n", "key": "a", "value": null, "value_type": "string", "if_revision": 0});
    assert_eq!(done(&engine, "store.set", set).await, json!({"revision": 1, "created": true}));
    let got =
        json!({"found": true, "value": null, "value_type": "string", "revision": 1, "expires_at": null});
    assert_eq!(done(&engine, "store.get", key("a")).await, got, "null is a value");
    let ends = engine.now().plus_ms(1_500).to_string();
    let set = json!({"namespace": "n", "key": "a", "value": 5, "ttl_seconds": 1.5, "if_revision": 1});
    assert_eq!(done(&engine, "store.set", set).await, json!({"revision": 2, "created": false}));
    let keep = json!({"namespace": "n", "key": "a", "value": 6, "keep_ttl": true});
    assert_eq!(done(&engine, "store.set", keep).await, json!({"revision": 3, "created": false}));
    let got = json!({"found": true, "value": 6, "value_type": "json", "revision": 3, "expires_at": ends});
    assert_eq!(done(&engine, "store.get", key("a")).await, got);
    assert_eq!(done(&engine, "store.increment", key("b")).await, json!({"value": 1, "revision": 1}));
    let more = json!({"namespace": "n", "key": "c", "by": -2.5, "initial": 10});
    assert_eq!(done(&engine, "store.increment", more).await, json!({"value": 7.5, "revision": 1}));
    assert_eq!(done(&engine, "store.delete", key("c")).await, json!({"deleted": true}));
    assert_eq!(done(&engine, "store.delete", key("c")).await, json!({"deleted": false}));
    let list = done(&engine, "store.list", json!({"namespace": "n", "prefix": "", "limit": 1})).await;
    assert_eq!((&list["items"][0]["key"], &list["items"][0]["expires_at"]), (&json!("a"), &json!(ends)));
    let next = json!({"namespace": "n", "cursor": list["next_cursor"]});
    let list = done(&engine, "store.list", next).await;
    let item = &list["items"][0];
    assert_eq!(
        (&item["key"], &item["value"], &item["value_type"]),
        (&json!("b"), &json!(1), &json!("number"))
    );
    assert!(item["created_at"].is_string() && item["updated_at"].is_string());
    assert!(item["created_by_run"].is_string());
    assert_eq!((list["items"].as_array().unwrap().len(), list.get("next_cursor")), (1, None));
    let names = done(&engine, "store.list_namespaces", json!({})).await;
    let expected = json!({"namespaces": [{"namespace": "n", "key_count": 2}]});
    assert_eq!(names, expected);
}

#[tokio::test]
async fn link_actions_match_their_schemas() {
    let engine = kit::start(|builder| builder).await.unwrap();
    let thing = |kind: &str, id: &str| json!({"type": kind, "id": id});
    let (task, ticket) = (thing("task", "1"), thing("ticket", "7"));
    let link = json!({"namespace": "n", "from": task, "to": ticket, "attributes": {"a": 1}});
    let first = done(&engine, "links.upsert", link.clone()).await;
    let second = done(&engine, "links.upsert", link).await;
    assert_eq!((&first["created"], &second["created"]), (&json!(true), &json!(false)));
    assert_eq!(first["link_id"], second["link_id"]);
    let mirrors = json!({"namespace": "n", "from": task, "to": thing("task", "2"), "relation": "mirrors"});
    done(&engine, "links.upsert", mirrors).await;
    let matched = json!({"link_id": first["link_id"], "type": "ticket", "id": "7", "relation": "related",
        "attributes": {"a": 1}});
    let lookup = json!({"namespace": "n", "from": task, "to_type": "ticket"});
    let expected = json!({"matches": [matched]});
    assert_eq!(done(&engine, "links.lookup", lookup).await, expected);
    let back = json!({"namespace": "n", "from": ticket, "direction": "reverse", "relation": "related"});
    let found = done(&engine, "links.lookup", back).await;
    assert_eq!((&found["matches"][0]["type"], &found["matches"][0]["id"]), (&json!("task"), &json!("1")));
    let either = json!({"namespace": "n", "from": task, "direction": "either", "limit": 1});
    let page = done(&engine, "links.lookup", either).await;
    assert_eq!((page["matches"].as_array().unwrap().len(), page["next_cursor"].is_string()), (1, true));
    let list = done(&engine, "links.list", json!({"namespace": "n", "from_type": "task"})).await;
    assert_eq!(list["items"].as_array().unwrap().len(), 2);
    assert_eq!((&list["items"][0]["from"], &list["items"][0]["to"]["type"]), (&task, &json!("task")));
    assert!(list["items"][0]["created_by_run"].is_string());
    let named = |name: &str, count: u64| json!({"name": name, "count": count});
    let relations = done(&engine, "links.list_relations", json!({"namespace": "n"})).await;
    assert_eq!(relations["items"], json!([named("mirrors", 1), named("related", 1)]));
    let types = done(&engine, "links.list_types", json!({"namespace": " n "})).await;
    assert_eq!((&types["items"][0]["name"], &types["items"][1]["name"]), (&json!("task"), &json!("ticket")));
    let names = done(&engine, "links.list_namespaces", json!({"limit": 200})).await;
    assert_eq!(names["namespaces"], json!([{"namespace": "n", "link_count": 2}]));
    let delete = json!({"namespace": "n", "from": task, "relation": "mirrors"});
    assert_eq!(done(&engine, "links.delete", delete).await, json!({"deleted_count": 1}));
    let delete = json!({"namespace": "n", "to": ticket});
    assert_eq!(done(&engine, "links.delete", delete.clone()).await, json!({"deleted_count": 1}));
    assert_eq!(done(&engine, "links.delete", delete).await, json!({"deleted_count": 0}));
}

/// The error code of a run that fails with this action and input.
async fn refused(engine: &TestEngine, name: &str, input: Value, edition: u32) -> Option<String> {
    let work = Transition::new("work", "a", "b").action_with(call(name, input, "out"));
    let spec = Spec::new("refused").step("a").end("b").version(edition);
    engine.register(spec.transition(work).build().unwrap()).unwrap();
    let run = engine.start(Start::new("refused")).await.unwrap();
    engine.settle().await;
    error_code(&run).await
}

#[tokio::test]
async fn an_input_outside_its_schema_fails_the_action() {
    let engine = kit::start(|builder| builder).await.unwrap();
    let bad = [
        ("store.get", json!({"namespace": "n"}), "invalidInput"),
        ("store.get", json!({"namespace": "n", "key": "a", "kee": 1}), "invalidInput"),
        ("store.set", json!({"namespace": "n", "key": "a"}), "invalidInput"),
        ("store.set", json!({"namespace": "n", "key": "a", "value": 1, "ttlSeconds": 1}), "invalidInput"),
        (
            "store.set",
            json!({"namespace": "n", "key": "a", "value": 1, "value_type": "text"}),
            "invalidInput",
        ),
        ("store.increment", json!({"namespace": "n", "key": "a", "by": "1"}), "invalidInput"),
        ("links.lookup", json!({"namespace": "n", "from": {"type": "t"}}), "invalidInput"),
        ("links.upsert", json!({"namespace": "n", "from": {"type": "t", "id": "1"}}), "invalidInput"),
    ];
    for (edition, (name, input, code)) in (1..).zip(bad) {
        assert!(!schemas(&engine, name).0.fits(&input), "its schema refuses it too: {name} {input}");
        assert_eq!(refused(&engine, name, input.clone(), edition).await.as_deref(), Some(code), "{input}");
    }
    assert_eq!(engine.kv_namespaces(None, None).await.unwrap().items, []);
}

#[tokio::test]
async fn an_impossible_request_fails_the_action_and_writes_nothing() {
    let engine = kit::start(|builder| builder).await.unwrap();
    let set = |more: Value| {
        let mut input = json!({"namespace": "n", "key": "a", "value": 1});
        input.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        ("store.set", input)
    };
    let bad = [
        set(json!({"ttl_seconds": 0})),
        set(json!({"ttl_seconds": -1})),
        set(json!({"ttl_seconds": 1, "keep_ttl": true})),
        set(json!({"idempotency_key": ""})),
        set(json!({"key": ""})),
        ("store.list", json!({"namespace": "n", "limit": 0})),
        ("store.list", json!({"namespace": "n", "limit": 201})),
        ("store.list_namespaces", json!({"limit": 201})),
        ("links.delete", json!({"namespace": "n"})),
        ("links.lookup", json!({"namespace": "n", "from": {"type": "t", "id": "1"}, "limit": 0})),
    ];
    for (edition, (name, input)) in (1..).zip(bad) {
        assert!(refused(&engine, name, input.clone(), edition).await.is_some(), "{name} {input}");
    }
    assert_eq!(engine.kv_namespaces(None, None).await.unwrap().items, []);
}

#[tokio::test]
async fn lookups_accept_left_type_and_right_type() {
    let task = json!({"type": "task", "id": "1"});
    let link = |kind: &str| {
        let to = json!({"type": kind, "id": "7"});
        call("links.upsert", json!({"namespace": "n", "from": task, "to": to}), "linked")
    };
    let lookup = json!({"namespace": "n", "from": task, "right_type": "ticket"});
    let list = json!({"namespace": "n", "left_type": "task", "right_type": "note"});
    let actions = vec![
        link("ticket"),
        link("note"),
        call("links.lookup", lookup, "found"),
        call("links.list", list, "listed"),
    ];
    let (_engine, run) = run_of(chain("spelt", actions), &json!({})).await;
    let context = context(&run).await;
    assert_eq!(context["found"]["matches"].as_array().unwrap().len(), 1);
    assert_eq!(context["found"]["matches"][0]["type"], "ticket");
    assert_eq!(context["listed"]["items"].as_array().unwrap().len(), 1);
}

/// The actions that write, each with its input and its first result.
fn writers() -> Vec<(ActionSpec, Value)> {
    let (from, to) = (json!({"type": "t", "id": "1"}), json!({"type": "t", "id": "2"}));
    let key = |key: &str| json!({"namespace": "n", "key": key});
    vec![
        (call("store.increment", key("count"), "out"), json!({"value": 6, "revision": 2})),
        (
            call("store.set", json!({"namespace": "n", "key": "count", "value": 9}), "out"),
            json!({"revision": 2, "created": false}),
        ),
        (call("store.delete", key("count"), "out"), json!({"deleted": true})),
        (
            call("links.upsert", json!({"namespace": "n", "from": from, "to": to, "relation": "new"}), "out"),
            json!({"created": true}),
        ),
        (call("links.delete", json!({"namespace": "n", "from": from}), "out"), json!({"deleted_count": 2})),
    ]
}

/// Creates the data that the writing actions expect.
async fn prepare(engine: &Engine) {
    let thing = |id: &str| Entity::new("t", id);
    let changes = Changes::new()
        .set("n", "count", 5)
        .link("n", NewLink::new(thing("1"), thing("2")))
        .link("n", NewLink::new(thing("1"), thing("3")));
    engine.write(changes).await.unwrap();
}

fn has_all(output: &Value, expected: &Value) -> bool {
    expected.as_object().unwrap().iter().all(|(name, value)| output[name] == *value)
}

#[tokio::test]
async fn a_write_result_is_in_the_context_after_its_commit() {
    for (action, expected) in writers() {
        let definition = chain("fills", vec![action.clone()]);
        let engine = kit::start(|builder| builder.workflow(definition)).await.unwrap();
        prepare(&engine).await;
        let run = engine.start(Start::new("fills")).await.unwrap();
        engine.settle().await;
        assert_eq!((status(&run).await, error_code(&run).await), (Status::Waiting, None), "{action:?}");
        let output = context(&run).await["out"].clone();
        assert!(has_all(&output, &expected), "{}: {output}", action.name);
        if action.name.as_str() == "links.upsert" {
            let rows = engine.links("n").list(Default::default(), None, None).await.unwrap().items;
            let new = rows.iter().find(|link| link.edge.relation() == "new").unwrap();
            assert_eq!(output["link_id"], json!(new.id.to_string()));
        }
    }
}

#[tokio::test]
async fn a_write_result_is_in_the_output_of_the_run_it_ends() {
    for (action, expected) in writers() {
        let work = Transition::new("work", "a", "b").action_with(action.clone());
        let output = json!({"came": {"$expr": "context.out"}});
        let spec = Spec::new("ends").step("a").end_with("b", output).transition(work);
        let engine = kit::start(|builder| builder.workflow(spec.build().unwrap())).await.unwrap();
        prepare(&engine).await;
        let run = engine.start(Start::new("ends")).await.unwrap();
        let result = soon(run.result()).await.unwrap();
        assert!(has_all(&result["came"], &expected), "{}: {result}", action.name);
        assert_eq!(context(&run).await["out"], result["came"]);
        if action.name.as_str() == "links.upsert" {
            let rows = engine.links("n").list(Default::default(), None, None).await.unwrap().items;
            let new = rows.iter().find(|link| link.edge.relation() == "new").unwrap();
            assert_eq!(result["came"]["link_id"], json!(new.id.to_string()));
        }
    }
}

#[tokio::test]
async fn writes_that_find_nothing_report_their_result() {
    let (from, key) = (json!({"type": "t", "id": "1"}), json!({"namespace": "n", "key": "a"}));
    let none = [
        (call("store.delete", key.clone(), "out"), json!({"deleted": false})),
        (call("store.increment", key, "out"), json!({"value": 1, "revision": 1})),
        (call("links.delete", json!({"namespace": "n", "to": from}), "out"), json!({"deleted_count": 0})),
    ];
    for (action, expected) in none {
        let work = Transition::new("work", "a", "b").action_with(action.clone());
        let ends = Spec::new("ends").step("a").end_with("b", json!({"$expr": "context.out"}));
        let (_engine, run) = run_of(ends.transition(work).build().unwrap(), &json!({})).await;
        assert_eq!(soon(run.result()).await.unwrap(), expected, "{}", action.name);
        let (_engine, run) = run_of(chain("fills", vec![action.clone()]), &json!({})).await;
        assert_eq!(context(&run).await["out"], expected, "{}", action.name);
    }
}

/// A lottery in which every third visitor wins.
fn lottery() -> Definition {
    let count = call("store.increment", json!({"namespace": "n", "key": "visitors"}), "visit");
    Spec::new("lottery")
        .step("a")
        .step("b")
        .wait("won", "GO")
        .wait("lost", "GO")
        .signal("GO")
        .end("end")
        .initial("a")
        .transition(Transition::new("count", "a", "b").action_with(count))
        .transition(Transition::new("win", "b", "won").when("context.visit.value % 3 = 0"))
        .transition(Transition::new("lose", "b", "lost").when("context.visit.value % 3 != 0"))
        .auto("w", "won", "end")
        .auto("l", "lost", "end")
        .build()
        .unwrap()
}

#[tokio::test]
async fn a_guard_after_a_write_reads_its_result() {
    let engine = kit::start(|builder| builder.workflow(lottery())).await.unwrap();
    for visitor in 1..=6 {
        let run = engine.start(Start::new("lottery")).await.unwrap();
        engine.settle().await;
        let place = if visitor % 3 == 0 { "won" } else { "lost" };
        assert_eq!((places(&run).await, status(&run).await), (vec![place.into()], Status::Waiting));
        assert_eq!(context(&run).await["visit"], json!({"value": visitor, "revision": visitor}));
    }
}

async fn values(runs: &[Run]) -> Vec<i64> {
    let mut values = Vec::new();
    for run in runs {
        assert_eq!(error_code(run).await, None);
        values.push(context(run).await["visit"]["value"].as_i64().unwrap());
    }
    values.sort_unstable();
    values
}

#[tokio::test]
async fn concurrent_runs_each_read_their_own_write_result() {
    let (store, clock) = ground().await;
    let build = || |builder: Builder| builder.workflow(lottery());
    let here = TestEngine::start_on(store.clone(), clock.clone(), build()).await.unwrap();
    let there = TestEngine::start_on(store, clock, build()).await.unwrap();
    let starts = (0..12).map(|at| {
        let engine = if at % 2 == 0 { here.engine() } else { there.engine() };
        engine.start(Start::new("lottery"))
    });
    let runs: Vec<_> =
        soon(futures_util::future::join_all(starts)).await.into_iter().map(Result::unwrap).collect();
    settle(&[&here, &there]).await;
    assert_eq!(values(&runs).await, (1..=12).collect::<Vec<_>>());
    let mut won = 0;
    for run in &runs {
        let is_third = context(run).await["visit"]["value"].as_i64().unwrap() % 3 == 0;
        assert_eq!(places(run).await, [if is_third { "won" } else { "lost" }]);
        won += usize::from(is_third);
    }
    assert_eq!(won, 4);
}

/// An action that increments a key and returns the sum. Another writer increments the key before its commit.
fn crossed(
    store: &Arc<Watched>,
    other: &Engine,
) -> impl Fn(Cx) -> stepwell::host::BoxFuture<Result<Value, ActionError>> + Send + Sync + use<> {
    let (store, other) = (store.clone(), other.clone());
    let calls = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    move |cx: Cx| {
        let (store, other, calls) = (store.clone(), other.clone(), calls.clone());
        Box::pin(async move {
            let ops = cx.stage_changes(Changes::new().increment("n", "sum", Increment::by(1)))?;
            cx.bind_result(ops[0], ResultPart::Value, "/value")?;
            if calls.fetch_add(1, std::sync::atomic::Ordering::SeqCst) == 0 {
                store.first(async move { _ = other.kv("n").increment("sum", 10).await.unwrap() });
            }
            Ok(json!({"value": 0}))
        })
    }
}

async fn crossing(definition: Definition) -> (TestEngine, Run) {
    let (inner, clock) = ground().await;
    let store = Watched::new(inner.clone());
    let other = TestEngine::start_on(inner, clock.clone(), |builder| builder).await.unwrap();
    let act = crossed(&store, &other);
    let name = definition.name().clone();
    let build = |builder: Builder| builder.workflow(definition).action("work", act);
    let engine = TestEngine::start_on(store, clock, build).await.unwrap();
    let run = engine.start(Start::new(name)).await.unwrap();
    engine.advance(Duration::from_secs(1)).await;
    assert_eq!(engine.kv("n").get("sum").await.unwrap().unwrap().value, json!(11));
    (engine, run)
}

#[tokio::test]
async fn a_result_binding_has_the_value_at_the_commit() {
    let (_engine, run) = crossing(chain("fills", vec![call("work", Value::Null, "out")])).await;
    assert_eq!(context(&run).await, json!({"out": {"value": 11}}));
}

#[tokio::test]
async fn a_lost_update_reruns_an_action_that_ends_the_run() {
    let (inner, clock) = ground().await;
    let store = Watched::new(inner.clone());
    let other = TestEngine::start_on(inner, clock.clone(), |builder| builder).await.unwrap();
    let (watched, theirs) = (store.clone(), other.state().workflow::<i64>("job", "slot"));
    let act = move |cx: Cx| {
        let (store, theirs) = (watched.clone(), theirs.clone());
        async move {
            let slot = cx.workflow_scope::<i64>("slot");
            if slot.update(|value| value.unwrap_or_default() + 1).await? == 1 {
                store.first(async move { _ = theirs.set(&100).await.unwrap() });
            }
            let ops = cx.stage_changes(Changes::new().increment("n", "sum", Increment::by(1)))?;
            cx.bind_result(ops[0], ResultPart::Value, "/value")?;
            Ok::<_, ActionError>(json!({"value": 0}))
        }
    };
    let work = call("work", Value::Null, "out");
    let spec = job_spec(|transition| transition.action_with(work));
    let build = |builder: Builder| builder.workflow(spec.build().unwrap()).action("work", act);
    let engine = TestEngine::start_on(store, clock, build).await.unwrap();
    let run = engine.start(Start::new("job")).await.unwrap();
    engine.advance(Duration::from_secs(1)).await;
    assert_eq!((status(&run).await, error_code(&run).await), (Status::Completed, None));
    let slot = engine.state().workflow::<i64>("job", "slot");
    assert_eq!((slot.get().await.unwrap(), context(&run).await), (Some(101), json!({"out": {"value": 1}})));
}

#[tokio::test]
async fn a_loop_that_adds_five_times_adds_five() {
    let add = |key: Value| call("store.increment", json!({"namespace": "n", "key": key}), "count");
    let definition = Spec::new("loop")
        .step("a")
        .step("b")
        .end_with("c", json!({"$expr": "context.count.value"}))
        .transition(Transition::new("add", "a", "b").action_with(add(json!({"$expr": "context.key"}))))
        .transition(Transition::new("again", "b", "a").when("context.count.value < 5"))
        .transition(Transition::new("enough", "b", "c").when("context.count.value >= 5"))
        .build()
        .unwrap();
    let (engine, run) = run_of(definition, &json!({"key": "five"})).await;
    assert_eq!(soon(run.result()).await.unwrap(), json!(5));
    let entry = engine.kv("n").get("five").await.unwrap().unwrap();
    assert_eq!((entry.value, entry.revision), (json!(5), 5));
}

#[tokio::test]
async fn a_write_result_survives_a_lost_commit_answer() {
    let (inner, clock) = ground().await;
    let store = Watched::new(inner.clone());
    let (first, tasks) = start_killable(store.clone(), &clock, |builder| builder.workflow(lottery())).await;
    store.rule(|commit| if commit.cells.is_empty() { Fate::Arrives } else { Fate::AnswerLost });
    let run = first.start(Start::new("lottery")).await.unwrap();
    first.advance(Duration::from_secs(1)).await;
    assert_eq!(context(&run).await["visit"], json!({"value": 1, "revision": 1}));
    assert_eq!(places(&run).await, ["lost"]);
    // The same when the process crashes afterwards.
    let mut is_dead = false;
    store.rule(move |commit| {
        let was_dead = is_dead;
        is_dead |= !commit.cells.is_empty();
        if was_dead { Fate::Hangs } else { Fate::Arrives }
    });
    let run = first.start(Start::new("lottery")).await.unwrap().id();
    first.settle().await;
    tasks.kill().await;
    let (second, _tasks) = start_killable(inner, &clock, |builder| builder.workflow(lottery())).await;
    second.advance(Duration::from_millis(2 * LEASE_MS)).await;
    let run = second.run(run);
    assert_eq!(context(&run).await["visit"], json!({"value": 2, "revision": 2}));
    assert_eq!((places(&run).await, status(&run).await), (vec!["lost".into()], Status::Waiting));
}

#[tokio::test]
async fn a_field_name_may_contain_any_character() {
    let actions = ["a/b~c", "ö \"'", "~1"]
        .map(|field| call("store.increment", json!({"namespace": "n", "key": "count"}), field));
    let (_engine, run) = run_of(chain("fields", actions.to_vec()), &json!({})).await;
    let context = context(&run).await;
    for (revision, field) in [(1, "a/b~c"), (2, "ö \"'"), (3, "~1")] {
        assert_eq!(context[field]["revision"], json!(revision), "{context}");
    }
}

#[tokio::test]
async fn a_write_whose_output_is_not_saved_still_happens() {
    let input = json!({"namespace": "n", "key": "count"});
    let action = ActionSpec { name: "store.increment".into(), input, save_as: None, version: None };
    let work = Transition::new("work", "a", "b").action_with(action);
    let ends = Spec::new("ends").step("a").end("b").transition(work).build().unwrap();
    let (engine, run) = run_of(ends, &json!({})).await;
    assert_eq!((status(&run).await, context(&run).await), (Status::Completed, json!({})));
    assert_eq!(engine.kv("n").get("count").await.unwrap().unwrap().value, json!(1));
}

#[tokio::test]
async fn a_result_binding_to_a_missing_path_fails_the_action() {
    let act = |cx: Cx| async move {
        let ops = cx.stage_changes(Changes::new().increment("n", "sum", Increment::by(1)))?;
        cx.bind_result(ops[0], ResultPart::Value, "/deep/value")?;
        Ok::<_, ActionError>(json!({"value": 0}))
    };
    let definition = chain("fills", vec![call("work", Value::Null, "out")]);
    let build = |builder: Builder| builder.workflow(definition).action("work", act);
    let engine = kit::start(build).await.unwrap();
    let run = engine.start(Start::new("fills")).await.unwrap();
    engine.settle().await;
    assert_eq!((status(&run).await, error_code(&run).await.as_deref()), (Status::Failed, Some("refused")));
    assert_eq!(engine.kv("n").get("sum").await.unwrap(), None);
}

#[tokio::test]
async fn an_action_reads_expired_keys_as_absent() {
    let get = || call("store.get", json!({"namespace": "n", "key": "a"}), "got");
    let spec = |name: &str| chain(name, vec![get()]);
    let engine = kit::start(|builder| builder.workflow(spec("reads"))).await.unwrap();
    let ttl = Duration::from_secs(10);
    engine.kv("n").set_with("a", Set::new(1).ttl(ttl)).await.unwrap();
    for (seconds, found) in [(9, true), (1, false)] {
        engine.advance(Duration::from_secs(seconds)).await;
        let run = engine.start(Start::new("reads")).await.unwrap();
        engine.settle().await;
        assert_eq!(context(&run).await["got"]["found"], json!(found));
    }
    assert_eq!(engine.now(), BEGINS.plus_ms(10_000));
}

#[tokio::test]
async fn a_program_can_replace_a_built_in_action() {
    let own = |_: Cx| async { Ok::<_, ActionError>(json!({"found": "by us"})) };
    let definition = chain("own", vec![call("store.get", Value::Null, "got")]);
    let build = |builder: Builder| builder.workflow(definition).action("store.get", own);
    let engine = kit::start(build).await.unwrap();
    let run = engine.start(Start::new("own")).await.unwrap();
    engine.settle().await;
    assert_eq!(context(&run).await, json!({"got": {"found": "by us"}}));
}

fn number() -> Definition {
    let count = call("store.increment", json!({"namespace": "n", "key": "visitors"}), "visit");
    let ends = json!({"$expr": "context.visit.value"});
    let work = Transition::new("work", "a", "b").action_with(count);
    Spec::new("number").step("a").end_with("b", ends).transition(work).build().unwrap()
}

/// The end's output contains the sum, so the engine predicts it. A wrong prediction must not be stored.
#[tokio::test]
async fn a_wrong_prediction_is_not_stored_when_a_run_ends() {
    let work = Transition::new("work", "a", "b").action_with(call("work", Value::Null, "out"));
    let ends = Spec::new("ends").step("a").end_with("b", json!({"$expr": "context.out.value"}));
    let (_engine, run) = crossing(ends.transition(work).build().unwrap()).await;
    assert_eq!((status(&run).await, error_code(&run).await), (Status::Completed, None));
    assert_eq!(soon(run.result()).await.unwrap(), json!(11));
}

#[tokio::test]
async fn a_wrong_revision_is_a_conflict_also_in_the_last_step() {
    let input = json!({"namespace": "n", "key": "a", "value": 1, "if_revision": 7});
    let (_engine, run) = run_of(chain("on", vec![call("store.set", input.clone(), "out")]), &json!({})).await;
    assert_eq!(error_code(&run).await.as_deref(), Some("conflict"));
    let work = Transition::new("work", "a", "b").action_with(call("store.set", input, "out"));
    let ends = Spec::new("ends").step("a").end("b").transition(work).build().unwrap();
    let (_engine, run) = run_of(ends, &json!({})).await;
    assert_eq!(error_code(&run).await.as_deref(), Some("conflict"), "also in the last step");
}

/// Another writer changes the slot while the action runs, before the result is predicted.
#[tokio::test]
async fn an_update_lost_before_the_prediction_reruns_the_action() {
    let (store, clock) = ground().await;
    let other = TestEngine::start_on(store.clone(), clock.clone(), |builder| builder).await.unwrap();
    let theirs = other.state().workflow::<i64>("job", "slot");
    let act = move |cx: Cx| {
        let theirs = theirs.clone();
        async move {
            if cx.workflow_scope::<i64>("slot").update(|value| value.unwrap_or_default() + 1).await? == 1 {
                theirs.set(&100).await?;
            }
            let ops = cx.stage_changes(Changes::new().increment("n", "sum", Increment::by(1)))?;
            cx.bind_result(ops[0], ResultPart::Value, "/value")?;
            Ok::<_, ActionError>(json!({"value": 0}))
        }
    };
    let spec = job_spec(|transition| transition.action_with(call("work", Value::Null, "out")));
    let build = |builder: Builder| builder.workflow(spec.build().unwrap()).action("work", act);
    let engine = TestEngine::start_on(store, clock, build).await.unwrap();
    let run = engine.start(Start::new("job")).await.unwrap();
    engine.advance(Duration::from_secs(1)).await;
    assert_eq!((status(&run).await, error_code(&run).await), (Status::Completed, None));
    let slot = engine.state().workflow::<i64>("job", "slot");
    assert_eq!((slot.get().await.unwrap(), context(&run).await), (Some(101), json!({"out": {"value": 1}})));
}

#[tokio::test]
async fn concurrent_runs_end_with_distinct_numbers() {
    let (store, clock) = ground().await;
    let build = || |builder: Builder| builder.workflow(number());
    let here = TestEngine::start_on(store.clone(), clock.clone(), build()).await.unwrap();
    let there = TestEngine::start_on(store, clock, build()).await.unwrap();
    let starts = (0..12).map(|at| {
        let engine = if at % 2 == 0 { here.engine() } else { there.engine() };
        engine.start(Start::new("number"))
    });
    let runs: Vec<_> =
        soon(futures_util::future::join_all(starts)).await.into_iter().map(Result::unwrap).collect();
    for _ in 0..10 {
        settle(&[&here, &there]).await;
        here.advance(Duration::from_millis(100)).await;
    }
    assert_eq!(values(&runs).await, (1..=12).collect::<Vec<_>>());
    for run in &runs {
        let value = context(run).await["visit"]["value"].clone();
        assert_eq!(soon(run.result()).await.unwrap(), value);
    }
}
