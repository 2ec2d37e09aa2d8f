//! Stepwell's embedded default store: one SQLite file, one writer thread with group commit, a few reader threads.
//!
//! The writer puts all queued commits into one transaction with one fsync, and answers them after it. Only one process
//! at a time can open a file; a lock file next to it enforces that. Start reading with `writer.rs`.

mod apply;
mod background;
mod backup;
mod cell_cache;
mod check;
mod cleanup;
mod connection;
mod copy;
mod error;
mod fsync;
mod guard;
mod handles;
mod jobs;
mod links;
mod listed;
mod listing;
mod lock;
mod migrate;
mod names;
mod own;
mod partial;
mod query;
mod reader;
mod restore;
mod rows;
mod seals;
mod shadows;
mod source;
mod statements;
mod store;
mod sum;
mod view;
mod wal;
mod writer;

pub use backup::{Backup, BackupError, BackupProgress, Existing, backup_file};
pub use check::{CheckReport, Sizes, check};
pub use error::{OpenError, WithError};
pub use fsync::{FsyncRate, fsync_rate};
pub use restore::{Restored, restore};
/// The SQLite library whose connection [`SqliteStore::commit_with`] passes to the caller's function.
pub use rusqlite;
pub use store::{Options, SqliteStore};
pub use view::{flow_view_of, view_of};
