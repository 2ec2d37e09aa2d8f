//! Entity links: typed edges between two entities that other systems store. Each edge is stored once and found from
//! both ends.
//!
//! A link consists of its edge and attributes. An upsert replaces the attributes. A deletion selects links by their
//! ends.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use stepwell_core::limits::json_bytes;
use stepwell_core::{LimitExceeded, Limits, RunId, Timestamp};
use uuid::Uuid;

use crate::cell::{OpResult, address};
use crate::store::{MAX_PAGE, Page, StoreError, bad_cursor, page_rows};

/// The default relation of a link.
pub const RELATED: &str = "related";

/// One end of a link, identified by type and id.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Entity {
    kind: String,
    id: String,
}

impl Entity {
    /// Creates an entity. Leading and trailing spaces of both texts are removed.
    pub fn new(kind: impl AsRef<str>, id: impl AsRef<str>) -> Self {
        Entity { kind: trimmed(kind), id: trimmed(id) }
    }

    /// Returns the type of the entity.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// Returns the id of the entity within its type.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns type and id in their stored form.
    pub fn texts(&self) -> (&String, &String) {
        (&self.kind, &self.id)
    }
}

/// The identity of a link.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct LinkEdge {
    namespace: String,
    from: Entity,
    to: Entity,
    relation: String,
}

impl LinkEdge {
    /// Creates an edge. Leading and trailing spaces of namespace and relation are removed.
    pub fn new(namespace: impl AsRef<str>, from: Entity, to: Entity, relation: impl AsRef<str>) -> Self {
        LinkEdge { namespace: trimmed(namespace), from, to, relation: trimmed(relation) }
    }

    /// Returns the namespace of the edge.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Returns the entity at which the edge begins.
    pub fn from(&self) -> &Entity {
        &self.from
    }

    /// Returns the entity at which the edge ends.
    pub fn to(&self) -> &Entity {
        &self.to
    }

    /// Returns the relation of the first entity to the second.
    pub fn relation(&self) -> &str {
        &self.relation
    }

    /// Returns namespace and relation in their stored form.
    pub fn texts(&self) -> (&String, &String) {
        (&self.namespace, &self.relation)
    }

    /// Returns one text that names the edge, with each part percent-encoded. The audit trail uses it.
    pub fn address(&self) -> String {
        let LinkEdge { namespace, from, to, relation } = self;
        address("link", &[namespace, &from.kind, &from.id, &to.kind, &to.id, relation])
    }

    /// Returns the values that are stored as text, each with its name for error messages.
    fn named_texts(&self) -> [(&'static str, &str); 6] {
        let LinkEdge { namespace, from, to, relation } = self;
        [
            ("namespace", namespace),
            ("type", &from.kind),
            ("id", &from.id),
            ("type", &to.kind),
            ("id", &to.id),
            ("relation", relation),
        ]
    }
}

fn trimmed(text: impl AsRef<str>) -> String {
    text.as_ref().trim().to_owned()
}

/// A link as stored.
#[derive(Debug, Clone, PartialEq)]
pub struct Link {
    pub edge: LinkEdge,
    /// The id of the link. It stays the same until the link is deleted.
    pub id: Uuid,
    /// Any JSON value. An upsert replaces it as a whole.
    pub attributes: Value,
    /// The time of the first write.
    pub created_at: Timestamp,
    /// The time of the last write.
    pub updated_at: Timestamp,
    /// The run that created it, if a run did.
    pub created_by: Option<RunId>,
}

/// A selection of links that have one end or both in common.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct LinkEnds {
    pub namespace: String,
    /// The entity at which they begin; `None` = any.
    pub from: Option<Entity>,
    /// The entity at which they end; `None` = any.
    pub to: Option<Entity>,
    /// The relation; `None` = any.
    pub relation: Option<String>,
}

impl LinkEnds {
    /// Returns true if the edge matches.
    pub fn has(&self, edge: &LinkEdge) -> bool {
        self.namespace == edge.namespace
            && self.from.as_ref().is_none_or(|from| *from == edge.from)
            && self.to.as_ref().is_none_or(|to| *to == edge.to)
            && self.relation.as_ref().is_none_or(|relation| *relation == edge.relation)
    }

    fn texts(&self) -> Vec<(&'static str, &str)> {
        let mut texts = vec![("namespace", &self.namespace[..])];
        for end in self.from.iter().chain(&self.to) {
            texts.extend([("type", end.kind()), ("id", end.id())]);
        }
        texts.extend(self.relation.iter().map(|relation| ("relation", &relation[..])));
        texts
    }
}

/// One operation on links. The serialized form is used only to compare requests.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub enum LinkWrite {
    /// Creates the link, or replaces the attributes of the existing one.
    Upsert {
        edge: LinkEdge,
        /// The id of the link if it is created.
        #[serde(skip)]
        id: Uuid,
        /// Any JSON value. It replaces the previous attributes as a whole.
        attributes: Value,
        /// The run that writes, if a run does.
        #[serde(skip)]
        by: Option<RunId>,
    },
    /// Deletes all links that match.
    Delete {
        /// Must name at least one end, because otherwise the number of deleted links would have no bound.
        ends: LinkEnds,
        /// The run that writes, if a run does.
        #[serde(skip)]
        by: Option<RunId>,
    },
}

