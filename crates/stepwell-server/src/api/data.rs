//! Several changes to keys and links as one transaction, and how every change to the data over the API is written.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Number, Value};
use stepwell::data::{Changes, Increment, NewLink};
use stepwell::store::{Ends, OpResult};
use stepwell::{Done, Permission};

use super::call::{Call, Json, Nothing};
use super::kv::{Holds, KeyType};
use super::links::Thing;
use super::reply::Reply;
use super::route::{Route, post};
use super::shapes::Id;
use crate::routes::problem::Problem;

/// Changes that are made together or not at all.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ChangeData {
    /// What is checked and changed, in this order.
    #[schemars(length(min = 1, max = 1000))]
    changes: Vec<DataChange>,
}

/// Something that is checked or changed.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(tag = "op", rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
enum DataChange {
    /// The key must be at this revision; if it is not, nothing is changed.
    Check {
        /// The namespace.
        #[schemars(length(min = 1, max = 256))]
        namespace: String,
        /// The key.
        #[schemars(length(min = 1, max = 256))]
        key: String,
        /// The revision; 0 = it must have no value.
        revision: u64,
    },
    /// The key gets a value.
    Set {
        /// The namespace.
        #[schemars(length(min = 1, max = 256))]
        namespace: String,
        /// The key.
        #[schemars(length(min = 1, max = 256))]
        key: String,
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
        /// Only if the key is at this revision; 0 = only if it has no value.
        if_revision: Option<u64>,
    },
    /// The key has no value any more.
    Delete {
        /// The namespace.
        #[schemars(length(min = 1, max = 256))]
        namespace: String,
        /// The key.
        #[schemars(length(min = 1, max = 256))]
        key: String,
    },
    /// Something is added to the key's number.
    Increment {
        /// The namespace.
        #[schemars(length(min = 1, max = 256))]
        namespace: String,
        /// The key.
        #[schemars(length(min = 1, max = 256))]
        key: String,
        /// How much; 1 unless this says otherwise.
        #[schemars(with = "Option<f64>")]
        by: Option<Number>,
        /// What an absent key counts as; 0 unless this says otherwise.
        #[schemars(with = "Option<f64>")]
        initial: Option<Number>,
    },
    /// A link is there, with these attributes in place of those before.
    Link {
        /// The namespace.
        #[schemars(length(min = 1, max = 256))]
        namespace: String,
        /// Where it begins.
        from: Thing,
        /// Where it ends.
        to: Thing,
        /// What the one is to the other; `related` unless this says otherwise.
        #[schemars(length(min = 1, max = 256))]
        relation: Option<String>,
        /// What else is to be said of it.
        #[serde(default = "no_attributes")]
        attributes: Value,
    },
    /// Links that begin at one thing or end at another, or both, are not there any more.
    Unlink {
        /// The namespace.
        #[schemars(length(min = 1, max = 256))]
        namespace: String,
        /// Where they begin.
        from: Option<Thing>,
        /// Where they end.
        to: Option<Thing>,
        /// Only with this relation.
        #[schemars(length(min = 1, max = 256))]
        relation: Option<String>,
    },
}

/// What the changes came to.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct DataChanged {
    /// Each one's result, in the order of the changes.
    results: Vec<DataResult>,
}

/// What a change came to.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "op", rename_all = "camelCase", rename_all_fields = "camelCase")]
enum DataResult {
    /// It is at the revision that was named.
    Check {
        /// That revision.
        revision: u64,
    },
    /// The key has the value.
    Set {
        /// The key's revision now.
        revision: u64,
        /// It had no value before.
        created: bool,
    },
    /// The key has no value.
    Delete {
        /// The key's revision now.
        revision: u64,
        /// It had a value before.
        deleted: bool,
    },
    /// The number was counted up.
    Increment {
        /// The number now.
        #[schemars(with = "f64")]
        value: Value,
        /// The key's revision now.
        revision: u64,
    },
    /// The link is there.
    Link {
        /// Its id.
        #[schemars(with = "Id")]
        link_id: Value,
        /// It was not there before.
        created: bool,
    },
    /// The links are not there.
    Unlink {
        /// How many were.
        #[schemars(with = "u64")]
        deleted_count: Value,
    },
}

