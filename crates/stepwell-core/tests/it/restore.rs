//! A snapshot is the complete state of a run: a restored run decides like one that was never saved. Snapshots that do
//! not match the definition are refused.

use serde_json::{Value, json};
use stepwell_core::patch::Patch;
use stepwell_core::snapshot::{ChildEnd, PlaceStatus};
use stepwell_core::spec::{ActionSpec, ChildRule, Join, LoopStep, Place, Quorum, Transition, Wait};
use stepwell_core::{
    ActionResult, DecideError, Definition, Input, Limits, Name, RestoreError, RunId, Snapshot, Spec, start,
};

use crate::driver::{Driver, at, build, bytes};

/// A workflow whose snapshots use every part: branches, loops, locals, timers, children, session, a resolved wait.
fn rich() -> Spec {
    let children = Wait { children: Some(ChildRule::AllSettled), ..Wait::default() };
    let join =
        Join { of: vec!["wait".into(), "parts".into(), "c".into()], quorum: Quorum::All, ..Join::default() };
    let act =
        ActionSpec { name: "x".into(), input: Value::Null, save_as: Some("saved".to_owned()), version: None };
    Spec::new("rich")
        .context_schema(json!({"type": "object", "properties": {"n": {"type": "number"}}}))
        .step("begin")
        .fork("f", ["wait", "b", "c"])
        .wait("wait", "GO")
        .step("b")
        .place("parts", Place::Wait(children))
        .step("c")
        .place("j", Place::Join(join))
        .end_with("done", json!({"n": {"$expr": "context.n"}}))
        .signal("GO")
        .signal("C")
        .transition(Transition::new("in", "begin", "f").action_with(act).loop_step(LoopStep::Enter))
        .transition(Transition::new("children", "b", "parts").action("start"))
        .transition(Transition::new("late", "wait", "done").after_ms(60_000))
        .auto("wj", "wait", "j")
        .auto("pj", "parts", "j")
        .on_signal("cj", "c", "C", "j")
        .transition(Transition::new("out", "j", "done").loop_step(LoopStep::Leave))
}

/// A run in the middle of [`rich`]. One branch is resolved, one waits for children, one has reached the join.
fn middle() -> Driver {
    let mut run = Driver::start_with(rich(), json!({"n": 0.1, "text": "ünï \"code\"\n", "big": u64::MAX}));
    let call = run.act(&Input::advance());
    let outcome = ActionResult {
        context: Patch::set("n", json!(950.0981450614113)),
        session: Patch::set("slot", json!([1, null])),
        locals: json!({"item": {"deep": [1.5]}}).as_object().cloned().expect("it is an object"),
        output: json!("out"),
        ..ActionResult::default()
    };
    run.done(&call, outcome);
    let call = run.act(&Input::advance());
    run.done(&call, ActionResult { children: 2, ..ActionResult::default() });
    run.child("parts", 1, ChildEnd::Completed { output: json!(-0.0) });
    run.signal("C", Value::Null);
    run.signal("GO", json!({"by": "ann"}));
    run
}

fn saved(run: &Driver) -> Value {
    serde_json::from_slice(&bytes(&run.snapshot)).expect("a snapshot is JSON")
}

fn restored(definition: &Definition, saved: &Value) -> Result<Snapshot, RestoreError> {
    Snapshot::restore(definition, saved.to_string().as_bytes())
}

/// Restores the run of [`middle`] with one value changed in its JSON. Returns the error.
fn tampered(pointer: &str, value: Value) -> RestoreError {
    let run = middle();
    let mut saved = saved(&run);
    *saved.pointer_mut(pointer).expect(pointer) = value;
    restored(&run.definition, &saved).expect_err(pointer)
}

#[test]
fn restored_snapshot_equals_the_saved_one() {
    let run = middle();
    let again = Snapshot::restore(&run.definition, &bytes(&run.snapshot)).unwrap();
    assert_eq!(again, run.snapshot);
    assert_eq!(bytes(&again), bytes(&run.snapshot));
    assert_eq!(again.context()["n"], json!(950.0981450614113));
    assert_eq!(again.context()["big"], json!(u64::MAX));
}

#[test]
fn restored_snapshot_decides_like_the_saved_one() {
    let mut never_saved = middle();
    let parts = never_saved.id_in("parts");
    let future = [
        Input::advance(),
        Input::TimerFired { activation: parts },
        Input::signal("GO", json!({})),
        Input::ChildDone { activation: parts, child: 0, end: ChildEnd::Cancelled },
        Input::advance(),
        Input::advance(),
        Input::advance(),
    ];
    let mut put_away = middle();
    for event in future {
        put_away.snapshot = Snapshot::restore(&put_away.definition, &bytes(&put_away.snapshot)).unwrap();
        let (one, other) = (never_saved.decide(&event), put_away.decide(&event));
        assert_eq!(one, other, "{event:?}");
        if one.is_ok() {
            never_saved.go(&event);
            put_away.go(&event);
        }
    }
    assert!(never_saved.snapshot.is_terminal());
    assert_eq!(bytes(&never_saved.snapshot), bytes(&put_away.snapshot));
}

