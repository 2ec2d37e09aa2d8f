//! Stepwell's embedded default: one SQLite file, one writer thread with group commit, a few readers.
//!
//! Whatever waits when the writer is free goes into one transaction with one fsync; everybody is answered after it. A
//! file belongs to one process at a time, told by a lock file beside it. Read `writer.rs` first.

mod apply;
mod aside;
mod backup;
mod check;
mod connection;
mod copy;
mod error;
mod fsync;
mod guard;
mod handles;
mod held;
mod jobs;
mod links;
mod listed;
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
mod sweep;
mod view;
mod wal;
mod writer;

pub use backup::{Backup, BackupError, BackupProgress, Existing, backup_file};
pub use check::{CheckReport, Sizes, check};
pub use error::{OpenError, WithError};
pub use fsync::{FsyncRate, fsync_rate};
pub use restore::{Restored, restore};
/// The SQLite library that [`SqliteStore::commit_with`] shows its caller.
pub use rusqlite;
pub use store::{Options, SqliteStore};
pub use view::{flow_view_of, view_of};