pub(super) fn routes() -> Vec<Route> {
    vec![
        post("/v1/data", "changeData", Permission::Manage, "Changes keys and links, all of it or nothing.")
            .notes("A `check` or an `ifRevision` that does not hold, or anything that cannot be done, leaves everything as it was.")
            .keyed()
            .ok::<DataChanged>("What each of the changes came to.")
            .to(change),
    ]
}

async fn change(call: Call<Nothing, Nothing, Json<ChangeData>>) -> Result<Reply, Problem> {
    let mut changes = Changes::new();
    for one in &call.body.0.changes {
        changes = one.joining(changes)?;
    }
    let done = write(&call, changes).await?;
    let results = call.body.0.changes.iter().zip(done.came_to).map(|(one, result)| one.came_to(result));
    Ok(Reply::ok(&DataChanged { results: results.collect() })?.replayed(!done.is_new))
}

impl DataChange {
    /// The changes, and this one.
    fn joining(&self, changes: Changes) -> Result<Changes, Problem> {
        Ok(match self {
            DataChange::Check { namespace, key, revision } => changes.check(namespace, key, *revision),
            DataChange::Set { namespace, key, value, value_type, ttl_seconds, keep_ttl, if_revision } => {
                let holds = Holds { ttl_seconds: *ttl_seconds, keep_ttl: *keep_ttl };
                changes.set_with(namespace, key, holds.set(value, *value_type, *if_revision)?)
            }
            DataChange::Delete { namespace, key } => changes.delete(namespace, key),
            DataChange::Increment { namespace, key, by, initial } => {
                changes.increment(namespace, key, increment(by.as_ref(), initial.as_ref()))
            }
            DataChange::Link { namespace, from, to, relation, attributes } => {
                changes.link(namespace, link(from, to, relation.as_deref(), attributes))
            }
            DataChange::Unlink { namespace, from, to, relation } => changes.unlink(Ends {
                namespace: namespace.clone(),
                from: from.as_ref().map(Into::into),
                to: to.as_ref().map(Into::into),
                relation: relation.clone(),
            }),
        })
    }

    fn came_to(&self, result: OpResult) -> DataResult {
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

/// What is added to a number.
pub(super) fn increment(by: Option<&Number>, initial: Option<&Number>) -> Increment {
    let increment = Increment::by(by.cloned().unwrap_or_else(|| 1.into()));
    initial.cloned().into_iter().fold(increment, Increment::initial)
}

/// Of a link nothing else is to be said.
pub(super) fn no_attributes() -> Value {
    Value::Object(Map::new())
}

/// A link that is to be there.
pub(super) fn link(from: &Thing, to: &Thing, relation: Option<&str>, attributes: &Value) -> NewLink {
    let link = NewLink::new(from.into(), to.into()).attributes(attributes);
    relation.into_iter().fold(link, NewLink::relation)
}

/// Writes changes, once under the request's key.
pub(super) async fn write<P, Q, B>(
    call: &Call<P, Q, B>,
    changes: Changes,
) -> Result<Done<Vec<OpResult>>, Problem> {
    let changes = call.key()?.into_iter().fold(changes, Changes::once);
    Ok(call.engine().write_once(changes).await?)
}

/// Writes changes, once under the request's key, and gives what the last of them came to.
pub(super) async fn write_one<P, Q, B>(
    call: &Call<P, Q, B>,
    changes: Changes,
) -> Result<Done<OpResult>, Problem> {
    let Done { mut came_to, is_new } = write(call, changes).await?;
    let last = came_to.pop().ok_or_else(|| Problem::internal(&"a write gives a result"))?;
    Ok(Done { came_to: last, is_new })
}
