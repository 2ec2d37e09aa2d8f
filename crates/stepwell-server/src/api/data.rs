//! Route that changes several keys and links in one transaction, and the shared code that writes data for the API.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Number, Value};
use stepwell::data::{Changes, Increment, NewLink};
use stepwell::store::{LinkEnds, OpResult};
use stepwell::{Idempotent, Permission};

use super::call::{Call, Json, Nothing};
use super::kv::{KeyExpiry, KeyType};
use super::links::EntityRef;
use super::reply::Reply;
use super::route::{Route, post};
use super::shapes::Id;
use crate::routes::problem::Problem;

/// Request to change keys and links in one transaction.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ChangeData {
    /// Checks and changes, applied in this order; 1 to 1,000.
    #[schemars(length(min = 1, max = 1000))]
    changes: Vec<DataChange>,
}

/// A check or a change of one key or link.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(tag = "op", rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
enum DataChange {
    /// Requires that the key is at this revision; otherwise nothing is changed.
    Check {
        /// Namespace of the key, 1 to 256 characters.
        #[schemars(length(min = 1, max = 256))]
        namespace: String,
        /// Name of the key, 1 to 256 characters.
        #[schemars(length(min = 1, max = 256))]
        key: String,
        /// Required revision of the key; 0 = the key must have no value.
        revision: u64,
    },
    /// Sets the value of a key.
    Set {
        /// Namespace of the key, 1 to 256 characters.
        #[schemars(length(min = 1, max = 256))]
        namespace: String,
        /// Name of the key, 1 to 256 characters.
        #[schemars(length(min = 1, max = 256))]
        key: String,
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
        /// Required revision of the key; 0 = the key must have no value. Default: any revision.
        if_revision: Option<u64>,
    },
    /// Deletes the value of a key.
    Delete {
        /// Namespace of the key, 1 to 256 characters.
        #[schemars(length(min = 1, max = 256))]
        namespace: String,
        /// Name of the key, 1 to 256 characters.
        #[schemars(length(min = 1, max = 256))]
        key: String,
    },
    /// Adds to the number in a key.
    Increment {
        /// Namespace of the key, 1 to 256 characters.
        #[schemars(length(min = 1, max = 256))]
        namespace: String,
        /// Name of the key, 1 to 256 characters.
        #[schemars(length(min = 1, max = 256))]
        key: String,
        /// Number to add; negative numbers subtract. Default: 1.
        #[schemars(with = "Option<f64>")]
        by: Option<Number>,
        /// Number that a key without a value starts from. Default: 0.
        #[schemars(with = "Option<f64>")]
        initial: Option<Number>,
    },
    /// Creates a link between two entities, or replaces the attributes of an existing one.
    Link {
        /// Namespace of the link, 1 to 256 characters.
        #[schemars(length(min = 1, max = 256))]
        namespace: String,
        /// Entity that the link starts at.
        from: EntityRef,
        /// Entity that the link ends at.
        to: EntityRef,
        /// Name of the relation. Default: `related`.
        #[schemars(length(min = 1, max = 256))]
        relation: Option<String>,
        /// Attributes of the link, any JSON value. Default: an empty object.
        #[serde(default = "no_attributes")]
        attributes: Value,
    },
    /// Deletes the links that start at one entity, end at another, or both.
    Unlink {
        /// Namespace of the links, 1 to 256 characters.
        #[schemars(length(min = 1, max = 256))]
        namespace: String,
        /// Entity that the links start at.
        from: Option<EntityRef>,
        /// Entity that the links end at.
        to: Option<EntityRef>,
        /// Deletes only links with this relation.
        #[schemars(length(min = 1, max = 256))]
        relation: Option<String>,
    },
}

/// Result of a transaction.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct DataChanged {
    /// Result of each change, in the order of the request.
    results: Vec<DataResult>,
}

/// Result of one check or change.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "op", rename_all = "camelCase", rename_all_fields = "camelCase")]
enum DataResult {
    /// The key is at the required revision.
    Check {
        /// Revision of the key.
        revision: u64,
    },
    /// The value was set.
    Set {
        /// New revision of the key.
        revision: u64,
        /// True if the key had no value before.
        created: bool,
    },
    /// The key has no value any more.
    Delete {
        /// New revision of the key.
        revision: u64,
        /// True if the key had a value before.
        deleted: bool,
    },
    /// The number was changed.
    Increment {
        /// New number in the key.
        #[schemars(with = "f64")]
        value: Value,
        /// New revision of the key.
        revision: u64,
    },
    /// The link was created, or its attributes were replaced.
    Link {
        /// Id of the link, a UUID.
        #[schemars(with = "Id")]
        link_id: Value,
        /// True if the link is new.
        created: bool,
    },
    /// The links were deleted.
    Unlink {
        /// Number of deleted links.
        #[schemars(with = "u64")]
        deleted_count: Value,
    },
}

