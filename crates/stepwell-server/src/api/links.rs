//! Routes of links between entities of other systems: put, list, look up from either end, and delete.

use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use stepwell::core::{RunId, Timestamp};
use stepwell::data::links::LinkListing;
use stepwell::data::{Changes, Lookup, Match, Namespace};
use stepwell::store::{Direction, Entity, Link, LinkEnds, OpResult};
use stepwell::{Idempotent, Permission};
use uuid::Uuid;

use super::call::{Call, Json, Nothing};
use super::data::{self, no_attributes, write_one};
use super::reply::Reply;
use super::route::{Route, delete, get, put};
use super::shapes::{Id, Instant, Listing, Page};
use crate::routes::problem::Problem;

/// An entity of another system, identified by type and id.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct EntityRef {
    /// Type of the entity, 1 to 256 characters.
    #[serde(rename = "type")]
    #[schemars(length(min = 1, max = 256))]
    kind: String,
    /// Id of the entity, 1 to 256 characters.
    #[schemars(length(min = 1, max = 256))]
    id: String,
}

impl From<&EntityRef> for Entity {
    fn from(thing: &EntityRef) -> Self {
        Entity::new(&thing.kind, &thing.id)
    }
}

impl From<&Entity> for EntityRef {
    fn from(entity: &Entity) -> Self {
        EntityRef { kind: entity.kind().to_owned(), id: entity.id().to_owned() }
    }
}

/// Path parameter that selects a namespace.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct NamespacePath {
    /// Name of the namespace, 1 to 256 characters.
    #[schemars(length(min = 1, max = 256))]
    namespace: String,
}

/// Filter and page of a listing of links.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ListLinks {
    /// Lists only links that start at an entity of this type.
    #[schemars(length(min = 1, max = 256))]
    from_type: Option<String>,
    /// Lists only links that end at an entity of this type.
    #[schemars(length(min = 1, max = 256))]
    to_type: Option<String>,
    /// Another name of `fromType`.
    #[schemars(length(min = 1, max = 256))]
    left_type: Option<String>,
    /// Another name of `toType`.
    #[schemars(length(min = 1, max = 256))]
    right_type: Option<String>,
    /// Lists only links with this relation.
    #[schemars(length(min = 1, max = 256))]
    relation: Option<String>,
    /// Maximum number of rows, 1 to 200. Default: 50.
    #[schemars(range(min = 1, max = 200))]
    limit: Option<u32>,
    /// The `nextCursor` of the previous page.
    cursor: Option<String>,
}

/// Entity, filter and page of a lookup of links.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct LookUpLinks {
    /// Type of the entity, 1 to 256 characters.
    #[serde(rename = "type")]
    #[schemars(length(min = 1, max = 256))]
    kind: String,
    /// Id of the entity, 1 to 256 characters.
    #[schemars(length(min = 1, max = 256))]
    id: String,
    /// Direction of the links as seen from the entity. Default: `forward`.
    direction: Option<LinkDirection>,
    /// Finds only links with this relation.
    #[schemars(length(min = 1, max = 256))]
    relation: Option<String>,
    /// Finds only links whose other end has this type.
    #[schemars(length(min = 1, max = 256))]
    to_type: Option<String>,
    /// Another name of `toType`.
    #[schemars(length(min = 1, max = 256))]
    right_type: Option<String>,
    /// Maximum number of rows, 1 to 200. Default: 100.
    #[schemars(range(min = 1, max = 200))]
    limit: Option<u32>,
    /// The `nextCursor` of the previous page.
    cursor: Option<String>,
}

/// `forward` = links that start at the entity; `reverse` = links that end at it; `either` = both.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
enum LinkDirection {
    Forward,
    Reverse,
    Either,
}

/// Request to create a link, or to replace its attributes.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PutLink {
    /// Entity that the link starts at.
    from: EntityRef,
    /// Entity that the link ends at.
    to: EntityRef,
    /// Name of the relation. Default: `related`.
    #[schemars(length(min = 1, max = 256))]
    relation: Option<String>,
    /// Attributes of the link, any JSON value. They replace the existing ones. Default: an empty object.
    #[serde(default = "no_attributes")]
    attributes: Value,
}

/// Links to delete: those that start at an entity, end at an entity, or both.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct DeleteLinks {
    /// Type of the entity that the links start at. Requires `fromId`.
    #[schemars(length(min = 1, max = 256))]
    from_type: Option<String>,
    /// Id of the entity that the links start at. Requires `fromType`.
    #[schemars(length(min = 1, max = 256))]
    from_id: Option<String>,
    /// Type of the entity that the links end at. Requires `toId`.
    #[schemars(length(min = 1, max = 256))]
    to_type: Option<String>,
    /// Id of the entity that the links end at. Requires `toType`.
    #[schemars(length(min = 1, max = 256))]
    to_id: Option<String>,
    /// Deletes only links with this relation.
    #[schemars(length(min = 1, max = 256))]
    relation: Option<String>,
}

