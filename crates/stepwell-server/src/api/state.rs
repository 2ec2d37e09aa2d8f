//! Slots that runs share, from outside of them: those of a root run and everything below it, and those of a workflow.

use axum::http::StatusCode;
use futures_util::StreamExt;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Number, Value};
use stepwell::core::{RunId, Timestamp};
use stepwell::data::{Changes, Entry, List, Slot, SlotEvent, Watched};
use stepwell::store::{CellOp, OpResult, Ttl, ValueType};
use stepwell::{DataError, Done, Engine, Permission};

use super::call::{Call, Json, Nothing, Perhaps, Reads};
use super::data::write_one;
use super::reply::Reply;
use super::route::{Route, delete, get, post, put};
use super::runs::OfRun;
use super::shapes::{Id, Instant, Listing, Page};
use super::sse::{self, EVENTS};
use crate::routes::problem::Problem;

/// Whose slots.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct OfWorkflow {
    /// The workflow's name.
    #[schemars(length(min = 1, max = 256))]
    workflow: String,
}

/// A slot that all runs of a workflow share.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct OfWorkflowSlot {
    /// The workflow's name.
    #[schemars(length(min = 1, max = 256))]
    workflow: String,
    /// The slot's key.
    #[schemars(length(min = 1, max = 256))]
    key: String,
}

/// A slot that a root run and everything below it share.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct OfExecutionSlot {
    /// The run's id: the root's, or that of any run below it.
    #[schemars(with = "Id")]
    run: RunId,
    /// The slot's key.
    #[schemars(length(min = 1, max = 256))]
    key: String,
}

/// A path that leads to a slot.
trait OfSlot: DeserializeOwned + JsonSchema + Send + Sync + 'static {
    /// The slot.
    fn slot(&self, engine: &Engine) -> impl Future<Output = Result<Slot<Value>, DataError>> + Send;

    /// The slot's key.
    fn key(&self) -> &str;
}

impl OfSlot for OfWorkflowSlot {
    async fn slot(&self, engine: &Engine) -> Result<Slot<Value>, DataError> {
        Ok(engine.state().workflow(self.workflow.as_str(), &self.key))
    }

    fn key(&self) -> &str {
        &self.key
    }
}

impl OfSlot for OfExecutionSlot {
    async fn slot(&self, engine: &Engine) -> Result<Slot<Value>, DataError> {
        let state = engine.state();
        Ok(state.execution(state.root_of(self.run).await?, &self.key))
    }

    fn key(&self) -> &str {
        &self.key
    }
}

/// Which slots.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ListSlots {
    /// Whose key begins with this text, taken literally.
    #[schemars(length(max = 256))]
    prefix: Option<String>,
    /// How many rows at most.
    #[schemars(range(min = 1, max = 200))]
    limit: Option<u32>,
    /// Where the part before ended.
    cursor: Option<String>,
}

impl From<ListSlots> for List {
    fn from(query: ListSlots) -> Self {
        let listing = Listing::of(query.limit, query.cursor);
        let prefix = query.prefix.unwrap_or_default();
        List { prefix, limit: Some(listing.limit()), cursor: listing.cursor() }
    }
}

/// A value that is set.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct SetSlot {
    /// The value; `null` is one.
    value: Value,
}

/// What is added to a number.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct IncrementSlot {
    /// How much; 1 unless this says otherwise.
    #[schemars(with = "Option<f64>")]
    by: Option<Number>,
}

/// What is put into an object.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct MergeSlot {
    /// Fields, in place of those of the same name.
    fields: Map<String, Value>,
}

/// What is put at the end of a list.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct AppendSlot {
    /// The item.
    item: Value,
}

/// A slot with its value.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct SlotShown {
    /// Its key.
    key: String,
    /// Its value.
    value: Value,
    /// Counts every write, deletes included.
    revision: u64,
    /// When it was first written.
    #[schemars(with = "Instant")]
    created_at: Timestamp,
    /// When it was last written.
    #[schemars(with = "Instant")]
    updated_at: Timestamp,
    /// The run that first wrote it, if a run did.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Id>")]
    created_by_run: Option<RunId>,
}

/// What a write came to.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct SlotWritten {
    /// The slot's revision now.
    revision: u64,
    /// It had no value before.
    created: bool,
}

