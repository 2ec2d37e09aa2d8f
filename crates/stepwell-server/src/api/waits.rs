//! Routes of open waits: list and show them, claim and release them, answer them, fail them, send heartbeats.

use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use stepwell::core::graph::WaitKind;
use stepwell::core::{Answerer, Failure, Name, RunId, Timestamp};
use stepwell::waits::DEFAULT_CLAIM;
use stepwell::{AnswerWait, FailWait, ListWaits, OpenWaitRow, Permission, WaitId};

use super::call::{Call, Json, Nothing, OptionalBody};
use super::reply::Reply;
use super::route::{Needs, Route, get, post};
use super::shapes::{Id, Instant, InstantGiven, Listing, Page, Span, span};
use crate::routes::problem::Problem;

/// Value of `answerer` that stands for the caller and the caller's roles.
const ME: &str = "me";
/// Permissions to see waits. With `workflow:answer` alone, a caller sees only their own.
const SEE: Needs = Needs::Any(&[Permission::View, Permission::Answer]);
/// Permissions to answer waits. The engine checks the answerers of the wait.
const ANSWER: Needs = Needs::Any(&[Permission::Answer, Permission::Manage, Permission::Admin]);

/// Path parameter that selects a wait.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct WaitPath {
    /// Id of the wait: the run's id, a dot and the activation.
    #[schemars(
        with = "String",
        regex(pattern = r"^[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\.[0-9]{1,15}$")
    )]
    wait: WaitId,
}

/// Filter and page of a listing of open waits.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ListOpenWaits {
    /// Lists only waits that name this answerer: `user:ID`, `role:NAME`, or `me` for the caller and the caller's roles.
    #[schemars(length(min = 1, max = 300))]
    answerer: Option<String>,
    /// Lists only waits of this kind.
    kind: Option<WaitKindShape>,
    /// Lists only waits of runs of this workflow.
    #[schemars(length(min = 1, max = 256))]
    workflow: Option<String>,
    /// Lists only waits that time out before this time.
    #[schemars(with = "Option<InstantGiven>")]
    due_before: Option<Timestamp>,
    /// Lists only waits of this run, in the order in which the run reached them.
    #[schemars(with = "Option<Id>")]
    run: Option<RunId>,
    /// Maximum number of rows, 1 to 200. Default: 50.
    #[schemars(range(min = 1, max = 200))]
    limit: Option<u32>,
    /// The `nextCursor` of the previous page.
    cursor: Option<String>,
}

/// The input that a wait is for.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "WaitKind")]
enum WaitKindShape {
    /// The answer of a person.
    Task,
    Signal,
    Event,
    /// The end of child runs.
    Children,
}

impl From<WaitKindShape> for WaitKind {
    fn from(kind: WaitKindShape) -> Self {
        match kind {
            WaitKindShape::Task => WaitKind::Task,
            WaitKindShape::Signal => WaitKind::Signal,
            WaitKindShape::Event => WaitKind::Event,
            WaitKindShape::Children => WaitKind::Children,
        }
    }
}

impl From<WaitKind> for WaitKindShape {
    fn from(kind: WaitKind) -> Self {
        match kind {
            WaitKind::Task => WaitKindShape::Task,
            WaitKind::Signal => WaitKindShape::Signal,
            WaitKind::Event => WaitKindShape::Event,
            WaitKind::Children => WaitKindShape::Children,
        }
    }
}

/// An open wait of a run.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct WaitView {
    /// Id of the wait: the run's id, a dot and the activation.
    id: String,
    /// Id of the run, a UUID.
    #[schemars(with = "Id")]
    run: RunId,
    /// Id of the wait within the run. A signal names it in `forWait`.
    activation: u64,
    /// Name of the run's workflow.
    #[schemars(with = "String")]
    workflow: Name,
    /// Kind of the wait.
    kind: WaitKindShape,
    /// Name of the place or step that waits.
    #[schemars(with = "String")]
    place: Name,
    /// Title of the task; absent if it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    title: Option<String>,
    /// Title, description and data of the task; absent if it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt: Option<Value>,
    /// Names of the outcomes that an answer can have.
    #[schemars(with = "Vec<String>")]
    outcomes: Vec<Name>,
    /// JSON Schema of the answer; absent if any input is accepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    form: Option<Value>,
    /// Users (`user:ID`) and roles (`role:NAME`) that may answer; empty = everyone who may signal the run.
    answerers: Vec<String>,
    /// Time at which the wait began.
    #[schemars(with = "Instant")]
    since: Timestamp,
    /// Time at which the wait times out; absent without a timeout.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Instant>")]
    due: Option<Timestamp>,
    /// Actor who has claimed the wait; absent while it is not claimed.
    #[serde(skip_serializing_if = "Option::is_none")]
    claimed_by: Option<String>,
    /// Time at which the claim lapses.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Instant>")]
    claimed_until: Option<Timestamp>,
    /// Number of children that have not ended; only for waits for children.
    #[serde(skip_serializing_if = "Option::is_none")]
    children: Option<u64>,
    /// Name of the awaited event; only for waits for events.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    event: Option<Name>,
}