#[test]
fn snapshot_json_has_every_promised_field() {
    let run = middle();
    let saved = saved(&run);
    assert_eq!(saved["instanceId"], json!(RunId::nil()));
    assert_eq!(saved["workflow"], "rich");
    assert_eq!(saved["definitionVersion"], 1);
    assert_eq!(saved["definitionHash"], run.definition.hash().to_string());
    assert_eq!(saved["version"], 5);
    assert_eq!(saved["completed"], json!(["b", "begin", "c", "f"]));
    assert_eq!(saved["context"]["saved"], "out");
    assert_eq!(saved["session"], json!({"slot": [1, null]}));
    assert_eq!(saved["isTerminal"], false);
    assert_eq!(saved["forkInstances"][0]["fork"], "f");
    let activations = saved["activations"].as_array().unwrap();
    let shown: Vec<_> = activations.iter().map(|a| (&a["place"], &a["status"])).collect();
    assert_eq!(json!(shown), json!([["wait", "active"], ["parts", "waiting"], ["j", "waiting"]]));
    for activation in activations {
        assert!(activation["id"].is_u64());
        assert_eq!(activation["branch"]["forkInstance"], saved["forkInstances"][0]["id"]);
        assert_eq!(activation["position"], json!([0]));
        assert_eq!(activation["locals"], json!({"item": {"deep": [1.5]}}));
    }
    assert_eq!(activations[0]["received"], json!({"by": "ann"}));
    assert_eq!(activations[1]["children"]["total"], 2);
    let statuses = ["begin", "wait", "parts", "done"].map(|place| run.snapshot.status_of(place));
    use PlaceStatus::{Active, Completed, Idle, Waiting};
    assert_eq!(statuses, [Completed, Active, Waiting, Idle]);
}

#[test]
fn place_status_is_derived_from_its_activations() {
    let spec = Spec::new("each")
        .fork("f", ["w", "w", "w"])
        .wait("w", "GO")
        .end("z")
        .signal("GO")
        .auto("wz", "w", "z");
    let mut run = Driver::start(spec);
    assert_eq!(run.snapshot.activations().len(), 3);
    assert_eq!(run.snapshot.status_of("w"), PlaceStatus::Waiting);
    run.signal("GO", Value::Null);
    assert_eq!(run.snapshot.status_of("w"), PlaceStatus::Active);
    assert_eq!(run.places(), ["w"]);
}

#[test]
fn timestamps_are_rfc_3339() {
    let spec = Spec::new("t").step("a").end("z").transition(Transition::new("t", "a", "z").after_ms(1_500));
    let run = Driver::start(spec);
    let saved = saved(&run);
    assert_eq!(saved["createdAt"], "2023-11-14T22:13:20Z");
    assert_eq!(saved["updatedAt"], "2023-11-14T22:13:20Z");
    assert_eq!(saved["activations"][0]["since"], "2023-11-14T22:13:20Z");
    assert_eq!(saved["activations"][0]["timers"][0]["at"], "2023-11-14T22:13:21.5Z");
    assert!(tampered("/createdAt", json!(1_700_000_000)).to_string().starts_with("not a valid snapshot: "));
    assert!(
        tampered("/createdAt", json!("yesterday")).to_string().contains("`yesterday` is not an RFC 3339")
    );
}

#[test]
fn snapshot_of_another_workflow_is_refused_by_name() {
    let run = middle();
    let mut other = rich();
    other.name = Name::from("poor");
    let error = restored(&build(other), &saved(&run)).unwrap_err();
    assert_eq!(error, RestoreError::OtherWorkflow { expected: "poor".into(), found: "rich".into() });
    assert_eq!(error.to_string(), "the snapshot belongs to workflow `rich`, not to `poor`");
}

#[test]
fn snapshot_of_another_version_is_refused_with_both_hashes() {
    let run = middle();
    let other = build(rich().version(2));
    let error = restored(&other, &saved(&run)).unwrap_err();
    let expected = RestoreError::OtherDefinition {
        workflow: "rich".into(),
        expected_version: 2,
        expected: other.hash().short(),
        found_version: 1,
        found: run.definition.hash().short(),
    };
    assert_eq!(error, expected);
    assert!(error.to_string().contains(&other.hash().short()), "{error}");
    assert!(error.to_string().contains(&run.definition.hash().short()), "{error}");
}

