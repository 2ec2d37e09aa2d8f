//! Building a definition reports every mistake once with its location. Equal content has the same hash.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use stepwell_core::ProblemCode as Code;
use stepwell_core::admission::{ConcurrencyLimit, WhenFull};
use stepwell_core::definition::UnreadableDefinition;
use stepwell_core::retry::Retry;
use stepwell_core::shadow::Shadow;
use stepwell_core::spec::{
    ActionSpec, ChildRule, Completion, EventFilter, Firing, Guard, Join, Loop, Over, Place, Quorum,
    Transition, TransitionTrigger, Trigger, TriggerKind, Wait,
};
use stepwell_core::{Definition, Limits, Name, ProblemCode, Problems, Requirements, Spec};

/// A valid workflow, to which the tests add mistakes.
fn order() -> Spec {
    Spec::new("order").step("draft").end("done").auto("finish", "draft", "done")
}

/// The workflow of [`order`] with a fork of `left` and `right`, joined by `both`. `draft` leads to the fork.
fn forked(quorum: Quorum, of: &[&str]) -> Spec {
    order()
        .auto("split", "draft", "fork")
        .fork("fork", ["left", "right"])
        .step("left")
        .step("right")
        .join("both", quorum, of.iter().copied())
        .auto("from left", "left", "both")
        .auto("from right", "right", "both")
        .auto("on", "both", "done")
}

fn problems(spec: Spec) -> Problems {
    spec.build().expect_err("the definition has problems")
}

/// Returns each problem as its code and location.
fn found(spec: Spec) -> Vec<(ProblemCode, String)> {
    problems(spec).0.into_iter().map(|problem| (problem.code, problem.at.to_string())).collect()
}

fn messages(spec: Spec) -> Vec<String> {
    problems(spec).0.iter().map(ToString::to_string).collect()
}

#[track_caller]
fn only(spec: Spec, code: ProblemCode, at: &str) {
    let all = problems(spec);
    let found: Vec<_> = all.0.iter().map(|problem| (problem.code, problem.at.to_string())).collect();
    assert_eq!(found, [(code, at.to_owned())], "{all}");
}

/// Numbers the problem codes. A new code does not compile until it is added here, and [`mistakes`] must then cover it.
fn number(code: ProblemCode) -> usize {
    match code {
        Code::BadName => 0,
        Code::DuplicateTransition => 1,
        Code::UnknownPlace => 2,
        Code::UnknownSignal => 3,
        Code::NoStart => 4,
        Code::NoEnd => 5,
        Code::UnreachablePlace => 6,
        Code::DeadEnd => 7,
        Code::BadSource => 8,
        Code::EmptyFork => 9,
        Code::ForkInsideItself => 10,
        Code::JoinCannotFire => 11,
        Code::BadQuorum => 12,
        Code::AmbiguousJoin => 13,
        Code::UnresolvableWait => 14,
        Code::BadSchema => 15,
        Code::BadExpression => 16,
        Code::ActionWithFiringAll => 17,
        Code::NoAction => 18,
        Code::BadTimer => 19,
        Code::TooLarge => 20,
        Code::BadRetryTarget => 21,
        Code::BadShadow => 22,
        Code::BadLoop => 23,
        Code::BadPath => 24,
        Code::BadTrigger => 25,
        Code::NeedsDurableRun => 26,
        Code::NoWait => 27,
        Code::BadAnswerer => 28,
        Code::BadLimit => 29,
    }
}

const CODES: usize = 30;

