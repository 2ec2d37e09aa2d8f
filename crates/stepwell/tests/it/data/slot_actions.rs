//! Slots and documents as workflow actions.

use std::time::Duration;

use serde_json::{Value, json};
use stepwell::core::Spec;
use stepwell::core::spec::Transition;
use stepwell::store::Status;
use stepwell::{Start, check_calls};

use super::{call, chain, run_of};
use crate::kit::{self, context, error_code, status};

/// Runs these actions in order in one run, and returns the output of each.
async fn outputs(actions: Vec<(&str, Value)>) -> Vec<Value> {
    let last = actions.len();
    let fields = (0..last).map(|at| format!("out{at}"));
    let calls = actions.into_iter().zip(fields).map(|((name, input), field)| call(name, input, &field));
    let (_engine, run) = run_of(chain("outputs", calls.collect()), &json!({})).await;
    assert_eq!((status(&run).await, error_code(&run).await), (Status::Waiting, None));
    let context = context(&run).await;
    (0..last).map(|at| context[format!("out{at}")].clone()).collect()
}

/// The operations on a slot in one scope, and the output of each without its revision.
fn operations(scope: &str) -> Vec<(&'static str, Value, Value)> {
    let on = |key: &str, more: Value| {
        let mut input = json!({"scope": scope, "key": key});
        input.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        input
    };
    vec![
        ("state.get", on("n", json!({})), json!({"found": false, "value": null})),
        ("state.get", on("n", json!({"initial": 5})), json!({"found": true, "value": 5})),
        ("state.increment", on("n", json!({"initial": 5})), json!({"value": 6})),
        ("state.decrement", on("n", json!({"by": 2.5})), json!({"value": 3.5})),
        ("state.set", on("n", json!({"value": {"a": 1}})), json!({"created": false})),
        ("state.merge", on("n", json!({"fields": {"b": 2}})), json!({"created": false})),
        ("state.get", on("n", json!({})), json!({"found": true, "value": {"a": 1, "b": 2}})),
        (
            "state.update",
            on("n", json!({"expression": "value.a + args.x", "args": {"x": 10}})),
            json!({"value": 11}),
        ),
        ("state.delete", on("n", json!({})), json!({"deleted": true})),
        ("state.delete", on("n", json!({})), json!({"deleted": false})),
        ("state.append", on("l", json!({"item": "one"})), json!({"created": true})),
        ("state.append", on("l", json!({"item": null})), json!({"created": false})),
        ("state.append", on("l", json!({"item": 3})), json!({"created": false})),
        ("state.remove_last", on("l", json!({})), json!({"found": true, "item": 3})),
        ("state.remove_first", on("l", json!({})), json!({"found": true, "item": "one"})),
        ("state.remove_first", on("l", json!({})), json!({"found": true, "item": null})),
        ("state.remove_first", on("l", json!({})), json!({"found": false, "item": null})),
        ("state.append", on("m", json!({"item": 2, "initial": [1]})), json!({"created": true})),
        ("state.get", on("m", json!({})), json!({"found": true, "value": [1, 2]})),
        ("state.merge", on("o", json!({"fields": {"b": 2}, "initial": {"a": 1}})), json!({"created": true})),
        ("state.get", on("o", json!({})), json!({"found": true, "value": {"a": 1, "b": 2}})),
        (
            "state.update",
            on("p", json!({"expression": "value + 1", "initial": 41, "max_retries": 3})),
            json!({"value": 42}),
        ),
    ]
}

#[tokio::test]
async fn slot_actions_do_the_same_in_every_scope() {
    for scope in ["session", "execution", "workflow"] {
        let operations = operations(scope);
        let calls = operations.iter().map(|(name, input, _)| (*name, input.clone())).collect();
        for ((name, input, expected), mut output) in operations.iter().zip(outputs(calls).await) {
            let revision = output.as_object_mut().unwrap().remove("revision");
            assert_eq!(&output, expected, "{name} {input}");
            let has_revision = revision.is_some_and(|revision| revision.is_u64());
            let expects = scope != "session" && !["state.delete", "state.update"].contains(name);
            assert_eq!(has_revision, expects, "{name} {input}");
        }
    }
}

