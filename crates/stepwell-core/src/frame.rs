//! The loops and error scopes an activation is in, and the lists that loops go through.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

use crate::ids::Name;
use crate::limits::json_bytes;

/// A loop or an error scope that an activation is in.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Frame {
    /// The place of the loop or scope.
    pub place: Name,
    /// Which round of the loop it is, counted from 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub round: u32,
    /// The list that the loop goes through.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub list: Option<ListId>,
    /// What the rounds before this one gave, if it is collected.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub results: Vec<Value>,
    /// Locals that were there under the names of its own; they come back when it is left.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub hidden: Map<String, Value>,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// A list by its content.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ListId(String);

impl ListId {
    /// The id of a list that is written as this JSON.
    pub fn of_json(json: &[u8]) -> Self {
        let hash = Sha256::digest(json);
        ListId(hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect())
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A list that loops or forks go through; cloning it is cheap.
#[derive(Debug, Clone, PartialEq)]
pub struct List {
    items: Arc<Vec<Value>>,
    bytes: usize,
}

/// A list of at most so many bytes is kept inside its snapshot.
const SHORT: usize = 1_024;

impl List {
    /// A list, and its id.
    pub(crate) fn new(items: Vec<Value>) -> (ListId, List) {
        let json = serde_json::to_vec(&items).expect("a list of values is plain data");
        (ListId::of_json(&json), List { items: Arc::new(items), bytes: json.len() })
    }

    /// Reads what [`List::to_json`] wrote.
    pub fn from_json(json: &[u8]) -> Result<List, serde_json::Error> {
        let items = serde_json::from_slice(json)?;
        Ok(List { items: Arc::new(items), bytes: json.len() })
    }

    /// The list as JSON.
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(&*self.items).expect("a list of values is plain data")
    }

    /// It is kept beside the snapshot, not in it.
    pub fn is_long(&self) -> bool {
        self.bytes > SHORT
    }

    pub(crate) fn items(&self) -> &[Value] {
        &self.items
    }
}

/// The lists that a snapshot's loops and forks go through, by their ids. Written down are only the short ones: a long one is
/// kept once, beside the snapshots that need it.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Lists(pub(crate) BTreeMap<ListId, List>);

impl Lists {
    pub(crate) fn has_no_short(&self) -> bool {
        self.0.values().all(List::is_long)
    }

    pub(crate) fn long(&self) -> impl Iterator<Item = (&ListId, &List)> {
        self.0.iter().filter(|(_, list)| list.is_long())
    }
}

impl Serialize for Lists {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(
            self.0.iter().filter(|(_, list)| !list.is_long()).map(|(id, list)| (id, &*list.items)),
        )
    }
}

impl<'de> Deserialize<'de> for Lists {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Lists, D::Error> {
        let lists = BTreeMap::<ListId, Vec<Value>>::deserialize(deserializer)?;
        let counted = |items: Vec<Value>| {
            // A bracket at each end, and a comma between two items.
            let bytes = items.iter().map(json_bytes).sum::<usize>() + items.len().saturating_sub(1) + 2;
            List { items: Arc::new(items), bytes }
        };
        Ok(Lists(lists.into_iter().map(|(id, items)| (id, counted(items))).collect()))
    }
}
