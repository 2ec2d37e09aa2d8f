//! Links between things that somebody else keeps: put, listed, looked up from either end, and taken away.

use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use stepwell::core::{RunId, Timestamp};
use stepwell::data::links::Listed;
use stepwell::data::{Changes, Lookup, Match, Namespace};
use stepwell::store::{Direction, Ends, Entity, Link, OpResult};
use stepwell::{Done, Permission};
use uuid::Uuid;

use super::call::{Call, Json, Nothing};
use super::data::{self, no_attributes, write_one};
use super::reply::Reply;
use super::route::{Route, delete, get, put};
use super::shapes::{Id, Instant, Listing, Page};
use crate::routes::problem::Problem;

/// A thing that somebody else keeps.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Thing {
    /// Its type.
    #[serde(rename = "type")]
    #[schemars(length(min = 1, max = 256))]
    kind: String,
    /// Its id.
    #[schemars(length(min = 1, max = 256))]
    id: String,
}

impl From<&Thing> for Entity {
    fn from(thing: &Thing) -> Self {
        Entity::new(&thing.kind, &thing.id)
    }
}

impl From<&Entity> for Thing {
    fn from(entity: &Entity) -> Self {
        Thing { kind: entity.kind().to_owned(), id: entity.id().to_owned() }
    }
}

/// Which links.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct OfNamespace {
    /// The namespace.
    #[schemars(length(min = 1, max = 256))]
    namespace: String,
}

/// Which links of a namespace.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ListLinks {
    /// That begin at something of this type.
    #[schemars(length(min = 1, max = 256))]
    from_type: Option<String>,
    /// That end at something of this type.
    #[schemars(length(min = 1, max = 256))]
    to_type: Option<String>,
    /// With this relation.
    #[schemars(length(min = 1, max = 256))]
    relation: Option<String>,
    /// How many rows at most.
    #[schemars(range(min = 1, max = 200))]
    limit: Option<u32>,
    /// Where the part before ended.
    cursor: Option<String>,
}

/// Which links of a thing.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct LookUpLinks {
    /// The thing's type.
    #[serde(rename = "type")]
    #[schemars(length(min = 1, max = 256))]
    kind: String,
    /// The thing's id.
    #[schemars(length(min = 1, max = 256))]
    id: String,
    /// Which way to go; `forward` unless this says otherwise.
    direction: Option<LinkDirection>,
    /// Only with this relation.
    #[schemars(length(min = 1, max = 256))]
    relation: Option<String>,
    /// Only to things of this type.
    #[schemars(length(min = 1, max = 256))]
    to_type: Option<String>,
    /// How many rows at most.
    #[schemars(range(min = 1, max = 200))]
    limit: Option<u32>,
    /// Where the part before ended.
    cursor: Option<String>,
}

/// Which way to go from a thing.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
enum LinkDirection {
    Forward,
    Reverse,
    Either,
}

/// A link that is to be there.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PutLink {
    /// Where it begins.
    from: Thing,
    /// Where it ends.
    to: Thing,
    /// What the one is to the other; `related` unless this says otherwise.
    #[schemars(length(min = 1, max = 256))]
    relation: Option<String>,
    /// What else is to be said of it, in place of what was said before.
    #[serde(default = "no_attributes")]
    attributes: Value,
}

/// Which links are to go: those of a thing they begin at, of one they end at, or both.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct DeleteLinks {
    /// The type of what they begin at.
    #[schemars(length(min = 1, max = 256))]
    from_type: Option<String>,
    /// The id of what they begin at.
    #[schemars(length(min = 1, max = 256))]
    from_id: Option<String>,
    /// The type of what they end at.
    #[schemars(length(min = 1, max = 256))]
    to_type: Option<String>,
    /// The id of what they end at.
    #[schemars(length(min = 1, max = 256))]
    to_id: Option<String>,
    /// Only with this relation.
    #[schemars(length(min = 1, max = 256))]
    relation: Option<String>,
}

