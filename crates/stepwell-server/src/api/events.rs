//! Events: accepted as CloudEvents or as calls from outside, looked at, and what their names mean.

use std::collections::BTreeMap;

use axum::body::Bytes;
use axum::http::{HeaderMap, Method, StatusCode};
use schemars::{JsonSchema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use stepwell::core::schema::{Misfit, Schema};
use stepwell::core::{Name, RunId, Timestamp};
use stepwell::events::{CloudEvents, EventView, Outcome};
use stepwell::{EventType, Permission};

use super::call::{Call, Json, Nothing, Raw, Reads, compiled, media_type, schema_of};
use super::reply::Reply;
use super::route::{Needs, Route, delete, get, post, put};
use super::shapes::{Id, Instant, InstantGiven, Listing, Page};
use super::triggers::CameTo;
use crate::routes::body::wrong_kind;
use crate::routes::events::{Answer, accept, called, read};
use crate::routes::problem::Problem;

/// An event.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct OfEvent {
    /// The event, as it was answered with.
    #[schemars(with = "Id")]
    event: RunId,
}

/// A name of events.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct OfEventType {
    /// The name.
    #[schemars(length(min = 1, max = 128))]
    name: String,
}

/// What somebody outside calls.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct OfHook {
    /// The tenant.
    tenant: String,
    /// The path of the trigger; it may have slashes in it.
    path: String,
}

/// Whatever a call brings in its query.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(transparent)]
struct AnyQuery(BTreeMap<String, Vec<String>>);

/// A message of one or more CloudEvents.
struct Message(CloudEvents);

/// A CloudEvent, in the contract. Whatever else it has under a name of small letters and digits is an extension.
#[derive(JsonSchema)]
#[schemars(extend("propertyNames" = {"pattern": "^(?:[a-z0-9]+|data_base64)$"}))]
#[schemars(extend("not" = {"required": ["data", "data_base64"]}))]
#[expect(dead_code, reason = "only its schema is used")]
struct CloudEvent {
    /// `1.0`.
    #[schemars(extend("const" = "1.0"))]
    specversion: String,
    /// Its id at its source: an event of the same source and id is the same event.
    #[schemars(length(min = 1))]
    id: String,
    /// Where it comes from.
    #[schemars(length(min = 1))]
    source: String,
    /// Its name.
    #[schemars(rename = "type", length(min = 1))]
    kind: String,
    /// What it is about, at its source.
    #[schemars(length(min = 1))]
    subject: Option<String>,
    /// When it has happened.
    #[schemars(with = "Option<InstantGiven>")]
    time: Option<Timestamp>,
    /// What `data_base64` is.
    datacontenttype: Option<String>,
    /// What it brings.
    data: Option<Value>,
    /// What it brings, in base64.
    #[schemars(regex(
        pattern = "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?$"
    ))]
    data_base64: Option<String>,
}

/// What one event is sent as.
const ONE: &str = "application/cloudevents+json";
/// What several are sent as.
const BATCH: &str = "application/cloudevents-batch+json";

/// Schemas of one event and of a batch.
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
        // That one may also be in the headers, and whatever it brings in the body, cannot be said here.
        vec![(ONE, one.clone()), (BATCH, json!({"type": "array", "items": one, "maxItems": 100}))]
    }

    fn read(messages: &Messages, headers: &HeaderMap, body: Bytes) -> Result<Self, Problem> {
        let schema = match media_type(headers).as_str() {
            ONE => &messages.one,
            BATCH => &messages.batch,
            _ if headers.contains_key("ce-specversion") => return read(headers, &body).map(Message),
            _ => {
                let kinds = format!("`{ONE}` or `{BATCH}`, or an event in headers from `ce-specversion` on");
                return Err(wrong_kind(&kinds));
            }
        };
        let misfits = schema.check(&super::json::read(&body)?);
        if !misfits.is_empty() {
            return Err(no_event(misfits));
        }
        let unfit = |problem| Problem { status: StatusCode::UNPROCESSABLE_ENTITY, ..problem };
        read(headers, &body).map(Message).map_err(unfit)
    }
}

