//! The key-value store: keys of namespaces, with revisions and times to live.

use std::time::Duration;

use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Number, Value};
use stepwell::core::{RunId, Timestamp};
use stepwell::data::{Changes, Entry, List, Namespace, Set};
use stepwell::store::{OpResult, ValueType};
use stepwell::{Done, Permission};

use super::call::{Call, Json, Nothing, Perhaps};
use super::data::{self, write_one};
use super::reply::Reply;
use super::route::{Route, delete, get, post, put};
use super::shapes::{Id, Instant, Listing, Page};
use super::sse::{self, EVENTS};
use crate::routes::problem::Problem;

/// A key.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct OfKey {
    /// The namespace.
    #[schemars(length(min = 1, max = 256))]
    namespace: String,
    /// The key.
    #[schemars(length(min = 1, max = 256))]
    key: String,
}

/// Which keys of a namespace.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct OfNamespace {
    /// The namespace.
    #[schemars(length(min = 1, max = 256))]
    namespace: String,
}

/// Which keys.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ListKeys {
    /// Whose key begins with this text, taken literally.
    #[schemars(length(max = 256))]
    prefix: Option<String>,
    /// How many rows at most.
    #[schemars(range(min = 1, max = 200))]
    limit: Option<u32>,
    /// Where the part before ended.
    cursor: Option<String>,
}

/// A value that is set.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct SetKey {
    /// The value; `null` is one.
    value: Value,
    /// What kind of value it is, for editors.
    value_type: Option<KeyType>,
    /// For how many seconds it holds; without this until it is deleted.
    #[schemars(range(min = 1, max = 3_153_600_000u64))]
    ttl_seconds: Option<u64>,
    /// It holds as long as the value before it.
    #[serde(default)]
    keep_ttl: bool,
}

/// What kind of value it is, for editors.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) enum KeyType {
    String,
    Number,
    Boolean,
    Json,
}

/// What is added to a number.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct IncrementKey {
    /// How much; 1 unless this says otherwise.
    #[schemars(with = "Option<f64>")]
    by: Option<Number>,
    /// What an absent key counts as; 0 unless this says otherwise.
    #[schemars(with = "Option<f64>")]
    initial: Option<Number>,
}

/// A key with its value.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct KeyShown {
    /// The key.
    key: String,
    /// Its value.
    value: Value,
    /// What kind of value it is.
    value_type: KeyType,
    /// Counts every write; never restarts.
    revision: u64,
    /// From then on it counts as absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Instant>")]
    expires_at: Option<Timestamp>,
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
struct KeyWritten {
    /// The key's revision now.
    revision: u64,
    /// It had no value before.
    created: bool,
}

/// What an increment came to.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct KeyIncremented {
    /// The number now.
    #[schemars(with = "f64")]
    value: Number,
    /// The key's revision now.
    revision: u64,
}

/// A namespace, and how many keys with a value it has.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct KeyNamespace {
    /// The namespace.
    namespace: String,
    /// How many keys.
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

impl From<Entry> for KeyShown {
    fn from(entry: Entry) -> Self {
        let Entry { key, value, value_type, revision, expires_at, created_at, updated_at, created_by_run } =
            entry;
        let value_type = value_type.into();
        KeyShown { key, value, value_type, revision, expires_at, created_at, updated_at, created_by_run }
    }
}

pub(super) fn routes() -> Vec<Route> {
    let (read, manage) = (Permission::Read, Permission::Manage);
    vec![
        get("/v1/kv", "listKeyNamespaces", read, "Lists the namespaces that have keys.")
            .ok::<Page<KeyNamespace>>("Namespaces, and how many keys they have.")
            .to(namespaces),
        get("/v1/kv/{namespace}", "listKeys", read, "Lists the keys of a namespace.")
            .ok::<Page<KeyShown>>("Keys with their values.")
            .to(list),
        get("/v1/kv/{namespace}/{key}", "getKey", read, "Gives a key's value.")
            .notes("`ETag` is its revision.")
            .ok::<KeyShown>("The key.")
            .to(show),
        put("/v1/kv/{namespace}/{key}", "setKey", manage, "Gives a key a value.")
            .notes("`If-Match` names the revision that has to be the current one, `If-None-Match: *` asks that there be no value.")
            .keyed()
            .checks_tag_or_new()
            .gives::<KeyWritten>(StatusCode::CREATED, "The key had no value before.")
            .ok::<KeyWritten>("The key had a value before.")
            .to(set),
        delete("/v1/kv/{namespace}/{key}", "deleteKey", manage, "Takes a key's value away.")
            .keyed()
            .checks_tag()
            .gives_nothing("It has no value now.")
            .to(remove),
        get("/v1/kv/{namespace}/{key}/watch", "watchKey", read, "Watches a key: server-sent events, one per change.")
            .notes("The first is the value as it is now. The id of an event is the revision; with `Last-Event-ID` what that one showed is not shown again. Values in between may be skipped.")
            .gives_text(EVENTS, "Events `change`: `{found, value, previous, revision}`.")
            .to(watch),
        post("/v1/kv/{namespace}/{key}/increment", "incrementKey", manage, "Adds to a key's number.")
            .keyed()
            .ok::<KeyIncremented>("The number now.")
            .to(increment),
    ]
}

