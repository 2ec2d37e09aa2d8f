//! The data store as workflow actions: `store.*` and `links.*`. Their fields are named in snake_case, and their JSON
//! schemas are generated from these types.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Number, Value, json};
use stepwell_core::{RunId, Timestamp};
use stepwell_store::{
    BadRow, CountQuery, Direction, Entity, Link, LinkEnds, OpResult, Page, RELATED, Record, RecordQuery,
    ResultPart, ValueType,
};
use uuid::Uuid;

use crate::action::{ActionError, ActionInfo};
use crate::actor::Permission;
use crate::builtin::{READS, WRITES};
use crate::cx::{Cx, Once};
use crate::data::changes::{Changes, Increment, NewLink, Set};
use crate::data::error::DataError;
use crate::data::kv::{KeyEntry, KeyList, page};
use crate::data::links::{LinkListing, Lookup, listed};
use crate::engine::Builder;

/// Type of a value, as a hint for editors. It is not checked against the value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ValueKind {
    /// The value is a string.
    String,
    /// The value is a number.
    Number,
    /// The value is `true` or `false`.
    Boolean,
    /// The value is any JSON.
    #[default]
    Json,
}

impl From<ValueKind> for ValueType {
    fn from(kind: ValueKind) -> Self {
        match kind {
            ValueKind::String => ValueType::String,
            ValueKind::Number => ValueType::Number,
            ValueKind::Boolean => ValueType::Boolean,
            ValueKind::Json => ValueType::Json,
        }
    }
}

impl From<ValueType> for ValueKind {
    fn from(kind: ValueType) -> Self {
        match kind {
            ValueType::String => ValueKind::String,
            ValueType::Number => ValueKind::Number,
            ValueType::Boolean => ValueKind::Boolean,
            ValueType::Json => ValueKind::Json,
        }
    }
}

/// A key in a namespace.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct OneKey {
    /// Namespace of the key.
    namespace: String,
    /// Key: 1 to 256 characters (limit `key_chars`).
    key: String,
}

/// The value of a key, if it has one.
#[derive(Debug, Default, Serialize, JsonSchema)]
struct Got {
    /// `false` if the key was never written, is deleted or has expired.
    found: bool,
    /// The value, or `null` if there is none.
    value: Value,
    /// Type of the value, as a hint for editors.
    value_type: Option<ValueKind>,
    /// Revision of the key: the number of writes to it, deletes included.
    revision: Option<u64>,
    /// Expiry time (RFC 3339), or `null` if the value never expires.
    expires_at: Option<String>,
}

async fn get(cx: Cx, input: OneKey) -> Result<Got, ActionError> {
    let Some(entry) = cx.kv(input.namespace).get(&input.key).await? else { return Ok(Got::default()) };
    Ok(Got {
        found: true,
        value: entry.value,
        value_type: Some(entry.value_type.into()),
        revision: Some(entry.revision),
        expires_at: entry.expires_at.map(|at| at.to_string()),
    })
}

/// Sets the value of a key.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SetInput {
    /// Namespace of the key. It exists as soon as it has a key.
    namespace: String,
    /// Key: 1 to 256 characters (limit `key_chars`).
    key: String,
    /// Value of the key: any JSON.
    value: Value,
    /// Type of the value, as a hint for editors.
    #[serde(default)]
    value_type: ValueKind,
    /// Lifetime of the value in seconds, greater than 0. Default: the value never expires.
    #[serde(default)]
    ttl_seconds: Option<f64>,
    /// Keep the expiry time of the previous value. Not allowed together with `ttl_seconds`.
    #[serde(default)]
    keep_ttl: bool,
    /// Write only if the key is at this revision, otherwise fail with `conflict`. 0: only if the key has no value.
    #[serde(default)]
    if_revision: Option<u64>,
    /// Idempotency key. A repeated call with this key and the same input writes nothing and returns the first result,
    /// also from another run.
    #[serde(default)]
    idempotency_key: Option<String>,
}

