//! The history is append-only. It has every change and no refused input. Every earlier state can be rebuilt from it.

use serde_json::{Value, json};
use stepwell_core::patch::Patch;
use stepwell_core::retry::Retry;
use stepwell_core::snapshot::ChildEnd;
use stepwell_core::spec::{ActionSpec, ChildRule, Place, Transition, Wait};
use stepwell_core::{
    ActionResult, Failure, History, HistoryEntry, Input, Limits, RunId, Snapshot, Spec, start,
};

use crate::driver::{Driver, at, bytes, texts};

/// A workflow whose run writes every kind of history entry.
fn story() -> Spec {
    let children = Wait { children: Some(ChildRule::AllSettled), ..Wait::default() };
    let bill = ActionSpec {
        name: "bill".into(),
        input: json!({"n": {"$expr": "context.n"}}),
        save_as: Some("bill".into()),
        version: None,
    };
    Spec::new("story")
        .step("order")
        .wait("ask", "ANSWER")
        .step("idle")
        .step("billing")
        .step("sorry")
        .place("parts", Place::Wait(children))
        .step("last")
        .end("done")
        .signal("GO")
        .signal("ANSWER")
        .on_signal("submit", "order", "GO", "ask")
        .auto("answered", "ask", "idle")
        .transition(Transition::new("tick", "idle", "billing").after_ms(10))
        .transition(
            Transition::new("bill", "billing", "last")
                .action_with(bill)
                .retry(Retry { place: Some("sorry".into()), ..Retry::default() }),
        )
        .transition(Transition::new("again", "sorry", "parts").action("start"))
        .on_signal("end", "last", "GO", "done")
        .auto("parts done", "parts", "billing")
}

/// Runs [`story`] to its end. Returns the run, its history and the state at every version.
fn recorded() -> (Driver, History, Vec<Snapshot>) {
    let mut run = Driver::start_with(story(), json!({"n": 7}));
    let (mut history, mut states) = (History::new(run.snapshot.clone()), vec![run.snapshot.clone()]);
    let mut note = |run: &Driver, entry: HistoryEntry| {
        history.push(entry, &run.snapshot).expect("it is the next version");
        states.push(run.snapshot.clone());
    };
    let change = run.signal("GO", json!({"by": "ann"}));
    note(&run, change.entry);
    let change = run.signal("ANSWER", json!({"ok": true}));
    note(&run, change.entry);
    let change = run.advance();
    note(&run, change.entry);
    let change = run.timer("idle", at(10));
    note(&run, change.entry);
    let call = run.act(&Input::advance());
    let change =
        run.go(&Input::ActionFailed { call, failure: Failure::new("x", "y"), retries: 0, first: None });
    note(&run, change.entry);
    let call = run.act(&Input::advance());
    let change = run.done(&call, ActionResult { children: 2, ..ActionResult::default() });
    note(&run, change.entry);
    for child in [1, 0] {
        let change = run.child("parts", child, ChildEnd::Cancelled);
        note(&run, change.entry);
    }
    let change = run.advance();
    note(&run, change.entry);
    let call = run.act(&Input::advance());
    let outcome =
        ActionResult { output: json!({"number": 1}), duration_us: 1_234, ..ActionResult::default() };
    let change = run.done(&call, outcome);
    note(&run, change.entry);
    let change = run.go(&Input::Patched { patch: Patch::set("n", Value::Null) });
    note(&run, change.entry);
    let change = run.signal("GO", Value::Null);
    note(&run, change.entry);
    (run, history, states)
}

#[test]
fn every_entry_names_its_signal_or_engine_action() {
    let (_, history, _) = recorded();
    let actions: Vec<_> = history.entries().map(|entry| entry.action.as_str()).collect();
    let expected = [
        "GO",
        "__resolve_wait:ask",
        "__auto:answered",
        "__timer:idle",
        "__error:bill",
        "__auto:again",
        "__child:parts",
        "__resolve_wait:parts",
        "__auto:parts done",
        "__auto:bill",
        "__operator:patch",
        "GO",
    ];
    assert_eq!(actions, expected);
    let created = start(&crate::driver::build(story()), RunId::nil(), json!({"n": 7}), at(0)).unwrap();
    assert_eq!(created.entry.action, "__start");
    assert_eq!((created.entry.version, created.entry.payload), (0, None), "it is the first context");
    assert_eq!(created.snapshot.context(), &json!({"n": 7}));
    assert_eq!(texts(&created.entry.entered), ["order"]);
}