/// A namespace and its number of links.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct LinkNamespace {
    /// Name of the namespace.
    namespace: String,
    /// Number of links in the namespace.
    link_count: u64,
}

/// A type of entities and the number of link ends that have it.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct LinkedType {
    /// Type of the entities.
    #[serde(rename = "type")]
    kind: String,
    /// Number of link ends with this type.
    end_count: u64,
}

/// A relation and its number of links.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct LinkRelation {
    /// Name of the relation.
    relation: String,
    /// Number of links with this relation.
    link_count: u64,
}

/// A link between two entities.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct LinkView {
    /// Id of the link, a UUID.
    #[schemars(with = "Id")]
    link_id: Uuid,
    /// Entity that the link starts at.
    from: EntityRef,
    /// Entity that the link ends at.
    to: EntityRef,
    /// Name of the relation.
    relation: String,
    /// Attributes of the link, any JSON value.
    attributes: Value,
    /// Time at which the link was created.
    #[schemars(with = "Instant")]
    created_at: Timestamp,
    /// Time at which the link was last written.
    #[schemars(with = "Instant")]
    updated_at: Timestamp,
    /// Id of the run that created the link; absent if no run did.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Id>")]
    created_by_run: Option<RunId>,
}

/// A link as seen from one of its ends.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct LinkMatch {
    /// Id of the link, a UUID.
    #[schemars(with = "Id")]
    link_id: Uuid,
    /// Type of the entity at the other end.
    #[serde(rename = "type")]
    kind: String,
    /// Id of the entity at the other end.
    id: String,
    /// Name of the relation.
    relation: String,
    /// Attributes of the link, any JSON value.
    attributes: Value,
}

/// Result of putting a link.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct LinkPut {
    /// Id of the link, a UUID.
    #[schemars(with = "Id")]
    link_id: Value,
    /// True if the link is new; false if only its attributes were replaced.
    created: bool,
}

/// Result of deleting links.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct LinksDeleted {
    /// Number of deleted links.
    #[schemars(with = "u64")]
    deleted_count: Value,
}

impl From<Link> for LinkView {
    fn from(link: Link) -> Self {
        let Link { edge, id, attributes, created_at, updated_at, created_by } = link;
        LinkView {
            link_id: id,
            from: edge.from().into(),
            to: edge.to().into(),
            relation: edge.relation().to_owned(),
            attributes,
            created_at,
            updated_at,
            created_by_run: created_by,
        }
    }
}

impl From<Match> for LinkMatch {
    fn from(found: Match) -> Self {
        let EntityRef { kind, id } = (&found.end).into();
        let Match { link_id, relation, attributes, .. } = found;
        LinkMatch { link_id, kind, id, relation, attributes }
    }
}

impl From<LinkDirection> for Direction {
    fn from(direction: LinkDirection) -> Self {
        match direction {
            LinkDirection::Forward => Direction::Forward,
            LinkDirection::Reverse => Direction::Reverse,
            LinkDirection::Either => Direction::Either,
        }
    }
}

pub(super) fn routes() -> Vec<Route> {
    let (read, manage) = (Permission::Read, Permission::Manage);
    vec![
        get("/v1/links", "listLinkNamespaces", read, "List the namespaces that have links.")
            .ok::<Page<LinkNamespace>>("Namespaces with their number of links.")
            .to(namespaces),
        get("/v1/links/{namespace}", "listLinks", read, "List the links of a namespace, ordered by their ends.")
            .ok::<Page<LinkView>>("Links.")
            .to(list),
        put("/v1/links/{namespace}", "putLink", manage, "Create a link between two entities, or replace its attributes.")
            .notes("There is at most one link from one entity to another with the same relation.")
            .keyed()
            .gives::<LinkPut>(StatusCode::CREATED, "The link was created.")
            .ok::<LinkPut>("The link existed; its attributes were replaced.")
            .to(put_link),
        delete("/v1/links/{namespace}", "deleteLinks", manage, "Delete the links of one or two entities.")
            .notes("Name the entity that the links start at (`fromType` and `fromId`), the entity that they end at (`toType` and `toId`), or both.")
            .keyed()
            .ok::<LinksDeleted>("Number of deleted links.")
            .to(remove),
        get("/v1/links/{namespace}/lookup", "lookUpLinks", read, "Look up the links of an entity, ordered by the entity at the other end.")
            .ok::<Page<LinkMatch>>("Links as seen from the entity.")
            .to(look_up),
        get("/v1/links/{namespace}/types", "listLinkTypes", read, "List the types of entities at the ends of a namespace's links.")
            .ok::<Page<LinkedType>>("Types with their number of link ends.")
            .to(types),
        get("/v1/links/{namespace}/relations", "listLinkRelations", read, "List the relations of a namespace's links.")
            .ok::<Page<LinkRelation>>("Relations with their number of links.")
            .to(relations),
    ]
}