/// The result of a write.
#[derive(Debug, Serialize, JsonSchema)]
struct SetOutput {
    /// Revision of the key after the write.
    revision: u64,
    /// The key had no value before.
    created: bool,
}

async fn set(cx: Cx, input: SetInput) -> Result<SetOutput, ActionError> {
    let mut set = Set::new(input.value).value_type(input.value_type.into());
    set = match (input.ttl_seconds, input.keep_ttl) {
        (Some(_), true) => return Err(invalid("`ttl_seconds` and `keep_ttl` are mutually exclusive")),
        (Some(seconds), false) => set.ttl(duration(seconds)?),
        (None, true) => set.keep_ttl(),
        (None, false) => set,
    };
    if let Some(revision) = input.if_revision {
        set = set.if_revision(revision);
    }
    let changes = Changes::new().set_with(input.namespace, input.key, set);
    let parts = [(ResultPart::Revision, "/revision"), (ResultPart::Created, "/created")];
    let before = write(&cx, changes, input.idempotency_key, &parts).await?;
    Ok(before.map_or(SetOutput { revision: 0, created: false }, |result| SetOutput {
        revision: result.revision,
        created: result.created,
    }))
}

fn duration(seconds: f64) -> Result<std::time::Duration, ActionError> {
    let duration = std::time::Duration::try_from_secs_f64(seconds);
    duration
        .ok()
        .filter(|ttl| ttl.as_millis() > 0)
        .ok_or_else(|| invalid(&format!("`ttl_seconds` must be at least 0.001 (got {seconds})")))
}

fn invalid(why: &str) -> ActionError {
    DataError::Invalid(why.to_owned()).into()
}

/// Stages a change and binds parts of its result to fields of the output, which are set at the commit. Returns the
/// earlier result if the change was already made under its idempotency key.
async fn write(
    cx: &Cx,
    changes: Changes,
    key: Option<String>,
    parts: &[(ResultPart, &str)],
) -> Result<Option<OpResult>, ActionError> {
    let once = match key {
        Some(key) => cx.write_once(changes.once(key)).await?,
        None => Once::Staged(cx.stage_changes(changes)?),
    };
    match once {
        Once::Before(results) => Ok(results.into_iter().next()),
        Once::Staged(numbers) => {
            for number in numbers {
                parts.iter().try_for_each(|(part, pointer)| cx.bind_result(number, *part, *pointer))?;
            }
            Ok(None)
        }
    }
}

/// Deletes the value of a key.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct DeleteInput {
    /// Namespace of the key.
    namespace: String,
    /// Key: 1 to 256 characters (limit `key_chars`).
    key: String,
    /// Idempotency key. A repeated call with this key and the same input writes nothing and returns the first result,
    /// also from another run.
    #[serde(default)]
    idempotency_key: Option<String>,
}

/// The result of a deletion.
#[derive(Debug, Serialize, JsonSchema)]
struct DeleteOutput {
    /// `false` if the key had no value.
    deleted: bool,
}

async fn delete(cx: Cx, input: DeleteInput) -> Result<DeleteOutput, ActionError> {
    let changes = Changes::new().delete(input.namespace, input.key);
    let before = write(&cx, changes, input.idempotency_key, &[(ResultPart::Existed, "/deleted")]).await?;
    Ok(DeleteOutput { deleted: before.is_some_and(|result| result.existed) })
}

/// Adds to the number under a key.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct IncrementInput {
    /// Namespace of the key.
    namespace: String,
    /// Key: 1 to 256 characters (limit `key_chars`).
    key: String,
    /// Number to add; it may be negative. Default: 1.
    #[serde(default = "one")]
    by: Number,
    /// Value that the key counts as if it has none. Default: 0.
    #[serde(default = "zero")]
    initial: Number,
    /// Idempotency key. A repeated call with this key and the same input writes nothing and returns the first result,
    /// also from another run.
    #[serde(default)]
    idempotency_key: Option<String>,
}

fn one() -> Number {
    1.into()
}

fn zero() -> Number {
    0.into()
}

/// The result of an addition.
#[derive(Debug, Serialize, JsonSchema)]
struct IncrementOutput {
    /// Number under the key after the addition.
    value: Number,
    /// Revision of the key after the write.
    revision: u64,
}

