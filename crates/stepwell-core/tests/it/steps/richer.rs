//! Durations with units, `control.switch`, loops over pages, failure codes, the timeout of a run, and warnings.

use serde_json::{Value, json};
use stepwell_core::document::{ActionFacts, SourceProblem};
use stepwell_core::{Failure, Limits};

use super::{World, document, problems};
use crate::driver::at;

/// A document with one step, whose last fields are given.
fn step(fields: &str) -> String {
    format!("steps:\n  - {{ id: nap, {fields} }}\n")
}

#[test]
fn duration_without_unit_is_refused_with_both_readings() {
    for (text, told) in [
        (
            step("type: wait.signal, signal: GO, timeout: 1000, onTimeout: []"),
            "`timeout: 1000` has no unit: write `1000ms` or `1000s`",
        ),
        (step("type: wait.sleep, for: 0.5"), "`for: 0.5` has no unit: write `0.5ms` or `0.5s`"),
        (step("type: wait.sleep, for: '30'"), "`for: 30` has no unit"),
        (step("type: action.call, action: log, retry: { attempts: 1, delay: 2 }"), "`delay: 2` has no unit"),
        (
            step("type: action.call, action: log, retry: { attempts: 1, maxDelay: 2 }"),
            "`maxDelay: 2` has no unit",
        ),
        (format!("timeout: 60\n{}", step("type: wait.sleep, for: 1s")), "`timeout: 60` has no unit"),
        (step("type: wait.sleep, for: -1"), "must be a duration with a unit"),
        (step("type: wait.sleep, for: soon"), "must be a duration with a unit"),
        (step("type: wait.sleep, for: 1s, forMs: 3"), "`forMs` means the same as `for`"),
        (step("type: wait.sleep, forMs: 1s"), "`forMs` must be a number without a unit"),
    ] {
        let found = problems(&text).to_string();
        assert!(found.contains(told), "{text}: {found}");
    }
}

#[test]
fn durations_with_units_and_zero_are_accepted() {
    for (fields, ms) in [
        ("for: 10ms", 10),
        ("for: PT1H", 3_600_000),
        ("for: 0", 1),
        ("for: 0s", 1),
        ("forMs: 250", 250),
        ("forSeconds: 1.5", 1_500),
        ("forMs: { $expr: payload.n * 2 }", 200),
        ("forSeconds: { $expr: payload.n }", 100_000),
        ("for: { $expr: '$string(payload.n) & \"ms\"' }", 100),
        ("for: { $expr: '0' }", 0),
    ] {
        let world = World::start(&step(&format!("type: wait.sleep, {fields}")), json!({"n": 100})).run();
        assert_eq!((world.stopped.clone(), world.now), (None, at(ms)), "{fields}");
    }
    document(&step(
        "type: action.call, action: log, timeoutMs: 50, retry: { attempts: 2, delayMs: 0, maxDelaySeconds: 3 }",
    ));
}

#[test]
fn computed_duration_without_unit_names_its_step() {
    let text = "steps: [{ id: first, type: action.call, action: log }, { id: nap, type: wait.sleep, for: { $expr: payload.n } }]";
    let world = World::start(text, json!({"n": 1000})).run();
    let why = world.stopped.expect("a bare number is an error").message;
    assert!(why.contains("`nap`") && why.contains("`1000ms` or `1000s`"), "{why}");
}

