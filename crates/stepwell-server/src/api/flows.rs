//! Routes of flows: start them with a permission, resume and show them with their token, and answer them on link pages.

use std::sync::Arc;

use axum::body::Bytes;
use axum::http::header::SET_COOKIE;
use axum::http::{HeaderMap, StatusCode};
use schemars::{JsonSchema, SchemaGenerator};
use serde::Deserialize;
use serde_json::{Value, json};
use stepwell::core::Failure;
use stepwell::flow::{Answer, FlowError, Flows};
use stepwell::{EngineError, Permission};

use super::call::{Call, IgnoredFields, Json, Nothing, OptionalBody, Reads};
use super::reply::Reply;
use super::route::{Needs, Route, get, post};
use super::shapes::{Id, Instant, RunStatus, named};
use super::waits::HeartbeatView;
use super::{Caller, Server};
use crate::routes::flows::{Api, resume_of, resumed, started};
use crate::routes::link;
use crate::routes::problem::Problem;
use crate::routes::token::token;

/// Maximum size of an answer on a link page, in bytes.
const FORM_BYTES: usize = 256 * 1024;
/// Content type of pages.
pub(super) const PAGE: &str = "text/html; charset=utf-8";

/// Header that may contain a flow's token.
const TOKEN_HEADER: &str = "X-Flow-Token";

/// Path parameter that selects the workflow of a new flow.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct WorkflowPath {
    /// Name of the workflow. Workflows named `resume` or `show` cannot be started by this route.
    #[schemars(length(min = 1, max = 256))]
    workflow: String,
}

/// Request to start a flow.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct StartFlow {
    /// Input of the flow; `null` is a valid input. Default: an empty object.
    #[serde(default, deserialize_with = "named")]
    input: Option<Value>,
}

/// Query parameter with a flow's token.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct WithToken {
    /// Token of the flow, if it is in neither the body nor the header `X-Flow-Token`.
    token: Option<String>,
}

/// Request to resume a flow.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ResumeFlow {
    /// Token of the flow, if it is in neither the query nor the header `X-Flow-Token`.
    token: Option<String>,
    /// Name of the outcome. Required if the flow accepts several.
    outcome: Option<String>,
    /// Answer, a JSON value that matches the form of the wait.
    input: Option<Value>,
}

/// Path parameter of a link page.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct TokenPath {
    /// Token of the flow, or of an answer link.
    token: String,
}

/// State of a flow after it was started, resumed or shown.
#[derive(JsonSchema)]
#[schemars(rename = "FlowAnswer", rename_all = "camelCase")]
#[expect(dead_code, reason = "only its schema is used")]
struct AnswerShape {
    /// Id of the flow, a UUID. A flow that becomes a durable run keeps it as the run's id.
    flow: Id,
    /// Name of the workflow.
    workflow: String,
    /// Current status of the flow.
    status: RunStatus,
    /// Name of the strategy that keeps the flow's state; absent if the flow has ended.
    #[schemars(default)]
    strategy: Option<String>,
    /// Token that resumes the flow. With `watchOnly`, it only shows that the flow waits.
    #[schemars(default)]
    token: Option<String>,
    /// URL of the token's page; absent if `server.public_url` is not set or the token is in a cookie.
    #[schemars(default)]
    url: Option<String>,
    /// True if the token cannot resume the flow, because another person must answer.
    #[schemars(default)]
    watch_only: Option<bool>,
    /// Time at which the token expires; absent if it never expires.
    #[schemars(default)]
    expires_at: Option<Instant>,
    /// Waits that accept an answer.
    #[schemars(default)]
    waits: Option<Vec<PauseShape>>,
    /// Name of the outlet that sent the resuming token; absent if none was sent.
    #[schemars(default)]
    sent: Option<String>,
    /// Output of the flow; absent if it has not completed.
    #[schemars(default)]
    result: Value,
    /// Error that stopped a durable run: `{code, message, final}`.
    #[schemars(default)]
    error: Value,
}

/// A wait of a flow for an answer.
#[derive(JsonSchema)]
#[schemars(rename = "FlowPause", rename_all = "camelCase")]
#[expect(dead_code, reason = "only its schema is used")]
struct PauseShape {
    /// Id of the wait within the flow.
    activation: u64,
    /// Name of the place or step that waits.
    place: String,
    /// Names of the accepted outcomes.
    outcomes: Vec<String>,
    /// JSON Schema of the form; absent if the wait has none.
    #[schemars(default)]
    form: Value,
    /// Prompt of the wait; absent if it has none.
    #[schemars(default)]
    prompt: Value,
    /// Users and roles that may answer; absent = no restriction.
    #[schemars(default)]
    answerers: Option<Vec<String>>,
}

