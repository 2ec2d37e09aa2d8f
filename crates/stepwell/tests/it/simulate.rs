//! The simulator: it runs a document without side effects, checks its test cases, and turns a finished run into a case.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use stepwell::core::document::cases::{Case, CaseOutcome};
use stepwell::core::{Limits, WorkflowSource};
use stepwell::simulate::{AnswerSource, Bounds, Simulated, SimulatedStep, SimulationError, Uncovered};
use stepwell::store::RunQuery;
use stepwell::{ActionError, Cx, Signal, Simulation, Start};

use crate::kit;

const MAILS: &str = "
name: mails
trigger: { type: event, eventName: ORDERED, input: { to: { $expr: event.customer.email }, cents: { $expr: event.cents } } }
steps:
  - { id: count, type: action.call, action: store.increment, input: { namespace: mails, key: { $expr: payload.to } } }
  - { id: sum, type: vars.set, values: { euros: { $expr: payload.cents / 100 } } }
  - id: large
    type: control.if
    condition: payload.cents > 1000
    then:
      - { id: asked, type: wait.signal, signal: GO, timeout: P1D, onTimeout: [{ id: late, type: control.return, value: late }] }
    else:
      - { id: nap, type: wait.sleep, for: PT1H }
  - id: mail
    type: action.call
    action: email.send
    retry: { attempts: 2, delay: 10s }
    input: { to: [{ $expr: payload.to }], subject: { $expr: '\"No. \" & $string(vars.count.value)' }, key: { $secret: MAIL_KEY } }
  - { id: done, type: control.return, value: { mail: { $expr: vars.mail.id } } }
";

fn document(text: &str) -> WorkflowSource {
    WorkflowSource::read(text, Some("test")).unwrap_or_else(|problems| panic!("{problems}"))
}

/// A document with a list of test cases.
fn with_tests(text: &str, tests: &str) -> WorkflowSource {
    document(&format!("{text}\ntests:\n{tests}"))
}

/// The failures of each test case of a document.
async fn failures(document: &WorkflowSource) -> Vec<Vec<String>> {
    let report = Simulation::of(document).test_all(document.cases()).await;
    assert_eq!(report.passed(), report.cases.iter().all(|case| case.failures.is_empty()));
    report.cases.into_iter().map(|case| case.failures).collect()
}

async fn simulated(document: &WorkflowSource) -> Simulated {
    Simulation::of(document).run(&document.cases()[0]).await.unwrap()
}

fn step<'s>(simulated: &'s Simulated, id: &str) -> &'s SimulatedStep {
    simulated
        .steps
        .iter()
        .find(|step| step.step == id)
        .unwrap_or_else(|| panic!("{id}: {:#?}", simulated.steps))
}

#[tokio::test]
async fn every_step_is_shown_with_its_input_and_output() {
    let tests = "
  - name: a small order is thanked for
    now: 2026-03-01T08:00:00Z
    input: { to: ann@example.com, cents: 500 }
    given: { store: [{ namespace: mails, key: ann@example.com, value: 6 }] }
    mocks: { mail: [{ error: { code: connect, message: down } }, { output: { id: { $expr: '\"m-\" & $string(attempt)' } } }] }
";
    let shown = simulated(&with_tests(MAILS, tests)).await;
    let steps: Vec<_> = shown.steps.iter().map(|step| step.step.as_str()).collect();
    assert_eq!(steps, ["count", "sum", "large", "nap", "mail", "mail", "done"]);
    assert_eq!(step(&shown, "count").input, Some(json!({"namespace": "mails", "key": "ann@example.com"})));
    assert_eq!(step(&shown, "count").output.as_ref().unwrap()["value"], json!(7));
    assert_eq!(step(&shown, "count").how, Some(AnswerSource::Real));
    assert_eq!(step(&shown, "sum").output, Some(json!({"euros": 5})));
    assert_eq!(step(&shown, "large").way.as_deref(), Some("else"));
    let mails: Vec<_> = shown.steps.iter().filter(|step| step.step == "mail").collect();
    assert_eq!(mails[0].error.as_ref().map(|error| error.code.as_str()), Some("connect"));
    assert_eq!((mails[1].attempt, &mails[1].output), (Some(2), &Some(json!({"id": "m-2"}))));
    assert_eq!(mails[1].at.to_string(), "2026-03-01T09:00:10Z");
    let secret = &mails[1].input.as_ref().unwrap()["key"];
    assert_eq!((secret, mails[1].how), (&json!({"$secret": "MAIL_KEY"}), Some(AnswerSource::Mocked)));
    assert_eq!((shown.outcome, &shown.result), (CaseOutcome::Completed, &Some(json!({"mail": "m-2"}))));
    assert_eq!(shown.vars["count"]["value"], json!(7));
    let written: Vec<_> = shown.store.iter().map(|key| (key.key.as_str(), &key.value)).collect();
    assert_eq!(written, [("ann@example.com", &json!(7))]);
}

