//! Routes of shared slots: those of a workflow, and those of a root run and its descendants.

use axum::http::StatusCode;
use futures_util::StreamExt;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Number, Value};
use stepwell::core::{RunId, Timestamp};
use stepwell::data::{Changes, KeyEntry, KeyList, Slot, SlotEvent, Watched};
use stepwell::store::{CellOp, OpResult, Ttl, ValueType};
use stepwell::{DataError, Engine, Idempotent, Permission};

use super::call::{Call, Json, Nothing, OptionalBody, Reads};
use super::data::write_one;
use super::reply::Reply;
use super::route::{Route, delete, get, post, put};
use super::runs::RunPath;
use super::shapes::{Id, Instant, Listing, Page};
use super::sse::{self, EVENTS};
use crate::routes::problem::Problem;

/// Path parameter that selects the slots of a workflow.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct WorkflowPath {
    /// Name of the workflow, 1 to 256 characters.
    #[schemars(length(min = 1, max = 256))]
    workflow: String,
}

/// Path parameters that select a slot shared by all runs of a workflow.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct WorkflowSlotPath {
    /// Name of the workflow, 1 to 256 characters.
    #[schemars(length(min = 1, max = 256))]
    workflow: String,
    /// Key of the slot, 1 to 256 characters.
    #[schemars(length(min = 1, max = 256))]
    key: String,
}

/// Path parameters that select a slot shared by a root run and its descendants.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ExecutionSlotPath {
    /// Id of the root run or of any of its descendants, a UUID.
    #[schemars(with = "Id")]
    run: RunId,
    /// Key of the slot, 1 to 256 characters.
    #[schemars(length(min = 1, max = 256))]
    key: String,
}

/// Path parameters that select a slot.
trait SlotPath: DeserializeOwned + JsonSchema + Send + Sync + 'static {
    /// Returns the slot, after a lookup of the root run if needed.
    fn slot(&self, engine: &Engine) -> impl Future<Output = Result<Slot<Value>, DataError>> + Send;

    /// Returns the key of the slot.
    fn key(&self) -> &str;
}

impl SlotPath for WorkflowSlotPath {
    async fn slot(&self, engine: &Engine) -> Result<Slot<Value>, DataError> {
        Ok(engine.state().workflow(self.workflow.as_str(), &self.key))
    }

    fn key(&self) -> &str {
        &self.key
    }
}

impl SlotPath for ExecutionSlotPath {
    async fn slot(&self, engine: &Engine) -> Result<Slot<Value>, DataError> {
        let state = engine.state();
        Ok(state.execution(state.root_of(self.run).await?, &self.key))
    }

    fn key(&self) -> &str {
        &self.key
    }
}

/// Filter and page of a listing of slots.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ListSlots {
    /// Lists only slots whose key starts with this text, without wildcards.
    #[schemars(length(max = 256))]
    prefix: Option<String>,
    /// Maximum number of rows, 1 to 200. Default: 50.
    #[schemars(range(min = 1, max = 200))]
    limit: Option<u32>,
    /// The `nextCursor` of the previous page.
    cursor: Option<String>,
}

impl From<ListSlots> for KeyList {
    fn from(query: ListSlots) -> Self {
        let listing = Listing::of(query.limit, query.cursor);
        let prefix = query.prefix.unwrap_or_default();
        KeyList { prefix, limit: Some(listing.limit()), cursor: listing.cursor() }
    }
}

/// Query parameter with the initial value of a slot.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct InitialValue {
    /// Value that the slot counts as before its first write, as JSON. It does not apply after a delete. Default: none.
    initial: Option<String>,
}

impl InitialValue {
    fn value(&self) -> Result<Option<Value>, Problem> {
        let Some(text) = &self.initial else { return Ok(None) };
        serde_json::from_str(text).map(Some).map_err(|error| {
            let detail =
                format!("`initial` is not JSON: {error}. Text needs quotation marks, such as `\"new\"`.");
            Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", detail).param("parameter", "initial")
        })
    }
}