async fn namespaces(call: Call<Nothing, Listing>) -> Result<Reply, Problem> {
    let page = call.engine().link_namespaces(Some(call.query.limit()), call.query.cursor()).await?;
    let shape = |Namespace { namespace, count }: Namespace| LinkNamespace { namespace, link_count: count };
    Reply::ok(&Page::of(page, shape))
}

/// Returns the value of a parameter that has two names.
fn either(
    first: &str,
    value: Option<String>,
    second: &str,
    other: Option<String>,
) -> Result<Option<String>, Problem> {
    match (value, other) {
        (Some(_), Some(_)) => {
            let detail = format!("`{first}` and `{second}` are the same parameter: send only one of them.");
            Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", detail))
        }
        (value, other) => Ok(value.or(other)),
    }
}

async fn list(call: Call<NamespacePath, ListLinks>) -> Result<Reply, Problem> {
    let links = call.engine().links(&call.path.namespace);
    let ListLinks { from_type, to_type, left_type, right_type, relation, limit, cursor } = call.query;
    let (from_type, to_type) = (
        either("fromType", from_type, "leftType", left_type)?,
        either("toType", to_type, "rightType", right_type)?,
    );
    let listing = Listing::of(limit, cursor);
    let which = LinkListing { from_type, to_type, relation };
    let page = links.list(which, Some(listing.limit()), listing.cursor()).await?;
    Reply::ok(&Page::of(page, LinkView::from))
}

async fn put_link(call: Call<NamespacePath, Nothing, Json<PutLink>>) -> Result<Reply, Problem> {
    let Json(PutLink { from, to, relation, attributes }) = &call.body;
    let link = data::link(from, to, relation.as_deref(), attributes);
    let changes = Changes::new().link(&call.path.namespace, link);
    let Idempotent { value: OpResult { created, value, .. }, is_new } = write_one(&call, changes).await?;
    let status = if created { StatusCode::CREATED } else { StatusCode::OK };
    let put = LinkPut { link_id: value.unwrap_or_default(), created };
    Ok(Reply::json(status, &put)?.replayed(!is_new))
}

async fn remove(call: Call<NamespacePath, DeleteLinks>) -> Result<Reply, Problem> {
    let DeleteLinks { from_type, from_id, to_type, to_id, relation } = &call.query;
    let end = |kind: &Option<String>, id: &Option<String>| match (kind, id) {
        (Some(kind), Some(id)) => Ok(Some(Entity::new(kind, id))),
        (None, None) => Ok(None),
        _ => {
            let detail = "An entity has a type and an id: send both.";
            Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", detail))
        }
    };
    let (from, to) = (end(from_type, from_id)?, end(to_type, to_id)?);
    let ends = LinkEnds { namespace: call.path.namespace.clone(), from, to, relation: relation.clone() };
    let done = write_one(&call, Changes::new().unlink(ends)).await?;
    let deleted = LinksDeleted { deleted_count: done.value.value.unwrap_or_default() };
    Ok(Reply::ok(&deleted)?.replayed(!done.is_new))
}

async fn look_up(call: Call<NamespacePath, LookUpLinks>) -> Result<Reply, Problem> {
    let links = call.engine().links(&call.path.namespace);
    let LookUpLinks { kind, id, direction, relation, to_type, right_type, limit, cursor } = call.query;
    let to_type = either("toType", to_type, "rightType", right_type)?;
    let direction = direction.map_or(Direction::Forward, Into::into);
    let lookup = Lookup { of: Entity::new(kind, id), direction, relation, to_type, limit, cursor };
    Reply::ok(&Page::of(links.lookup(lookup).await?, LinkMatch::from))
}

async fn types(call: Call<NamespacePath, Listing>) -> Result<Reply, Problem> {
    let links = call.engine().links(&call.path.namespace);
    let page = links.types(Some(call.query.limit()), call.query.cursor()).await?;
    let shape = |Namespace { namespace, count }: Namespace| LinkedType { kind: namespace, end_count: count };
    Reply::ok(&Page::of(page, shape))
}

async fn relations(call: Call<NamespacePath, Listing>) -> Result<Reply, Problem> {
    let links = call.engine().links(&call.path.namespace);
    let page = links.relations(Some(call.query.limit()), call.query.cursor()).await?;
    let shape =
        |Namespace { namespace, count }: Namespace| LinkRelation { relation: namespace, link_count: count };
    Reply::ok(&Page::of(page, shape))
}