#[tokio::test]
async fn state_set_checks_the_revision() {
    let set = |value: u64, seen: u64| {
        ("state.set", json!({"scope": "workflow", "key": "n", "value": value, "if_revision": seen}))
    };
    let made = outputs(vec![set(1, 0), set(2, 1)]).await;
    let first = json!({"revision": 1, "created": true});
    assert_eq!(made, [first, json!({"revision": 2, "created": false})]);
    let late = vec![call("state.set", set(1, 0).1, "a"), call("state.set", set(2, 0).1, "b")];
    let (engine, run) = run_of(chain("late", late), &json!({})).await;
    assert_eq!((status(&run).await, error_code(&run).await.as_deref()), (Status::Failed, Some("conflict")));
    let slot = engine.state().workflow::<Value>("late", "n");
    assert_eq!(slot.get().await.unwrap(), Some(json!(1)), "the refused write has no effect");
}

#[tokio::test]
async fn slots_deleted_before_their_first_write_have_no_initial_value() {
    for scope in ["execution", "workflow"] {
        let slot = json!({"scope": scope, "key": "n"});
        let started = json!({"scope": scope, "key": "n", "initial": 7});
        let made = outputs(vec![
            ("state.get", started.clone()),
            ("state.delete", slot),
            ("state.get", started.clone()),
            ("state.increment", started),
        ])
        .await;
        assert_eq!(made[0], json!({"found": true, "value": 7, "revision": 0}), "{scope}");
        assert_eq!(made[1], json!({"deleted": false}), "{scope}");
        assert_eq!(made[2], json!({"found": false, "value": null, "revision": 1}), "{scope}");
        assert_eq!((&made[3]["value"], &made[3]["revision"]), (&json!(1), &json!(2)), "{scope}");
    }
}

/// The error of a run whose only action is this one.
async fn refused(name: &str, input: Value) -> (Option<String>, String) {
    let (_engine, run) = run_of(chain("refused", vec![call(name, input, "out")]), &json!({})).await;
    let stopped = run.view().await.unwrap().ledger.stopped;
    let error = stopped.map(|stopped| stopped.error);
    (error.as_ref().map(|error| error.code.clone()), error.map(|error| error.message).unwrap_or_default())
}

#[tokio::test]
async fn invalid_slot_inputs_fail_the_action_and_say_why() {
    let on = |scope: &str, more: Value| {
        let mut input = json!({"scope": scope, "key": "n"});
        input.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        input
    };
    let bad = [
        ("state.get", on("global", json!({})), "invalidInput", "global"),
        ("state.set", on("workflow", json!({})), "invalidInput", "value"),
        ("state.set", on("session", json!({"value": 1, "if_revision": 0})), "invalid", "session"),
        ("state.increment", on("workflow", json!({"by": "1"})), "invalidInput", "number"),
        ("state.merge", on("workflow", json!({"fields": 5})), "invalidInput", "map"),
        ("state.update", on("workflow", json!({"expression": "value +"})), "expression", ""),
        (
            "state.update",
            on("workflow", json!({"expression": "nothing.at.all"})),
            "expression",
            "state.delete",
        ),
        (
            "document.put",
            json!({"key": "stepwell.a", "kind": "note", "body": 1}),
            "invalidDocument",
            "stepwell.",
        ),
        ("document.list", json!({"limit": 0}), "invalid", "limit"),
    ];
    for (name, input, code, part) in bad {
        let (found, message) = refused(name, input.clone()).await;
        assert_eq!(found.as_deref(), Some(code), "{name} {input}: {message}");
        assert!(message.contains(part), "{name} {input}: {message}");
    }
}

