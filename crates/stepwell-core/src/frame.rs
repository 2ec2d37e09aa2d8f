//! Frames: the loops and error scopes that an activation is in, and the lists that loops iterate over.

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
    /// The current round of the loop, counted from 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub round: u32,
    /// The list that the loop iterates over. A loop over pages has none while it fetches a page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub list: Option<ListId>,
    /// The number of rounds before the current page of a loop over pages.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub before_page: u32,
    /// The results of the earlier rounds, if they are collected.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub results: Vec<Value>,
    /// Locals that are shadowed by the locals of this frame. They are restored when the frame is left.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub hidden: Map<String, Value>,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// The id of a list, derived from its content.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ListId(String);

impl ListId {
    /// Computes the id of a list from its JSON.
    pub fn of_json(json: &[u8]) -> Self {
        let hash = Sha256::digest(json);
        ListId(hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect())
    }

    /// Returns the id as a string slice.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A list that loops or forks iterate over; cloning it is cheap.
#[derive(Debug, Clone, PartialEq)]
pub struct List {
    items: Arc<Vec<Value>>,
    bytes: usize,
}

/// Maximum size in bytes of a list that is stored inside its snapshot.
const SHORT: usize = 1_024;

impl List {
    /// Creates a list and computes its id.
    pub(crate) fn new(items: Vec<Value>) -> (ListId, List) {
        let json = serde_json::to_vec(&items).expect("a list of values is plain data");
        (ListId::of_json(&json), List { items: Arc::new(items), bytes: json.len() })
    }

    /// Parses the output of [`List::to_json`].
    pub fn from_json(json: &[u8]) -> Result<List, serde_json::Error> {
        let items = serde_json::from_slice(json)?;
        Ok(List { items: Arc::new(items), bytes: json.len() })
    }

    /// Serializes the list as JSON.
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(&*self.items).expect("a list of values is plain data")
    }

    /// Returns true if the list is stored separately from the snapshot.
    pub fn is_long(&self) -> bool {
        self.bytes > SHORT
    }

    pub(crate) fn items(&self) -> &[Value] {
        &self.items
    }
}

/// The lists that a snapshot's loops and forks iterate over, by id. Only short lists are serialized with the
/// snapshot. A long list is stored once, separately from the snapshots that need it.
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