async fn increment(cx: Cx, input: IncrementInput) -> Result<IncrementOutput, ActionError> {
    let increment = Increment::by(input.by).initial(input.initial);
    let changes = Changes::new().increment(input.namespace, input.key, increment);
    let parts = [(ResultPart::Value, "/value"), (ResultPart::Revision, "/revision")];
    let before = write(&cx, changes, input.idempotency_key, &parts).await?;
    let nothing = IncrementOutput { value: 0.into(), revision: 0 };
    let Some(result) = before else { return Ok(nothing) };
    let value = match result.value {
        Some(Value::Number(value)) => value,
        _ => 0.into(),
    };
    Ok(IncrementOutput { value, revision: result.revision })
}

/// Selects one page of a namespace's keys, in ascending order.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ListInput {
    /// Name of the namespace to read.
    namespace: String,
    /// Only keys that begin with this text. It has no wildcards.
    #[serde(default)]
    prefix: String,
    /// Page size, 1 to 200. Default: 50.
    #[serde(default)]
    limit: Option<u32>,
    /// `next_cursor` of the previous page. Default: the first page.
    #[serde(default)]
    cursor: Option<String>,
}

/// A key with its value.
#[derive(Debug, Serialize, JsonSchema)]
struct Item {
    /// Key: 1 to 256 characters (limit `key_chars`).
    key: String,
    /// Value of the key: any JSON.
    value: Value,
    /// Type of the value, as a hint for editors.
    value_type: ValueKind,
    /// Revision of the key: the number of writes to it, deletes included.
    revision: u64,
    /// Expiry time (RFC 3339), or `null` if the value never expires.
    expires_at: Option<String>,
    /// Time of the first write to the key (RFC 3339).
    created_at: String,
    /// Time of the last write (RFC 3339).
    updated_at: String,
    /// Id of the run that first wrote the key, or `null` if no run did.
    created_by_run: Option<String>,
}

fn text(at: Timestamp) -> String {
    at.to_string()
}

fn run(run: Option<RunId>) -> Option<String> {
    run.map(|run| run.to_string())
}

impl From<KeyEntry> for Item {
    fn from(entry: KeyEntry) -> Self {
        let KeyEntry { key, value, value_type, revision, expires_at, created_at, updated_at, created_by_run } =
            entry;
        Item {
            key,
            value,
            value_type: value_type.into(),
            revision,
            expires_at: expires_at.map(text),
            created_at: text(created_at),
            updated_at: text(updated_at),
            created_by_run: run(created_by_run),
        }
    }
}

/// One page of a namespace's keys.
#[derive(Debug, Serialize, JsonSchema)]
struct ListOutput {
    /// Keys of this page with their values, in ascending order.
    items: Vec<Item>,
    /// Cursor of the next page; absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
    /// Keys of unreadable rows, which are left out of the page.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    unreadable: Vec<String>,
}

async fn list(cx: Cx, input: ListInput) -> Result<ListOutput, ActionError> {
    let ListInput { namespace, prefix, limit, cursor } = input;
    let Page { items, next, bad } = cx.kv(namespace).list(KeyList { prefix, limit, cursor }).await?;
    let unreadable = keys_of(bad);
    Ok(ListOutput { items: items.into_iter().map(Item::from).collect(), next_cursor: next, unreadable })
}

fn keys_of(bad: Vec<BadRow>) -> Vec<String> {
    bad.into_iter().map(|row| row.key).collect()
}

/// Selects one page of the namespaces.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct NamespacesInput {
    /// Page size, 1 to 200. Default: 200.
    #[serde(default)]
    limit: Option<u32>,
    /// `next_cursor` of the previous page. Default: the first page.
    #[serde(default)]
    cursor: Option<String>,
}

/// Default page size of lists of names.
const NAMES: u32 = 200;

