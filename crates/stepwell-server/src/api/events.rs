//! Routes of events: accept CloudEvents and webhook calls, show an event, and describe event types.

use std::collections::BTreeMap;

use axum::body::Bytes;
use axum::http::{HeaderMap, Method, StatusCode};
use schemars::{JsonSchema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use stepwell::core::schema::{Schema, SchemaViolation};
use stepwell::core::{Name, RunId, Timestamp};
use stepwell::events::{CloudEvents, EventView, TriggerOutcome};
use stepwell::{EventType, Permission};

use super::call::{Call, Json, Nothing, Raw, Reads, compiled, media_type, schema_of};
use super::reply::Reply;
use super::route::{Needs, Route, delete, get, post, put};
use super::shapes::{Id, Instant, InstantGiven, Listing, Page};
use super::triggers::FiringOutcome;
use crate::routes::body::wrong_kind;
use crate::routes::events::{Answer, accept, called, read};
use crate::routes::problem::Problem;

/// Path parameter that selects an event.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct EventPath {
    /// Id of the event, a UUID, from the response that accepted it.
    #[schemars(with = "Id")]
    event: RunId,
}

/// Path parameter that selects an event type.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct EventTypePath {
    /// Name of the event type, 1 to 128 characters.
    #[schemars(length(min = 1, max = 128))]
    name: String,
}

/// Path parameters of a webhook call.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct HookPath {
    /// Id of the tenant, a UUID.
    tenant: String,
    /// Path of the trigger; it may contain slashes.
    path: String,
}

/// All query parameters of a webhook call.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(transparent)]
struct AnyQuery(BTreeMap<String, Vec<String>>);

/// A body with one or more CloudEvents.
struct Message(CloudEvents);

/// A CloudEvent 1.0. Other fields, with names of lower-case letters and digits, are extension attributes.
#[derive(JsonSchema)]
#[schemars(extend("propertyNames" = {"pattern": "^(?:[a-z0-9]+|data_base64)$"}))]
#[schemars(extend("not" = {"required": ["data", "data_base64"]}))]
#[expect(dead_code, reason = "only its schema is used")]
struct CloudEvent {
    /// Version of the CloudEvents specification, always `1.0`.
    #[schemars(extend("const" = "1.0"))]
    specversion: String,
    /// Id of the event. Events with the same source and id are duplicates.
    #[schemars(length(min = 1))]
    id: String,
    /// Source of the event.
    #[schemars(length(min = 1))]
    source: String,
    /// Name of the event, which triggers and waits refer to.
    #[schemars(rename = "type", length(min = 1))]
    kind: String,
    /// Subject of the event in the context of its source.
    #[schemars(length(min = 1))]
    subject: Option<String>,
    /// Time at which the event occurred.
    #[schemars(with = "Option<InstantGiven>")]
    time: Option<Timestamp>,
    /// Content type of `data_base64`.
    datacontenttype: Option<String>,
    /// Payload of the event, any JSON value. Not together with `data_base64`.
    data: Option<Value>,
    /// Payload of the event, base64-encoded. Not together with `data`.
    #[schemars(regex(
        pattern = "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?$"
    ))]
    data_base64: Option<String>,
}

/// Content type of one event.
const ONE: &str = "application/cloudevents+json";
/// Content type of a batch of events.
const BATCH: &str = "application/cloudevents-batch+json";

/// Compiled schemas of one event and of a batch.
struct Messages {
    one: Schema,
    batch: Schema,
}

impl Reads for Message {
    type Reader = Messages;

    fn reader() -> Messages {
        let one = schema_of::<CloudEvent>();
        let batch = json!({"type": "array", "items": {"$ref": "#/$defs/one"}, "maxItems": 100, "$defs": {"one": one}});
        Messages { one: compiled(&one), batch: compiled(&batch) }
    }

    fn contents(schemas: &mut SchemaGenerator) -> Vec<(&'static str, Value)> {
        let one = schemas.subschema_for::<CloudEvent>().to_value();
        // OpenAPI cannot express the binary mode, with the attributes in headers and any payload in the body.
        vec![(ONE, one.clone()), (BATCH, json!({"type": "array", "items": one, "maxItems": 100}))]
    }

    fn read(messages: &Messages, headers: &HeaderMap, body: Bytes) -> Result<Self, Problem> {
        let schema = match media_type(headers).as_str() {
            ONE => &messages.one,
            BATCH => &messages.batch,
            _ if headers.contains_key("ce-specversion") => return read(headers, &body).map(Message),
            _ => {
                let kinds = format!("`{ONE}` or `{BATCH}`, or an event in headers such as `ce-specversion`");
                return Err(wrong_kind(&kinds));
            }
        };
        let violations = schema.check(&super::json::read(&body)?);
        if !violations.is_empty() {
            return Err(no_event(violations));
        }
        let unfit = |problem| Problem { status: StatusCode::UNPROCESSABLE_ENTITY, ..problem };
        read(headers, &body).map(Message).map_err(unfit)
    }
}