impl From<OpenWaitRow> for WaitView {
    fn from(wait: OpenWaitRow) -> Self {
        let (claimed_by, claimed_until) = wait.claim.unzip();
        WaitView {
            id: wait.id.to_string(),
            run: wait.id.run,
            activation: wait.id.activation,
            workflow: wait.workflow,
            kind: wait.kind.into(),
            place: wait.place,
            title: wait.title,
            prompt: wait.prompt,
            outcomes: wait.outcomes,
            form: wait.form,
            answerers: wait.answerers,
            since: wait.since,
            due: wait.due,
            claimed_by,
            claimed_until,
            children: wait.children,
            event: wait.event,
        }
    }
}

/// An answer to a wait.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct AnswerRequest {
    /// Name of the outcome. Default: the only one that the wait accepts.
    #[schemars(length(min = 1, max = 256))]
    outcome: Option<String>,
    /// Input that matches the form, any JSON value. Default: null.
    #[serde(default)]
    input: Value,
    /// Reason for answering in place of the answerers, which requires `workflow:admin`. It is audited.
    #[schemars(length(min = 1, max = 1000))]
    reason: Option<String>,
}

/// The error with which a wait fails.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct FailWaitRequest {
    /// Code of the error, for `catch`, `retryOn` and programs.
    #[schemars(length(min = 1, max = 100))]
    code: String,
    /// Description of the error. Default: the code.
    #[schemars(length(max = 2000))]
    message: Option<String>,
    /// True if a retry of the step cannot succeed. Default: `false`.
    #[serde(default, rename = "final")]
    is_final: bool,
    /// Reason for failing the wait in place of the answerers, which requires `workflow:admin`. It is audited.
    #[schemars(length(min = 1, max = 1000))]
    reason: Option<String>,
}

/// A heartbeat of a wait.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct HeartbeatRequest {
    /// Reason for a heartbeat in place of the answerers, which requires `workflow:admin`.
    #[schemars(length(min = 1, max = 1000))]
    reason: Option<String>,
}

/// The next heartbeat of a wait.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct HeartbeatView {
    /// Time at which the step fails with `heartbeatTimeout` without another heartbeat or an answer.
    #[schemars(with = "Instant")]
    pub(super) due: Timestamp,
}

/// Request to claim a wait.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ClaimRequest {
    /// Time after which the claim lapses, `1s` to `7d`. Default: `1h`.
    #[schemars(with = "Option<Span>")]
    lease: Option<String>,
    /// Reason for taking the claim of another person, which requires `workflow:admin`. It is audited.
    #[schemars(length(min = 1, max = 1000))]
    reason: Option<String>,
}

/// Request to release a claim.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ReleaseRequest {
    /// Reason for releasing the claim of another person, which requires `workflow:admin`. It is audited.
    #[schemars(length(min = 1, max = 1000))]
    reason: Option<String>,
}

/// A claim on a wait.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct WaitClaimView {
    /// Actor who has claimed the wait.
    claimed_by: String,
    /// Time at which the claim lapses.
    #[schemars(with = "Instant")]
    claimed_until: Timestamp,
}