fn no_key(key: &OfKey) -> Problem {
    let detail = format!("Key `{}` of `{}` has no value.", key.key, key.namespace);
    Problem::new(StatusCode::NOT_FOUND, "noKey", detail)
}

async fn namespaces(call: Call<Nothing, Listing>) -> Result<Reply, Problem> {
    let page = call.engine().kv_namespaces(Some(call.query.limit()), call.query.cursor()).await?;
    let shape = |Namespace { namespace, count }: Namespace| KeyNamespace { namespace, key_count: count };
    Reply::ok(&Page::of(page, shape))
}

async fn list(call: Call<OfNamespace, ListKeys>) -> Result<Reply, Problem> {
    let kv = call.engine().kv(&call.path.namespace);
    let ListKeys { prefix, limit, cursor } = call.query;
    let listing = Listing::of(limit, cursor);
    let list =
        List { prefix: prefix.unwrap_or_default(), limit: Some(listing.limit()), cursor: listing.cursor() };
    Reply::ok(&Page::of(kv.list(list).await?, KeyShown::from))
}

async fn show(call: Call<OfKey>) -> Result<Reply, Problem> {
    let entry = call.engine().kv(&call.path.namespace).get(&call.path.key).await?;
    let entry = entry.ok_or_else(|| no_key(&call.path))?;
    let revision = entry.revision;
    Ok(Reply::ok(&KeyShown::from(entry))?.tagged(revision))
}

async fn set(call: Call<OfKey, Nothing, Json<SetKey>>) -> Result<Reply, Problem> {
    let Json(SetKey { value, value_type, ttl_seconds, keep_ttl }) = &call.body;
    let holds = Holds { ttl_seconds: *ttl_seconds, keep_ttl: *keep_ttl };
    let set = holds.set(value, *value_type, call.expected()?)?;
    let changes = Changes::new().set_with(&call.path.namespace, &call.path.key, set);
    let Done { came_to: OpResult { revision, created, .. }, is_new } = write_one(&call, changes).await?;
    let status = if created { StatusCode::CREATED } else { StatusCode::OK };
    Ok(Reply::json(status, &KeyWritten { revision, created })?.tagged(revision).replayed(!is_new))
}

/// How long a value holds.
pub(super) struct Holds {
    pub(super) ttl_seconds: Option<u64>,
    pub(super) keep_ttl: bool,
}

impl Holds {
    /// A value that is set for so long.
    pub(super) fn set(
        &self,
        value: &Value,
        value_type: Option<KeyType>,
        if_revision: Option<u64>,
    ) -> Result<Set, Problem> {
        let set = match (self.ttl_seconds, self.keep_ttl) {
            (Some(_), true) => {
                let detail =
                    "A value holds for `ttlSeconds` or as long as the one before it (`keepTtl`), not both.";
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

async fn remove(call: Call<OfKey>) -> Result<Reply, Problem> {
    let OfKey { namespace, key } = &call.path;
    let changes = call.seen()?.into_iter().fold(Changes::new(), |all, seen| all.check(namespace, key, seen));
    let done = write_one(&call, changes.delete(namespace, key)).await?;
    match done.came_to.existed {
        true => Ok(Reply::nothing().replayed(!done.is_new)),
        false => Err(no_key(&call.path)),
    }
}

async fn increment(call: Call<OfKey, Nothing, Perhaps<IncrementKey>>) -> Result<Reply, Problem> {
    let Perhaps(IncrementKey { by, initial }) = &call.body;
    let increment = data::increment(by.as_ref(), initial.as_ref());
    let changes = Changes::new().increment(&call.path.namespace, &call.path.key, increment);
    let Done { came_to: OpResult { revision, value, .. }, is_new } = write_one(&call, changes).await?;
    let Some(Value::Number(value)) = value else {
        return Err(Problem::internal(&"an increment gives a number"));
    };
    Ok(Reply::ok(&KeyIncremented { value, revision })?.tagged(revision).replayed(!is_new))
}

async fn watch(call: Call<OfKey>) -> Result<Reply, Problem> {
    let last = sse::last_id(&call.headers)?;
    Ok(sse::changes(&call.server, call.engine().kv(&call.path.namespace).watch(&call.path.key)?, last))
}
