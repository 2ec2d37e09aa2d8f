//! The data store as actions of a workflow: `store.*` and `links.*`. Their inputs and outputs are spelt in snake_case, with JSON
//! schemas made from these types.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Number, Value, json};
use stepwell_core::{RunId, Timestamp};
use stepwell_store::{
    BadRow, Direction, Ends, Entity, FillPart, Link, OpResult, Page, RELATED, Record, RecordQuery, Tally,
    ValueType,
};
use uuid::Uuid;

use crate::action::{ActionError, ActionInfo};
use crate::actor::Permission;
use crate::cx::{Cx, Once};
use crate::data::changes::{Changes, Increment, NewLink, Set};
use crate::data::error::DataError;
use crate::data::kv::{Entry, List, page};
use crate::data::links::{Listed, Lookup, listed};
use crate::engine::Builder;

/// What kind of value is kept, for editors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Text.
    String,
    /// A number.
    Number,
    /// True or false.
    Boolean,
    /// Anything.
    #[default]
    Json,
}

impl From<Kind> for ValueType {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::String => ValueType::String,
            Kind::Number => ValueType::Number,
            Kind::Boolean => ValueType::Boolean,
            Kind::Json => ValueType::Json,
        }
    }
}

impl From<ValueType> for Kind {
    fn from(kind: ValueType) -> Self {
        match kind {
            ValueType::String => Kind::String,
            ValueType::Number => Kind::Number,
            ValueType::Boolean => Kind::Boolean,
            ValueType::Json => Kind::Json,
        }
    }
}

/// One key.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct OneKey {
    /// The collection it is in.
    namespace: String,
    /// The key.
    key: String,
}

/// What a key has.
#[derive(Debug, Default, Serialize, JsonSchema)]
struct Got {
    /// It has a value.
    found: bool,
    /// The value.
    value: Value,
    /// What kind of value it is.
    value_type: Option<Kind>,
    /// Counts every write to the key.
    revision: Option<u64>,
    /// When the value ends, if it does (RFC 3339).
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

/// A value for a key.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SetInput {
    /// The collection it is in; it appears with its first key.
    namespace: String,
    /// The key.
    key: String,
    /// The value: any JSON.
    value: Value,
    /// A hint for editors.
    #[serde(default)]
    value_type: Kind,
    /// How long the value holds; without it until it is deleted.
    #[serde(default)]
    ttl_seconds: Option<f64>,
    /// The value holds as long as the one before it.
    #[serde(default)]
    keep_ttl: bool,
    /// Only if the key is at this revision; 0 = only if it has no value.
    #[serde(default)]
    if_revision: Option<u64>,
    /// The same key with the same input, also in another run, gives the same result and one write.
    #[serde(default)]
    idempotency_key: Option<String>,
}

/// What a write has come to.
#[derive(Debug, Serialize, JsonSchema)]
struct SetOutput {
    /// The key's revision now.
    revision: u64,
    /// It had no value before.
    created: bool,
}

async fn set(cx: Cx, input: SetInput) -> Result<SetOutput, ActionError> {
    let mut set = Set::new(input.value).value_type(input.value_type.into());
    set = match (input.ttl_seconds, input.keep_ttl) {
        (Some(_), true) => return Err(invalid("name `ttl_seconds` or `keep_ttl`, not both")),
        (Some(seconds), false) => set.ttl(duration(seconds)?),
        (None, true) => set.keep_ttl(),
        (None, false) => set,
    };
    if let Some(revision) = input.if_revision {
        set = set.if_revision(revision);
    }
    let changes = Changes::new().set_with(input.namespace, input.key, set);
    let parts = [(FillPart::Revision, "/revision"), (FillPart::Created, "/created")];
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
        .ok_or_else(|| invalid("`ttl_seconds` has to be more than 0"))
}

fn invalid(why: &str) -> ActionError {
    DataError::Invalid(why.to_owned()).into()
}

