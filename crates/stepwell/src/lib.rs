//! An embeddable durable workflow engine whose state can rest anywhere.
//!
//! This crate is what programs depend on. For now it holds the [`turn`]: load a run, decide an event, commit what was
//! decided, and decide again if the run has moved meanwhile. Definitions and snapshots are in [`core`], the seam to a
//! database is in [`store`].

pub mod turn;

pub use stepwell_core as core;
pub use stepwell_store as store;
pub use turn::{Clock, Desk, SystemClock, TurnError, Turned};

/// An id for a new run: it sorts by the time it was made.
pub fn new_run_id() -> stepwell_core::RunId {
    stepwell_core::RunId::new(uuid::Uuid::now_v7())
}

/// The README's example is a test.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
