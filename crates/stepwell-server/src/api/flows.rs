//! Flows: started by whoever may, resumed and shown by whoever has their token, answered on pages behind links.

use std::sync::Arc;

use axum::body::Bytes;
use axum::http::{HeaderMap, StatusCode};
use schemars::{JsonSchema, SchemaGenerator};
use serde::Deserialize;
use serde_json::{Value, json};
use stepwell::Permission;
use stepwell::flow::{Answer, FlowError, Flows};

use super::call::{Call, Nothing, Perhaps, Reads, Whatever};
use super::reply::Reply;
use super::route::{Needs, Route, get, post};
use super::shapes::{Id, Instant, RunStatus, named};
use super::{Caller, Server};
use crate::routes::flows::{Api, FlowRoutes, resume_of, resumed, started};
use crate::routes::problem::Problem;
use crate::routes::token::token;
use crate::routes::{link, reply};

/// Bytes that an answer to a link has at most.
const FORM_BYTES: usize = 256 * 1024;
/// What a page is sent as.
pub(super) const PAGE: &str = "text/html; charset=utf-8";

/// The header that a token may be in.
const TOKEN_HEADER: &str = "X-Flow-Token";

/// Which workflow.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct OfWorkflow {
    /// The workflow's name; `resume` and `show` cannot be started here.
    #[schemars(length(min = 1, max = 256))]
    workflow: String,
}

/// A flow that is to begin.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct StartFlow {
    /// What it is given: `null` is something, and nothing is an empty object.
    #[serde(default, deserialize_with = "named")]
    input: Option<Value>,
}

/// The token, if it is in neither the body nor the header `X-Flow-Token`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct WithToken {
    /// The token.
    token: Option<String>,
}

/// A flow that is to go on.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ResumeFlow {
    /// The token, if it is in neither the query nor the header `X-Flow-Token`.
    token: Option<String>,
    /// Which of several outcomes is meant.
    outcome: Option<String>,
    /// What is answered.
    input: Option<Value>,
}

/// A link.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct OfToken {
    /// The token.
    token: String,
}

/// How a flow stands after it was started or resumed, in the contract.
#[derive(JsonSchema)]
#[schemars(rename = "FlowAnswer", rename_all = "camelCase")]
#[expect(dead_code, reason = "only its schema is used")]
struct AnswerShape {
    /// The flow's own id; a durable run that it becomes has the same.
    flow: Id,
    /// The workflow.
    workflow: String,
    /// How it is doing.
    status: RunStatus,
    /// Where it rests: a strategy's name; absent if it has ended.
    #[schemars(default)]
    rests: Option<String>,
    /// What resumes it, or only shows that it waits if that was sent to somebody.
    #[schemars(default)]
    token: Option<String>,
    /// The token only shows that it waits: somebody else is to answer.
    #[schemars(default)]
    only_shows: Option<bool>,
    /// When the token is over.
    #[schemars(default)]
    expires_at: Option<Instant>,
    /// What it waits for.
    #[schemars(default)]
    waits: Option<Vec<PauseShape>>,
    /// The outlet through which what resumes it was sent out.
    #[schemars(default)]
    sent: Option<String>,
    /// Its result, if it has completed.
    #[schemars(default)]
    result: Value,
    /// Why a durable run stands still: `{code, message, final}`.
    #[schemars(default)]
    error: Value,
}

/// Something a flow waits for, in the contract.
#[derive(JsonSchema)]
#[schemars(rename = "FlowPause", rename_all = "camelCase")]
#[expect(dead_code, reason = "only its schema is used")]
struct PauseShape {
    /// The activation that waits.
    activation: u64,
    /// Where.
    place: String,
    /// What may be answered.
    outcomes: Vec<String>,
    /// JSON Schema of the form.
    #[schemars(default)]
    form: Value,
    /// What is asked.
    #[schemars(default)]
    prompt: Value,
    /// Who may answer.
    #[schemars(default)]
    answerers: Option<Vec<String>>,
}