#[test]
fn every_entry_has_time_places_and_payload() {
    let (_, history, _) = recorded();
    let entries: Vec<_> = history.entries().collect();
    let way = |at: usize| (texts(&entries[at].exited), texts(&entries[at].entered));
    assert_eq!(way(0), (vec!["order"], vec!["ask"]));
    assert_eq!(way(1), (vec![], vec![]), "a resolved wait is not left");
    assert_eq!(way(4), (vec!["billing"], vec!["sorry"]));
    assert_eq!(way(11), (vec!["last"], vec!["done"]));
    assert_eq!(entries[0].payload, Some(json!({"by": "ann"})));
    assert_eq!(entries[1].payload, Some(json!({"ok": true})));
    assert_eq!(entries[11].payload, None);
    assert_eq!((entries[0].at, entries[3].at), (at(0), at(10)));
    assert_eq!(texts(&entries[3].transitions), ["tick"]);
    let versions: Vec<_> = entries.iter().map(|entry| entry.version).collect();
    assert_eq!(versions, (1..=12).collect::<Vec<_>>());
}

#[test]
fn action_input_output_and_duration_are_recorded() {
    let (_, history, _) = recorded();
    let entries: Vec<_> = history.entries().collect();
    let billed = entries[9];
    assert_eq!(billed.input, Some(json!({"n": 7})));
    assert_eq!(billed.output, Some(json!({"number": 1})));
    assert_eq!(billed.duration_us, Some(1_234));
    assert_eq!(entries[4].input, Some(json!({"n": 7})), "the failed action has its input too");
    assert_eq!((&entries[0].input, &entries[0].output, entries[0].duration_us), (&None, &None, None));
}

#[test]
fn secrets_appear_in_the_history_by_name_only() {
    let action = ActionSpec {
        name: "x".into(),
        input: json!({"key": {"$secret": "KEY"}}),
        save_as: None,
        version: None,
    };
    let spec =
        Spec::new("s").step("a").end("z").transition(Transition::new("t", "a", "z").action_with(action));
    let mut run = Driver::start(spec);
    let call = run.act(&Input::advance());
    assert_eq!(
        run.done(&call, ActionResult::default()).entry.input,
        Some(json!({"key": {"$secret": "KEY"}}))
    );
}

#[test]
fn oversized_history_values_are_cut_and_give_their_size() {
    let limits = Limits { history_value_bytes: 9, ..Limits::default() };
    let definition = story().build_within(&limits).unwrap();
    let created = start(&definition, RunId::nil(), json!({"n": 7}), at(0)).unwrap();
    let mut run = Driver::from_snapshot(&definition, created.snapshot);
    let kept = |payload: Value| {
        let mut run = Driver::from_snapshot(&definition, run.snapshot.clone());
        run.signal("GO", payload).entry.payload
    };
    assert_eq!(kept(json!("1234567")), Some(json!("1234567")), "exactly the limit");
    assert_eq!(kept(json!("12345678")), Some(json!({"$cut": {"bytes": 10, "head": "\"12345678"}})));
    assert_eq!(
        kept(json!("1234567ü8")),
        Some(json!({"$cut": {"bytes": 12, "head": "\"1234567"}})),
        "no character is cut in half"
    );
    run.signal("GO", json!("12345678"));
    assert_eq!(run.snapshot.version(), 1);
    let action = ActionSpec {
        name: "x".into(),
        input: json!("long input"),
        save_as: Some("out".into()),
        version: None,
    };
    let spec =
        Spec::new("s").step("a").end("z").transition(Transition::new("t", "a", "z").action_with(action));
    let definition = spec.build_within(&limits).unwrap();
    let created = start(&definition, RunId::nil(), json!({}), at(0)).unwrap();
    let mut run = Driver::from_snapshot(&definition, created.snapshot);
    let call = run.act(&Input::advance());
    let entry =
        run.done(&call, ActionResult { output: json!("long output"), ..ActionResult::default() }).entry;
    assert_eq!(entry.input.unwrap()["$cut"]["bytes"], 12);
    assert_eq!(entry.output.unwrap()["$cut"]["bytes"], 13);
    assert_eq!(run.snapshot.context()["out"], "long output", "only the history is cut");
}

#[test]
fn refused_inputs_are_not_in_the_history() {
    let mut run = Driver::start_with(story(), json!({"n": 7}));
    let mut history = History::new(run.snapshot.clone());
    for event in [Input::signal("ANSWER", json!(1)), Input::signal("NO", json!(1)), Input::advance()] {
        run.refused(&event);
    }
    let change = run.signal("GO", Value::Null);
    history.push(change.entry, &run.snapshot).unwrap();
    assert_eq!(history.entries().map(|entry| entry.action.as_str()).collect::<Vec<_>>(), ["GO"]);
}

#[test]
fn every_earlier_version_can_be_rebuilt() {
    let (run, history, states) = recorded();
    assert!(run.snapshot.is_terminal());
    let before = serde_json::to_string(&history).unwrap();
    for state in states.iter().rev() {
        let rebuilt = history.rewind(state.version()).unwrap();
        assert_eq!(&rebuilt, state);
        assert_eq!(bytes(&rebuilt), bytes(state));
        rebuilt.verify(&run.definition).unwrap();
    }
    assert_eq!(serde_json::to_string(&history).unwrap(), before);
    let error = history.rewind(13).unwrap_err();
    assert_eq!(error.to_string(), "version 13 is not in this history, which has versions 0 to 12");
}