/// A message is no CloudEvent, and of a batch which is none.
fn no_event(misfits: Vec<Misfit>) -> Problem {
    let first = misfits.first();
    let pointer = first.map(|misfit| misfit.pointer.as_str()).unwrap_or_default();
    let at = if pointer.is_empty() { String::new() } else { format!(" at `{pointer}`") };
    let why = first.map(|misfit| misfit.message.as_str()).unwrap_or_default();
    let problem = Problem::bad("malformedEvent", format!("This is no CloudEvent{at}: {why}."));
    let index = pointer.split('/').nth(1).and_then(|part| part.parse::<usize>().ok());
    let problem = index.into_iter().fold(problem, |problem, index| problem.param("index", index));
    Problem { errors: misfits, ..problem }
}

/// An event and what became of it.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct EventShown {
    /// By which it is found.
    #[schemars(with = "Id")]
    event: RunId,
    /// Its name.
    #[schemars(with = "String")]
    name: Name,
    /// Where it comes from.
    source: String,
    /// Its id there.
    id: String,
    /// What it is about there.
    #[serde(skip_serializing_if = "Option::is_none")]
    subject: Option<String>,
    /// When it has happened.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Instant>")]
    time: Option<Timestamp>,
    /// What it is about, for waits that leave that to the event.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<Value>,
    /// What it brings.
    data: Value,
    /// When it was accepted.
    #[schemars(with = "Instant")]
    accepted_at: Timestamp,
    /// Until when it waits for runs that come to wait for it.
    #[schemars(with = "Instant")]
    until: Timestamp,
    /// It has been delivered to everybody who waited; who comes to wait later asks for it.
    delivered: bool,
    /// What triggers have made of it.
    triggers: Vec<TriggerOutcome>,
    /// Runs it was sent to because they waited for it.
    sent: u64,
    /// Runs that waited for its name and whose filter did not take it.
    passed_over: u64,
    /// How often it came again, and was not accepted.
    duplicates: u64,
}

/// What a trigger has made of an event.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct TriggerOutcome {
    /// The workflow.
    #[schemars(with = "String")]
    workflow: Name,
    /// Its trigger.
    #[schemars(with = "String")]
    trigger: Name,
    /// The version of the workflow.
    version: u32,
    /// What came of it.
    #[serde(flatten)]
    came_to: CameTo,
}

impl From<EventView> for EventShown {
    fn from(view: EventView) -> Self {
        let EventView { event, kept, is_delivered, triggers, sent, passed_over, duplicates } = view;
        let outcome = |outcome: Outcome| {
            let Outcome { workflow, trigger, version, came_to } = outcome;
            TriggerOutcome { workflow, trigger, version, came_to: came_to.into() }
        };
        EventShown {
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
            passed_over,
            duplicates,
        }
    }
}

/// How a name of events is described.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PutEventType {
    /// What has happened, for people.
    #[serde(default)]
    #[schemars(length(max = 1000))]
    about: String,
    /// JSON Schema of what such an event brings: one that does not fit is refused.
    schema: Option<Value>,
    /// What such an event is about: an expression on `event`.
    correlation: Option<String>,
}

/// A name of events that somebody has described.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct EventTypeShown {
    /// The name.
    #[schemars(with = "String")]
    name: Name,
    /// What has happened, for people.
    about: String,
    /// JSON Schema of what such an event brings.
    #[serde(skip_serializing_if = "Option::is_none")]
    schema: Option<Value>,
    /// What such an event is about: an expression on `event`.
    #[serde(skip_serializing_if = "Option::is_none")]
    correlation: Option<String>,
}

impl From<EventType> for EventTypeShown {
    fn from(kind: EventType) -> Self {
        let EventType { name, about, schema, correlation } = kind;
        EventTypeShown { name, about, schema, correlation }
    }
}