impl LinkWrite {
    /// Returns the approximate number of rows and bytes that it writes.
    pub(crate) fn size_hint(&self) -> (usize, usize) {
        match self {
            LinkWrite::Upsert { attributes, .. } => (2, json_bytes(attributes)),
            LinkWrite::Delete { .. } => (2, 0),
        }
    }

    /// Returns the values that are stored as text, each with its name for error messages.
    pub(crate) fn texts(&self) -> Vec<(&'static str, &str)> {
        match self {
            LinkWrite::Upsert { edge, .. } => edge.named_texts().to_vec(),
            LinkWrite::Delete { ends, .. } => ends.texts(),
        }
    }

    /// Rejects an operation that is invalid regardless of the stored links.
    pub(crate) fn check(&self, limits: &Limits) -> Result<(), LinkError> {
        let texts = self.texts();
        limits.edge_bytes("the link", texts.iter().map(|(_, text)| text.len()).sum())?;
        for (what, text) in texts {
            if text.is_empty() {
                return Err(LinkError::Empty(what));
            }
            limits.key_chars(what, text.chars().count())?;
        }
        match self {
            LinkWrite::Upsert { attributes, .. } => {
                limits.cell_bytes("the attributes", json_bytes(attributes))?;
            }
            LinkWrite::Delete { ends, .. } if ends.from.is_none() && ends.to.is_none() => {
                return Err(LinkError::NoEnd);
            }
            LinkWrite::Delete { .. } => {}
        }
        Ok(())
    }
}

/// Returns the result of an upsert; its value is the link's id. The value of [`deleted`] is the number of deleted
/// links.
pub(crate) fn upserted(link: &Link, created: bool) -> OpResult {
    let value = Some(Value::String(link.id.to_string()));
    OpResult { revision: 0, created, existed: !created, value }
}

pub(crate) fn deleted(count: usize) -> OpResult {
    OpResult { revision: 0, created: false, existed: count > 0, value: Some(count.into()) }
}

/// The reason an operation on links failed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum LinkError {
    /// A part of the edge is empty.
    #[error("the {0} is empty")]
    Empty(&'static str),
    /// A deletion names neither end.
    #[error("a deletion must name `from` or `to`: without either it would delete every link")]
    NoEnd,
    /// The attributes or a part of the edge are too large, or one deletion matches too many links.
    #[error(transparent)]
    TooLarge(Box<LimitExceeded>),
}

impl From<LimitExceeded> for LinkError {
    fn from(exceeded: LimitExceeded) -> Self {
        LinkError::TooLarge(Box::new(exceeded))
    }
}

/// A query for links of one namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkQuery {
    pub namespace: String,
    pub which: LinkFilter,
    /// The relation; `None` = any.
    pub relation: Option<String>,
    /// Maximum number of links; see [`page_rows`].
    pub limit: u32,
    /// [`Page::next`] of the previous page; `None` = the first page.
    pub cursor: Option<String>,
}

impl LinkQuery {
    /// Builds a query for the link with this edge. If there is no such link, the result is the next one in the listing
    /// or empty.
    pub fn beginning_at(edge: &LinkEdge) -> Self {
        let to = edge.to();
        let before = LinkCursor {
            kind: to.kind.clone(),
            id: to.id.clone(),
            relation: String::new(),
            way: Way::Forward,
        };
        let far = Some(to.kind.clone());
        LinkQuery {
            namespace: edge.namespace.clone(),
            which: LinkFilter::Of { end: edge.from.clone(), direction: Direction::Forward, far },
            relation: Some(edge.relation.clone()),
            limit: 1,
            cursor: Some(place_cursor(&before)),
        }
    }

    /// Builds a query that finds every link with these ends. It may find others too; check them with [`LinkEnds::has`].
    pub fn with_ends(ends: &LinkEnds) -> Self {
        let LinkEnds { namespace, from, to, relation } = ends.clone();
        let (end, direction) = match (from, to) {
            (Some(from), _) => (from, Direction::Forward),
            (None, to) => (to.unwrap_or_else(|| Entity::new("", "")), Direction::Reverse),
        };
        let which = LinkFilter::Of { end, direction, far: None };
        LinkQuery { namespace, which, relation, limit: MAX_PAGE, cursor: None }
    }
}

/// A selection of links within a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkFilter {
    /// All links, in the order of their edges.
    All {
        /// The type of the entity at which they begin.
        from: Option<String>,
        /// The type of the entity at which they end.
        to: Option<String>,
    },
    /// Links of one entity, in the order of the entity at the other end.
    Of {
        end: Entity,
        direction: Direction,
        /// The type of the entity at the other end; `None` = any.
        far: Option<String>,
    },
}

