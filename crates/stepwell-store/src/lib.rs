//! The storage layer of Stepwell: the [`Store`] trait, the values that it takes and returns, and an in-memory store.
//!
//! A durable write is one value, [`Commit`], with everything that a decision changes. A store applies it atomically. A
//! backend implements [`Store`] and knows nothing about workflows.
//!
//! [`MemoryStore`] is the reference model. [`Faulty`] injects faults into another store, and [`Traced`] adds tracing
//! spans to one. The feature `suite` contains the conformance tests that every backend must pass.

pub mod bad;
pub mod cell;
pub mod commit;
pub mod delta;
pub mod document;
pub mod faulty;
pub mod handle;
pub mod hints;
pub mod link;
pub mod memory;
pub mod meter;
pub mod plan;
pub mod retention;
pub mod run;
pub mod run_query;
pub mod run_scan;
pub mod scope;
pub mod seal;
pub mod shadow;
pub mod store;
#[cfg(all(feature = "suite", not(test)))]
pub mod suite;
pub mod traced;

pub use bad::{BadRow, Listing, Seen};
pub use cell::{
    Cell, CellError, CellKey, CellOp, CellWrite, Initial, OpResult, Precondition, Space, Ttl, ValueType,
};
pub use commit::{
    AuditRow, Commit, CommitError, CommitId, CommitRef, CommitTrace, Committed, Delivery, KeyLifetime,
    KeyWrite, NewMessage, NewRun, NextState, OnMissingRun, Ownership, Refused, ResultBinding, ResultPart,
    RunUpdate, SendMessage, StoredDefinition,
};
pub use document::{Document, DocumentError, DocumentOp, DocumentQuery, DocumentWrite};
pub use faulty::{Fault, Faulty};
pub use handle::{HandleChange, HandleHash, HandleKind, HandleQuery, HandleRow, HandleWrite};
pub use hints::{Hint, HintSender, Hints};
pub use link::{
    Direction, Entity, Link, LinkEdge, LinkEnds, LinkError, LinkFilter, LinkQuery, LinkWrite, RELATED,
};
pub use memory::MemoryStore;
pub use meter::{BatchMeter, Instruments};
pub use run::{
    Chain, Head, Loaded, Parent, ProcessId, RunRow, RunSummary, Status, StoredMessage, StoredWait,
};
pub use run_query::{
    BadIdPrefix, IdPrefix, MAX_ROWS_READ, MAX_RUN_COUNT, RunCount, RunCounts, RunFilter, RunOrder, RunQuery,
    START_OPERATION,
};
pub use run_scan::{RunIndex, RunPage, RunScan, ScannedPart};
pub use scope::{RunKey, TenantId, TenantScope};
pub use seal::{Seal, SealedRow};
pub use shadow::{RefillColumn, ShadowCondition, ShadowFilter, ShadowRefill, ShadowRow, ShadowWrite};
pub use store::{
    CellFilter, CellQuery, Claim, Cleanup, CleanupKind, CleanupResult, ClockReading, CountQuery, DueTenant,
    EndedBefore, Heartbeat, HistoryQuery, HistoryRow, Membership, Page, Record, RecordQuery, Recorded,
    SchemaVersion, Store, StoreError, WaitFilter, WaitQuery, WaitRow,
};
pub use traced::Traced;
