//! Every limit Stepwell has: its default, the name it is configured by, and the error that says it was reached.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Something was larger than its limit allows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{what} has {actual} where at most {max} are allowed (limit `{limit}`)")]
pub struct LimitExceeded {
    /// The limit's configuration name.
    pub limit: String,
    /// What was too large.
    pub what: String,
    /// How much it had.
    pub actual: u64,
    /// How much is allowed.
    pub max: u64,
}

macro_rules! limits {
    ($($(#[doc = $doc:literal])+ $constant:ident $name:ident = $default:expr;)+) => {
        $($(#[doc = $doc])+ pub const $constant: u64 = $default;)+

        /// The limits in force; each field is configured under its own name.
        #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct Limits {
            $($(#[doc = $doc])+ pub $name: u64,)+
        }

        impl Default for Limits {
            fn default() -> Self {
                Limits { $($name: $constant,)+ }
            }
        }

        impl Limits {
            /// Name, default and meaning of every limit, in the order of this file.
            pub const ALL: &'static [(&'static str, u64, &'static str)] =
                &[$((stringify!($name), $constant, concat!($($doc),+)),)+];
        }

        $(
            impl Limits {
                /// Refuses `actual` if it is over the limit of this name.
                pub fn $name(&self, what: &str, actual: usize) -> Result<(), LimitExceeded> {
                    exceeded(stringify!($name), what, actual as u64, self.$name)
                }
            }
        )+
    };
}

limits! {
    /// Places in one definition.
    MAX_PLACES places = 2_000;
    /// Transitions in one definition.
    MAX_TRANSITIONS transitions = 10_000;
    /// Characters in a name (workflow, place, transition, signal, action, guard).
    MAX_NAME_CHARS name_chars = 128;
    /// Activations alive in one run at a time.
    MAX_ACTIVATIONS activations = 10_000;
    /// Forks that may be open inside one another.
    MAX_FORK_DEPTH fork_depth = 16;
    /// Bytes of a snapshot's JSON.
    MAX_SNAPSHOT_BYTES snapshot_bytes = 4 * 1024 * 1024;
    /// Bytes of a signal's payload as JSON.
    MAX_PAYLOAD_BYTES payload_bytes = 256 * 1024;
    /// Levels of nesting in a context, payload, slot, local, input or result.
    MAX_VALUE_DEPTH value_depth = 64;
    /// Keys of session slots in one run.
    MAX_SESSION_KEYS session_keys = 256;
    /// Bytes of all session slots of one run as JSON.
    MAX_SESSION_BYTES session_bytes = 32 * 1024;
    /// Bytes of a payload, input or output kept in a history entry; more is cut.
    MAX_HISTORY_VALUE_BYTES history_value_bytes = 4 * 1024;
    /// Children one transition may start.
    MAX_CHILDREN children = 1_000;
    /// Messages kept in one run's inbox.
    MAX_INBOX inbox = 1_000;
    /// Bytes of a cell's value as JSON.
    MAX_CELL_BYTES cell_bytes = 256 * 1024;
    /// Characters in a cell's key, namespace or owner.
    MAX_KEY_CHARS key_chars = 256;
    /// Bytes of a link's namespace, types, ids and relation together: what an index of every database takes.
    MAX_EDGE_BYTES edge_bytes = 2_400;
    /// Rows one commit may write.
    MAX_COMMIT_ROWS commit_rows = 20_000;
    /// Bytes one commit may carry.
    MAX_COMMIT_BYTES commit_bytes = 16 * 1024 * 1024;
    /// Bytes of a sealed token.
    MAX_TOKEN_BYTES token_bytes = 16 * 1024;
    /// Rounds of one loop.
    MAX_LOOP_ROUNDS loop_rounds = 1_000_000;
    /// Moves that a flow may make between two pauses.
    MAX_FLOW_MOVES flow_moves = 1_000;
    /// Rows a page of a listing may have.
    MAX_PAGE_ROWS page_rows = 200;
}

impl Limits {
    /// Refuses a value that nests deeper than allowed: what is stored has to be readable again, and JSON readers
    /// stop at a depth.
    pub fn nesting(&self, what: &str, value: &Value) -> Result<(), LimitExceeded> {
        self.value_depth(what, depth(value, self.value_depth.saturating_add(1)))
    }
}

/// How many bytes a value has as JSON, counted without writing it down.
pub fn json_bytes(value: &Value) -> usize {
    struct Count(usize);
    impl std::io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    serde_json::to_writer(&mut count, value).expect("counting bytes does not fail");
    count.0
}

/// How many levels of lists and objects a value has, counted no further than `most`.
fn depth(value: &Value, most: u64) -> usize {
    let inner = most.saturating_sub(1);
    match value {
        Value::Array(items) if most > 0 => 1 + items.iter().map(|item| depth(item, inner)).max().unwrap_or(0),
        Value::Object(fields) if most > 0 => {
            1 + fields.values().map(|field| depth(field, inner)).max().unwrap_or(0)
        }
        _ => 0,
    }
}

fn exceeded(limit: &str, what: &str, actual: u64, max: u64) -> Result<(), LimitExceeded> {
    if actual <= max {
        return Ok(());
    }
    Err(LimitExceeded { limit: limit.to_owned(), what: what.to_owned(), actual, max })
}