/// Returns one invalid spec per problem code, with the location of the problem.
fn mistakes() -> Vec<(ProblemCode, &'static str, Spec)> {
    let draft_to = |transition: &str, to: &str| order().auto(transition, "draft", to);
    let mut all = vec![
        (Code::BadName, "transition `__mine`", draft_to("__mine", "done")),
        (Code::DuplicateTransition, "transition `finish`", draft_to("finish", "done")),
        (Code::UnknownPlace, "transition `astray`", draft_to("astray", "somewhere else")),
        (Code::UnknownSignal, "transition `go`", order().on_signal("go", "draft", "GO", "done")),
        (Code::NoStart, "definition", Spec { initial: None, ..order() }),
        (Code::NoEnd, "definition", Spec::new("round").step("a").auto("again", "a", "a")),
        (Code::UnreachablePlace, "place `attic`", order().step("attic").auto("down", "attic", "done")),
        (Code::DeadEnd, "place `trap`", draft_to("fall", "trap").step("trap")),
        (Code::BadSource, "transition `back`", order().auto("back", "done", "draft")),
        (Code::EmptyFork, "place `fork`", draft_to("split", "fork").fork("fork", [""; 0])),
        (Code::BadQuorum, "place `both`", forked(Quorum::N(0), &["left", "right"])),
        (Code::UnresolvableWait, "place `limbo`", wait_in_limbo(Wait::default())),
        (Code::BadSchema, "`context`", order().context_schema(json!({"type": "objet"}))),
        (Code::TooLarge, "place `f16`", nested_forks(17)),
        (Code::BadAnswerer, "place `ask`", asking("manager")),
    ];
    let manual = || Trigger { id: "by-hand".into(), on: TriggerKind::Manual {}, input: None };
    all.push((Code::BadTrigger, "trigger `by-hand`", order().started_by(manual()).started_by(manual())));
    all.push((Code::ForkInsideItself, "place `fork`", looping_fork()));
    all.push((Code::JoinCannotFire, "place `both`", forked(Quorum::All, &["left"])));
    all.push((Code::AmbiguousJoin, "place `alone`", join_outside_any_fork()));
    let with = |change: fn(Transition) -> Transition| {
        order().transition(change(Transition::new("odd", "draft", "done")))
    };
    all.push((Code::BadExpression, "transition `odd`", with(|t| t.when("1 +"))));
    all.push((Code::NoAction, "transition `odd`", with(|t| t.retry(Retry::default()))));
    all.push((Code::BadTimer, "transition `odd`", with(|t| t.after_ms(0))));
    let to_the_end = |t: Transition| t.action("bill").retry(retry_to("done"));
    all.push((Code::BadRetryTarget, "transition `odd`", with(to_the_end)));
    let acting = with(|t| t.action("bill")).firing(Firing::All);
    all.push((Code::ActionWithFiringAll, "transition `odd`", acting));
    let wild = order().shadow("mail", Shadow::string("to[0].mail"));
    all.push((Code::BadShadow, "shadow column `mail`", wild));
    let timed = with(|t| t.after_ms(5)).strategy("sealed");
    all.push((Code::NeedsDurableRun, "transition `odd`", timed));
    all.push((Code::NoWait, "transition `odd`", with(|t| t.action("flow.sendOut"))));
    all.push((Code::NoWait, "transition `odd`", with(|t| t.action("flow.useStrategy"))));
    let none = ConcurrencyLimit { key: None, limit: 0, when_full: WhenFull::Wait };
    all.push((Code::BadLimit, "`concurrency`", order().concurrency(none)));
    all.push((Code::BadLoop, "place `round`", open_loop()));
    all.push((Code::BadPath, "transition `odd`", with(|t| t.set("vars..x", json!(1)))));
    all
}

/// A policy of one retry, which goes back to this place.
fn retry_to(place: &str) -> Retry {
    Retry { attempts: 1, target: Some(place.into()), ..Retry::default() }
}

fn wait_in_limbo(wait: Wait) -> Spec {
    order().auto("stall", "draft", "limbo").place("limbo", Place::Wait(wait)).auto("leave", "limbo", "done")
}

/// A task for this answerer.
fn asking(answerer: &str) -> Spec {
    let ask = Wait { signal: Some("ANSWER".into()), answerers: vec![answerer.to_owned()], ..Wait::default() };
    let order = order().signal("ANSWER").auto("put", "draft", "ask");
    order.place("ask", Place::Wait(ask)).on_signal("leave", "ask", "ANSWER", "done")
}

/// A loop whose body does not contain its first place.
fn open_loop() -> Spec {
    let round = Loop {
        over: Over::While("true".to_owned()),
        index: None,
        first: "work".into(),
        body: Vec::new(),
        then: "done".into(),
        most: None,
        collect: None,
        error_place: None,
    };
    let order = order().auto("begin", "draft", "round").place("round", Place::Loop(round));
    order.step("work").auto("again", "work", "round")
}

fn looping_fork() -> Spec {
    order()
        .auto("split", "draft", "fork")
        .fork("fork", ["left", "right"])
        .step("left")
        .step("right")
        .auto("again", "left", "fork")
        .auto("out", "right", "done")
}

fn join_outside_any_fork() -> Spec {
    order().auto("stray", "draft", "alone").join("alone", Quorum::Any, ["draft"]).auto("on", "alone", "done")
}

/// Nested forks, each with its join. `f0` is the outermost.
fn nested_forks(depth: usize) -> Spec {
    let (fork, join) = (|at: usize| format!("f{at}"), |at: usize| format!("j{at}"));
    let mut spec = order().auto("split", "draft", fork(0)).step("core");
    for at in 0..depth {
        let (inner, last) = if at + 1 < depth {
            (fork(at + 1), join(at + 1))
        } else {
            ("core".to_owned(), "core".to_owned())
        };
        spec = spec.fork(fork(at), [inner]).join(join(at), Quorum::All, [last.clone()]);
        spec = spec.auto(format!("t{at}"), last, join(at));
    }
    spec.auto("out", "j0", "done")
}

#[test]
fn every_kind_of_mistake_is_found_and_located() {
    let mut seen = BTreeSet::new();
    for (code, at, spec) in mistakes() {
        only(spec, code, at);
        seen.insert(number(code));
    }
    assert_eq!(seen, (0..CODES).collect());
    order().build().unwrap();
    forked(Quorum::All, &["left", "right"]).build().unwrap();
}