/// Request to set the value of a slot.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct SetSlot {
    /// New value, any JSON value including `null`.
    value: Value,
}

/// Request to add to the number in a slot.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct IncrementSlot {
    /// Number to add; negative numbers subtract. Default: 1.
    #[schemars(with = "Option<f64>")]
    by: Option<Number>,
    /// Number that the slot counts as before its first write. Default: 0.
    #[schemars(with = "Option<f64>")]
    initial: Option<Number>,
}

/// Request to set fields of the object in a slot.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct MergeSlot {
    /// Fields to set; they replace fields of the same name.
    fields: Map<String, Value>,
    /// Object that the slot counts as before its first write. Default: an empty object.
    initial: Option<Map<String, Value>>,
}

/// Request to append to the list in a slot.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct AppendSlot {
    /// Item to append, any JSON value.
    item: Value,
    /// List that the slot counts as before its first write. Default: an empty list.
    initial: Option<Vec<Value>>,
}

/// Request to remove an item from the list in a slot.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RemoveItem {
    /// List that the slot counts as before its first write. Default: an empty list.
    initial: Option<Vec<Value>>,
}

/// A slot and its value.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct SlotView {
    /// Key of the slot.
    key: String,
    /// Value of the slot, any JSON value.
    value: Value,
    /// Revision of the slot. Every write increases it, including deletes. 0: the slot was never written.
    revision: u64,
    /// Time at which the slot was first written; absent if it never was.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Instant>")]
    created_at: Option<Timestamp>,
    /// Time at which the slot was last written; absent if it never was.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Instant>")]
    updated_at: Option<Timestamp>,
    /// Id of the run that first wrote the slot; absent if no run did.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Id>")]
    created_by_run: Option<RunId>,
}

/// Result of a write to a slot.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct SlotWritten {
    /// New revision of the slot.
    revision: u64,
    /// True if the slot had no value before.
    created: bool,
}

/// Result of an increment.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct SlotIncremented {
    /// New number in the slot.
    #[schemars(with = "f64")]
    value: Value,
    /// New revision of the slot.
    revision: u64,
}

/// Result of removing an item from a list.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct SlotItem {
    /// True if the list had an item, which may be `null`.
    found: bool,
    /// The removed item; absent if the list was empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    item: Option<Value>,
    /// New revision of the slot.
    revision: u64,
}

impl From<KeyEntry> for SlotView {
    fn from(entry: KeyEntry) -> Self {
        let KeyEntry { key, value, revision, created_at, updated_at, created_by_run, .. } = entry;
        let (created_at, updated_at) = (Some(created_at), Some(updated_at));
        SlotView { key, value, revision, created_at, updated_at, created_by_run }
    }
}