/// The direction in which links are followed from an entity.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// Links that begin at the entity.
    #[default]
    Forward,
    /// Links that end at the entity.
    Reverse,
    /// Both. A link from an entity to itself is found once.
    Either,
}

impl Direction {
    /// Returns the single directions that this one consists of.
    pub fn ways(self) -> &'static [Way] {
        match self {
            Direction::Forward => &[Way::Forward],
            Direction::Reverse => &[Way::Reverse],
            Direction::Either => &[Way::Forward, Way::Reverse],
        }
    }
}

/// A single direction along a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// From its beginning to its end.
    Forward,
    /// From its end to its beginning.
    Reverse,
}

impl Way {
    /// Returns the entity at the other end.
    pub fn far(self, edge: &LinkEdge) -> &Entity {
        match self {
            Way::Forward => &edge.to,
            Way::Reverse => &edge.from,
        }
    }
}

/// The sort key of a listing of one entity's links: the other end, the relation and the direction.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct LinkCursor {
    /// The type of the entity at the other end.
    pub kind: String,
    /// The id of the entity at the other end.
    pub id: String,
    pub relation: String,
    pub way: Way,
}

impl LinkCursor {
    /// Returns a position before every link.
    pub fn beginning() -> Self {
        LinkCursor { kind: String::new(), id: String::new(), relation: String::new(), way: Way::Forward }
    }

    /// Returns the position of a link when it is followed in this direction.
    pub fn of(edge: &LinkEdge, way: Way) -> Self {
        let far = way.far(edge);
        LinkCursor { kind: far.kind.clone(), id: far.id.clone(), relation: edge.relation.clone(), way }
    }
}

/// Merges the links of each direction into one page. Each list is sorted and has up to one row more than the page.
pub fn merged(found: Vec<(Way, Vec<Link>)>, limit: u32) -> Page<Link> {
    let mut all: Vec<(LinkCursor, Link)> = found
        .into_iter()
        .flat_map(|(way, links)| links.into_iter().map(move |link| (LinkCursor::of(&link.edge, way), link)))
        .collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    Page::cut(all, limit, |(place, _)| place_cursor(place)).map(|(_, link)| link)
}

/// Returns true for a link from an entity to itself in the second direction, because the first one has found it
/// already.
pub fn is_found_twice(edge: &LinkEdge, way: Way, direction: Direction) -> bool {
    direction == Direction::Either && way == Way::Reverse && edge.from == edge.to
}

/// Joins texts into one cursor. Each is preceded by its length, because it may contain any character.
fn joined(parts: &[&str]) -> String {
    parts.iter().map(|part| format!("{}:{part}", part.len())).collect()
}

fn split(cursor: &str) -> Option<Vec<String>> {
    let (mut rest, mut parts) = (cursor, Vec::new());
    while !rest.is_empty() {
        let (length, after) = rest.split_once(':')?;
        let length: usize = length.parse().ok()?;
        parts.push(after.get(..length)?.to_owned());
        rest = after.get(length..)?;
    }
    Some(parts)
}

fn place_cursor(place: &LinkCursor) -> String {
    let way = if place.way == Way::Forward { "f" } else { "r" };
    joined(&[&place.kind, &place.id, &place.relation, way])
}

/// Parses a cursor of a listing of one entity's links.
pub fn read_place_cursor(cursor: Option<&str>) -> Result<Option<LinkCursor>, StoreError> {
    let Some(cursor) = cursor else { return Ok(None) };
    let read = || match <[String; 4]>::try_from(split(cursor)?).ok()? {
        [kind, id, relation, way] => {
            let way = match &way[..] {
                "f" => Way::Forward,
                "r" => Way::Reverse,
                _ => return None,
            };
            Some(LinkCursor { kind, id, relation, way })
        }
    };
    read().map(Some).ok_or_else(|| bad_cursor(cursor))
}

/// Returns the cursor after this link in a listing of a namespace.
pub fn edge_cursor(edge: &LinkEdge) -> String {
    let LinkEdge { from, to, relation, .. } = edge;
    joined(&[&from.kind, &from.id, &to.kind, &to.id, relation])
}

/// Parses a cursor of [`edge_cursor`] for a namespace.
pub fn read_edge_cursor(namespace: &str, cursor: Option<&str>) -> Result<Option<LinkEdge>, StoreError> {
    let Some(cursor) = cursor else { return Ok(None) };
    let read = || match <[String; 5]>::try_from(split(cursor)?).ok()? {
        [from_kind, from_id, to_kind, to_id, relation] => Some(LinkEdge {
            namespace: namespace.to_owned(),
            from: Entity { kind: from_kind, id: from_id },
            to: Entity { kind: to_kind, id: to_id },
            relation,
        }),
    };
    read().map(Some).ok_or_else(|| bad_cursor(cursor))
}

/// Returns the number of rows to read in each direction for a page of one entity's links.
pub fn rows_each_way(limit: u32) -> usize {
    page_rows(limit) + 1
}
