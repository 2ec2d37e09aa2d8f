//! Routes of the key-value store: keys in namespaces, with revisions and times to live.

use std::time::Duration;

use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Number, Value};
use stepwell::core::{RunId, Timestamp};
use stepwell::data::{Changes, KeyEntry, KeyList, Namespace, Set};
use stepwell::store::{OpResult, ValueType};
use stepwell::{Idempotent, Permission};

use super::call::{Call, Json, Nothing, OptionalBody};
use super::data::{self, write_one};
use super::reply::Reply;
use super::route::{Route, delete, get, post, put};
use super::shapes::{Id, Instant, Listing, Page};
use super::sse::{self, EVENTS};
use crate::routes::problem::Problem;

/// Path parameters that select a key.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct KeyPath {
    /// Namespace of the key, 1 to 256 characters.
    #[schemars(length(min = 1, max = 256))]
    namespace: String,
    /// Name of the key, 1 to 256 characters.
    #[schemars(length(min = 1, max = 256))]
    key: String,
}

/// Path parameter that selects a namespace.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct NamespacePath {
    /// Name of the namespace, 1 to 256 characters.
    #[schemars(length(min = 1, max = 256))]
    namespace: String,
}

/// Filter and page of a listing of keys.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ListKeys {
    /// Lists only keys that start with this text, without wildcards.
    #[schemars(length(max = 256))]
    prefix: Option<String>,
    /// Maximum number of rows, 1 to 200. Default: 50.
    #[schemars(range(min = 1, max = 200))]
    limit: Option<u32>,
    /// The `nextCursor` of the previous page.
    cursor: Option<String>,
}

/// Request to set the value of a key.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct SetKey {
    /// New value, any JSON value including `null`.
    value: Value,
    /// Type of the value, for editors. Default: `json`.
    value_type: Option<KeyType>,
    /// Time to live of the value, in seconds. Default: it never expires.
    #[schemars(range(min = 1, max = 3_153_600_000u64))]
    ttl_seconds: Option<u64>,
    /// True = keep the expiry of the previous value. Not together with `ttlSeconds`. Default: false.
    #[serde(default)]
    keep_ttl: bool,
}

/// Type of a value, for editors. It is not enforced.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) enum KeyType {
    String,
    Number,
    Boolean,
    Json,
}

/// Request to add to the number in a key.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct IncrementKey {
    /// Number to add; negative numbers subtract. Default: 1.
    #[schemars(with = "Option<f64>")]
    by: Option<Number>,
    /// Number that a key without a value starts from. Default: 0.
    #[schemars(with = "Option<f64>")]
    initial: Option<Number>,
}

/// A key with its value.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct KeyView {
    /// Name of the key.
    key: String,
    /// Value of the key, any JSON value.
    value: Value,
    /// Type of the value, for editors.
    value_type: KeyType,
    /// Revision of the key. Every write increases it, also after a delete.
    revision: u64,
    /// Time at which the value expires; absent if it never expires.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Instant>")]
    expires_at: Option<Timestamp>,
    /// Time at which the key was first written.
    #[schemars(with = "Instant")]
    created_at: Timestamp,
    /// Time at which the key was last written.
    #[schemars(with = "Instant")]
    updated_at: Timestamp,
    /// Id of the run that first wrote the key; absent if no run did.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Id>")]
    created_by_run: Option<RunId>,
}

/// Result of setting a key.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct KeyWritten {
    /// New revision of the key.
    revision: u64,
    /// True if the key had no value before.
    created: bool,
}

/// Result of an increment.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct KeyIncremented {
    /// New number in the key.
    #[schemars(with = "f64")]
    value: Number,
    /// New revision of the key.
    revision: u64,
}

/// A namespace and its number of keys with a value.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct KeyNamespace {
    /// Name of the namespace.
    namespace: String,
    /// Number of keys with a value.
    key_count: u64,
}

impl From<ValueType> for KeyType {
    fn from(kind: ValueType) -> Self {
        match kind {
            ValueType::String => KeyType::String,
            ValueType::Number => KeyType::Number,
            ValueType::Boolean => KeyType::Boolean,
            ValueType::Json => KeyType::Json,
        }
    }
}

impl From<KeyType> for ValueType {
    fn from(kind: KeyType) -> Self {
        match kind {
            KeyType::String => ValueType::String,
            KeyType::Number => ValueType::Number,
            KeyType::Boolean => ValueType::Boolean,
            KeyType::Json => ValueType::Json,
        }
    }
}

impl From<KeyEntry> for KeyView {
    fn from(entry: KeyEntry) -> Self {
        let KeyEntry { key, value, value_type, revision, expires_at, created_at, updated_at, created_by_run } =
            entry;
        let value_type = value_type.into();
        KeyView { key, value, value_type, revision, expires_at, created_at, updated_at, created_by_run }
    }
}