/// The error with which the wait of a link fails.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct FailLink {
    /// Code of the error, for `catch`, `retryOn` and programs.
    #[schemars(length(min = 1, max = 100))]
    code: String,
    /// Description of the error. Default: the code.
    #[schemars(length(max = 2000))]
    message: Option<String>,
    /// True if a retry of the step cannot succeed. Default: `false`.
    #[serde(default, rename = "final")]
    is_final: bool,
}

/// Body of an answer on a link page: the fields of the form, or JSON.
struct Answered(Bytes);

impl Reads for Answered {
    type Reader = ();

    fn reader() {}

    fn contents(_: &mut SchemaGenerator) -> Vec<(&'static str, Value)> {
        let properties = json!({"outcome": {"type": ["string", "null"]}, "input": {}});
        let json = json!({"type": "object", "properties": properties, "additionalProperties": false});
        vec![("application/x-www-form-urlencoded", json!({"type": "object"})), ("application/json", json)]
    }

    fn is_optional() -> bool {
        true
    }

    fn read((): &(), _: &HeaderMap, body: Bytes) -> Result<Self, Problem> {
        Ok(Answered(body))
    }
}

pub(super) fn routes() -> Vec<Route> {
    let nothing = Needs::Nothing;
    vec![
        post("/v1/flows/{workflow}", "startFlow", Permission::Manage, "Start a flow.")
            .notes("The response contains the flow's token, unless an outlet sends it to another person. If the server has a cookie for tokens, the token is in that cookie instead.")
            .keyed()
            .gives::<AnswerShape>(StatusCode::CREATED, "The flow waits; its token resumes it.")
            .ok::<AnswerShape>("The flow has ended.")
            .links_to("/v1/flows", "token", "/token")
            .links_to("/l", "token", "/token")
            .to(start),
        post("/v1/flows/resume", "resumeFlow", nothing, "Resume a flow with its token.")
            .notes("Send the token in the body, in the query, in the header `X-Flow-Token` or in the server's cookie for tokens. An invalid token is a 410, which does not reveal the reason. A token that only shows the flow is a 403. An invalid input is a 422, and the token stays valid.")
            .reads_header(TOKEN_HEADER, "Token of the flow, if it is in neither the body nor the query.")
            .keyed()
            .ok::<AnswerShape>("State of the flow, with its next token.")
            .to(resume),
        get("/v1/flows/show", "showFlow", nothing, "Show the flow of a token, without changing it.")
            .notes("Send the token in the query or in the header `X-Flow-Token`.")
            .reads_header(TOKEN_HEADER, "Token of the flow, if it is not in the query.")
            .ok::<AnswerShape>("State of the flow.")
            .to(show),
        get("/l/{token}", "showLink", nothing, "Show the page of a link, without changing the flow.")
            .notes("A client that accepts JSON but not HTML gets the response of `showFlow`. Query parameters, such as those that mailers append, are ignored.")
            .gives_text(PAGE, "The page.")
            .ok::<AnswerShape>("State of the flow.")
            .problem_pages()
            .to(show_link),
        post("/l/{token}", "answerLink", nothing, "Answer a link.")
            .notes("A client that accepts JSON but not HTML gets the response of `resumeFlow`.")
            .keyed()
            .body_bytes(FORM_BYTES)
            .gives_text(PAGE, "The page with the result.")
            .ok::<AnswerShape>("State of the flow, with its next token.")
            .problem_pages()
            .to(answer_link),
        post("/l/{token}/fail", "failLink", nothing, "Fail the wait of an answer link.")
            .notes("The step of the wait fails with the error, and the link is used up. A link that accepts only some outcomes cannot fail its wait. Only waits of durable runs can fail.")
            .gives_nothing("The wait has failed.")
            .to(fail_link),
        post("/l/{token}/heartbeat", "heartbeatLink", nothing, "Send a heartbeat for the wait of an answer link.")
            .notes("The step of the wait must have a `heartbeat`. The link stays valid.")
            .ok::<HeartbeatView>("The next heartbeat.")
            .to(heartbeat_link),
    ]
}

impl Server {
    /// Returns the flows, or a problem if the server has none.
    pub(super) fn flows(&self) -> Result<&Flows, Problem> {
        self.flows.as_ref().ok_or_else(|| {
            let detail = "This server has no flows: configure a key that seals tokens and a strategy.";
            Problem::new(StatusCode::NOT_FOUND, "noFlows", detail)
        })
    }

    /// Returns the flows of the caller's tenant, acting as the caller.
    pub(super) fn flows_of(&self, caller: &Caller) -> Result<Flows, Problem> {
        let flows = self.flows()?.for_tenant(caller.scope());
        Ok(caller.actor().cloned().into_iter().fold(flows, |flows, actor| flows.acting(actor)))
    }
}