async fn tally(
    cx: &Cx,
    of: CountQuery,
    limit: Option<u32>,
    cursor: Option<String>,
) -> Result<Page<(String, u64)>, ActionError> {
    cx.permit_read()?;
    let limit = page(cx.limits(), limit.or(Some(NAMES)))?;
    let found = cx.store().records(cx.scope(), RecordQuery::Count { of, limit, cursor }).await?;
    let counted = |record| match record {
        Record::Count { name, count } => Some((name, count)),
        _ => None,
    };
    Ok(found.filter_map(counted))
}

/// A namespace with its number of keys.
#[derive(Debug, Serialize, JsonSchema)]
struct KeyNamespace {
    /// Name of the namespace.
    namespace: String,
    /// Number of keys that have a value.
    key_count: u64,
}

/// One page of the namespaces that have keys.
#[derive(Debug, Serialize, JsonSchema)]
struct KeyNamespaces {
    /// Namespaces of this page, ordered by name.
    namespaces: Vec<KeyNamespace>,
    /// Cursor of the next page; absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

async fn list_key_namespaces(cx: Cx, input: NamespacesInput) -> Result<KeyNamespaces, ActionError> {
    let of = CountQuery::Keys { now: cx.now() };
    let Page { items, next, .. } = tally(&cx, of, input.limit, input.cursor).await?;
    let namespaces = items.into_iter().map(|(namespace, key_count)| KeyNamespace { namespace, key_count });
    Ok(KeyNamespaces { namespaces: namespaces.collect(), next_cursor: next })
}

/// A namespace with its number of links.
#[derive(Debug, Serialize, JsonSchema)]
struct LinkNamespace {
    /// Name of the namespace.
    namespace: String,
    /// Number of links in the namespace.
    link_count: u64,
}

/// One page of the namespaces that have links.
#[derive(Debug, Serialize, JsonSchema)]
struct LinkNamespaces {
    /// Namespaces of this page, ordered by name.
    namespaces: Vec<LinkNamespace>,
    /// Cursor of the next page; absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

async fn list_link_namespaces(cx: Cx, input: NamespacesInput) -> Result<LinkNamespaces, ActionError> {
    let Page { items, next, .. } = tally(&cx, CountQuery::Links, input.limit, input.cursor).await?;
    let namespaces = items.into_iter().map(|(namespace, link_count)| LinkNamespace { namespace, link_count });
    Ok(LinkNamespaces { namespaces: namespaces.collect(), next_cursor: next })
}

/// An entity, identified by its type and id.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Thing {
    /// Type of the entity: 1 to 256 characters (limit `key_chars`).
    r#type: String,
    /// Id of the entity: any text of 1 to 256 characters (limit `key_chars`).
    id: String,
}

impl From<Thing> for Entity {
    fn from(thing: Thing) -> Self {
        Entity::new(thing.r#type, thing.id)
    }
}

impl From<&Entity> for Thing {
    fn from(end: &Entity) -> Self {
        Thing { r#type: end.kind().to_owned(), id: end.id().to_owned() }
    }
}

fn related() -> String {
    RELATED.to_owned()
}

fn no_attributes() -> Value {
    Value::Object(Map::new())
}

/// Creates a link between two entities, or replaces the attributes of the existing one.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct UpsertInput {
    /// Namespace of the link. It exists as soon as it has a link.
    namespace: String,
    /// Entity at which the link begins.
    from: Thing,
    /// Entity at which the link ends.
    to: Thing,
    /// Relation between the two entities.
    #[serde(default = "related")]
    relation: String,
    /// Attributes of the link, as JSON. They replace the existing attributes. Default: an empty object.
    #[serde(default = "no_attributes")]
    attributes: Value,
    /// Idempotency key. A repeated call with this key and the same input writes nothing and returns the first result,
    /// also from another run.
    #[serde(default)]
    idempotency_key: Option<String>,
}

/// The result of an upsert.
#[derive(Debug, Serialize, JsonSchema)]
struct UpsertOutput {
    /// Id of the link, a UUID.
    link_id: String,
    /// `false` if the link existed, so that only its attributes were replaced.
    created: bool,
}

async fn upsert(cx: Cx, input: UpsertInput) -> Result<UpsertOutput, ActionError> {
    let UpsertInput { namespace, from, to, relation, attributes, idempotency_key } = input;
    let link = NewLink::new(from.into(), to.into()).relation(relation).attributes(attributes);
    let parts = [(ResultPart::Value, "/link_id"), (ResultPart::Created, "/created")];
    let before = write(&cx, Changes::new().link(namespace, link), idempotency_key, &parts).await?;
    let Some(result) = before else {
        return Ok(UpsertOutput { link_id: Uuid::nil().to_string(), created: false });
    };
    let link_id = result.value.as_ref().and_then(Value::as_str).unwrap_or_default().to_owned();
    Ok(UpsertOutput { link_id, created: result.created })
}

/// Direction in which links are followed.
#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum LookupDirection {
    /// Links that begin at the entity.
    #[default]
    Forward,
    /// Links that end at the entity.
    Reverse,
    /// Links that begin or end at the entity.
    Either,
}

/// Selects links of one entity.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct LookupInput {
    /// Name of the namespace to read.
    namespace: String,
    /// Entity whose links are looked up.
    from: Thing,
    /// Direction of the links. Default: `forward`.
    #[serde(default)]
    direction: LookupDirection,
    /// Only links with this relation. Default: all relations.
    #[serde(default)]
    relation: Option<String>,
    /// Only links to entities of this type. Default: all types.
    #[serde(default, alias = "right_type")]
    to_type: Option<String>,
    /// Page size, 1 to 200. Default: 100.
    #[serde(default)]
    limit: Option<u32>,
    /// `next_cursor` of the previous page. Default: the first page.
    #[serde(default)]
    cursor: Option<String>,
}

