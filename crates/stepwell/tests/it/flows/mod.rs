//! Flows that are started and resumed in one call each, and rest sealed, behind a handle or as durable runs.

mod basics;
mod handles;
mod inputs;
mod links;
mod outlets;
mod paths;
mod racing;
mod revoking;
mod sealed;
mod strategies;
mod swaps;
mod twice;
mod writes;

use std::pin::pin;
use std::time::Duration;

use serde_json::{Value, json};
use stepwell::core::Definition;
use stepwell::core::Spec;
use stepwell::core::spec::{Place, Transition, Wait};
use stepwell::flow::{Answer, Durable, FlowError, Flows, FlowsBuilder, Handle, Key, KeyRing, Resume, Sealed};
use stepwell::store::{HandleQuery, HandleRow};
use stepwell::testing::TestEngine;
use stepwell::{ActionError, Clock, Cx, Engine, ManualClock, Start};

use crate::kit::soon;

/// A wait with a form.
pub(crate) fn asks(signal: &str, form: Value) -> Place {
    Place::Wait(Wait { signal: Some(signal.into()), form: Some(form), ..Wait::default() })
}

/// A form with text fields that have to be there.
pub(crate) fn form(fields: &[&str]) -> Value {
    let properties: serde_json::Map<String, Value> =
        fields.iter().map(|field| ((*field).to_owned(), json!({"type": "string", "minLength": 1}))).collect();
    json!({"type": "object", "properties": properties, "required": fields})
}

/// A login: a password, then a code, then the end.
pub(crate) fn login() -> Definition {
    Spec::new("login")
        .place("password", asks("PASSWORD", form(&["user", "password"])))
        .step("checked")
        .place("code", asks("CODE", form(&["code"])))
        .step("known")
        .end_with("in", json!({"user": {"$expr": "context.user"}}))
        .signal("PASSWORD")
        .signal("CODE")
        .transition(Transition::new("check", "password", "checked").action("check"))
        .auto("ask", "checked", "code")
        .transition(Transition::new("verify", "code", "known").action("verify"))
        .auto("enter", "known", "in")
        .initial("password")
        .build()
        .unwrap()
}

pub(crate) async fn check(cx: Cx) -> Result<(), ActionError> {
    let given = cx.snapshot().activations()[0].received.clone().unwrap_or_default();
    if given["password"] != "secret" {
        return Err(ActionError::unfit().field("/password", "this is not the password"));
    }
    cx.update_state(|state: &mut Value| state["user"] = given["user"].clone())
}

pub(crate) async fn verify(cx: Cx) -> Result<(), ActionError> {
    let given = cx.snapshot().activations()[0].received.clone().unwrap_or_default();
    if given["code"] != "123456" {
        return Err(ActionError::unfit().field("/code", "this is not the code"));
    }
    Ok(())
}

pub(crate) fn ring() -> KeyRing {
    KeyRing::new(Key::generate("test").unwrap())
}

/// Flows with all three strategies.
pub(crate) fn three(engine: &Engine) -> FlowsBuilder {
    Flows::builder(engine, ring())
        .strategy("sealed", Sealed::new())
        .strategy("handle", Handle::new())
        .strategy("durable", Durable::new())
}

pub(crate) fn flows(engine: &TestEngine, begin: &str) -> Flows {
    three(engine).begin_with(begin).build().unwrap()
}

/// From pause to pause: `GO` does the next of these actions, and after the last it ends with its data.
pub(crate) fn walk(name: &str, actions: &[&str]) -> Spec {
    let mut spec = Spec::new(name).signal("GO").end_with("done", json!({"$expr": "context"})).initial("p0");
    for (at, action) in actions.iter().enumerate() {
        let next = if at + 1 == actions.len() { "done".to_owned() } else { format!("p{}", at + 1) };
        let step = Transition::new(format!("t{at}"), format!("p{at}"), next).on_signal("GO").action(*action);
        spec = spec.step(format!("p{at}")).transition(step);
    }
    spec
}

/// An action that does nothing.
pub(crate) async fn nothing(_: Cx) -> Result<(), ActionError> {
    Ok(())
}

/// An action that puts what it is given into the data.
pub(crate) async fn keep(cx: Cx) -> Result<(), ActionError> {
    let given = cx.payload().clone();
    cx.update_state(|state: &mut Value| {
        for (field, value) in given.as_object().into_iter().flatten() {
            state[field] = value.clone();
        }
    })
}

/// An action that adds 1 to the key `sum`.
pub(crate) async fn add(cx: Cx) -> Result<(), ActionError> {
    cx.kv("test").increment("sum", 1)
}

/// What the key `sum` holds.
pub(crate) async fn sum(engine: &Engine) -> Value {
    engine.kv("test").get("sum").await.unwrap().map(|entry| entry.value).unwrap_or_default()
}

/// A flow of this workflow, without any data.
pub(crate) async fn begin(flows: &Flows, workflow: &str) -> Answer {
    soon(flows.start(Start::new(workflow).input(&json!({})))).await.unwrap()
}

/// The token of a flow that has just begun.
pub(crate) async fn begun(flows: &Flows, workflow: &str) -> String {
    begin(flows, workflow).await.token.unwrap()
}

/// The flow goes on, with nothing in particular.
pub(crate) async fn go(flows: &Flows, token: &str) -> Result<Answer, FlowError> {
    soon(flows.resume(Resume::new(token))).await
}

/// The flow goes on to a pause whose token this is.
pub(crate) async fn next(flows: &Flows, token: &str) -> String {
    go(flows, token).await.unwrap().token.unwrap()
}

/// All handles.
pub(crate) async fn handles(flows: &Flows) -> Vec<HandleRow> {
    let query = HandleQuery { limit: 100, ..HandleQuery::default() };
    flows.handles(query).await.unwrap().items
}

/// Lets time pass, a little at a time, until something is done that sleeps now and then.
pub(crate) async fn as_time_passes<T>(clock: &ManualClock, what: impl Future<Output = T>) -> T {
    let mut what = pin!(what);
    soon(async {
        loop {
            tokio::select! {
                biased;
                done = &mut what => return done,
                () = tokio::time::sleep(Duration::from_millis(1)) => clock.set(clock.now().plus_ms(1)),
            }
        }
    })
    .await
}