#[tokio::test]
async fn simulation_is_deterministic() {
    let tests =
        "  - { name: one, input: { to: a@example.com, cents: 1 }, mocks: { mail: { output: { id: 1 } } } }";
    let document = with_tests(MAILS, tests);
    assert_eq!(simulated(&document).await, simulated(&document).await);
}

#[tokio::test]
async fn simulated_time_stops_at_a_wait() {
    let tests = "
  - name: an order is asked about
    input: { to: ann@example.com, cents: 5000 }
    expect: { waits: [asked] }
  - name: somebody says go
    input: { to: ann@example.com, cents: 5000 }
    mocks: { email.send: { output: { id: m-1 } } }
    happens: [{ after: PT23H }, { signal: GO, payload: { by: bob } }]
    expect: { result: { mail: m-1 }, vars: { asked: { by: bob } } }
  - name: nobody says anything
    input: { to: ann@example.com, cents: 5000 }
    happens: [{ after: PT23H }, { after: 1h }]
    expect: { result: late }
  - name: nobody wants it any more
    input: { to: ann@example.com, cents: 5000 }
    happens: [{ cancel: true }]
    expect: { outcome: cancelled }
";
    assert_eq!(failures(&with_tests(MAILS, tests)).await, vec![Vec::<String>::new(); 4]);
}

#[tokio::test]
async fn event_starts_a_run_with_the_triggers_input() {
    let tests = "
  - name: an order
    event: { name: ORDERED, data: { customer: { email: ann@example.com }, cents: 5 } }
    mocks: { mail: { output: { id: 1 } } }
    expect: { calls: [{ step: mail, input: { to: [ann@example.com] } }], store: [{ namespace: mails, key: ann@example.com, value: 1 }] }
";
    assert_eq!(failures(&with_tests(MAILS, tests)).await, [Vec::<String>::new()]);
}

#[tokio::test]
async fn unmet_expectation_is_reported() {
    let case = |expect: &str| {
        let mocks = "{ mail: { output: { id: m-1 } } }";
        let tests = format!(
            "  - {{ name: one, input: {{ to: a@example.com, cents: 1 }}, mocks: {mocks}, expect: {expect} }}"
        );
        with_tests(MAILS, &tests)
    };
    let cases = [
        (
            "{ outcome: waiting }",
            "outcome: expected waiting, but the run has completed with {\"mail\":\"m-1\"}",
        ),
        ("{ result: { mail: m-2 } }", "result at /mail: expected \"m-2\", got \"m-1\""),
        ("{ result: {} }", "result at /mail: expected nothing, got \"m-1\""),
        ("{ vars: { euros: 2 } }", "vars.euros: expected 2, got 0.01"),
        ("{ vars: { dollars: 2 } }", "vars.dollars: expected 2, got nothing"),
        (
            "{ store: [{ namespace: mails, key: a@example.com, value: 2 }] }",
            "store mails/a@example.com: expected 2, got 1",
        ),
        (
            "{ calls: [{ step: mail, input: { subject: No. 2 } }] }",
            "calls: input of call 1 (`mail`) at /subject: expected \"No. 2\", got \"No. 1\"",
        ),
        ("{ calls: [{ step: mail }, { step: mail }] }", "calls: call 2 (`mail`) was not made"),
        (
            "{ calls: [{ action: email.send }, { step: count }] }",
            "calls: call 1 should be `email.send`, but step `count` called `store.increment`",
        ),
        ("{ outcome: completed, waits: [asked] }", "waits: expected `asked`, but the run waits at no step"),
        (
            "{ error: { code: x } }",
            "outcome: expected failed, but the run has completed with {\"mail\":\"m-1\"}",
        ),
    ];
    for (expect, told) in cases {
        assert_eq!(failures(&case(expect)).await, [vec![told.to_owned()]], "{expect}");
    }
    assert_eq!(
        failures(&case("{ calls: [{ step: mail, input: { subject: No. 1 } }] }")).await,
        [Vec::<String>::new()]
    );
}

