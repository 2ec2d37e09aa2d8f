//! Fixes the stored formats: definitions and their hash, snapshots, history entries.
//!
//! Databases contain these formats. A test that fails here means that existing data becomes unreadable: change the
//! format only with a migration, or while no version has been released. `INSTA_UPDATE=always` writes the files anew.

use serde_json::{Value, json};
use stepwell_core::spec::{ActionSpec, Quorum, Transition};
use stepwell_core::{ActionResult, Definition, HistoryEntry, Input, Limits, Snapshot, Spec};

use crate::driver::{Driver, at, build};

/// A workflow with a fork, a wait, timers, an action, data and a shadow column.
fn order() -> Spec {
    let charge = ActionSpec {
        name: "charge".into(),
        input: json!({"amount": {"$expr": "context.amount"}, "key": {"$secret": "KEY"}}),
        save_as: Some("charge".to_owned()),
        version: None,
    };
    Spec::new("order")
        .version(3)
        .context_schema(json!({"type": "object", "required": ["amount"]}))
        .fork("begin", ["pay", "pack"])
        .step("pay")
        .wait("pack", "PACKED")
        .join("both", Quorum::All, ["pay", "pack"])
        .end_with("done", json!({"paid": {"$expr": "context.charge"}}))
        .signal_with("PACKED", json!({"type": "object"}))
        .transition(Transition::new("charged", "pay", "both").action_with(charge).timeout_ms(5_000))
        .transition(Transition::new("packed", "pack", "both").when("event.boxes > 0"))
        .transition(Transition::new("late", "pack", "both").after_ms(60_000))
        .transition(Transition::new("finish", "both", "done"))
}

fn pretty(value: &impl serde::Serialize) -> String {
    serde_json::to_string_pretty(value).expect("plain data")
}

#[test]
fn definition_format_and_hash_are_fixed() {
    let definition = build(order());
    let stored = definition.canonical();
    insta::assert_snapshot!("definition", String::from_utf8(stored.clone()).unwrap());
    insta::assert_snapshot!("definition_hash", definition.hash().to_string());
    assert_eq!(Definition::from_canonical(&stored).unwrap().hash(), definition.hash());
}

#[test]
fn snapshot_and_history_formats_are_fixed() {
    let mut run = Driver::start_with(order(), json!({"amount": 12.5, "note": "§"}));
    let call = run.act(&Input::advance());
    run.now = at(1_500);
    let change = run.done(&call, ActionResult { output: json!({"id": "ch_1"}), ..ActionResult::default() });
    let entry: HistoryEntry = change.entry;
    insta::assert_snapshot!("history_entry", pretty(&entry));
    let bytes = run.snapshot.encode(&Limits::default()).unwrap();
    let json: Value = serde_json::from_slice(&bytes).unwrap();
    insta::assert_snapshot!("snapshot", pretty(&json));
    assert_eq!(Snapshot::restore(&run.definition, &bytes), Ok(run.snapshot.clone()));
}
