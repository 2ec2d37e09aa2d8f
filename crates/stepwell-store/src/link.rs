//! Links: typed edges between two things that somebody else keeps, each kept once, found from both of its ends.
//!
//! A link is what its edge says; there is nothing else to it but attributes. So an upsert always succeeds and replaces
//! them, and a deletion names edges by what they have in common.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use stepwell_core::limits::json_bytes;
use stepwell_core::{LimitExceeded, Limits, RunId, Timestamp};
use uuid::Uuid;

use crate::cell::{OpResult, address};
use crate::store::{MAX_PAGE, Page, StoreError, bad_cursor, page_rows};

/// The relation of a link that names none.
pub const RELATED: &str = "related";

/// One end of a link: something that is known by its type and id.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Entity {
    kind: String,
    id: String,
}

impl Entity {
    /// A thing; spaces around type and id are not part of them.
    pub fn new(kind: impl AsRef<str>, id: impl AsRef<str>) -> Self {
        Entity { kind: trimmed(kind), id: trimmed(id) }
    }

    /// Its type.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// Its id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Type and id as they are kept.
    pub fn texts(&self) -> (&String, &String) {
        (&self.kind, &self.id)
    }
}

/// What a link is known by.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Edge {
    namespace: String,
    from: Entity,
    to: Entity,
    relation: String,
}

impl Edge {
    /// An edge; spaces around namespace and relation are not part of them.
    pub fn new(namespace: impl AsRef<str>, from: Entity, to: Entity, relation: impl AsRef<str>) -> Self {
        Edge { namespace: trimmed(namespace), from, to, relation: trimmed(relation) }
    }

    /// The namespace it is in.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Where it begins.
    pub fn from(&self) -> &Entity {
        &self.from
    }

    /// Where it ends.
    pub fn to(&self) -> &Entity {
        &self.to
    }

    /// What the one is to the other.
    pub fn relation(&self) -> &str {
        &self.relation
    }

    /// Namespace and relation as they are kept.
    pub fn texts(&self) -> (&String, &String) {
        (&self.namespace, &self.relation)
    }

    /// One text that names it, each part percent-encoded.
    pub fn address(&self) -> String {
        let Edge { namespace, from, to, relation } = self;
        address("link", &[namespace, &from.kind, &from.id, &to.kind, &to.id, relation])
    }

    /// Everything in it that is kept as text.
    fn named_texts(&self) -> [(&'static str, &str); 6] {
        let Edge { namespace, from, to, relation } = self;
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
    /// What it is known by.
    pub edge: Edge,
    /// Its id, from when it was created to when it is deleted.
    pub id: Uuid,
    /// What else is to be said of it.
    pub attributes: Value,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it was last written.
    pub updated_at: Timestamp,
    /// The run that created it, if a run did.
    pub created_by: Option<RunId>,
}

/// Links that have an end in common, or both.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Ends {
    /// The namespace they are in.
    pub namespace: String,
    /// Where they begin.
    pub from: Option<Entity>,
    /// Where they end.
    pub to: Option<Entity>,
    /// What the one is to the other.
    pub relation: Option<String>,
}

impl Ends {
    /// An edge is one of them.
    pub fn has(&self, edge: &Edge) -> bool {
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

/// One operation on links. It is written as JSON only to be compared with another.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub enum LinkWrite {
    /// The edge is there, with these attributes.
    Upsert {
        /// The edge.
        edge: Edge,
        /// The id it gets if it was not there.
        #[serde(skip)]
        id: Uuid,
        /// The attributes, in place of those before.
        attributes: Value,
        /// The run that writes.
        #[serde(skip)]
        by: Option<RunId>,
    },
    /// These edges are not there.
    Delete {
        /// Which; without an end there would be no telling how many.
        ends: Ends,
        /// The run that writes.
        #[serde(skip)]
        by: Option<RunId>,
    },
}

impl LinkWrite {
    /// About how many rows and bytes it writes.
    pub(crate) fn size_hint(&self) -> (usize, usize) {
        match self {
            LinkWrite::Upsert { attributes, .. } => (2, json_bytes(attributes)),
            LinkWrite::Delete { .. } => (2, 0),
        }
    }

    /// Everything in it that is kept as text.
    pub(crate) fn texts(&self) -> Vec<(&'static str, &str)> {
        match self {
            LinkWrite::Upsert { edge, .. } => edge.named_texts().to_vec(),
            LinkWrite::Delete { ends, .. } => ends.texts(),
        }
    }