#[test]
fn snapshot_with_an_unknown_place_is_refused_by_name() {
    let unknown = RestoreError::UnknownPlace("nowhere".into());
    assert_eq!(tampered("/activations/0/place", json!("nowhere")), unknown);
    assert_eq!(tampered("/completed/0", json!("nowhere")), unknown);
    assert_eq!(tampered("/forkInstances/0/fork", json!("nowhere")), unknown);
    let mut ended = middle();
    ended.snapshot = start(&ended.definition, RunId::nil(), json!({}), at(0)).unwrap().snapshot;
    let call = ended.act(&Input::advance());
    ended.done(&call, ActionResult::default());
    ended.timer("wait", at(60_000));
    let mut saved = saved(&ended);
    restored(&ended.definition, &saved).unwrap();
    saved["finished"]["place"] = json!("nowhere");
    assert_eq!(restored(&ended.definition, &saved), Err(unknown));
    assert_eq!(
        tampered("/completed/0", json!("nowhere")).to_string(),
        "the snapshot names place `nowhere`, which the definition does not have"
    );
}

#[test]
fn snapshot_with_an_invalid_context_is_refused() {
    let error = tampered("/context/n", json!("many"));
    assert!(
        matches!(&error, RestoreError::InvalidContext(violations) if violations[0].pointer == "/n"),
        "{error:?}"
    );
    assert!(error.to_string().contains("/n"), "{error}");
}

#[test]
fn unreadable_snapshot_is_refused() {
    let run = middle();
    for bytes in [&b"{}"[..], b"", b"[]", b"{\"version\": 1}"] {
        assert!(matches!(Snapshot::restore(&run.definition, bytes), Err(RestoreError::Unreadable(_))));
    }
    let mut saved = saved(&run);
    saved["surprise"] = json!(1);
    let error = restored(&run.definition, &saved).unwrap_err().to_string();
    assert!(error.contains("unknown field `surprise`"), "{error}");
    assert!(matches!(tampered("/definitionHash", json!("+f".repeat(32))), RestoreError::Unreadable(_)));
    assert!(matches!(tampered("/version", json!(-1)), RestoreError::Unreadable(_)));
}

#[test]
fn contradictory_snapshot_is_refused_with_the_contradiction() {
    let branch = |fork_instance: u64, index: u32| json!({"forkInstance": fork_instance, "index": index});
    let timer = json!([{"transition": "cj", "at": "2023-11-14T22:13:20Z"}]);
    let rows = [
        ("/isTerminal", json!(true), "`isTerminal` and `finished` contradict each other"),
        ("/isTerminal", json!(true), "the run has ended, but it still has activations or open forks"),
        ("/updatedAt", json!("1999-01-01T00:00:00Z"), "`updatedAt` is earlier than `createdAt`"),
        ("/nextId", json!(3), "is used twice, or is not below `nextId`"),
        ("/activations/1/id", json!(1), "activations or fork instances are not sorted by number"),
        ("/activations/0/place", json!("done"), "is in `done`, where no activation can stay"),
        ("/activations/1/place", json!("c"), "waits in `c`, which is not a wait or a join"),
        ("/activations/0/branch", branch(99, 0), "belongs to fork instance 99, which is not open"),
        ("/activations/0/branch/index", json!(7), "is in branch 7, but the fork has only 3 branches"),
        ("/forkInstances/0/fork", json!("c"), "is of `c`, which is not a fork"),
        ("/forkInstances/0/branches", json!(9), "has 9 branches, but `f` has 3"),
        ("/forkInstances/0/fired", json!(true), "has fired, but 1 branches still wait in it"),
        ("/activations/1/children", Value::Null, "in `parts` has no record of its children"),
        ("/activations/1/children/total", json!(1), "in `parts` has an ended child that was never started"),
        ("/activations/2/branch", Value::Null, "waits in join `j`, which does not belong to its fork"),
        ("/activations/0/timers", timer, "has a timer for `cj`, which is not a timer of its place"),
    ];
    for (pointer, value, expected) in rows {
        let run = middle();
        let mut saved = saved(&run);
        match saved.pointer_mut(pointer) {
            Some(there) => *there = value,
            None => saved["activations"][0]["timers"] = value,
        }
        let error = restored(&run.definition, &saved).expect_err(pointer);
        assert!(matches!(error, RestoreError::Contradiction(_)), "{pointer}: {error:?}");
        assert!(error.to_string().contains(expected), "{pointer}: {error}");
    }
}