/// Builds the routes of one kind of slot.
macro_rules! of_slot {
    ($of:ty, $path:literal, $name:literal) => {{
        let (read, manage) = (Permission::Read, Permission::Manage);
        vec![
            get($path, concat!("get", $name), read, "Get the value of a slot.")
                .notes("`ETag` is the slot's revision. With `initial`, a slot that was never written is answered with that value and revision 0.")
                .ok::<SlotView>("The slot.")
                .to(show::<$of>),
            put($path, concat!("set", $name), manage, "Set the value of a slot.")
                .notes("`If-Match` requires the current revision; `If-None-Match: *` requires that the slot has no value.")
                .keyed()
                .checks_tag_or_new()
                .gives::<SlotWritten>(StatusCode::CREATED, "The slot had no value before.")
                .ok::<SlotWritten>("The slot had a value before.")
                .to(set::<$of>),
            delete($path, concat!("delete", $name), manage, "Delete the value of a slot.")
                .notes("After it, the slot has no value, and no initial value either.")
                .keyed()
                .checks_tag()
                .gives_nothing("The slot has no value any more.")
                .to(remove::<$of>),
            get(concat!($path, "/watch"), concat!("watch", $name), read, "Watch a slot: server-sent events, one per change.")
                .notes("The first event has the current value. The id of an event is the revision. With `Last-Event-ID`, the current value is sent only if its revision differs. Intermediate values may be skipped.")
                .gives_text(EVENTS, "Events `change`: `{found, value, previous, revision}`.")
                .to(watch::<$of>),
            post(concat!($path, "/increment"), concat!("increment", $name), manage, "Add to the number in a slot, or to 0 if it has no value.")
                .keyed()
                .ok::<SlotIncremented>("The new number.")
                .to(increment::<$of>),
            post(concat!($path, "/merge"), concat!("merge", $name), manage, "Set fields of the object in a slot.")
                .keyed()
                .ok::<SlotWritten>("The fields are set.")
                .to(merge::<$of>),
            post(concat!($path, "/append"), concat!("append", $name), manage, "Append an item to the list in a slot.")
                .keyed()
                .ok::<SlotWritten>("The item is appended.")
                .to(append::<$of>),
            post(concat!($path, "/removeFirst"), concat!("removeFirst", $name), manage, "Remove the first item of the list in a slot.")
                .keyed()
                .ok::<SlotItem>("The removed item, if there was one.")
                .to(|call| removed::<$of>(call, CellOp::RemoveFirst)),
            post(concat!($path, "/removeLast"), concat!("removeLast", $name), manage, "Remove the last item of the list in a slot.")
                .keyed()
                .ok::<SlotItem>("The removed item, if there was one.")
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
            "List the slots that all runs of a workflow share.",
        )
        .ok::<Page<SlotView>>("Slots with their values.")
        .to(list_of_workflow),
        get(
            "/v1/state/execution/{run}",
            "listExecutionSlots",
            read,
            "List the slots that a root run and its descendants share.",
        )
        .ok::<Page<SlotView>>("Slots with their values.")
        .to(list_of_execution),
    ];
    routes.extend(of_slot!(WorkflowSlotPath, "/v1/state/workflow/{workflow}/{key}", "WorkflowSlot"));
    routes.extend(of_slot!(ExecutionSlotPath, "/v1/state/execution/{run}/{key}", "ExecutionSlot"));
    routes
}

fn no_slot(key: &str) -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "noSlot", format!("Slot `{key}` has no value."))
}

async fn list_of_workflow(call: Call<WorkflowPath, ListSlots>) -> Result<Reply, Problem> {
    let state = call.engine().state();
    let page = state.list_workflow(call.path.workflow.as_str(), call.query.into()).await?;
    Reply::ok(&Page::of(page, SlotView::from))
}

async fn list_of_execution(call: Call<RunPath, ListSlots>) -> Result<Reply, Problem> {
    let state = call.engine().state();
    let page = state.list_execution(state.root_of(call.path.run).await?, call.query.into()).await?;
    Reply::ok(&Page::of(page, SlotView::from))
}

async fn show<P: SlotPath>(call: Call<P, InitialValue>) -> Result<Reply, Problem> {
    let initial = call.query.value()?;
    let slot = with_initial(call.path.slot(&call.engine()).await?, initial);
    let shown = match slot.entry().await? {
        Some(entry) => SlotView::from(entry),
        None => {
            let value = slot.get().await?.ok_or_else(|| no_slot(call.path.key()))?;
            let key = call.path.key().to_owned();
            SlotView { key, value, revision: 0, created_at: None, updated_at: None, created_by_run: None }
        }
    };
    Ok(Reply::ok(&shown)?.tagged(shown.revision))
}

fn with_initial(slot: Slot<Value>, initial: Option<Value>) -> Slot<Value> {
    initial.into_iter().fold(slot, Slot::initial)
}