#[tokio::test]
async fn wrong_slot_calls_are_found_before_the_workflow_runs() {
    let engine = kit::start(|builder| builder).await.unwrap();
    let update = json!({"scope": "workflow", "key": "n", "expression": "value +"});
    let calls = vec![
        call("state.update", update, "a"),
        call("state.set", json!({"scope": "tenant", "key": "n", "value": 1}), "b"),
        call("state.set", json!({"scope": "workflow", "key": "n", "value": 1}), "c"),
    ];
    let problems = check_calls(&chain("wrong", calls), &engine.actions());
    let messages: Vec<_> = problems.iter().map(ToString::to_string).collect();
    assert_eq!(messages.len(), 2, "{messages:?}");
    assert!(messages[0].contains("is not a valid expression"), "{messages:?}");
    assert!(messages[1].contains("\"session\""), "the valid scopes are listed: {messages:?}");
}

#[tokio::test]
async fn two_updates_at_once_are_both_applied() {
    let update = json!({"scope": "workflow", "key": "n", "expression": "value + 1", "initial": 0});
    let definition = chain("adds", vec![call("state.update", update, "out")]);
    let engine = kit::start(|builder| builder.workflow(definition)).await.unwrap();
    for _ in 0..20 {
        engine.start(Start::new("adds")).await.unwrap();
    }
    engine.settle().await;
    for _ in 0..60 {
        engine.advance(Duration::from_secs(1)).await;
    }
    let slot = engine.state().workflow::<i64>("adds", "n");
    assert_eq!(slot.get().await.unwrap(), Some(20));
}

#[tokio::test]
async fn document_actions_put_read_list_and_remove() {
    let put = |key: &str, kind: &str, tags: Value| {
        ("document.put", json!({"key": key, "kind": kind, "body": {"of": key}, "tags": tags}))
    };
    let one = |key: &str| json!({"key": key});
    let made = outputs(vec![
        ("document.get", one("a")),
        put("a", "letter", json!(["out"])),
        put("b", "note", json!([])),
        ("document.get", one("a")),
        ("document.list", json!({"kind": "note"})),
        ("document.list", json!({"tag": "out"})),
        ("document.list", json!({"limit": 1})),
        ("document.remove", one("a")),
        ("document.remove", one("a")),
        ("document.get", one("a")),
    ])
    .await;
    let nothing = json!({"found": false, "kind": null, "body": null, "tags": [], "put_at": null});
    assert_eq!((&made[0], &made[1], &made[9]), (&nothing, &json!({"key": "a"}), &nothing));
    let got = &made[3];
    assert_eq!(
        (&got["found"], &got["kind"], &got["body"]),
        (&json!(true), &json!("letter"), &json!({"of": "a"}))
    );
    assert_eq!((&got["tags"], got["put_at"].is_string()), (&json!(["out"]), true));
    let keys = |list: &Value| -> Vec<Value> {
        list["items"].as_array().unwrap().iter().map(|item| item["key"].clone()).collect()
    };
    assert_eq!((keys(&made[4]), keys(&made[5])), (vec![json!("b")], vec![json!("a")]));
    assert_eq!((keys(&made[6]).len(), made[6]["next_cursor"].is_string()), (1, true));
    assert_eq!((&made[7], &made[8]), (&json!({"removed": true}), &json!({"removed": false})));
}

#[tokio::test]
async fn document_bodies_must_match_the_schema_of_their_kind() {
    let body = json!({"type": "object", "required": ["to"]});
    let put = call("document.put", json!({"key": "a", "kind": "letter", "body": 1}), "out");
    let work = Transition::new("work", "a", "b").action_with(put);
    let spec = Spec::new("letters").document("letter", body).step("a").end("b").transition(work);
    let (_engine, run) = run_of(spec.build().unwrap(), &json!({})).await;
    assert_eq!(error_code(&run).await.as_deref(), Some("invalidDocument"));
}