#[test]
fn snapshot_with_impossible_activations_is_refused() {
    let run = middle();
    let said = |saved: &Value| restored(&run.definition, saved).unwrap_err().to_string();
    let mut nowhere = saved(&run);
    nowhere["activations"] = json!([]);
    nowhere["forkInstances"] = json!([]);
    assert!(said(&nowhere).contains("the run has not ended, but it is in no place"));
    let mut twice = saved(&run);
    twice["activations"][0]["place"] = json!("j");
    twice["activations"][0]["status"] = json!("waiting");
    twice["activations"][0]["branch"] = twice["activations"][2]["branch"].clone();
    assert!(said(&twice).contains("waits twice in `j`"), "{}", said(&twice));
    let mut not_an_end = saved(&run);
    not_an_end["lastEnd"] = json!({"status": "completed", "place": "c"});
    assert!(
        said(&not_an_end).contains("the run ended in `c`, which is not an end place"),
        "{}",
        said(&not_an_end)
    );
    let mut strangers_children = saved(&run);
    strangers_children["activations"][0]["children"] = json!({"total": 1});
    assert!(said(&strangers_children).contains("has children, but `wait` does not wait for children"));
    let mut unfired = saved(&run);
    for (activation, index) in [(0, 0), (1, 1)] {
        unfired["activations"][activation] = unfired["activations"][2].clone();
        unfired["activations"][activation]["id"] = json!(activation + 3);
        unfired["activations"][activation]["branch"]["index"] = json!(index);
    }
    assert!(said(&unfired).contains("have arrived, but the join has not fired"), "{}", said(&unfired));
}

#[test]
fn accepted_values_are_never_too_deep_to_restore() {
    // JSON readers stop at 128 levels. Without a limit, a payload of 127 levels would be accepted and saved, but
    // could not be read again.
    let nested = |levels: usize| (1..levels).fold(json!([]), |inner, _| json!([inner]));
    let spec = Spec::new("deep")
        .wait("w", "GO")
        .end_with("z", json!({"a": [{"b": {"$expr": "event"}}]}))
        .signal("GO")
        .auto("wz", "w", "z");
    let mut run = Driver::start_with(spec.clone(), json!({"deep": nested(63)}));
    for payload in [nested(65), nested(127), nested(1_000)] {
        let limit =
            |error: DecideError| matches!(error, DecideError::Limit(limit) if limit.limit == "value_depth");
        assert!(limit(run.undecidable(&Input::signal("GO", payload.clone()))));
        assert!(limit(run.undecidable(&Input::WaitResolved { activation: 1, payload: payload.clone() })));
        assert!(limit(run.undecidable(&Input::Patched { patch: Patch::set("x", payload.clone()) })));
        assert!(limit(start(&run.definition, RunId::nil(), json!({"x": payload}), at(0)).unwrap_err()));
    }
    run.signal("GO", nested(64));
    assert_eq!(restored(&run.definition, &saved(&run)), Ok(run.snapshot.clone()));
    let error = run.undecidable(&Input::advance());
    assert!(
        matches!(error, DecideError::Limit(_)),
        "the result would nest deeper than the payload: {error:?}"
    );
    let mut run = Driver::start(spec);
    run.signal("GO", nested(61));
    run.advance();
    assert_eq!(restored(&run.definition, &saved(&run)), Ok(run.snapshot.clone()));
}

#[test]
fn too_deep_results_of_actions_and_children_are_refused() {
    let nested = (0..200).fold(json!(1), |inner, _| json!({"in": inner}));
    let run = middle();
    let child = ChildEnd::Completed { output: nested.clone() };
    let event = Input::ChildDone { activation: run.id_in("parts"), child: 0, end: child };
    assert!(matches!(run.undecidable(&event), DecideError::Limit(_)));
    let begun = Driver::start(rich());
    let call = begun.act(&Input::advance());
    let outcomes = [
        ActionResult { output: nested.clone(), ..ActionResult::default() },
        ActionResult { session: Patch::set("x", nested.clone()), ..ActionResult::default() },
        ActionResult { context: Patch::set("x", nested.clone()), ..ActionResult::default() },
        ActionResult {
            locals: json!({"x": nested}).as_object().cloned().unwrap(),
            ..ActionResult::default()
        },
    ];
    for outcome in outcomes {
        let done = Input::ActionDone { call: call.clone(), outcome };
        assert!(matches!(begun.undecidable(&done), DecideError::Limit(_)), "{done:?}");
    }
}

#[test]
fn oversized_snapshot_is_not_encoded() {
    let run = middle();
    let size = bytes(&run.snapshot).len() as u64;
    let limits = |snapshot_bytes| Limits { snapshot_bytes, ..Limits::default() };
    assert!(run.snapshot.encode(&limits(size)).is_ok());
    let exceeded = run.snapshot.encode(&limits(size - 1)).unwrap_err();
    assert_eq!((exceeded.limit.as_str(), exceeded.actual, exceeded.max), ("snapshot_bytes", size, size - 1));
}