/// Converts an error of a flow for an authenticated caller. Engine errors keep their details.
pub(super) fn flow_problem(error: FlowError) -> Problem {
    match error {
        FlowError::Engine(error) => error.into(),
        other => other.into(),
    }
}

/// Converts an error of a callback through a link. Its own refusals name what to change.
fn callback_problem(error: FlowError) -> Problem {
    match error {
        FlowError::Engine(EngineError::Invalid(why)) => {
            Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", format!("{why}."))
        }
        FlowError::Engine(EngineError::WrongStatus { why, .. }) => {
            Problem::new(StatusCode::CONFLICT, "wrongStatus", format!("The run is not ready: {why}."))
        }
        other => other.into(),
    }
}

/// Creates the reply with a flow's state, without details that the caller may not see. The token is in the body or in
/// the cookie.
fn shown(server: &Server, answer: Answer, status: StatusCode, has_moved: bool) -> Result<Reply, Problem> {
    let is_replayed = answer.is_replayed;
    let (shown, cookie) = server.flow_routes.0.written(answer, has_moved, server.engine.now())?;
    let reply = Reply::json(status, &shown)?.replayed(is_replayed);
    let cookie = cookie.as_ref().and_then(|cookie| cookie.to_str().ok());
    Ok(cookie.into_iter().fold(reply, |reply, cookie| reply.with(SET_COOKIE, cookie)))
}

async fn start(call: Call<WorkflowPath, Nothing, OptionalBody<StartFlow>>) -> Result<Reply, Problem> {
    let flows = call.server.flows_of(&call.caller)?;
    let input = call.body.0.input.as_ref();
    let started = started(&flows, &call.path.workflow, input, call.key()?).await;
    let (answer, status) = started.map_err(flow_problem)?;
    shown(&call.server, answer, status, true)
}

/// Returns the request's token. `Authorization` is not read, because it contains API credentials.
fn token_of<P, B>(call: &Call<P, WithToken, B>, in_body: Option<String>) -> Result<String, Problem> {
    let query = call.query.token.iter().map(|token| ("token".to_owned(), token.clone()));
    token(&call.server.flow_routes.0, in_body, query.collect(), &call.headers)
}

async fn resume(call: Call<Nothing, WithToken, OptionalBody<ResumeFlow>>) -> Result<Reply, Problem> {
    let flows = call.server.flows()?;
    let OptionalBody(ResumeFlow { token, outcome, input }) = &call.body;
    let token = token_of(&call, token.clone())?;
    let resume = resume_of(&token, outcome.as_deref(), input.as_ref(), call.key()?);
    shown(&call.server, resumed(&flows.of_token(&token), resume).await?, StatusCode::OK, true)
}

async fn show(call: Call<Nothing, WithToken>) -> Result<Reply, Problem> {
    let flows = call.server.flows()?;
    let token = token_of(&call, None)?;
    shown(&call.server, flows.of_token(&token).show(&token).await?, StatusCode::OK, false)
}

/// Returns the flows and options for link pages.
fn pages<P, Q, B>(call: &Call<P, Q, B>) -> Result<Api, Problem> {
    Ok(Api { flows: call.server.flows()?.clone(), options: Arc::new(call.server.flow_routes.0.clone()) })
}

async fn show_link(call: Call<TokenPath, IgnoredFields>) -> Result<Reply, Problem> {
    let page = link::page_of(&pages(&call)?, &call.path.token, &call.headers).await;
    Ok(Reply::whole(link::guarded(page).await))
}

async fn fail_link(call: Call<TokenPath, Nothing, Json<FailLink>>) -> Result<Reply, Problem> {
    let Json(FailLink { code, message, is_final }) = &call.body;
    let failure = Failure::new(code, message.as_ref().unwrap_or(code));
    let failure = if *is_final { failure.non_retryable() } else { failure };
    let flows = call.server.flows()?.of_token(&call.path.token);
    flows.fail_link(&call.path.token, failure).await.map_err(callback_problem)?;
    Ok(Reply::nothing())
}

async fn heartbeat_link(call: Call<TokenPath>) -> Result<Reply, Problem> {
    let flows = call.server.flows()?.of_token(&call.path.token);
    let due = flows.heartbeat_link(&call.path.token).await.map_err(callback_problem)?;
    Reply::ok(&HeartbeatView { due })
}

async fn answer_link(call: Call<TokenPath, IgnoredFields, Answered>) -> Result<Reply, Problem> {
    let Answered(content) = &call.body;
    let page = link::answered(&pages(&call)?, &call.path.token, &call.headers, content).await;
    Ok(Reply::whole(link::guarded(page).await))
}