/// Creates the problem of an invalid CloudEvent. For a batch, it contains the index of the event.
fn no_event(violations: Vec<SchemaViolation>) -> Problem {
    let first = violations.first();
    let pointer = first.map(|violation| violation.pointer.as_str()).unwrap_or_default();
    let at = if pointer.is_empty() { String::new() } else { format!(" at `{pointer}`") };
    let why = first.map(|violation| violation.message.as_str()).unwrap_or_default();
    let problem = Problem::bad("malformedEvent", format!("The body is not a valid CloudEvent{at}: {why}."));
    let index = pointer.split('/').nth(1).and_then(|part| part.parse::<usize>().ok());
    let problem = index.into_iter().fold(problem, |problem, index| problem.param("index", index));
    Problem { errors: violations, ..problem }
}

/// An event and the result of its delivery.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct EventDetails {
    /// Id of the event, a UUID.
    #[schemars(with = "Id")]
    event: RunId,
    /// Name of the event.
    #[schemars(with = "String")]
    name: Name,
    /// Source of the event.
    source: String,
    /// Id of the event at its source.
    id: String,
    /// Subject of the event in the context of its source; absent if none was sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    subject: Option<String>,
    /// Time at which the event occurred; absent if none was sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Instant>")]
    time: Option<Timestamp>,
    /// Correlation key of the event, for waits that match by it; absent if it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<Value>,
    /// Payload of the event, any JSON value.
    data: Value,
    /// Time at which the event was accepted.
    #[schemars(with = "Instant")]
    accepted_at: Timestamp,
    /// Time until which runs that start to wait later still receive the event.
    #[schemars(with = "Instant")]
    until: Timestamp,
    /// True if the event was delivered to all triggers and to all runs that waited for it.
    delivered: bool,
    /// Outcome at each trigger.
    triggers: Vec<TriggerOutcomeShape>,
    /// Number of waiting runs that the event was sent to.
    sent: u64,
    /// Number of runs that waited for the event's name but whose filter rejected it.
    filtered_out: u64,
    /// Number of duplicates that were received and ignored.
    duplicates: u64,
}

/// Outcome of an event at one trigger.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct TriggerOutcomeShape {
    /// Name of the workflow.
    #[schemars(with = "String")]
    workflow: Name,
    /// Name of the trigger within the workflow.
    #[schemars(with = "String")]
    trigger: Name,
    /// Number of the workflow version.
    version: u32,
    /// Outcome of the event at the trigger.
    #[serde(flatten)]
    result: FiringOutcome,
}

impl From<EventView> for EventDetails {
    fn from(view: EventView) -> Self {
        let EventView { event, kept, is_delivered, triggers, sent, filtered_out, duplicates } = view;
        let outcome = |outcome: TriggerOutcome| {
            let TriggerOutcome { workflow, trigger, version, result } = outcome;
            TriggerOutcomeShape { workflow, trigger, version, result: result.into() }
        };
        EventDetails {
            event,
            name: kept.name,
            source: kept.source,
            id: kept.id,
            subject: kept.subject,
            time: kept.time,
            key: kept.key,
            data: kept.data,
            accepted_at: kept.accepted,
            until: kept.until,
            delivered: is_delivered,
            triggers: triggers.into_iter().map(outcome).collect(),
            sent,
            filtered_out,
            duplicates,
        }
    }
}

/// Description of an event type.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PutEventType {
    /// Description of the event, for people; at most 1,000 characters. Default: empty.
    #[serde(default)]
    #[schemars(length(max = 1000))]
    about: String,
    /// JSON Schema of the payload. Events with another payload are rejected. Default: any payload.
    schema: Option<Value>,
    /// Expression on `event` that returns the correlation key. Default: no correlation key.
    correlation: Option<String>,
}

/// An event type with its description.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct EventTypeView {
    /// Name of the events.
    #[schemars(with = "String")]
    name: Name,
    /// Description of the event, for people.
    about: String,
    /// JSON Schema of the payload; absent = any payload.
    #[serde(skip_serializing_if = "Option::is_none")]
    schema: Option<Value>,
    /// Expression on `event` that returns the correlation key; absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    correlation: Option<String>,
}

impl From<EventType> for EventTypeView {
    fn from(kind: EventType) -> Self {
        let EventType { name, about, schema, correlation } = kind;
        EventTypeView { name, about, schema, correlation }
    }
}