/// Stages a change; what it gives goes into the output when it is known. If it was made before, its result is given.
async fn write(
    cx: &Cx,
    changes: Changes,
    key: Option<String>,
    parts: &[(FillPart, &str)],
) -> Result<Option<OpResult>, ActionError> {
    let once = match key {
        Some(key) => cx.write_once(changes.once(key)).await?,
        None => Once::Staged(cx.stage_changes(changes)?),
    };
    match once {
        Once::Before(results) => Ok(results.into_iter().next()),
        Once::Staged(numbers) => {
            for number in numbers {
                parts.iter().try_for_each(|(part, pointer)| cx.fill(number, *part, *pointer))?;
            }
            Ok(None)
        }
    }
}

/// A key to be deleted.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct DeleteInput {
    /// The collection it is in.
    namespace: String,
    /// The key.
    key: String,
    /// The same key with the same input, also in another run, gives the same result and one write.
    #[serde(default)]
    idempotency_key: Option<String>,
}

/// What a deletion has come to.
#[derive(Debug, Serialize, JsonSchema)]
struct DeleteOutput {
    /// The key had a value.
    deleted: bool,
}

async fn delete(cx: Cx, input: DeleteInput) -> Result<DeleteOutput, ActionError> {
    let changes = Changes::new().delete(input.namespace, input.key);
    let before = write(&cx, changes, input.idempotency_key, &[(FillPart::Existed, "/deleted")]).await?;
    Ok(DeleteOutput { deleted: before.is_some_and(|result| result.existed) })
}

/// An addition to a key's number.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct IncrementInput {
    /// The collection it is in.
    namespace: String,
    /// The key.
    key: String,
    /// How much to add.
    #[serde(default = "one")]
    by: Number,
    /// What counts as there if nothing is.
    #[serde(default = "zero")]
    initial: Number,
    /// The same key with the same input, also in another run, gives the same result and one write.
    #[serde(default)]
    idempotency_key: Option<String>,
}

fn one() -> Number {
    1.into()
}

fn zero() -> Number {
    0.into()
}

/// What an addition has come to.
#[derive(Debug, Serialize, JsonSchema)]
struct IncrementOutput {
    /// The sum.
    value: Number,
    /// The key's revision now.
    revision: u64,
}

async fn increment(cx: Cx, input: IncrementInput) -> Result<IncrementOutput, ActionError> {
    let increment = Increment::by(input.by).initial(input.initial);
    let changes = Changes::new().increment(input.namespace, input.key, increment);
    let parts = [(FillPart::Value, "/value"), (FillPart::Revision, "/revision")];
    let before = write(&cx, changes, input.idempotency_key, &parts).await?;
    let nothing = IncrementOutput { value: 0.into(), revision: 0 };
    let Some(result) = before else { return Ok(nothing) };
    let value = match result.value {
        Some(Value::Number(value)) => value,
        _ => 0.into(),
    };
    Ok(IncrementOutput { value, revision: result.revision })
}

/// A part of a namespace's keys.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ListInput {
    /// The collection.
    namespace: String,
    /// Keys that begin with this, taken literally.
    #[serde(default)]
    prefix: String,
    /// How many at most, up to 200.
    #[serde(default)]
    limit: Option<u32>,
    /// Where to begin: the `next_cursor` of the part before.
    #[serde(default)]
    cursor: Option<String>,
}

/// A key and its value.
#[derive(Debug, Serialize, JsonSchema)]
struct Item {
    /// The key.
    key: String,
    /// Its value.
    value: Value,
    /// What kind of value it is.
    value_type: Kind,
    /// Counts every write to the key.
    revision: u64,
    /// When the value ends, if it does (RFC 3339).
    expires_at: Option<String>,
    /// When the key was first written (RFC 3339).
    created_at: String,
    /// When it was last written (RFC 3339).
    updated_at: String,
    /// The run that first wrote it, if a run did.
    created_by_run: Option<String>,
}

fn text(at: Timestamp) -> String {
    at.to_string()
}

fn run(run: Option<RunId>) -> Option<String> {
    run.map(|run| run.to_string())
}

