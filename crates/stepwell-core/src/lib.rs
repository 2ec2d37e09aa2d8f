//! The pure core of Stepwell: workflow definitions, the state of a run, and the function that decides its next state.
//!
//! Nothing here does I/O, reads a clock, draws random numbers or depends on a runtime. Time, ids and the results of
//! named guards are arguments. Read the modules in this order: [`spec`] (a workflow as its author writes it),
//! [`definition`] (the same, checked and indexed), [`snapshot`] (the complete state of one run) and [`mod@dispatch`]
//! (the decision function).
//!
//! ```
//! use stepwell_core::{Decision, Input, RunId, Spec, Timestamp, dispatch, start};
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
//! let event = Input::signal("APPROVE", json!({"by": "ann"}));
//! let Decision::Change(change) = dispatch(&approval, &created.snapshot, &event, &Default::default(), now)? else {
//!     unreachable!("the transition has no action")
//! };
//! assert_eq!(change.snapshot.version(), 1);
//! assert!(change.snapshot.is_terminal());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod admission;
pub mod answerer;
pub mod builder;
pub mod codes;
pub mod definition;
pub mod dispatch;
pub mod document;
pub mod expr;
pub mod fork_run;
pub mod frame;
pub mod graph;
pub mod guard;
pub mod heartbeat;
pub mod history;
pub mod ids;
pub mod instance;
pub mod join;
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
pub mod template;
pub mod time;
pub mod topic;
pub mod trigger;

mod check;
mod decision_builder;
mod rounds;
mod save;
mod ways;

pub use answerer::Answerer;
pub use check::{Location, Problem, ProblemCode, Problems};
pub use definition::Definition;
pub use dispatch::{
    ActionCall, ActionResult, Cause, Change, Decision, Input, RetryRequest, available, can_execute, dispatch,
    start,
};
pub use document::WorkflowSource;
pub use fork_run::{ForkError, fork_run};
pub use guard::{Answers, Guards, Question, questions, questions_of_available};
pub use history::{History, HistoryEntry};
pub use ids::{DefinitionHash, Name, RunId};
pub use instance::Instance;
pub use limits::{LimitExceeded, Limits};
pub use migrate::{Mapping, MigrationError, Obstacle, migrate};
pub use needs::Requirements;
pub use refusal::{DecideError, Failure, Refusal, Rejected};
pub use snapshot::{Activation, PlaceStatus, RestoreError, Snapshot};
pub use spec::Spec;
pub use time::Timestamp;