const SWITCH: &str = "
steps:
  - id: route
    type: control.switch
    value: { $expr: payload.kind }
    cases:
      - { when: invoice, steps: [{ id: a, type: vars.set, values: { way: invoice } }] }
      - { when: [order, 7, null], steps: [{ id: b, type: vars.set, values: { way: list } }] }
      - { when: { $expr: payload.cents > 100 }, steps: [{ id: c, type: vars.set, values: { way: large } }] }
      - { when: { a: 1 }, steps: [] }
    default: [{ id: d, type: vars.set, values: { way: other } }]
  - { id: done, type: control.return, value: { $expr: vars.way ?? \"none\" } }
";

#[test]
fn switch_executes_the_first_case_that_applies() {
    for (payload, way) in [
        (json!({"kind": "invoice", "cents": 500}), "invoice"),
        (json!({"kind": "order", "cents": 0}), "list"),
        (json!({"kind": 7, "cents": 0}), "list"),
        (json!({"kind": null, "cents": 0}), "list"),
        (json!({"kind": "else", "cents": 500}), "large"),
        (json!({"kind": {"a": 1}, "cents": 0}), "none"),
        (json!({"kind": "else", "cents": 0}), "other"),
    ] {
        assert_eq!(World::start(SWITCH, payload.clone()).run().output(), json!(way), "{payload}");
    }
    let world = World::start(SWITCH, json!({"cents": 0})).run();
    let why = world.stopped.expect("an undefined value is an error").message;
    assert!(why.contains("`route.case1`") && why.contains("kind"), "{why}");
}

#[test]
fn switch_cases_are_branches_and_mistakes_are_reported() {
    let outline = document(SWITCH).outline();
    let ways: Vec<_> =
        outline.ways.iter().filter(|way| way.step == "route").map(|way| way.way.as_str()).collect();
    assert_eq!(ways, ["case1", "case2", "case3", "case4", "default"]);
    for (fields, told) in [
        ("type: control.switch, value: { $expr: payload.n }", "needs `cases`"),
        ("type: control.switch, value: { $expr: payload.n }, cases: []", "`cases` is empty"),
        ("type: control.switch, value: 3, cases: [{ when: 3, steps: [] }]", "`value` must be an expression"),
        ("type: control.switch, cases: [{ when: 3, steps: [] }]", "the switch has no `value`"),
        ("type: control.switch, value: { $expr: payload.n }, cases: [{ when: [], steps: [] }]", "empty list"),
        ("type: control.switch, value: { $expr: payload.n }, cases: [{ steps: [] }]", "a case needs `when`"),
        (
            "type: control.switch, value: { $expr: payload.n }, cases: [{ when: { $expr: payload.b }, steps: [] }]",
            "`value` has no effect",
        ),
        (
            "type: control.switch, value: { $expr: payload.n }, saveAs: x, cases: [{ when: 1, steps: [] }]",
            "`saveAs` has no effect",
        ),
    ] {
        let found = problems(&step(fields)).to_string();
        assert!(found.contains(told), "{fields}: {found}");
    }
}

/// Returns one page of a list of 7 numbers, 3 at a time.
fn page(input: &Value) -> Result<Value, Failure> {
    let from =
        input["cursor"].as_str().map_or(0, |cursor| cursor.parse().expect("it is the action's cursor"));
    let items: Vec<_> = (from..7).take(3).collect();
    let next = (from + 3 < 7).then(|| (from + 3).to_string());
    Ok(json!({ "items": items, "next_cursor": next }))
}

fn pages(more: &str, body: &str) -> World {
    let result = if more.contains("saveAs") {
        "vars.all"
    } else if body.contains("seen") {
        "vars.seen"
    } else {
        "'1'"
    };
    let text = format!(
        "
steps:
  - id: all
    type: control.forEach
    pages: {{ action: page, input: {{ size: 3 }} }}
    indexVar: n
{more}
    body:
{body}
  - {{ id: done, type: control.return, value: {{ $expr: {result} }} }}
"
    );
    World::start(&text, json!({})).action("page", page)
}

#[test]
fn loop_over_pages_executes_every_item_in_order() {
    let body = "      - { id: one, type: action.call, action: one, input: { item: { $expr: item }, n: { $expr: n } } }";
    let world = pages("    saveAs: all\n    result: { $expr: item * 10 }", body).run();
    assert_eq!(world.output(), json!([0, 10, 20, 30, 40, 50, 60]));
    let given: Vec<_> = world.called("page").into_iter().cloned().collect();
    assert_eq!(
        given,
        [json!({"size": 3}), json!({"size": 3, "cursor": "3"}), json!({"size": 3, "cursor": "6"})]
    );
    let seen: Vec<_> = world.called("one").into_iter().cloned().collect();
    let expected: Vec<_> = (0..7).map(|n| json!({"item": n, "n": n})).collect();
    assert_eq!(seen, expected);
}

#[test]
fn loop_over_pages_supports_break_continue_and_item_errors() {
    let seen = "      - { id: note, type: vars.set, values: { seen: { $expr: '$exists(vars.seen) ? $append(vars.seen, item) : [item]' } } }";
    let skips = format!(
        "      - {{ id: skip, type: control.continue, condition: item = 1 }}\n      - {{ id: stop, type: control.break, condition: item = 4 }}\n{seen}"
    );
    let world = pages("", &skips).run();
    assert_eq!((world.output(), world.called("page").len()), (json!([0, 2, 3]), 2));
    let fails = "      - { id: bad, type: control.fail, condition: item = 4, code: odd }\n      - { id: ok, type: action.call, action: one, input: { $expr: item } }";
    let world = pages("    onItemError: continue\n    saveAs: all", fails).run();
    assert_eq!(world.output(), json!([0, 1, 2, 3, 5, 6]));
    let world = pages("    onItemError: collect\n    saveAs: all", fails).run();
    assert_eq!(world.output()[4]["error"]["code"], json!("odd"));
    let world = pages("    maxItems: 5", seen).run();
    assert_eq!(world.stopped.map(|failure| failure.code), Some("tooManyRounds".to_owned()));
}

#[test]
fn loop_over_pages_keeps_one_page_in_the_snapshot() {
    let text = "
steps:
  - id: all
    type: control.forEach
    pages: { action: page, input: {}, items: found.rows, cursor: next, retry: 2 }
    body: [{ id: one, type: action.call, action: one, input: { $expr: item.id } }]
";
    let mut largest = Vec::new();
    for total in [200, 3_000] {
        let rows = move |input: &Value| {
            let from = input["cursor"].as_u64().unwrap_or(0);
            let rows: Vec<_> = (from..total).take(100).map(|id| json!({"id": id})).collect();
            Ok(
                json!({"found": {"rows": rows}, "next": if from + 100 < total { json!(from + 100) } else { Value::Null }}),
            )
        };
        let sizes = std::rc::Rc::new(std::cell::Cell::new(0_usize));
        let mut world = World::start(text, json!({})).action("page", rows);
        let seen = sizes.clone();
        let mut rounds = 0_u64;
        while !world.snapshot.is_terminal() && world.stopped.is_none() {
            world.step();
            rounds += 1;
            if rounds.is_multiple_of(50) || rounds < 20 {
                let bytes = world.snapshot.encode(&Limits::default()).expect("it fits").len();
                seen.set(seen.get().max(bytes));
            }
        }
        assert_eq!(world.called("one").len() as u64, total, "{:?}", world.stopped);
        world.calls.clear();
        largest.push(sizes.get());
    }
    assert!(largest[1] < largest[0] + 200, "the snapshot must not grow with the list: {largest:?}");
}

#[test]
fn page_with_the_same_cursor_or_without_items_is_an_error() {
    let body = "      - { id: one, type: action.call, action: one, input: {} }";
    let stuck = pages("", body).action("page", |_| Ok(json!({"items": [1], "next_cursor": "x"}))).run();
    assert_eq!(stuck.stopped.map(|failure| failure.code), Some("repeatedCursor".to_owned()));
    let lost = pages("", body).action("page", |_| Ok(json!({"rows": []}))).run();
    let why = lost.stopped.expect("the page has no items").message;
    assert!(why.contains("`all`") && why.contains("items"), "{why}");
    for (text, told) in [
        ("type: control.forEach, body: [{ type: vars.set, values: { a: 1 } }]", "needs `items`, or `pages`"),
        (
            "type: control.forEach, items: [1], pages: { action: a }, body: [{ type: vars.set, values: { a: 1 } }]",
            "`items` or `pages`, not both",
        ),
        (
            "type: control.forEach, pages: { action: a }, parallel: 3, body: [{ type: vars.set, values: { a: 1 } }]",
            "`parallel` is not possible",
        ),
        (
            "type: control.forEach, pages: { action: a }, itemVar: cursor, body: [{ type: vars.set, values: { a: 1 } }]",
            "choose another name",
        ),
        (
            "type: control.forEach, pages: { action: a, items: '1 +' }, body: [{ type: vars.set, values: { a: 1 } }]",
            "must be the path of a field",
        ),
        (
            "type: control.forEach, pages: { action: a, input: { $expr: payload } }, body: [{ type: vars.set, values: { a: 1 } }]",
            "every page would be the first one",
        ),
    ] {
        let found = problems(&step(text)).to_string();
        assert!(found.contains(told), "{text}: {found}");
    }
}

#[test]
fn listed_codes_match_in_any_style_and_by_http_status() {
    let caught = |codes: &str, failure: &Failure| {
        let text = format!(
            "
steps:
  - id: safe
    type: control.try
    body: [{{ id: call, type: action.call, action: call }}]
    catch: {{ codes: {codes}, steps: [{{ id: back, type: control.return, value: {{ $expr: error.status ?? error.code }} }}] }}
"
        );
        let failure = failure.clone();
        let world = World::start(&text, json!({})).action("call", move |_| Err(failure.clone())).run();
        world.stopped.is_none().then(|| world.output())
    };
    let conflict = Failure::new("conflict", "changed").non_retryable();
    assert_eq!(caught("[CONFLICT]", &conflict), Some(json!("conflict")));
    assert_eq!(caught("[NOT_FOUND]", &conflict), None);
    let invalid = Failure::new("invalidInput", "wrong").non_retryable();
    assert_eq!(caught("[VALIDATION_ERROR]", &invalid), Some(json!("invalidInput")));
    let missing = Failure::new("httpStatus", "404").non_retryable().status(404);
    for codes in ["[http404]", "[HTTP_404]", "http4xx", "[http500, httpStatus]"] {
        assert_eq!(caught(codes, &missing), Some(json!(404)), "{codes}");
    }
    assert_eq!(caught("[http5xx, http400]", &missing), None);
}

#[test]
fn retry_on_a_listed_status_repeats_a_final_failure() {
    let retry = "{ attempts: 2, delay: 1s, retryOn: [http404, BUSY] }";
    let block = "steps:\n  - { id: block, type: control.if, condition: true, retry: RETRY, then: [{ id: nap, type: action.call, action: call }] }\n";
    for text in
        [step(&format!("type: action.call, action: call, retry: {retry}")), block.replace("RETRY", retry)]
    {
        for (failure, calls) in [
            (Failure::new("httpStatus", "404").non_retryable().status(404), 3),
            (Failure::new("httpStatus", "403").non_retryable().status(403), 1),
            (Failure::new("busy", "busy"), 3),
            (Failure::new("busy", "busy").non_retryable(), 1),
        ] {
            let given = failure.clone();
            let world = World::start(&text, json!({})).action("call", move |_| Err(given.clone())).run();
            assert_eq!(world.called("call").len(), calls, "{failure:?} {text}");
        }
    }
}

#[test]
fn timeout_of_the_document_is_part_of_the_definition() {
    let sleep = step("type: wait.signal, signal: GO");
    assert_eq!(document(&format!("timeout: P1D\n{sleep}")).definition().timeout_ms(), Some(86_400_000));
    assert_eq!(document(&format!("timeoutSeconds: 90\n{sleep}")).definition().timeout_ms(), Some(90_000));
    assert_eq!(document(&format!("timeout: 0\n{sleep}")).definition().timeout_ms(), None);
    let computed = problems(&format!("timeout: {{ $expr: '\"1s\"' }}\n{sleep}")).to_string();
    assert!(computed.contains("must be a fixed duration"), "{computed}");
    let sealed = problems(&format!("timeout: P1D\nstrategy: sealed\n{sleep}")).to_string();
    assert!(sealed.contains("line 1") && sealed.contains("timeout of the whole run"), "{sealed}");
}

fn facts(action: &str) -> Option<ActionFacts> {
    let codes = |codes: &[&str]| Some(codes.iter().map(|code| (*code).to_owned()).collect());
    match action {
        "store.set" => Some(ActionFacts { codes: codes(&["conflict"]), lists: Vec::new() }),
        "http.request" => Some(ActionFacts { codes: codes(&["httpStatus", "connect"]), lists: Vec::new() }),
        "links.lookup" => Some(ActionFacts { codes: codes(&[]), lists: vec!["matches".to_owned()] }),
        _ => None,
    }
}

fn warned(text: &str) -> Vec<SourceProblem> {
    document(text).warnings_with(&facts)
}

#[test]
fn code_that_nothing_raises_is_a_warning_with_its_line() {
    let text = |action: &str, codes: &str| {
        format!(
            "steps:
  - id: safe
    type: control.try
    body: [{{ id: call, type: action.call, action: {action} }}]
    catch:
      codes: [{codes}]
      steps: []
"
        )
    };
    let found = warned(&text("store.set", "CONFLICT, conflit, timeout"));
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(
        (found[0].code.as_str(), found[0].at.line, found[0].step.as_deref()),
        ("unraisedCode", 6, Some("safe"))
    );
    assert!(
        found[0].message.contains("`conflit`") && found[0].message.contains("did you mean `conflict`"),
        "{found:?}"
    );
    assert_eq!(warned(&text("http.request", "http404, HTTP_5xx, connect")), []);
    assert_eq!(warned(&text("store.set", "http404")).len(), 1);
    assert_eq!(warned(&text("own.action", "whatever")), []);
    let retried = step("type: action.call, action: store.set, retry: { attempts: 1, retryOn: [busy] }");
    assert_eq!(warned(&retried)[0].code, "unraisedCode");
    let failing = "steps:\n  - { id: t, type: control.try, body: [{ type: control.fail, code: odd }], catch: { codes: [ODD, even], steps: [] } }\n";
    let found = document(failing).warnings();
    assert!(found.len() == 1 && found[0].message.contains("`even`"), "{found:?}");
}

#[test]
fn loop_over_a_first_page_is_a_warning() {
    let text = |more: &str| {
        format!(
            "steps:
  - {{ id: found, type: action.call, action: links.lookup, input: {{ namespace: a }} }}
  - {{ id: each, type: control.forEach, items: {{ $expr: vars.found.matches }}, body: [{{ type: action.call, action: own, input: {{ $expr: item }} }}] }}
{more}"
        )
    };
    let found = warned(&text(""));
    assert_eq!((found.len(), found[0].code.as_str(), found[0].at.line), (1, "firstPageOnly", 3), "{found:?}");
    assert!(found[0].message.contains("pages: { action: links.lookup"), "{found:?}");
    assert_eq!(warned(&text("  - { type: control.return, value: { $expr: vars.found.next_cursor } }\n")), []);
}

#[test]
fn setting_without_effect_is_a_warning() {
    for (fields, told) in [
        ("type: action.call, action: own, retry: { attempts: 0, delay: 5s }", "`attempts` is 0"),
        ("type: action.call, action: own, retry: { attempts: 1, delay: 5m }", "set `maxDelay` too"),
        (
            "type: control.forEach, items: [1], result: 3, body: [{ type: action.call, action: own }]",
            "`result` has no effect",
        ),
        (
            "type: control.forEach, items: [1], onItemError: collect, body: [{ type: action.call, action: own }]",
            "write `continue`",
        ),
        (
            "type: control.switch, value: { $expr: payload.n }, cases: [{ when: 1, steps: [] }, { when: [2, 1], steps: [] }]",
            "an earlier case",
        ),
    ] {
        let found = document(&step(fields)).warnings();
        assert!(
            found.len() == 1 && found[0].message.contains(told) && found[0].at.line == 2,
            "{fields}: {found:?}"
        );
    }
}
