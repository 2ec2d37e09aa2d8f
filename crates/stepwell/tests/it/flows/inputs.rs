//! Invalid input pauses again with errors by field; nothing is written, and the token stays valid.

use serde_json::{Value, json};
use stepwell::core::spec::Transition;
use stepwell::core::{Definition, Spec};
use stepwell::engine::Builder;
use stepwell::flow::{Answer, FlowError, Flows, Resume};
use stepwell::store::Status;
use stepwell::testing::TestEngine;
use stepwell::{ActionError, Cx, Start};

use super::{asks, begun, flows, form, go, handles, sum, walk};
use crate::kit::{self, Watched, ground, soon};

/// A form of text fields, a signal with a payload schema, and an action with its own validation.
fn signup() -> Definition {
    Spec::new("signup")
        .place("open", asks("SEND", form(&["name", "mail"])))
        .step("sent")
        .step("known")
        .end_with("done", json!({"$expr": "context"}))
        .signal_with("SEND", json!({"properties": {"name": {"maxLength": 5}}}))
        .signal("OK")
        .transition(Transition::new("check", "open", "sent").action("check"))
        .auto("on", "sent", "known")
        .on_signal("end", "known", "OK", "done")
        .initial("open")
        .build()
        .unwrap()
}

async fn check(cx: Cx) -> Result<(), ActionError> {
    cx.kv("test").increment("sum", 1)?;
    let given = cx.snapshot().activations()[0].received.clone().unwrap_or_default();
    if given["name"] == "eve" {
        let unfit = ActionError::validation().field("/name", "not her").field("/mail", "nor there");
        return Err(unfit);
    }
    cx.update_state(|state: &mut Value| state["name"] = given["name"].clone())
}

fn office(builder: Builder) -> Builder {
    builder.workflow(signup()).action("check", check)
}

async fn given(flows: &Flows, token: &str, input: Value) -> Answer {
    soon(flows.resume(Resume::new(token).input(&input))).await.unwrap()
}

fn pointers(answer: &Answer) -> Vec<(String, String)> {
    let mut all: Vec<_> =
        answer.errors.iter().map(|error| (error.pointer.clone(), error.keyword.clone())).collect();
    all.sort();
    all
}

/// E9: the form, the signal's schema and the action each report errors by field.
#[tokio::test]
async fn errors_are_reported_by_field_and_the_token_stays_valid() {
    for strategy in ["sealed", "handle"] {
        let (store, clock) = ground().await;
        let watched = Watched::new(store);
        let engine = TestEngine::start_on(watched.clone(), clock, office).await.unwrap();
        let flows = flows(&engine, strategy);
        let token = begun(&flows, "signup").await;
        let before = flows.show(&token).await.unwrap();
        watched.commits();
        let wrong = [
            (json!({"name": "ann"}), vec![("", "required")]),
            (json!({"name": "ann", "mail": ""}), vec![("/mail", "minLength")]),
            (json!({"name": 7, "mail": 7}), vec![("/mail", "type"), ("/name", "type")]),
            (json!(null), vec![("", "type")]),
            (json!({"name": "annabelle", "mail": "x"}), vec![("/name", "maxLength")]),
            (json!({"name": "eve", "mail": "x"}), vec![("/mail", "action"), ("/name", "action")]),
        ];
        for (input, errors) in wrong {
            let answer = given(&flows, &token, input.clone()).await;
            let said = pointers(&answer);
            let expected: Vec<_> =
                errors.iter().map(|(at, by)| ((*at).to_owned(), (*by).to_owned())).collect();
            assert_eq!(said, expected, "{strategy} {input}");
            let same = Answer { errors: Vec::new(), ..answer };
            assert_eq!(same, before, "{strategy}: the flow waits where it was");
        }
        let writes = watched.commits().iter().filter(|commit| !commit.cells.is_empty()).count();
        assert_eq!((writes, sum(&engine).await), (0, Value::Null), "{strategy}");
        let right = given(&flows, &token, json!({"name": "ann", "mail": "x"})).await;
        assert_eq!((right.waits[0].place.as_str(), right.errors.len()), ("known", 0));
        let ended = go(&flows, &right.token.unwrap()).await.unwrap();
        assert_eq!(ended.result, Some(json!({"name": "ann"})));
    }
}

/// E9: an action that refuses the input does not leave the handle reserved.
#[tokio::test]
async fn an_input_refused_by_the_action_releases_the_handle() {
    let engine = kit::start(office).await.unwrap();
    let flows = flows(&engine, "handle");
    let token = begun(&flows, "signup").await;
    given(&flows, &token, json!({"name": "eve", "mail": "x"})).await;
    let rows = handles(&flows).await;
    assert_eq!((rows.len(), rows[0].owner), (1, None));
}

