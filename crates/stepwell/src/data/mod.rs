//! Data that outlives a run: the key-value store, links between entities, and slots that runs share.
//!
//! A write is an operation. Operations are collected in [`Changes`] and applied to the values that the store has at the
//! commit. Outside of runs, [`Engine::write`](crate::Engine::write) and the methods built on it commit at once. An
//! action stages its changes, and they are committed with its result.

pub mod actions;
pub mod changes;
pub(crate) mod document_actions;
mod error;
pub mod kv;
pub mod links;
pub mod slot;
pub(crate) mod slot_actions;
pub mod staged;
pub mod verify;
mod watch;
pub(crate) mod write;

pub use changes::{Amount, Changes, Increment, NewLink, Set};
pub use error::DataError;
pub use kv::{KeyEntry, KeyList, Kv, Namespace};
pub use links::{Links, Lookup, Match};
pub use slot::{Slot, SlotEvent, State};
pub use staged::{Session, StagedKv, StagedLinks, StagedSlot};
pub use verify::{AuditFault, CutSeal, Verified};
pub use watch::Watched;
