//! Links between entities of other systems. A link is found from both ends. Two entities have at most one link per
//! relation and direction.

use serde_json::Value;
use stepwell_core::{RunId, Timestamp};
use stepwell_store::{CountQuery, Direction, Entity, Link, LinkEdge, LinkEnds, LinkFilter, LinkQuery, Page};
use uuid::Uuid;

use crate::actor::Permission;
use crate::data::changes::{Changes, NewLink};
use crate::data::error::DataError;
use crate::data::kv::{Namespace, page};
use crate::engine::Engine;

/// A link, seen from one of its ends.
#[derive(Debug, Clone, PartialEq)]
pub struct Match {
    pub link_id: Uuid,
    /// The entity at the other end.
    pub end: Entity,
    /// Relation between the two entities.
    pub relation: String,
    /// Attributes of the link, as JSON.
    pub attributes: Value,
    pub created_at: Timestamp,
    /// Time of the last write.
    pub updated_at: Timestamp,
    /// The run that created the link, if a run did. The run may have been deleted.
    pub created_by_run: Option<RunId>,
}

/// Default page size of a lookup. Other listings have fewer rows by default.
pub(crate) const LOOKUP_ROWS: u32 = 100;

/// Selects links of one entity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lookup {
    /// The entity whose links are looked up.
    pub of: Entity,
    /// Direction of the links. Default: forward, from `of` to other entities.
    pub direction: Direction,
    /// Only links with this relation.
    pub relation: Option<String>,
    /// Only links to entities of this type.
    pub to_type: Option<String>,
    /// Page size, 1 to 200. Default: 100.
    pub limit: Option<u32>,
    /// Cursor that the previous page returned in `next`. Default: the first page.
    pub cursor: Option<String>,
}

impl Lookup {
    /// Selects the links that begin at an entity.
    pub fn of(of: Entity) -> Self {
        let direction = Direction::Forward;
        Lookup { of, direction, relation: None, to_type: None, limit: None, cursor: None }
    }

    /// Sets the direction of the links.
    #[must_use]
    pub fn direction(mut self, direction: Direction) -> Self {
        self.direction = direction;
        self
    }

    /// Selects only links with this relation.
    #[must_use]
    pub fn relation(mut self, relation: impl Into<String>) -> Self {
        self.relation = Some(relation.into());
        self
    }
}

/// The result of an upsert.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Linked {
    pub link_id: Uuid,
    /// `false` if the link existed, so that only its attributes were replaced.
    pub created: bool,
}

impl Engine {
    /// Returns a handle to the links of a namespace. A namespace exists as soon as it has a link.
    pub fn links(&self, namespace: impl Into<String>) -> Links {
        Links { engine: self.clone(), namespace: namespace.into() }
    }

    /// Lists the namespaces that have links, ordered by name.
    pub async fn link_namespaces(
        &self,
        limit: Option<u32>,
        cursor: Option<String>,
    ) -> Result<Page<Namespace>, DataError> {
        self.tally(CountQuery::Links, limit, cursor).await
    }
}

/// A handle to the links of a namespace.
#[derive(Clone)]
pub struct Links {
    engine: Engine,
    namespace: String,
}

impl Links {
    /// Creates a link, or replaces the attributes of the existing one.
    pub async fn upsert(&self, link: NewLink) -> Result<Linked, DataError> {
        let results = self.engine.write(Changes::new().link(&self.namespace, link)).await?;
        let result = results.into_iter().next();
        let id = result.as_ref().and_then(|result| result.value.as_ref()?.as_str()?.parse().ok());
        match (result, id) {
            (Some(result), Some(link_id)) => Ok(Linked { link_id, created: result.created }),
            (result, _) => Err(DataError::Invalid(format!("an upsert gave {result:?}"))),
        }
    }

    /// Lists the links of an entity, ordered by the entity at the other end.
    pub async fn lookup(&self, lookup: Lookup) -> Result<Page<Match>, DataError> {
        self.engine.permit(Permission::Read)?;
        let of = lookup.of.clone();
        let query = looked_up(&self.namespace, lookup, &self.engine.inner.options.limits)?;
        let page = self.engine.store().links(self.engine.scope, query).await?;
        Ok(page.map(|link| seen_from(&of, link)))
    }