/// E9: a durable run reports errors in a form or payload, and its link stays valid.
#[tokio::test]
async fn a_link_stays_valid_after_an_invalid_input() {
    let engine = kit::start(office).await.unwrap();
    let flows = flows(&engine, "durable");
    let token = begun(&flows, "signup").await;
    for (input, at) in [(json!({"name": "ann"}), ""), (json!({"name": "annabelle", "mail": "x"}), "/name")] {
        let answer = given(&flows, &token, input).await;
        assert_eq!((answer.errors[0].pointer.as_str(), answer.token.as_ref()), (at, Some(&token)));
        assert_eq!((answer.status, answer.waits[0].place.as_str()), (Status::Waiting, "open"));
    }
    let right = given(&flows, &token, json!({"name": "ann", "mail": "x"})).await;
    assert_eq!((right.status, right.waits[0].place.as_str()), (Status::Waiting, "known"));
}

/// E9: only the step that takes the input may refuse it; a later step that does so has failed.
#[tokio::test]
async fn only_the_step_that_takes_the_input_may_refuse_it() {
    let two = Spec::new("two")
        .signal("GO")
        .step("a")
        .step("b")
        .end("c")
        .transition(Transition::new("ab", "a", "b").on_signal("GO").action("fine"))
        .transition(Transition::new("bc", "b", "c").action("unfit"))
        .build()
        .unwrap();
    let unfit = |_: Cx| async { Err::<(), _>(ActionError::validation().field("/x", "no")) };
    let build = |builder: Builder| builder.workflow(two).action("fine", super::add).action("unfit", unfit);
    let engine = kit::start(build).await.unwrap();
    for strategy in ["handle"] {
        let flows = flows(&engine, strategy);
        let token = begun(&flows, "two").await;
        let Err(FlowError::Failed(failure)) = go(&flows, &token).await else { panic!("the step must fail") };
        assert_eq!((failure.code.as_str(), sum(&engine).await), ("validationFailed", Value::Null));
        flows.show(&token).await.unwrap();
    }
}

/// E9: invalid input at the start is an error with its fields, and leaves nothing behind.
#[tokio::test]
async fn a_start_with_an_invalid_input_leaves_nothing_behind() {
    let refuses = |_: Cx| async { Err::<(), _>(ActionError::validation().field("/name", "no")) };
    let start =
        Spec::new("begin").step("a").end("b").transition(Transition::new("ab", "a", "b").action("refuses"));
    let strict = Spec::new("strict").context_schema(json!({"type": "object", "required": ["name"]}));
    let strict = strict.signal("GO").step("a").end("b").on_signal("ab", "a", "GO", "b").build().unwrap();
    let build = |builder: Builder| {
        builder.workflow(start.build().unwrap()).workflow(strict).action("refuses", refuses)
    };
    let engine = kit::start(build).await.unwrap();
    let flows = flows(&engine, "handle");
    let Err(FlowError::Failed(failure)) = soon(flows.start(Start::new("begin"))).await else {
        panic!("the step must fail")
    };
    assert_eq!((failure.code.as_str(), failure.errors[0].pointer.as_str()), ("validationFailed", "/name"));
    let error = soon(flows.start(Start::new("strict").input(&json!({})))).await.unwrap_err().to_string();
    assert!(error.contains("name"), "{error}");
    assert_eq!(handles(&flows).await, []);
}

/// E9: a prompt set by an action is shown at the next wait only.
#[tokio::test]
async fn a_prompt_is_shown_at_the_next_wait_only() {
    let prompts = |cx: Cx| async move { cx.prompt(&json!({"title": "Sure?"})) };
    let build = |builder: Builder| {
        let builder = builder.workflow(walk("ask", &["prompts", "nothing", "nothing"]).build().unwrap());
        builder.action("prompts", prompts).action("nothing", super::nothing)
    };
    for strategy in ["sealed", "handle", "durable"] {
        let engine = kit::start(build).await.unwrap();
        let flows = flows(&engine, strategy);
        let asked = go(&flows, &begun(&flows, "ask").await).await.unwrap();
        assert_eq!(asked.waits[0].prompt, Some(json!({"title": "Sure?"})), "{strategy}");
        let token = asked.token.unwrap();
        assert_eq!(flows.show(&token).await.unwrap().waits[0].prompt, Some(json!({"title": "Sure?"})));
        assert_eq!(go(&flows, &token).await.unwrap().waits[0].prompt, None, "{strategy}");
    }
}