/// A link, seen from one of its ends.
#[derive(Debug, Serialize, JsonSchema)]
struct MatchItem {
    /// Id of the link, a UUID.
    link_id: String,
    /// Type of the entity at the other end.
    r#type: String,
    /// Id of the entity at the other end.
    id: String,
    /// Relation between the two entities.
    relation: String,
    /// Attributes of the link, as JSON.
    attributes: Value,
}

/// One page of the links of an entity.
#[derive(Debug, Serialize, JsonSchema)]
struct LookupOutput {
    /// Links of this page, ordered by the entity at the other end.
    matches: Vec<MatchItem>,
    /// Cursor of the next page; absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
    /// Keys of unreadable rows, which are left out of the page.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    unreadable: Vec<String>,
}

async fn lookup(cx: Cx, input: LookupInput) -> Result<LookupOutput, ActionError> {
    let LookupInput { namespace, from, direction, relation, to_type, limit, cursor } = input;
    let direction = match direction {
        LookupDirection::Forward => Direction::Forward,
        LookupDirection::Reverse => Direction::Reverse,
        LookupDirection::Either => Direction::Either,
    };
    let lookup = Lookup { of: from.into(), direction, relation, to_type, limit, cursor };
    let Page { items, next, bad } = cx.links(namespace).lookup(lookup).await?;
    let matches = items.into_iter().map(|found| MatchItem {
        link_id: found.link_id.to_string(),
        r#type: found.end.kind().to_owned(),
        id: found.end.id().to_owned(),
        relation: found.relation,
        attributes: found.attributes,
    });
    Ok(LookupOutput { matches: matches.collect(), next_cursor: next, unreadable: keys_of(bad) })
}

/// Deletes links by one or both of their ends.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct UnlinkInput {
    /// Name of the namespace to read.
    namespace: String,
    /// Only links that begin at this entity. At least one of `from` and `to` is required.
    #[serde(default)]
    from: Option<Thing>,
    /// Only links that end at this entity.
    #[serde(default)]
    to: Option<Thing>,
    /// Only links with this relation. Default: all relations.
    #[serde(default)]
    relation: Option<String>,
    /// Idempotency key. A repeated call with this key and the same input writes nothing and returns the first result,
    /// also from another run.
    #[serde(default)]
    idempotency_key: Option<String>,
}

