//! The workflows of the flow tests, and an engine with routes to their flows.

use std::time::Duration;

use axum::Router;
use serde_json::{Value, json};
use stepwell::core::spec::{Place, Transition, Wait};
use stepwell::core::{Definition, Spec};
use stepwell::flow::{Durable, Flows, FlowsBuilder, Handle, Key, KeyRing, Outgoing, Sealed};
use stepwell::store::{AuditRow, HandleQuery, HandleRow, Record, RecordQuery};
use stepwell::testing::TestEngine;
use stepwell::{ActionError, Builder, Cx, Engine};
use stepwell_server::routes::{FlowRoutes, flow_routes};

use crate::kit::{Reply, post};

fn asks(signal: &str, form: Value) -> Place {
    Place::Wait(Wait { signal: Some(signal.into()), form: Some(form), ..Wait::default() })
}

/// A login: a password, then a code, then the end.
fn login() -> Definition {
    let text = json!({"type": "string", "minLength": 1});
    let password = json!({
        "type": "object", "required": ["user", "password"],
        "properties": {"user": text, "password": {"type": "string", "minLength": 1, "format": "password"}},
    });
    let code = json!({"type": "object", "required": ["code"], "properties": {"code": text}});
    Spec::new("login")
        .place("password", asks("PASSWORD", password))
        .step("checked")
        .place("code", asks("CODE", code))
        .end_with("in", json!({"user": {"$expr": "context.user"}}))
        .signal("PASSWORD")
        .signal("CODE")
        .transition(Transition::new("check", "password", "checked").action("check"))
        .auto("ask", "checked", "code")
        .auto("enter", "code", "in")
        .initial("password")
        .build()
        .unwrap()
}

async fn check(cx: Cx) -> Result<(), ActionError> {
    let given = cx.snapshot().activations()[0].received.clone().unwrap_or_default();
    match given["password"].as_str() {
        Some("secret") => cx.update_state(|state: &mut Value| state["user"] = given["user"].clone()),
        Some("locked") => Err(ActionError::new("accountLocked", "The account is locked.").non_retryable()),
        Some("broken") => Err(ActionError::new("error", "select * from accounts at /srv/app.rs:3")),
        Some("slow") => {
            // The test drops the request: this never ends by itself.
            std::future::pending::<()>().await;
            Ok(())
        }
        _ => Err(ActionError::validation().field("/password", "this is not the password")),
    }
}

/// An invitation: it is sent out if the input names an outlet, and the recipient fills in a form.
fn invite() -> Definition {
    let form = json!({
        "type": "object", "title": "Join us", "required": ["name", "age"],
        "properties": {
            "name": {"type": "string", "minLength": 2, "description": "As on your passport."},
            "age": {"type": "integer", "minimum": 18},
            "plan": {"enum": ["free", "<paid>"], "title": "Plan"},
            "news": {"type": "boolean", "title": "Send me news"},
        },
    });
    Spec::new("invite")
        .step("begin")
        .place("accept", asks("ACCEPT", form))
        .step("accepted")
        .end_with("joined", json!({"who": {"$expr": "context.who"}}))
        .signal("ACCEPT")
        .transition(Transition::new("send", "begin", "accept").action("send"))
        .transition(Transition::new("join", "accept", "accepted").action("join"))
        .auto("end", "accepted", "joined")
        .initial("begin")
        .build()
        .unwrap()
}

async fn send(cx: Cx) -> Result<(), ActionError> {
    let state: Value = cx.state()?;
    let text = |name: &str| state[name].as_str().map(str::to_owned);
    if let Some(prompt) = text("prompt") {
        cx.prompt(&prompt)?;
    }
    let (Some(outlet), Some(to)) = (text("outlet"), text("to")) else { return Ok(()) };
    let mut outgoing = Outgoing::new(outlet, to).data(state["data"].clone()).ttl(Duration::from_secs(3_600));
    if let Some(template) = text("template") {
        outgoing = outgoing.template(template);
    }
    cx.send_out(outgoing)
}