#[test]
fn bad_names_are_found_wherever_a_name_is_given() {
    let too_long = "x".repeat(129);
    let spec = order()
        .signal("")
        .step(" padded ")
        .auto("in", "draft", " padded ")
        .auto("out\n", " padded ", "done")
        .transition(Transition::new("act", "draft", "done").action(""))
        .transition(Transition::new("ask", "draft", "done").guard(Guard::named("__engine")))
        .auto(too_long.as_str(), "draft", "done");
    let spec = Spec { name: Name::from(""), ..spec };
    let expected = [
        "definition".to_owned(),
        "place ` padded `".to_owned(),
        "transition `act`".to_owned(),
        "transition `ask`".to_owned(),
        "transition `out\n`".to_owned(),
        format!("transition `{too_long}`"),
        "signal ``".to_owned(),
    ];
    assert_eq!(found(spec), expected.map(|at| (Code::BadName, at)));
    order().auto("x".repeat(128), "draft", "done").build().unwrap();
}

#[test]
fn unknown_places_are_found_in_every_role() {
    let known = || forked(Quorum::All, &["left", "right"]);
    let retrying = Transition::new("try", "draft", "done").action("bill").error_place("missing");
    only(known().transition(retrying), Code::UnknownPlace, "transition `try`");
    let going_back = Transition::new("try", "draft", "done").action("bill").retry(retry_to("missing"));
    only(known().transition(going_back), Code::UnknownPlace, "transition `try`");
    only(known().auto("from", "missing", "done"), Code::UnknownPlace, "transition `from`");
    only(known().initial("missing"), Code::UnknownPlace, "`initial`");
    let guarded = |guard| known().transition(Transition::new("if", "draft", "done").guard(guard));
    let missing = Name::from("missing");
    only(guarded(Guard::Completed(missing.clone())), Code::UnknownPlace, "transition `if`");
    only(guarded(Guard::Not(Box::new(Guard::Active(missing)))), Code::UnknownPlace, "transition `if`");
    let fork = order().auto("split", "draft", "fork").fork("fork", ["done", "missing"]);
    only(fork, Code::UnknownPlace, "place `fork`");
    only(forked(Quorum::All, &["left", "right", "missing"]), Code::UnknownPlace, "place `both`");
    let wait =
        Wait { children: Some(ChildRule::All), error_place: Some("missing".into()), ..Wait::default() };
    only(wait_in_limbo(wait), Code::UnknownPlace, "place `limbo`");
}

#[test]
fn retry_target_must_not_be_a_fork_join_end_or_child_wait() {
    let wait = |children| Place::Wait(Wait { signal: Some("GO".into()), children, ..Wait::default() });
    let going_back = |target: &str| {
        let pay = Transition::new("pay", "next", "done").action("charge").retry(retry_to(target));
        forked(Quorum::All, &["left", "right"])
            .signal("GO")
            .place("ask", wait(None))
            .place("parts", wait(Some(ChildRule::All)))
            .step("next")
            .auto("to ask", "draft", "ask")
            .auto("to parts", "ask", "parts")
            .auto("to next", "parts", "next")
            .transition(pay)
    };
    for fine in ["draft", "ask", "next"] {
        going_back(fine).build().unwrap();
    }
    let rows = [
        ("fork", "the retry target `fork` is a fork: go back to the place before it"),
        ("both", "the retry target `both` is a join, which only the branches of its fork can enter"),
        ("done", "the retry target `done` is an end, from which nothing can be retried"),
        (
            "parts",
            "the retry target `parts` waits for children, which a retry does not start: go back to the place that \
             starts them",
        ),
    ];
    for (target, message) in rows {
        assert_eq!(messages(going_back(target)), [format!("transition `pay`: {message}")]);
        only(going_back(target), Code::BadRetryTarget, "transition `pay`");
    }
    let slip = messages(going_back("drfat"));
    assert_eq!(slip, ["transition `pay`: the retry target `drfat` does not exist (did you mean `draft`?)"]);
}

#[test]
fn retry_target_without_retries_is_a_problem() {
    let target = |attempts| Retry { attempts, ..retry_to("draft") };
    let with =
        |retry| order().transition(Transition::new("pay", "draft", "done").action("charge").retry(retry));
    with(target(1)).build().unwrap();
    assert_eq!(
        messages(with(target(0))),
        ["transition `pay`: the retry target `draft` has no effect without retries: set `attempts`"]
    );
    let unused = order().transition(Transition::new("pay", "draft", "done").retry_target("draft"));
    let codes: Vec<_> = found(unused).into_iter().map(|(code, _)| code).collect();
    assert_eq!(codes, [Code::NoAction, Code::BadRetryTarget]);
}

