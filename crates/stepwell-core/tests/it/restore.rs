//! A snapshot is the complete state: what was saved behaves as what was never put away, and what does not fit is refused.

use serde_json::{Value, json};
use stepwell_core::patch::Patch;
use stepwell_core::snapshot::{ChildEnd, PlaceStatus};
use stepwell_core::spec::{Action, ChildRule, Join, LoopStep, Place, Quorum, Transition, Wait};
use stepwell_core::{
    DecideError, Definition, Event, Limits, Name, Outcome, RestoreError, RunId, Snapshot, Spec, start,
};

use crate::driver::{Driver, at, build, bytes};

/// Has everything a snapshot can hold: branches, loops, locals, timers, children, session, a resolved wait.
fn rich() -> Spec {
    let children = Wait { children: Some(ChildRule::AllSettled), ..Wait::default() };
    let join =
        Join { of: vec!["wait".into(), "parts".into(), "c".into()], quorum: Quorum::All, ..Join::default() };
    let act =
        Action { name: "x".into(), input: Value::Null, save_as: Some("saved".to_owned()), version: None };
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

/// In the middle of everything: one branch resolved, one waits for children, one has arrived.
fn middle() -> Driver {
    let mut run = Driver::start_with(rich(), json!({"n": 0.1, "text": "ünï \"code\"\n", "big": u64::MAX}));
    let call = run.act(&Event::advance());
    let outcome = Outcome {
        context: Patch::set("n", json!(950.0981450614113)),
        session: Patch::set("slot", json!([1, null])),
        locals: json!({"item": {"deep": [1.5]}}).as_object().cloned().expect("it is an object"),
        output: json!("out"),
        ..Outcome::default()
    };
    run.done(&call, outcome);
    let call = run.act(&Event::advance());
    run.done(&call, Outcome { children: 2, ..Outcome::default() });
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

/// Restores the middle of everything after changing one thing in its JSON.
fn tampered(pointer: &str, value: Value) -> RestoreError {
    let run = middle();
    let mut saved = saved(&run);
    *saved.pointer_mut(pointer).expect(pointer) = value;
    restored(&run.definition, &saved).expect_err(pointer)
}

#[test]
fn a_restored_snapshot_is_the_one_that_was_saved() {
    let run = middle();
    let again = Snapshot::restore(&run.definition, &bytes(&run.snapshot)).unwrap();
    assert_eq!(again, run.snapshot);
    assert_eq!(bytes(&again), bytes(&run.snapshot));
    assert_eq!(again.context()["n"], json!(950.0981450614113));
    assert_eq!(again.context()["big"], json!(u64::MAX));
}

#[test]
fn a_restored_snapshot_behaves_as_the_one_that_was_saved() {
    let mut never_saved = middle();
    let parts = never_saved.id_in("parts");
    let future = [
        Event::advance(),
        Event::TimerFired { activation: parts },
        Event::signal("GO", json!({})),
        Event::ChildDone { activation: parts, child: 0, end: ChildEnd::Cancelled },
        Event::advance(),
        Event::advance(),
        Event::advance(),
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
fn the_json_has_what_the_promise_lists() {
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
    assert_eq!(saved["passings"][0]["fork"], "f");
    let activations = saved["activations"].as_array().unwrap();
    let shown: Vec<_> = activations.iter().map(|a| (&a["place"], &a["status"])).collect();
    assert_eq!(json!(shown), json!([["wait", "active"], ["parts", "waiting"], ["j", "waiting"]]));
    for activation in activations {
        assert!(activation["id"].is_u64());
        assert_eq!(activation["branch"]["passing"], saved["passings"][0]["id"]);
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
fn a_place_may_have_several_activations_at_once_and_its_status_is_read_off_them() {
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
    assert!(tampered("/createdAt", json!(1_700_000_000)).to_string().starts_with("this is not a snapshot: "));
    assert!(
        tampered("/createdAt", json!("yesterday")).to_string().contains("`yesterday` is not an RFC 3339")
    );
}

#[test]
fn the_snapshot_of_another_workflow_is_refused_by_name() {
    let run = middle();
    let mut other = rich();
    other.name = Name::from("poor");
    let error = restored(&build(other), &saved(&run)).unwrap_err();
    assert_eq!(error, RestoreError::OtherWorkflow { expected: "poor".into(), found: "rich".into() });
    assert_eq!(error.to_string(), "the snapshot belongs to workflow `rich`, not to `poor`");
}

#[test]
fn the_snapshot_of_another_edition_is_refused_with_both_hashes() {
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
fn a_snapshot_in_a_place_that_does_not_exist_is_refused_by_the_place() {
    let unknown = RestoreError::UnknownPlace("nowhere".into());
    assert_eq!(tampered("/activations/0/place", json!("nowhere")), unknown);
    assert_eq!(tampered("/completed/0", json!("nowhere")), unknown);
    assert_eq!(tampered("/passings/0/fork", json!("nowhere")), unknown);
    let mut ended = middle();
    ended.snapshot = start(&ended.definition, RunId::nil(), json!({}), at(0)).unwrap().snapshot;
    let call = ended.act(&Event::advance());
    ended.done(&call, Outcome::default());
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
fn a_snapshot_whose_context_does_not_fit_is_refused_with_what_does_not() {
    let error = tampered("/context/n", json!("many"));
    assert!(matches!(&error, RestoreError::ContextUnfit(misfits) if misfits[0].pointer == "/n"), "{error:?}");
    assert!(error.to_string().contains("/n"), "{error}");
}

#[test]
fn what_is_not_a_snapshot_is_refused() {
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
fn a_snapshot_that_contradicts_itself_is_refused_with_what_contradicts() {
    let branch = |passing: u64, index: u32| json!({"passing": passing, "index": index});
    let timer = json!([{"transition": "cj", "at": "2023-11-14T22:13:20Z"}]);
    let rows = [
        ("/isTerminal", json!(true), "`isTerminal` and `finished` disagree"),
        ("/isTerminal", json!(true), "the run has ended, and something in it has not"),
        ("/updatedAt", json!("1999-01-01T00:00:00Z"), "it was updated before it was created"),
        ("/nextId", json!(3), "a number is used twice or has not been given yet"),
        ("/activations/1/id", json!(1), "activations or passings are not in the order of their numbers"),
        ("/activations/0/place", json!("done"), "rests in `done`, where nothing can rest"),
        ("/activations/1/place", json!("c"), "waits in the step `c`"),
        ("/activations/0/branch", branch(99, 0), "belongs to passing 99, which is not open"),
        ("/activations/0/branch/index", json!(7), "is in branch 7 of 3"),
        ("/passings/0/fork", json!("c"), "is of `c`, which is not a fork"),
        ("/passings/0/branches", json!(9), "has 9 branches, and `f` has 3"),
        ("/passings/0/fired", json!(true), "has fired, and 1 branches still wait in it"),
        ("/activations/1/children", Value::Null, "in `parts` has no account of its children"),
        ("/activations/1/children/total", json!(1), "in `parts` has more children ended than started"),
        ("/activations/2/branch", Value::Null, "waits in the join `j`, which does not join its fork"),
        ("/activations/0/timers", timer, "has a timer for `cj`, not its place's"),
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
fn a_snapshot_that_is_nowhere_or_waits_twice_for_one_branch_is_refused() {
    let run = middle();
    let said = |saved: &Value| restored(&run.definition, saved).unwrap_err().to_string();
    let mut nowhere = saved(&run);
    nowhere["activations"] = json!([]);
    nowhere["passings"] = json!([]);
    assert!(said(&nowhere).contains("the run has not ended and is nowhere"));
    let mut twice = saved(&run);
    twice["activations"][0]["place"] = json!("j");
    twice["activations"][0]["status"] = json!("waiting");
    twice["activations"][0]["branch"] = twice["activations"][2]["branch"].clone();
    assert!(said(&twice).contains("waits twice in `j`"), "{}", said(&twice));
    let mut not_an_end = saved(&run);
    not_an_end["lastEnd"] = json!({"how": "completed", "place": "c"});
    assert!(
        said(&not_an_end).contains("came to an end in `c`, which is not an end"),
        "{}",
        said(&not_an_end)
    );
    let mut strangers_children = saved(&run);
    strangers_children["activations"][0]["children"] = json!({"total": 1});
    assert!(said(&strangers_children).contains("in `wait` waits for no children"));
    let mut unfired = saved(&run);
    for (activation, index) in [(0, 0), (1, 1)] {
        unfired["activations"][activation] = unfired["activations"][2].clone();
        unfired["activations"][activation]["id"] = json!(activation + 3);
        unfired["activations"][activation]["branch"]["index"] = json!(index);
    }
    assert!(said(&unfired).contains("have arrived, and the join has not fired"), "{}", said(&unfired));
}

#[test]
fn whatever_a_run_accepts_it_can_be_restored_with() {
    // JSON readers stop at 128 levels: a payload of 127 would be accepted, saved, and never be read again.
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
        assert!(limit(run.undecidable(&Event::signal("GO", payload.clone()))));
        assert!(limit(run.undecidable(&Event::WaitResolved { activation: 1, payload: payload.clone() })));
        assert!(limit(run.undecidable(&Event::Patched { patch: Patch::set("x", payload.clone()) })));
        assert!(limit(start(&run.definition, RunId::nil(), json!({"x": payload}), at(0)).unwrap_err()));
    }
    run.signal("GO", nested(64));
    assert_eq!(restored(&run.definition, &saved(&run)), Ok(run.snapshot.clone()));
    let error = run.undecidable(&Event::advance());
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
fn what_an_action_or_a_child_gives_back_is_no_deeper_than_can_be_restored() {
    let nested = (0..200).fold(json!(1), |inner, _| json!({"in": inner}));
    let run = middle();
    let child = ChildEnd::Completed { output: nested.clone() };
    let event = Event::ChildDone { activation: run.id_in("parts"), child: 0, end: child };
    assert!(matches!(run.undecidable(&event), DecideError::Limit(_)));
    let begun = Driver::start(rich());
    let call = begun.act(&Event::advance());
    let outcomes = [
        Outcome { output: nested.clone(), ..Outcome::default() },
        Outcome { session: Patch::set("x", nested.clone()), ..Outcome::default() },
        Outcome { context: Patch::set("x", nested.clone()), ..Outcome::default() },
        Outcome { locals: json!({"x": nested}).as_object().cloned().unwrap(), ..Outcome::default() },
    ];
    for outcome in outcomes {
        let done = Event::ActionDone { call: call.clone(), outcome };
        assert!(matches!(begun.undecidable(&done), DecideError::Limit(_)), "{done:?}");
    }
}

#[test]
fn a_snapshot_larger_than_allowed_is_not_encoded() {
    let run = middle();
    let size = bytes(&run.snapshot).len() as u64;
    let limits = |snapshot_bytes| Limits { snapshot_bytes, ..Limits::default() };
    assert!(run.snapshot.encode(&limits(size)).is_ok());
    let exceeded = run.snapshot.encode(&limits(size - 1)).unwrap_err();
    assert_eq!((exceeded.limit.as_str(), exceeded.actual, exceeded.max), ("snapshot_bytes", size, size - 1));
}