    /// Deletes the links that begin at `from`, end at `to`, or both, and returns their number. At least one end is
    /// required.
    pub async fn delete(
        &self,
        from: Option<Entity>,
        to: Option<Entity>,
        relation: Option<String>,
    ) -> Result<u64, DataError> {
        let ends = LinkEnds { namespace: self.namespace.clone(), from, to, relation };
        let results = self.engine.write(Changes::new().unlink(ends)).await?;
        Ok(results.first().and_then(|result| result.value.as_ref()?.as_u64()).unwrap_or_default())
    }

    /// Lists the links of a namespace, ordered by their ends, one page at a time.
    pub async fn list(
        &self,
        filter: LinkListing,
        limit: Option<u32>,
        cursor: Option<String>,
    ) -> Result<Page<Link>, DataError> {
        self.engine.permit(Permission::Read)?;
        let query = listed(&self.namespace, filter, limit, cursor, &self.engine.inner.options.limits)?;
        Ok(self.engine.store().links(self.engine.scope, query).await?)
    }

    /// Lists the entity types at the ends of the links, with counts.
    pub async fn types(
        &self,
        limit: Option<u32>,
        cursor: Option<String>,
    ) -> Result<Page<Namespace>, DataError> {
        self.engine.tally(CountQuery::Types { namespace: self.trimmed() }, limit, cursor).await
    }

    /// Lists the relations of the links, with counts.
    pub async fn relations(
        &self,
        limit: Option<u32>,
        cursor: Option<String>,
    ) -> Result<Page<Namespace>, DataError> {
        self.engine.tally(CountQuery::Relations { namespace: self.trimmed() }, limit, cursor).await
    }

    fn trimmed(&self) -> String {
        self.namespace.trim().to_owned()
    }
}

impl std::fmt::Debug for Links {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Links").field(&self.namespace).finish()
    }
}

/// Selects links of a namespace. An unset field selects all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LinkListing {
    /// Only links that begin at an entity of this type.
    pub from_type: Option<String>,
    /// Only links that end at an entity of this type.
    pub to_type: Option<String>,
    /// Only links with this relation.
    pub relation: Option<String>,
}

fn trim(text: Option<String>) -> Option<String> {
    text.map(|text| text.trim().to_owned())
}

/// Builds a query for the links of an entity.
pub(crate) fn looked_up(
    namespace: &str,
    lookup: Lookup,
    limits: &stepwell_core::Limits,
) -> Result<LinkQuery, DataError> {
    let Lookup { of: end, direction, relation, to_type, limit, cursor } = lookup;
    let which = LinkFilter::Of { end, direction, far: trim(to_type) };
    let namespace = namespace.trim().to_owned();
    Ok(LinkQuery {
        namespace,
        which,
        relation: trim(relation),
        limit: page(limits, limit.or(Some(LOOKUP_ROWS)))?,
        cursor,
    })
}

/// Builds a query for the links of a namespace.
pub(crate) fn listed(
    namespace: &str,
    filter: LinkListing,
    limit: Option<u32>,
    cursor: Option<String>,
    limits: &stepwell_core::Limits,
) -> Result<LinkQuery, DataError> {
    let which = LinkFilter::All { from: trim(filter.from_type), to: trim(filter.to_type) };
    let (namespace, relation) = (namespace.trim().to_owned(), trim(filter.relation));
    Ok(LinkQuery { namespace, which, relation, limit: page(limits, limit)?, cursor })
}

/// Converts a link to its view from the entity `of`.
pub(crate) fn seen_from(of: &Entity, link: Link) -> Match {
    let Link { edge, id, attributes, created_at, updated_at, created_by } = link;
    let far = |edge: &LinkEdge| if edge.from() == of { edge.to().clone() } else { edge.from().clone() };
    Match {
        link_id: id,
        end: far(&edge),
        relation: edge.relation().to_owned(),
        attributes,
        created_at,
        updated_at,
        created_by_run: created_by,
    }
}