#[test]
fn retry_targets_are_checked_like_transitions() {
    let pay = |from: &str, to: &str, target: &str| {
        Transition::new("pay", from, to).action("charge").retry(retry_to(target))
    };
    let only_by_retry = order().step("mend").auto("mended", "mend", "draft");
    only(only_by_retry.clone(), Code::UnreachablePlace, "place `mend`");
    only_by_retry.transition(pay("draft", "done", "mend")).build().unwrap();
    let known = || forked(Quorum::All, &["left", "right"]);
    let out_of_the_fork = known().transition(pay("left", "both", "draft"));
    only(out_of_the_fork, Code::ForkInsideItself, "place `fork`");
    let into_a_branch = known().transition(pay("draft", "done", "left"));
    only(into_a_branch, Code::AmbiguousJoin, "place `both`");
    known().transition(pay("left", "both", "left")).build().unwrap();
}

#[test]
fn builder_and_json_agree_on_retry_targets() {
    let retry = || Retry { attempts: 2, ..Retry::default() };
    let pay = Transition::new("pay", "draft", "done").action("charge").retry(retry()).retry_target("draft");
    let spec = order().transition(pay);
    let json = serde_json::to_value(&spec).unwrap();
    let written = &json["transitions"].as_array().unwrap().last().unwrap()["retry"];
    assert_eq!((&written["attempts"], &written["target"]), (&json!(2), &json!("draft")));
    let without = serde_json::to_value(retry()).unwrap();
    assert_eq!(without.get("target"), None, "definitions without one keep their hash");
    let read: Spec = serde_json::from_value(json).unwrap();
    let plain = order().transition(Transition::new("pay", "draft", "done").action("charge").retry(retry()));
    assert_ne!(read.build().unwrap().hash(), plain.build().unwrap().hash());
}

#[test]
fn requirements_name_their_transitions_and_places() {
    let plain = order().build().unwrap().needs();
    assert!(plain.is_empty());
    assert_eq!(plain, Requirements::default());
    let wait = Wait { signal: Some("GO".into()), children: Some(ChildRule::Any), ..Wait::default() };
    let event = Some(EventFilter::default());
    let news = Wait { signal: Some("GO".into()), event, ..Wait::default() };
    let act = |id: &str, action: &str| Transition::new(id, "draft", "done").action(action);
    let spec = order()
        .signal("GO")
        .place("parts", Place::Wait(wait))
        .wait("ask", "GO")
        .place("news", Place::Wait(news))
        .auto("hear", "draft", "news")
        .auto("heard", "news", "done")
        .auto("start", "draft", "parts")
        .auto("then", "parts", "ask")
        .auto("on", "ask", "done")
        .transition(Transition::new("late", "ask", "done").after_ms(5))
        .transition(Transition::new("at", "parts", "done").on(TransitionTrigger::Until("context.at".into())))
        .transition(act("put", "store.set").retry(Retry { attempts: 1, ..Retry::default() }))
        .transition(act("tie", "links.upsert").retry(Retry::default()))
        .transition(act("mail", "mail.store.set").at_most_once())
        .transition(act("shop", "stores.open").error_place("done"));
    let needs = spec.build().unwrap().needs();
    let told = serde_json::to_value(&needs).unwrap();
    let expected = json!({
        "timers": ["late", "at"], "children": ["parts"], "events": ["news"], "retries": ["put"],
        "atMostOnce": ["mail"], "store": ["put", "tie"]
    });
    assert_eq!(told, expected);
    assert!(!needs.is_empty());
    let one = || vec![Name::from("one")];
    let single = [
        Requirements { timers: one(), ..Requirements::default() },
        Requirements { children: one(), ..Requirements::default() },
        Requirements { events: one(), ..Requirements::default() },
        Requirements { retries: one(), ..Requirements::default() },
        Requirements { at_most_once: one(), ..Requirements::default() },
        Requirements { store: one(), ..Requirements::default() },
    ];
    assert!(single.iter().all(|needs| !needs.is_empty()));
}

#[test]
fn wait_that_nothing_can_resolve_is_refused() {
    only(wait_in_limbo(Wait::default()), Code::UnresolvableWait, "place `limbo`");
    let signalled = Wait { signal: Some("GO".into()), ..Wait::default() };
    only(wait_in_limbo(signalled.clone()), Code::UnknownSignal, "place `limbo`");
    wait_in_limbo(signalled).signal("GO").build().unwrap();
    wait_in_limbo(Wait { children: Some(ChildRule::Any), ..Wait::default() }).build().unwrap();
    let timer = Transition::new("late", "limbo", "done").after_ms(5);
    wait_in_limbo(Wait::default()).transition(timer).build().unwrap();
    let until = Transition::new("late", "limbo", "done").on(TransitionTrigger::Until("context.at".into()));
    wait_in_limbo(Wait::default()).transition(until).build().unwrap();
    let none = Wait { children: Some(ChildRule::N(0)), ..Wait::default() };
    only(wait_in_limbo(none), Code::BadQuorum, "place `limbo`");
}