pub(super) fn routes() -> Vec<Route> {
    let (view, manage, publish) = (Permission::View, Permission::Manage, Permission::Publish);
    vec![
        post("/v1/events", "emitEvents", manage, "Accepts CloudEvents 1.0: structured, in a batch, or binary.")
            .notes("Binary: the attributes are in headers from `ce-specversion` on, and the body, of any type, is what the event brings. An event of the same source and id is accepted once; sent again, it is answered as before with `created: false`. Of a batch those before the one that is refused are accepted; `params.accepted` says how many.")
            .gives::<Answer>(StatusCode::ACCEPTED, "Everything is accepted.")
            .leads("/v1/events/{event}", "event", "/event")
            .to(emit),
        get("/v1/events/{event}", "showEvent", view, "Shows an event and what became of it.")
            .ok::<EventShown>("The event.")
            .to(show),
        post("/hooks/{tenant}/{*path}", "callHook", Needs::Nothing, "A call from outside, for triggers of type `webhook`.")
            .notes("It is signed as the trigger asks, and needs no other credential. A call with the same id is accepted once.")
            .gives::<Answer>(StatusCode::ACCEPTED, "It is accepted, by each trigger that is called there.")
            .to(hook),
        get("/v1/event-types", "listEventTypes", view, "Lists the names of events that are described.")
            .ok::<Page<EventTypeShown>>("Names of events.")
            .to(list_types),
        get("/v1/event-types/{name}", "showEventType", view, "Shows how a name of events is described.")
            .ok::<EventTypeShown>("The description.")
            .to(show_type),
        put("/v1/event-types/{name}", "putEventType", publish, "Describes a name of events.")
            .ok::<EventTypeShown>("The description.")
            .to(put_type),
        delete("/v1/event-types/{name}", "deleteEventType", publish, "Takes the description of a name of events away.")
            .gives_nothing("Events of this name are accepted as they are.")
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

async fn show(call: Call<OfEvent>) -> Result<Reply, Problem> {
    let OfEvent { event } = call.path;
    let view = call.engine().event(event).await?;
    let view = view.ok_or_else(|| {
        Problem::new(StatusCode::NOT_FOUND, "noEvent", format!("There is no event {event}."))
    })?;
    Reply::ok(&EventShown::from(view))
}

async fn hook(call: Call<OfHook, AnyQuery, Raw>) -> Result<Reply, Problem> {
    let OfHook { tenant, path } = &call.path;
    let pairs = call.query.0.iter();
    let query: Vec<_> =
        pairs.flat_map(|(name, values)| values.iter().map(|value| (name.clone(), value.clone()))).collect();
    // Whoever calls is nobody in particular: what they sign with is their proof.
    let engine = &call.server.engine;
    let answer = called(engine, tenant, path, (&Method::POST, &query, &call.headers, &call.body.0)).await?;
    Reply::json(StatusCode::ACCEPTED, &answer)
}

async fn list_types(call: Call<Nothing, Listing>) -> Result<Reply, Problem> {
    let page = call.engine().event_types(call.query.limit(), call.query.cursor()).await?;
    Reply::ok(&Page::of(page, EventTypeShown::from))
}

fn no_type(name: &str) -> Problem {
    let detail = format!("Nobody has described events of the name `{name}`.");
    Problem::new(StatusCode::NOT_FOUND, "noEventType", detail)
}

async fn show_type(call: Call<OfEventType>) -> Result<Reply, Problem> {
    let OfEventType { name } = &call.path;
    let kind = call.engine().event_type(name).await?.ok_or_else(|| no_type(name))?;
    Reply::ok(&EventTypeShown::from(kind))
}

async fn put_type(call: Call<OfEventType, Nothing, Json<PutEventType>>) -> Result<Reply, Problem> {
    let engine = call.engine();
    let Json(PutEventType { about, schema, correlation }) = call.body;
    let kind = EventType { name: call.path.name.into(), about, schema, correlation };
    engine.put_event_type(kind.clone()).await?;
    Reply::ok(&EventTypeShown::from(kind))
}

async fn delete_type(call: Call<OfEventType>) -> Result<Reply, Problem> {
    match call.engine().remove_event_type(&call.path.name).await? {
        true => Ok(Reply::nothing()),
        false => Err(no_type(&call.path.name)),
    }
}