impl From<Entry> for Item {
    fn from(entry: Entry) -> Self {
        let Entry { key, value, value_type, revision, expires_at, created_at, updated_at, created_by_run } =
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

/// A part of a namespace's keys.
#[derive(Debug, Serialize, JsonSchema)]
struct ListOutput {
    /// The keys.
    items: Vec<Item>,
    /// Where the next part begins, if there is one.
    next_cursor: Option<String>,
    /// Keys of rows that cannot be read and are left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    unreadable: Vec<String>,
}

async fn list(cx: Cx, input: ListInput) -> Result<ListOutput, ActionError> {
    let ListInput { namespace, prefix, limit, cursor } = input;
    let Page { items, next, bad } = cx.kv(namespace).list(List { prefix, limit, cursor }).await?;
    let unreadable = keys_of(bad);
    Ok(ListOutput { items: items.into_iter().map(Item::from).collect(), next_cursor: next, unreadable })
}

fn keys_of(bad: Vec<BadRow>) -> Vec<String> {
    bad.into_iter().map(|row| row.key).collect()
}

/// Which part of what is in use.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct NamespacesInput {
    /// How many at most, up to 200; without it 200.
    #[serde(default)]
    limit: Option<u32>,
    /// Where to begin: the `next_cursor` of the part before.
    #[serde(default)]
    cursor: Option<String>,
}

/// Rows of a list of what is in use, unless it says how many.
const NAMES: u32 = 200;

async fn tally(
    cx: &Cx,
    of: Tally,
    limit: Option<u32>,
    cursor: Option<String>,
) -> Result<Page<(String, u64)>, ActionError> {
    cx.permit_read()?;
    let limit = page(cx.limits(), limit.or(Some(NAMES)))?;
    let found = cx.store().records(cx.scope(), RecordQuery::Tally { of, limit, cursor }).await?;
    let counted = |record| match record {
        Record::Tally { name, count } => Some((name, count)),
        _ => None,
    };
    Ok(found.filter_map(counted))
}

/// A namespace of keys.
#[derive(Debug, Serialize, JsonSchema)]
struct KeyNamespace {
    /// Its name.
    namespace: String,
    /// How many of its keys have a value.
    key_count: u64,
}

/// Namespaces of keys.
#[derive(Debug, Serialize, JsonSchema)]
struct KeyNamespaces {
    /// The namespaces.
    namespaces: Vec<KeyNamespace>,
    /// Where the next part begins, if there is one.
    next_cursor: Option<String>,
}

async fn list_key_namespaces(cx: Cx, input: NamespacesInput) -> Result<KeyNamespaces, ActionError> {
    let of = Tally::Keys { now: cx.now() };
    let Page { items, next, .. } = tally(&cx, of, input.limit, input.cursor).await?;
    let namespaces = items.into_iter().map(|(namespace, key_count)| KeyNamespace { namespace, key_count });
    Ok(KeyNamespaces { namespaces: namespaces.collect(), next_cursor: next })
}

/// A namespace of links.
#[derive(Debug, Serialize, JsonSchema)]
struct LinkNamespace {
    /// Its name.
    namespace: String,
    /// How many links it has.
    link_count: u64,
}

/// Namespaces of links.
#[derive(Debug, Serialize, JsonSchema)]
struct LinkNamespaces {
    /// The namespaces.
    namespaces: Vec<LinkNamespace>,
    /// Where the next part begins, if there is one.
    next_cursor: Option<String>,
}

async fn list_link_namespaces(cx: Cx, input: NamespacesInput) -> Result<LinkNamespaces, ActionError> {
    let Page { items, next, .. } = tally(&cx, Tally::Links, input.limit, input.cursor).await?;
    let namespaces = items.into_iter().map(|(namespace, link_count)| LinkNamespace { namespace, link_count });
    Ok(LinkNamespaces { namespaces: namespaces.collect(), next_cursor: next })
}

/// Something that is known by its type and id.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Thing {
    /// Its type.
    r#type: String,
    /// Its id: any text.
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

/// A link.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct UpsertInput {
    /// The collection it is in; it appears with its first link.
    namespace: String,
    /// Where it begins.
    from: Thing,
    /// Where it ends.
    to: Thing,
    /// What the one is to the other.
    #[serde(default = "related")]
    relation: String,
    /// What else is to be said of it; in place of what was said before.
    #[serde(default = "no_attributes")]
    attributes: Value,
    /// The same key with the same input, also in another run, gives the same result and one write.
    #[serde(default)]
    idempotency_key: Option<String>,
}

/// What an upsert has come to.
#[derive(Debug, Serialize, JsonSchema)]
struct UpsertOutput {
    /// The link's id.
    link_id: String,
    /// It was not there before.
    created: bool,
}

