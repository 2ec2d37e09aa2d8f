//! Stepwell for many processes: PostgreSQL, batched commits, claims that nobody waits for, ready for Citus.
//!
//! Whatever waits of one tenant goes into one statement and one transaction; everybody is answered after it. Any number
//! of processes share a database: each holds a session lock while it lives, and whoever looks knows who has died. Read
//! `writer.rs` first, then `apply.rs` and `sql/commit.sql`.

mod apply;
#[cfg(feature = "cluster")]
pub mod cluster;
mod columns;
mod connection;
mod error;
#[cfg(feature = "cluster")]
pub mod ground;
mod handles;
mod jobs;
mod links;
mod listed;
mod migrate;
mod outbox;
mod own;
mod plain;
mod planned;
mod query;
mod records;
mod rows;
mod seals;
mod session;
mod shadows;
mod statements;
mod status;
mod store;
mod sweep;
mod view;
mod writer;

pub use connection::PoolUse;
pub use error::OpenError;
pub use own::Along;
pub use status::Status;
pub use store::{Options, PostgresStore};
/// The driver whose transactions commits can be made part of.
pub use tokio_postgres;
pub use view::{flow_view_of, view_of};