#[tokio::test]
async fn extra_call_and_wrong_error_are_reported() {
    let text = "
steps:
  - { id: each, type: control.forEach, items: [1, 2], body: [{ id: call, type: action.call, action: bell.ring, input: { $expr: '{ \"n\": item }' } }] }
  - { id: fail, type: control.fail, code: broken, message: It is broken. }
";
    let tests = "
  - { name: one, mocks: { bell.ring: {} }, expect: { calls: [{ action: bell.ring }], outcome: failed } }
  - { name: two, mocks: { bell.ring: {} }, expect: { error: { code: whole, message: is whole } } }
  - { name: three, mocks: { bell.ring: {} }, expect: { error: { code: broken, message: is broken } } }
";
    let told = failures(&with_tests(text, tests)).await;
    assert_eq!(
        told[0],
        ["calls: step `call` made an unexpected additional call of `bell.ring` with {\"n\":2}"]
    );
    assert_eq!(
        told[1],
        [
            "error: expected the code `whole`, but it is `broken`: It is broken.",
            "error: the message does not contain `is whole`: It is broken."
        ]
    );
    assert!(told[2].is_empty(), "{told:?}");
}

#[tokio::test]
async fn loop_is_shown_once_and_its_steps_per_iteration() {
    let text = "
steps:
  - { id: each, type: control.forEach, items: [1, 2], body: [{ id: inner, type: control.while, condition: false, body: [{ id: no, type: control.break }] }, { id: set, type: vars.set, values: { x: { $expr: item } } }] }
";
    let shown = simulated(&with_tests(text, "  - { name: one }")).await;
    let steps: Vec<_> = shown.steps.iter().map(|step| (step.step.as_str(), step.output.clone())).collect();
    let set = |x: u32| ("set", Some(json!({"x": x})));
    assert_eq!(steps, [("each", None), ("inner", None), set(1), ("inner", None), set(2)]);
}

#[tokio::test]
async fn unmocked_call_fails_a_test_and_returns_null_in_a_run() {
    let tests = "  - { name: one, input: { to: a@example.com, cents: 1 }, expect: { outcome: failed } }";
    let document = with_tests(MAILS, tests);
    let told = failures(&document).await;
    let one = &told[0][0];
    assert!(
        one.starts_with("step `mail` calls `email.send`, which has no mock; add `mocks: { mail: … }`"),
        "{one}"
    );
    assert!(
        one.contains("\"to\":[\"a@example.com\"]") && one.contains("{\"$secret\":\"MAIL_KEY\"}"),
        "{one}"
    );
    assert_eq!(told[0].len(), 1);
    let shown = simulated(&document).await;
    let mail = step(&shown, "mail");
    assert_eq!((mail.how, &mail.output), (Some(AnswerSource::NotMocked), &Some(Value::Null)));
    assert_eq!(shown.outcome, CaseOutcome::Completed);
}

#[tokio::test]
async fn an_invalid_input_is_a_failed_run() {
    let text = "input: { type: object, required: [to] }\nsteps: [{ id: a, type: control.return }]";
    let document = with_tests(text, "  - { name: one, expect: { error: { code: refused, message: to } } }");
    assert_eq!(failures(&document).await, [Vec::<String>::new()]);
}

#[tokio::test]
async fn commit_conflict_is_shown_as_the_steps_error() {
    let text = "
steps:
  - { id: mark, type: action.call, action: store.set, input: { namespace: n, key: k, value: 1, if_revision: 0 }, onError: [{ id: had, type: control.return, value: { $expr: error.code } }] }
";
    let document = with_tests(
        text,
        "  - { name: one, given: { store: [{ namespace: n, key: k, value: 7 }] }, expect: { result: conflict } }",
    );
    let shown = simulated(&document).await;
    assert_eq!(step(&shown, "mark").error.as_ref().map(|error| error.code.as_str()), Some("conflict"));
    assert_eq!((step(&shown, "mark").output.as_ref(), &shown.store[..]), (None, &[][..]));
    assert_eq!(failures(&document).await, [Vec::<String>::new()]);
}

const CALLS: &str = "
name: parent
steps:
  - { id: other, type: workflow.call, workflow: child, input: { n: 2 }, onError: [{ id: sad, type: control.return, value: { $expr: error.code } }] }
  - { id: begun, type: workflow.start, workflow: child, input: { n: 3 }, key: once }
  - { id: told, type: action.call, action: workflow.signal, input: { run: { $expr: vars.begun.run }, signal: GO } }
  - { id: done, type: control.return, value: { $expr: vars.other } }
