//! The seam between Stepwell and a database.
//!
//! A durable write is a value, [`Commit`]: everything a decision changes, applied whole or not at all. A backend
//! implements [`Store`] and knows nothing about workflows. [`MemoryStore`] is the reference model, [`Faulty`] and
//! [`Traced`] are stores around stores, and `suite` (a feature of this crate) is the behaviour every backend shows.

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
pub mod scope;
pub mod seal;
pub mod shadow;
pub mod store;
#[cfg(all(feature = "suite", not(test)))]
pub mod suite;
pub mod traced;

pub use bad::{BadRow, Listing, Seen};
pub use cell::{
    Cell, CellError, CellKey, CellOp, CellWrite, Expect, Initial, OpResult, Space, Ttl, ValueType,
};
pub use commit::{
    AuditRow, Commit, CommitError, CommitId, CommitRef, Committed, Delivery, Fill, FillPart, KeyWrite, Lives,
    Missing, NewMessage, NewRun, NextState, Ownership, Refused, Send, Step, StoredDefinition, Whereabouts,
};
pub use document::{Document, DocumentError, DocumentOp, DocumentQuery, DocumentWrite};
pub use faulty::{Fault, Faulty};
pub use handle::{HandleChange, HandleHash, HandleKind, HandleQuery, HandleRow, HandleWrite};
pub use hints::{Hint, HintSender, Hints};
pub use link::{Direction, Edge, Ends, Entity, Link, LinkError, LinkFilter, LinkQuery, LinkWrite, RELATED};
pub use memory::MemoryStore;
pub use meter::{BatchMeter, Instruments};
pub use run::{Chain, Head, Loaded, Message, OpenWait, Parent, ProcessId, RunRow, RunSummary, Status};
pub use scope::{RunKey, TenantId, TenantScope};
pub use seal::{Seal, SealedRow};
pub use shadow::{Refill, Refilled, ShadowRow, ShadowWrite};
pub use store::{
    Beat, Beaten, CellFilter, CellQuery, Claim, Due, HistoryQuery, HistoryRow, Page, Reading, Record,
    RecordQuery, Recorded, RunQuery, SchemaVersion, Store, StoreError, Sweep, SweepWhat, Swept, Tally,
    WaitQuery, WaitRow, WaitsOf,
};
pub use traced::Traced;