/// The result of a deletion.
#[derive(Debug, Serialize, JsonSchema)]
struct UnlinkOutput {
    /// Number of deleted links.
    deleted_count: u64,
}

async fn unlink(cx: Cx, input: UnlinkInput) -> Result<UnlinkOutput, ActionError> {
    let UnlinkInput { namespace, from, to, relation, idempotency_key } = input;
    let ends = LinkEnds { namespace, from: from.map(Entity::from), to: to.map(Entity::from), relation };
    let parts = [(ResultPart::Value, "/deleted_count")];
    let before = write(&cx, Changes::new().unlink(ends), idempotency_key, &parts).await?;
    let deleted_count = before.and_then(|result| result.value?.as_u64()).unwrap_or_default();
    Ok(UnlinkOutput { deleted_count })
}

/// Selects one page of a namespace's links.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct LinksInput {
    /// Name of the namespace to read.
    namespace: String,
    /// Only links that begin at an entity of this type. Default: all types.
    #[serde(default, alias = "left_type")]
    from_type: Option<String>,
    /// Only links that end at an entity of this type. Default: all types.
    #[serde(default, alias = "right_type")]
    to_type: Option<String>,
    /// Only links with this relation. Default: all relations.
    #[serde(default)]
    relation: Option<String>,
    /// Page size, 1 to 200. Default: 50.
    #[serde(default)]
    limit: Option<u32>,
    /// `next_cursor` of the previous page. Default: the first page.
    #[serde(default)]
    cursor: Option<String>,
}

/// A link between two entities.
#[derive(Debug, Serialize, JsonSchema)]
struct LinkItem {
    /// Id of the link, a UUID.
    link_id: String,
    /// Entity at which the link begins.
    from: Thing,
    /// Entity at which the link ends.
    to: Thing,
    /// Relation between the two entities.
    relation: String,
    /// Attributes of the link, as JSON.
    attributes: Value,
    /// Time of creation (RFC 3339).
    created_at: String,
    /// Time of the last write (RFC 3339).
    updated_at: String,
    /// Id of the run that created the link, or `null` if no run did.
    created_by_run: Option<String>,
}

/// One page of a namespace's links.
#[derive(Debug, Serialize, JsonSchema)]
struct LinksOutput {
    /// Links of this page, ordered by their ends.
    items: Vec<LinkItem>,
    /// Cursor of the next page; absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
    /// Keys of unreadable rows, which are left out of the page.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    unreadable: Vec<String>,
}

async fn list_links(cx: Cx, input: LinksInput) -> Result<LinksOutput, ActionError> {
    cx.permit_read()?;
    let LinksInput { namespace, from_type, to_type, relation, limit, cursor } = input;
    let filter = LinkListing { from_type, to_type, relation };
    let query = listed(&namespace, filter, limit, cursor, cx.limits())?;
    let Page { items, next, bad } = cx.store().links(cx.scope(), query).await?;
    let item = |link: Link| LinkItem {
        link_id: link.id.to_string(),
        from: link.edge.from().into(),
        to: link.edge.to().into(),
        relation: link.edge.relation().to_owned(),
        attributes: link.attributes,
        created_at: text(link.created_at),
        updated_at: text(link.updated_at),
        created_by_run: run(link.created_by),
    };
    let unreadable = keys_of(bad);
    Ok(LinksOutput { items: items.into_iter().map(item).collect(), next_cursor: next, unreadable })
}

/// Selects one page of the names in use in a namespace of links.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct InUseInput {
    /// Name of the namespace to read.
    namespace: String,
    /// Page size, 1 to 200. Default: 200.
    #[serde(default)]
    limit: Option<u32>,
    /// `next_cursor` of the previous page. Default: the first page.
    #[serde(default)]
    cursor: Option<String>,
}

/// A name in use, with its number of uses.
#[derive(Debug, Serialize, JsonSchema)]
struct InUse {
    /// Entity type or relation.
    name: String,
    /// Number of uses in the namespace's links.
    count: u64,
}