";

#[tokio::test]
async fn called_workflow_is_mocked_or_provided() {
    let tests = "
  - { name: it ends well, mocks: { other: { output: { twice: 4 } } }, expect: { result: { twice: 4 }, calls: [{ step: begun }] } }
  - { name: it fails, mocks: { workflow.call: { error: { code: x, message: bad } } }, expect: { result: childrenFailed } }
  - { name: nobody says anything }
";
    let document = with_tests(CALLS, tests);
    let told = failures(&document).await;
    assert_eq!((&told[0], &told[1]), (&Vec::new(), &Vec::new()));
    assert!(told[2][0].starts_with("step `other` calls the workflow `child`, which has no mock"), "{told:?}");
    let child = WorkflowSource::read(
        "name: child\nsteps: [{ id: bell, type: action.call, action: bell.ring }, { id: end1, type: control.return, value: { twice: { $expr: payload.n * 2 } } }]",
        None,
    )
    .unwrap();
    let given = Simulation::of(&document).with(child.definition().clone());
    let shown = given.run(&document.cases()[2]).await.unwrap();
    assert_eq!(shown.result, Some(json!({"twice": 4})));
    assert_eq!(step(&shown, "other").output, Some(json!({"twice": 4})));
    assert_eq!(step(&shown, "bell").workflow.as_deref(), Some("child"));
    assert_eq!(step(&shown, "begun").how, Some(AnswerSource::Real));
}

#[tokio::test]
async fn uncovered_steps_are_reported_with_their_line() {
    let text = "\
steps:
  - { id: maybe, type: vars.set, condition: payload.x, values: { y: 1 } }
  - id: either
    type: control.if
    condition: payload.x
    then: [{ id: here, type: vars.set, values: { y: 2 } }]
    else: [{ id: there, type: vars.set, values: { y: 3 } }]
  - id: tried
    type: control.try
    body:
      - { id: call, type: action.call, action: bell.ring, onError: continue }
      - { id: each, type: control.forEach, items: { $expr: payload.items }, body: [{ id: skip, type: control.continue }] }
      - { id: wait, type: wait.signal, signal: GO, timeout: 1s, onTimeout: [] }
    catch: [{ id: caught, type: control.return }]
";
    let tests =
        "  - { name: one, input: { x: true, items: [] }, mocks: { call: {} }, happens: [{ signal: GO }] }\n";
    let report = Simulation::of(&with_tests(text, tests)).test_all(with_tests(text, tests).cases()).await;
    assert!(report.passed(), "{:?}", report.cases);
    let uncovered: Vec<_> = report
        .coverage
        .uncovered
        .iter()
        .map(|one: &Uncovered| (one.step.as_str(), one.way.as_deref(), one.line))
        .collect();
    let expected = [
        ("maybe", Some("skipped"), 2),
        ("either", Some("else"), 3),
        ("there", None, 7),
        ("tried", Some("catch"), 8),
        ("call", Some("onError"), 11),
        ("skip", None, 12),
        ("each", Some("body"), 12),
        ("wait", Some("onTimeout"), 13),
        ("caught", None, 14),
    ];
    assert_eq!(uncovered, expected);
    assert_eq!((report.coverage.steps.covered, report.coverage.steps.total), (7, 10));
    assert!(!report.coverage.has_every_step());
    let more = "
  - { name: two, input: { x: false, items: [1] }, mocks: { call: { error: { code: x } } }, happens: [{ after: 1s }] }
  - { name: three, input: { x: false, items: { no: list } }, mocks: { call: {} }, happens: [{ signal: GO }] }
  - { name: four, input: { x: false }, mocks: { call: {} } }
";
    let document = with_tests(text, &format!("{tests}{more}"));
    let report = Simulation::of(&document).test_all(document.cases()).await;
    assert_eq!(report.coverage.uncovered, [], "{:#?}", report.cases);
    assert!(
        report.coverage.has_every_step()
            && report.coverage.branches.covered == report.coverage.branches.total
    );
}

