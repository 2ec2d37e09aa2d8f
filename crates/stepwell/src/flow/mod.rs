//! Interactive flows: a workflow that is started and resumed in one call each, and rests in between wherever its strategy says:
//! sealed in a token, behind a single-use handle, or as a durable run.
//!
//! A resume is one transaction: the flow is opened, goes on to its next pause in memory, and one commit uses up what it was
//! resumed by, writes everything its steps have staged and puts the flow where it rests next. If anything goes wrong before
//! that commit, nothing has happened and the token is still good.

pub mod answer;
mod durable;
pub mod flows;
pub mod keys;
pub mod outlet;
mod pass;
pub(crate) mod post;
mod rest;
mod resume;
pub mod strategy;
mod token;

pub use answer::{Answer, FlowError, Pause};
pub use durable::LinkTo;
pub(crate) use durable::sent_mark;
pub use flows::{Flows, FlowsBuilder, Revoke};
pub use keys::{Key, KeyError, KeyRing};
pub use outlet::{Message, Outgoing, Outlet, OutletError};
pub use resume::Resume;
pub use strategy::{Durable, Handle, Sealed, Strategy};
