//! All limits of Stepwell: their defaults, their configuration names, and the error for an exceeded limit.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::expr::MAX_COPIED_BYTES;

/// The error for a value that exceeds a limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{what} exceeds the limit `{limit}`: {actual}, at most {max} allowed")]
pub struct LimitExceeded {
    /// The configuration name of the limit.
    pub limit: String,
    /// The thing that is too large, such as `the payload`.
    pub what: String,
    /// The measured size, in the unit of the limit.
    pub actual: u64,
    /// The configured maximum, in the unit of the limit.
    pub max: u64,
}

/// A limit with its default and the values that can be configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitInfo {
    /// The configuration name of the limit.
    pub name: &'static str,
    pub default: u64,
    /// The smallest value that can be configured.
    pub least: u64,
    /// The largest value that can be configured. `u64::MAX` = the limit can be unlimited.
    pub most: u64,
    /// A sentence about the limit.
    pub about: &'static str,
}

/// The bound of limits that may be unlimited: only time and memory suffer from a large value.
const UNLIMITED: u64 = u64::MAX;

macro_rules! limits {
    ($($(#[doc = $doc:literal])+ $constant:ident $name:ident = $default:expr, $least:expr, $most:expr;)+) => {
        $($(#[doc = $doc])+ pub const $constant: u64 = $default;)+

        /// The limits in force. Each field is configured under its name.
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
            /// Every limit, in the order of this file.
            pub const ALL: &'static [LimitInfo] = &[$(LimitInfo {
                name: stringify!($name),
                default: $constant,
                least: $least,
                most: $most,
                about: concat!($($doc),+),
            },)+];

            /// Returns the values of all limits, in the order of [`Limits::ALL`].
            fn values(&self) -> impl Iterator<Item = u64> {
                [$(self.$name),+].into_iter()
            }
        }

        $(
            impl Limits {
                /// Returns an error if `actual` exceeds the limit of this name.
                pub fn $name(&self, what: &str, actual: usize) -> Result<(), LimitExceeded> {
                    exceeded(stringify!($name), what, actual as u64, self.$name)
                }
            }
        )+
    };
}

limits! {
    /// Maximum number of places in one definition.
    MAX_PLACES places = 2_000, 1, 100_000;
    /// Maximum number of transitions in one definition.
    MAX_TRANSITIONS transitions = 10_000, 1, 1_000_000;
    /// Maximum number of characters in the name of a workflow, place, transition, signal, action or guard.
    MAX_NAME_CHARS name_chars = 128, 1, 128;
    /// Maximum number of activations that one run may have at a time.
    MAX_ACTIVATIONS activations = 10_000, 1, 1_000_000;
    /// Maximum nesting depth of open forks.
    MAX_FORK_DEPTH fork_depth = 16, 1, 64;
    /// Maximum size of a snapshot as JSON, in bytes.
    MAX_SNAPSHOT_BYTES snapshot_bytes = 4 * 1024 * 1024, 1_000, 16 * 1024 * 1024;
    /// Maximum size of a signal's payload as JSON, in bytes.
    MAX_PAYLOAD_BYTES payload_bytes = 256 * 1024, 1_000, 16 * 1024 * 1024;
    /// Maximum nesting depth of a context, payload, slot, local, input or result.
    MAX_VALUE_DEPTH value_depth = 64, 4, 64;
    /// Maximum number of session slots in one run.
    MAX_SESSION_KEYS session_keys = 256, 0, UNLIMITED;
    /// Maximum size of all session slots of one run as JSON, in bytes.
    MAX_SESSION_BYTES session_bytes = 32 * 1024, 0, UNLIMITED;
    /// Maximum size of a payload, input or output in a history entry, in bytes. Larger values are truncated.
    MAX_HISTORY_VALUE_BYTES history_value_bytes = 4 * 1024, 0, UNLIMITED;
    /// Maximum number of children that one transition may start.
    MAX_CHILDREN children = 1_000, 0, UNLIMITED;
    /// Maximum number of messages in the inbox of one run.
    MAX_INBOX inbox = 1_000, 1, UNLIMITED;
    /// Maximum size of a cell's value as JSON, in bytes.
    MAX_CELL_BYTES cell_bytes = 256 * 1024, 10, 16 * 1024 * 1024;
    /// Maximum number of characters in a cell's key, namespace or owner.
    MAX_KEY_CHARS key_chars = 256, 1, 256;
    /// Maximum size of a link's namespace, types, ids and relation together, in bytes. Every supported database can
    /// index keys of this size.
    MAX_EDGE_BYTES edge_bytes = 2_400, 64, 2_400;
    /// Maximum number of rows that one commit may write.
    MAX_COMMIT_ROWS commit_rows = 20_000, 100, UNLIMITED;
    /// Maximum size of one commit, in bytes.
    MAX_COMMIT_BYTES commit_bytes = 16 * 1024 * 1024, 64 * 1024, 256 * 1024 * 1024;
    /// Maximum size of a sealed token, in bytes.
    MAX_TOKEN_BYTES token_bytes = 16 * 1024, 1_000, 1024 * 1024;
    /// Maximum number of rounds of one loop.
    MAX_LOOP_ROUNDS loop_rounds = 1_000_000, 1, UNLIMITED;
    /// Maximum number of commits that a flow may make between two pauses.
    MAX_FLOW_MOVES flow_moves = 1_000, 1, UNLIMITED;
    /// Maximum number of rows on one page of a list.
    MAX_PAGE_ROWS page_rows = 200, 200, 200;
    /// Maximum number of starts in one request of many starts.
    MAX_BATCH_STARTS batch_starts = 1_000, 1, 10_000;
    /// Maximum number of run ids in one bulk command. A filter has no such limit.
    MAX_BULK_IDS bulk_ids = 1_000, 1, 10_000;
    /// Maximum number of runs that one bulk command touches.
    MAX_BULK_RUNS bulk_runs = 100_000, 1, UNLIMITED;
}

impl Limits {
    /// Returns an error if a limit is out of its bounds, or if the limits contradict each other.
    ///
    /// An expression must be able to return everything that it can read: the state of a run and a payload.
    pub fn check(&self) -> Result<(), String> {
        for (LimitInfo { name, least, most, .. }, value) in Limits::ALL.iter().zip(self.values()) {
            if value < *least || value > *most {
                let most = if *most == UNLIMITED { "unlimited".to_owned() } else { most.to_string() };
                return Err(format!("the limit `{name}` must be from {least} to {most} (got {value})"));
            }
        }
        let readable = self.snapshot_bytes.saturating_add(self.payload_bytes);
        let copied = MAX_COPIED_BYTES as u64;
        if readable <= copied {
            return Ok(());
        }
        Err(format!(
            "the limits `snapshot_bytes` ({}) and `payload_bytes` ({}) are {readable} bytes together, but an \
            expression can return at most {copied} bytes: reduce one of them",
            self.snapshot_bytes, self.payload_bytes
        ))
    }

    /// Returns an error if the value is nested too deeply. Stored values must be readable again, and JSON readers
    /// have a depth limit.
    pub fn nesting(&self, what: &str, value: &Value) -> Result<(), LimitExceeded> {
        self.value_depth(what, depth(value, self.value_depth.saturating_add(1)))
    }
}

/// Returns the size of a value as JSON, in bytes, without building the text.
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

/// Returns the nesting depth of a value. Counting stops at `most`.
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