async fn watch<P: SlotPath>(call: Call<P>) -> Result<Reply, Problem> {
    let last = sse::last_id(&call.headers)?;
    let changes = call.path.slot(&call.engine()).await?.watch()?;
    let changes = changes.filter_map(async |event| match event {
        Ok(SlotEvent::Change { value, previous, version }) => Some(Ok(Watched { value, previous, version })),
        Ok(SlotEvent::Conflict { .. } | SlotEvent::Exhausted { .. }) => None,
        Err(error) => Some(Err(error)),
    });
    Ok(sse::changes(&call.server, changes, last))
}

/// Applies an operation to a slot, once per idempotency key.
async fn apply<P: SlotPath, B: Reads + Sync>(
    call: &Call<P, Nothing, B>,
    op: CellOp,
    if_revision: Option<u64>,
    initial: Option<Value>,
) -> Result<Idempotent<OpResult>, Problem> {
    let slot = with_initial(call.path.slot(&call.engine()).await?, initial);
    write_one(call, Changes::new().slot(&slot, op, if_revision)).await
}

async fn set<P: SlotPath>(call: Call<P, Nothing, Json<SetSlot>>) -> Result<Reply, Problem> {
    let value = call.body.0.value.clone();
    let op = CellOp::Set { value, value_type: ValueType::Json, ttl: Ttl::Keep };
    let done = apply(&call, op, call.expected()?, None).await?;
    written(if done.value.created { StatusCode::CREATED } else { StatusCode::OK }, &done)
}

async fn remove<P: SlotPath>(call: Call<P>) -> Result<Reply, Problem> {
    let done = apply(&call, CellOp::Delete, call.seen()?, None).await?;
    Ok(Reply::nothing().replayed(!done.is_new))
}

async fn increment<P: SlotPath>(
    call: Call<P, Nothing, OptionalBody<IncrementSlot>>,
) -> Result<Reply, Problem> {
    let IncrementSlot { by, initial } = &call.body.0;
    let by = by.clone().unwrap_or_else(|| 1.into());
    let initial = initial.clone().map(Value::Number);
    let Idempotent { value: OpResult { revision, value, .. }, is_new } =
        apply(&call, CellOp::Increment { by }, None, initial).await?;
    let incremented = SlotIncremented { value: value.unwrap_or_default(), revision };
    Ok(Reply::ok(&incremented)?.tagged(revision).replayed(!is_new))
}

async fn merge<P: SlotPath>(call: Call<P, Nothing, Json<MergeSlot>>) -> Result<Reply, Problem> {
    let MergeSlot { fields, initial } = &call.body.0;
    let (fields, initial) = (fields.clone(), initial.clone().map(Value::Object));
    written(StatusCode::OK, &apply(&call, CellOp::Merge { fields }, None, initial).await?)
}

async fn append<P: SlotPath>(call: Call<P, Nothing, Json<AppendSlot>>) -> Result<Reply, Problem> {
    let AppendSlot { item, initial } = &call.body.0;
    let (item, initial) = (item.clone(), initial.clone().map(Value::Array));
    written(StatusCode::OK, &apply(&call, CellOp::Append { item }, None, initial).await?)
}

async fn removed<P: SlotPath>(
    call: Call<P, Nothing, OptionalBody<RemoveItem>>,
    op: CellOp,
) -> Result<Reply, Problem> {
    let initial = call.body.0.initial.clone().map(Value::Array);
    let Idempotent { value: OpResult { revision, value: item, .. }, is_new } =
        apply(&call, op, None, initial).await?;
    let taken = SlotItem { found: item.is_some(), item, revision };
    Ok(Reply::ok(&taken)?.tagged(revision).replayed(!is_new))
}

fn written(status: StatusCode, done: &Idempotent<OpResult>) -> Result<Reply, Problem> {
    let OpResult { revision, created, .. } = done.value;
    Ok(Reply::json(status, &SlotWritten { revision, created })?.tagged(revision).replayed(!done.is_new))
}