async fn join(cx: Cx) -> Result<(), ActionError> {
    let given = cx.snapshot().activations()[0].received.clone().unwrap_or_default();
    cx.update_state(|state: &mut Value| state["who"] = given)
}

/// A decision with two outcomes, and no form.
fn decision() -> Definition {
    Spec::new("decision")
        .step("begin")
        .step("decide")
        .end_with("approved", json!("approved"))
        .end_with("rejected", json!("rejected"))
        .signal("APPROVE")
        .signal("SEND_BACK")
        .transition(Transition::new("ask", "begin", "decide").action("send"))
        .on_signal("yes", "decide", "APPROVE", "approved")
        .on_signal("no", "decide", "SEND_BACK", "rejected")
        .initial("begin")
        .build()
        .unwrap()
}

/// An engine, flows on it, and routes to them.
pub(crate) struct World {
    pub(crate) engine: TestEngine,
    pub(crate) flows: Flows,
    pub(crate) router: Router,
}

pub(crate) async fn world(begin: &str) -> World {
    world_with(begin, FlowRoutes::new(), |flows| flows).await
}

pub(crate) async fn world_with(
    begin: &str,
    routes: FlowRoutes,
    build: impl FnOnce(FlowsBuilder) -> FlowsBuilder,
) -> World {
    let (engine, flows) = flows_with(begin, build).await;
    let router = flow_routes(flows.clone(), routes);
    World { engine, flows, router }
}

/// Starts an engine with the workflows, and flows on it.
pub(crate) async fn flows_with(
    begin: &str,
    build: impl FnOnce(FlowsBuilder) -> FlowsBuilder,
) -> (TestEngine, Flows) {
    let engine = TestEngine::start(workflows).await.unwrap();
    let flows = flows_on(&engine, begin, build);
    (engine, flows)
}

/// Registers the workflows of the flows and their actions.
pub(crate) fn workflows(engine: Builder) -> Builder {
    let engine = engine.workflow(login()).workflow(invite()).workflow(decision());
    engine.action("check", check).action("send", send).action("join", join)
}

/// Builds flows with three strategies on an engine that has the workflows.
pub(crate) fn flows_on(
    engine: &Engine,
    begin: &str,
    build: impl FnOnce(FlowsBuilder) -> FlowsBuilder,
) -> Flows {
    let flows = Flows::builder(engine, KeyRing::new(Key::generate("test").unwrap()))
        .strategy("sealed", Sealed::new())
        .strategy("handle", Handle::new().ttl(Duration::from_secs(3_600)))
        .strategy("durable", Durable::new())
        .default_strategy(begin);
    build(flows).build().unwrap()
}

impl World {
    /// Starts a flow over HTTP.
    pub(crate) async fn start(&self, workflow: &str, input: Value) -> Reply {
        let reply =
            post(&format!("/v1/flows/{workflow}")).json(&json!({"input": input})).to(&self.router).await;
        assert_eq!(reply.status, 201, "{reply:?}");
        reply
    }

    /// Starts a flow and returns its token.
    pub(crate) async fn token(&self, workflow: &str, input: Value) -> String {
        self.start(workflow, input).await.json()["token"].as_str().unwrap().to_owned()
    }

    /// Returns the rows of all handles.
    pub(crate) async fn handles(&self) -> Vec<HandleRow> {
        self.flows.handles(HandleQuery { limit: 100, ..HandleQuery::default() }).await.unwrap().items
    }

    /// Returns the first 100 rows of the audit trail.
    pub(crate) async fn audit(&self) -> Vec<AuditRow> {
        let query = RecordQuery::Audit { limit: 100, cursor: None };
        let page = self.engine.store().records(self.engine.scope(), query).await.unwrap();
        let row = |record| match record {
            Record::Audit { row, .. } => Some(row),
            _ => None,
        };
        page.items.into_iter().filter_map(row).collect()
    }
}