/// The answer to a link: the fields of its form, or JSON.
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
        post("/v1/flows/{workflow}", "startFlow", Permission::Manage, "Starts a flow.")
            .notes("Its token is in the answer, unless it was sent to somebody.")
            .keyed()
            .gives::<AnswerShape>(StatusCode::CREATED, "It rests somewhere, and its token resumes it.")
            .ok::<AnswerShape>("It has ended.")
            .leads("/v1/flows", "token", "/token")
            .leads("/l", "token", "/token")
            .to(start),
        post("/v1/flows/resume", "resumeFlow", nothing, "Resumes a flow; its token is the proof that one may.")
            .notes("The token is in the body, in the query or in the header `X-Flow-Token`. One that is not good is a 410, whatever is wrong with it; an input that does not fit is a 422 and leaves the token good.")
            .reads_header(TOKEN_HEADER, "The token, if it is in neither the body nor the query.")
            .keyed()
            .ok::<AnswerShape>("How it stands, with its next token.")
            .to(resume),
        get("/v1/flows/show", "showFlow", nothing, "Shows what a token is for; nothing changes.")
            .notes("The token is in the query or in the header `X-Flow-Token`.")
            .reads_header(TOKEN_HEADER, "The token, if it is not in the query.")
            .ok::<AnswerShape>("How the flow stands.")
            .to(show),
        get("/l/{token}", "showLink", nothing, "A page that asks what a link is for; nothing changes, however often it is asked for.")
            .notes("Whoever accepts JSON and no pages gets what `showFlow` gives. Whatever a mailer puts behind the address does not matter.")
            .gives_text(PAGE, "The page.")
            .ok::<AnswerShape>("How the flow stands.")
            .problem_pages()
            .to(show_link),
        post("/l/{token}", "answerLink", nothing, "Answers a link.")
            .notes("Whoever accepts JSON and no pages gets what `resumeFlow` gives.")
            .keyed()
            .body_bytes(FORM_BYTES)
            .gives_text(PAGE, "The page that says what came of it.")
            .ok::<AnswerShape>("How it stands, with its next token.")
            .problem_pages()
            .to(answer_link),
    ]
}

impl Server {
    /// The flows, if there are any.
    pub(super) fn flows(&self) -> Result<&Flows, Problem> {
        self.flows.as_ref().ok_or_else(|| {
            let detail =
                "This server has no flows: configure a key that seals their tokens and where they rest.";
            Problem::new(StatusCode::NOT_FOUND, "noFlows", detail)
        })
    }

    /// The flows of whoever asks, acting as them.
    pub(super) fn flows_of(&self, caller: &Caller) -> Result<Flows, Problem> {
        let flows = self.flows()?.for_tenant(caller.scope());
        Ok(caller.actor().cloned().into_iter().fold(flows, |flows, actor| flows.acting(actor)))
    }
}

/// What a flow says no with, to somebody who is known and may know why.
pub(super) fn told(error: FlowError) -> Problem {
    match error {
        FlowError::Engine(error) => error.into(),
        other => other.into(),
    }
}

/// How a flow stands, as whoever asked may see it.
fn shown(answer: Answer, status: StatusCode) -> Result<Reply, Problem> {
    let is_replayed = answer.is_replayed;
    Ok(Reply::json(status, &reply::shown(answer)?)?.replayed(is_replayed))
}

async fn start(call: Call<OfWorkflow, Nothing, Perhaps<StartFlow>>) -> Result<Reply, Problem> {
    let flows = call.server.flows_of(&call.caller)?;
    let input = call.body.0.input.as_ref();
    let started = started(&flows, &call.path.workflow, input, call.key()?).await;
    let (answer, status) = started.map_err(told)?;
    shown(answer, status)
}

/// The request's token. `Authorization` is for those who are known.
fn token_of<P, B>(call: &Call<P, WithToken, B>, in_body: Option<String>) -> Result<String, Problem> {
    let query = call.query.token.iter().map(|token| ("token".to_owned(), token.clone()));
    token(&FlowRoutes::new().ignore_bearer().0, in_body, query.collect(), &call.headers)
}

async fn resume(call: Call<Nothing, WithToken, Perhaps<ResumeFlow>>) -> Result<Reply, Problem> {
    let flows = call.server.flows()?;
    let Perhaps(ResumeFlow { token, outcome, input }) = &call.body;
    let token = token_of(&call, token.clone())?;
    let resume = resume_of(&token, outcome.as_deref(), input.as_ref(), call.key()?);
    shown(resumed(&flows.of_token(&token), resume).await?, StatusCode::OK)
}

async fn show(call: Call<Nothing, WithToken>) -> Result<Reply, Problem> {
    let flows = call.server.flows()?;
    let token = token_of(&call, None)?;
    shown(flows.of_token(&token).show(&token).await?, StatusCode::OK)
}

/// What the pages behind links work on.
fn pages<P, Q, B>(call: &Call<P, Q, B>) -> Result<Api, Problem> {
    Ok(Api { flows: call.server.flows()?.clone(), options: Arc::new(FlowRoutes::new().0) })
}

async fn show_link(call: Call<OfToken, Whatever>) -> Result<Reply, Problem> {
    let page = link::page_of(&pages(&call)?, &call.path.token, &call.headers).await;
    Ok(Reply::whole(link::guarded(page).await))
}

async fn answer_link(call: Call<OfToken, Whatever, Answered>) -> Result<Reply, Problem> {
    let Answered(content) = &call.body;
    let page = link::answered(&pages(&call)?, &call.path.token, &call.headers, content).await;
    Ok(Reply::whole(link::guarded(page).await))
}
