//! The graph of a workflow, with and without the status of a run, and queries that do not change a run.

use serde_json::{Value, json};
use stepwell_core::dispatch::Available;
use stepwell_core::graph::{Graph, OpenWait, WaitKind, open_waits};
use stepwell_core::retry::Retry;
use stepwell_core::spec::{ChildRule, Guard, Place, Quorum, Transition, TransitionTrigger, Wait};
use stepwell_core::{
    ActionResult, Answers, Decision, Input, PlaceStatus, Refusal, Rejected, Spec, available, can_execute,
};

use crate::driver::{Driver, at, build, bytes};

/// A workflow with a fork, a join, waits, children, signals, timers, guards, an action and error places.
fn order() -> Spec {
    let ask = Wait {
        signal: Some("ANSWER".into()),
        form: Some(json!({"type": "object", "properties": {"ok": {"type": "boolean"}}})),
        answerers: vec!["role:manager".to_owned(), "user:ann".to_owned()],
        ..Wait::default()
    };
    let parts = Wait { children: Some(ChildRule::All), error_place: Some("sorry".into()), ..Wait::default() };
    Spec::new("order")
        .step("draft")
        .fork("fork", ["ask", "start"])
        .place("ask", Place::Wait(ask))
        .step("start")
        .place("parts", Place::Wait(parts))
        .join("both", Quorum::All, ["ask", "parts"])
        .step("check")
        .end("done")
        .end("sorry")
        .signal("GO")
        .signal("ANSWER")
        .on_signal("submit", "draft", "GO", "fork")
        .auto("asked", "ask", "both")
        .transition(Transition::new("late", "ask", "sorry").after_ms(60_000))
        .transition(Transition::new("begin", "start", "parts").action("start children").error_place("sorry"))
        .auto("made", "parts", "both")
        .auto("joined", "both", "check")
        .transition(Transition::new("finish", "check", "done").on_signal("GO").when("context.total > 5"))
        .transition(
            Transition::new("refuse", "check", "sorry").on_signal("GO").guard(Guard::named("manager")),
        )
        .transition(
            Transition::new("expire", "check", "sorry")
                .on(TransitionTrigger::Until("context.deadline".into())),
        )
}

fn begun() -> Driver {
    let mut run = Driver::start_with(order(), json!({"total": 1, "deadline": at(90_000)}));
    run.signal("GO", Value::Null);
    run
}

/// A run in `check`, the last place before the ends.
fn checking() -> Driver {
    let mut run = begun();
    let call = run.act(&Input::advance());
    run.done(&call, ActionResult::default());
    run.signal("ANSWER", Value::Null);
    run.run_until_idle();
    assert_eq!(run.places(), ["check"]);
    run
}

#[test]
fn json_graph_has_every_place_and_edge() {
    let graph = serde_json::to_value(Graph::of(&build(order()))).unwrap();
    assert_eq!(graph["workflow"], "order");
    let node = |id: &str, kind: &str, initial: bool| json!({"id": id, "kind": kind, "initial": initial});
    let nodes = json!([
        node("ask", "wait", false),
        node("both", "join", false),
        node("check", "step", false),
        node("done", "end", false),
        node("draft", "step", true),
        node("fork", "fork", false),
        node("parts", "wait", false),
        node("sorry", "end", false),
        node("start", "step", false),
    ]);
    assert_eq!(graph["nodes"], nodes);
    let edges: Vec<_> = graph["edges"].as_array().unwrap().iter().collect();
    assert_eq!(edges.len(), 13);
    for expected in [
        json!({"from": "fork", "to": "ask", "kind": "branch"}),
        json!({"from": "fork", "to": "start", "kind": "branch"}),
        json!({"from": "parts", "to": "sorry", "kind": "error"}),
        json!({"transition": "submit", "from": "draft", "to": "fork", "kind": "signal", "label": "GO"}),
        json!({"transition": "asked", "from": "ask", "to": "both", "kind": "auto"}),
        json!({"transition": "late", "from": "ask", "to": "sorry", "kind": "timer", "label": "after 60000 ms"}),
        json!({"transition": "begin", "from": "start", "to": "parts", "kind": "auto", "label": "/ start children"}),
        json!({"transition": "begin", "from": "start", "to": "sorry", "kind": "error", "label": "on error"}),
        json!({"transition": "finish", "from": "check", "to": "done", "kind": "signal", "label": "GO [`context.total > 5`]"}),
        json!({"transition": "refuse", "from": "check", "to": "sorry", "kind": "signal", "label": "GO [`manager`]"}),
        json!({"transition": "expire", "from": "check", "to": "sorry", "kind": "timer", "label": "until context.deadline"}),
    ] {
        assert!(edges.contains(&&expected), "{expected} is not in {edges:#?}");
    }
}