pub(super) fn routes() -> Vec<Route> {
    vec![
        post("/v1/data", "changeData", Permission::Manage, "Change keys and links in one transaction.")
            .notes("If a `check` or an `ifRevision` fails, or a change is invalid, nothing is changed.")
            .keyed()
            .ok::<DataChanged>("Result of each change.")
            .to(change),
    ]
}

async fn change(call: Call<Nothing, Nothing, Json<ChangeData>>) -> Result<Reply, Problem> {
    let mut changes = Changes::new();
    for one in &call.body.0.changes {
        changes = one.joining(changes)?;
    }
    let done = write(&call, changes).await?;
    let results = call.body.0.changes.iter().zip(done.value).map(|(one, result)| one.value(result));
    Ok(Reply::ok(&DataChanged { results: results.collect() })?.replayed(!done.is_new))
}

impl DataChange {
    /// Appends this change to the others.
    fn joining(&self, changes: Changes) -> Result<Changes, Problem> {
        Ok(match self {
            DataChange::Check { namespace, key, revision } => changes.check(namespace, key, *revision),
            DataChange::Set { namespace, key, value, value_type, ttl_seconds, keep_ttl, if_revision } => {
                let expiry = KeyExpiry { ttl_seconds: *ttl_seconds, keep_ttl: *keep_ttl };
                changes.set_with(namespace, key, expiry.set(value, *value_type, *if_revision)?)
            }
            DataChange::Delete { namespace, key } => changes.delete(namespace, key),
            DataChange::Increment { namespace, key, by, initial } => {
                changes.increment(namespace, key, increment(by.as_ref(), initial.as_ref()))
            }
            DataChange::Link { namespace, from, to, relation, attributes } => {
                changes.link(namespace, link(from, to, relation.as_deref(), attributes))
            }
            DataChange::Unlink { namespace, from, to, relation } => changes.unlink(LinkEnds {
                namespace: namespace.clone(),
                from: from.as_ref().map(Into::into),
                to: to.as_ref().map(Into::into),
                relation: relation.clone(),
            }),
        })
    }

    fn value(&self, result: OpResult) -> DataResult {
        let OpResult { revision, created, existed, value } = result;
        let value = value.unwrap_or_default();
        match self {
            DataChange::Check { .. } => DataResult::Check { revision },
            DataChange::Set { .. } => DataResult::Set { revision, created },
            DataChange::Delete { .. } => DataResult::Delete { revision, deleted: existed },
            DataChange::Increment { .. } => DataResult::Increment { value, revision },
            DataChange::Link { .. } => DataResult::Link { link_id: value, created },
            DataChange::Unlink { .. } => DataResult::Unlink { deleted_count: value },
        }
    }
}

/// Builds an increment. `by` defaults to 1.
pub(super) fn increment(by: Option<&Number>, initial: Option<&Number>) -> Increment {
    let increment = Increment::by(by.cloned().unwrap_or_else(|| 1.into()));
    initial.cloned().into_iter().fold(increment, Increment::initial)
}

/// Returns the default attributes of a link: an empty object.
pub(super) fn no_attributes() -> Value {
    Value::Object(Map::new())
}

/// Builds a link between two entities.
pub(super) fn link(from: &EntityRef, to: &EntityRef, relation: Option<&str>, attributes: &Value) -> NewLink {
    let link = NewLink::new(from.into(), to.into()).attributes(attributes);
    relation.into_iter().fold(link, NewLink::relation)
}

/// Writes changes in one transaction, once per idempotency key.
pub(super) async fn write<P, Q, B>(
    call: &Call<P, Q, B>,
    changes: Changes,
) -> Result<Idempotent<Vec<OpResult>>, Problem> {
    let changes = call.key()?.into_iter().fold(changes, Changes::once);
    Ok(call.engine().write_once(changes).await?)
}

/// Writes changes in one transaction, once per idempotency key, and returns the result of the last change.
pub(super) async fn write_one<P, Q, B>(
    call: &Call<P, Q, B>,
    changes: Changes,
) -> Result<Idempotent<OpResult>, Problem> {
    let Idempotent { mut value, is_new } = write(call, changes).await?;
    let last = value.pop().ok_or_else(|| Problem::internal(&"a write returned no result"))?;
    Ok(Idempotent { value: last, is_new })
}