/// A namespace, and how many links it has.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct LinkNamespace {
    /// The namespace.
    namespace: String,
    /// How many links.
    link_count: u64,
}

/// A type of things, and at how many ends of links it is.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct LinkedType {
    /// The type.
    #[serde(rename = "type")]
    kind: String,
    /// At how many ends.
    end_count: u64,
}

/// A relation, and how many links have it.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct LinkRelation {
    /// The relation.
    relation: String,
    /// How many links.
    link_count: u64,
}

/// A link.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct LinkShown {
    /// Its id.
    #[schemars(with = "Id")]
    link_id: Uuid,
    /// Where it begins.
    from: Thing,
    /// Where it ends.
    to: Thing,
    /// What the one is to the other.
    relation: String,
    /// What else is to be said of it.
    attributes: Value,
    /// When it was created.
    #[schemars(with = "Instant")]
    created_at: Timestamp,
    /// When it was last written.
    #[schemars(with = "Instant")]
    updated_at: Timestamp,
    /// The run that created it, if a run did.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Id>")]
    created_by_run: Option<RunId>,
}

/// A link as it is seen from one of its ends.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct LinkMatch {
    /// Its id.
    #[schemars(with = "Id")]
    link_id: Uuid,
    /// The type of what is at the other end.
    #[serde(rename = "type")]
    kind: String,
    /// The id of what is at the other end.
    id: String,
    /// What the one is to the other.
    relation: String,
    /// What else is to be said of it.
    attributes: Value,
}

/// What became of a link.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct LinkPut {
    /// Its id.
    #[schemars(with = "Id")]
    link_id: Value,
    /// It was not there before.
    created: bool,
}

/// Links that are gone.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct LinksDeleted {
    /// How many.
    #[schemars(with = "u64")]
    deleted_count: Value,
}

