//! Stepwell is an embeddable durable workflow engine. State is kept in a database, in a sealed token or behind a
//! handle.
//!
//! Programs depend on this crate. An [`Engine`] stores runs in a [`Store`](store::Store), executes [actions](Action)
//! for them and resumes them after a crash. Definitions and snapshots are in [`core`]; the database interface is in
//! [`store`].

pub mod action;
pub mod actor;
pub mod admission;
mod answering;
mod apply_outcome;
mod builtin;
pub mod bulk;
pub mod call_check;
pub mod catalogue;
mod commit_cycle;
mod commit_in;
mod concurrency;
pub mod cron;
pub mod cx;
pub mod data;
pub mod delete;
pub mod doctor;
pub mod engine;
pub mod error;
pub mod events;
pub mod flow;
pub mod host;
pub mod idempotent;
mod inbox;
pub mod ledger;
mod lists;
mod loaded_run;
pub mod maintenance;
pub mod manual_clock;
pub mod meters;
pub mod observe;
pub mod operate;
mod outage;
pub mod pause;
mod planner;
mod predictions;
pub mod preview;
mod recent;
mod redaction;
pub mod registry;
pub mod remote;
mod run_driver;
mod run_ids;
mod runner;
pub mod schedule;
pub mod secrets;
pub mod shadows;
pub mod signal;
pub mod simulate;
mod slots;
pub mod start;
mod start_many;
pub mod stateless;
pub mod testing;
pub mod timeline;
mod unreadable;
pub mod waits;
mod wakes;

pub use action::{Action, ActionError, ActionInfo};
pub use actor::{Actor, Grants, Permission};
pub use admission::RunLimit;
pub use bulk::{Bulk, BulkCommand, BulkOutcome, BulkPart, BulkResult, BulkStatus, BulkTarget, BulkView};
pub use call_check::{CallProblem, check_calls};
pub use catalogue::{Catalogue, CatalogueError};
pub use cx::{Cx, Once, Op};
pub use data::{Changes, DataError};
pub use delete::{DeleteRun, DeletedRun, DeletedRuns};
pub use doctor::{Diagnose, Diagnosis, Finding, RunDiagnosis};
pub use engine::{Builder, Engine, Options, Run, RunView};
pub use error::{EngineError, RunError};
pub use events::{Emitted, Event, EventType};
pub use host::{Clock, Host, SystemClock};
pub use idempotent::Idempotent;
pub use maintenance::{MaintenanceRound, MaintenanceTotals};
pub use manual_clock::ManualClock;
pub use meters::Meters;
pub use observe::{Observation, Observer};
pub use operate::{Command, Operator};
pub use pause::{PauseOf, Paused, Pauses, RunNow};
pub use preview::{Effect, SignalPreview};
pub use remote::{Poll, RemoteAction, Task, TaskId, Tasks};
pub use schedule::{PlacedSchedule, Schedule, check_document_triggers, check_triggers};
pub use secrets::{EnvironmentSecrets, FileSecrets, Secrets};
pub use shadows::Heal;
pub use signal::{FirstAnswer, Signal, Signalled};
pub use simulate::Simulation;
pub use start::{Start, Started};
pub use stepwell_core as core;
pub use stepwell_store as store;
pub use timeline::{TimelineItem, TimelinePage};
pub use waits::{AnswerWait, FailWait, ListWaits, OpenWaitRow, WaitId};

/// Returns a new run id. Ids sort by their time of creation.
pub fn new_run_id() -> stepwell_core::RunId {
    stepwell_core::RunId::new(host::Ids::next(&host::TimeOrderedIds))
}

/// Compiles and runs the code in the README as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// Compiles and runs the code in the getting-started guide as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/getting-started.md")]
struct GettingStarted;