#[test]
fn json_graph_of_a_run_has_status_and_activation_counts() {
    let run = begun();
    let graph = Graph::with_status(&run.definition, &run.snapshot);
    let status = |id: &str| {
        let node = graph.nodes.iter().find(|node| node.id == *id).unwrap();
        (node.status.unwrap(), node.activations.unwrap())
    };
    use PlaceStatus::{Active, Completed, Idle, Waiting};
    assert_eq!(status("draft"), (Completed, 0));
    assert_eq!(status("fork"), (Completed, 0));
    assert_eq!(status("ask"), (Waiting, 1));
    assert_eq!(status("start"), (Active, 1));
    assert_eq!(status("done"), (Idle, 0));
    let json = serde_json::to_value(&graph).unwrap();
    let ask = json!({"id": "ask", "kind": "wait", "initial": false, "status": "waiting", "activations": 1});
    assert_eq!(json["nodes"][0], ask);
}

#[test]
fn mermaid_draws_the_workflow() {
    insta::assert_snapshot!(Graph::of(&build(order())).to_mermaid(), @r#"
    flowchart TD
        p0(["ask"])
        p1{{"both"}}
        p2["check"]
        p3((("done")))
        p4["draft"]
        start(( )) --> p4
        p5{{"fork"}}
        p6(["parts"])
        p7((("sorry")))
        p8["start"]
        p5 --> p0
        p5 --> p8
        p6 -.-> p7
        p4 -->|"GO"| p5
        p0 --> p1
        p0 -->|"after 60000 ms"| p7
        p8 -->|"/ start children"| p6
        p8 -.->|"on error"| p7
        p6 --> p1
        p1 --> p2
        p2 -->|"GO [#96;context.total #62; 5#96;]"| p3
        p2 -->|"GO [#96;manager#96;]"| p7
        p2 -->|"until context.deadline"| p7
    "#);
}

#[test]
fn retry_target_is_drawn_as_an_edge() {
    let retry = Retry { attempts: 2, target: Some("check".into()), ..Retry::default() };
    let spec = Spec::new("pay")
        .step("check")
        .step("charge")
        .end("done")
        .auto("on", "check", "charge")
        .transition(Transition::new("pay", "charge", "done").action("charge").retry(retry));
    let graph = Graph::of(&build(spec));
    let back =
        json!({"transition": "pay", "from": "charge", "to": "check", "kind": "retry", "label": "on retry"});
    assert!(serde_json::to_value(&graph.edges).unwrap().as_array().unwrap().contains(&back));
    assert!(graph.to_mermaid().contains("p0 -.->|\"on retry\"| p1"), "{}", graph.to_mermaid());
}

#[test]
fn mermaid_shows_the_status_of_a_run() {
    let spec = Spec::new("small")
        .step("a")
        .wait("b", "GO")
        .step("c")
        .end("d")
        .signal("GO")
        .auto("ab", "a", "b")
        .auto("bc", "b", "c")
        .auto("cd", "c", "d");
    let mut run = Driver::start(spec);
    run.advance();
    insta::assert_snapshot!(Graph::with_status(&run.definition, &run.snapshot).to_mermaid(), @r#"
    flowchart TD
        p0["a"]:::completed
        start(( )) --> p0
        p1(["b"]):::waiting
        p2["c"]:::idle
        p3((("d"))):::idle
        p0 --> p1
        p1 --> p2
        p2 --> p3
        classDef idle fill:#f4f4f5,stroke:#a1a1aa,color:#3f3f46
        classDef active fill:#dbeafe,stroke:#1d4ed8,color:#1e3a8a
        classDef waiting fill:#fef3c7,stroke:#b45309,color:#78350f
        classDef completed fill:#dcfce7,stroke:#15803d,color:#14532d
    "#);
    run.signal("GO", Value::Null);
    assert!(Graph::with_status(&run.definition, &run.snapshot).to_mermaid().contains("p1([\"b\"]):::active"));
}

#[test]
fn mermaid_quotes_odd_names_and_keeps_a_label_on_one_line() {
    let odd = r#"end "of" <b>#1</b> & `x` | ]) %% ünï"#;
    let spec = Spec::new("odd")
        .step(odd)
        .end("end")
        .transition(Transition::new("t", odd, "end").when("1 = 1\n  and \"a\" = \"a\""));
    let drawn = Graph::of(&build(spec)).to_mermaid();
    insta::assert_snapshot!(drawn, @r#"
    flowchart TD
        p0((("end")))
        p1["end #34;of#34; #60;b#62;#35;1#60;/b#62; #38; #96;x#96; | ]) %% ünï"]
        start(( )) --> p1
        p1 -->|"[#96;1 = 1   and #34;a#34; = #34;a#34;#96;]"| p0
    "#);
}

// ---- queries ----

#[test]
fn dry_run_reports_the_effect_of_a_signal_without_applying_it() {
    let run = Driver::start_with(order(), json!({"total": 1, "deadline": at(90_000)}));
    let before = bytes(&run.snapshot);
    let ask = |signal: &str| {
        can_execute(&run.definition, &run.snapshot, signal, Value::Null, &Answers::none(), at(0))
    };
    let Ok(Decision::Change(change)) = ask("GO") else { panic!("it would be taken") };
    assert_eq!(change.snapshot.version(), 1);
    assert!(matches!(ask("ANSWER"), Err(Rejected::Refused(Refusal::NoActiveSource { .. }))));
    assert!(matches!(ask("GOO"), Err(Rejected::Refused(Refusal::UnknownSignal { .. }))));
    assert_eq!(bytes(&run.snapshot), before);
    assert_eq!(run.snapshot.version(), 0);
}

/// Returns each available transition with its target, its signal and what blocks it.
fn shown(run: &Driver, answers: &Answers, now: stepwell_core::Timestamp) -> Vec<Value> {
    let all = available(&run.definition, &run.snapshot, answers, now).expect("all is answered");
    assert!(
        all.iter().all(|one| run.snapshot.activation(one.activation).is_some_and(|a| a.place == one.from))
    );
    all.into_iter()
        .map(|Available { transition, to, signal, blocked_by, .. }| {
            json!([transition, to, signal, blocked_by])
        })
        .collect()
}

#[test]
fn available_transitions_say_what_blocks_them() {
    let run = begun();
    let expected = [
        json!(["asked", "both", null, "`ask` is waiting"]),
        json!(["late", "sorry", null, "timer, due 2023-11-14T22:14:20Z"]),
        json!(["begin", "parts", null, null]),
    ];
    assert_eq!(shown(&run, &Answers::none(), at(0)), expected);
    assert_eq!(shown(&run, &Answers::none(), at(60_000))[1], json!(["late", "sorry", null, null]));

    let run = checking();
    let expected = [
        json!(["finish", "done", "GO", "guard `context.total > 5`"]),
        json!(["refuse", "sorry", "GO", null]),
        json!(["expire", "sorry", null, "timer, due 2023-11-14T22:14:50Z"]),
    ];
    assert_eq!(shown(&run, &Answers::none().with("manager", true), at(0)), expected);
    let no = shown(&run, &Answers::none().with("manager", false), at(0));
    assert_eq!(no[1], json!(["refuse", "sorry", "GO", "guard `manager`"]));
    let unanswered = available(&run.definition, &run.snapshot, &Answers::none(), at(0)).unwrap_err();
    assert!(unanswered.to_string().contains("`manager`"), "{unanswered}");
}

#[test]
fn timer_of_a_resolved_wait_is_reported_as_ended() {
    let mut run = begun();
    run.signal("ANSWER", Value::Null);
    let late = &shown(&run, &Answers::none(), at(60_000))[1];
    assert_eq!(late, &json!(["late", "sorry", null, "the wait was resolved before the timer was due"]));
}

#[test]
fn ended_run_has_no_available_transitions() {
    let mut run = begun();
    run.go(&Input::Cancelled);
    assert_eq!(shown(&run, &Answers::none(), at(0)), [json!(null); 0]);
    assert_eq!(open_waits(&run.definition, &run.snapshot), []);
    assert_eq!(run.snapshot.current_places(), [""; 0]);
}

#[test]
fn current_places_are_sorted_and_unique() {
    let spec = Spec::new("c")
        .fork("f", ["b", "a", "b"])
        .step("a")
        .step("b")
        .end("z")
        .auto("az", "a", "z")
        .auto("bz", "b", "z");
    let run = Driver::start(spec);
    assert_eq!(run.snapshot.current_places(), ["a", "b"]);
    assert_eq!(run.snapshot.activations().len(), 3);
}

// ---- open waits ----

#[test]
fn open_wait_reports_signal_times_form_and_answerers() {
    let mut run = Driver::start_with(order(), json!({"total": 1, "deadline": at(90_000)}));
    run.now = at(500);
    run.signal("GO", Value::Null);
    let expected = OpenWait {
        activation: run.id_in("ask"),
        place: "ask".into(),
        signals: vec!["ANSWER".into()],
        children: None,
        since: at(500),
        until: Some(at(60_500)),
        form: Some(json!({"type": "object", "properties": {"ok": {"type": "boolean"}}})),
        answerers: vec!["role:manager".to_owned(), "user:ann".to_owned()],
        event: None,
        workflow: run.definition.name().clone(),
        kind: WaitKind::Task,
        title: None,
        prompt: None,
    };
    assert_eq!(open_waits(&run.definition, &run.snapshot), [expected]);
    run.signal("ANSWER", Value::Null);
    assert_eq!(open_waits(&run.definition, &run.snapshot), [], "it is resolved");
}

#[test]
fn open_waits_count_missing_children_and_skip_joins() {
    let mut run = begun();
    let call = run.act(&Input::advance());
    run.done(&call, ActionResult { children: 3, ..ActionResult::default() });
    run.child("parts", 1, stepwell_core::snapshot::ChildEnd::Completed { output: Value::Null });
    run.signal("ANSWER", Value::Null);
    run.advance();
    assert_eq!(run.places(), ["both", "parts"]);
    let waits = open_waits(&run.definition, &run.snapshot);
    let shown: Vec<_> = waits.iter().map(|wait| (wait.place.as_str(), wait.children)).collect();
    assert_eq!(shown, [("parts", Some(2))]);
    assert_eq!(waits[0].signals, [""; 0]);
}

#[test]
fn step_that_accepts_signals_is_an_open_wait() {
    let run = Driver::start_with(order(), json!({"total": 1, "deadline": at(90_000)}));
    let waits = open_waits(&run.definition, &run.snapshot);
    assert_eq!(waits.len(), 1);
    assert_eq!((waits[0].place.as_str(), &waits[0].signals), ("draft", &vec!["GO".into()]));
    let waits = open_waits(&checking().definition, &checking().snapshot);
    assert_eq!(waits.len(), 1);
    assert_eq!(waits[0].signals, ["GO"], "two transitions take it, it is named once");
    assert_eq!(waits[0].until, Some(at(90_000)));
    let plain = Driver::start(Spec::new("p").step("a").end("z").auto("az", "a", "z"));
    assert_eq!(open_waits(&plain.definition, &plain.snapshot), []);
}

#[test]
fn open_waits_serialize_to_json() {
    let run = begun();
    let waits = serde_json::to_value(open_waits(&run.definition, &run.snapshot)).unwrap();
    assert_eq!(waits[0]["since"], "2023-11-14T22:13:20Z");
    assert_eq!(waits[0]["until"], "2023-11-14T22:14:20Z");
    assert_eq!(waits[0]["answerers"], json!(["role:manager", "user:ann"]));
    assert_eq!(waits[0].get("children"), None);
}