#[test]
fn invalid_schemas_and_expressions_are_found_everywhere() {
    let schema = json!({"type": "objet"});
    only(order().output_schema(schema.clone()), Code::BadSchema, "`output`");
    only(order().signal_with("GO", schema.clone()), Code::BadSchema, "signal `GO`");
    let form = Wait { children: Some(ChildRule::All), form: Some(schema), ..Wait::default() };
    only(wait_in_limbo(form), Code::BadSchema, "place `limbo`");

    let odd = || Transition::new("odd", "draft", "done");
    let bad = || json!({"a": [{"$expr": "1 +"}]});
    let input = ActionSpec { name: "bill".into(), input: bad(), save_as: None, version: None };
    only(order().transition(odd().action_with(input)), Code::BadExpression, "transition `odd`");
    let until = odd().on(TransitionTrigger::Until("(".into()));
    only(order().transition(until), Code::BadExpression, "transition `odd`");
    let nested = Guard::And(vec![Guard::Or(vec![Guard::Not(Box::new(Guard::expr("1 +")))])]);
    only(order().transition(odd().guard(nested)), Code::BadExpression, "transition `odd`");
    let ends = Spec::new("order").step("draft").end_with("done", bad()).auto("finish", "draft", "done");
    only(ends.clone(), Code::BadExpression, "place `done`");
    assert!(messages(ends)[0].starts_with("place `done`: `output/a/0"), "the message has the pointer");
}

#[test]
fn quorum_must_be_between_one_and_the_branch_count() {
    let of = ["left", "right"];
    only(forked(Quorum::N(3), &of), Code::BadQuorum, "place `both`");
    only(forked(Quorum::N(0), &of), Code::BadQuorum, "place `both`");
    for quorum in [Quorum::All, Quorum::Any, Quorum::N(1), Quorum::N(2)] {
        forked(quorum, &of).build().unwrap();
    }
    // An unreachable join is reported for its quorum too.
    let unreachable = order()
        .step("attic")
        .join("apart", Quorum::N(0), ["attic"])
        .auto("a", "attic", "apart")
        .auto("b", "apart", "done");
    let expected = [
        (Code::UnreachablePlace, "place `apart`".to_owned()),
        (Code::BadQuorum, "place `apart`".to_owned()),
        (Code::UnreachablePlace, "place `attic`".to_owned()),
    ];
    assert_eq!(found(unreachable), expected);
}

#[test]
fn join_must_list_exactly_the_places_that_lead_to_it() {
    only(forked(Quorum::All, &["left"]), Code::JoinCannotFire, "place `both`");
    only(forked(Quorum::All, &["left", "right", "draft"]), Code::JoinCannotFire, "place `both`");
    let all = messages(forked(Quorum::All, &["draft"]));
    assert_eq!(all.len(), 3, "{all:#?}");
    assert!(all[0].contains("branches arrive from `left`"), "{}", all[0]);
    assert!(all[2].contains("the join lists `draft`"), "{}", all[2]);
}

#[test]
fn a_join_belongs_to_one_fork_and_a_fork_to_one_join() {
    only(join_outside_any_fork(), Code::AmbiguousJoin, "place `alone`");
    let initial =
        Spec::new("order").join("first", Quorum::Any, [""; 0]).end("done").auto("on", "first", "done");
    only(initial, Code::AmbiguousJoin, "place `first`");
    let also_from_outside = forked(Quorum::All, &["left", "right", "draft"]).auto("jump", "draft", "both");
    only(also_from_outside, Code::AmbiguousJoin, "place `both`");

    let inner_is_not_joined = forked(Quorum::All, &["left", "right", "deep"])
        .auto("deeper", "left", "inner")
        .fork("inner", ["deep"])
        .step("deep")
        .auto("up", "deep", "both");
    only(inner_is_not_joined.clone(), Code::AmbiguousJoin, "place `both`");
    assert!(messages(inner_is_not_joined)[0].contains("(`fork`, `inner`)"));

    let two_joins = order()
        .auto("split", "draft", "fork")
        .fork("fork", ["left", "right"])
        .step("left")
        .step("right")
        .join("one", Quorum::Any, ["left"])
        .join("two", Quorum::Any, ["right"])
        .auto("a", "left", "one")
        .auto("b", "right", "two")
        .auto("c", "one", "done")
        .auto("d", "two", "done");
    only(two_joins, Code::AmbiguousJoin, "place `two`");
}

#[test]
fn transitions_cannot_start_at_forks_or_ends() {
    only(order().auto("back", "done", "draft"), Code::BadSource, "transition `back`");
    let spec = forked(Quorum::All, &["left", "right"]).auto("skip", "fork", "done");
    only(spec, Code::BadSource, "transition `skip`");
}