impl From<Link> for LinkShown {
    fn from(link: Link) -> Self {
        let Link { edge, id, attributes, created_at, updated_at, created_by } = link;
        LinkShown {
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
        let Thing { kind, id } = (&found.end).into();
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
        get("/v1/links", "listLinkNamespaces", read, "Lists the namespaces that have links.")
            .ok::<Page<LinkNamespace>>("Namespaces, and how many links they have.")
            .to(namespaces),
        get("/v1/links/{namespace}", "listLinks", read, "Lists the links of a namespace, in the order of their ends.")
            .ok::<Page<LinkShown>>("Links.")
            .to(list),
        put("/v1/links/{namespace}", "putLink", manage, "Puts a link between two things.")
            .notes("There is one link for each pair of things and relation; its attributes are replaced.")
            .keyed()
            .gives::<LinkPut>(StatusCode::CREATED, "The link was not there before.")
            .ok::<LinkPut>("The link was there before.")
            .to(put_link),
        delete("/v1/links/{namespace}", "deleteLinks", manage, "Takes the links of one or two things away.")
            .notes("Names what they begin at (`fromType` and `fromId`), what they end at (`toType` and `toId`), or both.")
            .keyed()
            .ok::<LinksDeleted>("How many there were.")
            .to(remove),
        get("/v1/links/{namespace}/lookup", "lookUpLinks", read, "Looks up the links of a thing, in the order of what is at the other end.")
            .ok::<Page<LinkMatch>>("Links, as they are seen from the thing.")
            .to(look_up),
        get("/v1/links/{namespace}/types", "listLinkTypes", read, "Lists the types of things that a namespace's links have at their ends.")
            .ok::<Page<LinkedType>>("Types, and at how many ends they are.")
            .to(types),
        get("/v1/links/{namespace}/relations", "listLinkRelations", read, "Lists the relations that a namespace's links have.")
            .ok::<Page<LinkRelation>>("Relations, and how many links have them.")
            .to(relations),
    ]
}

async fn namespaces(call: Call<Nothing, Listing>) -> Result<Reply, Problem> {
    let page = call.engine().link_namespaces(Some(call.query.limit()), call.query.cursor()).await?;
    let shape = |Namespace { namespace, count }: Namespace| LinkNamespace { namespace, link_count: count };
    Reply::ok(&Page::of(page, shape))
}

async fn list(call: Call<OfNamespace, ListLinks>) -> Result<Reply, Problem> {
    let links = call.engine().links(&call.path.namespace);
    let ListLinks { from_type, to_type, relation, limit, cursor } = call.query;
    let listing = Listing::of(limit, cursor);
    let which = Listed { from_type, to_type, relation };
    let page = links.list(which, Some(listing.limit()), listing.cursor()).await?;
    Reply::ok(&Page::of(page, LinkShown::from))
}

async fn put_link(call: Call<OfNamespace, Nothing, Json<PutLink>>) -> Result<Reply, Problem> {
    let Json(PutLink { from, to, relation, attributes }) = &call.body;
    let link = data::link(from, to, relation.as_deref(), attributes);
    let changes = Changes::new().link(&call.path.namespace, link);
    let Done { came_to: OpResult { created, value, .. }, is_new } = write_one(&call, changes).await?;
    let status = if created { StatusCode::CREATED } else { StatusCode::OK };
    let put = LinkPut { link_id: value.unwrap_or_default(), created };
    Ok(Reply::json(status, &put)?.replayed(!is_new))
}

async fn remove(call: Call<OfNamespace, DeleteLinks>) -> Result<Reply, Problem> {
    let DeleteLinks { from_type, from_id, to_type, to_id, relation } = &call.query;
    let end = |kind: &Option<String>, id: &Option<String>| match (kind, id) {
        (Some(kind), Some(id)) => Ok(Some(Entity::new(kind, id))),
        (None, None) => Ok(None),
        _ => {
            let detail = "A thing has a type and an id: name both.";
            Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", detail))
        }
    };
    let (from, to) = (end(from_type, from_id)?, end(to_type, to_id)?);
    let ends = Ends { namespace: call.path.namespace.clone(), from, to, relation: relation.clone() };
    let done = write_one(&call, Changes::new().unlink(ends)).await?;
    let deleted = LinksDeleted { deleted_count: done.came_to.value.unwrap_or_default() };
    Ok(Reply::ok(&deleted)?.replayed(!done.is_new))
}

async fn look_up(call: Call<OfNamespace, LookUpLinks>) -> Result<Reply, Problem> {
    let links = call.engine().links(&call.path.namespace);
    let LookUpLinks { kind, id, direction, relation, to_type, limit, cursor } = call.query;
    let listing = Listing::of(limit, cursor);
    let direction = direction.map_or(Direction::Forward, Into::into);
    let (limit, cursor) = (Some(listing.limit()), listing.cursor());
    let lookup = Lookup { of: Entity::new(kind, id), direction, relation, to_type, limit, cursor };
    Reply::ok(&Page::of(links.lookup(lookup).await?, LinkMatch::from))
}

async fn types(call: Call<OfNamespace, Listing>) -> Result<Reply, Problem> {
    let links = call.engine().links(&call.path.namespace);
    let page = links.types(Some(call.query.limit()), call.query.cursor()).await?;
    let shape = |Namespace { namespace, count }: Namespace| LinkedType { kind: namespace, end_count: count };
    Reply::ok(&Page::of(page, shape))
}

async fn relations(call: Call<OfNamespace, Listing>) -> Result<Reply, Problem> {
    let links = call.engine().links(&call.path.namespace);
    let page = links.relations(Some(call.query.limit()), call.query.cursor()).await?;
    let shape =
        |Namespace { namespace, count }: Namespace| LinkRelation { relation: namespace, link_count: count };
    Reply::ok(&Page::of(page, shape))
}