/// What an increment came to.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct SlotIncremented {
    /// The number now.
    #[schemars(with = "f64")]
    value: Value,
    /// The slot's revision now.
    revision: u64,
}

/// What was taken out of a list.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct SlotItem {
    /// There was an item; `null` may be one.
    found: bool,
    /// The item.
    #[serde(skip_serializing_if = "Option::is_none")]
    item: Option<Value>,
    /// The slot's revision now.
    revision: u64,
}

impl From<Entry> for SlotShown {
    fn from(entry: Entry) -> Self {
        let Entry { key, value, revision, created_at, updated_at, created_by_run, .. } = entry;
        SlotShown { key, value, revision, created_at, updated_at, created_by_run }
    }
}

/// The routes of a slot, whosever it is.
macro_rules! of_slot {
    ($of:ty, $path:literal, $name:literal) => {{
        let (read, manage) = (Permission::Read, Permission::Manage);
        vec![
            get($path, concat!("get", $name), read, "Gives a slot's value.")
                .notes("`ETag` is its revision.")
                .ok::<SlotShown>("The slot.")
                .to(show::<$of>),
            put($path, concat!("set", $name), manage, "Gives a slot a value.")
                .notes("`If-Match` names the revision that has to be the current one, `If-None-Match: *` asks that there be no value.")
                .keyed()
                .checks_tag_or_new()
                .gives::<SlotWritten>(StatusCode::CREATED, "The slot had no value before.")
                .ok::<SlotWritten>("The slot had a value before.")
                .to(set::<$of>),
            delete($path, concat!("delete", $name), manage, "Takes a slot's value away.")
                .keyed()
                .checks_tag()
                .gives_nothing("It has no value now.")
                .to(remove::<$of>),
            get(concat!($path, "/watch"), concat!("watch", $name), read, "Watches a slot: server-sent events, one per change.")
                .notes("The first is the value as it is now. The id of an event is the revision; with `Last-Event-ID` what that one showed is not shown again. Values in between may be skipped.")
                .gives_text(EVENTS, "Events `change`: `{found, value, previous, revision}`.")
                .to(watch::<$of>),
            post(concat!($path, "/increment"), concat!("increment", $name), manage, "Adds to a slot's number, or to 0.")
                .keyed()
                .ok::<SlotIncremented>("The number now.")
                .to(increment::<$of>),
            post(concat!($path, "/merge"), concat!("merge", $name), manage, "Puts fields into a slot's object.")
                .keyed()
                .ok::<SlotWritten>("It is done.")
                .to(merge::<$of>),
            post(concat!($path, "/append"), concat!("append", $name), manage, "Puts an item at the end of a slot's list.")
                .keyed()
                .ok::<SlotWritten>("It is done.")
                .to(append::<$of>),
            post(concat!($path, "/removeFirst"), concat!("removeFirst", $name), manage, "Takes the first item of a slot's list.")
                .keyed()
                .ok::<SlotItem>("The item.")
                .to(|call| removed::<$of>(call, CellOp::RemoveFirst)),
            post(concat!($path, "/removeLast"), concat!("removeLast", $name), manage, "Takes the last item of a slot's list.")
                .keyed()
                .ok::<SlotItem>("The item.")
                .to(|call| removed::<$of>(call, CellOp::RemoveLast)),
        ]
    }};
}

pub(super) fn routes() -> Vec<Route> {
    let read = Permission::Read;
    let mut routes = vec![
        get(
            "/v1/state/workflow/{workflow}",
            "listWorkflowSlots",
            read,
            "Lists the slots that all runs of a workflow share.",
        )
        .ok::<Page<SlotShown>>("Slots with their values.")
        .to(list_of_workflow),
        get(
            "/v1/state/execution/{run}",
            "listExecutionSlots",
            read,
            "Lists the slots that a root run and everything below it share.",
        )
        .ok::<Page<SlotShown>>("Slots with their values.")
        .to(list_of_execution),
    ];
    routes.extend(of_slot!(OfWorkflowSlot, "/v1/state/workflow/{workflow}/{key}", "WorkflowSlot"));
    routes.extend(of_slot!(OfExecutionSlot, "/v1/state/execution/{run}/{key}", "ExecutionSlot"));
    routes
}

fn no_slot(key: &str) -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "noSlot", format!("Slot `{key}` has no value."))
}

