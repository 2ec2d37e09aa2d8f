//! Stepwell's pure heart: what a workflow is, what its state is, and the one function that decides what
//! happens next.
//!
//! Nothing here does IO, reads a clock, draws randomness or knows a runtime: time, ids and the answers of
//! named guards are arguments. Read in this order: [`spec`] (what an author writes), [`definition`] (the same,
//! checked and indexed), [`snapshot`] (the complete state of one run) and [`mod@dispatch`] (decide).
//!
//! ```
//! use stepwell_core::{Decision, Event, RunId, Spec, Timestamp, dispatch, start};
//! use serde_json::json;
//!
//! let approval = Spec::new("approval")
//!     .step("draft")
//!     .end("approved")
//!     .end("rejected")
//!     .signal("APPROVE")
//!     .signal("REJECT")
//!     .on_signal("approve", "draft", "APPROVE", "approved")
//!     .on_signal("reject", "draft", "REJECT", "rejected")
//!     .build()?;
//!
//! let now = Timestamp::from_millis(1_700_000_000_000);
//! let created = start(&approval, RunId::nil(), json!({"amount": 12}), now)?;
//! let event = Event::signal("APPROVE", json!({"by": "ann"}));
//! let Decision::Change(change) = dispatch(&approval, &created.snapshot, &event, &Default::default(), now)? else {
//!     unreachable!("the transition has no action")
//! };
//! assert_eq!(change.snapshot.version(), 1);
//! assert!(change.snapshot.is_terminal());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod branch_off;
pub mod builder;
pub mod definition;
pub mod dispatch;
pub mod document;
pub mod expr;
pub mod frame;
pub mod graph;
pub mod guard;
pub mod history;
pub mod ids;
pub mod instance;
pub mod limits;
pub mod migrate;
pub mod near;
pub mod needs;
pub mod patch;
pub mod refusal;
pub mod retry;
pub mod schema;
pub mod shadow;
pub mod snapshot;
pub mod spec;
pub mod starter;
pub mod template;
pub mod time;
pub mod topic;

mod check;
mod rounds;
mod save;
mod turn;
mod ways;

pub use branch_off::{CannotBranchOff, branch_off};
pub use check::{Location, Problem, ProblemCode, Problems};
pub use definition::Definition;
pub use dispatch::{
    ActionCall, Cause, Change, Decision, Event, Outcome, Retrial, available, can_execute, dispatch, start,
};
pub use document::Document;
pub use guard::{Answers, Guards, Question, questions};
pub use history::{Entry, History};
pub use ids::{DefinitionHash, Name, RunId};
pub use instance::Instance;
pub use limits::{LimitExceeded, Limits};
pub use migrate::{CannotMigrate, Mapping, Obstacle, migrate};
pub use needs::Needs;
pub use refusal::{DecideError, Failure, Refusal, Rejected};
pub use snapshot::{Activation, PlaceStatus, RestoreError, Snapshot};
pub use spec::Spec;
pub use time::Timestamp;
