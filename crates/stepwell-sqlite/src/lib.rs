//! Stepwell's embedded default: one SQLite file, one writer thread with group commit, a few readers.
//!
//! Whatever waits when the writer is free goes into one transaction with one fsync; everybody is answered after it. A
//! file belongs to one process at a time, told by a lock file beside it. Read `writer.rs` first.

mod apply;
mod connection;
mod error;
mod guard;
mod handles;
mod held;
mod jobs;
mod links;
mod lock;
mod migrate;
mod own;
mod query;
mod reader;
mod rows;
mod seals;
mod shadows;
mod statements;
mod store;
mod sweep;
mod view;
mod wal;
mod writer;

pub use error::{OpenError, WithError};
/// The SQLite library that [`SqliteStore::commit_with`] shows its caller.
pub use rusqlite;
pub use store::{Options, SqliteStore};
pub use view::{flow_view_of, view_of};