async fn upsert(cx: Cx, input: UpsertInput) -> Result<UpsertOutput, ActionError> {
    let UpsertInput { namespace, from, to, relation, attributes, idempotency_key } = input;
    let link = NewLink::new(from.into(), to.into()).relation(relation).attributes(attributes);
    let parts = [(FillPart::Value, "/link_id"), (FillPart::Created, "/created")];
    let before = write(&cx, Changes::new().link(namespace, link), idempotency_key, &parts).await?;
    let Some(result) = before else {
        return Ok(UpsertOutput { link_id: Uuid::nil().to_string(), created: false });
    };
    let link_id = result.value.as_ref().and_then(Value::as_str).unwrap_or_default().to_owned();
    Ok(UpsertOutput { link_id, created: result.created })
}

/// Which way to go along links.
#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Along {
    /// From where they begin.
    #[default]
    Forward,
    /// From where they end.
    Reverse,
    /// From either end.
    Either,
}

/// Which links of a thing.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct LookupInput {
    /// The collection.
    namespace: String,
    /// The thing.
    from: Thing,
    /// Which way to go.
    #[serde(default)]
    direction: Along,
    /// Only with this relation.
    #[serde(default)]
    relation: Option<String>,
    /// Only to things of this type.
    #[serde(default, alias = "right_type")]
    to_type: Option<String>,
    /// How many at most, up to 200.
    #[serde(default)]
    limit: Option<u32>,
    /// Where to begin: the `next_cursor` of the part before.
    #[serde(default)]
    cursor: Option<String>,
}

/// What a thing is linked to.
#[derive(Debug, Serialize, JsonSchema)]
struct MatchItem {
    /// The link's id.
    link_id: String,
    /// The type of what is at the other end.
    r#type: String,
    /// Its id.
    id: String,
    /// What the one is to the other.
    relation: String,
    /// What else is said of it.
    attributes: Value,
}

/// What a thing is linked to.
#[derive(Debug, Serialize, JsonSchema)]
struct LookupOutput {
    /// What is at the other ends.
    matches: Vec<MatchItem>,
    /// Where the next part begins, if there is one.
    next_cursor: Option<String>,
    /// Keys of rows that cannot be read and are left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    unreadable: Vec<String>,
}

async fn lookup(cx: Cx, input: LookupInput) -> Result<LookupOutput, ActionError> {
    let LookupInput { namespace, from, direction, relation, to_type, limit, cursor } = input;
    let direction = match direction {
        Along::Forward => Direction::Forward,
        Along::Reverse => Direction::Reverse,
        Along::Either => Direction::Either,
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

/// Links to be deleted.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct UnlinkInput {
    /// The collection.
    namespace: String,
    /// Where they begin; this or `to` is needed.
    #[serde(default)]
    from: Option<Thing>,
    /// Where they end.
    #[serde(default)]
    to: Option<Thing>,
    /// Only with this relation.
    #[serde(default)]
    relation: Option<String>,
    /// The same key with the same input, also in another run, gives the same result and one write.
    #[serde(default)]
    idempotency_key: Option<String>,
}

/// What a deletion has come to.
#[derive(Debug, Serialize, JsonSchema)]
struct UnlinkOutput {
    /// How many links there were.
    deleted_count: u64,
}

async fn unlink(cx: Cx, input: UnlinkInput) -> Result<UnlinkOutput, ActionError> {
    let UnlinkInput { namespace, from, to, relation, idempotency_key } = input;
    let ends = Ends { namespace, from: from.map(Entity::from), to: to.map(Entity::from), relation };
    let parts = [(FillPart::Value, "/deleted_count")];
    let before = write(&cx, Changes::new().unlink(ends), idempotency_key, &parts).await?;
    let deleted_count = before.and_then(|result| result.value?.as_u64()).unwrap_or_default();
    Ok(UnlinkOutput { deleted_count })
}

/// Which links of a namespace.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct LinksInput {
    /// The collection.
    namespace: String,
    /// That begin at something of this type.
    #[serde(default, alias = "left_type")]
    from_type: Option<String>,
    /// That end at something of this type.
    #[serde(default, alias = "right_type")]
    to_type: Option<String>,
    /// With this relation.
    #[serde(default)]
    relation: Option<String>,
    /// How many at most, up to 200.
    #[serde(default)]
    limit: Option<u32>,
    /// Where to begin: the `next_cursor` of the part before.
    #[serde(default)]
    cursor: Option<String>,
}