/// One page of names in use.
#[derive(Debug, Serialize, JsonSchema)]
struct InUseOutput {
    /// Names of this page, in ascending order.
    items: Vec<InUse>,
    /// Cursor of the next page; absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

async fn in_use(
    cx: &Cx,
    of: CountQuery,
    limit: Option<u32>,
    cursor: Option<String>,
) -> Result<InUseOutput, ActionError> {
    let Page { items, next, .. } = tally(cx, of, limit, cursor).await?;
    let items = items.into_iter().map(|(name, count)| InUse { name, count }).collect();
    Ok(InUseOutput { items, next_cursor: next })
}

async fn list_types(cx: Cx, input: InUseInput) -> Result<InUseOutput, ActionError> {
    let namespace = input.namespace.trim().to_owned();
    in_use(&cx, CountQuery::Types { namespace }, input.limit, input.cursor).await
}

async fn list_relations(cx: Cx, input: InUseInput) -> Result<InUseOutput, ActionError> {
    let namespace = input.namespace.trim().to_owned();
    in_use(&cx, CountQuery::Relations { namespace }, input.limit, input.cursor).await
}

/// Registers the `store.*` and `links.*` actions, which every engine has.
pub(crate) fn equip(builder: Builder) -> Builder {
    let builder = builder
        .described("store.get", "Reads the value of a key.", get)
        .described("store.set", "Sets the value of a key.", set)
        .described("store.delete", "Deletes the value of a key.", delete)
        .described("store.increment", "Adds to the number under a key.", increment)
        .described("store.list", "Lists the keys of a namespace.", list)
        .described("store.list_namespaces", "Lists the namespaces that have keys.", list_key_namespaces)
        .described("links.upsert", "Links two entities, or replaces the attributes of their link.", upsert)
        .described("links.lookup", "Finds the entities that an entity is linked to.", lookup)
        .described("links.delete", "Deletes links by one or both of their ends.", unlink)
        .described("links.list", "Lists the links of a namespace.", list_links)
        .described("links.list_namespaces", "Lists the namespaces that have links.", list_link_namespaces)
        .described("links.list_types", "Lists the entity types in use in a namespace of links.", list_types)
        .described(
            "links.list_relations",
            "Lists the relations in use in a namespace of links.",
            list_relations,
        );
    let writes = ["store.set", "store.delete", "store.increment", "links.upsert", "links.delete"];
    let reads = [
        "store.get",
        "store.list",
        "store.list_namespaces",
        "links.lookup",
        "links.list",
        "links.list_namespaces",
        "links.list_types",
        "links.list_relations",
    ];
    let builder = writes.into_iter().fold(builder, |builder, name| {
        builder.describe(name, |info| hinted(info).permission(Permission::Manage).stageable().codes(WRITES))
    });
    let builder = reads.into_iter().fold(builder, |builder, name| {
        builder.describe(name, |info| {
            hinted(info).permission(Permission::Read).without_side_effects().codes(READS)
        })
    });
    builder
        .describe("links.lookup", |info| info.alias("to_type", "right_type"))
        .describe("links.list", |info| info.alias("from_type", "left_type").alias("to_type", "right_type"))
}

/// Adds hints for editors: namespaces, types and relations are free text, with the names in use as suggestions.
fn hinted(info: ActionInfo) -> ActionInfo {
    let is_links = info.group == "links";
    let namespaces = if is_links { "links.list_namespaces" } else { "store.list_namespaces" };
    let suggested =
        |action: &str| json!({ "widget": "combobox", "suggestionsFrom": action, "allowCustom": true });
    let things = json!({ "widget": "entity", "typesFrom": "links.list_types", "allowCustom": true });
    info.hint("namespace", suggested(namespaces))
        .hint("relation", suggested("links.list_relations"))
        .hint("from_type", suggested("links.list_types"))
        .hint("to_type", suggested("links.list_types"))
        .hint("from", things.clone())
        .hint("to", things)
        .hint("direction", json!({ "widget": "segmented" }))
        .hint("value", json!({ "widget": "json" }))
        .hint("idempotency_key", json!({ "advanced": true }))
        .icon(if is_links { "link" } else { "database" })
}
