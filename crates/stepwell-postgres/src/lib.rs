//! The store for many processes: PostgreSQL, batched commits, claims that never wait for a lock, ready for Citus.
//!
//! All queued commits of one tenant go into one statement and one transaction, and are answered after it. Any number of
//! processes can share a database. Each holds a session lock while it is alive, so that the others notice when it has
//! ended. Start reading with `writer.rs`, then `apply.rs` and `sql/commit.sql`.

mod apply;
#[cfg(test)]
mod citus_rules;
mod cleanup;
#[cfg(feature = "cluster")]
pub mod cluster;
mod columns;
mod connection;
mod error;
mod handles;
mod heartbeats;
mod jobs;
mod links;
mod listed;
mod listing;
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
mod target;
#[cfg(feature = "cluster")]
pub mod test_schema;
#[cfg(feature = "tls")]
mod tls;
mod view;
mod writer;

pub use connection::PoolUse;
pub use error::OpenError;
pub use own::TransactionalCommit;
pub use status::DatabaseStatus;
pub use store::{Options, PostgresStore};
pub use target::role_of;
/// The driver whose transactions [`PostgresStore::commit_in`] takes.
pub use tokio_postgres;
pub use view::{flow_view_of, view_of};