#[test]
fn sizes_are_limited_and_the_limit_is_named() {
    let limits = Limits { places: 1, transitions: 0, ..Limits::default() };
    let all = order().build_within(&limits).unwrap_err();
    let found: Vec<_> = all.0.iter().map(|problem| (problem.code, problem.at.to_string())).collect();
    assert_eq!(found, [(Code::TooLarge, "definition".to_owned()), (Code::TooLarge, "definition".to_owned())]);
    assert!(all.to_string().contains("limit `places`") && all.to_string().contains("limit `transitions`"));
    nested_forks(16).build().unwrap();
    let deeper = Limits { fork_depth: 17, ..Limits::default() };
    let definition = nested_forks(17).build_within(&deeper).unwrap();
    let stored = definition.canonical();
    assert_eq!(Definition::from_canonical_within(&stored, &deeper), Ok(definition));
    assert!(matches!(Definition::from_canonical(&stored), Err(UnreadableDefinition::Problems(_))));
}

#[test]
fn all_problems_are_reported_sorted_and_each_once() {
    let twice = Guard::And(vec![Guard::Completed("gone".into()), Guard::Active("gone".into())]);
    let spec = order()
        .signal_with("GO", json!({"type": 5}))
        .transition(Transition::new("zig", "draft", "draft").guard(twice).after_ms(0))
        .on_signal("alpha", "draft", "MISSING", "done")
        .place("trap", Place::Wait(Wait::default()));
    let all = problems(Spec { initial: None, ..spec });
    let found: Vec<_> = all.0.iter().map(|problem| (problem.code, problem.at.to_string())).collect();
    let expected = [
        (Code::NoStart, "definition".to_owned()),
        (Code::DeadEnd, "place `trap`".to_owned()),
        (Code::UnresolvableWait, "place `trap`".to_owned()),
        (Code::UnknownSignal, "transition `alpha`".to_owned()),
        (Code::UnknownPlace, "transition `zig`".to_owned()),
        (Code::BadTimer, "transition `zig`".to_owned()),
        (Code::BadSchema, "signal `GO`".to_owned()),
    ];
    assert_eq!(found, expected, "{all}");
    assert!(all.to_string().starts_with("the definition has 7 problems\n  definition: "), "{all}");
}

#[test]
fn missing_start_and_missing_end_are_both_reported() {
    let expected = [(Code::NoStart, "definition".to_owned()), (Code::NoEnd, "definition".to_owned())];
    assert_eq!(found(Spec::new("nothing")), expected);
}

#[test]
fn misspelled_name_is_one_problem_with_a_hint() {
    let way = || Spec::new("order").step("draft").step("review").end("done");
    let slips = [
        way().auto("a", "draft", "reviw").auto("b", "review", "done"),
        way().auto("a", "draft", "review").auto("b", "reveiw", "done"),
        way().initial("draf").auto("a", "draft", "review").auto("b", "review", "done"),
    ];
    for spec in slips {
        let all = messages(spec);
        assert_eq!(all.len(), 1, "{all:#?}");
        assert!(all[0].contains("does not exist (did you mean `"), "{}", all[0]);
    }
    let fork = |first: &str, joined: &str| {
        order()
            .auto("split", "draft", "fork")
            .fork("fork", [first, "right"])
            .step("left")
            .step("right")
            .join("both", Quorum::All, [joined, "right"])
            .auto("a", "left", "both")
            .auto("b", "right", "both")
            .auto("on", "both", "done")
    };
    only(fork("lefd", "left"), Code::UnknownPlace, "place `fork`");
    only(fork("left", "lefd"), Code::UnknownPlace, "place `both`");
    // The misspelled name is in the only transition that resolves the wait, a timer.
    let timer = Transition::new("late", "limpo", "done").after_ms(5);
    let wait = order()
        .auto("stall", "draft", "limbo")
        .place("limbo", Place::Wait(Wait::default()))
        .transition(timer);
    only(wait, Code::UnknownPlace, "transition `late`");
    let signal = order().signal("APPROVE").on_signal("ok", "draft", "APROVE", "done");
    assert_eq!(
        messages(signal),
        ["transition `ok`: signal `APROVE` is not declared (did you mean `APPROVE`?)"]
    );
}

#[test]
fn places_in_too_deep_forks_are_not_called_unreachable() {
    only(nested_forks(18), Code::TooLarge, "place `f16`");
}

#[test]
fn hash_does_not_depend_on_key_order() {
    let one: Spec = serde_json::from_str(
        r#"{"name": "order", "version": 3, "initial": "draft",
            "places": {"draft": {"kind": "step"}, "done": {"output": {"b": 1, "a": 2}, "kind": "end"}},
            "signals": {"GO": {"payload": {"type": "object", "required": ["x"]}}, "NO": {}},
            "transitions": [{"id": "go", "from": "draft", "to": "done", "on": {"signal": "GO"}}]}"#,
    )
    .unwrap();
    let other: Spec = serde_json::from_str(
        r#"{"transitions": [{"on": {"signal": "GO"}, "to": "done", "from": "draft", "id": "go", "priority": 0}],
            "signals": {"NO": {}, "GO": {"payload": {"required": ["x"], "type": "object"}}},
            "places": {"done": {"kind": "end", "output": {"a": 2, "b": 1}}, "draft": {"kind": "step"}},
            "initial": "draft", "version": 3, "name": "order", "firing": "first"}"#,
    )
    .unwrap();
    let (one, other) = (one.build().unwrap(), other.build().unwrap());
    assert_eq!(one.hash(), other.hash());
    assert_eq!(one.canonical(), other.canonical());
    assert_eq!(one, other);
}