pub(super) fn routes() -> Vec<Route> {
    let (read, manage) = (Permission::Read, Permission::Manage);
    vec![
        get("/v1/kv", "listKeyNamespaces", read, "List the namespaces that have keys.")
            .ok::<Page<KeyNamespace>>("Namespaces with their number of keys.")
            .to(namespaces),
        get("/v1/kv/{namespace}", "listKeys", read, "List the keys of a namespace.")
            .ok::<Page<KeyView>>("Keys with their values.")
            .to(list),
        get("/v1/kv/{namespace}/{key}", "getKey", read, "Get the value of a key.")
            .notes("`ETag` is the key's revision.")
            .ok::<KeyView>("The key.")
            .to(show),
        put("/v1/kv/{namespace}/{key}", "setKey", manage, "Set the value of a key.")
            .notes("`If-Match` requires the current revision; `If-None-Match: *` requires that the key has no value.")
            .keyed()
            .checks_tag_or_new()
            .gives::<KeyWritten>(StatusCode::CREATED, "The key had no value before.")
            .ok::<KeyWritten>("The key had a value before.")
            .to(set),
        delete("/v1/kv/{namespace}/{key}", "deleteKey", manage, "Delete the value of a key.")
            .keyed()
            .checks_tag()
            .gives_nothing("The key has no value any more.")
            .to(remove),
        get("/v1/kv/{namespace}/{key}/watch", "watchKey", read, "Watch a key: server-sent events, one per change.")
            .notes("The first event has the current value. The id of an event is the revision. With `Last-Event-ID`, the current value is sent only if its revision differs. Intermediate values may be skipped.")
            .gives_text(EVENTS, "Events `change`: `{found, value, previous, revision}`.")
            .to(watch),
        post("/v1/kv/{namespace}/{key}/increment", "incrementKey", manage, "Add to the number in a key.")
            .keyed()
            .ok::<KeyIncremented>("The new number.")
            .to(increment),
    ]
}

fn no_key(key: &KeyPath) -> Problem {
    let detail = format!("Key `{}` of `{}` has no value.", key.key, key.namespace);
    Problem::new(StatusCode::NOT_FOUND, "noKey", detail)
}

async fn namespaces(call: Call<Nothing, Listing>) -> Result<Reply, Problem> {
    let page = call.engine().kv_namespaces(Some(call.query.limit()), call.query.cursor()).await?;
    let shape = |Namespace { namespace, count }: Namespace| KeyNamespace { namespace, key_count: count };
    Reply::ok(&Page::of(page, shape))
}

async fn list(call: Call<NamespacePath, ListKeys>) -> Result<Reply, Problem> {
    let kv = call.engine().kv(&call.path.namespace);
    let ListKeys { prefix, limit, cursor } = call.query;
    let listing = Listing::of(limit, cursor);
    let list = KeyList {
        prefix: prefix.unwrap_or_default(),
        limit: Some(listing.limit()),
        cursor: listing.cursor(),
    };
    Reply::ok(&Page::of(kv.list(list).await?, KeyView::from))
}

async fn show(call: Call<KeyPath>) -> Result<Reply, Problem> {
    let entry = call.engine().kv(&call.path.namespace).get(&call.path.key).await?;
    let entry = entry.ok_or_else(|| no_key(&call.path))?;
    let revision = entry.revision;
    Ok(Reply::ok(&KeyView::from(entry))?.tagged(revision))
}

async fn set(call: Call<KeyPath, Nothing, Json<SetKey>>) -> Result<Reply, Problem> {
    let Json(SetKey { value, value_type, ttl_seconds, keep_ttl }) = &call.body;
    let expiry = KeyExpiry { ttl_seconds: *ttl_seconds, keep_ttl: *keep_ttl };
    let set = expiry.set(value, *value_type, call.expected()?)?;
    let changes = Changes::new().set_with(&call.path.namespace, &call.path.key, set);
    let Idempotent { value: OpResult { revision, created, .. }, is_new } = write_one(&call, changes).await?;
    let status = if created { StatusCode::CREATED } else { StatusCode::OK };
    Ok(Reply::json(status, &KeyWritten { revision, created })?.tagged(revision).replayed(!is_new))
}

/// Expiry of a value that is set.
pub(super) struct KeyExpiry {
    pub(super) ttl_seconds: Option<u64>,
    pub(super) keep_ttl: bool,
}

impl KeyExpiry {
    /// Builds the write of a value with this expiry. Rejects `ttlSeconds` together with `keepTtl`.
    pub(super) fn set(
        &self,
        value: &Value,
        value_type: Option<KeyType>,
        if_revision: Option<u64>,
    ) -> Result<Set, Problem> {
        let set = match (self.ttl_seconds, self.keep_ttl) {
            (Some(_), true) => {
                let detail = "`ttlSeconds` and `keepTtl` are mutually exclusive: send one of them, not both.";
                return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", detail));
            }
            (Some(seconds), false) => Set::new(value).ttl(Duration::from_secs(seconds)),
            (None, true) => Set::new(value).keep_ttl(),
            (None, false) => Set::new(value),
        };
        let set = value_type.into_iter().fold(set, |set, kind| set.value_type(kind.into()));
        Ok(if_revision.into_iter().fold(set, Set::if_revision))
    }
}

async fn remove(call: Call<KeyPath>) -> Result<Reply, Problem> {
    let KeyPath { namespace, key } = &call.path;
    let changes = call.seen()?.into_iter().fold(Changes::new(), |all, seen| all.check(namespace, key, seen));
    let done = write_one(&call, changes.delete(namespace, key)).await?;
    match done.value.existed {
        true => Ok(Reply::nothing().replayed(!done.is_new)),
        false => Err(no_key(&call.path)),
    }
}

async fn increment(call: Call<KeyPath, Nothing, OptionalBody<IncrementKey>>) -> Result<Reply, Problem> {
    let OptionalBody(IncrementKey { by, initial }) = &call.body;
    let increment = data::increment(by.as_ref(), initial.as_ref());
    let changes = Changes::new().increment(&call.path.namespace, &call.path.key, increment);
    let Idempotent { value: OpResult { revision, value, .. }, is_new } = write_one(&call, changes).await?;
    let Some(Value::Number(value)) = value else {
        return Err(Problem::internal(&"an increment returned no number"));
    };
    Ok(Reply::ok(&KeyIncremented { value, revision })?.tagged(revision).replayed(!is_new))
}

async fn watch(call: Call<KeyPath>) -> Result<Reply, Problem> {
    let last = sse::last_id(&call.headers)?;
    Ok(sse::changes(&call.server, call.engine().kv(&call.path.namespace).watch(&call.path.key)?, last))
}