async fn list_of_workflow(call: Call<OfWorkflow, ListSlots>) -> Result<Reply, Problem> {
    let state = call.engine().state();
    let page = state.list_workflow(call.path.workflow.as_str(), call.query.into()).await?;
    Reply::ok(&Page::of(page, SlotShown::from))
}

async fn list_of_execution(call: Call<OfRun, ListSlots>) -> Result<Reply, Problem> {
    let state = call.engine().state();
    let page = state.list_execution(state.root_of(call.path.run).await?, call.query.into()).await?;
    Reply::ok(&Page::of(page, SlotShown::from))
}

async fn show<P: OfSlot>(call: Call<P>) -> Result<Reply, Problem> {
    let entry = call.path.slot(&call.engine()).await?.entry().await?;
    let shown = SlotShown::from(entry.ok_or_else(|| no_slot(call.path.key()))?);
    Ok(Reply::ok(&shown)?.tagged(shown.revision))
}

async fn watch<P: OfSlot>(call: Call<P>) -> Result<Reply, Problem> {
    let last = sse::last_id(&call.headers)?;
    let changes = call.path.slot(&call.engine()).await?.watch()?;
    let changes = changes.filter_map(async |event| match event {
        Ok(SlotEvent::Change { value, previous, version }) => Some(Ok(Watched { value, previous, version })),
        Ok(SlotEvent::Conflict { .. } | SlotEvent::Exhausted { .. }) => None,
        Err(error) => Some(Err(error)),
    });
    Ok(sse::changes(&call.server, changes, last))
}

/// Does something to a slot, once under the request's key.
async fn apply<P: OfSlot, B: Reads + Sync>(
    call: &Call<P, Nothing, B>,
    op: CellOp,
    if_revision: Option<u64>,
) -> Result<Done<OpResult>, Problem> {
    let slot = call.path.slot(&call.engine()).await?;
    write_one(call, Changes::new().slot(&slot, op, if_revision)).await
}

async fn set<P: OfSlot>(call: Call<P, Nothing, Json<SetSlot>>) -> Result<Reply, Problem> {
    let value = call.body.0.value.clone();
    let op = CellOp::Set { value, value_type: ValueType::Json, ttl: Ttl::Keep };
    let done = apply(&call, op, call.expected()?).await?;
    written(if done.came_to.created { StatusCode::CREATED } else { StatusCode::OK }, &done)
}

async fn remove<P: OfSlot>(call: Call<P>) -> Result<Reply, Problem> {
    let done = apply(&call, CellOp::Delete, call.seen()?).await?;
    match done.came_to.existed {
        true => Ok(Reply::nothing().replayed(!done.is_new)),
        false => Err(no_slot(call.path.key())),
    }
}

async fn increment<P: OfSlot>(call: Call<P, Nothing, Perhaps<IncrementSlot>>) -> Result<Reply, Problem> {
    let by = call.body.0.by.clone().unwrap_or_else(|| 1.into());
    let Done { came_to: OpResult { revision, value, .. }, is_new } =
        apply(&call, CellOp::Increment { by }, None).await?;
    let incremented = SlotIncremented { value: value.unwrap_or_default(), revision };
    Ok(Reply::ok(&incremented)?.tagged(revision).replayed(!is_new))
}

async fn merge<P: OfSlot>(call: Call<P, Nothing, Json<MergeSlot>>) -> Result<Reply, Problem> {
    let fields = call.body.0.fields.clone();
    written(StatusCode::OK, &apply(&call, CellOp::Merge { fields }, None).await?)
}

async fn append<P: OfSlot>(call: Call<P, Nothing, Json<AppendSlot>>) -> Result<Reply, Problem> {
    let item = call.body.0.item.clone();
    written(StatusCode::OK, &apply(&call, CellOp::Append { item }, None).await?)
}

async fn removed<P: OfSlot>(call: Call<P>, op: CellOp) -> Result<Reply, Problem> {
    let Done { came_to: OpResult { revision, value: item, .. }, is_new } = apply(&call, op, None).await?;
    let taken = SlotItem { found: item.is_some(), item, revision };
    Ok(Reply::ok(&taken)?.tagged(revision).replayed(!is_new))
}

fn written(status: StatusCode, done: &Done<OpResult>) -> Result<Reply, Problem> {
    let OpResult { revision, created, .. } = done.came_to;
    Ok(Reply::json(status, &SlotWritten { revision, created })?.tagged(revision).replayed(!done.is_new))
}
