//! Routes of flows and events that a program mounts in its own `axum` router.

pub(crate) mod body;
pub mod events;
pub mod flows;
mod form;
pub(crate) mod link;
mod page;
pub(crate) mod problem;
pub(crate) mod reply;
pub(crate) mod token;

pub use events::{EventRoutes, event_routes};
pub use flows::{FlowRoutes, flow_routes};