#[test]
fn every_change_of_content_changes_the_hash() {
    let with = |change: fn(Transition) -> Transition| {
        Spec::new("order")
            .step("draft")
            .end("done")
            .signal("GO")
            .transition(change(Transition::new("go", "draft", "done").on_signal("GO")))
    };
    let plain = || with(|t| t);
    let others = [
        plain(),
        Spec { name: "other".into(), ..plain() },
        plain().version(2),
        plain().signal("STOP"),
        plain().signal_with("GO", json!({"type": "object"})),
        plain().step("more").auto("to", "draft", "more").auto("on", "more", "done"),
        plain().end_with("done", json!(1)),
        plain().context_schema(json!({"type": "object"})),
        plain().output_schema(json!({"type": "object"})),
        plain().firing(Firing::All),
        plain().completion(Completion::AllBranches),
        with(|t| t.priority(1)),
        with(|t| t.when("true")),
        with(|t| t.when("false")),
        with(|t| t.guard(Guard::named("manager"))),
        with(|t| t.guard(Guard::named("owner"))),
        with(|t| t.after_ms(1)),
        with(|t| t.action("bill")),
        with(|t| t.action("bill").timeout_ms(1)),
        with(|t| t.action("bill").retry(Retry { attempts: 1, ..Retry::default() })),
    ];
    let count = others.len();
    let hashes: BTreeSet<_> = others.into_iter().map(|spec| spec.build().unwrap().hash()).collect();
    assert_eq!(hashes.len(), count);
}

#[test]
fn transition_order_is_part_of_the_hash() {
    let (a, b) = (Transition::new("a", "draft", "done"), Transition::new("b", "draft", "done"));
    let base = || Spec::new("order").step("draft").end("done");
    let one = base().transition(a.clone()).transition(b.clone()).build().unwrap();
    let other = base().transition(b).transition(a).build().unwrap();
    assert_ne!(one.hash(), other.hash());
}

/// A spec with steps, a wait, a fork, a join and ends, and with every kind of trigger and guard.
fn everything() -> Spec {
    let guard = Guard::And(vec![
        Guard::Or(vec![Guard::expr("context.ok"), Guard::Completed("draft".into())]),
        Guard::Not(Box::new(Guard::Active("ask".into()))),
        Guard::named("manager"),
    ]);
    let action = ActionSpec {
        name: "bill".into(),
        input: json!({"amount": {"$expr": "context.amount"}, "key": {"$secret": "KEY"}}),
        save_as: Some("bill".to_owned()),
        version: None,
    };
    let retry = Retry {
        attempts: 2,
        place: Some("sorry".into()),
        target: Some("draft".into()),
        retry_on: Some(vec!["timeout".into()]),
        ..Retry::default()
    };
    let ask = Wait {
        signal: Some("GO".into()),
        children: Some(ChildRule::N(2)),
        form: Some(json!({"type": "object"})),
        answerers: vec!["role:manager".into()],
        error_place: Some("sorry".into()),
        filter: Some("event.ok".into()),
        prompt: Some(json!({"title": {"$expr": "context.title"}})),
        event: Some(EventFilter { of: Some("event.order".into()), key: Some("context.order".into()) }),
    };
    let join = Join {
        of: vec!["left".into(), "right".into()],
        quorum: Quorum::N(1),
        cancel_rest: true,
        ..Join::default()
    };
    Spec::new("everything")
        .version(7)
        .context_schema(json!({"type": "object"}))
        .output_schema(json!({}))
        .completion(Completion::AllBranches)
        .step("draft")
        .place("ask", Place::Wait(ask))
        .fork("fork", ["left", "right"])
        .step("left")
        .step("right")
        .place("both", Place::Join(join))
        .end_with("done", json!({"total": {"$expr": "context.amount"}}))
        .end("sorry")
        .signal_with("GO", json!({"type": "object"}))
        .transition(
            Transition::new("bill", "draft", "ask")
                .guard(guard)
                .priority(-3)
                .action_with(action)
                .retry(retry)
                .timeout_ms(10),
        )
        .transition(Transition::new("split", "ask", "fork"))
        .transition(
            Transition::new("late", "ask", "sorry").on(TransitionTrigger::Until("context.deadline".into())),
        )
        .transition(Transition::new("l", "left", "both").after_ms(5))
        .on_signal("r", "right", "GO", "both")
        .auto("on", "both", "done")
}