#[tokio::test]
async fn endless_loop_is_stopped() {
    let bounds = Bounds { steps: 300, time: Duration::from_secs(60) };
    for body in [
        "{ id: a, type: vars.set, values: { x: 1 } }",
        "{ id: a, type: action.call, action: bell.ring }",
        "{ id: a, type: wait.sleep, for: 1s }",
    ] {
        let document = document(&format!(
            "steps: [{{ id: while, type: control.while, condition: true, maxIterations: 1000000, body: [{body}] }}]"
        ));
        let ended = Simulation::of(&document).bounds(bounds).run(&Case::default()).await;
        let Err(SimulationError::Endless { steps, .. }) = ended else { panic!("{body}: {ended:?}") };
        assert_eq!(steps, 300, "{body}");
    }
    let short = Bounds { steps: u64::MAX, time: Duration::from_millis(50) };
    let document = document(
        "steps: [{ id: while, type: control.while, condition: true, maxIterations: 100000000, body: [{ id: a, type: vars.set, values: { x: 1 } }] }]",
    );
    let ended = Simulation::of(&document).bounds(short).run(&Case::default()).await;
    assert!(matches!(ended, Err(SimulationError::Endless { .. })), "{ended:?}");
    let report = Simulation::of(&document).bounds(bounds).test(&Case::default()).await;
    assert!(!report.passed && report.failures[0].contains("never end"), "{:?}", report.failures);
}

#[tokio::test]
async fn size_limit_fails_the_simulated_run() {
    let document = document("steps: [{ id: a, type: vars.set, values: { x: { $expr: payload.x } } }]");
    let limits = Limits { snapshot_bytes: 8 * 1024, ..Limits::default() };
    let case = Case { input: Some(json!({"x": "x".repeat(5_000)})), ..Case::default() };
    let simulation = Simulation::of(&document);
    assert_eq!(simulation.run(&case).await.unwrap().outcome, CaseOutcome::Completed);
    let simulated = simulation.limits(limits).run(&case).await.unwrap();
    assert_eq!(simulated.outcome, CaseOutcome::Failed, "{simulated:?}");
    assert!(simulated.error.unwrap().message.contains("snapshot_bytes"));
}

#[tokio::test]
async fn simulation_has_no_side_effects() {
    let rung = Arc::new(AtomicUsize::new(0));
    let count = rung.clone();
    let text = "
name: ringer
steps:
  - { id: ring, type: action.call, action: bell.ring, input: { key: { $secret: BELL } } }
  - { id: note, type: action.call, action: store.set, input: { namespace: n, key: k, value: 1 } }
";
    let document = with_tests(text, "  - { name: one, mocks: { ring: { output: 1 } } }");
    let definition = document.definition().clone();
    let engine = kit::start(move |builder| {
        builder.workflow(definition).secret_fields("bell.ring", ["/key"]).action("bell.ring", move |_: Cx| {
            count.fetch_add(1, Ordering::SeqCst);
            async move { Ok::<_, ActionError>(json!(1)) }
        })
    })
    .await
    .unwrap();
    let shown = simulated(&document).await;
    assert_eq!((shown.outcome, shown.store.len()), (CaseOutcome::Completed, 1));
    assert_eq!(rung.load(Ordering::SeqCst), 0);
    let runs =
        engine.store().runs(engine.scope(), RunQuery { limit: 10, ..RunQuery::default() }).await.unwrap();
    assert!(runs.items.is_empty());
    assert_eq!(engine.kv("n").get("k").await.unwrap(), None);
}

