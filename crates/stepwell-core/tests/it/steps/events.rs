//! Events: waits that receive them by correlation, and triggers that start workflows.

use serde_json::{Value, json};
use stepwell_core::graph::{awaited_event, open_waits};
use stepwell_core::spec::{OnSchedule, OnWebhook, Signature, TriggerKind};
use stepwell_core::topic::{after, name_range, topic};
use stepwell_core::trigger::{Filtered, Occurrence, TriggerMatch};
use stepwell_core::{Definition, Refusal, Rejected};

use super::{World, document, problems};
use crate::driver::at;

const PAID: &str = "
steps:
  - id: paid
    type: wait.event
    eventName: PAID
    correlation: { event: event.order.id, run: payload.order }
    filter: event.cents > 10
  - { id: done, type: control.return, value: { $expr: vars.paid.cents } }
";

fn refused(result: Result<(), Rejected>) -> String {
    match result {
        Err(Rejected::Refused(Refusal::GuardRejected { verdicts })) => verdicts[0].guard.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn run_takes_only_events_with_its_correlation_key() {
    let mut world = World::start(PAID, json!({"order": 7}));
    let paid = |order: Value, cents: u32| json!({"order": {"id": order}, "cents": cents});
    assert_eq!(refused(world.signal("PAID", paid(json!(8), 100))), "correlation `event.order.id`");
    assert_eq!(refused(world.signal("PAID", json!({"cents": 100}))), "correlation `event.order.id`");
    assert_eq!(refused(world.signal("PAID", paid(json!("7"), 100))), "correlation `event.order.id`");
    assert_eq!(refused(world.signal("PAID", paid(json!(7), 10))), "`event.cents > 10`");
    world.signal("PAID", paid(json!(7.0), 11)).unwrap();
    assert_eq!(world.output(), json!(11));
}

#[test]
fn correlation_key_is_stored_with_the_wait() {
    let world = World::start(PAID, json!({"order": 7}));
    let open = open_waits(&world.definition, &world.snapshot);
    let event = open[0].event.clone().unwrap();
    assert_eq!((event.name.as_str(), event.key.clone(), event.is_filtered), ("PAID", Some(json!(7)), true));
    assert_eq!(event.topic(), topic("PAID", Some("event.order.id"), Some(&json!(7.0))));
    assert_ne!(event.topic(), topic("PAID", Some("event.order.id"), Some(&json!("7"))));
    assert_ne!(event.topic(), topic("PAID", Some("event.order"), Some(&json!(7))));
    let activation = &world.snapshot.activations()[0];
    assert_eq!(awaited_event(&world.definition, activation), Some(event));
    assert_eq!(activation.locals["correlation"], json!(7));
}

#[test]
fn topics_with_one_name_and_key_expression_are_adjacent() {
    let (from, before) = name_range("PAID");
    let all = [
        topic("PAID", None, None),
        topic("PAID", None, Some(&json!(1))),
        topic("PAID", Some("event.a"), Some(&json!(1))),
        topic("PAID", Some("event.b"), Some(&json!({"x": [1, 2.5]}))),
    ];
    for one in &all {
        assert!(*one >= from && *one < before, "{one:?}");
    }
    for other in [topic("PAI", None, None), topic("PAID2", None, None), topic("PAIDX", None, None)] {
        assert!(other < from || other >= before, "{other:?}");
    }
    let next = after(&all[2]).unwrap();
    assert!(topic("PAID", Some("event.a"), Some(&json!("zzz"))) < next);
    let (low, high) = if all[2] < all[3] { (&all[2], &all[3]) } else { (&all[3], &all[2]) };
    assert!(after(low).unwrap() <= *high && after(high).unwrap() > *high);
}

/// Regression: one branch changes the variable that the wait in the other branch uses for its correlation.
#[test]
fn correlation_key_is_fixed_when_the_wait_begins() {
    let text = "
steps:
  - { id: before, type: vars.set, values: { order: 1 } }
  - id: both
    type: control.parallel
    branches:
      changes:
        - { id: go, type: wait.signal, signal: GO }
        - { id: other, type: vars.set, values: { order: 2 } }
      waits:
        - { id: paid, type: wait.event, eventName: PAID, correlation: { event: event.order, run: vars.order } }
  - { id: done, type: control.return, value: { $expr: vars.paid.order } }
";
    let mut world = World::start(text, json!({})).run();
    world.signal("GO", Value::Null).unwrap();
    assert_eq!(world.vars()["order"], json!(2));
    refused(world.signal("PAID", json!({"order": 2})));
    world.signal("PAID", json!({"order": 1})).unwrap();
    assert_eq!(world.output(), json!(1));
}

#[test]
fn undefined_correlation_key_is_an_error_of_the_step() {
    let text = "
steps:
  - id: try
    type: control.try
    body: [{ id: paid, type: wait.event, eventName: PAID, correlation: { event: event.order, run: payload.order } }]
    catch: { as: problem, steps: [{ id: no, type: control.return, value: { $expr: problem.message } }] }
";
    let world = World::start(text, json!({})).run();
    let said = world.output();
    assert!(said.as_str().unwrap().contains("correlation of place `paid`"), "{said}");
}

#[test]
fn correlation_may_omit_the_event_expression() {
    let text = "
steps:
  - { id: paid, type: wait.event, eventName: PAID, correlation: { run: payload.order } }
";
    let mut world = World::start(text, json!({"order": 7}));
    let event = open_waits(&world.definition, &world.snapshot)[0].event.clone().unwrap();
    assert_eq!(event.topic(), topic("PAID", None, Some(&json!(7))));
    world.signal("PAID", json!({})).unwrap();
    assert!(world.snapshot.is_terminal());
    let found =
        problems("steps: [{ id: a, type: wait.event, eventName: X, correlation: { event: event.id } }]");
    assert_eq!(found.0[0].code, "missing");
}

fn match_trigger(definition: &Definition, trigger: usize, data: &Value) -> TriggerMatch {
    let meta = json!({"source": "shop", "id": "1", "name": "PAID"});
    let started = definition.match_trigger(trigger, Occurrence { data, meta: &meta, now: at(5) });
    started.unwrap_or_else(|error| panic!("{error}"))
}

const STARTED: &str = "
triggers:
  - { type: event, eventName: PAID, filter: 'event.cents > 100 and meta.source = \"shop\"', correlation: event.order }
  - { id: mapped, type: event, event: PAID, input: { order: { $expr: event.order }, from: { $expr: meta.source } } }
  - { id: nightly, type: schedule, cron: '0 3 * * *', timezone: Europe/Vienna, missed: all, overlap: skip }
  - { id: hook, type: webhook, path: /shop/orders/, secret: { $secret: HOOK }, signature: github }
  - { id: own, type: webhook, path: own, signature: { header: X-Sig, prefix: 'sha256=', id: X-Id } }
  - type: manual
steps: [{ id: done, type: control.return }]
";

#[test]
fn triggers_are_part_of_the_definition() {
    let definition = document(STARTED).definition().clone();
    let ids: Vec<_> = definition.triggers().iter().map(|trigger| trigger.id.to_string()).collect();
    assert_eq!(ids, ["trigger1", "mapped", "nightly", "hook", "own", "trigger6"]);
    let text = |text: &str| Some(text.to_owned());
    let schedule = OnSchedule {
        cron: "0 3 * * *".to_owned(),
        timezone: text("Europe/Vienna"),
        missed: text("all"),
        overlap: text("skip"),
    };
    assert_eq!(definition.triggers()[2].on, TriggerKind::Schedule(schedule));
    let hook = OnWebhook {
        path: "shop/orders".to_owned(),
        secret: text("HOOK"),
        signature: Signature::Github,
        filter: None,
        correlation: None,
    };
    assert_eq!(definition.triggers()[3].on, TriggerKind::Webhook(hook));
    let again = Definition::from_canonical(&definition.canonical()).unwrap();
    assert_eq!((again.hash(), again.triggers()), (definition.hash(), definition.triggers()));
}

#[test]
fn trigger_match_gives_the_input_or_the_failed_filter() {
    let definition = document(STARTED).definition().clone();
    let paid = |cents: u32| json!({"order": "o-1", "cents": cents});
    let begins = TriggerMatch::Starts { input: paid(101), key: Some(json!("o-1")) };
    assert_eq!(match_trigger(&definition, 0, &paid(101)), begins);
    let TriggerMatch::Filtered(Filtered { filter, values, error }) =
        match_trigger(&definition, 0, &paid(100))
    else {
        panic!("it is to be filtered")
    };
    assert!(filter.starts_with("event.cents > 100"), "{filter}");
    assert_eq!((Value::Object(values), error), (json!({"cents": 100}), None));
    let TriggerMatch::Filtered(filtered) = match_trigger(&definition, 0, &json!({"cents": "many"})) else {
        panic!("it is to be filtered")
    };
    assert!(filtered.error.is_some(), "{filtered:?}");
    let mapped = json!({"order": "o-1", "from": "shop"});
    assert_eq!(match_trigger(&definition, 1, &paid(1)), TriggerMatch::Starts { input: mapped, key: None });
    let call = json!({"body": {"a": 1}, "headers": {}});
    assert_eq!(
        match_trigger(&definition, 3, &call),
        TriggerMatch::Starts { input: json!({"a": 1}), key: None }
    );
    let data = json!({"cents": 200});
    let occurrence = Occurrence { data: &data, meta: &json!({"source": "shop"}), now: at(5) };
    let undefined = definition.match_trigger(0, occurrence).unwrap_err().to_string();
    assert!(undefined.contains("correlation of trigger `trigger1`"), "{undefined}");
}

#[test]
fn mistakes_in_a_trigger_are_reported_at_their_line() {
    for (trigger, code, line) in [
        ("{ type: event }", "missing", 2),
        ("{ type: event, eventName: X, filter: 'event.(' }", "badExpression", 2),
        ("{ type: event, eventName: X, filter: payload.x }", "unknownName", 2),
        ("{ type: webhook }", "missing", 2),
        ("{ type: webhook, path: ../etc }", "value", 2),
        ("{ type: webhook, path: a b }", "value", 2),
        ("{ type: webhook, path: a, signature: md5 }", "type", 2),
        ("{ type: webhook, path: a, secret: 5 }", "type", 2),
        ("{ type: schedule }", "missing", 2),
        ("{ type: evnt, eventName: X }", "value", 2),
        ("{ id: a/b, type: event, eventName: X }", "badTrigger", 1),
        ("{ type: event, eventName: X, filtr: 1 }", "unknownField", 2),
        ("{ type: schedule, cron: '* * * * *', input: { at: { $expr: event.x } } }", "badTrigger", 1),
    ] {
        let text = format!("triggers:\n  - {trigger}\nsteps: [{{ id: done, type: control.return }}]\n");
        let found = problems(&text);
        assert_eq!(found.0[0].code, code, "{trigger}: {found}");
        assert!(found.0[0].at.line >= line, "{trigger}: {found}");
    }
}