#[test]
fn the_canonical_form_can_be_read_back() {
    let definition = everything().build().unwrap();
    let again = Definition::from_canonical(&definition.canonical()).unwrap();
    assert_eq!(again.hash(), definition.hash());
    assert_eq!(again.spec(), definition.spec());
    assert_eq!(again.canonical(), definition.canonical());
    let actions: Vec<_> = again.actions().iter().map(ToString::to_string).collect();
    let guards: Vec<_> = again.named_guards().iter().map(ToString::to_string).collect();
    assert_eq!((actions, guards), (vec!["bill".to_owned()], vec!["manager".to_owned()]));
}

#[test]
fn unreadable_canonical_form_is_refused_with_the_reason() {
    let definition = order().build().unwrap();
    let mut stored: Value = serde_json::from_slice(&definition.canonical()).unwrap();
    let read = |stored: &Value| Definition::from_canonical(stored.to_string().as_bytes()).unwrap_err();
    assert!(matches!(Definition::from_canonical(b"{"), Err(UnreadableDefinition::Json(_))));
    stored["dialect"] = json!(99);
    assert_eq!(read(&stored), UnreadableDefinition::Dialect(Some(99)));
    stored["dialect"] = Value::Null;
    assert_eq!(read(&stored), UnreadableDefinition::Dialect(None));
    let mut broken: Value = serde_json::from_slice(&definition.canonical()).unwrap();
    broken["spec"]["initial"] = json!("nowhere near");
    let UnreadableDefinition::Problems(problems) = read(&broken) else { panic!("it has problems") };
    assert_eq!(problems.0[0].code, Code::UnknownPlace);
}

#[test]
fn spec_round_trips_through_json() {
    for spec in [everything(), order(), forked(Quorum::Any, &["left", "right"])] {
        let text = serde_json::to_string(&spec).unwrap();
        let again: Spec = serde_json::from_str(&text).unwrap();
        assert_eq!(again, spec);
        assert_eq!(again.build().unwrap().hash(), spec.build().unwrap().hash());
    }
}

#[test]
fn builder_and_json_give_the_same_definition() {
    let written = json!({
        "name": "order", "initial": "draft",
        "places": {"draft": {"kind": "step"}, "done": {"kind": "end"}},
        "transitions": [{"id": "finish", "from": "draft", "to": "done"}],
    });
    let read: Spec = serde_json::from_value(written).unwrap();
    assert_eq!(read, order());
}

#[test]
fn unknown_fields_are_refused_everywhere() {
    let good = serde_json::to_value(everything()).unwrap();
    serde_json::from_value::<Spec>(good.clone()).unwrap();
    let places = [
        "",
        "/places/draft",
        "/places/ask",
        "/places/fork",
        "/places/both",
        "/places/done",
        "/signals/GO",
        "/transitions/0",
        "/transitions/0/action",
        "/transitions/0/retry",
    ];
    for pointer in places {
        let mut bad = good.clone();
        let object = bad.pointer_mut(pointer).unwrap().as_object_mut().unwrap();
        object.insert("colour".to_owned(), json!("red"));
        let error = serde_json::from_value::<Spec>(bad).unwrap_err().to_string();
        assert!(error.contains("unknown field `colour`"), "{pointer}: {error}");
    }
    for (pointer, wrong) in [
        ("/transitions/0/guard", json!({"maybe": []})),
        ("/transitions/0/on", json!({"sometimes": 1})),
        ("/places/draft/kind", json!("stop")),
        ("/places/both/quorum", json!("most")),
    ] {
        let mut bad = good.clone();
        match bad.pointer_mut(pointer) {
            Some(value) => *value = wrong,
            None => bad["transitions"][0]["on"] = wrong,
        }
        let error = serde_json::from_value::<Spec>(bad).unwrap_err().to_string();
        assert!(error.contains("unknown variant"), "{pointer}: {error}");
    }
}

#[test]
fn actions_are_refused_with_firing_all() {
    let spec = order().firing(Firing::All);
    spec.clone().build().unwrap();
    let acting = spec.transition(Transition::new("act", "draft", "done").action("bill"));
    only(acting, Code::ActionWithFiringAll, "transition `act`");
}

#[test]
fn too_complex_forks_are_one_problem() {
    // Four hundred branches through the same long chain: more states than the check visits.
    let steps = 260;
    let name = |at: usize| format!("s{at}");
    let mut spec = Spec::new("tangle").fork("fork", vec![name(0); 400]);
    for at in 0..steps {
        spec = spec.step(name(at));
        if at > 0 {
            spec = spec.auto(format!("t{at}"), name(at - 1), name(at));
        }
    }
    let spec = spec
        .join("both", Quorum::N(400), [name(steps - 1)])
        .end("done")
        .auto("in", name(steps - 1), "both")
        .auto("out", "both", "done");
    only(spec, Code::TooLarge, "definition");
}
