//! An embeddable durable workflow engine whose state can rest anywhere.
//!
//! This crate is what programs depend on. An [`Engine`] keeps runs in a [`Store`](store::Store), runs [actions](Action)
//! for them and goes on with them after a crash. Definitions and snapshots are in [`core`], the seam to a database is
//! in [`store`].

pub mod action;
pub mod actor;
mod beside;
mod builtin;
pub mod catalogue;
pub mod cron;
pub mod cx;
pub mod data;
pub mod doctor;
pub mod engine;
pub mod error;
pub mod events;
mod fills;
pub mod fit;
pub mod flow;
mod hold;
pub mod host;
mod landing;
pub mod ledger;
mod lists;
mod look;
pub mod manual_clock;
pub mod meters;
pub mod observe;
pub mod once;
pub mod operate;
mod post;
mod recent;
pub mod registry;
pub mod remote;
mod room;
mod runner;
pub mod schedule;
pub mod secrets;
pub mod shadows;
pub mod signal;
pub mod simulate;
mod slots;
mod spelled;
mod standing;
pub mod start;
pub mod stateless;
pub mod testing;
mod turn;
mod unreadable;
pub mod upkeep;
mod wakes;

pub use action::{Action, ActionError, ActionInfo};
pub use actor::{Actor, Grants, Permission};
pub use catalogue::{Catalogue, CatalogueError};
pub use cx::{Cx, Once, Op};
pub use data::{Changes, DataError};
pub use doctor::{Diagnose, Diagnosis, Finding, RunDiagnosis};
pub use engine::{Builder, Engine, Options, Run, RunView};
pub use error::{EngineError, RunError};
pub use events::{Emitted, Event, EventType};
pub use fit::{CallProblem, check_calls};
pub use host::{Clock, Host, SystemClock};
pub use manual_clock::ManualClock;
pub use meters::Meters;
pub use observe::{Fact, Observer};
pub use once::Done;
pub use operate::{Command, Operator};
pub use remote::{Poll, RemoteAction, Task, TaskId, Tasks};
pub use schedule::{PlacedSchedule, Schedule, check_document_triggers, check_triggers};
pub use secrets::{EnvironmentSecrets, FileSecrets, Secrets};
pub use shadows::Heal;
pub use signal::{FirstAnswer, Signal, Signalled};
pub use simulate::Simulation;
pub use start::{Start, Started};
pub use stepwell_core as core;
pub use stepwell_store as store;
pub use upkeep::{Tidied, Upkeep};

/// An id for a new run: it sorts by the time it was made.
pub fn new_run_id() -> stepwell_core::RunId {
    stepwell_core::RunId::new(host::Ids::next(&host::TimeOrderedIds))
}

/// The README's example is a test.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// So are the examples of the first steps.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/getting-started.md")]
struct GettingStarted;
