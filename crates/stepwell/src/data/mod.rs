//! What outlives a run: the key-value store, links between things, and slots that runs share.
//!
//! A write is an operation, put together as [`Changes`] and applied to the value as it is at the commit. Outside of runs a
//! commit is made at once ([`Engine::write`](crate::Engine::write) and what is built on it); an action stages its changes and they go
//! with its result.

pub mod actions;
pub mod changes;
mod error;
pub mod kv;
pub mod links;
pub mod slot;
pub mod staged;
pub mod verify;
mod watch;
pub(crate) mod write;

pub use changes::{Amount, Changes, Increment, NewLink, Set};
pub use error::DataError;
pub use kv::{Entry, Kv, List, Namespace};
pub use links::{Links, Lookup, Match};
pub use slot::{Slot, SlotEvent, State};
pub use staged::{Session, StagedKv, StagedLinks, StagedSlot};
pub use verify::{Fault, Verified};
pub use watch::Watched;