    /// Refuses what cannot be written, whatever is there.
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

/// What an operation on links gives back: of an upsert the link's id, of a deletion how many went.
pub(crate) fn upserted(link: &Link, created: bool) -> OpResult {
    let value = Some(Value::String(link.id.to_string()));
    OpResult { revision: 0, created, existed: !created, value }
}

pub(crate) fn deleted(count: usize) -> OpResult {
    OpResult { revision: 0, created: false, existed: count > 0, value: Some(count.into()) }
}

/// Why an operation on links cannot be done.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum LinkError {
    /// A part of the edge is empty.
    #[error("the {0} is empty")]
    Empty(&'static str),
    /// A deletion names neither end.
    #[error("name where the links begin or where they end: without either all would be deleted")]
    NoEnd,
    /// The attributes or a part of the edge are too large, or there are too many to be deleted at once.
    #[error(transparent)]
    TooLarge(Box<LimitExceeded>),
}

impl From<LimitExceeded> for LinkError {
    fn from(exceeded: LimitExceeded) -> Self {
        LinkError::TooLarge(Box::new(exceeded))
    }
}

/// Which links.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkQuery {
    /// The namespace they are in.
    pub namespace: String,
    /// Which of those.
    pub which: LinkFilter,
    /// What the one is to the other.
    pub relation: Option<String>,
    /// How many at most.
    pub limit: u32,
    /// Where to begin.
    pub cursor: Option<String>,
}

impl LinkQuery {
    /// The links of a thing in a namespace that an edge begins at, those to where it ends among the first.
    pub fn beginning_at(edge: &Edge) -> Self {
        let to = edge.to();
        let before = LinkPlace {
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

    /// Links among which those with these ends are.
    pub fn with_ends(ends: &Ends) -> Self {
        let Ends { namespace, from, to, relation } = ends.clone();
        let (end, direction) = match (from, to) {
            (Some(from), _) => (from, Direction::Forward),
            (None, to) => (to.unwrap_or_else(|| Entity::new("", "")), Direction::Reverse),
        };
        let which = LinkFilter::Of { end, direction, far: None };
        LinkQuery { namespace, which, relation, limit: MAX_PAGE, cursor: None }
    }
}

/// Which links of a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkFilter {
    /// All of them, in the order of their edges.
    All {
        /// That begin at something of this type.
        from: Option<String>,
        /// That end at something of this type.
        to: Option<String>,
    },
    /// Those of one thing, in the order of the thing at the other end.
    Of {
        /// The thing.
        end: Entity,
        /// Which way to go.
        direction: Direction,
        /// To something of this type.
        far: Option<String>,
    },
}

/// Which way a link is gone along.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// From where it begins.
    #[default]
    Forward,
    /// From where it ends.
    Reverse,
    /// From either of its ends. A link from a thing to itself is found once.
    Either,
}

impl Direction {
    /// The ways there are to go.
    pub fn ways(self) -> &'static [Way] {
        match self {
            Direction::Forward => &[Way::Forward],
            Direction::Reverse => &[Way::Reverse],
            Direction::Either => &[Way::Forward, Way::Reverse],
        }
    }
}

/// One way to go along a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// From where it begins.
    Forward,
    /// From where it ends.
    Reverse,
}

impl Way {
    /// The end that is reached.
    pub fn far(self, edge: &Edge) -> &Entity {
        match self {
            Way::Forward => &edge.to,
            Way::Reverse => &edge.from,
        }
    }
}

/// A place in a listing of the links of one thing: the other end, the relation, and the way there.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct LinkPlace {
    /// The type of the thing at the other end.
    pub kind: String,
    /// Its id.
    pub id: String,
    /// What the one is to the other.
    pub relation: String,
    /// The way there.
    pub way: Way,
}

impl LinkPlace {
    /// Before everything.
    pub fn beginning() -> Self {
        LinkPlace { kind: String::new(), id: String::new(), relation: String::new(), way: Way::Forward }
    }

    /// Where a link is in the listing, gone along one way.
    pub fn of(edge: &Edge, way: Way) -> Self {
        let far = way.far(edge);
        LinkPlace { kind: far.kind.clone(), id: far.id.clone(), relation: edge.relation.clone(), way }
    }
}

/// Merges what was found each way into a page; each list is in the order of the listing, and goes one row further.
pub fn merged(found: Vec<(Way, Vec<Link>)>, limit: u32) -> Page<Link> {
    let mut all: Vec<(LinkPlace, Link)> = found
        .into_iter()
        .flat_map(|(way, links)| links.into_iter().map(move |link| (LinkPlace::of(&link.edge, way), link)))
        .collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    Page::cut(all, limit, |(place, _)| place_cursor(place)).map(|(_, link)| link)
}

/// A link from a thing to itself is found on the way forward only, when both ways are gone.
pub fn is_found_twice(edge: &Edge, way: Way, direction: Direction) -> bool {
    direction == Direction::Either && way == Way::Reverse && edge.from == edge.to
}

/// Texts as one cursor. They may hold any character, so each says how long it is.
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

fn place_cursor(place: &LinkPlace) -> String {
    let way = if place.way == Way::Forward { "f" } else { "r" };
    joined(&[&place.kind, &place.id, &place.relation, way])
}

/// Reads the cursor of a listing of one thing's links.
pub fn read_place_cursor(cursor: Option<&str>) -> Result<Option<LinkPlace>, StoreError> {
    let Some(cursor) = cursor else { return Ok(None) };
    let read = || match <[String; 4]>::try_from(split(cursor)?).ok()? {
        [kind, id, relation, way] => {
            let way = match &way[..] {
                "f" => Way::Forward,
                "r" => Way::Reverse,
                _ => return None,
            };
            Some(LinkPlace { kind, id, relation, way })
        }
    };
    read().map(Some).ok_or_else(|| bad_cursor(cursor))
}

/// The cursor of a listing of a namespace's links that has come to this one.
pub fn edge_cursor(edge: &Edge) -> String {
    let Edge { from, to, relation, .. } = edge;
    joined(&[&from.kind, &from.id, &to.kind, &to.id, relation])
}

/// Reads what [`edge_cursor`] wrote, for a namespace.
pub fn read_edge_cursor(namespace: &str, cursor: Option<&str>) -> Result<Option<Edge>, StoreError> {
    let Some(cursor) = cursor else { return Ok(None) };
    let read = || match <[String; 5]>::try_from(split(cursor)?).ok()? {
        [from_kind, from_id, to_kind, to_id, relation] => Some(Edge {
            namespace: namespace.to_owned(),
            from: Entity { kind: from_kind, id: from_id },
            to: Entity { kind: to_kind, id: to_id },
            relation,
        }),
    };
    read().map(Some).ok_or_else(|| bad_cursor(cursor))
}

/// The rows to read one way for a page of one thing's links.
pub fn rows_each_way(limit: u32) -> usize {
    page_rows(limit) + 1
}
