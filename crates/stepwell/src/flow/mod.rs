//! Interactive flows: workflows that one call starts and one call resumes.
//!
//! Between calls, the strategy decides where the state is kept: sealed in a token, behind a single-use handle, or as a
//! durable run.
//!
//! A resume is one transaction. The flow runs in memory to its next pause. Then one commit uses up the token, writes
//! everything the steps have staged, and stores the flow's new state. If anything fails before that commit, nothing is
//! written and the token stays valid.

pub mod answer;
mod commit;
mod durable;
mod execution;
pub mod flows;
pub mod keys;
mod link_wait;
mod links;
pub(crate) mod outbox;
pub mod outlet;
mod resume;
pub mod strategy;
mod token;

pub use answer::{Answer, FlowError, Pause};
pub(crate) use flows::REVOKED;
pub use flows::{Flows, FlowsBuilder, Revoke};
pub use keys::{Key, KeyError, KeyRing};
pub(crate) use links::sent_mark;
pub use links::{AnswerLink, CreateAnswerLink};
pub use outlet::{Message, Outgoing, Outlet, OutletError};
pub use resume::Resume;
pub use strategy::{Durable, Handle, Sealed, Strategy};
