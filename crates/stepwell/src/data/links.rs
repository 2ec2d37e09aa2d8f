//! Links between things that somebody else keeps: found from both ends, each typed edge once.

use serde_json::Value;
use stepwell_core::{RunId, Timestamp};
use stepwell_store::{Direction, Edge, Ends, Entity, Link, LinkFilter, LinkQuery, Page, Tally};
use uuid::Uuid;

use crate::actor::Permission;
use crate::data::changes::{Changes, NewLink};
use crate::data::error::DataError;
use crate::data::kv::{Namespace, page};
use crate::engine::Engine;

/// A link as it is seen from one of its ends.
#[derive(Debug, Clone, PartialEq)]
pub struct Match {
    /// The link's id.
    pub link_id: Uuid,
    /// What is at the other end.
    pub end: Entity,
    /// What the one is to the other.
    pub relation: String,
    /// What else is to be said of it.
    pub attributes: Value,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it was last written.
    pub updated_at: Timestamp,
    /// The run that created it, if a run did. It may be gone.
    pub created_by_run: Option<RunId>,
}

/// Which links of a thing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lookup {
    /// The thing.
    pub of: Entity,
    /// Which way to go.
    pub direction: Direction,
    /// Only with this relation.
    pub relation: Option<String>,
    /// Only to things of this type.
    pub to_type: Option<String>,
    /// How many at most, up to 200; without it 50.
    pub limit: Option<u32>,
    /// Where to begin: what the part before gave.
    pub cursor: Option<String>,
}

impl Lookup {
    /// The links that begin at a thing.
    pub fn of(of: Entity) -> Self {
        let direction = Direction::Forward;
        Lookup { of, direction, relation: None, to_type: None, limit: None, cursor: None }
    }

    /// Which way to go.
    #[must_use]
    pub fn direction(mut self, direction: Direction) -> Self {
        self.direction = direction;
        self
    }

    /// Only with this relation.
    #[must_use]
    pub fn relation(mut self, relation: impl Into<String>) -> Self {
        self.relation = Some(relation.into());
        self
    }
}

/// What an upsert has come to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Linked {
    /// The link's id.
    pub link_id: Uuid,
    /// It was not there before.
    pub created: bool,
}

impl Engine {
    /// The links of a namespace; it need not be there yet.
    pub fn links(&self, namespace: impl Into<String>) -> Links {
        Links { engine: self.clone(), namespace: namespace.into() }
    }

    /// The namespaces that have links, in their order.
    pub async fn link_namespaces(
        &self,
        limit: Option<u32>,
        cursor: Option<String>,
    ) -> Result<Page<Namespace>, DataError> {
        self.tally(Tally::Links, limit, cursor).await
    }
}

/// The links of a namespace.
#[derive(Clone)]
pub struct Links {
    engine: Engine,
    namespace: String,
}

impl Links {
    /// The link is there, with these attributes in place of those before.
    pub async fn upsert(&self, link: NewLink) -> Result<Linked, DataError> {
        let results = self.engine.write(Changes::new().link(&self.namespace, link)).await?;
        let result = results.into_iter().next();
        let id = result.as_ref().and_then(|result| result.value.as_ref()?.as_str()?.parse().ok());
        match (result, id) {
            (Some(result), Some(link_id)) => Ok(Linked { link_id, created: result.created }),
            (result, _) => Err(DataError::Invalid(format!("an upsert gave {result:?}"))),
        }
    }

    /// The links of a thing, in the order of what is at the other end.
    pub async fn lookup(&self, lookup: Lookup) -> Result<Page<Match>, DataError> {
        self.engine.permit(Permission::Read)?;
        let of = lookup.of.clone();
        let query = looked_up(&self.namespace, lookup, &self.engine.inner.options.limits)?;
        let page = self.engine.store().links(self.engine.scope, query).await?;
        Ok(page.map(|link| seen_from(&of, link)))
    }

    /// Links that begin at one thing or end at another, or both, are not there; gives how many were.
    pub async fn delete(
        &self,
        from: Option<Entity>,
        to: Option<Entity>,
        relation: Option<String>,
    ) -> Result<u64, DataError> {
        let ends = Ends { namespace: self.namespace.clone(), from, to, relation };
        let results = self.engine.write(Changes::new().unlink(ends)).await?;
        Ok(results.first().and_then(|result| result.value.as_ref()?.as_u64()).unwrap_or_default())
    }

    /// The namespace's links in the order of their edges, of one or both types and with one relation if so asked.
    pub async fn list(
        &self,
        filter: Listed,
        limit: Option<u32>,
        cursor: Option<String>,
    ) -> Result<Page<Link>, DataError> {
        self.engine.permit(Permission::Read)?;
        let query = listed(&self.namespace, filter, limit, cursor, &self.engine.inner.options.limits)?;
        Ok(self.engine.store().links(self.engine.scope, query).await?)
    }

    /// The types of things that its links have at their ends.
    pub async fn types(
        &self,
        limit: Option<u32>,
        cursor: Option<String>,
    ) -> Result<Page<Namespace>, DataError> {
        self.engine.tally(Tally::Types { namespace: self.trimmed() }, limit, cursor).await
    }

    /// The relations its links have.
    pub async fn relations(
        &self,
        limit: Option<u32>,
        cursor: Option<String>,
    ) -> Result<Page<Namespace>, DataError> {
        self.engine.tally(Tally::Relations { namespace: self.trimmed() }, limit, cursor).await
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

/// Which links of a namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listed {
    /// That begin at something of this type.
    pub from_type: Option<String>,
    /// That end at something of this type.
    pub to_type: Option<String>,
    /// With this relation.
    pub relation: Option<String>,
}

fn trim(text: Option<String>) -> Option<String> {
    text.map(|text| text.trim().to_owned())
}

/// Asks for the links of a thing.
pub(crate) fn looked_up(
    namespace: &str,
    lookup: Lookup,
    limits: &stepwell_core::Limits,
) -> Result<LinkQuery, DataError> {
    let Lookup { of: end, direction, relation, to_type, limit, cursor } = lookup;
    let which = LinkFilter::Of { end, direction, far: trim(to_type) };
    let namespace = namespace.trim().to_owned();
    Ok(LinkQuery { namespace, which, relation: trim(relation), limit: page(limits, limit)?, cursor })
}

/// Asks for a namespace's links.
pub(crate) fn listed(
    namespace: &str,
    filter: Listed,
    limit: Option<u32>,
    cursor: Option<String>,
    limits: &stepwell_core::Limits,
) -> Result<LinkQuery, DataError> {
    let which = LinkFilter::All { from: trim(filter.from_type), to: trim(filter.to_type) };
    let (namespace, relation) = (namespace.trim().to_owned(), trim(filter.relation));
    Ok(LinkQuery { namespace, which, relation, limit: page(limits, limit)?, cursor })
}

/// A link as it is seen from a thing.
pub(crate) fn seen_from(of: &Entity, link: Link) -> Match {
    let Link { edge, id, attributes, created_at, updated_at, created_by } = link;
    let far = |edge: &Edge| if edge.from() == of { edge.to().clone() } else { edge.from().clone() };
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