#[tokio::test]
async fn finished_run_becomes_a_passing_case() {
    let text = "
name: story
input: { type: object, required: [who] }
steps:
  - { id: count, type: action.call, action: store.increment, input: { namespace: stories, key: all } }
  - { id: risky, type: action.call, action: bell.ring, input: { who: { $expr: payload.who } }, retry: { attempts: 1, delay: 5s }, onError: continue }
  - { id: nap, type: wait.sleep, for: PT1H }
  - { id: first, type: wait.signal, signal: GO, timeout: P2D, onTimeout: [] }
  - { id: second, type: human.task, title: Well?, form: { type: object, required: [ok] }, timeout: P2D }
  - { id: child, type: workflow.call, workflow: helper, input: { n: { $expr: vars.count.value } } }
  - { id: done, type: control.return, value: { ok: { $expr: vars.second.ok }, count: { $expr: vars.count.value }, rang: { $expr: vars.risky.error.code }, helped: { $expr: vars.child } } }
";
    let story = document(text);
    let helper = WorkflowSource::read(
        "name: helper\nsteps: [{ id: a, type: control.return, value: { $expr: payload.n * 10 } }]",
        None,
    )
    .unwrap();
    let definition = story.definition().clone();
    let engine = kit::start(move |builder| {
        builder
            .workflow(definition)
            .workflow(helper.definition().clone())
            .action("bell.ring", |_: Cx, _: Value| async move {
                Err::<Value, _>(ActionError::new("stuck", "the bell does not move"))
            })
    })
    .await
    .unwrap();
    engine.kv("stories").set("all", 41).await.unwrap();
    let run = engine.start(Start::new("story").input(&json!({"who": "ann"}))).await.unwrap();
    engine.advance(Duration::from_secs(5)).await;
    engine.advance(Duration::from_secs(3_600)).await;
    engine.advance(Duration::from_secs(2 * 24 * 3_600)).await;
    engine.advance(Duration::from_secs(60)).await;
    run.signal(Signal::new("second").with(&json!({"ok": true}))).await.unwrap();
    let result = run.result().await.unwrap();
    assert_eq!(result, json!({"ok": true, "count": 42, "rang": "stuck", "helped": 420}));
    let case = run.as_test_case("as it was").await.unwrap();
    let told = Simulation::of(&story).test(&case).await;
    assert_eq!(told.failures, Vec::<String>::new(), "{}", serde_json::to_string_pretty(&case).unwrap());
    // The case can be written into the document and read back.
    let mut value = story.value().clone();
    value["tests"] = json!([case]);
    let written = document(&stepwell::core::document::yaml(&value));
    assert_eq!(written.definition().hash(), story.definition().hash());
    assert_eq!(failures(&written).await, [Vec::<String>::new()]);
    // A different expectation fails.
    let mut other = case.clone();
    other.expect.result = Some(json!({"ok": false}));
    assert!(!Simulation::of(&story).test(&other).await.passed);
    let mut other = case;
    other.mocks.remove("risky");
    assert!(!Simulation::of(&story).test(&other).await.passed);
}

#[tokio::test]
async fn failed_or_waiting_run_becomes_a_case() {
    let text = "
name: short
steps:
  - { id: ring, type: action.call, action: bell.ring, condition: payload.ring }
  - { id: wait, type: wait.signal, signal: GO }
";
    let short = document(text);
    let definition = short.definition().clone();
    let engine = kit::start(move |builder| {
        builder.workflow(definition).action("bell.ring", |_: Cx| async move {
            Err::<Value, _>(ActionError::new("stuck", "the bell does not move").non_retryable())
        })
    })
    .await
    .unwrap();
    for (ring, outcome) in [(true, CaseOutcome::Failed), (false, CaseOutcome::Waiting)] {
        let run = engine.start(Start::new("short").input(&json!({"ring": ring}))).await.unwrap();
        engine.settle().await;
        let case = run.as_test_case("as it is").await.unwrap();
        assert_eq!(case.expect.outcome, outcome);
        assert_eq!(Simulation::of(&short).test(&case).await.failures, Vec::<String>::new());
    }
}

#[tokio::test]
async fn run_with_truncated_history_cannot_become_a_case() {
    let text = "
name: long
steps:
  - { id: each, type: control.forEach, items: [1], parallel: 2, body: [{ id: ring, type: action.call, action: bell.ring }] }
";
    let long = document(text);
    let definition = long.definition().clone();
    let engine = kit::start(move |builder| {
        builder
            .workflow(definition)
            .action("bell.ring", |_: Cx| async move { Ok::<_, ActionError>(json!("ding ".repeat(100_000))) })
    })
    .await
    .unwrap();
    let run = engine.start(Start::new("long").input(&json!({}))).await.unwrap();
    engine.settle().await;
    let error = run.as_test_case("as it was").await.unwrap_err().to_string();
    assert!(error.contains("step `ring`") && error.contains("too long for the history"), "{error}");
}

/// F6: the steps of flows are recorded: a simulation sends nothing, and its run stays durable.
#[tokio::test]
async fn steps_of_flows_are_recorded() {
    let text = "
name: invite
strategy: sealed
steps:
  - { id: change, type: action.call, action: flow.useStrategy, input: { strategy: handle } }
  - { id: send, type: action.call, action: flow.sendOut, input: { outlet: mail, to: ann@example.org } }
  - { id: ask, type: human.task }
";
    let simulated = Simulation::of(&document(text)).run(&Case::default()).await.unwrap();
    assert_eq!((simulated.outcome, &simulated.waits[..]), (CaseOutcome::Waiting, &["ask".to_owned()][..]));
    assert_eq!(simulated.vars["change"], json!({"done": true}));
    assert_eq!(simulated.vars["send"], json!({"sent": "mail"}));
}
