//! What a server of flows is made of: [routes] that programs mount in their own `axum` router, [outlets] that reach
//! people and programs, and [actions] with which workflows do.

pub mod actions;
pub mod api;
mod escape;
pub mod outlets;
pub mod routes;
pub mod serve;
pub mod telemetry;