pub(super) fn routes() -> Vec<Route> {
    let (view, manage, publish) = (Permission::View, Permission::Manage, Permission::Publish);
    vec![
        post("/v1/events", "emitEvents", manage, "Emit CloudEvents 1.0: structured, as a batch, or binary.")
            .notes("In binary mode, headers such as `ce-specversion` contain the attributes, and the body of any type is the payload. An event with the same source and id is accepted once; a duplicate gets the same response with `created: false`. If an event of a batch is rejected, the events before it are accepted; `params.accepted` is their number.")
            .gives::<Answer>(StatusCode::ACCEPTED, "All events are accepted.")
            .links_to("/v1/events/{event}", "event", "/event")
            .to(emit),
        get("/v1/events/{event}", "showEvent", view, "Show an event and the result of its delivery.")
            .ok::<EventDetails>("The event.")
            .to(show),
        post("/hooks/{tenant}/{*path}", "callHook", Needs::Nothing, "Call the triggers of type `webhook` with this path.")
            .notes("The call is authenticated by the signature that the trigger requires, without another credential. A call with the same id is accepted once.")
            .gives::<Answer>(StatusCode::ACCEPTED, "The call is accepted by every trigger with this path.")
            .to(hook),
        get("/v1/event-types", "listEventTypes", view, "List the event types.")
            .ok::<Page<EventTypeView>>("Event types.")
            .to(list_types),
        get("/v1/event-types/{name}", "showEventType", view, "Show an event type.")
            .ok::<EventTypeView>("The event type.")
            .to(show_type),
        put("/v1/event-types/{name}", "putEventType", publish, "Create or replace an event type.")
            .ok::<EventTypeView>("The event type.")
            .to(put_type),
        delete("/v1/event-types/{name}", "deleteEventType", publish, "Delete an event type.")
            .gives_nothing("The event type is deleted. Events of this name are accepted without validation.")
            .to(delete_type),
    ]
}

async fn emit(call: Call<Nothing, Nothing, Message>) -> Result<Reply, Problem> {
    let engine = call.engine();
    let answer = accept(&engine, call.body.0).await?;
    let reply = Reply::json(StatusCode::ACCEPTED, &answer)?;
    Ok(match answer {
        Answer::One(one) => reply.at(&format!("/v1/events/{}", one.event)),
        Answer::Many { .. } => reply,
    })
}

async fn show(call: Call<EventPath>) -> Result<Reply, Problem> {
    let EventPath { event } = call.path;
    let view = call.engine().event(event).await?;
    let view = view.ok_or_else(|| {
        Problem::new(StatusCode::NOT_FOUND, "noEvent", format!("There is no event {event}."))
    })?;
    Reply::ok(&EventDetails::from(view))
}

async fn hook(call: Call<HookPath, AnyQuery, Raw>) -> Result<Reply, Problem> {
    let HookPath { tenant, path } = &call.path;
    let pairs = call.query.0.iter();
    let query: Vec<_> =
        pairs.flat_map(|(name, values)| values.iter().map(|value| (name.clone(), value.clone()))).collect();
    // The caller has no credential; the signature authenticates the call.
    let engine = &call.server.engine;
    let answer = called(engine, tenant, path, (&Method::POST, &query, &call.headers, &call.body.0)).await?;
    Reply::json(StatusCode::ACCEPTED, &answer)
}

async fn list_types(call: Call<Nothing, Listing>) -> Result<Reply, Problem> {
    let page = call.engine().event_types(call.query.limit(), call.query.cursor()).await?;
    Reply::ok(&Page::of(page, EventTypeView::from))
}

fn no_type(name: &str) -> Problem {
    let detail = format!("There is no event type `{name}`.");
    Problem::new(StatusCode::NOT_FOUND, "noEventType", detail)
}

async fn show_type(call: Call<EventTypePath>) -> Result<Reply, Problem> {
    let EventTypePath { name } = &call.path;
    let kind = call.engine().event_type(name).await?.ok_or_else(|| no_type(name))?;
    Reply::ok(&EventTypeView::from(kind))
}

async fn put_type(call: Call<EventTypePath, Nothing, Json<PutEventType>>) -> Result<Reply, Problem> {
    let engine = call.engine();
    let Json(PutEventType { about, schema, correlation }) = call.body;
    let kind = EventType { name: call.path.name.into(), about, schema, correlation };
    engine.put_event_type(kind.clone()).await?;
    Reply::ok(&EventTypeView::from(kind))
}

async fn delete_type(call: Call<EventTypePath>) -> Result<Reply, Problem> {
    match call.engine().remove_event_type(&call.path.name).await? {
        true => Ok(Reply::nothing()),
        false => Err(no_type(&call.path.name)),
    }
}
