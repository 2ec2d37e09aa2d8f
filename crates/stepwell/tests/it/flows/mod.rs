//! Flows: started and resumed in one call each; their state is sealed, behind a handle, or a durable run.

mod basics;
mod documents;
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

/// A form with required text fields.
pub(crate) fn form(fields: &[&str]) -> Value {
    let properties: serde_json::Map<String, Value> =
        fields.iter().map(|field| ((*field).to_owned(), json!({"type": "string", "minLength": 1}))).collect();
    json!({"type": "object", "properties": properties, "required": fields})
}

/// A login: password, then code, then the end.
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
        return Err(ActionError::validation().field("/password", "this is not the password"));
    }
    cx.update_state(|state: &mut Value| state["user"] = given["user"].clone())
}

pub(crate) async fn verify(cx: Cx) -> Result<(), ActionError> {
    let given = cx.snapshot().activations()[0].received.clone().unwrap_or_default();
    if given["code"] != "123456" {
        return Err(ActionError::validation().field("/code", "this is not the code"));
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
    three(engine).default_strategy(begin).build().unwrap()
}

/// A workflow that runs the next of these actions on each `GO`, and ends with its data after the last.
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

/// An action that stores its input in the data.
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

/// The value of the key `sum`.
pub(crate) async fn sum(engine: &Engine) -> Value {
    engine.kv("test").get("sum").await.unwrap().map(|entry| entry.value).unwrap_or_default()
}

/// Starts a flow of this workflow without input.
pub(crate) async fn begin(flows: &Flows, workflow: &str) -> Answer {
    soon(flows.start(Start::new(workflow).input(&json!({})))).await.unwrap()
}

/// Starts a flow and returns its token.
pub(crate) async fn begun(flows: &Flows, workflow: &str) -> String {
    begin(flows, workflow).await.token.unwrap()
}

/// Resumes the flow without input.
pub(crate) async fn go(flows: &Flows, token: &str) -> Result<Answer, FlowError> {
    soon(flows.resume(Resume::new(token))).await
}

/// Resumes the flow and returns the token of its next pause.
pub(crate) async fn next(flows: &Flows, token: &str) -> String {
    go(flows, token).await.unwrap().token.unwrap()
}

/// All handles of the tenant.
pub(crate) async fn handles(flows: &Flows) -> Vec<HandleRow> {
    let query = HandleQuery { limit: 100, ..HandleQuery::default() };
    flows.handles(query).await.unwrap().items
}

/// Advances the clock in small steps until a future that sleeps is done.
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
