//! Route that creates answer links to the open waits of runs.

use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use stepwell::Permission;
use stepwell::core::{Name, Timestamp};
use stepwell::flow::{AnswerLink, CreateAnswerLink, Outgoing};

use super::call::{Call, Nothing, OptionalBody};
use super::flows::flow_problem;
use super::reply::Reply;
use super::route::{Route, post};
use super::runs::RunPath;
use super::shapes::{Instant, Span, span};
use crate::routes::problem::Problem;

/// Request for an answer link.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct NewAnswerLink {
    /// Place of the wait. Required if the run has several open waits, unless `wait` is given.
    #[schemars(length(min = 1, max = 256))]
    place: Option<String>,
    /// The `activation` of the wait, for places that wait several times at once.
    wait: Option<u64>,
    /// Outcomes that the link accepts. Default: all that the wait accepts.
    #[serde(default)]
    outcomes: Vec<String>,
    /// Lifetime of the link. Default: that of the strategy.
    #[schemars(with = "Option<Span>")]
    ttl: Option<String>,
    /// Answerer that the link is for, such as `user:ann`; one of those that the wait names. Default: the only one.
    #[schemars(length(min = 1, max = 256))]
    answerer: Option<String>,
    /// Reason for a link for another person, which needs `workflow:admin`.
    #[schemars(length(min = 1, max = 1000))]
    reason: Option<String>,
    /// Message that carries the link. The response then contains no token.
    send: Option<SendLink>,
}

/// A message with an answer link.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct SendLink {
    /// Name of the outlet.
    #[schemars(length(min = 1, max = 64))]
    outlet: String,
    /// Recipient in the outlet's format, such as a mail address.
    #[schemars(length(min = 1, max = 1000))]
    to: String,
    /// Name of the outlet's template. Default: `default`.
    #[schemars(length(min = 1, max = 64))]
    template: Option<String>,
    /// Data for the template, any JSON value.
    #[serde(default)]
    data: Value,
}

/// The created answer link, with its token.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct AnswerLinkCreated {
    /// Token that answers the wait once; absent if an outlet sends it.
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<String>,
    /// URL of the token's page; absent without a token, or if `server.public_url` is not set.
    #[serde(skip_serializing_if = "Option::is_none")]
    url: Option<String>,
    /// Time at which the link expires; absent if it never expires.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Instant>")]
    expires_at: Option<Timestamp>,
    /// Place of the wait.
    #[schemars(with = "String")]
    place: Name,
    /// The `activation` of the wait.
    wait: u64,
    /// Outcomes that the link accepts.
    #[schemars(with = "Vec<String>")]
    outcomes: Vec<Name>,
    /// Name of the outlet that sends the link; absent if none does.
    #[serde(skip_serializing_if = "Option::is_none")]
    sent: Option<String>,
}

pub(super) fn routes() -> Vec<Route> {
    vec![
        post("/v1/runs/{run}/answer-links", "createAnswerLink", Permission::Manage, "Create an answer link to an open wait of a run.")
            .notes("The link answers its wait once. If the wait names answerers, the link is for one of them: only that person may create it, or an administrator with a `reason`. `/l/TOKEN` is its page, and `POST /v1/flows/resume` takes its token.")
            .keyed()
            .gives::<AnswerLinkCreated>(StatusCode::CREATED, "The link. Its token is shown only here.")
            .to(create),
    ]
}

async fn create(call: Call<RunPath, Nothing, OptionalBody<NewAnswerLink>>) -> Result<Reply, Problem> {
    let (flows, key) = (call.server.flows_of(&call.caller)?, call.key()?);
    let OptionalBody(NewAnswerLink { place, wait, outcomes, ttl, answerer, reason, send }) = call.body;
    let mut link = CreateAnswerLink::new(call.path.run);
    link = place.into_iter().fold(link, CreateAnswerLink::place);
    link = wait.into_iter().fold(link, CreateAnswerLink::wait);
    link = outcomes.into_iter().fold(link, CreateAnswerLink::outcome);
    link = answerer.into_iter().fold(link, CreateAnswerLink::answerer);
    link = reason.into_iter().fold(link, CreateAnswerLink::reason);
    if let Some(ttl) = &ttl {
        link = link.ttl(span(ttl)?);
    }
    if let Some(SendLink { outlet, to, template, data }) = send {
        let message = Outgoing::new(outlet, to).data(data);
        link = link.send(template.into_iter().fold(message, Outgoing::template));
    }
    link = key.into_iter().fold(link, CreateAnswerLink::key);
    let AnswerLink { token, expires_at, place, wait, outcomes, sent, is_replayed } =
        flows.create_answer_link(link).await.map_err(flow_problem)?;
    let url = token.as_deref().and_then(|token| call.server.flow_routes.0.url(token));
    let created = AnswerLinkCreated { token, url, expires_at, place, wait, outcomes, sent };
    Ok(Reply::json(StatusCode::CREATED, &created)?.replayed(is_replayed))
}