pub(super) fn routes() -> Vec<Route> {
    vec![
        get("/v1/waits", "listWaits", SEE, "List open waits, those that are due first coming first.")
            .notes("With `workflow:answer` alone, the list contains the waits that name the caller or one of the caller's roles. A page may be short or empty although more follow: `nextCursor` tells.")
            .ok::<Page<WaitView>>("Open waits.")
            .links_to("/v1/waits/{wait}", "wait", "/items/0/id")
            .to(list),
        get("/v1/waits/{wait}", "showWait", SEE, "Show an open wait.")
            .notes("An answered wait is a 409 that names the answer.")
            .ok::<WaitView>("The wait.")
            .to(show),
        post("/v1/waits/{wait}/answer", "answerWait", ANSWER, "Answer a wait.")
            .notes("A wait that names answerers accepts an answer only from them, or from an administrator who gives a reason. A wait without answerers requires `workflow:manage`. Input that does not match the form is a 422 with the errors of the fields. A second answer is a 409 that names the first.")
            .keyed()
            .gives_nothing("The answer was accepted.")
            .to(answer),
        post("/v1/waits/{wait}/fail", "failWait", ANSWER, "Fail a wait, so that its step fails with an error.")
            .notes("The error goes to the `retry` and the error handlers of the step. It counts as the answer: a later answer is a 409. If nothing handles the error, the run stops with it, and after a retry of the run the wait can be answered. The caller needs the permission to answer the wait.")
            .keyed()
            .gives_nothing("The wait has failed.")
            .to(fail),
        post("/v1/waits/{wait}/heartbeat", "heartbeatWait", ANSWER, "Send a heartbeat for a wait.")
            .notes("The step of the wait must have a `heartbeat`. Without a heartbeat for that long it fails with `heartbeatTimeout`. The timeout of the whole wait stays. The caller needs the permission to answer the wait.")
            .ok::<HeartbeatView>("The next heartbeat.")
            .to(heartbeat),
        post("/v1/waits/{wait}/claim", "claimWait", ANSWER, "Claim a wait, so that only the caller can answer it.")
            .notes("A claim lapses by time alone. The caller who has it can extend it by claiming the wait again.")
            .ok::<WaitClaimView>("The claim.")
            .to(claim),
        post("/v1/waits/{wait}/release", "releaseWait", ANSWER, "Release the claim on a wait.")
            .gives_nothing("The wait is not claimed.")
            .to(release),
    ]
}

async fn list(call: Call<Nothing, ListOpenWaits>) -> Result<Reply, Problem> {
    let engine = call.engine();
    let ListOpenWaits { answerer, kind, workflow, due_before, run, limit, cursor } = call.query;
    let answerers = match answerer.as_deref() {
        None => None,
        Some(ME) => Some(engine.actor().map(stepwell::Actor::answerers).unwrap_or_default()),
        Some(text) => Some(vec![text.parse::<Answerer>().map_err(|why| {
            let problem =
                Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", format!("{why}, or `me`."));
            problem.param("parameter", "answerer")
        })?]),
    };
    let query = ListWaits {
        answerers,
        kind: kind.map(Into::into),
        workflow: workflow.map(Name::from),
        due_before,
        run,
        limit: Listing::of(limit, None).limit(),
        cursor,
    };
    Reply::ok(&Page::of(engine.list_waits(query).await?, WaitView::from))
}

async fn show(call: Call<WaitPath>) -> Result<Reply, Problem> {
    Reply::ok(&WaitView::from(call.engine().show_wait(call.path.wait).await?))
}

async fn answer(call: Call<WaitPath, Nothing, Json<AnswerRequest>>) -> Result<Reply, Problem> {
    let (engine, key) = (call.engine(), call.key()?);
    let Json(AnswerRequest { outcome, input, reason }) = call.body;
    let answer = AnswerWait { outcome: outcome.map(Name::from), input, reason, key };
    let done = engine.answer_wait(call.path.wait, answer).await?;
    Ok(Reply::nothing().replayed(!done.is_new))
}

async fn fail(call: Call<WaitPath, Nothing, Json<FailWaitRequest>>) -> Result<Reply, Problem> {
    let (engine, key) = (call.engine(), call.key()?);
    let Json(FailWaitRequest { code, message, is_final, reason }) = call.body;
    let failure = Failure::new(code.clone(), message.unwrap_or(code));
    let failure = if is_final { failure.non_retryable() } else { failure };
    let done = engine.fail_wait(call.path.wait, FailWait { failure, reason, key }).await?;
    Ok(Reply::nothing().replayed(!done.is_new))
}

async fn heartbeat(call: Call<WaitPath, Nothing, OptionalBody<HeartbeatRequest>>) -> Result<Reply, Problem> {
    let OptionalBody(HeartbeatRequest { reason }) = &call.body;
    let due = call.engine().heartbeat_wait(call.path.wait, reason.clone()).await?;
    Reply::ok(&HeartbeatView { due })
}

async fn claim(call: Call<WaitPath, Nothing, OptionalBody<ClaimRequest>>) -> Result<Reply, Problem> {
    let engine = call.engine();
    let OptionalBody(ClaimRequest { lease, reason }) = call.body;
    let lease = lease.as_deref().map(span).transpose()?.unwrap_or(DEFAULT_CLAIM);
    let claim = engine.claim_wait(call.path.wait, lease, reason).await?;
    Reply::ok(&WaitClaimView { claimed_by: claim.by, claimed_until: claim.until })
}

async fn release(call: Call<WaitPath, Nothing, OptionalBody<ReleaseRequest>>) -> Result<Reply, Problem> {
    let OptionalBody(ReleaseRequest { reason }) = &call.body;
    call.engine().release_wait(call.path.wait, reason.clone()).await?;
    Ok(Reply::nothing())
}