/// A link.
#[derive(Debug, Serialize, JsonSchema)]
struct LinkItem {
    /// The link's id.
    link_id: String,
    /// Where it begins.
    from: Thing,
    /// Where it ends.
    to: Thing,
    /// What the one is to the other.
    relation: String,
    /// What else is said of it.
    attributes: Value,
    /// When it was created (RFC 3339).
    created_at: String,
    /// When it was last written (RFC 3339).
    updated_at: String,
    /// The run that created it, if a run did.
    created_by_run: Option<String>,
}

/// A part of a namespace's links.
#[derive(Debug, Serialize, JsonSchema)]
struct LinksOutput {
    /// The links.
    items: Vec<LinkItem>,
    /// Where the next part begins, if there is one.
    next_cursor: Option<String>,
    /// Keys of rows that cannot be read and are left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    unreadable: Vec<String>,
}

async fn list_links(cx: Cx, input: LinksInput) -> Result<LinksOutput, ActionError> {
    cx.permit_read()?;
    let LinksInput { namespace, from_type, to_type, relation, limit, cursor } = input;
    let filter = Listed { from_type, to_type, relation };
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

/// Names in use in a namespace.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct InUseInput {
    /// The collection.
    namespace: String,
    /// How many at most, up to 200; without it 200.
    #[serde(default)]
    limit: Option<u32>,
    /// Where to begin: the `next_cursor` of the part before.
    #[serde(default)]
    cursor: Option<String>,
}

/// A name in use.
#[derive(Debug, Serialize, JsonSchema)]
struct InUse {
    /// The name.
    name: String,
    /// How often.
    count: u64,
}

/// Names in use.
#[derive(Debug, Serialize, JsonSchema)]
struct InUseOutput {
    /// The names.
    items: Vec<InUse>,
    /// Where the next part begins, if there is one.
    next_cursor: Option<String>,
}

async fn in_use(
    cx: &Cx,
    of: Tally,
    limit: Option<u32>,
    cursor: Option<String>,
) -> Result<InUseOutput, ActionError> {
    let Page { items, next, .. } = tally(cx, of, limit, cursor).await?;
    let items = items.into_iter().map(|(name, count)| InUse { name, count }).collect();
    Ok(InUseOutput { items, next_cursor: next })
}

async fn list_types(cx: Cx, input: InUseInput) -> Result<InUseOutput, ActionError> {
    let namespace = input.namespace.trim().to_owned();
    in_use(&cx, Tally::Types { namespace }, input.limit, input.cursor).await
}

async fn list_relations(cx: Cx, input: InUseInput) -> Result<InUseOutput, ActionError> {
    let namespace = input.namespace.trim().to_owned();
    in_use(&cx, Tally::Relations { namespace }, input.limit, input.cursor).await
}

/// Registers the actions that every engine has.
pub(crate) fn equip(builder: Builder) -> Builder {
    let builder = builder
        .described("store.get", "Reads a key.", get)
        .described("store.set", "Gives a key a value.", set)
        .described("store.delete", "Takes a key's value away.", delete)
        .described("store.increment", "Adds to a key's number.", increment)
        .described("store.list", "Lists a namespace's keys.", list)
        .described("store.list_namespaces", "Lists the namespaces of keys.", list_key_namespaces)
        .described("links.upsert", "Links two things.", upsert)
        .described("links.lookup", "Finds what a thing is linked to.", lookup)
        .described("links.delete", "Deletes links.", unlink)
        .described("links.list", "Lists a namespace's links.", list_links)
        .described("links.list_namespaces", "Lists the namespaces of links.", list_link_namespaces)
        .described("links.list_types", "Lists the types in use in a namespace of links.", list_types)
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
        builder.describe(name, |info| hinted(info).permission(Permission::Manage))
    });
    reads.into_iter().fold(builder, |builder, name| {
        builder.describe(name, |info| hinted(info).permission(Permission::Read).without_side_effects())
    })
}

/// Names that are in use are suggested, and others are allowed: namespaces, types and relations are free.
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