#[test]
fn run_can_continue_from_an_earlier_state() {
    let (_, history, states) = recorded();
    let mut fork = Driver::from_snapshot(&crate::driver::build(story()), history.rewind(2).unwrap());
    fork.advance();
    assert_eq!(fork.snapshot, states[3]);
}

#[test]
fn a_bounded_history_keeps_the_newest_changes_and_their_states() {
    let (_, mut history, states) = recorded();
    history.bound(20);
    assert_eq!(history.entries().count(), 12, "nothing was over the bound");
    history.bound(3);
    assert_eq!(history.entries().map(|entry| entry.version).collect::<Vec<_>>(), [10, 11, 12]);
    for version in 9..=12 {
        assert_eq!(history.rewind(version).unwrap(), states[version as usize]);
    }
    let error = history.rewind(8).unwrap_err();
    assert_eq!(error.to_string(), "version 8 is not in this history, which has versions 9 to 12");
    history.bound(0);
    assert_eq!(history.entries().count(), 0);
    assert_eq!(history.rewind(12).unwrap(), states[12]);
}

#[test]
fn bounded_history_accepts_new_entries() {
    let mut run = Driver::start_with(story(), json!({"n": 7}));
    let mut history = History::new(run.snapshot.clone());
    for event in [Input::signal("GO", Value::Null), Input::signal("ANSWER", Value::Null), Input::advance()] {
        let change = run.go(&event);
        history.push(change.entry, &run.snapshot).unwrap();
        history.bound(1);
    }
    assert_eq!(history.rewind(3).unwrap(), run.snapshot);
    assert!(history.rewind(1).is_err());
}

#[test]
fn only_the_next_version_can_be_added() {
    let (run, history, states) = recorded();
    let entries: Vec<_> = history.entries().cloned().collect();
    let mut fresh = History::new(states[0].clone());
    let error = fresh.push(entries[1].clone(), &states[2]).unwrap_err();
    assert_eq!(error.to_string(), "the newest version of the history is 0; version 2 does not follow it");
    assert!(fresh.push(entries[1].clone(), &states[1]).is_err(), "the entry belongs to another version");
    fresh.push(entries[0].clone(), &states[1]).unwrap();
    assert!(fresh.push(entries[0].clone(), &states[1]).is_err(), "not twice");
    assert!(fresh.push(entries[11].clone(), &run.snapshot).is_err(), "no version is skipped");
    assert_eq!(fresh.entries().count(), 1);
    assert_eq!(fresh.rewind(1).unwrap(), states[1], "a refused entry changes nothing");
    fresh.push(entries[1].clone(), &states[2]).unwrap();
    assert_eq!(fresh.rewind(2).unwrap(), states[2]);
}

#[test]
fn history_can_be_extended_after_a_json_round_trip() {
    let (_, history, states) = recorded();
    let entries: Vec<_> = history.entries().cloned().collect();
    let mut half = History::new(states[0].clone());
    for version in 1..=6 {
        half.push(entries[version - 1].clone(), &states[version]).unwrap();
    }
    let text = serde_json::to_string(&half).unwrap();
    let mut again: History = serde_json::from_str(&text).unwrap();
    for version in 7..=12 {
        again.push(entries[version - 1].clone(), &states[version]).unwrap();
    }
    assert_eq!(again.entries().cloned().collect::<Vec<_>>(), entries);
    for state in &states {
        assert_eq!(&again.rewind(state.version()).unwrap(), state);
    }
    assert_eq!(serde_json::to_value(&again).unwrap(), serde_json::to_value(&history).unwrap());
}

#[test]
fn inconsistent_history_is_unreadable() {
    let (_, history, _) = recorded();
    let whole = serde_json::to_value(&history).unwrap();
    let read = |change: fn(&mut Value)| {
        let mut broken = whole.clone();
        change(&mut broken);
        serde_json::from_value::<History>(broken).map(|_| ()).unwrap_err().to_string()
    };
    let gap = read(|history| drop(history["changes"].as_array_mut().unwrap().remove(3)));
    assert!(gap.contains("expected version 4 next"), "{gap}");
    let renumbered = read(|history| history["changes"][3]["entry"]["version"] = json!(9));
    assert!(renumbered.contains("expected version 4 next"), "{renumbered}");
    let nonsense =
        read(|history| history["changes"][3]["patch"] = json!([{"path": ["activations"], "value": [5]}]));
    assert!(nonsense.contains("the change to version 4 does not give a valid snapshot"), "{nonsense}");
}
